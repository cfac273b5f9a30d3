//! Where the server listens, what it prints, and how a connection over each transport begins and ends.

use std::{os::unix::fs::PermissionsExt as _, path::Path};

use serde_json::json;
use sha2::{Digest as _, Sha256};
use tungstenite::{
    Message,
    protocol::{CloseFrame, frame::coding::CloseCode},
};

use crate::support::{self, Client, InTime as _, Server, exchange, finish, program, request, upgrade};

/// Shakes hands and runs one command: the proof that a connection works.
fn assert_works(client: &Client) {
    let answer = client.initialize();
    assert_eq!(answer["protocolVersion"], "exec-server.v0");
    client.shell("works", "printf fine; exit 3");
    let output = client.collect("works");
    assert_eq!((output.text().as_str(), output.exit_code()), ("fine", 3));
}

fn socket_in(directory: &Path) -> String {
    format!("unix://{}", directory.join("remex.sock").display())
}

#[test]
fn without_flags_it_listens_on_a_free_port_of_loopback() {
    let server = Server::start();
    let port = server.address().strip_prefix("ws://127.0.0.1:").expect("loopback is the default");
    assert_ne!(port.parse(), Ok(0_u16), "the real port is printed");
    assert_works(&server.connect());
}

#[test]
fn every_form_of_the_stdio_flag_serves_one_connection_on_stdin_and_stdout() {
    for form in ["stdio", "stdio://"] {
        let mut command = program(&["serve", "--listen", form]);
        command.stdin(std::process::Stdio::piped()).stdout(std::process::Stdio::piped());
        let mut child = command.stderr(std::process::Stdio::null()).spawn().unwrap();
        let client = Client::over_stdio(child.stdin.take().unwrap(), child.stdout.take().unwrap());
        assert_works(&client);
        client.finish_writing();
        assert_eq!(child.ended().code(), Some(0), "{form}");
        assert_eq!(client.look(|seen| seen.garbage.clone()), Vec::<String>::new(), "only protocol on stdout");
    }
}

#[test]
fn a_unix_socket_is_private_to_its_owner_and_removed_on_shutdown() {
    let directory = tempfile::tempdir().unwrap();
    let address = socket_in(directory.path());
    let server = Server::serve(&["--listen", &address]);
    assert_eq!(server.address(), address);
    assert_works(&server.connect());

    let path = directory.path().join("remex.sock");
    let mode = std::fs::metadata(&path).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600, "{mode:o}");
    server.stop();
    assert!(!path.exists());
}

#[test]
fn several_listeners_print_one_address_each_in_the_order_of_the_flags() {
    let directory = tempfile::tempdir().unwrap();
    let unix = socket_in(directory.path());
    let server =
        Server::serve(&["--listen", "ws://127.0.0.1:0", "--listen", &unix, "--listen", "ws://[::1]:0"]);
    let addresses = server.addresses().to_vec();
    assert!(addresses[0].starts_with("ws://127.0.0.1:"), "{addresses:?}");
    assert_eq!(addresses[1], unix);
    assert!(addresses[2].starts_with("ws://[::1]:"), "{addresses:?}");
    for address in &addresses {
        assert_works(&Client::connect(address));
    }
    let finished = server.stop();
    assert_eq!(finished.stdout, "", "nothing but addresses goes to stdout");
}

#[test]
fn sessions_are_shared_by_the_listeners_of_one_identity() {
    let directory = tempfile::tempdir().unwrap();
    let unix = socket_in(directory.path());
    let server = Server::serve(&["--listen", "ws://127.0.0.1:0", "--listen", &unix]);
    let first = server.connect();
    let session = first.initialize()["sessionId"].as_str().unwrap().to_owned();
    first.shell("p", "echo here; exec sleep 1000");
    first.event("p", "process/output");
    first.cut();

    let second = Client::connect(&unix);
    assert_eq!(second.resume(&session)["sessionId"], session);
    let read = second.call("process/read", json!({"processId": "p"})).unwrap();
    assert_eq!(support::decode(&read["chunks"][0]["chunk"]), b"here\n");
}

#[test]
fn with_stdio_the_addresses_of_other_listeners_go_to_stderr() {
    let directory = tempfile::tempdir().unwrap();
    let unix = socket_in(directory.path());
    let (server, client) = Server::stdio(&["--listen", &unix]);
    assert_eq!(server.stderr_line(&unix), unix, "a line of its own, as on stdout");
    assert_works(&client);
    assert_works(&Client::connect(&unix));
    assert_eq!(client.look(|seen| seen.garbage.clone()), Vec::<String>::new(), "only protocol on stdout");
}

#[test]
fn exec_server_is_an_alias_of_serve() {
    let mut command = program(&["exec-server", "--listen", "ws://127.0.0.1:0", "--concurrent-requests", "4"]);
    command.stdin(std::process::Stdio::null());
    assert_works(&Server::launch(command, 1).connect());
}

#[test]
fn exec_server_takes_the_flags_of_the_server_it_replaces() {
    let mut command = program(&["exec-server", "--listen", "ws://127.0.0.1:0", "--strict-config"]);
    command.args(["-c", "model=\"any\"", "--config", "a.b=1", "--enable", "this", "--disable", "that"]);
    command.args(["--linux-sandbox-pid-namespace", "inherit", "--proxy-private-ips-via-upstream"]);
    command.stdin(std::process::Stdio::null());
    assert_works(&Server::launch(command, 1).connect());
    let wrong = finish(&["exec-server", "--linux-sandbox-pid-namespace", "none"]);
    assert_eq!(wrong.code(), Some(2), "{wrong:?}");
    let remote = finish(&["exec-server", "--remote", "https://service.example", "--environment-id", "mine"]);
    assert_eq!(remote.code(), Some(2), "{remote:?}");
    assert!(
        remote.stderr.starts_with(
            "remex: cannot use `--remote`: remex does not register with a service; clients connect to it\n  hint: "
        ),
        "{remote:?}"
    );
}

#[test]
fn exec_server_refuses_every_flag_of_a_registration() {
    let with_value = [
        "--remote",
        "--remote-transport",
        "--environment-id",
        "--name",
        "--chatgpt-account-id",
        "--aws-profile",
        "--aws-region",
        "--aws-service",
    ];
    let alone = [
        "--use-agent-identity-auth",
        "--registration-bearer-stdin",
        "--executor-credential-stdin",
        "--chatgpt-token-stdin",
        "--aws-sigv4",
    ];
    let lines = with_value.map(|flag| vec![flag, "x"]).into_iter().chain(alone.map(|flag| vec![flag]));
    for line in lines {
        let finished = finish(&[&["exec-server"][..], &line].concat());
        let expected = format!("remex: cannot use `{}`: remex does not register with a service", line[0]);
        assert_eq!(finished.code(), Some(2), "{finished:?}");
        assert!(finished.stderr.starts_with(&expected), "{finished:?}");
    }
}

#[test]
fn a_listen_url_that_is_no_websocket_address_is_refused() {
    for url in ["ws://localhost:0", "ws://127.0.0.1:65536", "ws://127.0.0.1", "ws://", "ws://1.2.3:4"] {
        let finished = finish(&["serve", "--listen", url]);
        assert_eq!(finished.code(), Some(2), "{finished:?}");
        let expected = format!("invalid websocket --listen URL `{url}`\n  hint: expected `ws://IP:PORT`");
        assert!(finished.stderr.contains(&expected), "{finished:?}");
        assert_eq!(finished.stdout, "");
    }
}

#[test]
fn a_listen_url_with_another_scheme_is_refused() {
    for url in ["http://127.0.0.1:0", "https://127.0.0.1:0", "tcp://127.0.0.1:0", "127.0.0.1:0", "stdin", ""]
    {
        let finished = finish(&["serve", "--listen", url]);
        assert_eq!(finished.code(), Some(2), "{finished:?}");
        let expected = format!("unsupported --listen URL `{url}`\n  hint: use `ws://IP:PORT`");
        assert!(finished.stderr.contains(&expected), "{finished:?}");
        assert!(finished.stderr.contains("`stdio`"), "{finished:?}");
        assert_eq!(finished.stdout, "");
    }
}

#[test]
fn wrong_flags_are_usage_errors() {
    for flags in [
        &["--concurrent-requests", "0"][..],
        &["--concurrent-requests", "many"],
        &["--concurrent-requests", "-1"],
        &["--no-such-flag"],
    ] {
        let finished = finish(&[&["serve"], flags].concat());
        assert_eq!(finished.code(), Some(2), "{flags:?} {finished:?}");
        assert_eq!(finished.stdout, "");
    }
}

#[test]
fn a_port_that_is_taken_is_reported_with_its_address() {
    let taken = Server::start();
    let finished = finish(&["serve", "--listen", taken.address()]);
    assert_eq!(finished.code(), Some(1), "{finished:?}");
    assert!(finished.stderr.contains(taken.address()), "{finished:?}");
    assert_eq!(finished.stdout, "");
}

#[test]
fn beyond_loopback_it_refuses_to_listen_without_authentication() {
    for url in ["ws://0.0.0.0:0", "ws://[::]:0"] {
        let finished = finish(&["serve", "--listen", url]);
        assert_eq!(finished.code(), Some(2), "{finished:?}");
        assert!(finished.stderr.contains("--ws-auth capability-token"), "it says what to add: {finished:?}");
        assert_eq!(finished.stdout, "");
    }
}

#[test]
fn beyond_loopback_it_listens_with_authentication() {
    let server = Server::serve(&[
        "--listen",
        "ws://0.0.0.0:0",
        "--ws-auth",
        "capability-token",
        "--ws-token-sha256",
        &digest(TOKEN),
    ]);
    let address = server.address().replace("0.0.0.0", "127.0.0.1");
    assert_works(&Client::connect_with_headers(&address, &[("Authorization", &format!("Bearer {TOKEN}"))]));
}

const TOKEN: &str = "5kQ2nVx8LrZ0tHc7YwJb3M";

fn digest(token: &str) -> String {
    Sha256::digest(token).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Checks that a server wants [`TOKEN`] and nothing else.
fn assert_wants_the_token(server: &Server) {
    let address = server.address();
    assert_eq!(exchange(address, upgrade("/", &[])).expect("an answer").status, 401);
    let shorter = &TOKEN[..TOKEN.len() - 1];
    for authorization in [
        "Bearer wrong".to_owned(),
        "Bearer ".to_owned(),
        format!("Bearer {TOKEN}2"),
        format!("Bearer {shorter}"),
        format!("Basic {TOKEN}"),
        TOKEN.to_owned(),
    ] {
        let header = format!("Authorization: {authorization}");
        let answer = exchange(address, upgrade("/", &[header.as_str()])).expect("an answer");
        assert_eq!(answer.status, 401, "{authorization:?}");
    }
    for scheme in ["Bearer", "bearer", "BEARER"] {
        let authorization = format!("{scheme} {TOKEN}");
        assert_works(&Client::connect_with_headers(address, &[("Authorization", &authorization)]));
    }
    for path in ["/readyz", "/healthz"] {
        assert_eq!(
            exchange(address, request("GET", path, &[])).expect("an answer").status,
            200,
            "health stays open"
        );
    }
}

#[test]
fn a_token_is_verified_by_its_digest() {
    let digest = digest(TOKEN);
    for spelling in [digest.clone(), digest.to_uppercase()] {
        let flags = ["--ws-auth", "capability-token", "--ws-token-sha256", &spelling];
        assert_wants_the_token(&Server::serve(&flags));
    }
}

#[test]
fn a_token_can_come_from_a_file() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("token");
    for content in [TOKEN.to_owned(), format!("{TOKEN}\n")] {
        std::fs::write(&path, content).unwrap();
        let flags = ["--ws-auth", "capability-token", "--ws-token-file", path.to_str().unwrap()];
        assert_wants_the_token(&Server::serve(&flags));
    }
}

#[test]
fn authentication_without_a_usable_token_does_not_start() {
    let directory = tempfile::tempdir().unwrap();
    let empty = directory.path().join("empty");
    std::fs::write(&empty, "\n").unwrap();
    let missing = directory.path().join("missing");
    for token in [
        &[][..],
        &["--ws-token-sha256", "abc"],
        &["--ws-token-sha256", &"g".repeat(64)],
        &["--ws-token-file", missing.to_str().unwrap()],
        &["--ws-token-file", empty.to_str().unwrap()],
    ] {
        let finished = finish(&[&["serve", "--ws-auth", "capability-token"], token].concat());
        assert!(matches!(finished.code(), Some(1 | 2)), "{token:?} {finished:?}");
        assert!(finished.stderr.contains("token"), "it says what is missing: {token:?} {finished:?}");
        assert_eq!(finished.stdout, "");
    }
}

#[test]
fn a_close_frame_is_answered_with_the_same_code() {
    let server = Server::start();
    let client = server.client();
    let close = CloseFrame { code: CloseCode::Normal, reason: "bye".into() };
    client.send_websocket(Message::Close(Some(close)));
    let end = client.wait_end();
    assert_eq!(end.close.map(|(code, _)| code), Some(1000));
}

#[test]
fn a_ping_is_answered_with_its_own_payload() {
    let server = Server::start();
    let client = server.client();
    client.send_websocket(Message::Ping("are you there".into()));
    let payload = client.wait("the pong", |seen| seen.pongs.pop());
    assert_eq!(payload, b"are you there");
}

#[test]
fn fragmented_and_binary_messages_are_accepted() {
    use tungstenite::protocol::frame::{
        Frame,
        coding::{Data, OpCode},
    };

    let server = Server::start();
    let client = server.connect();
    let initialize = r#"{"id":"i","method":"initialize","params":{"clientName":"ä","resumeSessionId":null}}"#;
    let (first, last) = (OpCode::Data(Data::Text), OpCode::Data(Data::Continue));
    // Byte by byte, so that a character is split too; a ping may come in between.
    let bytes = initialize.as_bytes();
    for (index, byte) in bytes.iter().enumerate() {
        let opcode = if index == 0 { first } else { last };
        let frame = Frame::message(vec![*byte], opcode, index + 1 == bytes.len());
        client.send_websocket(Message::Frame(frame));
        if index == 10 {
            client.send_websocket(Message::Ping("between".into()));
        }
    }
    client.outcome(&json!("i")).expect("fragments are put together");
    client.send_websocket(Message::binary(r#"{"method":"initialized"}"#));
    client.send_websocket(Message::binary(r#"{"id":"b","method":"process/list"}"#));
    client.outcome(&json!("b")).expect("JSON in a binary message is understood");
    assert_eq!(client.look(|seen| seen.garbage.clone()), Vec::<String>::new(), "output is always text");
}

#[test]
fn lines_may_end_in_crlf_arrive_in_pieces_and_be_blank() {
    let unix = Server::unix(&[]);
    let (_stdio, over_stdio) = Server::stdio(&[]);
    for client in [unix.connect(), over_stdio] {
        client.send_raw(b"\n\r\n  \t \n");
        client.send_raw(b"{\"id\":1,\"method\":\"initialize\",");
        client.send_raw(
            b"\"params\":{\"clientName\":\"\",\"resumeSessionId\":null}}\r\n{\"method\":\"initialized\"}\r",
        );
        client
            .send_raw(b"\n{\"id\":2,\"method\":\"process/list\"}\n{\"id\":3,\"method\":\"process/list\"}\n");
        for id in 1..=3 {
            client.outcome(&json!(id)).expect("each line is one message");
        }
        assert_eq!(client.look(|seen| seen.messages.len()), 3, "blank lines are not answered");
    }
}

#[test]
fn requests_followed_by_end_of_file_are_all_answered() {
    const REQUESTS: i64 = 500;
    let (mut server, client) = Server::stdio(&[]);
    client.send("initialize", json!({"clientName": "x", "resumeSessionId": null}));
    client.notify("initialized", json!({}));
    let start = client.send("process/start", support::start_params("p", &["/bin/sh", "-c", "exit 3"]));
    let ids: Vec<_> =
        (0..REQUESTS).map(|n| client.send("process/read", json!({"processId": n.to_string()}))).collect();
    client.finish_writing();
    client.outcome(&start).expect("a start before the end is carried out");
    for id in ids {
        client.outcome(&id).expect_err("there is no such process");
    }
    client.wait_end();
    assert_eq!(server.wait().code(), Some(0));
}

#[test]
fn end_of_file_on_stdio_ends_the_server_and_its_processes() {
    let (mut server, client) = Server::stdio(&[]);
    client.initialize();
    client.shell("p", "echo $$; exec sleep 1000");
    let child = support::Watched::printed(&client.wait_for_output("p", "\n"));
    client.finish_writing();
    assert_eq!(server.wait().code(), Some(0));
    child.assert_ends();
}

#[test]
fn a_long_poll_does_not_keep_a_stdio_server_alive_after_end_of_file() {
    let (mut server, client) = Server::stdio(&[]);
    client.initialize();
    client.shell("p", "exec sleep 1000");
    client.send("process/read", json!({"processId": "p", "waitMs": 3_600_000}));
    client.send("process/wait", json!({"processId": "p"}));
    client.finish_writing();
    assert_eq!(server.wait().code(), Some(0));
}
