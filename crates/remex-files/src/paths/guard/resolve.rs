//! Resolves a path one component at a time, and asks before it looks at any of them.
//!
//! The kernel could only be asked afterwards where a path has led, when it is too late: a link may have changed
//! meanwhile. Here, every component is opened by name in the directory before it, links are read as text, and
//! `..` goes back to a directory that was passed. Start at [`find`].

use std::{
    collections::VecDeque,
    ffi::{OsStr, OsString},
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::ffi::OsStrExt as _,
    },
    path::{Component, Path, PathBuf},
};

use remex_base::nofollow::OpenParent;
use rustix::{
    fs::{AtFlags, CWD, FileType, Mode, OFlags, ResolveFlags, fstat, openat, openat2, readlinkat, statat},
    io::Errno,
};

use crate::paths::open::Links;

/// The kernel's limit on links in a path.
const MAX_LINKS: usize = 40;

/// Directories that are held open at a time; `..` beyond them starts again at the root.
const HELD: usize = 32;

/// Decides where a walk may go. Paths are real: absolute, without links and `..`.
pub(super) trait Judge {
    /// Returns whether the walk may inspect the path.
    fn may_pass(&mut self, path: &Path) -> bool;

    /// Returns whether the walk may follow the link at the path.
    fn may_follow(&mut self, link: &Path) -> bool;
}

/// Which links of a path are followed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rules {
    pub(super) parents: Links,
    pub(super) last: Links,
}

/// Why a walk did not arrive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Stop {
    /// The judge has refused this path, and nothing was learnt about it.
    Denied {
        real: PathBuf,
    },
    Failed(Errno),
}

impl From<Errno> for Stop {
    fn from(errno: Errno) -> Self {
        Stop::Failed(errno)
    }
}

/// A path on its way from the root to its end.
#[derive(Debug)]
pub(super) struct Walk {
    rules: Rules,
    root: OwnedFd,
    /// The last directories of `real`, the deepest at the back; not empty unless `real` is the root.
    held: VecDeque<OwnedFd>,
    /// Where the walk is.
    real: PathBuf,
    pending: VecDeque<OsString>,
    links: usize,
}

/// Where a path leads. What has the name may be missing.
#[derive(Debug)]
pub(super) struct Arrival {
    pub(super) parent: OpenParent,
    pub(super) real: PathBuf,
}

/// Finds where a path leads: in one step if it has no links, and else by a walk.
pub(super) fn find(path: &Path, rules: Rules, judge: &mut impl Judge) -> Result<Arrival, Stop> {
    match find_without_links(path, rules, judge) {
        Some(arrival) => Ok(arrival),
        None => Walk::new(path, rules)?.run(judge),
    }
}

/// Finds where a path leads if it has no links and no `..`: then the real path is known in advance.
///
/// Everything else, and every failure, is left to the walk.
fn find_without_links(path: &Path, rules: Rules, judge: &mut impl Judge) -> Option<Arrival> {
    let (parent, name) = (path.parent()?, path.file_name()?);
    let mut real = PathBuf::with_capacity(path.as_os_str().len());
    for component in path.components() {
        match component {
            Component::RootDir | Component::Normal(_) => real.push(component),
            Component::CurDir => continue,
            Component::ParentDir | Component::Prefix(_) => return None,
        }
        if !judge.may_pass(&real) {
            return None;
        }
    }
    let directory = openat2(CWD, parent, directory_flags(), Mode::empty(), ResolveFlags::NO_SYMLINKS).ok()?;
    if rules.last == Links::Follow {
        match statat(&directory, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(found) if FileType::from_raw_mode(found.st_mode) == FileType::Symlink => return None,
            Ok(_) | Err(Errno::NOENT) => {}
            Err(_) => return None,
        }
    }
    Some(Arrival { parent: OpenParent { directory, name: name.to_owned() }, real })
}

impl Walk {
    pub(super) fn new(path: &Path, rules: Rules) -> Result<Self, Stop> {
        let root = openat(CWD, "/", directory_flags(), Mode::empty())?;
        let pending = names(path).map(OsStr::to_owned).collect();
        Ok(Walk { rules, root, held: VecDeque::new(), real: PathBuf::from("/"), pending, links: 0 })
    }

    /// Walks to the end of the path.
    pub(super) fn run(&mut self, judge: &mut impl Judge) -> Result<Arrival, Stop> {
        self.ask(judge)?;
        while let Some(name) = self.pending.pop_front() {
            if name == ".." {
                self.leave()?;
                continue;
            }
            self.real.push(&name);
            self.ask(judge)?;
            let is_last = self.pending.is_empty();
            if is_last && self.rules.last == Links::Refuse {
                return self.arrive(name);
            }
            let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let found = match openat(self.current(), &name, flags, Mode::empty()) {
                Err(Errno::NOENT) if is_last => return self.arrive(name),
                found => found?,
            };
            match FileType::from_raw_mode(fstat(&found)?.st_mode) {
                FileType::Symlink => self.follow(&found, judge)?,
                _ if is_last => return self.arrive(name),
                FileType::Directory => self.enter(found),
                _ => return Err(Errno::NOTDIR.into()),
            }
        }
        self.arrive_at_directory()
    }

    /// Returns where the path leads if everything not yet walked is taken as written.
    pub(super) fn as_written(&self) -> PathBuf {
        let mut path = self.real.clone();
        for name in &self.pending {
            if name == ".." {
                path.pop();
            } else {
                path.push(name);
            }
        }
        path
    }

    fn ask(&self, judge: &mut impl Judge) -> Result<(), Stop> {
        if judge.may_pass(&self.real) { Ok(()) } else { Err(Stop::Denied { real: self.real.clone() }) }
    }

    fn current(&self) -> BorrowedFd<'_> {
        self.held.back().unwrap_or(&self.root).as_fd()
    }

    fn enter(&mut self, directory: OwnedFd) {
        if self.held.len() == HELD {
            self.held.pop_front();
        }
        self.held.push_back(directory);
    }

    /// Goes back to the parent, not to what `..` leads to: the directory may have been moved meanwhile.
    fn leave(&mut self) -> Result<(), Stop> {
        self.held.pop_back();
        self.real.pop();
        if !self.held.is_empty() || self.real.parent().is_none() {
            return Ok(());
        }
        let real = self.real.clone();
        for name in names(&real) {
            let next = openat(self.current(), name, directory_flags(), Mode::empty())?;
            self.enter(next);
        }
        Ok(())
    }

    /// Puts the target of a link in front of what is left of the path.
    fn follow(&mut self, link: &OwnedFd, judge: &mut impl Judge) -> Result<(), Stop> {
        if self.rules.parents == Links::Refuse {
            return Err(Errno::NOTDIR.into());
        }
        self.links += 1;
        if self.links > MAX_LINKS || !judge.may_follow(&self.real) {
            return Err(Errno::LOOP.into());
        }
        let target = readlinkat(link, c"", Vec::new())?;
        let target = Path::new(OsStr::from_bytes(target.as_bytes()));
        if target.is_absolute() {
            self.held.clear();
            self.real = PathBuf::from("/");
        } else {
            self.real.pop();
        }
        for name in names(target).collect::<Vec<_>>().into_iter().rev() {
            self.pending.push_front(name.to_owned());
        }
        Ok(())
    }

    fn arrive(&mut self, name: OsString) -> Result<Arrival, Stop> {
        let directory = self.held.pop_back().map_or_else(|| self.root.try_clone(), Ok);
        let directory = directory.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
        Ok(Arrival { parent: OpenParent { directory, name }, real: std::mem::take(&mut self.real) })
    }

    /// Arrives at the current directory, of which the path did not end with the name.
    fn arrive_at_directory(&mut self) -> Result<Arrival, Stop> {
        let Some(name) = self.real.file_name().map(OsStr::to_owned) else { return self.arrive(".".into()) };
        self.leave()?;
        self.real.push(&name);
        self.arrive(name)
    }
}

/// Returns the components of a path that name something: no `.` and no repeated slashes.
fn names(path: &Path) -> impl Iterator<Item = &OsStr> {
    path.components().filter_map(|component| match component {
        Component::Normal(name) => Some(name),
        Component::ParentDir => Some(OsStr::new("..")),
        Component::RootDir | Component::CurDir | Component::Prefix(_) => None,
    })
}

fn directory_flags() -> OFlags {
    OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC
}
