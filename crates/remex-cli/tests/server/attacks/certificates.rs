//! Attacks on TLS ports: certificates that were removed from the list, wrong CAs, old versions, and handshakes that
//! never end.

use std::{
    io::{self, Read as _, Write as _},
    net::TcpStream,
    time::{Duration, Instant},
};

use rustix::process::Signal;
use serde_json::json;

use crate::{
    configuration::{Files, reload},
    support::{AuditLog, Client, PATIENCE, Pki, Server, exchange, request, tls_status, tls_stream, upgrade},
    tls::{hello, send},
};

/// Returns a configuration that admits the listed certificates.
fn listing(pki: &Pki, certificates: &str) -> String {
    let [cert, key, ca, audit] = ["server.pem", "server.key", "ca.pem", "audit"].map(|file| pki.arg(file));
    format!(
        "listen = ['wss://127.0.0.1:0']\n[tls]\ncert = '{cert}'\nkey = '{key}'\nclient_ca = '{ca}'\n\
         [auth]\ncertificates = [{certificates}]\n[audit]\nfile = '{audit}'\n"
    )
}

fn connect(server: &Server, pki: &Pki, certificate: &str) -> Client {
    let client = Client::connect_with_tls(server.address(), pki.client_config(Some(certificate)), &[]);
    client.initialize();
    client
}

/// Returns the status of an upgrade.
fn status(server: &Server, pki: &Pki, certificate: &str) -> String {
    let config = pki.client_config(Some(certificate));
    tls_status(server, config, "localhost", &upgrade("/", &[])).expect("the server answers")
}

#[test]
fn a_certificate_that_is_removed_from_the_list_is_disconnected_and_refused() {
    let (pki, authority) = Pki::new();
    for name in ["ann", "bob"] {
        authority.client(name, name, &[name]);
    }
    let files = Files::new(&listing(&pki, "{ name = 'dns:ann' }, { name = 'dns:bob' }"));
    let server = files.serve(&[]);
    let (ann, bob) = (connect(&server, &pki, "ann"), connect(&server, &pki, "bob"));
    ann.start("p", &["/bin/sleep", "1000"], json!({}));

    reload(&server, &files, &listing(&pki, "{ name = 'dns:bob' }"));
    let (code, reason) = ann.closed_for("its certificate was removed from the list");
    assert_eq!((code, reason.contains("no longer valid")), (1008, true), "{reason}");
    assert_eq!(status(&server, &pki, "ann"), "403");
    let audit = AuditLog::new(pki.path("audit"));
    let line = audit.line(&json!({"event": "login", "outcome": "the certificate `dns:ann` is not listed"}));
    assert!(line["peer"].as_str().is_some_and(|peer| peer.starts_with("127.0.0.1:")), "{line}");
    bob.call("process/list", json!({})).expect("others stay connected");

    // The same name with another key.
    let other = format!("{{ name = 'dns:bob', key_sha256 = '{}' }}", "0".repeat(64));
    reload(&server, &files, &listing(&pki, &other));
    bob.closed_for("another key is listed under its name");
    assert_eq!(status(&server, &pki, "bob"), "403");

    reload(&server, &files, &listing(&pki, "{ name = 'dns:bob', scope = 'http' }"));
    let bob = connect(&server, &pki, "bob");
    reload(&server, &files, &listing(&pki, "{ name = 'dns:bob', scope = 'metrics' }"));
    bob.closed_for("its scopes changed");

    let bob = connect(&server, &pki, "bob");
    reload(&server, &files, &listing(&pki, ""));
    bob.closed_for("the list is empty");
    assert_eq!(status(&server, &pki, "bob"), "403");
}

#[test]
fn a_common_name_admits_no_one_unless_configured() {
    let (pki, authority) = Pki::new();
    authority.client("boss", "boss", &["boss.example"]);
    authority.client("uri", "uri", &["spiffe://example.com/boss"]);
    authority.client("eve", "boss.example", &[]);
    authority.client("mallory", "spiffe://example.com/boss", &[]);
    let admins = "{ name = 'dns:boss.example', scope = 'admin' }, \
                  { name = 'uri:spiffe://example.com/boss', scope = 'admin' }";
    let files = Files::new(&listing(&pki, admins));
    let server = files.serve(&[]);
    let statuses = || ["boss", "uri", "eve", "mallory"].map(|name| status(&server, &pki, name));
    assert_eq!(statuses(), ["101", "101", "403", "403"]);
    let audit = AuditLog::new(pki.path("audit"));
    let refused = audit.lines_with(&json!({"event": "login"}), 3).remove(2);
    let outcome = refused["outcome"].as_str().expect("a failed login has an outcome");
    assert!(outcome.contains("only the common name `boss.example`"), "{outcome}");

    // Where they count, they are names of another kind.
    let with_common = |certificates: &str| {
        listing(&pki, certificates).replace("[auth]", "[auth]\ncertificate_common_names = true")
    };
    reload(&server, &files, &with_common(admins));
    assert_eq!(statuses(), ["101", "101", "403", "403"]);
    reload(&server, &files, &with_common("{ name = 'cn:boss.example' }"));
    assert_eq!(statuses(), ["403", "403", "101", "403"]);

    files.write("server.toml", &listing(&pki, "{ name = 'cn:boss.example' }"));
    server.signal(Signal::HUP);
    let line = server.stderr_line("was not reloaded");
    assert!(line.contains("`cn:boss.example` in `auth.certificates` has no effect"), "{line}");
}

#[test]
fn a_connection_ends_when_its_certificate_expires() {
    let (pki, authority) = Pki::new();
    authority.brief_client("ann", "ann", Duration::from_secs(6));
    let server = pki.serve_mutual(&[]);
    let ann = connect(&server, &pki, "ann");
    let (code, reason) = ann.closed_for("its certificate expired");
    assert_eq!((code, reason.contains("expired")), (1008, true), "{reason}");
    // A certificate counts as valid until the end of its last second.
    let deadline = Instant::now() + PATIENCE;
    let ready = request("GET", "/readyz", &[]);
    while tls_status(&server, pki.client_config(Some("ann")), "localhost", &ready).is_ok() {
        assert!(Instant::now() < deadline, "waited for the server to refuse an expired certificate");
    }
}

#[test]
fn a_tls_port_refuses_unknown_clients_and_records_each() {
    let (pki, authority) = Pki::new();
    authority.client("ann", "ann", &["ann"]);
    pki.authority("other").client("eve", "eve", &["eve"]);
    let audit = pki.path("audit");
    let server = pki.serve_mutual(&["--audit", audit.to_str().expect("the path is text")]);
    let audit = AuditLog::new(audit);
    let failures = |count: usize| {
        let login = |line: &serde_json::Value| line["event"] == "login" && line.get("identity").is_none();
        let lines = audit.lines_with(&json!({"event": "login"}), count);
        let lines: Vec<_> = lines.into_iter().filter(login).collect();
        assert_eq!(lines.len(), count, "{lines:?}");
        lines[count - 1]["outcome"].as_str().expect("a failed login has an outcome").to_owned()
    };
    let ready = request("GET", "/readyz", &[]);
    for (certificate, count) in [(None, 1), (Some("eve"), 2)] {
        let refused = tls_status(&server, pki.client_config(certificate), "localhost", &ready);
        refused.expect_err("nothing is answered, not even whether the server is ready");
        let outcome = failures(count);
        assert!(outcome.starts_with("TLS failed: "), "{certificate:?}: {outcome}");
    }
    let plain = server.address().replace("wss://", "ws://");
    assert_eq!(exchange(&plain, upgrade("/", &[])).expect("HTTP is answered").status, 426);
    assert!(failures(3).contains("does not speak TLS"));
    assert_eq!(send(&server, &hello(1))[0], 0x15, "TLS 1.1 gets an alert");
    assert!(failures(4).starts_with("TLS failed: "));
    connect(&server, &pki, "ann").call("process/list", json!({})).expect("ann is admitted");
}

/// Sends one byte after the other until the server answers or closes; returns what it said.
fn trickle(stream: &mut (impl io::Read + io::Write), bytes: &[u8], deadline: Instant) -> Vec<u8> {
    let mut answer = [0; 512];
    for byte in bytes.iter().chain(std::iter::repeat(&b'a')) {
        assert!(Instant::now() < deadline, "waited for the server to give up on a slow client");
        if stream.write_all(&[*byte]).and_then(|()| stream.flush()).is_err() {
            return Vec::new();
        }
        // The time-out of this read is the pace of the attack.
        match stream.read(&mut answer) {
            Ok(len) => return answer[..len].to_vec(),
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {}
            Err(_) => return Vec::new(),
        }
    }
    unreachable!("the bytes never end")
}

#[test]
fn slow_tls_clients_time_out_and_block_no_other() {
    const PACE: Duration = Duration::from_millis(250);
    let (pki, _) = Pki::new();
    let audit = pki.path("audit");
    let server = pki.serve(&["--audit", audit.to_str().expect("the path is text")]);
    let (audit, deadline) = (AuditLog::new(audit), Instant::now() + PATIENCE);
    let early = Client::connect_with_tls(server.address(), pki.client_config(None), &[]);
    early.initialize();
    let tcp = || {
        let address = server.address().strip_prefix("wss://").expect("the port has TLS");
        let stream = TcpStream::connect(address).expect("the listener accepts");
        stream.set_read_timeout(Some(PACE)).expect("a socket has time-outs");
        stream
    };
    std::thread::scope(|scope| {
        let slow_hello = scope.spawn(|| trickle(&mut tcp(), &hello(2), deadline));
        let slow_head = scope.spawn(|| {
            let mut stream = tls_stream(&server, pki.client_config(None), "localhost");
            stream.write_all(b"GET / HTTP/1.1\r\n").expect("the handshake succeeds");
            stream.sock.set_read_timeout(Some(PACE)).expect("a socket has time-outs");
            trickle(&mut stream, b"X-Slow: ", deadline)
        });
        let silent = scope.spawn(|| {
            let mut stream = tcp();
            stream.set_read_timeout(Some(PATIENCE)).expect("a socket has time-outs");
            let mut answer = Vec::new();
            stream.read_to_end(&mut answer).map(|_| answer)
        });
        while !(slow_hello.is_finished() && slow_head.is_finished() && silent.is_finished()) {
            early.call("environment/status", json!({})).expect("a connected client is served");
            let new = Client::connect_with_tls(server.address(), pki.client_config(None), &[]);
            new.initialize();
            std::thread::sleep(PACE);
        }
        let head = slow_head.join().expect("no panic");
        assert!(head.starts_with(b"HTTP/1.1 408 "), "{}", String::from_utf8_lossy(&head));
        slow_hello.join().expect("it ends in time");
        silent.join().expect("no panic").expect("the server closes in order");
    });
    audit.lines_with(&json!({"event": "login", "outcome": "TLS failed: the TLS handshake took too long"}), 2);
    audit.line(&json!({"event": "login", "outcome": "the request took too long"}));
}
