//! Clients that go away, programs that do not read, hosts that do not respond, and files that are odd.

use std::{fs, sync::Arc, time::Instant};

use super::*;

/// A process that was started by `command`, and tells its pid in the file `pid`.
fn is_alive(world: &World) -> bool {
    Path::new("/proc").join(world.file("pid").trim()).exists()
}

#[tokio::test]
async fn a_command_outlives_a_client_that_disconnects_while_waiting() {
    let world = World::new();
    let model = Arc::new(world.model().await);
    let command = "echo $$ > pid.new; mv pid.new pid; until test -e go; do sleep 0.02; done; echo done";
    let waiting = tokio::spawn({
        let model = Arc::clone(&model);
        let params = CallToolRequestParams::new("run_command")
            .with_arguments(object(json!({"command": command, "name": "kept", "wait_seconds": 600})));
        async move { model.service.call_tool(params).await }
    });
    eventually("the start", || world.directory.path().join("pid").exists()).await;
    model.service.cancellation_token().cancel();
    timeout(OVERDUE, waiting).await.unwrap().unwrap().unwrap_err();
    // Those who serve notice that nobody is there any more, and give calls some seconds to end.
    let model = world.model().await;
    let (_, data) = model.does("read_output", json!({"process": "kept", "wait_seconds": 8})).await;
    assert_eq!(data["running"], true, "{data}");
    assert!(is_alive(&world));
    fs::write(world.directory.path().join("go"), "").unwrap();
    let (text, _) = model.does("read_output", json!({"process": "kept"})).await;
    assert_eq!(text, "done\n[`kept` ended with exit code 0]");
}

#[tokio::test]
async fn an_invalid_call_writes_nothing() {
    let world = World::new();
    let model = world.model().await;
    model
        .does("run_command", json!({"command": "cat", "name": "cat", "input": "pipe", "wait_seconds": 0}))
        .await;
    let why = model.fails("send_input", json!({"process": "cat", "text": "once\n", "wait_for": "("})).await;
    assert!(why.starts_with("`(` is not a regular expression"), "{why}");
    let why = model.fails("read_output", json!({"process": "cat", "silence_seconds": -1})).await;
    assert!(why.contains("is no time"), "{why}");
    let sent = json!({"process": "cat", "text": "once\n", "end_input": true, "silence_seconds": 1e19});
    let (text, _) = model.does("send_input", sent).await;
    assert_eq!(text, "once\n[`cat` ended with exit code 0]");
}

#[tokio::test]
async fn an_exited_process_is_reported_without_waiting() {
    let world = World::new();
    let model = world.model().await;
    model.does("run_command", json!({"command": "seq 1 300000; exit 2", "name": "ended"})).await;
    let again = json!({"process": "ended", "from_start": true, "wait_seconds": 0, "max_output_tokens": 100});
    let (_, data) = model.does("read_output", again).await;
    assert_eq!((&data["running"], &data["exit_code"]), (&json!(false), &json!(2)));
}

#[tokio::test]
async fn a_process_that_has_exited_is_not_running_while_its_output_is_open() {
    let world = World::new();
    let model = world.model().await;
    let command = json!({"command": "sleep 1000 & echo $$; exit 2", "name": "left"});
    let (text, _) = model.does("run_command", command).await;
    assert!(text.contains("ended with exit code 2; something that it started still has"), "{text}");
    // Neither when there is no time to wait, nor when it has been silent for long enough.
    for condition in ["wait_seconds", "silence_seconds"] {
        let again = json!({"process": "left", "from_start": true, condition: 0});
        let (text, data) = model.does("read_output", again).await;
        assert_eq!((&data["running"], &data["exit_code"]), (&json!(false), &json!(2)), "{condition}: {text}");
        assert_eq!(data["returned"], "ended", "{condition}: {text}");
    }
    model.does("stop_process", json!({"process": "left", "grace_seconds": 0})).await;
}

#[tokio::test]
async fn a_program_that_does_not_read_blocks_no_other() {
    let world = World::new();
    let model = world.model().await;
    let (began, input) = (Instant::now(), "x".repeat(4 << 20));
    let command = json!({"command": "sleep 1000", "name": "deaf", "stdin": input, "wait_seconds": 0.2});
    let (text, _) = model.does("run_command", command).await;
    assert!(text.contains("it has not read all of its input yet"), "{text}");
    // A little fits into the pipe, and is not told to be left.
    let command = json!({"command": "sleep 1000", "name": "idle", "stdin": "x", "wait_seconds": 0});
    let (text, _) = model.does("run_command", command).await;
    assert!(text.starts_with("[`idle` is still running") && !text.contains("input"), "{text}");
    model.does("stop_process", json!({"process": "idle", "grace_seconds": 0})).await;
    let sent = json!({"process": "deaf", "text": input, "wait_seconds": 0.2});
    model.call("send_input", sent).await;
    assert!(began.elapsed() < OVERDUE);
    model.does("stop_process", json!({"process": "deaf", "grace_seconds": 0})).await;
}

#[tokio::test]
async fn two_calls_that_read_the_same_output_do_not_block_each_other() {
    let world = World::new();
    let model = Arc::new(world.model().await);
    let command = json!({"command": "echo first; sleep 1000", "name": "slow", "wait_seconds": 0});
    model.does("run_command", command).await;
    let waiting = tokio::spawn({
        let model = Arc::clone(&model);
        async move { model.does("read_output", json!({"process": "slow", "wait_seconds": 600})).await }
    });
    let why = loop {
        let read = model.call("read_output", json!({"process": "slow", "wait_seconds": 0})).await;
        if read.is_error == Some(true) {
            break text(&read);
        }
    };
    assert!(why.starts_with("another call is waiting for output of `slow`"), "{why}");
    model.call("stop_process", json!({"process": "slow", "signal": "KILL"})).await;
    let (text, _) = timeout(OVERDUE, waiting).await.unwrap().unwrap();
    assert!(text.ends_with("was ended by SIGKILL]"), "{text}");
}

#[tokio::test]
async fn a_host_that_does_not_respond_does_not_hide_the_others() {
    let world = World::new();
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("ws://{}", silent.local_addr().unwrap());
    let target = Target::parse(&address).unwrap();
    let environments = vec![
        environment("here", world.local.target(), world.directory.path()),
        environment("silent", target, world.directory.path()),
    ];
    let model = Arc::new(Model::of(Tools::new(environments, Allow::everything())).await);
    model.does("run_command", json!({"command": "sleep 1000", "name": "one", "wait_seconds": 0})).await;
    let connecting = tokio::spawn({
        let model = Arc::clone(&model);
        async move { model.call("run_command", json!({"command": "true", "environment": "silent"})).await }
    });
    let (_stream, _) = timeout(OVERDUE, silent.accept()).await.unwrap().unwrap();
    let (text, _) = model.does("list_processes", json!({})).await;
    assert!(text.starts_with("one on here: running"), "{text}");
    connecting.abort();
    model.does("stop_process", json!({"process": "one", "grace_seconds": 0})).await;
}

#[tokio::test]
async fn an_unreachable_host_is_named_alongside_the_processes_of_others() {
    let (world, other) = (World::new(), World::new());
    let connected = Arc::new(std::sync::Mutex::new(None::<Client>));
    let target = other.local.target();
    let once = Environment::new("gone", {
        let connected = Arc::clone(&connected);
        move |options| {
            let (connected, target) = (Arc::clone(&connected), target.clone());
            async move {
                if connected.lock().unwrap().is_some() {
                    return Err("it is switched off".to_owned());
                }
                let client =
                    Client::connect_with(target, options).await.map_err(|error| error.to_string())?;
                *connected.lock().unwrap() = Some(client.clone());
                Ok(client)
            }
        }
    });
    let environments = vec![environment("here", world.local.target(), world.directory.path()), once];
    let model = Model::of(Tools::new(environments, Allow::everything())).await;
    model.does("run_command", json!({"command": "true", "environment": "gone"})).await;
    let client = connected.lock().unwrap().clone().unwrap();
    timeout(OVERDUE, client.end()).await.unwrap().unwrap();
    let (text, data) = model.does("list_processes", json!({})).await;
    assert!(text.starts_with("[not listed: gone: cannot connect") && text.contains("switched off"), "{text}");
    assert_eq!(data["failures"].as_array().unwrap().len(), 1);
    let why = model.fails("list_processes", json!({"environment": "gone"})).await;
    assert!(why.contains("switched off"), "{why}");
}

#[tokio::test]
async fn unusual_files_are_reported_and_left_intact() {
    let world = World::new();
    let model = world.model().await;
    let place = |name: &str| world.directory.path().join(name);
    fs::write(place("latin1"), b"caf\xe9\n").unwrap();
    let (text, data) = model.does("read_file", json!({"path": "latin1"})).await;
    assert!(text.contains("not UTF-8"), "{text}");
    assert_eq!(data["is_utf8"], false);
    fs::write(place("long"), format!("short\n{}\n", "a".repeat(100_000))).unwrap();
    let why = model.fails("read_file", json!({"path": "long"})).await;
    assert!(why.starts_with("line 2 of `") && why.contains("is too long"), "{why}");
    fs::write(place("a"), "a".repeat(1000)).unwrap();
    let grow = json!({"old": "a", "new": "a".repeat(1000), "all": true});
    let why = model.fails("edit_file", json!({"path": "a", "edits": [grow, grow, grow]})).await;
    assert!(why.starts_with("edit 2 cannot be made: the file would have 1000000000 bytes"), "{why}");
    let why = model.fails("edit_file", json!({"path": "a", "edits": []})).await;
    assert!(why.starts_with("there are no edits"), "{why}");
    assert_eq!(world.file("a"), "a".repeat(1000));
    fs::create_dir_all(place("tree/in")).unwrap();
    let why = model.fails("copy", json!({"from_path": "tree", "to_path": "tree/in/side/deep"})).await;
    assert!(why.contains("itself"), "{why}");
    assert!(!place("tree/in/side").exists());
    let absent = json!({"path": "no/such/file", "content": "", "if_match": data["hash"]});
    model.fails("write_file", absent).await;
    assert!(!place("no").exists());
    let why = model.fails("run_command", json!({"command": "true", "env": {"A=B": "c"}})).await;
    assert!(why.starts_with("`A=B` cannot be the name"), "{why}");
}

#[tokio::test]
async fn the_hash_of_a_file_matches_the_returned_content() {
    let world = World::new();
    let model = world.model().await;
    let (path, next) = (world.directory.path().join("file"), world.directory.path().join("next"));
    fs::write(&path, "0").unwrap();
    let done = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let writing = std::thread::spawn({
        let done = Arc::clone(&done);
        move || {
            for number in 0_u64.. {
                if done.load(std::sync::atomic::Ordering::Relaxed) {
                    break;
                }
                fs::write(&next, number.to_string()).unwrap();
                fs::rename(&next, &path).unwrap();
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    });
    for _ in 0..100 {
        let (_, data) = model.does("read_file", json!({"path": "file"})).await;
        let same = json!({"path": "copy", "content": data["content"]});
        let (_, copy) = model.does("write_file", same).await;
        assert_eq!(copy["hash"], data["hash"], "{data}");
    }
    done.store(true, std::sync::atomic::Ordering::Relaxed);
    writing.join().unwrap();
    // Also if only a part of it is returned.
    let long = "a line\n".repeat(50_000);
    let (_, written) = model.does("write_file", json!({"path": "long", "content": long})).await;
    let (text, _) = model.does("read_file", json!({"path": "long"})).await;
    assert!(text.contains("more lines follow") && text.contains(written["hash"].as_str().unwrap()), "{text}");
}

#[tokio::test]
async fn a_replaced_token_ends_connections_and_admits_only_the_new_one() {
    let world = World::new();
    let (address, token) = over_http(&world).await;
    let mut open = TcpStream::connect(address).await.unwrap();
    let [old, new] = ["s3cret", "t0ken"].map(|token| format!("authorization: Bearer {token}\r\n"));
    assert!(post(address, &old, "/mcp").await.starts_with("HTTP/1.1 200"));
    token.replace("t0ken");
    let ended = timeout(Duration::from_secs(20), open.read(&mut [0])).await.expect("the connection ends");
    assert_eq!(ended.unwrap_or_default(), 0);
    assert!(post(address, &old, "/mcp").await.starts_with("HTTP/1.1 401"));
    assert!(post(address, &new, "/mcp").await.starts_with("HTTP/1.1 200"));
}

#[tokio::test]
async fn sessions_beyond_the_limit_end_the_longest_idle_ones() {
    let world = World::new();
    let (address, _) = over_http(&world).await;
    let bearer = "authorization: Bearer s3cret\r\n";
    let mut sessions = Vec::new();
    for _ in 0..300 {
        let answer = post(address, bearer, "/mcp").await;
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        let id = answer.lines().find_map(|line| line.strip_prefix("mcp-session-id: "));
        sessions.push(id.unwrap_or_else(|| panic!("no session: {answer}")).to_owned());
    }
    let is_gone = async |id: &str| {
        let body = r#"{"jsonrpc":"2.0","id":2,"method":"ping"}"#;
        let head = format!(
            "POST /mcp HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\ncontent-type: application/json\r\n\
             accept: application/json, text/event-stream\r\nmcp-session-id: {id}\r\n\
             mcp-protocol-version: 2025-06-18\r\ncontent-length: {}\r\n{bearer}\r\n",
            body.len()
        );
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(format!("{head}{body}").as_bytes()).await.unwrap();
        let mut status = [0; 12];
        timeout(OVERDUE, stream.read_exact(&mut status)).await.expect("an answer").unwrap();
        match &status {
            b"HTTP/1.1 404" => true,
            b"HTTP/1.1 200" => false,
            other => panic!("{}", String::from_utf8_lossy(other)),
        }
    };
    assert!(is_gone(&sessions[0]).await && is_gone(&sessions[43]).await);
    assert!(!is_gone(&sessions[44]).await && !is_gone(&sessions[299]).await);
}

#[tokio::test]
async fn idle_connections_lock_out_no_one() {
    let world = World::new();
    let (address, _) = over_http(&world).await;
    let mut silent = Vec::new();
    for _ in 0..700 {
        silent.push(TcpStream::connect(address).await.unwrap());
    }
    let answering = post(address, "authorization: Bearer s3cret\r\n", "/mcp");
    let answer = timeout(Duration::from_secs(20), answering).await.expect("it gets in before others give up");
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
}
