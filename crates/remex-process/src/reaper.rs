//! Reaps children that have no waiting owner, so that none remains a zombie.
#![allow(unsafe_code)]

use std::{
    io,
    os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd, RawFd},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    thread,
};

use rustix::event::{EventfdFlags, Timespec, epoll, eventfd};

use crate::sys::{self, WaitMode};

/// How long the thread waits before it looks again at those it cannot watch.
const PAUSE: Timespec = Timespec { tv_sec: 0, tv_nsec: 250_000_000 };

/// Stands for the bell in the set; no descriptor has this number.
const BELL: u64 = u64::MAX;

/// All orphans.
#[derive(Debug)]
struct Orphans {
    /// It is the kernel's, so adopting one neither allocates nor waits.
    set: OwnedFd,
    /// Those for which the kernel had no room in the set; usually there are none. Held for moments.
    unwatched: Mutex<Vec<OwnedFd>>,
    /// Rings when there is one of them.
    bell: OwnedFd,
}

/// The mutex is only held to start the thread once, or to clone the handle.
static ORPHANS: Mutex<Option<Arc<Orphans>>> = Mutex::new(None);

/// Starts the thread that reaps, once in the life of the process.
pub(crate) fn start() -> io::Result<()> {
    let mut orphans = ORPHANS.lock().unwrap_or_else(PoisonError::into_inner);
    if orphans.is_none() {
        let set = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        epoll::add(&set, &bell, epoll::EventData::new_u64(BELL), epoll::EventFlags::IN)?;
        let shared = Arc::new(Orphans { set, unwatched: Mutex::default(), bell });
        let own = shared.clone();
        thread::Builder::new().name("remex-reap".into()).spawn(move || run(&own))?;
        *orphans = Some(shared);
    }
    Ok(())
}

/// Reaps a child as soon as it ends, in the background. Never waits.
pub(crate) fn adopt(pidfd: OwnedFd) {
    // One that has ended already needs no thread, and one that is not our child no reaping.
    if is_over(pidfd.as_fd()) {
        return;
    }
    // Without the thread nothing was started that could be adopted.
    let Some(orphans) = ORPHANS.lock().unwrap_or_else(PoisonError::into_inner).clone() else { return };
    let data = epoll::EventData::new_u64(pidfd.as_raw_fd() as u64);
    match epoll::add(&orphans.set, &pidfd, data, epoll::EventFlags::IN) {
        // From here on the descriptor belongs to the set.
        Ok(()) => _ = pidfd.into_raw_fd(),
        Err(_) => orphans.keep(pidfd),
    }
}

impl Orphans {
    /// Keeps a child that epoll cannot watch for lack of memory; polled, because it may be stuck.
    fn keep(&self, pidfd: OwnedFd) {
        self.unwatched().push(pidfd);
        // Fails only when it rings already.
        _ = rustix::io::write(&self.bell, &1_u64.to_ne_bytes());
    }

    fn unwatched(&self) -> MutexGuard<'_, Vec<OwnedFd>> {
        self.unwatched.lock().unwrap_or_else(PoisonError::into_inner)
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
        // An error is an interruption, as by a stop and a continue of the whole program: try again.
        _ = epoll::wait(&orphans.set, rustix::buffer::spare_capacity(&mut events), timeout.as_ref());
        orphans.unwatched().retain(|pidfd| !is_over(pidfd.as_fd()));
        for event in &events {
            if event.data.u64() == BELL {
                _ = rustix::io::read(&orphans.bell, &mut [0; 8]);
                continue;
            }
            let pidfd = event.data.u64() as RawFd;
            // SAFETY: `adopt` has given the descriptor to the set, and only this thread takes it out.
            let watched = unsafe { BorrowedFd::borrow_raw(pidfd) };
            if !is_over(watched) {
                continue;
            }
            // Closing alone would not do: a child that is just being born may hold a copy of the descriptor.
            if let Err(error) = epoll::delete(&orphans.set, watched) {
                tracing::warn!(%error, "cannot stop watching an orphaned process");
            }
            // SAFETY: it is out of the set, so it is ours to close.
            drop(unsafe { OwnedFd::from_raw_fd(pidfd) });
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{process::Command, time::Duration};

    use rustix::{
        event::{PollFd, PollFlags, poll},
        process::{Pid, PidfdFlags, pidfd_open},
    };

    use super::*;

    #[test]
    fn one_that_cannot_be_watched_is_reaped_too_and_nobody_waits_for_it() {
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
