//! Runs a child as another user of the host.
//!
//! All ids are looked up before the child exists; the child only makes system calls. They are raw, because the wrappers
//! of the C library would change the user of every thread that shares the child's memory. Start at [`UserIds`].
#![allow(unsafe_code)]

use std::{ffi::c_long, fs, io, ptr, sync::OnceLock};

use rustix::process::geteuid;

/// The capabilities needed to start a process as another user and to end it again.
const NEEDED: [(u32, &str); 4] = [(0, "CAP_CHOWN"), (5, "CAP_KILL"), (6, "CAP_SETGID"), (7, "CAP_SETUID")];

/// The id that tells the kernel to leave an id unchanged.
const UNCHANGED: u32 = u32::MAX;

/// The ids that a process gets when it runs as a user of the host.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct UserIds {
    uid: u32,
    gid: u32,
    groups: Vec<u32>,
}

/// Why this process cannot start others as another user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CannotSwitchUser {
    /// It runs as this user, who is not root.
    NotRoot(u32),
    /// It is root without this capability.
    Without(&'static str),
}

impl UserIds {
    /// Returns the ids of a user; `None` if one of them is the id that leaves the server's own in place.
    #[must_use]
    pub fn new(uid: u32, gid: u32, groups: impl IntoIterator<Item = u32>) -> Option<Self> {
        let mut groups: Vec<_> = groups.into_iter().collect();
        groups.push(gid);
        groups.sort_unstable();
        groups.dedup();
        let ids = Self { uid, gid, groups };
        ids.are_valid().then_some(ids)
    }

    /// Returns the user id.
    #[must_use]
    pub fn uid(&self) -> u32 {
        self.uid
    }

    /// Returns the primary group.
    #[must_use]
    pub fn gid(&self) -> u32 {
        self.gid
    }

    /// Returns whether the kernel would change all of them. Checked again because they may have been deserialized.
    pub(crate) fn are_valid(&self) -> bool {
        [self.uid, self.gid].iter().chain(&self.groups).all(|id| *id != UNCHANGED)
    }
}

/// Checks that this process can start others as another user, signal them, and give them their terminals.
///
/// # Errors
/// If it cannot.
pub fn can_switch_user() -> Result<(), CannotSwitchUser> {
    let user = geteuid();
    if !user.is_root() {
        return Err(CannotSwitchUser::NotRoot(user.as_raw()));
    }
    // If the capabilities cannot be read, the start itself will fail.
    let Ok(status) = fs::read_to_string("/proc/self/status") else { return Ok(()) };
    let set = status.lines().find_map(|line| line.strip_prefix("CapEff:")).map(str::trim);
    let Some(set) = set.and_then(|set| u64::from_str_radix(set, 16).ok()) else { return Ok(()) };
    match NEEDED.iter().find(|(number, _)| set & (1 << number) == 0) {
        Some((_, name)) => Err(CannotSwitchUser::Without(name)),
        None => Ok(()),
    }
}

/// Keeps this program dumpable, as `/proc/PID/exe` and core dumps require, while a child changes its user.
///
/// The kernel makes memory non-dumpable when its process changes the user, and the child shares our memory. The user
/// still cannot access the child, because root is its saved user.
pub(crate) struct DumpableGuard(libc::c_int);

impl DumpableGuard {
    pub(crate) fn new() -> Self {
        static BEFORE: OnceLock<libc::c_int> = OnceLock::new();
        // SAFETY: no memory is involved.
        Self(*BEFORE.get_or_init(|| unsafe { libc::prctl(libc::PR_GET_DUMPABLE) }))
    }
}

impl Drop for DumpableGuard {
    fn drop(&mut self) {
        const OPEN: libc::c_int = 1;
        if self.0 == OPEN {
            // SAFETY: no memory is involved. It does not fail with this value.
            unsafe { libc::prctl(libc::PR_SET_DUMPABLE, OPEN) };
        }
    }
}

/// Switches the calling process to the user and drops all privileges of root.
///
/// Until the program is executed, root stays the saved user, so that other processes of the user cannot trace the
/// child, whose memory is that of the server. The `exec` replaces the saved user as well.
///
/// # Safety
/// Call it only in a child that will execute a program or end.
pub(crate) unsafe fn become_user(user: &UserIds) -> Result<(), i32> {
    let UserIds { uid, gid, groups } = user;
    let saved: libc::uid_t = 0;
    // SAFETY: the kernel reads as many groups as the length says, and changes only the calling process.
    unsafe {
        check(libc::syscall(SET_GROUPS, groups.len(), groups.as_ptr()))?;
        check(libc::syscall(SET_GIDS, *gid, *gid, *gid))?;
        check(libc::syscall(SET_UIDS, *uid, *uid, saved))?;
        if *uid != 0 {
            drop_capabilities()?;
        }
        leave_keyring()
    }
}

/// Drops all capabilities, including those that only a program with file capabilities would inherit.
unsafe fn drop_capabilities() -> Result<(), i32> {
    const VERSION_3: u32 = 0x2008_0522;
    let header = [VERSION_3, 0];
    let none = [0_u32; 6];
    // SAFETY: the kernel reads two words for the header and six for the sets.
    check(unsafe { libc::syscall(libc::SYS_capset, header.as_ptr(), none.as_ptr()) })
}

/// Leaves the session keyring of the server: every process that possesses it can use its keys.
unsafe fn leave_keyring() -> Result<(), i32> {
    const JOIN_SESSION_KEYRING: c_long = 1;
    // SAFETY: without a name, a new keyring is made.
    let joined = unsafe {
        libc::syscall(libc::SYS_keyctl, JOIN_SESSION_KEYRING, ptr::null::<libc::c_char>(), 0, 0, 0)
    };
    match check(joined) {
        // The kernel has no keyrings, or a filter denies them, which also denies them to the program.
        Err(libc::ENOSYS | libc::EPERM) => Ok(()),
        joined => joined,
    }
}

#[cfg(not(any(target_arch = "x86", target_arch = "arm")))]
use libc::{SYS_setgroups as SET_GROUPS, SYS_setresgid as SET_GIDS, SYS_setresuid as SET_UIDS};
#[cfg(any(target_arch = "x86", target_arch = "arm"))]
use libc::{SYS_setgroups32 as SET_GROUPS, SYS_setresgid32 as SET_GIDS, SYS_setresuid32 as SET_UIDS};

fn check(result: c_long) -> Result<(), i32> {
    if result < 0 { Err(io::Error::last_os_error().raw_os_error().unwrap_or(0)) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_primary_group_is_one_of_the_groups_once() {
        let ids = UserIds::new(7, 8, [9, 8, 3, 9]).unwrap();
        assert_eq!(ids, UserIds { uid: 7, gid: 8, groups: vec![3, 8, 9] });
    }

    #[test]
    fn ids_that_would_change_nothing_are_refused() {
        assert_eq!(UserIds::new(UNCHANGED, 1, []), None);
        assert_eq!(UserIds::new(1, UNCHANGED, []), None);
        assert_eq!(UserIds::new(1, 1, [UNCHANGED]), None);
    }
}
