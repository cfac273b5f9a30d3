//! The descriptors of one child: pipes, or the master side of its terminal.

use std::{
    io,
    os::fd::{BorrowedFd, OwnedFd},
};

use remex_process::{ChildIo, Size, resize};
use remex_proto::{ErrorKind, RpcError, process::Stream, state::output_log::OutputLog};
use rustix::{
    io::Errno,
    pipe::fcntl_getpipe_size,
    pty::{OpenptFlags, ioctl_tiocgptpeer},
};
use tokio::io::Interest;

use super::{not_a_terminal, rest::TOO_MUCH, watched::Watched};
use crate::clock::now_ms;

/// More than a terminal can hold: what was printed before an exit lies within it.
const TERMINAL_BYTES: usize = 256 << 10;

#[derive(Debug)]
pub(super) struct Pipes {
    /// Standard output or the terminal, and standard error; `None` after their end.
    pub(super) out: [Option<Source>; 2],
    /// `None` when there is none, it was closed, or the terminal takes its place.
    pub(super) stdin: Option<Watched>,
    tty: bool,
    /// Whether the child can talk on for a moment while nobody reads. The pipes of a user who has many are small.
    pub(super) are_roomy: bool,
    /// The child's side of the terminal, held open while it runs: a program may close it and come back, and until
    /// it has ended that is neither the end of its output nor of its input.
    slave: Option<OwnedFd>,
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
                are_roomy: is_roomy(&stdout) && is_roomy(&stderr),
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
                    are_roomy: true,
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
    fcntl_getpipe_size(pipe).is_ok_and(|size| size >= 2 * TOO_MUCH)
}

#[cfg(test)]
mod tests {
    use rustix::pipe::{fcntl_setpipe_size, pipe};

    use super::*;

    #[tokio::test]
    async fn a_child_with_a_small_pipe_is_never_left_alone() {
        for (sizes, are_roomy) in
            [([64 << 10, 64 << 10], true), ([4 << 10, 64 << 10], false), ([64 << 10, 8 << 10], false)]
        {
            let [stdout, stderr] = sizes.map(|size| {
                let (reader, _) = pipe().unwrap();
                fcntl_setpipe_size(&reader, size).unwrap();
                reader
            });
            let pipes = Pipes::new(ChildIo::Pipes { stdin: None, stdout, stderr }).unwrap();
            assert_eq!(pipes.are_roomy, are_roomy, "{sizes:?}");
        }
    }
}
