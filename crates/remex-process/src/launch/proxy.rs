//! The socket through which the processes of a jail reach the proxy of the server.

use std::{
    io,
    net::TcpListener as StdListener,
    os::fd::{AsFd as _, OwnedFd},
};

use tokio::{
    io::{Interest, unix::AsyncFd},
    net::{TcpListener, TcpStream},
};

use crate::base::sys;

/// Accepts connections of the processes in one jail, until the jail has ended.
///
/// The socket belongs to the network namespace of the jail, so nothing outside it can connect.
#[derive(Debug)]
pub struct ProxySocket {
    listener: TcpListener,
    /// The first process of the jail, which ends last.
    init: AsyncFd<OwnedFd>,
}

impl ProxySocket {
    /// Takes a socket that listens, and the pidfd of the first process of the jail.
    ///
    /// Must be called within a runtime that does I/O.
    ///
    /// # Errors
    /// If the host has no room to watch them.
    pub fn from_parts((socket, init): (OwnedFd, OwnedFd)) -> io::Result<Self> {
        let listener = StdListener::from(socket);
        listener.set_nonblocking(true)?;
        let listener = TcpListener::from_std(listener)?;
        let init = sys::register_fd(init, Interest::READABLE).map_err(|error| error.into_parts().1)?;
        Ok(Self { listener, init })
    }

    /// Returns the descriptors that [`ProxySocket::from_parts`] takes, in this process or in another.
    ///
    /// # Errors
    /// If the runtime does not release them.
    pub fn into_parts(self) -> io::Result<(OwnedFd, OwnedFd)> {
        Ok((self.listener.into_std()?.into(), self.init.into_inner()))
    }

    /// Returns duplicates of the descriptors, which outlive this socket. Each connection is accepted by one of them.
    ///
    /// # Errors
    /// If there are no descriptors left.
    pub fn to_parts(&self) -> io::Result<(OwnedFd, OwnedFd)> {
        Ok((self.listener.as_fd().try_clone_to_owned()?, self.init.get_ref().try_clone()?))
    }

    /// Waits for a connection. Cancel-safe.
    ///
    /// # Errors
    /// As the system call; most of them pass.
    pub async fn accept(&self) -> io::Result<TcpStream> {
        self.listener.accept().await.map(|(stream, _)| stream)
    }

    /// Waits until the jail has ended, with everything in it. Cancel-safe.
    pub async fn jail_ended(&self) {
        if self.init.readable().await.is_err() {
            // The runtime is shutting down and will never poll us again.
            std::future::pending::<()>().await;
        }
    }
}
