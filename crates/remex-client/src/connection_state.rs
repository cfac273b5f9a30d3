//! How a client stands with its server.
//!
//! Start at [`Condition`].

use tokio::time::Instant;

use crate::Loss;

/// How a client stands with its server.
///
/// ```
/// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let client = remex_client::Client::connect(remex::Local::here()?.target()).await?;
/// use remex_client::{Condition, Loss};
///
/// let witness = client.clone();
/// assert_eq!(witness.condition(), Condition::Connected);
/// client.leave().await;
/// assert_eq!(witness.condition(), Condition::Lost(Loss::Closed));
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Condition {
    /// There is a connection.
    Connected,
    /// The connection was cut, and a new one is being made; calls wait.
    Recovering {
        /// When the cut was noticed.
        since: Instant,
    },
    /// The session is lost; every call fails with the cause.
    Lost(Loss),
}
