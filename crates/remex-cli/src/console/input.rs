//! Reads standard input in a thread, a little ahead of its consumer.
//!
//! It polls before each read, because a blocked read cannot be cancelled: it would steal input from the next program.

use std::{
    io::{self, PipeReader, PipeWriter},
    thread,
};

use bytes::Bytes;
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
    /// Wakes the thread when dropped.
    _stop: PipeWriter,
}

impl Input {
    /// Starts reading.
    pub(crate) fn open() -> Result<Self, Failure> {
        let (stopped, stop) = io::pipe().map_err(|error| Failure::io("read standard input", &error))?;
        let (sender, pieces) = mpsc::channel(BUFFERED_CHUNKS);
        thread::Builder::new()
            .name("remex-stdin".to_owned())
            .spawn(move || pump(&stopped, &sender))
            .map_err(|error| Failure::no_thread("reads standard input", &error))?;
        Ok(Self { pieces, _stop: stop })
    }

    /// Returns the next chunk, `None` at the end. Cancel-safe.
    pub(crate) async fn next(&mut self) -> Option<io::Result<Bytes>> {
        self.pieces.recv().await
    }
}

fn pump(stopped: &PipeReader, sender: &mpsc::Sender<io::Result<Bytes>>) {
    let mut buffer = vec![0; READ_BYTES];
    while let Some(piece) = piece(stopped, &mut buffer).transpose() {
        let is_last = piece.is_err();
        if sender.blocking_send(piece).is_err() || is_last {
            return;
        }
    }
}

/// Waits for input; `None` at the end of the input, or when stopped.
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
