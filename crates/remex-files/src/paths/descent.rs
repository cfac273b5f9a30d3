//! Walks down and up a directory tree of any depth.
//!
//! Directories are held open and entered by name, so a link created in the meantime cannot redirect the walk.
//! Only the last few stay open; the others are reached through `..` and recognised by their identity.

use std::{
    ffi::CStr,
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
};

use rustix::{
    fs::{AtFlags, Mode, OFlags, fstat, openat, statat},
    io::Errno,
};

use super::open::Links;

/// Directories that are held open at a time.
const HELD: usize = 32;

/// Device and inode, which identify a directory.
pub(crate) type Identity = (u64, u64);

/// A directory, and the path that led to it.
#[derive(Debug)]
pub(crate) struct Descent {
    above: Vec<Level>,
    current: OwnedFd,
    identity: Identity,
}

#[derive(Debug)]
struct Level {
    directory: Option<OwnedFd>,
    identity: Identity,
}

impl Descent {
    pub(crate) fn new(directory: OwnedFd) -> io::Result<Self> {
        let identity = identify(&directory)?;
        Ok(Self { above: Vec::new(), current: directory, identity })
    }

    /// Returns the directory that was entered last.
    pub(crate) fn current(&self) -> BorrowedFd<'_> {
        self.current.as_fd()
    }

    pub(crate) fn identity(&self) -> Identity {
        self.identity
    }

    /// Returns whether a directory is the current one or one of its ancestors in this walk.
    pub(crate) fn passed(&self, identity: Identity) -> bool {
        self.identity == identity || self.above.iter().any(|level| level.identity == identity)
    }

    /// Returns whether the current directory has an entry with a name.
    pub(crate) fn has(&self, name: &CStr) -> bool {
        statat(&self.current, name, AtFlags::SYMLINK_NOFOLLOW).is_ok()
    }

    /// Enters the subdirectory `name`.
    pub(crate) fn enter(&mut self, name: &CStr, links: Links) -> io::Result<()> {
        let directory = open(&self.current, name, links)?;
        let identity = identify(&directory)?;
        let above = std::mem::replace(&mut self.current, directory);
        self.above.push(Level { directory: Some(above), identity: self.identity });
        self.identity = identity;
        self.close_highest()
    }

    /// Returns to the previous directory.
    pub(crate) fn leave(&mut self) -> io::Result<()> {
        let Some(level) = self.above.pop() else { return Ok(()) };
        self.current = match level.directory {
            Some(directory) => directory,
            None => {
                let directory = parent(&self.current)?;
                if identify(&directory)? != level.identity {
                    // The directory was moved in the meantime.
                    return Err(Errno::STALE.into());
                }
                directory
            }
        };
        self.identity = level.identity;
        Ok(())
    }

    /// Closes the highest open directory, unless `..` does not lead back to it because a link was followed
    /// below it.
    fn close_highest(&mut self) -> io::Result<()> {
        let Some(far) = self.above.len().checked_sub(HELD) else { return Ok(()) };
        let below = self.above.get(far + 1).and_then(|level| level.directory.as_ref());
        let Some(below) = below else { return Ok(()) };
        if identify(&parent(below)?)? == self.above[far].identity {
            self.above[far].directory = None;
        }
        Ok(())
    }
}

/// Opens a directory for reading.
pub(crate) fn open<P: rustix::path::Arg>(above: impl AsFd, name: P, links: Links) -> io::Result<OwnedFd> {
    let mut flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    if links == Links::Refuse {
        flags |= OFlags::NOFOLLOW;
    }
    Ok(openat(above, name, flags, Mode::empty())?)
}

pub(crate) fn identify(directory: impl AsFd) -> io::Result<Identity> {
    let stat = fstat(directory)?;
    Ok((stat.st_dev, stat.st_ino))
}

fn parent(directory: &OwnedFd) -> io::Result<OwnedFd> {
    open(directory, c"..", Links::Refuse)
}
