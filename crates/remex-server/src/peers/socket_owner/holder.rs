//! Finds the process at the other end of a TCP connection within this host, to tell whether a jail confines it.
//!
//! A confined process with the network of the host can connect to every port of it. The kernel knows the user and the
//! inode of its socket, but only the descriptors in `/proc` tell which process has it.

use std::{
    collections::HashMap,
    fs, io,
    net::{IpAddr, SocketAddr, UdpSocket},
    os::unix::ffi::OsStrExt as _,
};

use remex_access::auth::{SocketHolder, SocketOwner};
use remex_rpc::{PeerProcess, jailed_on_own_network, processes};

use super::{DIAGNOSIS, OwnedSocket, ask_kernel, canonical, find, search_table};

/// The pid namespace of the system itself, whose number is part of the kernel's interface.
const FIRST_PID_NAMESPACE: &str = "pid:[4026531836]";

/// Looks for the process at the other end of a connection that was accepted at `local` from `peer`, whose socket has this
/// owner. May take a while on a host with many processes.
///
/// While no jail uses this network, there is nothing to look for. Otherwise the process must be found: a confined one could
/// keep its socket out of every list of descriptors, in a message that was not received yet, or close it at once.
pub(crate) fn find_holder(local: SocketAddr, peer: SocketAddr, owner: SocketOwner) -> SocketHolder {
    let (local, peer) = (canonical(local), canonical(peer));
    // A process of this host may use any of its addresses.
    if owner == SocketOwner::Remote && !is_own_address(peer.ip()) {
        return SocketHolder::Unconfined;
    }
    let found = DIAGNOSIS.look_up(local, peer, ask_kernel, search_table);
    match (jailed_on_own_network(), found) {
        (Ok(jailed), _) if jailed.is_empty() => SocketHolder::Unconfined,
        (Ok(jailed), Ok(Some(socket))) => holder_of(socket, &jailed),
        (Ok(_), Ok(None)) => SocketHolder::Nobody,
        (Err(_), _) | (_, Err(_)) => SocketHolder::Hidden,
    }
}

/// Checks that no jail of remex confines the process at the other end of a TCP connection that was accepted at `local` from
/// `peer`, for servers that ask for a token anyway. May take a while on a host with many processes.
///
/// # Errors
///
/// In words for the peer, if a jail confines it, or if that cannot be known because no process has its end open.
pub fn check_unconfined(local: SocketAddr, peer: SocketAddr) -> Result<(), String> {
    match find_holder(local, peer, find(local, peer)).refusal() {
        Some(denied) => Err(denied.to_string()),
        None => Ok(()),
    }
}

/// Returns whether an address is one of this host: what would be sent to it would come from it.
fn is_own_address(address: IpAddr) -> bool {
    let any = if address.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
    let source = UdpSocket::bind(any).and_then(|socket| {
        // Only chooses a route. The port of the discard protocol is as good as any.
        socket.connect((address, 9))?;
        socket.local_addr()
    });
    source.is_ok_and(|source| source.ip() == address)
}

/// Looks for the process that has a socket open, among those in jails and all others.
fn holder_of(socket: OwnedSocket, jailed: &[u32]) -> SocketHolder {
    let wanted = format!("socket:[{}]", socket.inode);
    let jailed: HashMap<u32, io::Result<bool>> =
        jailed.iter().map(|pid| (*pid, has_open(*pid, &wanted))).collect();
    if jailed.values().any(|open| matches!(open, Ok(true))) {
        return SocketHolder::Jailed;
    }
    // A confined program can forbid inspection by other processes.
    let may_be_jailed = jailed.values().any(|open| is_denied(open) && socket.uid == own_uid());
    let mut may_be_hidden = false;
    for pid in processes().unwrap_or_default().into_iter().filter(|pid| !jailed.contains_key(pid)) {
        match has_open(pid, &wanted) {
            // One that was started meanwhile may be in a jail.
            Ok(true) if PeerProcess::find(pid) == PeerProcess::Unconfined => return SocketHolder::Unconfined,
            Ok(true) => return SocketHolder::Jailed,
            open => may_be_hidden |= is_denied(&open) && is_of(pid, socket.uid),
        }
    }
    match (may_be_jailed, may_be_hidden || !sees_all_of(socket.uid)) {
        (true, _) => SocketHolder::Jailed,
        (false, true) => SocketHolder::Hidden,
        (false, false) => SocketHolder::Nobody,
    }
}

fn is_denied(open: &io::Result<bool>) -> bool {
    matches!(open, Err(error) if error.kind() == io::ErrorKind::PermissionDenied)
}

/// Returns whether this process sees every process of a user that uses its network.
///
/// In a container, those of others that share the network are out of sight; and a system may hide the processes of others.
fn sees_all_of(uid: u32) -> bool {
    let namespace = fs::read_link("/proc/self/ns/pid").unwrap_or_default();
    namespace.as_os_str() == FIRST_PID_NAMESPACE && (own_uid() == 0 || own_uid() == uid)
}

fn own_uid() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// Returns whether a process has a socket open.
fn has_open(pid: u32, wanted: &str) -> io::Result<bool> {
    let descriptors = fs::read_dir(format!("/proc/{pid}/fd"))?;
    Ok(descriptors
        .filter_map(|entry| fs::read_link(entry.ok()?.path()).ok())
        .any(|target| target.as_os_str().as_bytes() == wanted.as_bytes()))
}

/// Returns whether a process may make sockets of this user.
fn is_of(pid: u32, uid: u32) -> bool {
    let status = fs::read(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.split(|byte| *byte == b'\n').find_map(|line| line.strip_prefix(b"Uid:"));
    let uids = String::from_utf8_lossy(line.unwrap_or_default()).into_owned();
    uids.split_ascii_whitespace().any(|shown| shown.parse() == Ok(uid))
}

#[cfg(test)]
mod tests {
    use std::{
        io::IoSlice,
        mem::MaybeUninit,
        net::{TcpListener, TcpStream},
        os::{fd::AsFd as _, unix::net::UnixStream},
        time::{Duration, Instant},
    };

    use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

    use super::*;

    #[test]
    fn a_socket_in_transit_or_closed_has_no_holder() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (local, peer) = (listener.local_addr().unwrap(), client.local_addr().unwrap());
        let found = || ask_kernel(local, peer).unwrap();
        let socket = found().unwrap();
        assert_eq!(holder_of(socket, &[]), SocketHolder::Unconfined);
        assert_eq!(holder_of(socket, &[std::process::id()]), SocketHolder::Jailed);
        let (sender, _receiver) = UnixStream::pair().unwrap();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let sent = [client.as_fd()];
        assert!(control.push(SendAncillaryMessage::ScmRights(&sent)));
        sendmsg(&sender, &[IoSlice::new(b"x")], &mut control, SendFlags::empty()).unwrap();
        drop(client);
        assert_eq!(found(), Some(socket), "it is still connected");
        // A child of another test has it until it begins its program.
        let deadline = Instant::now() + Duration::from_secs(20);
        while holder_of(socket, &[]) == SocketHolder::Unconfined {
            assert!(Instant::now() < deadline, "waited for the socket to have no process");
            std::thread::yield_now();
        }
        let sees_all = own_uid() == 0 && sees_all_of(0);
        assert!(!sees_all || holder_of(socket, &[]) == SocketHolder::Nobody);
    }

    #[test]
    fn only_addresses_of_this_host_are_its_own() {
        for (address, is_own) in [("127.0.0.1", true), ("192.0.2.1", false), ("255.255.255.255", false)] {
            assert_eq!(is_own_address(address.parse().unwrap()), is_own, "{address}");
        }
    }
}
