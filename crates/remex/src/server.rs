//! What a server on this host is created from.

use remex_server::{Auth, CgroupUse, Config, Limits, MetricsAccess, SandboxFloor, StartPolicy};

use crate::{host, own_directories::own_directories, web};

/// Returns the configuration of a server on this host, from the environment of this process and the system.
///
/// What servers of this user keep is hidden from everything that is confined.
///
/// Limits have their defaults, only the user that the server runs as may connect, no cgroup is used, and nothing is confined that does not ask for it.
///
/// ```
/// let config = remex::config_from_env();
/// assert_eq!(config.host_env.len(), std::env::vars_os().count());
/// ```
pub fn config_from_env() -> Config {
    Config {
        limits: Limits::default(),
        host_env: std::env::vars_os().collect(),
        auth: Auth::default(),
        host: host::inspect(),
        proxies: web::proxies(),
        trust: web::trust(),
        audit: None,
        metrics: MetricsAccess::default(),
        cgroup: CgroupUse::None,
        sandbox: SandboxFloor::default(),
        starts: StartPolicy::default(),
        set_parent: None,
        hidden: Vec::new(),
        credentials: Vec::new(),
        own_directories: own_directories(),
        state: None,
        supervisor: Vec::new(),
    }
}
