//! What a new server finds of what an old one did.

use std::{
    fs::Permissions,
    io::{Read as _, Write as _},
    net::Shutdown,
    os::unix::{fs::PermissionsExt as _, net::UnixStream},
    time::{Duration, Instant},
};

use remex_client::{
    Command, Options,
    process::{Lines, Sandbox, Stdio, TerminalSize, Until},
};
use rustix::process::{Signal, kill_process};
use serde_json::{Value, json};

use super::{host::DurableHost, in_time};
use crate::support::{Client, InTime as _, PATIENCE, Server, Watched, decode, encode, program};

/// Connects to a session that lasts.
pub(super) fn connect(host: &DurableHost) -> (Client, String) {
    let client = Client::connect(&host.address());
    let asked = json!({"clientName": "durable", "resumeSessionId": null, "detachTtlMs": 3_600_000});
    let session = client.initialize_with(asked)["sessionId"].as_str().expect("an id").to_owned();
    (client, session)
}

pub(super) fn resume(host: &DurableHost, session: &str) -> Client {
    let client = Client::connect(&host.address());
    client.resume(session);
    client
}

/// Asks until something holds.
pub(super) fn poll(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < deadline, "{what} takes too long");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Reads everything of a process that has closed.
pub(super) fn read_all(client: &Client, process_id: &str) -> (Vec<u8>, Value) {
    let asked = json!({"processId": process_id, "afterSeq": 0, "maxBytes": 16 << 20, "waitMs": 60_000});
    loop {
        let read = client.call("process/read", asked.clone()).expect("it can be read");
        if read["closed"] == true {
            let chunks = read["chunks"].as_array().expect("chunks").iter();
            return (chunks.flat_map(|chunk| decode(&chunk["chunk"])).collect(), read);
        }
        let after = json!({"processId": process_id, "until": "closed"});
        client.call("process/wait", after).expect("it can be awaited");
    }
}

#[tokio::test]
async fn a_stopped_server_leaves_durable_processes_running() {
    let mut host = DurableHost::start();
    let options = Options::default()
        .session(remex_client::Session::Create("work".to_owned()))
        .detach_ttl(Duration::from_secs(3600));
    let client = host.connect(options).await;
    let durable = Command::new("cat").stdin(Stdio::Piped).start(&client).await.unwrap();
    let ephemeral = Command::new("cat").stdin(Stdio::Piped).durable(false).start(&client).await.unwrap();
    for process in [&durable, &ephemeral] {
        // The kernel counts no memory for a process that has just begun.
        in_time("a write", process.write(b"ready\n")).await.unwrap();
        in_time("an echo", process.wait_for(&Until::Output("ready".to_owned()))).await.unwrap();
    }
    let listed = client.processes().await.unwrap();
    let is_durable = |id: &str| listed.iter().find(|process| process.process_id == id).unwrap().durable;
    assert!(is_durable(durable.id()) && !is_durable(ephemeral.id()));
    for process in &listed {
        assert_eq!(process.living_pids, [process.pid.unwrap()], "{process:?}");
        assert!(process.cpu_ms.is_some() && process.resident_bytes > Some(0), "{process:?}");
    }
    host.stop();
    host.launch();
    in_time("a write", durable.write(b"still here\n")).await.unwrap();
    in_time("the end of input", durable.close_stdin()).await.unwrap();
    let output = in_time("output", durable.wait_with_output()).await.unwrap();
    assert_eq!(output.stdout, b"ready\nstill here\n");
}

#[test]
fn repeated_starts_and_writes_have_no_second_effect_after_a_crash() {
    let mut host = DurableHost::start();
    let (client, session) = connect(&host);
    let start = json!({"startId": "s1", "pipeStdin": true});
    let first = client.start("p", &["cat"], start.clone());
    let write = json!({"processId": "p", "chunk": encode("once\n"), "writeId": "w1"});
    assert_eq!(client.call("process/write", write.clone()).unwrap()["status"], "accepted");
    client.wait_for_output("p", "once\n");

    host.kill();
    host.launch();
    let client = resume(&host, &session);
    let second = client.start("p", &["cat"], start);
    assert_eq!((&second["pid"], &second["replayed"]), (&first["pid"], &json!(true)));
    assert_eq!(client.call("process/write", write).unwrap()["status"], "accepted");
    client.call("process/closeStdin", json!({"processId": "p"})).unwrap();
    let (output, read) = read_all(&client, "p");
    assert_eq!(output, b"once\n");
    assert_eq!((&read["exitCode"], &read["cause"]), (&json!(0), &json!("exit")));

    // The process is closed now, and known to the next server as well.
    host.kill();
    host.launch();
    let client = resume(&host, &session);
    let write = json!({"processId": "p", "chunk": encode("once\n"), "writeId": "w1"});
    assert_eq!(client.call("process/write", write).unwrap()["status"], "accepted", "it was accepted before");
    let (output, read) = read_all(&client, "p");
    assert_eq!((output.as_slice(), &read["exitCode"]), (&b"once\n"[..], &json!(0)));
    let listed = client.call("process/list", json!({})).unwrap();
    assert_eq!(listed["processes"][0]["state"], "closed");
    assert_eq!(listed["processes"][0]["durable"], true);
}

#[test]
fn a_start_is_remembered_after_its_process_is_forgotten_or_ended_with_the_server() {
    let mut host = DurableHost::start();
    let (client, session) = connect(&host);
    let start = json!({"startId": "s1", "output": {"retainMs": 0}});
    let first = client.start("p", &["true"], start.clone());
    client.event("p", "process/closed");
    let gone = || client.call("process/list", json!({})).unwrap()["processes"].as_array().unwrap().is_empty();
    poll("the process to be forgotten", gone);
    let ephemeral = json!({"startId": "s2", "durable": false, "pipeStdin": true});
    client.start("q", &["cat"], ephemeral.clone());
    host.kill();
    host.launch();
    let client = resume(&host, &session);
    let second = client.start("p", &["true"], start);
    assert_eq!((&second["pid"], &second["replayed"]), (&first["pid"], &json!(true)));
    let params = crate::support::with(crate::support::start_params("q", &["cat"]), ephemeral);
    let (_, message) = client.refusal("process/start", params);
    assert_eq!(message, "process `q` has ended with the server that started it");
}

#[test]
fn a_process_lost_with_its_keeper_is_reported_and_others_can_be_started() {
    let host = DurableHost::start();
    let (client, _) = connect(&host);
    client.shell("p", "echo before; setsid sleep 1000 & echo $!; sleep 1000");
    let printed = client.wait("two lines", |seen| {
        let text = seen.events("p").flat_map(|event| decode(&event["params"]["chunk"])).collect();
        String::from_utf8(text).ok().filter(|text| text.lines().count() == 2)
    });
    let descendant = Watched::printed(printed.lines().nth(1).unwrap());
    kill_process(host.keeper(), Signal::KILL).unwrap();
    let exited = client.event("p", "process/exited");
    assert_eq!((&exited["exitCode"], &exited["cause"]), (&json!(255), &json!("serverLost")));
    client.event("p", "process/closed");
    assert!(descendant.ended_within(PATIENCE), "nothing is left behind");
    let (output, _) = read_all(&client, "p");
    assert!(output.starts_with(b"before\n"));
    poll("a new keeper", || {
        client.call("process/start", crate::support::start_params("q", &["true"])).is_ok()
    });
    client.event("q", "process/closed");
}

#[test]
fn processes_without_a_keeper_are_closed_by_the_next_server() {
    let mut host = DurableHost::start();
    let (client, session) = connect(&host);
    client.shell("p", "echo before $$; sleep 1000");
    let line = client.wait_for_output("p", "\n");
    let child = Watched::printed(line.strip_prefix("before ").unwrap());
    let keeper = host.keeper();
    host.kill();
    kill_process(keeper, Signal::KILL).unwrap();
    host.launch();
    let client = resume(&host, &session);
    let (output, read) = read_all(&client, "p");
    assert!(output.starts_with(b"before "));
    assert_eq!((&read["exitCode"], &read["cause"]), (&json!(255), &json!("serverLost")));
    assert!(child.ended_within(PATIENCE));
}

#[test]
fn a_start_in_flight_when_the_server_dies_is_known_to_the_next_one() {
    let mut host = DurableHost::start();
    let (client, session) = connect(&host);
    let keeper = host.keeper();
    kill_process(keeper, Signal::STOP).unwrap();
    let params = |id: &str| {
        let more = json!({"startId": id, "pipeStdin": true});
        crate::support::with(crate::support::start_params(id, &["cat"]), more)
    };
    let ids: Vec<_> = (0..20).map(|number| format!("p{number}")).collect();
    for id in &ids {
        client.send("process/start", params(id));
    }
    // Answered after the starts were passed on.
    client.call("process/list", json!({})).unwrap();
    host.kill();
    kill_process(keeper, Signal::CONT).unwrap();
    host.launch();
    let client = resume(&host, &session);
    for id in &ids {
        let started = client.call("process/start", params(id)).expect("it starts, or has started");
        assert!(started["pid"].is_u64(), "{started}");
        client.call("process/closeStdin", json!({"processId": id})).unwrap();
        assert_eq!(read_all(&client, id).1["exitCode"], 0);
    }
}

#[test]
fn a_keeper_without_a_socket_keeps_its_processes() {
    let mut host = DurableHost::start();
    let (client, _) = connect(&host);
    client.shell("p", "echo $$; sleep 1000");
    let child = Watched::printed(&client.wait_for_output("p", "\n"));
    std::fs::remove_file(host.state().join("keeper.sock")).unwrap();
    host.kill();
    let state = host.state();
    let mut command = program(&["serve", "--listen", "ws://127.0.0.1:0", "--state", state.to_str().unwrap()]);
    let output = command.finished();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("runs, but nobody can connect to it: its socket `keeper.sock` is gone"), "{said}");
    assert!(!child.ended_within(Duration::ZERO), "it runs on");
}

#[test]
fn silent_keeper_peers_and_damaged_sessions_affect_nothing_else() {
    let mut host = DurableHost::start();
    let (client, session) = connect(&host);
    client.start("p", &["cat"], json!({"pipeStdin": true}));
    let (other, damaged) = connect(&host);
    other.shell("q", "echo $$; sleep 1000");
    let child = Watched::printed(&other.wait_for_output("q", "\n"));
    host.kill();
    std::fs::write(host.state().join(format!("sessions/{damaged}.json")), "{").unwrap();
    let socket = host.state().join("keeper.sock");
    let silent: Vec<_> = (0..50).map(|_| UnixStream::connect(&socket).unwrap()).collect();
    host.launch();
    drop(silent);
    let client = resume(&host, &session);
    client.call("process/closeStdin", json!({"processId": "p"})).unwrap();
    assert_eq!(read_all(&client, "p").1["exitCode"], 0);
    assert!(!child.ended_within(Duration::ZERO), "what cannot be read is left alone");
}

#[test]
fn a_session_that_expired_while_no_server_ran_ends_with_the_next_one() {
    let mut host = DurableHost::start();
    for _ in 0..5 {
        let client = Client::connect(&host.address());
        client.initialize_with(json!({"clientName": "brief", "resumeSessionId": null, "detachTtlMs": 50}));
        client.shell("p", "echo $$; sleep 1000");
        let child = Watched::printed(&client.wait_for_output("p", "\n"));
        client.cut();
        host.kill();
        host.launch();
        assert!(child.ended_within(PATIENCE), "nobody has to connect for that");
    }
}

#[test]
fn sessions_keep_their_names_owners_and_deadlines() {
    let mut host = DurableHost::start();
    let client = Client::connect(&host.address());
    let asked = json!({"clientName": "durable", "sessionName": "work", "detachTtlMs": 3_600_000});
    let session = client.initialize_with(asked)["sessionId"].clone();
    let brief = Client::connect(&host.address());
    let asked = json!({"clientName": "brief", "sessionName": "brief", "detachTtlMs": 1});
    brief.initialize_with(asked);
    brief.shell("p", "echo $$; sleep 1000");
    let child = Watched::printed(&brief.wait_for_output("p", "\n"));
    host.kill();
    host.launch();
    let client = Client::connect(&host.address());
    let resumed = client.initialize_with(json!({"clientName": "durable", "resumeSessionId": "work"}));
    assert_eq!((&resumed["sessionId"], &resumed["detachTtlMs"]), (&session, &json!(3_600_000)));
    assert!(child.ended_within(PATIENCE), "a session that expires ends its processes");
    poll("the end of the session", || {
        let listed = client.call("session/list", json!({})).unwrap();
        listed["sessions"].as_array().unwrap().len() == 1
    });
}

#[test]
fn an_upgrade_tells_clients_to_reconnect_and_keeps_sockets_processes_and_pid() {
    let host = DurableHost::with(&["--listen", "ws://127.0.0.1:0"]);
    let client = Client::connect(host.other_address());
    let session = client.initialize()["sessionId"].as_str().unwrap().to_owned();
    let first = client.start("p", &["cat"], json!({"startId": "s", "pipeStdin": true}));
    host.upgrade();
    let (code, reason) = client.closed_for("it is being replaced");
    assert_eq!((code, reason.as_str()), (1012, "the server is being replaced: reconnect"));
    // The same port and the same file, at once.
    let client = Client::connect(host.other_address());
    client.resume(&session);
    is_known_on_the_other_listener(&host, &session);
    let second = client.start("p", &["cat"], json!({"startId": "s", "pipeStdin": true}));
    assert_eq!((&second["pid"], &second["replayed"]), (&first["pid"], &json!(true)));
    client.call("process/closeStdin", json!({"processId": "p"})).unwrap();
    assert_eq!(read_all(&client, "p").1["exitCode"], 0);
}

/// Checks that the other listener works as well, and knows the session.
fn is_known_on_the_other_listener(host: &DurableHost, session: &str) {
    let other = Client::connect(&host.address());
    let asked = json!({"clientName": "other", "resumeSessionId": session});
    let (_, message) = other.refusal("initialize", asked);
    assert_eq!(message, format!("session {session} is already attached to another connection"));
}

/// Waits for the next line of a process.
async fn line(lines: &mut Lines) -> String {
    let line = in_time("a line", lines.next()).await.unwrap().expect("it has not ended");
    line.text.trim_end().to_owned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_upgrade_command_replaces_server_and_keeper_without_ending_processes() {
    let host = DurableHost::renewable(&[]);
    let client = host.connect(Options::default().detach_ttl(Duration::from_secs(3600))).await;
    let script = "stty -echo 2>/dev/null; echo ready; while read line; do echo \"got $line\"; done; exit 7";
    let piped = || Command::shell(script).stdin(Stdio::Piped);
    let commands = [
        piped(),
        Command::shell(script).terminal(TerminalSize::new(24, 80).unwrap()),
        piped().sandbox(Sandbox::workspace_write()),
    ];
    let mut processes = Vec::new();
    for command in commands {
        let process = command.start(&client).await.unwrap();
        let mut lines = process.lines();
        assert_eq!(line(&mut lines).await, "ready");
        processes.push((process, lines));
    }
    // A termination in progress continues as well, with its remaining time.
    let stubborn = Command::shell("trap '' TERM; echo ready; while :; do sleep 0.05; done")
        .start(&client)
        .await
        .unwrap();
    assert_eq!(line(&mut stubborn.lines()).await, "ready");
    stubborn.terminate(Duration::from_secs(3)).await.unwrap();
    let keeper = host.keeper();
    for number in 1..=2 {
        host.renew();
        let upgraded = program(&["upgrade", "--state", host.state().to_str().unwrap()]).finished();
        let said = String::from_utf8_lossy(&upgraded.stdout).into_owned();
        assert!(upgraded.status.success() && said.starts_with("the server (pid "), "{upgraded:?}");
        in_time("the client", client.processes()).await.unwrap();
        assert_eq!(host.replaced_keepers(), number, "{}", host.said());
        for (process, lines) in &mut processes {
            in_time("a write", process.write(format!("{number}\n").as_bytes())).await.unwrap();
            assert_eq!(line(lines).await, format!("got {number}"));
        }
    }
    assert!(rustix::process::test_kill_process(keeper).is_ok(), "it is the same process");
    for (number, (process, _)) in processes.iter().enumerate() {
        if number == 1 {
            in_time("a write", process.write(b"\x04")).await.unwrap();
        } else {
            in_time("the end of input", process.close_stdin()).await.unwrap();
        }
        let output = in_time("output", process.wait_with_output()).await.unwrap();
        assert_eq!(output.exit.code, 7);
    }
    let ended = in_time("the end of what ignores SIGTERM", stubborn.wait_with_output()).await.unwrap();
    assert_eq!(ended.exit.signal.as_deref(), Some("SIGKILL"));
}

/// Asks the keeper to go on with another program, as a server does; returns why it does not.
fn ask_to_replace(host: &DurableHost, program: &str) -> String {
    let mut stream = UnixStream::connect(host.state().join("keeper.sock")).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(b"REMEXRPL").unwrap();
    stream.write_all(&[0; 24]).unwrap();
    stream.write_all(program.as_bytes()).unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    let mut reason = String::new();
    stream.read_to_string(&mut reason).unwrap();
    reason
}

#[test]
fn a_keeper_that_cannot_be_replaced_keeps_running() {
    let mut host = DurableHost::start();
    let (client, session) = connect(&host);
    let go = host.state().join("go");
    client.shell(
        "p",
        &format!("echo before; while [ ! -e {} ]; do sleep 0.02; done; echo after", go.display()),
    );
    client.wait_for_output("p", "\n");
    host.kill();
    // Accepts the tables, and is gone when it is to be executed.
    let vanishing = host.state().join("vanishing");
    std::fs::write(&vanishing, "#!/bin/sh\nrm \"$0\"; echo remex knows these tables\n").unwrap();
    std::fs::set_permissions(&vanishing, Permissions::from_mode(0o700)).unwrap();
    for (program, reason) in [
        ("/bin/false", "it is an older version, or not remex"),
        ("/bin/true", "it is an older version, or not remex"),
        ("/nowhere/remex", "cannot run `/nowhere/remex`"),
        (vanishing.to_str().unwrap(), "cannot execute"),
    ] {
        let said = ask_to_replace(&host, program);
        assert!(said.contains(reason), "{said}");
    }
    host.launch();
    let client = resume(&host, &session);
    std::fs::write(go, "").unwrap();
    let (output, read) = read_all(&client, "p");
    assert_eq!((&output[..], &read["exitCode"]), (&b"before\nafter\n"[..], &json!(0)));
}

#[test]
fn a_state_directory_has_one_server_and_one_version() {
    let mut host = DurableHost::start();
    let state = host.state();
    let serve = || {
        let mut command =
            program(&["serve", "--listen", "ws://127.0.0.1:0", "--state", state.to_str().unwrap()]);
        let output = command.finished();
        assert!(!output.status.success());
        String::from_utf8(output.stderr).unwrap()
    };
    let said = serve();
    assert!(said.contains("is in use by another server (pid "), "{said}");
    host.stop();
    std::fs::write(state.join("version"), "2\n").unwrap();
    let said = serve();
    assert!(said.contains("was written by a newer remex (state version 2; this one knows 1)"), "{said}");
    std::fs::write(state.join("version"), "1\n").unwrap();
    host.launch();
}

#[test]
fn a_server_without_a_state_directory_refuses_durable_starts() {
    let server = Server::start();
    let client = server.connect();
    client.initialize();
    let params = crate::support::with(crate::support::start_params("p", &["true"]), json!({"durable": true}));
    let (_, message) = client.refusal("process/start", params);
    assert_eq!(message, "cannot start a durable process: this server has no state directory");
    client.start("p", &["true"], json!({"durable": false}));
}
