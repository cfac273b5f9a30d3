//! The least confinement that a server demands: a word, or a file with a profile.

use std::path::{Component, Path, PathBuf};

use remex_proto::sandbox::{
    Access, Entry, EntryPath, FileSystem, MissingPathBehavior, Network, Permissions, Special,
};
use remex_server::SandboxFloor;
use toml::Table;

/// Why a sandbox cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum SandboxError {
    /// The file cannot be read.
    #[error("cannot read `{}`: {error}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The answer of the system.
        error: std::io::Error,
    },
    /// The file is no profile.
    #[error("cannot use the profile `{}`: {reason}", path.display())]
    Invalid {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
}

/// Returns the permissions that a word stands for: `read-only`, `workspace-write`, or the path of a profile.
///
/// # Errors
///
/// If the file cannot be read, or is no profile.
pub fn sandbox_permissions(word: &str) -> Result<Permissions, SandboxError> {
    if let Some(permissions) = SandboxFloor::preset(word) {
        return Ok(permissions);
    }
    let path = PathBuf::from(word);
    let text = std::fs::read_to_string(&path)
        .map_err(|error| SandboxError::Unreadable { path: path.clone(), error })?;
    parse(&text).map_err(|reason| SandboxError::Invalid { path, reason })
}

fn parse(text: &str) -> Result<Permissions, String> {
    let table: Table = text.parse().map_err(|error: toml::de::Error| error.message().to_owned())?;
    let (mut entries, mut network) = (Vec::new(), Network::Restricted);
    for (key, value) in &table {
        let access = match key.as_str() {
            "network" => {
                network = match value.as_str() {
                    Some("on") => Network::Enabled,
                    Some("off") => Network::Restricted,
                    _ => return Err("`network` is neither \"on\" nor \"off\"".to_owned()),
                };
                continue;
            }
            "read" => Access::Read,
            "write" => Access::Write,
            "deny" => Access::Deny,
            _ => {
                return Err(format!(
                    "unknown key `{key}`; a profile has `network`, `read`, `write` and `deny`"
                ));
            }
        };
        let words = value.as_array().ok_or_else(|| format!("`{key}` is not a list"))?;
        for word in words {
            let word = word.as_str().ok_or_else(|| format!("`{key}` is not a list of texts"))?;
            let path = entry_path(word, access)?;
            let missing_path_behavior = (access != Access::Deny).then_some(MissingPathBehavior::Skip);
            entries.push(Entry { path, access, missing_path_behavior });
        }
    }
    Ok(Permissions::Managed { file_system: FileSystem::Restricted { entries }, network })
}

/// Parses an absolute path, `:minimal`, `:workspace`, `:workspace/PATH` or, to deny, a pattern.
fn entry_path(word: &str, access: Access) -> Result<EntryPath, String> {
    let special = |value| Ok(EntryPath::Special { value });
    let path = Path::new(word);
    if let Some(rest) = word.strip_prefix(':') {
        return match rest.split_once('/') {
            None if rest == "minimal" => special(Special::Minimal),
            None if rest == "workspace" => special(Special::ProjectRoots { subpath: None }),
            Some(("workspace", subpath)) => {
                special(Special::ProjectRoots { subpath: Some(subpath.to_owned()) })
            }
            _ => Err(format!("`{word}` is neither `:minimal` nor `:workspace`")),
        };
    }
    let has_wildcard = word.contains(['*', '?', '[', '{']);
    if has_wildcard && access == Access::Deny {
        return Ok(EntryPath::GlobPattern { pattern: word.to_owned() });
    }
    if has_wildcard {
        return Err(format!("`{word}` has wildcards, which can only deny access"));
    }
    if !path.is_absolute() || path.components().any(|part| part == Component::ParentDir) {
        return Err(format!("`{word}` is not an absolute path without `..`"));
    }
    Ok(EntryPath::Path { path: path.to_owned().into() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_profile_lists_paths_patterns_and_names() {
        let text = "network = 'on'\nread = ['/', ':workspace/.git']\nwrite = [':workspace']\ndeny = ['/etc/shadow', '**/*.env']";
        let Permissions::Managed { file_system: FileSystem::Restricted { entries }, network } =
            parse(text).unwrap()
        else {
            panic!("it is restricted")
        };
        assert_eq!((entries.len(), network), (5, Network::Enabled));
        let pattern = EntryPath::GlobPattern { pattern: "**/*.env".to_owned() };
        assert!(entries.iter().any(|entry| entry.path == pattern && entry.access == Access::Deny));
        assert_eq!(sandbox_permissions("read-only").unwrap(), SandboxFloor::preset("read-only").unwrap());
    }

    #[test]
    fn a_mistake_in_a_profile_is_named() {
        for (text, reason) in [
            ("reed = ['/']", "unknown key `reed`"),
            ("read = ['etc']", "`etc` is not an absolute path"),
            ("read = ['/a/../b']", "`..`"),
            ("write = ['/a/*']", "can only deny access"),
            ("read = [':home']", "neither `:minimal` nor `:workspace`"),
            ("network = 'some'", "neither \"on\" nor \"off\""),
            ("read = '/'", "is not a list"),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.contains(reason), "{text}: {error}");
        }
        let error = sandbox_permissions("/does/not/exist.toml").unwrap_err().to_string();
        assert!(error.starts_with("cannot read `/does/not/exist.toml`: "), "{error}");
    }
}
