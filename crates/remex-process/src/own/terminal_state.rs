//! The terminal of this program, as it was before another program changed it.

use rustix::{
    process::getpgrp,
    stdio::stdin,
    termios::{OptionalActions, Termios, tcgetattr, tcsetattr, tcsetpgrp},
};

use crate::base::sys;

/// The modes of the terminal that controls this program.
#[derive(Clone, Debug)]
pub struct TerminalState {
    modes: Termios,
}

impl TerminalState {
    /// Saves the modes of standard input; `None` if it is not a terminal.
    pub fn save() -> Option<Self> {
        tcgetattr(stdin()).ok().map(|modes| Self { modes })
    }

    /// Puts the process group of this program into the foreground, and restores the modes, after a program that may have
    /// changed both has ended.
    pub fn restore(&self) {
        // A background process that does this would otherwise be stopped by SIGTTOU.
        sys::with_all_signals_blocked(|| {
            let _ = tcsetpgrp(stdin(), getpgrp());
            let _ = tcsetattr(stdin(), OptionalActions::Now, &self.modes);
        });
    }
}
