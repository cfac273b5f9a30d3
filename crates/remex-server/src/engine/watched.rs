//! A descriptor that the runtime watches, except while it floods or rests.
//!
//! Every write of a flooding child would wake a thread only to hear that there is something to read,
//! which is known: the task reads anyway. So the watch is lifted during a flood and set again when
//! the descriptor runs dry. It is lifted as well while a chatty child is read only now and then.

use std::{
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
};

use remex_process::watch;
use tokio::io::{Interest, unix::AsyncFd};

/// After so many reads in a row that found something the descriptor floods.
const FLOOD_READS: u32 = 8;

#[derive(Debug)]
pub(super) struct Watched {
    state: State,
    interest: Interest,
    /// Reads in a row that found something.
    reads: u32,
}

#[derive(Debug)]
enum State {
    On(AsyncFd<OwnedFd>),
    Off(OwnedFd),
    /// The runtime would not watch it again.
    Lost,
}

impl Watched {
    pub(super) fn new(fd: OwnedFd, interest: Interest) -> io::Result<Self> {
        Ok(Watched { state: State::On(watch(fd, interest)?), interest, reads: 0 })
    }

    pub(super) fn fd(&self) -> io::Result<BorrowedFd<'_>> {
        match &self.state {
            State::On(fd) => Ok(fd.as_fd()),
            State::Off(fd) => Ok(fd.as_fd()),
            State::Lost => Err(io::ErrorKind::NotConnected.into()),
        }
    }

    /// Does `work` if the descriptor may be ready; what finds nothing says so with `WouldBlock`.
    pub(super) fn attempt<R>(
        &self,
        interest: Interest,
        work: impl FnOnce(BorrowedFd<'_>) -> io::Result<R>,
    ) -> io::Result<R> {
        match &self.state {
            State::On(fd) => fd.try_io(interest, |fd| work(fd.as_fd())),
            State::Off(_) | State::Lost => work(self.fd()?),
        }
    }

    /// Counts a read that found something; a flood lifts the watch.
    pub(super) fn found(&mut self) {
        self.reads += 1;
        if self.reads == FLOOD_READS {
            self.leave_alone();
        }
    }

    /// Lifts the watch.
    pub(super) fn leave_alone(&mut self) {
        if let State::On(_) = self.state {
            self.state = match std::mem::replace(&mut self.state, State::Lost) {
                State::On(fd) => State::Off(fd.into_inner()),
                other => other,
            };
        }
    }

    /// Counts a read that found nothing.
    pub(super) fn ran_dry(&mut self) {
        self.reads = 0;
    }

    /// Sets the watch again, before somebody waits.
    pub(super) fn listen(&mut self) -> io::Result<()> {
        if let State::Off(_) = self.state
            && let State::Off(fd) = std::mem::replace(&mut self.state, State::Lost)
        {
            self.state = State::On(watch(fd, self.interest)?);
            self.reads = 0;
        }
        Ok(())
    }

    /// Waits until the descriptor may be ready.
    pub(super) async fn ready(&self, interest: Interest) {
        if let State::On(fd) = &self.state
            && let Ok(mut guard) = fd.ready(interest).await
        {
            guard.retain_ready();
        }
    }
}
