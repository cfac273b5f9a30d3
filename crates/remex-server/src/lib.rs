//! The remex server: sessions that own processes, for clients over any transport.
//!
//! In reading order: [`Server`] accepts connections and keeps sessions; a connection reads requests
//! and answers them; a session owns processes; a process is one task that writes one log, and an
//! outbox is what waits to be sent. It never reads configuration: the program hands it a [`Config`].

mod config;
mod server;

mod answers;
mod budget;
mod calls;
mod compute;
mod connection;
mod environment;
mod fs;
mod http;
mod identity;
mod janitor;
mod listing;
mod outbox;
mod process;
mod session;
mod watch;

mod clock;
mod supervise;
#[cfg(test)]
mod tests;
mod threads;

pub use remex_process::{raise_file_limit, return_large_blocks};

pub use config::{Auth, Config, Host, Limits, Proxies, Trust};
pub use server::{ListenError, Server};
