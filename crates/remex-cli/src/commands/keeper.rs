//! `remex keeper`: the process that runs the durable processes of a server and outlives it.

use std::io::Write as _;

use tokio::{
    runtime::Builder,
    signal::unix::{SignalKind, signal},
};
use tracing_subscriber::EnvFilter;

use crate::{
    args::keeper::Flags,
    commands::{
        Outcome,
        orphans::{self, OrphanReaper},
        runtime,
        serve::EscapedLines,
    },
    render::{
        failure::{Failure, Kind},
        print,
    },
};

/// Runs until no processes or logs are left to keep.
pub(crate) fn run(flags: &Flags) -> Outcome {
    if let Some(version) = flags.check_tables {
        let Some(answer) = remex_engine::supports_handover(version) else { return Ok(1) };
        print::out(format!("{answer}\n"))?;
        return Ok(0);
    }
    // A signal for the terminal of the server is not for the processes that outlive it.
    let _ = rustix::process::setsid();
    tracing_subscriber::fmt()
        .with_writer(|| EscapedLines(std::io::stderr()))
        .with_ansi(false)
        // The server logs its processes, and this log is never rotated.
        .with_env_filter(EnvFilter::new("info,remex_server::engine=warn"))
        .init();
    remex_process::raise_file_limit();
    remex_process::return_large_blocks();
    remex_process::spare_address_space();
    let runtime = runtime::build(
        Builder::new_current_thread().enable_all().event_interval(1).max_blocking_threads(4),
        1,
    )?;
    let kept = runtime.block_on(async {
        let terminated = terminated();
        // The program before this one may have blocked them.
        remex_process::unblock_signals_after_exec();
        let orphans = OrphanReaper::new();
        let keeper = remex_engine::run_keeper(
            remex::config_from_env().engine(),
            &flags.state,
            flags.tables,
            ready,
            terminated,
        );
        let Ok(orphans) = orphans.inspect_err(|error| tracing::warn!(%error, "{}", orphans::UNFOUND)) else {
            return keeper.await;
        };
        tokio::select! {
            biased;
            // It notes the children of the program before this one before the others are reaped.
            ended = keeper => ended,
            never = orphans.run() => match never {},
        }
    });
    runtime.shutdown_background();
    match kept {
        Ok(()) => Ok(0),
        Err(error) => {
            let _ = writeln!(std::io::stdout(), "{error}");
            Err(Failure::of(Kind::Failed, error.message().to_owned(), error.hint()))
        }
    }
}

/// Waits for SIGTERM; other signals that end programs by default are ignored.
fn terminated() -> impl Future<Output = ()> {
    let ignored = [SignalKind::hangup(), SignalKind::interrupt()].map(signal);
    let terminate = signal(SignalKind::terminate());
    async move {
        let _ignored = ignored;
        match terminate {
            Ok(mut terminate) => _ = terminate.recv().await,
            Err(_) => std::future::pending().await,
        }
    }
}

/// Notifies the server that it can connect.
fn ready() {
    let mut out = std::io::stdout();
    let _ = writeln!(out, "ready").and_then(|()| out.flush());
    // The pipe to the server ends with it.
    if let Ok(null) = std::fs::OpenOptions::new().write(true).open("/dev/null") {
        let _ = rustix::stdio::dup2_stdout(null);
    }
}
