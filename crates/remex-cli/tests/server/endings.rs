//! How processes end: signals, terminate, time-outs, and background children that hold the output open.

use std::{fs, time::Duration};

use serde_json::{Value, json};

use crate::support::{self, Client, Server, Watched};

/// Becomes one that left the session, one that did so and lost its parent, one that only lost it, and the shell itself.
///
/// Each prints its process id, and does `on_term` when it gets SIGTERM.
fn family(on_term: &str) -> String {
    let member = format!("trap \"{on_term}\" TERM; echo $$; while :; do sleep 0.05; done");
    format!("setsid sh -c '{member}' &\n(setsid sh -c '{member}' &)\n(sh -c '{member}' &)\n{member}")
}

/// Starts a [`family`] and watches its four members.
fn start_family(client: &Client, process_id: &str, on_term: &str, more: Value) -> Vec<Watched> {
    client.start(process_id, &["/bin/sh", "-c", &family(on_term)], more);
    let printed = client.wait(&format!("the family `{process_id}`"), |seen| {
        let bytes: Vec<u8> = seen
            .events(process_id)
            .filter(|event| event["params"]["stream"] == "stdout")
            .flat_map(|event| support::decode(&event["params"]["chunk"]))
            .collect();
        let text = String::from_utf8(bytes).expect("process ids are digits");
        (text.matches('\n').count() == 4).then_some(text)
    });
    printed.lines().map(Watched::printed).collect()
}

fn terminate(client: &Client, process_id: &str, mode: &Value) -> Value {
    client
        .call("process/terminate", json!({"processId": process_id, "mode": mode}))
        .expect("ending is allowed")
}

fn graceful(timeout_ms: u64) -> Value {
    json!({"graceful": {"timeoutMs": timeout_ms}})
}

/// Starts a script that prints the id of a child in the background and exits; returns that child.
fn leave_behind(client: &Client, process_id: &str, background: &str, more: Value) -> Watched {
    client.start(process_id, &["/bin/sh", "-c", &format!("{background} & echo $!")], more);
    Watched::printed(&client.wait_for_output(process_id, "\n"))
}

fn is_alive(process: &Watched) -> bool {
    !process.ended_within(Duration::ZERO)
}

#[test]
fn a_signal_is_named_and_reaches_the_whole_group() {
    let server = Server::start();
    let client = server.client();
    for (signal, code) in
        [("interrupt", 130), ("INT", 130), ("SIGHUP", 129), ("TERM", 143), ("SIGUSR1", 138), ("KILL", 137)]
    {
        client.shell(signal, "sleep 1000 | (echo ready; sleep 1000)");
        client.wait_for_output(signal, "ready");
        let params = json!({"processId": signal, "signal": signal});
        assert_eq!(client.call("process/signal", params.clone()).unwrap(), json!({}));
        // The pipe closes only because the group got the signal, not the shell alone.
        let output = client.collect(signal);
        assert_eq!((output.exit_code(), &output.exited["cause"]), (code, &json!("signal")), "{signal}");
        assert_eq!(client.call("process/signal", params).unwrap(), json!({}), "an ended process is fine");
    }
    let unknown = json!({"processId": "nobody", "signal": "TERM"});
    assert_eq!(client.call("process/signal", unknown).unwrap(), json!({}));
    for wrong in ["term", "SIGNOTHING", "", "15"] {
        let (code, message) = client.refusal("process/signal", json!({"processId": "p", "signal": wrong}));
        assert_eq!(code, -32602, "{message}");
    }
}

#[test]
fn a_signal_may_be_handled() {
    let server = Server::start();
    let client = server.client();
    client.shell("p", "trap 'echo caught; exit 4' USR2; echo ready; while :; do sleep 0.02; done");
    client.wait_for_output("p", "ready");
    client.call("process/signal", json!({"processId": "p", "signal": "USR2"})).unwrap();
    let output = client.collect("p");
    assert_eq!((output.text(), output.exit_code()), ("ready\ncaught\n".to_owned(), 4));
    assert_eq!(output.exited["cause"], "exit");
}

#[test]
fn terminate_ends_the_whole_tree_at_once() {
    for (transport, _server, client) in Server::on_every_transport() {
        client.initialize();
        for (process, mode) in [("absent", Value::Null), ("named", json!("force"))] {
            let family = start_family(&client, process, "", json!({}));
            assert_eq!(terminate(&client, process, &mode), json!({"running": true}), "{transport}");
            // The whole tree is gone when the response arrives.
            for member in &family {
                assert!(!is_alive(member), "{transport}: somebody lives on");
            }
            let output = client.collect(process);
            assert_eq!(
                (output.exit_code(), &output.exited["cause"]),
                (137, &json!("terminated")),
                "{transport}"
            );
        }
    }
}

#[test]
fn terminate_ends_the_whole_tree_on_a_terminal() {
    let server = Server::start();
    let client = server.client();
    client.start(
        "p",
        &["/bin/sh", "-c", "(setsid sh -c 'echo $$; exec sleep 1000' &); exec sleep 1000"],
        json!({"tty": true}),
    );
    let grandchild = Watched::printed(&client.wait_for_output("p", "\n"));
    assert_eq!(terminate(&client, "p", &Value::Null), json!({"running": true}));
    grandchild.assert_ends();
    assert_eq!(client.collect("p").exit_code(), 137);
}

#[test]
fn graceful_termination_lets_every_process_clean_up() {
    let server = Server::start();
    let client = server.client();
    let family = start_family(&client, "p", "echo bye >&2; exit 5", json!({}));
    assert_eq!(terminate(&client, "p", &graceful(60_000)), json!({"running": true}));
    for member in &family {
        member.assert_ends();
    }
    let output = client.collect("p");
    let goodbyes = String::from_utf8(output.stderr).unwrap();
    assert_eq!(goodbyes.matches("bye\n").count(), 4, "{goodbyes}");
    assert_eq!((&output.exited["exitCode"], &output.exited["cause"]), (&json!(5), &json!("terminated")));
}

#[test]
fn graceful_termination_escalates_to_a_kill() {
    let server = Server::start();
    let client = server.client();
    let family = start_family(&client, "p", "", json!({}));
    assert_eq!(terminate(&client, "p", &graceful(100)), json!({"running": true}));
    for member in &family {
        member.assert_ends();
    }
    let exited = client.collect("p").exited;
    assert_eq!((&exited["exitCode"], &exited["signal"]), (&json!(137), &json!("SIGKILL")));
    assert_eq!(exited["cause"], "terminated");
}

#[test]
fn force_overrides_graceful_termination() {
    let server = Server::start();
    let client = server.client();
    let family = start_family(&client, "p", "", json!({}));
    terminate(&client, "p", &graceful(3_600_000));
    terminate(&client, "p", &json!("force"));
    for member in &family {
        member.assert_ends();
    }
    assert_eq!(client.collect("p").exit_code(), 137);
}

#[test]
fn terminate_is_idempotent() {
    let server = Server::start();
    let client = server.client();
    assert_eq!(terminate(&client, "nobody", &Value::Null), json!({"running": false}));
    client.shell("p", "exit 2");
    client.event("p", "process/closed");
    for mode in [Value::Null, json!("force"), graceful(10)] {
        assert_eq!(terminate(&client, "p", &mode), json!({"running": false}));
    }
    assert_eq!(client.collect("p").exit_code(), 2);
    assert_eq!(client.refusal("process/terminate", json!({"processId": "p", "mode": "gentle"})).0, -32602);
}

#[test]
fn terminate_ends_leftovers_in_the_group_of_an_exited_process() {
    let server = Server::start();
    let client = server.client();
    let background = leave_behind(&client, "p", "sleep 1000", json!({}));
    assert_eq!(client.event("p", "process/exited")["exitCode"], 0);
    assert!(is_alive(&background));
    assert_eq!(terminate(&client, "p", &Value::Null), json!({"running": false}));
    background.assert_ends();
    assert_eq!(client.collect("p").exited["cause"], "exit", "it had ended by itself");
}

#[test]
fn a_daemonized_service_outlives_terminate() {
    let server = Server::start();
    let client = server.client();
    let service = leave_behind(&client, "p", "setsid sleep 1000 </dev/null >/dev/null 2>&1", json!({}));
    client.event("p", "process/closed");
    assert_eq!(terminate(&client, "p", &Value::Null), json!({"running": false}));
    assert_eq!(terminate(&client, "p", &json!("force")), json!({"running": false}));
    assert!(is_alive(&service), "the service was started to live on");
    server.stop();
    service.assert_ends();
}

#[test]
fn terminate_with_tree_scope_ends_every_leftover_of_an_exited_process() {
    let server = Server::start();
    let client = server.client();
    let services = [
        ("exited", "setsid sleep 1000"),
        ("closed", "setsid sleep 1000 </dev/null >/dev/null 2>&1"),
        ("stubborn", "trap '' TERM; setsid sleep 1000 </dev/null >/dev/null 2>&1"),
    ];
    for (mode, name) in [(Value::Null, "force"), (graceful(50), "graceful")] {
        for (state, service) in services {
            let id = format!("{state} {name}");
            let service = leave_behind(&client, &id, service, json!({}));
            let closes_later = state == "exited";
            client.event(&id, if closes_later { "process/exited" } else { "process/closed" });
            let request = json!({"processId": id, "mode": mode, "scope": "tree"});
            // Once for what lives, and once for what may have ended.
            for _ in 0..2 {
                let ended = client.call("process/terminate", request.clone()).unwrap();
                assert_eq!(ended, json!({"running": false}), "{id}");
            }
            service.assert_ends();
            if closes_later {
                client.event(&id, "process/closed");
            }
        }
    }
    let family = start_family(&client, "running", "", json!({}));
    let request = json!({"processId": "running", "scope": "tree"});
    assert_eq!(client.call("process/terminate", request).unwrap(), json!({"running": true}));
    family.into_iter().for_each(|member| member.assert_ends());
}

#[test]
fn a_background_child_delays_the_close_but_not_the_exit() {
    let directory = tempfile::tempdir().unwrap();
    let gate = directory.path().join("gate");
    let server = Server::start();
    let client = server.client();
    client.shell(
        "p",
        &format!("mkfifo {0}; (read go < {0}; echo late; exit) & echo early; exit 6", gate.display()),
    );
    assert_eq!(client.event("p", "process/exited")["exitCode"], 6);
    let read = client.call("process/read", json!({"processId": "p"})).unwrap();
    assert_eq!((&read["exited"], &read["closed"]), (&json!(true), &json!(false)));
    fs::write(gate, "go\n").unwrap();
    let output = client.collect("p");
    assert_eq!(output.text(), "early\nlate\n");
    assert_eq!(output.order, ["process/output", "process/exited", "process/output", "process/closed"]);
}

#[test]
fn lingering_ends_at_its_timeout() {
    let server = Server::start();
    let client = server.client();
    for tty in [false, true] {
        let process = format!("tty {tty}");
        let more = json!({"lingerMs": 50, "tty": tty});
        let background = leave_behind(&client, &process, "trap '' HUP; sleep 1000", more);
        let output = client.collect(&process);
        assert_eq!(output.exit_code(), 0);
        assert!(is_alive(&background), "it may live on, only unheard");
    }
}

#[test]
fn lingering_captures_output_that_arrives_in_time() {
    let server = Server::start();
    let client = server.client();
    let more = json!({"lingerMs": 60_000});
    client.start("p", &["/bin/sh", "-c", "(sleep 0.05; echo late) & echo early"], more);
    assert_eq!(client.collect("p").text(), "early\nlate\n");
}

#[test]
fn a_process_is_ended_at_its_timeout() {
    let server = Server::start();
    let client = server.client();
    let family = start_family(&client, "p", "", json!({"timeoutMs": 2000}));
    for member in &family {
        member.assert_ends();
    }
    let exited = client.collect("p").exited;
    assert_eq!((&exited["exitCode"], &exited["cause"]), (&json!(137), &json!("timeout")));
    assert!(exited["usage"]["wallMs"].as_u64().unwrap() >= 2000, "{exited}");

    client.start("quick", &["/bin/true"], json!({"timeoutMs": 60_000}));
    assert_eq!(client.collect("quick").exited["cause"], "exit");
}

#[test]
fn a_silent_process_is_ended_at_its_idle_timeout() {
    let server = Server::start();
    let client = server.client();
    let chatty = "for i in 1 2 3 4 5 6 7 8; do echo $i; sleep 0.1; done; exec sleep 1000";
    client.start("p", &["/bin/sh", "-c", chatty], json!({"idleTimeoutMs": 700}));
    let output = client.collect("p");
    assert_eq!(output.text(), "1\n2\n3\n4\n5\n6\n7\n8\n", "output puts it off");
    assert_eq!((&output.exited["exitCode"], &output.exited["cause"]), (&json!(137), &json!("idleTimeout")));
}

#[test]
fn the_exit_is_known_although_a_full_log_delays_its_event() {
    let server = Server::start();
    let (mut reader, answer) =
        support::Reader::initialized(server.address(), json!({"clientName": "x", "resumeSessionId": null}));
    let onlooker = server.client();
    let session = &answer["sessionId"];
    let params = support::with(support::start_params("p", &["/usr/bin/yes"]), json!({"timeoutMs": 1000}));
    reader.call("process/start", params).unwrap();
    let waited = onlooker.call("process/wait", json!({"processId": "p", "sessionId": session})).unwrap();
    assert_eq!((&waited["reason"], &waited["cause"]), (&json!("exit"), &json!("timeout")));
    let listing = onlooker.call("process/list", json!({"sessionId": session})).unwrap();
    assert_eq!(listing["processes"][0]["exitCode"], 137, "{listing}");
    let read = onlooker.call("process/read", json!({"processId": "p", "sessionId": session})).unwrap();
    assert_eq!(read["exited"], false, "the event is behind output that nobody took");
    loop {
        let message = reader.next();
        if message["method"] == "process/closed" {
            break;
        }
    }
}

#[test]
fn a_closed_process_can_be_forgotten_early() {
    let server = Server::start();
    let client = server.client();
    let other = server.client();
    client.shell("done", "echo over");
    client.collect("done");
    client.shell("busy", "echo ready; exec sleep 1000");
    client.wait_for_output("busy", "ready");
    let listed = || {
        let listing = client.call("process/list", json!({})).unwrap();
        let ids = listing["processes"].as_array().unwrap().iter();
        ids.map(|process| process["processId"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(listed(), ["done", "busy"]);
    let sessions = other.call("session/list", json!({})).unwrap();
    let mut sessions = sessions["sessions"].as_array().unwrap().iter();
    let session = sessions.find(|session| session["processes"] == 2).unwrap()["sessionId"].clone();
    // Another client of the same owner may do it, too.
    other.call("process/forget", json!({"processId": "done", "sessionId": session})).unwrap();
    assert_eq!(listed(), ["busy"]);
    for (id, code) in [("done", -32600), ("busy", -32602)] {
        assert_eq!(client.refusal("process/forget", json!({"processId": id})).0, code, "{id}");
    }
    assert_eq!(listed(), ["busy"]);
    // Its id is free.
    client.shell("done", "exit 7");
    let waited = client.call("process/wait", json!({"processId": "done", "until": "closed"})).unwrap();
    assert_eq!(waited["exitCode"], 7);
}
