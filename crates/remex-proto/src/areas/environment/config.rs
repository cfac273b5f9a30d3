//! The host's own configuration of the client, as far as the client asks for it.

use serde::{Deserialize, Serialize};

use crate::HostPath;

/// `environmentConfig/read`: selected parts of the configuration files on the host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ReadConfig {
    /// Where the client works.
    pub cwd: HostPath,
    /// Which keys of the configuration, each as the segments of its path.
    pub config_paths: Vec<Vec<String>>,
    /// Which keys of the requirements.
    pub requirements_paths: Vec<Vec<String>>,
}

/// The answer to [`ReadConfig`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ConfigReply {
    /// The user's home directory.
    pub user_home_dir: Option<HostPath>,
    /// Where the user's configuration is.
    pub codex_home_dir: Option<HostPath>,
    /// The host's name.
    pub hostname: Option<String>,
    /// The configuration.
    pub config: ConfigLayers,
    /// What administrators demand.
    pub requirements: ConfigLayers,
}

/// Layers from lowest to highest precedence.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ConfigLayers {
    /// One for each file that has any of the keys.
    pub layers: Vec<ConfigLayer>,
    /// Where the client puts layers of its own.
    pub cloud_insertion_index: u64,
}

/// The selected keys of one file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ConfigLayer {
    /// Which file it is, for people.
    pub source: String,
    /// What relative paths in it start from.
    pub base_dir: HostPath,
    /// The keys as TOML.
    pub toml: String,
}
