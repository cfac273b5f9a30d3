//! The socket between a server and its keeper, at either end.

use std::{
    io::{self, Write as _},
    net::Shutdown,
    os::{fd::OwnedFd, unix::net::UnixStream},
};

use remex_process::register_fd;
use rustix::buffer::spare_capacity;
use tokio::io::{Interest, unix::AsyncFd};

use super::message::{self, Message, Unreadable};

/// The size of one read.
const READ_BYTES: usize = 64 << 10;

/// A socket that is watched for reading all the time, and for writing only while it has no room.
///
/// A socket that is watched for both wakes its owner each time the peer has read something, for nothing.
#[derive(Debug)]
pub(crate) struct LinkStream {
    reading: AsyncFd<OwnedFd>,
    /// Another descriptor of the same socket, because a descriptor is watched only once.
    writing: UnixStream,
}

impl LinkStream {
    /// Must be called within a runtime.
    pub(crate) fn new(stream: UnixStream) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        let writing = stream.try_clone()?;
        Ok(LinkStream { reading: register_fd(stream.into(), Interest::READABLE)?, writing })
    }

    /// Waits until there is something to read.
    pub(crate) async fn readable(&self) -> io::Result<()> {
        self.reading.readable().await?.retain_ready();
        Ok(())
    }

    /// Reads what there is, and returns how much; 0 at the end, `WouldBlock` if there is nothing.
    pub(crate) fn try_read(&self, received: &mut Received) -> io::Result<usize> {
        let Received { bytes, start } = received;
        // A message that cannot be read may end later.
        let done = bytes.len().min(*start);
        bytes.drain(..done);
        *start -= done;
        if bytes.is_empty() {
            // A message may have been long.
            bytes.shrink_to(4 * READ_BYTES);
        }
        bytes.reserve(READ_BYTES);
        self.reading.try_io(Interest::READABLE, |stream| Ok(rustix::io::read(stream, spare_capacity(bytes))?))
    }

    /// Writes as much as there is room for; `WouldBlock` if there is none.
    pub(crate) fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        (&self.writing).write(bytes)
    }

    /// Waits until there is room to write; an error ends both directions.
    pub(crate) async fn writable(&self) -> io::Result<()> {
        let watched = async {
            let watched = register_fd(self.writing.try_clone()?.into(), Interest::WRITABLE)?;
            watched.writable().await?.retain_ready();
            Ok(())
        };
        watched.await.inspect_err(|_| drop(self.writing.shutdown(Shutdown::Both)))
    }
}

/// What was read, until it is decoded.
#[derive(Debug, Default)]
pub(crate) struct Received {
    bytes: Vec<u8>,
    /// Where the next message begins.
    start: usize,
}

impl Received {
    /// Returns the next complete message, or why it cannot be read.
    pub(crate) fn next<M: Message>(&mut self) -> Option<Result<M, Unreadable>> {
        let (message, len) = message::decode(self.bytes.get(self.start..)?)?;
        self.start += len;
        Some(message)
    }
}
