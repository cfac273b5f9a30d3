//! How messages are delimited on a byte stream.

/// How messages are delimited on a byte stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Framing {
    /// One message per line: stdio, unix sockets, memory.
    Lines,
    /// One message per WebSocket message; the role is that of this end.
    WebSocket(Role),
}

/// Which end of a WebSocket this is. The client masks what it sends, the server does not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// The end that accepted the connection.
    Server,
    /// The end that opened the connection.
    Client,
}
