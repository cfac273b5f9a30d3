//! The client over TLS: who it talks to, what it says when it does not, and what survives.

use std::{
    fs,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use remex_client::{Client, Command, Error, Link, Options, Session, Target, WebSocket, tls::TlsOptions};
use tokio::{io::AsyncReadExt as _, net::TcpStream, time::timeout};

use crate::support::{DisconnectingProxy, PATIENCE, Pki, Server, check_numbers, numbers};

/// Returns the address of a server under the name that its certificate has.
fn at(server: &Server, name: &str) -> String {
    server.address().replace("127.0.0.1", name)
}

async fn in_time<T>(what: &str, work: impl IntoFuture<Output = T>) -> T {
    timeout(PATIENCE, work).await.unwrap_or_else(|_| panic!("{what} takes too long"))
}

async fn connect(url: &str, tls: TlsOptions) -> Result<Client, Error> {
    // Boxed, because those who try again hold it in futures of their own.
    in_time("connecting", Box::pin(Client::connect(WebSocket::new(url).tls(tls).into()))).await
}

async fn assert_works(client: &Client) {
    let output = in_time("a command", Command::new("echo").arg("hello").output(client)).await.unwrap();
    assert_eq!(output.stdout, b"hello\n");
}

/// Returns why a connection fails, and the hint.
async fn failure(url: &str, tls: TlsOptions) -> (String, String) {
    match connect(url, tls).await {
        Err(Error::Unreachable { reason, hint: Some(hint), .. }) => (reason, hint),
        Err(other) => panic!("{url} fails otherwise: {other}"),
        Ok(_) => panic!("{url} is trusted"),
    }
}

fn texts(reason: &str, hint: &str) -> (String, String) {
    (reason.to_owned(), hint.to_owned())
}

#[tokio::test]
async fn a_server_is_verified_by_its_ca_its_pin_or_both() {
    let (pki, authority) = Pki::new();
    let pin = authority.server("server", &["localhost"]).parse().unwrap();
    let server = pki.serve(&[]);
    let ca = || TlsOptions::new().ca(pki.path("ca.pem"));
    assert_works(&connect(&at(&server, "localhost"), ca()).await.unwrap()).await;
    assert_works(&connect(&at(&server, "localhost"), ca().pin(pin)).await.unwrap()).await;
    // A pin alone does not ask for a name.
    assert_works(&connect(server.address(), TlsOptions::new().pin(pin)).await.unwrap()).await;
    let (reason, _) = failure(server.address(), ca().pin(pin)).await;
    assert!(reason.contains("is not for `127.0.0.1`"), "with both, the name counts: {reason}");
}

#[tokio::test]
async fn a_server_with_the_wrong_certificate_is_refused_with_the_reason() {
    let (pki, authority) = Pki::new();
    let other = pki.authority("other");
    let found = authority.server("server", &["localhost", "build.example"]);
    let server = pki.serve(&[]);
    let url = at(&server, "localhost");
    assert_eq!(
        failure(&url, TlsOptions::new().ca(pki.path("other.pem"))).await,
        texts("the server certificate is not signed by a trusted CA", "check the CA and the address")
    );
    assert_eq!(
        failure(server.address(), TlsOptions::new().ca(pki.path("ca.pem"))).await,
        texts(
            "the server certificate is not for `127.0.0.1`, but for localhost, build.example",
            "use one of its names, or get a certificate for this name"
        )
    );
    let wrong = other.server("elsewhere", &["localhost"]);
    for options in [TlsOptions::new(), TlsOptions::new().ca(pki.path("ca.pem"))] {
        assert_eq!(
            failure(&url, options.pin(wrong.parse().unwrap())).await,
            texts(
                &format!("the public key of the server is {found}, not the pinned {wrong}"),
                "change the pin if the server has a new key; otherwise another server responds at this address"
            )
        );
    }
    let (reason, hint) = failure(&url, TlsOptions::new().ca(pki.path("gone.pem"))).await;
    assert!(reason.contains("gone.pem`: No such file"), "{reason}");
    assert_eq!(hint, "check the path and its permissions");
}

#[tokio::test]
async fn an_expired_certificate_is_refused_unless_its_key_is_pinned() {
    let (pki, authority) = Pki::new();
    authority.expired_server("server");
    let server = pki.serve(&[]);
    let (reason, hint) = failure(&at(&server, "localhost"), TlsOptions::new().ca(pki.path("ca.pem"))).await;
    assert!(reason.starts_with("the server certificate has expired ("), "{reason}");
    assert_eq!(hint, "renew it, or check the clock of this host");
}

#[tokio::test]
async fn a_client_without_the_right_certificate_gets_a_clear_error() {
    let (pki, authority) = Pki::new();
    authority.client("ann", "ann", &["ann"]);
    pki.authority("other").client("eve", "eve", &["eve"]);
    let server = pki.serve_mutual(&[]);
    let ca = || TlsOptions::new().ca(pki.path("ca.pem"));
    // The verdict on a certificate comes after the client's part of the handshake; it must never get lost.
    for _ in 0..20 {
        assert_eq!(
            failure(server.address(), ca()).await,
            texts("the server requires a client certificate", "set a client certificate and its key")
        );
        let eve = ca().identity(pki.path("eve.pem"), pki.path("eve.key"));
        let (reason, hint) = failure(server.address(), eve).await;
        assert!(reason.starts_with("the server refused the client certificate ("), "{reason}");
        assert_eq!(hint, "check that it is valid, and that the server trusts its CA");
    }
    let ann = ca().identity(pki.path("ann.pem"), pki.path("ann.key"));
    assert_works(&connect(server.address(), ann).await.unwrap()).await;
    let mixed = ca().identity(pki.path("ann.pem"), pki.path("eve.key"));
    let (reason, _) = failure(server.address(), mixed).await;
    assert!(reason.contains("eve.key"), "{reason}");
}

#[tokio::test]
async fn a_wrong_scheme_is_explained_on_both_sides() {
    let (pki, _) = Pki::new();
    let (secure, plain) = (pki.serve(&[]), Server::start());
    assert_eq!(
        failure(&plain.address().replace("ws://", "wss://"), TlsOptions::new().ca(pki.path("ca.pem"))).await,
        texts("the server does not speak TLS on this port", "use `ws://`, or check the port")
    );
    assert!(
        plain.stderr_line("refused a client").contains("the client speaks TLS, which this port does not")
    );
    assert_eq!(
        failure(&secure.address().replace("wss://", "ws://"), TlsOptions::new()).await,
        texts(
            "the server refused the WebSocket with status 426: this port speaks TLS: use a `wss://` or `https://` URL",
            "it may require TLS: use `wss://`"
        )
    );
    assert!(
        secure
            .stderr_line("refused a client")
            .contains("the client does not speak TLS, which this port requires")
    );
    let misplaced = connect("ws://127.0.0.1:1", TlsOptions::new().ca("ca.pem")).await.unwrap_err();
    assert!(matches!(misplaced, Error::Address { .. }), "{misplaced}");
}

#[tokio::test]
async fn identities_prefer_spiffe_uris_then_dns_names_then_common_names_and_kinds_do_not_mix() {
    let (pki, authority) = Pki::new();
    let certificates: [(&str, &str, &[&str]); 8] = [
        ("uri-as-common", "spiffe://example.com/ann", &[]),
        ("dns-as-common", "ann.example", &[]),
        ("all", "ann", &["ann.example", "spiffe://example.com/ann"]),
        ("same-uri", "bob", &["bob.example", "spiffe://example.com/ann"]),
        ("dns", "ann", &["ann.example"]),
        ("same-dns", "eve", &["ann.example", "eve.example"]),
        ("common", "ann", &[]),
        ("same-common", "ann", &[]),
    ];
    for (file, common, names) in certificates {
        authority.client(file, common, names);
    }
    let server = pki.serve_mutual(&["--tls-client-common-names"]);
    let connect = async |file: &str, session: Session| {
        let identity = (pki.path(&format!("{file}.pem")), pki.path(&format!("{file}.key")));
        let tls = TlsOptions::new().ca(pki.path("ca.pem")).identity(identity.0, identity.1);
        let options = Options::default().session(session);
        let target = Target::from(WebSocket::new(server.address()).tls(tls));
        in_time("connecting", Client::connect_with(target, options)).await
    };
    for (first, second) in [("all", "same-uri"), ("dns", "same-dns"), ("common", "same-common")] {
        let client = connect(first, Session::New).await.unwrap();
        let session = client.session_id().to_owned();
        for (other, _, _) in certificates.iter().filter(|(file, ..)| ![first, second].contains(file)) {
            let refused = connect(other, Session::Resume { id: session.clone(), takeover: true }).await;
            assert!(refused.is_err(), "`{other}` is not who `{first}` is");
        }
        let resumed = connect(second, Session::Resume { id: session.clone(), takeover: true }).await.unwrap();
        assert_eq!(resumed.session_id(), session, "`{second}` is who `{first}` is");
    }
}

#[tokio::test]
async fn new_connections_get_a_renewed_certificate_and_old_ones_stay_open() {
    let (pki, authority) = Pki::new();
    let old_pin = authority.server("server", &["localhost"]).parse().unwrap();
    let server = pki.serve(&["--log", "info"]);
    let old = connect(server.address(), TlsOptions::new().pin(old_pin)).await.unwrap();
    let new_pin = authority.server("next", &["localhost"]).parse().unwrap();
    pki.replace("next", "server");
    let new = in_time("the new certificate", async {
        loop {
            if let Ok(client) = connect(server.address(), TlsOptions::new().pin(new_pin)).await {
                return client;
            }
        }
    })
    .await;
    server.stderr_line("the TLS certificates have changed and were loaded");
    assert_works(&new).await;
    assert_works(&old).await;
    let refused = connect(server.address(), TlsOptions::new().pin(old_pin)).await;
    assert!(refused.is_err(), "the old certificate is gone");
}

#[tokio::test]
async fn broken_files_keep_the_previous_certificate_and_are_logged_once() {
    let (pki, authority) = Pki::new();
    let pin = authority.server("server", &["localhost"]).parse().unwrap();
    let server = Arc::new(pki.serve(&[]));
    fs::write(pki.path("server.pem"), "no certificate").unwrap();
    let seen = Arc::new(AtomicBool::new(false));
    let log = {
        let (server, seen) = (Arc::clone(&server), Arc::clone(&seen));
        tokio::task::spawn_blocking(move || {
            let line = server.stderr_line("cannot load the changed TLS certificates");
            seen.store(true, Ordering::Release);
            line
        })
    };
    while !seen.load(Ordering::Acquire) {
        assert_works(&connect(server.address(), TlsOptions::new().pin(pin)).await.unwrap()).await;
    }
    let line = log.await.unwrap();
    assert!(line.contains("ERROR") && line.contains("server.pem` contains no certificate"), "{line}");
    assert_works(&connect(server.address(), TlsOptions::new().pin(pin)).await.unwrap()).await;
    // Repaired, it is loaded again.
    let next = authority.server("server", &["localhost"]).parse().unwrap();
    in_time("the repaired certificate", async {
        while connect(server.address(), TlsOptions::new().pin(next)).await.is_err() {}
    })
    .await;
    let rest = Arc::into_inner(server).unwrap().stop().stderr;
    assert!(!rest.contains("no certificate"), "each broken state is logged once: {rest}");
}

#[tokio::test]
async fn a_removed_ca_admits_no_one() {
    let (pki, authority) = Pki::new();
    let other = pki.authority("other");
    authority.client("ann", "ann", &["ann"]);
    other.client("bob", "bob", &["bob"]);
    let (ca, second) = (fs::read_to_string(pki.path("ca.pem")), fs::read_to_string(pki.path("other.pem")));
    let (ca, second) = (ca.unwrap(), second.unwrap());
    fs::write(pki.path("clients.pem"), format!("{ca}{second}")).unwrap();
    let server = pki.serve(&["--tls-client-ca", &pki.arg("clients.pem")]);
    let dial = async |file: &str| {
        let tls = TlsOptions::new().ca(pki.path("ca.pem"));
        let tls = tls.identity(pki.path(&format!("{file}.pem")), pki.path(&format!("{file}.key")));
        connect(server.address(), tls).await
    };
    let bob = dial("bob").await.unwrap();
    fs::write(pki.path("clients.pem"), ca).unwrap();
    in_time("the end of bob's admission", async { while dial("bob").await.is_ok() {} }).await;
    assert_works(&dial("ann").await.unwrap()).await;
    assert_works(&bob).await;
}

#[tokio::test]
async fn disconnects_of_encrypted_connections_lose_nothing() {
    let (pki, _) = Pki::new();
    let server = pki.serve(&[]);
    // Within the handshake, right after it, and in the middle of the output.
    let proxy = DisconnectingProxy::start(server.address(), &[40_000, 900, 3_000, 100_000, 500_000]);
    let client = connect(proxy.address(), TlsOptions::new().ca(pki.path("ca.pem"))).await.unwrap();
    let process = Command::shell(format!("{}; exit 3", numbers(3 << 20))).start(&client).await.unwrap();
    let mut stdout = Vec::new();
    in_time("the output", process.stdout().read_to_end(&mut stdout)).await.unwrap();
    assert_eq!(stdout.len(), 3 << 20);
    check_numbers(0, &stdout);
    assert_eq!(in_time("the exit", process.wait()).await.unwrap().code, 3);
    assert_eq!(proxy.disconnects_left(), 0, "every cut has happened");
}

#[tokio::test]
async fn a_hundred_mebibytes_are_transferred_in_both_directions() {
    let (pki, _) = Pki::new();
    let server = pki.serve(&[]);
    let client = connect(server.address(), TlsOptions::new().ca(pki.path("ca.pem"))).await.unwrap();
    let mut bytes = vec![0; 100 << 20];
    let mut state = 1_u64;
    for chunk in bytes.chunks_mut(8) {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        chunk.copy_from_slice(&state.to_le_bytes()[..chunk.len()]);
    }
    let path = pki.path("large");
    let sent = in_time("the upload", client.fs().upload(&bytes[..], &path)).await.unwrap();
    assert_eq!(sent, bytes.len() as u64);
    assert!(fs::read(&path).unwrap() == bytes, "the file is what was sent");
    let process = Command::new("cat").arg(path.to_str().unwrap()).start(&client).await.unwrap();
    let mut stdout = process.stdout();
    let mut received = Vec::new();
    in_time("the output", stdout.read_to_end(&mut received)).await.unwrap();
    assert!(received == bytes, "the output is what was sent");
}

#[tokio::test]
async fn a_caller_provided_stream_carries_a_websocket_with_and_without_tls() {
    let (pki, authority) = Pki::new();
    authority.server("server", &["build.example"]);
    let (plain, secure) = (Server::start(), pki.serve(&[]));
    let tls = TlsOptions::new().ca(pki.path("ca.pem"));
    // The name is not resolved: the stream leads there.
    let sockets = [
        (plain.address(), WebSocket::new("ws://localhost").header("X-Team", "build")),
        (secure.address(), WebSocket::new("wss://build.example").header("X-Team", "build").tls(tls)),
    ];
    for (address, socket) in sockets {
        let address = address.split_once("://").unwrap().1.to_owned();
        let target = Target::custom("a tunnel", move || {
            let (address, socket) = (address.clone(), socket.clone());
            async move { Link::websocket(TcpStream::connect(address).await.unwrap(), &socket).await }
        });
        assert_works(&in_time("connecting", Client::connect(target)).await.unwrap()).await;
    }
    let socket = WebSocket::new(plain.address()).header("X-Team", "a\r\nAuthorization: Bearer b");
    let error = Client::connect(socket.into()).await.unwrap_err();
    assert!(matches!(error, Error::Address { .. }), "a header cannot smuggle in another one: {error}");
}

#[tokio::test]
async fn stalled_handshakes_time_out_and_block_no_other() {
    let (pki, _) = Pki::new();
    let server = pki.serve(&[]);
    let address = server.address().strip_prefix("wss://").unwrap().to_owned();
    let mut stalled = Vec::new();
    for bytes in [&b""[..], b"\x16", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"] {
        let mut stream = TcpStream::connect(&address).await.unwrap();
        tokio::io::AsyncWriteExt::write_all(&mut stream, bytes).await.unwrap();
        stalled.push(stream);
    }
    assert_works(&connect(server.address(), TlsOptions::new().ca(pki.path("ca.pem"))).await.unwrap()).await;
    for mut stream in stalled {
        let mut rest = Vec::new();
        // The limit is 10 s.
        let closed = timeout(Duration::from_secs(60), stream.read_to_end(&mut rest)).await;
        let _ = closed.expect("a stalled handshake is ended by the server");
    }
    assert!(server.stderr_line("refused a client").contains("the TLS handshake took too long"));
}
