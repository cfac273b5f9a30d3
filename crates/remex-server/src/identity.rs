//! Identities: a session belongs to one, and each sees only its own sessions.

use remex_rpc::Authorization;
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

use crate::config::Auth;

/// On whose behalf a connection acts.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Identity {
    /// Everyone on loopback without authentication, and unix peers with the server's uid.
    Local,
    /// Clients with the token that has this digest.
    Token([u8; 32]),
    /// A private connection, on stdio or in memory, is its own identity.
    Own(u64),
}

impl Auth {
    /// Admits clients that present `token`.
    pub fn for_token(token: &str) -> Self {
        Auth::Token(Sha256::digest(token.as_bytes()).into())
    }

    /// Checks the bearer token of a WebSocket upgrade, in constant time.
    pub(crate) fn authenticate(&self, token: Option<&str>) -> Authorization<Identity> {
        match (self, token) {
            (Auth::Open, _) => Authorization::Admitted(Identity::Local),
            (Auth::Token(_), None) => Authorization::Refused,
            (Auth::Token(digest), Some(token)) => {
                let presented: [u8; 32] = Sha256::digest(token.as_bytes()).into();
                if bool::from(presented.ct_eq(digest)) {
                    Authorization::Admitted(Identity::Token(*digest))
                } else {
                    Authorization::Refused
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_right_token_gets_in() {
        let digest: [u8; 32] = Sha256::digest(b"secret").into();
        let auth = Auth::Token(digest);
        assert_eq!(auth.authenticate(Some("secret")), Authorization::Admitted(Identity::Token(digest)));
        assert_eq!(auth.authenticate(Some("secret ")), Authorization::Refused);
        assert_eq!(auth.authenticate(None), Authorization::Refused);
        assert_eq!(Auth::Open.authenticate(None), Authorization::Admitted(Identity::Local));
    }
}
