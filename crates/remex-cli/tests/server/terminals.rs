//! Processes on a terminal.

use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use crate::support::{Client, Reader, Server, decode, encode, start_params, with};

/// Starts `sh -c script` on a terminal.
fn start(client: &Client, process_id: &str, script: &str, more: Value) -> Value {
    client.start(process_id, &["/bin/sh", "-c", script], with(json!({"tty": true}), more))
}

/// Runs `sh -c script` on a terminal to its end, and returns what it printed.
fn run(client: &Client, process_id: &str, script: &str, more: Value) -> String {
    start(client, process_id, script, more);
    String::from_utf8(client.collect(process_id).pty).expect("text")
}

/// Types on the terminal of a process.
fn type_in(client: &Client, process_id: &str, keys: &str) {
    let write = json!({"processId": process_id, "chunk": encode(keys)});
    assert_eq!(client.call("process/write", write).expect("a terminal takes input")["accepted"], true);
}

fn resize(client: &Client, process_id: &str, rows: &Value, cols: &Value) -> Result<Value, Value> {
    client.call("process/resize", json!({"processId": process_id, "rows": rows, "cols": cols}))
}

#[test]
fn a_terminal_has_the_size_asked_for() {
    let server = Server::start();
    let client = server.client();
    assert_eq!(run(&client, "default", "stty size", json!({})), "24 80\r\n");
    assert_eq!(run(&client, "asked", "stty size", json!({"rows": 50, "cols": 132})), "50 132\r\n");
    assert_eq!(run(&client, "half", "stty size", json!({"cols": 20})), "24 20\r\n");
    let zero = with(start_params("zero", &["/bin/true"]), json!({"tty": true, "rows": 0}));
    assert_eq!(client.refusal("process/start", zero).0, -32602);
}

#[test]
fn a_terminal_can_be_resized_and_its_program_is_notified() {
    let server = Server::start();
    let client = server.client();
    start(&client, "p", "trap 'stty size' WINCH; echo ready; while :; do sleep 0.02; done", json!({}));
    client.wait_for_output("p", "ready");
    assert_eq!(resize(&client, "p", &json!(40), &json!(100)).unwrap(), json!({}));
    client.wait_for_output("p", "40 100\r\n");
    assert_eq!(resize(&client, "p", &json!(65535), &json!(1)).unwrap(), json!({}));
    client.wait_for_output("p", "65535 1\r\n");
    for (rows, cols) in
        [(json!(0), json!(80)), (json!(24), json!(65536)), (json!(-1), json!(80)), (json!("24"), json!(80))]
    {
        assert_eq!(resize(&client, "p", &rows, &cols).unwrap_err()["code"], -32602);
    }
    client.start("pipe", &["/bin/sleep", "1000"], json!({}));
    let error = resize(&client, "pipe", &json!(24), &json!(80)).unwrap_err();
    assert_eq!(error["data"]["kind"], "notATerminal", "{error}");
    let error = resize(&client, "nobody", &json!(24), &json!(80)).unwrap_err();
    assert_eq!((&error["code"], &error["data"]["kind"]), (&json!(-32600), &json!("unknownProcess")));
}

#[test]
fn control_keys_work_as_on_a_terminal() {
    let server = Server::start();
    let client = server.client();
    client.start("eof", &["/bin/cat"], json!({"tty": true}));
    type_in(&client, "eof", "hello\n");
    client.wait_for_output("eof", "hello\r\nhello\r\n");
    type_in(&client, "eof", "\x04");
    assert_eq!(client.collect("eof").exit_code(), 0, "the end-of-file character ends input");

    client.start("interrupt", &["/bin/cat"], json!({"tty": true}));
    type_in(&client, "interrupt", "x\n");
    client.wait_for_output("interrupt", "x\r\nx\r\n");
    type_in(&client, "interrupt", "\x03");
    let exited = client.collect("interrupt").exited;
    assert_eq!((&exited["exitCode"], &exited["signal"]), (&json!(130), &json!("SIGINT")));
}

#[test]
fn job_control_works() {
    let server = Server::start();
    let client = server.client();
    let env = json!({"PATH": "/usr/bin:/bin", "PS1": "$ ", "TERM": "dumb"});
    client.start("p", &["/bin/bash", "--norc", "--noprofile", "-i"], json!({"tty": true, "env": env}));
    client.wait_for_output("p", "$ ");
    // Typed ahead of the job it would be the shell's.
    type_in(&client, "p", "sh -c 'echo beg''un; exec cat'\n");
    client.wait_for_output("p", "begun\r\n");
    type_in(&client, "p", "hello\n");
    client.wait_for_output("p", "hello\r\nhello\r\n");
    type_in(&client, "p", "\x1a");
    client.wait_for_output("p", "Stopped");
    type_in(&client, "p", "jobs -p | wc -l | sed 's/^/jobs: /'\n");
    client.wait_for_output("p", "jobs: 1\r\n$ ");
    type_in(&client, "p", "fg\n");
    client.wait_for_output("p", "fg\r\nsh -c");
    // A program that answers has the terminal, and gets the interrupt key.
    type_in(&client, "p", "again\n");
    client.wait_for_output("p", "again\r\nagain\r\n");
    type_in(&client, "p", "\x03");
    // What is typed before the shell has noticed is thrown away with the interrupted line.
    client.wait_for_output("p", "^C\r\n$ ");
    type_in(&client, "p", "echo code: $?\n");
    client.wait_for_output("p", "code: 130\r\n");
    type_in(&client, "p", "exit 3\n");
    assert_eq!(client.collect("p").exit_code(), 3);
}

#[test]
fn a_program_may_close_and_reopen_its_terminal() {
    let server = Server::start();
    let client = server.client();
    let close = "echo before; exec <&- >&- 2>&-; sleep 0.1";
    start(&client, "gone", &format!("{close}; exit 7"), json!({}));
    assert_eq!(client.collect("gone").exit_code(), 7, "nobody hangs up on it");
    start(&client, "back", &format!("{close}; echo after >/dev/tty; exit 7"), json!({}));
    let output = client.collect("back");
    assert_eq!(
        (String::from_utf8(output.pty).unwrap(), &output.exited["exitCode"]),
        ("before\r\nafter\r\n".to_owned(), &json!(7))
    );
}

#[test]
fn everything_on_a_terminal_is_one_stream() {
    let server = Server::start();
    let client = server.client();
    start(&client, "p", "echo out; echo err >&2; tty", json!({}));
    let output = client.collect("p");
    let text = String::from_utf8(output.pty).unwrap();
    assert!(text.starts_with("out\r\nerr\r\n/dev/pts/"), "{text}");
    assert_eq!((output.stdout, output.stderr), (vec![], vec![]));
    assert_eq!(output.closed["produced"], json!({"stdout": 0, "stderr": 0, "pty": text.len()}));
}

#[test]
fn a_program_on_a_terminal_sees_the_given_argv0() {
    let server = Server::start();
    let client = server.client();
    assert_eq!(run(&client, "p", "echo $0", json!({"arg0": "-other"})), "-other\r\n");
}

#[test]
fn a_bad_working_directory_is_also_an_error_on_a_terminal() {
    let server = Server::start();
    let client = server.client();
    let params = with(start_params("p", &["/bin/pwd"]), json!({"tty": true, "cwd": "file:///no/such"}));
    let error = client.call("process/start", params).unwrap_err();
    assert_eq!((&error["code"], &error["data"]["kind"]), (&json!(-32603), &json!("badCwd")), "{error}");
}

#[test]
fn death_by_a_signal_on_a_terminal_exits_with_128_plus_its_number() {
    let server = Server::start();
    let client = server.client();
    for (signal, code) in [("KILL", 137), ("TERM", 143), ("SEGV", 139), ("HUP", 129)] {
        start(&client, signal, &format!("kill -{signal} $$"), json!({}));
        let exited = client.collect(signal).exited;
        assert_eq!((&exited["exitCode"], &exited["cause"]), (&json!(code), &json!("signal")), "{signal}");
    }
}

#[test]
fn the_end_of_input_of_a_terminal_is_a_key() {
    let server = Server::start();
    let client = server.client();
    client.start("p", &["/bin/cat"], json!({"tty": true}));
    let error = client.call("process/closeStdin", json!({"processId": "p"})).expect_err("it has a terminal");
    let hint = error["data"]["hint"].as_str().unwrap_or_default();
    assert!(hint.contains("0x04"), "the hint says what to do: {error}");
}

#[test]
fn the_last_bytes_before_the_end_always_arrive() {
    let server = Server::start();
    let client = server.client();
    let expected: String = (1..=100).map(|line| format!("{line}\r\n")).collect::<String>() + "the very last";
    for round in 0..200 {
        let text = run(&client, &round.to_string(), "seq 1 100; printf 'the very last'", json!({}));
        assert_eq!(text, expected, "round {round}");
    }
}

#[test]
fn sixty_four_mebibytes_arrive_byte_for_byte() {
    const LEN: u64 = 64 << 20;
    let script = "seq 10000000 99999999 | head -c 67108864";
    let server = Server::start();
    let (mut reader, _) =
        Reader::initialized(server.address(), json!({"clientName": "x", "resumeSessionId": null}));
    let raw = format!("stty raw -echo; {script}");
    let params = with(start_params("p", &["/bin/sh", "-c", &raw]), json!({"tty": true}));
    reader.call("process/start", params).unwrap();
    let mut sum = Sha256::new();
    let closed = loop {
        let message = reader.next();
        match message["method"].as_str() {
            Some("process/output") => sum.update(decode(&message["params"]["chunk"])),
            Some("process/closed") => break message["params"].clone(),
            _ => {}
        }
    };
    assert_eq!(closed["produced"]["pty"], LEN);
    let sum: String = sum.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
    let here = std::process::Command::new("/bin/sh").args(["-c", &format!("{script} | sha256sum")]).output();
    assert_eq!(sum, String::from_utf8_lossy(&here.unwrap().stdout)[..64]);
}

#[test]
fn a_hundred_terminals_are_open_at_once() {
    let server = Server::start();
    let client = server.client();
    let threads = || std::fs::read_dir(format!("/proc/{}/task", server.pid())).unwrap().count();
    let before = threads();
    let names: Vec<_> = (0..100).map(|n| format!("p{n}")).collect();
    for name in &names {
        client.start(name, &["/bin/cat"], json!({"tty": true}));
    }
    assert_eq!(threads(), before, "an idle terminal needs no thread");
    for name in &names {
        type_in(&client, name, &format!("{name}\n"));
    }
    for name in &names {
        client.wait_for_output(name, &format!("{name}\r\n{name}\r\n"));
        type_in(&client, name, "\x04");
    }
    for name in &names {
        assert_eq!(client.collect(name).exit_code(), 0);
    }
}

#[test]
fn a_program_that_reopened_its_terminal_is_read_and_answered_at_once() {
    let server = Server::start();
    let client = server.client();
    let script = "exec <&- >&- 2>&-; exec </dev/tty >/dev/tty 2>&1; seq 1 20000; read line; echo got $line";
    client.start("p", &["/bin/sh", "-c", script], json!({"tty": true}));
    client.wait_for_output("p", "\n20000\r\n");
    type_in(&client, "p", "hi\n");
    client.wait_for_output("p", "got hi\r\n");
    assert_eq!(client.event("p", "process/exited")["exitCode"], 0);
}
