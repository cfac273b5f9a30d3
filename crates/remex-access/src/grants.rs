//! The configured grants: who may connect, and what each client may do.

use std::sync::Arc;

use remex_base::certificate::{CertificateName, PeerCertificate};

use crate::{
    scope::Scopes,
    token::{CredentialFiles, TokenGrant},
};

/// Who may connect, and what each client may do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Auth {
    /// What the server's own user may do over unix sockets, and over loopback while there are no tokens.
    pub owner: Scopes,
    /// Other users of this host that may connect in the same ways.
    pub users: Vec<UserGrant>,
    /// Tokens; with any, every client on a TCP port must present one, unless it has a certificate.
    pub tokens: Vec<TokenGrant>,
    /// Further tokens, and the keys of signed ones, in files that are read again when they change.
    pub files: Option<Arc<CredentialFiles>>,
    /// Which of the client certificates that TLS has verified may connect.
    pub certificates: CertificatePolicy,
    /// Whether a certificate without a SPIFFE URI and a DNS name is known by its common name; otherwise it is refused.
    /// Name constraints of CAs do not cover common names.
    pub common_names: bool,
    /// Browser origins that may connect.
    pub origins: Arc<[String]>,
    /// Names that the `Host` header may have besides IP addresses, `localhost`, and those of the host and the
    /// TLS certificate.
    pub hosts: Vec<String>,
}

impl Default for Auth {
    /// Admits the server's own user only.
    fn default() -> Self {
        Auth {
            owner: Scopes::all(),
            users: Vec::new(),
            tokens: Vec::new(),
            files: None,
            certificates: CertificatePolicy::Any(Scopes::all()),
            common_names: false,
            origins: Arc::default(),
            hosts: Vec::new(),
        }
    }
}

impl Auth {
    /// Returns whether clients on TCP ports need a bearer token, unless they have a certificate.
    pub fn requires_bearer(&self) -> bool {
        !self.tokens.is_empty() || self.files.is_some()
    }
}

/// A user of this host that may connect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UserGrant {
    /// The user id.
    pub uid: u32,
    /// The user name, for logs.
    pub name: String,
    /// What it may do.
    pub scopes: Scopes,
}

/// Which verified client certificates may connect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CertificatePolicy {
    /// All of them, with these scopes.
    Any(Scopes),
    /// Only those listed.
    Only(Vec<CertificateGrant>),
}

/// A client certificate that may connect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CertificateGrant {
    /// Its name, of the right kind.
    pub name: CertificateName,
    /// The SHA-256 digest of its public key, if only that key may connect.
    pub key_sha256: Option<[u8; 32]>,
    /// What it may do.
    pub scopes: Scopes,
}

impl CertificateGrant {
    /// Returns whether the grant is for this certificate.
    pub fn matches(&self, certificate: &PeerCertificate) -> bool {
        self.name == certificate.name && self.key_sha256.is_none_or(|key| key == certificate.key_sha256)
    }
}
