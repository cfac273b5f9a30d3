//! Identities: a session belongs to one, and each sees only its own sessions. Credentials: what an identity may do.

use std::{
    fmt::{self, Write as _},
    sync::Arc,
    time::SystemTime,
};

use remex_base::certificate::CertificateName;

use crate::{
    audit::Claims,
    scope::{Permission, Scopes},
    token::TokenGrant,
};

/// On whose behalf a connection acts.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Identity {
    /// The user that the server runs as, over a unix socket or loopback.
    Owner,
    /// Another user of this host, over a unix socket or loopback.
    User {
        /// Its user id.
        uid: u32,
        /// Its user name, for logs.
        name: Arc<str>,
    },
    /// Clients with a token of this name, whichever it is.
    Token {
        /// The name of the token.
        name: Arc<str>,
        /// Distinguishes tokens without a name.
        digest: Option<[u8; 32]>,
    },
    /// Clients with a certificate that has this name.
    Certificate(CertificateName),
    /// Clients with a signed token about this subject.
    Subject {
        /// Who issued the token.
        issuer: Arc<str>,
        /// Whom it is about.
        subject: Arc<str>,
    },
    /// The program that the server is a part of, over memory.
    Program,
    /// A connection on stdio, which no other client can make, is its own identity.
    Own(u64),
}

impl Identity {
    /// Returns the identity of a token: that of its name, so that a rotated token finds its sessions.
    pub fn token(name: &str, sha256: &[u8; 32]) -> Self {
        let is_unnamed = name == TokenGrant::default_name(sha256);
        Identity::Token { name: name.into(), digest: is_unnamed.then_some(*sha256) }
    }
}

impl fmt::Display for Identity {
    /// Writes what logs, listings and the audit file show: one word, which names no other identity.
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let out = &mut OneWord(out);
        match self {
            Identity::Owner => out.write_str("owner"),
            Identity::User { name, .. } => write!(out, "user:{name}"),
            Identity::Token { name, .. } => write!(out, "token:{name}"),
            Identity::Certificate(name) => write!(out, "certificate:{}", name.to_string().escape_debug()),
            Identity::Subject { issuer, subject } => {
                // An issuer may write anything into its tokens, which must not forge lines of the log.
                // The last `@` separates them, so the issuer has none of its own.
                let issuer = issuer.escape_debug().to_string().replace('@', "\\u{40}");
                write!(out, "subject:{}@{issuer}", subject.escape_debug())
            }
            Identity::Program => out.write_str("program"),
            Identity::Own(number) => write!(out, "private:{number}"),
        }
    }
}

impl Identity {
    /// Returns what a signed token says about its bearer.
    pub fn claims(&self) -> Option<Claims> {
        match self {
            Identity::Subject { issuer, subject } => {
                Some(Claims { issuer: Arc::clone(issuer), subject: Arc::clone(subject) })
            }
            _ => None,
        }
    }
}

/// Escapes white space and invisible characters, because names are unquoted in log lines.
struct OneWord<'a, 'b>(&'a mut fmt::Formatter<'b>);

impl fmt::Write for OneWord<'_, '_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for letter in text.chars() {
            let is_shown =
                letter.is_ascii_graphic() || (!letter.is_ascii() && letter.escape_debug().len() == 1);
            if is_shown {
                self.0.write_char(letter)?;
            } else {
                write!(self.0, "{}", letter.escape_unicode())?;
            }
        }
        Ok(())
    }
}

/// An authenticated identity, with what it may do and until when.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Credential {
    /// On whose behalf it acts.
    pub identity: Identity,
    /// What it may do.
    pub scopes: Arc<Scopes>,
    /// When it becomes invalid.
    pub expires_at: Option<SystemTime>,
}

impl Credential {
    /// Returns whether it gives access to the sessions of other identities.
    pub fn is_admin(&self) -> bool {
        self.scopes.allow(Permission::Admin)
    }

    /// Returns the credential of a connection that no other client can make.
    pub fn own(number: u64) -> Self {
        Self::unlimited(Identity::Own(number))
    }

    /// Returns the credential of the program that the server is a part of.
    pub fn program() -> Self {
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

    #[test]
    fn an_identity_is_one_unique_word() {
        let subject = |subject: &str, issuer: &str| {
            Identity::Subject { issuer: issuer.into(), subject: subject.into() }.to_string()
        };
        assert_eq!(
            subject("ann@example.com", "https://id.example"),
            "subject:ann@example.com@https://id.example"
        );
        assert_ne!(subject("a@b", "c"), subject("a", "b@c"));
        assert_eq!(subject("ann session=s-1", "i"), "subject:ann\\u{20}session=s-1@i");
        let token = Identity::Token { digest: None, name: "a\u{202e}b\u{2028}c d".into() };
        assert_eq!(token.to_string(), "token:a\\u{202e}b\\u{2028}c\\u{20}d");
        let user = Identity::User { uid: 7, name: "a\u{200b}\u{9b}é".into() };
        assert_eq!(user.to_string(), "user:a\\u{200b}\\u{9b}é");
    }
}
