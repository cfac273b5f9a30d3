//! The configuration of a server: plain values; nothing here reads files or the environment.

use std::{
    ffi::OsString,
    path::{Path, PathBuf},
};

use remex_access::{
    audit::AuditConfig,
    confinement::{Hidden, SandboxFloor, StartPolicy},
    grants::Auth,
};
use remex_base::{limits::Limits, trace::SetParent};
use remex_engine::{CgroupUse, EngineConfig, StateConfig};
use remex_proto::environment;

/// Everything a [`Server`](crate::Server) needs to know.
#[derive(Clone, Debug)]
pub struct Config {
    /// Limits and timeouts.
    pub limits: Limits,
    /// The environment that an `envPolicy` may pass on to children.
    pub host_env: Vec<(OsString, OsString)>,
    /// Who may connect, and what each may do.
    pub auth: Auth,
    /// Facts about the host that clients may see.
    pub host: HostInfo,
    /// Proxies for HTTP requests.
    pub proxies: Proxies,
    /// Root certificates for HTTP requests.
    pub trust: Trust,
    /// Where to record what clients do, if anywhere.
    pub audit: Option<AuditConfig>,
    /// Who may read `/metrics` on the listeners of clients.
    pub metrics: MetricsAccess,
    /// Connects spans with the traces of clients, if spans are exported.
    pub set_parent: Option<SetParent>,
    /// The cgroup for processes with limits on memory or processes.
    pub cgroup: CgroupUse,
    /// Files and directories that confined processes cannot see, such as keys; the unix sockets that the server listens
    /// on are among them anyway.
    pub hidden: Vec<PathBuf>,
    /// Credentials, configuration and records of the server: hidden with their directories, unless more than that is there.
    pub credentials: Vec<PathBuf>,
    /// The directories in which servers of this user keep sockets, logs and state. Nothing confined can see them; those that are
    /// missing are created before a process is confined, so that nothing appears there later.
    pub own_directories: Vec<PathBuf>,
    /// The least confinement of what clients do.
    pub sandbox: SandboxFloor,
    /// Which processes clients may start.
    pub starts: StartPolicy,
    /// Where durable processes and sessions are kept; without it, everything ends with the server.
    pub state: Option<StateConfig>,
    /// The program that runs a command again when it ends, with its first arguments; empty for none. Appended are
    /// `--policy` and `on-failure`, `on-failure:N`, `always` or `always:N`, `--arg0` and a name if the command has one, `--`,
    /// and the command.
    pub supervisor: Vec<OsString>,
}

impl Config {
    /// Returns what an engine has to know, which is also what a keeper is given.
    pub fn engine(&self) -> EngineConfig {
        EngineConfig {
            limits: self.limits.clone(),
            env: self.host_env.clone(),
            sandbox: self.sandbox.clone(),
            hidden: Hidden {
                files: self.hidden.clone(),
                credentials: self.credentials.clone(),
                own_directories: self.own_directories.clone(),
                home: self
                    .host
                    .info
                    .user_home_dir
                    .as_ref()
                    .and_then(|home| home.native().ok())
                    .map(Path::to_owned),
            },
            starts: self.starts,
            supervisor: self.supervisor.clone(),
        }
    }
}

/// Who may read `/metrics`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum MetricsAccess {
    /// Clients whose credential has the scope `metrics`.
    #[default]
    Authenticated,
    /// Everyone who can reach the listener.
    Open,
}

/// Facts about the host that clients may see.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostInfo {
    /// The answer to `environment/info`.
    pub info: environment::Info,
    /// The host name.
    pub hostname: String,
    /// The user's Codex configuration directory, if set explicitly (`CODEX_HOME`).
    pub codex_home: Option<PathBuf>,
    /// The administrators' Codex configuration directory.
    pub codex_system_dir: PathBuf,
}

/// Proxies for HTTP requests, named like the usual environment variables.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Proxies {
    /// For `http` URLs: `http_proxy`.
    pub http: Option<String>,
    /// For `https` URLs: `HTTPS_PROXY`.
    pub https: Option<String>,
    /// For both, unless they have a proxy of their own: `ALL_PROXY`.
    pub all: Option<String>,
    /// Hosts to connect to directly: `NO_PROXY`.
    pub none: Option<String>,
}

/// Root certificates that HTTP requests trust.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub enum Trust {
    /// The host's root certificates.
    #[default]
    System,
    /// Only these certificates.
    Only {
        /// A file with certificates: `SSL_CERT_FILE`.
        file: Option<PathBuf>,
        /// Directories with such files: `SSL_CERT_DIR`.
        directories: Vec<PathBuf>,
    },
}
