//! `remex logs` and `process/seek` on large logs on disk: only what is asked for is read.

use std::process::Output;

use serde_json::json;

use super::{
    host::DurableHost,
    restarts::{connect, poll, read_all, resume},
};
use crate::support::{Client, DisconnectingProxy, Server, decode, encode, program, start_params, with};

/// The numbers from 1 to this have about 300 MiB.
const LAST: u64 = 36_000_000;

/// What one command may move over its connection.
const MOVED: u64 = 400 << 10;

/// Where the numbers with eight digits begin.
const EIGHT_DIGITS: u64 = 78_888_888;

/// Starts a process whose output no client follows, and waits until it has closed.
fn run_alone(host: &DurableHost, id: &str, script: &str) -> String {
    let asked = json!({"clientName": "durable", "resumeSessionId": null, "detachTtlMs": 3_600_000});
    let session = {
        let client = Client::connect(&host.address());
        let session = client.initialize_with(asked.clone())["sessionId"].as_str().unwrap().to_owned();
        let output = json!({"retainBytes": 400 << 20, "retainMs": 3_600_000, "overflow": "evict"});
        client.start(id, &["/bin/sh", "-c", script], json!({"output": output}));
        session
    };
    let client = Client::connect(&host.address());
    client.initialize_with(asked);
    let list = json!({"sessionId": session});
    poll("the end of a process", || {
        client.call("process/list", list.clone()).unwrap()["processes"][0]["state"] == "closed"
    });
    session
}

/// Runs `remex logs` and returns its output, and how many bytes went over the connection.
fn logs(host: &DurableHost, arguments: &[&str]) -> (Output, u64) {
    let proxy = DisconnectingProxy::start(&host.address(), &[]);
    let mut command = program(&["logs", "--on", proxy.address()]);
    let output = command.args(arguments).output().unwrap();
    (output, proxy.carried())
}

#[track_caller]
fn check(host: &DurableHost, arguments: &[&str], expected: &str) {
    let (output, moved) = logs(host, arguments);
    assert_eq!(String::from_utf8_lossy(&output.stderr), "", "{arguments:?}");
    assert_eq!(String::from_utf8_lossy(&output.stdout), expected, "{arguments:?}");
    assert!(moved < MOVED, "{arguments:?} moved {moved} bytes");
}

#[test]
fn the_end_a_time_and_a_range_of_a_large_log_are_found_without_reading_the_rest() {
    let mut host = DurableHost::start();
    run_alone(&host, "flood", &format!("seq 1 {LAST}; sleep 2; echo late >&2; sleep 0.2; echo later"));
    let (last, moved) = logs(&host, &["flood", "--tail", "1", "--timestamps", "--utc"]);
    assert!(moved < MOVED, "{moved}");
    let last = String::from_utf8(last.stdout).unwrap();
    let (time, text) = last.trim().split_once(' ').unwrap();
    assert_eq!(text, "later");

    let before = |ms: u64| {
        // The minute may change.
        let (rest, seconds) = time.trim_end_matches('Z').rsplit_once(':').unwrap();
        let seconds = (seconds.parse::<f64>().unwrap() * 1000.0) as u64;
        (seconds >= ms).then(|| format!("{rest}:{:06.3}Z", (seconds - ms) as f64 / 1000.0))
    };
    for restarted in [false, true] {
        if restarted {
            host.stop();
            host.launch();
        }
        check(&host, &["flood", "--since", time, "--grep", "later"], "later\n");
        let end: String = (LAST - 2..=LAST).map(|number| format!("{number}\n")).collect();
        if let Some(earlier) = before(1000) {
            check(&host, &["flood", "--until", &earlier, "--tail", "3"], &end);
            check(&host, &["flood", "--since", &earlier, "--grep", "^later"], "later\n");
        }
        check(&host, &["flood", "--bytes", "0..4"], "1\n2\n");
        let from = format!("{EIGHT_DIGITS}..{}", EIGHT_DIGITS + 18);
        check(&host, &["flood", "--bytes", &from], "10000000\n10000001\n");
        check(&host, &["flood", "--bytes", "-6.."], "later\n");
        let many: String = (LAST - 997..=LAST).map(|number| format!("{number}\n")).collect();
        let (output, moved) = logs(&host, &["flood", "--tail", "1000"]);
        assert_eq!(String::from_utf8(output.stdout).unwrap(), format!("{many}later\n"));
        assert_eq!(String::from_utf8(output.stderr).unwrap(), "late\n");
        assert!(moved < 2 * MOVED, "{moved}");
    }
}

#[test]
fn output_before_the_oldest_retained_is_reported() {
    let host = DurableHost::start();
    let asked = json!({"clientName": "durable", "resumeSessionId": null, "detachTtlMs": 3_600_000});
    let client = Client::connect(&host.address());
    client.initialize_with(asked);
    let output = json!({"retainBytes": 1 << 20, "retainMs": 3_600_000, "overflow": "evict"});
    client.start("flood", &["seq", "1", "1000000"], json!({"output": output}));
    client.event("flood", "process/closed");
    for to in [json!({"atMs": 1}), json!({"offset": 0}), json!({"tailBytes": 6_888_896})] {
        let sought = client.call("process/seek", json!({"processId": "flood", "to": to})).unwrap();
        assert_eq!((&sought["afterSeq"], &sought["offset"]), (&json!(0), &json!(0)), "{to}");
        assert_eq!(sought["producedBytes"], 6_888_896);
    }
    let to = json!({"tailBytes": 8});
    let sought = client.call("process/seek", json!({"processId": "flood", "to": to})).unwrap();
    let read = json!({"processId": "flood", "afterSeq": sought["afterSeq"]});
    let read = client.call("process/read", read).unwrap();
    let chunks: Vec<u8> =
        read["chunks"].as_array().unwrap().iter().flat_map(|chunk| decode(&chunk["chunk"])).collect();
    assert!(chunks.ends_with(b"999999\n1000000\n") && read["gap"].is_null());
    let (output, moved) = logs(&host, &["flood", "--tail", "2"]);
    assert_eq!(String::from_utf8(output.stdout).unwrap(), "999999\n1000000\n");
    assert!(moved < MOVED, "{moved}");
    let (output, _) = logs(&host, &["flood", "--bytes", "..4"]);
    assert_eq!(output.stdout, b"");
    assert!(String::from_utf8(output.stderr).unwrap().contains("4 bytes"), "what is missing is reported");
}

#[test]
fn synced_output_arrives_complete_and_in_order_across_a_crash() {
    let mut host = DurableHost::start();
    let (client, session) = connect(&host);
    let script = "seq 1 50000; echo half; read line; seq 1 50000; echo $line >&2; exit 3";
    let more = json!({"sync": true, "startId": "s", "pipeStdin": true, "output": {"retainMs": 3_600_000}});
    client.start("p", &["/bin/sh", "-c", script], more.clone());
    client.wait_for_output("p", "half\n");
    host.kill();
    host.launch();
    let client = resume(&host, &session);
    assert_eq!(client.start("p", &["/bin/sh", "-c", script], more)["replayed"], true);
    let line = json!({"processId": "p", "chunk": encode("go on\n"), "writeId": "w"});
    client.call("process/write", line).unwrap();
    let (output, read) = read_all(&client, "p");
    let numbers: String = (1..=50_000).map(|number| format!("{number}\n")).collect();
    let text = String::from_utf8(output).unwrap();
    assert!(text.replacen("go on\n", "", 1) == format!("{numbers}half\n{numbers}"), "{} bytes", text.len());
    assert_eq!((&read["exitCode"], &read["cause"]), (&json!(3), &json!("exit")));
}

#[test]
fn sync_is_refused_without_a_state_directory_and_for_a_process_that_is_not_durable() {
    let start = |more| with(start_params("p", &["true"]), more);
    let host = DurableHost::start();
    let (client, _) = connect(&host);
    let (code, message) = client.refusal("process/start", start(json!({"sync": true, "durable": false})));
    assert_eq!((code, message.as_str()), (-32602, "`sync` needs a durable process, but `durable` is false"));
    let server = Server::start();
    let client = Client::connect(server.address());
    client.initialize();
    let (_, message) = client.refusal("process/start", start(json!({"sync": true})));
    assert_eq!(message, "cannot start a durable process: this server has no state directory");
}

#[test]
fn reads_from_disk_match_the_streamed_events() {
    let host = DurableHost::start();
    let session = run_alone(&host, "p", "seq 1 300000; echo end >&2; exit 7");
    let client = Client::connect(&host.address());
    client.initialize();
    let (mut text, mut after) = (Vec::new(), 0);
    loop {
        // Of different sizes, so that answers are short and long.
        let max = 1_u64 << (10 + after % 12);
        let read = json!({"processId": "p", "sessionId": session, "afterSeq": after, "maxBytes": max});
        let read = client.call("process/read", read).unwrap();
        let chunks = read["chunks"].as_array().unwrap();
        text.extend(chunks.iter().flat_map(|chunk| decode(&chunk["chunk"])));
        after = read["nextSeq"].as_u64().unwrap() - 1;
        if chunks.is_empty() {
            assert_eq!((&read["closed"], &read["exitCode"]), (&json!(true), &json!(7)));
            break;
        }
    }
    let numbers: String = (1..=300_000).map(|number| format!("{number}\n")).collect();
    let text = String::from_utf8(text).unwrap();
    assert!(text.replacen("end\n", "", 1) == numbers, "{} bytes", text.len());
    let snapshot = json!({"processId": "p", "sessionId": session, "maxBytes": 1000});
    let snapshot = client.call("process/snapshot", snapshot).unwrap();
    assert!(decode(&snapshot["stdout"]).ends_with(b"299999\n300000\n"));
    assert_eq!(decode(&snapshot["stderr"]), b"end\n");
}
