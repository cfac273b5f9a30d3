//! The one watcher of the server: which directories are watched, and for whom.
//!
//! Instances of the kernel's watcher are few, so all connections share one, which is there while
//! anybody watches. Directories are watched one by one, each once however many watches look at it.
//! Start at [`Lookout`].

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    fs::Metadata,
    io,
    ops::Bound,
    os::{fd::OwnedFd, unix::fs::MetadataExt as _},
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use remex_proto::{ErrorKind, RpcError, fs::ChangeKind};
use rustix::{
    fs::{Mode, OFlags},
    io::Errno,
};

use super::{
    sight::{Event, Scope, Sight},
    watcher::{Heard, Watcher},
};
use crate::{fs::io_error, supervise::caught};

/// Directories that are watched for the whole server; the host's own limit may be lower.
const DIRECTORIES: usize = 1 << 18;

/// The one watcher, and who looks at what.
///
/// To watch a directory may hang, so its methods are for threads that may wait.
#[derive(Debug, Default)]
pub(crate) struct Lookout {
    /// Held while the watcher is asked for something. Its thread never takes this lock.
    watcher: Mutex<Option<Watcher>>,
    /// Shared with the watcher's thread; held for moments only, never while the watcher is asked.
    posts: Arc<Mutex<Posts>>,
}

/// Which directory this is, whatever its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct DirectoryId {
    device: u64,
    inode: u64,
}

impl From<&Metadata> for DirectoryId {
    fn from(metadata: &Metadata) -> Self {
        DirectoryId { device: metadata.dev(), inode: metadata.ino() }
    }
}

/// Why a directory is not watched.
#[derive(Debug)]
pub(super) enum Refusal {
    /// It is not there any more.
    Gone,
    /// The watch has ended meanwhile.
    Left,
    /// The host or the server watches too much.
    Full(RpcError),
    Failed(RpcError),
}

#[derive(Debug, Default)]
struct Posts {
    sights: Vec<Arc<Sight>>,
    directories: BTreeMap<PathBuf, Directory>,
    /// The kernel watches a directory, not a name, so it is to have one name here.
    names: HashMap<DirectoryId, PathBuf>,
    /// Names that are gone but that the watcher may still know. As many as there were directories
    /// at most, because whoever adds one clears them first.
    stale: Vec<PathBuf>,
}

#[derive(Debug)]
struct Directory {
    id: DirectoryId,
    sights: Vec<Arc<Sight>>,
}

impl Lookout {
    /// Begins a watch that sees nothing yet.
    pub(super) fn enlist(&self, scope: Scope) -> Arc<Sight> {
        let sight = Arc::new(Sight::new(scope));
        self.posts().sights.push(Arc::clone(&sight));
        sight
    }

    /// Has a directory watched for a watch; one that is watched already is no error.
    pub(super) fn post(&self, sight: &Arc<Sight>, directory: &Path, id: DirectoryId) -> Result<(), Refusal> {
        // A file system may hang here and at the look below, but not while everybody waits for the lock. Opened for
        // reading, because the watcher needs that permission, too, and to ask for it may hang as well.
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let opened = rustix::fs::open(directory, flags, Mode::empty())
            .map_err(|errno| refusal(&errno.into(), directory))?;
        if self.add(sight, directory, id, &opened)? == Watched::Before {
            return Ok(());
        }
        // One that was moved meanwhile is watched under the name that it had, and nobody would notice.
        let is_there = directory.symlink_metadata().is_ok_and(|metadata| DirectoryId::from(&metadata) == id);
        if !is_there {
            let mut watcher = self.watcher();
            if let Some(watcher) = &*watcher {
                watcher.unwatch(directory);
            }
            self.forget(&mut watcher, directory, sight);
            return Err(Refusal::Gone);
        }
        Ok(())
    }

    fn add(
        &self,
        sight: &Arc<Sight>,
        directory: &Path,
        id: DirectoryId,
        opened: &OwnedFd,
    ) -> Result<Watched, Refusal> {
        let mut watcher = self.watcher();
        let stale = match self.posts().add(sight, directory, id)? {
            Added::Known => return Ok(Watched::Before),
            Added::New { stale } => stale,
        };
        self.watch(&mut watcher, directory, opened, &stale).map_err(|error| {
            self.forget(&mut watcher, directory, sight);
            refusal(&error, directory)
        })?;
        Ok(Watched::Now)
    }

    /// Takes back what [`Posts::add`] has noted for a watch.
    fn forget(&self, watcher: &mut Option<Watcher>, directory: &Path, sight: &Arc<Sight>) {
        let mut posts = self.posts();
        let others = posts.forget(directory).map(|directory| directory.sights).unwrap_or_default();
        // Others thought that it was watched.
        others.iter().filter(|other| !Arc::ptr_eq(other, sight)).for_each(|other| other.lose());
        if posts.directories.is_empty() {
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
        let asked = match watcher.take() {
            Some(watcher) => watcher,
            None => {
                let posts = Arc::clone(&self.posts);
                Watcher::new(move |heard| {
                    if caught(|| lock(&posts).hear(heard)).is_err() {
                        lock(&posts).sights.iter().for_each(|sight| sight.lose());
                    }
                })?
            }
        };
        let asked = watcher.insert(asked);
        for path in stale {
            // Usually the watcher has noticed itself.
            asked.unwatch(path);
        }
        asked.watch(directory, opened)
    }

    /// Ends a watch.
    pub(super) fn leave(&self, sight: &Arc<Sight>) {
        let mut watcher = self.watcher();
        self.posts().sights.retain(|known| !Arc::ptr_eq(known, sight));
        self.clear(&mut watcher, sight);
    }

    /// Takes a watch from all its directories; it goes on.
    pub(super) fn withdraw(&self, sight: &Arc<Sight>) {
        self.clear(&mut self.watcher(), sight);
    }

    fn clear(&self, watcher: &mut Option<Watcher>, sight: &Arc<Sight>) {
        let unused = self.posts().clear(sight);
        if self.posts().directories.is_empty() {
            // Takes all that is left of it with it, at once.
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

    fn posts(&self) -> MutexGuard<'_, Posts> {
        lock(&self.posts)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Since when a directory is watched.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Watched {
    Before,
    Now,
}

enum Added {
    Known,
    /// The watcher is to be asked, and to forget these before.
    New {
        stale: Vec<PathBuf>,
    },
}

impl Posts {
    fn add(&mut self, sight: &Arc<Sight>, path: &Path, id: DirectoryId) -> Result<Added, Refusal> {
        if !self.sights.iter().any(|known| Arc::ptr_eq(known, sight)) {
            return Err(Refusal::Left);
        }
        let mut sights = Vec::new();
        if let Some(known) = self.directories.get_mut(path) {
            if !known.sights.iter().any(|known| Arc::ptr_eq(known, sight)) {
                known.sights.push(Arc::clone(sight));
            }
            if known.id == id {
                return Ok(Added::Known);
            }
            // Another one is in its place, and the news of that is on its way.
            sights = std::mem::take(&mut known.sights);
            self.forget(path);
            self.stale.push(path.to_owned());
        } else if self.directories.len() >= DIRECTORIES {
            return Err(Refusal::Full(too_many(path)));
        } else {
            sights.push(Arc::clone(sight));
        }
        // It was moved here, and the news of that is on its way.
        if let Some(name) = self.names.get(&id).cloned() {
            self.forget(&name);
            self.stale.push(name);
        }
        // It is noted before it is watched, so that no event of it finds nobody.
        self.names.insert(id, path.to_owned());
        self.directories.insert(path.to_owned(), Directory { id, sights });
        Ok(Added::New { stale: std::mem::take(&mut self.stale) })
    }

    fn forget(&mut self, path: &Path) -> Option<Directory> {
        let directory = self.directories.remove(path)?;
        if self.names.get(&directory.id).is_some_and(|name| name == path) {
            self.names.remove(&directory.id);
        }
        Some(directory)
    }

    /// Takes a watch from all directories, and returns those that nobody looks at any more.
    fn clear(&mut self, sight: &Arc<Sight>) -> Vec<PathBuf> {
        let mut unused = std::mem::take(&mut self.stale);
        for (path, directory) in &mut self.directories {
            directory.sights.retain(|known| !Arc::ptr_eq(known, sight));
            if directory.sights.is_empty() {
                unused.push(path.clone());
            }
        }
        for path in &unused {
            self.forget(path);
        }
        unused
    }

    /// Takes what the watcher says and hands it to whom it concerns.
    fn hear(&mut self, heard: Heard<'_>) {
        match heard {
            Heard::Event(event) => self.spread(event),
            Heard::Lost => self.sights.iter().for_each(|sight| sight.lose()),
        }
    }

    fn spread(&mut self, event: Event<'_>) {
        let mut heard = Vec::new();
        for directory in event.path.parent().into_iter().chain([event.path]) {
            heard.extend(self.directories.get(directory).into_iter().flat_map(|known| known.sights.clone()));
        }
        if event.kind == ChangeKind::Removed && self.directories.contains_key(event.path) {
            // The watcher forgets it too, with everything below.
            let below = (Bound::Included(event.path), Bound::Unbounded);
            let gone: BTreeSet<PathBuf> = self
                .directories
                .range::<Path, _>(below)
                .map(|(path, _)| path.clone())
                .take_while(|path| path.starts_with(event.path))
                .collect();
            for path in gone {
                heard.extend(self.forget(&path).into_iter().flat_map(|directory| directory.sights));
                self.stale.push(path);
            }
        }
        let mut told: Vec<Arc<Sight>> = Vec::new();
        for sight in heard {
            if !told.iter().any(|known| Arc::ptr_eq(known, &sight)) {
                sight.hear(event);
                told.push(sight);
            }
        }
    }
}

fn refusal(error: &io::Error, directory: &Path) -> Refusal {
    match Errno::from_io_error(error) {
        Some(Errno::NOENT | Errno::NOTDIR) => Refusal::Gone,
        Some(Errno::NOSPC) => Refusal::Full(too_many(directory)),
        Some(Errno::AGAIN) => {
            let message =
                format!("cannot watch `{}`: the host has no room for another thread", directory.display());
            let hint = "end some processes of the server's user, or raise its limit on them (`ulimit -u`)";
            Refusal::Full(RpcError::new(ErrorKind::LimitExceeded, message).with_hint(hint))
        }
        Some(Errno::MFILE | Errno::NFILE) => {
            let message = format!(
                "cannot watch `{}`: the host has too many watchers or open files",
                directory.display()
            );
            let hint = "raise it on the host: `sysctl fs.inotify.max_user_instances=1024`, or the limit on open files of the server";
            Refusal::Full(RpcError::new(ErrorKind::LimitExceeded, message).with_hint(hint))
        }
        _ => Refusal::Failed(io_error(error, directory)),
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
    use std::{fs, thread};

    use rustix::{
        event::{PollFd, PollFlags, Timespec, poll},
        fs::inotify::{self, CreateFlags, WatchFlags},
    };

    use super::*;

    const PATIENCE: Timespec = Timespec { tv_sec: 30, tv_nsec: 0 };

    #[test]
    fn the_permission_to_read_a_directory_is_checked_before_the_lock_is_taken() {
        let place = tempfile::tempdir().unwrap();
        let opened = inotify::init(CreateFlags::CLOEXEC).unwrap();
        // Opening with `O_PATH`, which asks for no permission, is no such event.
        inotify::add_watch(&opened, place.path(), WatchFlags::OPEN).unwrap();
        let lookout = Lookout::default();
        let sight = lookout.enlist(Scope::Places(BTreeSet::from([place.path().to_owned()])));
        let id = DirectoryId::from(&fs::metadata(place.path()).unwrap());
        thread::scope(|scope| {
            let lock = lookout.watcher();
            let posting = scope.spawn(|| lookout.post(&sight, place.path(), id));
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
