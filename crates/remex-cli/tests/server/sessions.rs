//! Sessions: what outlives a connection, who may have it, and how it ends.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use crate::support::{Client, PATIENCE, Reader, Server, Watched, decode, encode, program, with};

fn new_session(more: Value) -> Value {
    with(json!({"clientName": "sessions", "resumeSessionId": null}), more)
}

fn resumed(session: &str, more: Value) -> Value {
    with(json!({"clientName": "sessions", "resumeSessionId": session}), more)
}

/// Opens a connection with a session of its own, and returns the id of that.
fn client_with_session(server: &Server, more: Value) -> (Client, String) {
    let client = server.connect();
    let session = client.initialize_with(new_session(more))["sessionId"].as_str().expect("an id").to_owned();
    (client, session)
}

/// Starts a shell, and a daemon of it that left everything; both print their ids.
fn start_with_daemon(client: &Client, process_id: &str) -> [Watched; 2] {
    let daemon = "(setsid sh -c 'trap \"\" TERM HUP; echo $$; while :; do sleep 1000; done' &)";
    client.shell(process_id, &format!("{daemon}; echo $$; while :; do sleep 1000; done"));
    let printed = client.wait("two process ids", |seen| {
        let output = seen.events(process_id).flat_map(|event| decode(&event["params"]["chunk"]));
        let text = String::from_utf8(output.collect()).expect("digits");
        (text.matches('\n').count() == 2).then_some(text)
    });
    let mut ids = printed.lines().map(Watched::printed);
    [ids.next(), ids.next()].map(|id| id.expect("two lines"))
}

/// Starts a command that leaves a service behind on purpose, and watches the service.
fn leave_service(client: &Client, process_id: &str) -> Watched {
    client.shell(process_id, "setsid sleep 1000 </dev/null >/dev/null 2>&1 & echo $!");
    client.event(process_id, "process/closed");
    Watched::printed(&client.wait_for_output(process_id, "\n"))
}

fn is_alive(process: &Watched) -> bool {
    !process.ended_within(Duration::ZERO)
}

fn listed(client: &Client) -> Vec<Value> {
    let listing = client.call("session/list", json!({})).expect("sessions can be listed");
    listing["sessions"].as_array().expect("an array").clone()
}

#[test]
fn an_unresumed_session_expires_with_all_its_processes() {
    let server = Server::start();
    let (client, session) = client_with_session(&server, json!({"detachTtlMs": 100}));
    let family = start_with_daemon(&client, "p");
    let service = leave_service(&client, "q");
    client.cut();
    for process in family.iter().chain([&service]) {
        process.assert_ends();
    }
    let (code, message) = server.connect().refusal("initialize", resumed(&session, json!({})));
    assert_eq!(code, -32600);
    assert!(message.starts_with(&format!("unknown session id {session}")), "{message}");
    assert_eq!(listed(&server.client()).len(), 1, "only the one that asks is left");
}

#[test]
fn a_resume_cancels_the_expiry() {
    let server = Server::start();
    let (client, session) = client_with_session(&server, json!({"detachTtlMs": 1000}));
    let [shell, daemon] = start_with_daemon(&client, "p");
    client.cut();
    let client = server.connect();
    assert_eq!(client.resume(&session)["detachTtlMs"], 1000, "it stays as asked");
    // Longer than the session would have lived.
    let waited = client.call("process/wait", json!({"processId": "p", "waitMs": 1500})).unwrap();
    assert_eq!(waited["reason"], "timeout");
    assert!(is_alive(&shell) && is_alive(&daemon));
}

#[test]
fn output_during_a_disconnect_can_be_read_afterwards() {
    for server in [Server::start(), Server::unix(&[])] {
        let (client, session) = client_with_session(&server, json!({}));
        let directory = tempfile::tempdir().unwrap();
        let [first, second] = ["first", "second"].map(|gate| directory.path().join(gate));
        let (one, two) = (first.display(), second.display());
        let script = format!(
            "mkfifo {one} {two}; echo ready; read go < {one}; echo while away; read go < {two}; echo after; exit 3"
        );
        client.shell("p", &script);
        client.wait_for_output("p", "ready");
        let seen = client.look(|seen| seen.events("p").count() as u64);
        // A poll that is under way does not hold the session.
        client.send("process/read", json!({"processId": "p", "afterSeq": seen, "waitMs": 3_600_000}));
        client.cut();
        std::fs::write(first, "go\n").unwrap();
        let onlooker = server.client();
        let away = json!({"processId": "p", "sessionId": session, "until": {"output": {"regex": "away"}}});
        onlooker.call("process/wait", away).unwrap();

        let client = server.connect();
        client.call("initialize", resumed(&session, json!({}))).unwrap();
        std::fs::write(second, "go\n").unwrap();
        // Events come even before `initialized`, from where the resume found the process.
        assert_eq!(client.event("p", "process/exited")["exitCode"], 3);
        client.notify("initialized", json!({}));
        client.event("p", "process/closed");
        let read = client.call("process/read", json!({"processId": "p", "afterSeq": seen})).unwrap();
        let missed: Vec<u8> =
            read["chunks"].as_array().unwrap().iter().flat_map(|chunk| decode(&chunk["chunk"])).collect();
        assert_eq!(String::from_utf8(missed).unwrap(), "while away\nafter\n");
        let numbers: Vec<u64> = client
            .look(|all| all.events("p").map(|event| event["params"]["seq"].as_u64().unwrap()).collect());
        assert_eq!(
            numbers,
            [seen + 2, seen + 3, seen + 4],
            "what was missed is not sent again, the rest counts on"
        );
    }
}

#[test]
fn one_of_many_concurrent_resumes_wins() {
    for server in [Server::start(), Server::unix(&[])] {
        let (client, session) = client_with_session(&server, json!({}));
        client.cut();
        // Wait until it is free, so that all clients have the same chance.
        let onlooker = server.client();
        while listed(&onlooker).iter().any(|entry| entry["sessionId"] == session && entry["attached"] == true)
        {
        }
        let racers: Vec<_> = (0..10).map(|_| server.connect()).collect();
        let requests: Vec<_> =
            racers.iter().map(|racer| racer.send("initialize", resumed(&session, json!({})))).collect();
        let outcomes: Vec<_> = racers.iter().zip(&requests).map(|(racer, id)| racer.outcome(id)).collect();
        assert_eq!(outcomes.iter().filter(|outcome| outcome.is_ok()).count(), 1, "{outcomes:?}");
        for error in outcomes.iter().filter_map(|outcome| outcome.as_ref().err()) {
            assert_eq!((&error["code"], &error["data"]["kind"]), (&json!(-32010), &json!("sessionAttached")));
        }
    }
}

#[test]
fn a_session_can_be_taken_over_and_the_previous_holder_is_notified() {
    for server in [Server::start(), Server::unix(&[])] {
        let (loser, session) = client_with_session(&server, json!({}));
        loser.start("p", &["/bin/cat"], json!({"pipeStdin": true}));
        let winner = server.connect();
        let answer = winner.initialize_with(resumed(&session, json!({"takeover": true})));
        assert_eq!((&answer["sessionId"], &answer["resumed"]), (&json!(session), &json!(true)));
        let end = loser.wait_end();
        if server.address().starts_with("ws:") {
            let (code, reason) = end.close.unwrap();
            assert_eq!(code, 1008);
            assert!(reason.contains("took the session over"), "{reason}");
        }
        winner
            .call("process/write", json!({"processId": "p", "chunk": encode("mine"), "writeId": "w"}))
            .unwrap();
        winner.wait_for_output("p", "mine");
        assert_eq!(loser.look(|seen| seen.events("p").count()), 0, "the loser gets nothing more");
    }
}

#[test]
fn taking_over_a_detached_session_is_a_resume() {
    let server = Server::start();
    let (client, session) = client_with_session(&server, json!({}));
    client.cut();
    let client = server.connect();
    assert_eq!(client.initialize_with(resumed(&session, json!({"takeover": true})))["resumed"], true);
    assert_eq!(listed(&client).len(), 1);
}

#[test]
fn a_dead_connection_loses_its_session_and_a_live_one_keeps_it() {
    let server = Server::start();
    let unix = Server::unix(&[]);
    for (server, capabilities) in [(&server, json!([])), (&unix, json!(["acks"]))] {
        let answer = new_session(json!({"capabilities": capabilities}));
        // Its socket stays open but is not read, so no request is answered.
        let (mut vanished, answer) = Reader::initialized(server.address(), answer);
        vanished.call("session/list", json!({})).unwrap();
        let session = answer["sessionId"].as_str().unwrap();
        let client = server.connect();
        let asked = Instant::now();
        assert_eq!(client.resume(session)["resumed"], true);
        assert!(asked.elapsed() >= Duration::from_secs(2), "it gets two seconds to answer");
        drop(vanished);

        let other = server.connect();
        // This client reads, and so it answers pings without knowing.
        if server.address().starts_with("ws:") {
            assert_eq!(other.refusal("initialize", resumed(session, json!({}))).0, -32010);
        }
        client.shell("p", "echo still mine");
        assert_eq!(client.collect("p").text(), "still mine\n");
    }
}

#[test]
fn the_list_of_sessions_shows_owners_and_deadlines() {
    let server = Server::start();
    let (client, own) = client_with_session(&server, json!({"sessionName": "own"}));
    let (other, away) = client_with_session(&server, json!({"detachTtlMs": 60_000, "clientName": "other"}));
    other.shell("ended", "exit");
    other.event("ended", "process/closed");
    other.start("running", &["/bin/sleep", "1000"], json!({}));
    let entry = |id: &str| listed(&client).into_iter().find(|entry| entry["sessionId"] == id).unwrap();
    let attached = |id: &str, name: Value, client_name: &str, processes: u64| {
        json!({
            "sessionId": id, "name": name, "identity": "owner", "clientName": client_name, "attached": true,
            "detachedAtMs": null, "expiresAtMs": null, "processes": processes,
        })
    };
    assert_eq!(entry(&own), attached(&own, json!("own"), "sessions", 0));
    assert_eq!(entry(&away), attached(&away, Value::Null, "other", 2));
    other.cut();
    let entry = loop {
        let entry = entry(&away);
        if entry["attached"] == false {
            break entry;
        }
    };
    let since = entry["detachedAtMs"].as_u64().unwrap();
    assert_eq!(entry["expiresAtMs"], since + 60_000, "{entry}");
}

#[test]
fn another_connection_can_extend_a_detached_session_but_not_shorten_it() {
    let server = Server::start();
    let (client, session) = client_with_session(&server, json!({"detachTtlMs": 60_000}));
    client.shell("p", "exec sleep 1000");
    let other = server.client();
    let entry = || listed(&other).into_iter().find(|entry| entry["sessionId"] == session).expect("it lives");
    let release = |ttl: u64| {
        let params = json!({"processId": "p", "sessionId": session, "detachTtlMs": ttl});
        other.call("process/release", params).expect("it is released");
        entry()
    };
    assert_eq!(release(1)["expiresAtMs"], Value::Null, "a connection holds it");
    client.cut();
    let deadline = Instant::now() + PATIENCE;
    while entry()["attached"] == true {
        assert!(Instant::now() < deadline, "waited for the session to lose its connection");
    }
    let before = entry()["expiresAtMs"].as_u64().expect("it expires");
    assert_eq!(release(1)["expiresAtMs"], before, "it does not end sooner");
    let after = release(3_600_000)["expiresAtMs"].as_u64().expect("it expires");
    assert!(after > before + 3_000_000, "{before} {after}");
    // At most as long as the server allows.
    let most = release(u64::MAX)["expiresAtMs"].as_u64().expect("it expires");
    assert!(most > before + 23 * 3_600_000 && most < before + 25 * 3_600_000, "{before} {most}");
    assert!(
        other.refusal("process/release", json!({"processId": "q", "sessionId": session})).1.contains("q")
    );
}

#[test]
fn ending_a_session_ends_its_processes_and_notifies_its_client() {
    for server in [Server::start(), Server::unix(&[])] {
        let (holder, session) = client_with_session(&server, json!({}));
        let family = start_with_daemon(&holder, "p");
        let service = leave_service(&holder, "q");
        let client = server.client();
        assert_eq!(client.call("session/end", json!({"sessionId": session})).unwrap(), json!({}));
        for process in family.iter().chain([&service]) {
            assert!(!is_alive(process), "everything is gone when the answer is there");
        }
        let end = holder.wait_end();
        if server.address().starts_with("ws:") {
            assert!(end.close.is_some_and(|(code, reason)| code == 1008 && reason.contains("ended")));
        }
        assert_eq!(holder.event("p", "process/exited")["cause"], "terminated", "its client heard of the end");
        assert_eq!(listed(&client).len(), 1);
        for (method, params) in [
            ("session/end", json!({"sessionId": session})),
            ("process/read", json!({"sessionId": session, "processId": "p"})),
            ("session/observe", json!({"sessionId": session})),
        ] {
            let error = client.call(method, params).unwrap_err();
            assert_eq!(
                (&error["code"], &error["data"]["kind"]),
                (&json!(-32600), &json!("unknownSession")),
                "{method}"
            );
        }
        assert_eq!(server.connect().refusal("initialize", resumed(&session, json!({}))).0, -32600);
    }
}

#[test]
fn a_client_may_end_its_own_session() {
    let server = Server::start();
    let (client, session) = client_with_session(&server, json!({}));
    let family = start_with_daemon(&client, "p");
    assert_eq!(client.call("session/end", json!({"sessionId": session})).unwrap(), json!({}));
    for process in &family {
        process.assert_ends();
    }
    client.wait_end();
}

#[test]
fn a_daemonized_service_ends_with_its_session_and_not_before() {
    let server = Server::start();
    let (client, session) = client_with_session(&server, json!({}));
    let service = leave_service(&client, "p");
    client.call("process/terminate", json!({"processId": "p"})).unwrap();
    client.cut();
    let client = server.connect();
    client.resume(&session);
    assert!(is_alive(&service));
    client.call("session/end", json!({"sessionId": session})).unwrap();
    assert!(!is_alive(&service));
}

#[test]
fn two_sessions_may_use_the_same_process_id() {
    let server = Server::start();
    let clients = [server.client(), server.client()];
    for (client, word) in clients.iter().zip(["one", "two"]) {
        client.start(
            "p",
            &["/bin/sh", "-c", &format!("read line; echo {word} $line")],
            json!({"pipeStdin": true}),
        );
    }
    clients[0]
        .call("process/write", json!({"processId": "p", "chunk": encode("x\n"), "writeId": "w"}))
        .unwrap();
    assert_eq!(clients[0].collect("p").text(), "one x\n");
    assert_eq!(clients[1].call("process/read", json!({"processId": "p"})).unwrap()["exited"], false);
    clients[1]
        .call("process/write", json!({"processId": "p", "chunk": encode("y\n"), "writeId": "w"}))
        .unwrap();
    assert_eq!(clients[1].collect("p").text(), "two y\n");
}

/// Fails unless `client` can neither see nor touch `session` and its process `p`.
fn assert_out_of_reach(client: &Client, session: &str, stranger: &Client) {
    assert!(listed(client).iter().all(|entry| entry["sessionId"] != session));
    let everything = client.call("process/list", json!({"scope": "identity"})).expect("lists are free");
    let mut entries = everything["processes"].as_array().expect("a list is an array").iter();
    assert!(entries.all(|entry| entry["sessionId"] != session));
    for method in [
        "process/read",
        "process/wait",
        "process/snapshot",
        "process/terminate",
        "process/closeStdin",
        "session/observe",
        "session/end",
        "session/unobserve",
    ] {
        let error = client.call(method, json!({"processId": "p", "sessionId": session}));
        let error = error.expect_err("what belongs to others is out of reach");
        assert_eq!(error["data"]["kind"], "unknownSession", "{method}: {error}");
    }
    let (code, message) = stranger.refusal("initialize", resumed(session, json!({"takeover": true})));
    assert_eq!(code, -32600, "{message}");
}

#[test]
fn sessions_of_a_token_and_of_a_local_user_are_isolated() {
    let directory = tempfile::tempdir().unwrap();
    let unix = format!("unix://{}", directory.path().join("remex.sock").display());
    let digest: String =
        Sha256::digest("5kQ2nVx8LrZ0tHc7YwJb3M").iter().map(|byte| format!("{byte:02x}")).collect();
    let auth = ["--ws-auth", "capability-token", "--ws-token-sha256", &digest];
    let server = Server::serve(&[&["--listen", "ws://127.0.0.1:0", "--listen", &unix], &auth[..]].concat());
    let [websocket, unix] = server.addresses() else { panic!("two listeners") };
    let with_token =
        || Client::connect_with_headers(websocket, &[("Authorization", "Bearer 5kQ2nVx8LrZ0tHc7YwJb3M")]);
    let (one, other) = (with_token(), Client::connect(unix));
    let sessions = [&one, &other].map(|client| {
        let session = client.initialize()["sessionId"].as_str().unwrap().to_owned();
        client.start("p", &["/bin/sleep", "1000"], json!({"pipeStdin": true}));
        session
    });
    assert_out_of_reach(&one, &sessions[1], &with_token());
    assert_out_of_reach(&other, &sessions[0], &Client::connect(unix));
    // The same token is the same identity.
    let again = with_token();
    again.initialize();
    assert_eq!(listed(&again).len(), 2);
}

#[test]
fn a_connection_on_stdio_is_an_identity_of_its_own() {
    let command = program(&["serve", "--listen", "stdio", "--listen", "ws://127.0.0.1:0"]);
    let (server, stdio) = Server::launch_stdio(command);
    let address = server.stderr_line("ws://");
    let address = address.split_whitespace().last().unwrap();
    let other = Client::connect(address);
    let sessions = [&stdio, &other].map(|client| {
        let session = client.initialize()["sessionId"].as_str().unwrap().to_owned();
        client.start("p", &["/bin/sleep", "1000"], json!({"pipeStdin": true}));
        session
    });
    assert_out_of_reach(&other, &sessions[0], &Client::connect(address));
    assert!(listed(&stdio).iter().all(|entry| entry["sessionId"] != sessions[1]));
}
