//! Caps that a real client would have to work hard to reach.

use serde_json::{Value, json};

use super::Site;
use crate::Limits;

fn kind(error: &Value) -> &str {
    error["data"]["kind"].as_str().unwrap_or_default()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_has_so_many_open_processes_and_a_clear_word_for_the_next() {
    let site = Site::with(Limits { processes: 3, ..Limits::default() }).await;
    let (mut client, mut other) = (site.client().await, site.client().await);
    for id in ["a", "b", "c"] {
        client.start(id, "read line").await.unwrap();
    }
    let error = client.start("d", "true").await.unwrap_err();
    assert_eq!(kind(&error), "tooManyProcesses");
    assert_eq!(error["message"], "session has 3 processes, which is its limit; end some first");
    // The cap is that of a session, and one that has closed does not count.
    other.start("d", "true").await.unwrap();
    client.call("process/terminate", json!({"processId": "a"})).await.unwrap();
    client.note("process/closed", "a").await;
    client.start("d", "true").await.unwrap();
    // One that did not start does not count either.
    client.note("process/closed", "d").await;
    for _ in 0..3 {
        let nowhere = json!({"processId": "e", "argv": ["/nowhere"], "cwd": "/", "env": {}, "tty": false});
        assert_eq!(kind(&client.call("process/start", nowhere).await.unwrap_err()), "programNotFound");
    }
    client.start("e", "true").await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_has_so_many_sessions_and_refuses_the_next() {
    let site = Site::with(Limits { sessions: 2, ..Limits::default() }).await;
    let (first, _second) = (site.client().await, site.client().await);
    let mut third = site.connect().await;
    let wish = json!({"clientName": "test"});
    let error = third.call("initialize", wish.clone()).await.unwrap_err();
    assert_eq!(kind(&error), "limitExceeded", "{error}");
    first.assert_works().await;
    // The first session has ended, and the connection that was refused may try again.
    third.call("initialize", wish).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_has_so_many_connections_and_drops_the_next() {
    let site = Site::with(Limits { connections: 2, ..Limits::default() }).await;
    let (_first, second) = (site.client().await, site.client().await);
    site.connect().await.assert_ends().await;
    second.assert_works().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn start_ids_are_remembered_up_to_a_number_and_then_new_ones_are_refused() {
    let site = Site::with(Limits { start_ids: 2, ..Limits::default() }).await;
    let mut client = site.client().await;
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
    // What is known is still answered.
    assert_eq!(client.call("process/start", start("a")).await.unwrap()["replayed"], true);
}

#[tokio::test(flavor = "multi_thread")]
async fn of_many_closed_processes_the_oldest_is_forgotten() {
    let site = Site::with(Limits { closed_processes: 2, ..Limits::default() }).await;
    let mut client = site.client().await;
    for id in ["a", "b", "c"] {
        client.start(id, "echo").await.unwrap();
        client.note("process/closed", id).await;
        // Read to its end, so that nobody waits for it.
        client.call("process/read", json!({"processId": id})).await.unwrap();
    }
    let error = client.call("process/read", json!({"processId": "a"})).await.unwrap_err();
    assert_eq!(kind(&error), "unknownProcess");
    for id in ["b", "c"] {
        client.call("process/read", json!({"processId": id})).await.unwrap();
    }
}
