//! Clients that acknowledge what they have consumed: a stalled consumer blocks its own process and loses nothing.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::support::{self, Client, Reader, Server, check_numbers, decode, numbers, start_params, with};

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

/// How much of one process is streamed ahead of what was consumed.
const WINDOW: u64 = 256 * KIB;
const WINDOW_EVENTS: u64 = 4096;

/// How long the server waits for a client that is away, or that does not read back.
const RESUME_HOLD_MS: u64 = 2000;

fn everything() -> Value {
    json!(["consumed", "acks", "processGap"])
}

/// What was told of one process that prints [`numbers`].
#[derive(Default)]
struct Told {
    /// Everything up to here is accounted for.
    seq: u64,
    /// How many bytes that is.
    offset: u64,
    missing: u64,
    exited: Value,
    closed: Value,
}

impl Told {
    /// Takes a notification; one that was read back before changes nothing.
    fn notice(&mut self, method: &str, params: &Value) {
        if method == "process/gap" {
            return self.skip(params);
        }
        let seq = params["seq"].as_u64().expect("events have a seq");
        if seq <= self.seq {
            return;
        }
        assert_eq!(seq, self.seq + 1, "nothing is left out");
        match method {
            "process/output" => self.print(&params["chunk"]),
            "process/exited" => self.exited = params.clone(),
            "process/closed" => self.closed = params.clone(),
            _ => panic!("no event of a process: {method}"),
        }
        self.seq = seq;
    }

    fn print(&mut self, chunk: &Value) {
        let bytes = decode(chunk);
        check_numbers(self.offset, &bytes);
        self.offset += bytes.len() as u64;
    }

    fn skip(&mut self, gap: &Value) {
        assert_eq!(gap["fromSeq"], self.seq + 1, "a gap begins where the stream stopped");
        let bytes = gap["bytes"].as_u64().expect("a gap has bytes");
        self.seq = gap["toSeq"].as_u64().expect("a gap has an end");
        self.offset += bytes;
        self.missing += bytes;
    }
}

/// A client that acknowledges what arrives, and consumes only what the test wants it to.
struct Consumer {
    reader: Reader,
    session: String,
    told: BTreeMap<String, Told>,
}

impl Consumer {
    fn new(server: &Server) -> Self {
        Self::initialized(server, &everything(), &Value::Null)
    }

    fn initialized(server: &Server, capabilities: &Value, session: &Value) -> Self {
        let hello =
            json!({"clientName": "consumer", "resumeSessionId": session, "capabilities": capabilities});
        loop {
            let mut reader = Reader::connect(server.address());
            match reader.call("initialize", hello.clone()) {
                Ok(answer) => {
                    reader.notify("initialized", json!({}));
                    let session = answer["sessionId"].as_str().expect("a session has an id").to_owned();
                    return Self { reader, session, told: BTreeMap::new() };
                }
                // It is held by the connection that was just cut.
                Err(error) => assert_eq!(error["code"], -32010, "{error}"),
            }
        }
    }

    /// Cuts the connection and attaches again with these capabilities.
    fn resume(self, server: &Server, capabilities: &Value) -> Self {
        self.reader.cut();
        let resumed = Self::initialized(server, capabilities, &json!(self.session));
        Self { told: self.told, ..resumed }
    }

    fn start(&mut self, process_id: &str, script: &str, output: &Value) {
        let params = start_params(process_id, &["/bin/sh", "-c", script]);
        let params = with(params, json!({"pipeStdin": true, "output": output}));
        self.reader.call("process/start", params).expect("the process starts");
        self.told.insert(process_id.to_owned(), Told::default());
    }

    /// Takes the next message.
    fn take(&mut self) {
        let message = self.reader.next();
        let (method, params) = (message["method"].as_str().unwrap_or_default(), &message["params"]);
        if method == "flow/mark" {
            self.reader.notify("flow/ack", json!({"mark": params["mark"]}));
        } else if let Some(process_id) = params["processId"].as_str() {
            self.told.get_mut(process_id).expect("the process was started").notice(method, params);
        }
    }

    /// Says that everything is consumed that was told of a process.
    fn consume(&mut self, process_id: &str) {
        let consumed = json!({"processId": process_id, "seq": self.told[process_id].seq});
        self.reader.notify("flow/consumed", consumed);
    }

    /// Consumes a process as it comes, to its end.
    fn consume_to_the_end(&mut self, process_id: &str) {
        let mut consumed = None;
        while self.told[process_id].closed.is_null() {
            if consumed != Some(self.told[process_id].seq) {
                self.consume(process_id);
                consumed = Some(self.told[process_id].seq);
            }
            self.take();
        }
    }

    /// Takes what a process is streamed ahead: all of the window that a chunk of 64 KiB may leave.
    fn fill_window(&mut self, process_id: &str) {
        while self.told[process_id].offset + 64 * KIB <= WINDOW {
            self.take();
        }
    }

    /// Runs a process of some MiB on the same connection, in turn with which others would be streamed.
    fn run_another(&mut self, process_id: &str) {
        self.start(process_id, &numbers(8 * MIB), &json!({}));
        self.consume_to_the_end(process_id);
        assert_eq!((self.told[process_id].offset, self.told[process_id].missing), (8 * MIB, 0));
    }

    /// Reads back what a cut has swallowed.
    fn read_back(&mut self, process_id: &str) {
        let told = self.told.get_mut(process_id).expect("the process was started");
        let read = json!({"processId": process_id, "afterSeq": told.seq});
        let reply = self.reader.call("process/read", read).expect("the process is there");
        if reply["gap"].is_object() {
            told.skip(&reply["gap"]);
        }
        for chunk in reply["chunks"].as_array().expect("chunks are an array") {
            told.print(&chunk["chunk"]);
        }
        told.seq = reply["nextSeq"].as_u64().expect("a read tells where to go on") - 1;
        if reply["closed"] == true {
            told.closed = json!(true);
        }
    }

    /// Fails unless a process was streamed as far as the window allows, and no further.
    fn assert_stalled(&mut self, process_id: &str) {
        self.fill_window(process_id);
        self.run_another(&format!("beside {process_id} {}", self.told.len()));
        let told = &self.told[process_id];
        assert!(told.offset <= WINDOW, "{} bytes were streamed ahead", told.offset);
        assert_eq!((&told.exited, &told.closed), (&Value::Null, &Value::Null));
    }

    fn assert_is_all(&self, process_id: &str, bytes: u64) {
        let told = &self.told[process_id];
        assert_eq!((told.offset, told.missing), (bytes, 0));
    }
}

/// Waits, as an onlooker, until the process gets no further: it is paused. Returns its line of `process/list`.
fn stuck(onlooker: &Client, session: &str, process_id: &str) -> Value {
    let mut before = Value::Null;
    loop {
        let listing = onlooker.call("process/list", json!({"sessionId": session})).expect("lists are free");
        let entries = listing["processes"].as_array().expect("a list is an array");
        let entry = entries.iter().find(|entry| entry["processId"] == process_id).expect("it is listed");
        if entry["produced"] == before {
            return entry.clone();
        }
        before = entry["produced"].clone();
        wait(onlooker, session, process_id, json!({"waitMs": 200}));
    }
}

fn wait(onlooker: &Client, session: &str, process_id: &str, more: Value) -> Value {
    let params = with(json!({"processId": process_id, "sessionId": session}), more);
    onlooker.call("process/wait", params).expect("the process is there")
}

#[test]
fn a_stalled_consumer_blocks_only_its_own_process_and_gets_every_byte_later() {
    Server::on_websocket_and_unix(|server| {
        let onlooker = server.client();
        let mut consumer = Consumer::new(&server);
        consumer.run_another("before");
        let memory = server.resident_bytes();
        consumer.start("stalled", &numbers(48 * MIB), &json!({}));
        for _ in 0..8 {
            consumer.assert_stalled("stalled");
        }
        let entry = stuck(&onlooker, &consumer.session, "stalled");
        assert_eq!(entry["state"], "running", "the child waits for its consumer: {entry}");
        assert!(entry["produced"]["stdout"].as_u64().unwrap() < 2 * MIB, "{entry}");
        let growth = server.resident_bytes().saturating_sub(memory);
        assert!(growth < 24 * MIB, "the server grew by {growth} bytes for a consumer that stalls");

        consumer.consume_to_the_end("stalled");
        consumer.assert_is_all("stalled", 48 * MIB);
        assert_eq!(consumer.told["stalled"].closed["evictedBytes"], 0);
    });
}

#[test]
fn reading_does_not_consume() {
    let server = Server::start();
    let onlooker = server.client();
    let mut consumer = Consumer::new(&server);
    consumer.start("p", &numbers(8 * MIB), &json!({}));
    consumer.fill_window("p");
    let before = stuck(&onlooker, &consumer.session, "p");
    for after in [0, 1, 3] {
        let read = json!({"processId": "p", "afterSeq": after});
        consumer.reader.call("process/read", read).expect("the process is there");
    }
    let after = stuck(&onlooker, &consumer.session, "p");
    assert_eq!(after["produced"], before["produced"], "the log is as full as before");
    consumer.consume_to_the_end("p");
    consumer.assert_is_all("p", 8 * MIB);
}

#[test]
fn output_consumed_by_reads_does_not_fill_the_window_when_streamed() {
    let server = Server::start();
    let mut consumer = Consumer::new(&server);
    consumer.start("p", &numbers(4 * MIB), &json!({}));
    while consumer.told["p"].closed.is_null() {
        consumer.read_back("p");
        consumer.consume("p");
    }
    consumer.assert_is_all("p", 4 * MIB);
    while consumer.reader.next()["method"] != "process/closed" {}
}

#[test]
fn many_small_events_fill_the_window_too() {
    let server = Server::start();
    let mut consumer = Consumer::new(&server);
    consumer.start("p", "exec cat", &json!({}));
    let mut printed = 0;
    let mut print = |consumer: &mut Consumer| {
        let byte = format!("{}\n", 10_000_000 + printed / 9).as_bytes()[printed % 9];
        printed += 1;
        let chunk = support::encode([byte]);
        consumer
            .reader
            .send("process/write", json!({"processId": "p", "chunk": chunk, "writeId": printed.to_string()}));
    };
    for seq in 1..=WINDOW_EVENTS {
        print(&mut consumer);
        while consumer.told["p"].seq < seq {
            consumer.take();
        }
    }
    print(&mut consumer);
    let read = json!({"processId": "p", "afterSeq": WINDOW_EVENTS, "waitMs": 60_000});
    let reply = consumer.reader.call("process/read", read).unwrap();
    assert_eq!(reply["nextSeq"], WINDOW_EVENTS + 2, "there is one more");
    consumer.run_another("other");
    assert_eq!(consumer.told["p"].seq, WINDOW_EVENTS, "and it is not streamed");

    consumer.reader.notify("flow/consumed", json!({"processId": "p", "seq": 1}));
    while consumer.told["p"].seq <= WINDOW_EVENTS {
        consumer.take();
    }
}

#[test]
fn a_window_is_limited_by_retention_and_always_fits_one_chunk() {
    Server::on_websocket_and_unix(|server| {
        let mut consumer = Consumer::new(&server);
        for (process_id, retain_bytes, window) in [("small", 128 * KIB, 128 * KIB), ("tiny", 1, 64 * KIB)] {
            consumer.start(process_id, &numbers(4 * MIB), &json!({"retainBytes": retain_bytes}));
            consumer.run_another(&format!("beside {process_id}"));
            let streamed = consumer.told[process_id].offset;
            assert!(streamed <= window, "{streamed} bytes of `{process_id}` were streamed ahead");
            consumer.consume_to_the_end(process_id);
            consumer.assert_is_all(process_id, 4 * MIB);
        }
    });
}

#[test]
fn an_exit_is_streamed_in_order_behind_the_window_but_ends_waits_at_once() {
    Server::on_websocket_and_unix(|server| {
        let onlooker = server.client();
        let mut consumer = Consumer::new(&server);
        consumer.start("p", &format!("{}; exit 3", numbers(600 * KIB)), &json!({}));
        let waited = wait(&onlooker, &consumer.session, "p", json!({"until": "closed"}));
        assert_eq!((&waited["reason"], &waited["exitCode"]), (&json!("closed"), &json!(3)));
        consumer.assert_stalled("p");
        consumer.consume_to_the_end("p");
        consumer.assert_is_all("p", 600 * KIB);
        assert_eq!(consumer.told["p"].exited["exitCode"], 3);
    });
}

#[test]
fn a_closed_process_is_remembered_until_its_consumer_reaches_the_end() {
    Server::on_websocket_and_unix(|server| {
        for overflow in ["pause", "evict"] {
            let onlooker = server.client();
            let mut consumer = Consumer::new(&server);
            consumer.start("p", &numbers(600 * KIB), &json!({"retainMs": 1, "overflow": overflow}));
            wait(&onlooker, &consumer.session, "p", json!({"until": "closed"}));
            consumer.assert_stalled("p");
            consumer.consume_to_the_end("p");
            consumer.assert_is_all("p", 600 * KIB);
            // It is forgotten a moment later, and by then nobody asks.
            consumer.consume("p");
            consumer.run_another("another");
            let listing = consumer.reader.call("process/list", json!({})).unwrap();
            let listed =
                listing["processes"].as_array().unwrap().iter().any(|entry| entry["processId"] == "p");
            assert!(!listed, "{listing}");
        }
    });
}

#[test]
fn a_disconnect_during_a_stall_loses_nothing() {
    Server::on_websocket_and_unix(|server| {
        let onlooker = server.client();
        let mut consumer = Consumer::new(&server);
        consumer.start("p", &numbers(16 * MIB), &json!({}));
        for round in 1..=3 {
            consumer.run_another(&format!("other {round}"));
            stuck(&onlooker, &consumer.session, "p");
            consumer = consumer.resume(&server, &everything());
            // The client has the process again, and all the time it wants.
            wait(&onlooker, &consumer.session, "p", json!({"waitMs": RESUME_HOLD_MS + 500}));
            consumer.read_back("p");
            while consumer.told["p"].offset < round * 4 * MIB {
                consumer.consume("p");
                consumer.take();
            }
        }
        consumer.consume_to_the_end("p");
        consumer.assert_is_all("p", 16 * MIB);
    });
}

#[test]
fn a_client_that_resumes_without_the_capability_is_paced_by_its_acknowledgements() {
    Server::on_websocket_and_unix(|server| {
        let onlooker = server.client();
        let mut consumer = Consumer::new(&server);
        consumer.start("p", &numbers(16 * MIB), &json!({}));
        consumer.fill_window("p");
        stuck(&onlooker, &consumer.session, "p");
        let mut client = consumer.resume(&server, &json!(["acks", "processGap"]));
        client.read_back("p");
        while client.told["p"].closed.is_null() {
            client.take();
        }
        client.assert_is_all("p", 16 * MIB);
    });
}

#[test]
fn evictable_output_is_streamed_within_the_window_and_the_gap_is_reported() {
    Server::on_websocket_and_unix(|server| {
        let onlooker = server.client();
        let mut consumer = Consumer::new(&server);
        consumer.start("p", &format!("read go; {}", numbers(16 * MIB)), &json!({"overflow": "evict"}));
        let go = json!({"processId": "p", "chunk": support::encode("go\n"), "writeId": "go"});
        consumer.reader.send("process/write", go);
        let waited = wait(&onlooker, &consumer.session, "p", json!({"until": "closed"}));
        assert_eq!(waited["exitCode"], 0, "nobody holds the child up");
        consumer.run_another("other");
        let told = &consumer.told["p"];
        assert!(told.offset - told.missing <= WINDOW, "{} bytes were streamed ahead", told.offset);
        assert_eq!(told.closed, Value::Null);

        consumer.consume_to_the_end("p");
        let told = &consumer.told["p"];
        assert_eq!(told.offset, 16 * MIB, "got and missing are all there was");
        assert!(told.missing > 14 * MIB, "only {} bytes are missing", told.missing);
        assert_eq!(told.closed["evictedBytes"], told.missing);
    });
}

#[test]
fn an_observer_has_no_window() {
    let server = Server::start();
    let mut consumer = Consumer::new(&server);
    consumer.start("p", &format!("read go; {}", numbers(600 * KIB)), &json!({}));
    let mut observer = Consumer::new(&server);
    observer.reader.call("session/observe", json!({"sessionId": consumer.session})).unwrap();
    observer.told.insert("p".to_owned(), Told::default());
    let go = json!({"processId": "p", "chunk": support::encode("go\n"), "writeId": "go"});
    consumer.reader.send("process/write", go);
    while observer.told["p"].closed.is_null() {
        observer.take();
    }
    observer.assert_is_all("p", 600 * KIB);
    consumer.assert_stalled("p");
}

#[test]
fn nonsensical_acknowledgements_are_ignored() {
    let server = Server::start();
    let mut consumer = Consumer::new(&server);
    consumer.start("p", "exec cat", &json!({}));
    for (process_id, seq) in [("unknown", 1), ("p", 0), ("p", u64::MAX), ("p", 1)] {
        consumer.reader.notify("flow/consumed", json!({"processId": process_id, "seq": seq}));
    }
    consumer.start("q", &numbers(4 * MIB), &json!({}));
    consumer.assert_stalled("q");
    // All there is, which is less than it says.
    consumer.reader.notify("flow/consumed", json!({"processId": "q", "seq": u64::MAX}));
    consumer.consume_to_the_end("q");
    assert_eq!(consumer.told["q"].offset, 4 * MIB);
}

#[test]
fn acknowledging_consumption_without_the_capability_closes_the_connection() {
    let server = Server::start();
    for capabilities in [json!(null), json!([]), json!(["acks"])] {
        let client = server.connect();
        client.initialize_with(json!({"clientName": "x", "capabilities": capabilities}));
        client.notify("flow/consumed", json!({"processId": "p", "seq": 1}));
        let reason = "`flow/consumed` without the capability `consumed`".to_owned();
        assert_eq!(client.wait_end().close, Some((1008, reason)));
    }
}
