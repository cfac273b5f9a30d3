//! Our standard output and error, written by a thread of their own: whoever reads them slowly holds up the process
//! and nothing else.

use std::{io, thread};

use bytes::Bytes;
use remex_client::process::Stream;
use tokio::sync::{mpsc, watch};

use crate::{console::interrupt::SignalListener, render::failure::Failure};

/// Pieces that wait to be written: enough that the thread never waits for the next one.
const WAITING: usize = 8;

/// Where output goes.
#[derive(Debug)]
pub(super) struct Output {
    pieces: Option<mpsc::Sender<(Stream, Bytes)>>,
    state: watch::Receiver<State>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum State {
    Open,
    Broken(Broken),
}

/// Why nothing more can be written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Broken {
    NobodyReads,
    Failed(String),
}

impl Output {
    pub(super) fn open() -> Result<Self, Failure> {
        let (sender, pieces) = mpsc::channel(WAITING);
        let (changes, state) = watch::channel(State::Open);
        thread::Builder::new()
            .name("remex-stdout".to_owned())
            .spawn(move || pump(pieces, &changes))
            .map_err(|error| Failure::no_thread("writes to standard output", &error))?;
        Ok(Self { pieces: Some(sender), state })
    }

    /// Waits until one more piece can be written; cancel-safe.
    pub(super) async fn room(&self) {
        if let Some(pieces) = &self.pieces {
            let _ = pieces.reserve().await;
        }
    }

    /// Writes a piece, for which there is [room](Self::room).
    pub(super) fn write(&self, stream: Stream, bytes: Bytes) {
        if let Some(pieces) = &self.pieces {
            let _ = pieces.try_send((stream, bytes));
        }
    }

    /// Waits until nobody reads any more.
    pub(super) async fn broken(&self) -> Broken {
        let mut state = self.state.clone();
        let broken = state.wait_for(|state| *state != State::Open).await.map(|state| state.clone());
        match broken {
            Ok(State::Broken(broken)) => broken,
            Ok(State::Open) | Err(_) => std::future::pending().await,
        }
    }

    /// Waits until everything is written, or a person has no more patience; tells what went wrong.
    pub(super) async fn finish(&mut self, interrupt: &mut SignalListener) -> Option<Broken> {
        self.pieces = None;
        tokio::select! {
            () = async { while self.state.changed().await.is_ok() {} } => {}
            () = interrupt.recv() => {}
        }
        match self.state.borrow().clone() {
            State::Open => None,
            State::Broken(broken) => Some(broken),
        }
    }
}

fn pump(mut pieces: mpsc::Receiver<(Stream, Bytes)>, state: &watch::Sender<State>) {
    while let Some((stream, bytes)) = pieces.blocking_recv() {
        let written = match stream {
            Stream::Stdout | Stream::Pty => put(io::stdout().lock(), &bytes),
            Stream::Stderr => put(io::stderr().lock(), &bytes),
        };
        if let Err(error) = written {
            let broken = match error.kind() {
                io::ErrorKind::BrokenPipe => Broken::NobodyReads,
                _ => Broken::Failed(error.to_string()),
            };
            state.send_replace(State::Broken(broken));
            return;
        }
    }
}

fn put(mut to: impl io::Write, bytes: &[u8]) -> io::Result<()> {
    to.write_all(bytes)?;
    to.flush()
}
