//! Output under pressure: floods, clients that read slowly or not at all, and cuts in the middle.

mod cuts;

use std::{collections::BTreeMap, fs, process::Command, sync::Arc, thread, time::Instant};

use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use crate::support::{
    self, Client, PATIENCE, Reader, Server, check_numbers, decode, numbers, start_params, with,
};

const MIB: u64 = 1 << 20;

fn start(reader: &mut Reader, process_id: &str, script: &str, more: Value) {
    let params = with(start_params(process_id, &["/bin/sh", "-c", script]), more);
    reader.call("process/start", params).expect("the process starts");
}

fn new_session(address: &str) -> (Reader, String) {
    let (reader, answer) =
        Reader::initialized(address, json!({"clientName": "flow", "resumeSessionId": null}));
    (reader, answer["sessionId"].as_str().expect("a session has an id").to_owned())
}

/// Attaches to a session whose connection was just cut, as clients do: again while it is held.
fn resume(address: &str, session: &str, more: Value) -> Reader {
    let params = with(json!({"clientName": "flow", "resumeSessionId": session}), more);
    loop {
        let mut reader = Reader::connect(address);
        match reader.call("initialize", params.clone()) {
            Ok(answer) => {
                assert_eq!(answer["sessionId"], session);
                reader.notify("initialized", json!({}));
                return reader;
            }
            Err(error) => assert_eq!(error["code"], -32010, "{error}"),
        }
    }
}

/// Waits, as an onlooker, until the process gets no further: it is paused, or has nothing to say.
fn wait_until_stuck(onlooker: &Client, session: &str, process_id: &str) {
    let mut before = Value::Null;
    loop {
        let produced = listed(onlooker, session, process_id)["produced"].clone();
        if produced == before {
            return;
        }
        before = produced;
        // A paused child is not idle, so nothing tells of it but the clock.
        let a_while = json!({"processId": process_id, "sessionId": session, "waitMs": 200});
        onlooker.call("process/wait", a_while).expect("the process is there");
    }
}

/// Returns the line of `process/list` about a process of another session.
fn listed(onlooker: &Client, session: &str, process_id: &str) -> Value {
    let listing = onlooker.call("process/list", json!({"sessionId": session})).expect("lists are free");
    let entries = listing["processes"].as_array().expect("a list is an array");
    entries.iter().find(|entry| entry["processId"] == process_id).cloned().expect("the process is listed")
}

/// The output of one process that prints [`numbers`], put together over any number of connections.
#[derive(Default)]
struct Tail {
    /// Everything up to here is accounted for.
    seq: u64,
    /// How many bytes that is.
    offset: u64,
    /// Where each event ended, for gaps of which a part was read back.
    ends: BTreeMap<u64, u64>,
    /// Notifications that came before an earlier event was read back, by their first seq.
    early: BTreeMap<u64, Value>,
    sum: Sha256,
    missing: u64,
    /// The parameters of `process/closed`, or `true` when a read told it.
    closed: Value,
}

impl Tail {
    fn is_closed(&self) -> bool {
        !self.closed.is_null()
    }

    /// Takes a notification; one that was seen already changes nothing.
    fn notice(&mut self, message: &Value) {
        let params = &message["params"];
        let first = params.get("seq").or(params.get("fromSeq")).and_then(Value::as_u64);
        self.early.insert(first.expect("events have a seq"), message.clone());
        self.go_on();
    }

    /// Takes the answer to a `process/read` without a limit.
    fn read_back(&mut self, reply: &Value) {
        if reply["gap"].is_object() {
            self.skip(&reply["gap"]);
        }
        for chunk in reply["chunks"].as_array().expect("chunks are an array") {
            let seq = chunk["seq"].as_u64().expect("chunks have a seq");
            assert!(seq > self.seq, "{seq} comes again after {}", self.seq);
            self.take(seq, &chunk["chunk"]);
        }
        let next = reply["nextSeq"].as_u64().expect("a read tells where to go on");
        self.reach(self.seq.max(next - 1), self.offset);
        if reply["closed"] == true {
            self.closed = json!(true);
        }
        self.go_on();
    }

    fn go_on(&mut self) {
        while let Some(entry) = self.early.first_entry().filter(|entry| *entry.key() <= self.seq + 1) {
            let (seq, message) = entry.remove_entry();
            match message["method"].as_str() {
                Some("process/gap") => self.skip(&message["params"]),
                _ if seq <= self.seq => {}
                Some("process/output") => self.take(seq, &message["params"]["chunk"]),
                Some("process/exited") => self.reach(seq, self.offset),
                Some("process/closed") => self.closed = message["params"].clone(),
                _ => panic!("no event of a process: {message}"),
            }
        }
    }

    fn take(&mut self, seq: u64, chunk: &Value) {
        let bytes = decode(chunk);
        check_numbers(self.offset, &bytes);
        self.sum.update(&bytes);
        self.reach(seq, self.offset + bytes.len() as u64);
    }

    /// Takes a gap; part of what is evicted may have been read back before.
    fn skip(&mut self, gap: &Value) {
        let number =
            |member: &str| gap[member].as_u64().unwrap_or_else(|| panic!("a gap has `{member}`: {gap}"));
        let (from, to, bytes) = (number("fromSeq"), number("toSeq"), number("bytes"));
        if to > self.seq {
            let begin = if from == self.seq + 1 { self.offset } else { self.ends[&(from - 1)] };
            self.missing += begin + bytes - self.offset;
            self.reach(to, begin + bytes);
        }
    }

    fn reach(&mut self, seq: u64, offset: u64) {
        (self.seq, self.offset) = (seq, offset);
        self.ends.insert(seq, offset);
    }

    fn assert_is_all_of(self, bytes: u64) {
        assert_eq!((self.offset, self.missing), (bytes, 0));
        let sum: String = self.sum.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
        let script = format!("{} | sha256sum", numbers(bytes));
        let here = Command::new("/bin/sh").args(["-c", &script]).output().expect("sha256sum is installed");
        assert_eq!(sum, String::from_utf8_lossy(&here.stdout)[..64]);
    }
}

fn tails<const N: usize>(processes: [&'static str; N]) -> BTreeMap<&'static str, Tail> {
    processes.map(|process| (process, Tail::default())).into()
}

/// Gives a message to the tail it is for, if it is for one.
fn notice(tails: &mut BTreeMap<&'static str, Tail>, message: &Value) {
    if let Some(tail) = message["params"]["processId"].as_str().and_then(|id| tails.get_mut(id)) {
        tail.notice(message);
    }
}

/// Reads the end of one process from a connection that follows only this one.
fn read_to_the_end(reader: &mut Reader, tail: &mut Tail) {
    while !tail.is_closed() {
        tail.notice(&reader.next());
    }
}

#[test]
fn a_quarter_of_a_gibibyte_arrives_byte_for_byte() {
    let server = Server::start();
    let (mut reader, _) = new_session(server.address());
    start(&mut reader, "p", &numbers(256 * MIB), json!({}));
    let mut tail = Tail::default();
    read_to_the_end(&mut reader, &mut tail);
    assert_eq!(tail.closed["produced"], json!({"stdout": 256 * MIB, "stderr": 0, "pty": 0}));
    tail.assert_is_all_of(256 * MIB);
}

#[test]
fn a_client_that_stops_reading_pauses_only_its_child() {
    Server::on_websocket_and_unix(|server| {
        let directory = tempfile::tempdir().unwrap();
        let (mut reader, session) = new_session(server.address());
        let onlooker = server.client();
        let before = server.resident_bytes();
        let floods = ["a", "b", "c", "d"];
        for flood in floods {
            start(&mut reader, flood, &format!("read go; {}", numbers(32 * MIB)), json!({"pipeStdin": true}));
        }
        start(&mut reader, "quiet", "while :; do read line || exit 7; done", json!({"pipeStdin": true}));
        for flood in floods {
            let go = json!({"processId": flood, "chunk": support::encode("go\n"), "writeId": "go"});
            reader.send("process/write", go);
        }

        for flood in floods {
            let begun =
                json!({"processId": flood, "sessionId": session, "until": {"output": {"regex": "1"}}});
            assert_eq!(onlooker.call("process/wait", begun).unwrap()["reason"], "output");
            wait_until_stuck(&onlooker, &session, flood);
            let entry = listed(&onlooker, &session, flood);
            assert_eq!(entry["state"], "running", "the child waits for its reader: {entry}");
            let produced = entry["produced"]["stdout"].as_u64().unwrap();
            assert!(produced < 4 * MIB, "{produced} bytes were taken for a client that reads nothing");
        }
        let growth = server.resident_bytes().saturating_sub(before);
        assert!(growth < 32 * MIB, "the server grew by {growth} bytes for a client that reads nothing");

        // Orders get through on the very connection that takes no answer …
        let note = directory.path().join("note");
        reader.send(
            "process/start",
            start_params("note", &["/bin/sh", "-c", &format!("echo done > {}", note.display())]),
        );
        reader.send("process/closeStdin", json!({"processId": "quiet"}));
        reader.send("process/terminate", json!({"processId": "d"}));
        let exit = |process_id: &str| {
            let params = json!({"processId": process_id, "sessionId": session});
            onlooker.call("process/wait", params).expect("the process is there")
        };
        assert_eq!(exit("quiet")["exitCode"], 7);
        assert_eq!(exit("d")["cause"], "terminated");
        assert_eq!(exit("note")["exitCode"], 0);
        assert_eq!(fs::read_to_string(note).unwrap(), "done\n");
        // … and others notice nothing.
        onlooker.shell("p", "echo fine");
        assert_eq!(onlooker.collect("p").text(), "fine\n");

        let mut tails = tails(["a", "b", "c"]);
        while !tails.values().all(Tail::is_closed) {
            notice(&mut tails, &reader.next());
        }
        for tail in tails.into_values() {
            tail.assert_is_all_of(32 * MIB);
        }
    });
}

#[test]
fn a_flood_does_not_starve_a_quiet_process_on_the_same_connection() {
    for server in [Server::start(), Server::unix(&[])] {
        let (mut reader, _) = new_session(server.address());
        start(&mut reader, "flood", "exec yes", json!({}));
        start(&mut reader, "echo", "exec cat", json!({"pipeStdin": true}));
        for round in 0..20 {
            let chunk = support::encode(format!("{round}\n"));
            let write = json!({"processId": "echo", "chunk": chunk, "writeId": round.to_string()});
            reader.send("process/write", write);
            let mut flooded = 0;
            loop {
                let message = reader.next();
                if message["method"] != "process/output" {
                    continue;
                }
                if message["params"]["processId"] == "echo" {
                    assert_eq!(message["params"]["chunk"], chunk);
                    break;
                }
                flooded += decode(&message["params"]["chunk"]).len() as u64;
            }
            // A busy machine may run the flood a while before it runs `cat`.
            assert!(flooded < 256 * MIB, "an echo waited behind {flooded} bytes of somebody else");
        }
    }
}

#[test]
fn a_disconnect_during_a_flood_loses_nothing_with_a_mebibyte_of_retention() {
    Server::on_websocket_and_unix(|server| {
        let (mut reader, session) = new_session(server.address());
        let onlooker = server.client();
        start(&mut reader, "p", &numbers(64 * MIB), json!({}));
        let mut tail = Tail::default();
        for part in 1..=8 {
            while tail.offset < part * 4 * MIB {
                tail.notice(&reader.next());
            }
            wait_until_stuck(&onlooker, &session, "p");
        }
        reader.cut();
        let mut reader = resume(server.address(), &session, json!({}));
        let rest = json!({"processId": "p", "afterSeq": tail.seq});
        tail.read_back(&reader.call("process/read", rest).expect("the process is there"));
        read_to_the_end(&mut reader, &mut tail);
        tail.assert_is_all_of(64 * MIB);
    });
}

#[test]
fn evictable_output_never_pauses_the_child_and_the_gap_is_reported() {
    let server = Server::start();
    let (mut reader, answer) =
        Reader::initialized(server.address(), json!({"clientName": "x", "capabilities": ["processGap"]}));
    let session = answer["sessionId"].as_str().unwrap();
    let onlooker = server.client();
    start(&mut reader, "p", &numbers(64 * MIB), json!({"output": {"overflow": "evict"}}));
    let closed = json!({"processId": "p", "sessionId": session, "until": "closed"});
    let waited = onlooker.call("process/wait", closed).unwrap();
    assert_eq!((&waited["reason"], &waited["exitCode"]), (&json!("closed"), &json!(0)));

    let mut tail = Tail::default();
    read_to_the_end(&mut reader, &mut tail);
    assert!(tail.missing > 32 * MIB, "only {} bytes are missing", tail.missing);
    assert_eq!(tail.offset, 64 * MIB, "got and missing are all there was");
    assert_eq!(tail.closed["produced"]["stdout"], 64 * MIB);
    assert_eq!(tail.closed["evictedBytes"], tail.missing);
    let entry = listed(&onlooker, session, "p");
    assert!(entry["retainedBytes"].as_u64().unwrap() <= MIB, "{entry}");
}

#[test]
fn gaps_are_reported_by_reads_to_clients_without_gap_notifications() {
    let server = Server::start();
    let client = server.client();
    client.start(
        "p",
        &["/bin/sh", "-c", &numbers(3 * MIB)],
        json!({"output": {"overflow": "evict", "retainBytes": 65536}}),
    );
    client.event("p", "process/closed");
    let told = client.look(|seen| seen.events("p").any(|event| event["method"] == "process/gap"));
    assert!(!told, "`process/gap` is only for clients that asked");
    let mut tail = Tail::default();
    tail.read_back(&client.call("process/read", json!({"processId": "p"})).unwrap());
    assert_eq!(tail.offset, 3 * MIB);
    assert!(tail.missing >= 3 * MIB - 65536, "{} bytes are missing", tail.missing);
}

#[test]
fn the_requested_retention_stays_readable() {
    let server = Server::start();
    let client = server.connect();
    let cap = client.initialize()["limits"]["retainBytes"].as_u64().unwrap();
    for (process, output, at_least, at_most) in [
        ("base", json!({}), MIB * 3 / 4, MIB),
        ("less", json!({"retainBytes": 200_000}), 65_536, 200_000),
        ("more", json!({"retainBytes": 4 * MIB}), 4 * MIB, 4 * MIB),
        ("most", json!({"retainBytes": 1_u64 << 60}), 4 * MIB, cap),
    ] {
        client.start(process, &["/bin/sh", "-c", &numbers(4 * MIB)], json!({"output": output}));
        assert_eq!(client.collect(process).stdout.len() as u64, 4 * MIB);
        let mut tail = Tail::default();
        tail.read_back(&client.call("process/read", json!({"processId": process})).unwrap());
        assert_eq!(tail.offset, 4 * MIB, "got and missing are all there was");
        let got = tail.offset - tail.missing;
        assert!((at_least..=at_most).contains(&got), "{got} bytes of `{process}` are readable");
    }
}

#[test]
fn a_detached_process_is_not_paused() {
    Server::on_websocket_and_unix(|server| {
        let (mut reader, session) = new_session(server.address());
        let onlooker = server.client();
        start(&mut reader, "p", &numbers(16 * MIB), json!({}));
        wait_until_stuck(&onlooker, &session, "p");
        reader.cut();
        let closed = json!({"processId": "p", "sessionId": session, "until": "closed"});
        assert_eq!(onlooker.call("process/wait", closed).unwrap()["exitCode"], 0);

        let mut reader = resume(server.address(), &session, json!({}));
        let mut tail = Tail::default();
        tail.read_back(&reader.call("process/read", json!({"processId": "p"})).unwrap());
        assert_eq!(tail.offset, 16 * MIB, "got and missing are all there was");
        assert!(tail.missing >= 15 * MIB, "{} bytes are missing", tail.missing);
    });
}

#[test]
fn held_output_waits_for_a_detached_client_indefinitely() {
    let server = Server::start();
    let (mut reader, session) = new_session(server.address());
    let onlooker = server.client();
    start(&mut reader, "p", &numbers(4 * MIB), json!({"output": {"overflow": "hold", "retainBytes": 65536}}));
    wait_until_stuck(&onlooker, &session, "p");
    reader.cut();
    // What was held for two seconds only would be gone by now, and the process at its end.
    let a_while = json!({"processId": "p", "sessionId": session, "until": "closed", "waitMs": 2500});
    assert_eq!(onlooker.call("process/wait", a_while).unwrap()["reason"], "timeout");

    let mut reader = resume(server.address(), &session, json!({}));
    let mut tail = Tail::default();
    tail.read_back(&reader.call("process/read", json!({"processId": "p"})).unwrap());
    read_to_the_end(&mut reader, &mut tail);
    tail.assert_is_all_of(4 * MIB);
}

#[test]
fn a_closed_process_with_held_output_is_forgotten_once_its_client_has_all_of_it() {
    Server::on_websocket_and_unix(|server| {
        let (mut reader, session) = new_session(server.address());
        let onlooker = server.client();
        let more = json!({"output": {"overflow": "hold", "retainMs": 1}});
        // Small outputs are acknowledged late, if at all.
        start(&mut reader, "small", "echo hello", more.clone());
        while reader.next()["method"] != "process/closed" {}
        let deadline = Instant::now() + PATIENCE;
        while reader.call("process/list", json!({})).unwrap()["processes"] != json!([]) {
            assert!(Instant::now() < deadline, "a process whose client has everything is not forgotten");
        }
        start(&mut reader, "p", &format!("sleep 0.2; {}", numbers(MIB / 2)), more);
        reader.cut();
        let closed = json!({"processId": "p", "sessionId": session, "until": "closed"});
        assert_eq!(onlooker.call("process/wait", closed).unwrap()["exitCode"], 0);
        // What was kept for two seconds only would be gone by now.
        onlooker.shell("clock", "sleep 3");
        onlooker.collect("clock");

        let mut reader = resume(server.address(), &session, json!({}));
        let mut tail = Tail::default();
        tail.read_back(&reader.call("process/read", json!({"processId": "p"})).unwrap());
        tail.assert_is_all_of(MIB / 2);

        // A request can forget it, although its client is disconnected.
        let more = json!({"output": {"overflow": "hold", "retainMs": 3_600_000}});
        start(&mut reader, "q", "sleep 0.2; echo hello", more);
        reader.cut();
        let closed = json!({"processId": "q", "sessionId": session, "until": "closed"});
        assert_eq!(onlooker.call("process/wait", closed).unwrap()["exitCode"], 0);
        let q = json!({"processId": "q", "sessionId": session});
        onlooker.call("process/forget", q.clone()).unwrap();
        assert_eq!(onlooker.refusal("process/read", q).0, -32600);
    });
}

#[test]
fn released_output_does_not_wait_for_a_detached_client() {
    let server = Server::start();
    let (mut reader, session) = new_session(server.address());
    let onlooker = server.client();
    start(&mut reader, "p", &numbers(4 * MIB), json!({"output": {"overflow": "hold", "retainBytes": 65536}}));
    let release = json!({"processId": "p", "sessionId": session});
    onlooker.call("process/release", release).unwrap();
    wait_until_stuck(&onlooker, &session, "p");
    assert_eq!(listed(&onlooker, &session, "p")["state"], "running", "its client is there, so it waits");
    reader.cut();
    let closed = json!({"processId": "p", "sessionId": session, "until": "closed"});
    assert_eq!(onlooker.call("process/wait", closed).unwrap()["exitCode"], 0);
    assert_eq!(onlooker.refusal("process/release", json!({"processId": "nobody"})).0, -32600);
}

#[test]
fn retention_of_a_session_is_bounded_regardless_of_its_processes() {
    let server = Server::start();
    let (mut reader, session) = new_session(server.address());
    let onlooker = server.client();
    let before = server.resident_bytes();
    let processes: Vec<_> = (0..8).map(|n| format!("p{n}")).collect();
    for process in &processes {
        let more = json!({"pipeStdin": true, "output": {"retainBytes": 64 * MIB, "overflow": "evict"}});
        start(&mut reader, process, "read go; exec head -c 67108864 /dev/zero", more);
    }
    let waits: Vec<_> = processes
        .iter()
        .map(|process| {
            let closed = json!({"processId": process, "sessionId": session, "until": "closed"});
            onlooker.send("process/wait", closed)
        })
        .collect();
    onlooker.call("session/list", json!({})).unwrap();
    for process in &processes {
        let go = json!({"processId": process, "chunk": support::encode("go\n"), "writeId": "go"});
        reader.send("process/write", go);
    }
    for id in &waits {
        assert_eq!(onlooker.outcome(id).unwrap()["exitCode"], 0);
    }
    let listing = onlooker.call("process/list", json!({"sessionId": session})).unwrap();
    let entries = listing["processes"].as_array().unwrap();
    assert_eq!(entries.len(), processes.len(), "output goes, what is known of a process stays");
    let retained: u64 = entries.iter().filter_map(|entry| entry["retainedBytes"].as_u64()).sum();
    assert!(retained <= 256 * MIB, "{retained} bytes are retained");
    // The allocator gives memory back late and in pieces.
    let growth = server.resident_bytes().saturating_sub(before);
    assert!(growth < 448 * MIB, "the server grew by {growth} bytes");
}

#[test]
fn short_messages_are_sent_without_delay() {
    let server = Server::start();
    let client = server.client();
    client.start("p", &["/bin/cat"], json!({"pipeStdin": true}));
    for round in 0..200 {
        let text = format!("<{round}>");
        let write = json!({"processId": "p", "chunk": support::encode(&text), "writeId": text});
        client.send("process/write", write);
        client.wait_for_output("p", &text);
    }
}

#[test]
fn unread_stdin_is_bounded() {
    let server = Server::start();
    let client = server.client();
    let before = server.resident_bytes();
    client.start("p", &["/bin/sleep", "1000"], json!({"pipeStdin": true}));
    let chunk = support::encode(vec![b'x'; 1 << 20]);
    let ids: Vec<_> = (0..64)
        .map(|round: i32| {
            let write = json!({"processId": "p", "chunk": chunk, "writeId": round.to_string()});
            client.send("process/write", write)
        })
        .collect();
    assert_eq!(client.outcome(&ids[0]).unwrap()["status"], "accepted");
    client.shell("q", "echo fine");
    assert_eq!(client.collect("q").text(), "fine\n");
    // 64 MiB of stdin are 85 MiB on the wire.
    let growth = server.resident_bytes().saturating_sub(before);
    assert!(growth < 160 * MIB, "the server grew by {growth} bytes for stdin that nobody takes");
    assert_eq!(
        client.call("process/terminate", json!({"processId": "p"})).unwrap(),
        json!({"running": true})
    );
    for id in &ids[1..] {
        let status = client.outcome(id).unwrap()["status"].clone();
        assert!(status == "accepted" || status == "stdinClosed", "{status}");
    }
}
