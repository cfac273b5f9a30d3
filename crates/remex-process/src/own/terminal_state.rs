//! Saves the state of the terminal, and restores it after another program has changed it.

use rustix::{
    process::getpgrp,
    stdio::stdin,
    termios::{OptionalActions, Termios, tcgetattr, tcsetattr, tcsetpgrp},
};

use crate::base::sys;

/// The saved modes of the controlling terminal of this program.
#[derive(Clone, Debug)]
pub struct TerminalState {
    modes: Termios,
}

impl TerminalState {
    /// Saves the modes of standard input; `None` if it is not a terminal.
    pub fn save() -> Option<Self> {
        tcgetattr(stdin()).ok().map(|modes| Self { modes })
    }

    /// Puts the process group of this program into the foreground, and restores the modes, after a program that may
    /// have changed both has ended.
    pub fn restore(&self) {
        // Otherwise, SIGTTOU would stop this program while it is in the background.
        sys::with_all_signals_blocked(|| {
            let _ = tcsetpgrp(stdin(), getpgrp());
            let _ = tcsetattr(stdin(), OptionalActions::Now, &self.modes);
        });
    }
}
