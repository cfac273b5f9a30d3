//! Identities: a session belongs to one, and each sees only its own sessions. Credentials: what an identity may do.

use std::{fmt, sync::Arc, time::SystemTime};

use remex_rpc::tls::CertificateName;

use crate::{
    scope::{Permission, Scopes},
    token::TokenGrant,
};

/// On whose behalf a connection acts.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Identity {
    /// The user that the server runs as, over a unix socket or loopback.
    Owner,
    /// Another user of this host, over a unix socket or loopback.
    User { uid: u32, name: Arc<str> },
    /// Clients with a token of this name, whichever it is; `digest` tells tokens apart that were given no name.
    Token { name: Arc<str>, digest: Option<[u8; 32]> },
    /// Clients with a certificate that has this name.
    Certificate(CertificateName),
    /// Clients with a signed token about this subject.
    Subject { issuer: Arc<str>, subject: Arc<str> },
    /// The program that the server is a part of, over memory.
    Program,
    /// A connection that no one else can make, on stdio, is its own identity.
    Own(u64),
}

impl Identity {
    /// Returns the identity of a token: that of its name, so that a rotated token finds its sessions.
    pub(crate) fn token(name: &str, sha256: &[u8; 32]) -> Self {
        let is_unnamed = name == TokenGrant::default_name(sha256);
        Identity::Token { name: name.into(), digest: is_unnamed.then_some(*sha256) }
    }
}

impl fmt::Display for Identity {
    /// Writes what logs, listings and the audit file show.
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Identity::Owner => out.write_str("owner"),
            Identity::User { name, .. } => write!(out, "user:{name}"),
            Identity::Token { name, .. } => write!(out, "token:{name}"),
            Identity::Certificate(name) => write!(out, "certificate:{}", name.to_string().escape_debug()),
            Identity::Subject { issuer, subject } => {
                // An issuer may write anything into its tokens, which must not forge lines of the log.
                write!(out, "subject:{}@{}", subject.escape_debug(), issuer.escape_debug())
            }
            Identity::Program => out.write_str("program"),
            Identity::Own(number) => write!(out, "private:{number}"),
        }
    }
}

/// An authenticated identity, with what it may do and until when.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Credential {
    pub(crate) identity: Identity,
    pub(crate) scopes: Arc<Scopes>,
    pub(crate) expires_at: Option<SystemTime>,
}

impl Credential {
    /// Returns whether it gives access to the sessions of other identities.
    pub(crate) fn is_admin(&self) -> bool {
        self.scopes.allow(Permission::Admin)
    }

    /// Returns the credential of a connection that no one else can make.
    pub(crate) fn own(number: u64) -> Self {
        Self::unlimited(Identity::Own(number))
    }

    /// Returns the credential of the program that the server is a part of.
    pub(crate) fn program() -> Self {
        Self::unlimited(Identity::Program)
    }

    fn unlimited(identity: Identity) -> Self {
        Credential { identity, scopes: Arc::new(Scopes::all()), expires_at: None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_identity_cannot_forge_a_line_of_the_log() {
        let [subject, issuer] = ["ann\nERROR", "\u{1b}[2K"].map(Arc::from);
        let shown = Identity::Subject { issuer, subject }.to_string();
        assert_eq!(shown, "subject:ann\\nERROR@\\u{1b}[2K");
        assert_eq!(Identity::Certificate(CertificateName::dns("a\rb")).to_string(), "certificate:dns:a\\rb");
    }
}
