//! The descriptors of one child: pipes, or the master side of its terminal.

use std::{
    io,
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd},
    time::{Duration, Instant},
};

use remex_base::clock::now_ms;
use remex_process::{ChildIo, Size, resize, take_inherited_fd};
use remex_proto::{ErrorKind, RpcError, process::Stream};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::Errno,
    pipe::{fcntl_getpipe_size, fcntl_setpipe_size},
    pty::{OpenptFlags, ioctl_tiocgptpeer},
};
use serde::{Deserialize, Serialize};
use tokio::io::Interest;

use super::{LogWriter, coalesce::Buffer, not_a_terminal, watched::Watched};
use crate::process::LOG_TARGET;

/// More than a terminal can buffer: all output printed before an exit is within this limit.
const TERMINAL_BYTES: usize = 256 << 10;

/// A terminal returns bulk output in small reads; one that returns at least this much is taken for a part of it.
const TERMINAL_BULK: usize = 2 << 10;

/// How often a source is looked at whose last writer may have ended.
const REST_RECHECK: Duration = Duration::from_millis(100);

/// The default capacity of a pipe, unless its user has too many.
const PIPE_BYTES: usize = 64 << 10;

/// The capacity of pipes during a read delay, which lasts up to two milliseconds: long enough for many programs
/// to fill a pipe of default size.
const WIDE_PIPE_BYTES: usize = 256 << 10;

#[derive(Debug)]
pub(super) struct Pipes {
    /// Standard output or the terminal, and standard error; `None` after end of file.
    pub(super) out: [Option<Source>; 2],
    /// `None` if there is none, it was closed, or the terminal replaces it.
    pub(super) stdin: Option<Watched>,
    tty: bool,
    /// Bytes of the last read from a descriptor.
    last_read: usize,
    /// Whether a source that nothing writes to any more is read even if there is no room for it.
    reads_rest: bool,
    room: PipeRoom,
    /// The child's side of the terminal, held open while it runs. A program may close its terminal and reopen
    /// it, so until it exits that is neither the end of its output nor of its input.
    slave: Option<OwnedFd>,
}

/// Whether the pipes are large enough for the child to keep writing during a read delay.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum PipeRoom {
    /// Too small: the kernel limits the pipe size of a user with many pipes.
    Small,
    Usual,
    /// The pipes were enlarged for a read delay.
    Wide,
    /// The kernel grants no more than the default.
    Refused,
}

#[derive(Debug)]
pub(super) struct Source {
    stream: Stream,
    pub(super) fd: Watched,
}

/// The numbers of the descriptors of one child, for the program that this one executes in its place.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct PipesRecord {
    out: [Option<(Stream, RawFd)>; 2],
    stdin: Option<RawFd>,
    slave: Option<RawFd>,
    tty: bool,
    room: PipeRoom,
}

/// The result of one attempt to read or write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub(super) enum IoOutcome {
    Bytes(usize),
    WouldBlock,
    /// The stream has ended.
    End,
}

impl Pipes {
    pub(super) fn new(io: ChildIo) -> io::Result<Self> {
        let source = |fd: OwnedFd, stream: Stream, interest: Interest| -> io::Result<Option<Source>> {
            Ok(Some(Source { stream, fd: Watched::new(fd, interest)? }))
        };
        Ok(match io {
            ChildIo::Pipes { stdin, stdout, stderr } => Pipes {
                room: if is_roomy(&stdout) && is_roomy(&stderr) { PipeRoom::Usual } else { PipeRoom::Small },
                out: [
                    source(stdout, Stream::Stdout, Interest::READABLE)?,
                    source(stderr, Stream::Stderr, Interest::READABLE)?,
                ],
                stdin: stdin.map(|fd| Watched::new(fd, Interest::WRITABLE)).transpose()?,
                tty: false,
                last_read: 0,
                reads_rest: false,
                slave: None,
            },
            ChildIo::Pty { master } => {
                let slave = ioctl_tiocgptpeer(
                    &master,
                    OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC,
                )?;
                Pipes {
                    out: [source(master, Stream::Pty, Interest::READABLE | Interest::WRITABLE)?, None],
                    stdin: None,
                    tty: true,
                    last_read: 0,
                    reads_rest: false,
                    // The buffer of a terminal has a fixed size.
                    room: PipeRoom::Refused,
                    slave: Some(slave),
                }
            }
        })
    }

    /// Describes the descriptors; [`Self::descriptors`] returns them in any order.
    pub(super) fn record(&self) -> PipesRecord {
        let number = |fd: &Watched| fd.fd().ok().map(|fd| fd.as_raw_fd());
        let source = |source: &Option<Source>| {
            source.as_ref().and_then(|source| Some((source.stream, number(&source.fd)?)))
        };
        PipesRecord {
            out: [source(&self.out[0]), source(&self.out[1])],
            stdin: self.stdin.as_ref().and_then(number),
            slave: self.slave.as_ref().map(AsRawFd::as_raw_fd),
            tty: self.tty,
            room: self.room,
        }
    }

    pub(super) fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        let watched = self.out.iter().flatten().map(|source| &source.fd).chain(&self.stdin);
        watched.filter_map(|fd| fd.fd().ok()).chain(self.slave.as_ref().map(AsFd::as_fd)).collect()
    }

    /// Takes over the descriptors of a child from the program that this one has replaced.
    pub(super) fn resume(record: &PipesRecord) -> io::Result<Self> {
        let PipesRecord { out: [first, second], stdin, slave, tty, room } = *record;
        let interest = if tty { Interest::READABLE | Interest::WRITABLE } else { Interest::READABLE };
        let source = |kept: Option<(Stream, RawFd)>| -> io::Result<Option<Source>> {
            let Some((stream, number)) = kept else { return Ok(None) };
            Ok(Some(Source { stream, fd: Watched::new(take_inherited_fd(number)?, interest)? }))
        };
        Ok(Pipes {
            out: [source(first)?, source(second)?],
            stdin: stdin
                .map(|number| Watched::new(take_inherited_fd(number)?, Interest::WRITABLE))
                .transpose()?,
            slave: slave.map(take_inherited_fd).transpose()?,
            tty,
            last_read: 0,
            reads_rest: false,
            room,
        })
    }

    pub(super) fn has_input(&self) -> bool {
        self.tty || self.stdin.is_some()
    }

    pub(super) fn is_open(&self) -> bool {
        self.out.iter().any(Option::is_some)
    }

    /// Records that the child has exited: from now on, the streams end when no other process holds them open.
    pub(super) fn child_ended(&mut self) {
        self.stdin = None;
        self.slave = None;
    }

    /// Returns how many bytes each source has buffered now.
    pub(super) fn available(&self) -> [usize; 2] {
        let available = |source: &Option<Source>| match source {
            None => 0,
            // A terminal forwards bytes in the background; a read that finds nothing has waited for them.
            Some(_) if self.tty => TERMINAL_BYTES,
            Some(source) => source
                .fd
                .fd()
                .and_then(|fd| Ok(rustix::io::ioctl_fionread(fd)?))
                .map_or(TERMINAL_BYTES, |len| usize::try_from(len).unwrap_or(usize::MAX).max(1)),
        };
        [available(&self.out[0]), available(&self.out[1])]
    }

    /// Allows reading the rest of a source that has no writer left, even if there is no room for it.
    pub(super) fn read_rest(&mut self) {
        self.reads_rest = true;
    }

    /// Returns when to try that again: no event announces that the last writer has ended while the log is full.
    pub(super) fn recheck_at(&self) -> Option<Instant> {
        (self.reads_rest && self.is_open()).then(|| Instant::now() + REST_RECHECK)
    }

    /// Returns how much of a source is to be read even if there is no room for it, its end included.
    pub(super) fn rest(&self, index: usize) -> usize {
        let Some(Source { fd, .. }) = self.out[index].as_ref().filter(|_| self.reads_rest) else { return 0 };
        let is_final = fd.fd().is_ok_and(|fd| {
            let mut fds = [PollFd::from_borrowed_fd(fd, PollFlags::empty())];
            poll(&mut fds, Some(&Timespec::default())).is_ok() && fds[0].revents().contains(PollFlags::HUP)
        });
        if is_final { self.available()[index].saturating_add(1) } else { 0 }
    }

    /// Appends output to `log` as one event, at most `max` bytes: what one read returns, or more from a terminal if the log
    /// does not join events.
    ///
    /// With `draining`, reads even if the runtime has not reported new bytes yet.
    pub(super) fn read(
        &mut self,
        index: usize,
        log: &mut dyn LogWriter,
        max: usize,
        draining: bool,
    ) -> IoOutcome {
        let Some(Source { stream, fd }) = &mut self.out[index] else { return IoOutcome::End };
        let (gathers, last_read) = (self.tty && !log.joins_events(), &mut self.last_read);
        let read = |fd: BorrowedFd<'_>| {
            log.append(*stream, now_ms(), max, &mut |spare: &mut [u8]| {
                let mut len = remex_process::read(fd, spare)?;
                *last_read = len;
                while gathers && *last_read >= TERMINAL_BULK && len < spare.len() {
                    match remex_process::read(fd, &mut spare[len..]) {
                        Ok(more) if more > 0 => (len, *last_read) = (len + more, more),
                        // The next read says so again.
                        _ => break,
                    }
                }
                Ok(len)
            })
        };
        let result = if draining { fd.fd().and_then(read) } else { fd.attempt(Interest::READABLE, read) };
        match result {
            Ok(0) => IoOutcome::End,
            Ok(len) => {
                fd.on_data();
                IoOutcome::Bytes(len)
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                fd.on_would_block();
                IoOutcome::WouldBlock
            }
            Err(error) => {
                tracing::warn!(target: LOG_TARGET, error = %error, "reading the output of a process failed");
                IoOutcome::End
            }
        }
    }

    /// Returns the bytes of the last read from a descriptor.
    pub(super) fn last_read(&self) -> usize {
        self.last_read
    }

    /// Returns whether the child can keep writing during a read delay.
    pub(super) fn is_roomy(&self) -> bool {
        self.room != PipeRoom::Small
    }

    /// Returns what buffers the child's output during a read delay.
    pub(super) fn buffer(&self) -> Buffer {
        match self.room {
            _ if self.tty => Buffer::Terminal,
            PipeRoom::Wide => Buffer::Pipes(WIDE_PIPE_BYTES),
            PipeRoom::Small | PipeRoom::Usual | PipeRoom::Refused => Buffer::Pipes(PIPE_BYTES),
        }
    }

    /// Enlarges the pipes for a read delay, if the kernel allows it.
    pub(super) fn widen(&mut self) {
        if self.room == PipeRoom::Usual {
            self.room = if self.set_size(PIPE_BYTES, WIDE_PIPE_BYTES) {
                PipeRoom::Wide
            } else {
                self.set_size(WIDE_PIPE_BYTES, PIPE_BYTES);
                PipeRoom::Refused
            };
        }
    }

    /// Shrinks the pipes again, because the kernel counts their size against the user; retried later if they
    /// are too full.
    pub(super) fn narrow(&mut self) {
        if self.room == PipeRoom::Wide && self.set_size(WIDE_PIPE_BYTES, PIPE_BYTES) {
            self.room = PipeRoom::Usual;
        }
    }

    /// Resizes every pipe of size `from`; the child may have chosen another size itself.
    fn set_size(&self, from: usize, to: usize) -> bool {
        self.out.iter().flatten().filter_map(|source| source.fd.fd().ok()).all(|pipe| {
            fcntl_getpipe_size(pipe).is_ok_and(|size| size != from || fcntl_setpipe_size(pipe, to).is_ok())
        })
    }

    /// Prepares for a read delay: the runtime stops watching the sources.
    pub(super) fn unwatch(&mut self) {
        for source in self.out.iter_mut().flatten() {
            source.fd.unwatch();
        }
    }

    /// Prepares for a wait: the runtime watches the sources again.
    pub(super) fn watch(&mut self) {
        for source in self.out.iter_mut().flatten() {
            if let Err(error) = source.fd.watch() {
                tracing::warn!(target: LOG_TARGET, error = %error, "watching the output of a process failed");
            }
        }
    }

    /// Returns the descriptor for the child's input.
    pub(super) fn input(&self) -> Option<&Watched> {
        let terminal = self.out[0].as_ref().filter(|_| self.tty).map(|source| &source.fd);
        self.stdin.as_ref().or(terminal)
    }

    /// Writes once to the child.
    pub(super) fn write(&self, bytes: &[u8]) -> IoOutcome {
        let Some(fd) = self.input() else { return IoOutcome::End };
        let write = |fd: BorrowedFd<'_>| {
            rustix::io::retry_on_intr(|| rustix::io::write(fd, bytes)).map_err(io::Error::from)
        };
        match fd.attempt(Interest::WRITABLE, write) {
            Ok(len) => IoOutcome::Bytes(len),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => IoOutcome::WouldBlock,
            Err(error) => {
                if error.raw_os_error() != Some(Errno::PIPE.raw_os_error()) {
                    tracing::debug!(target: LOG_TARGET, error = %error, "writing to the stdin of a process failed");
                }
                IoOutcome::End
            }
        }
    }

    pub(super) fn resize(&self, size: Size, id: &str) -> Result<(), RpcError> {
        if !self.tty {
            return Err(not_a_terminal(id));
        }
        let Some(terminal) = &self.out[0] else { return Ok(()) };
        terminal.fd.fd().and_then(|fd| resize(fd, size)).map_err(|error| {
            RpcError::new(
                ErrorKind::Internal,
                format!("cannot resize the terminal of process `{id}`: {error}"),
            )
        })
    }
}

fn is_roomy(pipe: &OwnedFd) -> bool {
    fcntl_getpipe_size(pipe).is_ok_and(|size| size >= PIPE_BYTES)
}

#[cfg(test)]
mod tests {
    use remex_proto::state::output_log::{self, OutputLog};
    use rustix::pipe::pipe;

    use super::*;

    #[tokio::test]
    async fn reads_from_a_small_pipe_are_never_delayed() {
        for (sizes, is_roomy) in
            [([64 << 10, 64 << 10], true), ([4 << 10, 64 << 10], false), ([64 << 10, 8 << 10], false)]
        {
            let [stdout, stderr] = sizes.map(|size| {
                let (reader, _) = pipe().unwrap();
                fcntl_setpipe_size(&reader, size).unwrap();
                reader
            });
            let pipes = Pipes::new(ChildIo::Pipes { stdin: None, stdout, stderr }).unwrap();
            assert_eq!(pipes.is_roomy(), is_roomy, "{sizes:?}");
        }
    }

    fn pipes() -> (Pipes, [OwnedFd; 2]) {
        let [(stdout, child_stdout), (stderr, child_stderr)] = [(); 2].map(|()| pipe().unwrap());
        let pipes = Pipes::new(ChildIo::Pipes { stdin: None, stdout, stderr }).unwrap();
        (pipes, [child_stdout, child_stderr])
    }

    fn sizes(child: &[OwnedFd; 2]) -> [usize; 2] {
        child.each_ref().map(|fd| fcntl_getpipe_size(fd).unwrap())
    }

    #[tokio::test]
    async fn a_chatty_child_has_wider_pipes_until_they_are_empty_again() {
        let (mut pipes, child) = pipes();
        let output = vec![b'x'; PIPE_BYTES + 1];

        pipes.widen();
        assert_eq!((sizes(&child), pipes.buffer()), ([WIDE_PIPE_BYTES; 2], Buffer::Pipes(WIDE_PIPE_BYTES)));

        rustix::io::write(&child[0], &output).unwrap();
        pipes.narrow();
        assert_eq!(sizes(&child)[0], WIDE_PIPE_BYTES, "it still holds too much");

        let mut log = OutputLog::new(output_log::Limits::default());
        while log.total() < output.len() as u64 {
            assert!(matches!(pipes.read(0, &mut log, output.len(), true), IoOutcome::Bytes(_)));
        }
        pipes.narrow();
        assert_eq!((sizes(&child), pipes.buffer()), ([PIPE_BYTES; 2], Buffer::Pipes(PIPE_BYTES)));
    }

    #[tokio::test]
    async fn a_child_that_chose_the_size_of_its_pipe_keeps_it() {
        let (mut pipes, child) = pipes();
        fcntl_setpipe_size(&child[0], 1 << 20).unwrap();
        pipes.widen();
        pipes.narrow();
        assert_eq!(sizes(&child), [1 << 20, PIPE_BYTES]);
    }
}
