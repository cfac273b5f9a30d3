//! `process/restart`: what comes meanwhile, what calls it off, and what is left when it cannot be carried out.

use std::fs;

use serde_json::{Value, json};

use super::{
    host::DurableHost,
    restarts::{connect, poll, resume},
};
use crate::support::{Client, Guarded, decode, encode, start_params, token_of, with};

fn listed(client: &Client, session: &str) -> Value {
    client.call("process/list", json!({"sessionId": session})).unwrap()["processes"].clone()
}

fn state_of(client: &Client, session: &str, process: &str) -> Value {
    let listed = listed(client, session);
    let found = listed.as_array().unwrap().iter().find(|entry| entry["processId"] == process);
    found.unwrap_or_else(|| panic!("`{process}` is gone: {listed}")).clone()
}

fn kind_of(outcome: Result<Value, Value>) -> String {
    outcome.expect_err("it is refused")["data"]["kind"].as_str().unwrap().to_owned()
}

/// Waits until no connection holds a session.
fn left(other: &Client, session: &str) {
    poll("the client to be gone", || {
        let sessions = other.call("session/list", json!({})).unwrap();
        let mut known = sessions["sessions"].as_array().unwrap().iter();
        known.any(|known| known["sessionId"] == session && known["attached"] == false)
    });
}

/// Starts a process that ignores SIGTERM, in a detached session.
fn stubborn(host: &DurableHost) -> String {
    let (client, session) = connect(host);
    let script = "trap 'echo asked' TERM; echo ready; while :; do sleep 0.05; done";
    client.start("p", &["/bin/sh", "-c", script], json!({"restartable": true}));
    client.wait_for_output("p", "ready");
    session
}

/// Waits until a restart has asked the process to end.
fn begun(client: &Client, session: &str) {
    let until = json!({"output": {"regex": "asked", "afterSeq": 0}});
    let asked = json!({"processId": "p", "sessionId": session, "until": until, "waitMs": 60_000});
    assert_eq!(client.call("process/wait", asked).unwrap()["reason"], "output");
}

#[test]
fn requests_pipelined_after_a_restart_reach_the_new_process() {
    let host = DurableHost::start();
    for durable in [true, false] {
        let (client, session) = connect(&host);
        let more = json!({"restartable": true, "pipeStdin": true, "durable": durable});
        for number in 0..5 {
            let id = format!("p{number}");
            client.start(&id, &["/bin/cat"], more.clone());
            let named = json!({"processId": id});
            let restart = client.send("process/restart", named.clone());
            let write = json!({"chunk": encode("after\n"), "writeId": "w"});
            let write = client.send("process/write", with(named.clone(), write));
            let second = client.send("process/restart", with(named.clone(), json!({"restartId": "second"})));
            assert_eq!(client.outcome(&write).unwrap()["status"], "accepted", "durable: {durable}");
            let restarted = client.outcome(&restart).unwrap();
            // The first one has its turn first; the second comes too early, or restarts the new process.
            match client.outcome(&second) {
                Err(error) => {
                    assert_eq!(error["data"]["kind"], "processExists", "{error}");
                    assert_eq!(state_of(&client, &session, &id)["pid"], restarted["pid"]);
                    let asked = json!({"processId": id, "afterSeq": 0, "waitMs": 60_000});
                    let read = client.call("process/read", asked).unwrap();
                    assert_eq!(decode(&read["chunks"][0]["chunk"]), b"after\n");
                }
                Ok(again) => assert_ne!(again["pid"], restarted["pid"]),
            }
        }
        client.call("session/end", json!({"sessionId": session})).unwrap();
    }
}

#[test]
fn requests_cancelled_during_a_restart_never_reach_the_new_process() {
    let host = DurableHost::start();
    for durable in [true, false] {
        let client = Client::connect(&host.address());
        let asked = json!({"clientName": "hasty", "resumeSessionId": null, "detachTtlMs": 3_600_000,
            "capabilities": ["cancel"]});
        client.initialize_with(asked);
        // It is not impressed by SIGTERM.
        let script = "trap '' TERM; echo ready; exec cat";
        let more = json!({"restartable": true, "pipeStdin": true, "durable": durable});
        client.start("p", &["/bin/sh", "-c", script], more);
        client.wait_for_output("p", "ready");
        let restart = client.send("process/restart", json!({"processId": "p", "graceMs": 3_600_000}));
        let write = |text: &str| json!({"processId": "p", "chunk": encode(text), "writeId": text});
        let cancelled = client.send("process/write", write("cancelled\n"));
        let kept = client.send("process/write", write("kept\n"));
        client.notify("request/cancel", json!({"id": cancelled}));
        assert_eq!(kind_of(client.outcome(&cancelled)), "cancelled");
        let hastened = client.call("process/restart", json!({"processId": "p", "graceMs": 0})).unwrap();
        assert_eq!(client.outcome(&restart).unwrap()["pid"], hastened["pid"]);
        assert_eq!(client.outcome(&kept).unwrap()["status"], "accepted");
        let said = client.wait_for_output("p", "kept\n");
        assert!(!said.contains("cancelled"), "{said}");
    }
}

#[test]
fn a_pending_restart_is_hastened_by_another_and_cancelled_by_a_kill() {
    let host = DurableHost::start();
    let session = stubborn(&host);
    let (first, second) = (connect(&host).0, connect(&host).0);
    left(&second, &session);
    let long = json!({"processId": "p", "sessionId": session, "graceMs": u64::MAX, "restartId": "long"});
    let pid = state_of(&second, &session, "p")["pid"].clone();
    let waiting = first.send("process/restart", long.clone());
    begun(&second, &session);
    // One that would take longer has to wait.
    let longer = json!({"processId": "p", "sessionId": session, "graceMs": u64::MAX});
    assert_eq!(kind_of(second.call("process/restart", longer)), "processExists");
    let short = json!({"processId": "p", "sessionId": session, "graceMs": 0, "restartId": "short"});
    let restarted = second.call("process/restart", short).unwrap();
    assert_ne!(restarted["pid"], pid);
    assert_eq!(first.outcome(&waiting).unwrap()["pid"], restarted["pid"], "there was one");
    let waiting = first.send("process/restart", with(long, json!({"restartId": "called off"})));
    begun(&second, &session);
    let end = json!({"processId": "p", "sessionId": session, "scope": "tree"});
    assert_eq!(second.call("process/terminate", end).unwrap()["running"], true);
    let error = first.outcome(&waiting).unwrap_err();
    assert_eq!(error["data"]["kind"], "cancelled", "{error}");
    assert!(error["message"].as_str().unwrap().contains("terminated meanwhile"), "{error}");
    poll("the end", || state_of(&second, &session, "p")["state"] == "closed");
    // It is there, and can be restarted.
    let again = json!({"processId": "p", "sessionId": session});
    assert_ne!(second.call("process/restart", again).unwrap()["pid"], restarted["pid"]);
}

#[test]
fn a_restart_reuses_the_memory_budget_of_the_replaced_process() {
    for durable in [true, false] {
        let host = DurableHost::with_config("[limits]\nidentity_memory_bytes = '6MiB'\n");
        let (client, session) = connect(&host);
        let more = |bytes: usize| {
            let env = json!({"PATH": "/usr/bin:/bin", "LONG": "x".repeat(bytes)});
            json!({"restartable": true, "durable": durable, "env": env})
        };
        client.start("p", &["sleep", "1000"], more(120_000));
        // Until nothing more fits, neither a large process nor a small one.
        for bytes in [100_000, 1] {
            let refused = (0..1000).find_map(|number| {
                let asked = start_params(&format!("{bytes} {number}"), &["sleep", "1000"]);
                client.call("process/start", with(asked, more(bytes))).err()
            });
            assert_eq!(refused.unwrap()["data"]["kind"], "limitExceeded");
        }
        let before = listed(&client, &session);
        let restart =
            |entry: &Value| client.send("process/restart", json!({"processId": entry["processId"]}));
        let restarts: Vec<_> = before.as_array().unwrap().iter().map(restart).collect();
        for restart in &restarts {
            client.outcome(restart).unwrap();
        }
        assert_eq!(restarts.len(), listed(&client, &session).as_array().unwrap().len());
    }
}

#[test]
fn a_refused_restart_leaves_the_process_running() {
    let tokens = [("many", ""), ("one", " scope=processes=1")]
        .map(|(token, scope)| format!("{} name=alice{scope}\n", token_of(token)));
    let guarded = Guarded::with_tokens(&tokens.concat());
    let client = guarded.connect(&token_of("many"));
    let asked = json!({"clientName": "many", "resumeSessionId": null, "detachTtlMs": 3_600_000});
    let session = client.initialize_with(asked)["sessionId"].as_str().unwrap().to_owned();
    for id in ["p", "q", "r"] {
        client.start(id, &["sleep", "1000"], json!({"restartable": true}));
    }
    client.cut();
    let one = guarded.client(&token_of("one"));
    left(&one, &session);
    let before = state_of(&one, &session, "p");
    let asked = json!({"processId": "p", "sessionId": session});
    assert_eq!(kind_of(one.call("process/restart", asked.clone())), "tooManyProcesses");
    let after = state_of(&one, &session, "p");
    assert_eq!((&after["state"], &after["pid"]), (&json!("running"), &before["pid"]));

    let mut host = DurableHost::start();
    let (client, session) = connect(&host);
    let permissions =
        json!({"type": "managed", "network": "restricted", "file_system": {"type": "unrestricted"}});
    let sandbox = json!({"permissions": permissions, "windowsSandboxLevel": "disabled"});
    let started = client.start("p", &["sleep", "1000"], json!({"restartable": true, "sandbox": sandbox}));
    drop(client);
    host.stop();
    host.set_flags(&["--starts", "confined"]);
    host.launch();
    let client = connect(&host).0;
    let error = client.call("process/restart", with(asked, json!({"sessionId": session}))).unwrap_err();
    assert!(error["message"].as_str().unwrap().contains("leaves `/` writable"), "{error}");
    let after = state_of(&client, &session, "p");
    assert_eq!((&after["state"], &after["pid"]), (&json!("running"), &started["pid"]));
}

#[test]
fn a_reconnected_client_that_ends_its_session_does_not_end_the_restart() {
    let host = DurableHost::start();
    let script = "trap 'echo asked; while [ -e \"$HOLD\" ]; do sleep 0.02; done; exit' TERM; echo ready; while :; do sleep 0.02; done";
    let hold = host.state().join("../hold");
    fs::write(&hold, "").unwrap();
    let (client, session) = connect(&host);
    let env = json!({"PATH": "/usr/bin:/bin", "HOLD": hold});
    let first = client.start("p", &["/bin/sh", "-c", script], json!({"env": env, "restartable": true}));
    client.wait_for_output("p", "ready");
    drop(client);
    let other = connect(&host).0;
    let asked = json!({"processId": "p", "sessionId": session, "graceMs": 60_000});
    left(&other, &session);
    let restart = other.send("process/restart", asked);
    begun(&other, &session);
    let client = resume(&host, &session);
    assert_eq!(client.call("session/end", json!({"sessionId": session})), Ok(json!({})));
    fs::remove_file(&hold).unwrap();
    let restarted = other.outcome(&restart).unwrap();
    let after = state_of(&other, &session, "p");
    assert_eq!((&after["state"], &after["pid"]), (&json!("running"), &restarted["pid"]));
    assert_ne!(after["pid"], first["pid"]);
    // Without a restart, it ends what is there.
    let client = resume(&host, &session);
    assert_eq!(client.call("session/end", json!({"sessionId": session})), Ok(json!({})));
    assert_eq!(kind_of(other.call("process/list", json!({"sessionId": session}))), "unknownSession");
}

#[test]
fn restarts_consume_no_start_ids_and_an_old_start_is_not_repeated() {
    let host = DurableHost::with_config("[limits]\nstart_ids = 4\n");
    let (client, session) = connect(&host);
    client.start("p", &["sleep", "1000"], json!({"restartable": true, "startId": "s"}));
    let restart = |id: String| client.call("process/restart", json!({"processId": "p", "restartId": id}));
    let pids: Vec<_> = (0..20).map(|number| restart(format!("r{number}")).unwrap()["pid"].clone()).collect();
    let again = restart("r19".to_owned()).unwrap();
    assert_eq!((&again["pid"], &again["replayed"]), (&pids[19], &json!(true)));
    for number in 0..10 {
        assert_eq!(kind_of(restart(format!("r{number}"))), "startIdMismatch");
    }
    assert_eq!(state_of(&client, &session, "p")["pid"], pids[19]);
}

#[test]
fn the_sandbox_of_one_restart_does_not_confine_the_next_but_that_of_the_first_start_does() {
    let tokens = [("owner", ""), ("guest", " scope=processes,sandbox=read-only")]
        .map(|(token, scope)| format!("{} name=alice{scope}\n", token_of(token)));
    let guarded = Guarded::with_tokens(&tokens.concat());
    let directory = tempfile::tempdir().unwrap();
    let script = "if touch \"$FILE\" 2>/dev/null; then echo free; else echo confined; fi; exec sleep 1000";
    let env = json!({"PATH": "/usr/bin:/bin", "FILE": directory.path().join("file")});
    let started_by = |token: &str| {
        let client = guarded.connect(&token_of(token));
        let asked = json!({"clientName": token, "resumeSessionId": null, "detachTtlMs": 3_600_000});
        let session = client.initialize_with(asked)["sessionId"].as_str().unwrap().to_owned();
        let start = json!({"restartable": true, "env": env});
        client.start("p", &["/bin/sh", "-c", script], start);
        let said = client.wait_for_output("p", "\n");
        client.cut();
        (session, said)
    };
    let restarted_by = |token: &str, session: &str| {
        let client = guarded.client(&token_of(token));
        left(&client, session);
        let asked = json!({"processId": "p", "sessionId": session});
        client.call("process/restart", asked.clone()).unwrap();
        let read = json!({"afterSeq": 0, "waitMs": 60_000});
        let read = client.call("process/read", with(asked, read)).unwrap();
        String::from_utf8(decode(&read["chunks"][0]["chunk"])).unwrap()
    };
    let (session, said) = started_by("owner");
    assert_eq!(said, "free\n");
    for (token, said) in [("guest", "confined\n"), ("owner", "free\n"), ("guest", "confined\n")] {
        assert_eq!(restarted_by(token, &session), said, "{token}");
    }
    let (session, said) = started_by("guest");
    assert_eq!(said, "confined\n");
    assert_eq!(restarted_by("owner", &session), "confined\n");
}
