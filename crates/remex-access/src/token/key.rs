//! Keys that check signatures: a shared secret, and the public keys of a JWKS.
//!
//! Each key has one algorithm and is used with no other, whatever the header of a token says.

use std::fmt;

use base64::{Engine as _, prelude::BASE64_URL_SAFE_NO_PAD};
use ring::{
    hmac,
    signature::{self, RsaPublicKeyComponents, UnparsedPublicKey},
};
use serde_json::{Map, Value};

use super::{Weakness, check_strength, json};

/// The shortest secret for HS256, in bytes.
const MIN_SECRET_LEN: usize = 32;
/// The shortest and the longest RSA modulus, in bytes; ring accepts no others.
const RSA_LEN: std::ops::RangeInclusive<usize> = 256..=1024;
/// The most keys of a JWKS: a token without `kid` is tried with all of them.
const MAX_KEYS: usize = 64;

/// How a token is signed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Algorithm {
    /// HMAC with SHA-256.
    Hs256,
    /// Ed25519.
    EdDsa,
    /// ECDSA on P-256 with SHA-256.
    Es256,
    /// RSASSA-PKCS1-v1_5 with SHA-256.
    Rs256,
}

impl Algorithm {
    /// Returns its name in the header of a token.
    pub const fn name(self) -> &'static str {
        match self {
            Algorithm::Hs256 => "HS256",
            Algorithm::EdDsa => "EdDSA",
            Algorithm::Es256 => "ES256",
            Algorithm::Rs256 => "RS256",
        }
    }

    /// Returns the algorithm with this name.
    pub(super) fn from_name(name: &str) -> Option<Self> {
        let all = [Algorithm::Hs256, Algorithm::EdDsa, Algorithm::Es256, Algorithm::Rs256];
        all.into_iter().find(|one| one.name() == name)
    }
}

/// A key that checks signatures.
#[derive(Clone, PartialEq, Eq)]
pub struct Key {
    id: Option<String>,
    material: Material,
}

#[derive(Clone, PartialEq, Eq)]
enum Material {
    Secret(Vec<u8>),
    Ed25519(Vec<u8>),
    /// An uncompressed point.
    P256(Vec<u8>),
    Rsa {
        modulus: Vec<u8>,
        exponent: Vec<u8>,
    },
}

/// Why keys cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    /// The secret is too short.
    #[error("the secret has {len} bytes, and {MIN_SECRET_LEN} are required")]
    ShortSecret {
        /// Its length.
        len: usize,
    },
    /// The secret can be guessed.
    #[error("the secret is weak: {0}")]
    WeakSecret(Weakness),
    /// The secret is a public key, which others know.
    #[error("the secret is a key in PEM format")]
    PublicSecret,
    /// The text is not a JWKS.
    #[error("it is not a JSON object with a list `keys`, or a member occurs twice")]
    NotAJwks,
    /// A key of a JWKS is malformed.
    #[error("key {number}: {reason}")]
    Malformed {
        /// Which one, from 1.
        number: usize,
        /// Why.
        reason: &'static str,
    },
    /// There are too many.
    #[error("it has more than {MAX_KEYS} keys")]
    TooMany,
    /// None can be used.
    #[error("it has no key for EdDSA (Ed25519), ES256 (P-256) or RS256 (RSA) signatures")]
    NoKey,
}

impl KeyError {
    /// Returns what to do about it.
    pub fn hint(&self) -> &'static str {
        match self {
            KeyError::ShortSecret { .. } | KeyError::WeakSecret(_) => {
                "make one with `head -c 32 /dev/urandom | base64`"
            }
            KeyError::PublicSecret => "put public keys into a JWKS file, and generate a secret for HS256",
            KeyError::NotAJwks | KeyError::Malformed { .. } | KeyError::NoKey => {
                "get the JWKS from the issuer of the tokens again"
            }
            KeyError::TooMany => "keep only the keys that sign tokens for this server",
        }
    }
}

impl Key {
    /// Returns the HS256 key with the secret in a file; white space around it does not count.
    ///
    /// # Errors
    ///
    /// If it is shorter than 32 bytes, can be guessed, or is a public key.
    pub fn shared_secret(file: &[u8]) -> Result<Self, KeyError> {
        let secret = file.trim_ascii();
        if secret.len() < MIN_SECRET_LEN {
            return Err(KeyError::ShortSecret { len: secret.len() });
        }
        if secret.starts_with(b"-----BEGIN ") {
            return Err(KeyError::PublicSecret);
        }
        match std::str::from_utf8(secret).map(check_strength) {
            Ok(Err(weakness)) if weakness != Weakness::NotVisible => Err(KeyError::WeakSecret(weakness)),
            _ => Ok(Key { id: None, material: Material::Secret(secret.to_vec()) }),
        }
    }

    /// Returns the keys of a JWKS (RFC 7517) that check signatures; skips those for other purposes.
    ///
    /// # Errors
    ///
    /// If the text is malformed, contains a private or symmetric key, or no usable key.
    pub fn parse_jwks(text: &[u8]) -> Result<Vec<Self>, KeyError> {
        let jwks = json::object(text).ok_or(KeyError::NotAJwks)?;
        let Some(Value::Array(listed)) = jwks.get("keys") else { return Err(KeyError::NotAJwks) };
        if listed.len() > MAX_KEYS {
            return Err(KeyError::TooMany);
        }
        let mut keys = Vec::new();
        for (index, listed) in listed.iter().enumerate() {
            let malformed = |reason| KeyError::Malformed { number: index + 1, reason };
            let members = listed.as_object().ok_or_else(|| malformed("it is not an object"))?;
            keys.extend(Key::from_jwk(members).map_err(malformed)?);
        }
        if keys.is_empty() { Err(KeyError::NoKey) } else { Ok(keys) }
    }

    fn from_jwk(jwk: &Map<String, Value>) -> Result<Option<Self>, &'static str> {
        let text = |name: &str| match jwk.get(name) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text.as_str())),
            Some(_) => Err("a member is not a text"),
        };
        let bytes = |name: &str| {
            let encoded = text(name)?.ok_or("a member of the key is missing")?;
            BASE64_URL_SAFE_NO_PAD.decode(encoded).map_err(|_| "a member is not base64url without padding")
        };
        if jwk.contains_key("d") {
            return Err("it is a private key; give the server the public one only");
        }
        if jwk.contains_key("k") {
            return Err("it is a shared secret; use `--ws-shared-secret-file`");
        }
        if text("use")?.is_some_and(|purpose| purpose != "sig") {
            return Ok(None);
        }
        if let Some(Value::Array(operations)) = jwk.get("key_ops")
            && !operations.iter().any(|operation| operation == "verify")
        {
            return Ok(None);
        }
        let material = match (text("kty")?, text("crv")?) {
            (Some("OKP"), Some("Ed25519")) => Material::Ed25519(bytes("x")?),
            (Some("EC"), Some("P-256")) => {
                let [x, y] = [bytes("x")?, bytes("y")?];
                if [x.len(), y.len()] != [32, 32] {
                    return Err("a coordinate of the P-256 key does not have 32 bytes");
                }
                Material::P256([&[4], x.as_slice(), y.as_slice()].concat())
            }
            (Some("RSA"), _) => Material::Rsa { modulus: bytes("n")?, exponent: bytes("e")? },
            (Some(_), _) => return Ok(None),
            (None, _) => return Err("`kty` is missing"),
        };
        match &material {
            Material::Ed25519(key) if key.len() != 32 => {
                return Err("the Ed25519 key does not have 32 bytes");
            }
            Material::Rsa { modulus, .. } if !RSA_LEN.contains(&modulus.len()) => {
                return Err("the RSA modulus does not have 2048 to 8192 bits");
            }
            _ => {}
        }
        let key = Key { id: text("kid")?.map(str::to_owned), material };
        // A key for another algorithm, such as RS512, is not used with ours.
        Ok(Some(key).filter(|key| !matches!(text("alg"), Ok(Some(name)) if name != key.algorithm().name())))
    }

    /// Returns the only algorithm that it is used with.
    pub fn algorithm(&self) -> Algorithm {
        match self.material {
            Material::Secret(_) => Algorithm::Hs256,
            Material::Ed25519(_) => Algorithm::EdDsa,
            Material::P256(_) => Algorithm::Es256,
            Material::Rsa { .. } => Algorithm::Rs256,
        }
    }

    /// Returns whether a token with this `kid` may be signed with it.
    pub(super) fn has_id(&self, id: Option<&str>) -> bool {
        match (id, &self.id) {
            (Some(asked), Some(own)) => asked == own,
            (None, _) | (_, None) => true,
        }
    }

    /// Returns whether the key signed the message.
    pub(super) fn verify(&self, message: &[u8], signature: &[u8]) -> bool {
        match &self.material {
            Material::Secret(secret) => {
                let key = hmac::Key::new(hmac::HMAC_SHA256, secret);
                hmac::verify(&key, message, signature).is_ok()
            }
            Material::Ed25519(key) => {
                UnparsedPublicKey::new(&signature::ED25519, key).verify(message, signature).is_ok()
            }
            Material::P256(point) => UnparsedPublicKey::new(&signature::ECDSA_P256_SHA256_FIXED, point)
                .verify(message, signature)
                .is_ok(),
            Material::Rsa { modulus, exponent } => RsaPublicKeyComponents { n: modulus, e: exponent }
                .verify(&signature::RSA_PKCS1_2048_8192_SHA256, message, signature)
                .is_ok(),
        }
    }
}

impl fmt::Debug for Key {
    /// Shows no secret.
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Key").field("id", &self.id).field("algorithm", &self.algorithm()).finish()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn keys(jwks: &Value) -> Result<Vec<Algorithm>, KeyError> {
        Key::parse_jwks(jwks.to_string().as_bytes()).map(|keys| keys.iter().map(Key::algorithm).collect())
    }

    fn zeros(len: usize) -> String {
        BASE64_URL_SAFE_NO_PAD.encode(vec![0; len])
    }

    #[test]
    fn a_secret_is_long_random_and_no_public_key() {
        let secret = b"Jf8zQ1m0Vt6rXc3LbH9wYd2KsN7pEaGu\n";
        assert_eq!(Key::shared_secret(secret).unwrap(), Key::shared_secret(secret.trim_ascii()).unwrap());
        assert!(Key::shared_secret(&[0xff; 32]).is_ok(), "any 32 bytes may be random");
        assert_eq!(Key::shared_secret(&secret[..31]), Err(KeyError::ShortSecret { len: 31 }));
        assert!(matches!(Key::shared_secret(&[b'a'; 64]), Err(KeyError::WeakSecret(_))));
        let pem =
            b"-----BEGIN PUBLIC KEY-----\nMCowBQYDK2VwAyEAGb9ECWmEzf6FQbrBZ9w7lshQhqowtrbLDFw4rXAxZuE=\n";
        assert_eq!(Key::shared_secret(pem), Err(KeyError::PublicSecret));
        assert!(!format!("{:?}", Key::shared_secret(secret)).contains("74"), "no bytes in logs");
    }

    #[test]
    fn a_jwks_gives_the_keys_that_check_signatures() {
        let okp = json!({"kty": "OKP", "crv": "Ed25519", "x": zeros(32), "alg": "EdDSA", "use": "sig"});
        let ec = json!({"kty": "EC", "crv": "P-256", "x": zeros(32), "y": zeros(32), "key_ops": ["verify"]});
        let rsa = json!({"kty": "RSA", "n": zeros(256), "e": "AQAB"});
        let others = [
            json!({"kty": "RSA", "n": zeros(256), "e": "AQAB", "alg": "RS512"}),
            json!({"kty": "RSA", "n": zeros(256), "e": "AQAB", "use": "enc"}),
            json!({"kty": "EC", "crv": "P-521", "x": zeros(66), "y": zeros(66)}),
            json!({"kty": "OKP", "crv": "X25519", "x": zeros(32)}),
            json!({"kty": "RSA", "n": zeros(256), "e": "AQAB", "key_ops": ["encrypt"]}),
        ];
        let all: Vec<_> = [okp, ec, rsa].into_iter().chain(others.clone()).collect();
        assert_eq!(
            keys(&json!({"keys": all})),
            Ok(vec![Algorithm::EdDsa, Algorithm::Es256, Algorithm::Rs256])
        );
        assert_eq!(keys(&json!({"keys": others})), Err(KeyError::NoKey));
    }

    #[test]
    fn a_jwks_with_a_malformed_or_secret_key_is_refused() {
        for wrong in [
            json!({"kty": "OKP", "crv": "Ed25519", "x": zeros(31)}),
            json!({"kty": "OKP", "crv": "Ed25519", "x": zeros(32), "d": zeros(32)}),
            json!({"kty": "oct", "k": zeros(32)}),
            json!({"kty": "EC", "crv": "P-256", "x": zeros(32)}),
            json!({"kty": "EC", "crv": "P-256", "x": zeros(32), "y": zeros(33)}),
            json!({"kty": "RSA", "n": zeros(128), "e": "AQAB"}),
            json!({"kty": "RSA", "n": "+/==", "e": "AQAB"}),
            json!({"kty": 1}),
            json!({}),
            json!([]),
        ] {
            let error = keys(&json!({"keys": [wrong]}));
            assert!(matches!(error, Err(KeyError::Malformed { number: 1, .. })), "{wrong}: {error:?}");
        }
        assert_eq!(keys(&json!({"keys": vec![json!({"kty": "x"}); 65]})), Err(KeyError::TooMany));
        for text in ["", "{}", "[]", r#"{"keys":{}}"#, r#"{"keys":[],"keys":[]}"#] {
            assert_eq!(Key::parse_jwks(text.as_bytes()), Err(KeyError::NotAJwks), "{text}");
        }
    }
}
