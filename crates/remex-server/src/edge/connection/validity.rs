//! For how long a credential admits a connection: until it expires or is revoked.

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use remex_access::{
    auth::{Authenticator, Proof, Revoked},
    identity::Credential,
};
use tokio::sync::watch;

use crate::peers::ssh_login::SshLogin;

/// The longest wait until the clock is read again: it may be set, and does not advance timers while a host is
/// suspended.
const CLOCK_CHECK: Duration = Duration::from_secs(30);

/// A credential and what may end its validity.
pub(crate) struct Validity {
    credential: Credential,
    /// How the peer was authenticated.
    proof: Proof,
    /// The ssh login that the peer runs in.
    login: Option<Arc<SshLogin>>,
    /// Changes when credentials are revoked or replaced.
    auth: Option<watch::Receiver<Arc<Authenticator>>>,
}

impl Validity {
    /// Returns a validity that ends when the credential expires.
    pub(crate) fn fixed(credential: Credential) -> Self {
        Validity { credential, proof: Proof::Lasting, login: None, auth: None }
    }

    /// Returns a validity that ends when the credential expires or the authenticator revokes it.
    pub(crate) fn revocable(
        credential: Credential,
        proof: Proof,
        auth: watch::Receiver<Arc<Authenticator>>,
    ) -> Self {
        Validity { credential, proof, login: None, auth: Some(auth) }
    }

    /// Notes the ssh login that the peer runs in.
    pub(crate) fn with_login(self, login: Option<Arc<SshLogin>>) -> Self {
        Self { login, ..self }
    }

    pub(crate) fn login(&self) -> Option<&Arc<SshLogin>> {
        self.login.as_ref()
    }

    pub(crate) fn credential(&self) -> &Credential {
        &self.credential
    }

    /// Waits until the credential is no longer valid; returns why.
    pub(crate) async fn ended(&mut self) -> String {
        tokio::select! {
            () = expired(self.credential.expires_at) => {
                "the credential has expired; connect with a new one".to_owned()
            }
            reason = revoked(&self.credential, &self.proof, self.auth.as_mut()) => reason.to_string(),
        }
    }
}

async fn expired(expires_at: Option<SystemTime>) {
    let Some(expires_at) = expires_at else { return std::future::pending().await };
    // An error means that the time has passed.
    while let Ok(rest) = expires_at.duration_since(SystemTime::now())
        && !rest.is_zero()
    {
        tokio::time::sleep(rest.min(CLOCK_CHECK)).await;
    }
}

async fn revoked(
    credential: &Credential,
    proof: &Proof,
    auth: Option<&mut watch::Receiver<Arc<Authenticator>>>,
) -> Revoked {
    let Some(auth) = auth else { return std::future::pending().await };
    loop {
        let authenticator = Arc::clone(&auth.borrow_and_update());
        if let Some(reason) = authenticator.check_again(credential, proof, SystemTime::now()) {
            return reason;
        }
        if auth.changed().await.is_err() {
            // The server is gone, and ends its connections.
            return std::future::pending().await;
        }
    }
}
