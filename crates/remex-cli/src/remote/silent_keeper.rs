//! Reports an unresponsive keeper, the process that runs the durable processes of a server, to a command that waits for it.

use std::{pin::pin, time::Duration};

use remex_client::Client;
use remex_proto::environment::Keeper;

use crate::render::{failure::Failure, print};

/// How long a command waits in silence before the server is asked for the reason, which takes up to two seconds more.
const SILENCE: Duration = Duration::from_millis(500);

/// Waits for an answer, and reports on stderr if the keeper of the server delays it.
pub(crate) async fn explained<T>(client: &Client, answer: impl Future<Output = T>) -> T {
    let mut answer = pin!(answer);
    let explained = async {
        tokio::time::sleep(SILENCE).await;
        if let Some(pid) = silent_keeper(client).await {
            print::note(format!(
                "waiting for the keeper of the server (pid {pid}), which does not respond; {}",
                hint(pid)
            ));
        }
    };
    tokio::select! {
        biased;
        answer = &mut answer => return answer,
        () = explained => {}
    }
    answer.await
}

/// Returns the failure for a command that is blocked by an unresponsive keeper, if it is.
pub(crate) async fn failure(client: &Client, what: String) -> Option<Failure> {
    let pid = silent_keeper(client).await?;
    let cause = format!("the keeper of the server (pid {pid}) does not respond");
    Some(Failure::new(what, hint(pid)).because(cause))
}

/// Returns the pid of the keeper if it does not respond.
async fn silent_keeper(client: &Client) -> Option<u32> {
    match client.durable_state().await.ok()??.keeper? {
        Keeper { pid, responds: false, .. } => Some(pid),
        Keeper { .. } => None,
    }
}

fn hint(pid: u32) -> String {
    format!(
        "if it is suspended, `kill -CONT {pid}` on that host resumes it; otherwise check the disk of its state directory"
    )
}
