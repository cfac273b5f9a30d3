//! A client in the same process: typed values over the memory link, with the meaning that messages have on a wire.

use std::{
    collections::{BTreeSet, HashMap, VecDeque},
    time::{Duration, Instant},
};

use remex::Local;
use remex_client::{
    Client, Command, Target,
    process::{Event, Executor},
};
use remex_proto::{
    Blob, Call, ClientNote, ErrorKind, RequestId, RpcError, ServerNote,
    call::{Initialized, METHODS, Request},
    discovery, environment, flow, fs, http, initialize, process, request, session,
};
use remex_rpc::memory::{ClientEnd, Reply, ToClient, ToServer};
use serde_json::{Value, json};

use crate::support::{PATIENCE, Place, Server, Watched, Web, start_params, web_answer, with};

/// The client's side of one link, driven by hand.
struct Peer {
    end: ClientEnd,
    last_id: i64,
    session_id: String,
    answers: HashMap<RequestId, Result<Reply, RpcError>>,
    notes: VecDeque<ServerNote>,
    /// Methods that have given an answer of their type.
    answered: BTreeSet<&'static str>,
}

impl Peer {
    /// Connects, asks for acknowledgements and cancelling, and completes the handshake.
    async fn new(local: &Local) -> Self {
        let mut peer = Self::silent(local);
        let hello = json!({
            "clientName": "test", "resumeSessionId": null, "capabilities": ["acks", "cancel", "processStarted"],
        });
        peer.session_id = peer.ask::<initialize::Initialize>(hello).await.session_id;
        peer.tell(Initialized {}).await;
        peer
    }

    /// Connects and says nothing.
    fn silent(local: &Local) -> Self {
        Peer {
            end: local.connect(),
            last_id: 0,
            session_id: String::new(),
            answers: HashMap::new(),
            notes: VecDeque::new(),
            answered: BTreeSet::new(),
        }
    }

    async fn tell(&mut self, note: impl Into<ClientNote>) {
        self.end.sender.send(ToServer::Note(note.into())).await.expect("the server listens");
    }

    /// Sends a request that the JSON describes.
    async fn send<R: Request + Into<Call>>(&mut self, params: Value) -> RequestId {
        let request: R = serde_json::from_value(params).expect("these are params of the method");
        self.last_id += 1;
        let id = RequestId::Integer(self.last_id);
        let call = ToServer::Call { id: id.clone(), call: request.into(), trace: None };
        self.end.sender.send(call).await.expect("the server listens");
        id
    }

    async fn answer<R: Request<Reply: 'static>>(&mut self, id: &RequestId) -> Result<R::Reply, RpcError> {
        while !self.answers.contains_key(id) {
            assert_eq!(self.listen().await, None, "the server takes leave");
        }
        let reply = self.answers.remove(id).unwrap()?;
        self.answered.insert(R::METHOD);
        Ok(reply.take().unwrap_or_else(|| panic!("`{}` answers with another type", R::METHOD)))
    }

    async fn try_ask<R: Request<Reply: 'static> + Into<Call>>(
        &mut self,
        params: Value,
    ) -> Result<R::Reply, RpcError> {
        let id = self.send::<R>(params).await;
        self.answer::<R>(&id).await
    }

    async fn ask<R: Request<Reply: 'static> + Into<Call>>(&mut self, params: Value) -> R::Reply {
        self.try_ask::<R>(params).await.unwrap_or_else(|error| panic!("`{}`: {error:?}", R::METHOD))
    }

    async fn start(&mut self, process_id: &str, argv: &[&str], more: Value) -> process::Started {
        self.ask::<process::Start>(with(start_params(process_id, argv), more)).await
    }

    /// Takes one thing that the server says; returns the reason when it is the last.
    async fn listen(&mut self) -> Option<String> {
        let said = tokio::time::timeout(PATIENCE, self.end.receiver.recv()).await;
        match said.expect("the server says something").expect("the link has not ended") {
            ToClient::Answer { id, outcome } => {
                assert!(self.answers.insert(id, outcome).is_none(), "one request has one answer");
            }
            ToClient::Note(ServerNote::FlowMark(flow::Mark { mark })) => self.tell(flow::Ack { mark }).await,
            ToClient::Note(note) => self.notes.push_back(note),
            ToClient::Close { reason } => return Some(reason),
        }
        None
    }

    async fn note(&mut self) -> ServerNote {
        loop {
            if let Some(note) = self.notes.pop_front() {
                return note;
            }
            assert_eq!(self.listen().await, None, "the server takes leave");
        }
    }

    /// Takes what a process says up to the end, checks the order, and returns its output.
    async fn output(&mut self, process_id: &str) -> Vec<u8> {
        let (mut bytes, mut last_seq) = (Vec::new(), 0);
        loop {
            match self.note().await {
                ServerNote::ProcessOutput(output) if output.process_id == process_id => {
                    assert_eq!(output.seq, last_seq + 1);
                    last_seq = output.seq;
                    bytes.extend_from_slice(&output.chunk);
                }
                ServerNote::ProcessExited(exited) if exited.process_id == process_id => {
                    last_seq = exited.seq;
                }
                ServerNote::ProcessClosed(closed) if closed.process_id == process_id => {
                    assert_eq!(closed.seq, last_seq + 1);
                    return bytes;
                }
                _ => {}
            }
        }
    }

    async fn goodbye(&mut self) -> String {
        loop {
            if let Some(reason) = self.listen().await {
                return reason;
            }
        }
    }
}

fn local() -> Local {
    Local::here().expect("there is room for threads")
}

fn watched(started: &process::Started) -> Watched {
    Watched::printed(&started.pid.unwrap().to_string())
}

#[tokio::test(flavor = "multi_thread")]
async fn every_method_answers_with_the_type_in_the_table() {
    let (local, place) = (local(), Place::new());
    let mut peer = Peer::new(&local).await;
    ask_processes(&mut peer).await;
    ask_files(&mut peer, &place).await;
    ask_open_files(&mut peer, &place).await;
    ask_the_host(&mut peer).await;
    // A link is alone with its session, so there is none that it could observe.
    let own = json!({"sessionId": peer.session_id});
    let refusal = peer.try_ask::<session::Observe>(own.clone()).await.unwrap_err();
    assert_eq!(refusal.kind, ErrorKind::InvalidParams);
    peer.answered.insert(session::Observe::METHOD);
    peer.ask::<session::Unobserve>(own.clone()).await;
    peer.ask::<session::End>(own).await;
    let all: BTreeSet<_> = METHODS.iter().map(|method| method.name).collect();
    assert_eq!(peer.answered, all);
    assert_eq!(peer.goodbye().await, "the session was ended");
}

async fn ask_processes(peer: &mut Peer) {
    peer.start("cat", &["/bin/cat"], json!({"pipeStdin": true})).await;
    peer.start("tty", &["/bin/sleep", "1000"], json!({"tty": true, "restartable": true})).await;
    let (cat, tty) = (json!({"processId": "cat"}), json!({"processId": "tty"}));
    peer.ask::<process::Write>(with(cat.clone(), json!({"chunk": "aGkK", "writeId": "1"}))).await;
    let until = json!({"until": {"output": {"regex": "hi"}}});
    let waited = peer.ask::<process::Wait>(with(cat.clone(), until)).await;
    assert_eq!(waited.matched, Some(Blob::from(&b"hi"[..])));
    assert_eq!(peer.ask::<process::Read>(cat.clone()).await.chunks[0].chunk, Blob::from(&b"hi\n"[..]));
    assert_eq!(peer.ask::<process::Snapshot>(cat.clone()).await.stdout, Blob::from(&b"hi\n"[..]));
    let sought = peer.ask::<process::Seek>(with(cat.clone(), json!({"to": {"tailBytes": 3}}))).await;
    assert_eq!((sought.after_seq, sought.produced_bytes), (0, 3));
    // There is no disk to collect from.
    let refusal = peer.try_ask::<process::Collect>(json!({})).await.unwrap_err();
    assert_eq!(refusal.kind, ErrorKind::NotSupported);
    peer.answered.insert(process::Collect::METHOD);
    peer.ask::<process::CloseStdin>(cat.clone()).await;
    assert_eq!(
        peer.ask::<process::Wait>(with(cat.clone(), json!({"until": "closed"}))).await.exit_code,
        Some(0)
    );
    peer.ask::<process::Resize>(with(tty.clone(), json!({"rows": 10, "cols": 20}))).await;
    peer.ask::<process::Signal>(with(tty.clone(), json!({"signal": "CONT"}))).await;
    peer.ask::<process::Release>(tty.clone()).await;
    assert_eq!(peer.ask::<process::List>(json!({})).await.processes.len(), 2);
    peer.ask::<process::Forget>(cat).await;
    assert_eq!(peer.ask::<process::List>(json!({})).await.processes.len(), 1);
    peer.ask::<process::StartAgain>(tty.clone()).await;
    assert!(peer.ask::<process::Terminate>(tty).await.running);
    assert_eq!(peer.ask::<session::List>(json!({})).await.sessions.len(), 1);
}

async fn ask_files(peer: &mut Peer, place: &Place) {
    let path = |name: &str| json!({"path": place.uri(name)});
    let pair =
        |from: &str, to: &str| json!({"sourcePath": place.uri(from), "destinationPath": place.uri(to)});
    peer.ask::<fs::CreateDirectory>(path("d")).await;
    peer.ask::<fs::WriteFile>(with(path("d/a"), json!({"dataBase64": "aGkK"}))).await;
    assert_eq!(peer.ask::<fs::ReadFile>(path("d/a")).await.data_base64, Blob::from(&b"hi\n"[..]));
    assert_eq!(peer.ask::<fs::GetMetadata>(path("d/a")).await.size, 3);
    peer.ask::<fs::Canonicalize>(path("d/a")).await;
    peer.ask::<fs::Copy>(with(pair("d/a", "d/b"), json!({"recursive": false}))).await;
    peer.ask::<fs::Rename>(pair("d/b", "d/c")).await;
    peer.ask::<fs::SetPermissions>(with(path("d/c"), json!({"mode": 0o600}))).await;
    peer.ask::<fs::SetTimes>(with(path("d/c"), json!({"modifiedAtMs": 1}))).await;
    peer.ask::<fs::Symlink>(with(path("d/l"), json!({"target": "a"}))).await;
    assert_eq!(peer.ask::<fs::ReadLink>(path("d/l")).await.target, "a");
    assert_eq!(peer.ask::<fs::HashFile>(path("d/a")).await.size, 3);
    assert_eq!(peer.ask::<fs::ReadDirectory>(path("d")).await.entries.len(), 3);
    let options = json!({"options": {
        "maxDepth": 9, "maxDirectories": 9, "maxEntries": 9, "followDirectorySymlinks": false,
    }});
    assert_eq!(peer.ask::<fs::Walk>(with(path("d"), options)).await.entries.len(), 2);
    let found = peer.ask::<fs::SearchFiles>(with(path("d"), json!({"options": {"pattern": "^hi$"}}))).await;
    assert_eq!((found.files.len(), found.truncated), (2, None));
    peer.ask::<fs::Remove>(with(path("d"), json!({"recursive": true}))).await;
}

async fn ask_open_files(peer: &mut Peer, place: &Place) {
    let file = json!({"path": place.uri("f")});
    let handle = |id: &str| json!({"handleId": id});
    peer.ask::<fs::Open>(with(handle("w"), with(file.clone(), json!({"mode": "replace"})))).await;
    peer.ask::<fs::WriteBlock>(with(handle("w"), json!({"offset": 0, "chunk": "aGkK"}))).await;
    peer.ask::<fs::Close>(handle("w")).await;
    peer.ask::<fs::Open>(with(handle("r"), file)).await;
    let block = peer.ask::<fs::ReadBlock>(with(handle("r"), json!({"offset": 0, "len": 9}))).await;
    assert_eq!(block, fs::Block { chunk: Blob::from(&b"hi\n"[..]), eof: true });
    peer.ask::<fs::Watch>(json!({"watchId": 1, "path": place.uri("")})).await;
    peer.ask::<fs::Unwatch>(json!({"watchId": 1})).await;
    let missing = json!({"watchId": 2, "missing": [place.uri("m")]});
    assert!(peer.ask::<fs::WatchMissing>(missing).await.watching);
}

async fn ask_the_host(peer: &mut Peer) {
    peer.ask::<discovery::DiscoverRoots>(json!({"roots": []})).await;
    peer.ask::<discovery::Discover>(json!({"cwd": "file:///"})).await;
    let web = Web::answering(web_answer(200, &[], "hi\n"));
    let get = json!({"method": "GET", "url": web.url("/"), "requestId": "r"});
    assert_eq!(peer.ask::<http::HttpRequest>(get).await.body_base64, Blob::from(&b"hi\n"[..]));
    peer.ask::<environment::GetInfo>(json!({})).await;
    peer.ask::<environment::GetStatus>(json!({})).await;
    let config = json!({"cwd": "file:///", "configPaths": [["model"]], "requirementsPaths": []});
    peer.ask::<environment::ReadConfig>(config).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_process_is_observed_from_start_to_end() {
    let local = local();
    let mut peer = Peer::new(&local).await;
    let started = peer.start("p", &["/bin/sh", "-c", "echo out; exit 3"], json!({})).await;
    assert_eq!(peer.notes, [], "the answer comes first");
    let expected =
        process::StartedNote { process_id: "p".to_owned(), session_id: None, pid: started.pid.unwrap() };
    assert_eq!(peer.note().await, expected.into());
    let ServerNote::ProcessOutput(output) = peer.note().await else { panic!("output comes next") };
    let chunk = Blob::from(&b"out\n"[..]);
    let (process_id, stream) = ("p".to_owned(), process::Stream::Stdout);
    assert_eq!(
        output,
        process::Output { process_id, session_id: None, incarnation: None, seq: 1, stream, chunk }
    );
    let ServerNote::ProcessExited(exited) = peer.note().await else { panic!("the exit comes next") };
    assert_eq!((exited.seq, exited.exit_code), (2, 3));
    let ServerNote::ProcessClosed(closed) = peer.note().await else { panic!("the close comes last") };
    assert_eq!((closed.seq, closed.produced.unwrap().stdout), (3, 4));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unread_link_blocks_no_other_and_loses_nothing() {
    let local = local();
    let (mut stalled, mut busy) = (Peer::new(&local).await, Peer::new(&local).await);
    let flood = ["/bin/sh", "-c", "yes 0123456789abcde | head -c 8000000"];
    stalled.start("flood", &flood, json!({})).await;
    busy.start("flood", &flood, json!({})).await;
    assert_eq!(busy.output("flood").await.len(), 8_000_000);
    let entries = stalled.send::<process::List>(json!({})).await;
    let bytes = stalled.output("flood").await;
    assert_eq!(bytes.len(), 8_000_000);
    assert!(bytes.chunks(16).all(|line| line == b"0123456789abcde\n"));
    stalled.answer::<process::List>(&entries).await.expect("it was asked while the link was full");
}

#[tokio::test(flavor = "multi_thread")]
async fn bodies_and_changes_are_delivered_as_values() {
    let (local, place) = (local(), Place::new());
    let mut peer = Peer::new(&local).await;
    let web = Web::answering(web_answer(200, &[], vec![b'x'; 300_000]));
    let get = json!({"method": "GET", "url": web.url("/"), "requestId": "r", "streamResponse": true});
    assert_eq!(peer.ask::<http::HttpRequest>(get).await.status, 200);
    let (mut len, mut last_seq) = (0, 0);
    loop {
        let ServerNote::HttpBodyDelta(delta) = peer.note().await else { panic!("only the body is told") };
        assert_eq!((delta.request_id.as_str(), delta.seq), ("r", last_seq + 1));
        (len, last_seq) = (len + delta.delta_base64.len(), delta.seq);
        if delta.done {
            assert_eq!(delta.error, None);
            break;
        }
    }
    assert_eq!(len, 300_000);

    peer.ask::<fs::Watch>(json!({"watchId": 7, "path": place.uri("")})).await;
    let path = place.write("new", "");
    let change = fs::Change::new(path.into(), fs::ChangeKind::Created);
    let changed = fs::Changed { watch_id: 7, changes: vec![change], overflow: false };
    assert_eq!(peer.note().await, changed.into());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancelled_request_fails() {
    let local = local();
    let mut peer = Peer::new(&local).await;
    peer.start("p", &["/bin/sleep", "1000"], json!({})).await;
    let id = peer.send::<process::Wait>(json!({"processId": "p"})).await;
    peer.tell(request::Cancel { id: id.clone() }).await;
    assert_eq!(peer.answer::<process::Wait>(&id).await.unwrap_err().kind, ErrorKind::Cancelled);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_protocol_violation_closes_the_link_with_the_reason() {
    let local = local();
    let mut peer = Peer::silent(&local);
    let early = peer.try_ask::<environment::GetInfo>(json!({})).await.unwrap_err();
    assert_eq!(early.kind, ErrorKind::Handshake);
    peer.tell(flow::Ack { mark: 1 }).await;
    assert_eq!(peer.goodbye().await, "`flow/ack` without the capability `acks`");
    assert!(peer.end.receiver.recv().await.is_none());
}

#[tokio::test(flavor = "multi_thread")]
async fn links_see_only_the_sessions_of_their_server() {
    let servers = [local(), local()];
    let mut one = Peer::new(&servers[0]).await;
    one.start("p", &["/bin/sleep", "1000"], json!({})).await;
    for (server, seen) in servers.iter().zip([1, 0]) {
        let listed = Peer::new(server).await.ask::<process::List>(json!({"scope": "identity"})).await;
        assert_eq!(listed.processes.len(), seen);
    }
    let resume = json!({"clientName": "test", "resumeSessionId": one.session_id});
    let refusal = Peer::silent(&servers[1]).try_ask::<initialize::Initialize>(resume).await.unwrap_err();
    assert_eq!(refusal.kind, ErrorKind::UnknownSession);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_outlives_its_link_for_the_requested_ttl() {
    let local = local();
    let mut first = Peer::silent(&local);
    let named = json!({"clientName": "test", "resumeSessionId": null, "detachTtlMs": 60_000});
    let session = first.try_ask::<initialize::Initialize>(named).await.unwrap().session_id;
    drop(first);
    let deadline = Instant::now() + PATIENCE;
    loop {
        let resume = json!({"clientName": "test", "resumeSessionId": session});
        match Peer::silent(&local).try_ask::<initialize::Initialize>(resume).await {
            Ok(welcome) => return assert!(welcome.resumed),
            // The server has not seen yet that the link is gone.
            Err(error) => assert_eq!(error.kind, ErrorKind::SessionAttached),
        }
        assert!(Instant::now() < deadline, "the session is still attached");
        tokio::task::yield_now().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_ends_with_its_link() {
    let local = local();
    let mut peer = Peer::new(&local).await;
    let process = watched(&peer.start("p", &["/bin/sleep", "1000"], json!({})).await);
    drop(peer);
    process.assert_ends();
}

#[tokio::test(flavor = "multi_thread")]
async fn shutting_down_an_in_process_server_notifies_clients_and_refuses_new_ones() {
    let local = local();
    let mut peer = Peer::new(&local).await;
    let process = watched(&peer.start("p", &["/bin/sleep", "1000"], json!({})).await);
    let place = local.clone();
    let ending = tokio::spawn(async move { place.shut_down().await });
    assert_eq!(peer.goodbye().await, "the server is shutting down");
    assert!(peer.notes.iter().any(|note| matches!(note, ServerNote::ProcessClosed(_))));
    ending.await.unwrap();
    process.assert_ends();
    assert!(local.connect().receiver.recv().await.is_none());
}

#[test]
fn nothing_outlives_an_in_process_server_even_without_its_runtime() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let (local, peer, daemon) = runtime.block_on(async {
        let local = local();
        let mut peer = Peer::new(&local).await;
        let script = "setsid sleep 1000 >/dev/null 2>&1 & echo $!";
        peer.start("p", &["/bin/sh", "-c", script], json!({})).await;
        let pid = String::from_utf8(peer.output("p").await).unwrap();
        (local, peer, Watched::printed(&pid))
    });
    drop(runtime);
    let target = local.target();
    drop((local, peer));
    assert!(!daemon.ended_within(Duration::ZERO), "the place lives as long as the way to it");
    drop(target);
    assert!(daemon.ended_within(Duration::ZERO), "it is gone at once");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_connects_in_process_as_to_any_server() {
    let local = local();
    let client = Client::connect(local.target()).await.unwrap();
    let flood = Command::new("/bin/sh").args(["-c", "yes | head -c 8000000"]).output(&client).await.unwrap();
    assert_eq!(flood.stdout.len(), 8_000_000);
    let sleeper = Command::new("/bin/sleep").arg("1000").start(&client).await.unwrap();
    let process = Watched::printed(&sleeper.pid().unwrap().to_string());
    drop(local);
    assert!(!process.ended_within(Duration::ZERO), "the place lives as long as its client");
    drop((sleeper, client));
    process.assert_ends();
}

#[tokio::test]
async fn a_program_swaps_a_local_and_a_remote_host_by_value() {
    let server = Server::start();
    for target in [Local::here().unwrap().target(), Target::parse(server.address()).unwrap()] {
        let host: Box<dyn Executor> = Box::new(Client::connect(target).await.unwrap());
        let process = host.start(&Command::shell("echo one; echo two; exit 3")).await.unwrap();
        let (mut events, mut said, mut code) = (process.subscribe(0), Vec::new(), None);
        let followed = async {
            while let Some(event) = events.next().await.unwrap() {
                match event {
                    Event::Output(chunk) => said.extend_from_slice(&chunk.bytes),
                    Event::Exited { exit, .. } => code = Some(exit.code),
                    _ => {}
                }
            }
        };
        tokio::time::timeout(PATIENCE, followed).await.expect("the process ends");
        assert_eq!((&said[..], code), (&b"one\ntwo\n"[..], Some(3)));
    }
}
