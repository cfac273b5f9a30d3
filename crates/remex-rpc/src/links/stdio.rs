//! A connection over standard input and output.

use std::{
    io,
    os::{
        fd::{AsRawFd, BorrowedFd, OwnedFd},
        unix::net::UnixStream as StdUnixStream,
    },
};

use rustix::fs::{FileType, Mode, OFlags, fstat};
use tokio::net::{UnixStream, unix::pipe};

use crate::{ReadHalf, WriteHalf};

/// Returns standard input and output as the two halves of a connection.
///
/// Pipes and sockets use the reactor, anything else (files, terminals) a blocking thread. Standard error stays
/// blocking, even if it is the same pipe or socket. Descriptors 0 and 1 themselves stay open.
///
/// # Panics
///
/// If called outside a tokio runtime.
pub fn stdio() -> (ReadHalf, WriteHalf) {
    let stderr = rustix::stdio::stderr();
    let reader = reader(rustix::stdio::stdin(), stderr).unwrap_or_else(|error| {
        tracing::debug!(%error, "standard input is read on a blocking thread");
        Box::new(tokio::io::stdin())
    });
    let writer = writer(rustix::stdio::stdout(), stderr).unwrap_or_else(|error| {
        tracing::debug!(%error, "standard output is written on a blocking thread");
        Box::new(tokio::io::stdout())
    });
    (reader, writer)
}

fn reader(fd: BorrowedFd<'_>, stderr: BorrowedFd<'_>) -> io::Result<ReadHalf> {
    match file_type(fd)? {
        FileType::Fifo => Ok(Box::new(pipe::Receiver::from_owned_fd(reopen(fd, OFlags::RDONLY)?)?)),
        FileType::Socket => Ok(Box::new(socket(fd, stderr)?)),
        _ => Err(io::ErrorKind::Unsupported.into()),
    }
}

fn writer(fd: BorrowedFd<'_>, stderr: BorrowedFd<'_>) -> io::Result<WriteHalf> {
    match file_type(fd)? {
        FileType::Fifo => Ok(Box::new(pipe::Sender::from_owned_fd(reopen(fd, OFlags::WRONLY)?)?)),
        FileType::Socket => Ok(Box::new(socket(fd, stderr)?)),
        _ => Err(io::ErrorKind::Unsupported.into()),
    }
}

fn file_type(fd: BorrowedFd<'_>) -> io::Result<FileType> {
    Ok(FileType::from_raw_mode(fstat(fd)?.st_mode))
}

/// Reopens an end of a pipe.
///
/// The non-blocking flag belongs to the open file description, which a duplicate would share with every process that
/// inherited it.
fn reopen(fd: BorrowedFd<'_>, access: OFlags) -> io::Result<OwnedFd> {
    let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
    Ok(rustix::fs::open(path, access | OFlags::NONBLOCK | OFlags::CLOEXEC, Mode::empty())?)
}

/// Duplicates a socket, which cannot be reopened; fails if it is also standard error, which must stay blocking.
///
/// Stream sockets of every family read, write and shut down alike, so a `UnixStream` works for all of them.
fn socket(fd: BorrowedFd<'_>, stderr: BorrowedFd<'_>) -> io::Result<UnixStream> {
    let same = |one: BorrowedFd<'_>, other: BorrowedFd<'_>| -> io::Result<bool> {
        let (one, other) = (fstat(one)?, fstat(other)?);
        Ok(one.st_dev == other.st_dev && one.st_ino == other.st_ino)
    };
    if same(fd, stderr).unwrap_or(false) {
        return Err(io::ErrorKind::ResourceBusy.into());
    }
    let stream = StdUnixStream::from(fd.try_clone_to_owned()?);
    stream.set_nonblocking(true)?;
    UnixStream::from_std(stream)
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    async fn carries_bytes_and_the_end(mut writer: WriteHalf, mut reader: ReadHalf) {
        let sent = vec![7; 1 << 20];
        let mut received = vec![0; sent.len()];
        let (written, read) = tokio::join!(writer.write_all(&sent), reader.read_exact(&mut received));
        written.unwrap();
        read.unwrap();
        assert!(received == sent);
        writer.shutdown().await.unwrap();
        drop(writer);
        assert_eq!(reader.read(&mut received).await.unwrap(), 0);
    }

    fn is_blocking(fd: impl AsFd) -> bool {
        !rustix::fs::fcntl_getfl(fd).unwrap().contains(OFlags::NONBLOCK)
    }

    #[tokio::test]
    async fn a_pipe_is_served_by_the_reactor_and_stays_blocking_for_others() {
        let (read_end, write_end) = rustix::pipe::pipe().unwrap();
        let reader = reader(read_end.as_fd(), write_end.as_fd()).unwrap();
        let writer = writer(write_end.as_fd(), write_end.as_fd()).unwrap();
        assert!(is_blocking(&read_end) && is_blocking(&write_end));
        drop(write_end);
        carries_bytes_and_the_end(writer, reader).await;
    }

    #[tokio::test]
    async fn a_socket_is_served_by_the_reactor() {
        let (one, other) = StdUnixStream::pair().unwrap();
        let (stderr, _logs) = StdUnixStream::pair().unwrap();
        let reader = reader(one.as_fd(), stderr.as_fd()).unwrap();
        let writer = writer(other.as_fd(), stderr.as_fd()).unwrap();
        carries_bytes_and_the_end(writer, reader).await;
    }

    #[tokio::test]
    async fn a_socket_shared_with_stderr_is_left_to_a_thread() {
        let (one, _other) = StdUnixStream::pair().unwrap();
        let stderr = one.try_clone().unwrap();
        assert!(writer(one.as_fd(), stderr.as_fd()).is_err());
        assert!(is_blocking(&stderr));
    }

    #[tokio::test]
    async fn a_file_is_left_to_a_thread() {
        let file = tempfile::tempfile().unwrap();
        let (_, stderr) = rustix::pipe::pipe().unwrap();
        assert!(reader(file.as_fd(), stderr.as_fd()).is_err());
        assert!(writer(file.as_fd(), stderr.as_fd()).is_err());
    }
}
