//! The remex server: sessions that own processes, for clients over any transport.
//!
//! In reading order: [`Server`] accepts connections and keeps sessions; a connection reads requests
//! and answers them; a session owns processes; a process is one task that writes one log, and an
//! outbox is what waits to be sent. It never reads configuration: the program hands it a [`Config`].

// Layers, from the bottom to the top: a module uses only those of the groups before its own; within a group the order
// is that of `tests/architecture.rs` in the package `remex`, which checks it.

// Plain values and tools.
mod budget;
mod clock;
mod compute;
mod config;
mod deadlines;
mod identity;
mod io_error;
mod retention;
mod supervise;
mod threads;

// What all share of the host.
mod host;
mod watcher;
mod web;

// A process without clients, and what is sent to a client without processes.
mod engine;
mod outbox;

// Areas, each with its own state.
mod context;
mod environment;
mod fs;
mod http;
mod watch;

// Processes that clients follow, and who owns them.
mod process;
mod session;

// From a connection to a call.
mod calls;
mod connection;
mod server;

#[cfg(test)]
mod tests;

pub use remex_process::{raise_file_limit, return_large_blocks};

pub use config::{Auth, Config, HostInfo, Limits, Proxies, Trust};
pub use server::{ListenError, Server};
