//! The proxy through which confined processes reach the hosts that their sandbox lists.
//!
//! Each jail with such a list has a socket of ours in its network namespace, and no other way out. One port speaks HTTP
//! CONNECT, plain HTTP and SOCKS5, told apart by the first byte. Names are looked up here and never in the jail, and we
//! connect to the very address that was judged. Every connection ends with the jail. Start at [`Proxy::serve`].

mod body;
mod denials;
mod lookup;
mod outgoing;
mod plain;
mod relay;
mod request;
mod review;
mod socks;
mod stream;

use std::{io, sync::Arc, time::Duration};

use remex_base::{
    supervise::supervise,
    threads::{Share, Threads},
    trace::LOG_TARGET,
};
use remex_process::ProxySocket;
use remex_proto::network::Protocol;
use remex_sandbox::Hosts;
use rustix::process::{Resource, getrlimit};
use tokio::{
    net::TcpStream,
    sync::{Semaphore, TryAcquireError},
    task::JoinSet,
    time::{Instant, timeout_at},
};

pub use denials::Denials;
pub(crate) use denials::OnDenial;
use outgoing::Refusal;
pub(crate) use outgoing::{OwnPorts, Resolver};
use request::Request;
use review::Wanted;
pub(crate) use review::{Ask, Decider, Review, Socks, Tell};
use stream::{HeadError, Incoming};

/// Connections of one process at a time; further ones wait to be accepted.
const MAX_OF_PROCESS: usize = 128;

/// Connections of all processes at a time; further ones are refused. Fewer if few files may be open ([`max_of_server`]).
const MAX_OF_SERVER: usize = 1024;

/// Lookups of names at a time: each blocks a thread for as long as the name servers take. One identity may have as many
/// as it leaves to others.
const MAX_LOOKUPS: usize = 512;

/// Lookups of one process at a time.
const MAX_LOOKUPS_OF_PROCESS: usize = 4;

/// How long a client may take to say what it wants.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(20);

/// How long a connection may carry nothing in either direction.
const IDLE_TIMEOUT: Duration = Duration::from_secs(60 * 60);

/// How long a connection may carry nothing after one of its sides has ended. A client that has left and is waited for in
/// vain is usually noticed before, by its reset.
const HALF_CLOSED_TIMEOUT: Duration = Duration::from_secs(10 * 60);

/// How long a client may take to read an answer that ends its connection.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// A pause after a connection that could not be accepted, usually for lack of descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// The state that the proxies of all processes share.
#[derive(Debug)]
pub struct Proxy {
    connections: Arc<Semaphore>,
    /// Keyed by the identity that a process runs for.
    lookups: Threads<Arc<str>>,
    resolver: Resolver,
    /// Ports of this server, which no confined process may reach.
    own_ports: OwnPorts,
}

/// The hosts that one jail may reach, and those that it was denied.
#[derive(Debug)]
pub(crate) struct Exits {
    pub(crate) hosts: Hosts,
    pub(crate) denials: Arc<Denials>,
    /// The identity that the process runs for, as logs show it.
    identity: Arc<str>,
    lookups: Arc<Semaphore>,
    /// What else decides, if the client manages the network.
    review: Option<Review>,
}

impl Exits {
    pub(crate) fn new(hosts: Hosts, denials: Arc<Denials>, identity: Arc<str>) -> Self {
        let lookups = Arc::new(Semaphore::new(MAX_LOOKUPS_OF_PROCESS));
        Self { hosts, denials, identity, lookups, review: None }
    }

    pub(crate) fn with_review(self, review: Option<Review>) -> Self {
        Self { review, ..self }
    }
}

impl Proxy {
    /// Starts the first thread for lookups.
    ///
    /// # Errors
    ///
    /// If the host cannot create it.
    pub fn new() -> io::Result<Self> {
        Self::with_resolver(Resolver::default())
    }

    fn with_resolver(resolver: Resolver) -> io::Result<Self> {
        Ok(Self {
            connections: Arc::new(Semaphore::new(max_of_server(getrlimit(Resource::Nofile).current))),
            lookups: Threads::new("remex-proxy", MAX_LOOKUPS, Share::AsManyAsLeft)?,
            resolver,
            own_ports: OwnPorts::default(),
        })
    }

    /// Returns the ports of this server.
    pub fn own_ports(&self) -> &OwnPorts {
        &self.own_ports
    }

    /// Serves a jail until it has ended, or this is dropped.
    pub(crate) async fn serve(self: Arc<Self>, socket: ProxySocket, exits: Exits) {
        let (exits, own) = (Arc::new(exits), Arc::new(Semaphore::new(MAX_OF_PROCESS)));
        // Dropped with this future, and all connections with it.
        let mut connections = JoinSet::new();
        let accepting = async {
            loop {
                while connections.try_join_next().is_some() {}
                let Ok(permit) = Arc::clone(&own).acquire_owned().await else { return };
                match socket.accept().await {
                    Ok(stream) => {
                        let (proxy, exits) = (Arc::clone(&self), Arc::clone(&exits));
                        connections.spawn(supervise(async move {
                            let _permit = permit;
                            proxy.connection(stream, &exits).await;
                        }));
                    }
                    Err(error) => {
                        tracing::debug!(target: LOG_TARGET, %error, "cannot accept a connection to a proxy");
                        tokio::time::sleep(ACCEPT_PAUSE).await;
                    }
                }
            }
        };
        tokio::select! {
            () = socket.jail_ended() => {}
            () = accepting => {}
        }
    }

    async fn connection(&self, stream: TcpStream, exits: &Exits) {
        let mut incoming = Incoming::new(stream);
        let permit = self.connections.try_acquire();
        let handled = match permit {
            Ok(_permit) => self.handle(&mut incoming, exits).await,
            Err(TryAcquireError::NoPermits | TryAcquireError::Closed) => turn_away(&mut incoming).await,
        };
        if let Err(error) = handled {
            tracing::debug!(target: LOG_TARGET, %error, "a connection to a proxy has failed");
        }
    }

    async fn handle(&self, incoming: &mut Incoming, exits: &Exits) -> io::Result<()> {
        let deadline = Instant::now() + HANDSHAKE_TIMEOUT;
        let Ok(first) = timeout_at(deadline, incoming.first_byte()).await else { return Ok(()) };
        match first? {
            None => Ok(()),
            Some(socks::VERSION) => self.socks(incoming, exits, deadline).await,
            Some(socks::OLD_VERSION) => incoming.end_with(&socks::OLD_REFUSAL).await,
            Some(_) => self.http(incoming, exits, deadline).await,
        }
    }

    async fn http(&self, incoming: &mut Incoming, exits: &Exits, deadline: Instant) -> io::Result<()> {
        let head = match timeout_at(deadline, incoming.head()).await {
            Ok(Ok(head)) => head,
            Ok(Err(HeadError::Io(error))) => return Err(error),
            Ok(Err(HeadError::TooLarge)) => {
                let why = "the head of the request is too large";
                return incoming.refuse(431, "Request Header Fields Too Large", why).await;
            }
            Err(_) => {
                let why = "the request did not arrive in time";
                return incoming.refuse(408, "Request Timeout", why).await;
            }
        };
        let request = match Request::parse(&head) {
            Ok(request) => request,
            Err(why) => return incoming.refuse(400, "Bad Request", why).await,
        };
        let wanted = request.wanted();
        let (host, port) = (wanted.host, wanted.port);
        let outgoing = match self.open(exits, &wanted).await {
            Ok(outgoing) => outgoing,
            Err(refusal) => {
                let (status, phrase) = match refusal {
                    Refusal::Denied(_)
                    | Refusal::Own
                    | Refusal::Limited
                    | Refusal::NoSocks
                    | Refusal::Decided(_) => (403, "Forbidden"),
                    Refusal::Lookup(_) | Refusal::Connect(_) => (502, "Bad Gateway"),
                    Refusal::LookupTimedOut | Refusal::TimedOut => (504, "Gateway Timeout"),
                };
                return incoming.refuse(status, phrase, &refusal.explain(host, port)).await;
            }
        };
        match request {
            Request::Connect { .. } => {
                incoming.send(b"HTTP/1.1 200 Connection established\r\n\r\n").await?;
                relay::tunnel(incoming, outgoing).await
            }
            Request::Plain(request) => plain::exchange(incoming, outgoing, &request).await,
        }
    }

    async fn socks(&self, incoming: &mut Incoming, exits: &Exits, deadline: Instant) -> io::Result<()> {
        let asked = match timeout_at(deadline, socks::negotiate(incoming)).await {
            Ok(asked) => asked?,
            Err(_) => return Ok(()),
        };
        let Some((host, port)) = asked else { return Ok(()) };
        let wanted = Wanted { protocol: Protocol::Socks5Tcp, host: &host, port, method: None };
        match self.open(exits, &wanted).await {
            Ok(outgoing) => {
                incoming.send(&socks::reply(socks::SUCCEEDED)).await?;
                relay::tunnel(incoming, outgoing).await
            }
            Err(refusal) => incoming.end_with(&socks::reply(socks::code(&refusal))).await,
        }
    }

    /// Connects to a host if everything allows it that decides about that, and records what was decided.
    async fn open(&self, exits: &Exits, wanted: &Wanted<'_>) -> Result<TcpStream, Refusal> {
        let (mut is_approved, (host, port)) = (false, (wanted.host, wanted.port));
        let opened = match exits.judge(wanted).await {
            Ok(allowed) => {
                is_approved = matches!(allowed, review::Allowed::Approved(_));
                self.connect(exits, allowed.hosts(), host, port).await
            }
            Err(refusal) => Err(refusal),
        };
        let refusal = opened.as_ref().err();
        if let Some(refusal) = refusal.filter(|refusal| refusal.is_denial()) {
            exits.denials.add(host, port, &refusal.to_string());
        }
        exits.tell(wanted, is_approved, refusal);
        opened
    }
}

/// Returns how many connections may be open: with two descriptors each, they take a quarter of them at most.
fn max_of_server(open_files: Option<u64>) -> usize {
    let share = open_files.and_then(|files| usize::try_from(files / 4 / 2).ok());
    share.unwrap_or(MAX_OF_SERVER).clamp(1, MAX_OF_SERVER)
}

/// Tells a client, in its protocol, that there are too many connections.
async fn turn_away(incoming: &mut Incoming) -> io::Result<()> {
    let deadline = Instant::now() + ANSWER_TIMEOUT;
    let Ok(first) = timeout_at(deadline, incoming.first_byte()).await else { return Ok(()) };
    match first? {
        None => Ok(()),
        Some(socks::OLD_VERSION) => incoming.end_with(&socks::OLD_REFUSAL).await,
        Some(socks::VERSION) => match timeout_at(deadline, socks::negotiate(incoming)).await {
            Ok(Ok(Some(_))) => incoming.end_with(&socks::reply(socks::FAILED)).await,
            Ok(asked) => asked.map(drop),
            Err(_) => Ok(()),
        },
        Some(_) => {
            let why = "the server has too many connections of confined processes";
            incoming.refuse(503, "Service Unavailable", why).await
        }
    }
}

#[cfg(test)]
mod tests;
