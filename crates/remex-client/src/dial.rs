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
            let stream = UnixStream::connect(path)
                .await
                .map_err(|error| unreachable(&target.to_string(), unix_reason(path, &error)))?;
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
    let wrong = |reason: String| Error::Address { address: address.clone(), reason };
    let url = Url::parse(address).map_err(|reason| wrong(reason.to_owned()))?;
    let addresses: Vec<_> = lookup_host((url.host, url.port))
        .await
        .map_err(|error| unreachable(address, name_reason(url.host, &error)))?
        .collect();
    let stream =
        TcpStream::connect(&*addresses).await.map_err(|error| unreachable(address, tcp_reason(&error)))?;
    let target = remex_rpc::Target {
        host: url.authority,
        path: &url.path,
        bearer: bearer.as_deref(),
        max_message_len: MAX_MESSAGE_LEN,
    };
    match remex_rpc::connect(stream, &target).await {
        Ok((reader, writer)) => Ok(Link::websocket(reader, writer)),
        Err(ConnectError::Refused { status: status @ (401 | 403) }) => {
            Err(Error::Unauthorized { target: address.clone(), status, presented: bearer.is_some() })
        }
        Err(error @ ConnectError::InvalidTarget { .. }) => Err(wrong(error.to_string())),
        Err(error) => Err(unreachable(address, handshake_reason(&error))),
    }
}

fn name_reason(host: &str, error: &io::Error) -> String {
    format!("cannot resolve host `{host}` ({error}); check the name and the network")
}

fn tcp_reason(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::ConnectionRefused => {
            "connection refused; start `remex serve` or check the port".to_owned()
        }
        io::ErrorKind::HostUnreachable | io::ErrorKind::NetworkUnreachable => {
            "no route to host; check the address and the network".to_owned()
        }
        io::ErrorKind::TimedOut => {
            "connection timed out; check the address, the network and firewalls".to_owned()
        }
        _ => format!("{error}; check the address and the network"),
    }
}

fn handshake_reason(error: &ConnectError) -> String {
    let advice = match error {
        ConnectError::Refused { status: 300..=399 } => "; the server has moved: ask for its new address",
        ConnectError::Refused { status: 500..=599 } => {
            "; it is starting, shutting down or overloaded: try again later"
        }
        ConnectError::Refused { .. } => "; check the host and the path",
        ConnectError::Closed => "; check that a remex server listens there, and check its log",
        ConnectError::Failed(_) => "; try again",
        // Their messages already contain a hint.
        ConnectError::NotWebSocket | ConnectError::InvalidTarget { .. } => "",
    };
    format!("{error}{advice}")
}

fn unix_reason(path: &Path, error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::NotFound => format!(
            "no such socket; start `remex serve --listen unix://{}` or check the path",
            path.display()
        ),
        io::ErrorKind::ConnectionRefused => {
            "connection refused: nothing listens there, or it is not a socket; start `remex serve` or check the path".to_owned()
        }
        io::ErrorKind::PermissionDenied => {
            "permission denied; run as the user of the server".to_owned()
        }
        // The only check before the system call.
        io::ErrorKind::InvalidInput => "the path is too long for a socket; use a shorter path".to_owned(),
        io::ErrorKind::WouldBlock => "too many connections are waiting; try again".to_owned(),
        _ => format!("{error}; check the path"),
    }
}
