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
    line_state,
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
    out(json_line(listing))
}

/// Formats a listing as one line of JSON, with a line feed.
pub(crate) fn json_line(listing: &impl Serialize) -> String {
    let versioned = Versioned { version: JSON_VERSION, listing };
    // Only a map without text keys, or a failing `Serialize`, cannot be formatted; no listing has one.
    serde_json::to_string(&versioned).expect("listings consist of structs, lists and plain values") + "\n"
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
    let mut stderr = io::stderr().lock();
    let _ = stderr.write_all(format!("{}{line}\n", line_state::line_break()).as_bytes());
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
    table_within(&heading, &rows.iter().map(|row| row.to_vec()).collect::<Vec<_>>(), &[])
}

/// Prints a table; on a terminal that is too narrow for it, leaves out columns, the first of `dispensable` first.
pub(crate) fn table_within(
    heading: &[&str],
    rows: &[Vec<String>],
    dispensable: &[&str],
) -> Result<(), Failure> {
    let mut widths: Vec<_> = heading.iter().map(|title| width(title)).collect();
    for row in rows {
        for (most, cell) in widths.iter_mut().zip(row) {
            *most = (*most).max(width(cell));
        }
    }
    let shown = shown_columns(heading, &widths, dispensable, columns());
    let line = |cells: &dyn Fn(usize) -> String| {
        let line: String = shown.iter().map(|at| text::padded(&cells(*at), widths[*at] + GAP)).collect();
        truncated(line.trim_end())
    };
    let mut text = Colour::of_stdout().paint(Tone::Bold, &line(&|at| heading[at].to_owned())) + "\n";
    for row in rows {
        text.push_str(&line(&|at| row.get(at).cloned().unwrap_or_default()));
        text.push('\n');
    }
    out(text)
}

/// The number of spaces between two columns of a table.
const GAP: usize = 2;

/// How much of the last column of a table must be visible before others are left out.
const LAST_COLUMN: usize = 24;

/// Returns the indices of the columns to show: all that are not `dispensable`, and as many of those as fit.
fn shown_columns(
    heading: &[&str],
    widths: &[usize],
    dispensable: &[&str],
    room: Option<usize>,
) -> Vec<usize> {
    let mut shown: Vec<_> = (0..heading.len()).collect();
    let Some(room) = room else { return shown };
    let last = heading.len().saturating_sub(1);
    let needs = |at: &usize| if *at == last { widths[*at].min(LAST_COLUMN) } else { widths[*at] + GAP };
    for title in dispensable {
        if shown.iter().map(needs).sum::<usize>() <= room {
            break;
        }
        shown.retain(|at| heading[*at] != *title);
    }
    shown
}

/// Returns the width of the terminal, if standard output is one.
fn columns() -> Option<usize> {
    let size = io::stdout().is_terminal().then(|| rustix::termios::tcgetwinsize(io::stdout()).ok()).flatten();
    size.map(|size| usize::from(size.ws_col)).filter(|columns| *columns > 1)
}

/// Truncates a line to the width of the terminal.
fn truncated(line: &str) -> String {
    match columns() {
        Some(columns) => text::within(line, columns),
        None => line.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_narrow_table_omits_the_least_important_columns() {
        let (heading, widths) = (["NAME", "PID", "MEM", "COMMAND"], [10, 7, 6, 80]);
        let shown = |room| shown_columns(&heading, &widths, &["MEM", "PID"], room);
        assert_eq!(shown(None), [0, 1, 2, 3]);
        assert_eq!(shown(Some(12 + 9 + 8 + 24)), [0, 1, 2, 3]);
        assert_eq!(shown(Some(12 + 9 + 8 + 23)), [0, 1, 3]);
        assert_eq!(shown(Some(12 + 9 + 23)), [0, 3]);
        assert_eq!(shown(Some(5)), [0, 3]);
        // A short command needs less room.
        assert_eq!(shown_columns(&heading, &[10, 7, 6, 7], &["MEM", "PID"], Some(36)), [0, 1, 2, 3]);
    }
}
