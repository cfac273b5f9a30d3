//! The remex server: sessions that own processes, for clients over any transport.
//!
//! In reading order: [`Server`] accepts connections and keeps sessions. A connection reads requests and answers
//! them. A session owns processes. A process is one task that writes one log, and an outbox holds what waits to
//! be sent. The server never reads configuration itself: the program passes a [`Config`].

// Layers from bottom to top: a module uses only modules in groups above its own in this list.
// `tests/architecture.rs` in the package `remex` checks that, and defines the order within a group.

// Plain values and tools.
mod account;
mod admission;
mod audit;
mod auth;
mod available_memory;
mod budget;
mod clock;
mod compute;
mod config;
mod confinement;
mod deadlines;
mod durable;
mod identity;
mod io_error;
mod jail_support;
mod keeper_link;
mod limits;
mod log_limit;
mod metrics;
mod nofollow;
mod rate;
mod resource_limits;
mod scope;
mod socket_owner;
mod ssh_login;
mod state_dir;
mod supervise;
mod threads;
pub mod token;
mod trace;
mod unix_peer;
mod user_account;

// State and services that everything on the host shares.
mod host;
mod tls;
mod watcher;
mod web;

// The process engine, which knows no clients, and the outbox, which knows no processes.
mod engine;
mod outbox;

// Areas, each with its own state.
mod context;
mod environment;
mod fs;
mod http;
mod watch;

// Processes that clients follow, and the sessions that own them.
mod process;
mod proxy;
mod session;

// From connections to calls.
mod calls;
mod collect;
mod connection;
mod keeper;
mod server;

#[cfg(test)]
mod tests;

pub use remex_process::{
    Foreground, Rlimit, Rlimits, Supervised, adopt_orphans, deliver_noted, end_by, exec_command_keeping,
    ignore_faults, note_signals, raise_file_limit, reap_orphans, return_large_blocks, run_briefly,
    spare_address_space, spawn_own, take_kept, take_signals,
};

pub use audit::AuditConfig;
pub use collect::{CollectError, collect_state};
pub use config::{
    Auth, CertificateGrant, CertificatePolicy, CgroupUse, Config, HostInfo, MetricsAccess, Proxies,
    SandboxFloor, StartPolicy, StateConfig, Trust, UserGrant,
};
pub use confinement::CredentialRecord;
pub use keeper::{KeeperError, keep, knows_tables};
pub use limits::{InvalidLimit, Limit, LimitValue, Limits, Reload};
pub use scope::{FileAccess, Floor, Permission, ScopeError, Scopes};
pub use server::{CreateError, Server};
pub use socket_owner::check_unconfined;
pub use token::TokenGrant;
pub use trace::SetParent;
