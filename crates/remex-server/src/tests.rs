//! Servers with limits or defects that the program does not have, and clients over a Unix socket.

mod accounts;
mod budgets;
mod cancels;
mod forgetting;
mod identities;
mod limits;
mod panics;
mod path_limits;
pub(crate) mod power;
mod searches;

use std::{sync::Arc, time::Duration};

use remex_access::identity::{Credential, Identity};
use remex_engine::CgroupUse;
use remex_proto::message::Source;
use remex_rpc::{FrameReader, Framing, Listener};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use tempfile::TempDir;
use tokio::{
    io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines},
    net::{
        UnixStream,
        unix::{OwnedReadHalf, OwnedWriteHalf},
    },
    time::timeout,
};

use crate::{
    Auth, Config, HostInfo, Limits, MetricsAccess, Proxies, SandboxFloor, Server, StartPolicy, Trust,
    edge::connection::{self, Link, Transport, Validity},
};

pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

fn config(limits: Limits) -> Config {
    let info = serde_json::from_value(json!({"shell": {"name": "sh", "path": "/bin/sh"}})).unwrap();
    Config {
        limits,
        host_env: Vec::new(),
        auth: Auth::default(),
        host: HostInfo {
            info,
            hostname: String::new(),
            codex_home: None,
            codex_system_dir: "/nonexistent".into(),
        },
        proxies: Proxies::default(),
        trust: Trust::default(),
        audit: None,
        metrics: MetricsAccess::default(),
        cgroup: CgroupUse::None,
        sandbox: SandboxFloor::default(),
        starts: StartPolicy::default(),
        set_parent: None,
        hidden: Vec::new(),
        credentials: Vec::new(),
        own_directories: Vec::new(),
        state: None,
        supervisor: Vec::new(),
    }
}

/// A server with its own socket.
pub(crate) struct TestServer {
    pub(crate) server: Arc<Server>,
    directory: TempDir,
}

impl TestServer {
    pub(crate) async fn new() -> Self {
        Self::with(Limits::default()).await
    }

    async fn with(limits: Limits) -> Self {
        let (server, directory) = (Server::new(config(limits)).unwrap(), tempfile::tempdir().unwrap());
        let address = format!("unix://{}", directory.path().join("socket").display());
        let listener = Listener::bind(&address.parse().unwrap()).await.unwrap();
        tokio::spawn(Arc::clone(&server).serve(listener));
        Self { server, directory }
    }

    async fn connect(&self) -> Client {
        let stream = UnixStream::connect(self.directory.path().join("socket")).await.unwrap();
        let (reader, writer) = stream.into_split();
        Client { lines: BufReader::new(reader).lines(), writer, notes: Vec::new(), count: 0 }
    }

    /// Opens a connection for a token with these scopes, and completes the handshake.
    async fn client_as(&self, name: &str, scopes: &str) -> Client {
        let mut client = self.connect_as(name, scopes);
        client.call("initialize", json!({"clientName": name, "sessionName": name})).await.unwrap();
        client.send(json!({"method": "initialized", "params": {}})).await;
        client
    }

    /// Opens a connection for a token with these scopes.
    fn connect_as(&self, name: &str, scopes: &str) -> Client {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let (reader, writer) = theirs.into_split();
        let transport = Transport::Wire {
            reader: FrameReader::new(Box::new(reader), Framing::Lines, Limits::default().message_bytes),
            writer: Box::new(writer),
            framing: Framing::Lines,
            source: Source::Unix,
        };
        let digest = Sha256::digest(name).into();
        let identity = Identity::Token { digest: Some(digest), name: name.into() };
        let scopes = Arc::new(scopes.parse().unwrap());
        let credential = Credential { identity, scopes, expires_at: None };
        let link = Link { transport, validity: Validity::fixed(credential), peer: "test".into() };
        tokio::spawn(connection::run(Arc::clone(self.server.sessions()), link));
        let (reader, writer) = ours.into_split();
        Client { lines: BufReader::new(reader).lines(), writer, notes: Vec::new(), count: 0 }
    }

    /// Opens a connection and completes the handshake.
    async fn client(&self) -> Client {
        let mut client = self.connect().await;
        // The session expires soon after its client disconnects, so that the server becomes idle.
        client.call("initialize", json!({"clientName": "test", "detachTtlMs": 1})).await.unwrap();
        client.send(json!({"method": "initialized", "params": {}})).await;
        client
    }

    /// Checks that the server waits for nothing.
    async fn assert_idle(&self) {
        timeout(PATIENCE, self.server.wait_until_idle(Duration::ZERO))
            .await
            .expect("the server becomes idle");
    }
}

struct Client {
    lines: Lines<BufReader<OwnedReadHalf>>,
    writer: OwnedWriteHalf,
    notes: Vec<Value>,
    count: u64,
}

impl Client {
    async fn send(&mut self, message: Value) {
        self.writer.write_all(format!("{message}\n").as_bytes()).await.unwrap();
    }

    /// Returns the next message, or `None` at the end of the connection.
    async fn next(&mut self) -> Option<Value> {
        let line = timeout(PATIENCE, self.lines.next_line()).await.expect("the server sends a message");
        // A reset is an end as well.
        line.ok().flatten().map(|line| serde_json::from_str(&line).unwrap())
    }

    async fn call(&mut self, method: &str, params: Value) -> Result<Value, Value> {
        self.count += 1;
        let id = json!(self.count);
        self.send(json!({"id": id, "method": method, "params": params})).await;
        self.outcome(&id).await
    }

    /// Waits for the next answer with this id.
    async fn outcome(&mut self, id: &Value) -> Result<Value, Value> {
        loop {
            let message = self.next().await.expect("the connection lasts until the answer");
            match (message["id"] == *id, message.get("result"), message.get("error")) {
                (true, Some(result), _) => return Ok(result.clone()),
                (true, _, Some(error)) => return Err(error.clone()),
                _ => self.notes.push(message),
            }
        }
    }

    async fn start(&mut self, id: &str, script: &str) -> Result<Value, Value> {
        self.call("process/start", start_params(id, script)).await
    }

    /// Waits for a notification about a process, and returns its parameters.
    async fn note(&mut self, method: &str, id: &str) -> Value {
        loop {
            let is_it = |note: &&Value| note["method"] == method && note["params"]["processId"] == id;
            if let Some(note) = self.notes.iter().find(is_it) {
                return note["params"].clone();
            }
            let message = self.next().await.expect("the connection lasts until the notification");
            self.notes.push(message);
        }
    }

    async fn assert_ends(mut self) {
        self.end().await;
    }

    /// Waits until the server has closed the connection, and keeps this side open.
    async fn end(&mut self) {
        while self.next().await.is_some() {}
    }

    /// Checks that the session works: a new process runs, and ending the session ends everything.
    async fn assert_works(mut self) {
        self.start("witness", "echo fine; exec sleep 1000").await.unwrap();
        self.note("process/output", "witness").await;
        let listed = self.call("session/list", json!({})).await.unwrap();
        let session =
            listed["sessions"].as_array().unwrap().iter().find(|session| session["attached"] == true);
        let session = session.unwrap()["sessionId"].clone();
        self.call("session/end", json!({"sessionId": session})).await.unwrap();
    }
}

fn start_params(id: &str, script: &str) -> Value {
    json!({
        "processId": id, "argv": ["/bin/sh", "-c", script], "cwd": "/", "env": {}, "tty": false, "pipeStdin": true,
    })
}

#[tokio::test]
async fn an_audit_file_that_cannot_be_opened_is_named() {
    let audit = Some(crate::AuditConfig::new("/nonexistent/audit".into()));
    let error = Server::new(Config { audit, ..config(Limits::default()) }).unwrap_err();
    assert!(
        error.message().starts_with("cannot open the audit file `/nonexistent/audit`: No such file"),
        "{error}"
    );
    assert!(error.hint().contains("create the directory"), "{error}");
}
