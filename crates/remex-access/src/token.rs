//! Bearer tokens: capability tokens, which the server knows by their digests, and signed tokens (JWTs).
//!
//! Everything but [`CredentialFiles`] is pure: no I/O, and time is an argument. Start at [`TokenFile`] and
//! [`Verifier`].

mod credential_files;
mod file;
mod json;
mod key;
mod sign;
mod strength;
mod verify;

use std::time::SystemTime;

use sha2::{Digest, Sha256};

use crate::scope::Scopes;

pub use credential_files::{CredentialError, CredentialFiles, CredentialPaths, Reloaded};
pub use file::{FileError, FileProblem, TokenFile};
pub use key::{Algorithm, Key, KeyError};
pub use sign::{SignError, SigningKey};
pub use strength::{MIN_BITS, Weakness, check_strength};
pub use verify::{ClaimPolicy, Claims, Invalid, MAX_TOKEN_LEN, Verifier, decode_unverified};

/// A capability token that clients may present.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenGrant {
    /// A name for logs.
    pub name: String,
    /// The SHA-256 digest of the token.
    pub sha256: [u8; 32],
    /// What it allows.
    pub scopes: Scopes,
    /// When it becomes invalid.
    pub expires_at: Option<SystemTime>,
}

impl TokenGrant {
    /// Returns a grant for `token` that never expires.
    pub fn new(name: impl Into<String>, token: &str, scopes: Scopes) -> Self {
        let sha256 = Sha256::digest(token.as_bytes()).into();
        TokenGrant { name: name.into(), sha256, scopes, expires_at: None }
    }

    /// Returns the name of a token without one: the first digits of its digest.
    pub fn default_name(sha256: &[u8; 32]) -> String {
        sha256[..4].iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

/// Parses a SHA-256 digest: 64 hexadecimal digits in any case.
pub fn parse_digest(hex: &str) -> Option<[u8; 32]> {
    if hex.len() != 64 || !hex.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return None;
    }
    let mut digest = [0; 32];
    for (byte, pair) in digest.iter_mut().zip(hex.as_bytes().chunks(2)) {
        *byte = u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()?;
    }
    Some(digest)
}
