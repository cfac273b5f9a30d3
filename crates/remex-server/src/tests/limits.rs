//! Limits that are hard to reach with a real client.

use std::{
    fs,
    mem::MaybeUninit,
    time::{Duration, Instant},
};

use bytes::Bytes;
use remex_access::identity::Identity;
use remex_engine::HANG_THRESHOLD;
use remex_proto::Blob;
use rustix::fs::inotify::{self, CreateFlags, Reader, WatchFlags};
use serde_json::{Value, json};

use super::{Client, PATIENCE, TestServer, start_params};
use crate::Limits;

impl TestServer {
    /// Opens a connection, completes the handshake, and also returns the session id.
    async fn client_and_session(&self) -> (Client, Value) {
        let mut client = self.connect().await;
        let hello = json!({"clientName": "test", "detachTtlMs": 1});
        let session = client.call("initialize", hello).await.unwrap()["sessionId"].clone();
        client.send(json!({"method": "initialized", "params": {}})).await;
        (client, session)
    }
}

impl Client {
    /// Waits for the next two answers, and returns their ids in order of arrival.
    async fn answered(&mut self) -> [String; 2] {
        let mut ids = Vec::new();
        loop {
            let message = self.next().await.expect("the connection lasts until the answers");
            if let Some(id) = message["id"].as_str() {
                assert!(message.get("result").is_some(), "{message}");
                ids.push(id.to_owned());
            }
            match <[String; 2]>::try_from(ids) {
                Ok(both) => return both,
                Err(fewer) => ids = fewer,
            }
        }
    }
}

fn kind(error: &Value) -> &str {
    error["data"]["kind"].as_str().unwrap_or_default()
}

#[tokio::test(flavor = "multi_thread")]
async fn open_processes_of_a_session_are_limited_and_the_next_is_refused() {
    let test = TestServer::with(Limits { processes: 3, ..Limits::default() }).await;
    let (mut client, mut other) = (test.client().await, test.client().await);
    for id in ["a", "b", "c"] {
        client.start(id, "read line").await.unwrap();
    }
    let error = client.start("d", "true").await.unwrap_err();
    assert_eq!(kind(&error), "tooManyProcesses");
    assert_eq!(error["message"], "session has 3 processes, which is its limit");
    assert_eq!(error["data"]["hint"], "end some first");
    // The limit applies to each session, and a closed process does not count.
    other.start("d", "true").await.unwrap();
    client.call("process/terminate", json!({"processId": "a"})).await.unwrap();
    client.note("process/closed", "a").await;
    client.start("d", "true").await.unwrap();
    // A process that did not start does not count either.
    client.note("process/closed", "d").await;
    for _ in 0..3 {
        let nowhere = json!({"processId": "e", "argv": ["/nowhere"], "cwd": "/", "env": {}, "tty": false});
        assert_eq!(kind(&client.call("process/start", nowhere).await.unwrap_err()), "programNotFound");
    }
    client.start("e", "true").await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn sessions_are_limited_and_the_next_is_refused() {
    let test = TestServer::with(Limits { sessions: 2, ..Limits::default() }).await;
    let (first, _second) = (test.client().await, test.client().await);
    let mut third = test.connect().await;
    let wish = json!({"clientName": "test"});
    let error = third.call("initialize", wish.clone()).await.unwrap_err();
    assert_eq!(kind(&error), "limitExceeded", "{error}");
    first.assert_works().await;
    // The first session has ended, and the refused connection may try again.
    third.call("initialize", wish).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_are_limited_and_the_next_is_dropped() {
    let test = TestServer::with(Limits { connections: 2, ..Limits::default() }).await;
    let (_first, second) = (test.client().await, test.client().await);
    test.connect().await.assert_ends().await;
    second.assert_works().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn start_ids_are_limited_and_new_ones_are_refused() {
    let test = TestServer::with(Limits { start_ids: 2, ..Limits::default() }).await;
    let mut client = test.client().await;
    let start = |id: &str| {
        json!({
            "processId": id, "startId": id, "argv": ["/bin/true"], "cwd": "/", "env": {}, "tty": false,
        })
    };
    for id in ["a", "b"] {
        client.call("process/start", start(id)).await.unwrap();
    }
    let error = client.call("process/start", start("c")).await.unwrap_err();
    assert_eq!(kind(&error), "limitExceeded", "{error}");
    // A known id is still answered.
    assert_eq!(client.call("process/start", start("a")).await.unwrap()["replayed"], true);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_oldest_of_many_closed_processes_is_forgotten() {
    let test = TestServer::with(Limits { closed_processes: 2, ..Limits::default() }).await;
    let mut client = test.client().await;
    for id in ["a", "b", "c"] {
        client.start(id, "echo").await.unwrap();
        client.note("process/closed", id).await;
        // Read to its end, so that the client expects nothing more.
        client.call("process/read", json!({"processId": id})).await.unwrap();
    }
    let error = client.call("process/read", json!({"processId": "a"})).await.unwrap_err();
    assert_eq!(kind(&error), "unknownProcess");
    for id in ["b", "c"] {
        client.call("process/read", json!({"processId": id})).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_process_forgotten_early_releases_its_memory_at_once() {
    let test = TestServer::with(Limits { closed_processes: 1, ..Limits::default() }).await;
    let mut client = test.client().await;
    let mut forgotten = None;
    for id in ["a", "b"] {
        let mut start = start_params(id, "echo; read line");
        start["output"] = json!({"retainMs": 3_600_000});
        client.call("process/start", start).await.unwrap();
        if id == "a" {
            let [session] = &test.server.sessions().all_of(&Identity::Owner)[..] else {
                panic!("one session")
            };
            forgotten = Some(session.process(id).unwrap().downgrade());
        }
        client.call("process/closeStdin", json!({"processId": id})).await.unwrap();
        client.note("process/closed", id).await;
        client.call("process/read", json!({"processId": id})).await.unwrap();
    }
    let deadline = Instant::now() + PATIENCE;
    while forgotten.as_ref().is_some_and(|process| process.upgrade().is_some()) {
        assert!(Instant::now() < deadline, "the forgotten process is still in memory");
        tokio::task::yield_now().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn closed_processes_keep_limited_metadata_and_the_oldest_is_forgotten() {
    let test = TestServer::with(Limits { closed_bytes: 1_800, ..Limits::default() }).await;
    let mut client = test.client().await;
    for id in ["a", "b", "c"] {
        let mut start = start_params(id, "echo");
        start["labels"] = json!({"purpose": "x".repeat(400)});
        client.call("process/start", start).await.unwrap();
        client.note("process/closed", id).await;
        client.call("process/read", json!({"processId": id})).await.unwrap();
    }
    let error = client.call("process/read", json!({"processId": "a"})).await.unwrap_err();
    assert_eq!(kind(&error), "unknownProcess");
    for id in ["b", "c"] {
        client.call("process/read", json!({"processId": id})).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_closed_process_is_retained_no_longer_than_the_maximum_whatever_the_client_asks_for() {
    let closed_ttl_max = Duration::from_millis(1);
    let test = TestServer::with(Limits { closed_ttl_max, ..Limits::default() }).await;
    let mut client = test.client().await;
    let mut start = start_params("p", "echo");
    start["output"] = json!({"retainMs": 3_600_000});
    client.call("process/start", start).await.unwrap();
    client.note("process/closed", "p").await;
    let deadline = Instant::now() + PATIENCE;
    let error = loop {
        match client.call("process/read", json!({"processId": "p"})).await {
            Ok(_) => assert!(Instant::now() < deadline, "the process is never forgotten"),
            Err(error) => break error,
        }
    };
    assert_eq!(kind(&error), "unknownProcess");
    client.start("p", "true").await.expect("its id is free");
}

#[tokio::test(flavor = "multi_thread")]
async fn retained_output_of_all_sessions_is_limited_and_the_rest_is_evicted() {
    let test = TestServer::with(Limits {
        server_retain_bytes: 512 << 10,
        // The sessions are of one identity.
        identity_memory_bytes: Limits::default().server_memory_bytes,
        ..Limits::default()
    })
    .await;
    let mut gaps = Vec::new();
    // All of them stay connected, each with its own session.
    let mut clients = Vec::new();
    for _ in 0..2 {
        let mut client = test.client().await;
        let mut start = start_params("p", "head -c 400000 /dev/zero; echo full; read line");
        start["output"] = json!({"overflow": "evict"});
        client.call("process/start", start).await.unwrap();
        let wait = json!({"processId": "p", "until": {"output": {"regex": "full"}}});
        client.call("process/wait", wait).await.unwrap();
        clients.push(client);
    }
    for client in &mut clients {
        let read = client.call("process/read", json!({"processId": "p"})).await.unwrap();
        gaps.push(read["gap"]["bytes"].as_u64().unwrap_or_default());
    }
    assert_eq!(gaps[0], 0, "the first session has room for everything");
    assert!(gaps[1] > 200_000, "the second session has lost {} bytes", gaps[1]);
}

#[tokio::test(flavor = "multi_thread")]
async fn write_ids_are_limited_and_the_oldest_is_forgotten() {
    let test = TestServer::with(Limits { write_ids: 2, ..Limits::default() }).await;
    let mut client = test.client().await;
    let long = |id: &str| id.repeat(100);
    // The ids have 64 bytes each on average, so only one of the long ones is remembered.
    let rounds = [
        ("few", ["a", "b", "c", "c", "b", "a"].map(str::to_owned), "a b c a "),
        ("long", ["a", "b", "b", "a", "a", "b"].map(long), "a b a b "),
    ];
    for (process_id, ids, expected) in rounds {
        client.start(process_id, "cat").await.unwrap();
        for id in ids {
            let chunk = Blob(Bytes::from(format!("{} ", &id[..1])));
            let write = json!({"processId": process_id, "chunk": chunk, "writeId": id});
            assert_eq!(client.call("process/write", write).await.unwrap()["status"], "accepted");
        }
        client.call("process/closeStdin", json!({"processId": process_id})).await.unwrap();
        client.note("process/closed", process_id).await;
        let read = client.call("process/read", json!({"processId": process_id})).await.unwrap();
        let chunks = read["chunks"].as_array().unwrap().iter();
        let written: Vec<u8> = chunks
            .flat_map(|chunk| serde_json::from_value::<Blob>(chunk["chunk"].clone()).unwrap().0)
            .collect();
        assert_eq!(String::from_utf8(written).unwrap(), expected, "{process_id}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn waits_for_output_of_a_connection_are_limited_and_the_next_is_refused() {
    let test = TestServer::with(Limits { output_waits: 2, ..Limits::default() }).await;
    let (mut client, mut other) = (test.client().await, test.client().await);
    client.start("p", "cat").await.unwrap();
    let wait = |text: &str| json!({"processId": "p", "until": {"output": {"regex": text}}});
    for (id, text) in [("first", "one"), ("second", "two")] {
        client.send(json!({"id": id, "method": "process/wait", "params": wait(text)})).await;
    }
    let error = client.call("process/wait", wait("three")).await.unwrap_err();
    assert_eq!(kind(&error), "limitExceeded");
    assert_eq!(error["message"], "this connection already has 2 waits for output, which is the limit");
    assert_eq!(error["data"]["hint"], "cancel some first");
    // The limit applies to each connection, and only waits for output count.
    let elsewhere = json!({"processId": "p", "until": {"output": {"regex": "o"}}});
    other.start("p", "echo one").await.unwrap();
    other.call("process/wait", elsewhere).await.unwrap();
    client.call("process/wait", json!({"processId": "p", "until": "exit", "waitMs": 0})).await.unwrap();
    // A wait that has ended makes room.
    let write = json!({"processId": "p", "chunk": Blob(Bytes::from("one\n"))});
    client.call("process/write", write).await.unwrap();
    client.outcome(&json!("first")).await.unwrap();
    client.call("process/wait", wait("one")).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_is_not_read_while_too_many_request_bytes_wait() {
    let test = TestServer::with(Limits { waiting_request_bytes: 100_000, ..Limits::default() }).await;
    let (mut client, session) = test.client_and_session().await;
    // It reads its input only after the signal. More is written than may stay unread, and more than may wait.
    client.start("p", "trap 'cat > /dev/null; exit' TERM; echo ready; sleep 1000 & wait").await.unwrap();
    client.note("process/output", "p").await;
    let write = json!({"processId": "p", "chunk": Blob(Bytes::from(vec![b'x'; 2 << 20])), "writeId": "1"});
    client.send(json!({"id": "write", "method": "process/write", "params": write})).await;
    client.send(json!({"id": "status", "method": "environment/status", "params": {}})).await;
    // Other connections are still served; one of them ends the wait.
    let mut other = test.client().await;
    other.start("p", "true").await.unwrap();
    other.note("process/closed", "p").await;
    let signal = json!({"processId": "p", "sessionId": session, "signal": "TERM"});
    other.call("process/signal", signal).await.unwrap();
    assert_eq!(client.answered().await, ["write", "status"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn concurrent_requests_of_a_connection_are_limited_and_the_next_waits() {
    let test = TestServer::with(Limits { concurrent_requests: 1, ..Limits::default() }).await;
    let mut client = test.client().await;
    let threads = test.server.host().compute().threads();
    let busy = threads.keep_busy(&());
    client.send(json!({"id": "list", "method": "process/list", "params": {}})).await;
    let deadline = Instant::now() + PATIENCE;
    while threads.waiting() == 0 {
        assert!(Instant::now() < deadline, "the list is never made");
        tokio::task::yield_now().await;
    }
    client.send(json!({"id": "start", "method": "process/start", "params": start_params("p", "true")})).await;
    // A start on another connection does not wait, and would be no faster.
    let mut other = test.client().await;
    other.start("p", "true").await.unwrap();
    other.note("process/closed", "p").await;
    drop(busy);
    assert_eq!(client.answered().await, ["list", "start"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn large_answers_of_a_connection_are_limited_and_the_next_waits() {
    let test = TestServer::with(Limits { making_bytes: 1 << 20, ..Limits::default() }).await;
    let mut client = test.client().await;
    let (large, empty) = (test.directory.path().join("large"), test.directory.path().join("empty"));
    fs::create_dir(&large).unwrap();
    fs::create_dir(&empty).unwrap();
    for number in 0..10_000 {
        fs::write(large.join(number.to_string()), "").unwrap();
    }
    let opened = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK).unwrap();
    inotify::add_watch(&opened, &large, WatchFlags::OPEN).unwrap();
    let list = |path| json!({"path": path});
    let begun = Instant::now();
    client.send(json!({"id": "large", "method": "fs/readDirectory", "params": list(large)})).await;
    let deadline = Instant::now() + PATIENCE;
    while Reader::new(&opened, &mut [MaybeUninit::uninit(); 1024]).next().is_err() {
        assert!(Instant::now() < deadline, "the directory is never opened");
        tokio::task::yield_now().await;
    }
    client.send(json!({"id": "empty", "method": "fs/readDirectory", "params": list(empty)})).await;
    let answered = client.answered().await;
    // One that takes so long counts as hung, and holds up nothing any more.
    assert!(answered == ["large", "empty"] || begun.elapsed() > HANG_THRESHOLD, "{answered:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn one_answer_carries_at_most_16_mib_of_output_whatever_the_client_asks_for() {
    const PRODUCED: usize = 17 << 20;
    const MOST: usize = 16 << 20;
    let test = TestServer::new().await;
    let mut client = test.client().await;
    let mut start = start_params("p", &format!("head -c {PRODUCED} /dev/zero"));
    start["output"] = json!({"overflow": "evict", "retainBytes": 32 << 20});
    client.call("process/start", start).await.unwrap();
    client.call("process/wait", json!({"processId": "p", "until": "closed"})).await.unwrap();
    let len = |blob: &Value| serde_json::from_value::<Blob>(blob.clone()).unwrap().0.len();
    let read =
        |reply: &Value| reply["chunks"].as_array().unwrap().iter().map(|chunk| len(&chunk["chunk"])).sum();
    for most in [Value::Null, json!(u64::MAX)] {
        let request = json!({"processId": "p", "maxBytes": most});
        let begin = client.call("process/read", request.clone()).await.unwrap();
        let begun: usize = read(&begin);
        assert!((MOST / 2..=MOST).contains(&begun), "{begun} bytes with {most}");
        let after = begin["nextSeq"].as_u64().unwrap() - 1;
        let rest = json!({"processId": "p", "maxBytes": most, "afterSeq": after});
        let rest = client.call("process/read", rest).await.unwrap();
        assert_eq!((begun + read(&rest), &rest["gap"]), (PRODUCED, &Value::Null), "{most}");
        let snapshot = client.call("process/snapshot", request).await.unwrap();
        assert_eq!((len(&snapshot["stdout"]), &snapshot["truncated"]), (MOST, &json!(true)), "{most}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn graceful_terminations_of_one_process_share_a_task_with_the_earliest_deadline() {
    let test = TestServer::new().await;
    let mut client = test.client().await;
    client.start("deaf", "trap '' TERM; echo ready; read line; sleep 1000").await.unwrap();
    client.note("process/output", "deaf").await;
    let tasks = || tokio::runtime::Handle::current().metrics().num_alive_tasks();
    let end = |timeout: u64| json!({"processId": "deaf", "mode": {"graceful": {"timeoutMs": timeout}}});
    client.call("process/terminate", end(u64::from(u32::MAX))).await.unwrap();
    let before = tasks();
    for _ in 0..100 {
        client.call("process/terminate", end(u64::from(u32::MAX))).await.unwrap();
    }
    assert!(tasks() < before + 10, "{} tasks came of 100 requests", tasks() - before);
    // A later request with more time does not postpone an earlier deadline, nor does an earlier one.
    client.call("process/terminate", end(0)).await.unwrap();
    client.call("process/terminate", end(u64::from(u32::MAX))).await.unwrap();
    let exited = client.note("process/exited", "deaf").await;
    assert_eq!(exited["signal"], "SIGKILL", "{exited}");
    client.note("process/closed", "deaf").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn graceful_terminations_without_end_do_not_put_off_the_kill() {
    let test = TestServer::new().await;
    let (mut client, session) = test.client_and_session().await;
    client.start("deaf", "trap '' TERM; echo ready; read line; sleep 1000").await.unwrap();
    client.note("process/output", "deaf").await;
    let mut pests = tokio::task::JoinSet::new();
    for _ in 0..8 {
        let mut pest = test.client().await;
        let terminate =
            json!({"processId": "deaf", "sessionId": session, "mode": {"graceful": {"timeoutMs": 0}}});
        pests.spawn(async move { while pest.call("process/terminate", terminate.clone()).await.is_ok() {} });
    }
    // It takes milliseconds, and a quarter of a minute if requests can put it off.
    let exited = tokio::time::timeout(Duration::from_secs(5), client.note("process/exited", "deaf")).await;
    let exited = exited.expect("the process is killed while requests keep coming");
    assert_eq!(exited["signal"], "SIGKILL", "{exited}");
}
