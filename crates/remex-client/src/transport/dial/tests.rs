//! Every kind of target, and the errors of failed connections.

use std::{net::Ipv4Addr, os::unix::net::UnixListener};

use remex_rpc::{Incoming, memory};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpListener,
    task::JoinHandle,
};

use super::*;
use crate::transport::link::Transport;

const TOKEN: &str = "s3cret";

fn websocket(port: u16) -> Target {
    Target::WebSocket(WebSocket::new(format!("ws://127.0.0.1:{port}/x")).bearer(TOKEN))
}

/// Answers one request with `answer`, and returns the request.
async fn answering(answer: &'static str) -> (Target, JoinHandle<String>) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let target = websocket(listener.local_addr().unwrap().port());
    let server = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut request = Vec::new();
        while !request.ends_with(b"\r\n\r\n") {
            request.push(stream.read_u8().await.unwrap());
        }
        stream.write_all(answer.as_bytes()).await.unwrap();
        String::from_utf8(request).unwrap()
    });
    (target, server)
}

/// Returns the error of a failed dial, which must never contain the token.
async fn failure(target: &Target) -> Error {
    let error = dial(target, Prompts::Refuse).await.unwrap_err();
    assert!(!format!("{target:?} {error:?} {error}").contains(TOKEN), "{error}");
    error
}

/// Returns the reason and the hint, with a semicolon between them.
async fn reason(target: &Target) -> String {
    match failure(target).await {
        Error::Unreachable { target: named, reason, hint, .. } => {
            assert_eq!(named, target.to_string());
            format!("{reason}; {}", hint.unwrap())
        }
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_rejected_token_is_distinguished_from_an_unreachable_server() {
    for status in [401, 403] {
        let answer = format!("HTTP/1.1 {status} No\r\nContent-Length: 0\r\n\r\n").leak();
        let (target, server) = answering(answer).await;
        let expected = Error::Unauthorized {
            target: target.to_string(),
            status,
            presented: true,
            reason: None,
            advice: None,
        };
        assert_eq!(failure(&target).await, expected);
        let request = server.await.unwrap();
        assert!(request.starts_with("GET /x HTTP/1.1\r\nHost: 127.0.0.1:"), "{request}");
        assert!(request.contains("Authorization: Bearer s3cret\r\n"), "{request}");
    }
}

#[tokio::test]
async fn other_responses_have_a_hint() {
    for (answer, advice) in [
        ("HTTP/1.1 404 Not Found\r\n\r\n", "with status 404; check the host and the path"),
        ("HTTP/1.1 301 Moved\r\nLocation: /\r\n\r\n", "with status 301; the server has moved"),
        (
            "HTTP/1.1 503 Service Unavailable\r\n\r\n",
            "with status 503; it is starting, shutting down or overloaded",
        ),
        ("HTTP/1.1 200 OK\r\n\r\n", "with status 200; check the host and the path"),
        ("SSH-2.0-OpenSSH_9.9\r\n", "does not speak WebSocket; check the address"),
        ("", "closed the connection during the handshake; check that a remex server listens there"),
    ] {
        let (target, server) = answering(answer).await;
        let reason = reason(&target).await;
        assert!(reason.contains(advice), "{answer:?}: {reason}");
        server.await.unwrap();
    }
}

#[tokio::test]
async fn a_refused_connection_has_a_hint() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let target = websocket(listener.local_addr().unwrap().port());
    drop(listener);
    assert_eq!(reason(&target).await, "connection refused; start `remex serve` or check the port");
}

#[tokio::test]
async fn an_unknown_host_name_is_named() {
    let target = Target::parse("ws://nobody.invalid:4000").unwrap();
    let reason = reason(&target).await;
    assert!(reason.starts_with("cannot resolve host `nobody.invalid` ("), "{reason}");
}

#[tokio::test]
async fn an_invalid_address_or_token_is_refused_before_connecting() {
    let wrong = WebSocket::new("ws://host:many");
    let error = failure(&Target::WebSocket(wrong)).await;
    assert!(matches!(&error, Error::Address { address, .. } if address == "ws://host:many"), "{error}");

    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let url = format!("ws://{}", listener.local_addr().unwrap());
    let target = Target::WebSocket(WebSocket::new(url.clone()).bearer(format!("{TOKEN}\nX: y")));
    let reason = "the token contains white space or control characters".to_owned();
    let hint = "remove them".to_owned();
    assert_eq!(failure(&target).await, Error::Address { address: url, reason, hint });
}

#[tokio::test]
async fn a_unix_socket_carries_lines() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("socket");
    let listener = tokio::net::UnixListener::bind(&path).unwrap();
    let link = dial(&Target::unix(&path), Prompts::Refuse).await.unwrap();
    let (mut peer, _) = listener.accept().await.unwrap();
    peer.write_all(b"{}\n").await.unwrap();
    let Transport::Wire { mut reader, writer, .. } = link.transport else { panic!("not a wire") };
    assert!(matches!(reader.next().await, Incoming::Message(line) if line == "{}"));
    drop(writer);
    assert_eq!(peer.read(&mut [0]).await.unwrap(), 0);
}

#[tokio::test]
async fn a_failed_unix_connection_states_the_cause() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("socket");
    let said = reason(&Target::unix(&path)).await;
    assert!(said.starts_with("no such socket; start `remex serve --listen unix:///"), "{said}");

    drop(UnixListener::bind(&path).unwrap());
    let nobody = "connection refused: nothing listens there, or it is not a socket; start `remex serve` or check the path";
    assert_eq!(reason(&Target::unix(&path)).await, nobody);

    let long = reason(&Target::unix(directory.path().join("x".repeat(200)))).await;
    assert_eq!(long, "the path is too long for a socket; use a shorter path");
}

#[tokio::test]
async fn a_custom_target_is_used() {
    let target = Target::custom("here", || async { Ok(Link::memory(memory::link().0)) });
    assert!(matches!(dial(&target, Prompts::Refuse).await.unwrap().transport, Transport::Memory(_)));

    let down = || crate::base::error::usage("down", "wait");
    let target = Target::custom("there", move || async move { Err(down()) });
    assert_eq!(failure(&target).await, down());
}
