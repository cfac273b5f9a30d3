//! Writes standard output and error in a dedicated thread, so that a slow reader blocks only the process.

use std::{io, thread};

use bytes::Bytes;
use remex_client::process::{GapCause, Stream};
use tokio::sync::{mpsc, watch};

use crate::{
    console::interrupt::SignalListener,
    render::{
        failure::Failure,
        line_state::{self, LineState},
        text::amount,
    },
};

/// The number of buffered chunks: enough to keep the thread busy.
const BUFFERED_CHUNKS: usize = 8;

/// The writer of standard output and error.
#[derive(Debug)]
pub(super) struct Output {
    pieces: Option<mpsc::Sender<(Stream, Bytes)>>,
    state: watch::Receiver<WriterState>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum WriterState {
    Open,
    Broken(Broken),
}

/// Why writing failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Broken {
    NobodyReads,
    Failed(String),
}

impl Output {
    pub(super) fn open() -> Result<Self, Failure> {
        let (sender, pieces) = mpsc::channel(BUFFERED_CHUNKS);
        let (changes, state) = watch::channel(WriterState::Open);
        thread::Builder::new()
            .name("remex-stdout".to_owned())
            .spawn(move || pump(pieces, &changes))
            .map_err(|error| Failure::no_thread("writes to standard output", &error))?;
        Ok(Self { pieces: Some(sender), state })
    }

    /// Waits until one more chunk can be written. Cancel-safe.
    pub(super) async fn room(&self) {
        if let Some(pieces) = &self.pieces {
            let _ = pieces.reserve().await;
        }
    }

    /// Writes a chunk, after [`room`](Self::room).
    pub(super) fn write(&self, stream: Stream, bytes: Bytes) {
        if let Some(pieces) = &self.pieces {
            let _ = pieces.try_send((stream, bytes));
        }
    }

    /// Waits until writing fails, such as with a broken pipe.
    pub(super) async fn broken(&self) -> Broken {
        let mut state = self.state.clone();
        let broken = state.wait_for(|state| *state != WriterState::Open).await.map(|state| state.clone());
        match broken {
            Ok(WriterState::Broken(broken)) => broken,
            Ok(WriterState::Open) | Err(_) => std::future::pending().await,
        }
    }

    /// Waits until everything is written or the user interrupts; returns what failed.
    pub(super) async fn finish(&mut self, interrupt: &mut SignalListener) -> Option<Broken> {
        self.pieces = None;
        tokio::select! {
            () = async { while self.state.changed().await.is_ok() {} } => {}
            () = interrupt.recv() => {}
        }
        match self.state.borrow().clone() {
            WriterState::Open => None,
            WriterState::Broken(broken) => Some(broken),
        }
    }
}

/// Formats a notice about output that cannot be read.
pub(crate) fn gap_notice(bytes: Option<u64>, cause: Option<GapCause>) -> String {
    let amount = bytes.map_or_else(|| "some".to_owned(), |bytes| format!("{} of", amount(bytes)));
    match cause {
        None | Some(GapCause::Evicted) => format!("[{amount} older output discarded]"),
        Some(GapCause::Quota) => format!("[{amount} output dropped: the disk quota was used up]"),
        Some(GapCause::DiskFull) => format!("[{amount} output dropped: the disk was full]"),
        Some(GapCause::Io) => format!("[{amount} output dropped: the disk failed]"),
        Some(GapCause::Damaged) => format!("[{amount} output lost: the log on disk is damaged]"),
        Some(_) => format!("[{amount} output lost]"),
    }
}

fn pump(mut pieces: mpsc::Receiver<(Stream, Bytes)>, state: &watch::Sender<WriterState>) {
    while let Some((stream, bytes)) = pieces.blocking_recv() {
        let written = match stream {
            Stream::Stderr => put(io::stderr().lock(), &bytes, &line_state::STDERR),
            // Also streams that this version does not know.
            _ => put(io::stdout().lock(), &bytes, &line_state::STDOUT),
        };
        if let Err(error) = written {
            let broken = match error.kind() {
                io::ErrorKind::BrokenPipe => Broken::NobodyReads,
                _ => Broken::Failed(error.to_string()),
            };
            state.send_replace(WriterState::Broken(broken));
            return;
        }
    }
}

/// Writes to a locked stream: notices must not come between the bytes and the state of the line.
fn put(mut to: impl io::Write, bytes: &[u8], line: &LineState) -> io::Result<()> {
    to.write_all(bytes)?;
    line.note(bytes);
    to.flush()
}
