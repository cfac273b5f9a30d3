//! Waits for text in output.

use std::time::Instant;

use serde_json::json;

use super::{PATIENCE, TestServer};

#[tokio::test(flavor = "multi_thread")]
async fn output_is_searched_off_the_threads_of_the_runtime() {
    let test = TestServer::new().await;
    let mut client = test.client().await;
    client.start("p", "head -c 100000 /dev/zero; echo needle; read line").await.unwrap();
    let threads = test.server.host().compute().threads();
    let busy = threads.keep_busy(&());
    let wait = json!({"processId": "p", "until": {"output": {"regex": "needle"}}});
    client.send(json!({"id": "wait", "method": "process/wait", "params": wait})).await;
    let deadline = Instant::now() + PATIENCE;
    while threads.waiting() == 0 {
        assert!(Instant::now() < deadline, "nothing is searched");
        tokio::task::yield_now().await;
    }
    // Others are served meanwhile.
    client.call("environment/status", json!({})).await.unwrap();
    drop(busy);
    assert_eq!(client.outcome(&json!("wait")).await.unwrap()["reason"], "output");
}
