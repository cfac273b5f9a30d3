//! Words of a server that this version does not know are unknown words; words of a client have to be known.

#![allow(clippy::unwrap_used, reason = "in a test it is the assertion")]

use remex_proto::{
    Call, ErrorKind, RpcError,
    environment::{LimitMethod, ProcessConfinement, Status},
    fs::{ChangeKind, MetadataKind, WalkKind},
    initialize::Capability,
    process::{ExitCause, SandboxType, State, Stream, WaitReason, WriteStatus},
};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

/// Decodes words that no version knows, and values that are no words.
#[track_caller]
fn assert_open<W: DeserializeOwned + PartialEq + std::fmt::Debug>(unknown: &W) {
    for word in ["fromTheFuture", "", "unknown", "Stdout", "exit "] {
        assert_eq!(serde_json::from_value::<W>(json!(word)).unwrap(), *unknown, "{word}");
    }
    for value in [json!(7), json!(null), json!(["exit"]), json!({"fromTheFuture": {}})] {
        assert!(serde_json::from_value::<W>(value.clone()).is_err(), "{value} is no word");
    }
}

#[test]
fn a_word_of_a_newer_server_is_unknown() {
    assert_open(&Stream::Unknown);
    assert_open(&ExitCause::Unknown);
    assert_open(&State::Unknown);
    assert_open(&WaitReason::Unknown);
    assert_open(&WriteStatus::Unknown);
    assert_open(&SandboxType::Unknown);
    assert_open(&MetadataKind::Unknown);
    assert_open(&WalkKind::Unknown);
    assert_open(&ChangeKind::Unknown);
    assert_open(&ProcessConfinement::Unknown);
    assert_open(&LimitMethod::Unknown);
    assert_open(&Status::Unknown);
    assert_eq!(ErrorKind::from_word("fromTheFuture"), ErrorKind::Other);
    assert_eq!(Capability::from_word("fromTheFuture"), None);
}

#[test]
fn an_unknown_word_of_a_client_is_refused_and_the_member_is_named() {
    let start = |member: &str, value: Value| {
        let mut params = json!({"processId": "p", "argv": ["a"], "cwd": "/", "env": {}, "tty": false});
        params[member] = value;
        ("process/start", params, member.to_owned())
    };
    let with = |method: &'static str, mut params: Value, member: &str, word: Value| {
        params[member] = word;
        (method, params, member.to_owned())
    };
    let (process, path) = (json!({"processId": "p"}), json!({"path": "/a"}));
    let policy = json!({"inherit": "some", "ignoreDefaultExcludes": false, "exclude": [], "set": {},
        "includeOnly": []});
    let request = json!({"method": "GET", "url": "http://a/", "requestId": "r"});
    let cases = [
        start("output", json!({"overflow": "spill"})),
        start("envPolicy", policy),
        with("process/signal", process.clone(), "signal", json!("SIGFUTURE")),
        with("process/terminate", process.clone(), "mode", json!("gentle")),
        with("process/terminate", process.clone(), "scope", json!("host")),
        with("process/wait", process, "until", json!("paused")),
        with("process/list", json!({}), "scope", json!("galaxy")),
        with("session/list", json!({}), "scope", json!("galaxy")),
        with("fs/open", json!({"handleId": "h", "path": "/a"}), "mode", json!("append")),
        with("fs/writeFile", json!({"path": "/a", "dataBase64": ""}), "ifMatch", json!("md5:0")),
        with("http/request", request, "redirectPolicy", json!("ask")),
        with("fs/readFile", path, "sandbox", json!({"permissions": {"type": "quantum"}})),
    ];
    for (method, params, member) in cases {
        let refused: RpcError = Call::parse(method, Some(&params.to_string())).unwrap_err().into();
        assert_eq!(refused.kind, ErrorKind::InvalidParams, "{method} {params}: {refused}");
        let hint = refused.hint.clone().unwrap_or_default();
        // A signal is named itself.
        let is_named = hint.contains(&format!("`{member}`")) || refused.message.contains("`SIGFUTURE`");
        assert!(is_named, "{method} {params}: {refused}; {hint}");
    }
}
