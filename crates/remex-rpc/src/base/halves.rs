//! The two halves of a connection.

use tokio::io::{AsyncRead, AsyncWrite};

/// The receiving half of a connection over any transport.
pub type ReadHalf = Box<dyn AsyncRead + Send + Unpin>;

/// The sending half of a connection over any transport.
pub type WriteHalf = Box<dyn AsyncWrite + Send + Unpin>;
