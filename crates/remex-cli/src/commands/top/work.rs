//! Requests to the server, and their results.

use std::time::Duration;

use remex_client::{
    Client, Error, ErrorKind, Options, Prompts,
    process::{OutputBatch, ProcessRef, SignalName, Termination},
};
use tokio::task::{AbortHandle, JoinSet};

use super::{state::Key, tail::Tail};
use crate::{
    remote::{
        endpoint::Endpoint,
        processes::{Processes, READ_BYTES, READ_WAIT, Row},
        reconnect,
    },
    render::failure::Failure,
};

/// The grace period between TERM and KILL.
const GRACE: Duration = Duration::from_secs(5);

/// The approximate maximum of one read: more than fits on a screen.
const SHOWN_BYTES: u64 = 32 << 10;

/// The maximum number of events of one read.
const SHOWN_EVENTS: u64 = 256;

/// The time between two reads of followed output: faster updates would not be visible.
const FRAME: Duration = Duration::from_millis(50);

/// The result of a request.
pub(super) enum RequestResult {
    /// Of a server, by its index.
    Listed(usize, Result<Vec<Row>, Failure>),
    /// To a server, by its index.
    Connected(usize, Result<Client, Failure>),
    Read(Key, Result<NewOutput, Error>),
    Acted(String),
}

/// The output of a process since the last read.
pub(super) struct NewOutput {
    cursor: u64,
    /// Whether output was skipped because there was too much.
    skipped: bool,
    batch: OutputBatch,
}

pub(super) async fn list(server: usize, client: Client) -> RequestResult {
    RequestResult::Listed(server, Processes::list(&client).await.map(|processes| processes.rows))
}

pub(super) async fn connect(server: usize, endpoint: Endpoint) -> RequestResult {
    let adapt = |options: &mut Options| {
        reconnect::keep_session(options);
        // The live view uses the terminal.
        options.prompts = Prompts::Refuse;
    };
    RequestResult::Connected(server, endpoint.connect(adapt).await)
}

pub(super) async fn signal(process: ProcessRef, name: String, signal: SignalName) -> RequestResult {
    RequestResult::Acted(match process.signal(signal).await {
        Ok(()) => format!("sent {signal} to {name}"),
        Err(error) => format!("cannot signal {name}: {error}"),
    })
}

pub(super) async fn kill(process: ProcessRef, name: String) -> RequestResult {
    RequestResult::Acted(match process.terminate(Termination::Graceful(GRACE)).await {
        Ok(()) => {
            format!("sent TERM to {name} and everything it started; KILL follows in {} s", GRACE.as_secs())
        }
        Err(error) => format!("cannot end {name}: {error}"),
    })
}

impl Key {
    pub(super) fn process_ref(&self, client: &Client) -> ProcessRef {
        client.process_ref(&self.session_id, &self.process_id)
    }
}

/// Reads the output of one process.
pub(super) struct OutputReader {
    pub(super) key: Key,
    /// Whether to read again, even after a failure.
    pub(super) is_due: bool,
    has_failed: bool,
    cursor: Option<u64>,
    /// The read in progress, and whether it waits for output.
    under_way: Option<(AbortHandle, Duration)>,
    is_over: bool,
}

impl OutputReader {
    pub(super) fn new(key: Key) -> Self {
        Self { key, is_due: true, has_failed: false, cursor: None, under_way: None, is_over: false }
    }

    /// Starts the next read, unless one is in progress or the output is complete.
    pub(super) fn start_read(
        &mut self,
        client: &Client,
        follows: bool,
        output_bytes: u64,
        work: &mut JoinSet<RequestResult>,
    ) {
        let wait = if follows { READ_WAIT } else { Duration::ZERO };
        if let Some((read, _)) = self.under_way.take_if(|(_, other)| !other.is_zero() && !follows) {
            read.abort();
        }
        if self.is_over || self.under_way.is_some() || !(self.is_due || follows && !self.has_failed) {
            return;
        }
        self.is_due = false;
        let (key, process, cursor) = (self.key.clone(), self.key.process_ref(client), self.cursor);
        let read = work
            .spawn(async move { RequestResult::Read(key, read(&process, cursor, output_bytes, wait).await) });
        self.under_way = Some((read, wait));
    }

    /// Adds the result of a read to `tail`.
    pub(super) fn on_read(&mut self, read: Result<NewOutput, Error>, tail: &mut Tail) {
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
                let refusal = error.kind();
                self.is_over = matches!(refusal, Some(ErrorKind::UnknownProcess | ErrorKind::UnknownSession));
            }
        }
    }
}

impl Drop for OutputReader {
    fn drop(&mut self) {
        if let Some((read, _)) = &self.under_way {
            read.abort();
        }
    }
}

/// Reads the output after the cursor, but not much more than fits on a screen.
async fn read(
    process: &ProcessRef,
    cursor: Option<u64>,
    output_bytes: u64,
    wait: Duration,
) -> Result<NewOutput, Error> {
    if !wait.is_zero() && cursor.is_some() {
        tokio::time::sleep(FRAME).await;
    }
    let newest = process.cursor_before_newest(0).await?;
    // The average length of a chunk.
    let piece_bytes = (output_bytes / newest.max(1)).max(1);
    let first = newest.saturating_sub((SHOWN_BYTES / piece_bytes).clamp(2, SHOWN_EVENTS));
    let skipped = cursor.is_some_and(|cursor| cursor < first);
    let cursor = cursor.unwrap_or(first).max(first);
    let batch = process.read(cursor, READ_BYTES, wait).await?;
    Ok(NewOutput { cursor: batch.last_seq, skipped, batch })
}
