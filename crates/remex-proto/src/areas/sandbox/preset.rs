//! Profiles that people ask for by name.

use super::{Access, Entry, EntryPath, FileSystem, MissingPathBehavior, Network, Permissions, Special};

/// What stays read-only in a writable directory: who may change these decides what runs outside the sandbox.
pub const PROTECTED_NAMES: [&str; 4] = [".git", ".agents", ".codex", ".aws"];

/// A profile with a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Preset {
    /// Everything can be read, nothing written; no network.
    ReadOnly,
    /// Everything can be read, the workspace written except for its protected directories; no network.
    WorkspaceWrite,
}

impl Preset {
    /// All presets.
    pub const ALL: [Self; 2] = [Self::ReadOnly, Self::WorkspaceWrite];

    /// Returns the name that people use.
    pub fn name(self) -> &'static str {
        match self {
            Self::ReadOnly => "read-only",
            Self::WorkspaceWrite => "workspace-write",
        }
    }

    /// Returns the preset with a name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|preset| preset.name() == name)
    }

    /// Returns what it allows.
    pub fn permissions(self) -> Permissions {
        Permissions::Managed {
            file_system: FileSystem::Restricted { entries: self.entries() },
            network: Network::Restricted,
        }
    }

    /// Returns what it allows with files.
    pub fn entries(self) -> Vec<Entry> {
        let mut entries = vec![entry(Special::Root, Access::Read)];
        if self == Self::WorkspaceWrite {
            entries.push(entry(Special::ProjectRoots { subpath: None }, Access::Write));
            entries.extend(PROTECTED_NAMES.map(|name| Entry {
                missing_path_behavior: Some(MissingPathBehavior::Skip),
                ..entry(Special::ProjectRoots { subpath: Some(name.to_owned()) }, Access::Read)
            }));
        }
        entries
    }
}

fn entry(value: Special, access: Access) -> Entry {
    Entry { path: EntryPath::Special { value }, access, missing_path_behavior: None }
}
