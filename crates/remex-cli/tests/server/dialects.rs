//! Three generations of clients on one server, each finding what it knows.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::support::{Client, Server, Watched, encode, start_params, with};

/// Today's base dialect: the only notifications a client gets that asks for nothing.
const BASE_NOTIFICATIONS: [&str; 3] = ["process/output", "process/exited", "process/closed"];

fn v0() -> Value {
    json!({"clientName": "oldest"})
}

fn today() -> Value {
    json!({"clientName": "today", "resumeSessionId": null})
}

fn remex(capabilities: &[&str]) -> Value {
    json!({"clientName": "remex", "resumeSessionId": null, "capabilities": capabilities})
}

/// Connects and shakes hands with these parameters.
fn client_of(server: &Server, params: Value) -> Client {
    let client = server.connect();
    client.initialize_with(params);
    client
}

/// Returns the methods of all notifications so far.
fn notifications(client: &Client) -> BTreeSet<String> {
    client.look(|seen| {
        seen.notifications().filter_map(|one| Some(one["method"].as_str()?.to_owned())).collect()
    })
}

fn assert_uuid_v4(id: &str) {
    let pattern = "xxxxxxxx-xxxx-4xxx-yxxx-xxxxxxxxxxxx";
    let fits = |(have, want): (char, char)| match want {
        'x' => matches!(have, '0'..='9' | 'a'..='f'),
        'y' => matches!(have, '8' | '9' | 'a' | 'b'),
        other => have == other,
    };
    assert!(id.len() == pattern.len() && id.chars().zip(pattern.chars()).all(fits), "{id} is no UUID v4");
}

#[test]
fn all_dialects_are_served_at_the_same_time() {
    let server = Server::start();
    let clients = [v0(), today(), remex(&["processStarted"])].map(|params| client_of(&server, params));
    for client in &clients {
        client.start("cat", &["cat"], json!({"pipeStdin": true}));
    }
    for (client, text) in clients.iter().zip(["v0", "today", "remex"]) {
        let write = json!({"processId": "cat", "chunk": encode(text), "writeId": "1"});
        client.call("process/write", write).unwrap();
    }
    for (client, text) in clients.iter().zip(["v0", "today", "remex"]) {
        assert_eq!(client.wait_for_output("cat", text), text, "each has its own process of the same name");
        client.call("process/terminate", json!({"processId": "cat"})).unwrap();
        assert_eq!(client.collect("cat").exit_code(), 137);
    }
}

#[test]
fn the_initialize_response_satisfies_every_dialect() {
    let server = Server::start();
    for params in [v0(), today(), remex(&[])] {
        let answer = server.connect().initialize_with(params);
        assert_uuid_v4(answer["sessionId"].as_str().unwrap());
        assert_eq!(answer["protocolVersion"], "exec-server.v0");
        assert_eq!(answer["server"]["name"], "remex");
        assert_eq!(answer["server"]["version"], env!("CARGO_PKG_VERSION"));
        assert_eq!(answer["resumed"], false);
        assert_eq!(answer["capabilities"]["enabled"], json!([]));
        assert_eq!(answer["limits"]["messageBytes"], 64 << 20);
        assert!(answer["limits"]["processes"].as_u64().unwrap() >= 500, "{answer}");
    }
}

#[test]
fn capabilities_are_enabled_only_if_requested_and_known() {
    let server = Server::start();
    let wishes = ["processStarted", "cancel", "no such thing", ""];
    let answer = server.connect().initialize_with(remex(&wishes));
    let words = |value: &Value| -> BTreeSet<String> {
        value.as_array().unwrap().iter().map(|word| word.as_str().unwrap().to_owned()).collect()
    };
    let enabled = words(&answer["capabilities"]["enabled"]);
    assert_eq!(enabled, ["processStarted", "cancel"].map(str::to_owned).into());
    let available = words(&answer["capabilities"]["available"]);
    for word in ["processStarted", "processFailed", "processGap", "cancel", "acks", "consumed"] {
        assert!(available.contains(word), "{word} in {available:?}");
    }
}

#[test]
fn a_client_without_capabilities_gets_no_new_notifications() {
    let server = Server::start();
    for params in [v0(), today(), remex(&[])] {
        let client = client_of(&server, params);
        client.start(
            "flood",
            &["head", "-c", "3000000", "/dev/zero"],
            json!({"output": {"overflow": "evict"}}),
        );
        client.refusal("process/start", start_params("missing", &["/no/such/program"]));
        client.event("flood", "process/closed");
        client.shell("p", "echo out; echo err >&2; exit 3");
        client.collect("p");
        assert_eq!(notifications(&client), BASE_NOTIFICATIONS.map(str::to_owned).into());
    }
}

#[test]
fn start_and_failure_notifications_are_opt_in_and_unnumbered() {
    let server = Server::start();
    let client = client_of(&server, remex(&["processStarted", "processFailed"]));
    let answer = client.shell("p", "echo out; exit 3");
    // The numbers of the other events are checked to be 1, 2, 3 … by `collect`.
    assert_eq!(client.collect("p").exit_code(), 3);
    let started = client.event("p", "process/started");
    assert_eq!(started, json!({"processId": "p", "pid": answer["pid"]}));
    let order = client.look(|seen| seen.events("p").map(|event| event["method"].clone()).collect::<Vec<_>>());
    assert_eq!(order[0], "process/started", "{order:?}");

    let error = client.call("process/start", start_params("q", &["/no/such/program"])).unwrap_err();
    let failed = client.event("q", "process/failed");
    assert_eq!(failed["kind"], error["data"]["kind"], "{failed} {error}");
    assert!(failed["message"].as_str().is_some_and(|message| !message.is_empty()), "{failed}");
}

#[test]
fn a_working_directory_is_a_uri_or_a_plain_absolute_path() {
    let directory = tempfile::tempdir().unwrap();
    let odd = directory.path().canonicalize().unwrap().join("100%41 ä");
    std::fs::create_dir(&odd).unwrap();
    let plain = odd.to_str().unwrap().to_owned();
    let uri = format!("file://{}", plain.replace('%', "%25").replace(' ', "%20"));
    let encoded = uri.replace('ä', "%C3%A4");
    let server = Server::start();
    for params in [v0(), today(), remex(&[])] {
        let client = client_of(&server, params);
        for (process, cwd) in [("plain", &plain), ("uri", &uri), ("encoded", &encoded)] {
            client.start(process, &["pwd"], json!({"cwd": cwd}));
            assert_eq!(client.collect(process).text(), format!("{plain}\n"), "{cwd}");
        }
        for relative in ["", ".", "tmp", "./tmp"] {
            let params = with(start_params("relative", &["pwd"]), json!({"cwd": relative}));
            assert_eq!(client.refusal("process/start", params).0, -32602, "{relative:?}");
        }
    }
}

#[test]
fn a_write_without_an_id_is_applied_every_time() {
    let server = Server::start();
    let client = client_of(&server, v0());
    client.start("cat", &["cat"], json!({"pipeStdin": true}));
    for _ in 0..3 {
        let answer = client.call("process/write", json!({"processId": "cat", "chunk": encode("x")})).unwrap();
        assert_eq!(answer, json!({"accepted": true, "status": "accepted"}));
    }
    client.call("process/closeStdin", json!({"processId": "cat"})).unwrap();
    assert_eq!(client.collect("cat").text(), "xxx");
}

#[test]
fn a_failed_write_without_an_id_is_an_error() {
    let server = Server::start();
    let client = client_of(&server, v0());
    let (code, message) = client.refusal("process/write", json!({"processId": "nobody", "chunk": ""}));
    assert_eq!(code, -32600);
    assert!(message.starts_with("unknown process id nobody"), "{message}");

    client.start("deaf", &["sleep", "1000"], json!({}));
    let error = client.call("process/write", json!({"processId": "deaf", "chunk": ""})).unwrap_err();
    let hint = "start it with `pipeStdin` to write to it; an ended process accepts no input";
    assert_eq!(
        error,
        json!({
            "code": -32600,
            "message": "stdin is closed for process deaf",
            "data": {"kind": "stdinClosed", "hint": hint},
        })
    );
}

#[test]
fn a_write_with_an_id_is_applied_once_and_returns_a_status() {
    let server = Server::start();
    let client = client_of(&server, today());
    client.start("cat", &["cat"], json!({"pipeStdin": true}));
    let write = |process: &str, text: &str, id: &str| {
        let params = json!({"processId": process, "chunk": encode(text), "writeId": id});
        client.call("process/write", params).unwrap()
    };
    for (text, id) in [("a", "1"), ("b", "2"), ("different", "1"), ("c", "3")] {
        let answer = write("cat", text, id);
        assert_eq!((&answer["status"], &answer["accepted"]), (&json!("accepted"), &json!(true)));
    }
    assert_eq!(write("nobody", "x", "1")["status"], "unknownProcess");
    client.start("deaf", &["sleep", "1000"], json!({}));
    assert_eq!(write("deaf", "x", "1")["status"], "stdinClosed");

    client.call("process/closeStdin", json!({"processId": "cat"})).unwrap();
    assert_eq!(client.collect("cat").text(), "abc");
    assert_eq!(write("cat", "late", "4")["status"], "stdinClosed", "nobody is there to read it");
    assert_eq!(write("cat", "a", "1")["status"], "accepted", "a repeat is still acknowledged");
}

#[test]
fn the_processes_of_the_oldest_clients_end_with_their_connection() {
    let server = Server::start();
    let client = client_of(&server, v0());
    client.shell("p", "trap '' TERM HUP; echo $$; while :; do sleep 1000; done");
    let child = Watched::printed(&client.wait_for_output("p", "\n"));
    client.cut();
    child.assert_ends();
}

#[test]
fn the_processes_of_other_clients_outlive_their_connection() {
    let server = Server::start();
    for params in [today(), remex(&[]), json!({"clientName": "x", "capabilities": []})] {
        let client = server.connect();
        let session = client.initialize_with(params)["sessionId"].as_str().unwrap().to_owned();
        client.start("cat", &["cat"], json!({"pipeStdin": true}));
        client.cut();

        let client = server.connect();
        let answer = client.resume(&session);
        assert_eq!((&answer["sessionId"], &answer["resumed"]), (&json!(session), &json!(true)));
        let write = json!({"processId": "cat", "chunk": encode("still here"), "writeId": "1"});
        client.call("process/write", write).unwrap();
        client.wait_for_output("cat", "still here");
    }
}

#[test]
fn a_session_can_be_resumed_at_once_after_a_disconnect() {
    let directory = tempfile::tempdir().unwrap();
    let unix = format!("unix://{}", directory.path().join("remex.sock").display());
    let server = Server::serve(&["--listen", "ws://127.0.0.1:0", "--listen", &unix]);
    let mut client = server.connect();
    let session = client.initialize()["sessionId"].as_str().unwrap().to_owned();
    // The new connection is often noticed before the end of the old one.
    for (address, round) in server.addresses().iter().cycle().zip(0..200) {
        client.shell(&round.to_string(), "echo here");
        client.event(&round.to_string(), "process/output");
        client.cut();
        client = Client::connect(address);
        assert_eq!(client.resume(&session)["resumed"], true, "{address}");
    }
}

#[test]
fn a_refused_resume_leaves_the_connection_free_to_start_a_session() {
    let server = Server::start();
    let holder = server.connect();
    let session = holder.initialize()["sessionId"].as_str().unwrap().to_owned();
    let client = server.connect();
    let resume = |id: &str| json!({"clientName": "x", "resumeSessionId": id});

    let unknown = "00000000-0000-4000-8000-000000000000";
    let (code, message) = client.refusal("initialize", resume(unknown));
    assert_eq!(code, -32600);
    assert!(message.starts_with(&format!("unknown session id {unknown}")), "{message}");

    let (code, message) = client.refusal("initialize", resume(&session));
    assert_eq!(code, -32010);
    let expected = format!("session {session} is already attached to another connection");
    assert!(message.starts_with(&expected), "{message}");

    client.initialize();
    holder.shell("p", "echo undisturbed");
    assert_eq!(holder.collect("p").text(), "undisturbed\n");
}

#[test]
fn a_detached_session_lives_for_its_ttl_up_to_the_cap() {
    let server = Server::start();
    const DAY_MS: u64 = 24 * 3600 * 1000;
    for (asked, given) in [(None, 80_000), (Some(1), 1), (Some(60_000), 60_000), (Some(10 * DAY_MS), DAY_MS)]
    {
        let params = match asked {
            Some(asked) => with(today(), json!({"detachTtlMs": asked})),
            None => today(),
        };
        assert_eq!(server.connect().initialize_with(params)["detachTtlMs"], given, "{asked:?}");
    }
}

#[test]
fn a_session_can_be_addressed_by_its_name() {
    let server = Server::start();
    let client = server.connect();
    let named = with(today(), json!({"sessionName": "builds"}));
    let session = client.initialize_with(named.clone())["sessionId"].clone();
    let listing = client.call("session/list", json!({})).unwrap();
    assert_eq!(listing["sessions"][0]["sessionId"], session);
    assert_eq!(listing["sessions"][0]["name"], "builds");

    let other = server.connect();
    let (_, message) = other.refusal("initialize", named.clone());
    assert!(message.contains("builds"), "a live session has the name: {message}");
    let (code, _) = other.refusal("initialize", json!({"clientName": "x", "resumeSessionId": "builds"}));
    assert_eq!(code, -32010, "the name stands for the session");
    client.cut();
    let resumed = other.resume("builds");
    assert_eq!(resumed["sessionId"], session);

    other.call("session/end", json!({"sessionId": session})).unwrap();
    server.connect().initialize_with(named);
}

#[test]
fn an_invalid_sandbox_is_refused_and_nothing_runs() {
    let directory = tempfile::tempdir().unwrap();
    let marker = directory.path().join("marker");
    let touch = start_params("p", &["touch", marker.to_str().unwrap()]);
    let sandbox = |permissions: Value| json!({"sandbox": {"permissions": permissions, "windowsSandboxLevel": "disabled"}});
    let server = Server::start();
    let client = server.client();
    for nonsense in [json!({"type": "nonsense"}), json!({}), json!(null), json!({"type": "managed"})] {
        let params = with(touch.clone(), sandbox(nonsense.clone()));
        assert_eq!(client.refusal("process/start", params).0, -32602, "{nonsense}");
    }
    assert!(!marker.exists(), "a refused start runs nothing");

    let params = with(touch, sandbox(json!({"type": "disabled"})));
    let answer =
        client.call("process/start", params).expect("no confinement is no problem, and the id is free");
    assert_eq!((&answer["processId"], &answer["sandboxType"]), (&json!("p"), &json!("none")));
    assert_eq!(client.collect("p").exit_code(), 0);
    assert!(marker.exists());
}
