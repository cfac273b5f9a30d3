//! Drains the standard error of a program continuously, and keeps its last part.
//!
//! Start at [`Stderr`].

use std::{
    collections::VecDeque,
    fmt,
    fs::File,
    io::{Read, Write as _},
    os::fd::{AsFd, BorrowedFd},
    process::ChildStderr,
    time::Instant,
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::Errno,
};
use tokio::sync::watch;

use super::ProgramState;

/// How much of the end of standard error is kept, in bytes.
pub(super) const TAIL_LEN: usize = 64 * 1024;

/// Log lines are truncated to this length.
const MAX_LINE_LEN: usize = 4 * 1024;

/// Drains standard error while it waits for other events.
#[derive(Debug)]
pub(super) struct Stderr {
    /// `None` after end of file.
    pipe: Option<ChildStderr>,
    /// An incomplete line.
    line: Vec<u8>,
    state: watch::Sender<ProgramState>,
    /// The terminal that also shows standard error, while the program prompts.
    shown_on: Option<File>,
}

/// The last bytes of the output.
#[derive(Debug, Default)]
pub(super) struct Tail(VecDeque<u8>);

impl Stderr {
    pub(super) fn new(pipe: ChildStderr, state: watch::Sender<ProgramState>) -> Self {
        Self { pipe: Some(pipe), line: Vec::new(), state, shown_on: None }
    }

    /// Returns the sender of the program's state.
    pub(super) fn state(&self) -> &watch::Sender<ProgramState> {
        &self.state
    }

    /// Shows the output so far, and all later output, on the terminal.
    pub(super) fn show_on(&mut self, mut terminal: File) {
        let _ = terminal.write_all(self.state.borrow().stderr.to_string().as_bytes());
        self.shown_on = Some(terminal);
    }

    /// Stops showing output on the terminal.
    pub(super) fn hide(&mut self) {
        self.shown_on = None;
    }

    /// Drains standard error until one of `events` is readable, and returns its index; `None` at the deadline.
    pub(super) fn drain_until(
        &mut self,
        events: &[BorrowedFd<'_>],
        deadline: Option<Instant>,
    ) -> Option<usize> {
        loop {
            let pipe = self.pipe.as_ref().map(AsFd::as_fd);
            let mut polled: Vec<_> = events
                .iter()
                .copied()
                .chain(pipe)
                .map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN))
                .collect();
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            let timeout = left.and_then(|left| Timespec::try_from(left).ok());
            match poll(&mut polled, timeout.as_ref()) {
                Ok(0) => return None,
                Ok(_) => {}
                Err(Errno::INTR) => continue,
                Err(error) => {
                    tracing::warn!(%error, "cannot poll a program");
                    return None;
                }
            }
            let happened = polled[..events.len()].iter().position(|fd| !fd.revents().is_empty());
            // Continuous output must not postpone the deadline.
            if happened.is_some() || left.is_some_and(|left| left.is_zero()) {
                return happened;
            }
            self.read();
        }
    }

    fn read(&mut self) {
        let Some(pipe) = &mut self.pipe else { return };
        let mut chunk = [0; 16 * 1024];
        // Data or end of file is available, so this does not block; an error counts as end of file.
        let len = pipe.read(&mut chunk).unwrap_or(0);
        if len == 0 {
            self.pipe = None;
            self.log_line();
            self.state.send_modify(|state| state.silent = true);
            return;
        }
        self.state.send_modify(|state| state.stderr.push(&chunk[..len]));
        if let Some(terminal) = &mut self.shown_on {
            let _ = terminal.write_all(&chunk[..len]);
        }
        if tracing::enabled!(tracing::Level::DEBUG) {
            self.log(&chunk[..len]);
        }
    }

    fn log(&mut self, chunk: &[u8]) {
        for piece in chunk.split_inclusive(|&byte| byte == b'\n').flat_map(|line| line.chunks(MAX_LINE_LEN)) {
            if self.line.len() + piece.len() > MAX_LINE_LEN {
                self.log_line();
            }
            self.line.extend_from_slice(piece);
            if piece.ends_with(b"\n") {
                self.log_line();
            }
        }
    }

    fn log_line(&mut self) {
        let line = String::from_utf8_lossy(&self.line);
        let line = line.trim_end();
        if !line.is_empty() {
            tracing::debug!(line, "program stderr");
        }
        self.line.clear();
    }
}

impl Tail {
    fn push(&mut self, bytes: &[u8]) {
        self.0.extend(bytes);
        self.0.drain(..self.0.len().saturating_sub(TAIL_LEN));
    }
}

impl fmt::Display for Tail {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // A character may be split between the two halves of the buffer.
        let bytes: Vec<u8> = self.0.iter().copied().collect();
        f.write_str(&String::from_utf8_lossy(&bytes))
    }
}
