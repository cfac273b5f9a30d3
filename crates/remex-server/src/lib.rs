//! The remex server: sessions that own processes, for clients over any transport.
//!
//! In reading order: [`Server`] accepts connections and keeps sessions; a connection reads requests
//! and answers them; a session owns processes; a process is one task that writes one log, and an
//! outbox is what waits to be sent. It never reads configuration: the program hands it a [`Config`].

// From the bottom to the top: each module uses only those above it in this list.
mod budget;
mod calls;
mod clock;
mod compute;
mod config;
mod connection;
mod context;
mod deadlines;
mod environment;
mod fs;
mod host;
mod http;
mod identity;
mod io_error;
mod outbox;
mod process;
mod retention;
mod server;
mod session;
mod supervise;
mod threads;
mod watch;
mod watcher;
mod web;

#[cfg(test)]
mod tests;

pub use remex_process::{raise_file_limit, return_large_blocks};

pub use config::{Auth, Config, HostInfo, Limits, Proxies, Trust};
pub use server::{ListenError, Server};
