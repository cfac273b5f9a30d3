//! Pipes and terminals between the server and a child.

use std::{
    io,
    os::fd::{AsFd as _, BorrowedFd, OwnedFd},
};

use rustix::{
    fs::{Gid, Mode, OFlags, Uid, fchmod, fchown, fstat},
    io::{Errno, Result, ioctl_fionbio, retry_on_intr},
    pipe::{PipeFlags, pipe_with},
    process::getegid,
    pty::{OpenptFlags, ioctl_tiocgptpeer, openpt, unlockpt},
    termios::{Winsize, tcsetwinsize},
};

use crate::{Size, Stdin, Stdio, UserIds, base::sys::above_stdio};

/// Our ends of the child's standard streams: non-blocking and close-on-exec.
#[derive(Debug)]
pub enum ChildIo {
    /// Pipes.
    Pipes {
        /// Present with [`Stdin::Piped`].
        stdin: Option<OwnedFd>,
        /// The child's standard output.
        stdout: OwnedFd,
        /// The child's standard error.
        stderr: OwnedFd,
    },
    /// A terminal.
    Pty {
        /// The master side of the terminal.
        master: OwnedFd,
    },
}

/// Reads the output of a child from a pipe or a terminal; returns 0 at the end of either.
///
/// Always read a terminal with this, or its last bytes may be lost.
///
/// # Errors
/// `WouldBlock` if there is nothing to read yet.
pub fn read(fd: BorrowedFd<'_>, buffer: &mut [u8]) -> io::Result<usize> {
    let mut read = || retry_on_intr(|| rustix::io::read(fd, &mut *buffer));
    // EIO is the end of a terminal, but not the first time: Linux first checks for bytes, then whether the other side
    // is closed, and misses bytes written in between. The next read returns them.
    match read().or_else(|errno| if errno == Errno::IO { read() } else { Err(errno) }) {
        Err(Errno::IO) => Ok(0),
        other => Ok(other?),
    }
}

/// Resizes a terminal. Its foreground processes get SIGWINCH if the size changes.
///
/// # Errors
/// If the descriptor is not a terminal.
pub fn resize(terminal: BorrowedFd<'_>, size: Size) -> io::Result<()> {
    Ok(tcsetwinsize(terminal, window(size))?)
}

/// Both ends of the standard streams of a child.
///
/// The child's ends must stay open until the child has its copies, and be closed then: as long as we hold one, our end
/// never reaches end of file.
pub(crate) struct StdioEnds<'a> {
    pub(crate) io: ChildIo,
    childs: ChildEnds<'a>,
}

enum ChildEnds<'a> {
    Pipes { stdin: ChildStdin<'a>, stdout: OwnedFd, stderr: OwnedFd },
    Pty(OwnedFd),
}

enum ChildStdin<'a> {
    Null(BorrowedFd<'a>),
    Pipe(OwnedFd),
}

impl<'a> StdioEnds<'a> {
    /// Opens both ends; without `null`, an empty standard input is a pipe.
    pub(crate) fn open(stdio: Stdio, null: Option<BorrowedFd<'a>>) -> Result<Self> {
        match stdio {
            Stdio::Pipes { stdin } => Self::pipes(stdin, null),
            Stdio::Pty { size } => Self::pty(size),
        }
    }

    /// Returns the descriptors that become 0, 1 and 2.
    pub(crate) fn targets(&self) -> [BorrowedFd<'_>; 3] {
        match &self.childs {
            ChildEnds::Pipes { stdin, stdout, stderr } => {
                let stdin = match stdin {
                    ChildStdin::Null(null) => *null,
                    ChildStdin::Pipe(pipe) => pipe.as_fd(),
                };
                [stdin, stdout.as_fd(), stderr.as_fd()]
            }
            ChildEnds::Pty(slave) => [slave.as_fd(); 3],
        }
    }

    /// Makes a user the owner of the child's ends, so that it can reopen them by their names in `/dev`.
    pub(crate) fn give_to(&self, user: &UserIds) -> Result<()> {
        let uid = Some(Uid::from_raw(user.uid()));
        match &self.childs {
            ChildEnds::Pipes { stdin, stdout, stderr } => {
                let stdin = match stdin {
                    ChildStdin::Null(_) => None,
                    ChildStdin::Pipe(pipe) => Some(pipe),
                };
                let mut pipes = [Some(stdout), Some(stderr), stdin].into_iter().flatten();
                pipes.try_for_each(|pipe| fchown(pipe, uid, None))
            }
            ChildEnds::Pty(slave) => {
                // Terminals usually belong to a group that may write messages to them; some hosts have no such group.
                let has_group = fstat(slave)?.st_gid != getegid().as_raw();
                let (group, mode) =
                    if has_group { (None, 0o620) } else { (Some(Gid::from_raw(user.gid())), 0o600) };
                fchown(slave, uid, group)?;
                fchmod(slave, Mode::from_raw_mode(mode))
            }
        }
    }

    fn pipes(stdin: Stdin, null: Option<BorrowedFd<'a>>) -> Result<Self> {
        let (input, stdin) = match (stdin, null) {
            (Stdin::Null, Some(null)) => (ChildStdin::Null(null), None),
            (Stdin::Null, None) => (ChildStdin::Pipe(pipe()?.0), None),
            (Stdin::Piped, _) => {
                let (read, write) = pipe()?;
                (ChildStdin::Pipe(read), Some(ours(write)?))
            }
        };
        let (stdout, output) = pipe()?;
        let (stderr, errors) = pipe()?;
        Ok(Self {
            io: ChildIo::Pipes { stdin, stdout: ours(stdout)?, stderr: ours(stderr)? },
            childs: ChildEnds::Pipes { stdin: input, stdout: output, stderr: errors },
        })
    }

    fn pty(size: Size) -> Result<Self> {
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
        let nonblocking = OpenptFlags::from_bits_retain(OFlags::NONBLOCK.bits());
        let master = above_stdio(openpt(flags | nonblocking)?)?;
        unlockpt(&master)?;
        // By descriptor, not by path: the path may refer to another devpts mount.
        let slave = above_stdio(ioctl_tiocgptpeer(&master, flags)?)?;
        tcsetwinsize(&master, window(size))?;
        Ok(Self { io: ChildIo::Pty { master }, childs: ChildEnds::Pty(slave) })
    }
}

fn pipe() -> Result<(OwnedFd, OwnedFd)> {
    let (read, write) = pipe_with(PipeFlags::CLOEXEC)?;
    Ok((above_stdio(read)?, above_stdio(write)?))
}

fn ours(fd: OwnedFd) -> Result<OwnedFd> {
    ioctl_fionbio(&fd, true)?;
    Ok(fd)
}

fn window(size: Size) -> Winsize {
    Winsize { ws_row: size.rows, ws_col: size.cols, ws_xpixel: 0, ws_ypixel: 0 }
}
