//! The HTTP side of a WebSocket port, line by line of the protocol's table, over real sockets.

#![allow(clippy::unwrap_used, reason = "in a test it is the assertion")]

use std::{net::SocketAddr, time::Duration};

use remex_rpc::{
    Accepted, ConnectError, FrameReader, Framing, HandshakeConfig, Incoming, ListenAddress, Listener,
    NotUpgraded, Readiness, Received, Refusal, Role, SendBuffer, Target, WriteHalf, connect, receive,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

const UPGRADE: &str = "Host: x\r\nConnection: keep-alive, Upgrade\r\nUpgrade: WebSocket\r\n\
                       Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n";

/// Admits peers without a token, and those with the right one.
fn policy(token: Option<&str>) -> Option<&'static str> {
    match token {
        None => Some("anybody"),
        Some("secret") => Some("friend"),
        Some(_) => None,
    }
}

struct Upgraded<T> {
    reader: FrameReader,
    writer: WriteHalf,
    who: T,
}

async fn listen() -> (Listener, SocketAddr) {
    let listener = Listener::bind(&"ws://127.0.0.1:0".parse().unwrap()).await.unwrap();
    let ListenAddress::WebSocket(address) = *listener.address() else { panic!("not a port") };
    (listener, address)
}

async fn serve(listener: &Listener, config: &HandshakeConfig) -> Result<Upgraded<&'static str>, NotUpgraded> {
    let Accepted::Tcp { stream, .. } = listener.accept().await.unwrap() else { panic!("not TCP") };
    let Received::Upgrade(upgrade) = receive(stream, config).await? else { panic!("not an upgrade") };
    match policy(upgrade.bearer()) {
        None => Err(upgrade.refuse(Refusal::Unauthenticated).await),
        Some(_) if config.readiness == Readiness::ShuttingDown => {
            Err(upgrade.refuse(Refusal::ShuttingDown).await)
        }
        Some(who) => {
            let (reader, writer) = upgrade.accept().await?;
            Ok(Upgraded { reader, writer, who })
        }
    }
}

/// Sends `request`; returns the whole response, and who was admitted.
async fn exchange(request: &str, config: &HandshakeConfig) -> (String, Result<&'static str, NotUpgraded>) {
    let (listener, address) = listen().await;
    let client = async {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        answer
    };
    let server = async { serve(&listener, config).await.map(|upgraded| upgraded.who) };
    tokio::join!(client, server)
}

async fn assert_status(request: &str, config: &HandshakeConfig, status: u16) -> String {
    let (answer, outcome) = exchange(request, config).await;
    assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{request:?} was answered {answer:?}");
    assert_eq!(outcome, Err(NotUpgraded::Answered { status }));
    answer
}

async fn assert_admitted(request: &str, who: &str) {
    let (answer, outcome) = exchange(request, &HandshakeConfig::default()).await;
    assert_eq!(
        answer,
        "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
         Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n"
    );
    assert_eq!(outcome, Ok(who));
}

#[tokio::test]
async fn health_checks_are_answered_with_200_and_no_body() {
    for request in ["GET /readyz", "HEAD /readyz", "GET /readyz?verbose", "GET /healthz", "HEAD /healthz"] {
        let answer =
            assert_status(&format!("{request} HTTP/1.1\r\n\r\n"), &HandshakeConfig::default(), 200).await;
        assert!(answer.contains("\r\nContent-Length: 0\r\n") && answer.ends_with("\r\n\r\n"), "{answer:?}");
    }
}

#[tokio::test]
async fn a_server_that_shuts_down_is_healthy_but_not_ready() {
    let config = HandshakeConfig { readiness: Readiness::ShuttingDown, ..HandshakeConfig::default() };
    assert_status("GET /healthz HTTP/1.1\r\n\r\n", &config, 200).await;
    assert_status("GET /readyz HTTP/1.1\r\n\r\n", &config, 503).await;
    assert_status(&format!("GET / HTTP/1.1\r\n{UPGRADE}\r\n"), &config, 503).await;
}

#[tokio::test]
async fn an_upgrade_on_the_root_is_accepted_without_subprotocol_and_compression() {
    let extras = "Sec-WebSocket-Protocol: chat\r\nSec-WebSocket-Extensions: permessage-deflate\r\n";
    assert_admitted(&format!("GET / HTTP/1.1\r\n{UPGRADE}{extras}\r\n"), "anybody").await;
    assert_admitted(&format!("GET /?query HTTP/1.1\r\n{UPGRADE}\r\n"), "anybody").await;
}

#[tokio::test]
async fn a_bearer_token_matters_for_an_upgrade_only() {
    for scheme in ["Bearer", "bearer", "BEARER "] {
        let request = format!("GET / HTTP/1.1\r\n{UPGRADE}Authorization: {scheme} secret\r\n\r\n");
        assert_admitted(&request, "friend").await;
    }
    let wrong = "Authorization: Bearer guess\r\n";
    let answer =
        assert_status(&format!("GET / HTTP/1.1\r\n{UPGRADE}{wrong}\r\n"), &HandshakeConfig::default(), 401)
            .await;
    assert!(answer.contains("\r\nWWW-Authenticate: Bearer\r\n"));
    assert_status(&format!("GET /readyz HTTP/1.1\r\n{wrong}\r\n"), &HandshakeConfig::default(), 200).await;
}

#[tokio::test]
async fn other_requests_are_refused_with_the_right_status() {
    let other_version = UPGRADE.replace("13", "8");
    let bad_key = UPGRADE.replace("dGhl", "");
    let many_headers = "X: y\r\n".repeat(65);
    for (request, status) in [
        ("POST /readyz HTTP/1.1\r\n\r\n".to_owned(), 405),
        ("DELETE /healthz HTTP/1.1\r\n\r\n".to_owned(), 405),
        ("GET / HTTP/1.1\r\n\r\n".to_owned(), 400),
        (format!("GET / HTTP/1.0\r\n{UPGRADE}\r\n"), 400),
        (format!("GET / HTTP/1.1\r\n{bad_key}\r\n"), 400),
        (format!("POST / HTTP/1.1\r\n{UPGRADE}\r\n"), 405),
        ("HEAD / HTTP/1.1\r\n\r\n".to_owned(), 405),
        ("GET /other HTTP/1.1\r\n\r\n".to_owned(), 404),
        ("GET /readyz/ HTTP/1.1\r\n\r\n".to_owned(), 404),
        (format!("GET /other HTTP/1.1\r\n{UPGRADE}\r\n"), 404),
        (format!("GET / HTTP/1.1\r\n{UPGRADE}Origin: https://example.org\r\n\r\n"), 403),
        (format!("GET / HTTP/1.1\r\n{UPGRADE}origin:\r\n\r\n"), 403),
        ("GET /readyz HTTP/1.1\r\nOrigin: null\r\n\r\n".to_owned(), 403),
        ("POST /other HTTP/1.1\r\nOrigin: null\r\n\r\n".to_owned(), 403),
        ("\0\x01 this is not HTTP\r\n\r\n".to_owned(), 400),
        ("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_owned(), 400),
        (format!("GET / HTTP/1.1\r\n{many_headers}\r\n"), 431),
    ] {
        assert_status(&request, &HandshakeConfig::default(), status).await;
    }
    let answer =
        assert_status(&format!("GET / HTTP/1.1\r\n{other_version}\r\n"), &HandshakeConfig::default(), 400)
            .await;
    assert!(answer.contains("\r\nSec-WebSocket-Version: 13\r\n"));
}

#[tokio::test]
async fn an_upgrade_with_a_body_is_refused() {
    for body in [
        "Content-Length: 5\r\n\r\nframe",
        "Content-Length: 0\r\ncontent-length: 5\r\n\r\nframe",
        "content-length:\r\n\r\n",
        "Transfer-Encoding: chunked\r\n\r\n5\r\nframe\r\n0\r\n\r\n",
        "transfer-encoding: identity\r\nContent-Length: 0\r\n\r\n",
    ] {
        let request = format!("GET / HTTP/1.1\r\n{UPGRADE}{body}");
        let answer = assert_status(&request, &HandshakeConfig::default(), 400).await;
        assert!(answer.contains("has no body"), "{answer:?}");
    }
    assert_admitted(&format!("GET / HTTP/1.1\r\n{UPGRADE}Content-Length: 0\r\n\r\n"), "anybody").await;
}

#[tokio::test]
async fn a_response_arrives_despite_an_unread_body() {
    let body = "x".repeat(1 << 20);
    assert_status(
        &format!("POST /readyz HTTP/1.1\r\nContent-Length: 1048576\r\n\r\n{body}"),
        &HandshakeConfig::default(),
        405,
    )
    .await;
}

#[tokio::test]
async fn a_head_that_is_too_long_or_too_slow_is_refused() {
    let long = format!("GET / HTTP/1.1\r\nX: {}\r\n\r\n", "y".repeat(16 << 10));
    assert_status(&long, &HandshakeConfig::default(), 431).await;
    let config = HandshakeConfig { head_timeout: Duration::from_millis(20), ..HandshakeConfig::default() };
    assert_status("GET / HTTP/1.1\r\nHost:", &config, 408).await;
}

#[tokio::test]
async fn a_peer_that_leaves_early_is_not_answered() {
    let (listener, address) = listen().await;
    let client = async { TcpStream::connect(address).await.unwrap().write_all(b"GET /").await.unwrap() };
    let config = HandshakeConfig::default();
    let ((), outcome) = tokio::join!(client, serve(&listener, &config));
    assert_eq!(outcome.err(), Some(NotUpgraded::Closed));
}

#[tokio::test]
async fn frames_sent_right_after_the_request_are_not_lost() {
    let (listener, address) = listen().await;
    let mut request = format!("GET / HTTP/1.1\r\n{UPGRADE}\r\n").into_bytes();
    let mut buffer = SendBuffer::new(Framing::WebSocket(Role::Client));
    buffer.message(5, |out| out.extend_from_slice(b"early"));
    request.extend_from_slice(buffer.pending());
    let mut client = TcpStream::connect(address).await.unwrap();
    client.write_all(&request).await.unwrap();

    let mut upgraded =
        serve(&listener, &HandshakeConfig::default()).await.unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(message(&mut upgraded.reader).await, "early");
}

#[tokio::test]
async fn our_client_talks_to_our_server() {
    let (listener, address) = listen().await;
    let host = address.to_string();
    let target =
        Target { host: &host, path: "/", bearer: Some("secret"), headers: &[], max_message_len: 100 };
    let stream = TcpStream::connect(address).await.unwrap();
    let config = HandshakeConfig::default();
    let (client, server) = tokio::join!(connect(stream, &target), serve(&listener, &config));
    let (mut client_reader, mut client_writer) = client.unwrap();
    let Upgraded { mut reader, mut writer, who } = server.unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(who, "friend");

    send(&mut client_writer, Role::Client, "question").await;
    assert_eq!(message(&mut reader).await, "question");
    send(&mut writer, Role::Server, "answer").await;
    assert_eq!(message(&mut client_reader).await, "answer");
    drop(writer);
    assert!(matches!(client_reader.next().await, Incoming::End));
}

#[tokio::test]
async fn a_client_that_is_still_sending_receives_the_last_bytes_of_the_server() {
    let (listener, address) = listen().await;
    let target = Target { host: "x", path: "/", bearer: None, headers: &[], max_message_len: 100 };
    let config = HandshakeConfig { max_message_len: 100, ..HandshakeConfig::default() };
    let client = async {
        let stream = TcpStream::connect(address).await.unwrap();
        let (mut reader, mut writer) = connect(stream, &target).await.unwrap();
        send(&mut writer, Role::Client, &"x".repeat(8 << 20)).await;
        drop(writer);
        reader.next().await
    };
    let server = async {
        let mut upgraded = serve(&listener, &config).await.unwrap_or_else(|error| panic!("{error}"));
        assert!(matches!(upgraded.reader.next().await, Incoming::TooLong { limit: 100 }));
        let mut buffer = SendBuffer::new(Framing::WebSocket(Role::Server));
        buffer.close(1009, "too long");
        upgraded.writer.write_all(buffer.pending()).await.unwrap();
        upgraded.writer.shutdown().await.unwrap();
        upgraded.reader.discard().await;
    };
    let (last, ()) = tokio::join!(client, server);
    assert!(
        matches!(&last, Incoming::Close { code: Some(1009), reason } if reason == "too long"),
        "{last:?}"
    );
}

#[tokio::test]
async fn a_client_learns_why_an_upgrade_failed() {
    let target = Target { host: "x", path: "/", bearer: Some("guess"), headers: &[], max_message_len: 100 };
    let (listener, address) = listen().await;
    let stream = TcpStream::connect(address).await.unwrap();
    let config = HandshakeConfig::default();
    let (client, _) = tokio::join!(connect(stream, &target), serve(&listener, &config));
    let Some(ConnectError::Refused { status: 401, reason: Some(reason) }) = client.err() else {
        panic!("not refused with a reason")
    };
    assert_eq!(reason.text(), "send a valid token as `Authorization: Bearer TOKEN`");
    assert_eq!((reason.why(), reason.advice()), (None, None));

    for (answer, error) in [
        ("", ConnectError::Closed),
        ("SSH-2.0-OpenSSH_9.9\r\n", ConnectError::NotWebSocket),
        (
            "HTTP/1.1 101 Switching\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n",
            ConnectError::NotWebSocket,
        ),
        ("HTTP/1.1 404 Not Found\r\n\r\n", ConnectError::Refused { status: 404, reason: None }),
    ] {
        let stream = TcpStream::connect(address).await.unwrap();
        let server = async {
            let Accepted::Tcp { mut stream, .. } = listener.accept().await.unwrap() else {
                panic!("not TCP")
            };
            stream.write_all(answer.as_bytes()).await.unwrap();
            stream.shutdown().await.unwrap();
            stream
        };
        let (client, _open) = tokio::join!(connect(stream, &target), server);
        assert_eq!(client.err(), Some(error));
    }

    let stream = TcpStream::connect(address).await.unwrap();
    let smuggled = Target { bearer: Some("guess\r\nX: y"), ..target };
    assert_eq!(connect(stream, &smuggled).await.err(), Some(ConnectError::InvalidTarget { part: "token" }));
}

#[tokio::test]
async fn the_reason_for_a_refusal_is_read_if_it_can_be_shown() {
    let target = Target { host: "x", path: "/", bearer: None, headers: &[], max_message_len: 100 };
    let (listener, address) = listen().await;
    for (kind, body, shown) in [
        (
            "text/plain",
            "user 7 may not use this server; ask its owner\n",
            Some(
                "the server refused the WebSocket with status 403: user 7 may not use this server; ask its owner",
            ),
        ),
        ("text/plain; charset=utf-8", "closed\nfor today", Some("with status 403: closed; check the token")),
        // Neither a page nor what would move the cursor of a terminal is shown.
        ("text/html", "<html>", None),
        ("text/plain", "red \u{1b}[31m\n", None),
        ("text/plain", "\n", None),
    ] {
        let stream = TcpStream::connect(address).await.unwrap();
        let server = async {
            let Accepted::Tcp { mut stream, .. } = listener.accept().await.unwrap() else {
                panic!("not TCP")
            };
            let head =
                format!("HTTP/1.1 403 No\r\nContent-Type: {kind}\r\nContent-Length: {}\r\n\r\n", body.len());
            stream.write_all(head.as_bytes()).await.unwrap();
            stream.write_all(body.as_bytes()).await.unwrap();
            stream
        };
        let (client, _open) = tokio::join!(connect(stream, &target), server);
        let said = client.err().unwrap().to_string();
        assert!(
            said.contains(shown.unwrap_or("with status 403; check the token")),
            "{kind} {body:?}: {said}"
        );
    }
}

async fn send(writer: &mut WriteHalf, role: Role, message: &str) {
    let mut buffer = SendBuffer::new(Framing::WebSocket(role));
    buffer.message(message.len(), |out| out.extend_from_slice(message.as_bytes()));
    writer.write_all(buffer.pending()).await.unwrap();
}

async fn message(reader: &mut FrameReader) -> String {
    match reader.next().await {
        Incoming::Message(message) => String::from_utf8(message.to_vec()).unwrap(),
        other => panic!("expected a message, got {other:?}"),
    }
}
