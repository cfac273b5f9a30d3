//! The remex client: processes, files and HTTP requests on another machine, as if they were here.
//!
//! In reading order: a [`Target`] says where a server is, and a [`Link`] is one connection to it.
//! It never reads configuration from files or the environment: the program hands over plain values.

mod dial;
mod error;
mod link;
mod program;
mod target;
mod url;

pub use error::{Error, Loss};
pub use link::Link;
pub use target::{Custom, Dial, Program, Target, WebSocket};
