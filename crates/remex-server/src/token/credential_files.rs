//! The files that tokens are checked against, read again when they change.
//!
//! Reading may hang, so the server calls [`CredentialFiles::reload`] on a thread for file work.

use std::{
    fs::File,
    io::{self, Read as _},
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use remex_rpc::open_regular;

use super::{ClaimPolicy, FileError, Key, KeyError, TokenFile, TokenGrant, Verifier};

/// The longest file, in bytes.
const MAX_FILE_LEN: u64 = 1 << 20;

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
    /// Replaced as a whole on a reload; held briefly.
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    contents: Contents,
    loaded: Arc<Loaded>,
    /// Why the contents of the files cannot be used now; reported once.
    rejected: Option<String>,
}

/// The bytes of the files, in the order of the paths.
type Contents = [Option<Vec<u8>>; 3];

/// The tokens and keys in the files.
#[derive(Debug)]
pub(crate) struct Loaded {
    pub(crate) tokens: Vec<TokenGrant>,
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
}

impl CredentialError {
    /// Returns what to do about it.
    pub fn hint(&self) -> &'static str {
        match self {
            CredentialError::Unreadable { .. } => "check the path and its permissions",
            CredentialError::Tokens { error, .. } => error.hint(),
            CredentialError::Key { error, .. } => error.hint(),
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
        Self::load_with(paths, |path| File::open(path))
    }

    /// Loads the files for a server that runs already.
    ///
    /// # Errors
    ///
    /// Like [`CredentialFiles::load`], or if one of them is no regular file: a FIFO would make the server wait.
    pub fn load_again(paths: CredentialPaths) -> Result<Self, CredentialError> {
        Self::load_with(paths, open_regular)
    }

    fn load_with(paths: CredentialPaths, open: Open) -> Result<Self, CredentialError> {
        let contents = paths.read(open)?;
        let loaded = Arc::new(paths.parse(&contents)?);
        let state = Mutex::new(State { contents, loaded, rejected: None });
        Ok(CredentialFiles { paths, state })
    }

    /// Loads the files again if they have changed; returns whether they had.
    ///
    /// # Errors
    ///
    /// Like [`CredentialFiles::load_again`], once for each cause; the previous contents stay in use.
    pub fn reload(&self) -> Result<bool, CredentialError> {
        let parsed = self.paths.read(open_regular).and_then(|contents| {
            if self.state().contents == contents {
                return Ok(None);
            }
            let loaded = self.paths.parse(&contents)?;
            Ok(Some((contents, Arc::new(loaded))))
        });
        let mut state = self.state();
        match parsed {
            Ok(None) => {
                state.rejected = None;
                Ok(false)
            }
            Ok(Some((contents, loaded))) => {
                *state = State { contents, loaded, rejected: None };
                Ok(true)
            }
            Err(error) => {
                let reason = error.to_string();
                if state.rejected.replace(reason.clone()) == Some(reason) { Ok(false) } else { Err(error) }
            }
        }
    }

    /// Returns the newest usable contents.
    pub(crate) fn loaded(&self) -> Arc<Loaded> {
        Arc::clone(&self.state().loaded)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
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
    fn read(&self, open: Open) -> Result<Contents, CredentialError> {
        let read = |path: &Option<PathBuf>| {
            path.as_deref()
                .map(|path| {
                    read(path, open).map_err(|error| CredentialError::Unreadable { path: path.into(), error })
                })
                .transpose()
        };
        Ok([read(&self.tokens)?, read(&self.shared_secret)?, read(&self.jwks)?])
    }

    fn parse(&self, contents: &Contents) -> Result<Loaded, CredentialError> {
        let [tokens, secret, jwks] = contents;
        let mut loaded = Loaded { tokens: Vec::new(), verifier: None };
        if let (Some(path), Some(bytes)) = (&self.tokens, tokens) {
            let text = String::from_utf8_lossy(bytes);
            let file = TokenFile::parse(&text)
                .map_err(|error| CredentialError::Tokens { path: path.clone(), error })?;
            if file.has_secrets {
                warn_if_others_can_read(path);
            }
            loaded.tokens = file.tokens;
        }
        let mut keys = Vec::new();
        if let (Some(path), Some(bytes)) = (&self.shared_secret, secret) {
            let key = Key::shared_secret(bytes);
            keys.push(key.map_err(|error| CredentialError::Key { path: path.clone(), error })?);
            warn_if_others_can_read(path);
        }
        if let (Some(path), Some(bytes)) = (&self.jwks, jwks) {
            let public = Key::parse_jwks(bytes);
            keys.extend(public.map_err(|error| CredentialError::Key { path: path.clone(), error })?);
        }
        if !keys.is_empty() {
            loaded.verifier = Some(Verifier::new(keys, self.policy.clone()));
        }
        Ok(loaded)
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
            path = %path.display(),
            "other users can read this file with secrets; run `chmod 600` on it, or store `sha256:` digests"
        );
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use rustix::fs::{CWD, Mode, mkfifoat};

    use super::*;

    const TOKEN: &str = "rV7xq0Dk2mYw9ZsT4uJc1A";
    const OTHER: &str = "0f2a61c9d84be35770ac19e2f4d6b8a3";

    #[test]
    fn a_rewrite_counts_if_it_can_be_used() {
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
        assert!(!files.reload().unwrap());

        // The same length within the same tick of the clock.
        fs::write(&path, format!("{TOKEN} name=b")).unwrap();
        assert!(files.reload().unwrap());
        fs::write(&path, format!("{TOKEN} name=c\n{OTHER} name=d")).unwrap();
        assert!(files.reload().unwrap());
        assert_eq!(names(&files), ["c", "d"]);

        for broken in ["", "weak"] {
            fs::write(&path, broken).unwrap();
            assert!(files.reload().is_err());
            assert!(!files.reload().unwrap(), "reported once");
            assert_eq!(names(&files), ["c", "d"]);
        }
        fs::remove_file(&path).unwrap();
        assert!(files.reload().is_err());
        assert_eq!(names(&files), ["c", "d"]);
        fs::write(&path, format!("{OTHER} name=e")).unwrap();
        assert!(files.reload().unwrap());
        assert_eq!(names(&files), ["e"]);
    }

    #[test]
    fn a_fifo_is_read_at_the_start_only() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("tokens");
        let paths = CredentialPaths { tokens: Some(path.clone()), ..CredentialPaths::default() };
        mkfifoat(CWD, &path, Mode::RUSR | Mode::WUSR).unwrap();
        let writer = std::thread::spawn({
            let path = path.clone();
            move || fs::write(path, format!("{TOKEN} name=a"))
        });
        let files = CredentialFiles::load(paths.clone()).unwrap();
        writer.join().unwrap().unwrap();
        // A read would wait for a writer.
        let error = files.reload().unwrap_err().to_string();
        assert!(error.contains("it is not a regular file"), "{error}");
        assert!(CredentialFiles::load_again(paths).is_err());
        assert_eq!(files.loaded().tokens.len(), 1);
        fs::remove_file(&path).unwrap();
        fs::write(&path, format!("{OTHER} name=b")).unwrap();
        assert!(files.reload().unwrap());
    }

    #[test]
    fn an_endless_file_is_not_read_to_its_end() {
        let paths = CredentialPaths { jwks: Some("/dev/zero".into()), ..CredentialPaths::default() };
        assert!(matches!(CredentialFiles::load(paths), Err(CredentialError::Unreadable { .. })));
    }
}
