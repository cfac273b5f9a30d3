//! Finds the user that owns the other end of a TCP connection within this host.
//!
//! The kernel knows: `sock_diag` looks one socket up, and `/proc/net/tcp` lists all of them where that is not
//! available. Start at [`find`].

mod holder;
mod own;

use std::{
    fs, io,
    net::{IpAddr, SocketAddr},
    sync::atomic::{AtomicBool, Ordering},
};

use remex_access::auth::SocketOwner;
use remex_base::writers::is_unmapped;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netlink, recv, sendto, socket_with,
};

pub use holder::check_unconfined;
pub(crate) use holder::find_holder;
pub(crate) use own::will_connect_to;

/// The message type of a query for one socket.
const SOCK_DIAG_BY_FAMILY: u16 = 20;
const NLM_F_REQUEST: u16 = 1;
const TCP: u8 = 6;

/// The states in which both ends still belong to a process: established, and closed by one side.
const OWNED_STATES: [u8; 4] = [1, 4, 5, 8];

/// The lengths of the kernel's structures.
const HEADER: usize = 16;
const SOCKET_ID: usize = 48;
const REQUEST: usize = HEADER + 8 + SOCKET_ID;
const REPLY: usize = HEADER + 4 + SOCKET_ID + 20;

/// Finds the owner of the other end of a connection that was accepted at `local` from `peer`.
pub(crate) fn find(local: SocketAddr, peer: SocketAddr) -> SocketOwner {
    let (local, peer) = (canonical(local), canonical(peer));
    if !peer.ip().is_loopback() && peer.ip() != local.ip() {
        return SocketOwner::Remote;
    }
    let look_up = || DIAGNOSIS.look_up(local, peer, ask_kernel, search_table);
    match look_up().and_then(|found| own::unless_own(found, local.port(), look_up)) {
        Ok(Some(OwnedSocket { uid, .. })) if !is_unmapped(uid) => SocketOwner::User(uid),
        Ok(_) => SocketOwner::Unknown,
        Err(error) => {
            tracing::warn!(%error, "cannot determine the user of a loopback connection");
            SocketOwner::Unknown
        }
    }
}

/// A socket that a process has open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct OwnedSocket {
    uid: u32,
    inode: u64,
}

/// Whether `sock_diag` works on this host, as far as this program knows.
static DIAGNOSIS: Diagnosis = Diagnosis { is_complete: AtomicBool::new(false) };

/// Whether `sock_diag` can be relied upon to know a socket.
///
/// A kernel without its module for TCP answers as if there were no such socket. Only one that knows our own end of the
/// connection would know the peer's.
struct Diagnosis {
    is_complete: AtomicBool,
}

impl Diagnosis {
    /// Returns the owner of the peer's end: from `ask` if that can be relied upon, else from `search`, which is slower.
    fn look_up(
        &self,
        local: SocketAddr,
        peer: SocketAddr,
        ask: impl Fn(SocketAddr, SocketAddr) -> io::Result<Option<OwnedSocket>>,
        search: impl Fn(SocketAddr, SocketAddr) -> io::Result<Option<OwnedSocket>>,
    ) -> io::Result<Option<OwnedSocket>> {
        match ask(local, peer) {
            Ok(Some(found)) => Ok(Some(found)),
            Ok(None) if self.is_complete.load(Ordering::Relaxed) => Ok(None),
            Ok(None) if ask(peer, local).is_ok_and(|own| own.is_some()) => {
                self.is_complete.store(true, Ordering::Relaxed);
                Ok(None)
            }
            Ok(None) | Err(_) => search(local, peer),
        }
    }
}

/// Writes an IPv4 address as such, also if the listener speaks IPv6.
fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

/// Looks up the peer's socket with `sock_diag`.
fn ask_kernel(local: SocketAddr, peer: SocketAddr) -> io::Result<Option<OwnedSocket>> {
    let socket = socket_with(
        AddressFamily::NETLINK,
        SocketType::DGRAM,
        SocketFlags::CLOEXEC,
        Some(netlink::SOCK_DIAG),
    )?;
    // The peer's own end: its source is where it connected from.
    let id = socket_id(peer, local);
    let mut request = Vec::with_capacity(REQUEST);
    request.extend((REQUEST as u32).to_ne_bytes());
    request.extend(SOCK_DIAG_BY_FAMILY.to_ne_bytes());
    request.extend(NLM_F_REQUEST.to_ne_bytes());
    request.extend([0; 8]);
    request.extend([family(peer), TCP, 0, 0]);
    request.extend(u32::MAX.to_ne_bytes());
    request.extend(id);
    sendto(&socket, &request, SendFlags::empty(), &netlink::SocketAddrNetlink::new(0, 0))?;
    let mut reply = [0; 512];
    // The kernel has answered by now.
    let (len, _) = recv(&socket, &mut reply, RecvFlags::DONTWAIT)?;
    parse_reply(&reply[..len], peer, local)
}

/// Returns the owner from the kernel's answer, or `None` if it knows no such socket in this network namespace.
fn parse_reply(reply: &[u8], source: SocketAddr, destination: SocketAddr) -> io::Result<Option<OwnedSocket>> {
    const ENOENT: i32 = 2;
    let short = || io::Error::new(io::ErrorKind::InvalidData, "short answer of sock_diag");
    let header = reply.get(..HEADER).ok_or_else(short)?;
    let kind = u16::from_ne_bytes([header[4], header[5]]);
    if kind != SOCK_DIAG_BY_FAMILY {
        let code = reply.get(HEADER..HEADER + 4).and_then(|code| code.try_into().ok()).ok_or_else(short)?;
        return match -i32::from_ne_bytes(code) {
            ENOENT => Ok(None),
            errno => Err(io::Error::from_raw_os_error(errno)),
        };
    }
    let body = reply.get(HEADER..REPLY).ok_or_else(short)?;
    let (family, state, id) = (body[0], body[1], &body[4..4 + SOCKET_ID]);
    // A listener on the peer's port would be found as well.
    let is_the_one = parse_id(family, id) == Some((source, destination)) && OWNED_STATES.contains(&state);
    let number = |at: usize| u32::from_ne_bytes([body[at], body[at + 1], body[at + 2], body[at + 3]]);
    let (uid, inode) = (number(4 + SOCKET_ID + 12), number(4 + SOCKET_ID + 16));
    // A socket that no process has open any more counts as root's.
    Ok((is_the_one && inode != 0).then_some(OwnedSocket { uid, inode: inode.into() }))
}

/// Returns both addresses of a socket, in canonical form: a program may use an IPv6 socket for IPv4.
fn parse_id(family: u8, id: &[u8]) -> Option<(SocketAddr, SocketAddr)> {
    let is_ipv4 = u16::from(family) == AddressFamily::INET.as_raw();
    let address = |at: usize, port: usize| {
        let ip = if is_ipv4 {
            IpAddr::from(<[u8; 4]>::try_from(id.get(at..at + 4)?).ok()?)
        } else {
            IpAddr::from(<[u8; 16]>::try_from(id.get(at..at + 16)?).ok()?)
        };
        let port = u16::from_be_bytes([*id.get(port)?, *id.get(port + 1)?]);
        Some(canonical(SocketAddr::new(ip, port)))
    };
    Some((address(4, 0)?, address(20, 2)?))
}

/// Encodes the addresses of a socket as the kernel expects them.
fn socket_id(source: SocketAddr, destination: SocketAddr) -> [u8; SOCKET_ID] {
    let mut id = [0; SOCKET_ID];
    id[..2].copy_from_slice(&source.port().to_be_bytes());
    id[2..4].copy_from_slice(&destination.port().to_be_bytes());
    for (at, address) in [(4, source.ip()), (20, destination.ip())] {
        match address {
            IpAddr::V4(address) => id[at..at + 4].copy_from_slice(&address.octets()),
            IpAddr::V6(address) => id[at..at + 16].copy_from_slice(&address.octets()),
        }
    }
    // Any interface, and no cookie.
    id[40..].fill(0xff);
    id
}

fn family(address: SocketAddr) -> u8 {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    u8::try_from(family.as_raw()).unwrap_or_default()
}

/// Looks the peer's socket up in the list of all sockets.
fn search_table(local: SocketAddr, peer: SocketAddr) -> io::Result<Option<OwnedSocket>> {
    let mut tables = fs::read_to_string("/proc/net/tcp")?;
    tables.push_str(&fs::read_to_string("/proc/net/tcp6").unwrap_or_default());
    Ok(tables.lines().find_map(|line| owner_in_line(line, local, peer)))
}

/// Returns the owner if a line of `/proc/net/tcp` describes the peer's end.
fn owner_in_line(line: &str, local: SocketAddr, peer: SocketAddr) -> Option<OwnedSocket> {
    let mut words = line.split_ascii_whitespace().skip(1);
    let (source, destination) = (words.next()?, words.next()?);
    let state = u8::from_str_radix(words.next()?, 16).ok()?;
    if !OWNED_STATES.contains(&state)
        || parse_address(source)? != peer
        || parse_address(destination)? != local
    {
        return None;
    }
    // Queues, timer and retransmissions come before the owner, one more number before the inode.
    let uid = words.nth(3)?.parse().ok()?;
    let inode: u64 = words.nth(1)?.parse().ok()?;
    (inode != 0).then_some(OwnedSocket { uid, inode })
}

/// Parses an address such as `0100007F:1F90`: words of 32 bits in the byte order of the host.
fn parse_address(text: &str) -> Option<SocketAddr> {
    let (address, port) = text.split_once(':')?;
    let port = u16::from_str_radix(port, 16).ok()?;
    let words: Option<Vec<u32>> = (0..address.len())
        .step_by(8)
        .map(|at| u32::from_str_radix(address.get(at..at + 8)?, 16).ok())
        .collect();
    let bytes: Vec<u8> = words?.into_iter().flat_map(u32::to_ne_bytes).collect();
    let ip = match bytes.len() {
        4 => IpAddr::from(<[u8; 4]>::try_from(bytes).ok()?),
        16 => IpAddr::from(<[u8; 16]>::try_from(bytes).ok()?),
        _ => return None,
    };
    Some(SocketAddr::new(ip.to_canonical(), port))
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;

    fn connected(address: &str) -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind(address).unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (client, listener.accept().unwrap().0)
    }

    #[test]
    fn both_ways_find_the_user_of_a_loopback_connection() {
        let me = rustix::process::geteuid().as_raw();
        for address in ["127.0.0.1:0", "[::1]:0"] {
            let Ok(_) = TcpListener::bind(address) else { continue };
            let (client, server) = connected(address);
            let (local, peer) = (server.local_addr().unwrap(), server.peer_addr().unwrap());
            assert_eq!(find(local, peer), SocketOwner::User(me), "{address}");
            assert_eq!(ask_kernel(local, peer).unwrap().map(|found| found.uid), Some(me), "{address}");
            assert_eq!(ask_kernel(local, peer).unwrap(), search_table(local, peer).unwrap(), "{address}");
            drop(client);
        }
    }

    #[test]
    fn a_kernel_that_reports_no_tcp_sockets_is_not_trusted() {
        let (client, server) = connected("127.0.0.1:0");
        let (local, peer) = (server.local_addr().unwrap(), server.peer_addr().unwrap());
        let fresh = || Diagnosis { is_complete: AtomicBool::new(false) };
        let me = Some(rustix::process::geteuid().as_raw());
        // Without its module for TCP, `sock_diag` answers ENOENT to everything.
        let diagnosis = fresh();
        for _ in 0..2 {
            let found = diagnosis.look_up(local, peer, |_, _| Ok(None), search_table);
            assert_eq!(found.unwrap().map(|found| found.uid), me);
        }
        // The peer is in another network namespace, our own end is not: the answer is right, and nothing is searched.
        let diagnosis = fresh();
        for _ in 0..2 {
            let ask = |to, from| if from == peer { Ok(None) } else { ask_kernel(to, from) };
            let found = diagnosis.look_up(local, peer, ask, |_, _| panic!("searched the table"));
            assert_eq!(found.unwrap(), None);
        }
        drop(client);
    }

    #[test]
    fn an_ipv6_socket_that_speaks_ipv4_is_found() {
        // As Java does for every address.
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let client = TcpStream::connect((std::net::Ipv4Addr::LOCALHOST.to_ipv6_mapped(), port)).unwrap();
        let (_server, peer) = listener.accept().unwrap();
        let me = SocketOwner::User(rustix::process::geteuid().as_raw());
        assert_eq!(find(listener.local_addr().unwrap(), peer), me);
        drop(client);
    }

    #[test]
    fn a_connection_that_this_program_made_for_a_client_has_no_user() {
        let me = rustix::process::geteuid().as_raw();
        let (_client, server) = connected("127.0.0.1:0");
        let (local, peer) = (server.local_addr().unwrap(), server.peer_addr().unwrap());
        assert_eq!(find(local, peer), SocketOwner::User(me));
        will_connect_to(local.port());
        assert_eq!(find(local, peer), SocketOwner::Unknown);
    }

    #[test]
    fn an_ipv4_peer_of_an_ipv6_listener_is_found() {
        let Ok(listener) = TcpListener::bind("[::]:0") else { return };
        let port = listener.local_addr().unwrap().port();
        let _client = TcpStream::connect(("127.0.0.1", port)).unwrap();
        let (server, peer) = listener.accept().unwrap();
        let me = rustix::process::geteuid().as_raw();
        assert_eq!(find(server.local_addr().unwrap(), peer), SocketOwner::User(me));
    }

    #[test]
    fn a_peer_that_has_closed_its_socket_is_not_mistaken_for_root() {
        let (client, server) = connected("127.0.0.1:0");
        let (local, peer) = (server.local_addr().unwrap(), server.peer_addr().unwrap());
        drop(client);
        assert_eq!(ask_kernel(local, peer).unwrap(), None);
        assert_eq!(search_table(local, peer).unwrap(), None);
        assert_eq!(find(local, peer), SocketOwner::Unknown);
    }

    #[test]
    fn a_listener_on_the_port_of_the_peer_is_not_taken_for_the_peer() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let peer = listener.local_addr().unwrap();
        let local = "127.0.0.1:1".parse().unwrap();
        assert_eq!(ask_kernel(local, peer).unwrap(), None);
        assert_eq!(search_table(local, peer).unwrap(), None);
    }

    #[test]
    fn a_peer_on_another_host_has_no_user_here() {
        let [local, peer] = ["192.0.2.1:80", "192.0.2.2:4000"].map(|text| text.parse().unwrap());
        assert_eq!(find(local, peer), SocketOwner::Remote);
    }
}
