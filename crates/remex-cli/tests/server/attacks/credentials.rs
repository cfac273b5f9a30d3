//! Every method without a credential, and with each kind of wrong one: refused at the handshake, whatever follows it.

use std::{
    fs,
    io::{Read as _, Write as _},
    net::TcpStream,
};

use ring::{
    rand::SystemRandom,
    rsa,
    signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair as _},
};
use rustls::pki_types::{PrivatePkcs8KeyDer, pem::PemObject as _};
use serde_json::{Value, json};

use super::methods::{Target, assert_complete};
use crate::support::{
    AuditLog, Client, PATIENCE, SECRET, Server, base64url, jwt, sign, token_of, unix_now, unsigned, upgrade,
    upgrade_status, write_private,
};

/// The keys of an issuer, of which the server has the public parts.
struct Issuer {
    ec: EcdsaKeyPair,
    rsa: rsa::KeyPair,
    random: SystemRandom,
}

impl Issuer {
    fn new() -> Self {
        let random = SystemRandom::new();
        let pem = include_bytes!("../../../../remex-access/src/token/test_rsa_key.pem");
        let pem = PrivatePkcs8KeyDer::from_pem_slice(pem).expect("a key in PEM format");
        let rsa = rsa::KeyPair::from_pkcs8(pem.secret_pkcs8_der()).expect("an RSA key");
        Issuer { ec: Self::ec_key(&random), rsa, random }
    }

    fn ec_key(random: &SystemRandom) -> EcdsaKeyPair {
        let algorithm = &ECDSA_P256_SHA256_FIXED_SIGNING;
        let document = EcdsaKeyPair::generate_pkcs8(algorithm, random).expect("a key can be made");
        EcdsaKeyPair::from_pkcs8(algorithm, document.as_ref(), random).expect("it was just made")
    }

    fn jwks(&self) -> String {
        let point = self.ec.public_key().as_ref();
        let public = rsa::PublicKeyComponents::<Vec<u8>>::from(self.rsa.public_key());
        let keys = [
            json!({"kty": "EC", "crv": "P-256", "kid": "ec", "x": base64url(&point[1..33]), "y": base64url(&point[33..])}),
            json!({"kty": "RSA", "kid": "rsa", "n": base64url(public.n), "e": base64url(public.e)}),
        ];
        json!({ "keys": keys }).to_string()
    }

    /// Signs with an ES256 key under a header.
    fn es256(&self, key: &EcdsaKeyPair, header: &Value, claims: &Value) -> String {
        let signed = unsigned(header, claims);
        let signature = key.sign(&self.random, signed.as_bytes()).expect("a key signs");
        format!("{signed}.{}", base64url(signature))
    }
}

/// A token that must be refused.
struct Wrong {
    what: &'static str,
    token: Option<String>,
    /// The outcome in the audit file.
    outcome: &'static str,
}

fn wrong(what: &'static str, token: String, outcome: &'static str) -> Wrong {
    Wrong { what, token: Some(token), outcome }
}

/// Returns every kind of wrong credential for a server that has the keys of the issuer, and a secret.
fn wrong_credentials(issuer: &Issuer) -> Vec<Wrong> {
    const SIGNATURE: &str = "the signature of the token is wrong";
    const ALGORITHM: &str = "the algorithm of the token is not HS256, EdDSA, ES256 or RS256";
    let now = unix_now();
    let claims = json!({"exp": now + 600, "sub": "ann", "scope": "all admin"});
    let (hs256, es256) = (json!({"alg": "HS256"}), json!({"alg": "ES256", "kid": "ec"}));
    let own = Issuer::ec_key(&issuer.random);
    let right = issuer.es256(&issuer.ec, &es256, &claims);
    let hmac = jwt(&claims);
    let jwks = issuer.jwks();
    let modulus = rsa::PublicKeyComponents::<Vec<u8>>::from(issuer.rsa.public_key()).n;
    let other = json!({"exp": now + 600, "sub": "root", "scope": "all admin"});
    let mut all = vec![
        Wrong { what: "none", token: None, outcome: "no credential presented" },
        wrong("wrong", token_of("nobody"), "the token is not a JWT: it does not have three parts"),
        wrong("expired", token_of("former"), "the token has expired"),
        wrong("expired JWT", jwt(&json!({"exp": now - 120, "sub": "ann"})), "the token has expired"),
        wrong(
            "not yet valid",
            jwt(&json!({"exp": now + 900, "nbf": now + 600, "sub": "ann"})),
            "the token is not valid yet",
        ),
        wrong("alg: none", format!("{}.", unsigned(&json!({"alg": "none"}), &claims)), ALGORITHM),
        wrong("alg: nOnE", format!("{}.", unsigned(&json!({"alg": "nOnE"}), &claims)), ALGORITHM),
        wrong(
            "alg: none with a signature",
            sign(&json!({"alg": "none"}), &claims, SECRET.as_bytes()),
            ALGORITHM,
        ),
        wrong("no algorithm", sign(&json!({}), &claims, SECRET.as_bytes()), ALGORITHM),
        wrong("the signature of another key", issuer.es256(&own, &es256, &claims), SIGNATURE),
        wrong("a key of its own in the header", issuer.es256(&own, &with_key(&own), &claims), SIGNATURE),
        wrong("another secret", sign(&hs256, &claims, b"another secret of thirty-two bytes"), SIGNATURE),
        wrong("a truncated signature", right[..right.len() - 2].to_owned(), SIGNATURE),
        wrong("a truncated HMAC", hmac[..hmac.len() - 3].to_owned(), SIGNATURE),
        wrong("no signature", format!("{}.", right.rsplit_once('.').expect("three parts").0), SIGNATURE),
        wrong("other claims under a right signature", grafted(&right, &other), SIGNATURE),
        wrong(
            "an elliptic curve key as RSA",
            issuer.es256(&issuer.ec, &json!({"alg": "RS256", "kid": "rsa"}), &claims),
            SIGNATURE,
        ),
    ];
    // A verifier that picks the algorithm by the header would take a public key for the secret.
    for (what, public) in [
        ("HS256 with the EC point", issuer.ec.public_key().as_ref()),
        ("HS256 with the RSA modulus", &modulus),
        ("HS256 with the JWKS", jwks.as_bytes()),
        ("HS256 with the JWKS line", format!("{jwks}\n").as_bytes()),
    ] {
        all.push(wrong(what, sign(&hs256, &claims, public), SIGNATURE));
    }
    let confused = json!({"alg": "HS256", "kid": "rsa"});
    all.push(wrong("HS256 with the id of the RSA key", sign(&confused, &claims, &modulus), SIGNATURE));
    let unknown = json!({"alg": "ES256", "kid": "other"});
    all.push(wrong(
        "the id of no key",
        issuer.es256(&own, &unknown, &claims),
        "no key for ES256 with the `kid` of the token",
    ));
    all
}

/// Returns a header that brings the key to verify with.
fn with_key(key: &EcdsaKeyPair) -> Value {
    let point = key.public_key().as_ref();
    let jwk = json!({"kty": "EC", "crv": "P-256", "kid": "ec", "x": base64url(&point[1..33]), "y": base64url(&point[33..])});
    json!({"alg": "ES256", "kid": "ec", "jwk": jwk, "jku": "http://127.0.0.1:1/jwks.json", "x5u": "http://127.0.0.1:1/"})
}

/// Replaces the claims of a token and keeps its signature.
fn grafted(token: &str, claims: &Value) -> String {
    let parts: Vec<_> = token.split('.').collect();
    format!("{}.{}.{}", parts[0], base64url(claims.to_string()), parts[2])
}

/// Returns a text as a client sends it, masked with zeros.
fn frame(text: &str) -> Vec<u8> {
    let len = u16::try_from(text.len()).expect("requests are short").to_be_bytes();
    [&[0x81, 0xfe, len[0], len[1], 0, 0, 0, 0], text.as_bytes()].concat()
}

/// Asks for an upgrade and sends messages without waiting for the answer; returns all that comes.
fn send_at_once(server: &Server, token: Option<&str>, messages: &[Value]) -> String {
    let authorization = token.map(|token| format!("Authorization: Bearer {token}"));
    let mut bytes = upgrade("/", authorization.as_deref().as_slice()).into_bytes();
    bytes.extend(messages.iter().flat_map(|message| frame(&message.to_string())));
    let address = server.address().strip_prefix("ws://").expect("the port has no TLS");
    let mut stream = TcpStream::connect(address).expect("the listener accepts");
    stream.set_read_timeout(Some(PATIENCE)).expect("a minute is a time-out");
    stream.write_all(&bytes).expect("the server reads, or the kernel keeps it");
    let mut answer = Vec::new();
    // What the server has not read when it closes may reset the connection, after the answer or before.
    let _ = stream.read_to_end(&mut answer);
    String::from_utf8_lossy(&answer).into_owned()
}

#[test]
fn every_method_with_a_wrong_credential_is_refused_and_nothing_happens() {
    let (target, issuer) = (Target::new(), Issuer::new());
    let directory = tempfile::tempdir().expect("a directory can be made");
    let path = |name: &str| directory.path().join(name);
    let good = token_of("good");
    let tokens =
        format!("{good} name=good\n{} name=former expires=2020-01-01T00:00:00Z\n", token_of("former"));
    write_private(&path("tokens"), &tokens);
    write_private(&path("secret"), SECRET);
    fs::write(path("jwks.json"), issuer.jwks()).expect("the directory is ours");
    let config = "[auth]\ntoken_file = 'tokens'\n[auth.jwt]\nsecret_file = 'secret'\njwks_file = 'jwks.json'\n\
                  [limits]\nfailed_login_delay = '0s'\n[audit]\nfile = 'audit'\n";
    write_private(&path("server.toml"), config);
    let server = Server::serve(&["--config", path("server.toml").to_str().expect("the path is text")]);
    let audit = AuditLog::new(path("audit"));

    let attempts = target.attempts();
    let client = Client::connect_with_token(server.address(), &good);
    client.initialize();
    assert_complete(&client, &attempts);
    let claims = json!({"exp": unix_now() + 600, "sub": "ann"});
    let right = issuer.es256(&issuer.ec, &json!({"alg": "ES256", "kid": "ec"}), &claims);
    for token in [&right, &jwt(&claims)] {
        assert_eq!(upgrade_status(server.address(), Some(token)), 101, "the keys are in use");
    }

    let mut messages = vec![
        json!({"id": 1, "method": "initialize", "params": {"clientName": "attacker"}}),
        json!({"method": "initialized", "params": {}}),
    ];
    for (attempt, id) in attempts.iter().zip(2..) {
        messages.push(json!({"id": id, "method": attempt.method, "params": attempt.params}));
    }
    let wrong = wrong_credentials(&issuer);
    for Wrong { what, token, outcome } in &wrong {
        assert_eq!(upgrade_status(server.address(), token.as_deref()), 401, "{what}");
        let answer = send_at_once(&server, token.as_deref(), &messages);
        assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 401 "), "{what}: {answer}");
        assert!(!answer.contains("\"id\":"), "{what}: {answer}");
        audit.line(&json!({"event": "login", "outcome": outcome}));
    }
    target.assert_untouched();
    for Wrong { what, token, outcome } in &wrong {
        let count = 2 * wrong.iter().filter(|other| other.outcome == *outcome).count();
        let lines = audit.lines_with(&json!({"event": "login", "outcome": outcome}), count);
        assert_eq!(lines.len(), count, "{what}: {lines:?}");
        for line in lines {
            assert!(line["peer"].as_str().is_some_and(|peer| peer.starts_with("127.0.0.1:")), "{line}");
            assert_eq!(line.get("identity"), None, "{line}");
        }
        let text = audit.text();
        for part in token.iter().flat_map(|token| token.split('.')).filter(|part| part.len() > 16) {
            assert!(!text.contains(part), "{what}: {part} is in\n{text}");
        }
    }
}
