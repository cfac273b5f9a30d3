//! One client, over any transport.

use std::{
    process::{ChildStdin, ChildStdout},
    sync::{
        Arc,
        atomic::{AtomicI64, Ordering},
    },
    time::Duration,
};

use rustls::ClientConfig;
use serde_json::{Value, json};
use tungstenite::Message;

use super::{
    binary, decode,
    inbox::{End, Inbox, Seen},
    start_params,
    wire::Wire,
};

/// How soon a server must close a connection whose credential has become invalid; it checks every second.
const SOON: Duration = Duration::from_secs(45);

/// A connection to a server, and everything that came over it.
pub(crate) struct Client {
    wire: Wire,
    inbox: Arc<Inbox>,
    next_id: AtomicI64,
}

impl Client {
    /// Connects to `ws://IP:PORT` or `unix:///PATH`.
    pub(crate) fn connect(address: &str) -> Self {
        let inbox = Arc::new(Inbox::default());
        let wire = match address.strip_prefix("unix://") {
            Some(path) => Wire::unix(path, &inbox),
            None => Wire::websocket(address, &[], &inbox),
        };
        Self::new(wire, inbox)
    }

    /// Connects to `ws://IP:PORT` with these headers on the upgrade.
    pub(crate) fn connect_with_headers(address: &str, headers: &[(&str, &str)]) -> Self {
        let inbox = Arc::new(Inbox::default());
        Self::new(Wire::websocket(address, headers, &inbox), inbox)
    }

    /// Connects to `ws://IP:PORT` with a bearer token.
    pub(crate) fn connect_with_token(address: &str, token: &str) -> Self {
        Self::connect_with_headers(address, &[("Authorization", &format!("Bearer {token}"))])
    }

    /// Connects to `wss://IP:PORT` with these headers on the upgrade.
    pub(crate) fn connect_with_tls(address: &str, tls: ClientConfig, headers: &[(&str, &str)]) -> Self {
        let inbox = Arc::new(Inbox::default());
        Self::new(Wire::tls(address, tls, headers, &inbox), inbox)
    }

    pub(crate) fn over_stdio(stdin: ChildStdin, stdout: ChildStdout) -> Self {
        let inbox = Arc::new(Inbox::default());
        Self::new(Wire::stdio(stdin, stdout, &inbox), inbox)
    }

    fn new(wire: Wire, inbox: Arc<Inbox>) -> Self {
        Self { wire, inbox, next_id: AtomicI64::new(1) }
    }

    /// Shakes hands as today's clients do, and returns the answer.
    pub(crate) fn initialize(&self) -> Value {
        self.initialize_with(json!({"clientName": "black box", "resumeSessionId": null}))
    }

    /// Shakes hands with these parameters, and returns the answer.
    pub(crate) fn initialize_with(&self, params: Value) -> Value {
        let words = params["capabilities"].as_array();
        if words.is_some_and(|words| words.contains(&json!("binaryFrames"))) {
            self.inbox.accept_binary();
        }
        let answer = self.call("initialize", params).expect("the handshake succeeds");
        self.notify("initialized", json!({}));
        answer
    }

    /// Shakes hands as a client that reads binary messages.
    pub(crate) fn initialize_binary(&self) -> Value {
        let capabilities = ["binaryFrames", "processGap", "acks"];
        self.initialize_with(
            json!({"clientName": "black box", "resumeSessionId": null, "capabilities": capabilities}),
        )
    }

    /// Attaches to a session, as today's clients do after a cut.
    pub(crate) fn resume(&self, session_id: &str) -> Value {
        self.initialize_with(json!({"clientName": "black box", "resumeSessionId": session_id}))
    }

    /// Sends a request and returns its id without waiting.
    pub(crate) fn send(&self, method: &str, params: Value) -> Value {
        let id = json!(self.next_id.fetch_add(1, Ordering::Relaxed));
        let mut request = message(method, params);
        request["id"] = id.clone();
        self.send_json(&request);
        id
    }

    /// Sends a request as a binary message with these bytes, and returns its id; its parameters refer to the bytes.
    pub(crate) fn send_bytes(&self, method: &str, params: Value, bytes: &[u8]) -> Value {
        let id = json!(self.next_id.fetch_add(1, Ordering::Relaxed));
        let mut request = message(method, params);
        request["id"] = id.clone();
        self.wire.send_binary(&binary::with_bytes(&request, bytes));
        id
    }

    /// Sends any bytes as one binary message.
    pub(crate) fn send_binary(&self, message: &[u8]) {
        self.wire.send_binary(message);
    }

    /// Sends a request and waits for the answer: `result` or `error`.
    pub(crate) fn call(&self, method: &str, params: Value) -> Result<Value, Value> {
        let id = self.send(method, params);
        self.outcome(&id)
    }

    /// Sends a request that is refused, and returns code and message.
    pub(crate) fn refusal(&self, method: &str, params: Value) -> (i64, String) {
        let what = format!("{method} {params}");
        match self.call(method, params) {
            Ok(result) => panic!("{what} is not refused but answered with {result}"),
            Err(error) => refusal_of(&error),
        }
    }

    pub(crate) fn notify(&self, method: &str, params: Value) {
        self.send_json(&message(method, params));
    }

    pub(crate) fn send_json(&self, message: &Value) {
        self.wire.send(&message.to_string());
    }

    /// Sends any text as one message.
    pub(crate) fn send_text(&self, text: &str) {
        self.wire.send(text);
    }

    /// Sends a WebSocket message of any kind.
    pub(crate) fn send_websocket(&self, message: Message) {
        self.wire.send_websocket(message);
    }

    /// Sends bytes below any framing.
    pub(crate) fn send_raw(&self, bytes: &[u8]) {
        self.wire.send_raw(bytes);
    }

    /// Waits for the reply to a request sent before: `result` or `error`.
    pub(crate) fn outcome(&self, id: &Value) -> Result<Value, Value> {
        let reply = self.reply(id);
        match (reply.get("result"), reply.get("error")) {
            (Some(result), None) => Ok(result.clone()),
            (None, Some(error)) => Err(error.clone()),
            _ => panic!("a reply has a result or an error: {reply}"),
        }
    }

    /// Waits for the next reply with this id, the whole message.
    pub(crate) fn reply(&self, id: &Value) -> Value {
        self.wait(&format!("the reply to request {id}"), |seen| seen.take_reply(id))
    }

    /// Waits for the answer to a malformed message, and returns code and message.
    pub(crate) fn complaint(&self) -> (i64, String) {
        refusal_of(&self.outcome(&json!(-1)).expect_err("a complaint is an error"))
    }

    /// Waits for the first notification `method` that names the process, and returns its parameters.
    pub(crate) fn event(&self, process_id: &str, method: &str) -> Value {
        self.wait(&format!("{method} of process `{process_id}`"), |seen| {
            seen.events(process_id)
                .find(|event| event["method"] == method)
                .map(|event| event["params"].clone())
        })
    }

    /// Waits until the process has written `text`, over all streams and chunks.
    pub(crate) fn wait_for_output(&self, process_id: &str, text: &str) -> String {
        self.wait(&format!("`{text}` from process `{process_id}`"), |seen| {
            let chunks: Vec<_> = seen
                .events(process_id)
                .filter(|event| event["method"] == "process/output")
                .map(|event| decode(&event["params"]["chunk"]))
                .collect();
            let written = String::from_utf8_lossy(&chunks.concat()).into_owned();
            written.contains(text).then_some(written)
        })
    }

    /// Starts a process with [`start_params`] and `more`, and expects that to work.
    pub(crate) fn start(&self, process_id: &str, argv: &[&str], more: Value) -> Value {
        self.call("process/start", super::with(start_params(process_id, argv), more))
            .expect("the process starts")
    }

    /// Starts `sh -c script` and expects that to work.
    pub(crate) fn shell(&self, process_id: &str, script: &str) -> Value {
        self.start(process_id, &["/bin/sh", "-c", script], json!({}))
    }

    /// Waits for the end of a process and returns all it said to this connection.
    pub(crate) fn collect(&self, process_id: &str) -> Output {
        self.wait(&format!("the end of process `{process_id}`"), |seen| {
            // Decisions about its network have no number, and may come later.
            let last = seen.events(process_id).rfind(|event| event["params"].get("seq").is_some());
            let closed = last.is_some_and(|event| event["method"] == "process/closed");
            closed.then(|| Output::of(seen.events(process_id)))
        })
    }

    /// Waits until `find` finds something in what was seen.
    pub(crate) fn wait<T>(&self, what: &str, find: impl FnMut(&mut Seen) -> Option<T>) -> T {
        self.inbox.wait(what, find)
    }

    /// Looks at what was seen so far without waiting.
    pub(crate) fn look<T>(&self, find: impl FnOnce(&Seen) -> T) -> T {
        self.inbox.look(find)
    }

    /// Waits until the server has ended the connection.
    pub(crate) fn wait_end(&self) -> End {
        self.inbox.wait_end()
    }

    /// Waits until the server closes the connection because of `why`, and returns code and reason.
    pub(crate) fn closed_for(&self, why: &str) -> (u16, String) {
        let end = self.inbox.wait_end_within(SOON, &format!("the server to close the connection: {why}"));
        end.close.unwrap_or_else(|| panic!("{why}: a close frame, not {}", end.how))
    }

    /// Stops taking messages from the socket, at most one more.
    pub(crate) fn stop_reading(&self) {
        self.inbox.pause(true);
    }

    pub(crate) fn read_on(&self) {
        self.inbox.pause(false);
    }

    /// Shuts down the writing direction and keeps reading.
    pub(crate) fn finish_writing(&self) {
        self.wire.finish();
    }

    /// Ends the connection without a word.
    pub(crate) fn cut(self) {}
}

impl Drop for Client {
    fn drop(&mut self) {
        self.inbox.pause(false);
        self.wire.hang_up();
    }
}

fn message(method: &str, params: Value) -> Value {
    let mut message = json!({"method": method});
    message["params"] = params;
    message
}

/// Returns code and message of an error.
fn refusal_of(error: &Value) -> (i64, String) {
    let code = error["code"].as_i64().unwrap_or_else(|| panic!("an error has a code: {error}"));
    let message = error["message"].as_str().unwrap_or_else(|| panic!("an error has a message: {error}"));
    (code, message.to_owned())
}

/// All that one process said.
#[derive(Debug)]
pub(crate) struct Output {
    pub(crate) stdout: Vec<u8>,
    pub(crate) stderr: Vec<u8>,
    pub(crate) pty: Vec<u8>,
    /// The parameters of `process/exited`.
    pub(crate) exited: Value,
    /// The parameters of `process/closed`.
    pub(crate) closed: Value,
    /// Methods in order of seq.
    pub(crate) order: Vec<String>,
}

impl Output {
    /// Puts together numbered events, and checks that they count 1, 2, 3 … in order of arrival.
    fn of<'a>(events: impl Iterator<Item = &'a Value>) -> Self {
        let mut output = Self {
            stdout: Vec::new(),
            stderr: Vec::new(),
            pty: Vec::new(),
            exited: Value::Null,
            closed: Value::Null,
            order: Vec::new(),
        };
        let numbered = events.filter(|event| event["params"].get("seq").is_some());
        for (event, expected) in numbered.zip(1_u64..) {
            let params = &event["params"];
            assert_eq!(params["seq"], expected, "events count 1, 2, 3 …: {event}");
            let method = event["method"].as_str().expect("a notification has a method");
            match (method, params["stream"].as_str()) {
                ("process/output", Some("stdout")) => output.stdout.extend(decode(&params["chunk"])),
                ("process/output", Some("stderr")) => output.stderr.extend(decode(&params["chunk"])),
                ("process/output", Some("pty")) => output.pty.extend(decode(&params["chunk"])),
                ("process/exited", None) => output.exited = params.clone(),
                ("process/closed", None) => output.closed = params.clone(),
                _ => panic!("no event of a process: {event}"),
            }
            output.order.push(method.to_owned());
        }
        output
    }

    /// Returns the exit code.
    pub(crate) fn exit_code(&self) -> i64 {
        self.exited["exitCode"].as_i64().unwrap_or_else(|| panic!("no exit code in {}", self.exited))
    }

    /// Returns stdout as text.
    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.stdout).into_owned()
    }
}
