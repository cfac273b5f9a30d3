//! Puts a program that prompts the user in the foreground of the terminal.
//!
//! Start at [`ForegroundTerminal`].

use std::{
    fs::{File, OpenOptions},
    io::{self, PipeReader, PipeWriter},
    os::unix::fs::OpenOptionsExt as _,
    sync::Mutex,
};

use nix::sys::signal::{SigSet, SigmaskHow, Signal, raise};
use remex_base::lock;
use rustix::{
    fs::OFlags,
    process::{self, Pid, getpgrp, kill_process_group},
    termios::{OptionalActions, Termios, tcgetattr, tcgetpgrp, tcsetattr, tcsetpgrp},
};

use super::PromptRefusal;

/// The terminal while a program is in its foreground; dropping it restores this process and the terminal settings.
///
/// It must be dropped in the thread that created it.
#[derive(Debug)]
pub(super) struct ForegroundTerminal {
    terminal: File,
    settings: Termios,
    program: Pid,
    owner: Pid,
    /// The signal mask of the thread to restore.
    mask: SigSet,
    _turn: TerminalLock,
}

/// Why the terminal could not be acquired.
#[derive(Debug)]
pub(super) enum Denied {
    /// Another program of this process has it; the pipe is closed when the terminal may be free.
    Taken(PipeReader),
    Refused(PromptRefusal),
}

impl ForegroundTerminal {
    /// Puts the process group of a program in the foreground, if this process is in the foreground.
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

    /// Opens the terminal for writing.
    pub(super) fn terminal(&self) -> io::Result<File> {
        self.terminal.try_clone()
    }
}

impl Drop for ForegroundTerminal {
    fn drop(&mut self) {
        // If the shell stopped this job or saw it exit, the shell already has the terminal.
        if tcgetpgrp(&self.terminal) == Ok(self.program) {
            let _ = tcsetpgrp(&self.terminal, self.owner);
            let _ = tcsetattr(&self.terminal, OptionalActions::Now, &self.settings);
        }
        let _ = self.mask.thread_set_mask();
    }
}

/// Suspends the job that this process belongs to, as Ctrl-Z does, and returns when a shell resumes it.
pub(super) fn suspend() {
    let Ok(mask) = SigSet::from(Signal::SIGTSTP).thread_swap_mask(SigmaskHow::SIG_BLOCK) else { return };
    // The group stops at any moment from now on, and this thread at the latest when it unblocks the signal sent to itself.
    // SIGCONT discards both, so that the process does not stop twice.
    let _ = raise(Signal::SIGTSTP);
    let _ = kill_process_group(getpgrp(), process::Signal::TSTP);
    let _ = mask.thread_set_mask();
}

/// Held by the one program that prompts.
#[derive(Debug)]
struct TerminalLock(());

#[derive(Debug)]
struct TerminalLockState {
    taken: bool,
    /// Closed when the lock is released.
    waiting: Vec<PipeWriter>,
}

static TERMINAL_LOCK: Mutex<TerminalLockState> =
    Mutex::new(TerminalLockState { taken: false, waiting: Vec::new() });

impl TerminalLock {
    fn take() -> Result<Self, Denied> {
        let mut turns = lock(&TERMINAL_LOCK);
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
        let mut turns = lock(&TERMINAL_LOCK);
        turns.taken = false;
        turns.waiting.clear();
    }
}
