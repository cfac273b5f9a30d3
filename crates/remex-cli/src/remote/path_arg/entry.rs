//! The kind of a remote path itself, for commands that remove or move it: links are not followed.

use std::path::{Path, PathBuf};

use remex_client::{Error, ErrorKind};

use super::RemotePath;
use crate::render::{failure::Failure, text};

/// The kind of an entry of a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EntryKind {
    Directory,
    Link,
    /// A file, or a pipe, socket or device.
    Other,
}

impl RemotePath {
    /// Returns the kind of the path itself.
    pub(crate) async fn entry_kind(&self) -> Result<EntryKind, Error> {
        let fs = &self.at.fs;
        match fs.metadata(&self.path).await {
            Ok(metadata) if metadata.is_symlink => Ok(EntryKind::Link),
            Ok(metadata) if metadata.is_directory => Ok(EntryKind::Directory),
            Ok(_) => Ok(EntryKind::Other),
            // A dangling link.
            Err(error) => match fs.read_link(&self.path).await {
                Ok(_) => Ok(EntryKind::Link),
                Err(_) => Err(error),
            },
        }
    }

    /// Returns the kind of the path itself, as [`Self::entry_kind`]; `None` if it does not exist.
    pub(crate) async fn find_entry_kind(&self) -> Result<Option<EntryKind>, Error> {
        match self.entry_kind().await {
            Ok(kind) => Ok(Some(kind)),
            Err(error) if error.kind() == Some(ErrorKind::NotFound) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Returns the path with the links in its directory resolved, but not a link as its last component.
    pub(crate) async fn real_entry(&self) -> Result<PathBuf, Error> {
        let (Some(parent), Some(name)) = (self.path.parent(), self.path.file_name()) else {
            return Ok(self.path.clone());
        };
        let parent = self.at.fs.canonicalize(parent).await?;
        Ok(parent.native().map_or_else(|_| self.path.clone(), |parent| parent.join(name)))
    }

    /// Fails for a path that must not be removed or moved: the root, a home directory or what contains it, and `.`.
    pub(crate) async fn check_may_go(&self, action: &str) -> Result<(), Failure> {
        let refused = |why: &str, hint: &str| {
            let what = format!("cannot {action} `{}`", text::plain(&self.shown));
            Err(Failure::usage(what, hint).because(why))
        };
        if self.is_content && self.at.is_here {
            return refused(
                "it is the current directory, or the contents of a directory",
                "name the entry itself",
            );
        }
        if self.path == Path::new("/") {
            return refused("it is the root directory", "name what is in it");
        }
        // Such paths are resolved before; if that failed, their meaning is unknown.
        if self.path.components().any(|part| part == std::path::Component::ParentDir) {
            return refused("its `..` cannot be resolved", "name it without `..`");
        }
        let home = self.at.base.as_ref().filter(|_| !self.at.is_here);
        if let Some(home) = home {
            let real_home = self.at.fs.canonicalize(home).await.ok();
            let real_home = real_home.as_ref().and_then(|home| home.native().ok()).unwrap_or(home);
            let real = self.real_entry().await.unwrap_or_else(|_| self.path.clone());
            if home.starts_with(&self.path) || real_home.starts_with(&real) {
                return refused("it is the home directory there, or contains it", "name what is in it");
            }
        }
        if self.is_content {
            return refused(
                "it means the contents of the directory",
                "omit the `/.` at the end, or name what is in it",
            );
        }
        Ok(())
    }

    /// Fails if the path was typed with a trailing slash and is not a directory.
    pub(crate) fn check_slash(&self, kind: EntryKind, action: &str) -> Result<(), Failure> {
        let what = match kind {
            EntryKind::Directory => return Ok(()),
            _ if !self.is_directory => return Ok(()),
            EntryKind::Link => "it is a link",
            EntryKind::Other => "it is not a directory",
        };
        let failure = Failure::new(
            format!("cannot {action} `{}`", text::plain(&self.shown)),
            "omit the trailing slash",
        );
        Err(failure.because(what))
    }
}
