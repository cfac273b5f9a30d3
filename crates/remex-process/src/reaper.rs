//! Takes the exit status of children for which nobody waits any more, so that none stays behind as a zombie.
#![allow(unsafe_code)]

use std::{
    io,
    os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd, RawFd},
    sync::{Arc, Mutex, PoisonError},
    thread,
};

use rustix::event::epoll;

use crate::sys::{self, Patience};

/// The set of all orphans. It is the kernel's, so adopting one neither allocates nor waits; the mutex is only held to
/// start the thread once, or to clone the handle.
static ORPHANS: Mutex<Option<Arc<OwnedFd>>> = Mutex::new(None);

/// Starts the thread that reaps, once in the life of the process.
pub(crate) fn start() -> io::Result<()> {
    let mut orphans = ORPHANS.lock().unwrap_or_else(PoisonError::into_inner);
    if orphans.is_none() {
        let set = Arc::new(epoll::create(epoll::CreateFlags::CLOEXEC)?);
        let shared = set.clone();
        thread::Builder::new().name("remex-reap".into()).spawn(move || run(&shared))?;
        *orphans = Some(set);
    }
    Ok(())
}

/// Reaps a child as soon as it ends, in the background.
pub(crate) fn adopt(pidfd: OwnedFd) {
    // One that has ended already needs no thread, and one that is not our child no reaping.
    if !matches!(sys::reap(pidfd.as_fd(), Patience::Return), Ok(None)) {
        return;
    }
    let orphans = ORPHANS.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let added = orphans.map(|set| {
        let data = epoll::EventData::new_u64(pidfd.as_raw_fd() as u64);
        epoll::add(&*set, &pidfd, data, epoll::EventFlags::IN)
    });
    match added {
        // From here on the descriptor belongs to the set.
        Some(Ok(())) => _ = pidfd.into_raw_fd(),
        // The host is out of memory for watching. The child was killed, so this is short.
        _ => _ = sys::reap(pidfd.as_fd(), Patience::Block),
    }
}

fn run(set: &OwnedFd) {
    sys::block_signals();
    let mut events = Vec::with_capacity(64);
    loop {
        events.clear();
        // An error is an interruption, as by a stop and a continue of the whole program: try again.
        _ = epoll::wait(set, rustix::buffer::spare_capacity(&mut events), None);
        for event in &events {
            let pidfd = event.data.u64() as RawFd;
            // SAFETY: `adopt` has given the descriptor to the set, and only this thread takes it out.
            let watched = unsafe { BorrowedFd::borrow_raw(pidfd) };
            if let Ok(None) = sys::reap(watched, Patience::Return) {
                continue;
            }
            // Closing alone would not do: a child that is just being born may hold a copy of the descriptor.
            if let Err(error) = epoll::delete(set, watched) {
                tracing::warn!(%error, "cannot stop watching an orphaned process");
            }
            // SAFETY: it is out of the set, so it is ours to close.
            drop(unsafe { OwnedFd::from_raw_fd(pidfd) });
        }
    }
}
