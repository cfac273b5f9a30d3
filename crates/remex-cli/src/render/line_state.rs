//! Whether a command has left the standard streams in the middle of a line, so that notices begin on a line of their own.
//!
//! Start at [`line_break`].

use std::{
    io::{self, IsTerminal as _},
    sync::atomic::{AtomicBool, Ordering::Relaxed},
};

/// The state of one of the standard streams; held together with its lock while it changes.
#[derive(Debug)]
pub(crate) struct LineState(AtomicBool);

/// Standard output.
pub(crate) static STDOUT: LineState = LineState(AtomicBool::new(false));

/// Standard error.
pub(crate) static STDERR: LineState = LineState(AtomicBool::new(false));

impl LineState {
    /// Records the output of a command.
    pub(crate) fn note(&self, bytes: &[u8]) {
        if let Some(last) = bytes.last() {
            self.0.store(*last != b'\n', Relaxed);
        }
    }
}

/// Notes that this program has begun a line of its own on the terminal.
pub(crate) fn on_own_line() {
    STDERR.0.store(false, Relaxed);
    STDOUT.0.store(false, Relaxed);
}

/// Returns the prefix of a notice on stderr: a line feed if a command has begun a line there.
pub(crate) fn line_break() -> &'static str {
    let mut is_open = STDERR.0.swap(false, Relaxed);
    // On a terminal both streams share a line.
    if io::stderr().is_terminal() && io::stdout().is_terminal() {
        is_open |= STDOUT.0.swap(false, Relaxed);
    }
    if is_open { "\n" } else { "" }
}
