//! Files, blocks of open files, directories and file watches.
//!
//! Paths are resolved lexically first (`..`, `.`), then symbolic links are followed unless
//! `followSymlinks` is false, which refuses a link anywhere in the path. Times are milliseconds since
//! the Unix epoch. Start at [`ReadFile`] and [`WriteFile`].

mod directory;
mod entry;
mod file;
mod handle;
mod hash;
mod search;
mod watch;

pub use directory::{
    CreateDirectory, DirectoryEntry, DirectoryListing, ReadDirectory, Walk, WalkEntry, WalkError, WalkKind,
    WalkOptions, WalkReply,
};
pub use entry::{
    Canonicalize, CanonicalizeReply, Copy, GetMetadata, LinkTarget, Metadata, MetadataKind, ReadLink, Remove,
    Rename, SetPermissions, SetPermissionsReply, SetTimes, Symlink,
};
pub use file::{FileHash, HashFile, ReadFile, ReadFileReply, WriteFile, WriteFileReply};
pub use handle::{Block, Close, Open, OpenMode, OpenReply, ReadBlock, WriteBlock};
pub use hash::{ContentHash, IfMatch, InvalidHash};
pub use search::{FoundFile, FoundLine, SearchFiles, SearchLimit, SearchOptions, SearchReply, SearchReport};
pub use watch::{
    Change, ChangeKind, Changed, MissingChanged, Unwatch, Watch, WatchMissing, WatchMissingReply,
};
