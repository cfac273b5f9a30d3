//! What a credential allows: permissions, paths, a limit on processes and a minimum of confinement.
//!
//! Pure: text in, decisions out. Start at [`Scopes`].

use std::{
    fmt,
    path::{Path, PathBuf},
    str::FromStr,
};

/// The longest text of scopes; one that a person wrote is shorter.
const MAX_LEN: usize = 64 << 10;

/// What a credential allows.
///
/// Written as words with white space or commas between them:
///
/// ```
/// use remex_access::scope::Scopes;
///
/// let scopes: Scopes = "processes=4 files:read=/srv files:write=/srv/work".parse()?;
/// assert_eq!(scopes.to_string(), "processes=4 files:read=/srv files:write=/srv/work");
/// assert!("files:red".parse::<Scopes>().is_err());
/// # Ok::<(), remex_access::scope::ScopeError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scopes {
    permissions: Vec<Permission>,
    /// Where files may be read; empty means everywhere.
    read: Vec<PathBuf>,
    /// Where files may be written; empty means everywhere.
    write: Vec<PathBuf>,
    /// Processes that may run at once.
    processes: Option<usize>,
    floor: Floor,
}

macro_rules! permissions {
    ($($(#[$doc:meta])* $variant:ident $word:literal;)*) => {
        /// One thing that a credential may allow.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Permission {
            $($(#[$doc])* $variant,)*
        }

        impl Permission {
            /// All permissions.
            pub const ALL: &[Self] = &[$(Self::$variant,)*];

            /// Returns the word that grants it.
            pub const fn word(self) -> &'static str {
                match self {
                    $(Self::$variant => $word,)*
                }
            }
        }
    };
}

permissions! {
    /// Start and control processes, and everything that [`Permission::ProcessesRead`] allows.
    Processes "processes";
    /// List processes and sessions, read output, wait, observe.
    ProcessesRead "processes:read";
    /// Read files, list directories, watch.
    FilesRead "files:read";
    /// Create, change and remove files.
    FilesWrite "files:write";
    /// Let files that are written, copied or changed have set-user-ID and set-group-ID.
    FilesSetId "files:setid";
    /// Make HTTP requests from the server.
    Http "http";
    /// Read `/metrics`.
    Metrics "metrics";
    /// Everything, and also the sessions of other identities.
    Admin "admin";
}

/// The least confinement that a credential demands of processes and file requests.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Default, serde::Serialize, serde::Deserialize,
)]
pub enum Floor {
    /// None.
    #[default]
    Unconfined,
    /// Write only to the workspace.
    WorkspaceWrite,
    /// Write nowhere.
    ReadOnly,
}

impl Floor {
    /// Returns the scope that asks for it.
    pub const fn word(self) -> Option<&'static str> {
        match self {
            Floor::Unconfined => None,
            Floor::WorkspaceWrite => Some("sandbox=workspace-write"),
            Floor::ReadOnly => Some("sandbox=read-only"),
        }
    }
}

/// How a file is accessed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileAccess {
    /// It is read or listed.
    Read,
    /// It is created, changed or removed.
    Write,
}

/// Why a text is not a list of scopes.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ScopeError {
    /// A word is not a scope.
    #[error("unknown scope `{word}`")]
    Unknown {
        /// The word.
        word: String,
    },
    /// The value of a scope cannot be used.
    #[error("invalid scope `{word}`: {reason}")]
    Invalid {
        /// The word.
        word: String,
        /// Why.
        reason: &'static str,
    },
    /// Nothing is allowed.
    #[error("it allows nothing")]
    Empty,
    /// The text is too long.
    #[error("the list of scopes is longer than {MAX_LEN} bytes")]
    TooLong,
}

impl ScopeError {
    /// Returns what to do about it.
    pub fn hint(&self) -> &'static str {
        match self {
            Self::Empty => "add what it allows, such as `processes`; `sandbox=…` only restricts that",
            Self::Unknown { .. } | Self::Invalid { .. } | Self::TooLong => {
                "use `all`, `processes[=MAX]`, `processes:read`, `files:read[=/PATH]`, `files:write[=/PATH]`, \
                 `files:setid`, `http`, `metrics`, `sandbox=read-only|workspace-write` or `admin`"
            }
        }
    }
}

impl Scopes {
    /// Returns the scopes that allow everything on the identity's own sessions.
    pub fn all() -> Self {
        let permissions = Permission::ALL.iter().copied().filter(|one| *one != Permission::Admin).collect();
        Scopes { permissions, read: Vec::new(), write: Vec::new(), processes: None, floor: Floor::Unconfined }
    }

    /// Returns whether a permission is granted.
    pub fn allow(&self, permission: Permission) -> bool {
        let is_implied = permission == Permission::ProcessesRead && self.has(Permission::Processes);
        self.has(permission) || self.has(Permission::Admin) || is_implied
    }

    /// Returns whether a real path, without links and `..`, may be accessed.
    pub fn allow_path(&self, path: &Path, access: FileAccess) -> bool {
        let prefixes = self.prefixes(access);
        prefixes.is_empty() || prefixes.iter().any(|prefix| path.starts_with(prefix))
    }

    /// Returns where files may be accessed; empty means everywhere.
    pub fn prefixes(&self, access: FileAccess) -> &[PathBuf] {
        match access {
            FileAccess::Read => &self.read,
            FileAccess::Write => &self.write,
        }
    }

    /// Returns whether some paths are off limits.
    pub fn has_path_limits(&self) -> bool {
        !self.read.is_empty() || !self.write.is_empty()
    }

    /// Returns how many processes may run at once.
    pub fn max_processes(&self) -> Option<usize> {
        self.processes
    }

    /// Returns the least confinement of processes and file requests.
    pub fn floor(&self) -> Floor {
        self.floor
    }

    fn has(&self, permission: Permission) -> bool {
        self.permissions.contains(&permission)
    }

    fn grant(&mut self, permission: Permission) {
        if !self.has(permission) {
            self.permissions.push(permission);
            self.permissions.sort_unstable();
        }
    }

    /// Adds what one word grants.
    fn add(&mut self, word: &str) -> Result<(), ScopeError> {
        let (name, value) = word.split_once('=').map_or((word, None), |(name, value)| (name, Some(value)));
        let invalid = |reason| ScopeError::Invalid { word: word.to_owned(), reason };
        match (name, value) {
            ("all", None) => Permission::ALL
                .iter()
                .filter(|one| **one != Permission::Admin)
                .for_each(|one| self.grant(*one)),
            ("processes", Some(max)) => {
                let max = max.parse().map_err(|_| invalid("the limit is not a number"))?;
                self.processes = Some(self.processes.map_or(max, |known| known.min(max)));
                self.grant(Permission::Processes);
            }
            ("files:read", Some(path)) => {
                self.read.push(prefix(path).map_err(invalid)?);
                self.grant(Permission::FilesRead);
            }
            ("files:write", Some(path)) => {
                self.write.push(prefix(path).map_err(invalid)?);
                self.grant(Permission::FilesWrite);
            }
            ("sandbox", Some(floor)) => {
                let floor = match floor {
                    "read-only" => Floor::ReadOnly,
                    "workspace-write" => Floor::WorkspaceWrite,
                    _ => return Err(invalid("it is neither `read-only` nor `workspace-write`")),
                };
                self.floor = self.floor.max(floor);
            }
            (_, None) => {
                let permission = Permission::ALL.iter().find(|one| one.word() == name);
                self.grant(*permission.ok_or_else(|| ScopeError::Unknown { word: word.to_owned() })?);
            }
            (_, Some(_)) => return Err(ScopeError::Unknown { word: word.to_owned() }),
        }
        Ok(())
    }
}

/// Decodes a path prefix: absolute, without `..`, with `%20` for a space.
fn prefix(text: &str) -> Result<PathBuf, &'static str> {
    let path = PathBuf::from(decode(text)?);
    if !path.is_absolute() {
        return Err("the path is not absolute");
    }
    if path.components().any(|component| component == std::path::Component::ParentDir) {
        return Err("the path contains `..`");
    }
    // Normalised: no `.` and no repeated slashes.
    Ok(path.components().collect())
}

fn decode(text: &str) -> Result<String, &'static str> {
    const INVALID: &str = "`%` is not followed by two hexadecimal digits";
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&first, after)) = rest.split_first() {
        rest = after;
        if first != b'%' {
            bytes.push(first);
            continue;
        }
        let digits =
            rest.get(..2).filter(|digits| digits.iter().all(u8::is_ascii_hexdigit)).ok_or(INVALID)?;
        let digits = std::str::from_utf8(digits).map_err(|_| INVALID)?;
        bytes.push(u8::from_str_radix(digits, 16).map_err(|_| INVALID)?);
        rest = &rest[2..];
    }
    if bytes.contains(&0) {
        return Err("the path contains a NUL byte");
    }
    String::from_utf8(bytes).map_err(|_| "the path is not UTF-8")
}

fn encode(path: &Path) -> String {
    let mut text = String::new();
    for character in path.to_string_lossy().chars() {
        if character.is_whitespace() || character.is_control() || matches!(character, '%' | ',') {
            let mut buffer = [0; 4];
            for byte in character.encode_utf8(&mut buffer).bytes() {
                text.push_str(&format!("%{byte:02X}"));
            }
        } else {
            text.push(character);
        }
    }
    text
}

impl FromStr for Scopes {
    type Err = ScopeError;

    fn from_str(text: &str) -> Result<Self, ScopeError> {
        if text.len() > MAX_LEN {
            return Err(ScopeError::TooLong);
        }
        let mut scopes = Scopes { permissions: Vec::new(), ..Scopes::all() };
        for word in text.split(|letter: char| letter == ',' || letter.is_whitespace()) {
            if !word.is_empty() {
                scopes.add(word)?;
            }
        }
        if scopes.permissions.is_empty() { Err(ScopeError::Empty) } else { Ok(scopes) }
    }
}

impl fmt::Display for Scopes {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut words = Vec::new();
        for permission in &self.permissions {
            match permission {
                Permission::Processes if self.processes.is_some() => {
                    words.extend(self.processes.map(|max| format!("processes={max}")));
                }
                Permission::FilesRead if !self.read.is_empty() => {
                    words.extend(self.read.iter().map(|path| format!("files:read={}", encode(path))));
                }
                Permission::FilesWrite if !self.write.is_empty() => {
                    words.extend(self.write.iter().map(|path| format!("files:write={}", encode(path))));
                }
                other => words.push(other.word().to_owned()),
            }
        }
        words.extend(self.floor.word().map(str::to_owned));
        out.write_str(&words.join(" "))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn scopes(text: &str) -> Scopes {
        text.parse().unwrap()
    }

    #[test]
    fn a_permission_is_granted_by_its_word_and_by_no_other() {
        for granted in Permission::ALL {
            for asked in Permission::ALL {
                let is_implied = *granted == Permission::Admin
                    || (*granted, *asked) == (Permission::Processes, Permission::ProcessesRead);
                assert_eq!(
                    scopes(granted.word()).allow(*asked),
                    granted == asked || is_implied,
                    "{granted:?} {asked:?}"
                );
            }
        }
        assert!(!Scopes::all().allow(Permission::Admin));
        assert_eq!(scopes("all"), Scopes::all());
    }

    #[test]
    fn a_prefix_allows_what_is_beneath_it_and_no_neighbour() {
        let scopes = scopes("files:read=/srv/data files:write=/srv/data/./out/ files:read=/with%20space");
        let may = |path: &str, access| scopes.allow_path(Path::new(path), access);
        assert!(
            may("/srv/data", FileAccess::Read)
                && may("/srv/data/a", FileAccess::Read)
                && may("/with space/x", FileAccess::Read)
        );
        assert!(
            !may("/srv/database", FileAccess::Read)
                && !may("/srv", FileAccess::Read)
                && !may("/", FileAccess::Read)
        );
        assert!(may("/srv/data/out/x", FileAccess::Write) && !may("/srv/data/a", FileAccess::Write));
    }

    #[test]
    fn the_narrowest_of_several_limits_holds() {
        let scopes = scopes("processes=8 processes=2 processes sandbox=read-only sandbox=workspace-write");
        assert_eq!((scopes.max_processes(), scopes.floor()), (Some(2), Floor::ReadOnly));
    }

    #[test]
    fn what_is_not_a_scope_is_refused_by_name() {
        for text in [
            "",
            " ,",
            "files",
            "Processes",
            "processes=",
            "processes=-1",
            "files:read=",
            "files:read=relative",
            "files:write=/a/../b",
            "files:read=/%zz",
            "files:read=/%00",
            "sandbox=none",
            "sandbox=read-only",
            "http=1",
            "admin=yes",
        ] {
            assert!(text.parse::<Scopes>().is_err(), "{text:?}");
        }
        let error = "processes fly".parse::<Scopes>().unwrap_err();
        assert_eq!(error.to_string(), "unknown scope `fly`");
    }

    proptest! {
        #[test]
        fn what_is_printed_parses_to_the_same(text in "((all|http|admin|processes=[0-9]{1,3}|files:(read|write)=/[a-z %é/]{0,12}|sandbox=read-only)[ ,]){0,6}") {
            if let Ok(scopes) = text.parse::<Scopes>() {
                prop_assert_eq!(scopes.to_string().parse::<Scopes>(), Ok(scopes));
            }
        }

        #[test]
        fn any_text_is_a_list_or_an_error(text in "\\PC{0,100}") {
            let _ = text.parse::<Scopes>();
        }
    }
}
