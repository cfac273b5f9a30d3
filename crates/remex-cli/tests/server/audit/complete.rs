//! The audit file leaves nothing out that changes something or that reaches what belongs to others.

use std::{
    fs::{self, File, OpenOptions},
    os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _},
    path::Path,
};

use rustix::fs::{CWD, FileType, Mode, OFlags, mknodat};
use serde_json::{Value, json};

use super::path;
use crate::support::{
    AuditLog, Guarded, Server, exchange, finish, jwt, token_of, unix_now, upgrade, uri, with,
};

/// Starts a server with the tokens of a victim and of an administrator.
fn with_administrator() -> (Guarded, AuditLog) {
    let tokens = ["victim scope=all", "root scope=admin"].map(|line| {
        let (name, scope) = line.split_once(' ').expect("a name and a scope");
        format!("{} name={name} {scope}\n", token_of(name))
    });
    Guarded::audited(&tokens.concat())
}

#[test]
fn administrator_actions_in_other_sessions_are_recorded() {
    let (guarded, audit) = with_administrator();
    let victim = guarded.connect(&token_of("victim"));
    let session = victim.initialize()["sessionId"].clone();
    victim.start("p", &["/bin/cat"], json!({"pipeStdin": true}));
    let root = guarded.client(&token_of("root"));
    let of_process = |more: Value| with(json!({"processId": "p", "sessionId": session}), more);
    let of_session = || json!({"sessionId": session});
    let requests = [
        ("process/write", "input", of_process(json!({"writeId": "w", "chunk": "aGlkZGVu"}))),
        ("process/resize", "input", of_process(json!({"rows": 5, "cols": 5}))),
        ("process/closeStdin", "input", of_process(json!({}))),
        ("process/wait", "observe", of_process(json!({"until": "closed", "waitMs": 60_000}))),
        ("process/read", "observe", of_process(json!({}))),
        ("process/snapshot", "observe", of_process(json!({}))),
        ("process/seek", "observe", of_process(json!({"to": {"offset": 0}}))),
        ("session/observe", "observe", of_session()),
        ("session/unobserve", "observe", of_session()),
        ("process/list", "list", of_session()),
        ("process/release", "forget", of_process(json!({}))),
        ("process/forget", "forget", of_process(json!({}))),
    ];
    for (method, event, params) in requests {
        let answer = root.call(method, params);
        // It has no terminal to resize.
        assert_eq!(answer.is_err(), method == "process/resize", "{method}: {answer:?}");
        let line = audit.line(&json!({"method": method, "identity": "token:root"}));
        assert_eq!(line["event"], event, "{line}");
        assert_eq!((&line["session"], &line["owner"]), (&session, &json!("token:victim")), "{line}");
    }
    for method in ["session/list", "process/list"] {
        root.call(method, json!({"scope": "all"})).expect("an administrator");
        audit.line(&json!({"method": method, "event": "list", "identity": "token:root", "outcome": "ok"}));
    }
    assert!(!audit.text().contains("aGlkZGVu") && !audit.text().contains("hidden"), "no input is recorded");
}

#[test]
fn a_session_named_like_the_id_of_another_hides_nothing_from_the_audit() {
    let (guarded, audit) = with_administrator();
    let victim = guarded.connect(&token_of("victim"));
    let session = victim.initialize()["sessionId"].clone();
    victim.start("p", &["/bin/cat"], json!({"pipeStdin": true}));
    let root = guarded.connect(&token_of("root"));
    root.initialize_with(json!({"clientName": "r", "resumeSessionId": null, "sessionName": session}));
    root.start("p", &["/bin/cat"], json!({"pipeStdin": true}));
    let write = json!({"processId": "p", "sessionId": session, "writeId": "w", "chunk": "eA=="});
    root.call("process/write", write).expect("an administrator");
    audit.line(&json!({"event": "input", "session": session, "owner": "token:victim"}));
    assert_eq!(victim.wait_for_output("p", "x"), "x");
}

#[test]
fn actions_in_an_own_session_are_recorded_without_repetition() {
    let (guarded, audit) = with_administrator();
    let client = guarded.connect(&token_of("victim"));
    let session = client.initialize()["sessionId"].clone();
    client.start("p", &["/bin/cat"], json!({"pipeStdin": true}));
    let started = audit.line(&json!({"event": "start", "process": "p"}));
    assert_eq!(started["session"], session, "a process id means something only in its session");
    for id in ["a", "b", "c"] {
        let write = json!({"processId": "p", "writeId": id, "chunk": "eA=="});
        client.call("process/write", write).expect("stdin is open");
    }
    for (method, params) in [
        ("process/read", json!({"processId": "p", "waitMs": 0})),
        ("process/list", json!({})),
        ("session/list", json!({})),
        ("environment/info", json!({})),
        ("fs/getMetadata", json!({"path": "/"})),
    ] {
        client.call(method, params).expect(method);
    }
    client.call("process/closeStdin", json!({"processId": "p"})).expect("stdin is open");
    audit.line(&json!({"method": "process/closeStdin", "event": "input", "session": session}));
    client.event("p", "process/closed");
    client.call("process/forget", json!({"processId": "p"})).expect("it has closed");
    audit.line(&json!({"event": "forget", "process": "p", "session": session, "outcome": "ok"}));
    let methods: Vec<_> = audit.lines().iter().map(|line| line["method"].clone()).collect();
    let count = |method: &str| methods.iter().filter(|found| **found == method).count();
    assert_eq!(count("process/write"), 1, "one line for the input of one connection: {methods:?}");
    for polled in ["process/read", "process/list", "session/list", "environment/info", "fs/getMetadata"] {
        assert_eq!(count(polled), 0, "{polled} in {methods:?}");
    }
}

#[test]
fn reads_of_files_and_directories_are_recorded() {
    let (guarded, audit) = with_administrator();
    let client = guarded.client(&token_of("victim"));
    let place = guarded.directory.path();
    let [directory, file] = [uri(place), uri(&place.join("tokens"))];
    let walk = json!({"maxDepth": 1, "maxDirectories": 9, "maxEntries": 9, "followDirectorySymlinks": false});
    let config = json!({"cwd": directory, "configPaths": [["model"]], "requirementsPaths": []});
    for (method, params) in [
        ("fs/readDirectory", json!({"path": directory})),
        ("fs/walk", json!({"path": directory, "options": walk})),
        ("fs/hash", json!({"path": file})),
        ("fs/search", json!({"path": directory, "options": {"pattern": "secret"}})),
        ("fs/readLink", json!({"path": file})),
        ("fs/watch", json!({"watchId": 1, "path": directory})),
        ("environmentConfig/read", config),
    ] {
        let outcome = client.call(method, params);
        let kind = outcome.err().map_or(json!("ok"), |error| error["data"]["kind"].clone());
        let line = audit.line(&json!({"method": method, "event": "read", "outcome": kind}));
        assert!(line["paths"][0].is_string(), "{line}");
    }
}

#[test]
fn a_takeover_names_the_session_and_the_connection_that_lost_it() {
    let (guarded, audit) = with_administrator();
    let first = guarded.connect(&token_of("victim"));
    let session = first.initialize()["sessionId"].clone();
    let created = audit.line(&json!({"event": "attach", "session": session}));
    assert_eq!((&created["resumed"], &created["previousConnection"]), (&json!(false), &Value::Null));
    let second = guarded.connect(&token_of("victim"));
    second.initialize_with(json!({"clientName": "w", "resumeSessionId": session, "takeover": true}));
    let taken = audit.line(&json!({"event": "attach", "session": session, "resumed": true}));
    assert_eq!(taken["previousConnection"], created["connection"], "{taken}");
    assert_ne!(taken["connection"], created["connection"], "{taken}");
    first.closed_for("another client took its session over");
}

#[test]
fn the_issuer_and_the_subject_of_a_signed_token_are_recorded_separately() {
    let directory = tempfile::tempdir().expect("a directory can be made");
    let file = path(directory.path(), "audit");
    let guarded = Guarded::with_secret(&["--audit", &file, "--log", "info"]);
    let claims = json!({"exp": unix_now() + 600, "sub": "ann@a session=s\u{202e}\u{2028}", "iss": "b@c"});
    let client = guarded.client(&jwt(&claims));
    client.call("fs/readFile", json!({"path": "/nonexistent"})).expect_err("it does not exist");
    let audit = AuditLog::new(file.into());
    for event in ["login", "attach", "read"] {
        let line = audit.line(&json!({"event": event, "issuer": "b@c", "subject": claims["sub"]}));
        let identity = r"subject:ann@a\u{20}session=s\u{202e}\u{2028}@b\u{40}c";
        assert_eq!(line["identity"], identity, "{line}");
    }
    let text = audit.text();
    assert!(!text.contains(['\u{202e}', '\u{2028}']) && text.contains(r"session=s\u202e\u2028"), "{text}");
    let logged = guarded.server.stderr_line("connection opened");
    assert!(logged.contains(r"identity=subject:ann@a\u{20}session=s"), "{logged}");
}

#[test]
fn an_audit_file_writable_by_others_is_refused_with_the_command_that_fixes_it() {
    let directory = tempfile::tempdir().expect("a directory can be made");
    let file = path(directory.path(), "audit");
    fs::write(&file, "").expect("a file can be written");
    fs::set_permissions(&file, fs::Permissions::from_mode(0o666)).expect("the file is ours");
    let refused = finish(&["serve", "--listen", "ws://127.0.0.1:0", "--audit", &file]);
    assert_ne!(refused.code(), Some(0));
    assert!(refused.stderr.contains("other users can write to it"), "{}", refused.stderr);
    assert!(refused.stderr.contains(&format!("chmod go-w {file}")), "{}", refused.stderr);
}

#[test]
fn a_required_audit_refuses_logins_that_it_cannot_record() {
    let server = Server::unix(&["--audit", "/dev/full", "--audit-required"]);
    let (_, message) = server.connect().complaint();
    assert!(message.contains("the login cannot be recorded in the audit file"), "{message}");

    let tcp = Server::serve(&["--audit", "/dev/full", "--audit-required"]);
    let answer = exchange(tcp.address(), upgrade("/", &[])).expect("an answer");
    assert_eq!(answer.status, 503);
    assert!(answer.body.contains("the login cannot be recorded"), "{}", answer.body);

    let (_server, client) = Server::stdio(&["--audit", "/dev/full", "--audit-required"]);
    let (_, message) = client.refusal("initialize", json!({"clientName": "c", "resumeSessionId": null}));
    assert!(message.contains("cannot be recorded in the audit file"), "{message}");
}

/// An audit file that takes lines until it is dropped: a pipe with a reader.
struct Pipe(File);

impl Pipe {
    fn create(path: &str) -> Self {
        mknodat(CWD, path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).expect("a pipe can be made");
        let flags = OFlags::NONBLOCK.bits().cast_signed();
        let file = OpenOptions::new().read(true).custom_flags(flags).open(path);
        Pipe(file.expect("the pipe can be opened"))
    }
}

#[test]
fn a_required_audit_refuses_actions_that_it_cannot_record() {
    let directory = tempfile::tempdir().expect("a directory can be made");
    let file = path(directory.path(), "audit");
    let pipe = Pipe::create(&file);
    let server = Server::unix(&["--audit", &file, "--audit-required"]);
    let client = server.client();
    client.start("cat", &["/bin/cat"], json!({"pipeStdin": true}));
    drop(pipe.0);

    let marker = path(directory.path(), "marker");
    let start = json!({"processId": "p", "argv": ["touch", marker], "cwd": "/", "env": {}, "tty": false});
    let input = json!({"processId": "cat", "writeId": "w", "chunk": "eA=="});
    for (method, params) in [
        ("fs/writeFile", json!({"path": marker, "dataBase64": ""})),
        ("process/start", start),
        ("process/write", input.clone()),
        // The first one was not recorded, so this one is not exempt.
        ("process/write", input),
        ("process/closeStdin", json!({"processId": "cat"})),
        ("process/forget", json!({"processId": "cat"})),
    ] {
        let (_, message) = client.refusal(method, params);
        assert!(message.contains("cannot be recorded in the audit file"), "{method}: {message}");
    }
    assert!(!Path::new(&marker).exists(), "neither the write nor the start happened");
    client.call("environment/status", json!({})).expect("what is not recorded works");
    let (_, message) = server.connect().complaint();
    assert!(message.contains("the login cannot be recorded"), "{message}");
}
