//! What extends an agent on the host: plugins and skills.
//!
//! Plugins are directories with a manifest, skills are files named `SKILL.md`. Start at [`DiscoverRoots`] for
//! directories that the client names, at [`Discover`] for those that the host's user has installed.

use serde::{Deserialize, Serialize};

use crate::{HostPath, areas::sandbox::Sandbox};

/// `capabilityRoots/discoverV1`: the plugins and skills in directories.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct DiscoverRoots {
    /// The directories, at most 128.
    pub roots: Vec<Root>,
}

/// A directory to search.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "CapabilityRoot"))]
pub struct Root {
    /// Any string; returned as it is.
    pub id: String,
    /// The directory.
    pub path: HostPath,
    /// The confinement asked for.
    #[serde(default, skip_serializing_if = "Sandbox::is_disabled")]
    pub sandbox: Sandbox,
}

/// The answer to [`DiscoverRoots`], in the order of the request.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct DiscoverRootsReply {
    /// One for each directory.
    pub roots: Vec<FoundRoot>,
}

/// What a directory contains.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "FoundCapabilityRoot"))]
#[serde(rename_all = "camelCase")]
pub struct FoundRoot {
    /// As in the request.
    pub id: String,
    /// As in the request.
    pub path: HostPath,
    /// The files of the plugin that the directory is.
    pub plugin: Option<PluginFiles>,
    /// The skills in it and below, sorted by URI.
    pub skills: Vec<SkillFiles>,
    /// The manifests of the directory and of the plugins below it.
    pub namespace_manifests: Vec<TextFile>,
    /// What was left out, and why.
    pub warnings: Vec<String>,
    /// Why the directory could not be searched.
    pub error: Option<String>,
}

/// The files that describe a plugin.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct PluginFiles {
    /// `plugin.json`.
    pub manifest: TextFile,
    /// Its MCP servers: the file that the manifest names, or `.mcp.json`.
    pub mcp_config: Option<TextFile>,
    /// Its apps: the file that the manifest names, or `.app.json`.
    pub apps_config: Option<TextFile>,
}

/// The files that describe a skill.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SkillFiles {
    /// `SKILL.md`.
    pub instructions: TextFile,
    /// `agents/openai.yaml` beside it.
    pub metadata: Option<TextFile>,
}

/// A file with its text.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct TextFile {
    /// The file.
    pub path: HostPath,
    /// Its text.
    pub contents: String,
}

/// `capabilities/discoverV2`: the plugins and skills that the host's user has installed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "DiscoverCapabilities"))]
pub struct Discover {
    /// Where the client works.
    pub cwd: HostPath,
}

/// The answer to [`Discover`].
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "DiscoverCapabilitiesReply"))]
pub struct DiscoverReply {
    /// The plugins, sorted by id.
    pub plugins: Vec<Plugin>,
    /// The skills that are part of no plugin.
    pub skills: Vec<Skill>,
    /// What was left out, and why.
    pub warnings: Vec<String>,
}

/// An installed plugin.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Plugin {
    /// `NAME@MARKETPLACE`.
    pub id: String,
    /// For people.
    pub display_name: String,
    /// Always null: this server installs no plugins from elsewhere.
    pub remote_plugin_id: Option<String>,
    /// The newest that is installed.
    pub version: Option<String>,
    /// Where it is installed.
    pub root: HostPath,
    /// Its files.
    pub files: PluginFiles,
    /// Its skills, sorted by URI.
    pub skills: Vec<Skill>,
}

/// What a skill says about itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Skill {
    /// Its name, that of a plugin with `PLUGIN:` before it.
    pub name: String,
    /// What it is for.
    pub description: String,
    /// The same in a few words.
    pub short_description: Option<String>,
    /// Its `SKILL.md`.
    pub path: HostPath,
    /// Where it was found; absent for the skills of a plugin.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub discovery_root: Option<DiscoveryRoot>,
    /// What it needs.
    pub dependencies: Option<SkillDependencies>,
    /// When it may be used.
    pub policy: Option<SkillPolicy>,
}

/// A directory for skills.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct DiscoveryRoot {
    /// `codex-home-skills` or `user-agent-skills`.
    pub id: String,
    /// The directory.
    pub path: HostPath,
}

/// What a skill needs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SkillDependencies {
    /// Tools.
    pub tools: Vec<SkillTool>,
}

/// A tool that a skill needs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct SkillTool {
    /// Such as `mcp`.
    pub r#type: String,
    /// Which one.
    pub value: String,
    /// What it is for.
    pub description: Option<String>,
    /// How it is reached.
    pub transport: Option<String>,
    /// The program that runs it.
    pub command: Option<String>,
    /// Where it is.
    pub url: Option<String>,
    /// The port that receives its authorization.
    pub oauth_callback_port: Option<u16>,
}

/// When a skill may be used.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct SkillPolicy {
    /// False: only if the user names it.
    pub allow_implicit_invocation: Option<bool>,
    /// The products that may use it; empty: all.
    pub products: Vec<String>,
}
