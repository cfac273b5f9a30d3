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
pub mod compute;
#[cfg(feature = "server")]
pub mod deadlines;
#[cfg(feature = "server")]
pub mod io_error;
#[cfg(feature = "server")]
pub mod limits;
#[cfg(feature = "server")]
pub mod log_limit;
#[cfg(feature = "server")]
pub mod metrics;
#[cfg(feature = "server")]
pub mod nofollow;
#[cfg(feature = "server")]
pub mod regular_file;
#[cfg(feature = "server")]
pub mod supervise;
#[cfg(feature = "server")]
pub mod threads;
#[cfg(feature = "server")]
pub mod trace;
#[cfg(feature = "server")]
pub mod writers;

pub use lock::lock;
