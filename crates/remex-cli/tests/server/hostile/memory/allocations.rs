//! Requests and answers that there is no memory for: an error for each of them, and the server goes on.

use std::{fs, process::Stdio};

use rustix::process::{Pid, Resource, Rlimit, prlimit};
use serde_json::{Value, json};

use super::MIB;
use crate::support::{Client, Place, Server, program};

/// Starts a server whose memory is in one heap: others are reserved in advance, and are used where no more can be had.
fn start() -> Server {
    let directory = tempfile::tempdir().expect("a directory can be made");
    let address = format!("unix://{}", directory.path().join("remex.sock").display());
    let mut command = program(&["serve", "--listen", &address]);
    command.stdin(Stdio::null()).env("MALLOC_ARENA_MAX", "1");
    let mut server = Server::launch(command, 1);
    server.keep(directory);
    server
}

/// Lets the server have so much more address space than it has now.
fn leave(server: &Server, more: Option<u64>) {
    let status = fs::read_to_string(format!("/proc/{}/status", server.pid())).expect("the server runs");
    let line = status.lines().find_map(|line| line.strip_prefix("VmSize:")).expect("Linux tells the memory");
    let kib = line.split_whitespace().next().and_then(|kib| kib.parse::<u64>().ok()).expect("it is a number");
    let limit = Rlimit { current: more.map(|more| kib * 1024 + more), maximum: None };
    let pid = i32::try_from(server.pid()).ok().and_then(Pid::from_raw);
    prlimit(pid, Resource::As, limit).expect("limits of our own child can be set");
}

/// Checks that a request fails where so much memory is left, by itself, and works where there is more.
fn assert_fails_alone(server: &Server, left: u64, client: &Client, method: &str, params: &Value) -> Value {
    leave(server, Some(left));
    let outcome = client.call(method, params.clone());
    let error = outcome.map(|_| "an answer").expect_err("there is no memory for it");
    let other = server.client();
    other.call("environment/status", json!({})).expect("others are served");
    client.call("environment/status", json!({})).expect("the connection lasts");
    leave(server, None);
    client.call(method, params.clone()).expect("there is memory again");
    assert_eq!(error["data"]["kind"], "limitExceeded", "{error}");
    error
}

#[test]
fn output_too_large_for_memory_fails_only_that_read() {
    let server = start();
    let client = server.client();
    let output = json!({"output": {"retainBytes": 32 * MIB, "overflow": "evict"}});
    let script = "head -c 24M /dev/zero; echo full >&2; exec sleep 1000";
    client.start("p", &["/bin/sh", "-c", script], output);
    let full = json!({"processId": "p", "until": {"output": {"regex": "full"}}});
    client.call("process/wait", full).expect("the output comes");
    for method in ["process/read", "process/snapshot"] {
        let error = assert_fails_alone(&server, 8 * MIB, &client, method, &json!({"processId": "p"}));
        assert!(error["data"]["hint"].as_str().is_some_and(|hint| hint.contains("`maxBytes`")), "{error}");
    }
}

#[test]
fn a_request_too_large_for_memory_fails_alone() {
    const CONTENT: usize = 40 << 20;
    let (server, place) = (start(), Place::new());
    let client = server.client();
    let write = json!({"path": place.uri("file"), "dataBase64": "A".repeat(CONTENT)});
    // Enough for the message, and not for what it says.
    let error = assert_fails_alone(&server, 64 * MIB, &client, "fs/writeFile", &write);
    assert!(error["message"].as_str().is_some_and(|message| message.contains("no memory")), "{error}");
}

#[test]
fn a_message_too_large_for_memory_is_skipped_and_reported() {
    let (server, place) = (start(), Place::new());
    let client = server.client();
    let write = json!({"path": place.uri("file"), "dataBase64": "A".repeat(40 << 20)});
    leave(&server, Some(16 * MIB));
    client.send("fs/writeFile", write);
    let error = client.outcome(&json!(-1)).expect_err("the message is answered");
    leave(&server, None);
    assert_eq!(error["data"]["kind"], "limitExceeded", "{error}");
    assert!(error["message"].as_str().is_some_and(|message| message.contains("no memory")), "{error}");
    client.call("environment/status", json!({})).expect("the next one works");
    assert!(!place.path("file").exists());
}
