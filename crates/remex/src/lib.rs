//! This machine as a place to run things, for programs that want no server beside them.
//!
//! Joins the server and the client, which do not know each other. Start at [`Local`].
//!
//! Of all our libraries only this one reads the environment and looks at the host, and only in [`config_from_env`] and
//! [`Local::here`].

pub mod environments;
mod host;
mod local;
mod web;

pub use local::Local;

use remex_server::{Auth, Config, Limits};

/// Returns what a server here has to know, from the environment of this process and from the host.
///
/// Limits are the usual ones. Whoever lets others in sets [`Config::auth`].
///
/// ```
/// let config = remex::config_from_env();
/// assert_eq!(config.host_env.len(), std::env::vars_os().count());
/// ```
pub fn config_from_env() -> Config {
    Config {
        limits: Limits::default(),
        host_env: std::env::vars_os().collect(),
        auth: Auth::Open,
        host: host::look(),
        proxies: web::proxies(),
        trust: web::trust(),
    }
}
