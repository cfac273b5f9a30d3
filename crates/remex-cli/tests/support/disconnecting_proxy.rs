//! A proxy that cuts connections when a test wants it.

use std::{
    collections::VecDeque,
    io::{Read, Write},
    net::{Shutdown, TcpListener, TcpStream},
    os::unix::net::{UnixListener, UnixStream},
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    thread,
};

use remex_base::lock;
use tempfile::TempDir;

/// A proxy in front of a server, of the same kind: each connection ends after as many bytes as the plan says.
pub(crate) struct DisconnectingProxy {
    address: String,
    shared: Arc<Shared>,
    /// Where a unix socket lives.
    _directory: Option<TempDir>,
}

struct Shared {
    /// How many bytes the connections to come may carry, in both directions together; without limit after the last.
    plan: Mutex<VecDeque<u64>>,
    /// Called before a connection is cut.
    before_cut: Box<dyn Fn() + Send + Sync>,
    /// What can be cut now.
    open: Mutex<Vec<Socket>>,
    /// How many bytes went through, in both directions together.
    carried: AtomicU64,
}

impl DisconnectingProxy {
    /// Starts a proxy for `address`, which is `ws://host:port`, `wss://host:port` or `unix:///path`.
    pub(crate) fn start(address: &str, plan: &[u64]) -> Self {
        Self::with_notice(address, plan, || {})
    }

    /// Starts a proxy that calls `before_cut` each time, before the other side can know.
    pub(crate) fn with_notice(
        address: &str,
        plan: &[u64],
        before_cut: impl Fn() + Send + Sync + 'static,
    ) -> Self {
        let shared = Arc::new(Shared {
            plan: Mutex::new(plan.iter().copied().collect()),
            before_cut: Box::new(before_cut),
            open: Mutex::default(),
            carried: AtomicU64::new(0),
        });
        let serving = Arc::clone(&shared);
        if let Some(path) = address.strip_prefix("unix://") {
            let directory = tempfile::tempdir().expect("a directory can be made");
            let socket = directory.path().join("proxy.sock");
            let listener = UnixListener::bind(&socket).expect("a socket can be made");
            let path = path.to_owned();
            thread::spawn(move || {
                for client in listener.incoming().map_while(Result::ok) {
                    let Ok(server) = UnixStream::connect(&path) else { continue };
                    serving.serve(Socket::Unix(client), Socket::Unix(server));
                }
            });
            let address = format!("unix://{}", socket.display());
            return Self { address, shared, _directory: Some(directory) };
        }
        let (scheme, server) = address.split_once("://").expect("an address has a scheme");
        let (scheme, server) = (scheme.to_owned(), server.to_owned());
        let listener = TcpListener::bind("127.0.0.1:0").expect("loopback has a free port");
        let address = format!("{scheme}://{}", listener.local_addr().expect("a listener has an address"));
        thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                let Ok(server) = TcpStream::connect(&server) else { continue };
                serving.serve(Socket::Tcp(client), Socket::Tcp(server));
            }
        });
        Self { address, shared, _directory: None }
    }

    /// Returns where to connect.
    pub(crate) fn address(&self) -> &str {
        &self.address
    }

    /// Cuts what is connected now.
    pub(crate) fn cut(&self) {
        (self.shared.before_cut)();
        for socket in lock(&self.shared.open).drain(..) {
            socket.shut();
        }
    }

    /// Returns how many bytes went through, in both directions together.
    pub(crate) fn carried(&self) -> u64 {
        self.shared.carried.load(Relaxed)
    }

    /// Returns how much of the plan is left.
    pub(crate) fn disconnects_left(&self) -> usize {
        lock(&self.shared.plan).len()
    }
}

impl Shared {
    fn serve(self: &Arc<Self>, client: Socket, server: Socket) {
        let left = Arc::new(Mutex::new(lock(&self.plan).pop_front().unwrap_or(u64::MAX)));
        lock(&self.open).extend([client.clone(), server.clone()]);
        for (from, to) in [(client.clone(), server.clone()), (server, client)] {
            let (shared, left) = (Arc::clone(self), Arc::clone(&left));
            thread::spawn(move || shared.carry(from, to, &left));
        }
    }

    fn carry(&self, mut from: Socket, mut to: Socket, left: &Mutex<u64>) {
        let mut buffer = [0; 64 << 10];
        while let Ok(len @ 1..) = from.stream().read(&mut buffer) {
            let allowed = {
                let mut left = lock(left);
                let allowed = u64::min(len as u64, *left);
                *left -= allowed;
                allowed as usize
            };
            self.carried.fetch_add(allowed as u64, Relaxed);
            if to.stream().write_all(&buffer[..allowed]).is_err() {
                break;
            }
            if allowed < len {
                (self.before_cut)();
                break;
            }
        }
        from.shut();
        to.shut();
    }
}

enum Socket {
    Tcp(TcpStream),
    Unix(UnixStream),
}

trait Stream: Read + Write {}
impl<T: Read + Write> Stream for T {}

impl Socket {
    fn stream(&mut self) -> &mut dyn Stream {
        match self {
            Self::Tcp(stream) => stream,
            Self::Unix(stream) => stream,
        }
    }

    fn shut(&self) {
        let _ = match self {
            Self::Tcp(stream) => stream.shutdown(Shutdown::Both),
            Self::Unix(stream) => stream.shutdown(Shutdown::Both),
        };
    }
}

impl Clone for Socket {
    fn clone(&self) -> Self {
        match self {
            Self::Tcp(stream) => Self::Tcp(stream.try_clone().expect("a socket can be cloned")),
            Self::Unix(stream) => Self::Unix(stream.try_clone().expect("a socket can be cloned")),
        }
    }
}
