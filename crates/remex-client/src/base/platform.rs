//! What depends on the platform that the client runs on: local permissions and links, and unix sockets.
//!
//! Windows has none of them. Programs have modules of their own, see [`program`](crate::transport::program).

#[cfg(feature = "trees")]
pub(crate) mod files;
#[cfg(unix)]
mod unix_server;

use std::{fmt, io, path::Path};

use remex_rpc::{ReadHalf, WriteHalf};

/// Connects to a unix socket, unless what listens there cannot be trusted with command lines and environments; then the
/// cause of the error is an [`Untrusted`].
#[cfg(unix)]
pub(crate) async fn connect_unix(path: &Path) -> io::Result<(ReadHalf, WriteHalf)> {
    let stream = tokio::net::UnixStream::connect(path).await?;
    unix_server::check(&stream, path)?;
    let (reader, writer) = stream.into_split();
    Ok((Box::new(reader), Box::new(writer)))
}

/// Why a program that listens on a unix socket is sent nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(not(target_os = "linux"), allow(dead_code, reason = "other platforms cannot tell"))]
pub(crate) enum Untrusted {
    /// A sandbox confines it, and it would learn what the sandbox hides from it.
    Jailed { pid: u32 },
    /// The process that opened the socket has ended, so whether a sandbox confined it is unknown.
    Gone { pid: u32 },
    /// It runs as another user, who may have created the socket in a directory that others can write.
    Foreign { user: u32 },
}

impl Untrusted {
    /// Returns what to do about it.
    pub(crate) fn hint(self) -> &'static str {
        match self {
            Self::Jailed { .. } => "end that process, or connect to a server outside of the sandbox",
            Self::Gone { .. } => "start the server again",
            Self::Foreign { .. } => {
                "let the server listen in a directory in which only its user can create files, or check the path"
            }
        }
    }
}

impl fmt::Display for Untrusted {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Jailed { pid } => write!(out, "process {pid}, which listens there, is in a remex sandbox"),
            Self::Gone { pid } => write!(out, "process {pid}, which opened the socket, has ended"),
            Self::Foreign { user } => write!(
                out,
                "what listens there belongs to user {user}, and others can create files in that directory"
            ),
        }
    }
}

impl std::error::Error for Untrusted {}

#[cfg(not(unix))]
pub(crate) async fn connect_unix(_: &Path) -> io::Result<(ReadHalf, WriteHalf)> {
    Err(io::Error::new(io::ErrorKind::Unsupported, "this platform has no unix sockets"))
}
