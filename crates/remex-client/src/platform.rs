//! What depends on the platform that the client runs on: local permissions and links, and unix sockets.
//!
//! Windows has none of them. Programs have modules of their own, see [`program`](crate::program).

#[cfg(feature = "trees")]
pub(crate) mod files;

use std::{io, path::Path};

use remex_rpc::{ReadHalf, WriteHalf};

/// Connects to a unix socket.
#[cfg(unix)]
pub(crate) async fn connect_unix(path: &Path) -> io::Result<(ReadHalf, WriteHalf)> {
    let (reader, writer) = tokio::net::UnixStream::connect(path).await?.into_split();
    Ok((Box::new(reader), Box::new(writer)))
}

#[cfg(not(unix))]
pub(crate) async fn connect_unix(_: &Path) -> io::Result<(ReadHalf, WriteHalf)> {
    Err(io::Error::new(io::ErrorKind::Unsupported, "this platform has no unix sockets"))
}
