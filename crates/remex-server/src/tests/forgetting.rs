//! Processes that a client forgets before their retention time ends.

use serde_json::json;

use super::{TestServer, start_params};

#[tokio::test(flavor = "multi_thread")]
async fn a_process_can_be_forgotten_as_soon_as_its_close_is_announced() {
    let test = TestServer::new().await;
    let mut client = test.client().await;
    for number in 0..200 {
        let id = format!("p{number}");
        client.start(&id, "exit").await.unwrap();
        client.note("process/closed", &id).await;
        client.call("process/forget", json!({"processId": id})).await.unwrap();
        client.notes.clear();
    }
    assert_eq!(client.call("process/list", json!({})).await.unwrap(), json!({"processes": []}));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_controller_receives_everything_of_a_process_that_another_client_forgot() {
    let test = TestServer::new().await;
    let (mut holder, mut other) = (test.client().await, test.client().await);
    // More than the socket buffers, and less than the log retains.
    holder.call("process/start", start_params("p", "head -c 700000 /dev/zero")).await.unwrap();
    let everything = json!({"scope": "identity"});
    let listed = other.call("process/list", everything.clone()).await.unwrap();
    let process = json!({"processId": "p", "sessionId": listed["processes"][0]["sessionId"]});
    let mut wait = process.clone();
    wait["until"] = json!("closed");
    other.call("process/wait", wait).await.unwrap();
    other.call("process/forget", process).await.unwrap();
    holder.note("process/closed", "p").await;
    let output = holder.notes.iter().filter(|note| note["method"] == "process/output");
    let len: usize = output.map(|note| note["params"]["chunk"].as_str().unwrap().len()).sum();
    assert!(len >= 700_000_usize.div_ceil(3) * 4, "{len}");
    assert_eq!(other.call("process/list", everything).await.unwrap(), json!({"processes": []}));
}
