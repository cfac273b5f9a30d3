//! From the name of a host to a connection, or the reason why there is none.

use std::{
    fmt, fs, io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket},
    sync::{Arc, PoisonError, RwLock},
    time::Duration,
};

use remex_proto::network::{Decision, NOT_ALLOWED};
use remex_sandbox::{HostDenial, HostName, Hosts};
use rustix::io::Errno;
use tokio::{
    net::TcpStream,
    time::{Instant, timeout_at},
};

use super::{Exits, Proxy, lookup::addresses_of};

/// How long looking up and connecting may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(30);

/// How many addresses of one host are tried.
pub(super) const MAX_ADDRESSES: usize = 8;

/// How long one address is tried.
const ADDRESS_TIMEOUT: Duration = Duration::from_secs(10);

/// Why a host was not connected.
#[derive(Debug, thiserror::Error)]
pub(super) enum Refusal {
    #[error("{0}")]
    Denied(HostDenial),
    #[error("it is a port of this server")]
    Own,
    #[error("the mode `limited` lets only GET, HEAD and OPTIONS of plain HTTP through")]
    Limited,
    #[error("SOCKS is switched off")]
    NoSocks,
    #[error("{}", decided(.0))]
    Decided(Decision),
    #[error("its name cannot be looked up: {0}")]
    Lookup(io::Error),
    #[error("{0}")]
    Connect(io::Error),
    #[error("its name was not looked up in time")]
    LookupTimedOut,
    #[error("it did not answer in time")]
    TimedOut,
}

/// Returns what a client that does not allow a host says about it.
fn decided(decision: &Decision) -> String {
    match decision {
        Decision::Deny { reason } if reason == NOT_ALLOWED => "the client has not allowed it".to_owned(),
        Decision::Deny { reason } => format!("the client has denied it: {reason}"),
        Decision::Ask { reason } => format!("the client has to ask about it first: {reason}"),
        Decision::Allow => "it is allowed".to_owned(),
    }
}

impl Refusal {
    /// Returns whether something has decided against the host, and it is not only out of reach.
    pub(super) fn is_denial(&self) -> bool {
        match self {
            Self::Denied(_) | Self::Own | Self::Limited | Self::NoSocks | Self::Decided(_) => true,
            Self::Lookup(_) | Self::Connect(_) | Self::LookupTimedOut | Self::TimedOut => false,
        }
    }

    /// Returns what a person reads who asked for the host.
    pub(super) fn explain(&self, host: &HostName, port: u16) -> String {
        match self {
            Self::Denied(HostDenial::NotListed) => format!(
                "{host}:{port} is not in the allow-list of this sandbox; if it should be reachable, allow it \
                 (with the remex program: `--net allow={host}:{port}`)"
            ),
            Self::Denied(why) => format!("{host}:{port} is refused: {why}"),
            Self::Own | Self::Limited | Self::NoSocks | Self::Decided(_) => {
                format!("{host}:{port} is refused: {self}")
            }
            Self::Lookup(_) | Self::Connect(_) | Self::LookupTimedOut | Self::TimedOut => {
                format!("cannot connect to {host}:{port}: {self}")
            }
        }
    }
}

/// Looks up names, and blocks for as long as that takes.
#[derive(Clone)]
pub(crate) struct Resolver(Arc<LookUp>);

type LookUp = dyn Fn(&str) -> io::Result<Vec<IpAddr>> + Send + Sync;

impl Resolver {
    pub(super) fn new(look_up: impl Fn(&str) -> io::Result<Vec<IpAddr>> + Send + Sync + 'static) -> Self {
        Self(Arc::new(look_up))
    }
}

impl Default for Resolver {
    /// Asks the host of the server.
    fn default() -> Self {
        Self::new(addresses_of)
    }
}

impl fmt::Debug for Resolver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Resolver").finish_non_exhaustive()
    }
}

/// The ports that this server itself listens on.
#[derive(Debug, Default)]
pub struct OwnPorts(RwLock<Vec<u16>>);

impl OwnPorts {
    pub fn add(&self, port: u16) {
        self.0.write().unwrap_or_else(PoisonError::into_inner).push(port);
    }

    /// Returns whether a port of this host leads to this server, on whatever address it listens.
    pub(super) fn contain(&self, port: u16) -> bool {
        self.0.read().unwrap_or_else(PoisonError::into_inner).contains(&port)
    }
}

/// Returns whether packets to an address stay on this host: only then can a socket have the address.
pub(super) fn is_of_this_host(address: IpAddr) -> bool {
    match UdpSocket::bind((address, 0)) {
        Ok(_) if may_bind_foreign(address) => leads_here(address),
        Ok(_) => true,
        // When in doubt, it is; but a host without IPv6 has no such address.
        Err(error) => {
            error.kind() != io::ErrorKind::AddrNotAvailable
                && Errno::from_io_error(&error) != Some(Errno::AFNOSUPPORT)
        }
    }
}

/// Returns whether the host lets sockets have addresses of others, as some load balancers need it.
fn may_bind_foreign(address: IpAddr) -> bool {
    let family = if address.is_ipv4() { "ipv4" } else { "ipv6" };
    let setting = fs::read_to_string(format!("/proc/sys/net/{family}/ip_nonlocal_bind"));
    setting.is_ok_and(|value| value.trim() != "0")
}

/// Returns whether the host would send packets to an address from that address. Sends none.
fn leads_here(address: IpAddr) -> bool {
    let any: IpAddr =
        if address.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let source = UdpSocket::bind((any, 0)).and_then(|socket| {
        socket.connect((address, 9))?;
        socket.local_addr()
    });
    source.is_ok_and(|source| source.ip() == address)
}

impl Proxy {
    /// Connects to a host at an address that `hosts` allow.
    pub(super) async fn connect(
        &self,
        exits: &Exits,
        hosts: &Hosts,
        host: &HostName,
        port: u16,
    ) -> Result<TcpStream, Refusal> {
        hosts.check_name(host, port).map_err(Refusal::Denied)?;
        let deadline = Instant::now() + CONNECT_TIMEOUT;
        let addresses = match host {
            HostName::Address(address) => vec![*address],
            HostName::Name(name) => match timeout_at(deadline, self.look_up(exits, name)).await {
                Ok(found) => found.map_err(Refusal::Lookup)?,
                Err(_) => return Err(Refusal::LookupTimedOut),
            },
        };
        let mut failed = Refusal::Lookup(io::Error::other("the name has no address"));
        let mut is_denied = true;
        for address in addresses.into_iter().take(MAX_ADDRESSES) {
            // In one form from here on, so that what is judged is what is connected.
            let address = address.to_canonical();
            let target = SocketAddr::new(address, port);
            let is_here = is_of_this_host(address);
            let denial = match hosts.check_address(host, port, address, is_here) {
                Err(why) => Some(Refusal::Denied(why)),
                Ok(()) => (is_here && self.own_ports.contain(port)).then_some(Refusal::Own),
            };
            if let Some(denial) = denial {
                // The reason why an allowed address failed says more.
                if is_denied {
                    failed = denial;
                }
                continue;
            }
            is_denied = false;
            let until = deadline.min(Instant::now() + ADDRESS_TIMEOUT);
            match timeout_at(until, TcpStream::connect(target)).await {
                Ok(Ok(stream)) => {
                    // Each write passes on one message of the peer; a failure costs time only.
                    let _ = stream.set_nodelay(true);
                    return Ok(stream);
                }
                Ok(Err(error)) => failed = Refusal::Connect(error),
                Err(_) => failed = Refusal::TimedOut,
            }
        }
        Err(failed)
    }

    /// Looks up a name, on a thread that may block.
    pub(super) async fn look_up(&self, exits: &Exits, name: &str) -> io::Result<Vec<IpAddr>> {
        let permit = Arc::clone(&exits.lookups).acquire_owned().await.map_err(io::Error::other)?;
        let (resolver, name) = (self.resolver.clone(), name.to_owned());
        let looking = self.lookups.run_if_wanted(Arc::clone(&exits.identity), move || {
            // Held until the lookup itself ends, even if its caller is gone.
            let _permit = permit;
            (resolver.0)(&name)
        });
        looking.await.map_err(io::Error::other)?
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_addresses_of_this_host_are_local() {
        for (address, is_here) in
            [("127.0.0.1", true), ("0.0.0.0", true), ("198.51.100.7", false), ("2001:db8::7", false)]
        {
            assert_eq!(is_of_this_host(address.parse().unwrap()), is_here, "{address}");
        }
        assert!(leads_here("127.0.0.1".parse().unwrap()) && !leads_here("198.51.100.7".parse().unwrap()));
    }
}
