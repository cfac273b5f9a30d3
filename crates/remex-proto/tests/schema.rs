//! The committed schema and the types say the same, and other languages can use it.

#![allow(clippy::unwrap_used, reason = "in a test it is the assertion")]

mod json_schema;

use std::{collections::BTreeSet, fs, path::Path};

use json_schema::Validator;
use remex_proto::{
    ErrorKind,
    call::{CLIENT_NOTES, METHODS, SERVER_METHODS, SERVER_NOTES},
};
use serde_json::{Value, json};

const REGENERATE: &str = "UPDATE_SCHEMA=1 cargo test -p remex-proto --test schema";

#[test]
fn the_committed_schema_matches_the_types() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../spec/protocol.schema.json");
    let current = remex_proto::schema::schema();
    if std::env::var_os("UPDATE_SCHEMA").is_some() {
        fs::write(&path, format!("{current:#}\n")).unwrap();
    }
    let committed = fs::read_to_string(&path).unwrap_or_default();
    let is_current = serde_json::from_str::<Value>(&committed).is_ok_and(|committed| committed == current);
    assert!(is_current, "spec/protocol.schema.json is stale; run `{REGENERATE}` and commit it");
}

#[test]
fn the_schema_has_an_identity_and_a_version() {
    let schema = remex_proto::schema::schema();
    assert_eq!(schema["$schema"], "https://json-schema.org/draft/2020-12/schema");
    assert_eq!(schema["$id"], "urn:remex:protocol");
    assert_eq!(schema["version"], env!("CARGO_PKG_VERSION"));
    assert_eq!(schema["protocolVersion"], remex_proto::PROTOCOL_VERSION);
}

/// What the name of a definition may begin with.
const PREFIXES: &[&str] = &[
    "Base64",
    "Capabilities",
    "CapabilityRoots",
    "Client",
    "Environment",
    "EnvironmentConfig",
    "Flow",
    "Fs",
    "Host",
    "Http",
    "Initialize",
    "Initialized",
    "Network",
    "Process",
    "Request",
    "Rpc",
    "Sandbox",
    "Server",
    "Session",
];

#[test]
fn the_names_of_definitions_begin_with_their_area_and_collide_nowhere() {
    let schema = remex_proto::schema::schema();
    let mut seen = BTreeSet::new();
    for name in schema["$defs"].as_object().unwrap().keys() {
        let has_prefix = PREFIXES.iter().any(|prefix| {
            name.strip_prefix(prefix)
                .is_some_and(|rest| rest.starts_with(|first: char| first.is_ascii_uppercase()))
        });
        assert!(has_prefix, "`{name}` begins with no area");
        assert!(name.chars().all(|letter| letter.is_ascii_alphanumeric()), "`{name}` is no identifier");
        assert!(
            !name.ends_with(|last: char| last.is_ascii_digit()),
            "`{name}` is numbered to avoid another one"
        );
        assert!(seen.insert(name.to_lowercase()), "`{name}` and another differ only in case");
    }
}

/// Calls `visit` with every object in `value`, and where it is.
fn objects(value: &Value, at: &str, visit: &mut impl FnMut(&str, &serde_json::Map<String, Value>)) {
    match value {
        Value::Object(members) => {
            visit(at, members);
            for (name, value) in members {
                objects(value, &format!("{at}/{name}"), visit);
            }
        }
        Value::Array(values) => {
            for (index, value) in values.iter().enumerate() {
                objects(value, &format!("{at}/{index}"), visit);
            }
        }
        _ => {}
    }
}

#[test]
fn descriptions_are_about_the_protocol_and_not_about_rust() {
    let schema = remex_proto::schema::schema();
    objects(&schema, "", &mut |at, members| {
        let Some(text) = members.get("description").and_then(Value::as_str) else { return };
        for mark in ["[`", "`]", "](", "::", "Option<", "struct ", "enum "] {
            assert!(!text.contains(mark), "{at}: {text}");
        }
    });
    for (name, definition) in schema["$defs"].as_object().unwrap() {
        let text = definition.get("description").and_then(Value::as_str).unwrap_or_default();
        let needs_none =
            ["RpcRequestId", "RpcError", "RpcErrorData", "SandboxOrNull"].contains(&name.as_str());
        assert!(!text.is_empty() || needs_none, "`{name}` has no description");
    }
}

#[test]
fn every_reference_resolves_to_a_definition() {
    let schema = remex_proto::schema::schema();
    objects(&schema, "", &mut |at, members| {
        let Some(reference) = members.get("$ref").and_then(Value::as_str) else { return };
        let target = reference.strip_prefix('#').and_then(|pointer| schema.pointer(pointer));
        assert!(target.is_some(), "{at}: {reference}");
    });
}

#[test]
fn messages_are_distinguished_by_their_method() {
    let schema = remex_proto::schema::schema();
    let names =
        |table: &[(&str, _)]| table.iter().map(|(name, _)| (*name).to_owned()).collect::<BTreeSet<_>>();
    let methods = METHODS.iter().map(|method| method.name.to_owned()).collect();
    for (choice, expected) in [
        ("ClientRequest", methods),
        ("ServerRequest", names(SERVER_METHODS)),
        ("ClientNotification", names(CLIENT_NOTES)),
        ("ServerNotification", names(SERVER_NOTES)),
    ] {
        let choice = &schema["$defs"][choice];
        assert_eq!(choice["discriminator"]["propertyName"], "method");
        let mapping = choice["discriminator"]["mapping"].as_object().unwrap();
        assert_eq!(mapping.keys().cloned().collect::<BTreeSet<_>>(), expected);
        for (method, reference) in mapping {
            let message = schema.pointer(&reference.as_str().unwrap()[1..]).unwrap();
            assert_eq!(message["properties"]["method"]["const"], json!(method));
            assert!(choice["oneOf"].as_array().unwrap().contains(&json!({ "$ref": reference })));
        }
    }
}

#[test]
fn the_schema_describes_whole_messages() {
    let schema = remex_proto::schema::schema();
    let validator = Validator::new(&schema);
    let error = json!({"id": -1, "error": {"code": -32600, "message": "no", "data": {"kind": "malformed"}}});
    let later = json!({"id": 1, "error": {"code": 7, "message": "no", "data": {"kind": "fromTheFuture"}}});
    for right in [
        json!({"id": 1, "method": "process/read", "params": {"processId": "p", "fromTheFuture": 1}}),
        json!({"id": "a", "method": "session/list"}),
        json!({"method": "initialized"}),
        json!({"id": 1, "result": {}}),
        error,
        later,
        json!({"method": "process/output",
            "params": {"processId": "p", "seq": 1, "stream": "fromTheFuture", "chunk": "aGkK"}}),
        json!({"method": "process/sneezed", "params": 7}),
        json!({"id": "remex-1", "method": "network/policyRequest", "params": {"processId": "p",
            "request": {"protocol": "http", "host": "a.example", "port": 80}}}),
    ] {
        validator.check(&right).unwrap_or_else(|why| panic!("{right}: {why}"));
    }
    for wrong in [
        json!([]),
        json!({"id": 1}),
        json!({"id": 1.5, "result": {}}),
        json!({"id": 1, "error": {"code": "no"}}),
        json!({"id": 1, "method": "process/read"}),
        json!({"id": 1, "method": "process/signal", "params": {"processId": "p", "signal": "SIGFUTURE"}}),
        json!({"method": "process/output", "params": {"processId": "p"}}),
        json!({"id": "remex-1", "method": "network/policyRequest", "params": {"processId": "p"}}),
    ] {
        assert!(validator.check(&wrong).is_err(), "{wrong}");
    }
}

#[test]
fn words_of_a_server_are_open_and_words_of_a_client_are_not() {
    let schema = remex_proto::schema::schema();
    let validator = Validator::new(&schema);
    let open = [
        "EnvironmentLimitMethod",
        "EnvironmentProcessConfinement",
        "EnvironmentStatus",
        "FsChangeKind",
        "FsMetadataKind",
        "FsWalkKind",
        "InitializeCapability",
        "NetworkProtocol",
        "ProcessExitCause",
        "ProcessSandboxType",
        "ProcessState",
        "ProcessStream",
        "ProcessWaitReason",
        "ProcessWriteStatus",
        "RpcErrorKind",
    ];
    for name in open {
        let definition = &schema["$defs"][name];
        let text = definition["description"].as_str().unwrap();
        assert!(text.ends_with("Clients must accept words that are not listed."), "{name}: {text}");
        assert!(
            !definition.to_string().contains("\"unknown\""),
            "{name} lists what is no word of the protocol"
        );
        validator.check_as(name, &json!("fromTheFuture")).unwrap();
        assert!(validator.check_as(name, &json!(7)).is_err(), "{name}");
    }
    for name in ["FsOpenMode", "HttpRedirectPolicy", "ProcessOverflow", "ProcessScope", "ProcessSignalName"] {
        assert!(validator.check_as(name, &json!("fromTheFuture")).is_err(), "{name}");
    }
    let kinds = schema["$defs"]["RpcErrorKind"]["anyOf"][0]["enum"].as_array().unwrap();
    assert_eq!(kinds.len(), ErrorKind::ALL.len());
}
