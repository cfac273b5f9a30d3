//! `remex upgrade`: replaces a running server by the program that is now on disk.

use std::{
    io,
    path::{Path, PathBuf},
    time::Duration,
};

use remex_client::Client;
use rustix::process::{Pid, Signal};

use super::{
    Outcome,
    serve::handover::{REFUSED, SERVING, version_of},
    there,
};
use crate::{
    args::upgrade::Flags,
    remote::{
        endpoint::Endpoint,
        lock_holder::{Ending, Found, ServerWords, check_here, holder},
        processes::{Processes, Row},
        user_server::{self, ServerStatus, Socket},
    },
    render::{failure::Failure, print},
};

/// How long the new program may take until it serves.
const PATIENCE: Duration = Duration::from_secs(60);
const PAUSE: Duration = Duration::from_millis(10);

pub(crate) async fn run(flags: &Flags) -> Outcome {
    if let Some(environment) = &flags.on {
        return there::upgrade(&Endpoint::named(environment)?).await;
    }
    let text = match &flags.state {
        Some(directory) => upgrade(directory).await.map(|Upgraded { pid, program, version }| {
            format!("the server (pid {pid}) now runs {version} from {}\n", program.display())
        })?,
        None => upgrade_own().await?,
    };
    print::out(text)?;
    Ok(0)
}

/// A server that was replaced.
struct Upgraded {
    pid: i32,
    program: PathBuf,
    /// The `--version` output of the new program.
    version: String,
}

async fn upgrade_own() -> Result<String, Failure> {
    let ServerStatus::Running(socket) = user_server::find().await? else {
        return Err(user_server::not_running().await);
    };
    let Some(state) = socket.state().filter(|state| state.is_dir()) else {
        return Err(Failure::new(
            "cannot upgrade your local remex server",
            "stop it with `remex server stop`; the next command starts the new program",
        )
        .because("it has no state directory, so its processes would end with it"));
    };
    let Upgraded { pid, version, .. } = upgrade(&state).await?;
    let client = connect(&socket).await?;
    let running = Processes::list(&client).await?.rows.iter().filter(|row| Row::is_running(row)).count();
    let _ = client.end().await;
    let processes = if running == 1 { "process runs" } else { "processes run" };
    Ok(format!("your local remex server (pid {pid}) now runs {version}; {running} {processes} on\n"))
}

async fn connect(socket: &Socket) -> Result<Client, Failure> {
    Endpoint::user_server(socket.clone()).connect(|_| {}).await
}

/// Replaces the server of a state directory, and waits until the new program serves.
async fn upgrade(state: &Path) -> Result<Upgraded, Failure> {
    let lock = state.join("server.lock");
    let cannot = |what: &str| {
        let what = format!("cannot {what}");
        move |error: io::Error| Failure::io(&what, &error)
    };
    let unreadable = cannot(&format!("read `{}`", lock.display()));
    let before = tokio::time::timeout(PATIENCE, started(&lock));
    let before = match before.await {
        Ok(before) => before.map_err(unreadable)?.ok_or_else(|| {
            Failure::new(
                format!("no server uses the state directory `{}`", state.display()),
                "name the directory that the server was started with, or start it",
            )
        })?,
        Err(_) => {
            return Err(Failure::new(
                format!("the server of `{}` does not serve after {} s", state.display(), PATIENCE.as_secs()),
                "see its log for the reason",
            ));
        }
    };
    let (own_pid, ServerWords { program, when, .. }) = before;
    let server = Ending::open(own_pid).map_err(cannot("find the server"))?;
    let pid: i32 = own_pid.as_raw_nonzero().into();
    let path = program.clone();
    let version = tokio::task::spawn_blocking(move || version_of(&path))
        .await
        .unwrap_or_else(|error| Err(error.to_string()));
    let version = version.map_err(|why| {
        Failure::new("cannot upgrade the server", "install a working remex there first").because(why)
    })?;
    check_here(own_pid, &lock, "upgrade the server")?;
    server.signal(Signal::USR2).map_err(cannot("signal the server"))?;
    let replaced = async {
        loop {
            match holder(&lock).map(server_of) {
                Ok(Some((now, said))) if said.when != when && said.status == SERVING => {
                    return Ok(now == own_pid);
                }
                Ok(Some((_, said))) if said.when != when && said.status.starts_with(REFUSED) => {
                    return Err(said.status);
                }
                _ if server.exits_within(Duration::ZERO) => return Ok(false),
                _ => tokio::time::sleep(PAUSE).await,
            }
        }
    };
    match tokio::time::timeout(PATIENCE, replaced).await {
        Ok(Ok(true)) => Ok(Upgraded { pid, program, version }),
        Ok(Ok(false)) => Err(Failure::new(
            format!("the server (pid {pid}) has ended"),
            "see its log, and start it again: its durable processes run on",
        )),
        Ok(Err(refusal)) => Err(Failure::new(
            "cannot upgrade the server",
            "install a working remex there; the server runs on with its old program",
        )
        .because(refusal.trim_start_matches(REFUSED))),
        Err(_) => Err(Failure::new(
            format!("the server (pid {pid}) does not serve after {} s", PATIENCE.as_secs()),
            "see its log for the reason",
        )),
    }
}

/// Waits until the server that holds a lock file has started; returns none if there is no server.
async fn started(lock: &Path) -> io::Result<Option<(Pid, ServerWords)>> {
    loop {
        match holder(lock)? {
            Found::Nobody => return Ok(None),
            found => match server_of(found) {
                Some((pid, said)) if said.status == SERVING || said.status.starts_with(REFUSED) => {
                    return Ok(Some((pid, said)));
                }
                _ => tokio::time::sleep(PAUSE).await,
            },
        }
    }
}

/// Returns the server that holds a lock file, once it has identified itself.
fn server_of(found: Found) -> Option<(Pid, ServerWords)> {
    match found {
        Found::By(holder) => Some((holder.pid, holder.server?)),
        Found::Nobody | Found::Starting => None,
    }
}
