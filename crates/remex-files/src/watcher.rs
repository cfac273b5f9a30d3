//! The file watcher that all connections share: which directories are watched, and for which subscriptions.
//!
//! The kernel limits the number of watchers, so all connections share one, which exists while there is a
//! subscription. Directories are watched one by one, each only once however many subscriptions include it.
//! Start at [`SharedWatcher`].

mod inotify;
mod pending;
mod subscription;

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    io,
    ops::Bound,
    os::fd::OwnedFd,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard},
};

use remex_access::account::Account;
use remex_base::{io_error::io_error, lock, nofollow, supervise::catch_panic};
use remex_proto::{ErrorKind, RpcError, fs::ChangeKind};
use rustix::{
    fs::{OFlags, Stat},
    io::Errno,
};

use inotify::{Notice, Watcher};
pub use pending::ChangeBatch;
use subscription::Event;
pub use subscription::{Depth, Rescan, Subscription, WatchScope};

/// The most directories watched for the whole server; the host's own limit may be lower.
const DIRECTORIES: usize = 1 << 18;

/// The shared watcher and its subscriptions.
///
/// Watching a directory may hang, so its methods must run on threads that may block.
#[derive(Debug, Default)]
pub struct SharedWatcher {
    /// Held while the watcher is used. The watcher's thread never takes this lock.
    watcher: Mutex<Option<Watcher>>,
    /// Shared with the watcher's thread; held briefly, never during a system call.
    registry: Arc<Mutex<Registry>>,
}

/// Identifies a directory, whatever its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct DirectoryId {
    device: u64,
    inode: u64,
}

impl From<&Stat> for DirectoryId {
    fn from(stat: &Stat) -> Self {
        DirectoryId { device: stat.st_dev, inode: stat.st_ino }
    }
}

/// Why a directory is not watched.
#[derive(Debug)]
pub(crate) enum WatchError {
    /// It no longer exists.
    NotFound,
    /// The subscription has ended in the meantime.
    Unsubscribed,
    /// The host or the server watches too much.
    LimitReached(RpcError),
    Failed(RpcError),
}

#[derive(Debug, Default)]
struct Registry {
    subscriptions: Vec<Arc<Subscription>>,
    directories: BTreeMap<PathBuf, Directory>,
    /// The kernel watches directories, not names, so each has exactly one name here.
    names: HashMap<DirectoryId, PathBuf>,
    /// Removed names that the watcher may still know. Bounded by the number of directories, because every
    /// addition clears them first.
    stale: Vec<PathBuf>,
}

#[derive(Debug)]
struct Directory {
    id: DirectoryId,
    subscriptions: Vec<Arc<Subscription>>,
}

impl SharedWatcher {
    /// Creates a subscription without directories.
    pub fn subscribe(&self, scope: WatchScope, account: &Arc<Account>) -> Arc<Subscription> {
        let subscription = Arc::new(Subscription::new(scope, account));
        self.registry().subscriptions.push(Arc::clone(&subscription));
        subscription
    }

    /// Watches a directory for a subscription, and returns it; it may already be watched.
    ///
    /// Its path contains no links: one that has replaced a directory in the meantime is not followed.
    pub(crate) fn watch_directory(
        &self,
        subscription: &Arc<Subscription>,
        directory: &Path,
        id: DirectoryId,
    ) -> Result<OwnedFd, WatchError> {
        // The file system may hang here and at the check below, but not while others wait for the lock. Opened
        // for reading, because the watcher needs that permission too, and checking it may hang as well.
        let opened = nofollow::open(directory, OFlags::RDONLY | OFlags::DIRECTORY)
            .map_err(|error| watch_error(&error, directory))?;
        if self.add(subscription, directory, id, &opened)? == WatchedSince::Before {
            return Ok(opened);
        }
        // If it was moved in the meantime, it would be watched under its old name unnoticed.
        let is_there = nofollow::stat(directory).is_ok_and(|stat| DirectoryId::from(&stat) == id);
        if !is_there {
            let mut watcher = self.watcher();
            if let Some(watcher) = &*watcher {
                watcher.unwatch(directory);
            }
            self.forget(&mut watcher, directory, subscription);
            return Err(WatchError::NotFound);
        }
        Ok(opened)
    }

    fn add(
        &self,
        subscription: &Arc<Subscription>,
        directory: &Path,
        id: DirectoryId,
        opened: &OwnedFd,
    ) -> Result<WatchedSince, WatchError> {
        let mut watcher = self.watcher();
        let stale = match self.registry().add(subscription, directory, id)? {
            Added::Known => return Ok(WatchedSince::Before),
            Added::New { stale } => stale,
        };
        self.watch(&mut watcher, directory, opened, &stale).map_err(|error| {
            self.forget(&mut watcher, directory, subscription);
            watch_error(&error, directory)
        })?;
        Ok(WatchedSince::Now)
    }

    /// Undoes [`Registry::add`] for a subscription.
    fn forget(&self, watcher: &mut Option<Watcher>, directory: &Path, subscription: &Arc<Subscription>) {
        let mut registry = self.registry();
        let others = registry.forget(directory).map(|directory| directory.subscriptions).unwrap_or_default();
        // Other subscriptions relied on it being watched.
        others
            .iter()
            .filter(|other| !Arc::ptr_eq(other, subscription))
            .for_each(|other| other.on_lost_events());
        if registry.directories.is_empty() {
            *watcher = None;
        }
    }

    fn watch(
        &self,
        watcher: &mut Option<Watcher>,
        directory: &Path,
        opened: &OwnedFd,
        stale: &[PathBuf],
    ) -> io::Result<()> {
        let active = match watcher.take() {
            Some(watcher) => watcher,
            None => {
                let registry = Arc::clone(&self.registry);
                Watcher::new(move |notice| {
                    if catch_panic(|| lock(&registry).on_notice(notice)).is_err() {
                        lock(&registry)
                            .subscriptions
                            .iter()
                            .for_each(|subscription| subscription.on_lost_events());
                    }
                })?
            }
        };
        let active = watcher.insert(active);
        for path in stale {
            // Usually, the watcher has already noticed.
            active.unwatch(path);
        }
        active.watch(directory, opened)
    }

    /// Ends a subscription.
    pub fn unsubscribe(&self, subscription: &Arc<Subscription>) {
        let mut watcher = self.watcher();
        self.registry().subscriptions.retain(|known| !Arc::ptr_eq(known, subscription));
        self.clear(&mut watcher, subscription);
    }

    /// Removes a subscription from all its directories, without ending it.
    pub(crate) fn unwatch_all(&self, subscription: &Arc<Subscription>) {
        self.clear(&mut self.watcher(), subscription);
    }

    fn clear(&self, watcher: &mut Option<Watcher>, subscription: &Arc<Subscription>) {
        let unused = self.registry().clear(subscription);
        if self.registry().directories.is_empty() {
            // Dropping the watcher removes all its watches at once.
            *watcher = None;
        } else if let Some(watcher) = watcher {
            for path in unused {
                watcher.unwatch(&path);
            }
        }
    }

    fn watcher(&self) -> MutexGuard<'_, Option<Watcher>> {
        lock(&self.watcher)
    }

    fn registry(&self) -> MutexGuard<'_, Registry> {
        lock(&self.registry)
    }
}

/// Since when a directory is watched.
#[derive(Clone, Copy, PartialEq, Eq)]
enum WatchedSince {
    Before,
    Now,
}

enum Added {
    Known,
    /// The watcher must watch the directory, and forget these first.
    New {
        stale: Vec<PathBuf>,
    },
}

impl Registry {
    fn add(
        &mut self,
        subscription: &Arc<Subscription>,
        path: &Path,
        id: DirectoryId,
    ) -> Result<Added, WatchError> {
        if !self.subscriptions.iter().any(|known| Arc::ptr_eq(known, subscription)) {
            return Err(WatchError::Unsubscribed);
        }
        let mut subscriptions = Vec::new();
        if let Some(known) = self.directories.get_mut(path) {
            if !known.subscriptions.iter().any(|known| Arc::ptr_eq(known, subscription)) {
                known.subscriptions.push(Arc::clone(subscription));
            }
            if known.id == id {
                return Ok(Added::Known);
            }
            // Another directory has replaced it; the event about that follows.
            subscriptions = std::mem::take(&mut known.subscriptions);
            self.forget(path);
            self.stale.push(path.to_owned());
        } else if self.directories.len() >= DIRECTORIES {
            return Err(WatchError::LimitReached(too_many(path)));
        } else {
            subscriptions.push(Arc::clone(subscription));
        }
        // The directory was moved here; the event about that follows.
        if let Some(name) = self.names.get(&id).cloned() {
            self.forget(&name);
            self.stale.push(name);
        }
        // Recorded before it is watched, so that every event finds its subscriptions.
        self.names.insert(id, path.to_owned());
        self.directories.insert(path.to_owned(), Directory { id, subscriptions });
        Ok(Added::New { stale: std::mem::take(&mut self.stale) })
    }

    fn forget(&mut self, path: &Path) -> Option<Directory> {
        let directory = self.directories.remove(path)?;
        if self.names.get(&directory.id).is_some_and(|name| name == path) {
            self.names.remove(&directory.id);
        }
        Some(directory)
    }

    /// Removes a subscription from all directories, and returns those that are no longer needed.
    fn clear(&mut self, subscription: &Arc<Subscription>) -> Vec<PathBuf> {
        let mut unused = std::mem::take(&mut self.stale);
        for (path, directory) in &mut self.directories {
            directory.subscriptions.retain(|known| !Arc::ptr_eq(known, subscription));
            if directory.subscriptions.is_empty() {
                unused.push(path.clone());
            }
        }
        for path in &unused {
            self.forget(path);
        }
        unused
    }

    /// Passes a notice on to all affected subscriptions.
    fn on_notice(&mut self, notice: Notice<'_>) {
        match notice {
            Notice::Event(event) => self.dispatch(event),
            Notice::Lost => self.subscriptions.iter().for_each(|subscription| subscription.on_lost_events()),
        }
    }

    fn dispatch(&mut self, event: Event<'_>) {
        let mut affected = Vec::new();
        for directory in event.path.parent().into_iter().chain([event.path]) {
            affected.extend(
                self.directories.get(directory).into_iter().flat_map(|known| known.subscriptions.clone()),
            );
        }
        if event.kind == ChangeKind::Removed && self.directories.contains_key(event.path) {
            // The watcher forgets it too, with everything below it.
            let below = (Bound::Included(event.path), Bound::Unbounded);
            let removed: BTreeSet<PathBuf> = self
                .directories
                .range::<Path, _>(below)
                .map(|(path, _)| path.clone())
                .take_while(|path| path.starts_with(event.path))
                .collect();
            for path in removed {
                affected.extend(self.forget(&path).into_iter().flat_map(|directory| directory.subscriptions));
                self.stale.push(path);
            }
        }
        let mut notified: Vec<Arc<Subscription>> = Vec::new();
        for subscription in affected {
            if !notified.iter().any(|known| Arc::ptr_eq(known, &subscription)) {
                subscription.on_event(event);
                notified.push(subscription);
            }
        }
    }
}

fn watch_error(error: &io::Error, directory: &Path) -> WatchError {
    match Errno::from_io_error(error) {
        Some(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => WatchError::NotFound,
        Some(Errno::NOSPC) => WatchError::LimitReached(too_many(directory)),
        Some(Errno::AGAIN) => {
            let message =
                format!("cannot watch `{}`: the host has no room for another thread", directory.display());
            let hint = "end some processes of the server's user, or raise its limit on them (`ulimit -u`)";
            WatchError::LimitReached(RpcError::new(ErrorKind::LimitExceeded, message).with_hint(hint))
        }
        Some(Errno::MFILE | Errno::NFILE) => {
            let message = format!(
                "cannot watch `{}`: the host has too many watchers or open files",
                directory.display()
            );
            let hint = "raise it on the host: `sysctl fs.inotify.max_user_instances=1024`, or the limit on open files of the server";
            WatchError::LimitReached(RpcError::new(ErrorKind::LimitExceeded, message).with_hint(hint))
        }
        _ => WatchError::Failed(io_error(error, directory)),
    }
}

fn too_many(directory: &Path) -> RpcError {
    let message =
        format!("cannot watch `{}`: too many directories are watched on this host", directory.display());
    let hint = format!(
        "watch less, or raise the limit on the host: `sysctl fs.inotify.max_user_watches={DIRECTORIES}`, which is also the most that one server watches"
    );
    RpcError::new(ErrorKind::LimitExceeded, message).with_hint(hint)
}

#[cfg(test)]
mod tests {
    use std::thread;

    use rustix::{
        event::{PollFd, PollFlags, Timespec, poll},
        fs::inotify::{self, CreateFlags, WatchFlags},
    };

    use super::*;

    const PATIENCE: Timespec = Timespec { tv_sec: 30, tv_nsec: 0 };

    #[test]
    fn the_permission_to_read_a_directory_is_checked_before_the_lock_is_taken() {
        let temp = tempfile::tempdir().unwrap();
        let opened = inotify::init(CreateFlags::CLOEXEC).unwrap();
        // Opening with `O_PATH`, which needs no permission, is not such an event.
        inotify::add_watch(&opened, temp.path(), WatchFlags::OPEN).unwrap();
        let watcher = SharedWatcher::default();
        let subscription =
            watcher.subscribe(WatchScope::Paths(BTreeSet::from([temp.path().to_owned()])), &Arc::default());
        let id = DirectoryId::from(&nofollow::stat(temp.path()).unwrap());
        thread::scope(|scope| {
            let lock = watcher.watcher();
            let posting = scope.spawn(|| watcher.watch_directory(&subscription, temp.path(), id));
            let events = poll(&mut [PollFd::new(&opened, PollFlags::IN)], Some(&PATIENCE)).unwrap();
            drop(lock);
            posting.join().unwrap().unwrap();
            assert_eq!(
                events, 1,
                "the directory is not opened for reading while another thread has the lock"
            );
        });
    }
}
