//! The socket through which the processes of a jail reach the proxy of the server.

use std::{io, net::TcpListener as StdListener, os::fd::OwnedFd};

use tokio::{
    io::{Interest, unix::AsyncFd},
    net::{TcpListener, TcpStream},
};

use crate::sys;

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
    /// Takes a socket that listens, and the pidfd of the first process.
    pub(crate) fn new((socket, init): (OwnedFd, OwnedFd)) -> io::Result<Self> {
        let listener = TcpListener::from_std(StdListener::from(socket))?;
        let init = sys::watch(init, Interest::READABLE).map_err(|error| error.into_parts().1)?;
        Ok(Self { listener, init })
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
