//! `remex restart`: ends processes with everything they started, and starts them again as they were started.

use remex_client::{
    Client, ErrorKind,
    process::{ProcessRef, Termination},
};
use serde::Serialize;

use super::Outcome;
use crate::{
    args::restart::Flags,
    remote::{
        endpoint::DefaultEndpoint,
        processes::{Action, Processes, Row},
        silent_keeper,
    },
    render::{failure::Failure, print, text::plain},
};

pub(crate) async fn run(flags: &Flags) -> Outcome {
    let endpoint = flags.on.endpoint(DefaultEndpoint::RunningUserServer).await?;
    let client = endpoint.connect(|_| {}).await?;
    let processes = Processes::list(&client).await?;
    let (mut failed, mut said, mut restarted) = (None::<Failure>, Ok(()), Vec::new());
    let rows = processes.find_confirmed(&flags.names, Action::Restart).await?;
    let termination = match flags.grace {
        grace if grace.is_zero() => Termination::Kill,
        grace => Termination::Graceful(grace),
    };
    for row in rows {
        match restart(&client, &processes.process_ref(row), row, termination).await {
            // Continue with the others even if stdout is closed.
            Ok(pid) if flags.format.json => restarted.push(RestartedProcess::of(row, pid)),
            Ok(_) => said = said.and_then(|()| print::out(format!("{}\n", plain(&row.name)))),
            Err(failure) => {
                if let Some(earlier) = failed.replace(failure) {
                    earlier.print();
                }
            }
        }
    }
    if flags.format.json {
        said = print::json(&Listing { processes: restarted });
    }
    let _ = client.end().await;
    match failed {
        Some(failure) => Err(failure),
        None => said.map(|()| 0),
    }
}

async fn restart(
    client: &Client,
    process: &ProcessRef,
    row: &Row,
    termination: Termination,
) -> Result<Option<u32>, Failure> {
    let name = plain(&row.name);
    let cannot =
        |why: &str, hint: String| Failure::new(format!("cannot restart `{name}`"), hint).because(why);
    let error = match silent_keeper::explained(client, process.restart(termination)).await {
        Ok(restarted) => return Ok(restarted.pid),
        Err(error) => error,
    };
    Err(match error.kind() {
        Some(ErrorKind::UnknownMethod) => cannot(
            "its server is older than this command",
            "replace that server with `remex upgrade`; what is started then can be restarted".to_owned(),
        ),
        Some(ErrorKind::SessionAttached) => cannot(
            "the client that has started it is still connected, and would take that for its end",
            "detach `remex run` from it first, with `~.`".to_owned(),
        ),
        Some(ErrorKind::NotSupported) if row.is_running() => Failure::from(error)
            .with_hint(format!("end it with `remex kill --tree {name}`, and run it again with its command")),
        _ => error.into(),
    })
}

/// The JSON of `restart`; docs/json.md documents it.
#[derive(Serialize)]
struct Listing<'a> {
    processes: Vec<RestartedProcess<'a>>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct RestartedProcess<'a> {
    name: &'a str,
    process_id: &'a str,
    session_id: &'a str,
    /// That of the new process.
    pid: Option<u32>,
}

impl<'a> RestartedProcess<'a> {
    fn of(row: &'a Row, pid: Option<u32>) -> Self {
        let entry = &row.entry;
        Self { name: &row.name, process_id: &entry.process_id, session_id: &entry.session_id, pid }
    }
}
