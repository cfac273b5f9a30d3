//! Standard input, read only when something is there, and a little ahead of who takes it.
//!
//! A read that waits could not be taken back: it would swallow what was typed for the next program.

use std::{
    io::{self, PipeReader, PipeWriter},
    thread,
};

use bytes::Bytes;
use rustix::event::{PollFd, PollFlags, poll};
use tokio::sync::mpsc;

use crate::render::failure::Failure;

/// How much is read at once: what a pipe holds.
const PIECE: usize = 64 << 10;

/// Pieces that wait to be sent: one, while the next is read.
const WAITING: usize = 1;

/// Standard input; dropped, it is read no more.
#[derive(Debug)]
pub(crate) struct Input {
    pieces: mpsc::Receiver<io::Result<Bytes>>,
    /// Dropped, it wakes the thread.
    _stop: PipeWriter,
}

impl Input {
    /// Begins to read.
    pub(crate) fn open() -> Result<Self, Failure> {
        let (stopped, stop) = io::pipe().map_err(|error| Failure::io("read standard input", &error))?;
        let (sender, pieces) = mpsc::channel(WAITING);
        thread::Builder::new()
            .name("remex-stdin".to_owned())
            .spawn(move || pump(&stopped, &sender))
            .map_err(|error| Failure::no_thread("reads standard input", &error))?;
        Ok(Self { pieces, _stop: stop })
    }

    /// Returns the next piece, `None` at the end; cancel-safe.
    pub(crate) async fn next(&mut self) -> Option<io::Result<Bytes>> {
        self.pieces.recv().await
    }
}

fn pump(stopped: &PipeReader, sender: &mpsc::Sender<io::Result<Bytes>>) {
    let mut buffer = vec![0; PIECE];
    while let Some(piece) = piece(stopped, &mut buffer).transpose() {
        let is_last = piece.is_err();
        if sender.blocking_send(piece).is_err() || is_last {
            return;
        }
    }
}

/// Waits for something to read, or for the order to stop; `None` at the end of either.
fn piece(stopped: &PipeReader, buffer: &mut [u8]) -> io::Result<Option<Bytes>> {
    let stdin = io::stdin();
    loop {
        let mut sources = [PollFd::new(&stdin, PollFlags::IN), PollFd::new(stopped, PollFlags::IN)];
        match poll(&mut sources, None) {
            Ok(_) if !sources[1].revents().is_empty() => return Ok(None),
            Ok(_) => {}
            Err(rustix::io::Errno::INTR) => continue,
            Err(error) => return Err(error.into()),
        }
        match rustix::io::read(&stdin, &mut *buffer) {
            Ok(0) => return Ok(None),
            Ok(len) => return Ok(Some(Bytes::copy_from_slice(&buffer[..len]))),
            Err(rustix::io::Errno::INTR | rustix::io::Errno::AGAIN) => {}
            Err(error) => return Err(error.into()),
        }
    }
}
