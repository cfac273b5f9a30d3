//! Decoders of credentials: token files, scopes, signed tokens and their keys.

use std::{
    sync::LazyLock,
    time::{Duration, SystemTime},
};

use remex_server::{
    Permission, Scopes,
    token::{Algorithm, ClaimPolicy, Key, SigningKey, TokenFile, Verifier, decode_unverified},
};

/// The secret that the seeds of [`jwt`] are signed with.
const SECRET: &[u8] = b"Jf8zQ1m0Vt6rXc3LbH9wYd2KsN7pEaGu";

static VERIFIER: LazyLock<Verifier> =
    LazyLock::new(|| Verifier::new(vec![Key::shared_secret(SECRET).unwrap()], ClaimPolicy::default()));

/// A token is accepted only with HS256 and a future expiry, and claims of any kind can be checked.
pub fn jwt(data: &[u8]) {
    let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_800_000_000);
    let Ok(text) = std::str::from_utf8(data) else { return };
    if VERIFIER.verify(text, now).is_ok() {
        let (header, claims) = decode_unverified(text).unwrap();
        assert_eq!(header["alg"], "HS256");
        assert!(claims["exp"].as_f64().unwrap() > 1_799_999_000.0);
    }
    // The same text as claims, with a valid signature.
    let Ok(claims) = serde_json::from_str(text) else { return };
    let signed = SigningKey::shared_secret(SECRET).unwrap().sign(&claims);
    if let Ok(accepted) = VERIFIER.verify(&signed, now) {
        assert!(accepted.expires_at > now && claims["exp"].is_number(), "{text}");
        assert!(claims.get("aud").is_none(), "it is for another audience: {text}");
        assert!(claims["scope"].is_null() || accepted.scopes.to_string().parse() == Ok(accepted.scopes));
    }
    let forged = signed.rsplit_once('.').unwrap().0;
    assert!(VERIFIER.verify(&format!("{forged}.{}", "A".repeat(43)), now).is_err());
}

/// A JWKS that is accepted has only public keys.
pub fn jwks(data: &[u8]) {
    let Ok(keys) = Key::parse_jwks(data) else { return };
    assert!(!keys.is_empty() && keys.iter().all(|key| key.algorithm() != Algorithm::Hs256));
    let verifier = Verifier::new(keys, ClaimPolicy::default());
    for algorithm in ["EdDSA", "ES256", "RS256"] {
        let header = match algorithm {
            "EdDSA" => "eyJhbGciOiJFZERTQSJ9",
            "ES256" => "eyJhbGciOiJFUzI1NiJ9",
            _ => "eyJhbGciOiJSUzI1NiJ9",
        };
        let token = format!("{header}.eyJleHAiOjF9.{}", "A".repeat(86));
        assert!(verifier.verify(&token, SystemTime::UNIX_EPOCH).is_err(), "{algorithm}");
    }
}

/// A token file is accepted with tokens that are all different, or refused at one of its lines.
pub fn token_file(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    match TokenFile::parse(text) {
        Ok(file) => {
            assert!(!file.tokens.is_empty());
            let mut digests: Vec<_> = file.tokens.iter().map(|token| token.sha256).collect();
            digests.sort_unstable();
            digests.dedup();
            assert_eq!(digests.len(), file.tokens.len());
            assert!(file.tokens.iter().all(|token| !token.name.is_empty() && token.name.is_ascii()));
        }
        Err(error) => assert_eq!(error.to_string().lines().count(), 1, "{error}"),
    }
}

/// Scopes are printed as what parses to the same, and allow something.
pub fn scopes(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    match text.parse::<Scopes>() {
        Ok(scopes) => {
            assert_eq!(scopes.to_string().parse(), Ok(scopes.clone()), "{text}");
            assert!(Permission::ALL.iter().any(|permission| scopes.allow(*permission)));
            assert!(!scopes.allow(Permission::Admin) || text.contains("admin"));
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}
