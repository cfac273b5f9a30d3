//! Starting processes and feeding them.

use std::{fs, os::unix::fs::PermissionsExt as _, process::Stdio};

use serde_json::{Value, json};

use crate::support::{Client, Output, Server, decode, encode, program, start_params, with};

/// Starts a program and waits for everything it says.
fn run(client: &Client, process_id: &str, argv: &[&str], more: Value) -> Output {
    client.start(process_id, argv, more);
    client.collect(process_id)
}

/// Sends a write and returns the id of the request.
fn write(client: &Client, process_id: &str, write_id: &str, bytes: impl AsRef<[u8]>) -> Value {
    let write = json!({"processId": process_id, "writeId": write_id, "chunk": encode(bytes)});
    client.send("process/write", write)
}

/// Writes and returns the status.
fn write_status(client: &Client, process_id: &str, write_id: &str, bytes: impl AsRef<[u8]>) -> Value {
    client.outcome(&write(client, process_id, write_id, bytes)).expect("a write has a status")["status"]
        .clone()
}

const NOT_FOUND: &str = "No such file or directory (os error 2)";

#[test]
fn a_process_ends_with_its_own_code_or_that_of_its_signal() {
    let server = Server::start();
    let client = server.client();
    for (script, code, signal, cause) in [
        ("exit 0", 0, Value::Null, "exit"),
        ("exit 3", 3, Value::Null, "exit"),
        ("exit 255", 255, Value::Null, "exit"),
        ("kill -INT $$", 130, json!("SIGINT"), "signal"),
        ("kill -KILL $$", 137, json!("SIGKILL"), "signal"),
        ("kill -SEGV $$", 139, json!("SIGSEGV"), "signal"),
        ("kill -TERM $$", 143, json!("SIGTERM"), "signal"),
    ] {
        let exited = run(&client, script, &["/bin/sh", "-c", script], json!({})).exited;
        assert_eq!(
            (&exited["exitCode"], &exited["signal"], &exited["cause"], &exited["sandboxDenied"]),
            (&json!(code), &signal, &json!(cause), &json!(false)),
            "`{script}` ends with {exited}"
        );
        let usage = &exited["usage"];
        for figure in ["userMs", "systemMs", "wallMs"] {
            assert!(usage[figure].is_u64(), "{usage}");
        }
    }
}

#[test]
fn arguments_that_are_not_utf_8_are_passed_and_listed() {
    let server = Server::start();
    let client = server.client();
    let words = ["printf".as_bytes(), b"%s", b"caf\xe9"].map(encode);
    let output = run(&client, "p", &["false"], json!({"argvBase64": words}));
    assert_eq!((output.stdout, &output.exited["exitCode"]), (b"caf\xe9".to_vec(), &json!(0)));
    let listed = client.call("process/list", json!({})).unwrap();
    assert_eq!(listed["processes"][0]["argv"], json!(["printf", "%s", "caf\u{fffd}"]));
    let nothing = with(start_params("q", &["true"]), json!({"argvBase64": []}));
    assert_eq!(client.call("process/start", nothing).unwrap_err()["message"], "argv must not be empty");
}

#[test]
fn usage_reports_the_resources_of_a_process() {
    let server = Server::start();
    let client = server.client();
    let busy = "i=0; while [ $i -lt 300000 ]; do i=$((i + 1)); done";
    let usage = run(&client, "p", &["/bin/sh", "-c", busy], json!({})).exited["usage"].clone();
    let figure = |name: &str| usage[name].as_u64().unwrap();
    assert!(figure("userMs") > 0, "{usage}");
    assert!(figure("wallMs") >= figure("userMs") / 2, "{usage}");
}

#[test]
fn a_process_gets_exactly_the_requested_environment() {
    let server = Server::start();
    let client = server.client();
    for tty in [false, true] {
        let process = format!("tty {tty}");
        let asked = json!({"tty": tty, "env": {"B": "2 x", "A": "ü", "EMPTY": ""}});
        let output = run(&client, &process, &["/usr/bin/env"], asked);
        let text = String::from_utf8([output.stdout, output.pty].concat()).unwrap();
        let mut lines: Vec<_> = text.lines().collect();
        lines.sort_unstable();
        assert_eq!(lines, ["A=ü", "B=2 x", "EMPTY="]);
        let output =
            run(&client, &format!("{process}, nothing"), &["/usr/bin/env"], json!({"tty": tty, "env": {}}));
        assert_eq!([output.stdout, output.pty].concat(), b"");
    }
}

#[test]
fn an_environment_policy_selects_variables_of_the_server() {
    let mut command = program(&["serve"]);
    command.stdin(Stdio::null()).env_clear();
    command.envs([
        ("PATH", "/usr/bin:/bin"),
        ("HOME", "/root"),
        ("FANCY", "1"),
        ("MY_KEY", "secret"),
        ("aToken", "secret"),
        ("NODE_REPL_AUTH_TOKEN", "never"),
    ]);
    let server = Server::launch(command, 1);
    let client = server.client();
    let policy = |inherit: &str, keep: bool, exclude: &[&str], only: &[&str]| {
        json!({
            "inherit": inherit, "ignoreDefaultExcludes": keep, "exclude": exclude,
            "set": {"SET": "by policy", "LAID": "under"}, "includeOnly": only,
        })
    };
    let both = ["LAID=over", "SET=by policy"];
    for (case, policy, expected) in [
        ("none", policy("none", false, &[], &[]), vec![]),
        ("core", policy("core", false, &[], &[]), vec!["HOME=/root", "PATH=/usr/bin:/bin"]),
        ("all", policy("all", false, &[], &[]), vec!["FANCY=1", "HOME=/root", "PATH=/usr/bin:/bin"]),
        (
            "secrets",
            policy("all", true, &["path", "h?me"], &[]),
            vec!["FANCY=1", "MY_KEY=secret", "aToken=secret"],
        ),
        ("exclude", policy("all", false, &["fan*"], &[]), vec!["HOME=/root", "PATH=/usr/bin:/bin"]),
        ("only", policy("all", false, &[], &["F*", "SET"]), vec!["FANCY=1"]),
    ] {
        let output =
            run(&client, case, &["/usr/bin/env"], json!({"envPolicy": policy, "env": {"LAID": "over"}}));
        let text = output.text();
        let mut lines: Vec<_> = text.lines().collect();
        lines.sort_unstable();
        let mut expected = [expected.as_slice(), &both].concat();
        expected.sort_unstable();
        assert_eq!(lines, expected, "policy `{case}`");
    }
}

#[test]
fn no_descriptor_of_the_server_leaks_into_a_child() {
    let server = Server::start();
    let others: Vec<_> = (0..5).map(|_| server.client()).collect();
    for (other, tty) in others.iter().zip([false, true, false, true, false]) {
        other.start("p", &["/bin/sleep", "1000"], json!({"tty": tty, "pipeStdin": true}));
    }
    let client = server.client();
    for (process, more) in
        [("pipe", json!({})), ("fed", json!({"pipeStdin": true})), ("terminal", json!({"tty": true}))]
    {
        let output = run(&client, process, &["/bin/ls", "/proc/self/fd"], more);
        let text = String::from_utf8([output.stdout, output.pty].concat()).unwrap();
        // The last one is the directory that `ls` reads.
        assert_eq!(text.split_whitespace().collect::<Vec<_>>(), ["0", "1", "2", "3"], "{process}");
    }
}

#[test]
fn a_child_starts_with_default_signals_in_its_own_session() {
    let server = Server::start();
    let client = server.client();
    for tty in [false, true] {
        let output =
            run(&client, &format!("signals {tty}"), &["/bin/cat", "/proc/self/status"], json!({"tty": tty}));
        let text = String::from_utf8([output.stdout, output.pty].concat()).unwrap();
        for set in ["SigBlk", "SigIgn", "SigCgt"] {
            let line = text.lines().find(|line| line.starts_with(set)).unwrap();
            assert_eq!(line.split_whitespace().nth(1), Some("0000000000000000"), "{line}");
        }
        let process = format!("group {tty}");
        let started = client.start(&process, &["/bin/cat", "/proc/self/stat"], json!({"tty": tty}));
        let output = client.collect(&process);
        let text = String::from_utf8([output.stdout, output.pty].concat()).unwrap();
        let fields: Vec<_> = text.split_whitespace().collect();
        let pid = started["pid"].to_string();
        assert_eq!((fields[0], fields[4], fields[5]), (&*pid, &*pid, &*pid), "process, group and session");
    }
}

#[test]
fn stdin_is_empty_unless_requested() {
    let server = Server::start();
    let client = server.client();
    assert_eq!(run(&client, "cat", &["/bin/cat"], json!({})).exit_code(), 0);
    let output = run(&client, "readlink", &["/usr/bin/readlink", "/proc/self/fd/0"], json!({}));
    assert_eq!(output.text(), "/dev/null\n");
}

#[test]
fn a_program_sees_the_given_argv0() {
    let server = Server::start();
    let client = server.client();
    let argv = ["/bin/sh", "-c", "echo $0"];
    assert_eq!(run(&client, "own", &argv, json!({})).text(), "/bin/sh\n");
    assert_eq!(run(&client, "other", &argv, json!({"arg0": "-login"})).text(), "-login\n");
    let restarted = json!({"arg0": "-login", "restart": {"policy": "onFailure"}});
    assert_eq!(run(&client, "restarted", &argv, restarted).text(), "-login\n");
}

#[test]
fn a_bare_program_name_is_searched_in_the_path_of_its_environment() {
    let directory = tempfile::tempdir().unwrap();
    let script = directory.path().join("greet");
    fs::write(&script, "#!/bin/sh\necho greetings\n").unwrap();
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
    let server = Server::start();
    let client = server.client();
    let path = format!("/nowhere:{}", directory.path().display());
    assert_eq!(run(&client, "found", &["greet"], json!({"env": {"PATH": path}})).text(), "greetings\n");
    let kind =
        client.call("process/start", start_params("lost", &["greet"])).unwrap_err()["data"]["kind"].clone();
    assert_eq!(kind, "programNotFound");
    // Without a PATH there is a default of the system.
    assert_eq!(run(&client, "default", &["echo", "hi"], json!({"env": {}})).text(), "hi\n");
}

#[test]
fn a_process_runs_in_the_requested_directory() {
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path().canonicalize().unwrap().join("a b");
    fs::create_dir(&place).unwrap();
    let server = Server::start();
    let client = server.client();
    let cwd = format!("file://{}", place.display()).replace(' ', "%20");
    let output = run(&client, "p", &["/bin/pwd"], json!({"cwd": cwd}));
    assert_eq!(output.text(), format!("{}\n", place.display()));
}

#[test]
fn a_failed_start_states_the_cause_and_frees_its_id() {
    let directory = tempfile::tempdir().unwrap();
    let plain = directory.path().join("plain");
    fs::write(&plain, "no program").unwrap();
    let text = directory.path().join("text");
    fs::write(&text, "neither").unwrap();
    fs::set_permissions(&text, fs::Permissions::from_mode(0o755)).unwrap();
    let (plain, text) = (plain.display().to_string(), text.display().to_string());
    let server = Server::start();
    let client = server.client();
    for tty in [false, true] {
        for (argv, more, code, kind, message) in [
            (vec!["/no/such/program"], json!({}), -32603, "programNotFound", NOT_FOUND),
            (vec!["no-such-program"], json!({}), -32603, "programNotFound", NOT_FOUND),
            (vec![plain.as_str()], json!({}), -32603, "notExecutable", "Permission denied (os error 13)"),
            (vec![text.as_str()], json!({}), -32603, "notExecutable", "Exec format error (os error 8)"),
            (vec!["/"], json!({}), -32603, "notExecutable", "Permission denied (os error 13)"),
            (vec!["/bin/true"], json!({"cwd": "file:///no/such"}), -32603, "badCwd", NOT_FOUND),
            (
                vec!["/bin/true"],
                json!({"cwd": format!("file://{plain}")}),
                -32603,
                "badCwd",
                "Not a directory (os error 20)",
            ),
            (vec!["/bin/true", "a\0b"], json!({}), -32603, "invalidParams", "Invalid argument (os error 22)"),
            (
                vec!["/bin/true"],
                json!({"env": {"A": "a\0b"}}),
                -32603,
                "invalidParams",
                "Invalid argument (os error 22)",
            ),
            (vec![], json!({}), -32602, "invalidParams", "argv must not be empty"),
        ] {
            let cwd = more["cwd"].as_str().and_then(|cwd| cwd.strip_prefix("file://")).map(str::to_owned);
            let params = with(with(start_params("p", &argv), json!({"tty": tty})), more);
            let error = client.call("process/start", params).unwrap_err();
            assert_eq!(
                (&error["code"], &error["data"]["kind"], &error["message"]),
                (&json!(code), &json!(kind), &json!(message)),
                "{argv:?}: {error}"
            );
            // What was to be started, and where, is said apart.
            assert_eq!(error["data"]["program"].as_str(), argv.first().copied(), "{error}");
            assert_eq!(error["data"]["cwd"].as_str(), cwd.as_deref(), "{error}");
            let unknown = client.refusal("process/read", json!({"processId": "p"}));
            assert_eq!(unknown, (-32600, "unknown process id p".to_owned()));
        }
        let process = format!("after all, tty {tty}");
        assert_eq!(run(&client, &process, &["/bin/true"], json!({"tty": tty})).exit_code(), 0);
    }
    assert_eq!(run(&client, "p", &["/bin/true"], json!({})).exit_code(), 0);
}

#[test]
fn a_server_out_of_descriptors_reports_it_and_recovers() {
    let mut command = std::process::Command::new("/bin/sh");
    command.args(["-c", "ulimit -n 80; exec \"$0\" serve", env!("CARGO_BIN_EXE_remex")]).stdin(Stdio::null());
    let server = Server::launch(command, 1);
    let client = server.client();
    let mut running = Vec::new();
    let error = loop {
        let process = format!("p{}", running.len());
        let params = with(start_params(&process, &["/bin/sleep", "1000"]), json!({"pipeStdin": true}));
        match client.call("process/start", params) {
            Ok(_) => running.push(process),
            Err(error) => break error,
        }
        assert!(running.len() < 80, "80 descriptors are never enough for 80 processes");
    };
    assert_eq!(
        (&error["code"], &error["data"]["kind"]),
        (&json!(-32603), &json!("limitExceeded")),
        "{error}"
    );
    let last = format!("p{}", running.len());
    for process in running {
        client.call("process/terminate", json!({"processId": process})).unwrap();
        client.event(&process, "process/closed");
    }
    assert_eq!(run(&client, &last, &["/bin/echo", "again"], json!({})).text(), "again\n");
}

#[test]
fn all_requests_for_a_process_can_be_pipelined() {
    for (transport, _server, client) in Server::on_every_transport() {
        client.initialize();
        let start = with(start_params("p", &["/bin/cat"]), json!({"pipeStdin": true}));
        let mut requests = vec![client.send("process/start", start)];
        requests.extend((0..10).map(|line: i32| write(&client, "p", &line.to_string(), format!("{line}\n"))));
        requests.push(client.send("process/closeStdin", json!({"processId": "p"})));
        let wait = client.send("process/wait", json!({"processId": "p", "until": "closed"}));
        for request in &requests {
            client.outcome(request).unwrap();
        }
        assert_eq!(client.outcome(&wait).unwrap()["exitCode"], 0, "{transport}");
        assert_eq!(client.collect("p").text(), "0\n1\n2\n3\n4\n5\n6\n7\n8\n9\n", "{transport}");
    }
}

#[test]
fn an_id_is_taken_while_its_process_is_remembered() {
    let server = Server::start();
    let client = server.client();
    let start =
        || client.send("process/start", with(start_params("p", &["/bin/cat"]), json!({"pipeStdin": true})));
    let racing: Vec<_> = (0..8).map(|_| start()).collect();
    let outcomes: Vec<_> = racing.iter().map(|id| client.outcome(id)).collect();
    assert_eq!(outcomes.iter().filter(|outcome| outcome.is_ok()).count(), 1, "{outcomes:?}");
    for error in outcomes.into_iter().filter_map(Result::err) {
        assert_eq!((&error["code"], &error["message"]), (&json!(-32600), &json!("process p already exists")));
        assert_eq!(error["data"]["kind"], "processExists");
    }
    client.call("process/closeStdin", json!({"processId": "p"})).unwrap();
    client.event("p", "process/closed");
    assert_eq!(client.refusal("process/start", start_params("p", &["/bin/true"])).0, -32600);
}

#[test]
fn a_closed_process_is_forgotten_after_its_retention() {
    let server = Server::start();
    let client = server.client();
    let short = json!({"output": {"retainMs": 0}});
    // Again and again with the same id: each time it is free once the one before is forgotten.
    for _ in 0..3 {
        let params = with(start_params("p", &["/bin/echo", "hi"]), short.clone());
        while client.call("process/start", params.clone()).is_err() {}
        client.call("process/wait", json!({"processId": "p", "until": "closed"})).ok();
        while client.call("process/read", json!({"processId": "p"})).is_ok() {}
    }
    assert_eq!(write_status(&client, "p", "w", "x"), "unknownProcess");
    assert_eq!(
        client.call("process/terminate", json!({"processId": "p"})).unwrap(),
        json!({"running": false})
    );
}

#[test]
fn a_write_returns_its_status() {
    let server = Server::start();
    let client = server.client();
    assert_eq!(write_status(&client, "nobody", "w", "x"), "unknownProcess");
    client.start("deaf", &["/bin/sleep", "1000"], json!({}));
    assert_eq!(write_status(&client, "deaf", "w", "x"), "stdinClosed");
    client.start("cat", &["/bin/cat"], json!({"pipeStdin": true}));
    assert_eq!(write_status(&client, "cat", "empty", ""), "accepted");
    assert_eq!(write_status(&client, "cat", "full", "x"), "accepted");
    client.call("process/closeStdin", json!({"processId": "cat"})).unwrap();
    assert_eq!(write_status(&client, "cat", "late", "y"), "stdinClosed");
    assert_eq!(client.collect("cat").text(), "x");
    assert_eq!(write_status(&client, "cat", "later", "y"), "stdinClosed", "the process has ended");
    let (code, message) =
        client.refusal("process/write", json!({"processId": "cat", "chunk": "", "writeId": ""}));
    assert_eq!(code, -32602);
    assert!(message.contains("writeId must not be empty"), "{message}");
}

#[test]
fn a_repeated_write_is_applied_once_even_after_a_disconnect() {
    let server = Server::start();
    let client = server.connect();
    let session = client.initialize()["sessionId"].as_str().unwrap().to_owned();
    client.start("cat", &["/bin/cat"], json!({"pipeStdin": true}));
    for text in ["first", "second, which differs"] {
        assert_eq!(write_status(&client, "cat", "w", text), "accepted");
    }
    client.wait_for_output("cat", "first");
    client.cut();
    let client = server.connect();
    client.resume(&session);
    assert_eq!(write_status(&client, "cat", "w", "third"), "accepted");
    assert_eq!(write_status(&client, "cat", "other", "!"), "accepted");
    client.call("process/closeStdin", json!({"processId": "cat"})).unwrap();
    client.event("cat", "process/closed");
    let read = client.call("process/read", json!({"processId": "cat"})).unwrap();
    let text: Vec<u8> =
        read["chunks"].as_array().unwrap().iter().flat_map(|chunk| decode(&chunk["chunk"])).collect();
    assert_eq!(String::from_utf8(text).unwrap(), "first!");
}

#[test]
fn end_of_input_follows_everything_written_before() {
    let server = Server::start();
    let client = server.client();
    client.start("p", &["/usr/bin/wc", "-c"], json!({"pipeStdin": true}));
    let writes: Vec<_> =
        (0..50).map(|n: i32| write(&client, "p", &n.to_string(), vec![b'x'; 10_000])).collect();
    let close = client.send("process/closeStdin", json!({"processId": "p"}));
    for id in &writes {
        assert_eq!(client.outcome(id).unwrap()["status"], "accepted");
    }
    assert_eq!(client.outcome(&close).unwrap(), json!({}));
    assert_eq!(client.collect("p").text().trim(), "500000");
    // Once more changes nothing, and there has to be a process.
    assert_eq!(client.call("process/closeStdin", json!({"processId": "p"})).unwrap(), json!({}));
    assert_eq!(client.refusal("process/closeStdin", json!({"processId": "nobody"})).0, -32600);
}

#[test]
fn sixteen_mebibytes_of_input_are_buffered_for_a_slow_reader() {
    let directory = tempfile::tempdir().unwrap();
    let gate = directory.path().join("gate");
    let server = Server::start();
    let client = server.client();
    let script = format!("while [ ! -e {} ]; do sleep 0.01; done; exec sha256sum", gate.display());
    client.start("p", &["/bin/sh", "-c", &script], json!({"pipeStdin": true}));
    let blocks: Vec<Vec<u8>> = (0..16_u32)
        .map(|n| (0..1_u32 << 18).map(|i| (i * 16 + n).to_le_bytes()).collect::<Vec<_>>().into_flattened())
        .collect();
    let writes: Vec<_> =
        blocks.iter().enumerate().map(|(n, block)| write(&client, "p", &n.to_string(), block)).collect();
    let close = client.send("process/closeStdin", json!({"processId": "p"}));
    // Other processes are not blocked by it.
    assert_eq!(run(&client, "q", &["/bin/echo", "fine"], json!({})).text(), "fine\n");
    fs::write(gate, "").unwrap();
    for id in writes.iter().chain([&close]) {
        client.outcome(id).unwrap();
    }
    let sum = {
        use sha2::{Digest as _, Sha256};
        let mut sum = Sha256::new();
        blocks.iter().for_each(|block| sum.update(block));
        sum.finalize().iter().map(|byte| format!("{byte:02x}")).collect::<String>()
    };
    assert_eq!(client.collect("p").text(), format!("{sum}  -\n"));
}

#[test]
fn a_child_that_never_reads_blocks_no_other() {
    let server = Server::start();
    let client = server.client();
    client.start("stuck", &["/bin/sleep", "1000"], json!({"pipeStdin": true}));
    let writes: Vec<_> =
        (0..8).map(|n: i32| write(&client, "stuck", &n.to_string(), vec![0; 1 << 20])).collect();
    let close = client.send("process/closeStdin", json!({"processId": "stuck"}));
    assert_eq!(run(&client, "other", &["/bin/echo", "fine"], json!({})).text(), "fine\n");
    assert_eq!(client.call("process/read", json!({"processId": "stuck"})).unwrap()["exited"], false);
    assert_eq!(
        client.call("process/signal", json!({"processId": "stuck", "signal": "CONT"})).unwrap(),
        json!({})
    );
    assert_eq!(
        client.call("process/terminate", json!({"processId": "stuck"})).unwrap(),
        json!({"running": true})
    );
    assert_eq!(client.collect("stuck").exit_code(), 137);
    for id in &writes {
        client.outcome(id).unwrap();
    }
    assert_eq!(client.outcome(&close).unwrap(), json!({}));
}

#[test]
fn a_repeated_start_runs_once() {
    let directory = tempfile::tempdir().unwrap();
    let trace = directory.path().join("trace");
    let script = format!("echo once >> {}", trace.display());
    let start = |process: &str, start_id: &str| {
        with(start_params(process, &["/bin/sh", "-c", &script]), json!({"startId": start_id}))
    };
    let server = Server::start();
    let client = server.connect();
    let session = client.initialize()["sessionId"].as_str().unwrap().to_owned();
    // At the same time …
    let racing: Vec<_> = (0..4).map(|_| client.send("process/start", start("p", "s"))).collect();
    let outcomes: Vec<_> = racing.iter().map(|id| client.outcome(id).unwrap()).collect();
    assert_eq!(outcomes.iter().filter(|outcome| outcome["replayed"] == false).count(), 1, "{outcomes:?}");
    assert!(outcomes.iter().all(|outcome| outcome["pid"] == outcomes[0]["pid"]), "{outcomes:?}");
    client.event("p", "process/closed");
    // … and after a cut.
    client.cut();
    let client = server.connect();
    client.resume(&session);
    let again = client.call("process/start", start("p", "s")).unwrap();
    assert_eq!((&again["replayed"], &again["pid"]), (&json!(true), &outcomes[0]["pid"]));
    assert_eq!(fs::read_to_string(&trace).unwrap(), "once\n");

    let error = client.call("process/start", start("other", "s")).unwrap_err();
    assert_eq!(error["data"]["kind"], "startIdMismatch", "{error}");
    let error = client.call("process/start", start("p", "another")).unwrap_err();
    assert_eq!(error["code"], -32600, "{error}");
}

#[test]
fn a_repeated_failed_start_fails_again_without_an_attempt() {
    let directory = tempfile::tempdir().unwrap();
    let missing = directory.path().join("program").display().to_string();
    let server = Server::start();
    let client = server.client();
    let start = with(start_params("p", &[&missing]), json!({"startId": "s"}));
    let error = client.call("process/start", start.clone()).unwrap_err();
    assert_eq!(error["data"]["kind"], "programNotFound");
    let hint = error["data"]["hint"].as_str().expect("the error has a hint");
    assert!(
        hint.starts_with("check the spelling") && !error["message"].as_str().unwrap_or(hint).contains(hint),
        "{error}"
    );
    fs::copy("/bin/true", &missing).unwrap();
    assert_eq!(client.call("process/start", start).unwrap_err(), error);
    assert_eq!(run(&client, "p", &[&missing], json!({"startId": "t"})).exit_code(), 0, "the id is free");
}

#[test]
fn the_response_precedes_output_exit_and_close() {
    for (transport, _server, client) in Server::on_every_transport() {
        client.initialize();
        for n in 0..100 {
            let process = format!("p{n}");
            let script = "echo out; echo err >&2; printf last";
            let id = client.send("process/start", start_params(&process, &["/bin/sh", "-c", script]));
            let output = client.collect(&process);
            assert_eq!(
                (output.text(), output.stderr),
                ("out\nlast".to_owned(), b"err\n".to_vec()),
                "{transport}"
            );
            let end = &output.order[output.order.len() - 2..];
            assert_eq!(end, ["process/exited", "process/closed"], "{transport}");
            let produced = json!({"stdout": 8, "stderr": 4, "pty": 0});
            assert_eq!((&output.closed["produced"], &output.closed["evictedBytes"]), (&produced, &json!(0)));
            let (reply, first) = client.look(|seen| {
                let reply = seen.messages.iter().position(|message| message["id"] == id);
                let event =
                    seen.messages.iter().position(|message| message["params"]["processId"] == process);
                (reply.unwrap(), event.unwrap())
            });
            assert!(
                reply < first,
                "{transport}: an event of `{process}` came before the answer to its start"
            );
        }
    }
}

#[test]
fn processes_are_listed_in_start_order() {
    let server = Server::start();
    let client = server.client();
    // Several of them begin in the same millisecond.
    let names: Vec<_> = (0..60).rev().map(|number| format!("p{number:02}")).collect();
    for name in &names {
        client.start(name, &["/bin/cat"], json!({"pipeStdin": true}));
    }
    let listed = client.call("process/list", json!({})).expect("a list");
    let listed = listed["processes"].as_array().expect("an array").iter();
    let listed: Vec<_> = listed.map(|process| process["processId"].as_str().expect("an id")).collect();
    assert_eq!(listed, names);
}
