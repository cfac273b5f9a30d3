//! Observers of a session on servers that say what they like.

use remex_client::{
    Error,
    process::Event,
    session::{ObserveFrom, SessionEvents},
};
use serde_json::{Value, json};

use crate::{
    server::{Server, broken_output, output},
    soon,
};

/// Returns a notification as an observer gets it.
fn observed(mut note: Value) -> Value {
    note["params"]["sessionId"] = json!("w");
    note
}

fn closed(process: &str, seq: u64) -> Value {
    json!({"method": "process/closed", "params": {"processId": process, "seq": seq}})
}

async fn list_nothing(server: &mut Server) {
    let (id, _) = server.expect("process/list").await;
    server.answer(&id, json!({"processes": []})).await;
}

/// Answers with a process `p` that was started at this time, and with what a client asks to observe the session `w`; returns
/// the parameters of that.
async fn accept_with(server: &mut Server, state: &str, started_at_ms: u64) -> Value {
    accept_listed(server, state, started_at_ms, None).await
}

/// The same for a start of the process that the list names.
async fn accept_listed(
    server: &mut Server,
    state: &str,
    started_at_ms: u64,
    incarnation: Option<u64>,
) -> Value {
    let (id, _) = server.expect("process/list").await;
    let mut process = json!({
        "processId": "p", "sessionId": "w", "argv": ["true"], "cwd": "file:///", "pid": null, "tty": false,
        "labels": {}, "state": state, "startedAtMs": started_at_ms, "endedAtMs": null, "exitCode": null,
        "signal": null, "cause": null, "produced": {"stdout": 0, "stderr": 0, "pty": 0}, "retainedBytes": 0,
    });
    if let Some(incarnation) = incarnation {
        process["incarnation"] = json!(incarnation);
    }
    server.answer(&id, json!({"processes": [process]})).await;
    let (id, params) = server.expect("session/observe").await;
    server.answer(&id, json!({})).await;
    params
}

/// Answers what a client asks to observe the session `w`, and returns the parameters of that.
async fn accept(server: &mut Server) -> Value {
    list_nothing(server).await;
    let (id, params) = server.expect("session/observe").await;
    server.answer(&id, json!({})).await;
    params
}

/// Lets a client observe the session `w`, which has no processes yet.
async fn observing() -> (SessionEvents, Server, Value) {
    let (client, mut server) = Server::connect().await;
    let (events, params) = tokio::join!(client.observe("w", ObserveFrom::Start), async {
        let (id, _) = server.expect("session/list").await;
        server.answer(&id, json!({"sessions": []})).await;
        list_nothing(&mut server).await;
        accept(&mut server).await
    });
    (events.unwrap(), server, params)
}

/// Waits for the next event, which is output, and returns its process and number.
async fn next_output(events: &mut SessionEvents) -> (String, u64) {
    let event = soon("an event", events.next()).await.unwrap();
    let Ok(Event::Output(chunk)) = &event.event else { panic!("{event:?} is no output") };
    (event.process_id, chunk.seq)
}

#[tokio::test]
async fn a_process_started_between_list_and_observe_is_requested_from_its_first_event() {
    let (mut events, mut server, params) = observing().await;
    // It has printed three times since the list; without a wish, a server begins with what comes next.
    let first = params["othersFromSeq"].as_u64().unwrap_or(4);
    for seq in first..=4 {
        server.send(observed(output("p", seq))).await;
    }
    for seq in 1..=4 {
        assert_eq!(next_output(&mut events).await, ("p".to_owned(), seq));
    }
}

#[tokio::test]
async fn an_unobservable_process_is_dropped_and_the_others_continue() {
    let (mut events, mut server, _) = observing().await;
    let backwards = json!({"method": "process/gap", "params": {"processId": "p", "fromSeq": 9, "toSeq": 2}});
    for breach in [broken_output("q", 1), backwards] {
        server.send(observed(breach)).await;
    }
    for (process, seq) in [("p", 10), ("q", 2), ("other", 1)] {
        server.send(observed(output(process, seq))).await;
    }
    for process in ["q", "p"] {
        let event = soon("the cause", events.next()).await.unwrap();
        assert_eq!(event.process_id, process);
        assert!(matches!(event.event, Err(Error::Protocol { .. })), "{event:?}");
    }
    assert_eq!(next_output(&mut events).await, ("other".to_owned(), 1));
    server.send(observed(closed("other", 2))).await;
    let event = soon("the close", events.next()).await.unwrap();
    assert!(matches!(event.event, Ok(Event::Closed(_))), "{event:?}");
}

#[tokio::test]
async fn long_ids_count_towards_the_buffer_like_output() {
    const MIB: usize = 1 << 20;
    for (count, len) in [(1, 9 * MIB), (100, MIB / 10)] {
        let (mut events, mut server, _) = observing().await;
        for number in 0..count {
            let id = format!("{number}{}", "x".repeat(len));
            server.send(observed(output(&id, 1))).await;
        }
        // Only what was announced before this is buffered.
        server.send(json!({"id": "ask", "method": "are/youThere"})).await;
        while server.next().await["id"] != "ask" {}
        // That was too much, so the client asks again.
        tokio::join!(async { assert_eq!(next_output(&mut events).await, ("p".to_owned(), 1)) }, async {
            let (id, _) = server.expect("session/unobserve").await;
            server.answer(&id, json!({})).await;
            accept(&mut server).await;
            server.send(observed(output("p", 1))).await;
        });
    }
}

#[tokio::test]
async fn a_process_listed_as_starting_is_the_same_when_it_runs() {
    let (client, mut server) = Server::connect().await;
    let (events, _) = tokio::join!(client.observe("w", ObserveFrom::Start), async {
        let (id, _) = server.expect("session/list").await;
        server.answer(&id, json!({"sessions": []})).await;
        list_nothing(&mut server).await;
        accept_with(&mut server, "starting", 1_000).await
    });
    let mut events = events.unwrap();
    server.send(observed(output("p", 1))).await;
    assert_eq!(next_output(&mut events).await, ("p".to_owned(), 1));
    // Too much, so the client asks again.
    server.send(observed(output(&"x".repeat(9 << 20), 1))).await;
    tokio::join!(async { assert_eq!(next_output(&mut events).await, ("p".to_owned(), 2)) }, async {
        let (id, _) = server.expect("session/unobserve").await;
        server.answer(&id, json!({})).await;
        // It runs since later than its start was requested.
        let params = accept_with(&mut server, "running", 1_003).await;
        assert_eq!(params["fromSeq"], json!({"p": 2}));
        server.send(observed(output("p", 2))).await;
    });
}

#[tokio::test]
async fn reports_to_a_server_with_endless_processes_are_bounded() {
    const PROCESSES: usize = 60_000;
    let (_client, mut server) = Server::connect().await;
    server.send(output(&"x".repeat(2_000), 1)).await;
    for number in 0..PROCESSES {
        server.send(output(&format!("unknown-{number}"), 1)).await;
    }
    server.send(json!({"id": "ask", "method": "are/youThere"})).await;
    let mut reports = 0;
    loop {
        let message = server.next().await;
        if message["id"] == "ask" {
            break;
        }
        if message["method"] == "initialized" {
            continue;
        }
        assert_eq!(message["method"], "flow/consumed", "{message}");
        assert!(message.to_string().len() < 1_000, "an id that long does not exist");
        reports += 1;
    }
    // Those that wait, and those that had been sent meanwhile.
    assert!((1..PROCESSES / 2).contains(&reports), "{reports} reports");
}

/// Returns an observed event that names the start of its process.
fn named(note: Value, incarnation: u64) -> Value {
    let mut note = observed(note);
    note["params"]["incarnation"] = json!(incarnation);
    note
}

#[tokio::test]
async fn a_process_restarted_during_a_disconnect_is_requested_from_its_first_event() {
    let (mut events, mut server, _) = observing().await;
    for seq in 1..=3 {
        server.send(named(output("p", seq), 41)).await;
        assert_eq!(next_output(&mut events).await, ("p".to_owned(), seq));
    }
    server.hang_up();
    tokio::join!(async { assert_eq!(next_output(&mut events).await, ("p".to_owned(), 1)) }, async {
        server.reconnect().await;
        let params = accept_listed(&mut server, "running", 1_000, Some(42)).await;
        assert_eq!(params["fromSeq"], json!({"p": 1}));
        server.send(named(output("p", 1), 42)).await;
    });
}

#[tokio::test]
async fn a_process_restarted_between_list_and_observe_is_requested_again() {
    let (mut events, mut server, _) = observing().await;
    for seq in 1..=3 {
        server.send(named(output("p", seq), 41)).await;
        assert_eq!(next_output(&mut events).await, ("p".to_owned(), seq));
    }
    server.hang_up();
    tokio::join!(async { assert_eq!(next_output(&mut events).await, ("p".to_owned(), 1)) }, async {
        server.reconnect().await;
        let params = accept_listed(&mut server, "running", 1_000, Some(41)).await;
        assert_eq!(params["fromSeq"], json!({"p": 4}));
        server.send(named(output("p", 4), 42)).await;
        let (id, _) = server.expect("session/unobserve").await;
        server.answer(&id, json!({})).await;
        let params = accept_listed(&mut server, "running", 1_000, Some(42)).await;
        assert_eq!(params["fromSeq"], json!({"p": 1}));
        server.send(named(output("p", 1), 42)).await;
    });
}

#[tokio::test]
async fn a_process_is_observed_from_its_first_event_after_a_restart_and_its_close_is_not_repeated() {
    let (mut events, mut server, _) = observing().await;
    server.send(named(output("p", 1), 41)).await;
    for _ in ["once", "again"] {
        server.send(named(closed("p", 2), 41)).await;
    }
    server.send(named(output("p", 1), 42)).await;
    assert_eq!(next_output(&mut events).await, ("p".to_owned(), 1));
    let event = soon("the close", events.next()).await.unwrap();
    assert!(matches!(event.event, Ok(Event::Closed(_))), "{event:?}");
    assert_eq!(next_output(&mut events).await, ("p".to_owned(), 1));
}
