//! Cgroups of version 2 that bound memory and processes of a child together with its descendants.
//!
//! The server owns one cgroup, its root. It lives in a leaf of that root, because the kernel allows no processes beside
//! children with controllers, and every child with such limits gets a leaf of its own, which is removed once it is
//! empty. A cgroup is only used if it was delegated to the server or named by its administrator. Start at [`Cgroups`].

mod delegation;

use std::{
    fs::{self, OpenOptions},
    io,
    os::{fd::OwnedFd, unix::fs::OpenOptionsExt as _},
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use remex_base::lock;
use rustix::fs::{FlockOperation, Mode, OFlags};

use crate::base::sys::above_stdio;

/// The leaf that the server moves itself to.
const SERVER_LEAF: &str = "remex-server";

/// What the names of the leaves of children begin with.
const CHILD_LEAF: &str = "remex-child-";

/// The highest limit on processes that the kernel accepts, and the most processes that it can have.
const MAX_PROCESSES: u64 = 4 << 20;

/// The file system type of cgroups of version 2.
const CGROUP2_MAGIC: u64 = 0x6367_7270;

/// How long a lock may outlive its server: a child that was being created holds it until it executes its program.
const LOCK_PATIENCE: Duration = Duration::from_millis(500);

/// A cgroup that the server may divide among its children.
#[derive(Debug)]
pub struct Cgroups {
    root: PathBuf,
    controllers: Controllers,
    /// Holds the lock that keeps other servers from removing leaves that this one has just created.
    _lock: OwnedFd,
    next: AtomicU64,
    /// Leaves to remove once they are empty. A mutex, because spawner threads and tasks add to it; held briefly.
    discarded: Mutex<Vec<PathBuf>>,
}

/// Controllers of a cgroup that children can be limited with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
struct Controllers {
    memory: bool,
    pids: bool,
}

/// What a cgroup bounds, for a child and its descendants together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct CgroupLimits {
    /// Bytes of memory, without swap. Beyond them the kernel kills all processes of the cgroup.
    pub memory_bytes: Option<u64>,
    /// Processes and threads. Beyond them a fork fails.
    pub processes: Option<u64>,
}

/// The cgroup of one child. Dropping it leaves it to [`Cgroups::remove_empty`].
#[derive(Debug)]
pub struct Cgroup {
    cgroups: Arc<Cgroups>,
    path: PathBuf,
}

/// Why no cgroup can be used.
#[derive(Debug, thiserror::Error)]
pub enum CgroupError {
    /// The host has no file system for cgroups of version 2, or none that this program can see.
    #[error("no cgroup file system of version 2 is mounted")]
    NotMounted,
    /// The cgroup of the server is managed by another program.
    #[error("the cgroup of the server, `{}`, is not delegated to it", .0.display())]
    NotDelegated(PathBuf),
    /// The directory is not a cgroup of version 2.
    #[error("`{}` is not a cgroup of version 2", .0.display())]
    NotACgroup(PathBuf),
    /// Neither memory nor processes can be limited there.
    #[error("the cgroup `{}` has neither of the controllers `memory` and `pids`", .0.display())]
    NoControllers(PathBuf),
    /// Another server uses it.
    #[error("another server uses the cgroup `{}`", .0.display())]
    InUse(PathBuf),
    /// The host refuses a step.
    #[error("cannot {action} `{}`: {error}", path.display())]
    Refused {
        /// What was attempted.
        action: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// The answer of the host.
        error: io::Error,
    },
}

impl CgroupError {
    /// Returns what to do about it.
    #[must_use]
    pub fn hint(&self) -> &'static str {
        match self {
            Self::NotMounted => {
                "boot the host with cgroups of version 2 (`systemd.unified_cgroup_hierarchy=1`)"
            }
            Self::NotDelegated(_) => "set `Delegate=yes` in the unit of the server, or name a cgroup for it",
            Self::NotACgroup(_) => "name a directory below the mount point of `cgroup2`",
            Self::NoControllers(_) => {
                "enable `memory` and `pids` in `cgroup.subtree_control` of its parent, or boot the host with cgroups of version \
                 2 only"
            }
            Self::InUse(_) => "give each server a cgroup of its own",
            Self::Refused { error, .. } => match error.kind() {
                io::ErrorKind::NotFound => "create it with `mkdir`, or check the path",
                io::ErrorKind::ResourceBusy => "move the processes of other programs out of it",
                _ => "give the user of the server write access to it",
            },
        }
    }
}

impl Cgroups {
    /// Uses the cgroup that this program is in, if its manager has delegated it, as `Delegate=yes` does.
    ///
    /// Moves this program to a leaf of it, so call this before starting processes.
    ///
    /// # Errors
    /// [`CgroupError`] says why there is none.
    pub fn delegated() -> Result<Self, CgroupError> {
        let own = delegation::own_cgroup().ok_or(CgroupError::NotMounted)?;
        // The manager may have started us in the leaf already (`DelegateSubgroup=`). Any other parent is delegated to
        // another program, such as the user's own manager.
        let root = match own.parent() {
            Some(parent) if own.ends_with(SERVER_LEAF) => parent,
            _ => &own,
        };
        if !delegation::is_delegated(root) {
            return Err(CgroupError::NotDelegated(own));
        }
        Self::open(root.to_owned(), &own)
    }

    /// Uses this cgroup, which the administrator has named for this program alone.
    ///
    /// Moves this program to a leaf of it if it is in there, so call this before starting processes.
    ///
    /// # Errors
    /// [`CgroupError`] says what is wrong with it.
    pub fn at(root: &Path) -> Result<Self, CgroupError> {
        let root = fs::canonicalize(root).map_err(refused("find the cgroup", root))?;
        match rustix::fs::statfs(&root) {
            Ok(file_system) if u64::try_from(file_system.f_type) == Ok(CGROUP2_MAGIC) => {}
            _ => return Err(CgroupError::NotACgroup(root)),
        }
        let own = delegation::own_cgroup().unwrap_or_default();
        Self::open(root, &own)
    }

    fn open(root: PathBuf, own: &Path) -> Result<Self, CgroupError> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let opened = rustix::fs::open(&root, flags, Mode::empty()).and_then(above_stdio);
        let lock = opened.map_err(io::Error::from).map_err(refused("open the cgroup", &root))?;
        if !is_locked_in_time(&lock) {
            return Err(CgroupError::InUse(root));
        }
        let available = read(&root.join("cgroup.controllers"))?;
        if Controllers::parse(&available) == Controllers::default() {
            return Err(CgroupError::NoControllers(root));
        }
        if own == root {
            let leaf = root.join(SERVER_LEAF);
            match fs::create_dir(&leaf) {
                Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                    return Err(refused("create the cgroup", &leaf)(error));
                }
                _ => {}
            }
            write(&leaf.join("cgroup.procs"), "0")?;
        }
        let controllers = enable(&root, Controllers::parse(&available))?;
        let cgroups = Self::new(root, controllers, lock);
        cgroups.discard_old();
        Ok(cgroups)
    }

    fn new(root: PathBuf, controllers: Controllers, lock: OwnedFd) -> Self {
        Self { root, controllers, _lock: lock, next: AtomicU64::new(0), discarded: Mutex::default() }
    }

    /// Returns the directory that has the cgroups of children.
    #[must_use]
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Returns whether memory can be limited.
    #[must_use]
    pub fn limits_memory(&self) -> bool {
        self.controllers.memory
    }

    /// Returns whether processes can be limited.
    #[must_use]
    pub fn limits_processes(&self) -> bool {
        self.controllers.pids
    }

    /// Removes the cgroups of children that have ended. Those in which something still runs stay for a later call.
    ///
    /// Blocks while the kernel works, usually less than a millisecond for each.
    pub fn remove_empty(&self) {
        let discarded = std::mem::take(&mut *self.discarded());
        let kept = discarded.into_iter().filter(|path| match fs::remove_dir(path) {
            Ok(()) => false,
            Err(error) => error.kind() != io::ErrorKind::NotFound,
        });
        let kept: Vec<_> = kept.collect();
        self.discarded().extend(kept);
    }

    /// Creates a cgroup for one child.
    pub(crate) fn create(self: &Arc<Self>, limits: CgroupLimits) -> io::Result<Cgroup> {
        self.remove_empty();
        let path = loop {
            let number = self.next.fetch_add(1, Ordering::Relaxed);
            let path = self.root.join(format!("{CHILD_LEAF}{}-{number}", std::process::id()));
            match fs::create_dir(&path) {
                Ok(()) => break path,
                // An earlier server with our pid has left it behind.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error),
            }
        };
        let cgroup = Cgroup { cgroups: Arc::clone(self), path };
        cgroup.apply(limits)?;
        Ok(cgroup)
    }

    /// Discards what an earlier server has left behind, and kills processes that are still in it.
    fn discard_old(&self) {
        let entries = fs::read_dir(&self.root).into_iter().flatten().flatten();
        let is_child = |path: &PathBuf| {
            path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(CHILD_LEAF.as_bytes()))
        };
        let old: Vec<_> = entries.map(|entry| entry.path()).filter(is_child).collect();
        for path in &old {
            // Where this is not supported (before Linux 5.14), the watchdog of that server has killed them.
            let kill = path.join("cgroup.kill");
            if kill.exists() && fs::write(&kill, "1").is_err() {
                tracing::debug!(cgroup = %path.display(), "cannot kill what an earlier server left behind");
            }
        }
        self.discarded().extend(old);
        self.remove_empty();
    }

    fn discarded(&self) -> MutexGuard<'_, Vec<PathBuf>> {
        lock(&self.discarded)
    }
}

impl Drop for Cgroups {
    fn drop(&mut self) {
        self.remove_empty();
    }
}

impl Cgroup {
    /// Returns how many processes of the cgroup the kernel has killed for lack of memory, if the cgroup counts them.
    #[must_use]
    pub fn oom_kills(&self) -> Option<u64> {
        let events = fs::read_to_string(self.path.join("memory.events")).ok()?;
        oom_kills(&events)
    }

    /// Kills every process in the cgroup, including those that fork meanwhile.
    ///
    /// # Errors
    /// If the kernel is older than 5.14.
    pub fn kill(&self) -> io::Result<()> {
        fs::write(self.path.join("cgroup.kill"), "1")
    }

    /// Opens the file through which a process enters by writing `0`.
    pub(crate) fn entry_file(&self) -> io::Result<OwnedFd> {
        let flags = OFlags::CLOEXEC.bits().cast_signed();
        let file = OpenOptions::new().write(true).custom_flags(flags).open(self.path.join("cgroup.procs"))?;
        Ok(above_stdio(file.into())?)
    }

    fn apply(&self, limits: CgroupLimits) -> io::Result<()> {
        if let Some(bytes) = limits.memory_bytes {
            fs::write(self.path.join("memory.max"), bytes.to_string())?;
            // Without swap, the limit is what the child can use at all; as a group, it never continues with parts
            // missing.
            for (name, value) in [("memory.swap.max", "0"), ("memory.oom.group", "1")] {
                let file = self.path.join(name);
                if file.exists() {
                    fs::write(file, value)?;
                }
            }
        }
        if let Some(count) = limits.processes {
            let text = if count > MAX_PROCESSES { "max".to_owned() } else { count.to_string() };
            fs::write(self.path.join("pids.max"), text)?;
        }
        Ok(())
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        self.cgroups.discarded().push(std::mem::take(&mut self.path));
    }
}

impl Controllers {
    fn parse(text: &str) -> Self {
        let has = |name| text.split_whitespace().any(|word| word == name);
        Self { memory: has("memory"), pids: has("pids") }
    }
}

/// Enables controllers for the children of a cgroup; returns those that are enabled, at least one.
fn enable(root: &Path, wanted: Controllers) -> Result<Controllers, CgroupError> {
    let file = root.join("cgroup.subtree_control");
    let before = Controllers::parse(&read(&file)?);
    // One at a time: the host may refuse one of them.
    let switch = |is_wanted: bool, is_enabled: bool, word: &str| match (is_wanted, is_enabled) {
        (false, _) => Ok(false),
        (true, true) => Ok(true),
        (true, false) => write(&file, word).map(|()| true),
    };
    let memory = switch(wanted.memory, before.memory, "+memory");
    let pids = switch(wanted.pids, before.pids, "+pids");
    match (memory, pids) {
        (Err(error), Ok(false) | Err(_)) | (Ok(false), Err(error)) => Err(error),
        (memory, pids) => {
            for error in [memory.as_ref().err(), pids.as_ref().err()].into_iter().flatten() {
                tracing::warn!(%error, "this limit of processes cannot be enforced by a cgroup");
            }
            Ok(Controllers { memory: memory.unwrap_or(false), pids: pids.unwrap_or(false) })
        }
    }
}

/// Returns how many processes were killed, from the text of `memory.events`.
fn oom_kills(events: &str) -> Option<u64> {
    events.lines().find_map(|line| line.strip_prefix("oom_kill ")?.trim().parse().ok())
}

fn read(file: &Path) -> Result<String, CgroupError> {
    fs::read_to_string(file).map_err(refused("read", file))
}

fn write(file: &Path, text: &str) -> Result<(), CgroupError> {
    fs::write(file, text).map_err(refused("write to", file))
}

fn refused(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> CgroupError {
    let path = path.to_owned();
    move |error| CgroupError::Refused { action, path, error }
}

/// Returns whether the directory could be locked.
fn is_locked_in_time(directory: &OwnedFd) -> bool {
    let deadline = Instant::now() + LOCK_PATIENCE;
    while rustix::fs::flock(directory, FlockOperation::NonBlockingLockExclusive).is_err() {
        if Instant::now() >= deadline {
            return false;
        }
        thread::sleep(Duration::from_millis(5));
    }
    true
}

#[cfg(test)]
mod tests;
