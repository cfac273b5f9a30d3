//! A client that decides about hosts which its rules neither allow nor deny, and hears of every decision.

use super::*;

/// Sets how long the client may take to decide.
fn asking(start: Value, timeout_ms: u64) -> Value {
    let mut start = start;
    start["networkProxy"]["policyDecisionTimeoutMs"] = json!(timeout_ms);
    start
}

/// Returns the next question about a process that was not returned before.
fn question(client: &Client, process: &str, earlier: &[Value]) -> Value {
    client.wait("a question", |seen| {
        let mut asked = seen.events(process).filter(|message| message["method"] == "network/policyRequest");
        asked.find(|message| !earlier.contains(&message["id"])).cloned()
    })
}

fn answer_with(client: &Client, question: &Value, decision: &Value) {
    client.send_json(&json!({"id": question["id"], "result": {"decision": decision}}));
}

/// Returns the decisions about a process that the client was told so far.
fn decisions(client: &Client, process: &str, count: usize) -> Vec<Value> {
    client.wait("the decisions", |seen| {
        let told = seen.events(process).filter(|message| message["method"] == "network/policyDecision");
        let told: Vec<_> = told.map(|message| message["params"].clone()).collect();
        (told.len() >= count).then_some(told)
    })
}

fn begin(client: &Client, process: &str, script: &str, start: Value) {
    client.start(process, &["bash", "-c", &format!("{ASK}{script}")], start);
}

/// Reads the output of a process until it has a text.
fn read_until(client: &Client, process: &str, text: &str) {
    let deadline = Instant::now() + PATIENCE;
    let (mut after, mut output) = (0, Vec::new());
    while !String::from_utf8_lossy(&output).contains(text) {
        assert!(Instant::now() < deadline, "{}", String::from_utf8_lossy(&output));
        let params = json!({"processId": process, "afterSeq": after, "waitMs": 1000});
        let read = client.call("process/read", params).expect("it is known");
        for chunk in read["chunks"].as_array().expect("a list") {
            output.extend(crate::support::decode(&chunk["chunk"]));
        }
        after = read["nextSeq"].as_u64().expect("a number") - 1;
    }
}

/// Says what a decision is, without when it was made.
fn told(decision: &Value) -> Value {
    let time = decision["timestamp"].as_str().expect("a text");
    assert!(time.starts_with("20") && time.ends_with('Z'), "{time}");
    let mut decision = decision.clone();
    decision.as_object_mut().expect("an object").remove("timestamp");
    decision
}

#[test]
fn the_client_decides_about_unlisted_hosts_and_is_notified_of_every_decision() {
    let (server, host) = (Server::start(), Host::start());
    let client = server.client();
    let port = host.port();
    let get = |target: &str| format!("ask 'GET http://{target}/ HTTP/1.1\\r\\n\\r\\n'; ");
    let script = get(&format!("127.0.0.1:{port}"))
        + &get(&format!("127.0.0.2:{port}"))
        + &get("bad.example")
        + "ask 'CONNECT other.example:443 HTTP/1.1\\r\\n\\r\\n'; "
        + &format!(
            "ask '\\x05\\x01\\x00\\x05\\x01\\x00\\x01\\x7f\\x00\\x00\\x01\\x{:02x}\\x{:02x}GET / HTTP/1.1\\r\\nHost: socks\\r\\n\\r\\n'",
            port >> 8,
            port & 255
        );
    let domains = json!({"127.0.0.2": "allow", "bad.example": "deny"});
    begin(&client, "p", &script, asking(managed(&domains, json!({})), 60_000));

    let first = question(&client, "p", &[]);
    let target = json!({"protocol": "http", "host": "127.0.0.1", "port": port});
    assert_eq!(first["params"], json!({"processId": "p", "request": target}));
    assert!(first["id"].is_string(), "it cannot be taken for an id of the client: {first}");
    answer_with(&client, &first, &json!({"type": "allow"}));
    let second = question(&client, "p", &[first["id"].clone()]);
    let target = json!({"protocol": "https_connect", "host": "other.example", "port": 443});
    assert_eq!(second["params"]["request"], target);
    answer_with(&client, &second, &json!({"type": "ask", "reason": "a person decides"}));
    let third = question(&client, "p", &[first["id"].clone(), second["id"].clone()]);
    let target = json!({"protocol": "socks5_tcp", "host": "127.0.0.1", "port": port});
    assert_eq!(third["params"]["request"], target, "a decision is about one connection");
    answer_with(&client, &third, &json!({"type": "allow"}));

    let output = client.collect("p");
    let text = output.text();
    assert!(text.contains(&format!("reached 127.0.0.1:{port}")) && text.contains("reached socks"), "{text}");
    assert!(
        text.contains("other.example:443 is refused: the client has to ask about it first: a person decides")
    );
    let names: Vec<_> = denied(&output).into_iter().map(|(host, ..)| host).collect();
    assert_eq!(names, ["bad.example", "other.example"]);

    let expected = |decision: &str, source: &str, reason: &str, more: Value| {
        with(
            json!({"processId": "p", "scope": "domain", "decision": decision, "source": source,
            "reason": reason, "policyOverride": false}),
            more,
        )
    };
    let http =
        |host: &str, port: u16| json!({"protocol": "http", "host": host, "port": port, "method": "GET"});
    let overridden = json!({"policyOverride": true});
    let all: Vec<_> = decisions(&client, "p", 5).iter().map(told).collect();
    let socks = json!({"protocol": "socks5_tcp", "host": "127.0.0.1", "port": port});
    assert_eq!(
        all,
        [
            with(expected("allow", "decider", "allowed", http("127.0.0.1", port)), overridden.clone()),
            expected("allow", "baseline_policy", "allowed", http("127.0.0.2", port)),
            expected("deny", "baseline_policy", "denied", http("bad.example", 80)),
            expected(
                "ask",
                "decider",
                "a person decides",
                json!({"protocol": "https_connect",
                "host": "other.example", "port": 443, "method": "CONNECT"})
            ),
            with(expected("allow", "decider", "allowed", socks), overridden),
        ]
    );
}

#[test]
fn an_invalid_decision_denies() {
    let server = Server::start();
    let client = server.client();
    let script = "ask 'GET http://a.example/ HTTP/1.1\\r\\n\\r\\n'";
    for (number, (answer, reason)) in [
        (json!({"result": {"decision": {"type": "deny", "reason": "too far"}}}), "too far"),
        (json!({"error": {"code": -32601, "message": "this client accepts no requests"}}), "not_allowed"),
        (json!({"result": {}}), "not_allowed"),
        (json!({"result": {"decision": {"type": "perhaps"}}}), "not_allowed"),
        (json!({"result": {"decision": {"type": "deny", "reason": "x".repeat(1025)}}}), "not_allowed"),
        (json!({"result": {"decision": {"type": "ask", "reason": "a\nb"}}}), "not_allowed"),
        (json!({"result": {"decision": {"type": "deny", "reason": "x".repeat(1 << 20)}}}), "not_allowed"),
    ]
    .into_iter()
    .enumerate()
    {
        let process = number.to_string();
        begin(&client, &process, script, asking(managed(&json!({}), json!({})), 60_000));
        let asked = question(&client, &process, &[]);
        let reply = with(answer.clone(), json!({"id": asked["id"]}));
        client.send_json(&reply);
        // A second answer changes nothing, and is no reason to leave.
        answer_with(&client, &asked, &json!({"type": "allow"}));
        let output = client.collect(&process);
        assert!(output.text().starts_with("HTTP/1.1 403 "), "{}", output.text());
        let decision = &decisions(&client, &process, 1)[0];
        assert_eq!((&decision["decision"], &decision["reason"]), (&json!("deny"), &json!(reason)));
        assert_eq!(decision["source"], "decider");
    }
    // An answer to nothing ends the connection, as always.
    client.send_json(&json!({"id": "remex-1000", "result": {"decision": {"type": "allow"}}}));
    assert_eq!(client.closed_for("it was never asked").0, 1008);
}

#[test]
fn an_absent_or_silent_client_denies_and_the_next_connection_asks_again() {
    let server = Server::start();
    let client = server.connect();
    let session = client.initialize()["sessionId"].as_str().expect("a text").to_owned();
    let script = "read; ask 'GET http://a.example/ HTTP/1.1\\r\\n\\r\\n'; read; \
                  ask 'GET http://b.example/ HTTP/1.1\\r\\n\\r\\n'";
    let start = with(asking(managed(&json!({}), json!({})), 60_000), json!({"pipeStdin": true}));
    begin(&client, "p", script, start);
    let go = json!({"processId": "p", "chunk": crate::support::encode("\n")});
    client.call("process/write", go.clone()).expect("it takes input");
    question(&client, "p", &[]);
    client.cut();
    let client = server.connect();
    client.resume(&session);
    read_until(&client, "p", "a.example:80 is refused: the client has not allowed it");
    client.call("process/write", go).expect("it takes input");
    let asked = question(&client, "p", &[]);
    assert_eq!(asked["params"]["request"]["host"], "b.example");
    answer_with(&client, &asked, &json!({"type": "deny", "reason": "no"}));
    read_until(&client, "p", "the client has denied it: no");

    // One that never answers has its time, and five seconds for the way.
    let begun = Instant::now();
    let script = "ask 'GET http://a.example/ HTTP/1.1\\r\\n\\r\\n'";
    begin(&client, "silent", script, asking(managed(&json!({}), json!({})), 100));
    let late = question(&client, "silent", &[]);
    assert!(client.collect("silent").text().contains("the client has not allowed it"));
    assert!(begun.elapsed() >= Duration::from_millis(5100), "{:?}", begun.elapsed());
    // Its late answer is ignored.
    answer_with(&client, &late, &json!({"type": "allow"}));
    client.call("environment/status", json!({})).expect("the connection goes on");
}

#[test]
fn no_decision_is_requested_for_ended_processes_or_beyond_the_servers_floor() {
    let directory = tempfile::tempdir().expect("a directory can be made");
    let profile = directory.path().join("profile.toml");
    fs::write(&profile, "read = ['/']\nnetwork = ['*.example.org']\n").expect("a file can be written");
    let server = Server::unix(&["--sandbox", &profile.display().to_string()]);
    let client = server.client();
    let script = "ask 'GET http://other.example/ HTTP/1.1\\r\\n\\r\\n'";
    begin(&client, "floor", script, asking(managed(&json!({}), json!({})), 60_000));
    let output = client.collect("floor");
    assert!(output.text().contains("other.example:80 is not in the allow-list"), "{}", output.text());
    client.look(|seen| assert!(seen.events("floor").all(|event| event["method"] != "network/policyRequest")));

    // One that waits for a decision does not wait longer than its process lives.
    let script = "ask 'GET http://a.example.org/ HTTP/1.1\\r\\n\\r\\n'";
    begin(&client, "killed", script, asking(managed(&json!({}), json!({})), 60_000));
    let asked = question(&client, "killed", &[]);
    client.call("process/terminate", json!({"processId": "killed"})).expect("it runs");
    client.collect("killed");
    answer_with(&client, &asked, &json!({"type": "allow"}));
    client.call("environment/status", json!({})).expect("the connection goes on");
}

#[test]
fn pending_decisions_per_process_are_limited() {
    let server = Server::start();
    let client = server.client();
    let script = "for i in $(seq 60); do (ask \"GET http://h$i.example/ HTTP/1.1\\r\\n\\r\\n\") & done; wait";
    begin(&client, "p", script, asking(managed(&json!({}), json!({})), 60_000));
    decisions(&client, "p", 60 - 32);
    let asked = client.wait("the questions", |seen| {
        let asked = seen.events("p").filter(|message| message["method"] == "network/policyRequest");
        let asked: Vec<_> = asked.cloned().collect();
        (asked.len() >= 32).then_some(asked)
    });
    assert_eq!(asked.len(), 32);
    for question in &asked {
        answer_with(&client, question, &json!({"type": "deny", "reason": "no"}));
    }
    assert_eq!(client.collect("p").text().matches("HTTP/1.1 403 ").count(), 60);
}

#[test]
fn a_limited_network_permits_only_safe_methods_over_plain_http() {
    let (server, host) = (Server::start(), Host::start());
    let client = server.client();
    let target = host.address.to_string();
    let domains = json!({"127.0.0.1": "allow"});
    let methods = ["GET", "HEAD", "OPTIONS", "POST", "PUT", "DELETE", "get"];
    let requests: String = methods
        .iter()
        .map(|method| format!("ask '{method} http://{target}/ HTTP/1.1\\r\\n\\r\\n' | head -n 1; "))
        .collect();
    let tunnels = format!(
        "ask 'CONNECT {target} HTTP/1.1\\r\\n\\r\\nGET / HTTP/1.1\\r\\nHost: tunnel\\r\\n\\r\\n'; \
         ask '\\x05\\x01\\x00\\x05\\x01\\x00\\x01\\x7f\\x00\\x00\\x01\\x00\\x50' | od -An -tx1"
    );
    let limited = managed(&domains, json!({"mode": "limited"}));
    let output = run(&client, "limited", &format!("{requests}{tunnels}"), limited);
    let text = output.text();
    let answers: Vec<_> = text.lines().take(methods.len()).map(|line| line.split(' ').nth(1)).collect();
    assert_eq!(answers, [["200"; 3].map(Some).as_slice(), &["403"; 4].map(Some)].concat(), "{text}");
    assert!(text.contains("only GET, HEAD and OPTIONS of plain HTTP"), "{text}");
    assert!(text.contains("05 00 05 02"), "SOCKS is refused: {text}");
    let refused = &decisions(&client, "limited", methods.len() + 2)[3];
    assert_eq!(
        (&refused["scope"], &refused["source"], &refused["reason"]),
        (&json!("non_domain"), &json!("mode_guard"), &json!("method_not_allowed"))
    );

    let off = managed(&domains, json!({"enableSocks5": false}));
    let output = run(&client, "no socks", &tunnels, off);
    assert!(output.text().contains("200 Connection established"), "{}", output.text());
    assert!(output.text().contains("05 00 05 02"), "{}", output.text());
}

#[test]
fn a_start_with_missing_or_invalid_rules_fails() {
    let server = Server::start();
    let client = server.client();
    let refused = |process: &str, more: Value| {
        let start = with(start_params(process, &["true"]), more);
        client.call("process/start", start).expect_err("it is refused")
    };
    let mut closed = managed(&json!({}), json!({}));
    closed["sandbox"]["permissions"]["network"] = json!("restricted");
    for sandbox in [Value::Null, closed["sandbox"].clone(), managed(&json!({}), json!({}))["sandbox"].clone()]
    {
        let error = refused("p", json!({"enforceManagedNetwork": true, "sandbox": sandbox}));
        assert_eq!(error["data"]["kind"], "sandboxUnavailable", "{error}");
    }
    for start in [managed(&json!({}), json!({})), json!({"networkProxy": {"proxy": {"enabled": true}}})] {
        let error = refused("p", asking(start.clone(), 0));
        assert_eq!(error["code"], -32602, "{error}");
        assert!(error["message"].as_str().is_some_and(|text| text.contains("policyDecisionTimeoutMs")));
        for process in [String::new(), "p".repeat(257)] {
            let error = refused(&process, asking(start.clone(), 1));
            assert_eq!(error["code"], -32602, "{error}");
            assert!(error["message"].as_str().is_some_and(|text| text.contains("processId")), "{error}");
        }
    }
    // A proxy at the client is of no use to a sandbox here, and means nothing without one.
    let at_client = json!({"networkProxy": null, "managedNetwork": {"port": 1}});
    let error = refused("p", with(managed(&json!({}), json!({})), at_client));
    assert_eq!(error["data"]["kind"], "sandboxUnavailable", "{error}");
    let longest = "p".repeat(256);
    client.start(&longest, &["true"], asking(managed(&json!({}), json!({})), 1));
    assert_eq!(client.collect(&longest).exit_code(), 0);
}
