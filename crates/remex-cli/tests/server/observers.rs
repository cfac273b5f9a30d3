//! Looking after the sessions of others of the same identity.

use serde_json::{Value, json};

use crate::support::{Client, Reader, Server, decode, encode, start_params, with};

const MIB: u64 = 1 << 20;

/// Opens a connection with a session of its own, and returns the id of that.
fn client_with_session(server: &Server) -> (Client, String) {
    let client = server.connect();
    let session = client.initialize()["sessionId"].as_str().expect("an id").to_owned();
    (client, session)
}

fn observe(observer: &Client, session: &str, from_seq: &Value) {
    let params = json!({"sessionId": session, "fromSeq": from_seq});
    assert_eq!(observer.call("session/observe", params).expect("it may be observed"), json!({}));
}

fn type_in(client: &Client, process_id: &str, text: &str) {
    let write = json!({"processId": process_id, "chunk": encode(text)});
    client.call("process/write", write).expect("stdin is open");
}

/// Returns what a client was told about a process: the methods, and the output in one piece.
fn told(client: &Client, process_id: &str) -> (Vec<String>, String) {
    client.look(|seen| {
        let methods = seen
            .events(process_id)
            .map(|event| event["method"].as_str().expect("a name").to_owned())
            .collect();
        let output = seen
            .events(process_id)
            .filter(|event| event["method"] == "process/output")
            .flat_map(|event| decode(&event["params"]["chunk"]));
        (methods, String::from_utf8(output.collect()).expect("text"))
    })
}

#[test]
fn the_observer_chooses_the_start_of_unnamed_processes() {
    let server = Server::start();
    let (observer, _) = client_with_session(&server);
    let (client, session) = client_with_session(&server);
    client.shell("p", "echo hello");
    client.event("p", "process/closed");
    let params = json!({"sessionId": session, "fromSeq": {}, "othersFromSeq": 1});
    assert_eq!(observer.call("session/observe", params), Ok(json!({})));
    observer.event("p", "process/closed");
    assert_eq!(told(&observer, "p").1, "hello\n");
}

#[test]
fn an_observer_is_notified_when_the_session_ends() {
    let server = Server::start();
    let (observer, _) = client_with_session(&server);
    let (client, session) = client_with_session(&server);
    client.shell("p", "sleep 1000");
    observe(&observer, &session, &Value::Null);
    observer.call("session/end", json!({"sessionId": session})).unwrap();
    let ended = observer.wait("the end of the session", |seen| {
        seen.notifications().find(|note| note["method"] == "session/ended").cloned()
    });
    assert_eq!(ended["params"], json!({"sessionId": session}));
}

#[test]
fn an_observer_gets_the_notifications_of_the_other_session_with_its_name() {
    let server = Server::start();
    let observer = server.connect();
    observer.initialize_with(json!({
        "clientName": "observer", "resumeSessionId": null, "capabilities": ["processStarted", "processFailed"],
    }));
    let (client, session) = client_with_session(&server);
    observe(&observer, &session, &Value::Null);
    client.shell("p", "echo hello; exit 3");
    client.call("process/start", start_params("failing", &["/no/such/program"])).unwrap_err();
    client.event("p", "process/closed");
    observer.event("p", "process/closed");
    observer.event("failing", "process/failed");
    let (methods, output) = told(&observer, "p");
    assert_eq!(methods, ["process/started", "process/output", "process/exited", "process/closed"]);
    assert_eq!(output, "hello\n");
    observer.look(|seen| {
        for event in seen.notifications() {
            assert_eq!(event["params"]["sessionId"], json!(session), "{event}");
        }
    });
    // The session's own client sees what it would see alone.
    client.look(|seen| {
        for event in seen.notifications() {
            assert_eq!(event["params"].get("sessionId"), None, "{event}");
        }
    });
    assert_eq!(client.collect("p").text(), "hello\n");
    // What the observer does itself has no session.
    observer.shell("own", "echo mine");
    assert_eq!(observer.event("own", "process/output").get("sessionId"), None);
}

#[test]
fn an_observer_chooses_its_start_position() {
    let server = Server::start();
    let (client, session) = client_with_session(&server);
    for process in ["named", "not named"] {
        client.start(process, &["/bin/cat"], json!({"pipeStdin": true}));
        let mut said = String::new();
        for word in ["one ", "two ", "three "] {
            type_in(&client, process, word);
            said += word;
            client.wait_for_output(process, &said);
        }
    }
    for (from, expected) in [(1, "one two three four"), (3, "three four"), (4, "four")] {
        // A new observer each time, and a new last word that comes after it began to look.
        let observer = server.client();
        observe(&observer, &session, &json!({"named": from}));
        for process in ["named", "not named"] {
            type_in(&client, process, "four");
            observer.wait_for_output(process, "four");
        }
        let (_, named) = told(&observer, "named");
        assert!(named.starts_with(expected), "from {from}: {named}");
        assert_eq!(told(&observer, "not named").1, "four", "others begin now");
    }
}

#[test]
fn an_observer_can_stop_observing() {
    let server = Server::start();
    let (client, session) = client_with_session(&server);
    let observer = server.client();
    client.start("p", &["/bin/cat"], json!({"pipeStdin": true}));
    observe(&observer, &session, &Value::Null);
    // Once more is the same as once.
    observe(&observer, &session, &Value::Null);
    type_in(&client, "p", "seen");
    observer.wait_for_output("p", "seen");
    let unobserve = json!({"sessionId": session});
    assert_eq!(observer.call("session/unobserve", unobserve).unwrap(), json!({}));
    type_in(&client, "p", " and unseen");
    client.wait_for_output("p", "seen and unseen");
    client.shell("q", "echo unseen");
    client.event("q", "process/closed");
    // An answer comes behind everything that was told before it.
    observer.call("session/list", json!({})).unwrap();
    assert_eq!((told(&observer, "p").1, told(&observer, "q").1), ("seen".to_owned(), String::new()));
}

#[test]
fn several_observers_of_one_session_are_unaffected_by_its_disconnects() {
    let server = Server::start();
    let (client, session) = client_with_session(&server);
    let observers: Vec<_> = (0..10).map(|_| server.client()).collect();
    for observer in &observers {
        observe(observer, &session, &Value::Null);
    }
    client.start("p", &["/bin/cat"], json!({"pipeStdin": true}));
    type_in(&client, "p", "before");
    client.wait_for_output("p", "before");
    client.cut();
    let client = server.connect();
    client.resume(&session);
    type_in(&client, "p", " and after");
    client.call("process/closeStdin", json!({"processId": "p"})).unwrap();
    for observer in &observers {
        assert_eq!(observer.collect("p").text(), "before and after");
    }
}

#[test]
fn requests_may_name_another_session_of_the_same_owner() {
    let server = Server::start();
    let (client, session) = client_with_session(&server);
    let (other, own) = client_with_session(&server);
    client.start("p", &["/bin/cat"], json!({"pipeStdin": true}));
    let call = |method: &str, more: Value| {
        other.call(method, with(json!({"processId": "p", "sessionId": session}), more))
    };
    assert_eq!(
        call("process/write", json!({"chunk": encode("hi"), "writeId": "1"})).unwrap()["status"],
        "accepted"
    );
    let waited = call("process/wait", json!({"until": {"output": {"regex": "hi"}}})).unwrap();
    assert_eq!(waited["reason"], "output");
    assert_eq!(decode(&call("process/read", json!({})).unwrap()["chunks"][0]["chunk"]), b"hi");
    assert_eq!(decode(&call("process/snapshot", json!({})).unwrap()["stdout"]), b"hi");
    assert_eq!(call("process/signal", json!({"signal": "CONT"})).unwrap(), json!({}));
    assert_eq!(call("process/closeStdin", json!({})).unwrap(), json!({}));
    assert_eq!(call("process/wait", json!({"until": "closed"})).unwrap()["exitCode"], 0);
    assert_eq!(call("process/terminate", json!({})).unwrap(), json!({"running": false}));
    assert_eq!(client.collect("p").text(), "hi", "the session's own client missed nothing");

    client.start("t", &["/bin/cat"], json!({"tty": true}));
    let size = json!({"processId": "t", "sessionId": session, "rows": 10, "cols": 10});
    assert_eq!(other.call("process/resize", size).unwrap(), json!({}));
    let end = json!({"processId": "t", "sessionId": session});
    assert_eq!(other.call("process/terminate", end).unwrap(), json!({"running": true}));
    assert_eq!(client.collect("t").exit_code(), 137);

    other.shell("q", "exit");
    let list = |params: Value| -> Vec<(Value, Value)> {
        let listing = other.call("process/list", params).unwrap();
        let entries = listing["processes"].as_array().unwrap();
        entries.iter().map(|entry| (entry["sessionId"].clone(), entry["processId"].clone())).collect()
    };
    let [p, t, q] = [(&session, "p"), (&session, "t"), (&own, "q")].map(|(of, id)| (json!(of), json!(id)));
    assert_eq!(list(json!({})), std::slice::from_ref(&q));
    assert_eq!(list(json!({"sessionId": session})), [p.clone(), t.clone()]);
    assert_eq!(list(json!({"scope": "identity"})), [p, t, q]);
}

#[test]
fn a_slow_observer_gets_a_gap_and_slows_no_other() {
    for server in [Server::start(), Server::unix(&[])] {
        let (client, session) = client_with_session(&server);
        let (mut observer, _) = Reader::initialized(
            server.address(),
            json!({"clientName": "slow", "resumeSessionId": null, "capabilities": ["processGap"]}),
        );
        observer.call("session/observe", json!({"sessionId": session})).unwrap();
        // From here on the observer reads nothing, and the controller gets everything all the same.
        client.shell("p", "yes 1234567 | head -c 33554432");
        let output = client.collect("p");
        assert_eq!(output.stdout.len() as u64, 32 * MIB);
        assert_eq!(output.closed["evictedBytes"], 0, "the controller lost nothing");

        let (mut next, mut got, mut missing) = (1, 0, 0);
        loop {
            let message = observer.next();
            let params = &message["params"];
            assert_eq!(params["sessionId"], json!(session), "{message}");
            match message["method"].as_str().unwrap() {
                "process/gap" => {
                    assert_eq!(params["fromSeq"], next, "a gap begins where the observer stands");
                    next = params["toSeq"].as_u64().unwrap() + 1;
                    missing += params["bytes"].as_u64().unwrap();
                    continue;
                }
                "process/output" => got += decode(&params["chunk"]).len() as u64,
                "process/closed" => break,
                _ => {}
            }
            assert_eq!(params["seq"], next, "what is not missing is there");
            next += 1;
        }
        assert!(missing > 0, "nobody keeps 32 MiB for an onlooker");
        assert_eq!(got + missing, 32 * MIB);
    }
}

#[test]
fn only_existing_sessions_other_than_its_own_can_be_observed() {
    let server = Server::start();
    let (client, own) = client_with_session(&server);
    let error = client.call("session/observe", json!({"sessionId": "nobody"})).unwrap_err();
    assert_eq!((&error["code"], &error["data"]["kind"]), (&json!(-32600), &json!("unknownSession")));
    let (code, message) = client.refusal("session/observe", json!({"sessionId": own}));
    assert_eq!(code, -32602, "{message}");
    let (code, _) = client.refusal("process/read", json!({"sessionId": "nobody", "processId": "p"}));
    assert_eq!(code, -32600);
}
