//! Sessions of another identity: answered like sessions that do not exist, whatever is asked.

use std::time::Instant;

use serde_json::{Value, json};

use crate::support::{AuditLog, Client, Guarded, PATIENCE, Pki, token_of};

/// Every request that may name a session.
fn requests(session: &str) -> Vec<(&'static str, Value)> {
    let of_process = |method, more: Value| {
        (method, crate::support::with(json!({"processId": "p", "sessionId": session}), more))
    };
    vec![
        of_process("process/read", json!({})),
        of_process("process/write", json!({"chunk": "eA=="})),
        of_process("process/closeStdin", json!({})),
        of_process("process/release", json!({})),
        of_process("process/forget", json!({})),
        of_process("process/resize", json!({"rows": 1, "cols": 1})),
        of_process("process/wait", json!({})),
        of_process("process/snapshot", json!({})),
        of_process("process/seek", json!({"to": {"offset": 0}})),
        of_process("process/signal", json!({"signal": "SIGKILL"})),
        of_process("process/terminate", json!({})),
        of_process("process/restart", json!({})),
        ("process/list", json!({"sessionId": session})),
        ("session/observe", json!({"sessionId": session})),
        ("session/unobserve", json!({"sessionId": session})),
        ("session/end", json!({"sessionId": session})),
    ]
}

/// Every way to attach to a session.
fn resumptions(session: &str) -> Vec<Value> {
    let resume = json!({"clientName": "attacker", "resumeSessionId": session});
    [json!({}), json!({"takeover": false}), json!({"takeover": true})]
        .map(|more| crate::support::with(resume.clone(), more))
        .into()
}

/// Starts a process in a session with a name; returns the id of the session.
fn prepare(victim: &Client) -> String {
    let begin = json!({"clientName": "victim", "resumeSessionId": null, "sessionName": "build"});
    let answer = victim.initialize_with(begin);
    victim.start("p", &["/bin/cat"], json!({"pipeStdin": true}));
    answer["sessionId"].as_str().expect("a session has an id").to_owned()
}

/// Attacks the session of `victim` with everything that names a session, by id and by name.
fn attack(victim: &Client, session: &str, connect: &dyn Fn() -> Client, who: &str, audit: &AuditLog) {
    let attacker = connect();
    attacker.initialize();
    for named in [session, "build"] {
        let missing: String = named.chars().rev().collect();
        assert_ne!(missing, named);
        let answers = |name: &str| -> Vec<String> {
            let asked =
                requests(name).into_iter().map(|(method, params)| (attacker.call(method, params), method));
            let resumed = resumptions(name)
                .into_iter()
                .map(|params| (connect().call("initialize", params), "initialize"));
            let all = asked.chain(resumed).map(|(answer, method)| {
                let error = answer.expect_err(method);
                assert_eq!(error["data"]["kind"], "unknownSession", "{method} of {name}: {error}");
                format!("{method} {error}").replace(name, "NAME")
            });
            all.collect()
        };
        let count = requests(named).len() + resumptions(named).len();
        assert_eq!(answers(named), answers(&missing), "an attacker cannot tell what exists");
        let members = json!({"identity": who, "session": named, "outcome": "unknownSession"});
        let lines = audit.lines_with(&members, count);
        assert_eq!(lines.len(), count, "{lines:?}");
        let methods: Vec<_> = lines.iter().map(|line| line["method"].as_str().unwrap_or_default()).collect();
        for (method, _) in requests(named) {
            assert!(methods.contains(&method), "{method} is not among {methods:?}");
        }
    }
    for method in ["session/list", "process/list"] {
        let own = attacker.call(method, json!({})).expect("it may list its own").to_string();
        assert!(!own.contains(session) && !own.contains("build") && !own.contains("victim"), "{own}");
        let error = attacker.call(method, json!({"scope": "all"})).expect_err("it is no administrator");
        assert_eq!(error["data"]["kind"], "permissionDenied", "{error}");
    }
    // Its own session may have the same name, so names tell nothing either.
    let namesake = json!({"clientName": "attacker", "resumeSessionId": null, "sessionName": "build"});
    assert_ne!(connect().initialize_with(namesake)["sessionId"], session);

    // Nothing has reached the process.
    let write = json!({"processId": "p", "writeId": "w", "chunk": "b25seSB0aGlz"});
    victim.call("process/write", write).expect("stdin is open");
    assert_eq!(victim.wait_for_output("p", "only this"), "only this");
}

#[test]
fn an_administrator_cannot_extend_the_session_of_another_identity() {
    let (guarded, _) = Guarded::audited(&format!(
        "{} name=victim scope=all\n{} name=root scope=all,admin\n",
        token_of("victim"),
        token_of("root")
    ));
    let (victim, root) = (guarded.connect(&token_of("victim")), guarded.client(&token_of("root")));
    let begin = json!({"clientName": "victim", "resumeSessionId": null, "detachTtlMs": 60_000});
    let session = victim.initialize_with(begin)["sessionId"].clone();
    victim.start("p", &["/bin/cat"], json!({"pipeStdin": true}));
    victim.cut();
    let deadline = Instant::now() + PATIENCE;
    let expiry = || {
        let listed = root.call("session/list", json!({"scope": "all"})).expect("an administrator");
        let entries = listed["sessions"].as_array().expect("a list").clone();
        entries.into_iter().find(|entry| entry["sessionId"] == session).expect("it lives")["expiresAtMs"]
            .as_u64()
    };
    let before = loop {
        if let Some(before) = expiry() {
            break before;
        }
        assert!(Instant::now() < deadline, "waited for the session to lose its connection");
    };
    let longer = json!({"processId": "p", "sessionId": session, "detachTtlMs": 3_600_000});
    root.call("process/release", longer).expect("it may look after the process");
    assert_eq!(expiry(), Some(before));
}

#[test]
fn another_token_finds_no_session_and_an_administrator_does() {
    let tokens = ["victim scope=all", "attacker scope=all", "root scope=admin"].map(|line| {
        let (name, scope) = line.split_once(' ').expect("a name and a scope");
        format!("{} name={name} {scope}\n", token_of(name))
    });
    let (guarded, audit) = Guarded::audited(&tokens.concat());
    let victim = guarded.connect(&token_of("victim"));
    let session = prepare(&victim);
    let connect = || guarded.connect(&token_of("attacker"));
    attack(&victim, &session, &connect, "token:attacker", &audit);

    let root = guarded.client(&token_of("root"));
    for method in ["session/list", "process/list"] {
        let all = root.call(method, json!({"scope": "all"})).expect("an administrator").to_string();
        assert!(all.contains(&session), "{all}");
    }
    let of_process =
        |more: Value| crate::support::with(json!({"processId": "p", "sessionId": session}), more);
    root.call("session/observe", json!({"sessionId": session})).expect("an administrator");
    let read = root.call("process/read", of_process(json!({"waitMs": 0}))).expect("an administrator");
    assert_eq!(read["chunks"][0]["chunk"], "b25seSB0aGlz");
    for resume in resumptions(&session) {
        let error = guarded.connect(&token_of("root")).call("initialize", resume).expect_err("not even it");
        assert_eq!(error["data"]["kind"], "unknownSession", "{error}");
    }
    root.call("process/signal", of_process(json!({"signal": "SIGTERM"}))).expect("an administrator");
    audit.line(&json!({"event": "signal", "identity": "token:root", "session": session, "outcome": "ok"}));
    assert_eq!(victim.event("p", "process/exited")["processId"], "p");
    root.call("session/end", json!({"sessionId": session})).expect("an administrator");
    audit.line(&json!({"event": "terminate", "identity": "token:root", "session": session, "outcome": "ok"}));
    victim.closed_for("an administrator ended its session");
}

#[test]
fn another_certificate_finds_no_session() {
    let (pki, authority) = Pki::new();
    for name in ["victim", "attacker"] {
        authority.client(name, name, &[name]);
    }
    let audit = pki.path("audit");
    let server = pki.serve_mutual(&["--audit", audit.to_str().expect("the path is text")]);
    let connect = |name| Client::connect_with_tls(server.address(), pki.client_config(Some(name)), &[]);
    let victim = connect("victim");
    let session = prepare(&victim);
    let audit = AuditLog::new(audit);
    attack(&victim, &session, &|| connect("attacker"), "certificate:dns:attacker", &audit);
}
