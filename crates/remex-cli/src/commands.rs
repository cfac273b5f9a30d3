//! The commands, one module each.
//!
//! A command is a function `run` that takes its flags from `args` and returns the exit code, or a [`Failure`]. It knows
//! nothing of how flags are parsed.

#[cfg(not(target_os = "linux"))]
mod absent;
pub(crate) mod attach;
pub(crate) mod cat;
pub(crate) mod cert;
pub(crate) mod complete;
pub(crate) mod completions;
pub(crate) mod cp;
pub(crate) mod doctor;
pub(crate) mod edit;
pub(crate) mod env;
pub(crate) mod gc;
pub(crate) mod http;
pub(crate) mod inspect;
#[cfg(target_os = "linux")]
pub(crate) mod keeper;
pub(crate) mod kill;
mod launch;
pub(crate) mod logs;
pub(crate) mod ls;
pub(crate) mod man;
pub(crate) mod mcp;
pub(crate) mod mkdir;
pub(crate) mod mv;
#[cfg(target_os = "linux")]
mod orphans;
mod process_json;
#[cfg(target_os = "linux")]
pub(crate) mod proxy;
pub(crate) mod ps;
pub(crate) mod resize;
pub(crate) mod restart;
pub(crate) mod rm;
pub(crate) mod run;
pub(crate) mod runtime;
#[cfg(target_os = "linux")]
pub(crate) mod serve;
#[cfg(target_os = "linux")]
pub(crate) mod server;
pub(crate) mod shell;
#[cfg(target_os = "linux")]
pub(crate) mod supervise;
mod there;
#[cfg(target_os = "linux")]
pub(crate) mod token;
pub(crate) mod top;
#[cfg(target_os = "linux")]
pub(crate) mod upgrade;
mod validity;
pub(crate) mod wait;
pub(crate) mod watch;

use crate::render::failure::Failure;

#[cfg(not(target_os = "linux"))]
pub(crate) use absent::{keeper, proxy, serve, server, supervise, token, upgrade};

/// The result of a command: its exit code, or a failure.
pub(crate) type Outcome = Result<u8, Failure>;
