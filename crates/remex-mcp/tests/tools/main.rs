//! The tools as an MCP client sees them, on real servers in this process.

#![allow(clippy::unwrap_used, reason = "in a test it is the assertion")]
#![cfg(target_os = "linux")]

mod answers;
mod edits;
mod hardships;
mod processes;
mod search;

use std::{net::SocketAddr, path::Path, time::Duration};

use remex::Local;
use remex_client::{Client, Target};
use remex_mcp::{
    Allow, Environment, Tools,
    http::{Http, Token},
};
use rmcp::{
    RoleClient, ServiceExt as _,
    model::{
        CallToolRequestParams, CallToolResult, CancelledNotificationParam, ClientRequest, JsonObject, Request,
    },
    service::{PeerRequestOptions, RunningService},
};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    time::timeout,
};

/// Nothing here takes as long.
const OVERDUE: Duration = Duration::from_secs(60);

/// A server, and the directory that its environment begins at.
struct World {
    local: Local,
    directory: TempDir,
}

/// A client of the tools.
struct Model {
    service: RunningService<RoleClient, ()>,
}

fn environment(name: &str, target: Target, directory: &Path) -> Environment {
    let connect = move |options| {
        let target = target.clone();
        async move { Client::connect_with(target, options).await.map_err(|error| error.to_string()) }
    };
    Environment::new(name, connect).directory(directory)
}

impl World {
    fn new() -> Self {
        Self { local: Local::here().unwrap(), directory: tempfile::tempdir().unwrap() }
    }

    fn tools(&self, allow: Allow) -> Tools {
        Tools::new(vec![environment("here", self.local.target(), self.directory.path())], allow)
    }

    async fn model(&self) -> Model {
        Model::of(self.tools(Allow::everything())).await
    }

    fn file(&self, name: &str) -> String {
        std::fs::read_to_string(self.directory.path().join(name)).unwrap()
    }
}

impl Model {
    async fn of(tools: Tools) -> Self {
        let (server, client) = tokio::io::duplex(1 << 16);
        tokio::spawn(async move { Box::pin(tools.serve(server)).await.unwrap().waiting().await });
        Self { service: timeout(OVERDUE, ().serve(client)).await.unwrap().unwrap() }
    }

    async fn call(&self, tool: &'static str, arguments: Value) -> CallToolResult {
        let params = CallToolRequestParams::new(tool).with_arguments(object(arguments));
        timeout(OVERDUE, self.service.call_tool(params)).await.expect("it answers").unwrap()
    }

    /// Calls a tool that succeeds, and returns its text and its data.
    async fn does(&self, tool: &'static str, arguments: Value) -> (String, Value) {
        let result = self.call(tool, arguments).await;
        assert_ne!(result.is_error, Some(true), "{result:?}");
        (text(&result), result.structured_content.unwrap_or_default())
    }

    /// Calls a tool that fails, and returns why.
    async fn fails(&self, tool: &'static str, arguments: Value) -> String {
        let result = self.call(tool, arguments).await;
        assert_eq!(result.is_error, Some(true), "{result:?}");
        text(&result)
    }
}

fn object(value: Value) -> JsonObject {
    let Value::Object(object) = value else { panic!("{value} is no object") };
    object
}

fn text(result: &CallToolResult) -> String {
    result.content[0].as_text().unwrap().text.clone()
}

/// Waits until something is so.
async fn eventually(what: &str, holds: impl Fn() -> bool) {
    let waiting = async {
        while !holds() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(OVERDUE, waiting).await.unwrap_or_else(|_| panic!("waited in vain for {what}"));
}

#[tokio::test]
async fn a_command_returns_its_output_and_exit() {
    let world = World::new();
    let model = world.model().await;
    let (text, data) = model.does("run_command", json!({"command": "echo out; echo err >&2; exit 3"})).await;
    assert!(text.starts_with("out\nerr\n[`echo-") && text.ends_with("` ended with exit code 3]"), "{text}");
    assert_eq!((&data["output"], &data["exit_code"]), (&json!("out\nerr\n"), &json!(3)));
    assert_eq!((&data["running"], &data["returned"]), (&json!(false), &json!("ended")));
    let (text, _) = model.does("run_command", json!({"command": "cat", "stdin": "given"})).await;
    assert!(text.starts_with("given\n["), "{text}");
    let piped = json!({"command": "cat", "name": "cat", "input": "pipe", "wait_seconds": 0.1});
    let (text, _) = model.does("run_command", piped).await;
    assert!(text.starts_with("[`cat` is still running"), "{text}");
    let sent = json!({"process": "cat", "text": "later", "end_input": true, "wait_seconds": 10});
    let (text, _) = model.does("send_input", sent).await;
    assert_eq!(text, "later\n[`cat` ended with exit code 0]");
    let why = model.fails("send_input", json!({"process": "cat", "text": "x"})).await;
    assert!(why.starts_with("process `cat` has ended"), "{why}");
    let (text, data) = model.does("run_command", json!({"command": "kill -9 $$"})).await;
    assert!(text.ends_with("was ended by SIGKILL]"), "{text}");
    assert_eq!(data["signal"], "SIGKILL");
    let (text, _) =
        model.does("run_command", json!({"command": "sleep 1000", "timeout_seconds": 0.05})).await;
    assert!(text.ends_with("was ended by its time limit]"), "{text}");
    // What has ended and was read completely is not in the way.
    let (text, _) = model.does("list_processes", json!({})).await;
    assert!(text.starts_with("cat on here: ended with code 0") && !text.contains('\n'), "{text}");
}

#[tokio::test]
async fn a_yielded_process_can_be_used_by_its_name() {
    let world = World::new();
    let model = world.model().await;
    let command = "stty -echo; echo ready; while read line; do echo \"got $line\"; done";
    let start = json!({"command": command, "name": "repl", "input": "terminal", "wait_seconds": 0.2});
    let (text, data) = model.does("run_command", start.clone()).await;
    assert!(text.ends_with("[`repl` is still running; read on with `read_output`]"), "{text}");
    assert_eq!((&data["running"], &data["process"]), (&json!(true), &json!("repl")));
    let sent = json!({"process": "repl", "text": "one\n", "wait_for": "got one"});
    let (text, data) = model.does("send_input", sent).await;
    assert!(text.contains("got one\n[`repl` is running; the awaited text was written]"), "{text}");
    assert_eq!(data["returned"], "matched");
    // A call that waits for output does not block the input that produces it.
    let (waited, sent) = tokio::join!(
        model.does("read_output", json!({"process": "repl", "wait_for": "got two", "wait_seconds": 10})),
        model.does("send_input", json!({"process": "repl", "text": "two\n", "wait_seconds": 0})),
    );
    assert!(format!("{}{}", waited.0, sent.0).contains("got two"), "{waited:?} {sent:?}");
    let (text, _) = model.does("read_output", json!({"process": "repl", "silence_seconds": 0.05})).await;
    assert_eq!(text, "[`repl` is running, and silent]");
    let (text, _) =
        model.does("read_output", json!({"process": "repl", "from_start": true, "wait_seconds": 0})).await;
    assert!(text.contains("ready") && text.contains("got one"), "{text}");
    let why = model.fails("run_command", start).await;
    assert!(why.starts_with("a process named `repl` is already running"), "{why}");
    let why = model.fails("send_input", json!({"process": "repl", "wait_for": "("})).await;
    assert!(why.contains("is not a regular expression"), "{why}");
    let why = model.fails("read_output", json!({"process": "nobody"})).await;
    assert!(why.contains("there is no process `nobody`\nchoose one of: repl"), "{why}");
    let (text, data) = model.does("stop_process", json!({"process": "repl"})).await;
    assert!(text.ends_with("`repl` was ended by SIGTERM]"), "{text}");
    assert_eq!(data["running"], false);
    let why = model.fails("send_input", json!({"process": "repl", "text": "x"})).await;
    assert!(why.starts_with("process `repl` has ended"), "{why}");
    // A name can be used again once its process has ended.
    let (text, _) = model.does("run_command", json!({"command": "echo again", "name": "repl"})).await;
    assert!(text.starts_with("again\n"), "{text}");
}

#[tokio::test]
async fn long_output_keeps_its_head_and_tail_and_reports_what_is_omitted() {
    let world = World::new();
    let model = world.model().await;
    let command = "seq 1 100000; printf '\\033[31mred\\033[0m 10%%\\r100%%\\n'";
    let (text, data) = model.does("run_command", json!({"command": command, "max_output_tokens": 100})).await;
    assert!(
        text.starts_with("1\n2\n") && text.contains("bytes omitted") && text.contains("100000\n100%"),
        "{text}"
    );
    assert!(data["output"].as_str().unwrap().len() <= 400);
    assert!(data["omitted_bytes"].as_u64().unwrap() > 500_000, "{data}");
    let name = data["process"].as_str().unwrap();
    let all = json!({"process": name, "from_start": true, "max_output_tokens": 100_000});
    let (text, _) = model.does("read_output", all).await;
    assert!(text.contains("\n10000\n10001\n"), "it can be read again");
}

#[tokio::test]
async fn a_cancelled_command_ends_with_all_its_descendants() {
    let world = World::new();
    let model = world.model().await;
    let pids = world.directory.path().join("pids");
    let command = "sleep 1000 & echo $$ $! > pids.new; mv pids.new pids; wait";
    let params = CallToolRequestParams::new("run_command")
        .with_arguments(object(json!({"command": command, "wait_seconds": 600})));
    let request = ClientRequest::CallToolRequest(Request::new(params));
    let handle =
        model.service.send_cancellable_request(request, PeerRequestOptions::no_options()).await.unwrap();
    eventually("the start", || pids.exists()).await;
    let cancelled =
        CancelledNotificationParam::new(Some(handle.id.clone()), Some("no longer needed".to_owned()));
    model.service.notify_cancelled(cancelled).await.unwrap();
    let pids = world.file("pids");
    let is_gone = || pids.split_whitespace().all(|pid| !Path::new("/proc").join(pid).exists());
    eventually("the end of both processes", is_gone).await;
}

#[tokio::test]
async fn a_process_survives_its_client_and_is_found_again_by_its_name() {
    let world = World::new();
    let tools = world.tools(Allow::everything());
    let model = Model::of(tools.clone()).await;
    let command = "echo before; until test -e go; do sleep 0.02; done; echo after";
    let (text, _) =
        model.does("run_command", json!({"command": command, "name": "server", "wait_seconds": 0.2})).await;
    assert!(text.starts_with("before\n"), "{text}");
    drop(model);
    tools.close().await;
    let model = world.model().await;
    let (text, _) = model.does("list_processes", json!({})).await;
    assert!(text.starts_with("server on here: running"), "{text}");
    std::fs::write(world.directory.path().join("go"), "").unwrap();
    let (text, _) = model.does("read_output", json!({"process": "server"})).await;
    assert_eq!(text, "before\nafter\n[`server` ended with exit code 0]");
}

#[tokio::test]
async fn files_are_read_written_and_edited_exactly() {
    let world = World::new();
    let model = world.model().await;
    let content = "one\ntwo\nthree\n";
    let (_, written) = model
        .does("write_file", json!({"path": "deep/file", "content": content, "if_match": "absent"}))
        .await;
    let why =
        model.fails("write_file", json!({"path": "deep/file", "content": "x", "if_match": "absent"})).await;
    assert!(why.contains("is not what was expected; nothing was written"), "{why}");
    let (text, read) =
        model.does("read_file", json!({"path": "deep/file", "first_line": 2, "lines": 1})).await;
    let hash = read["hash"].as_str().unwrap();
    let rest =
        format!("[more lines follow; continue with `first_line` 3]\n[14 bytes; for `if_match`: {hash}]");
    assert_eq!(text, format!("     2\ttwo\n{rest}"));
    assert_eq!((&read["hash"], &read["bytes"]), (&written["hash"], &json!(14)));
    let edit = |old: &str, new: &str| json!({"old": old, "new": new});
    let edits = json!({"path": "deep/file", "edits": [edit("two", "2"), edit("three", "3")], "if_match": read["hash"]});
    let (text, _) = model.does("edit_file", edits.clone()).await;
    assert!(text.starts_with("replaced 2 places in"), "{text}");
    assert_eq!(world.file("deep/file"), "one\n2\n3\n");
    for (arguments, why) in [
        (edits, "is not what was expected"),
        (json!({"path": "deep/file", "edits": [edit("two", "2")]}), "does not occur"),
        (json!({"path": "deep/file", "edits": [edit("\n", "")]}), "occurs more than once"),
        (json!({"path": "deep/file", "edits": [edit("", "x")]}), "its `old` is empty"),
        (json!({"path": "deep/file", "edits": [edit("one", "1"), edit("no", "")]}), "edit 2 cannot be made"),
        (json!({"path": "missing", "edits": []}), "missing"),
    ] {
        let said = model.fails("edit_file", arguments).await;
        assert!(said.contains(why), "{said}");
    }
    assert_eq!(world.file("deep/file"), "one\n2\n3\n", "nothing was half done");
    std::fs::write(world.directory.path().join("binary"), [0, 159, 146]).unwrap();
    let (text, _) = model.does("read_file", json!({"path": "binary"})).await;
    assert!(text.starts_with("binary, 3 bytes"), "{text}");
    let why = model.fails("read_file", json!({"path": "deep/file", "first_line": 9})).await;
    assert!(why.contains("has only 3 lines"), "{why}");
}

#[tokio::test]
async fn directories_are_listed() {
    let world = World::new();
    let model = world.model().await;
    for (path, content) in [("a/b/c.rs", "fn main() {}\n"), ("a/d.txt", "Main\n"), ("e", "nothing\n")] {
        model.does("write_file", json!({"path": path, "content": content})).await;
    }
    let (text, _) = model.does("list_directory", json!({})).await;
    assert_eq!(text, "a/\ne");
    let (text, _) = model.does("list_directory", json!({"path": "a", "depth": 3})).await;
    assert_eq!(text, "b/\nb/c.rs\nd.txt");
}

#[tokio::test]
async fn files_are_copied_between_named_environments() {
    let (near, far) = (World::new(), World::new());
    let environments = vec![
        environment("near", near.local.target(), near.directory.path()),
        environment("far", far.local.target(), far.directory.path()),
    ];
    let model = Model::of(Tools::new(environments, Allow::everything())).await;
    let (text, data) = model.does("list_environments", json!({})).await;
    assert_eq!((text.as_str(), data), ("near (default)\nfar", json!({"environments": ["near", "far"]})));
    model.does("write_file", json!({"path": "tree/a", "content": "A"})).await;
    model.does("write_file", json!({"path": "tree/below/b", "content": "B"})).await;
    let copy = json!({"from_path": "tree", "to_environment": "far", "to_path": "copied/tree"});
    let (text, _) = model.does("copy", copy.clone()).await;
    assert_eq!(text, "copied 2 files and links");
    assert_eq!((far.file("copied/tree/a"), far.file("copied/tree/below/b")), ("A".into(), "B".into()));
    model.does("write_file", json!({"path": "tree/a", "content": "changed"})).await;
    let (text, _) = model.does("copy", copy).await;
    assert_eq!(text, "copied 1 files and links");
    // A pipe has no content; the copy is complete without it.
    model.does("run_command", json!({"command": "mkfifo tree/pipe"})).await;
    let (text, data) = model.does("copy", json!({"from_path": "tree", "to_path": "other"})).await;
    assert!(text.starts_with("copied 2 files and links\n[left out near:"), "{text}");
    assert!(text.ends_with("/tree/pipe: it is a pipe, a socket or a device]"), "{text}");
    assert_eq!((data["left_out"].as_array().map(Vec::len), &data["failures"]), (Some(1), &json!([])));
    let (text, _) =
        model.does("run_command", json!({"command": "cat copied/tree/a", "environment": "far"})).await;
    assert!(text.starts_with("changed\n["), "{text}");
    let why = model.fails("run_command", json!({"command": "true", "environment": "moon"})).await;
    assert_eq!(why, "there is no environment `moon`\nchoose one of: near, far");
    let why = model.fails("copy", json!({"from_path": "missing", "to_path": "x"})).await;
    assert!(why.contains("missing"), "{why}");
}

#[tokio::test]
async fn tools_have_annotations_and_only_permitted_ones_exist() {
    let world = World::new();
    let names = |tools: &[rmcp::model::Tool]| -> Vec<String> {
        tools.iter().map(|tool| tool.name.to_string()).collect()
    };
    let model = world.model().await;
    let tools = model.service.list_all_tools().await.unwrap();
    assert_eq!(tools.len(), 13);
    for tool in &tools {
        let annotations = tool.annotations.as_ref().unwrap();
        let reads = ["list_", "read_", "search_"].iter().any(|prefix| tool.name.starts_with(prefix));
        assert_eq!(annotations.read_only_hint, Some(reads), "{}", tool.name);
        assert_eq!(annotations.destructive_hint, Some(!reads), "{}", tool.name);
        assert!(tool.description.is_some(), "{}", tool.name);
    }
    let mut allow = Allow::nothing();
    allow.read_files = true;
    let reader = Model::of(world.tools(allow)).await;
    let tools = reader.service.list_all_tools().await.unwrap();
    assert_eq!(names(&tools), ["list_environments", "read_file", "list_directory", "search_files"]);
    let params = CallToolRequestParams::new("run_command").with_arguments(object(json!({"command": "true"})));
    let error = reader.service.call_tool(params).await.unwrap_err().to_string();
    assert!(error.contains("there is no tool `run_command`"), "{error}");
    let why = model.fails("run_command", json!({"command": "true", "nonsense": 1})).await;
    assert!(why.contains("unknown field `nonsense`"), "{why}");
    let why = model.fails("run_command", json!({"command": "true", "wait_seconds": -1})).await;
    assert!(why.contains("which is no time"), "{why}");
}

/// Sends a request to the HTTP side, and returns the answer.
async fn post(address: SocketAddr, headers: &str, path: &str) -> String {
    let body = json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {
        "protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}});
    let body = body.to_string();
    let mut stream = TcpStream::connect(address).await.unwrap();
    let head = format!(
        "POST {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\ncontent-type: application/json\r\n\
         accept: application/json, text/event-stream\r\ncontent-length: {}\r\n{headers}\r\n",
        body.len()
    );
    stream.write_all(format!("{head}{body}").as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    let mut buffer = [0; 4096];
    // The stream of events stays open.
    while !String::from_utf8_lossy(&answer).contains("serverInfo") {
        match timeout(OVERDUE, stream.read(&mut buffer)).await.expect("an answer").unwrap() {
            0 => break,
            len => answer.extend_from_slice(&buffer[..len]),
        }
    }
    String::from_utf8_lossy(&answer).into_owned()
}

/// Serves the tools of a world over HTTP, for the token `s3cret`.
async fn over_http(world: &World) -> (SocketAddr, Token) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let http = Http::new(listener, "s3cret");
    let found = (http.address().unwrap(), http.token());
    tokio::spawn(http.serve(world.tools(Allow::everything())));
    found
}

#[tokio::test]
async fn over_http_a_token_is_required_and_web_pages_are_refused() {
    let world = World::new();
    let (address, _) = over_http(&world).await;
    let bearer = "authorization: Bearer s3cret\r\n";
    let answer = post(address, bearer, "/mcp").await;
    assert!(answer.starts_with("HTTP/1.1 200") && answer.contains("\"name\":\"remex\""), "{answer}");
    for (headers, path, status) in [
        ("", "/mcp", "401"),
        ("authorization: Bearer wrong\r\n", "/mcp", "401"),
        ("authorization: Basic s3cret\r\n", "/mcp", "401"),
        (&format!("{bearer}origin: https://evil.example\r\n"), "/mcp", "403"),
        (bearer, "/", "404"),
        (&format!("{bearer}authorization: Bearer wrong\r\n"), "/mcp", "400"),
        (&format!("{bearer}{bearer}"), "/mcp", "400"),
        (&format!("{bearer}host: evil.example\r\n"), "/mcp", "400"),
    ] {
        let answer = post(address, headers, path).await;
        assert!(answer.starts_with(&format!("HTTP/1.1 {status}")), "{headers}: {answer}");
    }
}
