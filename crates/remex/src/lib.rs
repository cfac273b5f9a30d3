//! A remex server inside your program: run processes on this machine without a separate server.
//!
//! Joins the server and the client, which do not depend on each other. Start at [`Local`].
//!
//! Only this library reads environment variables and inspects the host, and only in [`config_from_env`],
//! [`Local::here`], [`connect()`] and [`environments`].
//!
//! The server needs Linux. Elsewhere only [`environments`] and [`units`] are available.

mod connect;
pub mod environments;
pub mod units;

#[cfg(target_os = "linux")]
mod host;
#[cfg(target_os = "linux")]
mod local;
#[cfg(target_os = "linux")]
mod own_directories;
#[cfg(target_os = "linux")]
mod server;
#[cfg(target_os = "linux")]
pub mod server_config;
#[cfg(target_os = "linux")]
mod web;

pub use connect::{ConnectError, connect, connect_with};
#[cfg(target_os = "linux")]
pub use {local::Local, server::config_from_env};

/// Runs what the README shows.
#[cfg(all(doctest, target_os = "linux"))]
#[doc = include_str!("../../../README.md")]
mod readme {}
