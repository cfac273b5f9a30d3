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

/// A line in the log is cut after this.
const MAX_LINE_LEN: usize = 4 * 1024;

/// The listener at standard error, which can wait for other things meanwhile.
#[derive(Debug)]
pub(super) struct Stderr {
    /// `None` when everybody at the other end is gone.
    pipe: Option<ChildStderr>,
    /// The beginning of a line whose end has not come.
    line: Vec<u8>,
    state: watch::Sender<ProgramState>,
    /// Where a person reads it, too.
    shown_on: Option<File>,
}

/// The last bytes of a text.
#[derive(Debug, Default)]
pub(super) struct Tail(VecDeque<u8>);

impl Stderr {
    pub(super) fn new(pipe: ChildStderr, state: watch::Sender<ProgramState>) -> Self {
        Self { pipe: Some(pipe), line: Vec::new(), state, shown_on: None }
    }

    /// Returns where news of the program go.
    pub(super) fn state(&self) -> &watch::Sender<ProgramState> {
        &self.state
    }

    /// Shows what was said so far, and what is said from now on, to a person as well.
    pub(super) fn show_on(&mut self, mut terminal: File) {
        let _ = terminal.write_all(self.state.borrow().stderr.to_string().as_bytes());
        self.shown_on = Some(terminal);
    }

    /// Ends that.
    pub(super) fn hide(&mut self) {
        self.shown_on = None;
    }

    /// Takes what is said until one of `events` can be read, and returns which; `None` when the deadline came
    /// first.
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
                    tracing::warn!(%error, "cannot wait for a program");
                    return None;
                }
            }
            let happened = polled[..events.len()].iter().position(|fd| !fd.revents().is_empty());
            // Who never stops talking must not put off the deadline.
            if happened.is_some() || left.is_some_and(|left| left.is_zero()) {
                return happened;
            }
            self.read();
        }
    }

    fn read(&mut self) {
        let Some(pipe) = &mut self.pipe else { return };
        let mut chunk = [0; 16 * 1024];
        // There is something, or the end of it, so this does not wait; a failure is as good as an end.
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
            tracing::debug!(line, "a program says");
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
        // A character may lie across the two parts, and only the whole is text.
        let bytes: Vec<u8> = self.0.iter().copied().collect();
        f.write_str(&String::from_utf8_lossy(&bytes))
    }
}
