//! The kernel's directory watcher (inotify), and the thread that reads its events.
//!
//! If a thread or a descriptor cannot be obtained, the caller gets an error. Start at [`Watcher`].

use std::{
    collections::{BTreeMap, HashMap},
    ffi::OsStr,
    io,
    mem::MaybeUninit,
    ops::Bound,
    os::{
        fd::{AsRawFd as _, OwnedFd},
        unix::ffi::OsStrExt as _,
    },
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard},
    thread,
};

use remex_base::lock;
use remex_proto::fs::ChangeKind;
use rustix::{
    event::{EventfdFlags, PollFd, PollFlags, eventfd, poll},
    fs::inotify::{self, CreateFlags, ReadFlags, Reader, WatchFlags},
    io::Errno,
};

use super::subscription::Event;

/// The buffer for events; one has at most 272 bytes.
const BUFFER_LEN: usize = 16 << 10;

/// A notice from the kernel.
#[derive(Clone, Copy, Debug)]
pub(super) enum Notice<'a> {
    Event(Event<'a>),
    /// Events were lost.
    Lost,
}

/// Watches directories; the thread ends when this is dropped.
#[derive(Debug)]
pub(super) struct Watcher {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    inotify: OwnedFd,
    /// Readable when the thread must end.
    stop: OwnedFd,
    /// Shared with the thread. Held while a directory is added, so that its first event finds its name.
    names: Mutex<Names>,
}

#[derive(Debug, Default)]
struct Names {
    by_number: HashMap<i32, PathBuf>,
    by_path: BTreeMap<PathBuf, i32>,
}

impl Watcher {
    /// Creates a watcher that calls `on_notice` on its own thread.
    pub(super) fn new(on_notice: impl FnMut(Notice<'_>) + Send + 'static) -> io::Result<Self> {
        let shared = Arc::new(Shared {
            inotify: inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?,
            stop: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            names: Mutex::default(),
        });
        let listening = Arc::clone(&shared);
        thread::Builder::new().name("remex-watch".to_owned()).spawn(move || listening.listen(on_notice))?;
        Ok(Watcher { shared })
    }

    /// Watches an open directory; an old name of it must be removed first.
    pub(super) fn watch(&self, directory: &Path, opened: &OwnedFd) -> io::Result<()> {
        let flags = WatchFlags::ATTRIB
            | WatchFlags::CREATE
            | WatchFlags::DELETE
            | WatchFlags::CLOSE_WRITE
            | WatchFlags::MODIFY
            | WatchFlags::MOVED_FROM
            | WatchFlags::MOVED_TO
            | WatchFlags::DELETE_SELF
            | WatchFlags::MOVE_SELF
            | WatchFlags::ONLYDIR;
        let mut names = self.shared.names();
        // Not by name: resolving it may hang, and the thread waits for the lock.
        let opened = format!("/proc/self/fd/{}", opened.as_raw_fd());
        let number = inotify::add_watch(&self.shared.inotify, opened, flags)?;
        names.by_number.insert(number, directory.to_owned());
        names.by_path.insert(directory.to_owned(), number);
        Ok(())
    }

    pub(super) fn unwatch(&self, directory: &Path) {
        let number = self.shared.names().remove(directory);
        number.into_iter().for_each(|number| self.shared.unwatch(number));
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        let _ = rustix::io::write(&self.shared.stop, &1_u64.to_ne_bytes());
    }
}

impl Shared {
    fn listen(&self, mut on_notice: impl FnMut(Notice<'_>)) {
        let mut buffer = [MaybeUninit::uninit(); BUFFER_LEN];
        loop {
            let mut ready =
                [PollFd::new(&self.inotify, PollFlags::IN), PollFd::new(&self.stop, PollFlags::IN)];
            match poll(&mut ready, None) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(_) => return on_notice(Notice::Lost),
            }
            if !ready[1].revents().is_empty() {
                return;
            }
            let mut events = Reader::new(&self.inotify, &mut buffer);
            loop {
                match events.next() {
                    Ok(event) if event.events().contains(ReadFlags::QUEUE_OVERFLOW) => {
                        on_notice(Notice::Lost);
                    }
                    Ok(event) => {
                        let name = event.file_name().map(|name| OsStr::from_bytes(name.to_bytes()));
                        self.dispatch(event.wd(), event.events(), name, &mut on_notice);
                    }
                    Err(Errno::INTR | Errno::AGAIN) => {}
                    Err(_) => return on_notice(Notice::Lost),
                }
                if events.is_buffer_empty() {
                    break;
                }
            }
        }
    }

    fn dispatch(
        &self,
        number: i32,
        flags: ReadFlags,
        name: Option<&OsStr>,
        on_notice: &mut impl FnMut(Notice<'_>),
    ) {
        let path = {
            let mut names = self.names();
            if flags.contains(ReadFlags::IGNORED) {
                // The kernel no longer watches it.
                return names.forget(number);
            }
            let Some(directory) = names.by_number.get(&number) else { return };
            let path = name.map_or_else(|| directory.clone(), |name| directory.join(name));
            let is_removed =
                flags.intersects(ReadFlags::MOVED_FROM | ReadFlags::DELETE | ReadFlags::DELETE_SELF);
            if is_removed && names.by_path.contains_key(&path) {
                // The directory and everything below it have lost their names. Removed before this event and
                // later ones are reported, because the name may be given to another directory, which is then
                // watched.
                names.remove_all(&path).into_iter().for_each(|number| self.unwatch(number));
            }
            path
        };
        let removals =
            ReadFlags::MOVED_FROM | ReadFlags::MOVE_SELF | ReadFlags::DELETE | ReadFlags::DELETE_SELF;
        let (kind, is_fresh) = if flags.intersects(removals) {
            (ChangeKind::Removed, false)
        } else if flags.contains(ReadFlags::MOVED_TO) {
            (ChangeKind::Created, true)
        } else if flags.contains(ReadFlags::CREATE) {
            (ChangeKind::Created, flags.contains(ReadFlags::ISDIR))
        } else if flags.intersects(ReadFlags::MODIFY | ReadFlags::CLOSE_WRITE | ReadFlags::ATTRIB) {
            (ChangeKind::Modified, false)
        } else {
            return;
        };
        on_notice(Notice::Event(Event { path: &path, kind, is_fresh }));
    }

    fn unwatch(&self, number: i32) {
        // Usually, the kernel has already removed it.
        let _ = inotify::remove_watch(&self.inotify, number);
    }

    fn names(&self) -> MutexGuard<'_, Names> {
        lock(&self.names)
    }
}

impl Names {
    /// Removes a name; returns the watch to remove.
    fn remove(&mut self, path: &Path) -> Option<i32> {
        let number = self.by_path.remove(path)?;
        // It may have another name by now.
        if self.by_number.get(&number).is_none_or(|name| name != path) {
            return None;
        }
        self.by_number.remove(&number);
        Some(number)
    }

    /// Removes a name and all names below it.
    fn remove_all(&mut self, path: &Path) -> Vec<i32> {
        let below = (Bound::Included(path), Bound::Unbounded);
        let names: Vec<PathBuf> = self
            .by_path
            .range::<Path, _>(below)
            .map(|(name, _)| name.clone())
            .take_while(|name| name.starts_with(path))
            .collect();
        names.iter().filter_map(|name| self.remove(name)).collect()
    }

    fn forget(&mut self, number: i32) {
        if let Some(path) = self.by_number.remove(&number)
            && self.by_path.get(&path) == Some(&number)
        {
            self.by_path.remove(&path);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{
        fs,
        sync::{OnceLock, Weak, mpsc},
        time::Duration,
    };

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(30);

    fn watch(watcher: &Watcher, directory: &Path) {
        watcher.watch(directory, &fs::File::open(directory).unwrap().into()).unwrap();
    }

    /// Watches a directory again as soon as it is back, before the thread has read all events.
    fn a_directory_that_comes_back_stays_watched(go_and_come_back: impl FnOnce(&Path)) {
        let temp = tempfile::tempdir().unwrap();
        let (top, directory) = (temp.path().to_owned(), temp.path().join("d"));
        fs::create_dir(&directory).unwrap();
        let itself = Arc::new(OnceLock::<Weak<Watcher>>::new());
        let (tell, notices) = mpsc::channel();
        let (go, gate) = mpsc::channel::<()>();
        let watcher = Watcher::new({
            let (itself, top) = (Arc::clone(&itself), top.clone());
            move |event| {
                let Notice::Event(event) = event else { return };
                if event.path == top.join("gate") && event.kind == ChangeKind::Created {
                    gate.recv_timeout(PATIENCE).unwrap();
                }
                if event.path == top.join("d") && event.is_fresh {
                    watch(&itself.get().and_then(Weak::upgrade).unwrap(), event.path);
                }
                let _ = tell.send(event.path.to_owned());
            }
        });
        let watcher = Arc::new(watcher.unwrap());
        itself.set(Arc::downgrade(&watcher)).unwrap();
        watch(&watcher, &top);
        watch(&watcher, &directory);
        fs::write(top.join("gate"), "").unwrap();
        go_and_come_back(&directory);
        go.send(()).unwrap();
        fs::write(top.join("after"), "").unwrap();
        let wait_for =
            |path: PathBuf| while notices.recv_timeout(PATIENCE).expect("the change is reported") != path {};
        wait_for(top.join("after"));
        for number in 0..20 {
            let path = directory.join(number.to_string());
            fs::write(&path, "").unwrap();
            wait_for(path);
        }
    }

    #[test]
    fn a_directory_that_takes_the_place_of_another_stays_watched() {
        a_directory_that_comes_back_stays_watched(|directory| {
            fs::remove_dir(directory).unwrap();
            fs::create_dir(directory).unwrap();
        });
    }

    #[test]
    fn a_directory_that_moves_away_and_back_stays_watched() {
        a_directory_that_comes_back_stays_watched(|directory| {
            fs::rename(directory, directory.with_extension("moved")).unwrap();
            fs::rename(directory.with_extension("moved"), directory).unwrap();
        });
    }
}
