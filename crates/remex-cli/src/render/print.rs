//! Prints to the standard streams.
//!
//! Colours are used only on terminals, carry no extra information, and are disabled by `NO_COLOR`.

use std::{
    io::{self, IsTerminal as _, Write as _},
    sync::atomic::{AtomicBool, Ordering::Relaxed},
};

use serde::Serialize;

use crate::render::{
    failure::Failure,
    text::{self, width},
};

/// The version of the JSON formats; increased when a member is removed or changes its meaning.
const JSON_VERSION: u32 = 1;

/// A listing with the format version.
#[derive(Serialize)]
struct Versioned<'a, T> {
    version: u32,
    #[serde(flatten)]
    listing: &'a T,
}

/// Prints text on stdout unchanged.
pub(crate) fn out(text: impl AsRef<[u8]>) -> Result<(), Failure> {
    let mut stdout = io::stdout().lock();
    stdout
        .write_all(text.as_ref())
        .and_then(|()| stdout.flush())
        .map_err(|error| Failure::io("write to standard output", &error))
}

/// Prints a listing as one line of JSON; `listing` is a struct, whose members follow `version`.
pub(crate) fn json(listing: &impl Serialize) -> Result<(), Failure> {
    let text = serde_json::to_string(&Versioned { version: JSON_VERSION, listing }).map_err(|error| {
        Failure::new("cannot print JSON", "report this as a defect").because(error.to_string())
    })?;
    out(text + "\n")
}

/// Prints a note on stderr, in one line.
pub(crate) fn note(text: impl AsRef<str>) {
    aside(&format!("remex: {}", text.as_ref()));
}

/// Suppresses all notes from now on, for shell completion.
pub(crate) fn suppress_notes() {
    QUIET.store(true, Relaxed);
}

static QUIET: AtomicBool = AtomicBool::new(false);

/// Prints a line on stderr; ignores errors.
pub(crate) fn aside(line: &str) {
    if QUIET.load(Relaxed) {
        return;
    }
    let _ = io::stderr().write_all(format!("{line}\n").as_bytes());
}

/// Returns whether the terminal supports control sequences.
pub(crate) fn can_erase() -> bool {
    std::env::var_os("TERM").is_some_and(|value| !value.is_empty() && value != "dumb")
}

/// Whether standard output is coloured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Colour {
    On,
    Off,
}

/// The style of a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tone {
    Bold,
    Dim,
    Good,
    Bad,
}

impl Colour {
    /// Returns the setting for standard output.
    pub(crate) fn of_stdout() -> Self {
        let unwanted = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        if io::stdout().is_terminal() && !unwanted && can_erase() { Self::On } else { Self::Off }
    }

    pub(crate) fn paint(self, tone: Tone, text: &str) -> String {
        let code = match tone {
            Tone::Bold => 1,
            Tone::Dim => 2,
            Tone::Good => 32,
            Tone::Bad => 31,
        };
        match self {
            Self::On => format!("\u{1b}[{code}m{text}\u{1b}[0m"),
            Self::Off => text.to_owned(),
        }
    }
}

/// Prints a table with a heading; on a terminal, lines are truncated to its width.
pub(crate) fn table<const N: usize>(heading: [&str; N], rows: &[[String; N]]) -> Result<(), Failure> {
    let mut widths = heading.map(width);
    for row in rows {
        for (most, cell) in widths.iter_mut().zip(row) {
            *most = (*most).max(width(cell));
        }
    }
    let line = |cells: [&str; N]| {
        let mut line = String::new();
        for (cell, width_of_column) in cells.iter().zip(widths) {
            line.push_str(cell);
            line.extend(std::iter::repeat_n(' ', width_of_column.saturating_sub(width(cell)) + 2));
        }
        truncated(line.trim_end())
    };
    let mut text = Colour::of_stdout().paint(Tone::Bold, &line(heading)) + "\n";
    for row in rows {
        text.push_str(&line(row.each_ref().map(String::as_str)));
        text.push('\n');
    }
    out(text)
}

/// Truncates a line to the width of the terminal.
fn truncated(line: &str) -> String {
    let columns =
        io::stdout().is_terminal().then(|| rustix::termios::tcgetwinsize(io::stdout()).ok()).flatten();
    match columns.map(|size| usize::from(size.ws_col)) {
        Some(columns) if columns > 1 => text::within(line, columns),
        _ => line.to_owned(),
    }
}
