//! The files that tokens are checked against, read again when they change.
//!
//! Reading may hang, so the server calls [`CredentialFiles::reload`] on a thread for file work.

use std::{
    fs::File,
    io::{self, Read as _},
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard},
    time::{Duration, Instant},
};

use remex_base::{
    lock,
    regular_file::{open_given, open_regular},
    trace::LOG_TARGET,
    writers::{OthersCanWrite, check_writers},
};

use super::{ClaimPolicy, FileError, Key, KeyError, TokenFile, TokenGrant, Verifier};

/// The longest file, in bytes.
const MAX_FILE_LEN: u64 = 1 << 20;

/// How often to report that a file cannot be used.
const WARNING_INTERVAL: Duration = Duration::from_secs(60);

/// Opens a file for reading.
type Open = fn(&Path) -> io::Result<File>;

/// Where tokens and keys are, and what signed tokens must claim.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CredentialPaths {
    /// The token file.
    pub tokens: Option<PathBuf>,
    /// The secret of HS256 tokens.
    pub shared_secret: Option<PathBuf>,
    /// The public keys of EdDSA, ES256 and RS256 tokens.
    pub jwks: Option<PathBuf>,
    /// What signed tokens must claim.
    pub policy: ClaimPolicy,
}

/// The newest usable contents of credential files.
#[derive(Debug)]
pub struct CredentialFiles {
    paths: CredentialPaths,
    /// Replaced file by file on a reload; held briefly.
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    files: Files,
    loaded: Arc<Loaded>,
}

/// Each file by itself: an error in one does not block changes of the others.
#[derive(Clone, Debug, Default)]
struct Files {
    tokens: KnownContent<Vec<TokenGrant>>,
    shared_secret: KnownContent<Vec<Key>>,
    jwks: KnownContent<Vec<Key>>,
}

/// The newest usable content of one file.
#[derive(Clone, Debug, Default)]
struct KnownContent<T> {
    bytes: Option<Vec<u8>>,
    meaning: T,
    /// Why the current content cannot be used, and when that was last reported.
    rejected: Option<(String, Instant)>,
}

/// The result of a reload.
#[derive(Debug, Default)]
pub struct Reloaded {
    /// Whether a file had changed.
    pub is_changed: bool,
    /// Which files cannot be used, each once a minute; their previous contents stay in use.
    pub rejected: Vec<CredentialError>,
}

/// The tokens and keys in the files.
#[derive(Debug)]
pub struct Loaded {
    pub tokens: Vec<TokenGrant>,
    pub(crate) verifier: Option<Verifier>,
}

/// Why credential files cannot be used. Never contains a token or key.
#[derive(Debug, thiserror::Error)]
pub enum CredentialError {
    /// A file cannot be read.
    #[error("cannot read `{}`: {error}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// Why.
        error: io::Error,
    },
    /// The token file is malformed.
    #[error("cannot use the token file `{}`: {error}", path.display())]
    Tokens {
        /// The file.
        path: PathBuf,
        /// Why.
        error: FileError,
    },
    /// A secret or JWKS is malformed.
    #[error("cannot use `{}`: {error}", path.display())]
    Key {
        /// The file.
        path: PathBuf,
        /// Why.
        error: KeyError,
    },
    /// Other users can change a file.
    #[error(transparent)]
    Writable(#[from] OthersCanWrite),
}

impl CredentialError {
    /// Returns what to do about it.
    pub fn hint(&self) -> String {
        match self {
            CredentialError::Unreadable { .. } => "check the path and its permissions".to_owned(),
            CredentialError::Tokens { error, .. } => error.hint().to_owned(),
            CredentialError::Key { error, .. } => error.hint().to_owned(),
            CredentialError::Writable(error) => error.hint(),
        }
    }

    /// Logs that a file which a server uses cannot be read again.
    pub fn report(&self) {
        let hint = self.hint();
        tracing::error!(target: LOG_TARGET, error = %self, hint, "cannot use a credential file; its previous contents stay valid");
    }

    fn path(&self) -> &Path {
        match self {
            CredentialError::Unreadable { path, .. }
            | CredentialError::Tokens { path, .. }
            | CredentialError::Key { path, .. } => path,
            CredentialError::Writable(error) => error.file(),
        }
    }
}

impl CredentialFiles {
    /// Loads the files.
    ///
    /// # Errors
    ///
    /// If one of them cannot be read or used.
    pub fn load(paths: CredentialPaths) -> Result<Self, CredentialError> {
        Self::load_with(paths, open_given)
    }

    /// Loads the files for a running server that has used `known` so far.
    ///
    /// A file that was there before and cannot be used now keeps its known contents, so that the others count; the log
    /// says so.
    ///
    /// # Errors
    ///
    /// If a file that was not used before cannot be read or used, or is no regular file: a FIFO would make the server
    /// wait.
    pub fn load_again(paths: CredentialPaths, known: Option<&Self>) -> Result<Self, CredentialError> {
        let mut files = known.map(|known| known.files_at(&paths)).unwrap_or_default();
        let reloaded = paths.update(&mut files, open_regular, Instant::now());
        let is_new = |error: &CredentialError| !files.knows(&paths, error.path());
        let (mut new, known): (Vec<_>, Vec<_>) = reloaded.rejected.into_iter().partition(is_new);
        if !new.is_empty() {
            return Err(new.remove(0));
        }
        known.iter().for_each(CredentialError::report);
        Ok(Self::new(paths, files))
    }

    fn load_with(paths: CredentialPaths, open: Open) -> Result<Self, CredentialError> {
        let mut files = Files::default();
        let reloaded = paths.update(&mut files, open, Instant::now());
        match reloaded.rejected.into_iter().next() {
            Some(error) => Err(error),
            None => Ok(Self::new(paths, files)),
        }
    }

    fn new(paths: CredentialPaths, files: Files) -> Self {
        let loaded = Arc::new(files.loaded(&paths.policy));
        CredentialFiles { paths, state: Mutex::new(State { files, loaded }) }
    }

    /// Returns the contents of those files that also have these paths; their errors will be reported again.
    fn files_at(&self, paths: &CredentialPaths) -> Files {
        let mut files = self.state().files.clone();
        files.tokens.keep_if(self.paths.tokens == paths.tokens);
        files.shared_secret.keep_if(self.paths.shared_secret == paths.shared_secret);
        files.jwks.keep_if(self.paths.jwks == paths.jwks);
        files
    }

    /// Loads each file again that has changed.
    pub fn reload(&self) -> Reloaded {
        self.reload_at(Instant::now())
    }

    fn reload_at(&self, now: Instant) -> Reloaded {
        // Not locked while reading, which may hang; only one thread reloads.
        let mut files = self.state().files.clone();
        let reloaded = self.paths.update(&mut files, open_regular, now);
        let mut state = self.state();
        if reloaded.is_changed {
            state.loaded = Arc::new(files.loaded(&self.paths.policy));
        }
        state.files = files;
        reloaded
    }

    /// Returns the newest usable contents.
    pub fn loaded(&self) -> Arc<Loaded> {
        Arc::clone(&self.state().loaded)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }
}

impl PartialEq for CredentialFiles {
    /// Compares the paths and the policy: the contents follow from them.
    fn eq(&self, other: &Self) -> bool {
        self.paths == other.paths
    }
}

impl Eq for CredentialFiles {}

impl CredentialPaths {
    /// Reads all files, and replaces the contents of those that can be used.
    fn update(&self, files: &mut Files, open: Open, now: Instant) -> Reloaded {
        let mut reloaded = Reloaded::default();
        files.tokens.update(self.tokens.as_deref(), open, now, &mut reloaded, |path, bytes| {
            let file = TokenFile::parse(&String::from_utf8_lossy(bytes))
                .map_err(|error| CredentialError::Tokens { path: path.into(), error })?;
            if file.has_secrets {
                warn_if_others_can_read(path);
            }
            Ok(file.tokens)
        });
        let key_error = |path: &Path, error| CredentialError::Key { path: path.into(), error };
        files.shared_secret.update(self.shared_secret.as_deref(), open, now, &mut reloaded, |path, bytes| {
            let key = Key::shared_secret(bytes).map_err(|error| key_error(path, error))?;
            warn_if_others_can_read(path);
            Ok(vec![key])
        });
        files.jwks.update(self.jwks.as_deref(), open, now, &mut reloaded, |path, bytes| {
            Key::parse_jwks(bytes).map_err(|error| key_error(path, error))
        });
        reloaded
    }
}

impl<T: Default> KnownContent<T> {
    /// Forgets the content unless the same file is used again; forgets the rejection in any case.
    fn keep_if(&mut self, is_same: bool) {
        if is_same {
            self.rejected = None;
        } else {
            *self = Self::default();
        }
    }

    /// Reads the file, if there is one, and replaces the content if it has changed and can be used.
    fn update(
        &mut self,
        path: Option<&Path>,
        open: Open,
        now: Instant,
        reloaded: &mut Reloaded,
        parse: impl FnOnce(&Path, &[u8]) -> Result<T, CredentialError>,
    ) {
        let Some(path) = path else { return };
        let read = || {
            check_writers(path)?;
            read(path, open).map_err(|error| CredentialError::Unreadable { path: path.into(), error })
        };
        let changed = read().and_then(|bytes| {
            if self.bytes.as_ref() == Some(&bytes) {
                return Ok(None);
            }
            Ok(Some((parse(path, &bytes)?, bytes)))
        });
        match changed {
            Ok(None) => self.rejected = None,
            Ok(Some((meaning, bytes))) => {
                *self = KnownContent { bytes: Some(bytes), meaning, rejected: None };
                reloaded.is_changed = true;
            }
            Err(error) => {
                let reason = error.to_string();
                let is_said = self.rejected.as_ref().is_some_and(|(said, at)| {
                    *said == reason && now.saturating_duration_since(*at) < WARNING_INTERVAL
                });
                if !is_said {
                    self.rejected = Some((reason, now));
                    reloaded.rejected.push(error);
                }
            }
        }
    }
}

impl Files {
    /// Returns whether there is content of the file with this path.
    fn knows(&self, paths: &CredentialPaths, path: &Path) -> bool {
        let files = [
            (&paths.tokens, self.tokens.bytes.is_some()),
            (&paths.shared_secret, self.shared_secret.bytes.is_some()),
            (&paths.jwks, self.jwks.bytes.is_some()),
        ];
        files.iter().all(|(used, is_known)| used.as_deref() != Some(path) || *is_known)
    }

    fn loaded(&self, policy: &ClaimPolicy) -> Loaded {
        let keys: Vec<_> = self.shared_secret.meaning.iter().chain(&self.jwks.meaning).cloned().collect();
        let verifier = (!keys.is_empty()).then(|| Verifier::new(keys, policy.clone()));
        Loaded { tokens: self.tokens.meaning.clone(), verifier }
    }
}

fn read(path: &Path, open: Open) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    open(path)?.take(MAX_FILE_LEN + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > MAX_FILE_LEN {
        let problem = format!("it is longer than {MAX_FILE_LEN} bytes");
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, problem));
    }
    Ok(bytes)
}

fn warn_if_others_can_read(path: &Path) {
    let Ok(metadata) = path.metadata() else { return };
    if metadata.permissions().mode() & 0o044 != 0 {
        tracing::warn!(
            target: LOG_TARGET, path = %path.display(),
            "other users can read this file with secrets; run `chmod 600` on it, or store `sha256:` digests"
        );
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, io::Write as _, os::fd::AsRawFd as _};

    use rustix::fs::{CWD, Mode, mkfifoat};

    use super::*;

    const TOKEN: &str = "rV7xq0Dk2mYw9ZsT4uJc1A";
    const OTHER: &str = "0f2a61c9d84be35770ac19e2f4d6b8a3";

    #[test]
    fn a_usable_rewrite_takes_effect() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("tokens");
        let names = |files: &CredentialFiles| -> Vec<_> {
            files.loaded().tokens.iter().map(|token| token.name.clone()).collect()
        };
        let paths = CredentialPaths { tokens: Some(path.clone()), ..CredentialPaths::default() };
        assert!(matches!(CredentialFiles::load(paths.clone()), Err(CredentialError::Unreadable { .. })));
        fs::write(&path, "weak").unwrap();
        assert!(matches!(CredentialFiles::load(paths.clone()), Err(CredentialError::Tokens { .. })));
        fs::write(&path, format!("{TOKEN} name=a")).unwrap();
        let files = CredentialFiles::load(paths).unwrap();
        assert!(!files.reload().is_changed);

        // The same length within the same tick of the clock.
        fs::write(&path, format!("{TOKEN} name=b")).unwrap();
        assert!(files.reload().is_changed);
        fs::write(&path, format!("{TOKEN} name=c\n{OTHER} name=d")).unwrap();
        assert!(files.reload().is_changed);
        assert_eq!(names(&files), ["c", "d"]);

        for broken in ["", "weak"] {
            fs::write(&path, broken).unwrap();
            let now = Instant::now();
            assert_eq!(files.reload_at(now).rejected.len(), 1);
            assert_eq!(files.reload_at(now + WARNING_INTERVAL / 2).rejected.len(), 0, "said once a minute");
            assert_eq!(files.reload_at(now + WARNING_INTERVAL).rejected.len(), 1);
            assert_eq!(names(&files), ["c", "d"]);
        }
        fs::remove_file(&path).unwrap();
        assert_eq!(files.reload().rejected.len(), 1);
        assert_eq!(names(&files), ["c", "d"]);
        fs::write(&path, format!("{OTHER} name=e")).unwrap();
        assert!(files.reload().is_changed);
        assert_eq!(names(&files), ["e"]);
    }

    #[test]
    fn an_unusable_file_does_not_block_changes_of_another_one() {
        let directory = tempfile::tempdir().unwrap();
        let [tokens, secret] = ["tokens", "secret"].map(|name| directory.path().join(name));
        fs::write(&tokens, format!("{TOKEN} name=a\n{OTHER} name=b")).unwrap();
        fs::write(&secret, [7; 32]).unwrap();
        let paths = CredentialPaths {
            tokens: Some(tokens.clone()),
            shared_secret: Some(secret.clone()),
            ..CredentialPaths::default()
        };
        let files = CredentialFiles::load(paths).unwrap();
        fs::remove_file(&secret).unwrap();
        fs::write(&tokens, format!("{OTHER} name=b")).unwrap();
        let reloaded = files.reload();
        assert!(reloaded.is_changed && reloaded.rejected.len() == 1, "{reloaded:?}");
        let loaded = files.loaded();
        assert_eq!(loaded.tokens.iter().map(|token| token.name.as_str()).collect::<Vec<_>>(), ["b"]);
        assert!(loaded.verifier.is_some(), "the secret known so far stays in use");

        fs::write(&tokens, format!("{TOKEN} name=c")).unwrap();
        let again = CredentialFiles::load_again(files.paths.clone(), Some(&files)).unwrap();
        let loaded = again.loaded();
        assert_eq!(loaded.tokens.iter().map(|token| token.name.as_str()).collect::<Vec<_>>(), ["c"]);
        assert!(loaded.verifier.is_some(), "the secret known so far stays in use");
        let elsewhere = CredentialPaths { jwks: Some(directory.path().join("jwks")), ..files.paths.clone() };
        assert!(CredentialFiles::load_again(elsewhere, Some(&files)).is_err(), "a file that was never read");
    }

    #[test]
    fn a_pipe_of_the_shell_is_read_at_the_start_only_and_a_fifo_never() {
        let at = |path: &Path| CredentialPaths { tokens: Some(path.into()), ..CredentialPaths::default() };
        let (reader, mut writer) = io::pipe().unwrap();
        writer.write_all(format!("{TOKEN} name=a").as_bytes()).unwrap();
        drop(writer);
        let given = PathBuf::from(format!("/dev/fd/{}", reader.as_raw_fd()));
        let files = CredentialFiles::load(at(&given)).unwrap();
        // A read would wait for a writer.
        let error = files.reload().rejected.remove(0).to_string();
        assert!(error.contains("it is not a regular file"), "{error}");
        assert!(CredentialFiles::load_again(at(&given), None).is_err(), "it was never read");
        assert_eq!(CredentialFiles::load_again(at(&given), Some(&files)).unwrap().loaded().tokens.len(), 1);
        assert_eq!(files.loaded().tokens.len(), 1);

        let directory = tempfile::tempdir().unwrap();
        let fifo = directory.path().join("tokens");
        mkfifoat(CWD, &fifo, Mode::RUSR | Mode::WUSR).unwrap();
        let error = CredentialFiles::load(at(&fifo)).unwrap_err().to_string();
        assert!(error.contains("it is not a regular file"), "{error}");
    }

    #[test]
    fn an_endless_file_is_not_read_to_its_end() {
        let paths = CredentialPaths { jwks: Some("/dev/zero".into()), ..CredentialPaths::default() };
        assert!(matches!(CredentialFiles::load(paths), Err(CredentialError::Unreadable { .. })));
    }
}
