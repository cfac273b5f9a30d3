//! What a client may ask for, and what it costs others.

use serde_json::json;

use crate::support::Server;

#[test]
fn a_process_without_retention_runs_to_its_end() {
    let server = Server::start();
    let client = server.client();
    for tty in [false, true] {
        let id = format!("p{tty}");
        let nothing = json!({"tty": tty, "output": {"retainBytes": 0}});
        client.start(&id, &["/bin/sh", "-c", "seq 1 2000"], nothing);
        let output = client.collect(&id);
        assert_eq!(output.exited["exitCode"], 0);
    }
}

#[test]
fn a_session_whose_client_does_not_read_can_be_ended() {
    let server = Server::start();
    let stalled = server.connect();
    let session = stalled.initialize()["sessionId"].clone();
    stalled.start("flood", &["/usr/bin/yes"], json!({}));
    stalled.stop_reading();
    let other = server.client();
    let full = json!({"processId": "flood", "sessionId": session, "until": {"idleMs": 50}, "waitMs": 500});
    other.call("process/wait", full).unwrap();
    other.call("session/end", json!({"sessionId": session})).unwrap();
    let listing = other.call("session/list", json!({})).unwrap();
    assert_eq!(listing["sessions"].as_array().map(Vec::len), Some(1));
}

#[test]
fn a_pattern_matches_bytes_and_has_a_size_limit() {
    let server = Server::start();
    let client = server.client();
    client.shell("p", r"printf 'caf\303\251 ready\n'; exec sleep 1000");
    let wait = |regex: &str| {
        let until = json!({"output": {"regex": regex}});
        client.call("process/wait", json!({"processId": "p", "until": until, "waitMs": 20_000}))
    };
    assert_eq!(wait(r"\bready\b").unwrap()["reason"], "output");
    assert_eq!(wait("café").unwrap()["reason"], "output");
    for refused in ["a".repeat(1 << 20), "(?:a{1000}){1000}".to_owned(), "a(".to_owned()] {
        assert_eq!(wait(&refused).unwrap_err()["data"]["kind"], "invalidParams");
    }
}

#[test]
fn long_lived_strings_have_a_length_limit() {
    let server = Server::start();
    let client = server.client();
    let long = "x".repeat(1 << 20);
    for member in [json!({"startId": long}), json!({"labels": {"a": long}}), json!({"processId": long})] {
        let mut start = json!({"processId": "p", "argv": ["/bin/true"], "cwd": "/", "env": {}, "tty": false});
        start.as_object_mut().unwrap().extend(member.as_object().unwrap().clone());
        assert_eq!(client.call("process/start", start).unwrap_err()["code"], -32602);
    }
    client.start("p", &["/bin/true"], json!({}));
    client.event("p", "process/closed");
}

#[test]
fn the_wall_clock_limit_applies_during_graceful_termination() {
    let server = Server::start();
    let client = server.client();
    client.start(
        "p",
        &["/bin/sh", "-c", "trap '' TERM; echo up; while :; do sleep 1; done"],
        json!({"timeoutMs": 1000}),
    );
    client.wait_for_output("p", "up");
    let patient = json!({"processId": "p", "mode": {"graceful": {"timeoutMs": 3_600_000}}});
    client.call("process/terminate", patient).unwrap();
    assert_eq!(client.event("p", "process/exited")["signal"], "SIGKILL");
}

#[test]
fn the_log_reports_output_dropped_by_the_cap_once_a_minute() {
    let server = Server::serve(&["--log", "info"]);
    let client = server.client();
    for id in ["one", "two"] {
        let little = json!({"output": {"retainBytes": 4096, "overflow": "evict"}});
        client.start(id, &["/bin/sh", "-c", "seq 1 200000"], little);
        let end = json!({"processId": id, "until": "closed", "waitMs": 60_000});
        assert_eq!(client.call("process/wait", end).unwrap()["reason"], "closed");
    }
    let log = server.stop().stderr;
    let lines: Vec<_> = log.lines().filter(|line| line.contains("dropped the oldest output")).collect();
    assert_eq!(lines.len(), 2, "{log}");
    assert!(lines[0].contains("process=one") && lines[0].contains("cap=4096"), "{}", lines[0]);
}
