//! Signs tokens: HS256 with a shared secret, EdDSA with a private key. Only `remex token new` and tests do.

use std::fmt;

use base64::{Engine as _, prelude::BASE64_URL_SAFE_NO_PAD};
use ring::{
    hmac,
    signature::{Ed25519KeyPair, KeyPair as _},
};
use rustls::pki_types::{PrivatePkcs8KeyDer, pem::PemObject};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::key::{Algorithm, Key, KeyError};

/// A key that signs tokens.
pub struct SigningKey(Signer);

enum Signer {
    Secret(hmac::Key),
    Ed25519(Ed25519KeyPair),
}

/// Why a key cannot sign.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SignError {
    /// The secret cannot be used.
    #[error(transparent)]
    Secret(#[from] KeyError),
    /// The file is not an Ed25519 key.
    #[error("it is not an Ed25519 private key in PKCS#8 PEM format")]
    NotEd25519,
}

impl SignError {
    /// Returns what to do about it.
    pub fn hint(&self) -> &'static str {
        match self {
            SignError::Secret(error) => error.hint(),
            SignError::NotEd25519 => "make one with `openssl genpkey -algorithm ed25519`",
        }
    }
}

impl SigningKey {
    /// Returns the HS256 key with the secret in a file; white space around it does not count.
    ///
    /// # Errors
    ///
    /// If the server would not accept the secret.
    pub fn shared_secret(file: &[u8]) -> Result<Self, SignError> {
        Key::shared_secret(file)?;
        Ok(SigningKey(Signer::Secret(hmac::Key::new(hmac::HMAC_SHA256, file.trim_ascii()))))
    }

    /// Returns the EdDSA key in a PKCS#8 file, in PEM format or DER.
    ///
    /// # Errors
    ///
    /// If it is not an Ed25519 key.
    pub fn ed25519(file: &[u8]) -> Result<Self, SignError> {
        let pem = PrivatePkcs8KeyDer::from_pem_slice(file);
        let der = pem.as_ref().map_or(file, |key| key.secret_pkcs8_der());
        let key = Ed25519KeyPair::from_pkcs8_maybe_unchecked(der).map_err(|_| SignError::NotEd25519)?;
        Ok(SigningKey(Signer::Ed25519(key)))
    }

    /// Returns the algorithm.
    pub fn algorithm(&self) -> Algorithm {
        match self.0 {
            Signer::Secret(_) => Algorithm::Hs256,
            Signer::Ed25519(_) => Algorithm::EdDsa,
        }
    }

    /// Returns the JWKS with the public key, for the server; a shared secret has none.
    pub fn jwks(&self) -> Option<Value> {
        let Signer::Ed25519(key) = &self.0 else { return None };
        let public = BASE64_URL_SAFE_NO_PAD.encode(key.public_key());
        let key = json!({"kty": "OKP", "crv": "Ed25519", "alg": "EdDSA", "use": "sig", "kid": self.key_id(), "x": public});
        Some(json!({"keys": [key]}))
    }

    /// Signs claims.
    pub fn sign(&self, claims: &Value) -> String {
        let mut header = json!({"alg": self.algorithm().name(), "typ": "JWT"});
        if let Some(id) = self.key_id() {
            header["kid"] = id.into();
        }
        self.sign_raw(&header.to_string(), &claims.to_string())
    }

    /// Signs any header and claims, valid or not.
    pub(super) fn sign_raw(&self, header: &str, claims: &str) -> String {
        let [header, claims] = [header, claims].map(|part| BASE64_URL_SAFE_NO_PAD.encode(part));
        let signed = format!("{header}.{claims}");
        let signature = match &self.0 {
            Signer::Secret(key) => BASE64_URL_SAFE_NO_PAD.encode(hmac::sign(key, signed.as_bytes())),
            Signer::Ed25519(key) => BASE64_URL_SAFE_NO_PAD.encode(key.sign(signed.as_bytes())),
        };
        format!("{signed}.{signature}")
    }

    /// Returns the id of a public key: the first digits of its digest.
    fn key_id(&self) -> Option<String> {
        let Signer::Ed25519(key) = &self.0 else { return None };
        Some(Sha256::digest(key.public_key())[..8].iter().map(|byte| format!("{byte:02x}")).collect())
    }
}

impl fmt::Debug for SigningKey {
    /// Shows no secret.
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_tuple("SigningKey").field(&self.algorithm()).finish()
    }
}
