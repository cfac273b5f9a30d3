//! Plain values and tools that have no subject of their own: locks, time, quoting, limits, tasks, threads, files.
//!
//! Features: `server` adds what only a server needs, on Linux; `testing` lets tests break and occupy it.

mod lock;

pub mod certificate;
pub mod clock;
pub mod quote;

#[cfg(feature = "server")]
pub mod available_memory;
#[cfg(feature = "server")]
mod files;
#[cfg(feature = "server")]
pub mod limits;
#[cfg(feature = "server")]
mod reports;
#[cfg(feature = "server")]
mod tasks;

pub use lock::lock;

#[cfg(feature = "server")]
pub use files::{io_error, nofollow, regular_file, writers};
#[cfg(feature = "server")]
pub use reports::{log_limit, metrics, trace};
#[cfg(feature = "server")]
pub use tasks::{compute, deadlines, supervise, threads};
