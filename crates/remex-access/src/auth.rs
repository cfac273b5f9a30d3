//! Authentication: from what a peer presents to a credential, or to the reason for a refusal.
//!
//! Pure: no I/O, and time is an argument. Start at [`Authenticator`].

use std::{fmt, sync::Arc, time::SystemTime};

use remex_base::certificate::{CertificateName, PeerCertificate};
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

use crate::{
    grants::{Auth, CertificatePolicy},
    identity::{Credential, Identity},
    scope::Scopes,
    token::{CredentialFiles, Invalid, TokenGrant},
};

/// Checks what peers present.
#[derive(Debug)]
pub struct Authenticator {
    auth: Auth,
    own_uid: u32,
}

/// What is known about a peer on a TCP port.
#[derive(Debug)]
pub struct TcpPeer<'a> {
    /// The bearer token that it presented.
    pub bearer: Option<&'a str>,
    /// Its certificate, which TLS has verified.
    pub certificate: Option<&'a PeerCertificate>,
    /// The user at the other end.
    pub owner: SocketOwner,
    /// The process at the other end.
    pub holder: SocketHolder,
}

/// The process at the other end of a TCP connection within this host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SocketHolder {
    /// In no jail; or on another host, where it cannot be inspected.
    Unconfined,
    /// In a jail.
    Jailed,
    /// Perhaps a process of its user that this process may not inspect, such as a daemon that forwards connections; but
    /// jails exist that could have made the connection as well.
    Hidden,
    /// No process has the socket open, and jails exist that could have made the connection.
    Nobody,
}

impl SocketHolder {
    /// Returns why its connection is refused, whatever it presents.
    pub fn refusal(self) -> Option<Denied> {
        match self {
            SocketHolder::Jailed => Some(Denied::Confined),
            SocketHolder::Nobody => Some(Denied::NoProcess),
            SocketHolder::Unconfined | SocketHolder::Hidden => None,
        }
    }
}

/// The user at the other end of a TCP connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SocketOwner {
    /// A user of this host, as the kernel knows it.
    User(u32),
    /// The peer is on this host but in another network namespace, so the kernel does not report its user; or it is this
    /// program, which makes an HTTP request for a client.
    Unknown,
    /// The peer is on another host.
    Remote,
}

/// How a reload has changed the credential of a connected peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Revoked {
    /// It is no longer accepted.
    #[error("the credential of this connection is no longer valid; connect with another one")]
    Invalid,
    /// Its permissions have changed.
    #[error("the scopes or the expiry of this credential have changed; connect again")]
    Changed,
}

/// Why a peer is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Denied {
    /// Nothing was presented, and the connection alone is not enough.
    #[error("no credential presented")]
    NoCredential,
    /// No token is known that has this digest, or signed by a known key.
    #[error("unknown token")]
    UnknownToken,
    /// The token is known, and was valid.
    #[error("the token has expired")]
    Expired,
    /// A signed token does not hold.
    #[error(transparent)]
    InvalidToken(#[from] Invalid),
    /// The certificate is not among those listed.
    #[error("the certificate `{}` is not listed", .0.to_string().escape_debug())]
    UnknownCertificate(CertificateName),
    /// The certificate has no name that counts.
    #[error(
        "the certificate has only the common name `{}`; give it a SPIFFE URI or a DNS name, or set `auth.certificate_common_names`",
        .0.escape_debug()
    )]
    CommonName(Arc<str>),
    /// The user is not among those listed.
    #[error("user {0} may not connect")]
    OtherUser(u32),
    /// The kernel does not report the user at the other end.
    #[error("the user at the other end is unknown, so a token is required")]
    UnknownOwner,
    /// The login must be recorded and cannot be.
    #[error(
        "the login cannot be recorded in the audit file: {reason}; ask the administrator of the server to make room for it"
    )]
    Unrecorded {
        /// Why not.
        reason: String,
    },
    /// A sandbox confines the process at the other end.
    #[error(
        "a process in a remex sandbox may not use a server of its own host, which would run things outside of the sandbox"
    )]
    Confined,
    /// A sandbox may confine it.
    #[error("the process at the other end is unknown and may be in a remex sandbox, so a token is required")]
    UnknownProcess,
    /// A sandbox may have confined it.
    #[error("the process that made the connection has ended, so nobody knows whether a sandbox confined it")]
    EndedProcess,
    /// No process holds the other end.
    #[error(
        "no process has the other end of the connection open, so nobody knows whether a remex sandbox confined it; connect again and keep the connection open"
    )]
    NoProcess,
}

/// How a connection was authenticated, to check it again after a reload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Proof {
    /// The user at the other end of a unix socket.
    Unix(u32),
    /// The user at the other end of a loopback connection.
    Loopback(u32),
    /// The digest of a token.
    Token([u8; 32]),
    /// A signed token, because keys and required claims may change.
    Signed(SignedToken),
    /// A certificate, because those listed may change.
    Certificate(PeerCertificate),
    /// Nothing that a reload can change.
    Lasting,
}

/// The text of a signed token, which no log shows.
#[derive(Clone, PartialEq, Eq)]
pub struct SignedToken(Box<str>);

impl fmt::Debug for SignedToken {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("SignedToken(…)")
    }
}

impl Proof {
    /// Returns how a TCP peer with this credential was authenticated.
    pub fn of_tcp(credential: &Credential, peer: &TcpPeer<'_>) -> Self {
        match (&credential.identity, peer) {
            (Identity::Token { .. }, TcpPeer { bearer: Some(token), .. }) => {
                Proof::Token(Sha256::digest(token.as_bytes()).into())
            }
            (Identity::Subject { .. }, TcpPeer { bearer: Some(token), .. }) => {
                Proof::Signed(SignedToken((*token).into()))
            }
            (Identity::Certificate(_), TcpPeer { certificate: Some(certificate), .. }) => {
                Proof::Certificate((*certificate).clone())
            }
            (Identity::Owner | Identity::User { .. }, TcpPeer { owner: SocketOwner::User(uid), .. }) => {
                Proof::Loopback(*uid)
            }
            _ => Proof::Lasting,
        }
    }
}

impl Denied {
    /// Returns whether a token was presented and is wrong, which may be a guess.
    pub fn is_wrong_token(&self) -> bool {
        matches!(self, Denied::UnknownToken | Denied::Expired | Denied::InvalidToken(_))
    }
}

impl Authenticator {
    /// Creates one for the server of this user.
    pub fn new(auth: Auth, own_uid: u32) -> Self {
        Authenticator { auth, own_uid }
    }

    /// Returns the browser origins that may connect.
    pub fn origins(&self) -> Arc<[String]> {
        Arc::clone(&self.auth.origins)
    }

    /// Returns the files that tokens are checked against.
    pub fn files(&self) -> Option<&Arc<CredentialFiles>> {
        self.auth.files.as_ref()
    }

    /// Returns the names that were configured for the `Host` header.
    pub fn host_names(&self) -> Vec<String> {
        self.auth.hosts.clone()
    }

    /// Authenticates the user at the other end of a unix socket.
    pub fn user(&self, uid: u32) -> Result<Credential, Denied> {
        if uid == self.own_uid {
            return Ok(credential(Identity::Owner, &self.auth.owner));
        }
        let user = self.auth.users.iter().find(|user| user.uid == uid).ok_or(Denied::OtherUser(uid))?;
        Ok(credential(Identity::User { uid, name: user.name.as_str().into() }, &user.scopes))
    }

    /// Authenticates a peer on a TCP port.
    ///
    /// A bearer token decides where one is presented; otherwise the certificate; otherwise, while the server
    /// knows no tokens, the user at the other end of a loopback connection.
    pub fn tcp(&self, peer: &TcpPeer<'_>, now: SystemTime) -> Result<Credential, Denied> {
        if let Some(denied) = peer.holder.refusal() {
            return Err(denied);
        }
        let certified = peer.certificate.map(|certificate| self.certificate(certificate)).transpose()?;
        match (peer.bearer, certified) {
            (Some(bearer), _) if self.auth.requires_bearer() => self.bearer(bearer, now),
            (_, Some(certified)) => Ok(certified),
            _ if self.auth.requires_bearer() => Err(Denied::NoCredential),
            _ => match peer.owner {
                SocketOwner::User(_) if peer.holder == SocketHolder::Hidden => Err(Denied::UnknownProcess),
                SocketOwner::User(uid) => self.user(uid),
                SocketOwner::Unknown => Err(Denied::UnknownOwner),
                SocketOwner::Remote => Err(Denied::NoCredential),
            },
        }
    }

    /// Authenticates a connected peer again; returns `None` if its credential is the same as before.
    pub fn check_again(&self, credential: &Credential, proof: &Proof, now: SystemTime) -> Option<Revoked> {
        let again = match proof {
            Proof::Unix(uid) => self.user(*uid),
            Proof::Loopback(_) if self.auth.requires_bearer() => Err(Denied::NoCredential),
            Proof::Loopback(uid) => self.user(*uid),
            Proof::Token(digest) => self.token(digest, now).unwrap_or(Err(Denied::UnknownToken)),
            Proof::Signed(token) => self.bearer(&token.0, now),
            Proof::Certificate(certificate) => self.certificate(certificate),
            Proof::Lasting => return None,
        };
        match again {
            Ok(again) if again == *credential => None,
            Ok(_) => Some(Revoked::Changed),
            Err(_) => Some(Revoked::Invalid),
        }
    }

    /// Looks for the token among the capability tokens, then verifies it as a signed one.
    fn bearer(&self, token: &str, now: SystemTime) -> Result<Credential, Denied> {
        if let Some(known) = self.token(&Sha256::digest(token.as_bytes()).into(), now) {
            return known;
        }
        let loaded = self.auth.files.as_ref().map(|files| files.loaded());
        let verifier = loaded.as_ref().and_then(|loaded| loaded.verifier.as_ref());
        let claims = verifier.ok_or(Denied::UnknownToken)?.verify(token, now)?;
        let (issuer, subject) = (claims.issuer.into(), claims.subject.into());
        let identity = Identity::Subject { issuer, subject };
        Ok(Credential { expires_at: Some(claims.expires_at), ..credential(identity, &claims.scopes) })
    }

    /// Looks for a capability token with this digest; `None` if there is none.
    fn token(&self, digest: &[u8; 32], now: SystemTime) -> Option<Result<Credential, Denied>> {
        let loaded = self.auth.files.as_ref().map(|files| files.loaded());
        let further = loaded.iter().flat_map(|loaded| &loaded.tokens);
        let known = find(self.auth.tokens.iter().chain(further), digest)?;
        if known.expires_at.is_some_and(|expires_at| now >= expires_at) {
            return Some(Err(Denied::Expired));
        }
        let identity = Identity::token(&known.name, &known.sha256);
        Some(Ok(Credential { expires_at: known.expires_at, ..credential(identity, &known.scopes) }))
    }

    fn certificate(&self, certificate: &PeerCertificate) -> Result<Credential, Denied> {
        if let (CertificateName::Common(name), false) = (&certificate.name, self.auth.common_names) {
            return Err(Denied::CommonName(Arc::clone(name)));
        }
        let scopes = match &self.auth.certificates {
            CertificatePolicy::Any(scopes) => scopes,
            CertificatePolicy::Only(listed) => {
                let listed = listed.iter().find(|listed| listed.matches(certificate));
                &listed.ok_or_else(|| Denied::UnknownCertificate(certificate.name.clone()))?.scopes
            }
        };
        let identity = Identity::Certificate(certificate.name.clone());
        Ok(Credential { expires_at: Some(certificate.expires_at), ..credential(identity, scopes) })
    }
}

/// Compares with every token, so that the time reveals nothing.
fn find<'a>(tokens: impl Iterator<Item = &'a TokenGrant>, digest: &[u8; 32]) -> Option<&'a TokenGrant> {
    let mut found = None;
    for known in tokens {
        if bool::from(digest.ct_eq(&known.sha256)) {
            found = Some(known);
        }
    }
    found
}

fn credential(identity: Identity, scopes: &Scopes) -> Credential {
    Credential { identity, scopes: Arc::new(scopes.clone()), expires_at: None }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::grants::{CertificateGrant, UserGrant};

    const ME: u32 = 1000;

    fn token(text: &str, expires_at: Option<SystemTime>) -> TokenGrant {
        TokenGrant { expires_at, ..TokenGrant::new(text, text, Scopes::all()) }
    }

    fn peer(bearer: Option<&str>, owner: SocketOwner) -> TcpPeer<'_> {
        TcpPeer { bearer, certificate: None, owner, holder: SocketHolder::Unconfined }
    }

    fn admitted(auth: &Authenticator, peer: &TcpPeer<'_>) -> Result<String, Denied> {
        auth.tcp(peer, SystemTime::UNIX_EPOCH).map(|credential| credential.identity.to_string())
    }

    #[test]
    fn a_peer_in_a_jail_is_refused_whatever_it_presents() {
        let open = Authenticator::new(Auth::default(), ME);
        let closed = Authenticator::new(Auth { tokens: vec![token("right", None)], ..Auth::default() }, ME);
        let held = |bearer, holder| TcpPeer { holder, ..peer(bearer, SocketOwner::User(ME)) };
        assert_eq!(admitted(&open, &held(None, SocketHolder::Jailed)), Err(Denied::Confined));
        assert_eq!(admitted(&closed, &held(Some("right"), SocketHolder::Jailed)), Err(Denied::Confined));
        // A process that cannot be inspected may be in a jail, so being the same user does not suffice.
        assert_eq!(admitted(&open, &held(None, SocketHolder::Hidden)), Err(Denied::UnknownProcess));
        assert_eq!(
            admitted(&closed, &held(Some("right"), SocketHolder::Hidden)),
            Ok("token:right".to_owned())
        );
        assert_eq!(admitted(&closed, &held(Some("right"), SocketHolder::Nobody)), Err(Denied::NoProcess));
    }

    #[test]
    fn without_tokens_a_loopback_port_is_for_its_owner_and_listed_users() {
        let users = vec![UserGrant { uid: 7, name: "ann".to_owned(), scopes: Scopes::all() }];
        let auth = Authenticator::new(Auth { users, ..Auth::default() }, ME);
        assert_eq!(admitted(&auth, &peer(None, SocketOwner::User(ME))), Ok("owner".to_owned()));
        assert_eq!(admitted(&auth, &peer(None, SocketOwner::User(7))), Ok("user:ann".to_owned()));
        assert_eq!(admitted(&auth, &peer(None, SocketOwner::User(0))), Err(Denied::OtherUser(0)));
        assert_eq!(admitted(&auth, &peer(None, SocketOwner::Unknown)), Err(Denied::UnknownOwner));
        assert_eq!(admitted(&auth, &peer(None, SocketOwner::Remote)), Err(Denied::NoCredential));
        assert_eq!(auth.user(7).map(|credential| credential.identity.to_string()), Ok("user:ann".to_owned()));
        assert_eq!(auth.user(8).map(|credential| credential.identity), Err(Denied::OtherUser(8)));
    }

    #[test]
    fn only_a_known_token_gets_in_and_only_until_it_expires() {
        let epoch = SystemTime::UNIX_EPOCH;
        let tokens = vec![
            token("old", Some(epoch)),
            token("new", Some(epoch + Duration::from_secs(1))),
            token("any", None),
        ];
        let auth = Authenticator::new(Auth { tokens, ..Auth::default() }, ME);
        let owner = SocketOwner::User(ME);
        assert_eq!(admitted(&auth, &peer(Some("new"), owner)), Ok("token:new".to_owned()));
        assert_eq!(admitted(&auth, &peer(Some("any"), owner)), Ok("token:any".to_owned()));
        assert_eq!(admitted(&auth, &peer(Some("old"), owner)), Err(Denied::Expired));
        assert_eq!(admitted(&auth, &peer(Some("new "), owner)), Err(Denied::UnknownToken));
        assert_eq!(admitted(&auth, &peer(None, owner)), Err(Denied::NoCredential));
    }

    #[test]
    fn a_reload_revokes_what_it_no_longer_grants() {
        let now = SystemTime::UNIX_EPOCH;
        let users = |scopes: &str| {
            let scopes = scopes.parse().unwrap();
            Auth { users: vec![UserGrant { uid: 7, name: "ann".to_owned(), scopes }], ..Auth::default() }
        };
        let before = Authenticator::new(users("all"), ME);
        let ann = before.user(7).unwrap();
        let check = |auth: Auth, credential: &Credential, proof| {
            Authenticator::new(auth, ME).check_again(credential, &proof, now)
        };
        assert_eq!(check(users("all"), &ann, Proof::Unix(7)), None);
        assert_eq!(check(users("http"), &ann, Proof::Unix(7)), Some(Revoked::Changed));
        assert_eq!(check(Auth::default(), &ann, Proof::Unix(7)), Some(Revoked::Invalid));

        let with_token = |text| Auth { tokens: vec![token(text, None)], ..Auth::default() };
        let owner = before.user(ME).unwrap();
        assert_eq!(check(with_token("new"), &owner, Proof::Unix(ME)), None);
        assert_eq!(check(with_token("new"), &owner, Proof::Loopback(ME)), Some(Revoked::Invalid));

        let auth = Authenticator::new(with_token("new"), ME);
        let presented = peer(Some("new"), SocketOwner::Remote);
        let credential = auth.tcp(&presented, now).unwrap();
        let proof = Proof::of_tcp(&credential, &presented);
        assert_eq!(check(with_token("new"), &credential, proof.clone()), None);
        assert_eq!(check(with_token("newer"), &credential, proof), Some(Revoked::Invalid));
    }

    fn certificate(name: &str, key: u8) -> PeerCertificate {
        let expires_at = SystemTime::UNIX_EPOCH + Duration::from_secs(1);
        PeerCertificate { name: name.parse().unwrap(), key_sha256: [key; 32], expires_at }
    }

    #[test]
    fn a_certificate_is_an_identity_and_a_list_admits_only_what_it_names() {
        let ann = certificate("dns:ann", 1);
        let bob = certificate("uri:spiffe://example.com/bob", 2);
        let present = |certificate| TcpPeer {
            bearer: None,
            certificate: Some(certificate),
            owner: SocketOwner::Remote,
            holder: SocketHolder::Unconfined,
        };
        let any = Authenticator::new(Auth::default(), ME);
        assert_eq!(admitted(&any, &present(&bob)), Ok("certificate:uri:spiffe://example.com/bob".to_owned()));

        let listed = |name: &str, key_sha256| CertificateGrant {
            name: name.parse().unwrap(),
            key_sha256,
            scopes: Scopes::all(),
        };
        let certificates = CertificatePolicy::Only(vec![
            listed("dns:ann", None),
            listed(&bob.name.to_string(), Some([3; 32])),
        ]);
        let auth = Authenticator::new(Auth { certificates, ..Auth::default() }, ME);
        assert_eq!(admitted(&auth, &present(&ann)), Ok("certificate:dns:ann".to_owned()));
        assert_eq!(admitted(&auth, &present(&bob)), Err(Denied::UnknownCertificate(bob.name.clone())));
    }

    #[test]
    fn a_common_name_counts_only_where_that_is_configured() {
        let common = certificate("cn:ann", 1);
        let present = TcpPeer { certificate: Some(&common), ..peer(None, SocketOwner::Remote) };
        let auth = |common_names, names: &[&str]| {
            let listed = |name: &&str| CertificateGrant {
                name: name.parse().unwrap(),
                key_sha256: None,
                scopes: Scopes::all(),
            };
            let certificates = CertificatePolicy::Only(names.iter().map(listed).collect());
            Authenticator::new(Auth { certificates, common_names, ..Auth::default() }, ME)
        };
        let refused = Err(Denied::CommonName("ann".into()));
        assert_eq!(admitted(&Authenticator::new(Auth::default(), ME), &present), refused);
        assert_eq!(admitted(&auth(false, &["cn:ann"]), &present), refused);
        assert_eq!(admitted(&auth(true, &["cn:ann"]), &present), Ok("certificate:cn:ann".to_owned()));
        let unknown = Err(Denied::UnknownCertificate(common.name.clone()));
        assert_eq!(admitted(&auth(true, &["dns:ann"]), &present), unknown);
    }

    #[test]
    fn a_wrong_token_is_refused_whatever_the_certificate() {
        let ann = certificate("dns:ann", 1);
        let auth = Authenticator::new(Auth { tokens: vec![token("right", None)], ..Auth::default() }, ME);
        let present = |bearer| TcpPeer { certificate: Some(&ann), ..peer(bearer, SocketOwner::Remote) };
        assert_eq!(admitted(&auth, &present(Some("wrong"))), Err(Denied::UnknownToken));
        assert_eq!(admitted(&auth, &present(Some("right"))), Ok("token:right".to_owned()));
        assert_eq!(admitted(&auth, &present(None)), Ok("certificate:dns:ann".to_owned()));
    }
}
