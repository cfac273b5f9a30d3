//! The audit file and `/metrics`: what operators see of what clients do.

mod complete;

use std::{
    fs,
    io::{ErrorKind, Read as _},
    net::{SocketAddr, TcpStream},
    path::Path,
    time::{Duration, Instant},
};

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::support::{AuditLog, Client, PATIENCE, Server, exchange, upgrade};

const TOKEN: &str = "rV7xq0Dk2mYw9ZsT4uJc1A";
const READER: &str = "0f2a61c9d84be35770ac19e2f4d6b8a3";

/// A server with two tokens and an audit file.
struct Audited {
    server: Server,
    directory: tempfile::TempDir,
}

impl Audited {
    fn start(flags: &[&str]) -> Self {
        let directory = tempfile::tempdir().expect("a directory can be made");
        let [tokens, audit] = ["tokens", "audit"].map(|name| path(directory.path(), name));
        let text = format!("{TOKEN} name=ann scope=all\n{READER} name=reader scope=files:read\n");
        fs::write(&tokens, text).expect("a file can be written");
        let all =
            [&["--ws-auth", "capability-token", "--ws-token-file", &tokens, "--audit", &audit][..], flags];
        Audited { server: Server::serve(&all.concat()), directory }
    }

    fn client(&self, token: &str) -> Client {
        let client = Client::connect_with_token(self.server.address(), token);
        client.initialize();
        client
    }

    /// Waits until a line of the audit file has the given members.
    fn line(&self, members: &Value) -> Value {
        AuditLog::new(self.directory.path().join("audit")).line(members)
    }

    fn metrics(&self, token: Option<&str>) -> (u16, String) {
        metrics_at(self.server.address(), token)
    }

    /// Returns the address of the port that serves nothing but metrics.
    fn metrics_port(&self) -> String {
        let line = self.server.stderr_line("remex serves metrics on ");
        let (_, address) = line.rsplit_once("http://").expect("the line has the URL");
        format!("ws://{}", address.trim_end_matches("/metrics"))
    }
}

fn metrics_at(address: &str, token: Option<&str>) -> (u16, String) {
    let authorization = token.map(|token| format!("Authorization: Bearer {token}\r\n")).unwrap_or_default();
    let request = format!("GET /metrics HTTP/1.1\r\nHost: localhost\r\n{authorization}\r\n");
    let answer = exchange(address, request).expect("an answer");
    (answer.status, answer.body)
}

fn path(directory: &Path, name: &str) -> String {
    directory.join(name).to_str().expect("the path is text").to_owned()
}

#[test]
fn every_login_action_and_refusal_is_recorded_with_who_and_what() {
    let audited = Audited::start(&[]);
    let client = audited.client(TOKEN);
    audited.line(&json!({"event": "login", "identity": "token:ann", "outcome": "ok"}));

    client.start("p", &["sh", "-c", "cat"], json!({"env": {"SECRET": "hidden-value"}, "pipeStdin": true}));
    let started = audited.line(&json!({"event": "start", "process": "p", "outcome": "ok"}));
    assert_eq!(started["argv"], json!(["sh", "-c", "cat"]));
    assert_eq!(started["identity"], "token:ann");
    assert!(started["peer"].as_str().is_some_and(|peer| peer.starts_with("127.0.0.1:")), "{started}");
    assert!(started["durationMs"].as_f64().is_some_and(|time| time > 0.0), "{started}");
    let written = json!({"processId": "p", "writeId": "w", "chunk": "aGlkZGVuLWlucHV0"});
    client.call("process/write", written).expect("stdin is open");
    client.call("process/signal", json!({"processId": "p", "signal": "TERM"})).expect("it runs");
    assert_eq!(audited.line(&json!({"event": "signal", "process": "p"}))["signal"], "SIGTERM");
    client.call("process/terminate", json!({"processId": "p"})).expect("it is known");
    audited.line(&json!({"event": "terminate", "process": "p", "outcome": "ok"}));

    let file = path(audited.directory.path(), "file");
    let write = json!({"path": file, "dataBase64": "aGlkZGVuLWNvbnRlbnQ="});
    client.call("fs/writeFile", write).expect("the directory is writable");
    audited.line(&json!({"event": "write", "method": "fs/writeFile", "paths": [file], "outcome": "ok"}));
    client.call("fs/readFile", json!({"path": file})).expect("it was written");
    let read = audited.line(&json!({"event": "read", "paths": [file], "outcome": "ok"}));
    assert!(read["answerBytes"].as_u64().is_some_and(|bytes| bytes > 14), "{read}");
    client.call("fs/remove", json!({"path": file})).expect("it exists");
    audited.line(&json!({"event": "remove", "paths": [file], "outcome": "ok"}));
    client.call("fs/readFile", json!({"path": file})).expect_err("it was removed");
    audited.line(&json!({"event": "read", "paths": [file], "outcome": "notFound"}));
    let url = "http://user:hidden-password@127.0.0.1:1/path?token=hidden-query";
    let request = json!({"method": "GET", "url": url, "requestId": "r", "headers": []});
    client.call("http/request", request).expect_err("nothing listens there");
    audited.line(&json!({"event": "http", "url": "http://127.0.0.1:1/path"}));

    let reader = audited.client(READER);
    reader.call("fs/writeFile", json!({"path": file, "dataBase64": ""})).expect_err("it may only read");
    let refused = json!({"event": "refusal", "method": "fs/writeFile", "identity": "token:reader", "outcome": "permissionDenied"});
    assert_eq!(audited.line(&refused)["paths"], json!([file]));
    assert!(!Path::new(&file).exists());
    let wrong = exchange(audited.server.address(), upgrade("/", &["Authorization: Bearer wrong"]));
    assert_eq!(wrong.expect("an answer").status, 401);
    audited.line(&json!({"event": "login", "outcome": "unknown token"}));

    let hello = "\u{16}\u{3}\u{1}\u{2}\0\u{1}\0\u{1}";
    let address = audited.server.address().trim_start_matches("ws://").to_owned();
    let mut stream = TcpStream::connect(address).expect("the listener accepts");
    std::io::Write::write_all(&mut stream, hello.as_bytes()).expect("the server reads");
    audited.line(&json!({"event": "login", "outcome": "TLS on a port without it"}));

    drop(reader);
    audited.line(&json!({"event": "connection", "identity": "token:reader"}));
    let text = fs::read_to_string(audited.directory.path().join("audit")).expect("it exists");
    for secret in ["hidden", "aGlkZGVu", TOKEN, READER] {
        assert!(!text.contains(secret), "{secret} is in\n{text}");
    }
}

#[test]
fn a_moved_audit_file_is_recreated_on_sighup() {
    let audited = Audited::start(&[]);
    drop(audited.client(TOKEN));
    audited.line(&json!({"event": "connection"}));
    let [old, new] = ["audit", "audit.old"].map(|name| audited.directory.path().join(name));
    fs::rename(&old, new).expect("the file can be moved");
    audited.server.signal(Signal::HUP);
    let deadline = Instant::now() + Duration::from_secs(60);
    while !old.exists() {
        assert!(Instant::now() < deadline, "no new audit file after SIGHUP");
        std::thread::sleep(Duration::from_millis(5));
    }
    let _client = audited.client(TOKEN);
    audited.line(&json!({"event": "login", "identity": "token:ann"}));
}

#[test]
fn metrics_need_their_scope_and_count_what_happens() {
    let audited = Audited::start(&[]);
    assert_eq!(audited.metrics(None).0, 401);
    assert_eq!(audited.metrics(Some("wrong")).0, 401);
    assert_eq!(audited.metrics(Some(READER)).0, 403);
    let client = audited.client(TOKEN);
    client.start("p", &["sh", "-c", "printf 12345"], json!({}));
    client.collect("p");
    client.call("fs/readFile", json!({"path": "/nonexistent"})).expect_err("it does not exist");
    let (status, text) = audited.metrics(Some(TOKEN));
    assert_eq!(status, 200);
    for line in [
        "remex_connections 1",
        "remex_sessions 1",
        "remex_process_start_seconds_count 1",
        "remex_output_bytes_total 5",
        "remex_logins_failed_total 2",
        "remex_request_errors_total{method=\"fs/readFile\",kind=\"notFound\"} 1",
    ] {
        assert!(text.lines().any(|found| found == line), "{line} is not in\n{text}");
    }
}

#[test]
fn open_metrics_need_no_token_and_expose_nothing_else() {
    let audited = Audited::start(&["--metrics-open"]);
    assert_eq!(audited.metrics(None).0, 200);
    let upgraded = exchange(audited.server.address(), upgrade("/", &[]));
    assert_eq!(upgraded.expect("an answer").status, 401);
}

#[test]
fn a_separate_metrics_port_needs_a_credential_unless_metrics_are_open() {
    let listen = ["--metrics-listen", "http://127.0.0.1:0"];
    let audited = Audited::start(&listen);
    let port = audited.metrics_port();
    for (token, status) in [(None, 401), (Some("wrong"), 401), (Some(READER), 403), (Some(TOKEN), 200)] {
        assert_eq!(metrics_at(&port, token).0, status, "{token:?}");
    }
    audited.line(&json!({"event": "login", "identity": "token:reader"}));
    let bearer = format!("Authorization: Bearer {TOKEN}");
    assert_eq!(exchange(&port, upgrade("/", &[&bearer])).expect("an answer").status, 403);

    let open = Audited::start(&[&listen[..], &["--metrics-open"]].concat());
    assert_eq!(metrics_at(&open.metrics_port(), None).0, 200);
}

#[test]
fn idle_connections_on_the_metrics_port_are_limited() {
    let directory = tempfile::tempdir().expect("a directory can be made");
    let config = path(directory.path(), "server.toml");
    let limits = "[limits]\nhalf_open = 8\nhalf_open_per_address = 4\n";
    fs::write(&config, limits).expect("a file can be written");
    let audited = Audited::start(&["--config", &config, "--metrics-listen", "http://127.0.0.1:0"]);
    let port = audited.metrics_port();
    let address: SocketAddr =
        port.trim_start_matches("ws://").parse().expect("an address is an IP and a port");
    let held: Vec<_> = (0..4).map(|_| TcpStream::connect(address).expect("a connection")).collect();
    let mut refused = TcpStream::connect(address).expect("the kernel accepts it");
    refused.set_read_timeout(Some(PATIENCE)).expect("a socket has a timeout");
    let read = refused.read(&mut [0]);
    assert!(matches!(read, Ok(0)) || read.is_err_and(|error| error.kind() == ErrorKind::ConnectionReset));
    drop(held);
}

#[test]
fn every_metric_of_the_dashboard_exists() {
    let dashboard = include_str!("../../../../packaging/grafana/remex.json");
    serde_json::from_str::<Value>(dashboard).expect("the dashboard is JSON");
    let audited = Audited::start(&["--metrics-open"]);
    let (_, text) = audited.metrics(None);
    let is_part = |letter: char| letter.is_ascii_lowercase() || letter == '_';
    let names = dashboard.split(|letter| !is_part(letter)).filter(|word| word.starts_with("remex_"));
    let mut count = 0;
    for name in names {
        assert!(
            text.contains(&format!("{name} ")) || text.contains(&format!("{name}{{")),
            "no metric {name} in\n{text}"
        );
        count += 1;
    }
    assert!(count >= 10, "the dashboard has {count} metrics");
}
