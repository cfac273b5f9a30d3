//! Files: whole ones, blocks of open ones, directories, and what changes in them.
//!
//! Paths are resolved by their text first (`..`, `.`), then followed through symbolic links unless
//! `followSymlinks` is false, which refuses a link anywhere in the path. Times are milliseconds since
//! the Unix epoch. Start at [`ReadFile`] and [`WriteFile`].

mod directory;
mod entry;
mod file;
mod handle;
mod hash;
mod watch;

pub use directory::{
    CreateDirectory, DirectoryEntry, DirectoryListing, ReadDirectory, Walk, WalkEntry, WalkError, WalkKind,
    WalkOptions, WalkReply,
};
pub use entry::{
    Canonicalize, CanonicalizeReply, Copy, GetMetadata, LinkTarget, Metadata, MetadataKind, ReadLink, Remove,
    Rename, SetPermissions, SetTimes, Symlink,
};
pub use file::{FileHash, HashFile, ReadFile, ReadFileReply, WriteFile, WriteFileReply};
pub use handle::{Block, Close, Open, OpenMode, OpenReply, ReadBlock, WriteBlock};
pub use hash::{ContentHash, IfMatch, InvalidHash};
pub use watch::{
    Change, ChangeKind, Changed, MissingChanged, Unwatch, Watch, WatchMissing, WatchMissingReply,
};
