//! What a durable server says about its state directory.

use serde::{Deserialize, Serialize};

use crate::{HostPath, base::lenient::null_as_default};

/// The state directory of a server, where it keeps processes that outlive it.
///
/// A client whose credential lacks the scope `metrics` learns only that there is one: everything is null.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "EnvironmentState"))]
#[non_exhaustive]
#[serde(rename_all = "camelCase")]
pub struct State {
    /// Where it is.
    #[serde(default)]
    pub directory: Option<HostPath>,
    /// Disk space that the logs of durable processes use, in bytes; null if the keeper does not respond.
    #[serde(default)]
    pub used_bytes: Option<u64>,
    /// Disk space that they may use, in bytes.
    #[serde(default)]
    pub quota_bytes: Option<u64>,
    /// How many durable processes have not closed; null if the keeper does not respond.
    #[serde(default)]
    pub running_processes: Option<u64>,
    /// How many closed ones have a log that is kept; null if the keeper does not respond.
    #[serde(default)]
    pub ended_processes: Option<u64>,
    /// The process that runs durable processes; null while the server starts another one.
    #[serde(default)]
    pub keeper: Option<Keeper>,
}

/// The process that runs durable processes and outlives the server.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "EnvironmentKeeper"))]
#[non_exhaustive]
#[serde(rename_all = "camelCase")]
pub struct Keeper {
    /// Its process id on the host.
    #[serde(default, deserialize_with = "null_as_default")]
    pub pid: u32,
    /// Its version, which may be older than that of the server; null if it does not respond.
    #[serde(default)]
    pub version: Option<String>,
    /// Whether it has answered the server within 2 s.
    #[serde(default, deserialize_with = "null_as_default")]
    pub responds: bool,
}
