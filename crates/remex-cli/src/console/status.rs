//! Lines of this program on a terminal that shows a process: notes, and a status line that is kept up to date.
//!
//! A program on the alternate screen draws every cell of it, so notices go to the last row there, and the
//! program is asked to redraw later. Start at [`say`] and [`StatusLine`].

use std::{
    io::{self, IsTerminal as _, Write as _},
    sync::{Mutex, MutexGuard},
    time::Instant,
};

use remex_base::lock;

use crate::{
    console::{
        modes::{Modes, Screen},
        terminal,
    },
    render::{line_state, print, text},
};

/// The current state of the display; several tasks print notes.
static SHOWN: Mutex<Shown> = Mutex::new(Shown {
    screen: Screen::First,
    is_within_sequence: false,
    is_status_drawn: false,
    painted: None,
});

#[derive(Debug)]
struct Shown {
    screen: Screen,
    is_within_sequence: bool,
    /// Whether the cursor is at the end of the status line.
    is_status_drawn: bool,
    /// When something was painted over the program on the alternate screen, until it redraws.
    painted: Option<Instant>,
}

fn shown() -> MutexGuard<'static, Shown> {
    lock(&SHOWN)
}

/// Records which screen the shown program uses.
pub(super) fn follow(modes: &Modes) {
    let mut shown = shown();
    (shown.screen, shown.is_within_sequence) = (modes.screen(), modes.is_within_sequence());
    if shown.screen == Screen::First {
        shown.painted = None;
    }
}

/// Returns when something was painted over the program, unless it was asked to redraw since.
pub(super) fn painted() -> Option<Instant> {
    shown().painted
}

/// Records that the program is asked to redraw.
pub(super) fn on_redraw() {
    shown().painted = None;
}

/// Prints one line on stderr, also on a raw terminal; ignores errors.
pub(crate) fn say(raw: bool, text: &str) {
    let mut shown = shown();
    let line = format!("remex: {text}");
    if raw && shown.screen == Screen::Other && io::stderr().is_terminal() {
        paint(&mut shown, &line);
        return;
    }
    let end = if raw { "\r\n" } else { "\n" };
    match (std::mem::take(&mut shown.is_status_drawn), raw) {
        (true, _) => write(&format!("\r\u{1b}[K{line}{end}")),
        (false, true) => write(&format!("\r\n{line}{end}")),
        (false, false) => print::note(text),
    }
}

/// Paints a line on the last row of the alternate screen; the cursor and everything else stay.
fn paint(shown: &mut Shown, line: &str) {
    // Anything in the middle of a sequence would break both; the next line follows soon.
    if shown.is_within_sequence {
        return;
    }
    let size = terminal::size();
    let line = text::within(&text::plain(line), usize::from(size.cols.get()) - 1);
    write(&format!("\u{1b}7\u{1b}[?6l\u{1b}[{};1H\u{1b}[0;7m{line}\u{1b}[0m\u{1b}[K\u{1b}8", size.rows));
    shown.painted = Some(Instant::now());
}

fn write(text: &str) {
    let _ = io::stderr().write_all(text.as_bytes());
}

/// A line that is kept up to date in place.
#[derive(Debug)]
pub(super) struct StatusLine {
    raw: bool,
}

impl StatusLine {
    /// Returns `None` if standard error is not a terminal that can erase.
    pub(super) fn new(raw: bool) -> Option<Self> {
        (io::stderr().is_terminal() && print::can_erase()).then_some(Self { raw })
    }

    /// Draws it; `at` says where the cursor is if the line is not drawn yet.
    pub(super) fn draw(&self, at: CursorAt, text: &str) {
        let mut shown = shown();
        let line = format!("remex: {text}");
        if self.raw && shown.screen == Screen::Other {
            paint(&mut shown, &line);
            return;
        }
        let line = text::within(&text::plain(&line), usize::from(terminal::size().cols.get()) - 1);
        let beginning = match (shown.is_status_drawn, at) {
            (true, _) | (false, CursorAt::LineStart) => "\r\u{1b}[K",
            (false, CursorAt::Within) => "\r\n",
        };
        write(&format!("{beginning}{line}"));
        line_state::on_own_line();
        shown.is_status_drawn = true;
    }

    /// Erases it, so that the cursor is at the start of a line.
    pub(super) fn erase(&self) {
        let mut shown = shown();
        if std::mem::take(&mut shown.is_status_drawn) {
            write("\r\u{1b}[K");
        }
    }
}

/// The cursor position after the output of the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CursorAt {
    LineStart,
    Within,
}
