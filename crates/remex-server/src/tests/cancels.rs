//! Requests that are cancelled while their answers are being built.

use std::time::Instant;

use serde_json::{Value, json};

use super::{Client, PATIENCE, TestServer, start_params};

impl TestServer {
    async fn client_with(&self, capabilities: &[&str]) -> Client {
        let mut client = self.connect().await;
        let hello = json!({"clientName": "test", "detachTtlMs": 1, "capabilities": capabilities});
        client.call("initialize", hello).await.unwrap();
        client.send(json!({"method": "initialized", "params": {}})).await;
        client
    }

    /// Reads all output of a process under the id `read`, and cancels that while the answer waits to be
    /// encoded.
    ///
    /// Returns once `next` was sent and the cancelled work has ended.
    async fn cancel_large_read(&self, client: &mut Client, process_id: &str, next: Option<Value>) {
        let threads = self.server.host().compute().threads();
        let mut busy = threads.keep_busy(&());
        let read = json!({"id": "read", "method": "process/read", "params": {"processId": process_id}});
        client.send(read).await;
        let deadline = Instant::now() + PATIENCE;
        while threads.waiting() == 0 {
            assert!(Instant::now() < deadline, "the answer is never encoded");
            tokio::task::yield_now().await;
        }
        client.send(json!({"method": "request/cancel", "params": {"id": "read"}})).await;
        let error = client.outcome(&json!("read")).await.unwrap_err();
        assert_eq!(error["data"]["kind"], "cancelled");
        if let Some(next) = next {
            client.send(next).await;
            // Once this is answered, the cancel has been read.
            client.call("environment/status", json!({})).await.unwrap();
        }
        // With one thread, the cancelled work has ended when later work has.
        busy.pop();
        self.server.host().compute().run(|| ()).await;
    }
}

impl Client {
    async fn wait_for(&mut self, process_id: &str, regex: &str) {
        let wait = json!({"processId": process_id, "until": {"output": {"regex": regex}}});
        self.call("process/wait", wait).await.unwrap();
    }
}

fn line_to(process_id: &str) -> Value {
    json!({"processId": process_id, "chunk": "Cg=="})
}

#[tokio::test(flavor = "multi_thread")]
async fn an_id_that_is_used_again_after_a_cancel_gets_the_answer_to_the_second_request() {
    let test = TestServer::new().await;
    let mut client = test.client_with(&["cancel"]).await;
    client.start("p", "head -c 300000 /dev/zero; echo full; read line").await.unwrap();
    client.wait_for("p", "full").await;
    let wait = json!({"id": "read", "method": "process/wait", "params": {"processId": "p", "until": "exit"}});
    test.cancel_large_read(&mut client, "p", Some(wait)).await;
    client.send(json!({"id": "go", "method": "process/write", "params": line_to("p")})).await;
    let waited = client.outcome(&json!("read")).await.unwrap();
    assert_eq!(waited["reason"], "exit", "{waited}");
}

#[tokio::test(flavor = "multi_thread")]
async fn output_of_a_cancelled_read_is_streamed_or_reported_as_lost() {
    let test = TestServer::new().await;
    let mut client = test.client_with(&["cancel", "consumed"]).await;
    let script = "head -c 500000 /dev/zero; echo full; read line; head -c 2000000 /dev/zero; echo end";
    let mut start = start_params("p", script);
    start["output"] = json!({"overflow": "evict", "retainBytes": 600_000});
    client.call("process/start", start).await.unwrap();
    // More than is streamed to a client that consumes nothing.
    client.wait_for("p", "full").await;
    test.cancel_large_read(&mut client, "p", None).await;
    client.call("process/write", line_to("p")).await.unwrap();
    client.wait_for("p", "end").await;

    let mut streamed = 0;
    let closed = loop {
        let note =
            if client.notes.is_empty() { client.next().await.unwrap() } else { client.notes.remove(0) };
        let params = &note["params"];
        match note["method"].as_str() {
            Some("process/output") => {
                let chunk = params["chunk"].as_str().unwrap();
                streamed += chunk.len() / 4 * 3 - chunk.bytes().filter(|byte| *byte == b'=').count();
            }
            Some("process/closed") => break params.clone(),
            _ => {}
        }
        let consumed = json!({"processId": "p", "seq": params["seq"]});
        client.send(json!({"method": "flow/consumed", "params": consumed})).await;
    };
    let lost = closed["evictedBytes"].as_u64().unwrap();
    assert_eq!(closed["produced"]["stdout"], streamed as u64 + lost, "{streamed} streamed, {lost} lost");
}

#[tokio::test(flavor = "multi_thread")]
async fn only_one_answer_is_built_at_a_time_however_many_reads_are_cancelled() {
    let test = TestServer::new().await;
    let mut client = test.client_with(&["cancel"]).await;
    client.start("p", "head -c 300000 /dev/zero; echo full; read line").await.unwrap();
    client.wait_for("p", "full").await;
    let threads = test.server.host().compute().threads();
    let _busy = threads.keep_busy(&());
    for _ in 0..20 {
        client.send(json!({"id": "read", "method": "process/read", "params": {"processId": "p"}})).await;
        client.call("environment/status", json!({})).await.unwrap();
        client.send(json!({"method": "request/cancel", "params": {"id": "read"}})).await;
        client.outcome(&json!("read")).await.unwrap_err();
    }
    assert!(threads.waiting() <= 1, "{} answers wait to be encoded", threads.waiting());
}
