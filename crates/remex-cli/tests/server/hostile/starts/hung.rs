//! Starts whose directory or program is on a file system that does not answer cost only themselves, and can be ended.

use std::collections::BTreeSet;

use rustix::process::{Pid, Signal};
use serde_json::{Value, json};

use crate::{
    leftovers::children,
    support::{Client, HungFs, Interrupts, Server, Watched, start_params, uri, with},
};

/// Returns the parameters of starts that hang in each of the places where one can.
fn hung_starts(hung: &HungFs, process_id: &str) -> [Value; 3] {
    let path = |name: &str| hung.path(name).display().to_string();
    [
        with(start_params(process_id, &["/bin/true"]), json!({"cwd": uri(&hung.path("directory"))})),
        start_params(process_id, &[&path("program")]),
        with(
            start_params(process_id, &["true"]),
            json!({"env": {"PATH": format!("{}:/usr/bin:/bin", path("bin"))}}),
        ),
    ]
}

/// Sends a start that hangs, and returns the id of the request when it does.
fn hang(client: &Client, hung: &HungFs, more: Value) -> Value {
    let [in_directory, ..] = hung_starts(hung, "p");
    let id = client.send("process/start", with(in_directory, more));
    hung.wait_until_hanging(1);
    id
}

fn kind_of(outcome: Result<Value, Value>) -> String {
    let error = outcome.expect_err("a start that hangs does not succeed");
    error["data"]["kind"].as_str().expect("an error has a kind").to_owned()
}

/// Runs a test with a process that can be killed while it hangs, and with one that cannot.
fn with_each(test: impl Fn(HungFs)) {
    for interrupts in [Interrupts::Obeyed, Interrupts::Ignored] {
        let Some(hung) = HungFs::mount(interrupts) else { return };
        test(hung);
    }
}

/// Returns the children that a server has beside those it had before.
fn new_children(server: &Server, before: &BTreeSet<u32>) -> Vec<Watched> {
    let now = children(server.pid()).into_iter().filter(|pid| !before.contains(pid));
    now.filter_map(|pid| Watched::find(Pid::from_raw(pid.cast_signed())?)).collect()
}

#[test]
fn hanging_starts_block_no_other_start() {
    let Some(hung) = HungFs::mount(Interrupts::Ignored) else { return };
    let server = Server::start();
    let (client, other) = (server.client(), server.client());
    // More than a server has threads for starts.
    for n in 0..12 {
        for (which, params) in hung_starts(&hung, "").into_iter().enumerate() {
            client.send("process/start", with(params, json!({"processId": format!("hung {which} {n}")})));
        }
    }
    hung.wait_until_hanging(1);
    for client in [&client, &other] {
        for n in 0..20 {
            let name = format!("p{n}");
            client.shell(&name, "echo hi");
            assert_eq!(client.collect(&name).text(), "hi\n");
        }
    }
    let listed = client.call("process/list", json!({})).unwrap();
    let starting =
        listed["processes"].as_array().unwrap().iter().filter(|entry| entry["state"] == "starting");
    assert_eq!(starting.count(), 36);
}

#[test]
fn hanging_starts_do_not_occupy_request_slots() {
    let Some(hung) = HungFs::mount(Interrupts::Ignored) else { return };
    let server = Server::serve(&["--concurrent-requests", "1"]);
    let client = server.client();
    for (which, params) in hung_starts(&hung, "").into_iter().enumerate() {
        client.send("process/start", with(params, json!({"processId": format!("hung {which}")})));
    }
    hung.wait_until_hanging(1);
    // It waits behind all of them, and its time begins with its own attempt.
    client.start("p", &["/bin/echo", "hi"], json!({"timeoutMs": 2_500}));
    assert_eq!(client.collect("p").text(), "hi\n");
    let listed = client.call("process/list", json!({})).unwrap();
    let starting =
        listed["processes"].as_array().unwrap().iter().filter(|entry| entry["state"] == "starting");
    assert_eq!(starting.count(), 3);
}

#[test]
fn a_hanging_start_can_be_terminated_and_stays_failed() {
    with_each(|hung| {
        let server = Server::start();
        for mode in [json!("force"), json!({"graceful": {"timeoutMs": 60_000}})] {
            let client = server.client();
            let start = hang(&client, &hung, json!({"startId": "s"}));
            let answer = client.call("process/terminate", json!({"processId": "p", "mode": mode}));
            assert_eq!(answer, Ok(json!({"running": false})));
            let error = client.outcome(&start).expect_err("it was terminated");
            assert_eq!(error["data"]["kind"], "cancelled");
            let message = error["message"].as_str().unwrap();
            assert!(message.starts_with("process `p` was not started: it was terminated"), "{message}");
            // The same start again is answered from memory; its id is free for another.
            let again = with(start_params("p", &["/bin/true"]), json!({"startId": "s"}));
            assert_eq!(client.call("process/start", again), Err(error));
            client.shell("p", "echo hi");
            assert_eq!(client.collect("p").text(), "hi\n");
        }
    });
}

#[test]
fn a_hanging_start_is_ended_by_a_signal_or_its_timeout() {
    with_each(|hung| {
        let server = Server::start();
        let client = server.client();
        let start = hang(&client, &hung, json!({}));
        let window = client.send("process/signal", json!({"processId": "p", "signal": "WINCH"}));
        assert_eq!(client.call("process/signal", json!({"processId": "p", "signal": "INT"})), Ok(json!({})));
        assert_eq!(kind_of(client.outcome(&start)), "cancelled");
        assert_eq!(client.outcome(&window), Ok(json!({})));
        for timeout in ["timeoutMs", "idleTimeoutMs"] {
            let start = hang(&client, &hung, json!({timeout: 10}));
            let error = client.outcome(&start).expect_err("its time is up");
            assert_eq!(error["data"]["kind"], "spawnFailed");
            assert!(error["message"].as_str().unwrap().contains(timeout), "{error}");
        }
    });
}

#[test]
fn reads_and_waits_for_a_hanging_start_time_out() {
    let Some(hung) = HungFs::mount(Interrupts::Ignored) else { return };
    let server = Server::start();
    let client = server.connect();
    client.initialize_with(json!({"clientName": "x", "resumeSessionId": null, "capabilities": ["cancel"]}));
    let start = hang(&client, &hung, json!({}));
    let read = client.call("process/read", json!({"processId": "p", "waitMs": 10})).unwrap();
    assert_eq!(
        (&read["chunks"], &read["nextSeq"], &read["exited"], &read["closed"]),
        (&json!([]), &json!(1), &json!(false), &json!(false))
    );
    let waited = client.call("process/wait", json!({"processId": "p", "waitMs": 10})).unwrap();
    assert_eq!(waited["reason"], "timeout");
    let snapshot = client.call("process/snapshot", json!({"processId": "p"})).unwrap();
    assert_eq!((&snapshot["stdout"], &snapshot["running"]), (&json!(""), &json!(true)));
    client.notify("request/cancel", json!({"id": start}));
    assert_eq!(kind_of(client.outcome(&start)), "cancelled");
    // Only the answer was cancelled.
    let waiting = client.send("process/wait", json!({"processId": "p"}));
    client.call("process/terminate", json!({"processId": "p"})).expect("it can be terminated");
    assert_eq!(kind_of(client.outcome(&waiting)), "unknownProcess");
}

#[test]
fn a_hanging_start_ends_with_its_session() {
    with_each(|hung| {
        let server = Server::start();
        let client = server.connect();
        let session =
            client.initialize_with(json!({"clientName": "x", "resumeSessionId": null}))["sessionId"].clone();
        let start = hang(&client, &hung, json!({}));
        let end = client.send("session/end", json!({"sessionId": session}));
        assert_eq!(kind_of(client.outcome(&start)), "shuttingDown");
        assert_eq!(client.outcome(&end), Ok(json!({})));
    });
}

#[test]
fn a_hanging_start_ends_with_a_connection_of_the_oldest_dialect() {
    let Some(hung) = HungFs::mount(Interrupts::Obeyed) else { return };
    let server = Server::start();
    let before = children(server.pid()).into_iter().collect();
    let client = server.connect();
    client.initialize_with(json!({"clientName": "x"}));
    hang(&client, &hung, json!({}));
    let unborn = new_children(&server, &before);
    assert_eq!(unborn.len(), 1);
    client.cut();
    unborn[0].assert_ends();
}

#[test]
fn a_server_with_hanging_starts_shuts_down_gracefully() {
    with_each(|hung| {
        let mut server = Server::start();
        let before = children(server.pid()).into_iter().collect();
        let client = server.client();
        let start = hang(&client, &hung, json!({}));
        let unborn = new_children(&server, &before);
        assert_eq!(unborn.len(), 1);
        server.signal(Signal::TERM);
        assert_eq!(kind_of(client.outcome(&start)), "shuttingDown");
        assert_eq!(server.wait().code(), Some(0));
        // What cannot be killed dies when the file system lets it go.
        drop(hung);
        unborn[0].assert_ends();
    });
}

#[test]
fn a_hanging_confined_start_can_be_terminated_and_leaves_no_jail() {
    for interrupts in [Interrupts::Obeyed, Interrupts::Ignored] {
        let server = Server::start();
        let client = server.client();
        // Released before the server, a thread of which hangs as well.
        let Some(hung) = HungFs::mount(interrupts) else { return };
        let before: BTreeSet<u32> = children(server.pid()).into_iter().collect();
        let root = json!({"path": {"type": "special", "value": {"kind": "root"}}, "access": "read"});
        let path = json!({"type": "path", "path": uri(&hung.path("directory"))});
        // The first hangs when it enters its directory, the second already when its sandbox is resolved.
        for entries in [json!([root]), json!([root, {"path": path, "access": "write"}])] {
            let files = json!({"type": "restricted", "entries": entries});
            let permissions = json!({"type": "managed", "network": "restricted", "file_system": files});
            let sandbox = json!({"permissions": permissions, "windowsSandboxLevel": "disabled"});
            let start = hang(&client, &hung, json!({"sandbox": sandbox}));
            let answer = client.call("process/terminate", json!({"processId": "p"}));
            assert_eq!(answer, Ok(json!({"running": false})));
            assert_eq!(kind_of(client.outcome(&start)), "cancelled");
        }
        if interrupts == Interrupts::Obeyed {
            new_children(&server, &before).iter().for_each(Watched::assert_ends);
        }
        client.shell("q", "echo hi");
        assert_eq!(client.collect("q").text(), "hi\n");
    }
}
