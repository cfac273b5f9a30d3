//! Descriptor numbers that are reserved for the standard streams of the next child.
//!
//! A child shares our descriptors until it has its own table, into which it copies all descriptors up to the highest
//! one that it still needs. A start would therefore take longer the more descriptors are open. The reserved numbers are
//! low, so only a few are copied, whatever else is open. Start at [`StdioSlots`].

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};

use rustix::{
    fs::{Mode, OFlags},
    io::{DupFlags, Result, dup3},
};

use crate::base::sys::above_stdio;

/// The numbers that one thread has reserved.
#[derive(Debug)]
pub(crate) struct StdioSlots {
    /// `/dev/null`, which the numbers refer to between two starts.
    null: OwnedFd,
    slots: [OwnedFd; 3],
}

impl StdioSlots {
    /// Reserves the lowest numbers that are free.
    pub(crate) fn new() -> Result<Self> {
        let null = rustix::fs::open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
        let null = above_stdio(null)?;
        let slot = || rustix::io::fcntl_dupfd_cloexec(&null, 3);
        let slots = [slot()?, slot()?, slot()?];
        Ok(Self { null, slots })
    }

    /// Lets the reserved numbers refer to other descriptors, until the return value is dropped.
    pub(crate) fn fill<const N: usize>(&mut self, targets: [BorrowedFd<'_>; N]) -> Result<FilledSlots<'_>> {
        const { assert!(N <= 3, "there are three slots") };
        // Created first, so that its drop resets the slots if a later `dup3` fails.
        let filled = FilledSlots { slots: self };
        for (target, slot) in targets.into_iter().zip(&mut filled.slots.slots) {
            dup3(target, slot, DupFlags::CLOEXEC)?;
        }
        Ok(filled)
    }
}

/// Reserved numbers that refer to the streams of a child.
#[derive(Debug)]
pub(crate) struct FilledSlots<'a> {
    slots: &'a mut StdioSlots,
}

impl FilledSlots<'_> {
    /// Returns the numbers; none is below 3.
    pub(crate) fn numbers(&self) -> [RawFd; 3] {
        self.slots.slots.each_ref().map(AsRawFd::as_raw_fd)
    }

    /// Returns the first number that a child does not need.
    pub(crate) fn end(&self) -> RawFd {
        self.numbers().into_iter().fold(3, |end, number| end.max(number + 1))
    }
}

impl Drop for FilledSlots<'_> {
    fn drop(&mut self) {
        let StdioSlots { null, slots } = self.slots;
        for slot in slots {
            // Otherwise, no reader would ever see the end of a stream.
            if let Err(error) = dup3(null.as_fd(), slot, DupFlags::CLOEXEC) {
                tracing::warn!(%error, "cannot close a stream of a child");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    use super::*;

    #[test]
    fn a_slot_holds_a_stream_open_only_while_it_is_filled() {
        let mut slots = StdioSlots::new().unwrap();
        let numbers = slots.slots.each_ref().map(AsRawFd::as_raw_fd);
        let (mut reader, writer) = std::io::pipe().unwrap();
        let filled = slots.fill([writer.as_fd(), writer.as_fd()]).unwrap();
        assert_eq!(filled.numbers(), numbers);
        assert!(numbers.iter().all(|number| (3..filled.end()).contains(number)), "{numbers:?}");
        drop(writer);
        rustix::io::ioctl_fionbio(&reader, true).unwrap();
        assert_eq!(reader.read(&mut [0]).unwrap_err().kind(), std::io::ErrorKind::WouldBlock);
        drop(filled);
        // A child that another test forks meanwhile has the writer until it executes its program.
        let mut ended = [PollFd::new(&reader, PollFlags::IN)];
        let patience = Timespec { tv_sec: 10, tv_nsec: 0 };
        assert_eq!(poll(&mut ended, Some(&patience)).unwrap(), 1, "the stream does not end");
        assert_eq!(reader.read(&mut [0]).unwrap(), 0, "it has ended");
    }
}
