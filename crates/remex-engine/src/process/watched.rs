//! A descriptor that the runtime watches, except during bulk output or a read delay.
//!
//! During bulk output, every write of the child would wake a thread only to report that there is something to read,
//! although the task reads anyway. So the watch is removed during bulk output and restored when the descriptor runs
//! dry. It is also removed while reads from a chatty child are delayed.

use std::{
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
};

use remex_process::register_fd;
use tokio::io::{Interest, unix::AsyncFd};

/// After this many consecutive reads with data, the output counts as bulk.
const FLOOD_READS: u32 = 8;

#[derive(Debug)]
pub(super) struct Watched {
    state: Registration,
    interest: Interest,
    /// Consecutive reads with data.
    reads: u32,
}

#[derive(Debug)]
enum Registration {
    On(AsyncFd<OwnedFd>),
    Off(OwnedFd),
    /// The runtime refused to watch it again.
    Lost,
}

impl Watched {
    pub(super) fn new(fd: OwnedFd, interest: Interest) -> io::Result<Self> {
        Ok(Watched { state: Registration::On(register_fd(fd, interest)?), interest, reads: 0 })
    }

    pub(super) fn fd(&self) -> io::Result<BorrowedFd<'_>> {
        match &self.state {
            Registration::On(fd) => Ok(fd.as_fd()),
            Registration::Off(fd) => Ok(fd.as_fd()),
            Registration::Lost => Err(io::ErrorKind::NotConnected.into()),
        }
    }

    /// Runs `work` if the descriptor may be ready; `WouldBlock` means that it is not.
    pub(super) fn attempt<R>(
        &self,
        interest: Interest,
        work: impl FnOnce(BorrowedFd<'_>) -> io::Result<R>,
    ) -> io::Result<R> {
        match &self.state {
            Registration::On(fd) => fd.try_io(interest, |fd| work(fd.as_fd())),
            Registration::Off(_) | Registration::Lost => work(self.fd()?),
        }
    }

    /// Counts a read with data; bulk output removes the watch.
    pub(super) fn on_data(&mut self) {
        self.reads += 1;
        if self.reads == FLOOD_READS {
            self.unwatch();
        }
    }

    /// Removes the watch.
    pub(super) fn unwatch(&mut self) {
        if let Registration::On(_) = self.state {
            self.state = match std::mem::replace(&mut self.state, Registration::Lost) {
                Registration::On(fd) => Registration::Off(fd.into_inner()),
                other => other,
            };
        }
    }

    /// Records a read without data.
    pub(super) fn on_would_block(&mut self) {
        self.reads = 0;
    }

    /// Restores the watch before a wait.
    pub(super) fn watch(&mut self) -> io::Result<()> {
        if let Registration::Off(_) = self.state
            && let Registration::Off(fd) = std::mem::replace(&mut self.state, Registration::Lost)
        {
            self.state = Registration::On(register_fd(fd, self.interest)?);
            self.reads = 0;
        }
        Ok(())
    }

    /// Waits until the descriptor may be ready.
    pub(super) async fn ready(&self, interest: Interest) {
        if let Registration::On(fd) = &self.state
            && let Ok(mut guard) = fd.ready(interest).await
        {
            guard.retain_ready();
        }
    }
}
