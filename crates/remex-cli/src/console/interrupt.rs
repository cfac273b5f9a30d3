//! Signals that end a command from outside, for those that do not listen to them themselves.
//!
//! Start at [`or_interrupted`].

use std::time::Duration;

use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::render::failure::Failure;

/// How long programs that lead to servers may take to end: what the client library needs for one that does not want to.
const LAST_PROGRAM: Duration = Duration::from_secs(5);

/// Does some work until it is done or a signal comes; then the exit code says which, as a shell would.
pub(crate) async fn or_interrupted(work: impl Future<Output = Result<u8, Failure>>) -> Result<u8, Failure> {
    tokio::select! {
        // Signals first: they are listened to before the work begins.
        biased;
        () = came(SignalKind::interrupt()) => Ok(130),
        () = came(SignalKind::terminate()) => Ok(143),
        () = came(SignalKind::hangup()) => Ok(129),
        outcome = work => outcome,
    }
}

/// Does a part of the work of those that listen to signals later, unless one comes.
pub(crate) async fn during<T>(work: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    let signals = or_interrupted(std::future::pending());
    tokio::select! {
        biased;
        code = signals => Err(Failure::signalled(code?)),
        done = work => done,
    }
}

/// Waits until no program runs that was started to lead to a server.
pub(crate) fn end_programs() {
    if !remex_client::wait_for_programs(LAST_PROGRAM) {
        crate::render::print::note("a connection program does not exit; find it with `ps`");
    }
}

/// A signal to wait for; it never comes if whoever started us wants it ignored, as `nohup` does.
#[derive(Debug)]
pub(crate) struct SignalListener {
    signals: Option<Signal>,
}

impl SignalListener {
    pub(crate) fn listen(kind: SignalKind) -> Result<Self, Failure> {
        if is_ignored(kind) {
            return Ok(Self { signals: None });
        }
        let signals = signal(kind).map_err(|error| Failure::io("wait for signals", &error))?;
        Ok(Self { signals: Some(signals) })
    }

    pub(crate) async fn recv(&mut self) {
        match &mut self.signals {
            Some(signals) => drop(signals.recv().await),
            None => std::future::pending().await,
        }
    }
}

async fn came(kind: SignalKind) {
    match SignalListener::listen(kind) {
        Ok(mut came) => came.recv().await,
        Err(_) => std::future::pending().await,
    }
}

fn is_ignored(kind: SignalKind) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or_default();
    mask >> (kind.as_raw_value() - 1) & 1 == 1
}
