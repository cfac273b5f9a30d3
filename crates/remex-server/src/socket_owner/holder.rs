//! Which process is at the other end of a TCP connection within this host, as far as jails are concerned.
//!
//! A confined process with the network of the host can connect to every port of it. The kernel knows the user and the
//! inode of its socket, but only the descriptors in `/proc` tell which process has it.

use std::{fs, net::SocketAddr, os::unix::ffi::OsStrExt as _};

use remex_rpc::{PeerProcess, jailed_on_own_network, processes};

use super::{DIAGNOSIS, ask_kernel, canonical, search_table};
use crate::auth::{SocketHolder, SocketOwner};

/// Looks for the process at the other end of a connection that was accepted at `local` from `peer`, whose socket has this
/// owner. May take a while on a host with many processes.
///
/// While no jail uses this network, there is nothing to look for. Otherwise the process of a local user must be found: a
/// confined one could keep its socket out of every list of descriptors, in a message that nobody has received yet.
pub(crate) fn find_holder(local: SocketAddr, peer: SocketAddr, owner: SocketOwner) -> SocketHolder {
    let (local, peer) = (canonical(local), canonical(peer));
    let (found, otherwise) = match owner {
        SocketOwner::User(_) => {
            (DIAGNOSIS.look_up(local, peer, ask_kernel, search_table), SocketHolder::Unknown)
        }
        // A process of this host may have used another of its addresses.
        SocketOwner::Unknown | SocketOwner::Remote => (ask_kernel(local, peer), SocketHolder::Unconfined),
    };
    if otherwise == SocketHolder::Unconfined && !matches!(found, Ok(Some(_))) {
        return otherwise;
    }
    let jailed = match jailed_on_own_network() {
        Ok(jailed) if jailed.is_empty() => return SocketHolder::Unconfined,
        Ok(jailed) => jailed,
        Err(_) => return otherwise,
    };
    let Ok(Some(socket)) = found else { return otherwise };
    let wanted = format!("socket:[{}]", socket.inode);
    if jailed.iter().any(|pid| has_open(*pid, &wanted)) {
        return SocketHolder::Jailed;
    }
    let others = processes().unwrap_or_default().into_iter().filter(|pid| !jailed.contains(pid));
    match others.into_iter().find(|pid| has_open(*pid, &wanted)) {
        // One that was started meanwhile may be in a jail.
        Some(pid) if PeerProcess::find(pid) == PeerProcess::Unconfined => SocketHolder::Unconfined,
        Some(_) => SocketHolder::Jailed,
        None => otherwise,
    }
}

/// Returns whether a process has a socket open; `false` if this cannot be found out.
fn has_open(pid: u32, wanted: &str) -> bool {
    let Ok(descriptors) = fs::read_dir(format!("/proc/{pid}/fd")) else { return false };
    descriptors
        .filter_map(|entry| fs::read_link(entry.ok()?.path()).ok())
        .any(|target| target.as_os_str().as_bytes() == wanted.as_bytes())
}
