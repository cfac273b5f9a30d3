//! The two directions of a tree copy, as seen by the walk: a source to read and a destination to write.

use std::{
    ffi::{OsStr, OsString},
    path::{Path, PathBuf},
};

use bytes::Bytes;
use remex_proto::fs::MetadataKind;

use super::{PERMISSIONS, SkipUnchanged, counters::Meter};
use crate::{Error, api::fs::Metadata};

/// What a copy preserves of an entry, and what it compares.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Attributes {
    /// `None` for what cannot be copied: pipes, sockets and devices.
    pub(super) kind: Option<MetadataKind>,
    pub(super) size: u64,
    /// `None` where it is unknown.
    pub(super) modified_at_ms: Option<i64>,
    /// `None` on a server of the base dialect.
    pub(super) mode: Option<u32>,
}

impl Attributes {
    /// Returns the attributes of a remote entry; a link counts as a link even if the server does not report its target.
    pub(super) fn of_remote(metadata: &Metadata) -> Self {
        let kind = match metadata.kind {
            _ if metadata.is_symlink => Some(MetadataKind::Symlink),
            Some(kind) => Some(kind),
            None if metadata.is_directory => Some(MetadataKind::Directory),
            None if metadata.is_file => Some(MetadataKind::File),
            None => None,
        };
        // A server of the base dialect may not know the time.
        let is_known = metadata.modified_at_ms != 0 || metadata.mode.is_some();
        Self {
            kind,
            size: metadata.size,
            modified_at_ms: is_known.then_some(metadata.modified_at_ms),
            mode: metadata.mode,
        }
    }

    /// Returns the attributes of a source without the permissions that are not copied.
    pub(super) fn without_special_bits(self) -> Self {
        Self { mode: self.mode.map(|mode| mode & PERMISSIONS), ..self }
    }

    pub(super) fn is_directory(&self) -> bool {
        self.kind == Some(MetadataKind::Directory)
    }

    pub(super) fn is_file(&self) -> bool {
        self.kind == Some(MetadataKind::File)
    }

    /// Returns whether the content is unchanged, judging by size and time.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        self.modified_at_ms.is_some()
            && (self.kind, self.size, self.modified_at_ms) == (other.kind, other.size, other.modified_at_ms)
    }
}

/// An entry of a source directory.
#[derive(Debug)]
pub(super) struct Listed {
    pub(super) name: OsString,
    pub(super) attributes: Result<Attributes, Error>,
}

/// The root of a copy, ready to receive its entries.
#[derive(Debug)]
pub(super) struct Root<L> {
    pub(super) listing: L,
    /// The destination without links.
    pub(super) to: PathBuf,
    /// The attributes of the source.
    pub(super) attributes: Attributes,
    pub(super) state: DirectoryState,
}

/// Whether a destination directory existed before the copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum DirectoryState {
    /// It is empty, so nothing needs to be compared.
    New,
    Existing,
}

/// A file or link to copy.
#[derive(Debug)]
pub(super) struct Item {
    pub(super) from: PathBuf,
    pub(super) to: PathBuf,
    /// Those of the source when it was listed.
    pub(super) attributes: Attributes,
    /// The state of the destination directory.
    pub(super) directory: DirectoryState,
}

/// What was done with a file or link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Outcome {
    File { bytes: u64 },
    Link,
    Unchanged,
}

/// One direction of a tree copy.
pub(super) trait Direction: Clone + Send + Sync + 'static {
    /// The entries of a source directory.
    type Listing: Send;

    /// Returns the path of an entry of a source directory, by the rules of the host that has it.
    fn join_source(directory: &Path, name: &OsStr) -> PathBuf;

    /// Returns the path of an entry of a destination directory, by the rules of the host that has it.
    fn join_destination(directory: &Path, name: &OsStr) -> PathBuf;

    /// Checks the source, and creates the destination if it is missing.
    fn root(&self, from: &Path, to: &Path)
    -> impl Future<Output = Result<Root<Self::Listing>, Error>> + Send;

    /// Reads the beginning of a source directory.
    fn list(&self, directory: &Path) -> impl Future<Output = Result<Self::Listing, Error>> + Send;

    /// Returns the next entry of a source directory.
    fn next(&self, listing: &mut Self::Listing)
    -> impl Future<Output = Result<Option<Listed>, Error>> + Send;

    /// Returns the `.gitignore` file of a source directory.
    fn gitignore(&self, directory: &Path) -> impl Future<Output = Result<Option<Bytes>, Error>> + Send;

    /// Creates a destination directory that its owner can write to, or prepares an existing one.
    fn make_directory(
        &self,
        to: &Path,
        source: &Attributes,
        parent: DirectoryState,
    ) -> impl Future<Output = Result<DirectoryState, Error>> + Send;

    /// Sets the permissions and the time of a destination directory, once everything in it is copied.
    fn finish_directory(
        &self,
        to: &Path,
        source: &Attributes,
    ) -> impl Future<Output = Result<(), Error>> + Send;

    /// Copies a file, unless it is unchanged.
    fn copy_file(
        &self,
        item: &Item,
        skip: SkipUnchanged,
        meter: &mut Meter,
    ) -> impl Future<Output = Result<Outcome, Error>> + Send;

    /// Copies a link as a link.
    fn copy_link(&self, item: &Item) -> impl Future<Output = Result<Outcome, Error>> + Send;

    /// Returns whether both sides have links.
    fn has_links(&self) -> bool;
}
