//! Processes that outlive their server: what clients see when it is killed, stopped and replaced.

mod collecting;
mod crashes;
mod descriptors;
mod frozen;
mod host;
mod incarnations;
mod links;
mod logs;
mod memory;
mod restart_failures;
mod restart_followers;
mod restart_full;
mod restart_handles;
mod restart_policy;
mod restart_turns;
mod restarts;
mod space;
mod started_again;
mod status;
mod storage;
mod units;
mod upgrades;
mod users;

use std::time::Duration;

use tokio::time::timeout;

use crate::support::PATIENCE;

/// Waits for a result that the test needs to continue.
async fn in_time<T>(what: &str, future: impl Future<Output = T>) -> T {
    timeout(PATIENCE, future).await.unwrap_or_else(|_| panic!("{what} takes too long"))
}

/// Waits until `holds`; fails with what was awaited.
async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let waiting = async {
        while !holds() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    in_time(what, waiting).await;
}
