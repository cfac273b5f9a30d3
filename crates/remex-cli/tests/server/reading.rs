//! Looking at processes: read, wait, snapshot, list, and taking a question back.

use serde_json::{Value, json};

use crate::support::{Client, Server, decode, encode};

/// Starts a `cat` and lets it say these pieces, one chunk each.
fn cat_that_said(client: &Client, process_id: &str, pieces: &[&str]) {
    client.start(process_id, &["/bin/cat"], json!({"pipeStdin": true}));
    let mut said = String::new();
    for piece in pieces {
        say(client, process_id, piece);
        said += piece;
        client.wait_for_output(process_id, &said);
    }
}

/// Writes without waiting for anything.
fn say(client: &Client, process_id: &str, text: &str) {
    client.send("process/write", json!({"processId": process_id, "chunk": encode(text)}));
}

fn close_stdin(client: &Client, process_id: &str) {
    client.call("process/closeStdin", json!({"processId": process_id})).expect("stdin can be closed");
}

/// Reads, and returns the texts of the chunks and the whole answer.
fn read(client: &Client, params: Value) -> (Vec<String>, Value) {
    let reply = client.call("process/read", params).expect("the process can be read");
    (texts(&reply), reply)
}

fn texts(reply: &Value) -> Vec<String> {
    let chunks = reply["chunks"].as_array().expect("chunks are an array");
    chunks.iter().map(|chunk| String::from_utf8(decode(&chunk["chunk"])).expect("text")).collect()
}

/// Sends a wait and returns the id of the request.
fn send_wait(client: &Client, process_id: &str, until: &Value) -> Value {
    client.send("process/wait", json!({"processId": process_id, "until": until}))
}

fn wait(client: &Client, process_id: &str, until: &Value) -> Value {
    client.outcome(&send_wait(client, process_id, until)).expect("the process can be waited for")
}

#[test]
fn reading_returns_what_lies_beyond_the_cursor_and_consumes_nothing() {
    let server = Server::start();
    let client = server.client();
    cat_that_said(&client, "p", &["one", "three", "five!"]);
    for (after, expected) in [
        (Value::Null, vec!["one", "three", "five!"]),
        (json!(0), vec!["one", "three", "five!"]),
        (json!(1), vec!["three", "five!"]),
        (json!(2), vec!["five!"]),
        (json!(3), vec![]),
        (json!(u64::MAX), vec![]),
    ] {
        let (texts, reply) = read(&client, json!({"processId": "p", "afterSeq": after}));
        assert_eq!(texts, expected, "after {after}");
        let rest = json!({
            "chunks": reply["chunks"], "nextSeq": 4, "exited": false, "exitCode": null,
            "closed": false, "failure": null, "sandboxDenied": false, "incarnation": reply["incarnation"],
        });
        assert_eq!(reply, rest);
    }
    let (_, reply) = read(&client, json!({"processId": "p", "afterSeq": 1}));
    let chunk = &reply["chunks"][0];
    assert_eq!((&chunk["seq"], &chunk["stream"]), (&json!(2), &json!("stdout")));
    assert!(chunk["atMs"].as_u64().unwrap() > 1_700_000_000_000, "a time in this century: {chunk}");

    close_stdin(&client, "p");
    client.event("p", "process/closed");
    let (texts, reply) = read(&client, json!({"processId": "p", "afterSeq": 2}));
    assert_eq!(texts, ["five!"]);
    assert_eq!(
        (&reply["nextSeq"], &reply["exited"], &reply["exitCode"], &reply["closed"]),
        (&json!(6), &json!(true), &json!(0), &json!(true))
    );
}

#[test]
fn a_limit_never_splits_a_chunk_and_the_next_seq_is_a_lossless_cursor() {
    let server = Server::start();
    let client = server.client();
    cat_that_said(&client, "p", &["one", "three", "five!"]);
    for (max, expected, next) in [
        (0, vec!["one"], 2),
        (1, vec!["one"], 2),
        (3, vec!["one"], 2),
        (7, vec!["one"], 2),
        (8, vec!["one", "three"], 3),
        (12, vec!["one", "three"], 3),
        (13, vec!["one", "three", "five!"], 4),
        (u64::MAX, vec!["one", "three", "five!"], 4),
    ] {
        let (texts, reply) = read(&client, json!({"processId": "p", "maxBytes": max}));
        assert_eq!(
            (texts, reply["nextSeq"].as_u64()),
            (expected.iter().map(ToString::to_string).collect(), Some(next)),
            "{max} bytes"
        );
    }
    close_stdin(&client, "p");
    client.event("p", "process/closed");
    let (texts, reply) = read(&client, json!({"processId": "p", "afterSeq": 2, "maxBytes": 100}));
    assert_eq!((texts.len(), &reply["nextSeq"]), (1, &json!(4)), "one past the last chunk");
    let (texts, reply) = read(&client, json!({"processId": "p", "afterSeq": 3, "maxBytes": 100}));
    assert_eq!((texts.len(), &reply["nextSeq"]), (0, &json!(6)), "one past the newest event");
}

#[test]
fn invalid_reads_and_waits_are_refused() {
    let server = Server::start();
    let client = server.client();
    cat_that_said(&client, "p", &[]);
    for (member, value) in [("afterSeq", json!(-1)), ("maxBytes", json!(1.5)), ("waitMs", json!("1"))] {
        let mut params = json!({"processId": "p"});
        params[member] = value;
        assert_eq!(client.refusal("process/read", params).0, -32602, "{member}");
    }
    for until in [json!({"output": {"regex": "("}}), json!("never"), json!({"idleMs": -1})] {
        let (code, message) = client.refusal("process/wait", json!({"processId": "p", "until": until}));
        assert_eq!(code, -32602, "{message}");
    }
    for method in ["process/read", "process/wait", "process/snapshot"] {
        let error = client.call(method, json!({"processId": "nobody"})).unwrap_err();
        assert_eq!(
            (&error["code"], &error["message"]),
            (&json!(-32600), &json!("unknown process id nobody"))
        );
        assert_eq!(error["data"]["kind"], "unknownProcess");
    }
}

#[test]
fn a_long_poll_waits_for_output_exit_or_close_without_blocking_others() {
    for (transport, _server, client) in Server::on_every_transport() {
        client.initialize();
        cat_that_said(&client, "p", &["one"]);
        let poll = |after: u64| {
            let params = json!({"processId": "p", "afterSeq": after, "waitMs": 3_600_000});
            client.send("process/read", params)
        };
        assert_eq!(
            texts(&client.outcome(&poll(0)).unwrap()),
            ["one"],
            "{transport}: there is something already"
        );
        let waiting = poll(1);
        client.shell("other", "echo fine");
        assert_eq!(client.collect("other").text(), "fine\n", "{transport}");
        say(&client, "p", "two");
        assert_eq!(texts(&client.outcome(&waiting).unwrap()), ["two"], "{transport}");

        let waiting = poll(2);
        close_stdin(&client, "p");
        let reply = client.outcome(&waiting).unwrap();
        assert_eq!((texts(&reply), &reply["exited"]), (vec![], &json!(true)), "{transport}");
        client.event("p", "process/closed");
        assert_eq!(
            client.outcome(&poll(1000)).unwrap()["closed"],
            true,
            "{transport}: nothing more will come"
        );
    }
}

#[test]
fn a_long_poll_returns_empty_at_its_timeout() {
    let server = Server::start();
    let client = server.client();
    cat_that_said(&client, "p", &["one"]);
    let (texts, reply) = read(&client, json!({"processId": "p", "afterSeq": 1, "waitMs": 20}));
    assert_eq!((texts.len(), &reply["nextSeq"], &reply["exited"]), (0, &json!(2), &json!(false)));
}

#[test]
fn waiting_for_the_exit_returns_at_the_exit() {
    let server = Server::start();
    let client = server.client();
    client.start("p", &["/bin/sh", "-c", "read line; exit 4"], json!({"pipeStdin": true}));
    let waits = [
        send_wait(&client, "p", &json!("exit")),
        send_wait(&client, "p", &Value::Null),
        client.send("process/wait", json!({"processId": "p", "waitMs": 3_600_000})),
    ];
    let timed_out = client.call("process/wait", json!({"processId": "p", "waitMs": 20})).unwrap();
    let nothing = json!({"reason": "timeout", "seq": 0, "match": null, "exitCode": null, "signal": null, "cause": null});
    assert_eq!(timed_out, nothing);
    say(&client, "p", "go\n");
    for id in &waits {
        let waited = client.outcome(id).unwrap();
        assert_eq!(
            (&waited["reason"], &waited["exitCode"], &waited["cause"]),
            (&json!("exit"), &json!(4), &json!("exit"))
        );
    }
    assert_eq!(wait(&client, "p", &json!("exit"))["exitCode"], 4, "it has ended already");
    client.shell("killed", "kill -KILL $$");
    let waited = wait(&client, "killed", &json!("exit"));
    assert_eq!((&waited["exitCode"], &waited["signal"]), (&json!(137), &json!("SIGKILL")));
}

#[test]
fn waiting_for_the_close_does_not_end_at_the_exit() {
    let server = Server::start();
    let client = server.client();
    client.shell("p", "sleep 1000 & exit 5");
    let closed = send_wait(&client, "p", &json!("closed"));
    assert_eq!(wait(&client, "p", &json!("exit"))["exitCode"], 5);
    let early =
        client.call("process/wait", json!({"processId": "p", "until": "closed", "waitMs": 20})).unwrap();
    assert_eq!((&early["reason"], &early["exitCode"]), (&json!("timeout"), &json!(5)));
    client.call("process/terminate", json!({"processId": "p"})).unwrap();
    let waited = client.outcome(&closed).unwrap();
    assert_eq!((&waited["reason"], &waited["exitCode"]), (&json!("closed"), &json!(5)));
}

#[test]
fn waiting_for_output_matches_across_chunk_boundaries() {
    let server = Server::start();
    let client = server.client();
    let output = |regex: &str, after: Value| json!({"output": {"regex": regex, "afterSeq": after}});
    cat_that_said(&client, "p", &["list", "en", "ing on port 80"]);
    let waited = wait(&client, "p", &output("listening on port [0-9]+", Value::Null));
    assert_eq!((&waited["reason"], &waited["seq"]), (&json!("output"), &json!(3)));
    assert_eq!(decode(&waited["match"]), b"listening on port 80");

    // What lies before the cursor does not count.
    let port = send_wait(&client, "p", &output("ing", json!(3)));
    let never = send_wait(&client, "p", &output("listening on (mars|the moon)", Value::Null));
    say(&client, "p", ", morn");
    client.wait_for_output("p", "morn");
    say(&client, "p", "ing");
    let waited = client.outcome(&port).unwrap();
    assert_eq!((&waited["reason"], &waited["seq"]), (&json!("output"), &json!(5)));
    assert_eq!(decode(&waited["match"]), b"ing");

    // Bytes are bytes.
    say(&client, "p", "\u{fc}");
    let waited = wait(&client, "p", &output(r"(?-u)\xc3\xbc", Value::Null));
    assert_eq!(decode(&waited["match"]), [0xc3, 0xbc]);

    close_stdin(&client, "p");
    let waited = client.outcome(&never).unwrap();
    assert_eq!(
        (&waited["reason"], &waited["exitCode"]),
        (&json!("closed"), &json!(0)),
        "it can no longer match"
    );
    assert_eq!(waited["match"], Value::Null);
}

#[test]
fn waiting_for_output_finds_a_single_match_in_a_flood() {
    let server = Server::start();
    let client = server.client();
    let flood = "read go; seq 1 200000; echo needle; seq 1 200000";
    client.start("p", &["/bin/sh", "-c", flood], json!({"pipeStdin": true}));
    let until = json!({"output": {"regex": "0\nneed.e\n1"}});
    let wait = client.send("process/wait", json!({"processId": "p", "until": until}));
    client.call("session/list", json!({})).unwrap();
    client.send("process/write", json!({"processId": "p", "chunk": encode("go\n"), "writeId": "go"}));
    let waited = client.outcome(&wait).unwrap();
    assert_eq!((&waited["reason"], decode(&waited["match"])), (&json!("output"), b"0\nneedle\n1".to_vec()));
}

#[test]
fn a_wait_during_a_flood_times_out() {
    let server = Server::start();
    let client = server.client();
    client.start("p", &["/usr/bin/yes"], json!({}));
    let until = json!({"output": {"regex": "no"}});
    let waited =
        client.call("process/wait", json!({"processId": "p", "until": until, "waitMs": 200})).unwrap();
    assert_eq!(waited["reason"], "timeout");
}

#[test]
fn waiting_for_silence_ends_after_a_quiet_period() {
    let server = Server::start();
    let client = server.client();
    client.shell("p", "for i in 1 2 3 4 5 6; do echo $i; sleep 0.05; done; exec sleep 1000");
    let waited = wait(&client, "p", &json!({"idleMs": 1000}));
    assert_eq!((&waited["reason"], &waited["exitCode"]), (&json!("idle"), &json!(null)));
    assert_eq!(read(&client, json!({"processId": "p"})).0.concat(), "1\n2\n3\n4\n5\n6\n");
    client.shell("ended", "exit 3");
    let waited = wait(&client, "ended", &json!({"idleMs": 3_600_000}));
    assert_eq!((&waited["reason"], &waited["exitCode"]), (&json!("closed"), &json!(3)));
}

#[test]
fn a_snapshot_shows_each_stream_separately() {
    let server = Server::start();
    let client = server.client();
    client.start("p", &["/bin/sh", "-c", "echo out; echo err >&2; read line"], json!({"pipeStdin": true}));
    client.wait_for_output("p", "out\n");
    client.wait("both streams", |seen| (seen.events("p").count() == 2).then_some(()));
    let expected = json!({
        "stdout": encode("out\n"), "stderr": encode("err\n"), "terminal": "", "truncated": false,
        "omittedBytes": 0, "exitCode": null, "running": true,
    });
    assert_eq!(client.call("process/snapshot", json!({"processId": "p"})).unwrap(), expected);
    close_stdin(&client, "p");
    client.event("p", "process/closed");
    let ended = client.call("process/snapshot", json!({"processId": "p"})).unwrap();
    assert_eq!(
        (&ended["running"], &ended["exitCode"], &ended["stdout"]),
        (&json!(false), &json!(1), &json!(encode("out\n")))
    );

    client.start("t", &["/bin/echo", "on a terminal"], json!({"tty": true}));
    client.event("t", "process/closed");
    let terminal = client.call("process/snapshot", json!({"processId": "t"})).unwrap();
    assert_eq!(
        (&terminal["terminal"], &terminal["stdout"]),
        (&json!(encode("on a terminal\r\n")), &json!(""))
    );
}

#[test]
fn a_snapshot_keeps_head_and_tail_and_counts_the_omitted_middle() {
    let server = Server::start();
    let client = server.client();
    client.shell("p", "seq 1 500000");
    let whole = client.collect("p").stdout;
    for (max, most) in [(Value::Null, 1 << 20), (json!(1000), 1000), (json!(0), 0)] {
        let snapshot = client.call("process/snapshot", json!({"processId": "p", "maxBytes": max})).unwrap();
        let kept = decode(&snapshot["stdout"]);
        assert!(kept.len() <= most, "{} bytes are more than {most}", kept.len());
        assert_eq!(kept.len() as u64 + snapshot["omittedBytes"].as_u64().unwrap(), whole.len() as u64);
        assert_eq!(snapshot["truncated"], true);
        let head = kept.iter().zip(&whole).take_while(|(kept, all)| kept == all).count();
        assert!(head >= (32 << 10).min(most / 2), "only {head} bytes of the head are kept");
        assert!(whole.ends_with(&kept[head..]), "behind the head comes the tail");
    }
}

#[test]
fn the_list_describes_each_process() {
    let server = Server::start();
    let client = server.connect();
    let session = client.initialize()["sessionId"].clone();
    assert_eq!(client.call("process/list", json!({})).unwrap(), json!({"processes": []}));
    let labels = json!({"who": "tests", "why": "to see"});
    let argv = ["/bin/sh", "-c", "sleep 1000 & echo hello; echo oh >&2; wait"];
    let started = client.start("running", &argv, json!({"labels": labels}));
    client.wait_for_output("running", "hello\n");
    client.wait("both streams", |seen| (seen.events("running").count() == 2).then_some(()));
    client.start("exited", &["/bin/sh", "-c", "sleep 1000 & exit 3"], json!({}));
    client.event("exited", "process/exited");
    client.start("closed", &["/bin/sh", "-c", "kill $$"], json!({"tty": true}));
    client.event("closed", "process/closed");

    let listing = client.call("process/list", json!({})).unwrap();
    let entries = listing["processes"].as_array().unwrap();
    assert_eq!(entries.len(), 3, "{listing}");
    let entry = |id: &str| entries.iter().find(|entry| entry["processId"] == id).unwrap();
    let running = entry("running");
    let expected = json!({
        "processId": "running", "sessionId": session, "argv": argv, "cwd": "file:///",
        "pid": started["pid"], "tty": false, "labels": labels, "state": "running",
        "startedAtMs": started["startedAtMs"], "endedAtMs": null, "exitCode": null, "signal": null,
        "cause": null, "produced": {"stdout": 6, "stderr": 3, "pty": 0}, "retainedBytes": 9,
        "cpuMs": running["cpuMs"], "residentBytes": running["residentBytes"], "livingPids": running["livingPids"],
        "incarnation": started["incarnation"],
    });
    assert_eq!(running, &expected);
    assert!(running["cpuMs"].is_u64(), "{running}");
    assert!(running["residentBytes"].as_u64().unwrap() > 100_000, "two programs need memory: {running}");

    let living = |entry: &Value| entry["livingPids"].as_array().unwrap().len();
    assert!(
        living(running) == 2 && running["livingPids"][0] == started["pid"],
        "the shell, and what it started: {running}"
    );

    let (exited, closed) = (entry("exited"), entry("closed"));
    assert_eq!((living(exited), living(closed)), (1, 0));
    assert_eq!((&exited["state"], &exited["exitCode"]), (&json!("exited"), &json!(3)));
    assert!(exited["endedAtMs"].as_u64() >= exited["startedAtMs"].as_u64(), "{exited}");
    assert_eq!(
        (&closed["state"], &closed["signal"], &closed["cause"]),
        (&json!("closed"), &json!("SIGTERM"), &json!("signal"))
    );
    assert_eq!(closed["tty"], true);
}

#[test]
fn a_cancelled_request_fails() {
    for (transport, _server, client) in Server::on_every_transport() {
        client
            .initialize_with(json!({"clientName": "x", "resumeSessionId": null, "capabilities": ["cancel"]}));
        client.start("p", &["/bin/sleep", "1000"], json!({"pipeStdin": true}));
        let full = json!({"processId": "p", "chunk": encode(vec![0; 1 << 20]), "writeId": "1"});
        client.call("process/write", full).unwrap();
        let requests = [
            send_wait(&client, "p", &Value::Null),
            client.send("process/read", json!({"processId": "p", "waitMs": 3_600_000})),
            client.send(
                "process/write",
                json!({"processId": "p", "chunk": encode(vec![0; 1 << 20]), "writeId": "2"}),
            ),
        ];
        let kept = send_wait(&client, "p", &json!("exit"));
        for id in &requests {
            client.notify("request/cancel", json!({"id": id}));
            let error = client.outcome(id).unwrap_err();
            assert_eq!(error["data"]["kind"], "cancelled", "{transport}: {error}");
        }
        // What is not there, or is there no longer, cannot be taken back, and that is no fault.
        client.notify("request/cancel", json!({"id": requests[0]}));
        client.notify("request/cancel", json!({"id": "never sent"}));
        client.call("process/terminate", json!({"processId": "p"})).unwrap();
        assert_eq!(client.outcome(&kept).unwrap()["exitCode"], 137, "{transport}");
    }
}
