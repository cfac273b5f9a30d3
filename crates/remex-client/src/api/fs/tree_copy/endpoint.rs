//! The two kinds of endpoint of a copy: a path on this host, and one on a remote host.
//!
//! Links are not followed, except by the methods for the root of a tree. Start at [`CopyEndpoint`].

use std::{
    ffi::OsStr,
    io,
    path::{Path, PathBuf},
};

use bytes::Bytes;

use super::{
    CopyPath, OWNER, is_directory, local,
    rules::{GITIGNORE, check_len},
};
use crate::{
    Error,
    api::fs::{
        ContentHash, Metadata,
        entry::set_times,
        is_not_found,
        path::{join, native},
    },
    base::error::usage,
};

/// A path on one side of a copy.
#[derive(Debug, Clone)]
pub(in crate::api::fs) enum CopyEndpoint {
    /// On this host.
    Local(PathBuf),
    /// On a remote host, which may be a server in this process.
    Remote(CopyPath),
}

impl CopyEndpoint {
    pub(in crate::api::fs) fn path(&self) -> &Path {
        match self {
            Self::Local(path) => path,
            Self::Remote(at) => &at.path,
        }
    }

    /// Returns its name in messages.
    pub(super) fn label(&self) -> String {
        match self {
            Self::Local(path) => path.display().to_string(),
            Self::Remote(at) => at.label.clone(),
        }
    }

    pub(super) fn remote(&self) -> Option<&CopyPath> {
        match self {
            Self::Local(_) => None,
            Self::Remote(at) => Some(at),
        }
    }

    /// Returns whether it is on a server of the base dialect, which has no links, permissions or times.
    pub(super) fn is_base(&self) -> bool {
        self.remote().is_some_and(|at| at.fs.is_base())
    }

    /// Returns the path of an entry of this directory, by the rules of the host that has it.
    pub(super) fn join(&self, name: &OsStr) -> Self {
        match self {
            Self::Local(directory) => Self::Local(directory.join(name)),
            Self::Remote(at) => Self::Remote(at.join(name)),
        }
    }

    /// Returns the metadata of the root of a tree, which may be reached through links.
    pub(super) async fn root_metadata(&self) -> Result<Metadata, Error> {
        let metadata = match self {
            Self::Local(path) => local::root_metadata(path).await?,
            Self::Remote(at) => at.fs.metadata(&at.path).await?,
        };
        if metadata.is_directory {
            return Ok(metadata);
        }
        Err(usage(format!("`{}` is not a directory", self.label()), "copy it as a file"))
    }

    /// Creates the root of a copy unless it exists; returns it without links, and whether it is new.
    pub(super) async fn make_root(&self, mode: Option<u32>) -> Result<(Self, bool), Error> {
        match self {
            Self::Local(path) => {
                if tokio::fs::metadata(path).await.is_ok_and(|there| there.is_dir()) {
                    return Ok((self.clone(), false));
                }
                if let Some(parent) = path.parent() {
                    let made = tokio::fs::create_dir_all(parent).await;
                    made.map_err(local::unwritable(parent))?;
                }
                Ok((self.clone(), self.make_directory(mode, &Occupant::Unknown).await?))
            }
            Self::Remote(CopyPath { fs, path, label }) => {
                let is_new = match fs.metadata(path).await {
                    Ok(there) if there.is_directory => false,
                    Ok(_) => return Err(not_a_directory(path)),
                    Err(error) if is_not_found(&error) => true,
                    Err(error) => return Err(error),
                };
                if is_new {
                    fs.create_dir_all(path).await?;
                }
                if fs.is_base() {
                    return Ok((self.clone(), is_new));
                }
                let path = native(&fs.canonicalize(path).await?)?.to_owned();
                let root = Self::Remote(CopyPath { fs: fs.clone(), path, label: label.clone() });
                if let Some(mode) = mode.filter(|_| is_new) {
                    root.set_mode(mode | OWNER).await?;
                }
                Ok((root, is_new))
            }
        }
    }

    /// Creates a directory that its owner can write to, or prepares an existing one; returns whether it is new.
    pub(super) async fn make_directory(&self, mode: Option<u32>, there: &Occupant) -> Result<bool, Error> {
        let mode = mode.map(|mode| mode | OWNER);
        let (is_new, mode_there) = match self {
            Self::Local(path) => (make_local_directory(path).await?, None),
            Self::Remote(at) if at.fs.is_base() => {
                at.fs.create_dir_all(&at.path).await?;
                return Ok(false);
            }
            Self::Remote(at) => {
                let there = if matches!(there, Occupant::Nothing) { None } else { self.find().await? };
                match &there {
                    Some(there) if there.is_symlink => {
                        let message = format!(
                            "cannot copy into `{}`: it is a symbolic link, which could point outside of the tree",
                            at.path.display()
                        );
                        return Err(usage(message, "remove it"));
                    }
                    Some(there) if !there.is_directory => return Err(not_a_directory(&at.path)),
                    Some(_) => {}
                    None => at.fs.create_dir_all(&at.path).without_links().await?,
                }
                (there.is_none(), there.and_then(|there| there.mode))
            }
        };
        match mode {
            Some(mode) if mode_there != Some(mode) => self.set_mode(mode).await?,
            _ => {}
        }
        Ok(is_new)
    }

    /// Returns the metadata of an entry; `None` if it does not exist.
    pub(super) async fn find(&self) -> Result<Option<Metadata>, Error> {
        match self {
            Self::Local(path) => local::find(path).await,
            Self::Remote(CopyPath { fs, path, .. }) => match fs.metadata(path).await {
                Ok(there) => Ok(Some(there)),
                Err(error) if is_not_found(&error) => Ok(None),
                // The target of a link may be inaccessible.
                Err(error) => fs.read_link(path).await.map(|_| None).map_err(|_| error),
            },
        }
    }

    /// Returns the `.gitignore` file of a directory; `None` without one. As in git, a link is not followed.
    pub(super) async fn gitignore(&self) -> Result<Option<Bytes>, Error> {
        let CopyPath { fs, path, .. } = match self {
            Self::Local(directory) => return local::gitignore(directory).await,
            Self::Remote(at) => at,
        };
        let path = join(path, GITIGNORE);
        match fs.metadata(&path).await {
            Ok(there) if there.is_file && !there.is_symlink => {}
            Ok(_) => return Ok(None),
            Err(error) if is_not_found(&error) => return Ok(None),
            Err(error) => return Err(error),
        }
        match fs.read(&path).await {
            Ok(content) => check_len(&path, content).map(Some),
            Err(error) if is_not_found(&error) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Sets the permissions of a directory or file.
    pub(super) async fn set_mode(&self, mode: u32) -> Result<(), Error> {
        match self {
            Self::Local(path) => local::set_mode(path, mode).await,
            Self::Remote(at) => at.fs.set_permissions(&at.path, mode).without_links().await,
        }
    }

    /// Sets when a directory or file was modified.
    pub(super) async fn set_modified(&self, ms: i64) -> Result<(), Error> {
        match self {
            Self::Local(path) => local::set_modified(path, ms).await,
            Self::Remote(at) => {
                at.fs.client.call(set_times(at.path.clone().into(), ms)).await?;
                Ok(())
            }
        }
    }

    pub(super) async fn hash(&self) -> Result<ContentHash, Error> {
        match self {
            Self::Local(path) => local::hash(path).await,
            Self::Remote(at) => Ok(at.fs.hash(&at.path).await?.hash),
        }
    }

    /// Returns the target of a link, in the bytes of its host.
    pub(super) async fn read_link(&self) -> Result<Bytes, Error> {
        match self {
            Self::Local(path) => {
                let target = tokio::fs::read_link(path).await.map_err(local::unreadable(path))?;
                Ok(Bytes::copy_from_slice(target.as_os_str().as_encoded_bytes()))
            }
            Self::Remote(at) => Ok(at.fs.read_link(&at.path).await?.target_base64.0),
        }
    }

    /// Creates a link, which replaces a file or link.
    pub(super) async fn write_link(&self, target: Bytes) -> Result<(), Error> {
        match self {
            Self::Local(path) => local::write_link(path, target).await,
            Self::Remote(at) => at.fs.replace_with_link(&target, &at.path.clone().into()).await,
        }
    }
}

/// What is at the destination of an entry.
#[derive(Debug)]
pub(super) enum Occupant {
    Nothing,
    Entry(Box<Metadata>),
    /// It has to be looked up.
    Unknown,
}

impl From<Option<Metadata>> for Occupant {
    fn from(there: Option<Metadata>) -> Self {
        there.map_or(Self::Nothing, |there| Self::Entry(Box::new(there)))
    }
}

impl Occupant {
    pub(super) fn metadata(&self) -> Option<&Metadata> {
        if let Self::Entry(there) = self { Some(there) } else { None }
    }
}

/// Creates a directory unless it exists, and returns whether it is new; a link could point outside of the tree.
async fn make_local_directory(path: &Path) -> Result<bool, Error> {
    let Err(error) = tokio::fs::create_dir(path).await else { return Ok(true) };
    let is_directory = local::find(path).await?.as_ref().is_some_and(is_directory);
    if error.kind() == io::ErrorKind::AlreadyExists && is_directory {
        return Ok(false);
    }
    Err(local::unwritable(path)(error))
}

fn not_a_directory(to: &Path) -> Error {
    usage(
        format!("cannot copy into `{}`: it is not a directory", to.display()),
        "remove it, or choose another destination",
    )
}
