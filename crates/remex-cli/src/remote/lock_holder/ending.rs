//! Ending a process and waiting for that.

use std::{io, os::fd::OwnedFd, time::Duration};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal},
};

/// A process that can be signalled and waited for without confusing it with another one.
#[derive(Debug)]
pub(crate) struct Ending(OwnedFd);

impl Ending {
    /// Opens a process.
    pub(crate) fn open(pid: Pid) -> io::Result<Self> {
        Ok(Self(pidfd_open(pid, PidfdFlags::empty())?))
    }

    pub(crate) fn signal(&self, signal: Signal) -> io::Result<()> {
        Ok(pidfd_send_signal(&self.0, signal)?)
    }

    /// Waits for it to exit, and returns whether it did in time; blocks.
    pub(crate) fn exits_within(&self, patience: Duration) -> bool {
        let Ok(patience) = Timespec::try_from(patience) else { return false };
        poll(&mut [PollFd::new(&self.0, PollFlags::IN)], Some(&patience)).is_ok_and(|ready| ready > 0)
    }
}
