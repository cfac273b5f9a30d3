//! The process shown on a console: one that this program started, or one of another client.

use std::{collections::VecDeque, time::Duration};

use remex_client::{
    Error, Process,
    process::{Event, Events, ProcessRef, SignalName, Stdin, TerminalSize, Termination},
};
use tokio::io::AsyncWriteExt as _;

use super::output::Output;
use crate::remote::processes::{READ_BYTES, READ_WAIT};

/// How often the server is asked for living processes.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// A process, and the position in its output.
#[derive(Debug)]
pub(crate) enum ShownProcess {
    /// Started by this program: backpressure applies.
    Started { process: Process, events: Events },
    /// A process of another client: reading does not affect that client.
    Observed { process: ProcessRef, cursor: u64, events: VecDeque<Event> },
}

/// The input of a process.
pub(super) enum InputSink {
    Own(Option<Stdin>),
    Other(ProcessRef),
}

impl ShownProcess {
    pub(crate) fn started(process: Process) -> Self {
        Self::Started { events: process.events(), process }
    }

    pub(crate) fn observed(process: ProcessRef, cursor: u64) -> Self {
        Self::Observed { process, cursor, events: VecDeque::new() }
    }

    /// Returns the next event once `output` has room for it. Cancel-safe.
    pub(super) async fn next(&mut self, output: &Output) -> Result<Option<Event>, Error> {
        output.room().await;
        match self {
            Self::Started { events, .. } => events.next().await,
            Self::Observed { process, cursor, events } => {
                while events.is_empty() {
                    let batch = process.read(*cursor, READ_BYTES, READ_WAIT).await?;
                    *cursor = batch.last_seq;
                    events.extend(batch.into_events());
                }
                Ok(events.pop_front())
            }
        }
    }

    pub(super) fn input(&self) -> InputSink {
        match self {
            Self::Started { process, .. } => InputSink::Own(process.stdin()),
            Self::Observed { process, .. } => InputSink::Other(process.clone()),
        }
    }

    /// Forwards a signal without waiting, so that a disconnect does not block the console.
    pub(super) fn pass(&self, signal: SignalName) {
        let process = self.handle();
        tokio::spawn(async move { process.signal(signal).await });
    }

    /// Sends a signal, and waits for the reply.
    pub(super) fn signalled(&self, signal: SignalName) -> impl Future<Output = Result<(), Error>> + use<> {
        let process = self.handle();
        async move { process.signal(signal).await }
    }

    /// Forwards a new terminal size without waiting.
    pub(super) fn resize(&self, size: TerminalSize) {
        let process = self.handle();
        tokio::spawn(async move { process.resize(size).await });
    }

    /// Ends it and everything it started; the future can be spawned.
    pub(super) fn killed(&self, mode: Termination) -> impl Future<Output = Result<(), Error>> + use<> {
        let process = self.handle();
        async move { process.terminate(mode).await }
    }

    /// Waits until nothing of its tree is alive; the future can be spawned.
    ///
    /// There is no notification for that, so the server is polled. One that cannot tell counts as having nothing left.
    pub(super) fn tree_gone(&self) -> impl Future<Output = ()> + use<> {
        let process = self.handle();
        async move {
            let mut looks = tokio::time::interval(POLL_INTERVAL);
            loop {
                looks.tick().await;
                match process.info().await {
                    Ok(Some(info)) if info.resident_bytes.is_some() => {}
                    _ => return,
                }
            }
        }
    }

    pub(super) fn handle(&self) -> ProcessRef {
        match self {
            Self::Started { process, .. } => process.reference(),
            Self::Observed { process, .. } => process.clone(),
        }
    }
}

impl InputSink {
    pub(super) async fn write(&mut self, bytes: &[u8]) -> Result<(), Error> {
        match self {
            Self::Own(Some(stdin)) => Ok(stdin.write_all(bytes).await.map_err(of)?),
            Self::Own(None) => Ok(()),
            Self::Other(process) => process.write(bytes).await,
        }
    }

    /// Waits until all written data has been accepted.
    pub(super) async fn flush(&mut self) -> Result<(), Error> {
        match self {
            Self::Own(Some(stdin)) => Ok(stdin.flush().await.map_err(of)?),
            Self::Own(None) | Self::Other(_) => Ok(()),
        }
    }

    pub(super) async fn close(&mut self) -> Result<(), Error> {
        match self {
            Self::Own(Some(stdin)) => Ok(stdin.shutdown().await.map_err(of)?),
            Self::Own(None) => Ok(()),
            Self::Other(process) => process.close_stdin().await,
        }
    }
}

fn of(error: std::io::Error) -> Error {
    Error::local("write to the process", error)
}
