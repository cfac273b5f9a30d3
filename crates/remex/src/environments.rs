//! Which environments the user has configured: finds the file, reads it and its token files, or asks the variables.
//!
//! Prints nothing. Start at [`configured`].

use std::{
    ffi::OsString,
    fs::File,
    io::{self, Read},
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

use remex_client::environment::{DefinitionError, DefinitionErrors, Definitions, Id, InvalidVariable};

/// The variables with an address, in the order in which they are asked.
const VARIABLES: [&str; 2] = ["REMEX_URL", "CODEX_EXEC_SERVER_URL"];

/// The longest environments file and the longest token file; a longer one is a mistake in the path.
const MAX_FILE_LEN: u64 = 1 << 20;

/// The environments of the user, and what to tell about them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Configured {
    /// The environments.
    pub definitions: Definitions,
    /// Where they come from.
    pub source: Source,
    /// What to tell the user: nothing of it makes all of them unusable.
    pub warnings: Vec<Warning>,
}

impl Configured {
    /// Returns why an environment cannot be used although it is there: its token cannot be had.
    pub fn obstacle(&self, id: &Id) -> Option<&DefinitionError> {
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
    /// Nothing is configured, so there is `local`.
    BuiltIn,
}

/// What the user may not expect.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Warning {
    /// Something in the file is ignored, or will not work.
    #[error("{0}")]
    File(DefinitionError),
    /// The token of an environment cannot be had; the others are none the worse for it.
    #[error("{0}")]
    Token(DefinitionError),
    /// A file with a token in it that others can read.
    #[error("`{}` has a token in it, and others can read it; run `chmod 600` on it, or use `auth_bearer_token_file`", path.display())]
    Exposed {
        /// The file.
        path: PathBuf,
    },
    /// A variable that the file replaces.
    #[error("{variable} is ignored, because `{}` is there; add its address to the file, or remove the file", path.display())]
    Replaced {
        /// The variable.
        variable: &'static str,
        /// The file.
        path: PathBuf,
    },
    /// A file of Codex that is not read.
    #[error("`{}` is not read; copy or link it to `{}` to use it", codex.display(), ours.display())]
    CodexFile {
        /// What is there.
        codex: PathBuf,
        /// Where it would be read.
        ours: PathBuf,
    },
}

/// Why there are no environments.
#[derive(Debug, thiserror::Error)]
pub enum Problem {
    /// The file cannot be read.
    #[error("cannot read `{}`: {error}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// Why.
        error: io::Error,
    },
    /// The file says something wrong.
    #[error("{0}")]
    Mistakes(#[from] DefinitionErrors),
    /// A variable says something wrong.
    #[error("{0}")]
    Variable(#[from] InvalidVariable),
}

/// Returns the environments that the user has configured; `env` returns the value of a variable.
///
/// 1. The file `$XDG_CONFIG_HOME/remex/environments.toml`, which is `~/.config/remex/environments.toml` unless that
///    variable has an absolute path. If it is there, it alone counts.
/// 2. `REMEX_URL`, if it is not empty, and then `CODEX_EXEC_SERVER_URL`: see [`Definitions::from_url`].
/// 3. `local`.
///
/// The `environments.toml` of Codex has the same format, but is not read from its place: a program should not begin to
/// run things elsewhere because another one was configured. If it is the only one, [`Warning::CodexFile`] tells.
///
/// # Errors
///
/// [`Problem`], also when a file is not safe to use: see [`read`].
///
/// ```
/// use remex::environments::{Source, configured};
///
/// let found = configured(|name| (name == "REMEX_URL").then(|| "ws://127.0.0.1:4000".into())).unwrap();
/// assert_eq!(found.source, Source::Variable("REMEX_URL"));
/// assert_eq!(found.definitions.default.unwrap().as_str(), "remote");
/// ```
pub fn configured(env: impl Fn(&str) -> Option<OsString>) -> Result<Configured, Problem> {
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
    // What is not UTF-8 is no address, and is refused as one.
    let definitions = Definitions::from_url(Some(&value.to_string_lossy()), name)?;
    Ok(Configured { definitions, source: Source::Variable(name), warnings })
}

/// Returns where the environments file is, or would be; `None` where there is neither a configuration directory nor a
/// home.
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

/// Reads an environments file, wherever it is, and the token files that it names.
///
/// What others can do to the files is judged as ssh does it with its own:
///
/// - an environments file names programs to run, so it is refused when its group or others can write to it, or when it
///   belongs to somebody other than this user and root;
/// - an environments file that has a token in it and that others can read is used, with [`Warning::Exposed`];
/// - a token file is refused when its group or others can write to it, and also when they can read it and it belongs
///   to this user. What belongs to somebody else may be readable: whoever mounts secrets into a container decides that.
///
/// # Errors
///
/// [`Problem`] when the environments file cannot be read or is refused, or has mistakes. What is wrong with a token file
/// concerns one environment alone: see [`Configured::obstacle`].
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
pub fn read(path: &Path) -> Result<Configured, Problem> {
    let unreadable = |error| Problem::Unreadable { path: path.to_owned(), error };
    let (text, access) = contents(path).map_err(unreadable)?;
    access.allows_programs().map_err(unreadable)?;
    judged(&text, path, &access)
}

/// Reads a token file, under the rules that [`read`] has for those of environments; white space around the token is
/// dropped.
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
/// fs::write(&path, "s3cret\n").unwrap();
/// fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
/// assert_eq!(token(&path).unwrap(), "s3cret");
/// fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
/// assert!(token(&path).is_err());
/// ```
pub fn token(path: &Path) -> io::Result<String> {
    let (token, access) = contents(path)?;
    access.allows_token().map(|()| token.trim().to_owned())
}

/// Judges a text as if it were the file at `path` already, of this user and for nobody else.
///
/// So whoever changes a file knows before that the new one is good.
///
/// # Errors
///
/// [`Problem`] when the text has mistakes.
///
/// ```
/// use std::path::Path;
/// use remex::environments::judge;
///
/// let path = Path::new("environments.toml");
/// assert!(judge("[[environments]]\nid = 'dev'\nurl = 'ws://dev:4000'\n", path).is_ok());
/// assert!(judge("default = 'dev'", path).unwrap_err().to_string().starts_with("environments.toml:1: "));
/// ```
pub fn judge(text: &str, path: &Path) -> Result<Configured, Problem> {
    judged(text, path, &Access { owner: Owner::User, mode: 0o600 })
}

fn judged(text: &str, path: &Path, access: &Access) -> Result<Configured, Problem> {
    let mut draft = Definitions::parse(text, path)?;
    let mut warnings: Vec<_> = std::mem::take(&mut draft.warnings).into_iter().map(Warning::File).collect();
    if draft.has_token() && access.others_can_read() {
        warnings.push(Warning::Exposed { path: path.to_owned() });
    }
    let (definitions, mistakes) = draft.with_readable_tokens(token);
    warnings.extend(mistakes.into_iter().map(Warning::Token));
    Ok(Configured { definitions, source: Source::File(path.to_owned()), warnings })
}

/// Tells whether something is there, even if it cannot be read or leads nowhere: better an error than a silent change
/// of where things run.
fn is_there(path: &Path) -> bool {
    !path
        .symlink_metadata()
        .is_err_and(|error| matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory))
}

fn contents(path: &Path) -> io::Result<(String, Access)> {
    // A FIFO would be waited for.
    if !path.metadata()?.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not a file"));
    }
    let file = File::open(path)?;
    let metadata = file.metadata()?;
    let mut text = String::new();
    if file.take(MAX_FILE_LEN + 1).read_to_string(&mut text)? as u64 > MAX_FILE_LEN {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "it is longer than 1 MiB; check the path"));
    }
    let owner = match metadata.uid() {
        uid if uid == rustix::process::geteuid().as_raw() => Owner::User,
        0 => Owner::Root,
        _ => Owner::Other,
    };
    Ok((text, Access { owner, mode: metadata.mode() }))
}

/// Who can do what with a file.
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
    fn allows_programs(&self) -> io::Result<()> {
        if self.owner == Owner::Other {
            return Err(refusal(
                "it belongs to somebody else, who could have programs run; take it over with `chown`",
            ));
        }
        if self.others_can_write() {
            return Err(refusal(
                "others can write to it, and could have programs run; run `chmod go-w` on it",
            ));
        }
        Ok(())
    }

    fn allows_token(&self) -> io::Result<()> {
        if self.others_can_write() {
            return Err(refusal("others can write to it; run `chmod 600` on it"));
        }
        if self.others_can_read() && self.owner == Owner::User {
            return Err(refusal("others can read it; run `chmod 600` on it, and change the token"));
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

fn refusal(reason: &str) -> io::Error {
    io::Error::new(io::ErrorKind::PermissionDenied, reason)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_judged_by_who_owns_them_and_what_others_can_do() {
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
            assert_eq!(access.allows_programs().is_ok(), programs, "{mode:o}");
            assert_eq!(access.allows_token().is_ok(), token, "{mode:o}");
        }
    }
}
