//! From a policy to the mounts that enforce it.
//!
//! While a jail is built, the root is an empty file system: what the host has is in `/old`, and what the process will
//! see in `/new`. The mounts are made in order, parents first. Start at [`Plan::new`].

use std::{
    collections::{BTreeMap, BTreeSet},
    ffi::CString,
    fs,
    os::unix::ffi::{OsStrExt as _, OsStringExt as _},
    path::{Path, PathBuf},
};

use remex_sandbox::{Access, Kind, Policy, Rule, UnenforceableRule};
use rustix::process::geteuid;

use super::{
    error::JailError,
    git, hidden,
    placeholder::{Found, Placeholder},
    search,
};

/// The mounts that make up the file system of a jail.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) mounts: Vec<Mount>,
    /// Placeholders created on the host to be covered; to be removed when the jail has ended.
    pub(crate) placeholders: Vec<Placeholder>,
}

/// One step of building.
#[derive(Debug)]
pub(crate) enum Mount {
    /// A new directory.
    Directory { path: CString, mode: libc::mode_t },
    /// A new empty file, to be covered.
    File { path: CString },
    /// A new symbolic link.
    Link { path: CString, target: CString },
    /// A directory or a file with all mounts below it.
    Bind { from: CString, to: CString, writes: Writes },
    /// A device of the host, if it exists there.
    Device { from: CString, to: CString },
    /// Covers a directory by an empty one that cannot be written.
    Cover { path: CString },
    /// Hides the file or directory at a path.
    Hide { path: CString, presence: Presence },
    /// Its own `/proc`.
    Proc { path: CString, writes: Writes },
    /// Its own terminals.
    Terminals { path: CString },
    /// An empty file system in memory.
    Memory { path: CString },
}

impl Mount {
    /// Returns the path on the host that it concerns, if any.
    pub(crate) fn subject(&self) -> Option<PathBuf> {
        let (Self::Directory { path, .. }
        | Self::File { path }
        | Self::Link { path, .. }
        | Self::Bind { to: path, .. }
        | Self::Device { to: path, .. }
        | Self::Cover { path }
        | Self::Hide { path, .. }
        | Self::Proc { path, .. }
        | Self::Terminals { path }
        | Self::Memory { path }) = self;
        let path = Path::new(std::ffi::OsStr::from_bytes(path.to_bytes()));
        path.strip_prefix("/new").ok().map(|path| Path::new("/").join(path))
    }
}

/// Whether something is at a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Presence {
    /// It existed when the plan was made; if it has vanished, it may have moved, so the jail must not be used.
    Certain,
    Possible,
}

impl From<Kind> for Presence {
    fn from(kind: Kind) -> Self {
        if matches!(kind, Kind::File | Kind::Directory) { Self::Certain } else { Self::Possible }
    }
}

/// Whether a mount can be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Writes {
    /// As on the host, devices and set-user-id programs included.
    Unconfined,
    Allowed,
    Denied,
}

/// The paths that belong to the jail itself, whatever the policy says; entries below them grant nothing.
const OWN: [&str; 2] = ["/proc", "/dev"];

/// Harmless devices.
pub(super) const DEVICES: [&str; 6] = ["full", "null", "random", "tty", "urandom", "zero"];

/// The usual links in `/dev`.
const DEVICE_LINKS: [(&str, &str); 5] = [
    ("fd", "/proc/self/fd"),
    ("ptmx", "pts/ptmx"),
    ("stderr", "/proc/self/fd/2"),
    ("stdin", "/proc/self/fd/0"),
    ("stdout", "/proc/self/fd/1"),
];

/// Files about memory and processes of the whole host that the kernel lets root read without any capability.
pub(super) const KERNEL_SECRETS: [&str; 22] = [
    "/proc/acpi",
    "/proc/kallsyms",
    "/proc/kcore",
    "/proc/key-users",
    "/proc/keys",
    "/proc/kmsg",
    "/proc/kpagecgroup",
    "/proc/kpagecount",
    "/proc/kpageflags",
    "/proc/latency_stats",
    "/proc/pagetypeinfo",
    "/proc/sched_debug",
    "/proc/scsi",
    "/proc/slabinfo",
    "/proc/sysrq-trigger",
    "/proc/timer_list",
    "/proc/timer_stats",
    "/proc/vmallocinfo",
    "/sys/firmware",
    "/sys/kernel/debug",
    "/sys/kernel/slab",
    "/sys/kernel/tracing",
];

/// File systems whose files control the kernel: root can write them without any capability.
const KERNEL_FILE_SYSTEMS: [&str; 16] = [
    "binder",
    "binfmt_misc",
    "bpf",
    "cgroup",
    "cgroup2",
    "configfs",
    "debugfs",
    "devtmpfs",
    "efivarfs",
    "fusectl",
    "proc",
    "pstore",
    "resctrl",
    "securityfs",
    "sysfs",
    "tracefs",
];

/// What to do at a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Entry {
    access: Access,
    kind: Kind,
    origin: Origin,
}

/// Who created the file or directory at a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Origin {
    Host,
    /// This server, as a mount point.
    Placeholder,
}

impl Entry {
    fn new(access: Access, kind: Kind) -> Self {
        Self { access, kind, origin: Origin::Host }
    }
}

impl Plan {
    /// Plans the mounts for a policy; `hidden` paths of the host cannot be seen whatever the policy says.
    ///
    /// Looks for files that match the patterns of the policy, so it may block.
    pub(crate) fn new(policy: &Policy, hidden: &[PathBuf]) -> Result<Self, JailError> {
        if let Some(obstacle) = policy.unenforceable_rules().next() {
            return Err(JailError::Policy(obstacle.into()));
        }
        let mut entries = Entries::new(policy, hidden)?;
        let placeholders = entries.add_placeholders(policy)?;
        let mut mounts = Mounts { entries: &entries, policy, list: Vec::new(), skeletons: 0 };
        mounts.root();
        mounts.own();
        let mut points: BTreeSet<&Path> = entries.0.keys().map(PathBuf::as_path).collect();
        points.extend(entries.pinned());
        points.remove(Path::new("/"));
        points.into_iter().for_each(|path| mounts.point(path));
        mounts.hide_kernel_secrets();
        Ok(Self { mounts: mounts.list, placeholders })
    }

    /// Plans the mounts that a new pid namespace needs, and nothing else.
    pub(crate) fn pids_only() -> Self {
        let root = Path::new("/");
        let mounts = vec![
            Mount::Bind { from: below("/old", root), to: below("/new", root), writes: Writes::Unconfined },
            Mount::Proc { path: below("/new", Path::new("/proc")), writes: Writes::Unconfined },
        ];
        Self { mounts, placeholders: Vec::new() }
    }
}

/// The rules of the policy, the paths that the server hides, and the paths that no jail may write.
struct Entries(BTreeMap<PathBuf, Entry>);

impl Entries {
    fn new(policy: &Policy, hidden: &[PathBuf]) -> Result<Self, JailError> {
        let rules = policy.rules().iter();
        let mut entries =
            Self(rules.map(|rule| (rule.path.clone(), Entry::new(rule.access, rule.kind))).collect());
        if entries.0.values().any(|entry| entry.access == Access::Write) {
            for path in mounts_of(&KERNEL_FILE_SYSTEMS)? {
                // A mount that another mount covers is not accessible, and perhaps does not exist as a path.
                if entries.access(&path) == Access::Write && !is_own(&path) && path.exists() {
                    entries.0.insert(path, Entry::new(Access::Read, Kind::Directory));
                }
            }
        }
        // Parents first: what is below a hidden directory needs no entry of its own.
        for path in hidden::resolve(hidden)? {
            if entries.access(&path) > Access::Deny {
                let kind = if path.is_dir() { Kind::Directory } else { Kind::File };
                entries.0.insert(path, Entry::new(Access::Deny, kind));
            }
        }
        for (path, kind) in git::nested(policy) {
            if entries.access(&path) == Access::Write && !entries.0.contains_key(&path) {
                entries.0.insert(path, Entry::new(Access::Read, kind));
            }
        }
        // What a pattern denies stays denied, whatever is granted below it; and the directories above it stay in place.
        for path in search::matches(policy)? {
            if entries.access(&path) > Access::Deny {
                entries.0.retain(|entry, _| entry == &path || !entry.starts_with(&path));
                let kind = if path.is_dir() { Kind::Directory } else { Kind::File };
                entries.0.insert(path, Entry::new(Access::Deny, kind));
            }
        }
        Ok(entries)
    }

    /// Creates a placeholder for each missing protected path in a writable directory, where a process could create it.
    fn add_placeholders(&mut self, policy: &Policy) -> Result<Vec<Placeholder>, JailError> {
        let mut placeholders = Vec::new();
        for rule in policy.rules().iter().filter(|rule| rule.access < Access::Write) {
            let parent = rule.path.parent().unwrap_or(&rule.path);
            let can_vanish = matches!(rule.kind, Kind::Missing | Kind::Directory) && !is_own(&rule.path);
            if !can_vanish || self.access(parent) < Access::Write {
                continue;
            }
            let Some(entry) = self.0.get_mut(&rule.path) else { continue };
            entry.kind = match Placeholder::hold(&rule.path)? {
                Found::Held(placeholder) => {
                    entry.origin = Origin::Placeholder;
                    placeholders.push(placeholder);
                    Kind::Directory
                }
                Found::Other(Kind::Link) => {
                    let rule = Rule { kind: Kind::Link, ..rule.clone() };
                    return Err(JailError::Policy(UnenforceableRule { rule: &rule }.into()));
                }
                Found::Other(kind) => kind,
            };
        }
        Ok(placeholders)
    }

    fn access(&self, path: &Path) -> Access {
        self.decisive(path).map_or(Access::Deny, |(_, entry)| entry.access)
    }

    /// Returns the deepest entry at or above a path.
    fn decisive<'a>(&self, path: &'a Path) -> Option<(&'a Path, Entry)> {
        path.ancestors().find_map(|path| Some((path, *self.0.get(path)?)))
    }

    /// Returns whether no entry is between a denied directory and a path below it.
    fn is_next_above(&self, denied: &Path, path: &Path) -> bool {
        let above = path.parent().and_then(|parent| self.decisive(parent));
        above.map_or(denied == Path::new("/"), |(above, _)| above == denied)
    }

    /// Returns the directories that must stay where they are: they are writable and above an entry.
    ///
    /// A process could rename one, and create another file or directory at the path of the entry. A mount point cannot
    /// be renamed or removed.
    fn pinned(&self) -> impl Iterator<Item = &Path> {
        let writable_above =
            |path: &&PathBuf| path.parent().is_some_and(|parent| self.access(parent) == Access::Write);
        let above = self.0.keys().filter(writable_above).flat_map(|path| {
            path.ancestors().skip(1).take_while(|directory| !self.0.contains_key(*directory))
        });
        above.filter(|path| !is_own(path))
    }

    /// Returns the grants for which a denied directory is the nearest entry above.
    fn grants_in(&self, denied: &Path) -> impl Iterator<Item = (&Path, Kind)> {
        let below = self.0.range(denied.to_owned()..).map(|(path, entry)| (path.as_path(), *entry));
        below
            .take_while(move |(path, _)| path.starts_with(denied))
            .filter(move |(path, entry)| entry.access > Access::Deny && *path != denied)
            .filter(|(_, entry)| matches!(entry.kind, Kind::File | Kind::Directory))
            .filter(|(path, _)| !is_own(path))
            .filter(move |(path, _)| self.is_next_above(denied, path))
            .map(|(path, entry)| (path, entry.kind))
    }
}

struct Mounts<'a> {
    entries: &'a Entries,
    policy: &'a Policy,
    list: Vec<Mount>,
    skeletons: usize,
}

impl Mounts<'_> {
    /// Mounts the root.
    fn root(&mut self) {
        let root = Path::new("/");
        match self.entries.0.get(root).map_or(Access::Deny, |entry| entry.access) {
            Access::Deny => self.skeleton(root),
            access => self.bind(root, access),
        }
    }

    /// Mounts what the jail has of its own.
    fn own(&mut self) {
        self.list.push(Mount::Proc { path: below("/new", Path::new("/proc")), writes: Writes::Denied });
        let made = |name: &str| below("/dev", Path::new(name));
        let new = |name: &str| below("/new/dev", Path::new(name));
        self.list.push(Mount::Directory { path: made(""), mode: 0o755 });
        for name in DEVICES {
            self.list.push(Mount::File { path: made(name) });
        }
        for name in ["pts", "shm"] {
            self.list.push(Mount::Directory { path: made(name), mode: 0o755 });
        }
        for (name, target) in DEVICE_LINKS {
            self.list.push(Mount::Link { path: made(name), target: c_string(Path::new(target)) });
        }
        self.list.push(Mount::Bind { from: made(""), to: new(""), writes: Writes::Denied });
        for name in DEVICES {
            self.list.push(Mount::Device { from: below("/old/dev", Path::new(name)), to: new(name) });
        }
        self.list.push(Mount::Terminals { path: new("pts") });
        self.list.push(Mount::Memory { path: new("shm") });
    }

    /// Hides files of the kernel that only root may read, because a confined process may have the user id of root.
    fn hide_kernel_secrets(&mut self) {
        if geteuid().is_root() {
            let seen = KERNEL_SECRETS.map(Path::new).into_iter();
            let seen = seen.filter(|path| is_own(path) || self.entries.access(path) > Access::Deny);
            let hide = |path| Mount::Hide { path: below("/new", path), presence: Presence::Possible };
            let hidden: Vec<_> = seen.map(hide).collect();
            self.list.extend(hidden);
        }
    }

    /// Adds the mounts for an entry or a pinned directory.
    fn point(&mut self, path: &Path) {
        let Some(entry) = self.entries.0.get(path) else {
            // A pinned directory.
            return self.bind(path, Access::Write);
        };
        let is_there = matches!(entry.kind, Kind::File | Kind::Directory);
        match entry.access {
            Access::Deny if self.entries.grants_in(path).next().is_some() => self.skeleton(path),
            Access::Deny => {
                let presence = entry.kind.into();
                self.list.push(Mount::Hide { path: below("/new", path), presence });
            }
            Access::Read if entry.origin == Origin::Placeholder => {
                self.list.push(Mount::Cover { path: below("/new", path) });
            }
            // A missing path or a link needs no mount: it is where nothing can be created or replaced.
            access if is_there && !is_own(path) => self.bind(path, access),
            _ => {}
        }
    }

    fn bind(&mut self, path: &Path, access: Access) {
        let writes = if access == Access::Write { Writes::Allowed } else { Writes::Denied };
        self.list.push(Mount::Bind { from: below("/old", path), to: below("/new", path), writes });
    }

    /// Covers a denied directory with one that contains only the path to what is granted below.
    fn skeleton(&mut self, denied: &Path) {
        let name = format!("/skeleton-{}", self.skeletons);
        self.skeletons += 1;
        let mut nodes = BTreeMap::from([(denied.to_owned(), Node::Directory)]);
        for (path, kind) in self.entries.grants_in(denied) {
            let node = if kind == Kind::File { Node::File } else { Node::Directory };
            nodes.insert(path.to_owned(), node);
        }
        for link in self.policy.links() {
            if self.entries.is_next_above(denied, &link.path) {
                nodes.insert(link.path.clone(), Node::Link(link.target.clone()));
            }
        }
        if denied == Path::new("/") {
            nodes.extend(OWN.map(|path| (PathBuf::from(path), Node::Directory)));
        }
        let ways = nodes.keys().flat_map(|path| path.ancestors().skip(1));
        let ways: Vec<_> = ways.filter(|way| way.starts_with(denied)).map(Path::to_owned).collect();
        for way in ways {
            nodes.entry(way).or_insert(Node::Directory);
        }
        for (path, node) in nodes {
            let path = below(&name, path.strip_prefix(denied).unwrap_or(&path));
            self.list.push(match node {
                // Traversable but not listable.
                Node::Directory => Mount::Directory { path, mode: 0o111 },
                Node::File => Mount::File { path },
                Node::Link(target) => Mount::Link { path, target: c_string(&target) },
            });
        }
        let (from, to) = (below(&name, Path::new("")), below("/new", denied));
        self.list.push(Mount::Bind { from, to, writes: Writes::Denied });
    }
}

/// An entry of a directory that covers another one.
enum Node {
    Directory,
    File,
    Link(PathBuf),
}

fn is_own(path: &Path) -> bool {
    OWN.iter().any(|own| path.starts_with(own))
}

/// Returns where file systems of these kinds are mounted.
pub(super) fn mounts_of(kinds: &[&str]) -> Result<Vec<PathBuf>, JailError> {
    const LIST: &str = "/proc/self/mountinfo";
    let lines = fs::read(LIST).map_err(|error| JailError::Search {
        path: LIST.into(),
        errno: error.raw_os_error().unwrap_or(libc::EIO),
    })?;
    let parse = |line: &[u8]| {
        let mut fields = line.split(|byte| *byte == b' ');
        let path = fields.nth(4)?;
        let kind = fields.skip_while(|field| *field != b"-").nth(1)?;
        let is_listed = kinds.iter().any(|name| name.as_bytes() == kind);
        is_listed.then(|| PathBuf::from(std::ffi::OsString::from_vec(unescape(path))))
    };
    Ok(lines.split(|byte| *byte == b'\n').filter_map(parse).collect())
}

/// Decodes a path in a list of mounts, where blanks and backslashes are octal numbers.
fn unescape(escaped: &[u8]) -> Vec<u8> {
    let mut path = Vec::with_capacity(escaped.len());
    let mut rest = escaped;
    while let [byte, tail @ ..] = rest {
        let number = (*byte == b'\\').then(|| std::str::from_utf8(tail.get(..3)?).ok()).flatten();
        match number.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(decoded) => {
                path.push(decoded);
                rest = &tail[3..];
            }
            None => {
                path.push(*byte);
                rest = tail;
            }
        }
    }
    path
}

/// Returns a path below a directory, as the kernel expects it.
fn below(directory: &str, path: &Path) -> CString {
    let relative = path.strip_prefix("/").unwrap_or(path);
    if relative.as_os_str().is_empty() {
        c_string(Path::new(directory))
    } else {
        c_string(&Path::new(directory).join(relative))
    }
}

fn c_string(path: &Path) -> CString {
    CString::new(path.as_os_str().as_bytes()).expect("paths that the file system has accepted have no NUL")
}
