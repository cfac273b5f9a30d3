//! Tokens: from files that are rewritten, and signed ones; each with its scopes and its end.

use std::{fs, os::unix::fs::PermissionsExt as _, path::Path};

use base64::{Engine as _, prelude::BASE64_URL_SAFE_NO_PAD};
use rustix::fs::{CWD, FileType, Mode, mknodat};
use serde_json::{Value, json};

use crate::support::{
    Guarded, InTime as _, Pki, SECRET, Server, finish, jwt, program, sign, unix_now as now,
    upgrade_status as status, write_private as write,
};

const ONE: &str = "rV7xq0Dk2mYw9ZsT4uJc1A";
const OTHER: &str = "0f2a61c9d84be35770ac19e2f4d6b8a3";

/// Runs `remex token` and returns what it prints on stdout.
fn token(arguments: &[&str]) -> String {
    let finished = finish(&[&["token"], arguments].concat());
    assert_eq!(finished.code(), Some(0), "{finished:?}");
    finished.stdout.trim_end().to_owned()
}

#[test]
fn several_tokens_are_valid_at_once_and_a_rewrite_replaces_them() {
    let guarded = Guarded::with_tokens(&format!("# ours\n{ONE} name=one\n"));
    assert_eq!([ONE, OTHER].map(|token| guarded.status(token)), [101, 401]);
    guarded.rewrite(&format!("{ONE} name=one\n{OTHER} name=other\n"));
    assert_eq!([ONE, OTHER].map(|token| guarded.status(token)), [101, 101]);
    guarded.rewrite(&format!("{OTHER} name=other\n"));
    assert_eq!([ONE, OTHER].map(|token| guarded.status(token)), [401, 101]);
}

#[test]
fn a_broken_or_empty_rewrite_keeps_the_old_tokens_and_is_logged() {
    let guarded = Guarded::with_tokens(ONE);
    for (broken, problem) in
        [("", "no token"), ("hunter2", "line 1: the token is weak"), ("sha256:7", "line 1")]
    {
        guarded.rewrite(broken);
        assert_eq!([ONE, "hunter2"].map(|token| guarded.status(token)), [101, 401], "{broken}");
        let line = guarded.server.stderr_line("cannot use a credential file");
        assert!(line.contains(problem) && line.contains("ERROR") && !line.contains("hunter2"), "{line}");
    }
    guarded.rewrite(OTHER);
    assert_eq!([ONE, OTHER].map(|token| guarded.status(token)), [401, 101]);
}

#[test]
fn removing_a_token_disconnects_its_clients_but_keeps_their_session() {
    let guarded = Guarded::with_tokens(&format!("{ONE} name=one\n{OTHER}\n"));
    let (one, other) = (guarded.connect(ONE), guarded.client(OTHER));
    let session = one.initialize()["sessionId"].as_str().unwrap().to_owned();
    one.start("p", &["/bin/sleep", "1000"], json!({}));
    guarded.rewrite(OTHER);
    let (code, reason) = one.closed_for("its token was removed");
    assert_eq!((code, reason.contains("no longer valid")), (1008, true), "{reason}");
    assert!(other.call("process/list", json!({})).is_ok(), "others stay connected");

    guarded.rewrite(&format!("{ONE} name=one scope=processes\n"));
    let again = guarded.connect(ONE);
    again.resume(&session);
    assert!(again.call("process/read", json!({"processId": "p"})).is_ok(), "the session was detached");
    guarded.rewrite(&format!("{ONE} name=one scope=processes:read\n"));
    let (code, reason) = again.closed_for("the scopes of its token changed");
    assert_eq!((code, reason.contains("have changed")), (1008, true), "{reason}");
}

#[test]
fn a_rotated_token_of_the_same_name_finds_its_sessions() {
    for (name, is_same) in [(" name=ci", true), ("", false)] {
        let guarded = Guarded::with_tokens(&format!("{ONE}{name}\n"));
        let before = guarded.connect(ONE);
        let session = before.initialize()["sessionId"].as_str().unwrap().to_owned();
        before.start("p", &["/bin/sleep", "1000"], json!({}));
        guarded.rewrite(&format!("{OTHER}{name}\n"));
        assert_eq!(before.closed_for("its token was removed").0, 1008);
        let after = guarded.connect(OTHER);
        if is_same {
            after.resume(&session);
            assert!(after.call("process/read", json!({"processId": "p"})).is_ok());
        } else {
            after.refusal("initialize", json!({"clientName": "test", "resumeSessionId": session}));
        }
    }
}

#[test]
fn a_hanging_token_file_blocks_no_one() {
    let guarded = Guarded::with_tokens(ONE);
    let client = guarded.client(ONE);
    fs::remove_file(&guarded.file).unwrap();
    // Opening it blocks until it is opened for writing.
    mknodat(CWD, &guarded.file, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
    assert_eq!([ONE, OTHER].map(|token| guarded.status(token)), [101, 401]);
    assert!(client.call("process/list", json!({})).is_ok());
    guarded.server.stderr_line("it is not a regular file");
    fs::remove_file(&guarded.file).unwrap();
    guarded.rewrite(OTHER);
    assert_eq!(client.closed_for("its token was replaced").0, 1008);
    assert_eq!([ONE, OTHER].map(|token| guarded.status(token)), [401, 101]);
}

#[test]
fn a_weak_token_or_a_malformed_line_is_refused_at_startup() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("tokens");
    for (text, problem) in [
        ("secret", "line 1: the token is weak"),
        ("# me\n\npasswordpasswordpasswordpassword name=me", "line 3: the token is weak"),
        ("00000000000000000000000000000000", "line 1: the token is weak"),
        ("rV7xq0Dk2mYw9ZsT4uJc1A scope=fly", "line 1: unknown scope `fly`"),
        ("rV7xq0Dk2mYw9ZsT4uJc1A expires=soon", "line 1"),
        ("rV7xq0Dk2mYw9ZsT4uJc1A and more", "line 1: word 2"),
    ] {
        write(&file, text);
        let finished =
            finish(&["serve", "--ws-auth", "capability-token", "--ws-token-file", file.to_str().unwrap()]);
        assert_eq!((finished.code(), finished.stdout.as_str()), (Some(1), ""), "{finished:?}");
        assert!(finished.stderr.contains(problem), "{text}: {finished:?}");
        if problem.contains("weak") {
            assert!(finished.stderr.contains("remex token new"), "it says what makes one: {finished:?}");
        }
    }
}

#[test]
fn a_token_file_readable_by_others_causes_a_warning() {
    let guarded = Guarded::with_tokens(ONE);
    fs::set_permissions(&guarded.file, fs::Permissions::from_mode(0o644)).unwrap();
    let file = guarded.file.to_str().unwrap();
    let server = Server::serve(&["--ws-auth", "capability-token", "--ws-token-file", file]);
    server.stderr_line("other users can read this file with secrets");
}

#[test]
fn credentials_writable_or_replaceable_by_others_are_refused_with_the_command_that_fixes_it() {
    let (pki, _authority) = Pki::new();
    write(&pki.path("tokens"), ONE);
    write(&pki.path("secret"), SECRET);
    write(&pki.path("jwks"), "{}");
    write(&pki.path("server.toml"), "");
    let directory = pki.path("").canonicalize().unwrap();
    let [tokens, secret, jwks, config, cert, key, ca] =
        ["tokens", "secret", "jwks", "server.toml", "server.pem", "server.key", "ca.pem"]
            .map(|name| pki.arg(name));
    let tls =
        ["--listen", "wss://127.0.0.1:0", "--tls-cert", &cert, "--tls-key", &key, "--tls-client-ca", &ca];
    let signed = ["--ws-auth", "signed-bearer-token"];
    for (file, flags) in [
        (&tokens, vec!["--ws-auth", "capability-token", "--ws-token-file", &tokens]),
        (&secret, [&signed[..], &["--ws-shared-secret-file", &secret]].concat()),
        (&jwks, [&signed[..], &["--ws-jwks-file", &jwks]].concat()),
        (&config, vec!["--config", &config]),
        (&key, tls.to_vec()),
        (&ca, tls.to_vec()),
    ] {
        let set_mode =
            |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
        for (path, bad, good) in [(Path::new(file), 0o666, 0o600), (&directory, 0o777, 0o700)] {
            set_mode(path, bad);
            let refused = finish(&[&["serve"], &flags[..]].concat());
            set_mode(path, good);
            assert_eq!((refused.code(), refused.stdout.as_str()), (Some(2), ""), "{file}: {refused:?}");
            let mending = format!("chmod go-w {}", path.display());
            assert!(refused.stderr.contains("other users can write to"), "{file}: {refused:?}");
            assert!(refused.stderr.contains(&mending), "{mending}: {refused:?}");
        }
    }
}

#[test]
fn a_token_file_writable_by_others_is_not_reloaded() {
    let guarded = Guarded::with_tokens(ONE);
    let set_mode = |mode| fs::set_permissions(&guarded.file, fs::Permissions::from_mode(mode)).unwrap();
    set_mode(0o666);
    fs::write(&guarded.file, OTHER).unwrap();
    assert_eq!([ONE, OTHER].map(|token| guarded.status(token)), [101, 401]);
    let line = guarded.server.stderr_line("cannot use a credential file");
    assert!(line.contains(&format!("chmod go-w {}", guarded.file.display())), "{line}");
    set_mode(0o600);
    assert_eq!([ONE, OTHER].map(|token| guarded.status(token)), [401, 101]);
}

#[test]
fn a_token_allows_only_what_its_scopes_name() {
    let directory = tempfile::tempdir().unwrap();
    let marker = directory.path().join("marker");
    let uri = format!("file://{}", marker.display());
    let guarded = Guarded::with_tokens(&format!(
        "{ONE} scope=files:read,http name=reader\n{OTHER} scope=processes:read"
    ));
    let secret = Guarded::with_secret(&[]);
    let claims = json!({"exp": now() + 600, "sub": "reader", "scope": "files:read http"});
    for reader in [guarded.client(ONE), secret.client(&jwt(&claims))] {
        let touch = json!({"processId": "p", "argv": ["/usr/bin/touch", marker.to_str().unwrap()], "cwd": "/", "env": {}, "tty": false});
        for (method, params, scope) in [
            ("process/start", touch, "processes"),
            ("fs/writeFile", json!({"path": uri, "dataBase64": ""}), "files:write"),
            ("fs/createDirectory", json!({"path": uri}), "files:write"),
            ("process/list", json!({}), "processes:read"),
        ] {
            let error = reader.call(method, params).expect_err("out of scope");
            assert_eq!(error["data"]["kind"], "permissionDenied", "{method}: {error}");
            let message = error["message"].as_str().unwrap();
            assert!(message.contains(&format!("`{scope}`")) && message.contains(method), "{message}");
        }
        assert!(
            reader
                .call("fs/readDirectory", json!({"path": format!("file://{}", directory.path().display())}))
                .is_ok()
        );
        assert!(!marker.exists(), "nothing has happened");
    }
    let other = guarded.client(OTHER);
    assert!(other.call("process/list", json!({})).is_ok());
    assert_eq!(
        other.call("fs/readFile", json!({"path": uri})).unwrap_err()["data"]["kind"],
        "permissionDenied"
    );
}

#[test]
fn only_a_valid_jwt_gets_in() {
    let guarded = Guarded::with_secret(&[
        "--ws-issuer",
        "us",
        "--ws-audience",
        "here",
        "--ws-max-clock-skew-seconds",
        "60",
    ]);
    let valid =
        json!({"iss": "us", "aud": ["here", "there"], "exp": now() + 600, "nbf": now(), "sub": "ann"});
    let with = |name: &str, value: Value| {
        let mut claims = valid.clone();
        claims[name] = value;
        claims
    };
    let hs256 = json!({"alg": "HS256"});
    assert_eq!(guarded.status(&jwt(&valid)), 101);
    assert_eq!(guarded.status(&jwt(&with("exp", json!(now() - 2)))), 101, "within the clock skew");
    assert_eq!(guarded.status(&jwt(&with("nbf", json!(now() + 3)))), 101, "within the clock skew");
    let unsigned = sign(&json!({"alg": "none"}), &valid, SECRET.as_bytes());
    let (unsigned, _) = unsigned.rsplit_once('.').unwrap();
    for (what, token) in [
        ("expired", jwt(&with("exp", json!(now() - 120)))),
        ("without expiry", jwt(&with("exp", Value::Null))),
        ("not yet valid", jwt(&with("nbf", json!(now() + 600)))),
        ("another issuer", jwt(&with("iss", json!("them")))),
        ("another audience", jwt(&with("aud", json!("there")))),
        ("an unknown scope", jwt(&with("scope", json!("processes fly")))),
        ("another secret", sign(&hs256, &valid, b"another secret of thirty-two bytes")),
        ("alg: none", sign(&json!({"alg": "none"}), &valid, SECRET.as_bytes())),
        ("alg: none without a signature", format!("{unsigned}.")),
        ("another algorithm", sign(&json!({"alg": "HS512"}), &valid, SECRET.as_bytes())),
        ("crit", sign(&json!({"alg": "HS256", "crit": ["exp"]}), &valid, SECRET.as_bytes())),
        ("too long", jwt(&with("pad", json!("x".repeat(9000))))),
        ("no JWT", ONE.to_owned()),
        ("the secret itself", SECRET.to_owned()),
    ] {
        assert_eq!(guarded.status(&token), 401, "{what}");
    }
    assert_eq!(status(guarded.server.address(), None), 401, "no token");
}

#[test]
fn a_public_key_verifies_signatures_and_is_no_secret() {
    let directory = tempfile::tempdir().unwrap();
    let key = directory.path().join("key.pem");
    let pair = rcgen::KeyPair::generate_for(&rcgen::PKCS_ED25519).unwrap();
    write(&key, &pair.serialize_pem());
    let key = key.to_str().unwrap();
    let jwks = token(&["jwks", key]);
    let flags = ["--ws-auth", "signed-bearer-token", "--ws-jwks-file"];
    let guarded = Guarded::start("jwks.json", &jwks, &flags, &["--ws-audience", "remex"]);

    let valid = token(&["new", "--key", key, "--audience", "remex", "--expires", "1h", "--subject", "ann"]);
    assert_eq!(guarded.status(&valid), 101);
    let for_others = token(&["new", "--key", key, "--audience", "others", "--expires", "1h"]);
    assert_eq!(guarded.status(&for_others), 401);
    let claims = json!({"aud": "remex", "exp": now() + 600});
    let public: Value = serde_json::from_str(&jwks).unwrap();
    let x = public["keys"][0]["x"].as_str().unwrap();
    let pem = pair.public_key_pem();
    for known in [jwks.as_bytes(), x.as_bytes(), &BASE64_URL_SAFE_NO_PAD.decode(x).unwrap(), pem.as_bytes()] {
        for algorithm in ["HS256", "EdDSA"] {
            let token = sign(&json!({"alg": algorithm, "kid": public["keys"][0]["kid"]}), &claims, known);
            assert_eq!(guarded.status(&token), 401, "{algorithm} with a public key as secret");
        }
    }

    // Rotation: the key of another issuer replaces it.
    let other = rcgen::KeyPair::generate_for(&rcgen::PKCS_ED25519).unwrap();
    let other_key = directory.path().join("other.pem");
    write(&other_key, &other.serialize_pem());
    let other_key = other_key.to_str().unwrap();
    guarded.rewrite(&token(&["jwks", other_key]));
    assert_eq!(guarded.status(&valid), 401);
    let token = token(&["new", "--key", other_key, "--audience", "remex", "--expires", "1h"]);
    assert_eq!(guarded.status(&token), 101);
}

#[test]
fn removing_a_key_disconnects_clients_with_its_tokens() {
    let guarded = Guarded::with_secret(&[]);
    let ann = guarded.client(&jwt(&json!({"exp": now() + 600, "sub": "ann"})));
    guarded.rewrite("Qw4pZ8sK1xV6nT3bM9hL2cD7fG5jR0yA");
    let (code, reason) = ann.closed_for("the key of its token was removed");
    assert_eq!((code, reason.contains("no longer valid")), (1008, true), "{reason}");
    guarded.rewrite(SECRET);
    guarded.client(&jwt(&json!({"exp": now() + 600, "sub": "ann"})));
}

#[test]
fn many_wrong_tokens_do_not_fill_the_log() {
    let guarded = Guarded::with_tokens(ONE);
    for _ in 0..200 {
        assert_eq!(guarded.status(OTHER), 401);
    }
    let log = guarded.server.stop().stderr;
    assert_eq!(log.matches("login refused").count(), 10, "{log}");
}

#[test]
fn a_connection_ends_when_its_token_expires_and_its_session_does_not() {
    let secret = Guarded::with_secret(&["--ws-max-clock-skew-seconds", "0"]);
    let claims = |exp: u64| json!({"exp": exp, "sub": "ann"});
    let brief = secret.connect(&jwt(&claims(now() + 6)));
    let session = brief.initialize()["sessionId"].as_str().unwrap().to_owned();
    brief.start("p", &["/bin/sleep", "1000"], json!({}));
    let (code, reason) = brief.closed_for("its signed token expired");
    assert_eq!((code, reason.contains("expired")), (1008, true), "{reason}");
    // The same subject with a new token continues.
    let next = secret.connect(&jwt(&claims(now() + 600)));
    next.resume(&session);
    assert!(next.call("process/read", json!({"processId": "p"})).is_ok());

    let line = token(&["new", "--expires", "6s"]);
    let guarded = Guarded::with_tokens(&line);
    let word = line.split(' ').next().unwrap();
    let client = guarded.client(word);
    let (code, reason) = client.closed_for("its token expired");
    assert_eq!((code, reason.contains("expired")), (1008, true), "{reason}");
    assert_eq!(guarded.status(word), 401);
}

#[test]
fn subjects_are_isolated_from_each_other() {
    let secret = Guarded::with_secret(&[]);
    let client =
        |subject: &str| secret.connect(&jwt(&json!({"exp": now() + 600, "sub": subject, "iss": "us"})));
    let (ann, bob) = (client("ann"), client("bob"));
    let session = ann.initialize()["sessionId"].clone();
    ann.start("p", &["/bin/sleep", "1000"], json!({}));
    bob.initialize();
    let error = bob.call("process/read", json!({"processId": "p", "sessionId": session})).unwrap_err();
    assert_eq!(error["data"]["kind"], "unknownSession", "{error}");
}

#[test]
fn unusable_keys_are_refused_at_startup() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("key");
    let path = file.to_str().unwrap();
    for (flag, text, problem) in [
        ("--ws-shared-secret-file", "short", "5 bytes, and 32 are required"),
        ("--ws-shared-secret-file", &"a".repeat(64), "the secret is weak"),
        ("--ws-shared-secret-file", "-----BEGIN PUBLIC KEY-----\nMCowBQYDK2VwAyEA\n", "PEM format"),
        ("--ws-jwks-file", "{}", "list `keys`"),
        ("--ws-jwks-file", r#"{"keys":[]}"#, "no key for"),
        ("--ws-jwks-file", r#"{"keys":[{"kty":"oct","k":"AAAA"}]}"#, "key 1: it is a shared secret"),
    ] {
        write(&file, text);
        let finished = finish(&["serve", "--ws-auth", "signed-bearer-token", flag, path]);
        assert_eq!((finished.code(), finished.stdout.as_str()), (Some(1), ""), "{finished:?}");
        assert!(finished.stderr.contains(problem), "{text}: {finished:?}");
    }
    for flags in
        [&["--ws-jwks-file", path][..], &["--ws-auth", "signed-bearer-token"], &["--ws-issuer", "us"]]
    {
        let finished = finish(&[&["serve"], flags].concat());
        assert_eq!(finished.code(), Some(2), "{finished:?}");
        assert!(finished.stderr.contains("signed-bearer-token"), "{finished:?}");
    }
}

#[test]
fn token_new_prints_a_line_for_the_file_and_jwt_new_a_token() {
    let line = token(&["new", "--name", "ci", "--scope", "http,processes=4", "--expires", "30d"]);
    let words: Vec<_> = line.split(' ').collect();
    assert_eq!(words[1..3], ["name=ci", "scope=processes=4,http"], "{line}");
    assert!(words[0].len() == 64 && words[3].starts_with("expires=20"), "{line}");
    let digest_line = finish(&["token", "new"]).stderr;
    assert!(digest_line.contains("sha256:"), "{digest_line}");

    let guarded = Guarded::with_secret(&["--ws-issuer", "us"]);
    let secret = guarded.file.to_str().unwrap();
    let flags = [
        "new",
        "--secret-file",
        secret,
        "--subject",
        "ann",
        "--issuer",
        "us",
        "--scope",
        "http",
        "--expires",
        "1h",
    ];
    let jwt = token(&flags);
    assert_eq!(guarded.status(&jwt), 101);
    let shown: Value = serde_json::from_str(&token(&["show", &jwt])).unwrap();
    assert_eq!(
        (&shown["header"]["alg"], &shown["claims"]["sub"], &shown["claims"]["scope"]),
        (&json!("HS256"), &json!("ann"), &json!("http"))
    );

    for wrong in [
        &["--scope", "fly"][..],
        &["--name", "two words"],
        &["--expires", "soon"],
        &["--subject", "ann"],
        &["--secret-file", secret],
    ] {
        let finished = finish(&[&["token", "new"], wrong].concat());
        assert_eq!((finished.code(), finished.stdout.as_str()), (Some(2), ""), "{wrong:?} {finished:?}");
    }
}

#[test]
fn the_command_line_presents_a_new_token_as_it_was_printed() {
    let guarded = Guarded::with_tokens(&token(&["new", "--name", "me"]));
    let mut command = program(&["ps", "--on", guarded.server.address(), "--token-file"]);
    let output = command.arg(&guarded.file).env("HOME", guarded.directory.path()).finished();
    assert!(output.status.success(), "{output:?}");
}
