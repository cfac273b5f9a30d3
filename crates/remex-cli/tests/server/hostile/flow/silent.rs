//! Peers that read, or not, and never acknowledge.

use std::{
    io::Read as _,
    net::TcpStream,
    thread,
    time::{Duration, Instant},
};

use serde_json::{Value, json};
use tungstenite::Message;

use crate::support::{Client, PATIENCE, Place, Reader, Server, encode, start_params, with};

use super::cpu_ticks;

/// Waits until the session is detached; the client itself would have to read to know.
fn wait_until_detached(onlooker: &Client, session: &Value) {
    let deadline = Instant::now() + PATIENCE;
    while is_attached(onlooker, session) {
        assert!(Instant::now() < deadline, "the connection of a stalled client is never closed");
        thread::sleep(Duration::from_millis(20));
    }
}

fn is_attached(onlooker: &Client, session: &Value) -> bool {
    let listing = onlooker.call("session/list", json!({})).expect("lists are free");
    let sessions = listing["sessions"].as_array().expect("a list is an array");
    let session = sessions.iter().find(|known| known["sessionId"] == *session).expect("the session lives");
    session["attached"] == true
}

#[test]
fn a_client_that_requests_much_and_reads_nothing_is_disconnected() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("large");
    std::fs::write(&path, vec![b'x'; 6 << 20]).unwrap();
    let flags = ["--stall-timeout", "500ms"];
    for server in [Server::serve(&flags), Server::unix(&flags)] {
        let client = server.connect();
        let session = client.initialize()["sessionId"].clone();
        client.stop_reading();
        for _ in 0..20 {
            client.send("fs/readFile", json!({"path": path}));
        }
        wait_until_detached(&server.client(), &session);
    }
}

#[test]
fn a_client_that_requests_a_long_file_and_reads_nothing_is_disconnected() {
    let place = Place::new();
    place.write("long", vec![b'x'; 20 << 20]);
    let flags = ["--stall-timeout", "500ms"];
    for server in [Server::serve(&flags), Server::unix(&flags)] {
        let hello = json!({"clientName": "silent", "resumeSessionId": null});
        let (mut client, hello) = Reader::initialized(server.address(), hello);
        client.send("fs/readFile", json!({"path": place.uri("long")}));
        wait_until_detached(&server.client(), &hello["sessionId"]);
    }
}

#[test]
fn a_partially_sent_long_response_contains_nothing_else() {
    let place = Place::new();
    place.write("long", vec![b'x'; 20 << 20]);
    let server = Server::serve(&["--stall-timeout", "500ms"]);
    let host = server.address().strip_prefix("ws://").expect("the server has a WebSocket");
    let stream = TcpStream::connect(host).expect("the server listens");
    stream.set_read_timeout(Some(PATIENCE)).expect("a socket has timeouts");
    let (mut socket, _) = tungstenite::client(server.address(), stream).expect("the server upgrades");
    for message in [
        json!({"id": 1, "method": "initialize", "params": {"clientName": "silent", "resumeSessionId": null}}),
        json!({"method": "initialized", "params": {}}),
    ] {
        socket.send(Message::text(message.to_string())).expect("the server takes messages");
    }
    let hello = socket.read().expect("the handshake is answered").into_text().expect("messages are text");
    let hello: Value = serde_json::from_str(&hello).expect("messages are JSON");
    let read = json!({"id": 2, "method": "fs/readFile", "params": {"path": place.uri("long")}});
    socket.send(Message::text(read.to_string())).expect("the server takes messages");
    wait_until_detached(&server.client(), &hello["result"]["sessionId"]);
    let mut sent = Vec::new();
    // A reset is an end as well.
    let _ = socket.get_mut().read_to_end(&mut sent);
    // A text in one frame, whose length takes eight bytes.
    let (head, content) = sent.split_at(10);
    assert_eq!(head[..2], [0x81, 127]);
    assert!(content.starts_with(br#"{"id":2,"result":{"dataBase64":"eHh4"#), "it is another answer");
    assert!(content.len() < 20 << 20, "all of it was sent");
    let end = String::from_utf8_lossy(&content[content.len() - 200..]);
    assert!(end.bytes().all(|byte| b"eHh4".contains(&byte)), "it ends with {end:?}");
}

#[test]
fn a_client_that_reads_no_output_stays_connected_and_gets_everything_later() {
    let server = Server::serve(&["--stall-timeout", "200ms"]);
    let client = server.connect();
    let session = client.initialize()["sessionId"].clone();
    let other = server.client();
    client.start("p", &["/bin/sh", "-c", "read go; seq 1 500000"], json!({"pipeStdin": true}));
    let go = json!({"processId": "p", "chunk": encode("go\n")});
    client.call("process/write", go).unwrap();
    client.stop_reading();
    // Several times as long as answers may wait.
    other.shell("clock", "sleep 1.5");
    other.event("clock", "process/closed");
    assert!(is_attached(&other, &session));
    client.read_on();
    assert_eq!(client.collect("p").text().lines().count(), 500_000);
}

#[test]
fn an_observer_that_never_acknowledges_costs_little_and_can_resume_acknowledging() {
    let server = Server::unix(&[]);
    let client = server.connect();
    let session = client.initialize()["sessionId"].clone();
    let observer = server.connect();
    observer.initialize_with(json!({"clientName": "silent", "capabilities": ["acks"]}));
    observer.call("session/observe", json!({"sessionId": session})).unwrap();
    let output = json!({"output": {"overflow": "evict", "retainMs": 0}});
    let run = |id: &str, script: &str| {
        client.start(id, &["/bin/sh", "-c", script], output.clone());
        client.event(id, "process/closed");
    };
    // Buffers and the window fill.
    for round in 0..20 {
        run(&format!("warm {round}"), "head -c 262144 /dev/zero");
    }
    let before = server.resident_bytes();
    for round in 0..200 {
        run(&format!("p{round}"), "head -c 262144 /dev/zero");
    }
    let growth = server.resident_bytes().saturating_sub(before);
    assert!(growth < 16 << 20, "{growth} bytes are kept for an observer that acknowledges nothing");

    let mark = observer.look(|seen| {
        let last = seen.notifications().rfind(|note| note["method"] == "flow/mark");
        last.expect("acknowledgements are asked for")["params"]["mark"].clone()
    });
    observer.notify("flow/ack", json!({"mark": mark}));
    client.shell("last", "echo at last; sleep 1000");
    observer.wait_for_output("last", "at last");
}

#[test]
fn cancelling_unknown_requests_is_cheap_with_many_processes() {
    const PROCESSES: usize = 600;
    const CANCELS: usize = 10_000;
    let server = Server::start();
    let client = server.connect();
    client.initialize_with(json!({"clientName": "cancels", "capabilities": ["cancel"]}));
    for process in 0..PROCESSES {
        let start = json!({"output": {"retainMs": 3_600_000}});
        client.send("process/start", with(start_params(&process.to_string(), &["/bin/true"]), start));
    }
    for process in 0..PROCESSES {
        client.event(&process.to_string(), "process/closed");
    }
    // The answer tells that everything before it was dealt with.
    let ticks = |what: &dyn Fn()| {
        client.call("environment/status", json!({})).unwrap();
        let before = cpu_ticks(&server);
        (0..CANCELS).for_each(|_| what());
        client.call("environment/status", json!({})).unwrap();
        cpu_ticks(&server) - before
    };
    let notes = ticks(&|| client.notify("initialized", json!({"id": "never asked"})));
    let cancels = ticks(&|| client.notify("request/cancel", json!({"id": "never asked"})));
    assert!(cancels < 50 + 5 * notes, "{cancels} ticks for cancels, {notes} for other notifications");
}
