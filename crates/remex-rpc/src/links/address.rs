//! Listen addresses in their textual form.

use std::{fmt, net::SocketAddr, path::PathBuf, str::FromStr};

/// Where a server listens.
///
/// Written as `stdio` (or `stdio://`), `ws://IP:PORT`, `wss://IP:PORT` or `unix:///path`; the path is taken verbatim.
///
/// ```
/// use remex_rpc::ListenAddress;
///
/// let address: ListenAddress = "ws://[::1]:0".parse()?;
/// assert_eq!(address.to_string(), "ws://[::1]:0");
/// # Ok::<(), remex_rpc::AddressError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum ListenAddress {
    /// One connection on standard input and output.
    Stdio,
    /// A TCP port that speaks HTTP and WebSocket; port 0 picks a free one.
    WebSocket(SocketAddr),
    /// The same, encrypted with TLS.
    SecureWebSocket(SocketAddr),
    /// A unix socket at an absolute path.
    Unix(PathBuf),
}

/// Why a text is not a [`ListenAddress`]; each variant contains the text.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}; {}", self.message(), self.hint())]
pub enum AddressError {
    /// `ws://` or `wss://` is not followed by an IP address and a port.
    InvalidWebSocket(String),
    /// `unix://` is not followed by an absolute path.
    InvalidUnix(String),
    /// Anything else.
    Unsupported(String),
}

impl AddressError {
    /// Returns what is wrong, without what is valid.
    pub fn message(&self) -> String {
        match self {
            Self::InvalidWebSocket(url) => format!("invalid websocket --listen URL `{url}`"),
            Self::InvalidUnix(url) => format!("invalid unix --listen URL `{url}`"),
            Self::Unsupported(url) => format!("unsupported --listen URL `{url}`"),
        }
    }

    /// Returns what is valid.
    pub fn hint(&self) -> &'static str {
        match self {
            Self::InvalidWebSocket(url) if url.starts_with("wss://") => "expected `wss://IP:PORT`",
            Self::InvalidWebSocket(_) => "expected `ws://IP:PORT`",
            Self::InvalidUnix(_) => "expected `unix:///path`",
            Self::Unsupported(_) => "expected `ws://IP:PORT` or `stdio` or `unix:///path` or `wss://IP:PORT`",
        }
    }
}

impl FromStr for ListenAddress {
    type Err = AddressError;

    fn from_str(url: &str) -> Result<Self, AddressError> {
        if url == "stdio" || url == "stdio://" {
            return Ok(ListenAddress::Stdio);
        }
        if let Some(address) = url.strip_prefix("ws://") {
            let address = address.parse().map_err(|_| AddressError::InvalidWebSocket(url.to_owned()))?;
            return Ok(ListenAddress::WebSocket(address));
        }
        if let Some(address) = url.strip_prefix("wss://") {
            let address = address.parse().map_err(|_| AddressError::InvalidWebSocket(url.to_owned()))?;
            return Ok(ListenAddress::SecureWebSocket(address));
        }
        match url.strip_prefix("unix://") {
            Some(path) if path.starts_with('/') => Ok(ListenAddress::Unix(path.into())),
            Some(_) => Err(AddressError::InvalidUnix(url.to_owned())),
            None => Err(AddressError::Unsupported(url.to_owned())),
        }
    }
}

impl fmt::Display for ListenAddress {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ListenAddress::Stdio => out.write_str("stdio"),
            ListenAddress::WebSocket(address) => write!(out, "ws://{address}"),
            ListenAddress::SecureWebSocket(address) => write!(out, "wss://{address}"),
            ListenAddress::Unix(path) => write!(out, "unix://{}", path.display()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_printed_as_it_was_written() {
        for url in [
            "stdio",
            "ws://127.0.0.1:0",
            "ws://[::1]:65535",
            "wss://127.0.0.1:0",
            "unix:///run/user/1000/remex socket",
        ] {
            assert_eq!(url.parse::<ListenAddress>().unwrap().to_string(), url);
        }
        assert_eq!("stdio://".parse(), Ok(ListenAddress::Stdio));
    }

    #[test]
    fn a_wrong_address_is_quoted_with_what_was_expected() {
        for (url, message) in [
            (
                "ws://localhost:80",
                "invalid websocket --listen URL `ws://localhost:80`; expected `ws://IP:PORT`",
            ),
            (
                "ws://127.0.0.1:65536",
                "invalid websocket --listen URL `ws://127.0.0.1:65536`; expected `ws://IP:PORT`",
            ),
            ("ws://127.0.0.1", "invalid websocket --listen URL `ws://127.0.0.1`; expected `ws://IP:PORT`"),
            ("ws://", "invalid websocket --listen URL `ws://`; expected `ws://IP:PORT`"),
            ("wss://localhost", "invalid websocket --listen URL `wss://localhost`; expected `wss://IP:PORT`"),
            ("unix://here", "invalid unix --listen URL `unix://here`; expected `unix:///path`"),
            (
                "http://127.0.0.1:80",
                "unsupported --listen URL `http://127.0.0.1:80`; expected `ws://IP:PORT` or `stdio` or `unix:///path` or `wss://IP:PORT`",
            ),
            (
                "",
                "unsupported --listen URL ``; expected `ws://IP:PORT` or `stdio` or `unix:///path` or `wss://IP:PORT`",
            ),
        ] {
            assert_eq!(url.parse::<ListenAddress>().unwrap_err().to_string(), message);
        }
    }
}
