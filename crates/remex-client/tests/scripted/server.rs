//! A server that sends what a test scripts, also after its client reconnects.

use remex_client::{Client, Link, Options, Session, Target};
use remex_proto::Blob;
use remex_rpc::{ReadHalf, WriteHalf, memory::pipe};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines},
    sync::mpsc,
};

use crate::soon;

/// A server, with the connection that its client made last.
pub(crate) struct Server {
    connections: mpsc::UnboundedReceiver<(ReadHalf, WriteHalf)>,
    lines: Lines<BufReader<ReadHalf>>,
    writer: WriteHalf,
}

impl Server {
    /// Connects a client to a server of its own.
    pub(crate) async fn connect() -> (Client, Self) {
        Self::connect_with(usual_welcome()).await
    }

    /// Connects a client to a server of its own that says this welcome.
    pub(crate) async fn connect_with(welcome: Value) -> (Client, Self) {
        Self::connect_as(Options::default(), welcome).await
    }

    /// Connects a client that asks for a session with this name.
    pub(crate) async fn connect_named(name: &str) -> (Client, Self) {
        Self::connect_as(Options::default().session(Session::Create(name.to_owned())), usual_welcome()).await
    }

    async fn connect_as(options: Options, welcome: Value) -> (Client, Self) {
        let (dialled, mut connections) = mpsc::unbounded_channel();
        let target = Target::custom("the server of this test", move || {
            let ((reader, writer), far) = pipe();
            dialled.send(far).unwrap();
            async move { Ok(Link::lines(reader, writer)) }
        });
        let (client, server) = tokio::join!(Client::connect_with(target, options), async {
            let (reader, writer) = soon("the first connection", connections.recv()).await.unwrap();
            let mut server = Self { connections, lines: BufReader::new(reader).lines(), writer };
            server.welcome(welcome).await;
            server
        });
        (client.unwrap(), server)
    }

    /// Ends the connection.
    pub(crate) fn hang_up(&mut self) {
        let ((reader, writer), _) = pipe();
        self.lines = BufReader::new(reader).lines();
        self.writer = writer;
    }

    /// Waits until the client has reconnected; its earlier messages are dropped.
    pub(crate) async fn reconnect(&mut self) {
        let (reader, writer) = soon("another connection", self.connections.recv()).await.unwrap();
        self.lines = BufReader::new(reader).lines();
        self.writer = writer;
        self.welcome(usual_welcome()).await;
    }

    async fn welcome(&mut self, welcome: Value) {
        let (id, _) = self.expect("initialize").await;
        self.answer(&id, welcome).await;
    }

    /// Waits for any message.
    pub(crate) async fn next(&mut self) -> Value {
        let line = soon("a message", self.lines.next_line()).await.unwrap().expect("the client is there");
        serde_json::from_str(&line).unwrap()
    }

    /// Waits for a request, passing over notifications, and returns its id and parameters.
    pub(crate) async fn expect(&mut self, method: &str) -> (Value, Value) {
        loop {
            let message = self.next().await;
            if message.get("id").is_some() {
                assert_eq!(message["method"], method, "{message}");
                return (message["id"].clone(), message["params"].clone());
            }
        }
    }

    /// Waits for the start of a process, and answers it.
    pub(crate) async fn start(&mut self) {
        let (id, start) = self.expect("process/start").await;
        self.answer(&id, json!({"processId": start["processId"], "sandboxType": "none"})).await;
    }

    /// Answers a read with so many first pieces of output, each its own number.
    pub(crate) async fn answer_read(&mut self, id: &Value, process: &str, pieces: u64) {
        let chunks: Vec<_> = (1..=pieces).map(|seq| output(process, seq)["params"].clone()).collect();
        let (next, none) = (pieces + 1, json!(null));
        let reply = json!({"chunks": chunks, "nextSeq": next, "exited": false, "exitCode": none, "closed": false,
            "failure": none, "sandboxDenied": false});
        self.answer(id, reply).await;
    }

    pub(crate) async fn answer(&mut self, id: &Value, result: Value) {
        self.send(json!({"id": id, "result": result})).await;
    }

    pub(crate) async fn send(&mut self, message: Value) {
        self.say(&message.to_string()).await;
    }

    /// Says a line, whatever it means.
    pub(crate) async fn say(&mut self, line: &str) {
        // The client may have left for a reason that the test knows.
        let _ = self.writer.write_all(format!("{line}\n").as_bytes()).await;
    }
}

fn usual_welcome() -> Value {
    let enabled = json!(["processGap", "cancel", "consumed", "acks"]);
    json!({"sessionId": "s", "capabilities": {"enabled": enabled}})
}

/// Returns the notification of an event that says its own number.
pub(crate) fn output(process: &str, seq: u64) -> Value {
    let chunk = Blob(format!("{seq}").into_bytes().into());
    json!({"method": "process/output", "params": {"processId": process, "seq": seq, "stream": "stdout", "chunk": chunk}})
}

/// Returns such a notification that does not decode.
pub(crate) fn broken_output(process: &str, seq: u64) -> Value {
    let mut note = output(process, seq);
    note["params"]["chunk"] = json!("%%%");
    note
}
