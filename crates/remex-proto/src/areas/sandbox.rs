//! The sandbox that a client requests.
//!
//! Only decoded here: a server that cannot enforce it refuses the request. Start at [`Sandbox`].

mod preset;

pub use preset::{PROTECTED_NAMES, Preset};

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::HostPath;

/// Whether and how an operation is confined.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Sandbox {
    /// Not at all: absent, null, or permissions of type `disabled`.
    #[default]
    Disabled,
    /// Confined as the context says, or refused; never unconfined.
    Confined(Box<Context>),
}

impl Sandbox {
    /// Returns whether the operation is unconfined.
    pub fn is_disabled(&self) -> bool {
        *self == Self::Disabled
    }

    /// Returns whether files are accessible as if there were no sandbox.
    ///
    /// That is the case if the whole file system is writable, or if something outside the server enforces the sandbox.
    pub fn leaves_files_open(&self) -> bool {
        let Self::Confined(context) = self else { return true };
        match &context.permissions {
            Permissions::Disabled | Permissions::External { .. } => true,
            Permissions::Managed { file_system: FileSystem::Unrestricted, .. } => true,
            Permissions::Managed { file_system: FileSystem::Restricted { entries }, .. } => {
                entries.iter().any(Entry::is_root)
                    && entries.iter().all(|entry| entry.access == Access::Write)
            }
        }
    }
}

impl Serialize for Sandbox {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Disabled => serializer.serialize_none(),
            Self::Confined(context) => context.serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for Sandbox {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(match Option::<Box<Context>>::deserialize(deserializer)? {
            None => Self::Disabled,
            // With hosts, the network is confined and nothing else.
            Some(context) if context.permissions == Permissions::Disabled && context.hosts.is_none() => {
                Self::Disabled
            }
            Some(context) => Self::Confined(context),
        })
    }
}

/// Everything a client says about confinement.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "SandboxContext"))]
#[serde(rename_all = "camelCase")]
pub struct Context {
    /// What is allowed.
    pub permissions: Permissions,
    /// Of no meaning here, but clients must send it.
    pub windows_sandbox_level: String,
    /// What relative permissions start from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cwd: Option<HostPath>,
    /// What `project_roots` stands for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workspace_roots: Option<Vec<HostPath>>,
    /// Replaces `cwd` and `workspaceRoots` where permissions are concerned; file requests have it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy_context: Option<PolicyContext>,
    /// The home directory of the user on this host, as the client knows it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user_home_dir: Option<HostPath>,
    /// What `tmpdir` stands for in requests that have no environment variables.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub temporary_directories: Option<Vec<HostPath>>,
    /// Asks the base server for its older way to confine processes; changes nothing that is allowed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub use_legacy_landlock: Option<bool>,
    /// The hosts that a process reaches through the server's proxy, and nothing else of the network, whatever `network`
    /// says. An extension.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hosts: Option<Hosts>,
    /// Whether a `write` entry for a path that does not exist is an error, and does not just grant nothing. An extension.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refuse_missing_writes: Option<bool>,
}

/// Hosts as `HOST` or `HOST:PORT`, where `HOST` is a name, `*.DOMAIN`, `**.DOMAIN`, `*` or an address.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "SandboxHosts"))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Hosts {
    /// What may be reached.
    pub allow: Vec<String>,
    /// What may not be reached, even if `allow` matches it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub deny: Vec<String>,
}

/// What permissions are relative to.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "SandboxPolicyContext"))]
#[serde(rename_all = "camelCase")]
pub struct PolicyContext {
    /// What relative permissions start from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cwd: Option<HostPath>,
    /// What `project_roots` stands for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workspace_roots: Option<Vec<HostPath>>,
}

/// What is allowed. Unlike everything else on the wire its members are in snake case.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "SandboxPermissions"))]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Permissions {
    /// Everything.
    Disabled,
    /// Enforced by something outside the server.
    External {
        /// Access to the network.
        network: Network,
    },
    /// Enforced by the server.
    Managed {
        /// Access to files.
        file_system: FileSystem,
        /// Access to the network.
        network: Network,
    },
}

/// Access to the network.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "SandboxNetwork"))]
#[serde(rename_all = "snake_case")]
pub enum Network {
    /// None.
    Restricted,
    /// All.
    Enabled,
}

/// Access to files.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "SandboxFileSystem"))]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum FileSystem {
    /// As the server itself has it.
    Unrestricted,
    /// Nothing but what is listed.
    Restricted {
        /// The more specific entry decides.
        entries: Vec<Entry>,
    },
}

/// Access to one path.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "SandboxEntry"))]
pub struct Entry {
    /// The path.
    pub path: EntryPath,
    /// The access.
    pub access: Access,
    /// What to do if the path does not exist.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub missing_path_behavior: Option<MissingPathBehavior>,
}

/// What an entry means if its path does not exist.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "SandboxMissingPathBehavior"))]
#[serde(rename_all = "snake_case")]
pub enum MissingPathBehavior {
    /// Nothing: the path may be created as if the entry were not listed.
    Skip,
    /// A word that this version does not know; the same as no word.
    #[serde(other)]
    Other,
}

impl Entry {
    fn is_root(&self) -> bool {
        match &self.path {
            EntryPath::Special { value: Special::Root } => true,
            EntryPath::Path { path } => path.native().is_ok_and(|path| path == std::path::Path::new("/")),
            EntryPath::Special { .. } | EntryPath::GlobPattern { .. } => false,
        }
    }
}

/// The access to a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "SandboxAccess"))]
#[serde(rename_all = "snake_case")]
pub enum Access {
    /// Read only.
    Read,
    /// Read and write.
    Write,
    /// Nothing.
    Deny,
}

/// A path in the file system.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "SandboxPlace"))]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum EntryPath {
    /// A path and what is below it.
    Path {
        /// The path.
        path: HostPath,
    },
    /// Everything that matches.
    GlobPattern {
        /// The pattern.
        pattern: String,
    },
    /// A path that the server knows by name.
    Special {
        /// The name.
        value: Special,
    },
}

/// A path that the server knows by name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "SandboxSpecial"))]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Special {
    /// The root of the file system.
    Root,
    /// What any program needs to run.
    Minimal,
    /// The `workspaceRoots`.
    ProjectRoots {
        /// Below each root.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        subpath: Option<String>,
    },
    /// The directory in `TMPDIR`.
    Tmpdir,
    /// `/tmp`.
    SlashTmp,
    /// A name that the client itself does not know.
    Unknown,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_disabled_profile_means_unconfined() {
        let parse = |text: &str| serde_json::from_str::<Sandbox>(text).unwrap();
        assert!(parse("null").is_disabled());
        assert!(
            parse(r#"{"permissions":{"type":"disabled"},"windowsSandboxLevel":"disabled"}"#).is_disabled()
        );
        for permissions in [
            r#"{"type":"external","network":"enabled"}"#,
            r#"{"type":"managed","file_system":{"type":"unrestricted"},"network":"enabled"}"#,
            r#"{"type":"managed","network":"restricted","file_system":{"type":"restricted","entries":[
                {"path":{"type":"special","value":{"kind":"root"}},"access":"read"},
                {"path":{"type":"special","value":{"kind":"project_roots","subpath":".git"}},"access":"read",
                 "missing_path_behavior":"skip"},
                {"path":{"type":"path","path":"file:///a"},"access":"write"},
                {"path":{"type":"glob_pattern","pattern":"**/*.env"},"access":"deny"}]}}"#,
        ] {
            let text = format!(
                r#"{{"permissions":{permissions},"windowsSandboxLevel":"disabled","cwd":"file:///w",
                    "workspaceRoots":["file:///w"],"useLegacyLandlock":false}}"#
            );
            let sandbox = parse(&text);
            assert!(!sandbox.is_disabled(), "{text}");
            assert_eq!(parse(&serde_json::to_string(&sandbox).unwrap()), sandbox);
        }
    }

    #[test]
    fn a_context_has_what_clients_send_and_ignores_the_rest() {
        let context: Context = serde_json::from_str(
            r#"{"permissions":{"type":"managed","network":"restricted","file_system":{"type":"restricted","entries":[
                {"path":{"type":"special","value":{"kind":"tmpdir"}},"access":"write"},
                {"path":{"type":"path","path":"file:///a"},"access":"read","missing_path_behavior":"skip"},
                {"path":{"type":"path","path":"file:///b"},"access":"deny","missing_path_behavior":"create"},
                {"path":{"type":"path","path":"file:///c"},"access":"deny","missing_path_behavior":null}]}},
                "cwd":"file:///w","workspaceRoots":["file:///w"],"policyContext":{"cwd":"file:///p",
                "workspaceRoots":["file:///p","file:///q"],"later":1},"userHomeDir":"file:///home/user",
                "temporaryDirectories":["file:///tmp"],"windowsSandboxLevel":"disabled",
                "windowsSandboxProxySettingsMode":"reconcile","useLegacyLandlock":false,"later":{}}"#,
        )
        .unwrap();
        let path = |text: &str| HostPath::parse(text).unwrap();
        let policy_context = context.policy_context.clone().unwrap();
        assert_eq!(policy_context.cwd, Some(path("file:///p")));
        assert_eq!(policy_context.workspace_roots, Some(vec![path("file:///p"), path("file:///q")]));
        assert_eq!(context.user_home_dir, Some(path("file:///home/user")));
        assert_eq!(context.temporary_directories, Some(vec![path("file:///tmp")]));
        assert_eq!(context.use_legacy_landlock, Some(false));
        let Permissions::Managed { file_system: FileSystem::Restricted { entries }, .. } =
            &context.permissions
        else {
            panic!("{context:?}")
        };
        let (skip, other) = (MissingPathBehavior::Skip, MissingPathBehavior::Other);
        let found: Vec<_> = entries.iter().map(|entry| entry.missing_path_behavior).collect();
        assert_eq!(found, [None, Some(skip), Some(other), None]);
        let again: Context = serde_json::from_str(&serde_json::to_string(&context).unwrap()).unwrap();
        assert_eq!(again, context);
    }

    #[test]
    fn hosts_confine_whatever_else_is_allowed() {
        let text = r#"{"permissions":{"type":"disabled"},"windowsSandboxLevel":"disabled","hosts":{"allow":["a.org"]}}"#;
        let Sandbox::Confined(context) = serde_json::from_str(text).unwrap() else { panic!("not confined") };
        assert_eq!(context.hosts.unwrap().allow, ["a.org"]);
    }

    #[test]
    fn a_context_that_does_not_decode_is_an_error() {
        for text in [
            "{}",
            "false",
            r#""disabled""#,
            r#"{"permissions":{"type":"disabled"}}"#,
            r#"{"windowsSandboxLevel":"disabled"}"#,
            r#"{"permissions":{"type":"other"},"windowsSandboxLevel":"disabled"}"#,
            r#"{"permissions":{"type":"managed","network":"enabled"},"windowsSandboxLevel":"disabled"}"#,
            r#"{"permissions":{"type":"external","network":"some"},"windowsSandboxLevel":"disabled"}"#,
            r#"{"permissions":{"type":"disabled"},"windowsSandboxLevel":"disabled","policyContext":{"cwd":"w"}}"#,
            r#"{"permissions":{"type":"disabled"},"windowsSandboxLevel":"disabled","hosts":["a.org"]}"#,
            r#"{"permissions":{"type":"disabled"},"windowsSandboxLevel":"disabled","hosts":{"deny":["a.org"]}}"#,
            r#"{"permissions":{"type":"disabled"},"windowsSandboxLevel":"disabled","hosts":{"allow":[],"block":[]}}"#,
            r#"{"permissions":{"type":"disabled"},"windowsSandboxLevel":"disabled","hosts":{"allow":"*"}}"#,
        ] {
            assert!(serde_json::from_str::<Sandbox>(text).is_err(), "{text}");
        }
    }
}
