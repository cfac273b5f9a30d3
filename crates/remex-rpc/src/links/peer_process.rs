//! Whether the process at the other end of a connection is confined by a remex jail.
//!
//! A confined process has the user of its server, so no user id tells them apart. What it cannot change is its pid
//! namespace: the filter of a jail refuses new namespaces, and the first process there is a program of remex under a
//! name of its own, which nothing in the jail can change or replace. Everything is read from `/proc`; nothing is
//! changed. Start at [`PeerProcess::find`].

use std::{
    collections::HashMap,
    fs, io,
    path::{Path, PathBuf},
};

/// The name of the first process of a jail with a sandbox profile. In jails with only a pid namespace it has another
/// name.
const FIRST_PROCESS: &[u8] = b"remex-init\0";

/// What is known about the process at the other end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeerProcess {
    /// It is in no jail, or in the one of this process; or nothing can be found out about it, because it is outside of
    /// the pid namespace of this process.
    Unconfined,
    /// It is in a jail, of whatever server.
    Jailed,
    /// It has ended, so the owner of the connection is unknown.
    Gone,
}

impl PeerProcess {
    /// Inspects the process with this pid in the pid namespace of this process.
    ///
    /// May read as many links as there are processes, if it is in a pid namespace of its own and cannot gain
    /// privileges.
    ///
    /// ```
    /// use remex_rpc::PeerProcess;
    ///
    /// assert_eq!(PeerProcess::find(std::process::id()), PeerProcess::Unconfined);
    /// ```
    pub fn find(pid: u32) -> Self {
        let Some(own) = own_namespace("pid") else { return Self::Unconfined };
        if pid == 0 {
            return Self::Unconfined;
        }
        let theirs = namespace(pid, "pid");
        if theirs.as_ref().is_ok_and(|theirs| *theirs == own) {
            return Self::Unconfined;
        }
        let Ok(status) = Status::read(pid) else { return Self::Gone };
        match theirs {
            _ if !status.is_nested || !status.has_no_new_privileges => Self::Unconfined,
            Ok(theirs) if has_first_process(&theirs) => Self::Jailed,
            Ok(_) => Self::Unconfined,
            // Only a confined program that is not readable hides its namespace.
            Err(_) => Self::Jailed,
        }
    }
}

/// Returns the processes in jails that use the network of this process, or may use it because they cannot be inspected.
///
/// # Errors
///
/// If the processes of the host cannot be listed.
pub fn jailed_on_own_network() -> io::Result<Vec<u32>> {
    let (Some(own), Some(network)) = (own_namespace("pid"), own_namespace("net")) else {
        return Ok(Vec::new());
    };
    let mut found: HashMap<PathBuf, Vec<u32>> = HashMap::new();
    let mut hidden = Vec::new();
    for pid in processes()? {
        match namespace(pid, "pid") {
            Ok(theirs) if theirs == own => {}
            Ok(theirs) if namespace(pid, "net").is_ok_and(|theirs| theirs == network) => {
                found.entry(theirs).or_default().push(pid);
            }
            Ok(_) => {}
            Err(_) => hidden.push(pid),
        }
    }
    // Jails of other users are not of interest.
    let user = Status::read(std::process::id())?.user;
    let may_be_ours = |pid: &u32| Status::read(*pid).is_ok_and(|status| status.user == user);
    let mut jailed: Vec<u32> = hidden.into_iter().filter(may_be_ours).collect();
    jailed.retain(|pid| PeerProcess::find(*pid) == PeerProcess::Jailed);
    for there in found.into_values() {
        if let Some(first) = there.iter().copied().find(|pid| is_first_of_jail(*pid)) {
            jailed.extend(there.into_iter().filter(|pid| *pid != first));
        }
    }
    Ok(jailed)
}

/// Returns the processes of this host that this process can see, those with the highest pids first.
///
/// # Errors
///
/// If `/proc` cannot be read.
pub fn processes() -> io::Result<Vec<u32>> {
    let entries = fs::read_dir("/proc")?.filter_map(Result::ok);
    let mut pids: Vec<u32> = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
    pids.sort_unstable_by(|one, other| other.cmp(one));
    Ok(pids)
}

/// Returns whether the first process of a pid namespace is that of a jail.
fn has_first_process(wanted: &Path) -> bool {
    let is_there = |pid: &u32| namespace(*pid, "pid").is_ok_and(|theirs| theirs == wanted);
    processes().is_ok_and(|pids| pids.into_iter().filter(is_there).any(is_first_of_jail))
}

fn is_first_of_jail(pid: u32) -> bool {
    Status::read(pid).is_ok_and(|status| status.is_first)
        && fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|line| line == FIRST_PROCESS)
}

fn namespace(pid: u32, kind: &str) -> io::Result<PathBuf> {
    fs::read_link(format!("/proc/{pid}/ns/{kind}"))
}

/// Returns a namespace of this process, or `None` if `/proc` is missing or that of another pid namespace.
fn own_namespace(kind: &str) -> Option<PathBuf> {
    let own = std::process::id();
    let shown: u32 = fs::read_link("/proc/self").ok()?.to_str()?.parse().ok()?;
    (shown == own).then(|| namespace(own, kind).ok()).flatten()
}

/// What everyone may read about a process.
#[derive(Debug, PartialEq, Eq)]
struct Status {
    /// In a pid namespace below the one of `/proc`.
    is_nested: bool,
    /// The first process of its pid namespace.
    is_first: bool,
    has_no_new_privileges: bool,
    /// The number of its user, as text.
    user: String,
}

impl Status {
    fn read(pid: u32) -> io::Result<Self> {
        Ok(Self::parse(&fs::read(format!("/proc/{pid}/status"))?))
    }

    fn parse(text: &[u8]) -> Self {
        // The name of the program comes first, with line ends escaped.
        let value = |name: &[u8]| {
            let mut lines = text.split(|byte| *byte == b'\n');
            let line = lines.find_map(|line| line.strip_prefix(name)).unwrap_or_default();
            String::from_utf8_lossy(line).into_owned()
        };
        let numbers = value(b"NSpid:");
        let numbers: Vec<_> = numbers.split_ascii_whitespace().collect();
        Self {
            is_nested: numbers.len() > 1,
            is_first: numbers.last() == Some(&"1"),
            has_no_new_privileges: value(b"NoNewPrivs:").trim() == "1",
            user: value(b"Uid:").split_ascii_whitespace().next().unwrap_or_default().to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn a_process_in_no_namespace_of_its_own_is_not_confined() {
        let mut child = Command::new("sleep").arg("1000").stdin(Stdio::null()).spawn().unwrap();
        assert_eq!(PeerProcess::find(child.id()), PeerProcess::Unconfined);
        child.kill().unwrap();
        let pid = child.id();
        child.wait().unwrap();
        assert_eq!(PeerProcess::find(pid), PeerProcess::Gone);
        // The other side of a connection from outside of the pid namespace.
        assert_eq!(PeerProcess::find(0), PeerProcess::Unconfined);
    }

    #[test]
    fn the_nesting_of_a_process_is_read_from_its_status() {
        let status = |text: &str| Status::parse(text.as_bytes());
        let user = || "1000".to_owned();
        let inside = status("Name:\tx NSpid:\t5\nNoNewPrivs:\t1\nUid:\t1000\t0\t0\t0\nNSpid:\t4711\t1\n");
        let expected = Status { is_nested: true, is_first: true, has_no_new_privileges: true, user: user() };
        assert_eq!(inside, expected);
        let outside = status("Name:\tsh\nUid:\t1000\t0\t0\t0\nNSpid:\t4711\nNoNewPrivs:\t0\n");
        let expected =
            Status { is_nested: false, is_first: false, has_no_new_privileges: false, user: user() };
        assert_eq!(outside, expected);
    }
}
