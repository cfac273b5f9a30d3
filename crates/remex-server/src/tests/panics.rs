//! Panics at named points: only what they occur in ends, with an error.

use std::path::Path;

use remex_base::supervise::{Panicked, catch_panic, supervise};
use remex_engine::testing::FAILURE;
use serde_json::json;
use tokio::{
    io::AsyncReadExt as _,
    net::unix::pipe::{OpenOptions, Receiver},
    time::timeout,
};

use super::{PATIENCE, TestServer, start_params};

/// Creates a named pipe, which ends once every process that opened it for reading and writing has closed it.
fn fifo(path: &Path) -> Receiver {
    let made = std::process::Command::new("mkfifo").arg(path).status().unwrap();
    assert!(made.success());
    OpenOptions::new().open_receiver(path).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_process_whose_task_panics_is_killed_with_its_tree_and_reported() {
    let test = TestServer::new().await;
    let mut client = test.client().await;
    let left = test.directory.path().join("left");
    let mut alive = fifo(&left);
    let script = format!("exec 3<>{0}; setsid sleep 1000 & exec 3>&-; echo begun; wait", left.display());
    client.start("a!task", &script).await.unwrap();

    let exited = client.note("process/exited", "a!task").await;
    assert_eq!((&exited["exitCode"], &exited["cause"]), (&json!(255), &json!("serverLost")), "{exited}");
    client.note("process/closed", "a!task").await;
    let read = client.call("process/read", json!({"processId": "a!task"})).await.unwrap();
    assert_eq!((&read["closed"], &read["failure"]), (&json!(true), &json!(FAILURE)));
    let write = json!({"processId": "a!task", "chunk": "", "writeId": "1"});
    assert_eq!(client.call("process/write", write).await.unwrap()["status"], "stdinClosed");
    let mut byte = [0];
    let gone = alive.read(&mut byte);
    assert_eq!(timeout(PATIENCE, gone).await.expect("the tree is killed").unwrap(), 0);

    client.assert_works().await;
    test.assert_idle().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_start_that_panics_fails_and_leaves_no_process() {
    let test = TestServer::new().await;
    let mut client = test.client().await;
    for id in ["a!start", "b!start"] {
        let error = client.start(id, "sleep 1000").await.unwrap_err();
        assert_eq!(error["data"]["kind"], "internal", "{error}");
    }
    client.assert_works().await;
    test.assert_idle().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_start_that_panics_after_the_spawn_kills_its_tree() {
    let test = TestServer::new().await;
    let mut client = test.client().await;
    let (left, ready) = (test.directory.path().join("left"), test.directory.path().join("ready"));
    let mut alive = fifo(&left);
    let script = format!(
        "exec 3<>{}; setsid sh -c ': >{}; exec sleep 1000' & exec 3>&-; wait",
        left.display(),
        ready.display()
    );
    let error = client.start(&format!("a!once {}", ready.display()), &script).await.unwrap_err();
    assert_eq!(error["data"]["kind"], "internal", "{error}");
    let gone = alive.read_u8();
    timeout(PATIENCE, gone).await.expect("the tree is killed").expect_err("no process writes");
    client.assert_works().await;
    test.assert_idle().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_panic_in_the_writer_ends_only_its_connection() {
    let test = TestServer::new().await;
    let (mut first, second) = (test.client().await, test.client().await);
    // Answer and output may be due together; then the answer is not sent either.
    let start = start_params("a!deliver", "echo; sleep 1000");
    first.send(json!({"id": "start", "method": "process/start", "params": start})).await;
    first.end().await;
    second.assert_works().await;
    // Although the client has not closed the connection.
    test.assert_idle().await;
    drop(first);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_panic_in_the_reader_ends_only_its_connection() {
    let test = TestServer::new().await;
    let (mut first, second) = (test.client().await, test.client().await);
    let error = first.start("a!request", "true").await.unwrap_err();
    assert_eq!(error["data"]["kind"], "internal", "{error}");
    first.end().await;
    second.assert_works().await;
    test.assert_idle().await;
    drop(first);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_start_id_whose_request_panicked_is_forgotten() {
    let test = TestServer::new().await;
    let mut first = test.connect().await;
    let session = first
        .call("initialize", json!({"clientName": "test", "resumeSessionId": null}))
        .await
        .unwrap()["sessionId"]
        .clone();
    first.send(json!({"method": "initialized", "params": {}})).await;
    let start = |id: &str| {
        let mut params = start_params(id, "true");
        params["startId"] = json!("s");
        params
    };
    first.call("process/start", start("a!request")).await.unwrap_err();
    first.assert_ends().await;
    let mut heir = test.connect().await;
    let resume =
        json!({"clientName": "test", "resumeSessionId": session, "takeover": true, "detachTtlMs": 1});
    heir.call("initialize", resume).await.unwrap();
    heir.send(json!({"method": "initialized", "params": {}})).await;
    let started = heir.call("process/start", start("b")).await.expect("the id is free");
    assert_eq!(started["replayed"], false);
    heir.assert_works().await;
    test.assert_idle().await;
}

#[tokio::test]
async fn a_panic_is_an_error_of_its_task() {
    assert_eq!(supervise(async { 1 }).await, Ok(1));
    let broken = supervise(async {
        tokio::task::yield_now().await;
        panic!("a test asked for it");
    });
    assert_eq!(broken.await, Err::<(), _>(Panicked));
    assert_eq!(catch_panic(|| panic!("a test asked for it")), Err::<(), _>(Panicked));
}
