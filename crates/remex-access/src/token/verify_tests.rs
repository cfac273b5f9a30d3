use proptest::prelude::*;
use ring::{
    rand::SystemRandom,
    rsa,
    signature::{
        ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, Ed25519KeyPair, KeyPair as _, RSA_PKCS1_SHA256,
    },
};
use rustls::pki_types::{PrivatePkcs8KeyDer, pem::PemObject};
use serde_json::json;

use super::*;
use crate::token::SigningKey;

const SECRET: &[u8] = b"Jf8zQ1m0Vt6rXc3LbH9wYd2KsN7pEaGu";
const NOW: u64 = 1_800_000_000;

fn at(seconds: u64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(seconds)
}

fn secret() -> SigningKey {
    SigningKey::shared_secret(SECRET).unwrap()
}

fn verifier(policy: ClaimPolicy) -> Verifier {
    Verifier::new(vec![Key::shared_secret(SECRET).unwrap()], policy)
}

fn policy() -> ClaimPolicy {
    ClaimPolicy { issuer: Some("us".into()), audience: Some("here".into()), ..ClaimPolicy::default() }
}

/// Verifies claims, with `iss`, `aud` and `exp` unless they are given, under [`policy`].
#[allow(clippy::needless_pass_by_value)] // Called with what `json!` makes.
fn check(claims: Value) -> Result<Claims, Invalid> {
    let mut all = json!({"iss": "us", "aud": "here", "exp": NOW + 60});
    for (name, value) in claims.as_object().unwrap() {
        all[name] = value.clone();
    }
    verifier(policy()).verify(&secret().sign(&all), at(NOW))
}

/// Verifies a token with this header and valid claims, signed with the secret.
fn check_header(header: &str) -> Result<Claims, Invalid> {
    let token = secret().sign_raw(header, &json!({"exp": NOW + 60}).to_string());
    verifier(ClaimPolicy::default()).verify(&token, at(NOW))
}

fn ed25519() -> SigningKey {
    SigningKey::ed25519(Ed25519KeyPair::generate_pkcs8(&SystemRandom::new()).unwrap().as_ref()).unwrap()
}

fn jwks(keys: &[Value]) -> Vec<Key> {
    Key::parse_jwks(json!({"keys": keys}).to_string().as_bytes()).unwrap()
}

fn public(key: &SigningKey) -> Value {
    key.jwks().unwrap()["keys"][0].clone()
}

fn encode(bytes: impl AsRef<[u8]>) -> String {
    BASE64_URL_SAFE_NO_PAD.encode(bytes)
}

/// Returns a token with valid claims, and what its signature is made of.
fn sign_with(algorithm: &str, sign: impl Fn(&[u8]) -> Vec<u8>) -> String {
    let header = encode(json!({"alg": algorithm}).to_string());
    let signed = format!("{header}.{}", encode(json!({"exp": NOW + 60}).to_string()));
    let signature = encode(sign(signed.as_bytes()));
    format!("{signed}.{signature}")
}

#[test]
fn a_valid_token_grants_what_it_claims() {
    let claims = check(json!({"sub": "ann", "scope": "processes=2 files:read=/srv", "nbf": NOW})).unwrap();
    let expected = Claims {
        issuer: "us".into(),
        subject: "ann".into(),
        scopes: "processes=2 files:read=/srv".parse().unwrap(),
        expires_at: at(NOW + 90),
    };
    assert_eq!(claims, expected);
    assert_eq!(
        check(json!({"scope": ["http", "files:read=/srv"]})).unwrap().scopes.to_string(),
        "files:read=/srv http"
    );
    assert_eq!(check(json!({})).unwrap().scopes, Scopes::all());
    assert_eq!(check(json!({})).unwrap().subject, "");
}

#[test]
fn every_algorithm_is_verified_with_its_own_kind_of_key() {
    let random = SystemRandom::new();
    let ed = ed25519();
    let ec = EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &random).unwrap();
    let ec = EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, ec.as_ref(), &random).unwrap();
    let point = ec.public_key().as_ref();
    let pem = PrivatePkcs8KeyDer::from_pem_slice(include_bytes!("test_rsa_key.pem")).unwrap();
    let rsa = rsa::KeyPair::from_pkcs8(pem.secret_pkcs8_der()).unwrap();
    let components = rsa::PublicKeyComponents::<Vec<u8>>::from(rsa.public_key());
    let keys = jwks(&[
        public(&ed),
        json!({"kty": "EC", "crv": "P-256", "x": encode(&point[1..33]), "y": encode(&point[33..])}),
        json!({"kty": "RSA", "n": encode(components.n), "e": encode(components.e)}),
    ]);
    let verifier = Verifier::new(keys, ClaimPolicy::default());
    let sign_rsa = |message: &[u8]| {
        let mut signature = vec![0; rsa.public().modulus_len()];
        rsa.sign(&RSA_PKCS1_SHA256, &random, message, &mut signature).unwrap();
        signature
    };
    let sign_ec = |message: &[u8]| ec.sign(&random, message).unwrap().as_ref().to_vec();
    for token in
        [ed.sign(&json!({"exp": NOW + 60})), sign_with("ES256", sign_ec), sign_with("RS256", sign_rsa)]
    {
        assert!(verifier.verify(&token, at(NOW)).is_ok(), "{token}");
        let (signed, _) = token.rsplit_once('.').unwrap();
        let forged = format!("{signed}.{}", encode([7; 64]));
        assert_eq!(verifier.verify(&forged, at(NOW)), Err(Invalid::Signature));
    }
    // A signature of one kind under the name of another.
    assert_eq!(verifier.verify(&sign_with("ES256", sign_rsa), at(NOW)), Err(Invalid::Signature));
    assert_eq!(verifier.verify(&sign_with("RS256", sign_ec), at(NOW)), Err(Invalid::Signature));
}

#[test]
fn a_changed_token_or_another_secret_is_refused() {
    let token = secret().sign(&json!({"exp": NOW + 60, "sub": "ann"}));
    let verifier = verifier(ClaimPolicy::default());
    assert!(verifier.verify(&token, at(NOW)).is_ok());
    let parts: Vec<_> = token.split('.').collect();
    let claims = encode(json!({"exp": NOW + 60, "sub": "root"}).to_string());
    let forged = format!("{}.{claims}.{}", parts[0], parts[2]);
    assert_eq!(verifier.verify(&forged, at(NOW)), Err(Invalid::Signature));
    let unsigned = format!("{}.{}.", parts[0], parts[1]);
    assert_eq!(verifier.verify(&unsigned, at(NOW)), Err(Invalid::Signature));
    let other = SigningKey::shared_secret(b"Kf8zQ1m0Vt6rXc3LbH9wYd2KsN7pEaGu").unwrap();
    let token = other.sign(&json!({"exp": NOW + 60}));
    assert_eq!(verifier.verify(&token, at(NOW)), Err(Invalid::Signature));
}

#[test]
fn algorithms_are_not_confused_with_each_other() {
    for unsigned in ["none", "None", "NONE", "nOnE", "HS512", "hs256", ""] {
        assert_eq!(
            check_header(&json!({"alg": unsigned}).to_string()),
            Err(Invalid::Algorithm),
            "{unsigned}"
        );
    }
    let none = format!("{}.{}.", encode(r#"{"alg":"none"}"#), encode(json!({"exp": NOW + 60}).to_string()));
    assert_eq!(verifier(ClaimPolicy::default()).verify(&none, at(NOW)), Err(Invalid::Algorithm));

    // HS256 with what everyone knows of a public key as the secret.
    let ed = ed25519();
    let jwk = public(&ed);
    let verifier = Verifier::new(jwks(std::slice::from_ref(&jwk)), ClaimPolicy::default());
    let raw = BASE64_URL_SAFE_NO_PAD.decode(jwk["x"].as_str().unwrap()).unwrap();
    for known in [raw, jwk["x"].as_str().unwrap().into(), jwk.to_string().into_bytes()] {
        let key = ring::hmac::Key::new(ring::hmac::HMAC_SHA256, &known);
        let token = sign_with("HS256", |message| ring::hmac::sign(&key, message).as_ref().to_vec());
        assert_eq!(verifier.verify(&token, at(NOW)), Err(Invalid::UnknownKey(Algorithm::Hs256)));
        let token = sign_with("EdDSA", |message| ring::hmac::sign(&key, message).as_ref().to_vec());
        assert_eq!(verifier.verify(&token, at(NOW)), Err(Invalid::Signature));
    }
    // A valid signature of a key under the name of an algorithm that is not its own.
    let token = ed.sign_raw(r#"{"alg":"ES256"}"#, &json!({"exp": NOW + 60}).to_string());
    assert_eq!(verifier.verify(&token, at(NOW)), Err(Invalid::UnknownKey(Algorithm::Es256)));
}

#[test]
fn a_key_with_an_id_is_used_for_tokens_with_that_id() {
    let (one, other) = (ed25519(), ed25519());
    let verifier = Verifier::new(jwks(&[public(&one), public(&other)]), ClaimPolicy::default());
    let claims = json!({"exp": NOW + 60});
    assert!(verifier.verify(&one.sign(&claims), at(NOW)).is_ok());
    assert!(verifier.verify(&other.sign(&claims), at(NOW)).is_ok());
    let signed =
        |id: &str| one.sign_raw(&json!({"alg": "EdDSA", "kid": id}).to_string(), &claims.to_string());
    let id = public(&other)["kid"].as_str().unwrap().to_owned();
    assert_eq!(verifier.verify(&signed(&id), at(NOW)), Err(Invalid::Signature));
    assert_eq!(verifier.verify(&signed("?"), at(NOW)), Err(Invalid::UnknownKey(Algorithm::EdDsa)));
    let unnamed = other.sign_raw(r#"{"alg":"EdDSA"}"#, &claims.to_string());
    assert!(verifier.verify(&unnamed, at(NOW)).is_ok());
}

#[test]
fn headers_with_requirements_or_duplicates_are_refused() {
    assert!(check_header(r#"{"alg":"HS256","typ":"jwt","jku":"https://evil.example/jwks"}"#).is_ok());
    for header in [
        r#"{"alg":"HS256","crit":["exp"]}"#,
        r#"{"alg":"HS256","crit":[]}"#,
        r#"{"alg":"HS256","crit":["b64"],"b64":false}"#,
    ] {
        assert_eq!(check_header(header), Err(Invalid::Header("crit")), "{header}");
    }
    assert_eq!(check_header(r#"{"alg":"HS256","typ":"dpop+jwt"}"#), Err(Invalid::Header("typ")));
    assert_eq!(check_header(r#"{"alg":"HS256","kid":7}"#), Err(Invalid::Header("kid")));
    for header in [r#"{"alg":"none","alg":"HS256"}"#, r#"{"alg":"HS256","crit":1,"crit":1}"#, "[]", "{"] {
        assert!(matches!(check_header(header), Err(Invalid::Malformed(_))), "{header}");
    }
    let twice = secret().sign_raw(r#"{"alg":"HS256"}"#, r#"{"exp":1,"exp":9000000000}"#);
    assert!(matches!(verifier(ClaimPolicy::default()).verify(&twice, at(NOW)), Err(Invalid::Malformed(_))));
}

#[test]
fn a_token_is_valid_from_nbf_to_exp_give_or_take_the_clock_skew() {
    let skew = ClaimPolicy::default().max_clock_skew.as_secs();
    assert_eq!(check(json!({"exp": NOW - skew})), Err(Invalid::Expired));
    assert_eq!(check(json!({"exp": -1})), Err(Invalid::Expired));
    assert_eq!(check(json!({"exp": NOW - skew + 1})).unwrap().expires_at, at(NOW + 1));
    assert_eq!(check(json!({"nbf": NOW + skew + 1})), Err(Invalid::NotYet));
    assert!(check(json!({"nbf": NOW + skew})).is_ok());
    assert!(check(json!({"exp": 1e300})).is_ok(), "far away is not an error");
    for wrong in [json!(null), json!("1900000000"), json!([NOW]), json!(true)] {
        assert_eq!(check(json!({"exp": wrong})), Err(Invalid::Claim("exp")), "{wrong}");
        assert_eq!(check(json!({"nbf": wrong})), Err(Invalid::Claim("nbf")), "{wrong}");
    }
    let without = secret().sign(&json!({"sub": "ann"}));
    assert_eq!(verifier(ClaimPolicy::default()).verify(&without, at(NOW)), Err(Invalid::Claim("exp")));
    let strict = ClaimPolicy { max_clock_skew: Duration::ZERO, ..ClaimPolicy::default() };
    let token = secret().sign(&json!({"exp": NOW, "nbf": NOW - 1}));
    assert_eq!(verifier(strict.clone()).verify(&token, at(NOW)), Err(Invalid::Expired));
    assert!(verifier(strict.clone()).verify(&token, at(NOW - 1)).is_ok());
    assert_eq!(verifier(strict).verify(&token, at(NOW - 2)), Err(Invalid::NotYet));
}

#[test]
fn a_token_of_another_issuer_or_for_another_audience_is_refused() {
    for issuer in [json!("them"), json!("us "), json!("")] {
        assert_eq!(check(json!({"iss": issuer})), Err(Invalid::Issuer), "{issuer}");
    }
    assert_eq!(check(json!({"iss": ["us"]})), Err(Invalid::Claim("iss")));
    assert!(check(json!({"aud": ["there", "here"]})).is_ok());
    for audience in [json!("there"), json!(["there", "Here"]), json!([]), json!("")] {
        assert_eq!(check(json!({"aud": audience})), Err(Invalid::Audience), "{audience}");
    }
    assert_eq!(check(json!({"aud": {"here": 1}})), Err(Invalid::Claim("aud")));
    let bare = secret().sign(&json!({"exp": NOW + 60}));
    let of_us = secret().sign(&json!({"exp": NOW + 60, "iss": "us"}));
    assert_eq!(verifier(policy()).verify(&bare, at(NOW)), Err(Invalid::Issuer));
    assert_eq!(verifier(policy()).verify(&of_us, at(NOW)), Err(Invalid::Audience));
    // Without an audience of its own, a server takes no token for others.
    let for_others = secret().sign(&json!({"exp": NOW + 60, "aud": "there"}));
    assert_eq!(verifier(ClaimPolicy::default()).verify(&for_others, at(NOW)), Err(Invalid::Audience));
    assert!(verifier(ClaimPolicy::default()).verify(&of_us, at(NOW)).is_ok());
}

#[test]
fn invalid_scopes_and_subjects_are_refused() {
    for scope in [json!(""), json!([]), json!("processes fly"), json!(["fly"])] {
        assert!(matches!(check(json!({"scope": scope})), Err(Invalid::Scope(_))), "{scope}");
    }
    for scope in [json!(null), json!(7), json!([7]), json!({"all": true})] {
        assert_eq!(check(json!({"scope": scope})), Err(Invalid::Claim("scope")), "{scope}");
    }
    for subject in [json!(""), json!(7), json!(null)] {
        assert_eq!(check(json!({"sub": subject})), Err(Invalid::Claim("sub")), "{subject}");
    }
}

#[test]
fn an_invalid_jwt_is_refused() {
    let token = secret().sign(&json!({"exp": NOW + 60}));
    let verifier = verifier(ClaimPolicy::default());
    let (signed, signature) = token.rsplit_once('.').unwrap();
    for wrong in [
        String::new(),
        "..".to_owned(),
        "secret".to_owned(),
        signed.to_owned(),
        format!("{token}.{signature}"),
        format!("{token}="),
        format!(" {token}"),
        format!("{signed}.+{}", &signature[1..]),
    ] {
        let refused = verifier.verify(&wrong, at(NOW));
        assert!(matches!(refused, Err(Invalid::Malformed(_))), "{wrong}: {refused:?}");
    }
    let long = secret().sign(&json!({"exp": NOW + 60, "pad": "x".repeat(MAX_TOKEN_LEN)}));
    assert_eq!(verifier.verify(&long, at(NOW)), Err(Invalid::TooLong));
}

proptest! {
    #[test]
    fn every_changed_character_is_detected(position in 0usize..200, letter in "[A-Za-z0-9_.-]") {
        let token = secret().sign(&json!({"exp": NOW + 60, "sub": "ann", "scope": "http"}));
        let position = position % token.len();
        let mut changed = token.clone();
        changed.replace_range(position..=position, &letter);
        prop_assume!(changed != token);
        prop_assert!(verifier(ClaimPolicy::default()).verify(&changed, at(NOW)).is_err());
    }
}
