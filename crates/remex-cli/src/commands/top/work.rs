//! What is asked of the server, and what comes back.

use std::time::Duration;

use remex_client::{
    Client, Error, ErrorKind, Options, Prompts,
    process::{OutputBatch, ProcessRef, ReadWait, SignalName, Termination},
};
use tokio::task::{AbortHandle, JoinSet};

use super::{state::Key, tail::Tail};
use crate::{
    remote::{
        endpoint::Endpoint,
        processes::{Processes, Row},
        reconnect,
    },
    render::failure::Failure,
};

/// How long processes get between TERM and KILL.
const GRACE: Duration = Duration::from_secs(5);

/// The most that is read at once, about: more than a screen shows.
const SHOWN_BYTES: u64 = 32 << 10;

/// The most events that are read at once.
const SHOWN_EVENTS: u64 = 256;

/// The time between two reads of output that is followed: nobody reads faster.
const FRAME: Duration = Duration::from_millis(50);

/// Something that was asked has an answer.
pub(super) enum Done {
    Looked(Result<Vec<Row>, Failure>),
    Connected(Result<Client, Failure>),
    Read(Key, Result<Output, Error>),
    Acted(String),
}

/// What a process has said since the last time.
pub(super) struct Output {
    cursor: u64,
    /// Whether something was left out because it was too much.
    skipped: bool,
    batch: OutputBatch,
}

pub(super) async fn look(client: Client) -> Done {
    Done::Looked(Processes::list(&client).await.map(|processes| processes.rows))
}

pub(super) async fn connect(endpoint: Endpoint) -> Done {
    let adapt = |options: &mut Options| {
        reconnect::keep_session(options);
        // The screen has the terminal.
        options.prompts = Prompts::Refuse;
    };
    Done::Connected(endpoint.connect(adapt).await)
}

pub(super) async fn signal(process: ProcessRef, name: String, signal: SignalName) -> Done {
    Done::Acted(match process.signal(signal).await {
        Ok(()) => format!("{signal} sent to {name}"),
        Err(error) => format!("cannot signal {name}: {error}"),
    })
}

pub(super) async fn kill(process: ProcessRef, name: String) -> Done {
    Done::Acted(match process.terminate(Termination::Graceful(GRACE)).await {
        Ok(()) => format!("TERM sent to {name} and all it started; KILL follows in {} s", GRACE.as_secs()),
        Err(error) => format!("cannot end {name}: {error}"),
    })
}

impl Key {
    pub(super) fn process_ref(&self, client: &Client) -> ProcessRef {
        client.process_ref(&self.session_id, &self.process_id)
    }
}

/// How far the output of one process has been read.
pub(super) struct Reading {
    pub(super) key: Key,
    /// Whether it is time to read again, also after a failure.
    pub(super) is_due: bool,
    has_failed: bool,
    cursor: Option<u64>,
    /// The read that is under way, and whether it waits for news.
    under_way: Option<(AbortHandle, ReadWait)>,
    is_over: bool,
}

impl Reading {
    pub(super) fn new(key: Key) -> Self {
        Self { key, is_due: true, has_failed: false, cursor: None, under_way: None, is_over: false }
    }

    /// Starts the next read, unless one is under way or nothing will come.
    pub(super) fn go_on(
        &mut self,
        client: &Client,
        follows: bool,
        said_bytes: u64,
        work: &mut JoinSet<Done>,
    ) {
        let wait = if follows { ReadWait::Yes } else { ReadWait::No };
        if let Some((read, _)) = self.under_way.take_if(|(_, other)| *other == ReadWait::Yes && !follows) {
            read.abort();
        }
        if self.is_over || self.under_way.is_some() || !(self.is_due || follows && !self.has_failed) {
            return;
        }
        self.is_due = false;
        let (key, process, cursor) = (self.key.clone(), self.key.process_ref(client), self.cursor);
        let read = work.spawn(async move { Done::Read(key, read(&process, cursor, said_bytes, wait).await) });
        self.under_way = Some((read, wait));
    }

    /// Takes what came, and shows it.
    pub(super) fn take(&mut self, read: Result<Output, Error>, tail: &mut Tail) {
        self.under_way = None;
        self.has_failed = read.is_err();
        match read {
            Ok(output) => {
                let begins = self.cursor.replace(output.cursor).is_none();
                if !begins && (output.skipped || output.batch.gap.is_some()) {
                    tail.skip();
                }
                self.is_over = output.batch.is_closed && output.batch.chunks.is_empty();
                for piece in output.batch.chunks {
                    tail.take(piece.stream, &piece.bytes);
                }
            }
            Err(error) => {
                let refusal = error.refusal();
                self.is_over = matches!(refusal, Some(ErrorKind::UnknownProcess | ErrorKind::UnknownSession));
            }
        }
    }
}

impl Drop for Reading {
    fn drop(&mut self) {
        if let Some((read, _)) = &self.under_way {
            read.abort();
        }
    }
}

/// Reads what comes after the cursor, but no more of it than a screen shows.
async fn read(
    process: &ProcessRef,
    cursor: Option<u64>,
    said_bytes: u64,
    wait: ReadWait,
) -> Result<Output, Error> {
    if wait == ReadWait::Yes && cursor.is_some() {
        tokio::time::sleep(FRAME).await;
    }
    let newest = process.cursor_before_newest(0).await?;
    // As long as pieces usually are.
    let piece_bytes = (said_bytes / newest.max(1)).max(1);
    let first = newest.saturating_sub((SHOWN_BYTES / piece_bytes).clamp(2, SHOWN_EVENTS));
    let skipped = cursor.is_some_and(|cursor| cursor < first);
    let mut cursor = cursor.unwrap_or(first).max(first);
    let batch = process.read(&mut cursor, wait).await?;
    Ok(Output { cursor, skipped, batch })
}
