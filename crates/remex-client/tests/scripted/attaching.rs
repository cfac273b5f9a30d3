//! Handles on processes that exist already.

use remex_client::Command;
use serde_json::json;

use crate::{
    output,
    server::{Server, output as output_note},
    soon,
};

#[tokio::test]
async fn attaching_to_a_process_consumes_nothing_before_it_is_read() {
    let (client, mut server) = Server::connect().await;
    let command = Command::new("prog").id("p");
    let (process, ()) = tokio::join!(soon("a handle", command.attach_or_start(&client)), async {
        for pieces in [0, 3] {
            let (id, _) = server.expect("process/read").await;
            server.answer_read(&id, "p", pieces).await;
        }
        server.send(output_note("p", 4)).await;
    });
    let process = process.unwrap();
    let mut events = process.events();
    for seq in 1..=4 {
        assert_eq!(output(&mut events).await, (seq, seq.to_string()));
    }
}

#[tokio::test]
async fn a_process_that_does_not_exist_is_started() {
    let (client, mut server) = Server::connect().await;
    let command = Command::new("prog").id("p");
    let (process, ()) = tokio::join!(soon("a handle", command.attach_or_start(&client)), async {
        let (id, _) = server.expect("process/read").await;
        let error = json!({"code": -32600, "message": "unknown", "data": {"kind": "unknownProcess"}});
        server.send(json!({"id": id, "error": error})).await;
        server.start().await;
    });
    assert_eq!(process.unwrap().id(), "p");
}
