//! Servers that require credentials, and credentials by hand: right ones and wrong ones.

use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    time::{Duration, Instant, SystemTime},
};

use base64::{Engine as _, prelude::BASE64_URL_SAFE_NO_PAD};
use ring::hmac;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use tempfile::TempDir;

use super::{Client, Server, exchange, upgrade};

/// The secret of signed tokens.
pub(crate) const SECRET: &str = "Jf8zQ1m0Vt6rXc3LbH9wYd2KsN7pEaGu";

/// A server with a file of tokens or keys.
pub(crate) struct Guarded {
    pub(crate) server: Server,
    pub(crate) directory: TempDir,
    pub(crate) file: PathBuf,
}

impl Guarded {
    /// Starts a server that accepts the tokens in a file.
    pub(crate) fn with_tokens(text: &str) -> Self {
        Self::start("tokens", text, &["--ws-auth", "capability-token", "--ws-token-file"], &[])
    }

    /// Starts such a server that records everything in an audit file.
    pub(crate) fn audited(tokens: &str) -> (Self, AuditLog) {
        let directory = tempfile::tempdir().expect("a directory can be made");
        let path = directory.path().join("audit");
        let flags = ["--audit", path.to_str().expect("the path is text")];
        let guarded =
            Self::start("tokens", tokens, &["--ws-auth", "capability-token", "--ws-token-file"], &flags);
        (guarded, AuditLog { path, _directory: Some(directory) })
    }

    /// Starts a server that verifies JWTs with the secret, with further flags.
    pub(crate) fn with_secret(flags: &[&str]) -> Self {
        Self::start("secret", SECRET, &["--ws-auth", "signed-bearer-token", "--ws-shared-secret-file"], flags)
    }

    /// Starts a server with a file that the last of the flags `before` names.
    pub(crate) fn start(name: &str, text: &str, before: &[&str], after: &[&str]) -> Self {
        let directory = tempfile::tempdir().expect("a directory can be made");
        let file = directory.path().join(name);
        write_private(&file, text);
        // Many tokens here are wrong on purpose, and none should wait for its answer.
        let config = directory.path().join("server.toml");
        write_private(&config, "[limits]\nfailed_login_delay = '0s'\n");
        let [file_text, config] = [&file, &config].map(|path| path.to_str().expect("the path is text"));
        let flags = [before, &[file_text, "--config", config], after].concat();
        Guarded { server: Server::serve(&flags), directory, file }
    }

    /// Replaces the contents of the file in one step.
    pub(crate) fn rewrite(&self, text: &str) {
        let new = self.directory.path().join("new");
        write_private(&new, text);
        fs::rename(new, &self.file).expect("a file can be renamed");
    }

    pub(crate) fn status(&self, token: &str) -> u16 {
        upgrade_status(self.server.address(), Some(token))
    }

    pub(crate) fn connect(&self, token: &str) -> Client {
        Client::connect_with_token(self.server.address(), token)
    }

    pub(crate) fn client(&self, token: &str) -> Client {
        let client = self.connect(token);
        client.initialize();
        client
    }
}

/// Returns the token of this name, which has enough entropy for the server.
pub(crate) fn token_of(name: &str) -> String {
    let digest = Sha256::digest(format!("the token of {name}"));
    digest.iter().take(16).map(|byte| format!("{byte:02x}")).collect()
}

/// Writes a file that only its owner can read.
pub(crate) fn write_private(path: &Path, text: &str) {
    fs::write(path, text).expect("a file can be written");
    fs::set_permissions(path, fs::Permissions::from_mode(0o600)).expect("the file is ours");
}

/// Returns the status of an upgrade.
pub(crate) fn upgrade_status(address: &str, token: Option<&str>) -> u16 {
    let authorization = token.map(|token| format!("Authorization: Bearer {token}"));
    exchange(address, upgrade("/", authorization.as_deref().as_slice())).expect("an answer").status
}

/// Returns the time in seconds since 1970.
pub(crate) fn unix_now() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("it is after 1970").as_secs()
}

pub(crate) fn base64url(bytes: impl AsRef<[u8]>) -> String {
    BASE64_URL_SAFE_NO_PAD.encode(bytes)
}

/// Returns header and claims of a token, as they are signed.
pub(crate) fn unsigned(header: &Value, claims: &Value) -> String {
    format!("{}.{}", base64url(header.to_string()), base64url(claims.to_string()))
}

/// Signs with HS256, whatever the header says.
pub(crate) fn sign(header: &Value, claims: &Value, secret: &[u8]) -> String {
    let signed = unsigned(header, claims);
    let signature = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, secret), signed.as_bytes());
    format!("{signed}.{}", base64url(signature))
}

/// Signs as the issuer does.
pub(crate) fn jwt(claims: &Value) -> String {
    sign(&json!({"alg": "HS256", "typ": "JWT"}), claims, SECRET.as_bytes())
}

/// The audit file of a server.
pub(crate) struct AuditLog {
    path: PathBuf,
    _directory: Option<TempDir>,
}

impl AuditLog {
    pub(crate) fn new(path: PathBuf) -> Self {
        AuditLog { path, _directory: None }
    }

    /// Waits until a line has the given members.
    pub(crate) fn line(&self, members: &Value) -> Value {
        self.lines_with(members, 1).remove(0)
    }

    /// Waits until this many lines have the given members.
    pub(crate) fn lines_with(&self, members: &Value, count: usize) -> Vec<Value> {
        let deadline = Instant::now() + Duration::from_secs(60);
        let has_members = |line: &Value| {
            members.as_object().into_iter().flatten().all(|(name, value)| line[name] == *value)
        };
        loop {
            let all = self.lines();
            let found: Vec<_> = all.iter().filter(|line| has_members(line)).cloned().collect();
            if found.len() >= count {
                return found;
            }
            assert!(
                Instant::now() < deadline,
                "waited for {count} lines with {members}, found {} in\n{}",
                found.len(),
                self.text()
            );
            // Nothing tells that another program has written to a file, short of watching it.
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    pub(crate) fn lines(&self) -> Vec<Value> {
        self.text().lines().map(|line| serde_json::from_str(line).expect("a line is JSON")).collect()
    }

    pub(crate) fn text(&self) -> String {
        fs::read_to_string(&self.path).unwrap_or_default()
    }
}
