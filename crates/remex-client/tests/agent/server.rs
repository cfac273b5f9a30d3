//! A server that says what a test wants it to say.

use std::sync::{Arc, Mutex};

use remex_client::{Client, Error, Link, Options, Target};
use remex_proto::Blob;
use remex_rpc::{WriteHalf, memory::pipe};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines};

/// A server that says what a test wants it to say; dropped, the session is lost.
pub(crate) struct Server {
    lines: Lines<BufReader<remex_rpc::ReadHalf>>,
    writer: WriteHalf,
}

/// A process of that server.
pub(crate) struct Process {
    pub(crate) id: String,
    /// What its start asked for.
    pub(crate) start: Value,
    seq: u64,
}

impl Server {
    /// Connects a client to a server of its own.
    pub(crate) async fn connect() -> (Client, Self) {
        let (near, (reader, writer)) = pipe();
        let near = Arc::new(Mutex::new(Some(near)));
        let target = Target::custom("the server of this test", move || {
            let near = near.lock().unwrap().take();
            let gone = || Error::unreachable("it", "it is gone");
            async move { near.map(|(reader, writer)| Link::lines(reader, writer)).ok_or_else(gone) }
        });
        let mut server = Self { lines: BufReader::new(reader).lines(), writer };
        let options = Options::default().reconnect_timeout(std::time::Duration::ZERO);
        let welcome = async {
            let id = server.expect("initialize").await.0;
            server.answer(&id, json!({"sessionId": "s", "capabilities": {}})).await;
        };
        let (client, ()) = tokio::join!(Client::connect_with(target, options), welcome);
        (client.unwrap(), server)
    }

    /// Waits for a request, and returns its id and parameters.
    pub(crate) async fn expect(&mut self, method: &str) -> (Value, Value) {
        loop {
            let line = self.lines.next_line().await.unwrap().expect("the client is there");
            let message: Value = serde_json::from_str(&line).unwrap();
            if message.get("id").is_none() {
                continue;
            }
            assert_eq!(message["method"], method, "{message}");
            return (message["id"].clone(), message["params"].clone());
        }
    }

    pub(crate) async fn answer(&mut self, id: &Value, result: Value) {
        self.send(&json!({"id": id, "result": result})).await;
    }

    pub(crate) async fn refuse(&mut self, id: &Value, message: &str) {
        self.send(&json!({"id": id, "error": {"code": -32603, "message": message}})).await;
    }

    /// Waits for the start of a process.
    pub(crate) async fn start(&mut self) -> Process {
        let (id, start) = self.expect("process/start").await;
        let process_id = start["processId"].as_str().unwrap().to_owned();
        self.answer(&id, json!({"processId": process_id, "sandboxType": "none"})).await;
        Process { id: process_id, start, seq: 0 }
    }

    pub(crate) async fn say(&mut self, process: &mut Process, what: impl AsRef<[u8]>) {
        self.say_on("stdout", process, what).await;
    }

    pub(crate) async fn say_on(&mut self, stream: &str, process: &mut Process, what: impl AsRef<[u8]>) {
        let chunk = Blob(what.as_ref().to_vec().into());
        self.note("output", process, json!({"stream": stream, "chunk": chunk})).await;
    }

    /// Tells that the next `events` events, with so many bytes, are gone.
    pub(crate) async fn lose(&mut self, process: &mut Process, events: u64, bytes: u64) {
        let range = json!({"fromSeq": process.seq + 1, "toSeq": process.seq + events, "bytes": bytes});
        process.seq += events - 1;
        self.note("gap", process, range).await;
    }

    pub(crate) async fn end(&mut self, process: &mut Process, code: i32) {
        self.exit(process, code).await;
        self.close(process).await;
    }

    pub(crate) async fn exit(&mut self, process: &mut Process, code: i32) {
        self.exit_with(process, json!({"exitCode": code})).await;
    }

    /// Tells of an exit with everything that a server may know about it.
    pub(crate) async fn exit_with(&mut self, process: &mut Process, params: Value) {
        self.note("exited", process, params).await;
    }

    pub(crate) async fn close(&mut self, process: &mut Process) {
        self.note("closed", process, json!({})).await;
    }

    /// Takes a write; returns its bytes as text.
    pub(crate) async fn take_write(&mut self) -> String {
        let (id, write) = self.expect("process/write").await;
        self.answer(&id, json!({"status": "accepted", "accepted": true})).await;
        written(&write)
    }

    async fn note(&mut self, what: &str, process: &mut Process, mut params: Value) {
        process.seq += 1;
        params["processId"] = json!(process.id);
        if what != "gap" {
            params["seq"] = json!(process.seq);
        }
        self.send(&json!({"method": format!("process/{what}"), "params": params})).await;
    }

    async fn send(&mut self, message: &Value) {
        self.writer.write_all(format!("{message}\n").as_bytes()).await.unwrap();
    }
}

/// Returns the bytes of a write as text.
pub(crate) fn written(write: &Value) -> String {
    let bytes: Blob = serde_json::from_value(write["chunk"].clone()).unwrap();
    String::from_utf8(bytes.0.to_vec()).unwrap()
}
