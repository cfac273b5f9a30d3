//! Going down a tree of directories and up again, however deep it is.
//!
//! Directories are held open and entered by name, so nobody can lead us elsewhere with a link. Only
//! the last few are held; the way back to the others is `..`, and they are recognised.

use std::{
    ffi::CStr,
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
};

use rustix::{
    fs::{Mode, OFlags, fstat, openat},
    io::Errno,
};

use super::open::Links;

/// Directories that are held open at a time.
const HELD: usize = 32;

/// What tells one directory from all others.
pub(super) type Identity = (u64, u64);

/// A directory, and the way to it.
#[derive(Debug)]
pub(super) struct Descent {
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
    pub(super) fn new(directory: OwnedFd) -> io::Result<Self> {
        let identity = identify(&directory)?;
        Ok(Self { above: Vec::new(), current: directory, identity })
    }

    /// Returns the directory that was entered last.
    pub(super) fn current(&self) -> BorrowedFd<'_> {
        self.current.as_fd()
    }

    pub(super) fn identity(&self) -> Identity {
        self.identity
    }

    /// Tells whether a directory is the current one or was entered on the way to it.
    pub(super) fn passed(&self, identity: Identity) -> bool {
        self.identity == identity || self.above.iter().any(|level| level.identity == identity)
    }

    /// Goes down into `name`.
    pub(super) fn enter(&mut self, name: &CStr, links: Links) -> io::Result<()> {
        let directory = open(&self.current, name, links)?;
        let identity = identify(&directory)?;
        let above = std::mem::replace(&mut self.current, directory);
        self.above.push(Level { directory: Some(above), identity: self.identity });
        self.identity = identity;
        self.let_go()
    }

    /// Goes up to the directory that was entered before.
    pub(super) fn leave(&mut self) -> io::Result<()> {
        let Some(level) = self.above.pop() else { return Ok(()) };
        self.current = match level.directory {
            Some(directory) => directory,
            None => {
                let directory = parent(&self.current)?;
                if identify(&directory)? != level.identity {
                    // Somebody has moved it meanwhile.
                    return Err(Errno::STALE.into());
                }
                directory
            }
        };
        self.identity = level.identity;
        Ok(())
    }

    /// Closes the directory that is too far up, unless `..` does not lead to it: below it was a link.
    fn let_go(&mut self) -> io::Result<()> {
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
pub(super) fn open<P: rustix::path::Arg>(above: impl AsFd, name: P, links: Links) -> io::Result<OwnedFd> {
    let mut flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    if links == Links::Refuse {
        flags |= OFlags::NOFOLLOW;
    }
    Ok(openat(above, name, flags, Mode::empty())?)
}

pub(super) fn identify(directory: impl AsFd) -> io::Result<Identity> {
    let stat = fstat(directory)?;
    Ok((stat.st_dev, stat.st_ino))
}

fn parent(directory: &OwnedFd) -> io::Result<OwnedFd> {
    open(directory, c"..", Links::Refuse)
}
