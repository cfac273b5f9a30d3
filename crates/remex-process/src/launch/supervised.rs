//! The command of a supervisor, executed as the server executes programs: every signal has its default action, and a
//! file that is no program is not handed to a shell.
//!
//! Start at [`Supervised::spawn`].
#![allow(unsafe_code)]

use std::{
    env,
    ffi::{OsStr, OsString},
    io,
    os::unix::{ffi::OsStrExt as _, process::CommandExt as _},
    process::{Child, Command},
};

use rustix::process::{Signal, getpid, getppid, set_parent_process_death_signal};

use crate::{
    Rlimits,
    launch::{
        clone::{execute_candidates, reset_dispositions},
        image::{Strings, candidates},
    },
};

/// A command that is killed when this program ends, even if it is killed.
#[derive(Clone, Copy, Debug)]
pub struct Supervised<'a> {
    /// The program and its arguments.
    pub command: &'a [OsString],
    /// The `argv[0]` of the program, if not its name.
    pub arg0: Option<&'a OsStr>,
    /// Limits that this program does not have.
    pub limits: Rlimits,
}

impl Supervised<'_> {
    /// Starts the command in the process group of this program; only on the main thread.
    ///
    /// # Errors
    /// If it cannot be executed.
    pub fn spawn(&self) -> io::Result<Child> {
        let (program, args) = self.command.split_first().ok_or(io::ErrorKind::NotFound)?;
        let env = env::vars_os().collect::<Vec<_>>();
        let arg0 = self.arg0.unwrap_or(program);
        let argv = Strings::new(
            [arg0].into_iter().chain(args.iter().map(OsString::as_os_str)).map(|arg| [arg.as_bytes()]),
        );
        let strings = Strings::new(env.iter().map(|(name, value)| [name.as_bytes(), b"=", value.as_bytes()]));
        let path = env::var_os("PATH");
        let (Ok(candidates), Ok(argv), Ok(env)) = (candidates(program, path.as_deref()), argv, strings)
        else {
            return Err(io::ErrorKind::InvalidInput.into());
        };
        let (limits, this) = (self.limits.raw(), getpid());
        // The standard library only forks, and passes the error on; the closure executes the program.
        let mut forked = Command::new(program);
        // SAFETY: between fork and exec there are system calls, and the lists of pointers, for which it allocates: the
        // C library keeps its heap usable in a forked child. What the lists point to lives until the program is
        // executed.
        unsafe {
            forked.pre_exec(move || {
                let _ = set_parent_process_death_signal(Some(Signal::KILL));
                // This program may have ended before the parent-death signal was set.
                if getppid() != Some(this) {
                    return Err(io::Error::from_raw_os_error(libc::ESRCH));
                }
                for (resource, limit) in limits.iter().flatten() {
                    if libc::setrlimit(*resource, &raw const *limit) != 0 {
                        return Err(io::Error::last_os_error());
                    }
                }
                reset_dispositions();
                let errno = execute_candidates(&candidates.pointers(), &argv.pointers(), &env.pointers());
                Err(io::Error::from_raw_os_error(errno))
            });
        }
        forked.spawn()
    }
}

/// Makes this program ignore fault signals such as SIGSEGV that other processes send and that it cannot wait for.
pub fn ignore_faults() {
    for fault in [Signal::ILL, Signal::FPE, Signal::SEGV, Signal::BUS] {
        // SAFETY: no handler is installed. The kernel still ends this program for a fault of its own.
        unsafe { libc::signal(fault.as_raw(), libc::SIG_IGN) };
    }
}
