//! Defers signals that arrive before the program has installed its handlers, and replays them afterwards.
#![allow(unsafe_code)]

use std::{
    mem::MaybeUninit,
    ptr,
    sync::atomic::{AtomicU64, Ordering},
};

/// The signals that have arrived, as bits.
static DEFERRED: AtomicU64 = AtomicU64::new(0);

extern "C" fn defer(signal: libc::c_int) {
    DEFERRED.fetch_or(1 << signal, Ordering::Relaxed);
}

/// The signals that request a replacement or a reload. They must not end a program that has just replaced another one
/// and does not handle them yet.
const PENDING: [libc::c_int; 2] = [libc::SIGUSR2, libc::SIGHUP];

/// Defers these signals from now on, even if the program that this one replaces has blocked them.
///
/// [`replay_deferred_signals`] delivers them once the real handlers are installed.
pub fn defer_signals(signals: &[i32]) {
    for &signal in signals {
        // SAFETY: the handler only changes an atomic number, which is allowed at any moment.
        unsafe { libc::signal(signal, defer as extern "C" fn(libc::c_int) as libc::sighandler_t) };
    }
    unblock();
}

/// Raises the signals that [`defer_signals`] has deferred, for the handlers that are installed now.
pub fn replay_deferred_signals() {
    let deferred = DEFERRED.swap(0, Ordering::Relaxed);
    for signal in (1..64).filter(|signal| deferred & (1 << signal) != 0) {
        // SAFETY: a signal to this process itself; its handler is installed.
        unsafe { libc::raise(signal) };
    }
}

/// Blocks SIGUSR2 and SIGHUP on this thread and in a program that is executed in its place, where they stay pending.
pub(crate) fn block() {
    change_mask(libc::SIG_BLOCK);
}

/// Unblocks them again.
pub(crate) fn unblock() {
    change_mask(libc::SIG_UNBLOCK);
}

fn change_mask(how: libc::c_int) {
    let mut set = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: `sigemptyset` initializes the set before it is used. No call can fail with signals that exist.
    unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        for signal in PENDING {
            libc::sigaddset(set.as_mut_ptr(), signal);
        }
        libc::pthread_sigmask(how, set.as_ptr(), ptr::null_mut());
    }
}
