//! Single writes as large as a message may be, to processes that do not read them.

use std::{fs, io::Write as _};

use serde_json::{Value, json};

use crate::support::{Client, Place, Server, encode};

const MIB: usize = 1 << 20;

/// Reads one byte, says so, and no more.
const NIBBLER: [&str; 3] =
    ["/bin/sh", "-c", "dd bs=1 count=1 of=/dev/null 2>/dev/null; echo nibbled; exec sleep 1000"];

fn write(client: &Client, process: &str, id: &str, bytes: &[u8]) -> Value {
    client.send("process/write", json!({"processId": process, "chunk": encode(bytes), "writeId": id}))
}

fn status(client: &Client, id: &Value) -> Value {
    client.outcome(id).expect("a write is answered")["status"].clone()
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|n| (n % 251) as u8).collect()
}

#[test]
fn a_huge_write_is_not_accepted_before_the_process_has_read_it() {
    let server = Server::start();
    let client = server.connect();
    let session = client.initialize()["sessionId"].clone();
    let huge = vec![b'x'; 24 * MIB];
    let names: Vec<_> = (0..3).map(|n| format!("p{n}")).collect();
    let mut writes = Vec::new();
    for name in &names {
        client.start(name, &NIBBLER, json!({"pipeStdin": true}));
        writes.push(write(&client, name, "huge", &huge));
    }
    for name in &names {
        client.wait_for_output(name, "nibbled");
    }
    // The connection is still read, and this answer would come behind one that was too early.
    client.call("process/list", json!({})).unwrap();
    let answered = |id: &Value| client.look(|seen| seen.has_reply(id));
    assert!(!writes.iter().any(answered), "a write was answered although nobody reads it");

    // What waits counts for the connection, which is not read beyond its cap.
    let more: Vec<_> = (0..6).map(|n| write(&client, "p0", &n.to_string(), &huge)).collect();
    let list = client.send("process/list", json!({}));
    let other = server.client();
    let end = |name: &str| {
        let running = other.call("process/terminate", json!({"processId": name, "sessionId": session}));
        assert_eq!(running.unwrap()["running"], true);
    };
    end("p1");
    assert_eq!(status(&client, &writes[1]), "stdinClosed", "an exit answers what waits");
    assert!(!answered(&list), "more is read than may wait");
    end("p0");
    end("p2");
    for id in writes.iter().skip(2).chain([&writes[0]]).chain(&more) {
        assert_eq!(status(&client, id), "stdinClosed");
    }
    client.outcome(&list).unwrap();
}

#[test]
fn a_huge_write_is_answered_when_the_process_reads_it() {
    let server = Server::start();
    let client = server.client();
    let place = Place::new();
    let file = place.path("input");
    client.start(
        "p",
        &["/bin/sh", "-c", "cat >\"$0\"", file.to_str().unwrap()],
        json!({"pipeStdin": true, "env": {"PATH": "/usr/bin:/bin"}}),
    );
    let (huge, small) = (pattern(9 * MIB + 12_345), b"and one more".to_vec());
    let ids =
        [write(&client, "p", "a", &huge), write(&client, "p", "b", &small), write(&client, "p", "c", &huge)];
    let close = client.send("process/closeStdin", json!({"processId": "p"}));
    for id in &ids {
        assert_eq!(status(&client, id), "accepted");
    }
    client.outcome(&close).unwrap();
    client.event("p", "process/closed");
    assert!(
        fs::read(file).unwrap() == [huge.clone(), small, huge].concat(),
        "the input is not what was sent"
    );
}

#[test]
fn a_huge_write_continues_where_its_connection_broke() {
    Server::on_websocket_and_unix(|server| {
        let place = Place::new();
        place.fifo("gate");
        let (file, gate) = (place.path("input"), place.path("gate"));
        let script = "dd bs=3000000 count=1 iflag=fullblock of=\"$0\" 2>/dev/null; echo half; \
                      read -r _ <\"$1\"; cat >>\"$0\"";
        let client = server.connect();
        let session = client.initialize()["sessionId"].as_str().unwrap().to_owned();
        client.start(
            "p",
            &["/bin/sh", "-c", script, file.to_str().unwrap(), gate.to_str().unwrap()],
            json!({"pipeStdin": true}),
        );
        let huge = pattern(7 * MIB + 1);
        write(&client, "p", "huge", &huge);
        client.wait_for_output("p", "half");
        client.cut();
        let client = server.connect();
        // On lines the end of input is not the end of the connection while a write waits.
        client.initialize_with(
            json!({"clientName": "black box", "resumeSessionId": session, "takeover": true}),
        );
        let ids = [write(&client, "p", "huge", &huge), write(&client, "p", "!", b"!")];
        fs::OpenOptions::new().write(true).open(&gate).unwrap().write_all(b"go\n").unwrap();
        for id in &ids {
            assert_eq!(status(&client, id), "accepted");
        }
        assert_eq!(status(&client, &write(&client, "p", "huge", &huge)), "accepted");
        client.call("process/closeStdin", json!({"processId": "p"})).unwrap();
        client.event("p", "process/closed");
        assert!(fs::read(file).unwrap() == [huge, b"!".to_vec()].concat(), "bytes were lost or doubled");
    });
}

#[test]
fn a_blocked_huge_write_can_be_cancelled() {
    let server = Server::start();
    let client = server.connect();
    client.initialize_with(json!({"clientName": "black box", "capabilities": ["cancel"]}));
    client.start("p", &NIBBLER, json!({"pipeStdin": true}));
    let id = write(&client, "p", "huge", &vec![b'x'; 4 * MIB]);
    client.wait_for_output("p", "nibbled");
    client.notify("request/cancel", json!({"id": id}));
    assert_eq!(client.outcome(&id).unwrap_err()["data"]["kind"], "cancelled");
}
