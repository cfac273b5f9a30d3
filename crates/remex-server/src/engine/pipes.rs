//! The descriptors of one child: pipes, or the master side of its terminal.

use std::{
    io,
    os::fd::{BorrowedFd, OwnedFd},
};

use remex_process::{ChildIo, Size, resize};
use remex_proto::{ErrorKind, RpcError, process::Stream, state::output_log::OutputLog};
use rustix::{
    io::Errno,
    pipe::{fcntl_getpipe_size, fcntl_setpipe_size},
    pty::{OpenptFlags, ioctl_tiocgptpeer},
};
use tokio::io::Interest;

use super::{not_a_terminal, rest::Buffer, watched::Watched};
use crate::clock::now_ms;

/// More than a terminal can hold: what was printed before an exit lies within it.
const TERMINAL_BYTES: usize = 256 << 10;

/// What a pipe holds unless its user has too many.
const PIPE_BYTES: usize = 64 << 10;

/// What the pipes of a chatty child hold: a rest lasts up to two milliseconds, in which many a child fills the usual pipe.
const WIDE_PIPE_BYTES: usize = 256 << 10;

#[derive(Debug)]
pub(super) struct Pipes {
    /// Standard output or the terminal, and standard error; `None` after their end.
    pub(super) out: [Option<Source>; 2],
    /// `None` when there is none, it was closed, or the terminal takes its place.
    pub(super) stdin: Option<Watched>,
    tty: bool,
    room: PipeRoom,
    /// The child's side of the terminal, held open while it runs: a program may close it and come back, and until
    /// it has ended that is neither the end of its output nor of its input.
    slave: Option<OwnedFd>,
}

/// How long the child can talk on while nobody reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PipeRoom {
    /// Not for a moment: the pipes of a user who has many are small.
    Small,
    Usual,
    /// The pipes were made larger for a rest.
    Wide,
    /// The kernel gives no more than the usual.
    Refused,
}

#[derive(Debug)]
pub(super) struct Source {
    stream: Stream,
    pub(super) fd: Watched,
}

/// What an attempt to move bytes came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub(super) enum Taken {
    Bytes(usize),
    NothingNow,
    /// Nothing will move here any more.
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
                    // A terminal holds what it holds.
                    room: PipeRoom::Refused,
                    slave: Some(slave),
                }
            }
        })
    }

    pub(super) fn has_input(&self) -> bool {
        self.tty || self.stdin.is_some()
    }

    pub(super) fn is_open(&self) -> bool {
        self.out.iter().any(Option::is_some)
    }

    /// Notes that the child has ended: from now on the streams end when nobody else holds them.
    pub(super) fn child_ended(&mut self) {
        self.stdin = None;
        self.slave = None;
    }

    /// Returns how much each source holds right now.
    pub(super) fn available(&self) -> [usize; 2] {
        let available = |source: &Option<Source>| match source {
            None => 0,
            // A terminal passes bytes on in the background; a read that finds nothing has waited for them.
            Some(_) if self.tty => TERMINAL_BYTES,
            Some(source) => source
                .fd
                .fd()
                .and_then(|fd| Ok(rustix::io::ioctl_fionread(fd)?))
                .map_or(TERMINAL_BYTES, |len| usize::try_from(len).unwrap_or(usize::MAX).max(1)),
        };
        [available(&self.out[0]), available(&self.out[1])]
    }

    /// Reads once into `log`, at most `max` bytes.
    ///
    /// `draining` asks the kernel even if the runtime has not heard of new bytes yet.
    pub(super) fn read(&mut self, index: usize, log: &mut OutputLog, max: usize, draining: bool) -> Taken {
        let Some(Source { stream, fd }) = &mut self.out[index] else { return Taken::End };
        let read =
            |fd: BorrowedFd<'_>| log.append(*stream, now_ms(), max, |spare| remex_process::read(fd, spare));
        let result = if draining { fd.fd().and_then(read) } else { fd.attempt(Interest::READABLE, read) };
        match result {
            Ok(0) => Taken::End,
            Ok(len) => {
                fd.found();
                Taken::Bytes(len)
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                fd.ran_dry();
                Taken::NothingNow
            }
            Err(error) => {
                tracing::warn!(error = %error, "output of a process cannot be read any further");
                Taken::End
            }
        }
    }

    /// Tells whether the child can talk on for a moment while nobody reads.
    pub(super) fn is_roomy(&self) -> bool {
        self.room != PipeRoom::Small
    }

    /// Returns what takes the child's words during a rest.
    pub(super) fn buffer(&self) -> Buffer {
        match self.room {
            _ if self.tty => Buffer::Terminal,
            PipeRoom::Wide => Buffer::Pipes(WIDE_PIPE_BYTES),
            PipeRoom::Small | PipeRoom::Usual | PipeRoom::Refused => Buffer::Pipes(PIPE_BYTES),
        }
    }

    /// Makes room for what a chatty child says during a rest, if the kernel allows it.
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

    /// Gives that room back, because the kernel counts it against the user; later if it is still taken.
    pub(super) fn narrow(&mut self) {
        if self.room == PipeRoom::Wide && self.set_size(WIDE_PIPE_BYTES, PIPE_BYTES) {
            self.room = PipeRoom::Usual;
        }
    }

    /// Changes the size of every pipe that has the size `from`: a child may have chosen another one itself.
    fn set_size(&self, from: usize, to: usize) -> bool {
        self.out.iter().flatten().filter_map(|source| source.fd.fd().ok()).all(|pipe| {
            fcntl_getpipe_size(pipe).is_ok_and(|size| size != from || fcntl_setpipe_size(pipe, to).is_ok())
        })
    }

    /// Prepares for a rest: the runtime hears of nothing.
    pub(super) fn leave_alone(&mut self) {
        for source in self.out.iter_mut().flatten() {
            source.fd.leave_alone();
        }
    }

    /// Prepares for waiting: from now on the runtime hears of what comes.
    pub(super) fn listen(&mut self) {
        for source in self.out.iter_mut().flatten() {
            if let Err(error) = source.fd.listen() {
                tracing::warn!(error = %error, "output of a process cannot be watched any further");
            }
        }
    }

    /// Returns what the child's input is written to.
    pub(super) fn input(&self) -> Option<&Watched> {
        let terminal = self.out[0].as_ref().filter(|_| self.tty).map(|source| &source.fd);
        self.stdin.as_ref().or(terminal)
    }

    /// Writes once to the child.
    pub(super) fn write(&self, bytes: &[u8]) -> Taken {
        let Some(fd) = self.input() else { return Taken::End };
        let write = |fd: BorrowedFd<'_>| {
            rustix::io::retry_on_intr(|| rustix::io::write(fd, bytes)).map_err(io::Error::from)
        };
        match fd.attempt(Interest::WRITABLE, write) {
            Ok(len) => Taken::Bytes(len),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Taken::NothingNow,
            Err(error) => {
                if error.raw_os_error() != Some(Errno::PIPE.raw_os_error()) {
                    tracing::debug!(error = %error, "stdin of a process cannot be written");
                }
                Taken::End
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
    use rustix::pipe::pipe;

    use super::*;

    #[tokio::test]
    async fn a_child_with_a_small_pipe_is_never_left_alone() {
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
        let said = vec![b'x'; PIPE_BYTES + 1];

        pipes.widen();
        assert_eq!((sizes(&child), pipes.buffer()), ([WIDE_PIPE_BYTES; 2], Buffer::Pipes(WIDE_PIPE_BYTES)));

        rustix::io::write(&child[0], &said).unwrap();
        pipes.narrow();
        assert_eq!(sizes(&child)[0], WIDE_PIPE_BYTES, "it still holds too much");

        let mut log = OutputLog::new(remex_proto::state::output_log::Limits::default());
        while log.total() < said.len() as u64 {
            assert!(matches!(pipes.read(0, &mut log, said.len(), true), Taken::Bytes(_)));
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
