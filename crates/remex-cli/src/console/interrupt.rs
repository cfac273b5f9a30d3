//! Terminating signals, for commands that do not handle signals themselves.
//!
//! Start at [`or_interrupted`].

use std::{
    future::poll_fn,
    task::{Context, Poll},
    time::Duration,
};

use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::render::failure::Failure;

/// How long connection programs such as ssh may take to exit: the client library kills them within this time.
const PROGRAM_EXIT_TIMEOUT: Duration = Duration::from_secs(5);

/// Runs a command until it is done or a signal arrives, which determines the exit code as in a shell.
pub(crate) async fn or_interrupted(work: impl Future<Output = Result<u8, Failure>>) -> Result<u8, Failure> {
    tokio::select! {
        // Biased, so that signal handlers are installed before the work begins.
        biased;
        () = wait_for_signal(SignalKind::interrupt()) => Ok(130),
        () = wait_for_signal(SignalKind::terminate()) => Ok(143),
        () = wait_for_signal(SignalKind::hangup()) => Ok(129),
        outcome = work => outcome,
    }
}

/// Runs the first part of a command that handles signals itself later; fails if a signal arrives.
pub(crate) async fn during<T>(work: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    let signals = or_interrupted(std::future::pending());
    tokio::select! {
        biased;
        code = signals => Err(Failure::signalled(code?)),
        done = work => done,
    }
}

/// Waits until all connection programs have exited.
pub(crate) fn end_programs() {
    if !remex_client::wait_for_programs(PROGRAM_EXIT_TIMEOUT) {
        crate::render::print::note("a connection program does not exit; find it with `ps`");
    }
}

/// Waits for a signal, unless it was ignored when the program was started, as by `nohup`.
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
        poll_fn(|context| self.poll_recv(context)).await;
    }

    pub(crate) fn poll_recv(&mut self, context: &mut Context<'_>) -> Poll<()> {
        match &mut self.signals {
            Some(signals) => signals.poll_recv(context).map(drop),
            None => Poll::Pending,
        }
    }
}

/// Waits for SIGTERM or SIGHUP, which end a command.
#[derive(Debug)]
pub(crate) struct Termination {
    terminate: SignalListener,
    hangup: SignalListener,
}

impl Termination {
    pub(crate) fn listen() -> Result<Self, Failure> {
        let terminate = SignalListener::listen(SignalKind::terminate())?;
        Ok(Self { terminate, hangup: SignalListener::listen(SignalKind::hangup())? })
    }

    /// Returns the exit code for the signal that arrived.
    pub(crate) async fn recv(&mut self) -> u8 {
        tokio::select! {
            () = self.terminate.recv() => 143,
            () = self.hangup.recv() => 129,
        }
    }
}

async fn wait_for_signal(kind: SignalKind) {
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
