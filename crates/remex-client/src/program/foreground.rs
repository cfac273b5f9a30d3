//! Puts a program that prompts the user in the foreground of the terminal.
//!
//! Start at [`ForegroundTerminal`].

use std::{
    fs::{File, OpenOptions},
    io::{self, PipeReader, PipeWriter},
    os::unix::fs::OpenOptionsExt as _,
    sync::{Mutex, PoisonError},
};

use nix::sys::signal::{SigSet, SigmaskHow, Signal, raise};
use rustix::{
    fs::OFlags,
    process::{self, Pid, getpgrp, kill_process_group},
    termios::{OptionalActions, Termios, tcgetattr, tcgetpgrp, tcsetattr, tcsetpgrp},
};

use super::PromptRefusal;

/// The terminal while a program is in its foreground; dropped, this process is, with the settings of before.
///
/// It is dropped in the thread that has made it.
#[derive(Debug)]
pub(super) struct ForegroundTerminal {
    terminal: File,
    settings: Termios,
    program: Pid,
    owner: Pid,
    /// The signals that the thread blocked before.
    mask: SigSet,
    _turn: TerminalLock,
}

/// Why the terminal could not be acquired.
#[derive(Debug)]
pub(super) enum Denied {
    /// Another program of this process has it; the pipe ends when that may have changed.
    Taken(PipeReader),
    Refused(PromptRefusal),
}

impl ForegroundTerminal {
    /// Puts the process group of a program in the foreground, if this process is there.
    pub(super) fn acquire(program: Pid) -> Result<Self, Denied> {
        let turn = TerminalLock::take()?;
        let unusable = |_| Denied::Refused(PromptRefusal::NoTerminal);
        let flags = OFlags::NOCTTY.bits().cast_signed();
        let terminal = OpenOptions::new().read(true).write(true).custom_flags(flags).open("/dev/tty");
        let terminal = terminal.map_err(unusable)?;
        let owner = getpgrp();
        if tcgetpgrp(&terminal) != Ok(owner) {
            return Err(Denied::Refused(PromptRefusal::Background));
        }
        let unusable = |_| Denied::Refused(PromptRefusal::NoTerminal);
        let settings = tcgetattr(&terminal).map_err(unusable)?;
        // Restoring the terminal from the background raises SIGTTOU, which stops the process unless it is blocked.
        let block = SigSet::from(Signal::SIGTTOU);
        let mask = block
            .thread_swap_mask(SigmaskHow::SIG_BLOCK)
            .map_err(|_| Denied::Refused(PromptRefusal::NoTerminal))?;
        let loan = Self { terminal, settings, program, owner, mask, _turn: turn };
        tcsetpgrp(&loan.terminal, program).map_err(unusable)?;
        Ok(loan)
    }

    /// Returns the terminal, to write to.
    pub(super) fn terminal(&self) -> io::Result<File> {
        self.terminal.try_clone()
    }
}

impl Drop for ForegroundTerminal {
    fn drop(&mut self) {
        // A shell that has stopped this job, or has seen its end, has taken the terminal itself.
        if tcgetpgrp(&self.terminal) == Ok(self.program) {
            let _ = tcsetpgrp(&self.terminal, self.owner);
            let _ = tcsetattr(&self.terminal, OptionalActions::Now, &self.settings);
        }
        let _ = self.mask.thread_set_mask();
    }
}

/// Stops the job that this process belongs to, as Ctrl-Z does, and returns when a shell lets it go on.
pub(super) fn suspend() {
    let Ok(mask) = SigSet::from(Signal::SIGTSTP).thread_swap_mask(SigmaskHow::SIG_BLOCK) else { return };
    // The group stops at any moment from now on, and this thread at the latest when it no longer blocks its own signal.
    // SIGCONT discards both, so that it does not stop twice.
    let _ = raise(Signal::SIGTSTP);
    let _ = kill_process_group(getpgrp(), process::Signal::TSTP);
    let _ = mask.thread_set_mask();
}

/// One program at a time asks.
#[derive(Debug)]
struct TerminalLock(());

#[derive(Debug)]
struct TerminalLockState {
    taken: bool,
    /// Closed when it is no longer taken.
    waiting: Vec<PipeWriter>,
}

static TERMINAL_LOCK: Mutex<TerminalLockState> =
    Mutex::new(TerminalLockState { taken: false, waiting: Vec::new() });

impl TerminalLock {
    fn take() -> Result<Self, Denied> {
        let mut turns = TERMINAL_LOCK.lock().unwrap_or_else(PoisonError::into_inner);
        if !turns.taken {
            turns.taken = true;
            return Ok(Self(()));
        }
        let (free, taken) = io::pipe().map_err(|_| Denied::Refused(PromptRefusal::NoTerminal))?;
        turns.waiting.push(taken);
        Err(Denied::Taken(free))
    }
}

impl Drop for TerminalLock {
    fn drop(&mut self) {
        let mut turns = TERMINAL_LOCK.lock().unwrap_or_else(PoisonError::into_inner);
        turns.taken = false;
        turns.waiting.clear();
    }
}
