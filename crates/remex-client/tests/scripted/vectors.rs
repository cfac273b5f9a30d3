//! The vectors for clients in `spec/vectors/clients.jsonl`, which other languages use too.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
};

use remex_client::{
    Client, Error, Process,
    fs::{Depth, Watch},
    http::Body,
    process::Event,
};
use remex_proto::call::SERVER_NOTES;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::{server::Server, soon, started};

#[derive(Deserialize)]
struct Vector {
    name: String,
    open: Open,
    steps: Vec<Step>,
    #[serde(default)]
    log: BTreeMap<String, Log>,
    expect: Expected,
}

/// What the client has open before the first step.
#[derive(Deserialize)]
#[serde(default, deny_unknown_fields)]
#[derive(Default)]
struct Open {
    processes: Vec<String>,
    watches: Vec<u64>,
    streams: Vec<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
enum Step {
    Send(Value),
    SendText(String),
    Disconnect(bool),
}

/// What the server has of a process, for `process/read`.
#[derive(Deserialize)]
struct Log {
    reply: Value,
    evicted: Option<Evicted>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Evicted {
    to_seq: u64,
    bytes: Value,
}

#[derive(Deserialize)]
#[serde(default, deny_unknown_fields)]
#[derive(Default)]
struct Expected {
    processes: BTreeMap<String, ExpectedProcess>,
    watches: BTreeMap<String, Vec<Value>>,
    streams: BTreeMap<String, Value>,
    sends: Vec<Value>,
    disconnects: u64,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ExpectedProcess {
    events: Vec<Value>,
    error: Option<String>,
    /// The process continues after these events.
    #[serde(default)]
    open: bool,
}

fn vectors() -> Vec<Vector> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../spec/vectors/clients.jsonl");
    let text = fs::read_to_string(path).unwrap();
    text.lines()
        .map(|line| serde_json::from_str(line).unwrap_or_else(|why| panic!("{line}: {why}")))
        .collect()
}

#[tokio::test]
async fn the_client_does_what_the_vectors_say() {
    for vector in vectors() {
        println!("{}", vector.name);
        run(vector).await;
    }
}

#[test]
fn every_notification_has_a_vector() {
    let mut named = BTreeSet::new();
    for vector in vectors() {
        let methods = vector.steps.iter().filter_map(|step| match step {
            Step::Send(message) => message["method"].as_str().map(str::to_owned),
            Step::SendText(_) | Step::Disconnect(_) => None,
        });
        named.extend(methods);
    }
    for (notification, _) in SERVER_NOTES {
        assert!(named.contains(*notification), "no vector for `{notification}`");
    }
}

/// What a client has open on a scripted server.
struct Scene {
    client: Client,
    server: Server,
    processes: BTreeMap<String, Process>,
    watches: BTreeMap<String, Watch>,
    streams: BTreeMap<String, Body>,
    /// The ids that the client chose for watches and streams, by those of the vector.
    ids: BTreeMap<String, Value>,
}

impl Scene {
    async fn open(open: &Open) -> Self {
        let (client, mut server) = Server::connect().await;
        let (mut processes, mut watches) = (BTreeMap::new(), BTreeMap::new());
        let (mut streams, mut ids) = (BTreeMap::new(), BTreeMap::new());
        for id in &open.processes {
            processes.insert(id.clone(), started(&client, &mut server, id).await);
        }
        let (fs, http) = (client.fs(), client.http());
        for id in &open.watches {
            let (watch, params) = tokio::join!(fs.watch("/w", Depth::Everything), async {
                let (request, params) = server.expect("fs/watch").await;
                server.answer(&request, json!({})).await;
                params
            });
            watches.insert(id.to_string(), watch.unwrap());
            ids.insert(id.to_string(), params["watchId"].clone());
        }
        for id in &open.streams {
            let (response, params) = tokio::join!(http.get("http://localhost/").stream(), async {
                let (request, params) = server.expect("http/request").await;
                server.answer(&request, json!({"status": 200, "headers": [], "bodyBase64": ""})).await;
                params
            });
            streams.insert(id.clone(), response.unwrap().body);
            ids.insert(id.clone(), params["requestId"].clone());
        }
        Self { client, server, processes, watches, streams, ids }
    }

    /// Replaces the ids of the vector by those that the client chose.
    fn addressed(&self, mut message: Value) -> Value {
        for member in ["watchId", "requestId"] {
            let Some(id) = message.pointer_mut(&format!("/params/{member}")) else { continue };
            let name = id.as_str().map_or_else(|| id.to_string(), str::to_owned);
            if let Some(chosen) = self.ids.get(&name) {
                *id = chosen.clone();
            }
        }
        message
    }
}

async fn run(vector: Vector) {
    let Vector { name, open, steps, log, expect } = vector;
    let mut scene = Scene::open(&open).await;
    for step in steps {
        match step {
            Step::Send(message) => {
                let message = scene.addressed(message);
                scene.server.send(message).await;
            }
            Step::SendText(text) => scene.server.say(&text).await,
            Step::Disconnect(is_meant) => {
                assert!(is_meant, "{name}: a step is left out instead");
                scene.server.hang_up();
                scene.server.reconnect().await;
            }
        }
    }
    let Scene { client, mut server, processes, mut watches, mut streams, .. } = scene;
    let mut missing = expect.sends;
    let mut outcome = std::pin::pin!(async {
        for (id, expected) in &expect.processes {
            check_process(&name, &processes[id], expected).await;
        }
        for (id, expected) in &expect.watches {
            check_watch(&name, watches.get_mut(id).unwrap(), expected).await;
        }
        for (id, expected) in &expect.streams {
            assert_eq!(body(streams.get_mut(id).unwrap()).await, *expected, "{name}: stream {id}");
        }
    });
    let mut is_checked = false;
    while !is_checked || !missing.is_empty() {
        let message = tokio::select! {
            () = &mut outcome, if !is_checked => {
                is_checked = true;
                continue;
            }
            message = server.next() => message,
        };
        missing.retain(|expected| !contains(&message, expected));
        match message["method"].as_str() {
            Some("process/read") => {
                let reply = read(&log, &message["params"]);
                server.answer(&message["id"], reply).await;
            }
            Some("fs/watch" | "fs/unwatch") => server.answer(&message["id"], json!({})).await,
            _ => {}
        }
    }
    assert_eq!(client.disconnects(), expect.disconnects, "{name}");
}

/// Answers a read as a server with this log would.
fn read(log: &BTreeMap<String, Log>, params: &Value) -> Value {
    let after = params["afterSeq"].as_u64().unwrap_or_default();
    let Some(log) = params["processId"].as_str().and_then(|id| log.get(id)) else {
        return json!({"chunks": [], "nextSeq": 1, "exited": false, "exitCode": null, "closed": false, "failure": null});
    };
    let mut reply = log.reply.clone();
    let chunks = reply["chunks"].as_array_mut().unwrap();
    chunks.retain(|chunk| chunk["seq"].as_u64() > Some(after));
    if let Some(Evicted { to_seq, bytes }) = &log.evicted
        && after < *to_seq
    {
        reply["gap"] = json!({"fromSeq": after + 1, "toSeq": to_seq, "bytes": bytes});
    }
    reply
}

/// Returns whether a message has all members of `expected`.
fn contains(message: &Value, expected: &Value) -> bool {
    match (message, expected) {
        (Value::Object(message), Value::Object(expected)) => expected
            .iter()
            .all(|(name, value)| message.get(name).is_some_and(|member| contains(member, value))),
        (message, expected) => message == expected,
    }
}

async fn check_process(name: &str, process: &Process, expected: &ExpectedProcess) {
    let mut events = process.events();
    let (mut seen, mut error) = (Vec::new(), None);
    while !expected.open || seen.len() < expected.events.len() {
        match soon(name, events.next()).await {
            Ok(Some(event)) => seen.push(described(&event)),
            Ok(None) => break,
            Err(why) => {
                error = Some(word(&why));
                break;
            }
        }
    }
    assert_eq!((&seen, &error), (&expected.events, &expected.error), "{name}: process {}", process.id());
}

fn described(event: &Event) -> Value {
    match event {
        Event::Output(chunk) => {
            let text = std::str::from_utf8(&chunk.bytes).unwrap();
            json!({"output": {"seq": chunk.seq, "stream": chunk.stream.name(), "text": text}})
        }
        Event::Exited { exit, .. } => {
            json!({"exited": {"code": exit.code, "signal": exit.signal, "cause": exit.cause}})
        }
        Event::Gap(gap) => json!({"gap": {"fromSeq": gap.from_seq, "toSeq": gap.to_seq, "bytes": gap.bytes}}),
        Event::Closed(_) => json!({"closed": {}}),
        other => panic!("{other:?} is no event of the vectors"),
    }
}

async fn check_watch(name: &str, watch: &mut Watch, expected: &[Value]) {
    for expected in expected {
        let seen = match soon(name, watch.next()).await {
            Ok(changes) => {
                let change = |change: &remex_client::fs::Change| {
                    let path = change.path.native().ok().and_then(Path::to_str).map(str::to_owned);
                    json!([path.unwrap_or_else(|| change.path.to_uri()), change.kind])
                };
                let all: Vec<_> = changes.changes.iter().map(change).collect();
                json!({"changes": all, "overflow": changes.overflow})
            }
            Err(error) => json!({"error": word(&error)}),
        };
        assert_eq!(seen, *expected, "{name}");
    }
}

async fn body(body: &mut Body) -> Value {
    let mut text = String::new();
    loop {
        match soon("the body", body.chunk()).await {
            Ok(Some(chunk)) => text += std::str::from_utf8(&chunk).unwrap(),
            Ok(None) => return json!({"body": text}),
            Err(error) => return json!({"body": text, "error": word(&error)}),
        }
    }
}

/// Returns `protocol` for what a server may not send, and otherwise the reason that the server gave.
fn word(error: &Error) -> String {
    match error {
        Error::Protocol { .. } => "protocol".to_owned(),
        Error::Refused(refused) => {
            let (_, reason) = refused.message.split_once(": ").unwrap();
            reason.to_owned()
        }
        other => panic!("{other}"),
    }
}
