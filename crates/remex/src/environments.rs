//! The environments that the user has configured: in a file with token files, or in variables.
//!
//! Prints nothing. Start at [`configured`].

use std::{
    ffi::OsString,
    fmt,
    fs::File,
    io::{self, Read},
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

use remex_client::environment::{
    DefinitionError, DefinitionErrors, Definitions, FileError, Id, InvalidVariable,
};

/// The variables that may contain an address, in the order of precedence.
const VARIABLES: [&str; 2] = ["REMEX_URL", "CODEX_EXEC_SERVER_URL"];

/// The maximum length of an environments file or a token file; a longer one indicates a wrong path.
const MAX_FILE_LEN: u64 = 1 << 20;

/// The environments of the user, with warnings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Configured {
    /// The environments.
    pub definitions: Definitions,
    /// Where they come from.
    pub source: Source,
    /// Warnings for the user; none of them makes all environments unusable.
    pub warnings: Vec<Warning>,
}

impl Configured {
    /// Returns why a defined environment cannot be used: its token cannot be read.
    pub fn token_error(&self, id: &Id) -> Option<&DefinitionError> {
        self.warnings.iter().find_map(|warning| match warning {
            Warning::Token(mistake) if mistake.environment.as_deref() == Some(id.as_str()) => Some(mistake),
            _ => None,
        })
    }
}

/// Where environments come from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// The environments file.
    File(PathBuf),
    /// A variable.
    Variable(&'static str),
    /// Nothing is configured, so only `local` exists.
    BuiltIn,
}

/// A warning about the configuration.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Warning {
    /// Something in the file is ignored, or does not work.
    File(DefinitionError),
    /// The token of an environment cannot be read; the other environments are not affected.
    Token(DefinitionError),
    /// A file that contains a token is readable by other users.
    Exposed {
        /// The file.
        path: PathBuf,
    },
    /// A variable is ignored, because the file takes precedence.
    Replaced {
        /// The variable.
        variable: &'static str,
        /// The file.
        path: PathBuf,
    },
    /// The environments file of Codex is not read.
    CodexFile {
        /// The file of Codex.
        codex: PathBuf,
        /// The path that is read.
        ours: PathBuf,
    },
}

impl Warning {
    /// Returns what is unexpected, without what to do about it.
    pub fn message(&self) -> String {
        match self {
            Self::File(error) | Self::Token(error) => error.message(),
            Self::Exposed { path } => {
                format!("`{}` contains a token and is readable by other users", path.display())
            }
            Self::Replaced { variable, path } => {
                format!("{variable} is ignored, because `{}` exists", path.display())
            }
            Self::CodexFile { codex, .. } => format!("`{}` is not read", codex.display()),
        }
    }

    /// Returns what to do about it, if that is known.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::File(error) | Self::Token(error) => error.hint(),
            Self::Exposed { path } => {
                Some(format!("run `chmod 600 {}`, or use `auth_bearer_token_file`", path.display()))
            }
            Self::Replaced { .. } => Some("add its address to the file, or remove the file".to_owned()),
            Self::CodexFile { ours, .. } => {
                Some(format!("copy or link it to `{}` to use it", ours.display()))
            }
        }
    }
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message())?;
        self.hint().map_or(Ok(()), |hint| write!(f, "; {hint}"))
    }
}

/// Why the environments cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The file cannot be read, or is not safe to use.
    #[error("cannot read `{}`: {error}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// Why.
        error: FileError,
    },
    /// The file has errors.
    #[error("{0}")]
    Invalid(#[from] DefinitionErrors),
    /// A variable has an invalid value.
    #[error("{0}")]
    Variable(#[from] InvalidVariable),
}

impl Error {
    /// Returns what failed and why, without what to do about it.
    ///
    /// Several errors in one file are one line each, with what to do about it.
    pub fn message(&self) -> String {
        match self {
            Self::Unreadable { path, error } => {
                format!("cannot read `{}`: {}", path.display(), error.message)
            }
            Self::Invalid(errors) => errors.message(),
            Self::Variable(error) => error.message(),
        }
    }

    /// Returns what to do about it, if that is known.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Unreadable { error, .. } => error.hint.clone(),
            Self::Invalid(errors) => errors.hint(),
            Self::Variable(error) => Some(error.hint.clone()),
        }
    }
}

/// Returns the environments that the user has configured; `env` returns the value of a variable.
///
/// 1. The file `$XDG_CONFIG_HOME/remex/environments.toml`, which is `~/.config/remex/environments.toml` unless that
///    variable has an absolute path. If it exists, variables are ignored.
/// 2. `REMEX_URL`, if it is not empty, and then `CODEX_EXEC_SERVER_URL`: see [`Definitions::from_url`].
/// 3. `local`.
///
/// The `environments.toml` of Codex has the same format, but is not read: a program should not start to run commands on
/// another host because a different program was configured. If it is the only one, [`Warning::CodexFile`] reports it.
///
/// # Errors
///
/// [`Error`], also when a file is unsafe to use: see [`read`].
///
/// ```
/// use remex::environments::{Source, configured};
///
/// let found = configured(|name| (name == "REMEX_URL").then(|| "ws://127.0.0.1:4000".into())).unwrap();
/// assert_eq!(found.source, Source::Variable("REMEX_URL"));
/// assert_eq!(found.definitions.default.unwrap().as_str(), "remote");
/// ```
pub fn configured(env: impl Fn(&str) -> Option<OsString>) -> Result<Configured, Error> {
    let ours = file(&env);
    let env = |name: &str| env(name).filter(|value| !value.is_empty());
    let home = env("HOME").map(PathBuf::from);
    let variable = VARIABLES.into_iter().find_map(|name| Some((name, env(name)?)));

    if let Some(path) = ours.as_ref().filter(|path| is_there(path)) {
        let mut found = read(path)?;
        found
            .warnings
            .extend(variable.map(|(variable, _)| Warning::Replaced { variable, path: path.clone() }));
        return Ok(found);
    }
    let codex = env("CODEX_HOME").map(PathBuf::from).or_else(|| home.map(|home| home.join(".codex")));
    let codex = codex.map(|codex| codex.join("environments.toml")).filter(|path| path.exists());
    let warnings = codex.zip(ours).map(|(codex, ours)| Warning::CodexFile { codex, ours });
    let warnings = warnings.into_iter().collect();
    let Some((name, value)) = variable else {
        return Ok(Configured { definitions: Definitions::local(), source: Source::BuiltIn, warnings });
    };
    // A value that is not UTF-8 is rejected as an invalid address.
    let definitions = Definitions::from_url(Some(&value.to_string_lossy()), name)?;
    Ok(Configured { definitions, source: Source::Variable(name), warnings })
}

/// Returns the path of the environments file, whether it exists or not; `None` without a configuration or home
/// directory.
///
/// ```
/// use std::path::Path;
///
/// let path = remex::environments::file(|name| (name == "HOME").then(|| "/home/ann".into()));
/// assert_eq!(path.as_deref(), Some(Path::new("/home/ann/.config/remex/environments.toml")));
/// ```
pub fn file(env: impl Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    let directory = |name: &str| env(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let config = directory("XDG_CONFIG_HOME").filter(|path| path.is_absolute());
    let config = config.or_else(|| directory("HOME").map(|home| home.join(".config")))?;
    Some(config.join("remex/environments.toml"))
}

/// Reads an environments file at any path, and the token files that it names.
///
/// The permissions of the files are checked as ssh checks those of its own files:
///
/// - an environments file names programs to run, so it is refused when its group or others can write to it, or when it
///   belongs to a user other than this one and root;
/// - an environments file that contains a token and is readable by others is used, with [`Warning::Exposed`];
/// - a token file is refused when its group or others can write to it, and also when they can read it and it belongs
///   to this user. A token file of another user may be readable, because secrets are mounted into containers like that.
///
/// # Errors
///
/// [`Error`] when the environments file cannot be read, is refused, or has errors. An error in a token file affects
/// only one environment: see [`Configured::token_error`].
///
/// ```
/// use std::{fs, os::unix::fs::PermissionsExt};
/// use remex::environments::read;
///
/// let directory = tempfile::tempdir().unwrap();
/// let path = directory.path().join("environments.toml");
/// fs::write(&path, "[[environments]]\nid = 'dev'\nurl = 'ws://dev:4000'\n").unwrap();
/// fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
/// assert_eq!(read(&path).unwrap().definitions.environments.len(), 1);
/// ```
pub fn read(path: &Path) -> Result<Configured, Error> {
    let unreadable = |error| Error::Unreadable { path: path.to_owned(), error };
    let (text, access) = contents(path).map_err(unreadable)?;
    access.allows_programs(path).map_err(unreadable)?;
    checked(&text, path, &access)
}

/// Reads a token file, with the same checks as [`read`]; returns the first word of its first line that is not a comment.
///
/// # Errors
///
/// When it cannot be read, or is refused.
///
/// ```
/// use std::{fs, os::unix::fs::PermissionsExt};
/// use remex::environments::token;
///
/// let directory = tempfile::tempdir().unwrap();
/// let path = directory.path().join("token.txt");
/// fs::write(&path, "s3cret name=ci\n").unwrap();
/// fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
/// assert_eq!(token(&path).unwrap(), "s3cret");
/// fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
/// assert!(token(&path).is_err());
/// ```
pub fn token(path: &Path) -> Result<String, FileError> {
    let (token, access) = contents(path)?;
    access.allows_token(path)?;
    // A line of the server's token file serves as well: what follows the token is not sent.
    let lines = token.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    Ok(lines.take(1).flat_map(str::split_ascii_whitespace).next().unwrap_or_default().to_owned())
}

/// Checks a text as if it were the content of a private file of this user at `path`.
///
/// Use it to validate a change before writing the file.
///
/// # Errors
///
/// [`Error`] when the text has errors.
///
/// ```
/// use std::path::Path;
/// use remex::environments::check;
///
/// let path = Path::new("environments.toml");
/// assert!(check("[[environments]]\nid = 'dev'\nurl = 'ws://dev:4000'\n", path).is_ok());
/// assert!(check("default = 'dev'", path).unwrap_err().to_string().starts_with("environments.toml:1: "));
/// ```
pub fn check(text: &str, path: &Path) -> Result<Configured, Error> {
    checked(text, path, &Access { owner: Owner::User, mode: 0o600 })
}

fn checked(text: &str, path: &Path, access: &Access) -> Result<Configured, Error> {
    let mut draft = Definitions::parse(text, path)?;
    let mut warnings: Vec<_> = std::mem::take(&mut draft.warnings).into_iter().map(Warning::File).collect();
    if draft.has_token() && access.others_can_read() {
        warnings.push(Warning::Exposed { path: path.to_owned() });
    }
    let (definitions, mistakes) = draft.with_readable_tokens(token);
    warnings.extend(mistakes.into_iter().map(Warning::Token));
    Ok(Configured { definitions, source: Source::File(path.to_owned()), warnings })
}

/// Returns whether a path exists, even if it is unreadable or a dangling link: an error is better than silently running
/// commands on another host.
fn is_there(path: &Path) -> bool {
    !path
        .symlink_metadata()
        .is_err_and(|error| matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory))
}

/// Reads a file that decides what runs here, if no one but this user and root can change it.
#[cfg(target_os = "linux")]
pub(crate) fn trusted_text(path: &Path) -> Result<String, FileError> {
    let (text, access) = contents(path)?;
    access.allows_programs(path)?;
    remex_base::writers::check_writers(path).map_err(|error| denied(&error.reason(), &error.hint()))?;
    Ok(text)
}

/// Reads the token that clients of a server here present: like [`token`], and refused if others can replace the file.
///
/// # Errors
///
/// When it cannot be read, or is refused.
pub fn server_token(path: &Path) -> Result<String, FileError> {
    let token = token(path)?;
    #[cfg(target_os = "linux")]
    remex_base::writers::check_writers(path).map_err(|error| denied(&error.reason(), &error.hint()))?;
    Ok(token)
}

fn contents(path: &Path) -> Result<(String, Access), FileError> {
    // Opening a FIFO would block.
    if !path.metadata()?.is_file() {
        return Err(refusal(io::ErrorKind::InvalidInput, "it is not a regular file", "name a regular file"));
    }
    let file = File::open(path)?;
    let metadata = file.metadata()?;
    let mut text = String::new();
    if file.take(MAX_FILE_LEN + 1).read_to_string(&mut text)? as u64 > MAX_FILE_LEN {
        return Err(refusal(io::ErrorKind::InvalidData, "it is longer than 1 MiB", "check the path"));
    }
    let owner = match metadata.uid() {
        uid if uid == rustix::process::geteuid().as_raw() => Owner::User,
        0 => Owner::Root,
        _ => Owner::Other,
    };
    Ok((text, Access { owner, mode: metadata.mode() }))
}

/// The owner and permissions of a file.
struct Access {
    owner: Owner,
    mode: u32,
}

#[derive(PartialEq)]
enum Owner {
    User,
    Root,
    Other,
}

impl Access {
    fn allows_programs(&self, path: &Path) -> Result<(), FileError> {
        if self.owner == Owner::Other {
            return Err(denied(
                "it belongs to another user, who could make it run programs",
                &format!("take ownership with `chown` of `{}`", path.display()),
            ));
        }
        if self.others_can_write() {
            return Err(denied(
                "other users can write to it, and could make it run programs",
                &format!("run `chmod go-w {}`", path.display()),
            ));
        }
        Ok(())
    }

    fn allows_token(&self, path: &Path) -> Result<(), FileError> {
        if self.others_can_write() {
            let hint = format!("run `chmod 600 {}`", path.display());
            return Err(denied("other users can write to it", &hint));
        }
        if self.others_can_read() && self.owner == Owner::User {
            let hint = format!(
                "run `chmod 600 {}`, and change the token, because others may have read it",
                path.display()
            );
            return Err(denied("other users can read it", &hint));
        }
        Ok(())
    }

    fn others_can_write(&self) -> bool {
        self.mode & 0o022 != 0
    }

    fn others_can_read(&self) -> bool {
        self.mode & 0o044 != 0
    }
}

fn denied(message: &str, hint: &str) -> FileError {
    refusal(io::ErrorKind::PermissionDenied, message, hint)
}

fn refusal(kind: io::ErrorKind, message: &str, hint: &str) -> FileError {
    FileError::new(kind, message).hint(hint)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_judged_by_owner_and_permissions() {
        use Owner::{Other, Root, User};
        for (owner, mode, programs, token) in [
            (User, 0o600, true, true),
            (User, 0o644, true, false),
            (User, 0o640, true, false),
            (User, 0o620, false, false),
            (User, 0o602, false, false),
            (Root, 0o644, true, true),
            (Root, 0o664, false, false),
            (Other, 0o644, false, true),
            (Other, 0o600, false, true),
            (Other, 0o606, false, false),
        ] {
            let access = Access { owner, mode: 0o100_000 | mode };
            assert_eq!(access.allows_programs(Path::new("a")).is_ok(), programs, "{mode:o}");
            assert_eq!(access.allows_token(Path::new("a")).is_ok(), token, "{mode:o}");
        }
    }
}
