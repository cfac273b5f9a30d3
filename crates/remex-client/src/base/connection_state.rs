//! Whether a client is connected to its server.
//!
//! Start at [`ConnectionState`].

use tokio::time::Instant;

use crate::{Error, SessionLost};

/// Whether a client is connected to its server.
///
/// ```
/// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let client = remex_client::Client::connect(remex::Local::here()?.target()).await?;
/// use remex_client::{ConnectionState, SessionLost};
///
/// let witness = client.clone();
/// assert_eq!(witness.connection_state(), ConnectionState::Connected);
/// client.close().await;
/// assert_eq!(witness.connection_state(), ConnectionState::Lost(SessionLost::Closed));
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum ConnectionState {
    /// The client is connected.
    Connected,
    /// The connection was lost, and the client is reconnecting; calls wait.
    #[non_exhaustive]
    Reconnecting {
        /// When the disconnect was detected.
        since: Instant,
        /// How the connection ended, or why the last attempt to reconnect failed.
        cause: Box<Error>,
        /// How many attempts to reconnect have failed.
        attempts: u32,
    },
    /// The session is lost; every call fails with this cause.
    Lost(SessionLost),
}
