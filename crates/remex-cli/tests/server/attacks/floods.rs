//! Browsers that were tricked, and floods of half-open connections, seen by clients that are connected already.

use std::{
    io::Write as _,
    sync::atomic::{AtomicBool, Ordering},
};

use serde_json::json;

use crate::support::{
    ATTACKER, AuditLog, Client, Guarded, Pki, connect_from, exchange, raise_file_limit, request, token_of,
    upgrade,
};

/// Connections of a flood.
const FLOOD: usize = 2000;

#[test]
fn a_web_page_is_refused_even_with_a_token_and_recorded() {
    let (guarded, audit) = Guarded::audited(&format!("{} name=ann\n", token_of("ann")));
    let authorization = format!("Authorization: Bearer {}", token_of("ann"));
    let ask = |request: String| exchange(guarded.server.address(), request).expect("an answer").status;
    let origin = "Origin: https://evil.example";
    let mut refused = 0;
    for request in [
        upgrade("/", &[origin]),
        upgrade("/", &[&authorization, origin]),
        upgrade("/", &[&authorization, "Origin: null"]),
        request("GET", "/metrics", &[&authorization, origin]),
        request("GET", "/readyz", &[origin]),
    ] {
        assert_eq!(ask(request), 403);
        refused += 1;
    }
    audit.lines_with(&json!({"event": "login", "outcome": "the origin is not allowed"}), refused);
    for host in ["evil.example", "localhost.evil.example", "127.0.0.1.evil.example:80"] {
        let rebound = upgrade("/", &[&authorization]).replace("Host: localhost", &format!("Host: {host}"));
        assert_eq!(ask(rebound), 421, "{host}");
    }
    let lines = audit.lines_with(&json!({"event": "login", "outcome": "the host name is not allowed"}), 3);
    assert!(lines[0]["peer"].as_str().is_some_and(|peer| peer.starts_with("127.0.0.1:")), "{lines:?}");
    assert!(!audit.text().contains(&token_of("ann")));
    guarded.client(&token_of("ann"));
}

/// Opens connections that never say enough, until told to stop; returns how many.
fn flood(server: &crate::support::Server, is_over: &AtomicBool) -> usize {
    let mut held = Vec::new();
    for number in 0..FLOOD {
        let mut stream = connect_from(ATTACKER, server);
        // Some are silent, some begin a request or a handshake. Those over the limit are closed at once.
        let _ = stream.write_all([&b""[..], b"GET / HTTP/1.1\r\n", b"\x16\x03\x01\x02"][number % 3]);
        held.push(stream);
        if is_over.load(Ordering::Relaxed) {
            break;
        }
    }
    held.len()
}

#[test]
fn a_flood_of_half_open_connections_blocks_neither_plain_nor_tls_ports() {
    raise_file_limit();
    let (pki, _) = Pki::new();
    let (cert, key) = (pki.arg("server.pem"), pki.arg("server.key"));
    let listen = [
        "--listen",
        "ws://127.0.0.1:0",
        "--listen",
        "wss://127.0.0.1:0",
        "--tls-cert",
        &cert,
        "--tls-key",
        &key,
    ];
    let server = crate::support::Server::serve(&listen);
    let secure = server.addresses()[1].clone();
    let early = server.client();
    let early_secure = Client::connect_with_tls(&secure, pki.client_config(None), &[]);
    early_secure.initialize();
    for client in [&early, &early_secure] {
        client.start("echo", &["/bin/cat"], json!({"pipeStdin": true}));
    }
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let flooding = scope.spawn(|| flood(&server, &is_over));
        let mut rounds = 0;
        while !flooding.is_finished() || rounds == 0 {
            for client in [&early, &early_secure] {
                let chunk = crate::support::encode(format!("<{rounds}>"));
                let write = json!({"processId": "echo", "writeId": format!("w{rounds}"), "chunk": chunk});
                client.call("process/write", write).expect("a connected client is served");
                client.wait_for_output("echo", &format!("<{rounds}>"));
            }
            // New ones from another address get in, on both ports.
            let secured = Client::connect_with_tls(&secure, pki.client_config(None), &[]);
            for client in [server.connect(), secured] {
                // However many rounds there are, the sessions do not add up to their limit.
                let session = client.initialize()["sessionId"].clone();
                client.call("session/end", json!({"sessionId": session})).expect("a new client is served");
            }
            rounds += 1;
        }
        assert_eq!(flooding.join().expect("no panic"), FLOOD);
    });
}

#[test]
fn a_flood_is_summarized_in_the_audit_but_wrong_tokens_are_recorded() {
    let (guarded, audit) = Guarded::audited(&format!("{} name=ann\n", token_of("ann")));
    let held: Vec<_> = (0..300).map(|_| connect_from(ATTACKER, &guarded.server)).collect();
    assert_eq!(guarded.status(&token_of("nobody")), 401);
    let audit: &AuditLog = &audit;
    audit.line(&json!({"event": "login", "outcome": "unknown token"}));
    assert_eq!(audit.lines().len(), 1, "connections without requests say nothing about anyone");
    drop(held);
}
