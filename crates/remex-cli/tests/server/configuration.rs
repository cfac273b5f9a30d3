//! The configuration file: what it sets, what flags override, what a reload changes, and how mistakes are named.

#![allow(clippy::unwrap_used, reason = "in a test it is the assertion")]

use std::{fs, os::unix::fs::PermissionsExt as _, path::PathBuf, sync::Arc};

use rustix::{
    fs::{CWD, Mode, mkfifoat},
    process::Signal,
};
use serde_json::json;
use sha2::{Digest as _, Sha256};
use tempfile::TempDir;

use crate::support::{
    AuditLog, Client, SECRET, Server, exchange, finish, jwt, tls_status, unix_now, upgrade,
};

/// A directory with a configuration file and what it names.
pub(crate) struct Files {
    directory: TempDir,
}

impl Files {
    pub(crate) fn new(config: &str) -> Self {
        let files = Files { directory: tempfile::tempdir().unwrap() };
        files.write("server.toml", config);
        files
    }

    pub(crate) fn write(&self, name: &str, text: &str) {
        fs::write(self.path(name), text).unwrap();
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn config(&self) -> String {
        self.path("server.toml").to_str().unwrap().to_owned()
    }

    pub(crate) fn serve(&self, flags: &[&str]) -> Server {
        Server::serve(&[&["--config", &self.config(), "--log", "info"], flags].concat())
    }
}

/// Writes another configuration, has the server read it, and waits until it is in effect.
pub(crate) fn reload(server: &Server, files: &Files, config: &str) {
    files.write("server.toml", config);
    server.signal(Signal::HUP);
    server.stderr_line("configuration reloaded");
}

fn with_token(server: &Server, token: &str) -> Client {
    let client = Client::connect_with_token(server.address(), token);
    client.initialize();
    client
}

fn status(server: &Server, headers: &[&str]) -> u16 {
    exchange(server.address(), upgrade("/", headers)).expect("an answer").status
}

#[test]
fn every_setting_is_printed_and_what_is_printed_is_a_configuration_file() {
    let printed = finish(&["serve", "--print-config"]);
    assert_eq!(printed.code(), Some(0), "{printed:?}");
    for line in ["listen = [\"ws://127.0.0.1:0\"]", "#cert = \"cert.pem\"", "[auth.jwt]", "sessions = 4096"] {
        assert!(
            printed.stdout.lines().any(|printed| printed == line),
            "no line `{line}`: {}",
            printed.stdout
        );
    }
    let files = Files::new(&printed.stdout);
    let again = finish(&["serve", "--config", &files.config(), "--print-config"]);
    assert_eq!(again.stdout, printed.stdout);
}

#[test]
fn flags_override_the_file_and_its_paths_are_relative_to_it() {
    let files = Files::new(
        "listen = ['unix:///nonexistent/socket']\nlog = 'error'\nmax_detach_ttl = 'forever'\n\
         [auth]\ntoken_file = 'token'\n[limits]\nsessions = 7\n",
    );
    let flags = ["serve", "-c", &files.config(), "--listen", "ws://127.0.0.1:0", "--shutdown-grace", "5s"];
    let printed = finish(&[&flags[..], &["--log", "debug", "--print-config"]].concat());
    assert_eq!(printed.code(), Some(0), "{printed:?}");
    let token = format!("token_file = \"{}\"", files.path("token").display());
    for line in [
        "listen = [\"ws://127.0.0.1:0\"]",
        "log = \"debug\"",
        "max_detach_ttl = \"forever\"",
        "shutdown_grace = \"5s\"",
        "sessions = 7",
        &token,
    ] {
        assert!(
            printed.stdout.lines().any(|printed| printed == line),
            "no line `{line}`: {}",
            printed.stdout
        );
    }
}

#[test]
fn mistakes_in_the_file_are_named_with_their_lines_and_nothing_starts() {
    let files = Files::new("listen = ['stdio']\nlgo = 'info'\n[limits]\nsessions = 'many'\n");
    let finished = finish(&["serve", "--config", &files.config()]);
    assert_eq!(finished.code(), Some(2), "{finished:?}");
    let (file, stderr) = (files.config(), &finished.stderr);
    let unknown = format!("{file}:2: unknown key `lgo`\n  hint: did you mean `log`?");
    assert!(stderr.contains(&unknown), "{stderr}");
    let wrong = format!("{file}:4: `sessions` is not a number\n  hint: write `sessions = 100`");
    assert!(stderr.contains(&wrong), "{stderr}");
    let missing = finish(&["serve", "--config", "/nonexistent/server.toml"]);
    assert_eq!(missing.code(), Some(2), "{missing:?}");
    assert!(missing.stderr.contains("cannot read `/nonexistent/server.toml`"), "{missing:?}");
}

#[test]
fn an_exposed_address_needs_authentication_and_a_wss_one_a_certificate() {
    let files = Files::new("listen = ['ws://0.0.0.0:0']\n");
    let open = finish(&["serve", "--config", &files.config()]);
    assert_eq!(open.code(), Some(2), "{open:?}");
    assert!(open.stderr.contains("cannot listen on ws://0.0.0.0:0 without authentication"), "{open:?}");
    files.write("server.toml", "listen = ['wss://127.0.0.1:0']\n");
    let bare = finish(&["serve", "--config", &files.config()]);
    assert_eq!(bare.code(), Some(2), "{bare:?}");
    assert!(bare.stderr.contains("cannot listen on wss://127.0.0.1:0 without a certificate"), "{bare:?}");
    assert!(bare.stderr.contains("--tls-cert PATH --tls-key PATH"), "{bare:?}");
}

#[test]
fn a_fifo_in_place_of_a_file_blocks_neither_reloads_nor_shutdown() {
    let files = Files::new("[auth]\ntoken_file = 'tokens'\n");
    files.write("tokens", "1b7d0e93c5a2f8646e0d9b3a7c51f248\n");
    let mut server = files.serve(&[]);
    let replace_by_fifo = || {
        mkfifoat(CWD, files.path("fifo"), Mode::RUSR | Mode::WUSR).unwrap();
        fs::rename(files.path("fifo"), files.path("tokens")).unwrap();
    };
    replace_by_fifo();
    server.signal(Signal::HUP);
    let refusal = server.stderr_line("cannot use a credential file");
    assert!(refusal.contains("it is not a regular file"), "{refusal}");
    server.stderr_line("configuration reloaded");
    // The previous token stays valid, and its removal counts as soon as there is a file again.
    let client = with_token(&server, "1b7d0e93c5a2f8646e0d9b3a7c51f248");
    files.write("tokens.new", "8c3f5a07e1d94b62a0f7c85e19d36b24\n");
    fs::rename(files.path("tokens.new"), files.path("tokens")).unwrap();
    assert_eq!(client.closed_for("its token is gone").0, 1008);
    replace_by_fifo();
    server.signal(Signal::HUP);
    server.signal(Signal::TERM);
    assert_eq!(server.wait().code(), Some(0));
}

#[test]
fn a_broken_credential_file_keeps_no_removed_token_valid() {
    let [file, sha256, kept] = [
        "1b7d0e93c5a2f8646e0d9b3a7c51f248",
        "8c3f5a07e1d94b62a0f7c85e19d36b24",
        "5e92b7c04f1a8d3660c9e2f7ab41d835",
    ];
    let hex: String = Sha256::digest(sha256).iter().map(|byte| format!("{byte:02x}")).collect();
    let jwt_config = "jwt = { secret_file = 'secret' }\ntoken_file = 'tokens'\n";
    let files = Files::new(&format!("[auth]\n{jwt_config}token_sha256 = ['{hex}']\n"));
    files.write("tokens", &format!("{file}\n{kept}\n"));
    files.write("secret", SECRET);
    let server = files.serve(&[]);
    let claims = json!({"exp": unix_now() + 600, "sub": "ann"});
    let signed = jwt(&claims);
    let statuses = || {
        [file, sha256, kept, &signed]
            .map(|token| status(&server, &[&format!("Authorization: Bearer {token}")]))
    };
    assert_eq!(statuses(), [101, 101, 101, 101]);
    let client = with_token(&server, file);

    for broken in ["gone", "weak"] {
        match broken {
            "gone" => fs::remove_file(files.path("secret")).unwrap(),
            _ => files.write("secret", broken),
        }
        files.write("tokens.new", &format!("{kept} name={broken}\n"));
        fs::rename(files.path("tokens.new"), files.path("tokens")).unwrap();
        let line = server.stderr_line("cannot use a credential file");
        assert!(line.contains("secret"), "{line}");
    }
    assert_eq!(client.closed_for("its token was removed").0, 1008);
    assert_eq!(statuses(), [401, 101, 101, 101], "the key known so far stays valid");

    reload(&server, &files, &format!("[auth]\n{jwt_config}"));
    assert_eq!(statuses(), [401, 401, 101, 101]);
}

#[test]
fn each_reload_names_audit_changes_that_need_a_restart() {
    let files = Files::new("[audit]\nfile = 'audit'\n");
    let server = files.serve(&[]);
    for _ in 0..2 {
        files.write("server.toml", "[audit]\nfile = 'other'\nrequired = true\n");
        server.signal(Signal::HUP);
        for key in ["audit.file", "audit.required"] {
            let warning = server.stderr_line("takes effect when the server starts again");
            assert!(warning.contains(key), "{warning}");
        }
        server.stderr_line("configuration reloaded");
    }
    assert!(!files.path("other").exists());
}

#[test]
fn a_reload_replaces_tokens_and_disconnects_clients_with_removed_ones() {
    let config = |name: &str| format!("[auth]\ntoken_file = '{name}'\n");
    let files = Files::new(&config("old"));
    files.write("old", "1b7d0e93c5a2f8646e0d9b3a7c51f248\n");
    files.write("new", "8c3f5a07e1d94b62a0f7c85e19d36b24\n");
    let server = files.serve(&[]);
    let old = with_token(&server, "1b7d0e93c5a2f8646e0d9b3a7c51f248");
    assert_eq!(status(&server, &["Authorization: Bearer 8c3f5a07e1d94b62a0f7c85e19d36b24"]), 401);

    reload(&server, &files, &config("new"));
    let close = old.closed_for("its token is gone");
    assert_eq!(
        (close.0, close.1.as_str()),
        (1008, "the credential of this connection is no longer valid; connect with another one")
    );
    assert_eq!(status(&server, &["Authorization: Bearer 1b7d0e93c5a2f8646e0d9b3a7c51f248"]), 401);
    let new = with_token(&server, "8c3f5a07e1d94b62a0f7c85e19d36b24");

    // The same file once more changes nothing for those that it still admits.
    reload(&server, &files, &config("new"));
    new.call("process/list", json!({})).expect("the connection lasts");
}

#[test]
fn queued_requests_are_dropped_when_their_credential_is_removed() {
    let config = |name: &str| {
        format!("[auth]\ntoken_file = '{name}'\n[audit]\nfile = 'audit'\n[limits]\nrequests_per_second = 1\n")
    };
    let files = Files::new(&config("old"));
    files.write("old", "1b7d0e93c5a2f8646e0d9b3a7c51f248 name=old\n");
    files.write("new", "8c3f5a07e1d94b62a0f7c85e19d36b24 name=new\n");
    fs::create_dir(files.path("made")).unwrap();
    let server = files.serve(&[]);
    let client = with_token(&server, "1b7d0e93c5a2f8646e0d9b3a7c51f248");
    for number in 0..8 {
        let path = files.path("made").join(number.to_string());
        client.send("fs/createDirectory", json!({"path": path}));
    }
    reload(&server, &files, &config("new"));
    client.closed_for("its token is gone");
    AuditLog::new(files.path("audit")).line(&json!({"event": "connection", "identity": "token:old"}));
    let made = fs::read_dir(files.path("made")).unwrap().count();
    // The first answer is that to `initialize`.
    let answered =
        client.look(|seen| seen.messages.iter().filter(|message| message["result"].is_object()).count()) - 1;
    assert_eq!(made, answered, "nothing is done for a credential that is gone");
}

#[test]
fn a_socket_becomes_private_when_the_last_other_user_is_removed() {
    let files = Files::new("");
    let socket = files.path("socket");
    let config =
        |users: &str| format!("listen = ['unix://{}']\n[auth]\nusers = [{users}]\n", socket.display());
    let mode = || fs::metadata(&socket).unwrap().permissions().mode() & 0o777;
    files.write("server.toml", &config("{ name = '65534' }"));
    let server = files.serve(&[]);
    assert_eq!(mode(), 0o666);
    reload(&server, &files, &config(""));
    assert_eq!(mode(), 0o600);
    reload(&server, &files, &config("{ name = '65534' }"));
    assert_eq!(mode(), 0o666);
}

#[test]
fn a_broken_file_changes_nothing_and_the_log_names_its_line() {
    let files = Files::new("[auth]\ntoken_file = 'token'\n");
    files.write("token", "5e92b7c04f1a8d3660c9e2f7ab41d835");
    let server = files.serve(&[]);
    files.write("weak", "short");
    let client = with_token(&server, "5e92b7c04f1a8d3660c9e2f7ab41d835");
    for (broken, expected) in [
        ("[auth]\nowner_scope = 'al'\n", "server.toml:2: cannot use `al` for `owner_scope`"),
        ("[auth\n", "server.toml:1: "),
        ("[auth]\ntoken_file = 'nowhere'\n", "cannot read the token file"),
        ("[auth.jwt]\nsecret_file = 'weak'\n", "the secret has 5 bytes"),
    ] {
        files.write("server.toml", broken);
        server.signal(Signal::HUP);
        let line = server.stderr_line("was not reloaded");
        assert!(line.contains(expected), "{line}");
    }
    client.call("process/list", json!({})).expect("the connection lasts");
    assert_eq!(status(&server, &[]), 401, "the token is still required");
    with_token(&server, "5e92b7c04f1a8d3660c9e2f7ab41d835");
}

#[test]
fn a_reload_applies_limits_to_new_work_and_names_what_needs_a_restart() {
    let files = Files::new("");
    let server = files.serve(&[]);
    let first = server.client();
    files.write(
        "server.toml",
        "listen = ['stdio']\n[limits]\nsessions_per_identity = 1\nanswer_bytes = '2GiB'\n",
    );
    server.signal(Signal::HUP);
    for key in ["\"listen\"", "\"limits.answer_bytes\""] {
        let line = server.stderr_line("takes effect when the server starts again");
        assert!(line.contains(key), "{line}");
    }
    server.stderr_line("configuration reloaded");
    let second = server.connect();
    let (_, message) = second.refusal("initialize", json!({"clientName": "x", "resumeSessionId": null}));
    assert_eq!(
        message,
        "`owner` has 1 sessions, which is the limit for one identity (`sessions_per_identity`); end some first"
    );
    first.call("process/list", json!({})).expect("the session of before lasts");
    reload(&server, &files, "[limits]\nsessions_per_identity = 2\n");
    server.client();
}

#[test]
fn a_reload_cannot_leave_an_address_without_authentication() {
    let files = Files::new("[auth]\ntoken_file = 'token'\n");
    files.write("token", "5e92b7c04f1a8d3660c9e2f7ab41d835");
    let server = files.serve(&["--listen", "ws://0.0.0.0:0"]);
    files.write("server.toml", "");
    server.signal(Signal::HUP);
    let line = server.stderr_line("was not reloaded");
    assert!(line.contains("without authentication"), "{line}");
    let address = server.address().replace("0.0.0.0", "127.0.0.1");
    assert_eq!(exchange(&address, upgrade("/", &[])).expect("an answer").status, 401);
}

/// Returns what `/readyz` answers over TLS to a client that trusts this certificate and calls the host by this name.
fn ready_over_tls(server: &Server, trusted: &rcgen::CertifiedKey<rcgen::KeyPair>, host: &str) -> String {
    let mut roots = rustls::RootCertStore::empty();
    roots.add(trusted.cert.der().clone()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let request = format!("GET /readyz HTTP/1.1\r\nHost: {host}\r\n\r\n");
    tls_status(server, config, "build.example.com", &request).unwrap_or_else(|error| error.to_string())
}

#[test]
fn a_reload_rereads_the_certificate_and_accepts_its_names_as_hosts() {
    let files = Files::new("listen = ['wss://127.0.0.1:0']\n[tls]\ncert = 'cert.pem'\nkey = 'key.pem'\n");
    let renew = || {
        let key = rcgen::generate_simple_self_signed(["build.example.com".to_owned()]).unwrap();
        files.write("cert.pem", &key.cert.pem());
        files.write("key.pem", &key.signing_key.serialize_pem());
        key
    };
    let old = renew();
    let server = files.serve(&[]);
    assert_eq!(ready_over_tls(&server, &old, "build.example.com"), "200");
    assert_eq!(ready_over_tls(&server, &old, "evil.example"), "421");

    let new = renew();
    server.signal(Signal::HUP);
    server.stderr_line("configuration reloaded");
    assert_eq!(ready_over_tls(&server, &new, "build.example.com"), "200");
    assert!(ready_over_tls(&server, &old, "build.example.com").contains("invalid peer certificate"));

    // A certificate without its key leaves the previous one in use.
    files.write("key.pem", "nothing");
    server.signal(Signal::HUP);
    let line = server.stderr_line("cannot load the TLS certificates again");
    assert!(line.contains("key.pem"), "{line}");
    server.stderr_line("configuration reloaded");
    assert_eq!(ready_over_tls(&server, &new, "build.example.com"), "200");
}
