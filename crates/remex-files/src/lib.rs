//! The files of a host, for clients that may be confined to some of them: requests, blocks, searches, watches.
//!
//! Any path may lead to a mount that hangs, so everything that looks at one must run on a thread that may block: a call that
//! hangs blocks its thread and requests for overlapping paths in the same session, and nothing else. Nothing here knows a
//! process, a session or a connection. Start at [`FileWork`] and [`PathGuard`].

pub mod discovery;
pub mod handles;
mod jobs;
mod path_lock;
mod paths;
mod requests;
pub mod watch;
mod watcher;

pub use jobs::{HANG_THRESHOLD, JobGuards, QueuedJob, file_slot};
pub use path_lock::{PathAccess, PathLock, PathLockQueue};
pub use paths::{
    guard::PathGuard,
    native,
    open::{end_of, open_for_reading},
};
pub use requests::{AnswerSize, CancelCheck, Confinable, FileWork};
pub use watcher::{ChangeBatch, Depth, Rescan, SharedWatcher, Subscription, WatchScope};
