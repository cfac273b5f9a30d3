//! Reads standard input in a thread, a little ahead of its consumer.
//!
//! It polls before each read, because a blocked read cannot be cancelled: it would steal input from the next program.

use std::{
    io::{self, PipeReader, PipeWriter},
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread,
};

use bytes::Bytes;
use remex_base::lock;
use rustix::event::{PollFd, PollFlags, poll};
use tokio::sync::mpsc;

use crate::render::failure::Failure;

/// The size of a read: the capacity of a pipe.
const READ_BYTES: usize = 64 << 10;

/// The number of buffered chunks: one, while the next is read.
const BUFFERED_CHUNKS: usize = 1;

/// Standard input; dropping it stops the thread.
#[derive(Debug)]
pub(crate) struct Input {
    pieces: mpsc::Receiver<io::Result<Bytes>>,
    gate: Gate,
    /// Wakes the thread when dropped.
    _stop: PipeWriter,
}

/// Lets the owner of the terminal keep an [`Input`] from reading, while another program reads.
#[derive(Clone, Debug)]
pub(super) struct Gate(Arc<(Mutex<GateState>, Condvar)>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum GateState {
    Open,
    Closed,
    /// The input is not wanted any more.
    Stopped,
}

impl Input {
    /// Starts reading.
    pub(crate) fn open() -> Result<Self, Failure> {
        let (stopped, stop) = io::pipe().map_err(|error| Failure::io("read standard input", &error))?;
        let (sender, pieces) = mpsc::channel(BUFFERED_CHUNKS);
        let gate = Gate(Arc::new((Mutex::new(GateState::Open), Condvar::new())));
        thread::Builder::new()
            .name("remex-stdin".to_owned())
            .spawn({
                let gate = gate.clone();
                move || pump(&stopped, &gate, &sender)
            })
            .map_err(|error| Failure::no_thread("reads standard input", &error))?;
        Ok(Self { pieces, gate, _stop: stop })
    }

    pub(super) fn gate(&self) -> Gate {
        self.gate.clone()
    }

    /// Returns the next chunk, `None` at the end. Cancel-safe.
    pub(crate) async fn next(&mut self) -> Option<io::Result<Bytes>> {
        self.pieces.recv().await
    }
}

impl Drop for Input {
    fn drop(&mut self) {
        self.gate.set(GateState::Stopped);
    }
}

impl Gate {
    /// Keeps the input from reading; returns when it does not read.
    pub(super) fn close(&self) {
        self.set(GateState::Closed);
    }

    /// Lets the input read again.
    pub(super) fn open(&self) {
        self.set(GateState::Open);
    }

    fn set(&self, next: GateState) {
        let mut state = self.state();
        if *state != GateState::Stopped {
            *state = next;
        }
        self.0.1.notify_all();
    }

    fn state(&self) -> MutexGuard<'_, GateState> {
        lock(&self.0.0)
    }

    /// Waits while the gate is closed, and returns whether it was.
    fn wait(&self) -> (MutexGuard<'_, GateState>, bool) {
        let state = self.state();
        let was_closed = *state == GateState::Closed;
        let state = self.0.1.wait_while(state, |state| *state == GateState::Closed);
        (state.unwrap_or_else(PoisonError::into_inner), was_closed)
    }
}

fn pump(stopped: &PipeReader, gate: &Gate, sender: &mpsc::Sender<io::Result<Bytes>>) {
    let mut buffer = vec![0; READ_BYTES];
    while let Some(piece) = piece(stopped, gate, &mut buffer).transpose() {
        let is_last = piece.is_err();
        if sender.blocking_send(piece).is_err() || is_last {
            return;
        }
    }
}

/// Waits for input; `None` at the end of the input, or when stopped.
fn piece(stopped: &PipeReader, gate: &Gate, buffer: &mut [u8]) -> io::Result<Option<Bytes>> {
    let stdin = io::stdin();
    loop {
        let mut sources = [PollFd::new(&stdin, PollFlags::IN), PollFd::new(stopped, PollFlags::IN)];
        match poll(&mut sources, None) {
            Ok(_) if !sources[1].revents().is_empty() => return Ok(None),
            Ok(_) => {}
            Err(rustix::io::Errno::INTR) => continue,
            Err(error) => return Err(error.into()),
        }
        // Held while reading, which does not block after the poll.
        let (state, was_closed) = gate.wait();
        match *state {
            GateState::Stopped => return Ok(None),
            // The input went to the other program.
            _ if was_closed => continue,
            _ => {}
        }
        match rustix::io::read(&stdin, &mut *buffer) {
            Ok(0) => return Ok(None),
            Ok(len) => return Ok(Some(Bytes::copy_from_slice(&buffer[..len]))),
            Err(rustix::io::Errno::INTR | rustix::io::Errno::AGAIN) => {}
            Err(error) => return Err(error.into()),
        }
    }
}
