//! The local terminal: in raw mode while a remote one is shown, and always restored afterwards.
//!
//! Start at [`RawTerminal`].

use std::{
    fs::File,
    io::{self, IsTerminal as _, Write as _},
    os::unix::fs::OpenOptionsExt as _,
    sync::Mutex,
};

use remex_client::process::TerminalSize;
use rustix::{
    fs::OFlags,
    process::getpgrp,
    termios::{
        LocalModes, OptionalActions, SpecialCodeIndex, Termios, tcgetattr, tcgetpgrp, tcgetwinsize, tcsetattr,
    },
};

use crate::{
    console::{
        escape::Character,
        modes::{Modes, Screen},
    },
    render::failure::Failure,
};

/// Resets modes that a detached program may have set: hidden cursor, bracketed paste, mouse reports, colours.
const UNDO: &str =
    "\u{1b}[?25h\u{1b}[?2004l\u{1b}[?1000l\u{1b}[?1002l\u{1b}[?1003l\u{1b}[?1006l\u{1b}[?1l\u{1b}>\u{1b}[0m";

/// The original settings, to be restored by the guard or by a panicking thread.
static BEFORE: Mutex<Option<Termios>> = Mutex::new(None);

/// Leaves the alternate screen; only if it is active, because this moves the cursor.
const FIRST_SCREEN: &str = "\u{1b}[?1049l";

/// A terminal in raw mode; restored on drop.
#[derive(Debug)]
pub(crate) struct RawTerminal {
    settings: Termios,
}

/// Which keys are delivered as input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Keys {
    All,
    /// Ctrl-C and similar keys raise signals.
    ButSignals,
}

impl RawTerminal {
    /// Puts standard input in raw mode, if it is a terminal.
    pub(crate) fn enter(keys: Keys) -> Result<Option<Self>, Failure> {
        let stdin = io::stdin();
        if !stdin.is_terminal() {
            return Ok(None);
        }
        let before = tcgetattr(&stdin).map_err(io_failure)?;
        let mut raw = before.clone();
        raw.make_raw();
        if keys == Keys::ButSignals {
            raw.local_modes |= LocalModes::ISIG;
        }
        remember(before);
        let entered = Self { settings: raw };
        entered.again()?;
        Ok(Some(entered))
    }

    /// Enters raw mode again, after a shell has used the terminal.
    pub(crate) fn again(&self) -> Result<(), Failure> {
        tcsetattr(io::stdin(), OptionalActions::Now, &self.settings).map_err(io_failure)
    }

    /// Leaves raw mode for as long as another program uses the terminal.
    pub(crate) fn suspend(&self) {
        if let Some(before) = BEFORE.lock().ok().and_then(|settings| settings.clone()) {
            let _ = tcsetattr(io::stdin(), OptionalActions::Drain, &before);
        }
    }

    /// Resets modes that a detached program has set.
    pub(crate) fn undo(modes: &Modes) {
        let mut stdout = io::stdout().lock();
        if stdout.is_terminal() {
            let first = if modes.screen() == Screen::Other { FIRST_SCREEN } else { "" };
            let _ = write!(stdout, "{first}{UNDO}").and_then(|()| stdout.flush());
        }
    }
}

impl Drop for RawTerminal {
    fn drop(&mut self) {
        restore();
    }
}

/// A terminal that delivers lines, and those that begin with the escape character at once.
///
/// The escape character ends a line for the terminal; the key after it is then read by itself. Restored on drop.
#[derive(Debug)]
pub(crate) struct EscapeKeys {
    modes: EscapeModes,
}

/// The two modes of such a terminal.
#[derive(Clone, Debug)]
pub(crate) struct EscapeModes {
    lines: Termios,
    key: Termios,
}

impl EscapeKeys {
    /// Changes the terminal on standard input; `None` if there is none, or no escape character.
    pub(crate) fn enter(escape: Character) -> Option<Self> {
        let Character::Byte(escape) = escape else { return None };
        let before = tcgetattr(io::stdin()).ok()?;
        let mut lines = before.clone();
        lines.special_codes[SpecialCodeIndex::VEOL] = escape;
        let mut key = before.clone();
        key.local_modes -= LocalModes::ICANON | LocalModes::ECHO;
        key.special_codes[SpecialCodeIndex::VMIN] = 1;
        key.special_codes[SpecialCodeIndex::VTIME] = 0;
        remember(before);
        let entered = Self { modes: EscapeModes { lines, key } };
        entered.modes.follow(&[], false);
        Some(entered)
    }

    pub(crate) fn modes(&self) -> EscapeModes {
        self.modes.clone()
    }

    /// Changes the terminal again, after a shell has used it; not while that still does, which would stop this program.
    pub(crate) fn again(&self) {
        if is_foreground() {
            self.modes.follow(&[], false);
        }
    }
}

impl EscapeModes {
    /// Shows keys that were read by themselves, and reads the next one like that if it follows an escape character.
    pub(crate) fn follow(&self, keys: &[u8], is_pending: bool) {
        let mut stderr = io::stderr().lock();
        for key in keys {
            let _ = match key {
                0x7f | 0x08 => stderr.write_all(b"\x08 \x08"),
                b'\n' | b'\t' | b' '..=0xff => stderr.write_all(&[*key]),
                _ => Ok(()),
            };
        }
        let _ =
            tcsetattr(io::stdin(), OptionalActions::Now, if is_pending { &self.key } else { &self.lines });
    }
}

impl Drop for EscapeKeys {
    fn drop(&mut self) {
        restore();
    }
}

/// The terminal on standard input, in one of two ways or in neither.
#[derive(Clone, Copy, Debug)]
pub(super) struct LocalTerminal<'a> {
    pub(super) raw: Option<&'a RawTerminal>,
    pub(super) escape_keys: Option<&'a EscapeKeys>,
}

impl LocalTerminal<'_> {
    /// Changes it again, after a shell has used it.
    pub(super) fn again(self) {
        // Closing the terminal also resumes a stopped program; the terminal can no longer be changed then.
        let _ = self.raw.map(RawTerminal::again);
        if let Some(keys) = self.escape_keys {
            keys.again();
        }
    }
}

/// Keeps the settings that are restored at the end, also after a panic.
fn remember(before: Termios) {
    if let Ok(mut settings) = BEFORE.lock() {
        *settings = Some(before);
    }
    let usual = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        restore();
        usual(panic);
    }));
}

fn restore() {
    let before = BEFORE.lock().ok().and_then(|mut settings| settings.take());
    if let Some(before) = before {
        // Flush pending output first.
        let _ = tcsetattr(io::stdin(), OptionalActions::Drain, &before);
    }
}

fn io_failure(error: rustix::io::Errno) -> Failure {
    Failure::io("change the terminal mode", &error.into())
}

/// Returns whether standard input is a terminal that was closed.
pub(crate) fn is_gone() -> bool {
    tcgetattr(io::stdin()).is_err_and(|error| error == rustix::io::Errno::IO)
}

/// Where this program is on its terminal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ForegroundState {
    Foreground,
    /// A shell or another program has the terminal.
    Background,
    /// It has no terminal.
    None,
}

/// Returns whether there is a terminal, and this program is in its foreground.
pub(crate) fn is_foreground() -> bool {
    foreground_state() == ForegroundState::Foreground
}

/// Returns where this program is on its terminal.
pub(crate) fn foreground_state() -> ForegroundState {
    let terminal = File::options()
        .read(true)
        .write(true)
        .custom_flags(OFlags::NOCTTY.bits().cast_signed())
        .open("/dev/tty");
    match terminal {
        Ok(terminal) if tcgetpgrp(&terminal) == Ok(getpgrp()) => ForegroundState::Foreground,
        Ok(_) => ForegroundState::Background,
        Err(_) => ForegroundState::None,
    }
}

/// Returns the rows and columns of the terminal on any of the standard streams; 24 × 80 without a terminal.
pub(crate) fn size() -> TerminalSize {
    let sizes = [tcgetwinsize(io::stdin()), tcgetwinsize(io::stdout()), tcgetwinsize(io::stderr())];
    let mut sizes = sizes.into_iter().flatten().flat_map(|size| TerminalSize::new(size.ws_row, size.ws_col));
    sizes.next().unwrap_or_default()
}
