//! Memory that all connections share: which requests wait for it, and which do not.

use std::{
    io::{self, Cursor},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::{Duration, Instant},
};

use remex_access::{
    account::Kind,
    budget::Budget,
    identity::{Credential, Identity},
};
use remex_proto::message::Source;
use remex_rpc::{FrameReader, Framing, Role};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _, ReadBuf, Repeat},
    net::TcpListener,
};

use super::{Client, PATIENCE, TestServer, start_params};
use crate::{
    Limits,
    edge::connection::{self, Link, Transport, Validity},
};

const MIB: usize = 1 << 20;

/// Limits that let one identity use up every budget.
fn undivided() -> Limits {
    let limits = Limits::default();
    Limits { identity_memory_bytes: limits.server_memory_bytes, ..limits }
}

/// Waits until `holds`.
async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < deadline, "waited in vain until {what}");
        tokio::task::yield_now().await;
    }
}

impl TestServer {
    /// Waits until a task waits for a share of the memory for answers.
    async fn until_an_answer_waits(&self) {
        until("an answer waits for room", || self.server.host().answers().waiting() == 1).await;
    }

    async fn until_all_is_free(&self, what: &str, budget: &Arc<Budget>) {
        until(what, || budget.free() == budget.total()).await;
    }
}

impl Client {
    async fn ask(&mut self, id: &str, method: &str, params: Value) {
        self.send(json!({"id": id, "method": method, "params": params})).await;
    }

    /// Starts a process whose output stays readable.
    async fn produce(&mut self, id: &str, bytes: usize) {
        let script = format!("head -c {bytes} /dev/zero; echo full >&2; read line");
        let mut start = start_params(id, &script);
        start["output"] = json!({"overflow": "evict", "retainBytes": 8 * MIB});
        self.call("process/start", start).await.unwrap();
        let wait = json!({"processId": id, "until": {"output": {"regex": "full"}}});
        self.call("process/wait", wait).await.unwrap();
    }
}

fn len_of(chunks: &Value) -> usize {
    let decoded = |chunk: &Value| {
        let chunk = chunk["chunk"].as_str().unwrap();
        chunk.len() / 4 * 3 - chunk.bytes().filter(|byte| *byte == b'=').count()
    };
    chunks.as_array().unwrap().iter().map(decoded).sum()
}

#[tokio::test(flavor = "multi_thread")]
async fn long_reads_and_snapshots_wait_for_memory_and_short_ones_do_not() {
    let test = TestServer::with(undivided()).await;
    let (mut client, mut other) = (test.client().await, test.client().await);
    client.produce("p", 3 * MIB).await;
    other.produce("p", 500_000).await;
    for method in ["process/read", "process/snapshot"] {
        let all = test
            .server
            .host()
            .answers()
            .try_take(test.server.host().answers().total(), &Arc::default())
            .unwrap();
        client.ask(method, method, json!({"processId": "p"})).await;
        test.until_an_answer_waits().await;
        let read = json!({"processId": "p", "maxBytes": 400_000});
        assert!(len_of(&other.call("process/read", read).await.unwrap()["chunks"]) > 300_000);
        // Short reads succeed, even on the same connection and of the same process.
        let little = json!({"processId": "p", "maxBytes": 1});
        assert!(len_of(&client.call("process/read", little).await.unwrap()["chunks"]) > 0);
        drop(all);
        let answer = client.outcome(&json!(method)).await.unwrap();
        let len = match method {
            "process/read" => len_of(&answer["chunks"]),
            _ => answer["stdout"].as_str().unwrap().len() / 4 * 3 + "full\n".len(),
        };
        assert_eq!(len, 3 * MIB + "full\n".len());
        test.until_all_is_free("the room of an answer that was sent is free", test.server.host().answers())
            .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancel_and_a_disconnect_end_the_wait_for_memory() {
    let test = TestServer::with(undivided()).await;
    let mut client = test.connect().await;
    let hello = json!({"clientName": "test", "detachTtlMs": 1, "capabilities": ["cancel"]});
    client.call("initialize", hello).await.unwrap();
    client.send(json!({"method": "initialized", "params": {}})).await;
    client.produce("p", 3 * MIB).await;
    let all =
        test.server.host().answers().try_take(test.server.host().answers().total(), &Arc::default()).unwrap();
    client.ask("read", "process/read", json!({"processId": "p"})).await;
    test.until_an_answer_waits().await;
    client.send(json!({"method": "request/cancel", "params": {"id": "read"}})).await;
    assert_eq!(client.outcome(&json!("read")).await.unwrap_err()["data"]["kind"], "cancelled");
    until("nobody waits", || test.server.host().answers().waiting() == 0).await;
    client.ask("read", "process/read", json!({"processId": "p"})).await;
    test.until_an_answer_waits().await;
    drop(client);
    until("nobody waits", || test.server.host().answers().waiting() == 0).await;
    drop(all);
    test.until_all_is_free("nothing is kept for a disconnected client", test.server.host().answers()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_keeps_its_memory_until_the_client_reads_it() {
    let test = TestServer::with(undivided()).await;
    let mut client = test.client().await;
    client.produce("p", 3 * MIB).await;
    client.ask("read", "process/read", json!({"processId": "p"})).await;
    let answers = test.server.host().answers();
    until("the answer has its room", || answers.free() < answers.total()).await;
    // The socket buffers less than that.
    client.ask("status", "environment/status", json!({})).await;
    assert!(answers.total() - answers.free() >= 3 * MIB as u64);
    assert_eq!(len_of(&client.outcome(&json!("read")).await.unwrap()["chunks"]), 3 * MIB + "full\n".len());
    test.until_all_is_free("the client has taken it", answers).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_longer_than_the_budget_is_built_alone() {
    let test = TestServer::with(Limits { answer_bytes: 2 * MIB, ..undivided() }).await;
    let mut client = test.client().await;
    client.produce("p", 3 * MIB).await;
    let read = client.call("process/read", json!({"processId": "p"})).await.unwrap();
    assert_eq!(len_of(&read["chunks"]), 3 * MIB + "full\n".len());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_does_not_read_its_long_answer_is_disconnected_when_others_wait() {
    let limits = Limits {
        answer_bytes: 6 * MIB,
        slow_transfer: Duration::from_millis(200),
        // So that only the waiting connections can end it.
        stalled_writer: Duration::from_secs(3600),
        ..undivided()
    };
    let test = TestServer::with(limits).await;
    let (mut silent, mut other) = (test.client().await, test.client().await);
    silent.produce("p", 3 * MIB).await;
    other.produce("p", 3 * MIB).await;
    silent.ask("read", "process/read", json!({"processId": "p"})).await;
    let answers = test.server.host().answers();
    until("the answer has its room", || answers.free() < answers.total()).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(answers.free() < answers.total(), "as long as nobody waits, it may take its time");
    let read = other.call("process/read", json!({"processId": "p"})).await.unwrap();
    assert_eq!(len_of(&read["chunks"]), 3 * MIB + "full\n".len());
    let rest = async { while let Ok(Some(_)) = silent.lines.next_line().await {} };
    tokio::time::timeout(PATIENCE, rest).await.expect("the connection is closed");
    test.until_all_is_free("nothing is kept for a disconnected client", answers).await;
}

/// Serves one body, and pauses after `sent` bytes until it is signalled to continue.
async fn web(len: usize, sent: usize) -> (String, tokio::sync::oneshot::Sender<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    let (go_on, gate) = tokio::sync::oneshot::channel();
    tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let _ = stream.read(&mut [0; 4096]).await.unwrap();
        let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {len}\r\n\r\n");
        stream.write_all(head.as_bytes()).await.unwrap();
        stream.write_all(&vec![b'x'; sent]).await.unwrap();
        let _ = gate.await;
        let _ = stream.write_all(&vec![b'x'; len - sent]).await;
    });
    (url, go_on)
}

fn get(url: &str) -> Value {
    json!({"method": "GET", "url": url, "requestId": "r", "headers": []})
}

#[tokio::test(flavor = "multi_thread")]
async fn a_long_body_waits_for_memory_and_is_complete() {
    let test = TestServer::with(undivided()).await;
    let mut client = test.client().await;
    let (url, go_on) = web(5 * MIB + 1, 2 * MIB).await;
    drop(go_on);
    let all =
        test.server.host().answers().try_take(test.server.host().answers().total(), &Arc::default()).unwrap();
    client.ask("get", "http/request", get(&url)).await;
    test.until_an_answer_waits().await;
    let (short, go_on) = web(MIB / 2, 0).await;
    drop(go_on);
    let answer = client.call("http/request", get(&short)).await.unwrap();
    assert_eq!(answer["bodyBase64"].as_str().unwrap().len(), (MIB / 2).div_ceil(3) * 4);
    drop(all);
    let answer = client.outcome(&json!("get")).await.unwrap();
    assert_eq!(answer["bodyBase64"].as_str().unwrap().len(), (5 * MIB + 1).div_ceil(3) * 4);
    test.until_all_is_free("the body is sent", test.server.host().answers()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stalled_body_fails_when_others_wait_for_its_memory() {
    let limits = Limits { answer_bytes: 6 * MIB, slow_transfer: Duration::from_millis(200), ..undivided() };
    let test = TestServer::with(limits).await;
    let (mut client, mut other) = (test.client().await, test.client().await);
    other.produce("p", 3 * MIB).await;
    let (url, _never) = web(5 * MIB, 2 * MIB).await;
    client.ask("get", "http/request", get(&url)).await;
    until("the body has room", || test.server.host().answers().free() < MIB as u64 + 1).await;
    let read = other.call("process/read", json!({"processId": "p"})).await.unwrap();
    assert_eq!(len_of(&read["chunks"]), 3 * MIB + "full\n".len());
    let error = client.outcome(&json!("get")).await.unwrap_err();
    assert_eq!(error["data"]["kind"], "limitExceeded", "{error}");
    let message = error["message"].as_str().unwrap();
    assert!(message.contains("received less than 1 MiB in 200ms while other answers waited"), "{message}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_long_list_of_processes_waits_for_memory_and_is_complete() {
    let test = TestServer::with(undivided()).await;
    let (mut client, mut other) = (test.client().await, test.client().await);
    for number in 0..50 {
        let argv = ["/bin/sleep", "1000", &"x".repeat(30_000)];
        let start =
            json!({"processId": format!("p{number}"), "argv": argv, "cwd": "/", "env": {}, "tty": false});
        client.call("process/start", start).await.unwrap();
    }
    let all =
        test.server.host().answers().try_take(test.server.host().answers().total(), &Arc::default()).unwrap();
    client.ask("list", "process/list", json!({})).await;
    test.until_an_answer_waits().await;
    assert_eq!(other.call("process/list", json!({})).await.unwrap(), json!({"processes": []}));
    drop(all);
    let listed = client.outcome(&json!("list")).await.unwrap();
    let listed = listed["processes"].as_array().unwrap();
    let mut ids: Vec<_> = listed.iter().map(|entry| entry["processId"].as_str().unwrap()).collect();
    ids.sort_unstable();
    let mut expected: Vec<_> = (0..50).map(|number| format!("p{number}")).collect();
    expected.sort_unstable();
    assert_eq!(ids, expected);
    assert!(listed.is_sorted_by_key(|entry| entry["startedAtMs"].as_u64()));
    test.until_all_is_free("the list is sent", test.server.host().answers()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_list_longer_than_the_budget_fails_with_advice() {
    let test = TestServer::with(Limits { answer_bytes: MIB, ..undivided() }).await;
    let mut client = test.client().await;
    for number in 0..40 {
        let argv = ["/bin/sleep", "1000", &"x".repeat(30_000)];
        let start =
            json!({"processId": format!("p{number}"), "argv": argv, "cwd": "/", "env": {}, "tty": false});
        client.call("process/start", start).await.unwrap();
    }
    // A client that lists a single session already cannot be advised to do so.
    for (scope, todo) in [("identity", "one session at a time"), ("session", "`process/forget`")] {
        let error = client.call("process/list", json!({"scope": scope})).await.unwrap_err();
        assert_eq!(error["data"]["kind"], "limitExceeded");
        let hint = error["data"]["hint"].as_str().unwrap();
        assert!(hint.contains(todo), "{scope}: {hint}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn writes_that_wait_for_children_are_bounded_over_connections_and_none_is_lost() {
    const WRITES: usize = 12;
    const WRITE_BYTES: usize = 3 * MIB / 4;
    let test = TestServer::with(Limits { server_request_bytes: 4 * MIB, ..undivided() }).await;
    let (mut hog, mut client) = (test.client().await, test.client().await);
    // It reads its input only after the signal.
    hog.start("p", "trap 'cat | wc -c; exit' TERM; echo ready; sleep 1000 & wait").await.unwrap();
    hog.note("process/output", "p").await;
    hog.notes.clear();
    let mut sending = tokio::spawn(async move {
        for _ in 0..WRITES {
            let write = json!({"processId": "p", "chunk": "A".repeat(WRITE_BYTES / 3 * 4)});
            hog.ask("write", "process/write", write).await;
        }
        hog
    });
    let account = test.server.host().accounts().of(&Identity::Owner);
    until("there is no room for more requests", || account.left(Kind::Requests) == 0).await;
    assert!(
        tokio::time::timeout(Duration::from_millis(500), &mut sending).await.is_err(),
        "the server has accepted everything although no client reads it"
    );
    // A connection with little in progress is still served, and can resolve the situation.
    client.start("p", "cat").await.unwrap();
    let write = json!({"processId": "p", "chunk": "A".repeat(400_000)});
    client.call("process/write", write).await.unwrap();
    let listed = client.call("process/list", json!({"scope": "identity"})).await.unwrap();
    let hung = &listed["processes"][0];
    let signal = json!({"processId": "p", "sessionId": hung["sessionId"], "signal": "TERM"});
    client.call("process/signal", signal).await.unwrap();
    let mut hog = tokio::time::timeout(PATIENCE, sending).await.expect("the rest is taken").unwrap();
    for _ in 0..WRITES {
        assert_eq!(hog.outcome(&json!("write")).await.unwrap()["status"], "accepted");
    }
    hog.call("process/closeStdin", json!({"processId": "p"})).await.unwrap();
    let output = hog.note("process/output", "p").await;
    // The number of bytes as base64.
    let expected = remex_proto::Blob::from(format!("{}\n", WRITES * WRITE_BYTES).into_bytes());
    assert_eq!(output["chunk"], serde_json::to_value(&expected).unwrap());
}

#[tokio::test(flavor = "multi_thread")]
async fn half_a_long_message_does_not_block_other_clients() {
    let limits = Limits {
        message_bytes: 4 * MIB,
        incoming_bytes: 4 * MIB,
        slow_transfer: Duration::from_millis(200),
        ..undivided()
    };
    let test = TestServer::with(limits).await;
    let (mut silent, mut client, mut other) = (test.client().await, test.client().await, test.client().await);
    silent.writer.write_all(&vec![b'x'; 2 * MIB]).await.unwrap();
    let incoming = test.server.host().incoming();
    until("the message has its memory", || incoming.free() == 0).await;
    // While nothing else waits, it may take its time.
    let message = tokio::time::timeout(Duration::from_secs(1), silent.lines.next_line()).await;
    assert!(message.is_err(), "{message:?}");
    client.start("p", "exec cat >/dev/null").await.unwrap();
    let write = json!({"processId": "p", "chunk": "A".repeat(2 * MIB)});
    let writing = tokio::spawn(async move {
        client.call("process/write", write).await.unwrap();
        client
    });
    // A client that sends short messages is still served.
    other.call("environment/status", json!({})).await.unwrap();
    let complaint = silent.next().await.expect("the server reports why");
    assert_eq!(
        (&complaint["id"], &complaint["error"]["data"]["kind"]),
        (&json!(-1), &json!("limitExceeded"))
    );
    let message = complaint["error"]["message"].as_str().unwrap();
    assert!(
        message
            .contains("received less than 1 MiB of a long message in 200ms while other connections waited"),
        "{message}"
    );
    silent.assert_ends().await;
    let mut client = tokio::time::timeout(PATIENCE, writing).await.expect("the write is taken").unwrap();
    client.call("environment/status", json!({})).await.unwrap();
    test.until_all_is_free("nothing is being received", incoming).await;
}

/// A WebSocket client that has started a message and then sends pings without end.
struct Pinging {
    begun: Cursor<Vec<u8>>,
    /// Yields to other tasks, as a socket does.
    endless: Repeat,
}

impl Pinging {
    fn within_a_message(len: usize) -> Self {
        let head = [&[0x01, 0xff][..], &(len as u64).to_be_bytes(), &[0; 4]].concat();
        let begun = Cursor::new([head, vec![b'x'; len]].concat());
        Pinging { begun, endless: tokio::io::repeat(0) }
    }
}

impl AsyncRead for Pinging {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        const PING: [u8; 6] = [0x89, 0x80, 0, 0, 0, 0];
        if self.begun.position() < self.begun.get_ref().len() as u64 {
            return Pin::new(&mut self.begun).poll_read(context, buffer);
        }
        ready!(Pin::new(&mut self.endless).poll_read(context, &mut ReadBuf::new(&mut [0])))?;
        buffer.put_slice(&PING.repeat(buffer.remaining() / PING.len()));
        Poll::Ready(Ok(()))
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn pings_within_half_a_long_message_do_not_keep_its_memory() {
    let limits = Limits {
        message_bytes: 4 * MIB,
        incoming_bytes: 4 * MIB,
        slow_transfer: Duration::from_millis(200),
        ..undivided()
    };
    let test = TestServer::with(limits).await;
    let mut client = test.client().await;
    let framing = Framing::WebSocket(Role::Server);
    let reader = FrameReader::new(Box::new(Pinging::within_a_message(2 * MIB)), framing, 4 * MIB);
    let writer = Box::new(tokio::io::sink());
    let transport = Transport::Wire { reader, writer, framing, source: Source::WebSocket };
    let link = Link { transport, validity: Validity::fixed(Credential::own(1)), peer: "test".into() };
    let serving = tokio::spawn(connection::run(Arc::clone(test.server.sessions()), link));
    until("the message has its memory", || test.server.host().incoming().free() == 0).await;
    client.start("p", "exec cat >/dev/null").await.unwrap();
    let write = json!({"processId": "p", "chunk": "A".repeat(2 * MIB)});
    client.call("process/write", write).await.unwrap();
    tokio::time::timeout(PATIENCE, serving).await.expect("the connection is closed").unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_long_blank_line_keeps_no_memory() {
    let limits = Limits { slow_transfer: Duration::from_millis(200), ..undivided() };
    let test = TestServer::with(limits).await;
    let mut client = test.client().await;
    for _ in 0..2 {
        client.writer.write_all(&vec![b' '; 2 * MIB]).await.unwrap();
        let incoming = test.server.host().incoming();
        until("the line has its memory", || incoming.free() < incoming.total()).await;
        client.writer.write_all(b"\n").await.unwrap();
        test.until_all_is_free("the line is over", incoming).await;
    }
    client.call("environment/status", json!({})).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn long_messages_of_many_clients_at_once_all_arrive() {
    let limits = Limits { message_bytes: 4 * MIB, incoming_bytes: 8 * MIB, ..undivided() };
    let test = TestServer::with(limits).await;
    let mut writing = tokio::task::JoinSet::new();
    for _ in 0..8 {
        let mut client = test.client().await;
        writing.spawn(async move {
            client.start("p", "exec cat >/dev/null").await.unwrap();
            for _ in 0..3 {
                let write = json!({"processId": "p", "chunk": "A".repeat(3 * MIB)});
                assert_eq!(client.call("process/write", write).await.unwrap()["status"], "accepted");
            }
        });
    }
    while let Some(written) = tokio::time::timeout(PATIENCE, writing.join_next()).await.expect("all arrive") {
        written.unwrap();
    }
    test.until_all_is_free("nothing is being received", test.server.host().incoming()).await;
}
