//! The session in `spec/examples.md`, played against a server.

#![allow(clippy::unwrap_used, reason = "in a test it is the assertion")]

use std::{
    fs,
    io::{BufRead as _, BufReader, Write as _},
    os::unix::net::UnixStream,
    path::Path,
};

use serde_json::{Value, json};

use crate::support::{PATIENCE, Place, Server, Web, program, web_answer};

/// Notifications that clients send.
const OF_CLIENTS: [&str; 5] =
    ["initialized", "request/cancel", "flow/ack", "flow/consumed", "flow/bodyConsumed"];

/// One connection of the session.
struct Connection {
    stream: UnixStream,
    lines: std::io::Lines<BufReader<UnixStream>>,
}

impl Connection {
    fn open(socket: &Path) -> Self {
        let stream = UnixStream::connect(socket).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let lines = BufReader::new(stream.try_clone().unwrap()).lines();
        Self { stream, lines }
    }

    /// Sends the messages of a block that are the client's, each after those of the server before it have arrived.
    fn play(&mut self, block: &[String], adapt: impl Fn(&str) -> String) {
        let mut awaited = Vec::new();
        for line in block {
            let message: Value = serde_json::from_str(line).unwrap();
            if is_of_client(&message) {
                self.receive(std::mem::take(&mut awaited));
                writeln!(self.stream, "{}", adapt(line)).unwrap();
            } else {
                awaited.push(message);
            }
        }
        self.receive(awaited);
    }

    /// Waits for messages like these, in any order.
    fn receive(&mut self, mut awaited: Vec<Value>) {
        while !awaited.is_empty() {
            let message = self.next(&format!("{awaited:?}"));
            match awaited.iter().position(|expected| is_same_message(expected, &message)) {
                Some(index) => assert_same_shape(&awaited.remove(index), &message, ""),
                None => assert!(message.get("id").is_none(), "no answer like this is awaited: {message}"),
            }
        }
    }

    fn next(&mut self, awaited: &str) -> Value {
        let line = self.lines.next().unwrap_or_else(|| panic!("the connection ended before {awaited}"));
        let line = line.unwrap_or_else(|error| panic!("{error} while waiting for {awaited}"));
        serde_json::from_str(&line).unwrap()
    }
}

fn is_of_client(message: &Value) -> bool {
    let Some(method) = message["method"].as_str() else { return false };
    message.get("id").is_some() || OF_CLIENTS.contains(&method)
}

/// Returns whether a message is the answer or the notification that an example shows.
fn is_same_message(example: &Value, message: &Value) -> bool {
    let at = |pointer: &str| (example.pointer(pointer), message.pointer(pointer));
    ["/id", "/method", "/params/processId", "/params/seq", "/params/watchId", "/params/requestId"]
        .into_iter()
        .map(at)
        .all(|(expected, found)| expected == found)
}

/// Compares members and types; null stands for any value.
fn assert_same_shape(example: &Value, found: &Value, at: &str) {
    match (example, found) {
        (Value::Null, _) | (_, Value::Null) => {}
        (Value::Object(example), Value::Object(found)) => {
            // The trace leaves out the description of the host.
            let names = |members: &serde_json::Map<String, Value>| {
                members.keys().filter(|name| *name != "environmentInfo").cloned().collect::<Vec<_>>()
            };
            assert_eq!(names(example), names(found), "the members of {at}");
            for (name, value) in example {
                assert_same_shape(value, &found[name], &format!("{at}/{name}"));
            }
        }
        (Value::Array(example), Value::Array(found)) => {
            assert_eq!(example.is_empty(), found.is_empty(), "{at}: {found:?}");
            for (example, found) in example.iter().zip(found) {
                assert_same_shape(example, found, &format!("{at}/…"));
            }
        }
        (Value::String(_), Value::String(_)) | (Value::Number(_), Value::Number(_)) => {}
        (Value::Bool(example), Value::Bool(found)) => assert_eq!(example, found, "{at}"),
        _ => panic!("{at}: {found} is not of the type of {example}"),
    }
}

/// Returns the blocks of JSON in a text, each with what stands behind the backticks.
fn blocks(text: &str) -> impl Iterator<Item = (&str, Vec<String>)> {
    // Text and blocks take turns.
    text.split("```").skip(1).step_by(2).filter_map(|block| {
        let mut lines = block.lines();
        let info = lines.next().unwrap_or_default();
        info.starts_with("json").then(|| (info, lines.map(str::to_owned).collect()))
    })
}

fn document(name: &str) -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(name)).unwrap()
}

#[test]
fn the_server_answers_the_documented_examples() {
    let place = Place::new();
    place.make(&["w", "home"]);
    place.write("w/tools/.codex-plugin/plugin.json", r#"{"name":"tools"}"#);
    place.write("w/tools/skills/a/SKILL.md", "---\nname: a\ndescription: Does a.\n---\n");
    place.write("home/.codex/config.toml", "model = \"m\"\n");
    place.write("home/.codex/skills/b/SKILL.md", "---\nname: b\ndescription: Does b.\n---\n");
    let socket = place.path("remex.sock");
    let mut command = program(&["serve", "--listen", &format!("unix://{}", socket.display())]);
    command.current_dir(place.path("w")).env("HOME", place.path("home"));
    command.env_remove("CODEX_HOME").env_remove("TMPDIR");
    let _server = Server::launch(command, 1);
    let web = Web::answering(web_answer(200, &[], "ok"));
    let adapt = |line: &str| {
        line.replace("file:///w", &place.uri("w")).replace("http://127.0.0.1:8080/", &web.url("/"))
    };
    let (mut first, mut second) = (Connection::open(&socket), Connection::open(&socket));
    let mut played = 0;
    for (info, lines) in blocks(&document("spec/examples.md")) {
        match info {
            "json" => first.play(&lines, adapt),
            "json second" => second.play(&lines, adapt),
            "json static" => {}
            other => panic!("blocks of the kind `{other}` are not played"),
        }
        played += 1;
    }
    assert!(played > 40, "only {played} blocks were found");
}

#[test]
fn the_server_answers_the_documented_disconnect_trace() {
    let text = document("PROTOCOL.md");
    let (_, trace) = text.split_once("\n### 18.3 A trace\n").unwrap();
    let [(_, before), (_, after)] = &blocks(trace).collect::<Vec<_>>()[..] else { panic!("two connections") };
    let server = Server::unix(&[]);
    let socket = Path::new(server.address().trim_start_matches("unix://")).to_owned();
    let mut first = Connection::open(&socket);
    first.play(before, str::to_owned);
    // The answer that the trace loses is not read.
    drop(first);

    let mut other = Connection::open(&socket);
    let ask = |id: u64, method: &str, params: Value| {
        json!({"id": id, "method": method, "params": params}).to_string()
    };
    let until = json!({"output": {"regex": "three"}});
    writeln!(other.stream, "{}", ask(1, "initialize", json!({"clientName": "", "resumeSessionId": null})))
        .unwrap();
    writeln!(other.stream, "{}", json!({"method": "initialized"})).unwrap();
    writeln!(other.stream, "{}", ask(2, "session/list", json!({}))).unwrap();
    let own = other.next("initialize")["result"]["sessionId"].clone();
    let sessions = other.next("session/list")["result"]["sessions"].clone();
    let session = sessions.as_array().unwrap().iter().map(|session| &session["sessionId"]);
    let session = session.into_iter().find(|id| **id != own).unwrap().as_str().unwrap();
    let wait = json!({"processId": "p", "sessionId": session, "until": until});
    writeln!(other.stream, "{}", ask(3, "process/wait", wait)).unwrap();
    assert_eq!(other.next("the output")["result"]["reason"], "output");

    let mut second = Connection::open(&socket);
    second.play(after, |line| line.replace("66d37c67-bafc-4494-8f2f-c1d25465629d", session));
}
