//! HTTP requests that the server makes to itself or to another server of its user, to get more than the scope `http`.

use serde_json::{Value, json};

use crate::support::{Client, Guarded, Server, encode, token_of};

/// Returns a text message as a client frames it, with a mask of zeros.
fn frame(message: &Value) -> Vec<u8> {
    let text = message.to_string();
    let len = u16::try_from(text.len()).expect("a short message");
    let mut frame = vec![0x81, 0x80 | 126];
    frame.extend(len.to_be_bytes());
    frame.extend([0; 4]);
    frame.extend(text.into_bytes());
    frame
}

fn get(client: &Client, url: &str, headers: &[(&str, &str)], body: &[u8]) -> Result<Value, Value> {
    let headers: Vec<_> = headers.iter().map(|(name, value)| json!({"name": name, "value": value})).collect();
    let params = json!({
        "method": "GET", "url": url, "requestId": "r", "headers": headers, "bodyBase64": encode(body), "timeoutMs": 30_000
    });
    client.call("http/request", params)
}

#[test]
fn an_http_request_cannot_become_a_remex_connection() {
    let place = tempfile::tempdir().expect("a directory can be made");
    let proof = place.path().join("proof");
    let start = json!({
        "processId": "x", "argv": ["/bin/touch", proof.to_str().expect("text")], "cwd": "/", "env": {}, "tty": false
    });
    let messages = [
        // Longer than the 125 bytes that need another length.
        json!({"id": 1, "method": "initialize", "params": {"clientName": "x".repeat(100), "resumeSessionId": null}}),
        json!({"method": "initialized", "params": {"padding": "x".repeat(100)}}),
        json!({"id": 2, "method": "process/start", "params": start}),
    ];
    let body: Vec<u8> = messages.iter().flat_map(frame).collect();
    let handshake = [
        ("Connection", "Upgrade"),
        ("Upgrade", "websocket"),
        ("Sec-WebSocket-Version", "13"),
        ("Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ=="),
    ];
    let guarded = Guarded::with_tokens(&format!("{} name=web scope=http\n", token_of("web")));
    let open = Server::serve(&[]);
    for client in [guarded.client(&token_of("web")), open.client()] {
        let url = open.address().replacen("ws:", "http:", 1);
        let error = get(&client, &url, &handshake, &body).expect_err("it is refused");
        assert_eq!(error["data"]["kind"], "invalidParams", "{error}");
        let message = error["message"].as_str().expect("an error has a message");
        assert!(message.starts_with("http/request header `connection` cannot be sent"), "{message}");
        let count = handshake.len();
        for omitted in 0..count {
            let some: Vec<_> = (0..count).filter(|at| *at != omitted).map(|at| handshake[at]).collect();
            get(&client, &url, &some, &body).expect_err("it is refused");
        }
    }
    let sessions = open.client().call("session/list", json!({})).expect("the owner may list");
    assert!(!sessions.to_string().contains("xxxxx"), "nobody else has got in: {sessions}");
    assert!(!proof.exists(), "nothing was started");
}

#[test]
fn a_request_from_the_server_itself_is_not_trusted_as_its_owner() {
    let server = Server::serve(&[]);
    let client = server.client();
    let port = server.address().rsplit_once(':').expect("an address has a port").1;
    for host in ["127.0.0.1", "localhost", "0.0.0.0"] {
        let answer = get(&client, &format!("http://{host}:{port}/metrics"), &[], b"").expect("an answer");
        assert_eq!(answer["status"], 401, "{host}: {answer}");
    }
    // What it did for a client changes nothing for programs of its user.
    server.client();
}
