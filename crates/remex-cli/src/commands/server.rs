//! `remex server`: the status of the user's local remex server, and stopping it.

mod elsewhere;

use std::{io, time::Duration};

use remex_client::Client;
use rustix::process::{Pid, Signal};
use serde::Serialize;

use elsewhere::DurableProcesses;

use super::Outcome;
use crate::{
    args::server::{Command, Flags, Status, Stop},
    remote::{
        endpoint::Endpoint,
        lock_holder::Ending,
        processes::{Processes, Row},
        user_server::{self, ServerStatus, Socket},
    },
    render::{confirm, failure::Failure, print},
};

/// How long the server may take to exit, including the grace period of its processes.
const STOP_TIMEOUT: Duration = Duration::from_secs(15);

pub(crate) async fn run(flags: &Flags) -> Outcome {
    match &flags.command {
        Command::Status(flags) => status(flags).await,
        Command::Stop(flags) => stop(flags).await,
    }
}

/// The JSON of `server status`; docs/json.md documents it.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct StatusJson {
    state: &'static str,
    socket: String,
    pid: Option<i32>,
    server_version: Option<String>,
    running: Option<usize>,
    ended: Option<usize>,
}

async fn status(flags: &Status) -> Outcome {
    let usual = Socket::default_path();
    let mut shown = StatusJson {
        state: "stopped",
        socket: usual.path.display().to_string(),
        pid: None,
        server_version: None,
        running: None,
        ended: None,
    };
    let (code, text) = match user_server::find().await? {
        ServerStatus::Running(socket) => {
            let client = connect(&socket).await?;
            let rows = Processes::list(&client).await?.rows;
            let running = rows.iter().filter(|row| row.is_running()).count();
            let server = &client.welcome().server;
            let version = format!("{} {}", server.name, server.version);
            shown.state = "running";
            shown.pid = user_server::process(&socket).await.ok().map(Pid::as_raw_nonzero).map(Into::into);
            (shown.running, shown.ended) = (Some(running), Some(rows.len() - running));
            let pid = shown.pid.map(|pid| format!(", pid {pid}")).unwrap_or_default();
            let text = format!(
                "running ({version}{pid}) at {}: {running} running, {} exited",
                shown.socket,
                rows.len() - running
            );
            shown.server_version = Some(version);
            let _ = client.end().await;
            (0, text)
        }
        ServerStatus::Nothing => (3, "not running; it is started on demand".to_owned()),
        ServerStatus::Died => {
            shown.state = "died";
            (3, user_server::explain_stale_socket().to_owned())
        }
    };
    if flags.format.json {
        print::json(&shown)?;
    } else {
        print::out(text + "\n")?;
    }
    Ok(code)
}

async fn stop(flags: &Stop) -> Outcome {
    if let Some(state) = &flags.state {
        let durable = if flags.all { DurableProcesses::End } else { DurableProcesses::RunOn };
        return elsewhere::stop_in_state(state, durable).await;
    }
    if let Some(environment) = &flags.on {
        return elsewhere::end_all_on(&Endpoint::named(environment)?).await;
    }
    // The durable processes of a crashed server are ended, too.
    let Some(socket) = user_server::running().await? else {
        return Err(user_server::not_running().await);
    };
    let pid = user_server::process(&socket).await?;
    let client = connect(&socket).await?;
    let rows = Processes::list(&client).await?.rows;
    let running: Vec<_> = rows.iter().filter(|row| row.is_running()).map(Row::described).collect();
    if !running.is_empty() && !flags.force && !flags.all {
        let names = running.join(", ");
        if !confirm::is_possible() {
            return Err(Failure::new(
                "cannot stop your local remex server",
                "add `--force` to stop it anyway",
            )
            .because(format!("{names} would end with it")));
        }
        if !confirm::ask(&format!("{names} will end with your local remex server; stop it?")).await {
            return Err(Failure::new(
                "your local remex server was not stopped",
                "add `--force` to skip the question",
            ));
        }
    }
    // Durable processes would outlive the server.
    let sessions = client.sessions().await.map_err(Failure::from)?;
    for session in sessions.iter().filter(|session| session.session_id != client.session_id()) {
        client.end_session(&session.session_id).await.map_err(Failure::from)?;
    }
    let _ = client.end().await;
    let io_failure = |error: io::Error| Failure::io("stop your local remex server", &error);
    let process = Ending::open(pid).map_err(io_failure)?;
    process.signal(Signal::TERM).map_err(io_failure)?;
    let ended = tokio::task::spawn_blocking(move || process.exits_within(STOP_TIMEOUT)).await;
    if !ended.is_ok_and(|ended| ended) {
        return Err(Failure::new(
            format!("your local remex server (pid {}) does not exit", pid.as_raw_nonzero()),
            "look for a process blocked in the kernel",
        ));
    }
    print::out(format!("stopped your local remex server (pid {})\n", pid.as_raw_nonzero()))?;
    for name in running {
        print::out(format!("ended {name}\n"))?;
    }
    Ok(0)
}

async fn connect(socket: &Socket) -> Result<Client, Failure> {
    Endpoint::user_server(socket.clone()).connect(|_| {}).await
}
