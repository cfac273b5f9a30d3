//! Servers that break the protocol.

use std::time::Duration;

use remex_client::{
    ConnectionState, Error, SessionLost,
    fs::{Changes, Depth},
};
use remex_proto::environment::GetStatus;
use serde_json::json;
use tokio::time::Instant;

use crate::{
    output as next_output,
    server::{Server, broken_output, output},
    soon, started,
};

#[track_caller]
fn assert_broken<T: std::fmt::Debug>(outcome: Result<T, Error>, method: &str) {
    let error = outcome.unwrap_err();
    let Error::Protocol { what } = &error else { panic!("{error}") };
    assert!(what.starts_with(&format!("cannot decode `{method}`: ")), "{what}");
}

#[tokio::test]
async fn a_malformed_notification_fails_only_its_process_with_the_cause() {
    let (client, mut server) = Server::connect().await;
    let broken = started(&client, &mut server, "broken").await;
    let other = started(&client, &mut server, "other").await;
    let (mut events, mut others) = (broken.events(), other.events());
    server.send(output("broken", 1)).await;
    server.send(broken_output("broken", 2)).await;
    server.send(output("broken", 3)).await;
    server.send(output("other", 1)).await;
    assert_eq!(next_output(&mut events).await, (1, "1".to_owned()));
    assert_broken(soon("the cause", events.next()).await, "process/output");
    assert_broken(soon("the cause", events.next()).await, "process/output");
    assert_broken(soon("the cause", broken.wait()).await, "process/output");
    assert_eq!(next_output(&mut others).await, (1, "1".to_owned()));
    assert_eq!((client.connection_state(), client.disconnects()), (ConnectionState::Connected, 0));
    // Output without a reader does not block the process.
    loop {
        let message = server.next().await;
        if message["method"] == "flow/consumed" && message["params"]["seq"] == 3 {
            assert_eq!(message["params"]["processId"], "broken");
            break;
        }
    }
}

#[tokio::test]
async fn a_malformed_notification_fails_its_watch_with_the_cause_and_the_next_poll_renews_it() {
    let (client, mut server) = Server::connect().await;
    let fs = client.fs();
    let (watch, id) = tokio::join!(fs.watch("/w", Depth::Everything), async {
        let (id, watch) = server.expect("fs/watch").await;
        server.answer(&id, json!({})).await;
        watch["watchId"].clone()
    });
    let mut watch = watch.unwrap();
    let params = json!({"watchId": id, "changes": 7, "overflow": false});
    server.send(json!({"method": "fs/changed", "params": params})).await;
    assert_broken(soon("the cause", watch.next()).await, "fs/changed");
    let (again, ()) = tokio::join!(soon("another watch", watch.next()), async {
        for method in ["fs/unwatch", "fs/watch"] {
            let (id, _) = server.expect(method).await;
            server.answer(&id, json!({})).await;
        }
    });
    let mut overflow = Changes::default();
    overflow.overflow = true;
    assert_eq!(again, Ok(overflow));
    assert_eq!(client.disconnects(), 0);
}

#[tokio::test]
async fn a_malformed_notification_fails_its_body_with_the_cause() {
    let (client, mut server) = Server::connect().await;
    let http = client.http();
    let (response, id) = tokio::join!(http.get("http://localhost/").stream(), async {
        let (id, request) = server.expect("http/request").await;
        server.answer(&id, json!({"status": 200, "headers": [], "body": "", "bodyBase64": ""})).await;
        request["requestId"].clone()
    });
    let mut body = response.unwrap().body;
    let params = json!({"requestId": id, "seq": "first", "deltaBase64": "", "done": false});
    server.send(json!({"method": "http/request/bodyDelta", "params": params})).await;
    assert_broken(soon("the cause", body.chunk()).await, "http/request/bodyDelta");
    assert_eq!(client.disconnects(), 0);
}

#[tokio::test]
async fn an_error_that_does_not_decode_fails_only_its_call() {
    let (client, mut server) = Server::connect().await;
    let (status, ()) = tokio::join!(soon("an answer", client.call(GetStatus {})), async {
        let (id, _) = server.expect("environment/status").await;
        server.send(json!({"id": id, "error": {"code": "no"}})).await;
    });
    assert!(matches!(&status, Err(Error::Protocol { what }) if what.contains("cannot decode")), "{status:?}");
    assert_eq!((client.connection_state(), client.disconnects()), (ConnectionState::Connected, 0));
}

#[tokio::test]
async fn repeated_violations_for_one_process_affect_nothing_else() {
    let (client, mut server) = Server::connect().await;
    let broken = started(&client, &mut server, "broken").await;
    let other = started(&client, &mut server, "other").await;
    for seq in 1..=100 {
        server.send(broken_output("broken", seq)).await;
    }
    server.send(output("other", 1)).await;
    assert_eq!(next_output(&mut other.events()).await, (1, "1".to_owned()));
    assert_broken(soon("the cause", broken.wait()).await, "process/output");
    assert_eq!((client.connection_state(), client.disconnects()), (ConnectionState::Connected, 0));
}

#[tokio::test(start_paused = true)]
async fn reconnecting_to_a_misbehaving_server_is_bounded_and_backs_off() {
    let (client, mut server) = Server::connect().await;
    let process = started(&client, &mut server, "p").await;
    let mut pauses = Vec::new();
    for _ in 0..7 {
        server.say("nonsense").await;
        let began = Instant::now();
        server.reconnect().await;
        pauses.push(began.elapsed());
    }
    server.say("nonsense").await;
    let error = soon("the end of the session", process.wait()).await.unwrap_err();
    assert!(matches!(&error, Error::Lost(SessionLost::Protocol { .. })), "{error}");
    assert_growing(&pauses);
}

#[tokio::test(start_paused = true)]
async fn the_pause_grows_while_connections_do_not_last() {
    let (client, mut server) = Server::connect().await;
    let mut pauses = Vec::new();
    for cuts in 1..10 {
        let began = Instant::now();
        server.hang_up();
        server.reconnect().await;
        pauses.push(began.elapsed());
        let mut conditions = client.connection_states();
        let is_back = |condition: &ConnectionState| {
            *condition == ConnectionState::Connected && client.disconnects() == cuts
        };
        soon("the client to be back", conditions.wait_for(is_back)).await.unwrap();
    }
    assert_growing(&pauses);
    // One that lasts is repaired at once.
    tokio::time::sleep(Duration::from_secs(5)).await;
    let began = Instant::now();
    server.hang_up();
    server.reconnect().await;
    assert!(began.elapsed() < Duration::from_millis(10), "{:?}", began.elapsed());
    assert_eq!(client.disconnects(), 10);
}

/// Each is between half of its length and all of it: 0, 50 ms, twice as long each time, and at most 2 s.
#[track_caller]
fn assert_growing(pauses: &[Duration]) {
    let mut most = Duration::ZERO;
    for pause in pauses {
        // The clock of a test goes in milliseconds.
        let slack = Duration::from_millis(2);
        assert!(*pause + slack >= most / 2 && *pause <= most + slack, "{pauses:?}");
        most = (most * 2).clamp(Duration::from_millis(50), Duration::from_secs(2));
    }
}
