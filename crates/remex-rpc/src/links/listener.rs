//! Sockets that accept connections.

use std::{
    io,
    net::SocketAddr,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::Path,
    sync::Arc,
};

use rustix::net::sockopt::socket_acceptconn;
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};

use crate::{
    ListenAddress,
    links::unix::{self, SocketFile},
};

/// A socket that accepts connections. Dropping it removes the file of a unix socket.
#[derive(Debug)]
pub struct Listener {
    socket: Socket,
    address: ListenAddress,
}

#[derive(Debug)]
enum Socket {
    Tcp(TcpListener),
    Unix {
        listener: UnixListener,
        /// Removes the file when dropped; `None` for an inherited socket, whose file is not ours.
        file: Option<Arc<SocketFile>>,
    },
}

/// A listening socket to hand over to the program that replaces this one; while it exists, the file of a unix socket
/// stays.
#[derive(Debug)]
pub struct HandoverSocket {
    descriptor: OwnedFd,
    _file: Option<Arc<SocketFile>>,
}

impl AsFd for HandoverSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

/// A listening socket inherited from the parent process, such as systemd.
#[derive(Debug)]
pub enum Inherited {
    /// A TCP port.
    Tcp(std::net::TcpListener),
    /// A unix socket.
    Unix(std::os::unix::net::UnixListener),
}

/// A new connection.
#[derive(Debug)]
pub enum Accepted {
    /// A TCP connection, which starts with an HTTP request; see [`crate::receive`].
    Tcp {
        /// The connection, with `TCP_NODELAY` set.
        stream: TcpStream,
        /// The address of the other end.
        peer: SocketAddr,
        /// The address of this end.
        local: SocketAddr,
    },
    /// A connection with line framing.
    Unix {
        /// The connection.
        stream: UnixStream,
        /// The user id of the peer, as reported by the kernel.
        peer_uid: u32,
    },
}

/// Why a server cannot listen on an address.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}; {}", self.message(), self.hint())]
pub enum BindError {
    /// Standard input and output are one connection and accept none.
    Stdio,
    /// Another server listens on the socket.
    InUse {
        /// The requested address.
        address: ListenAddress,
    },
    /// The path exists and is not a socket.
    Occupied {
        /// The requested address.
        address: ListenAddress,
    },
    /// The path is longer than the kernel allows for a socket.
    PathTooLong {
        /// The requested address.
        address: ListenAddress,
    },
    /// The operating system refused.
    Failed {
        /// The requested address.
        address: ListenAddress,
        /// The error of the operating system.
        kind: io::ErrorKind,
    },
}

impl BindError {
    /// Returns what failed and why, without what to do about it.
    pub fn message(&self) -> String {
        let (address, why) = match self {
            Self::Stdio => (&ListenAddress::Stdio, "it is one connection and accepts no others".to_owned()),
            Self::InUse { address } => (address, "another server listens there".to_owned()),
            Self::Occupied { address } => (address, "the path exists and is not a socket".to_owned()),
            Self::PathTooLong { address } => (address, "the path is too long for a socket".to_owned()),
            Self::Failed { address, kind } => (address, refusal(*kind)),
        };
        format!("cannot listen on `{address}`: {why}")
    }

    /// Returns what to do about it.
    pub fn hint(&self) -> &'static str {
        match self {
            Self::Stdio => "serve it as a connection, or listen on `ws://IP:PORT` or `unix:///path`",
            Self::InUse { .. } => "end it, or choose another path",
            Self::Occupied { .. } => "remove the file, or choose another path",
            Self::PathTooLong { .. } => "choose a shorter directory",
            Self::Failed { address, kind } => match kind {
                io::ErrorKind::NotFound => "create the directory, or choose another",
                io::ErrorKind::NotADirectory => "choose another path",
                io::ErrorKind::PermissionDenied if matches!(address, ListenAddress::Unix(_)) => {
                    "choose a directory in which you may create files"
                }
                io::ErrorKind::PermissionDenied => "choose a port above 1023",
                io::ErrorKind::AddrInUse => {
                    "choose another port (0 picks a free one), or stop the program that uses it"
                }
                io::ErrorKind::AddrNotAvailable => "use one of its own addresses, such as 127.0.0.1",
                io::ErrorKind::StorageFull => "make room, or choose another directory",
                io::ErrorKind::ReadOnlyFilesystem => "choose another directory",
                _ => "choose another address",
            },
        }
    }
}

impl Listener {
    /// Listens on a TCP port or a unix socket.
    ///
    /// A unix socket is accessible only to its owner from the moment it exists under its name. A stale socket file,
    /// on which no server listens, is replaced; any other file is left alone.
    pub async fn bind(address: &ListenAddress) -> Result<Listener, BindError> {
        match address {
            ListenAddress::Stdio => Err(BindError::Stdio),
            ListenAddress::WebSocket(socket_address) | ListenAddress::SecureWebSocket(socket_address) => {
                let bound = async {
                    let listener = TcpListener::bind(socket_address).await?;
                    let bound = listener.local_addr()?;
                    let address = match address {
                        ListenAddress::SecureWebSocket(_) => ListenAddress::SecureWebSocket(bound),
                        _ => ListenAddress::WebSocket(bound),
                    };
                    Ok(Listener { socket: Socket::Tcp(listener), address })
                };
                bound.await.map_err(|error: io::Error| failed(address, &error))
            }
            ListenAddress::Unix(path) => {
                let (listener, file) = unix::bind(path).await.map_err(|error| match error {
                    unix::Error::InUse => BindError::InUse { address: address.clone() },
                    unix::Error::Occupied => BindError::Occupied { address: address.clone() },
                    unix::Error::PathTooLong => BindError::PathTooLong { address: address.clone() },
                    unix::Error::Io(error) => failed(address, &error),
                })?;
                Ok(Listener {
                    socket: Socket::Unix { listener, file: Some(Arc::new(file)) },
                    address: address.clone(),
                })
            }
        }
    }

    /// Adopts a socket that already listens; its file, if any, is never removed.
    ///
    /// Must be called within a tokio runtime.
    ///
    /// # Errors
    ///
    /// If it does not listen, or is a unix socket without a path.
    pub fn adopt(inherited: Inherited) -> io::Result<Listener> {
        let listens = match &inherited {
            Inherited::Tcp(socket) => socket_acceptconn(socket)?,
            Inherited::Unix(socket) => socket_acceptconn(socket)?,
        };
        if !listens {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "the socket does not listen"));
        }
        match inherited {
            Inherited::Tcp(socket) => {
                socket.set_nonblocking(true)?;
                let listener = TcpListener::from_std(socket)?;
                let address = ListenAddress::WebSocket(listener.local_addr()?);
                Ok(Listener { socket: Socket::Tcp(listener), address })
            }
            Inherited::Unix(socket) => {
                socket.set_nonblocking(true)?;
                let listener = UnixListener::from_std(socket)?;
                let path = listener.local_addr()?.as_pathname().map(Path::to_owned);
                let path = path.ok_or_else(|| {
                    io::Error::new(io::ErrorKind::InvalidInput, "the unix socket has no path")
                })?;
                let address = ListenAddress::Unix(path);
                Ok(Listener { socket: Socket::Unix { listener, file: None }, address })
            }
        }
    }

    /// Adopts a socket that the program before this one has bound to `address`; its file is removed with it.
    ///
    /// Must be called within a tokio runtime.
    ///
    /// # Errors
    ///
    /// Like [`adopt`](Self::adopt); [`NotFound`](io::ErrorKind::NotFound) if the file of a unix socket was removed.
    pub fn take_over(inherited: Inherited, address: &ListenAddress) -> io::Result<Listener> {
        let mut listener = Self::adopt(inherited)?;
        if let (Socket::Unix { file, .. }, ListenAddress::Unix(path)) = (&mut listener.socket, address) {
            *file = Some(Arc::new(SocketFile::of(path)?));
            // It was bound under another name and then renamed.
            listener.address = address.clone();
        }
        if let (ListenAddress::SecureWebSocket(_), ListenAddress::WebSocket(bound)) =
            (address, &listener.address)
        {
            listener.address = ListenAddress::SecureWebSocket(*bound);
        }
        Ok(listener)
    }

    /// Returns the socket for a program that takes it over, even after this listener was dropped.
    ///
    /// # Errors
    ///
    /// If this program has no descriptor left.
    pub fn for_handover(&self) -> io::Result<HandoverSocket> {
        Ok(match &self.socket {
            Socket::Tcp(listener) => {
                HandoverSocket { descriptor: listener.as_fd().try_clone_to_owned()?, _file: None }
            }
            Socket::Unix { listener, file } => {
                HandoverSocket { descriptor: listener.as_fd().try_clone_to_owned()?, _file: file.clone() }
            }
        })
    }

    /// Returns the address with the actual port.
    pub fn address(&self) -> &ListenAddress {
        &self.address
    }

    /// Waits for the next connection. Cancel-safe.
    ///
    /// # Errors
    ///
    /// The listener remains usable: the peer may have disconnected already, or too many files are open. In the
    /// latter case (`EMFILE`, `ENFILE`) the connection remains in the backlog, so pause before the next attempt.
    pub async fn accept(&self) -> io::Result<Accepted> {
        match &self.socket {
            Socket::Tcp(listener) => {
                let (stream, peer) = listener.accept().await?;
                stream.set_nodelay(true)?;
                let local = stream.local_addr()?;
                Ok(Accepted::Tcp { stream, peer, local })
            }
            Socket::Unix { listener, .. } => {
                let (stream, _) = listener.accept().await?;
                let peer_uid = stream.peer_cred()?.uid();
                Ok(Accepted::Unix { stream, peer_uid })
            }
        }
    }
}

/// Returns why the operating system refused an address.
fn refusal(kind: io::ErrorKind) -> String {
    match kind {
        io::ErrorKind::NotFound => "no such directory".to_owned(),
        io::ErrorKind::NotADirectory => "a part of the path is not a directory".to_owned(),
        io::ErrorKind::PermissionDenied => "this user may not listen there".to_owned(),
        io::ErrorKind::AddrNotAvailable => "this host has no such address".to_owned(),
        io::ErrorKind::StorageFull => "the file system is full".to_owned(),
        io::ErrorKind::ReadOnlyFilesystem => "the file system is read-only".to_owned(),
        other => other.to_string(),
    }
}

fn failed(address: &ListenAddress, error: &io::Error) -> BindError {
    BindError::Failed { address: address.clone(), kind: error.kind() }
}

#[cfg(test)]
mod tests {
    use std::{
        fs,
        os::unix::{fs::PermissionsExt, net::UnixListener as StdUnixListener},
        path::PathBuf,
    };

    use super::*;

    fn unix_address(directory: &tempfile::TempDir) -> (PathBuf, ListenAddress) {
        let path = directory.path().join("socket");
        (path.clone(), ListenAddress::Unix(path))
    }

    fn names(directory: &Path) -> Vec<String> {
        let names = fs::read_dir(directory).unwrap();
        names.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    }

    #[tokio::test]
    async fn port_zero_picks_a_free_port() {
        let listener = Listener::bind(&"ws://127.0.0.1:0".parse().unwrap()).await.unwrap();
        let ListenAddress::WebSocket(address) = *listener.address() else { panic!("not a port") };
        assert_ne!(address.port(), 0);
        let (client, accepted) = tokio::join!(TcpStream::connect(address), listener.accept());
        client.unwrap();
        let Accepted::Tcp { stream, .. } = accepted.unwrap() else { panic!("not TCP") };
        assert!(stream.nodelay().unwrap());

        let again = Listener::bind(listener.address()).await.unwrap_err();
        let expected = format!(
            "cannot listen on `ws://{address}`: address in use; choose another port (0 picks a free one), or stop the program that uses it"
        );
        assert_eq!(again.to_string(), expected);
    }

    #[test]
    fn a_refusal_is_explained_for_sockets_and_for_ports() {
        for (address, hint) in [
            ("unix:///etc/x.sock", "choose a directory in which you may create files"),
            ("ws://127.0.0.1:80", "choose a port above 1023"),
        ] {
            let address = address.parse().unwrap();
            assert_eq!(BindError::Failed { address, kind: io::ErrorKind::PermissionDenied }.hint(), hint);
        }
    }

    #[tokio::test]
    async fn a_unix_socket_is_for_its_owner_and_vanishes_with_the_listener() {
        let directory = tempfile::tempdir().unwrap();
        let (path, address) = unix_address(&directory);
        let listener = Listener::bind(&address).await.unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(names(directory.path()), ["socket"]);

        let (client, accepted) = tokio::join!(UnixStream::connect(&path), listener.accept());
        client.unwrap();
        let Accepted::Unix { peer_uid, .. } = accepted.unwrap() else { panic!("not a unix socket") };
        assert_eq!(peer_uid, rustix::process::getuid().as_raw());

        drop(listener);
        assert!(names(directory.path()).is_empty());
    }

    #[tokio::test]
    async fn a_stale_socket_is_replaced() {
        let directory = tempfile::tempdir().unwrap();
        let (path, address) = unix_address(&directory);
        drop(StdUnixListener::bind(&path).unwrap());
        let listener = Listener::bind(&address).await.unwrap();
        let (client, accepted) = tokio::join!(UnixStream::connect(&path), listener.accept());
        client.unwrap();
        accepted.unwrap();
        assert_eq!(names(directory.path()), ["socket"]);
    }

    #[tokio::test]
    async fn a_socket_with_a_listening_server_is_left_alone() {
        let directory = tempfile::tempdir().unwrap();
        let (path, address) = unix_address(&directory);
        let first = Listener::bind(&address).await.unwrap();
        let error = Listener::bind(&address).await.unwrap_err();
        assert_eq!(error, BindError::InUse { address: address.clone() });
        assert_eq!(names(directory.path()), ["socket"]);
        let (client, accepted) = tokio::join!(UnixStream::connect(&path), first.accept());
        client.unwrap();
        accepted.unwrap();
    }

    #[tokio::test]
    async fn a_file_that_is_not_a_socket_is_never_removed() {
        let directory = tempfile::tempdir().unwrap();
        let (path, address) = unix_address(&directory);
        fs::write(&path, "precious").unwrap();
        let error = Listener::bind(&address).await.unwrap_err();
        assert_eq!(error, BindError::Occupied { address });
        assert_eq!(fs::read_to_string(&path).unwrap(), "precious");
        assert_eq!(names(directory.path()), ["socket"]);
    }

    #[tokio::test]
    async fn an_inherited_socket_accepts_and_keeps_its_file() {
        let directory = tempfile::tempdir().unwrap();
        let (path, address) = unix_address(&directory);
        let listener = Listener::adopt(Inherited::Unix(StdUnixListener::bind(&path).unwrap())).unwrap();
        assert_eq!(*listener.address(), address);
        let (client, accepted) = tokio::join!(UnixStream::connect(&path), listener.accept());
        client.unwrap();
        accepted.unwrap();
        drop(listener);
        assert_eq!(names(directory.path()), ["socket"]);

        let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = port.local_addr().unwrap();
        let listener = Listener::adopt(Inherited::Tcp(port)).unwrap();
        assert_eq!(*listener.address(), ListenAddress::WebSocket(address));
        let (client, accepted) = tokio::join!(TcpStream::connect(address), listener.accept());
        client.unwrap();
        accepted.unwrap();
    }

    #[tokio::test]
    async fn a_socket_that_replaced_ours_is_not_removed() {
        let directory = tempfile::tempdir().unwrap();
        let (path, address) = unix_address(&directory);
        let listener = Listener::bind(&address).await.unwrap();
        fs::remove_file(&path).unwrap();
        let _other = StdUnixListener::bind(&path).unwrap();
        drop(listener);
        assert_eq!(names(directory.path()), ["socket"]);
    }

    #[tokio::test]
    async fn a_path_without_a_directory_or_too_long_is_an_error() {
        let directory = tempfile::tempdir().unwrap();
        let address = ListenAddress::Unix(directory.path().join("missing/socket"));
        let error = Listener::bind(&address).await.unwrap_err();
        assert_eq!(error, BindError::Failed { address, kind: io::ErrorKind::NotFound });

        let address = ListenAddress::Unix(directory.path().join("s".repeat(120)));
        let error = Listener::bind(&address).await.unwrap_err();
        assert_eq!(error, BindError::PathTooLong { address });

        assert_eq!(Listener::bind(&ListenAddress::Stdio).await.unwrap_err(), BindError::Stdio);
    }
}
