//! The configuration file of `remex serve`: parses it, names its mistakes by line, and writes it out again.
//!
//! One table, [`keys`], lists every key with its documentation; the parser, `--print-config` and the documentation come
//! from it. Start at [`ServerConfig`].

mod error;
mod keys;
mod print;
mod reader;
mod sandbox;

use std::{
    fmt::Write as _,
    io,
    net::SocketAddr,
    path::{Path, PathBuf},
    time::Duration,
};

use remex_client::environment::FileError;
use remex_server::{CertificateGrant, CgroupUse, Limits, SandboxFloor, Scopes, StartPolicy};

pub use error::{ConfigError, ConfigErrorKind, ConfigErrors};
pub use keys::{Key, Kind, keys};
pub use sandbox::{SandboxError, sandbox_floor};

use crate::environments;

/// The configuration of a server.
///
/// ```
/// use std::path::Path;
/// use remex::server_config::ServerConfig;
///
/// let text = "listen = ['unix:///run/remex.sock']\n[limits]\nsessions = 100\n";
/// let config = ServerConfig::parse(text, Path::new("server.toml")).unwrap();
/// assert_eq!(config.limits.sessions, 100);
///
/// let errors = ServerConfig::parse("[limits]\nsesions = 100\n", Path::new("server.toml")).unwrap_err();
/// assert_eq!(errors.to_string(), "server.toml:2: unknown key `sesions` in `[limits]`; did you mean `sessions`?");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerConfig {
    /// Where to listen, as `--listen` takes it.
    pub listen: Vec<String>,
    /// What to log, as `--log` takes it.
    pub log: String,
    /// When an idle server exits.
    pub exit_when_idle: Option<Duration>,
    /// Certificates of `wss://` listeners.
    pub tls: Tls,
    /// Who may connect.
    pub auth: Auth,
    /// Limits and timeouts, `shutdown_grace` and `max_detach_ttl` among them.
    pub limits: Limits,
    /// The audit file.
    pub audit: Audit,
    /// The metrics page.
    pub metrics: Metrics,
    /// The cgroup for processes with limits.
    pub cgroup: CgroupUse,
    /// The least confinement of what clients do, as `--sandbox` takes it.
    pub sandbox: Option<String>,
    /// What `workspace-write` allows to be written.
    pub workspace: Vec<String>,
    /// Which processes clients may start.
    pub starts: StartPolicy,
    /// The directory that makes processes and sessions survive the server.
    pub state: Option<PathBuf>,
}

/// Certificates of `wss://` listeners.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Tls {
    /// The certificate of the server; given with `key`.
    pub cert: Option<PathBuf>,
    /// Its private key; given with `cert`.
    pub key: Option<PathBuf>,
    /// The CAs that sign client certificates; given with `cert`.
    pub client_ca: Option<PathBuf>,
}

/// Who may connect, and what each may do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Auth {
    /// What the server's own user may do.
    pub owner_scope: Scopes,
    /// Other users of the host.
    pub users: Vec<User>,
    /// Browser origins.
    pub origins: Vec<String>,
    /// Names for the `Host` header.
    pub hosts: Vec<String>,
    /// The file with tokens.
    pub token_file: Option<PathBuf>,
    /// Digests of tokens.
    pub token_sha256: Vec<[u8; 32]>,
    /// What clients with a verified certificate may do while `certificates` is unset.
    pub certificate_scope: Scopes,
    /// The only certificates that may connect: none of them if the list is empty, all if there is no list.
    pub certificates: Option<Vec<CertificateGrant>>,
    /// Whether the common name of a certificate counts if it has no other name.
    pub certificate_common_names: bool,
    /// Signed tokens.
    pub jwt: Jwt,
}

/// A user of the host that may connect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct User {
    /// The name or number.
    pub name: String,
    /// What it may do.
    pub scope: Scopes,
}

/// How signed tokens (JWT) are verified; without `secret_file` and `jwks_file` they are not accepted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Jwt {
    /// The file with the secret that issuer and server share.
    pub secret_file: Option<PathBuf>,
    /// The file with the public keys of the issuer.
    pub jwks_file: Option<PathBuf>,
    /// The issuer that a token must have.
    pub issuer: Option<String>,
    /// The audience that a token must have.
    pub audience: Option<String>,
    /// By how much the clocks of issuer and server may differ.
    pub max_clock_skew: Duration,
}

/// The audit file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Audit {
    /// Where it is; without it nothing is recorded.
    pub file: Option<PathBuf>,
    /// The size at which a new file begins.
    pub max_bytes: u64,
    /// How many full files are kept.
    pub keep: usize,
    /// Whether requests are refused while they cannot be recorded.
    pub required: bool,
}

/// The metrics page.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Metrics {
    /// A port of its own for it.
    pub listen: Option<SocketAddr>,
    /// Whether it can be read without a credential on that port.
    pub open: bool,
}

impl Default for ServerConfig {
    /// What `remex serve` does without flags.
    fn default() -> Self {
        ServerConfig {
            listen: vec!["ws://127.0.0.1:0".to_owned()],
            log: "warn".to_owned(),
            exit_when_idle: None,
            tls: Tls::default(),
            auth: Auth {
                owner_scope: Scopes::all(),
                users: Vec::new(),
                origins: Vec::new(),
                hosts: Vec::new(),
                token_file: None,
                token_sha256: Vec::new(),
                certificate_scope: Scopes::all(),
                certificates: None,
                certificate_common_names: false,
                jwt: Jwt {
                    secret_file: None,
                    jwks_file: None,
                    issuer: None,
                    audience: None,
                    max_clock_skew: Duration::from_secs(30),
                },
            },
            limits: Limits::default(),
            audit: Audit { file: None, max_bytes: 64 << 20, keep: 10, required: false },
            metrics: Metrics::default(),
            cgroup: CgroupUse::Delegated,
            sandbox: None,
            workspace: Vec::new(),
            starts: StartPolicy::default(),
            state: None,
        }
    }
}

/// Reads the value of `cgroup`: an absolute path, `auto` or `none`.
///
/// # Errors
///
/// Why it is none of them.
///
/// ```
/// use remex::server_config::cgroup_use;
/// use remex_server::CgroupUse;
///
/// assert_eq!(cgroup_use("auto"), Ok(CgroupUse::Delegated));
/// assert_eq!(cgroup_use("remex"), Err("it is not an absolute path"));
/// ```
pub fn cgroup_use(text: &str) -> Result<CgroupUse, &'static str> {
    match text {
        "auto" => Ok(CgroupUse::Delegated),
        "none" => Ok(CgroupUse::None),
        path if Path::new(path).is_absolute() => Ok(CgroupUse::At(path.into())),
        _ => Err("it is not an absolute path"),
    }
}

/// Why a configuration file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The file cannot be read, or others can change it.
    #[error("cannot read `{}`: {}", path.display(), error.message)]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// Why.
        error: FileError,
    },
    /// The file has errors.
    #[error("{0}")]
    Invalid(#[from] ConfigErrors),
}

impl Error {
    /// Returns what to do about it; of errors in the file, each has a hint of its own.
    pub fn hint(&self) -> Option<&str> {
        match self {
            Error::Unreadable { error, .. } => {
                Some(error.hint.as_deref().unwrap_or("check the path and its permissions"))
            }
            Error::Invalid(_) => None,
        }
    }
}

impl ServerConfig {
    /// Parses the text of a configuration file; `file` is its path, which errors name and relative paths begin at.
    ///
    /// # Errors
    ///
    /// [`ConfigErrors`] with everything that is wrong, in the order of lines. What is wrong with the TOML itself comes
    /// alone.
    pub fn parse(text: &str, file: &Path) -> Result<Self, ConfigErrors> {
        reader::read(text, file)
    }

    /// Reads a configuration file. It decides who may run commands, so it is refused if others can write to it or
    /// replace it. All paths are absolute.
    ///
    /// # Errors
    ///
    /// [`Error`].
    pub fn read(path: &Path) -> Result<Self, Error> {
        let unreadable = |error| Error::Unreadable { path: path.to_owned(), error };
        let text = environments::trusted_text(path).map_err(unreadable)?;
        let mut config = Self::parse(&text, path)?;
        config
            .make_absolute()
            .map_err(|error| unreadable(FileError::new(error.kind(), error.to_string())))?;
        Ok(config)
    }

    /// Names all files and directories from the root, so that they mean the same to other processes, in other working
    /// directories, and wherever the configuration is printed to.
    ///
    /// # Errors
    ///
    /// If the working directory cannot be found.
    pub fn make_absolute(&mut self) -> io::Result<()> {
        let (tls, auth) = (&mut self.tls, &mut self.auth);
        let paths: [&mut Option<PathBuf>; 8] = [
            &mut tls.cert,
            &mut tls.key,
            &mut tls.client_ca,
            &mut auth.token_file,
            &mut auth.jwt.secret_file,
            &mut auth.jwt.jwks_file,
            &mut self.audit.file,
            &mut self.state,
        ];
        for path in paths.into_iter().flatten() {
            *path = std::path::absolute(&*path)?;
        }
        if let Some(word) = &mut self.sandbox
            && SandboxFloor::preset(word).is_none()
            && Path::new(word).exists()
            && let Some(profile) = std::path::absolute(&*word)?.to_str()
        {
            profile.clone_into(word);
        }
        Ok(())
    }

    /// Writes the configuration as a file in which every key stands with its documentation, and which parses to the
    /// same configuration.
    ///
    /// ```
    /// use std::path::Path;
    /// use remex::server_config::ServerConfig;
    ///
    /// let text = ServerConfig::default().to_toml();
    /// assert!(text.contains("\nsessions = 4096\n"));
    /// assert_eq!(ServerConfig::parse(&text, Path::new("/etc/remex/server.toml")).unwrap(), ServerConfig::default());
    /// ```
    pub fn to_toml(&self) -> String {
        print::to_toml(self)
    }

    /// Returns the keys whose values differ and that a reload cannot change, such as `listen` or `limits.answer_bytes`.
    pub fn needs_restart(&self, new: &Self) -> Vec<String> {
        let differs =
            |key: &&Key| key.reload == remex_server::Reload::Restart && key.show(self) != key.show(new);
        let names = keys();
        names.iter().filter(differs).map(Key::path).collect()
    }
}

/// Writes bytes as hexadecimal digits.
fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests;
