//! Ends this program by the signal that ended the program it stands for.
#![allow(unsafe_code)]

use std::process;

use rustix::process::{Resource, Rlimit, setrlimit};

use crate::base::sys;

/// Ends this program by a signal, without a core dump; with exit code 128 + its number if that signal is not fatal.
pub fn exit_by_signal(signal: i32) -> ! {
    // A core dump of this program would say nothing about the other one.
    let _ = setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) });
    // SAFETY: the default action replaces a handler of this program, which is ending. A wrong number changes nothing.
    unsafe { libc::signal(signal, libc::SIG_DFL) };
    sys::unblock_signals();
    // SAFETY: a signal to this process itself.
    unsafe { libc::raise(signal) };
    process::exit(128_i32.saturating_add(signal))
}
