//! Logs that cannot be read: for a while, because the server has no descriptor free, or for good.

use std::{fs, os::unix::net::UnixStream};

use rustix::process::{Resource, Rlimit, getrlimit, prlimit};
use serde_json::json;

use super::{
    host::DurableHost,
    restarts::{connect, poll},
};
use crate::support::{Client, decode};

const LEN: usize = 30_000_000;

/// Lets the server open no more files, or as many as usual.
fn limit_files(host: &DurableHost, current: Option<u64>) {
    let usual = getrlimit(Resource::Nofile);
    let limit = Rlimit { current: current.or(usual.maximum), maximum: usual.maximum };
    prlimit(Some(host.server()), Resource::Nofile, limit).expect("limits of our own child can be set");
}

/// Starts a process that prints `LEN` bytes, and waits on another connection until it has closed; `started` is called
/// when it runs.
fn print_much(host: &DurableHost, client: &Client, session: &str, started: fn(&Client)) {
    let script = format!("head -c {LEN} /dev/zero | tr '\\0' x");
    let output = json!({"output": {"retainBytes": 32 << 20, "retainMs": 3_600_000}});
    client.start("p", &["/bin/sh", "-c", &script], output);
    started(client);
    let (other, _) = connect(host);
    let closed = json!({"processId": "p", "sessionId": session, "until": "closed"});
    other.call("process/wait", closed).expect("it ends");
}

fn lines(host: &DurableHost, text: &str) -> usize {
    host.said().lines().filter(|line| line.contains(text)).count()
}

#[test]
fn the_stream_of_a_closed_process_survives_a_lack_of_descriptors() {
    let host = DurableHost::start();
    let (client, session) = connect(&host);
    print_much(&host, &client, &session, Client::stop_reading);
    let (other, _) = connect(&host);
    limit_files(&host, Some(3));
    client.read_on();
    poll("the server to lack descriptors", || lines(&host, "cannot read the log of a process") > 0);
    // Until everything is sent that was in memory.
    let second =
        json!({"processId": "p", "sessionId": session, "until": {"output": {"regex": "no"}}, "waitMs": 1000});
    let _ = other.call("process/wait", second);
    limit_files(&host, None);
    let output = client.collect("p");
    assert_eq!(output.stdout.len(), LEN);
    assert_eq!(output.exit_code(), 0);
}

#[test]
fn waits_and_reads_of_a_log_that_cannot_be_read_fail_and_are_logged_a_few_times() {
    let host = DurableHost::start();
    let (client, session) = connect(&host);
    print_much(&host, &client, &session, |_| {});
    client.event("p", "process/closed");
    limit_files(&host, Some(3));
    let _unaccepted = UnixStream::connect(host.socket()).expect("the kernel takes it");
    let wait = json!({"processId": "p", "until": {"output": {"regex": "nowhere"}}, "waitMs": 2000});
    let waits: Vec<_> = (0..10).map(|_| client.send("process/wait", wait.clone())).collect();
    let others = [
        client.send("process/read", json!({"processId": "p"})),
        client.send("process/seek", json!({"processId": "p", "to": {"tailBytes": 5}})),
        client.send("process/snapshot", json!({"processId": "p"})),
    ];
    for asked in waits.iter().chain(&others) {
        let error = client.outcome(asked).expect_err("nothing can be read");
        let message = error["message"].as_str().expect("it has a message");
        assert!(message.starts_with("cannot read the log of process `p`: Too many open files"), "{error}");
    }
    poll("the server to lack descriptors", || lines(&host, "cannot accept a connection") > 0);
    limit_files(&host, None);
    for kind in ["cannot read the log of a process", "cannot accept a connection"] {
        let count = lines(&host, kind);
        assert!((1..=15).contains(&count), "{count} times: {}", host.said());
    }
    // All of it is searched, and none of it was lost.
    let wait = json!({"processId": "p", "until": {"output": {"regex": "nowhere"}}});
    assert_eq!(client.call("process/wait", wait).expect("it can be read again")["reason"], "closed");
}

#[test]
fn a_log_that_will_never_be_readable_is_a_gap_and_keeps_no_one_waiting() {
    let host = DurableHost::start();
    let client = Client::connect(&host.address());
    let asked = json!({"clientName": "durable", "resumeSessionId": null, "capabilities": ["processGap"]});
    let session = client.initialize_with(asked)["sessionId"].as_str().expect("an id").to_owned();
    print_much(&host, &client, &session, Client::stop_reading);
    let processes = host.state().join("processes");
    let mut logs = fs::read_dir(&processes).unwrap().map(|entry| entry.unwrap().path());
    let log = logs.find(|path| path.join("process.json").exists()).expect("the process is durable");
    fs::rename(&log, host.state().join("aside")).unwrap();
    fs::write(&log, "not a directory").unwrap();
    let (other, _) = connect(&host);
    let wait = json!({"processId": "p", "sessionId": session, "until": {"output": {"regex": "nowhere"}}});
    assert_eq!(other.call("process/wait", wait).expect("it ends")["reason"], "closed");
    client.read_on();
    let gap = client.event("p", "process/gap");
    assert_eq!(gap["cause"], "damaged", "{gap}");
    client.event("p", "process/closed");
    let received = client.look(|seen| {
        let outputs = seen.events("p").filter(|event| event["method"] == "process/output");
        outputs.map(|event| decode(&event["params"]["chunk"]).len() as u64).sum::<u64>()
    });
    assert_eq!(received + gap["bytes"].as_u64().expect("a number"), LEN as u64);
}
