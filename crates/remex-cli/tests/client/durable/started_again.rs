//! `process/restart`: what is started again, by whom, and what is left of it where.

use std::{fs, path::Path, time::Duration};

use remex_client::{
    Command, Options, Session,
    process::{State, Termination},
};
use rustix::process::{Signal, kill_process};
use serde_json::{Value, json};

use super::{
    host::DurableHost,
    in_time,
    restarts::{connect, poll, resume},
};
use crate::support::{Client, InTime as _, Watched, program, start_params, with};

/// What must be on no disk.
const HIDDEN: &str = "hidden4711";

/// A command that says what it was started with, its environment only in part.
fn start() -> Value {
    let script = "printf '%s %s %s\\n' \"${TOKEN%-*}\" \"$PWD\" \"$1\"; exec sleep 1000";
    let env = json!({"PATH": "/usr/bin:/bin", "TOKEN": format!("known-{HIDDEN}")});
    json!({"processId": "p", "argv": ["/bin/sh", "-c", script, "sh", "word"], "cwd": "/usr", "env": env, "tty": false,
        "restartable": true, "labels": {"team": "web"}})
}

/// Returns all output of a process, once it has some.
fn output_of(client: &Client, session: &str) -> String {
    let asked = json!({"processId": "p", "sessionId": session, "afterSeq": 0, "waitMs": 60_000});
    let read = client.call("process/read", asked).unwrap();
    let chunks = read["chunks"].as_array().unwrap().iter();
    String::from_utf8(chunks.flat_map(|chunk| crate::support::decode(&chunk["chunk"])).collect()).unwrap()
}

fn listed(client: &Client, session: &str) -> Value {
    client.call("process/list", json!({"sessionId": session})).unwrap()["processes"].clone()
}

/// Connects to a session of its own, to restart processes of others.
fn other(host: &DurableHost) -> Client {
    connect(host).0
}

fn restart(client: &Client, session: &str, restart_id: &str) -> Value {
    let asked = json!({"processId": "p", "sessionId": session, "graceMs": 60_000, "restartId": restart_id});
    client.call("process/restart", asked).unwrap()
}

/// Fails if a file below a directory has a text.
fn assert_nowhere(directory: &Path, text: &str) {
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            assert_nowhere(&path, text);
        } else if path.is_file() {
            // Logs are deleted meanwhile.
            let bytes = fs::read(&path).unwrap_or_default();
            let is_there = bytes.windows(text.len()).any(|window| window == text.as_bytes());
            assert!(!is_there, "{} has `{text}`", path.display());
        }
    }
}

#[test]
fn a_process_is_restarted_as_before_with_and_without_a_keeper() {
    let host = DurableHost::start();
    for durable in [true, false] {
        let (client, session) = connect(&host);
        let first = client.call("process/start", with(start(), json!({"durable": durable}))).unwrap();
        client.wait_for_output("p", "known /usr word\n");
        let before = Watched::printed(&first["pid"].to_string());
        let entry = listed(&client, &session)[0].clone();
        let again = restart(&client, &session, "r1");
        before.assert_ends();
        assert_ne!((&again["pid"], &again["replayed"]), (&first["pid"], &json!(true)), "{again}");
        let closed = client.event("p", "process/closed");
        assert_eq!(closed["processId"], "p", "the controller sees the end");
        assert_eq!(output_of(&client, &session), "known /usr word\n", "the output is that of the new one");
        // It controls the new one, too.
        client.wait_for_output("p", "known /usr word\nknown /usr word\n");
        let processes = listed(&client, &session);
        assert_eq!(processes.as_array().unwrap().len(), 1, "{processes}");
        for member in ["argv", "cwd", "labels", "durable", "tty"] {
            assert_eq!(processes[0][member], entry[member], "{processes}");
        }
        assert_eq!((&processes[0]["pid"], &processes[0]["state"]), (&again["pid"], &json!("running")));
        let repeated = restart(&client, &session, "r1");
        assert_eq!((&repeated["pid"], &repeated["replayed"]), (&again["pid"], &json!(true)), "{repeated}");
        client.call("session/end", json!({"sessionId": session})).unwrap();
    }
}

#[test]
fn the_start_request_survives_a_server_crash_and_upgrade_without_touching_disk() {
    let mut host = DurableHost::renewable(&[]);
    let (client, session) = connect(&host);
    let first = client.call("process/start", start()).unwrap();
    client.wait_for_output("p", "known");
    drop(client);
    host.kill();
    host.launch();
    let killed = restart(&other(&host), &session, "after the kill");
    assert_ne!(killed["pid"], first["pid"]);
    host.kill();
    host.launch();
    let repeated = restart(&other(&host), &session, "after the kill");
    assert_eq!((&repeated["pid"], &repeated["replayed"]), (&killed["pid"], &json!(true)), "{repeated}");
    host.renew();
    let upgraded = program(&["upgrade", "--state", host.state().to_str().unwrap()]).finished();
    assert!(upgraded.status.success(), "{upgraded:?}");
    let client = other(&host);
    let again = restart(&client, &session, "after the upgrade");
    assert_ne!(again["pid"], killed["pid"]);
    assert_eq!(output_of(&client, &session), "known /usr word\n");
    assert_nowhere(&host.state(), HIDDEN);
    // A client that resumes the session controls the process that runs now.
    let client = resume(&host, &session);
    client.call("process/signal", json!({"processId": "p", "signal": "SIGKILL"})).unwrap();
    client.event("p", "process/closed");
    // Also a process that has exited and has no followers.
    let ended = restart(&client, &session, "after its end");
    assert_ne!(ended["pid"], again["pid"]);
    assert_eq!(output_of(&client, &session), "known /usr word\n");
}

#[test]
fn an_impossible_restart_is_refused_before_the_process_ends() {
    let host = DurableHost::start();
    let (client, session) = connect(&host);
    let refusal = |client: &Client, id: &str| {
        let asked = json!({"processId": id, "sessionId": session});
        let error = client.call("process/restart", asked).unwrap_err();
        (error["data"]["kind"].as_str().unwrap().to_owned(), error["message"].as_str().unwrap().to_owned())
    };
    client.start("plain", &["sleep", "1000"], json!({}));
    let long = json!({"restartable": true, "env": {"PATH": "/usr/bin:/bin", "LONG": "x".repeat(100_000),
        "LONGER": "x".repeat(100_000), "LONGEST": "x".repeat(100_000)}});
    client.start("long", &["sleep", "1000"], long);
    for id in ["plain", "long"] {
        let (kind, message) = refusal(&client, id);
        assert!(kind == "notSupported" && message.contains("was not kept"), "{kind} {message}");
    }
    assert_eq!(refusal(&client, "missing").0, "unknownProcess");
    client.call("process/start", start()).unwrap();
    let (kind, message) = refusal(&other(&host), "p");
    assert!(kind == "sessionAttached" && message.contains("another client is attached"), "{kind} {message}");
    let processes = listed(&client, &session);
    let running = processes.as_array().unwrap().iter().filter(|process| process["state"] == "running");
    assert_eq!(running.count(), 3, "{processes}");
}

#[test]
fn a_failed_restart_reports_the_ended_process_and_can_be_repeated() {
    let host = DurableHost::start();
    let directory = tempfile::tempdir().unwrap();
    let work = directory.path().join("work");
    for durable in [true, false] {
        fs::create_dir(&work).unwrap();
        let (client, session) = connect(&host);
        client.call("process/start", with(start(), json!({"cwd": work, "durable": durable}))).unwrap();
        client.wait_for_output("p", "word\n");
        fs::remove_dir(&work).unwrap();
        let asked = |id: &str| json!({"processId": "p", "restartId": id});
        let error = client.call("process/restart", asked("first")).unwrap_err();
        let message = error["message"].as_str().unwrap();
        assert!(message.starts_with("process `p` was ended, but not started again: "), "{error}");
        assert_eq!(error["data"]["kind"], "badCwd", "{error}");
        assert_eq!(
            client.call("process/restart", asked("first")).unwrap_err(),
            error,
            "it is the first outcome"
        );
        // What has ended is there, with its output.
        assert_eq!(listed(&client, &session)[0]["state"], "closed");
        assert!(output_of(&client, &session).ends_with("word\n"));
        fs::create_dir(&work).unwrap();
        client.call("process/restart", asked("second")).unwrap();
        assert_eq!(listed(&client, &session)[0]["state"], "running");
        client.call("session/end", json!({"sessionId": session})).unwrap();
        fs::remove_dir(&work).unwrap();
    }
}

#[test]
fn a_restart_uses_the_current_policies_of_the_server() {
    let mut host = DurableHost::start();
    let (client, session) = connect(&host);
    let started = client.call("process/start", start()).unwrap();
    drop(client);
    host.stop();
    for (policy, part) in
        [("none", "starts no processes"), ("confined", "only processes that a sandbox confines")]
    {
        host.set_flags(&["--starts", policy]);
        host.launch();
        let client = other(&host);
        let asked = json!({"processId": "p", "sessionId": session});
        let error = client.call("process/restart", asked).unwrap_err();
        assert!(error["message"].as_str().unwrap().contains(part), "{error}");
        let processes = listed(&client, &session);
        assert_eq!((&processes[0]["pid"], &processes[0]["state"]), (&started["pid"], &json!("running")));
        host.stop();
    }
    host.set_flags(&[]);
    host.launch();
    restart(&other(&host), &session, "r");
}

#[test]
fn a_restart_whose_connection_is_lost_is_executed_once() {
    let host = DurableHost::start();
    let (client, session) = connect(&host);
    // It says goodbye slowly, so that the connection ends first.
    let script = "trap '> \"$HOLD.begun\"; while [ -e \"$HOLD\" ]; do sleep 0.02; done; exit' TERM; echo ready; while :; do sleep 0.02; done";
    let hold = host.state().join("../hold");
    fs::write(&hold, "").unwrap();
    let env = json!({"PATH": "/usr/bin:/bin", "HOLD": hold});
    let more = json!({"env": env, "restartable": true, "startId": "s"});
    let first = client.start("p", &["/bin/sh", "-c", script], more);
    client.wait_for_output("p", "ready");
    drop(client);
    let asked = json!({"processId": "p", "sessionId": session, "graceMs": 60_000, "restartId": "r"});
    let client = other(&host);
    client.send("process/restart", asked.clone());
    let second = other(&host);
    poll("the restart to begin", || host.state().join("../hold.begun").exists());
    let error =
        second.call("process/restart", with(asked.clone(), json!({"restartId": "other"}))).unwrap_err();
    assert_eq!(error["data"]["kind"], "processExists", "{error}");
    drop(client);
    let repeat = second.send("process/restart", asked);
    fs::remove_file(&hold).unwrap();
    let repeated = second.outcome(&repeat).unwrap();
    assert_eq!(repeated["replayed"], true, "{repeated}");
    assert_ne!(repeated["pid"], first["pid"]);
    assert_eq!(listed(&second, &session)[0]["pid"], repeated["pid"]);
}

#[tokio::test]
async fn the_rust_client_restarts_and_reads_the_new_process() {
    let host = DurableHost::start();
    let options = Options::default().session(Session::Create("work".to_owned()));
    let client = host.connect(options).await;
    let command = Command::shell("echo $$; exec sleep 1000").id("p").restartable();
    let process = command.start(&client).await.unwrap();
    let reference = process.reference();
    let grace = Termination::Graceful(Duration::from_secs(60));
    let restarted = in_time("a restart", reference.restart(grace)).await.unwrap();
    let pid = restarted.pid;
    assert!(pid.is_some() && pid != process.pid());
    in_time("the end of the first", process.wait()).await.unwrap();
    let stale = reference.read(0, 1 << 20, Duration::ZERO).await.unwrap_err();
    assert!(stale.is_restarted(), "{stale}");
    let reference = restarted.process;
    let batch = in_time("its output", reference.read(0, 1 << 20, Duration::from_secs(60))).await.unwrap();
    assert_eq!(batch.chunks[0].bytes, format!("{}\n", pid.unwrap()));
    // A new handle is one on the new process, also while there is one on the old.
    let again = in_time("a handle", client.process("p")).await.unwrap();
    assert_eq!(reference.info().await.unwrap().unwrap().state, State::Running);
    kill_process(rustix::process::Pid::from_raw(pid.unwrap().cast_signed()).unwrap(), Signal::KILL).unwrap();
    let exit = in_time("its end", again.wait()).await.unwrap();
    assert_eq!(exit.signal.as_deref(), Some("SIGKILL"));
}

#[test]
fn a_restart_keeps_the_terminal_and_the_restart_policy() {
    let host = DurableHost::start();
    let (client, session) = connect(&host);
    let more =
        json!({"restartable": true, "tty": true, "rows": 7, "cols": 33, "restart": {"policy": "always"}});
    let script = ["/bin/sh", "-c", "stty size; exec sleep 1000"];
    client.call("process/start", with(start_params("p", &script), more)).unwrap();
    client.wait_for_output("p", "7 33");
    restart(&client, &session, "r");
    assert_eq!(output_of(&client, &session), "7 33\r\n");
    let ended = json!({"processId": "p", "scope": "tree"});
    let _ = client.call("process/terminate", ended).unwrap();
}
