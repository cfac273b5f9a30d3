//! Opens connections.
//!
//! Nothing here has a timeout: the caller adds one. Dropping a future leaves nothing behind. Start at [`dial`].

#[cfg(test)]
mod tests;

use std::{io, path::Path};

use remex_rpc::ConnectError;
use tokio::net::{TcpStream, UnixStream, lookup_host};

use crate::{
    Error, Prompts, Target, WebSocket,
    error::unreachable,
    link::{Link, MAX_MESSAGE_LEN},
    program,
    url::Url,
};

/// Opens one connection to a server, without the handshake of the protocol.
pub(crate) async fn dial(target: &Target, prompts: Prompts) -> Result<Link, Error> {
    match target {
        Target::WebSocket(websocket) => dial_websocket(websocket).await,
        Target::Unix(path) => {
            let stream = UnixStream::connect(path).await.map_err(|error| unix_error(target, path, &error))?;
            let (reader, writer) = stream.into_split();
            Ok(Link::lines(Box::new(reader), Box::new(writer)))
        }
        Target::Program(program) => {
            let (reader, writer, child) = program::start(program, prompts).await?;
            Ok(Link::lines(reader, writer).with_child(child))
        }
        Target::Custom(custom) => custom.dial.dial().await,
    }
}

async fn dial_websocket(websocket: &WebSocket) -> Result<Link, Error> {
    let WebSocket { url: address, bearer } = websocket;
    let invalid = |reason: String, hint: &str| Error::Address {
        address: address.clone(),
        reason,
        hint: hint.to_owned(),
    };
    let url = Url::parse(address).map_err(|error| invalid(error.reason.to_owned(), error.hint))?;
    let addresses: Vec<_> = lookup_host((url.host, url.port))
        .await
        .map_err(|error| {
            let reason = format!("cannot resolve host `{}` ({error})", url.host);
            unreachable(address, reason, "check the name and the network")
        })?
        .collect();
    let stream = TcpStream::connect(&*addresses).await.map_err(|error| tcp_error(address, &error))?;
    // Small messages must not wait for more.
    stream.set_nodelay(true).map_err(|error| tcp_error(address, &error))?;
    let target = remex_rpc::Target {
        host: url.authority,
        path: &url.path,
        bearer: bearer.as_deref(),
        headers: &[],
        max_message_len: MAX_MESSAGE_LEN,
    };
    match remex_rpc::connect(stream, &target).await {
        Ok((reader, writer)) => Ok(Link::websocket(reader, writer)),
        Err(ConnectError::Refused { status: status @ (401 | 403) }) => {
            Err(Error::Unauthorized { target: address.clone(), status, presented: bearer.is_some() })
        }
        Err(error @ ConnectError::InvalidTarget { .. }) => Err(invalid(error.message(), error.hint())),
        Err(error) => Err(unreachable(address, error.message(), error.hint())),
    }
}

fn tcp_error(address: &str, error: &io::Error) -> Error {
    let (reason, hint) = match error.kind() {
        io::ErrorKind::ConnectionRefused => {
            ("connection refused".to_owned(), "start `remex serve` or check the port")
        }
        io::ErrorKind::HostUnreachable | io::ErrorKind::NetworkUnreachable => {
            ("no route to host".to_owned(), "check the address and the network")
        }
        io::ErrorKind::TimedOut => {
            ("connection timed out".to_owned(), "check the address, the network and firewalls")
        }
        _ => (error.to_string(), "check the address and the network"),
    };
    unreachable(address, reason, hint)
}

fn unix_error(target: &Target, path: &Path, error: &io::Error) -> Error {
    let (reason, hint) = match error.kind() {
        io::ErrorKind::NotFound => {
            let hint = format!("start `remex serve --listen unix://{}` or check the path", path.display());
            return unreachable(&target.to_string(), "no such socket", hint);
        }
        io::ErrorKind::ConnectionRefused => (
            "connection refused: nothing listens there, or it is not a socket".to_owned(),
            "start `remex serve` or check the path",
        ),
        io::ErrorKind::PermissionDenied => ("permission denied".to_owned(), "run as the user of the server"),
        // The only check before the system call.
        io::ErrorKind::InvalidInput => ("the path is too long for a socket".to_owned(), "use a shorter path"),
        io::ErrorKind::WouldBlock => ("too many connections are waiting".to_owned(), "try again"),
        _ => (error.to_string(), "check the path"),
    };
    unreachable(&target.to_string(), reason, hint)
}
