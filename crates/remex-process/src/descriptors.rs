//! The pipes and terminals between us and a child.

use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};

use rustix::{
    fs::OFlags,
    io::{Result, fcntl_dupfd_cloexec, ioctl_fionbio},
    pipe::{PipeFlags, pipe_with},
    pty::{OpenptFlags, ioctl_tiocgptpeer, openpt, unlockpt},
    termios::tcsetwinsize,
};

use crate::{ChildIo, Size, Stdin, Stdio};

/// Both ends of what a child reads and writes.
///
/// The child's ends must stay open until the child has its copies, and be closed then: as long as we hold one,
/// ours never comes to its end.
pub(crate) struct Ends {
    pub(crate) io: ChildIo,
    /// What becomes descriptors 0, 1 and 2. None of them is below 3, so that putting one in place never closes another.
    pub(crate) targets: [RawFd; 3],
    _childs: [Option<OwnedFd>; 3],
}

impl Ends {
    pub(crate) fn open(stdio: Stdio, null: BorrowedFd<'_>) -> Result<Self> {
        match stdio {
            Stdio::Pipes { stdin } => Self::pipes(stdin, null),
            Stdio::Pty { size } => Self::pty(size),
        }
    }

    fn pipes(stdin: Stdin, null: BorrowedFd<'_>) -> Result<Self> {
        let (input, stdin) = match stdin {
            Stdin::Null => (None, None),
            Stdin::Piped => {
                let (read, write) = pipe()?;
                (Some(read), Some(ours(write)?))
            }
        };
        let (stdout, output) = pipe()?;
        let (stderr, errors) = pipe()?;
        let input_fd = input.as_ref().map_or(null.as_raw_fd(), AsRawFd::as_raw_fd);
        Ok(Self {
            targets: [input_fd, output.as_raw_fd(), errors.as_raw_fd()],
            io: ChildIo::Pipes { stdin, stdout: ours(stdout)?, stderr: ours(stderr)? },
            _childs: [input, Some(output), Some(errors)],
        })
    }

    fn pty(size: Size) -> Result<Self> {
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
        let nonblocking = OpenptFlags::from_bits_retain(OFlags::NONBLOCK.bits());
        let master = lift(openpt(flags | nonblocking)?)?;
        unlockpt(&master)?;
        // By descriptor, not by path: the path may belong to another mount of the terminals.
        let slave = lift(ioctl_tiocgptpeer(&master, flags)?)?;
        tcsetwinsize(&master, size.window())?;
        Ok(Self {
            targets: [slave.as_raw_fd(); 3],
            io: ChildIo::Pty { master },
            _childs: [Some(slave), None, None],
        })
    }
}

/// Returns the same file under a number that is not one of the standard three.
///
/// The kernel hands those out when the server itself was started with one of them closed.
pub(crate) fn lift(fd: OwnedFd) -> Result<OwnedFd> {
    if fd.as_raw_fd() < 3 { fcntl_dupfd_cloexec(&fd, 3) } else { Ok(fd) }
}

fn pipe() -> Result<(OwnedFd, OwnedFd)> {
    let (read, write) = pipe_with(PipeFlags::CLOEXEC)?;
    Ok((lift(read)?, lift(write)?))
}

fn ours(fd: OwnedFd) -> Result<OwnedFd> {
    ioctl_fionbio(&fd, true)?;
    Ok(fd)
}
