//! The terminal while a login uses it to reconnect.
//!
//! Start at [`Login`].

use std::io::Write as _;

use super::Change;
use crate::console::{
    input::{Gate, Input},
    modes::Modes,
    terminal::RawTerminal,
};

/// Whether a login uses the terminal.
#[derive(Debug)]
pub(super) enum Login<'a> {
    None,
    /// An attempt that may prompt was asked for after this many others.
    Asked {
        terminal: LentTerminal<'a>,
        attempts: u32,
    },
    /// It failed; the user decides when to retry.
    Waiting {
        terminal: LentTerminal<'a>,
        input: Option<Input>,
    },
}

/// The terminal in the state before the program, with its keyboard input available to other programs.
#[derive(Debug)]
pub(super) struct LentTerminal<'a> {
    raw: Option<&'a RawTerminal>,
    keyboard: Option<Gate>,
    modes: Modes,
}

impl<'a> Login<'a> {
    /// Suspends the screen of the program.
    pub(super) fn lend(
        raw: Option<&'a RawTerminal>,
        keyboard: Option<&Gate>,
        modes: &mut Modes,
        attempts: u32,
    ) -> Self {
        if let Some(keyboard) = keyboard {
            keyboard.close();
        }
        let modes = std::mem::take(modes);
        if let Some(raw) = raw {
            show(&modes.undo());
            raw.suspend();
        }
        Self::Asked { terminal: LentTerminal { raw, keyboard: keyboard.cloned(), modes }, attempts }
    }

    /// Records that an attempt that may prompt begins, after this many others.
    pub(super) fn ask(&mut self, attempts: u32) {
        if let Self::Waiting { terminal, .. } = std::mem::replace(self, Self::None) {
            *self = Self::Asked { terminal, attempts };
        }
    }

    /// Waits for the user after a failed attempt.
    pub(super) fn wait(&mut self) {
        if let Self::Asked { terminal, .. } = std::mem::replace(self, Self::None) {
            // Without it the user can still press Ctrl-C.
            *self = Self::Waiting { terminal, input: Input::open().ok() };
        }
    }

    /// Waits until the user presses Enter. Cancel-safe.
    pub(super) async fn answered(&mut self) -> Change {
        let Self::Waiting { input, .. } = self else { return std::future::pending().await };
        let Some(open) = input else { return std::future::pending().await };
        match open.next().await {
            Some(Ok(_)) => Change::Retry,
            Some(Err(_)) | None => {
                *input = None;
                Change::Eof
            }
        }
    }

    /// Shows the screen of the program again.
    pub(super) fn end(&mut self, modes: &mut Modes) {
        let (Self::Asked { terminal, .. } | Self::Waiting { terminal, .. }) =
            std::mem::replace(self, Self::None)
        else {
            return;
        };
        let LentTerminal { raw, keyboard, modes: before } = terminal;
        *modes = before;
        if let Some(raw) = raw {
            // The terminal may be gone, which the next read reports.
            let _ = raw.again();
            show(&modes.redo());
        }
        if let Some(keyboard) = keyboard {
            keyboard.open();
        }
    }

    /// Leaves the screen of the program suspended.
    pub(super) fn forget(&mut self) {
        *self = Self::None;
    }
}

fn show(sequence: &str) {
    let mut stdout = std::io::stdout().lock();
    let _ = stdout.write_all(sequence.as_bytes()).and_then(|()| stdout.flush());
}
