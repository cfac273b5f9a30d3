//! Confines a process by Landlock: rights to files by the directories they are in, and scopes for signals and abstract
//! unix sockets.
//!
//! In a jail of namespaces this is a second layer behind the mounts. It also covers named pipes and devices, which stay
//! writable on a read-only mount. Rights add up along the path from the root to a file, so a rule cannot revoke what a
//! rule above it grants; the mounts do that. Rights that this kernel's Landlock does not know are left out. Without
//! namespaces, `landlock_only.rs` uses the same rules as the only protection. Start at [`Ruleset`].
#![allow(unsafe_code)]

use std::{
    ffi::{CStr, CString},
    os::{fd::RawFd, unix::ffi::OsStrExt as _},
    path::Path,
    ptr,
    sync::OnceLock,
};

use remex_sandbox::{Access, Policy};

use super::build::{check, descriptor, locate};

/// The rights to files and directories, as the kernel numbers them.
mod right {
    pub(super) const EXECUTE: u64 = 1 << 0;
    pub(super) const WRITE_FILE: u64 = 1 << 1;
    pub(super) const READ_FILE: u64 = 1 << 2;
    pub(super) const READ_DIR: u64 = 1 << 3;
    pub(super) const REMOVE_DIR: u64 = 1 << 4;
    pub(super) const REMOVE_FILE: u64 = 1 << 5;
    pub(super) const MAKE_CHAR: u64 = 1 << 6;
    pub(super) const MAKE_DIR: u64 = 1 << 7;
    pub(super) const MAKE_REG: u64 = 1 << 8;
    pub(super) const MAKE_SOCK: u64 = 1 << 9;
    pub(super) const MAKE_FIFO: u64 = 1 << 10;
    pub(super) const MAKE_BLOCK: u64 = 1 << 11;
    pub(super) const MAKE_SYM: u64 = 1 << 12;
    /// To rename and link from one directory to another; version 2.
    pub(super) const REFER: u64 = 1 << 13;
    /// Version 3.
    pub(super) const TRUNCATE: u64 = 1 << 14;
    /// Version 5.
    pub(super) const IOCTL_DEV: u64 = 1 << 15;

    /// The rights that also apply to files, not only to directories.
    pub(super) const OF_FILES: u64 = EXECUTE | WRITE_FILE | READ_FILE | TRUNCATE | IOCTL_DEV;
}

/// Binding and connecting TCP sockets; version 4.
const TCP: u64 = 0b11;
/// Abstract unix sockets and signals; version 6.
const SCOPES: u64 = 0b11;

/// The rights that `read` grants.
const READ: u64 = right::EXECUTE | right::READ_FILE | right::READ_DIR;
/// The rights that `read` grants to files, without listing directories.
pub(super) const READ_FILES: u64 = right::EXECUTE | right::READ_FILE;
pub(super) const READ_DIRECTORIES: u64 = right::READ_DIR;
/// The rights that `write` grants. Devices cannot be created in a jail anyway.
const WRITE: u64 = READ
    | right::WRITE_FILE
    | right::REMOVE_DIR
    | right::REMOVE_FILE
    | right::MAKE_DIR
    | right::MAKE_REG
    | right::MAKE_SOCK
    | right::MAKE_FIFO
    | right::MAKE_SYM
    | right::REFER
    | right::TRUNCATE;
/// What the harmless devices need.
pub(super) const DEVICE: u64 = right::READ_FILE | right::WRITE_FILE | right::IOCTL_DEV;

/// The paths that belong to the jail itself, whatever the policy says.
const OWN: [(&CStr, u64); 3] = [(c"/proc", READ), (c"/dev", DEVICE | right::READ_DIR), (c"/dev/shm", WRITE)];

/// The first version that lets files be renamed from one directory to another.
const LEAST_VERSION: i32 = 2;

/// Returns the version of Landlock that this kernel offers, or `None` if it has none or something forbids it.
pub(crate) fn version() -> Option<u32> {
    static VERSION: OnceLock<i32> = OnceLock::new();
    let version = *VERSION.get_or_init(|| {
        const ASK_FOR_VERSION: u32 = 1;
        let (none, len) = (ptr::null::<Attributes>(), 0_usize);
        // SAFETY: with this flag the kernel reads no memory.
        let version = unsafe { libc::syscall(libc::SYS_landlock_create_ruleset, none, len, ASK_FOR_VERSION) };
        i32::try_from(version).unwrap_or(0)
    });
    u32::try_from(version).ok().filter(|version| *version > 0)
}

/// The rules for one process, prepared so that its child only makes system calls.
#[derive(Debug)]
pub(crate) struct Ruleset {
    attributes: Attributes,
    /// As many bytes of the attributes as this kernel knows.
    attributes_len: usize,
    rules: Vec<(CString, u64)>,
}

/// What the rules are about, as the kernel expects it.
#[repr(C)]
#[derive(Debug)]
struct Attributes {
    files: u64,
    network: u64,
    scopes: u64,
}

/// Whether TCP is confined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tcp {
    /// A network namespace confines it, or nothing does.
    Ignored,
    Denied,
}

impl Ruleset {
    /// Returns the rules behind the mounts of a jail with this policy, or `None` if this kernel's Landlock would break
    /// programs.
    pub(crate) fn behind_mounts(policy: &Policy) -> Option<Self> {
        let version = version().and_then(|version| i32::try_from(version).ok())?;
        let mut ruleset = Self::new(version, Tcp::Ignored)?;
        for rule in policy.rules() {
            let rights = match rule.access {
                Access::Deny => continue,
                Access::Read => READ,
                Access::Write => WRITE,
            };
            ruleset.allow(&rule.path, rights);
        }
        for (path, rights) in OWN {
            ruleset.rules.push((path.to_owned(), rights));
        }
        Some(ruleset)
    }

    /// Returns a set without rules, which allows nothing, or `None` if this version would break programs.
    pub(super) fn new(version: i32, tcp: Tcp) -> Option<Self> {
        if version < LEAST_VERSION {
            return None;
        }
        let mut files = WRITE | DEVICE | right::MAKE_CHAR | right::MAKE_BLOCK;
        for (right, since) in [(right::TRUNCATE, 3), (right::IOCTL_DEV, 5)] {
            if version < since {
                files &= !right;
            }
        }
        let network = if version >= 4 && tcp == Tcp::Denied { TCP } else { 0 };
        let scopes = if version >= 6 { SCOPES } else { 0 };
        let words = match version {
            ..4 => 1,
            4..6 => 2,
            6.. => 3,
        };
        let attributes = Attributes { files, network, scopes };
        Some(Self { attributes, attributes_len: words * size_of::<u64>(), rules: Vec::new() })
    }

    /// Grants rights at a path and below, unless a rule above grants them already.
    fn allow(&mut self, path: &Path, rights: u64) {
        let is_above =
            |above: &CStr| path.starts_with(Path::new(std::ffi::OsStr::from_bytes(above.to_bytes())));
        let above = self.rules.iter().filter(|(above, _)| is_above(above));
        let granted = above.fold(0, |granted, (_, rights)| granted | rights);
        if rights & !granted != 0 {
            self.grant(path, rights);
        }
    }

    /// Grants rights at a path and below.
    pub(super) fn grant(&mut self, path: &Path, rights: u64) {
        // A path with a NUL does not exist.
        if let Ok(path) = CString::new(path.as_os_str().as_bytes()) {
            self.rules.push((path, rights));
        }
    }

    /// Returns the paths at which rights are granted.
    #[cfg(test)]
    pub(super) fn paths(&self) -> impl Iterator<Item = &Path> {
        self.rules.iter().map(|(path, _)| Path::new(std::ffi::OsStr::from_bytes(path.to_bytes())))
    }

    pub(super) fn len(&self) -> usize {
        self.rules.len()
    }
}

/// Confines the calling process and all its descendants permanently.
///
/// Opens the paths as this process sees them. With a `terminal`, descriptor 0 is one, which the process may open again
/// by its name.
///
/// # Safety
/// Call it only in a child that may gain no privileges.
pub(crate) unsafe fn restrict(ruleset: &Ruleset, terminal: Option<RawFd>) -> Result<(), i32> {
    // SAFETY: the kernel reads as many bytes as the length says, which are there.
    unsafe {
        check(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1_u64, 0_u64, 0_u64, 0_u64).into())?;
        let (attributes, len) = (&raw const ruleset.attributes, ruleset.attributes_len);
        let set = descriptor(libc::syscall(libc::SYS_landlock_create_ruleset, attributes, len, 0))?;
        let restricted = fill(ruleset, set, terminal)
            .and_then(|()| check(libc::syscall(libc::SYS_landlock_restrict_self, set, 0)));
        libc::close(set);
        restricted
    }
}

unsafe fn fill(ruleset: &Ruleset, set: RawFd, terminal: Option<RawFd>) -> Result<(), i32> {
    let handled = ruleset.attributes.files;
    // SAFETY: all strings end with NUL.
    unsafe {
        if let Some(terminal) = terminal {
            add(set, terminal, DEVICE & handled)?;
        }
        for (path, rights) in &ruleset.rules {
            let place = match locate(path) {
                Ok(place) => place,
                // The path does not exist, so there is nothing to grant.
                Err(libc::ENOENT | libc::ENOTDIR | libc::ELOOP | libc::EACCES) => continue,
                Err(errno) => return Err(errno),
            };
            let added = add(set, place, rights & handled);
            libc::close(place);
            added?;
        }
    }
    Ok(())
}

/// Adds a rule for what a descriptor refers to.
unsafe fn add(set: RawFd, place: RawFd, rights: u64) -> Result<(), i32> {
    #[repr(C, packed)]
    struct Beneath {
        rights: u64,
        place: RawFd,
    }
    const PATH_BENEATH: i32 = 1;
    let add = |rights: u64| {
        let beneath = Beneath { rights, place };
        // SAFETY: the kernel reads the struct, whose layout is that of its own.
        check(unsafe { libc::syscall(libc::SYS_landlock_add_rule, set, PATH_BENEATH, &raw const beneath, 0) })
    };
    match add(rights) {
        // It is not a directory.
        Err(libc::EINVAL) => match add(rights & right::OF_FILES) {
            // None of the rights is for files.
            Err(libc::ENOMSG) => Ok(()),
            other => other,
        },
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, io, os::unix::process::CommandExt as _, process::Command, sync::Arc};

    use remex_sandbox::{Preset, Request, SystemHost, resolve, testing::context};

    use super::*;

    fn workspace(root: &Path) -> Policy {
        let mut context = context(Vec::new(), Some(vec![root.to_owned().into()]));
        context.permissions = Preset::WorkspaceWrite.permissions();
        resolve(&Request { context: &context, cwd: None, tmpdir: None }, &SystemHost).unwrap()
    }

    #[test]
    fn without_mounts_landlock_confines_writes() {
        // Not in a directory for temporary files, which are writable in this profile.
        let directory = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let base = fs::canonicalize(directory.path()).unwrap();
        for name in ["w", "out"] {
            fs::create_dir(base.join(name)).unwrap();
        }
        let Some(ruleset) = Ruleset::behind_mounts(&workspace(&base.join("w"))) else {
            // This kernel has no Landlock.
            return;
        };
        let ruleset = Arc::new(ruleset);
        let works = |script: &str| {
            let ruleset = Arc::clone(&ruleset);
            let mut command = Command::new("/bin/sh");
            command.args(["-c", script]).current_dir(&base);
            // SAFETY: only system calls, and nothing is allocated.
            unsafe {
                command.pre_exec(move || restrict(&ruleset, None).map_err(io::Error::from_raw_os_error));
            }
            command.output().unwrap().status.success()
        };
        assert!(works("echo x > w/file && mkdir w/sub && mv w/file w/sub && cat w/sub/file"));
        assert!(works("ls out && echo x > /dev/null"));
        for script in ["echo x > out/file", "mkdir out/sub", "mv w/sub out", "ln w/sub/file out/file"] {
            assert!(!works(script), "{script}");
        }
    }

    #[test]
    fn rights_unknown_to_the_kernel_are_left_out() {
        assert!(Ruleset::new(1, Tcp::Denied).is_none(), "files could not be moved between directories");
        let sizes = (2..=9).map(|version| Ruleset::new(version, Tcp::Denied).unwrap());
        let of = |ruleset: &Ruleset| {
            let Attributes { files, network, scopes } = ruleset.attributes;
            let is = |right| files & right != 0;
            (ruleset.attributes_len, is(right::TRUNCATE), is(right::IOCTL_DEV), network != 0, scopes != 0)
        };
        let found: Vec<_> = sizes.map(|ruleset| of(&ruleset)).collect();
        let newest = (24, true, true, true, true);
        let expected = [
            (8, false, false, false, false),
            (8, true, false, false, false),
            (16, true, false, true, false),
            (16, true, true, true, false),
            newest,
            newest,
            newest,
            newest,
        ];
        assert_eq!(found, expected);
        assert_eq!(Ruleset::new(7, Tcp::Ignored).unwrap().attributes.network, 0);
    }
}
