//! A method: its name, its parameter and reply types, and its row in the table of [`call`](crate::envelope::call).

use serde::{Serialize, de::DeserializeOwned};

/// The parameters of a method, tied to its name and its answer.
pub trait Request: Serialize + DeserializeOwned {
    /// The method's name.
    const METHOD: &'static str;
    /// The result of a successful call.
    type Reply: Serialize + DeserializeOwned;
}

/// The parameters of a notification, tied to its name.
pub trait Note: Serialize + DeserializeOwned {
    /// The notification's name.
    const METHOD: &'static str;
}

/// Groups methods by what they need before they may be called.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Family {
    /// Part of the handshake itself.
    Handshake,
    /// Processes and sessions.
    Exec,
    /// Files.
    Filesystem,
    /// HTTP requests.
    Http,
    /// Facts about the host.
    EnvironmentInfo,
    /// Whether the host can be used.
    EnvironmentStatus,
    /// The client's configuration on the host.
    EnvironmentConfig,
    /// Plugins and skills on the host.
    CapabilityDiscovery,
}

impl Family {
    /// Returns the name used in handshake errors.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Handshake => "handshake",
            Self::Exec => "exec",
            Self::Filesystem => "filesystem",
            Self::Http => "http",
            Self::EnvironmentInfo => "environment info",
            Self::EnvironmentStatus => "environment status",
            Self::EnvironmentConfig => "environment config",
            Self::CapabilityDiscovery => "capability discovery",
        }
    }
}

/// The protocol that defines a method.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// The base dialect, which existing clients speak.
    Base,
    /// Added by remex.
    Remex,
}

impl Origin {
    /// Returns the name used in the JSON schema.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Base => "base",
            Self::Remex => "remex",
        }
    }
}

/// One row of the method table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Method {
    /// The name on the wire.
    pub name: &'static str,
    /// What it needs before it may be called.
    pub family: Family,
    /// The protocol that defines it.
    pub origin: Origin,
    /// The params it accepts.
    pub takes: Takes,
}

/// The params that a method or notification accepts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Takes {
    /// None: absent, `null` or `{}`; anything else is an error.
    Nothing,
    /// An object.
    Params,
    /// Anything; it is ignored.
    Anything,
}
