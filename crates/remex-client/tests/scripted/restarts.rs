//! Processes that others restart, or that were restarted while the client was away: nobody here reads the new one, which
//! must run on all the same.

use std::{future::poll_fn, pin::pin, task::Poll};

use remex_client::{
    Client, Command, ConnectionState, Process,
    process::{Event, Termination},
};
use serde_json::{Value, json};

use crate::{
    output as next_output,
    server::{Server, broken_output, output},
    soon,
};

const OLD: u64 = 41;
const NEW: u64 = 42;

async fn start(client: &Client, server: &mut Server) -> Process {
    let command = Command::new("prog").id("p");
    let (process, ()) = tokio::join!(command.start(client), async {
        let (id, _) = server.expect("process/start").await;
        server.answer(&id, json!({"processId": "p", "sandboxType": "none", "incarnation": OLD})).await;
    });
    process.unwrap()
}

fn named(mut note: Value, incarnation: u64) -> Value {
    note["params"]["incarnation"] = json!(incarnation);
    note
}

fn closed(seq: u64, incarnation: u64) -> Value {
    named(json!({"method": "process/closed", "params": {"processId": "p", "seq": seq}}), incarnation)
}

/// Answers the next read, which is about this start, or whichever runs.
async fn refuse_or_answer(server: &mut Server, wanted: Option<u64>) {
    let (id, read) = server.expect("process/read").await;
    assert_eq!(read["incarnation"].as_u64(), wanted, "{read}");
    if wanted == Some(OLD) {
        refuse_restarted(server, &id).await;
    } else {
        answer_read(server, &id).await;
    }
}

/// Returns the answer to a read of the old process, which has printed nothing.
fn silent(closed: bool) -> Value {
    json!({"chunks": [], "nextSeq": 1, "exited": closed, "exitCode": null, "closed": closed, "failure": null,
        "sandboxDenied": false, "incarnation": OLD})
}

/// Answers a restart through a reference with the new process.
async fn restart(client: &Client, server: &mut Server, session: &str) {
    let reference = client.process_ref(session, "p");
    let (restarted, ()) = tokio::join!(soon("a restart", reference.restart(Termination::Kill)), async {
        let (id, _) = server.expect("process/restart").await;
        server.answer(&id, json!({"processId": "p", "sandboxType": "none", "incarnation": NEW})).await;
    });
    restarted.unwrap();
}

/// Answers a read of the new process, which has printed five pieces.
async fn answer_read(server: &mut Server, id: &Value) {
    let reply = json!({"chunks": [], "nextSeq": 6, "exited": false, "exitCode": null, "closed": false, "failure": null,
        "sandboxDenied": false, "incarnation": NEW});
    server.answer(id, reply).await;
}

/// Waits until the client says that it has consumed this much.
async fn consumed(server: &mut Server, incarnation: u64, at_least: u64) {
    loop {
        let message = server.next().await;
        let params = &message["params"];
        if message["method"] == "flow/consumed"
            && params["incarnation"] == incarnation
            && params["seq"].as_u64().unwrap() >= at_least
        {
            assert_eq!(params["processId"], "p");
            break;
        }
    }
}

async fn refuse_restarted(server: &mut Server, id: &Value) {
    let data = json!({"kind": "unknownProcess", "restarted": true});
    let error = json!({"code": -32600, "message": "process `p` was restarted since", "data": data});
    server.send(json!({"id": id, "error": error})).await;
}

#[tokio::test]
async fn a_process_restarted_by_another_client_is_not_blocked() {
    let (client, mut server) = Server::connect().await;
    let process = start(&client, &mut server).await;
    server.hang_up();
    server.reconnect().await;
    refuse_or_answer(&mut server, Some(OLD)).await;
    refuse_or_answer(&mut server, None).await;
    consumed(&mut server, NEW, 5).await;
    assert!(soon("the end", process.events().next()).await.unwrap_err().is_restarted());
}

#[tokio::test]
async fn a_process_restarted_by_another_client_is_not_blocked_and_gets_the_next_handle() {
    let (client, mut server) = Server::connect().await;
    let old = start(&client, &mut server).await;
    server.send(named(output("p", 1), OLD)).await;
    server.send(closed(2, OLD)).await;
    server.send(named(output("p", 1), NEW)).await;
    consumed(&mut server, NEW, 1).await;
    // What was sent before this connection is not asked for again by anybody.
    server.hang_up();
    server.reconnect().await;
    let (id, _) = server.expect("process/read").await;
    answer_read(&mut server, &id).await;
    consumed(&mut server, NEW, 5).await;
    let mut events = old.events();
    assert_eq!(next_output(&mut events).await, (1, "1".to_owned()));
    assert!(matches!(soon("the close", events.next()).await, Ok(Some(Event::Closed(_)))));
    let (new, ()) = tokio::join!(soon("a handle", client.process("p")), async {
        for _ in ["whether it exists", "its output"] {
            let (id, _) = server.expect("process/read").await;
            answer_read(&mut server, &id).await;
        }
    });
    let mut events = new.unwrap().events();
    server.send(named(output("p", 6), NEW)).await;
    let gap = soon("the gap", events.next()).await;
    assert!(matches!(gap, Ok(Some(Event::Gap(_)))), "{gap:?}");
    assert_eq!(next_output(&mut events).await, (6, "6".to_owned()));
}

#[tokio::test]
async fn a_restart_with_a_repeated_response_does_not_block_the_new_process() {
    let (client, mut server) = Server::connect().await;
    drop(start(&client, &mut server).await);
    server.send(closed(1, OLD)).await;
    let reference = client.process_ref(client.session_id(), "p");
    let (restarted, ()) = tokio::join!(soon("a restart", reference.restart(Termination::Kill)), async {
        server.expect("process/restart").await;
        server.hang_up();
        server.reconnect().await;
        let (id, _) = server.expect("process/restart").await;
        server
            .answer(
                &id,
                json!({"processId": "p", "sandboxType": "none", "incarnation": NEW, "replayed": true}),
            )
            .await;
        let (id, _) = server.expect("process/read").await;
        answer_read(&mut server, &id).await;
        consumed(&mut server, NEW, 5).await;
    });
    restarted.unwrap();
}

#[tokio::test]
async fn a_failed_old_handle_requests_nothing() {
    let (client, mut server) = Server::connect().await;
    let old = start(&client, &mut server).await;
    for seq in 1..=3 {
        server.send(named(output("p", seq), OLD)).await;
    }
    server.send(named(broken_output("p", 4), OLD)).await;
    // Nothing has been read, and the server waits for that before it sends the new process.
    consumed(&mut server, OLD, 1 << 60).await;
    let mut events = old.events();
    for seq in 1..=3 {
        assert_eq!(next_output(&mut events).await.0, seq);
    }
    soon("the cause", events.next()).await.unwrap_err();
}

#[tokio::test]
async fn a_reader_of_another_incarnation_consumes_nothing_of_this_one() {
    let (client, mut server) = Server::connect().await;
    let process = start(&client, &mut server).await;
    server.send(named(output("p", 1), OLD)).await;
    let other = client.process_ref(client.session_id(), "p").with_incarnation(Some(NEW));
    let poll = other.read(1, 1 << 10, std::time::Duration::ZERO);
    let (_, ()) = tokio::join!(soon("an answer", poll), async {
        let (id, _) = server.expect("process/read").await;
        answer_read(&mut server, &id).await;
    });
    assert_eq!(next_output(&mut process.events()).await, (1, "1".to_owned()));
}

#[tokio::test]
async fn a_retained_closed_handle_does_not_hide_a_restart_by_another_client() {
    let (client, mut server) = Server::connect().await;
    let old = start(&client, &mut server).await;
    server.send(closed(1, OLD)).await;
    assert!(matches!(soon("the close", old.events().next()).await, Ok(Some(Event::Closed(_)))));
    server.hang_up();
    server.reconnect().await;
    refuse_or_answer(&mut server, Some(OLD)).await;
    refuse_or_answer(&mut server, None).await;
    consumed(&mut server, NEW, 5).await;
}

#[tokio::test]
async fn a_handle_dropped_before_it_learns_of_a_restart_blocks_nothing() {
    let (client, mut server) = Server::connect().await;
    let old = start(&client, &mut server).await;
    server.hang_up();
    server.reconnect().await;
    let (id, _) = server.expect("process/read").await;
    drop(old);
    refuse_or_answer(&mut server, None).await;
    consumed(&mut server, NEW, 5).await;
    refuse_restarted(&mut server, &id).await;
}

#[tokio::test]
async fn another_process_that_cannot_be_restarted_is_not_taken_for_one_whose_handle_has_failed() {
    let (client, mut server) = Server::connect().await;
    let old = start(&client, &mut server).await;
    server.hang_up();
    server.reconnect().await;
    refuse_or_answer(&mut server, Some(OLD)).await;
    refuse_or_answer(&mut server, None).await;
    consumed(&mut server, NEW, 5).await;
    // Its events name no start, and what is said of them must not name the old one, which nobody knows any more.
    server.send(output("p", 6)).await;
    loop {
        let message = server.next().await;
        if message["method"] == "flow/consumed" && message["params"]["seq"] == 6 {
            assert_eq!(message["params"].get("incarnation"), None, "{message}");
            break;
        }
    }
    soon("the end", old.events().next()).await.unwrap_err();
}

#[tokio::test]
async fn a_poll_of_the_new_process_consumes_nothing_of_the_previous_one() {
    let (client, mut server) = Server::connect().await;
    let old = start(&client, &mut server).await;
    server.send(named(output("p", 1), OLD)).await;
    let whichever = client.process_ref(client.session_id(), "p");
    let (restarted, ()) = tokio::join!(soon("a restart", whichever.restart(Termination::Kill)), async {
        let (id, _) = server.expect("process/restart").await;
        server.answer(&id, json!({"processId": "p", "sandboxType": "none", "incarnation": NEW})).await;
    });
    restarted.unwrap();
    let (_, ()) = tokio::join!(
        soon("an answer", whichever.read(5, 1 << 10, std::time::Duration::ZERO)),
        refuse_or_answer(&mut server, None)
    );
    assert_eq!(next_output(&mut old.events()).await, (1, "1".to_owned()));
}

#[tokio::test]
async fn an_unknown_event_of_an_unobserved_process_blocks_nothing() {
    let (client, mut server) = Server::connect().await;
    drop(start(&client, &mut server).await);
    consumed(&mut server, OLD, 1 << 60).await;
    server.send(named(broken_output("p", 7), OLD)).await;
    consumed(&mut server, OLD, 1 << 60).await;
}

#[tokio::test]
async fn a_handle_on_a_process_that_closes_meanwhile_and_is_restarted_does_not_wait_for_the_rest() {
    let (client, mut server) = Server::connect().await;
    let (handle, ()) = tokio::join!(soon("a handle", client.process("p")), async {
        let (id, _) = server.expect("process/read").await;
        // Both have arrived before the caller sees the first.
        let answer = json!({"id": id, "result": silent(false)});
        server.say(&format!("{answer}\n{}", closed(1, OLD))).await;
        refuse_or_answer(&mut server, Some(OLD)).await;
    });
    let error = soon("the end", handle.unwrap().events().next()).await.unwrap_err();
    assert!(error.is_restarted(), "{error}");
}

#[tokio::test]
async fn a_handle_does_not_wait_for_a_close_delivered_to_another_handle() {
    for is_kept in [false, true] {
        let (client, mut server) = Server::connect().await;
        let mut late = pin!(client.process("p"));
        assert!(poll_fn(|context| Poll::Ready(late.as_mut().poll(context).is_pending())).await);
        let (id, _) = server.expect("process/read").await;
        server.answer(&id, silent(false)).await;
        let (other, ()) = tokio::join!(soon("a handle", client.process("p")), async {
            for _ in ["whether it exists", "its output"] {
                let (id, _) = server.expect("process/read").await;
                server.answer(&id, silent(false)).await;
            }
            server.send(closed(1, OLD)).await;
        });
        let other = other.unwrap();
        if is_kept {
            restart(&client, &mut server, client.session_id()).await;
        } else {
            soon("the close", other.events().next()).await.unwrap();
        }
        let kept = Some(other).filter(|_| is_kept);
        let late = soon("the late handle", late).await.unwrap();
        let mut events = late.events();
        let (event, ()) = tokio::join!(soon("the end", events.next()), async {
            if !is_kept {
                refuse_or_answer(&mut server, Some(OLD)).await;
            }
        });
        match event {
            Ok(Some(Event::Closed(_))) => assert!(is_kept),
            Err(error) => assert!(error.is_restarted() && !is_kept, "{error}"),
            other => panic!("{other:?}"),
        }
        drop(kept);
    }
}

#[tokio::test]
async fn an_old_handle_ends_with_its_connection_even_if_another_start_is_under_way() {
    let (client, mut server) = Server::connect().await;
    let old = start(&client, &mut server).await;
    restart(&client, &mut server, client.session_id()).await;
    let mut states = client.connection_states();
    server.hang_up();
    soon("the disconnect", states.wait_for(|state| matches!(state, ConnectionState::Reconnecting { .. })))
        .await
        .unwrap();
    let command = Command::new("prog").id("p");
    let (refused, ()) = tokio::join!(soon("an answer", command.start(&client)), async {
        server.reconnect().await;
        let (id, _) = server.expect("process/start").await;
        let error = json!({"code": -32600, "message": "taken", "data": {"kind": "processExists"}});
        server.send(json!({"id": id, "error": error})).await;
    });
    refused.unwrap_err();
    let error = soon("the end", old.events().next()).await.unwrap_err();
    assert!(error.is_restarted(), "{error}");
}

#[tokio::test]
async fn a_restart_through_the_name_of_the_own_session_affects_its_process() {
    let (client, mut server) = Server::connect_named("build").await;
    let _old = start(&client, &mut server).await;
    restart(&client, &mut server, "build").await;
    let (new, ()) = tokio::join!(soon("a handle", client.process("p")), async {
        for wanted in [None, Some(NEW)] {
            refuse_or_answer(&mut server, wanted).await;
        }
    });
    new.unwrap();
}
