//! What is configured for all clients: which processes they may start, and the least confinement of what they do.

use std::path::{Path, PathBuf};

use remex_proto::{
    ErrorKind, RpcError, environment,
    sandbox::{Hosts, Permissions},
};
use remex_sandbox::{Access, HostList, Policy, Preset};

/// Which processes clients may start, whatever their credentials allow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum StartPolicy {
    /// Any.
    #[default]
    Any,
    /// Those that a sandbox confines, by request or by a floor; others are refused, and those whose sandbox leaves the
    /// root of the file system writable.
    Confined,
    /// None: the server serves files and makes HTTP requests only.
    None,
}

impl StartPolicy {
    /// All policies.
    pub const ALL: [Self; 3] = [Self::Any, Self::Confined, Self::None];

    /// Returns the word for it in flags and configuration files.
    pub const fn word(self) -> &'static str {
        match self {
            StartPolicy::Any => "any",
            StartPolicy::Confined => "confined",
            StartPolicy::None => "none",
        }
    }

    /// Returns the policy with this word.
    pub fn from_word(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|policy| policy.word() == word)
    }

    /// Refuses a start if there are none.
    ///
    /// # Errors
    ///
    /// If the server starts no processes.
    pub fn check_any(self) -> Result<(), RpcError> {
        match self {
            StartPolicy::Any | StartPolicy::Confined => Ok(()),
            StartPolicy::None => Err(self.refusal(
                "this server starts no processes",
                "use another server, or ask the administrator of this one to serve with `--starts confined` or \
                 `--starts any`",
            )),
        }
    }

    /// Refuses a start that nothing confines, if it has to be.
    ///
    /// # Errors
    ///
    /// If the server starts no processes, or only confined ones.
    pub fn check_unconfined(self) -> Result<(), RpcError> {
        match self {
            StartPolicy::Any => Ok(()),
            StartPolicy::Confined => Err(self.refusal(
                "this server starts only processes that a sandbox confines, and nothing confines this one",
                "ask for a `sandbox` in which nothing can be written but some directories, as `remex run --sandbox \
                 workspace-write` does",
            )),
            StartPolicy::None => self.check_any(),
        }
    }

    /// Refuses a start whose policy does not confine it, if it has to be confined: what may write all files but some can
    /// change what runs outside of every sandbox, whatever the network is.
    ///
    /// # Errors
    ///
    /// If the server starts no processes, or none that this policy confines too little.
    pub fn check_policy(self, policy: &Policy) -> Result<(), RpcError> {
        match self {
            StartPolicy::Confined if policy.access(Path::new("/")) == Access::Write => Err(self.refusal(
                "this server starts only processes that a sandbox confines, and the one of this process leaves `/` writable",
                "ask for a `sandbox` in which nothing can be written but some directories, as `remex run --sandbox \
                 workspace-write` does; to deny some paths or the network is not enough",
            )),
            StartPolicy::Any | StartPolicy::Confined => Ok(()),
            StartPolicy::None => self.check_any(),
        }
    }

    fn refusal(self, message: &str, hint: &str) -> RpcError {
        let message = format!("{message} (`--starts {}`)", self.word());
        RpcError::new(ErrorKind::PermissionDenied, message).with_hint(hint)
    }

    /// Returns what clients are told.
    pub fn told(self) -> Option<environment::Starts> {
        match self {
            StartPolicy::Any => None,
            StartPolicy::Confined => Some(environment::Starts::Confined),
            StartPolicy::None => Some(environment::Starts::None),
        }
    }
}

/// The least confinement of what clients do, whatever they ask for.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct SandboxFloor {
    /// What is allowed at most; `None` means that clients and scopes decide.
    pub permissions: Option<Permissions>,
    /// The hosts that processes reach at most, if not the whole network and not nothing; only with permissions.
    pub hosts: Option<Hosts>,
    /// What `workspace-write` allows to be written, here and in scopes.
    pub workspace: Vec<PathBuf>,
}

impl SandboxFloor {
    /// Returns the permissions with a name: `read-only` or `workspace-write`.
    pub fn preset(name: &str) -> Option<Permissions> {
        Preset::from_name(name).map(Preset::permissions)
    }

    /// Checks a list of hosts.
    ///
    /// # Errors
    ///
    /// What is wrong with the first entry that means nothing.
    pub fn check_hosts(hosts: &Hosts) -> Result<(), String> {
        let [allow, deny] = [&hosts.allow, &hosts.deny].map(|list| list.iter().map(String::as_str));
        HostList::parse(allow, deny).map(drop).map_err(|error| error.to_string())
    }
}
