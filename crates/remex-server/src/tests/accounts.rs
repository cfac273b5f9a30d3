//! Memory that an identity makes the server keep: what is forgotten, refused or waits at its limit, and that others
//! notice nothing.

use std::{sync::Arc, time::Instant};

use remex_access::account::{Account, Kind};

use super::*;

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;

/// One identity may have three quarters of 4 MiB.
fn limits() -> Limits {
    Limits {
        server_memory_bytes: 4 * MIB,
        identity_memory_bytes: 3 * MIB,
        chunk_bytes: 4 * KIB,
        ..Limits::default()
    }
}

fn digest_of(name: &str) -> Identity {
    Identity::Token { digest: Some(Sha256::digest(name).into()), name: name.into() }
}

impl TestServer {
    fn account(&self, name: &str) -> Arc<Account> {
        self.server.host().accounts().of(&digest_of(name))
    }

    /// Opens another session for a token with scope `processes`, which outlives its connection.
    async fn session_of(&self, name: &str) -> Client {
        let mut client = self.connect_as(name, "processes");
        client.call("initialize", json!({"clientName": name, "detachTtlMs": 3_600_000})).await.unwrap();
        client.send(json!({"method": "initialized", "params": {}})).await;
        client
    }

    /// Checks that another identity can do everything.
    async fn assert_serves(&self, name: &str) {
        let mut client = self.session_of(name).await;
        client.start("p", "echo fine; exec cat").await.unwrap();
        client.note("process/output", "p").await;
        client
            .call("process/write", json!({"processId": "p", "chunk": "A".repeat(200 * KIB)}))
            .await
            .unwrap();
        let read = client.call("process/read", json!({"processId": "p"})).await.unwrap();
        assert!(!read["chunks"].as_array().unwrap().is_empty());
        client.call("process/terminate", json!({"processId": "p"})).await.unwrap();
        client.note("process/closed", "p").await;
    }
}

async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < deadline, "waited in vain until {what}");
        tokio::task::yield_now().await;
    }
}

/// A process that keeps about 60 KiB of labels.
fn labelled(id: &str, script: &str) -> Value {
    let mut start = start_params(id, script);
    let label = |number: usize| (format!("{number}"), json!("x".repeat(KIB)));
    start["labels"] = Value::Object((0..58).map(label).collect());
    start["output"] = json!({"retainMs": 3_600_000});
    start
}

async fn is_known(client: &mut Client, id: &str) -> bool {
    client.call("process/read", json!({"processId": id})).await.is_ok()
}

fn kind(error: &Value) -> &str {
    error["data"]["kind"].as_str().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn closed_processes_of_an_identity_are_forgotten_for_new_ones_and_those_of_others_are_not() {
    let test = TestServer::with(limits()).await;
    let mut other = test.session_of("other").await;
    other.call("process/start", labelled("p", "echo")).await.unwrap();
    other.note("process/closed", "p").await;
    let mut sessions = Vec::new();
    for number in 0..5 {
        let mut client = test.session_of("mallory").await;
        for process in 0..20 {
            let id = format!("{number}-{process}");
            client.call("process/start", labelled(&id, "echo")).await.unwrap();
            client.note("process/closed", &id).await;
            client.notes.clear();
        }
        sessions.push(client);
    }
    let account = test.account("mallory");
    until("what is closed is charged as such", || account.used() <= 3 * MIB).await;
    assert!(account.used_for(Kind::Processes) > 2 * MIB, "it uses what it may");
    assert!(!is_known(&mut sessions[0], "0-0").await, "the oldest is forgotten, although in another session");
    assert!(is_known(&mut sessions[4], "4-19").await);
    assert!(is_known(&mut other, "p").await, "others lose nothing");
    let metrics = test.server.metrics_text();
    for line in ["remex_memory_budget_bytes 4194304", "remex_memory_identity_budget_bytes 3145728"] {
        assert!(metrics.contains(line), "{line} is not in\n{metrics}");
    }
    let value = |name: &str| -> usize {
        let line = metrics.lines().find_map(|line| line.strip_prefix(name));
        line.unwrap_or_else(|| panic!("{name} is in\n{metrics}")).trim().parse().unwrap()
    };
    assert!(value("remex_memory_bytes{cap=\"processes\"}") > 2 * MIB);
    assert!(value("remex_memory_identity_max_bytes") > 2 * MIB);
    assert!(value("remex_processes_forgotten_early_total") > 40);
    test.assert_serves("third").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn starts_beyond_the_memory_of_an_identity_are_refused_until_some_end() {
    // Each may have a chunk of output in any case, which is reserved for it.
    let test = TestServer::with(Limits { chunk_bytes: 64 * KIB, ..limits() }).await;
    let mut client = test.session_of("mallory").await;
    let mut count = 0;
    let error = loop {
        match client.start(&format!("p{count}"), "exec sleep 1000").await {
            Ok(_) => count += 1,
            Err(error) => break error,
        }
        assert!(count < 60, "it is limited");
    };
    assert!(count > 30, "it may use its part: {count}");
    assert_eq!(kind(&error), "limitExceeded");
    let message = error["message"].as_str().unwrap();
    let expected = format!(
        "cannot start process `p{count}`: this identity has no memory left for it (limit `identity_memory_bytes`)"
    );
    assert_eq!(message, expected);
    assert!(error["data"]["hint"].as_str().unwrap().contains("`process/forget`"));
    test.assert_serves("other").await;
    // The identity itself can still connect, list and kill, and start again afterwards.
    let mut second = test.session_of("mallory").await;
    let listed = second.call("process/list", json!({"scope": "identity"})).await.unwrap();
    assert_eq!(listed["processes"].as_array().unwrap().len(), count);
    let session = &listed["processes"][0]["sessionId"];
    second.call("process/terminate", json!({"processId": "p0", "sessionId": session})).await.unwrap();
    client.note("process/closed", "p0").await;
    second.start("again", "exec sleep 1000").await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn output_of_a_detached_client_is_not_forgotten() {
    let test = TestServer::with(limits()).await;
    let mut client = test.connect_as("mallory", "processes");
    let hello = json!({"clientName": "away", "sessionName": "held", "detachTtlMs": 3_600_000});
    client.call("initialize", hello.clone()).await.unwrap();
    client.send(json!({"method": "initialized", "params": {}})).await;
    for id in ["a", "b"] {
        let mut start = labelled(id, "read line; echo held");
        start["output"]["overflow"] = json!("hold");
        client.call("process/start", start).await.unwrap();
    }
    drop(client);
    let mut second = test.session_of("mallory").await;
    for id in ["a", "b"] {
        let end = json!({"processId": id, "sessionId": "held"});
        second.call("process/closeStdin", end.clone()).await.unwrap();
        let mut closed = end;
        closed["until"] = json!("closed");
        second.call("process/wait", closed).await.unwrap();
    }
    for number in 0..60 {
        let id = format!("p{number}");
        second.call("process/start", labelled(&id, "echo")).await.unwrap();
        second.note("process/closed", &id).await;
        second.notes.clear();
    }
    assert!(!is_known(&mut second, "p0").await);
    let mut client = test.connect_as("mallory", "processes");
    let resume = json!({"clientName": "away", "resumeSessionId": "held"});
    client.call("initialize", resume).await.unwrap();
    client.send(json!({"method": "initialized", "params": {}})).await;
    for id in ["a", "b"] {
        let read = client.call("process/read", json!({"processId": id})).await.unwrap();
        assert_eq!(read["chunks"][0]["chunk"], "aGVsZAo=", "{read}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn remembered_starts_count_as_memory_of_their_identity() {
    let test = TestServer::with(limits()).await;
    let (mut client, long) = (test.session_of("mallory").await, "x".repeat(1000));
    let start = |number: usize| {
        let mut start = start_params(&format!("{number}{long}"), "exit");
        start["startId"] = json!(format!("{number}{long}"));
        start["output"] = json!({"retainMs": 0});
        start
    };
    let mut count = 0;
    let error = loop {
        match client.call("process/start", start(count)).await {
            Ok(_) => count += 1,
            Err(error) => break error,
        }
        client.notes.clear();
        assert!(count < 2000, "it is limited");
    };
    assert!(count > 500, "it may use its part: {count}");
    assert_eq!(kind(&error), "limitExceeded");
    assert!(error["message"].as_str().unwrap().contains("identity_memory_bytes"), "{error}");
    let repeated = client.call("process/start", start(0)).await.unwrap();
    assert_eq!(repeated["replayed"], true, "what was remembered still is");
    test.assert_serves("other").await;
}

/// Twelve connections ask for 900 KB each, several times, and read nothing.
#[tokio::test(flavor = "multi_thread")]
async fn unread_answers_of_many_connections_are_bounded_together() {
    let limits = Limits {
        server_memory_bytes: 16 * MIB,
        identity_memory_bytes: 12 * MIB,
        // So that only memory can end the waiting.
        slow_transfer: Duration::from_secs(3600),
        ..Limits::default()
    };
    let test = TestServer::with(limits).await;
    let mut first = test.session_of("mallory").await;
    let mut start = start_params("p", "head -c 900000 /dev/zero; echo full >&2; exec sleep 1000");
    start["output"] = json!({"overflow": "evict"});
    first.call("process/start", start).await.unwrap();
    let full = json!({"processId": "p", "until": {"output": {"regex": "full"}}});
    first.call("process/wait", full).await.unwrap();
    let listed = first.call("process/list", json!({})).await.unwrap();
    let session = listed["processes"][0]["sessionId"].clone();
    let account = test.account("mallory");
    let mut silent = Vec::new();
    for _ in 0..12 {
        let mut client = test.session_of("mallory").await;
        for number in 0..8 {
            let read = json!({"processId": "p", "sessionId": session});
            client.send(json!({"id": number, "method": "process/read", "params": read})).await;
        }
        silent.push(client);
    }
    until("an answer waits for memory", || account.has_waiters()).await;
    assert!(account.used() <= 12 * MIB, "{} bytes", account.used());
    test.assert_serves("other").await;
    assert!(account.used() <= 12 * MIB, "{} bytes", account.used());
    // All of them are answered when their clients read.
    let reading = silent.into_iter().map(|mut client| {
        tokio::spawn(async move {
            // They come in any order.
            for _ in 0..8 {
                let answer = client.next().await.expect("the connection lasts");
                assert!(answer.get("result").is_some(), "{}", answer["error"]);
            }
        })
    });
    for reading in reading.collect::<Vec<_>>() {
        timeout(PATIENCE, reading).await.expect("everything is answered").unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn unfinished_messages_of_many_connections_are_bounded_together() {
    let test = TestServer::with(limits()).await;
    let account = test.account("mallory");
    let mut silent = Vec::new();
    for _ in 0..8 {
        let mut client = test.session_of("mallory").await;
        silent.push(tokio::spawn(async move {
            client.writer.write_all(&vec![b'x'; 900 * KIB]).await.unwrap();
            client
        }));
    }
    until("a message waits for memory", || account.has_waiters()).await;
    assert!(account.used() <= 3 * MIB, "{} bytes", account.used());
    test.assert_serves("other").await;
    for sending in &silent {
        sending.abort();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_line_beyond_the_memory_of_its_identity_fails_and_the_next_one_works() {
    let test = TestServer::with(limits()).await;
    let mut client = test.session_of("alice").await;
    for kept in [0, MIB] {
        let account = test.account("alice");
        let _kept = account.take(Kind::Sessions, kept);
        client.writer.write_all(&vec![b' '; 10 * MIB]).await.unwrap();
        client.writer.write_all(b"{}\n").await.unwrap();
        let answer = client.next().await.expect("the connection lasts");
        assert_eq!(answer["id"], -1, "{answer}");
        assert_eq!(kind(&answer["error"]), "limitExceeded", "{answer}");
        assert!(answer["error"]["message"].as_str().unwrap().contains("no memory"), "{answer}");
        // One that fits is taken, however much is kept for good.
        let padding = " ".repeat(3 * MIB / 2 - kept);
        client
            .send(json!({"id": 7, "method": "process/list", "params": {}, "trace": null, "jsonrpc": padding}))
            .await;
        let answer = client.next().await.expect("the connection lasts");
        assert!(answer["id"] == 7 && answer["result"].is_object(), "{answer}");
    }
    // A short one as well, when nothing more is left for what is kept.
    let account = test.account("alice");
    let _rest = account.take(Kind::Sessions, account.left(Kind::Sessions));
    let padding = " ".repeat(200 * KIB);
    client.send(json!({"id": 8, "method": "process/list", "params": {}, "jsonrpc": padding})).await;
    let answer = client.next().await.expect("the connection lasts");
    assert!(answer["id"] == 8 && answer["result"].is_object(), "{answer}");
}

#[tokio::test(flavor = "multi_thread")]
async fn input_waits_for_children_when_the_memory_of_an_identity_is_used_up() {
    const WRITES: usize = 8;
    const WRITE_BYTES: usize = 33 * KIB;
    let test = TestServer::with(limits()).await;
    let account = test.account("mallory");
    let mut client = test.session_of("mallory").await;
    client.start("p", "trap 'cat | wc -c; exit' TERM; echo ready; sleep 1000 & wait").await.unwrap();
    client.note("process/output", "p").await;
    client.notes.clear();
    let rest = account.take(Kind::Sessions, account.left(Kind::Sessions));
    for number in 0..WRITES {
        let write = json!({"processId": "p", "chunk": "A".repeat(WRITE_BYTES / 3 * 4)});
        client.send(json!({"id": number, "method": "process/write", "params": write})).await;
    }
    // A child may have 64 KiB in any case and what its pipe takes, and beyond that only what there is memory for.
    let is_accepted = || account.used_for(Kind::Input) >= 64 * KIB;
    until("a write waits", || is_accepted() && account.used_for(Kind::Requests) > WRITE_BYTES).await;
    client.call("process/list", json!({})).await.unwrap();
    let accepted = account.used_for(Kind::Input);
    assert!((64 * KIB..64 * KIB + WRITE_BYTES).contains(&accepted), "{accepted} bytes are accepted");
    assert!(account.used_for(Kind::Requests) > WRITE_BYTES, "the rest waits");
    drop(rest);
    client.call("process/signal", json!({"processId": "p", "signal": "TERM"})).await.unwrap();
    client.call("process/closeStdin", json!({"processId": "p"})).await.unwrap();
    let output = client.note("process/output", "p").await;
    let expected = remex_proto::Blob::from(format!("{}\n", WRITES * WRITE_BYTES).into_bytes());
    assert_eq!(output["chunk"], serde_json::to_value(&expected).unwrap());
}

#[tokio::test(flavor = "multi_thread")]
async fn handles_streams_and_searches_beyond_the_memory_of_an_identity_are_refused() {
    let test = TestServer::with(limits()).await;
    let account = test.account("mallory");
    let mut client = test.client_as("mallory", "all").await;
    client.start("p", "exec sleep 1000").await.unwrap();
    let rest = account.take(Kind::Sessions, account.left(Kind::Sessions));
    let requests = [
        ("fs/open", json!({"handleId": "h", "path": "/etc/passwd", "mode": "read"})),
        ("fs/watch", json!({"watchId": 1, "path": "/etc"})),
        (
            "http/request",
            json!({"method": "GET", "url": "http://127.0.0.1:9/", "requestId": "r", "headers": [], "streamResponse": true}),
        ),
        ("process/wait", json!({"processId": "p", "until": {"output": {"regex": "x"}}})),
    ];
    for (method, params) in &requests {
        let error = client.call(method, params.clone()).await.unwrap_err();
        assert_eq!(kind(&error), "limitExceeded", "{method}: {error}");
        assert!(error["message"].as_str().unwrap().contains("`identity_memory_bytes`"), "{method}: {error}");
    }
    drop(rest);
    for (method, params) in &requests[..2] {
        client.call(method, params.clone()).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_ended_identity_leaves_no_memory_in_use() {
    let test = TestServer::new().await;
    {
        let mut client = test.client_as("mallory", "all").await;
        let mut start = labelled("p", "cat; exec sleep 1000");
        start["startId"] = json!("s");
        client.call("process/start", start).await.unwrap();
        let write = json!({"processId": "p", "chunk": "A".repeat(128 * KIB), "writeId": "w"});
        client.call("process/write", write).await.unwrap();
        client
            .call("fs/open", json!({"handleId": "h", "path": "/etc/passwd", "mode": "read"}))
            .await
            .unwrap();
        client.call("fs/watch", json!({"watchId": 1, "path": "/etc", "recursive": false})).await.unwrap();
        client
            .send(json!({"id": 99, "method": "process/read", "params": {"processId": "p", "waitMs": 60_000}}))
            .await;
        client.call("session/end", json!({"sessionId": "mallory"})).await.unwrap();
    }
    let server = Arc::clone(test.server.host().accounts().server());
    until("nothing is in use", || server.used() == 0).await;
    for kind in Kind::ALL {
        assert_eq!(server.used_for(kind), 0, "{kind:?}");
    }
}
