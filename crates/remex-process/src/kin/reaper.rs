//! Reaps children that have no waiting owner, so that none remains a zombie.
#![allow(unsafe_code)]

use std::{
    io,
    os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd, RawFd},
    sync::{Arc, Mutex, MutexGuard},
    thread,
};

use remex_base::lock;
use rustix::{
    event::{EventfdFlags, Timespec, epoll, eventfd},
    process::{PidfdFlags, pidfd_open},
};

use crate::{
    Pid,
    base::{
        proc,
        sys::{self, WaitMode},
    },
};

/// How often the thread polls children that it cannot watch.
const PAUSE: Timespec = Timespec { tv_sec: 0, tv_nsec: 250_000_000 };

/// Identifies the wakeup descriptor in the set; no descriptor has this number.
const WAKEUP: u64 = u64::MAX;

/// The children to reap.
#[derive(Debug)]
struct Orphans {
    /// An epoll set, so that adopting a child neither allocates nor waits.
    set: OwnedFd,
    /// Children for which the kernel had no room in the set; usually none. Locked briefly.
    unwatched: Mutex<Vec<OwnedFd>>,
    /// Wakes the thread when `unwatched` gets an entry.
    wakeup: OwnedFd,
}

/// The mutex is only held to start the thread once, or to clone the handle.
static ORPHANS: Mutex<Option<Arc<Orphans>>> = Mutex::new(None);

/// Starts the reaping thread once per program.
pub(crate) fn start() -> io::Result<()> {
    let mut orphans = lock(&ORPHANS);
    if orphans.is_none() {
        let set = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let wakeup = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        epoll::add(&set, &wakeup, epoll::EventData::new_u64(WAKEUP), epoll::EventFlags::IN)?;
        let shared = Arc::new(Orphans { set, unwatched: Mutex::default(), wakeup });
        let own = shared.clone();
        thread::Builder::new().name("remex-reap".into()).spawn(move || run(&own))?;
        *orphans = Some(shared);
    }
    Ok(())
}

/// Reaps a child as soon as it ends, in the background. Never waits.
pub(crate) fn adopt(pidfd: OwnedFd) {
    // A child that has already ended needs no thread, and a process that is not our child needs no reaping.
    if is_over(pidfd.as_fd()) {
        return;
    }
    // Without the thread, no child was ever started.
    let Some(orphans) = lock(&ORPHANS).clone() else { return };
    let data = epoll::EventData::new_u64(pidfd.as_raw_fd() as u64);
    match epoll::add(&orphans.set, &pidfd, data, epoll::EventFlags::IN) {
        // The set owns the descriptor from now on.
        Ok(()) => _ = pidfd.into_raw_fd(),
        Err(_) => orphans.keep(pidfd),
    }
}

/// Reaps all children except `known` ones in the background, as soon as they end.
///
/// For a program that has replaced another one and inherits its children.
///
/// # Errors
/// If `/proc` cannot be read.
pub fn reap_unknown_children(known: &[Pid]) -> io::Result<()> {
    start()?;
    let own = Pid::new(std::process::id().cast_signed());
    for pid in proc::pids()?.into_iter().filter(|pid| !known.contains(pid)) {
        // A zombie has no statistics, but it has a parent.
        if proc::parent(pid) == own
            && let Some(number) = rustix::process::Pid::from_raw(pid.as_raw())
            && let Ok(pidfd) = pidfd_open(number, PidfdFlags::empty())
        {
            adopt(pidfd);
        }
    }
    Ok(())
}

impl Orphans {
    /// Polls a child that epoll cannot watch for lack of memory, because waiting for it could block the thread.
    fn keep(&self, pidfd: OwnedFd) {
        self.unwatched().push(pidfd);
        // Fails only if a wakeup is already pending.
        _ = rustix::io::write(&self.wakeup, &1_u64.to_ne_bytes());
    }

    fn unwatched(&self) -> MutexGuard<'_, Vec<OwnedFd>> {
        lock(&self.unwatched)
    }
}

fn is_over(pidfd: BorrowedFd<'_>) -> bool {
    !matches!(sys::reap(pidfd, WaitMode::Return), Ok(None))
}

fn run(orphans: &Orphans) {
    sys::block_signals();
    let mut events = Vec::with_capacity(64);
    loop {
        events.clear();
        let timeout = (!orphans.unwatched().is_empty()).then_some(PAUSE);
        // The only error is an interruption, such as SIGSTOP and SIGCONT of the whole program: try again.
        _ = epoll::wait(&orphans.set, rustix::buffer::spare_capacity(&mut events), timeout.as_ref());
        orphans.unwatched().retain(|pidfd| !is_over(pidfd.as_fd()));
        for event in &events {
            if event.data.u64() == WAKEUP {
                _ = rustix::io::read(&orphans.wakeup, &mut [0; 8]);
                continue;
            }
            let pidfd = event.data.u64() as RawFd;
            // SAFETY: `adopt` has given the descriptor to the set, and only this thread takes it out.
            let watched = unsafe { BorrowedFd::borrow_raw(pidfd) };
            if !is_over(watched) {
                continue;
            }
            // Closing it does not remove it from the set: a child that is just being created may hold a copy of the
            // descriptor.
            if let Err(error) = epoll::delete(&orphans.set, watched) {
                tracing::warn!(%error, "cannot stop watching an orphaned process");
            }
            // SAFETY: it is no longer in the set, so we own it.
            drop(unsafe { OwnedFd::from_raw_fd(pidfd) });
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{process::Command, time::Duration};

    use rustix::{
        event::{PollFd, PollFlags, poll},
        process::Pid,
    };

    use super::*;

    #[test]
    fn a_child_that_cannot_be_watched_is_reaped_without_blocking() {
        start().unwrap();
        let orphans = ORPHANS.lock().unwrap().clone().unwrap();
        let mut child = Command::new("sleep").arg("1000").spawn().unwrap();
        let pid = Pid::from_raw(child.id().cast_signed()).unwrap();
        let pidfd = pidfd_open(pid, PidfdFlags::empty()).unwrap();
        orphans.keep(pidfd.try_clone().unwrap());
        child.kill().unwrap();
        let patience = Timespec { tv_sec: 60, tv_nsec: 0 };
        let ended = poll(&mut [PollFd::new(&pidfd, PollFlags::IN)], Some(&patience));
        assert_eq!(ended, Ok(1), "it was killed");
        let is_reaped = (0..600).any(|_| {
            thread::sleep(Duration::from_millis(100));
            orphans.unwatched().is_empty()
        });
        assert!(is_reaped, "it was not reaped within a minute");
        child.wait().expect_err("the thread has reaped it");
    }
}
