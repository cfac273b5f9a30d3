//! Says what the recorded client said, when it had heard what the recorded client had heard.

use std::{
    collections::{BTreeMap, HashMap},
    net::TcpListener,
    path::Path,
};

use serde_json::{Value, json};
use tempfile::TempDir;

use super::{
    process_record::Story,
    recorded_host::World,
    recording::{Recording, Step},
    web::Web,
};
use crate::support::{Client, Server, decode, encode, program};

/// What this machine may lack, or what takes too long, and what is said instead.
const STAND_INS: &[(&str, &str)] = &[
    ("/usr/bin/python3", "/bin/sh"),
    ("sleep 70", "sleep 0.1"),
    ("git init -q", "mkdir .git"),
    (
        "git status --short; git rev-parse --show-toplevel",
        "printf '?? %s\\n' .agents/ .codex/ AGENTS.md i.png; pwd",
    ),
];

/// Answers each request with the next recorded line, as the recorded tool server did.
const TOOL_SERVER: &str = r#"
exec 3< "${0%/*}/answers"
while IFS= read -r line; do
    case $line in
        *'"id":'*) IFS= read -r answer <&3; printf '%s\n' "$answer" ;;
    esac
done
"#;

/// Replays one recording from beginning to end.
pub(crate) fn replay(name: &str) {
    let recording = Recording::load(name);
    let mut replay = Replay::new(&recording);
    for line in &recording.lines {
        match &line.step {
            Step::Open => replay.open(line.connection),
            Step::Spawn => replay.spawn(line.connection),
            Step::Say(message) => replay.say(line.connection, message),
            Step::Hear(message) if message.get("method").is_some() => replay.note(line.connection, message),
            Step::Hear(reply) => replay.hear(line.connection, reply),
            Step::Close => replay.close(line.connection),
            Step::Restart => replay.restart(),
        }
    }
    replay.end();
}

struct Replay {
    place: Place,
    world: World,
    server: Option<Server>,
    clients: HashMap<u64, Client>,
    /// What was asked: connection and id to method and our parameters.
    asked: HashMap<(u64, String), (String, Value)>,
    /// Recorded session ids and ours.
    sessions: HashMap<String, String>,
    recorded: BTreeMap<String, Story>,
    heard: BTreeMap<String, Story>,
    /// Recorded streams of HTTP bodies, by connection and request.
    bodies: BTreeMap<(u64, String), Body>,
}

/// What came of a streamed body.
#[derive(Debug, Default, PartialEq, Eq)]
struct Body {
    bytes: Vec<u8>,
    is_done: bool,
}

impl Body {
    fn add(&mut self, part: &Value) {
        self.bytes.extend(decode(&part["deltaBase64"]));
        assert_eq!(part["error"], Value::Null, "no recorded body broke off");
        self.is_done |= part["done"] == true;
    }
}

impl Replay {
    fn new(recording: &Recording) -> Self {
        Self {
            place: Place::new(recording),
            world: World::new(recording),
            server: None,
            clients: HashMap::new(),
            asked: HashMap::new(),
            sessions: HashMap::new(),
            recorded: BTreeMap::new(),
            heard: BTreeMap::new(),
            bodies: BTreeMap::new(),
        }
    }

    fn open(&mut self, connection: u64) {
        let place = &self.place;
        let server = self.server.get_or_insert_with(|| {
            let mut command = program(&["serve"]);
            command
                .stdin(std::process::Stdio::null())
                .env("HOME", place.path("/home/user"))
                .env("TMPDIR", "/tmp");
            Server::launch(command, 1)
        });
        self.clients.insert(connection, server.connect());
    }

    fn spawn(&mut self, connection: u64) {
        let mut command = program(&["serve", "--listen", "stdio"]);
        command.env("HOME", self.place.path("/home/user")).env("TMPDIR", "/tmp");
        let (server, client) = Server::launch_stdio(command);
        self.server = Some(server);
        self.clients.insert(connection, client);
    }

    /// Says what the client said, as soon as we know what it knew.
    fn say(&mut self, connection: u64, message: &Value) {
        self.catch_up(connection);
        let mut message = message.clone();
        self.place.rewrite(&mut message["params"]);
        let process = message["params"]["processId"].as_str().unwrap_or_default().to_owned();
        match message["method"].as_str().expect("a client sends requests and notifications") {
            "initialize" => {
                if let Some(ours) =
                    message["params"]["resumeSessionId"].as_str().and_then(|id| self.sessions.get(id))
                {
                    message["params"]["resumeSessionId"] = json!(ours);
                }
            }
            "process/read" => {
                // Our chunks may be fewer and longer, so the cursor is where we stand if that is less.
                let recorded = message["params"]["afterSeq"].as_u64().unwrap_or(0);
                let ours = self.heard.get(&process).map_or(0, Story::last_seq);
                message["params"]["afterSeq"] = json!(recorded.min(ours));
            }
            _ => {}
        }
        if let (Some(id), Some(method)) = (message.get("id"), message["method"].as_str()) {
            if let Some(mut answer) = self.world.answer(connection, id) {
                self.place.rewrite(&mut answer);
                self.world.prepare(method, &message["params"], &answer);
            }
            let asked = (method.to_owned(), message["params"].clone());
            self.asked.insert((connection, id.to_string()), asked);
        }
        self.clients[&connection].send_json(&message);
    }

    /// Notes what the recorded server told; [`Self::catch_up`] waits for as much.
    fn note(&mut self, connection: u64, message: &Value) {
        let params = &message["params"];
        if let Some(process) = params["processId"].as_str() {
            let story = self.recorded.entry(process.to_owned()).or_insert_with(|| self.place.story());
            story.add_event(message);
        } else if let Some(request) = params["requestId"].as_str() {
            self.bodies.entry((connection, request.to_owned())).or_default().add(params);
        } else if !self.asked.values().any(is_confined) {
            // To confine a command, the recorded server creates what is missing and protected for a moment, and its client is
            // told.
            let same = |heard: &&Value| heard["method"] == message["method"] && heard["params"] == *params;
            let what = format!("the notification {message}");
            self.clients[&connection].wait(&what, |seen| seen.notifications().find(same).map(|_| ()));
        }
    }

    /// Waits for our answer to a request and compares it with the recorded one.
    fn hear(&mut self, connection: u64, recorded: &Value) {
        let (method, params) = self.asked[&(connection, recorded["id"].to_string())].clone();
        let reply = self.clients[&connection].reply(&recorded["id"]);
        let context = format!("{method} {params}\nrecorded: {recorded}\nheard: {reply}");
        if recorded.get("error").is_some() {
            assert_eq!(reply["error"]["code"], recorded["error"]["code"], "{context}");
            return;
        }
        let mut expected = recorded["result"].clone();
        if method.starts_with("process/") {
            assert_same_shape(&expected, &reply["result"], &context);
        } else {
            self.place.rewrite(&mut expected);
            assert_same_answer(&method, expected, &reply["result"], &context);
        }
        match method.as_str() {
            "initialize" => self.learn_session(&params, recorded, &reply),
            "process/read" => self.learn_read(&params, recorded, &reply),
            _ => {}
        }
    }

    fn learn_session(&mut self, params: &Value, recorded: &Value, reply: &Value) {
        let ours = reply["result"]["sessionId"].as_str().expect("a session has an id").to_owned();
        if let Some(resumed) = params["resumeSessionId"].as_str() {
            assert_eq!(ours, resumed, "the same session comes back");
        }
        let theirs = recorded["result"]["sessionId"].as_str().expect("a session has an id");
        self.sessions.insert(theirs.to_owned(), ours);
    }

    fn learn_read(&mut self, params: &Value, recorded: &Value, reply: &Value) {
        let process = params["processId"].as_str().expect("a read names its process");
        self.heard.entry(process.to_owned()).or_default().add_read(&reply["result"]);
        let story = self.recorded.entry(process.to_owned()).or_insert_with(|| self.place.story());
        story.add_read(&recorded["result"]);
    }

    /// Waits until every process has told us what it had told the recorded client at this point.
    fn catch_up(&mut self, connection: u64) {
        let client = &self.clients[&connection];
        for (process, recorded) in &self.recorded {
            let heard = self.heard.entry(process.clone()).or_default();
            if heard.covers(recorded) {
                continue;
            }
            client.wait(&format!("what process `{process}` said"), |seen| {
                seen.events(process).for_each(|event| heard.add_event(event));
                heard.covers(recorded).then_some(())
            });
        }
    }

    fn close(&mut self, connection: u64) {
        // A connection that was refused was never opened.
        if self.clients.contains_key(&connection) {
            self.catch_up(connection);
            self.compare_bodies(connection);
            self.clients.remove(&connection);
        }
    }

    /// Waits for the bodies that the recorded client had got to the end, and compares them.
    fn compare_bodies(&mut self, connection: u64) {
        let client = &self.clients[&connection];
        for ((_, request), recorded) in
            self.bodies.iter().filter(|((of, _), body)| *of == connection && body.is_done)
        {
            let heard = client.wait(&format!("the body of `{request}`"), |seen| {
                let mut body = Body::default();
                let parts = seen.notifications().map(|note| &note["params"]);
                parts.filter(|part| part["requestId"] == **request).for_each(|part| body.add(part));
                body.is_done.then_some(body)
            });
            assert_eq!(&heard, recorded, "the body of `{request}`");
        }
    }

    fn restart(&mut self) {
        self.server.take().expect("a server is there to be stopped").stop();
        self.recorded.clear();
        self.heard.clear();
    }

    /// Compares what each process said from beginning to end.
    fn end(mut self) {
        let open: Vec<u64> = self.clients.keys().copied().collect();
        for connection in open {
            self.close(connection);
        }
        for (process, recorded) in &self.recorded {
            self.heard[process].assert_tells_the_same_as(recorded, process);
        }
        self.server.expect("every recording has a server").stop();
    }
}

/// Where a recording is replayed: a directory that stands for the recorded paths, and a port that accepts.
struct Place {
    root: TempDir,
    port: TcpListener,
    web: Web,
}

impl Place {
    /// Makes a place with everything that the recorded commands expect to be there.
    fn new(recording: &Recording) -> Self {
        let root = tempfile::tempdir().expect("a directory can be made");
        let port = TcpListener::bind("127.0.0.1:0").expect("loopback has a free port");
        let place = Self { root, port, web: Web::start(recording) };
        let tool_answers: Vec<u8> = recording
            .heard()
            .filter(|message| {
                message["params"]["processId"] == "mcp-stdio-1" && message["method"] == "process/output"
            })
            .flat_map(|message| decode(&message["params"]["chunk"]))
            .collect();
        place.write("/mcp/server.py", TOOL_SERVER);
        place.write("/mcp/answers", tool_answers);
        place.write("/workspace/main/sub/keep.txt", "");
        place.write("/workspace/sandbox-read-only/seed.txt", "seed\n");
        for directory in
            ["/home/user", "/workspace/resume", "/workspace/sandbox-workspace-write", "/workspace/stdio"]
        {
            std::fs::create_dir_all(place.path(directory)).expect("a directory can be made");
        }
        place
    }

    fn write(&self, path: &str, content: impl AsRef<[u8]>) {
        let path = self.path(path);
        let parent = Path::new(&path).parent().expect("a file has a parent");
        std::fs::create_dir_all(parent).expect("a directory can be made");
        std::fs::write(path, content).expect("a file can be written");
    }

    /// Returns where a recorded path is here.
    fn path(&self, recorded: &str) -> String {
        format!("{}{recorded}", self.root.path().display())
    }

    /// Puts what is here in place of what was recorded, in every string.
    fn rewrite(&self, value: &mut Value) {
        match value {
            Value::String(text) => *text = self.rewritten(text),
            Value::Array(values) => values.iter_mut().for_each(|value| self.rewrite(value)),
            Value::Object(members) => members.values_mut().for_each(|value| self.rewrite(value)),
            Value::Null | Value::Bool(_) | Value::Number(_) => {}
        }
    }

    fn rewritten(&self, text: &str) -> String {
        if let Some((_, len)) = text.split_once("...(") {
            let len: usize =
                len.split(' ').next().and_then(|len| len.parse().ok()).expect("the length is there");
            // With the most padding, so that a block is never longer than it was.
            return encode(vec![b'x'; len / 4 * 3 - 2]);
        }
        let text = text.replace("127.0.0.1:8080", &self.web.address.to_string());
        let mut text = STAND_INS.iter().fold(text, |text, (from, to)| text.replace(from, to));
        if let Some((before, after)) = text.split_once("/dev/tcp/127.0.0.1/") {
            let after = after.trim_start_matches(|digit: char| digit.is_ascii_digit());
            let port = self.port.local_addr().expect("a listener has an address").port();
            text = format!("{before}/dev/tcp/127.0.0.1/{port}{after}");
        }
        PLACES.iter().fold(text, |text, place| text.replace(place, &self.path(place)))
    }

    /// Begins a story whose recorded paths are replaced by those here.
    fn story(&self) -> Story {
        let places = PLACES.iter().map(|&place| (place, self.path(place)));
        // The recorded server refuses sockets; here a confined process has a network of its own, in which nobody listens.
        let port = self.port.local_addr().expect("a listener has an address").port();
        let refusals = [
            ("socket: Operation not permitted", "connect: Connection refused".to_owned()),
            ("127.0.0.1/44025: Operation not permitted", format!("127.0.0.1/{port}: Connection refused")),
        ];
        Story::moved(places.chain(refusals).collect())
    }
}

/// What the recorder wrote in place of machine paths.
const PLACES: &[&str] = &["/workspace", "/parent", "/home/user", "/mcp"];

/// Tells whether a request has started a confined process.
fn is_confined((method, params): &(String, Value)) -> bool {
    method == "process/start"
        && params["sandbox"].is_object()
        && params["sandbox"]["permissions"]["type"] != "disabled"
}

/// Checks that `heard` says what was recorded, but for what differs from host to host.
fn assert_same_answer(method: &str, mut recorded: Value, heard: &Value, context: &str) {
    assert_same_shape(&recorded, heard, context);
    let Value::Object(members) = &mut recorded else { panic!("answers are objects\n{context}") };
    members.retain(|name, _| !DIFFERS.contains(&(method, name)));
    for (name, value) in members {
        assert_eq!(heard[name.as_str()], *value, "member `{name}`\n{context}");
    }
}

/// Members of answers that differ from host to host, or from time to time.
const DIFFERS: &[(&str, &str)] = &[
    ("initialize", "sessionId"),
    ("initialize", "environmentInfo"),
    ("environmentConfig/read", "hostname"),
    ("fs/getMetadata", "size"),
    ("fs/getMetadata", "createdAtMs"),
    ("fs/getMetadata", "modifiedAtMs"),
];

/// Features of the recorded server that this one has, and three that only this one has; of the others it says nothing.
const FEATURES: [&str; 12] = [
    "networkProxyLaunch",
    "capabilityDiscoverySandbox",
    "capabilityDiscoveryV2",
    "fsWatchMissing",
    "environmentConfigRead",
    "httpHeaderEnvVars",
    "sandboxedFileStreaming",
    "fileWriteStreaming",
    "shellSnapshotV2",
    "processRestart",
    "processRestartRequest",
    "processIncarnation",
];

/// Checks that `heard` has every member of `recorded`, each of the same type.
fn assert_same_shape(recorded: &Value, heard: &Value, context: &str) {
    match (recorded, heard) {
        (Value::Object(recorded), Value::Object(heard)) => {
            for (name, value) in recorded {
                if name == "capabilities" {
                    let mut known: BTreeMap<_, _> =
                        FEATURES.iter().map(|name| (name.to_string(), json!(true))).collect();
                    known.insert("processUser".to_owned(), json!(rustix::process::geteuid().is_root()));
                    assert_eq!(json!(heard[name]), json!(known), "{context}");
                    continue;
                }
                let ours = heard.get(name).unwrap_or_else(|| panic!("member `{name}` is missing\n{context}"));
                // Null until the process has exited, and we may look earlier than the recorded client did.
                if name != "exitCode" {
                    assert_same_shape(value, ours, context);
                }
            }
        }
        (Value::Array(recorded), Value::Array(heard)) => {
            if let Some(example) = recorded.first() {
                heard.iter().for_each(|element| assert_same_shape(example, element, context));
            }
        }
        (Value::Null, Value::Null)
        | (Value::Bool(_), Value::Bool(_))
        | (Value::Number(_), Value::Number(_))
        | (Value::String(_), Value::String(_)) => {}
        _ => panic!("{heard} has another type than {recorded}\n{context}"),
    }
}
