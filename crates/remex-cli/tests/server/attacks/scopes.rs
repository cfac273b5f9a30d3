//! Every method with a credential that lacks its scope.

use serde_json::{Value, json};

use super::methods::{Attempt, Target, assert_complete};
use crate::support::{Client, Guarded, token_of};

/// Every word that grants something.
const SCOPES: [&str; 6] = ["processes", "processes:read", "files:read", "files:write", "http", "metrics"];

/// Returns the line of the only token, with everything but this scope.
fn line_without(scope: &str) -> String {
    // `processes` includes `processes:read`.
    let is_kept = |word: &&str| *word != scope && (scope != "processes:read" || *word != "processes");
    let kept: Vec<_> = SCOPES.into_iter().filter(is_kept).collect();
    format!("{} name=worker scope={}\n", token_of("worker"), kept.join(","))
}

/// Attaches to the session, whatever is left of the previous connection.
fn resume(guarded: &Guarded, session: &Value) -> Client {
    let client = guarded.connect(&token_of("worker"));
    client.initialize_with(json!({"clientName": "w", "resumeSessionId": session, "takeover": true}));
    client
}

#[test]
fn every_method_without_its_scope_is_refused_by_name_and_nothing_happens() {
    let target = Target::new();
    let everything = format!("{} name=worker scope=all\n", token_of("worker"));
    let (guarded, audit) = Guarded::audited(&everything);
    let worker = guarded.connect(&token_of("worker"));
    let session = worker.initialize()["sessionId"].clone();
    worker.start("p", &["/bin/cat"], json!({"pipeStdin": true}));
    let attempts = target.attempts();
    assert_complete(&worker, &attempts);
    worker.cut();

    let mut refused: Vec<&Attempt> = Vec::new();
    for missing in SCOPES.into_iter().chain(["admin"]) {
        // The same identity with a narrower token, so that it still has its session and its process.
        guarded.rewrite(&line_without(missing));
        let narrow = resume(&guarded, &session);
        for attempt in attempts.iter().filter(|attempt| attempt.scope == Some(missing)) {
            let method = attempt.method;
            let error = narrow.call(method, attempt.params.clone()).expect_err(method);
            assert_eq!(error["data"]["kind"], "permissionDenied", "{method} without {missing}: {error}");
            let message = error["message"].as_str().expect("an error has a message");
            assert!(message.contains(&format!("needs the scope `{missing}`")), "{message}");
            assert!(message.contains(&format!("`{method}`")), "{message}");
            refused.push(attempt);
        }
    }
    let needing = attempts.iter().filter(|attempt| attempt.scope.is_some()).count();
    assert_eq!(refused.len(), needing, "each scope was missing once");

    for attempt in &refused {
        let method = attempt.method;
        let members = json!({"event": "refusal", "method": method, "outcome": "permissionDenied"});
        let count = refused.iter().filter(|other| other.method == method).count();
        let lines = audit.lines_with(&members, count);
        assert_eq!(lines.len(), count, "{lines:?}");
        for line in lines {
            assert_eq!(line["identity"], "token:worker", "{line}");
            assert!(line["peer"].as_str().is_some_and(|peer| peer.starts_with("127.0.0.1:")), "{line}");
        }
    }
    assert!(!audit.text().contains(&token_of("worker")), "no token is recorded");

    target.assert_untouched();
    guarded.rewrite(&everything);
    let again = resume(&guarded, &session);
    let listed = again.call("process/list", json!({})).expect("it may list again");
    let processes = listed["processes"].as_array().expect("a list");
    assert_eq!(processes.len(), 1, "nothing was started: {listed}");
    assert_eq!((&processes[0]["processId"], &processes[0]["state"]), (&json!("p"), &json!("running")));
    // Nothing was written before this, and stdin is still open.
    let write = json!({"processId": "p", "writeId": "w", "chunk": "b25seSB0aGlz"});
    again.call("process/write", write).expect("stdin is open");
    assert_eq!(again.wait_for_output("p", "only this"), "only this");
}

#[test]
fn unscoped_methods_work_with_every_credential() {
    let target = Target::new();
    let guarded = Guarded::with_tokens(&format!("{} scope=metrics\n", token_of("narrowest")));
    let client = guarded.client(&token_of("narrowest"));
    let mut free = Vec::new();
    for Attempt { method, params, .. } in target.attempts().into_iter().filter(|one| one.scope.is_none()) {
        let answer = client.call(method, params);
        let kind = answer.as_ref().err().map_or(&Value::Null, |error| &error["data"]["kind"]);
        free.push((method, kind.as_str().unwrap_or("ok").to_owned()));
    }
    let expected = [
        ("initialize", "handshake"),
        ("environment/info", "ok"),
        ("environment/status", "ok"),
        // To close what is not open is fine.
        ("fs/close", "ok"),
    ];
    assert_eq!(free, expected.map(|(method, kind)| (method, kind.to_owned())));
}
