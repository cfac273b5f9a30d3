//! Verifies signed tokens (JWTs in compact form, RFC 7519) and decides what their claims grant.

use std::time::{Duration, SystemTime};

use base64::{Engine as _, prelude::BASE64_URL_SAFE_NO_PAD};
use serde_json::{Map, Value};

use super::{
    json,
    key::{Algorithm, Key},
};
use crate::scope::{ScopeError, Scopes};

/// The longest signed token, in bytes.
pub const MAX_TOKEN_LEN: usize = 8 << 10;

/// The end of the year 9999: nothing expires later.
const LATEST: f64 = 253_402_300_799.0;

/// What the claims of a token must be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClaimPolicy {
    /// The required `iss`; `None` accepts any.
    pub issuer: Option<String>,
    /// The required `aud`, or one of several; `None` refuses tokens that have an `aud`.
    pub audience: Option<String>,
    /// How far the clocks of the issuer and this host may differ.
    pub max_clock_skew: Duration,
}

impl Default for ClaimPolicy {
    /// Any issuer, no audience, 30 seconds.
    fn default() -> Self {
        ClaimPolicy { issuer: None, audience: None, max_clock_skew: Duration::from_secs(30) }
    }
}

/// What a valid token says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claims {
    /// Its `iss`; empty if it has none.
    pub issuer: String,
    /// Its `sub`; empty if it has none.
    pub subject: String,
    /// Its `scope`; everything if it has none.
    pub scopes: Scopes,
    /// When it becomes invalid, clock skew included.
    pub expires_at: SystemTime,
}

/// Why a signed token is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Invalid {
    /// It is longer than [`MAX_TOKEN_LEN`].
    #[error("the token is longer than {MAX_TOKEN_LEN} bytes")]
    TooLong,
    /// It is not a JWT.
    #[error("the token is not a JWT: {0}")]
    Malformed(&'static str),
    /// Its header requires something that is not supported.
    #[error("the header of the token contains `{0}`, which is not supported")]
    Header(&'static str),
    /// Its algorithm is not supported.
    #[error("the algorithm of the token is not HS256, EdDSA, ES256 or RS256")]
    Algorithm,
    /// No known key has its algorithm and id.
    #[error("no key for {} with the `kid` of the token", .0.name())]
    UnknownKey(Algorithm),
    /// The signature is wrong.
    #[error("the signature of the token is wrong")]
    Signature,
    /// A claim is missing or has the wrong type.
    #[error("the claim `{0}` is missing or has the wrong type")]
    Claim(&'static str),
    /// It has expired.
    #[error("the token has expired")]
    Expired,
    /// It is not valid yet.
    #[error("the token is not valid yet")]
    NotYet,
    /// It is from another issuer.
    #[error("the token is from another issuer")]
    Issuer,
    /// It is for another audience.
    #[error("the token is for another audience")]
    Audience,
    /// Its scopes cannot be used.
    #[error("the scope of the token: {0}")]
    Scope(#[from] ScopeError),
}

/// Verifies signed tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verifier {
    keys: Vec<Key>,
    policy: ClaimPolicy,
}

impl Verifier {
    /// Creates a verifier; without keys, it refuses everything.
    pub fn new(keys: Vec<Key>, policy: ClaimPolicy) -> Self {
        Verifier { keys, policy }
    }

    /// Verifies the signature first, then the claims.
    ///
    /// # Errors
    ///
    /// Why the token is not valid now.
    pub fn verify(&self, token: &str, now: SystemTime) -> Result<Claims, Invalid> {
        let parts = Parts::split(token)?;
        let header = Header::parse(parts.header)?;
        let signature = decode(parts.signature, "its signature is not base64url")?;
        let mut candidates = self.keys.iter().filter(|key| header.fits(key)).peekable();
        if candidates.peek().is_none() {
            return Err(Invalid::UnknownKey(header.algorithm));
        }
        if !candidates.any(|key| key.verify(parts.signed.as_bytes(), &signature)) {
            return Err(Invalid::Signature);
        }
        let claims = object(parts.claims, "its claims are not an object, or one occurs twice")?;
        self.check(&claims, now)
    }

    fn check(&self, claims: &Map<String, Value>, now: SystemTime) -> Result<Claims, Invalid> {
        let skew = self.policy.max_clock_skew.as_secs_f64();
        let now = now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs_f64();
        let expires = seconds(claims, "exp")?.ok_or(Invalid::Claim("exp"))? + skew;
        if now >= expires {
            return Err(Invalid::Expired);
        }
        if seconds(claims, "nbf")?.is_some_and(|not_before| now + skew < not_before) {
            return Err(Invalid::NotYet);
        }
        let issuer = text(claims, "iss")?.unwrap_or_default();
        if self.policy.issuer.as_ref().is_some_and(|required| issuer != required) {
            return Err(Invalid::Issuer);
        }
        let audiences = texts(claims, "aud")?;
        let is_for_us = match &self.policy.audience {
            Some(audience) => audiences.is_some_and(|audiences| audiences.contains(&audience.as_str())),
            // A token for someone else must not work here (RFC 7519, section 4.1.3).
            None => audiences.is_none(),
        };
        if !is_for_us {
            return Err(Invalid::Audience);
        }
        let subject = text(claims, "sub")?;
        if subject == Some("") {
            return Err(Invalid::Claim("sub"));
        }
        let scopes = match texts(claims, "scope")? {
            None => Scopes::all(),
            Some(words) => words.join(" ").parse()?,
        };
        Ok(Claims {
            issuer: issuer.to_owned(),
            subject: subject.unwrap_or_default().to_owned(),
            scopes,
            expires_at: SystemTime::UNIX_EPOCH + Duration::from_secs_f64(expires.clamp(0.0, LATEST)),
        })
    }
}

/// Decodes the header and the claims of a token without verifying anything.
///
/// # Errors
///
/// If it is not a JWT.
pub fn decode_unverified(token: &str) -> Result<(Value, Value), Invalid> {
    let parts = Parts::split(token)?;
    let header = object(parts.header, "its header is not an object, or a member occurs twice")?;
    let claims = object(parts.claims, "its claims are not an object, or one occurs twice")?;
    Ok((header.into(), claims.into()))
}

/// The three parts of a token.
struct Parts<'a> {
    header: &'a str,
    claims: &'a str,
    signature: &'a str,
    /// Header and claims, as they are signed.
    signed: &'a str,
}

impl<'a> Parts<'a> {
    fn split(token: &'a str) -> Result<Self, Invalid> {
        if token.len() > MAX_TOKEN_LEN {
            return Err(Invalid::TooLong);
        }
        let parts = || {
            let (signed, signature) = token.rsplit_once('.')?;
            let (header, claims) = signed.split_once('.')?;
            (!claims.contains('.')).then_some(Parts { header, claims, signature, signed })
        };
        parts().ok_or(Invalid::Malformed("it does not have three parts"))
    }
}

/// What the header says about the signature; nothing else in it is used, least of all keys and URLs.
struct Header {
    algorithm: Algorithm,
    key_id: Option<String>,
}

impl Header {
    fn parse(encoded: &str) -> Result<Self, Invalid> {
        let header = object(encoded, "its header is not an object, or a member occurs twice")?;
        // Extensions that must be understood; none is.
        if header.contains_key("crit") {
            return Err(Invalid::Header("crit"));
        }
        let kind = header.get("typ").map(|kind| kind.as_str().unwrap_or_default().to_ascii_lowercase());
        if kind.is_some_and(|kind| !matches!(kind.as_str(), "jwt" | "at+jwt" | "application/at+jwt")) {
            return Err(Invalid::Header("typ"));
        }
        let algorithm = header.get("alg").and_then(Value::as_str).and_then(Algorithm::from_name);
        let key_id = match header.get("kid") {
            None => None,
            Some(Value::String(id)) => Some(id.clone()),
            Some(_) => return Err(Invalid::Header("kid")),
        };
        Ok(Header { algorithm: algorithm.ok_or(Invalid::Algorithm)?, key_id })
    }

    /// Returns whether a key may have made the signature.
    fn fits(&self, key: &Key) -> bool {
        key.algorithm() == self.algorithm && key.has_id(self.key_id.as_deref())
    }
}

fn decode(encoded: &str, problem: &'static str) -> Result<Vec<u8>, Invalid> {
    BASE64_URL_SAFE_NO_PAD.decode(encoded).map_err(|_| Invalid::Malformed(problem))
}

fn object(encoded: &str, problem: &'static str) -> Result<Map<String, Value>, Invalid> {
    json::object(&decode(encoded, problem)?).ok_or(Invalid::Malformed(problem))
}

/// Returns a claim that is a time, in seconds since 1970.
fn seconds(claims: &Map<String, Value>, name: &'static str) -> Result<Option<f64>, Invalid> {
    let number = |value: &Value| value.as_f64().filter(|seconds| seconds.is_finite());
    claims.get(name).map(|value| number(value).ok_or(Invalid::Claim(name))).transpose()
}

fn text<'a>(claims: &'a Map<String, Value>, name: &'static str) -> Result<Option<&'a str>, Invalid> {
    claims.get(name).map(|value| value.as_str().ok_or(Invalid::Claim(name))).transpose()
}

/// Returns a claim that is one text or several.
fn texts<'a>(claims: &'a Map<String, Value>, name: &'static str) -> Result<Option<Vec<&'a str>>, Invalid> {
    match claims.get(name) {
        None => Ok(None),
        Some(Value::String(one)) => Ok(Some(vec![one])),
        Some(Value::Array(several)) => {
            let texts: Option<_> = several.iter().map(Value::as_str).collect();
            texts.map(Some).ok_or(Invalid::Claim(name))
        }
        Some(_) => Err(Invalid::Claim(name)),
    }
}

#[cfg(test)]
#[path = "verify_tests.rs"]
mod tests;
