//! Notifications as they should be, but not as expected.

use remex_proto::environment::GetStatus;
use serde_json::json;

use crate::{
    output as next_output,
    server::{Server, output},
    soon, started,
};

#[tokio::test]
async fn reordered_notifications_are_put_in_order() {
    let (client, mut server) = Server::connect().await;
    let process = started(&client, &mut server, "p").await;
    let mut events = process.events();
    for seq in [3, 2, 5, 1, 4, 2] {
        server.send(output("p", seq)).await;
    }
    for seq in 1..=5 {
        assert_eq!(next_output(&mut events).await, (seq, seq.to_string()));
    }
    // What seemed to be missing was asked for; the answer comes too late and changes nothing.
    let (id, read) = server.expect("process/read").await;
    assert_eq!((&read["processId"], &read["afterSeq"]), (&json!("p"), &json!(0)));
    server.answer_read(&id, "p", 5).await;
    server.send(output("p", 6)).await;
    assert_eq!(next_output(&mut events).await, (6, "6".to_owned()));
    assert_eq!(client.disconnects(), 0);
}

#[tokio::test]
async fn an_exit_may_arrive_before_the_last_output() {
    let (client, mut server) = Server::connect().await;
    let process = started(&client, &mut server, "p").await;
    server.send(json!({"method": "process/closed", "params": {"processId": "p", "seq": 3}})).await;
    let exited = json!({"processId": "p", "seq": 2, "exitCode": 7});
    server.send(json!({"method": "process/exited", "params": exited})).await;
    server.send(output("p", 1)).await;
    let said = soon("the end of the process", process.communicate(b"")).await.unwrap();
    assert_eq!((said.stdout, said.exit.code), (b"1".to_vec(), 7));
}

#[tokio::test]
async fn unknown_notifications_are_ignored() {
    let (client, mut server) = Server::connect().await;
    let process = started(&client, &mut server, "p").await;
    let mut events = process.events();
    for number in 0..100 {
        let params = json!({"processId": "p", "seq": number, "chunk": 7});
        server.send(json!({"method": "process/sneezed", "params": params})).await;
        server.send(json!({"method": "weather/changed"})).await;
    }
    server.send(output("p", 1)).await;
    assert_eq!(next_output(&mut events).await, (1, "1".to_owned()));
    assert_eq!(client.disconnects(), 0);
}

#[tokio::test]
async fn a_second_handle_on_a_process_sees_everything_too_and_outlives_the_first() {
    let (client, mut server) = Server::connect().await;
    let process = started(&client, &mut server, "p").await;
    server.send(output("p", 1)).await;
    let mut first = process.events();
    assert_eq!(next_output(&mut first).await, (1, "1".to_owned()));
    // It needs nothing from the server: the client follows the process already.
    let second = soon("the second handle", client.process("p")).await.unwrap();
    let mut events = second.events_after(1);
    drop((first, process));
    for seq in 2..=3 {
        server.send(output("p", seq)).await;
        assert_eq!(next_output(&mut events).await, (seq, seq.to_string()));
    }
}

#[tokio::test]
async fn a_later_handle_loses_nothing() {
    let (client, mut server) = Server::connect().await;
    let process = started(&client, &mut server, "p").await;
    drop(process);
    // How far it is, so that nothing has to be kept for nobody.
    let (look, _) = server.expect("process/read").await;
    let (process, ()) = tokio::join!(client.process("p"), async {
        let (probe, _) = server.expect("process/read").await;
        server.answer_read(&probe, "p", 0).await;
    });
    let process = process.unwrap();
    let (history, read) = server.expect("process/read").await;
    assert_eq!(read["afterSeq"], 0);
    // Only now comes the answer to the look, when somebody wants it all.
    server.answer_read(&look, "p", 3).await;
    let (status, first) = tokio::join!(soon("an answer", client.call(GetStatus {})), async {
        let first = server.next().await;
        server.answer(&first["id"], json!({"status": "ready"})).await;
        first
    });
    assert_eq!(first["method"], "environment/status", "nothing is consumed yet: {first}");
    drop(status);
    server.answer_read(&history, "p", 3).await;
    let mut events = process.events();
    for seq in 1..=3 {
        assert_eq!(next_output(&mut events).await, (seq, seq.to_string()));
    }
}
