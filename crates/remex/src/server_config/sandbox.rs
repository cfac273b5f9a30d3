//! The least confinement that a server demands: a word, or a file with a profile.

use std::{
    io::{self, Read as _},
    path::{Component, Path, PathBuf},
};

use remex_base::{
    regular_file::open_given,
    writers::{OthersCanWrite, check_writers},
};
use remex_proto::sandbox::{
    Access, Entry, EntryPath, FileSystem, Hosts, MissingPathBehavior, Network, Permissions, Special,
};
use remex_server::SandboxFloor;
use toml::Table;

/// The longest profile, in bytes.
const MAX_LEN: u64 = 1 << 20;

/// Why a sandbox cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum SandboxError {
    /// The file cannot be read.
    #[error("cannot read `{}`: {error}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The answer of the system.
        error: io::Error,
    },
    /// Other users can change the file.
    #[error(transparent)]
    Writable(#[from] OthersCanWrite),
    /// The file is no profile.
    #[error("cannot use the profile `{}`: {reason}", path.display())]
    Invalid {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// Something is relative to a workspace, and there is none.
    #[error("the sandbox `{word}` is relative to a workspace, and none is named")]
    NoWorkspace {
        /// The sandbox.
        word: String,
    },
}

impl SandboxError {
    /// Returns what to do about it.
    pub fn hint(&self) -> String {
        let hint = match self {
            Self::Writable(error) => return error.hint(),
            Self::Unreadable { .. } => "use `read-only`, `workspace-write` or the path of a profile",
            Self::Invalid { .. } => "correct the profile; docs/serve.md describes it",
            Self::NoWorkspace { .. } => {
                "name each directory with `--workspace DIR`, or `workspace` in the configuration file"
            }
        };
        hint.to_owned()
    }
}

/// Returns the floor that a word stands for: `read-only`, `workspace-write`, or the path of a profile.
///
/// # Errors
///
/// If the file cannot be read, is no profile, or can be changed by other users, or if it needs a workspace and there is none.
pub fn sandbox_floor(word: Option<&str>, workspace: Vec<PathBuf>) -> Result<SandboxFloor, SandboxError> {
    let (permissions, hosts) = word.map(permissions).transpose()?.unzip();
    let hosts = hosts.flatten();
    match (word, &permissions) {
        (Some(word), Some(permissions)) if workspace.is_empty() && is_relative(permissions) => {
            Err(SandboxError::NoWorkspace { word: word.to_owned() })
        }
        _ => {
            // The operator's own links are followed once, before anything confined can replace them.
            let real = |path: PathBuf| std::fs::canonicalize(&path).unwrap_or(path);
            let workspace = workspace.into_iter().map(real).collect();
            Ok(SandboxFloor { permissions, hosts, workspace })
        }
    }
}

/// Returns whether some entry is relative to the workspace: without one, it would protect nothing.
fn is_relative(permissions: &Permissions) -> bool {
    let Permissions::Managed { file_system: FileSystem::Restricted { entries }, .. } = permissions else {
        return false;
    };
    entries.iter().any(|entry| match &entry.path {
        EntryPath::GlobPattern { pattern } => !pattern.starts_with('/'),
        EntryPath::Special { value: Special::ProjectRoots { .. } } => true,
        EntryPath::Path { .. } | EntryPath::Special { .. } => false,
    })
}

fn permissions(word: &str) -> Result<(Permissions, Option<Hosts>), SandboxError> {
    if let Some(permissions) = SandboxFloor::preset(word) {
        return Ok((permissions, None));
    }
    let path = PathBuf::from(word);
    check_writers(&path)?;
    let text = read(&path).map_err(|error| SandboxError::Unreadable { path: path.clone(), error })?;
    parse(&text).map_err(|reason| SandboxError::Invalid { path, reason })
}

fn read(path: &Path) -> io::Result<String> {
    let mut text = String::new();
    if open_given(path)?.take(MAX_LEN + 1).read_to_string(&mut text)? as u64 > MAX_LEN {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "it is longer than 1 MiB"));
    }
    Ok(text)
}

fn parse(text: &str) -> Result<(Permissions, Option<Hosts>), String> {
    let table: Table = text.parse().map_err(|error: toml::de::Error| error.message().to_owned())?;
    let (mut entries, mut network, mut hosts) = (Vec::new(), Network::Restricted, None);
    for (key, value) in &table {
        let access = match key.as_str() {
            "network" => {
                network = match (value.as_str(), value.as_array()) {
                    (Some("on"), _) => Network::Enabled,
                    (Some("off"), _) => Network::Restricted,
                    (_, Some(list)) => {
                        hosts = Some(host_list(list)?);
                        Network::Restricted
                    }
                    _ => return Err("`network` is neither \"on\", \"off\" nor a list of hosts".to_owned()),
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
    Ok((Permissions::Managed { file_system: FileSystem::Restricted { entries }, network }, hosts))
}

fn host_list(list: &[toml::Value]) -> Result<Hosts, String> {
    let allow = list.iter().map(|host| host.as_str().map(str::to_owned)).collect::<Option<_>>();
    let hosts = Hosts { allow: allow.ok_or("`network` is not a list of texts")?, deny: Vec::new() };
    SandboxFloor::check_hosts(&hosts)?;
    Ok(hosts)
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
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn a_profile_lists_paths_patterns_and_names() {
        let text = "network = 'on'\nread = ['/', ':workspace/.git']\nwrite = [':workspace']\ndeny = ['/etc/shadow', '**/*.env']";
        let (Permissions::Managed { file_system: FileSystem::Restricted { entries }, network }, None) =
            parse(text).unwrap()
        else {
            panic!("it is restricted")
        };
        assert_eq!((entries.len(), network), (5, Network::Enabled));
        let pattern = EntryPath::GlobPattern { pattern: "**/*.env".to_owned() };
        assert!(entries.iter().any(|entry| entry.path == pattern && entry.access == Access::Deny));
        assert_eq!(permissions("read-only").unwrap().0, SandboxFloor::preset("read-only").unwrap());
        let (permissions, hosts) = parse("network = ['git.example.com', '*.example.org:443']").unwrap();
        assert!(
            matches!(permissions, Permissions::Managed { network: Network::Restricted, .. }),
            "{permissions:?}"
        );
        assert_eq!(hosts.unwrap().allow, ["git.example.com", "*.example.org:443"]);
    }

    #[test]
    fn a_profile_that_is_writable_by_others_or_would_block_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("profile");
        let read = || permissions(path.to_str().unwrap()).map(drop);
        std::fs::write(&path, "network = \"off\"").unwrap();
        read().unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o666)).unwrap();
        let error = read().unwrap_err();
        assert!(matches!(error, SandboxError::Writable(_)), "{error}");
        assert!(error.hint().contains("chmod go-w"), "{}", error.hint());
        for unusable in ["/dev/zero", "/"] {
            assert!(matches!(permissions(unusable), Err(SandboxError::Unreadable { .. })), "{unusable}");
        }
    }

    #[test]
    fn a_mistake_in_a_profile_is_named() {
        for (text, reason) in [
            ("reed = ['/']", "unknown key `reed`"),
            ("read = ['etc']", "`etc` is not an absolute path"),
            ("read = ['/a/../b']", "`..`"),
            ("write = ['/a/*']", "can only deny access"),
            ("read = [':home']", "neither `:minimal` nor `:workspace`"),
            ("network = 'some'", "neither \"on\", \"off\" nor a list of hosts"),
            ("network = [1]", "not a list of texts"),
            ("network = ['0x7f000001']", "`0x7f000001` is not a host: write IPv4 addresses"),
            ("read = '/'", "is not a list"),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.contains(reason), "{text}: {error}");
        }
        let error = permissions("/does/not/exist.toml").unwrap_err().to_string();
        assert!(error.starts_with("cannot read `/does/not/exist.toml`: "), "{error}");
    }

    #[test]
    fn relative_paths_need_a_workspace() {
        for (text, expected) in [
            ("read = ['/']\ndeny = ['/**/*.env', '/etc/shadow']", false),
            ("deny = ['**/*.env']", true),
            ("write = [':workspace/build']", true),
        ] {
            assert_eq!(is_relative(&parse(text).unwrap().0), expected, "{text}");
        }
        assert!(sandbox_floor(Some("workspace-write"), Vec::new()).is_err());
        assert!(sandbox_floor(Some("workspace-write"), vec!["/w".into()]).is_ok());
        assert_eq!(sandbox_floor(None, Vec::new()).unwrap(), SandboxFloor::default());
    }
}
