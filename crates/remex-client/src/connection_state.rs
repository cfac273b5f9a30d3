//! How a client stands with its server.
//!
//! Start at [`ConnectionState`].

use tokio::time::Instant;

use crate::SessionLost;

/// How a client stands with its server.
///
/// ```
/// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let client = remex_client::Client::connect(remex::Local::here()?.target()).await?;
/// use remex_client::{ConnectionState, SessionLost};
///
/// let witness = client.clone();
/// assert_eq!(witness.connection_state(), ConnectionState::Connected);
/// client.disconnect().await;
/// assert_eq!(witness.connection_state(), ConnectionState::Lost(SessionLost::Closed));
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ConnectionState {
    /// There is a connection.
    Connected,
    /// The connection was cut, and a new one is being made; calls wait.
    Reconnecting {
        /// When the cut was noticed.
        since: Instant,
    },
    /// The session is lost; every call fails with the cause.
    Lost(SessionLost),
}
