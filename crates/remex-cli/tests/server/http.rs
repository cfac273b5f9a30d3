//! The HTTP side of the WebSocket port.

use crate::support::{Server, exchange, request, upgrade};

/// Sends a request and returns the status of the answer.
fn status(server: &Server, request: impl AsRef<[u8]>) -> u16 {
    exchange(server.address(), request).expect("an answer").status
}

#[test]
fn health_checks_are_answered_with_an_empty_200() {
    let server = Server::start();
    for path in ["/readyz", "/healthz", "/readyz?verbose=1", "/healthz?x"] {
        for method in ["GET", "HEAD"] {
            let answer = exchange(server.address(), request(method, path, &[])).expect("an answer");
            assert_eq!((answer.status, answer.body.as_str()), (200, ""), "{method} {path}");
        }
    }
}

#[test]
fn other_methods_are_refused_with_405_where_the_path_exists() {
    let server = Server::start();
    for path in ["/readyz", "/healthz", "/"] {
        for method in ["POST", "PUT", "DELETE", "OPTIONS"] {
            let request = request(method, path, &["Content-Length: 0"]);
            assert_eq!(status(&server, request), 405, "{method} {path}");
        }
    }
}

#[test]
fn other_paths_are_404_with_or_without_an_upgrade() {
    let server = Server::start();
    for path in ["/readyz/", "/healthz/", "/x", "//", "/index.html"] {
        assert_eq!(status(&server, request("GET", path, &[])), 404, "{path}");
        assert_eq!(status(&server, upgrade(path, &[])), 404, "{path}");
    }
}

#[test]
fn an_upgrade_follows_the_standard_without_protocols_and_extensions() {
    let server = Server::start();
    let wishes = ["Sec-WebSocket-Protocol: chat", "Sec-WebSocket-Extensions: permessage-deflate"];
    let answer = exchange(server.address(), upgrade("/", &wishes)).expect("an answer");
    assert_eq!(answer.status, 101);
    // The value that RFC 6455 gives for the key it uses as an example.
    assert_eq!(answer.header("sec-websocket-accept"), Some("s3pPLMBiTxaQ9kYGzzhZRbK+xOo="));
    assert_eq!(answer.header("upgrade").map(str::to_ascii_lowercase).as_deref(), Some("websocket"));
    assert_eq!(answer.header("sec-websocket-protocol"), None);
    assert_eq!(answer.header("sec-websocket-extensions"), None);
}

#[test]
fn upgrade_headers_are_case_insensitive() {
    let server = Server::start();
    let request = "GET / HTTP/1.1\r\nhost: LocalHost:80\r\nCONNECTION: keep-alive, UPGRADE\r\nupgrade: WebSocket\r\n\
                   sec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";
    assert_eq!(status(&server, request), 101);
}

#[test]
fn the_root_requires_an_upgrade_to_version_13() {
    let server = Server::start();
    assert_eq!(status(&server, request("GET", "/", &[])), 400);
    for version in ["12", "8", "0", "x"] {
        let other = upgrade("/", &[]).replace("Version: 13", &format!("Version: {version}"));
        assert_eq!(status(&server, other), 400, "{version}");
    }
    let without_key = upgrade("/", &[]).replace("Sec-WebSocket-Key", "X-Key");
    assert_eq!(status(&server, without_key), 400);
}

#[test]
fn requests_from_web_pages_are_refused() {
    let server = Server::start();
    for origin in ["Origin: https://example.com", "Origin: null", "Origin:", "origin: http://127.0.0.1"] {
        for path in ["/", "/readyz", "/healthz", "/x"] {
            assert_eq!(status(&server, request("GET", path, &[origin])), 403, "{path} {origin}");
            assert_eq!(status(&server, upgrade(path, &[origin])), 403, "{path} {origin}");
        }
        assert_eq!(status(&server, request("POST", "/", &[origin])), 403, "{origin}");
    }
}

#[test]
fn bytes_that_are_not_http_affect_no_other_connection() {
    let server = Server::start();
    let client = server.client();
    let too_long = format!("GET /{} HTTP/1.1\r\n", "x".repeat(1 << 20));
    let too_many: String = (0..10_000).map(|n| format!("X-{n}: y\r\n")).collect();
    let too_many = format!("GET / HTTP/1.1\r\n{too_many}\r\n");
    for bytes in [
        &b"hello\r\n\r\n"[..],
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"\0\0\0\0\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"\r\n\r\n\r\n\r\nx\r\n\r\n",
        too_long.as_bytes(),
        too_many.as_bytes(),
    ] {
        let answer = exchange(server.address(), bytes);
        let status = answer.map(|answer| answer.status);
        assert!(
            matches!(status, None | Some(400 | 414 | 431 | 505)),
            "{status:?} {:?}",
            String::from_utf8_lossy(&bytes[..bytes.len().min(40)])
        );
    }
    client.shell("p", "echo fine");
    assert_eq!(client.collect("p").text(), "fine\n");
}

#[test]
fn an_idle_connection_affects_no_other() {
    let server = Server::start();
    let address = server.address().strip_prefix("ws://").unwrap();
    let silent: Vec<_> = (0..50).map(|_| std::net::TcpStream::connect(address).unwrap()).collect();
    let client = server.client();
    client.shell("p", "echo fine");
    assert_eq!(client.collect("p").text(), "fine\n");
    drop(silent);
}
