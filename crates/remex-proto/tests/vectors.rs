//! The vectors in `spec/vectors`, which other languages use too.

#![allow(clippy::unwrap_used, reason = "in a test it is the assertion")]

use std::{fs, path::Path};

use bytes::Bytes;
use remex_proto::{
    Call, HostPath, Malformed, Message, MessageLimits, RpcError, ServerNote, attachment,
    binary::{self, Binary},
    fs as wire_fs,
    message::OutputFrame,
    process,
};
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::{Value, json};

fn vectors<T: DeserializeOwned>(name: &str) -> Vec<T> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../spec/vectors").join(name);
    let text = fs::read_to_string(path).expect("the vectors are part of the repository");
    text.lines()
        .map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{line}: {error}")))
        .collect()
}

#[derive(Deserialize)]
struct Envelope {
    text: String,
    kind: String,
    #[serde(default)]
    id: Value,
    method: Option<String>,
    reason: Option<String>,
}

#[test]
fn every_message_matches_its_vector() {
    for Envelope { text, kind, id, method, reason } in vectors("envelope.jsonl") {
        let (read_kind, read_id, read_method) = match Message::parse(text.as_bytes(), MessageLimits::WIRE) {
            Ok(Message::Request { id, method, .. }) => ("request", json!(id), Some(method.into_owned())),
            Ok(Message::Notification { method, .. }) => {
                ("notification", Value::Null, Some(method.into_owned()))
            }
            Ok(Message::Response { id, .. }) => ("response", json!(id), None),
            Err(malformed) => {
                assert!(has_reason(&malformed, reason.as_deref()), "{text}: {malformed}");
                ("malformed", Value::Null, None)
            }
        };
        assert_eq!((read_kind, read_id, read_method), (kind.as_str(), id, method), "{text}");
    }
}

fn has_reason(malformed: &Malformed, reason: Option<&str>) -> bool {
    reason.is_some_and(|reason| malformed.to_string().contains(reason))
}

#[derive(Deserialize)]
struct Request {
    method: String,
    params: Value,
    code: Option<i64>,
    #[serde(default)]
    message: String,
}

#[test]
fn every_call_matches_its_vector() {
    for Request { method, params, code, message } in vectors("calls.jsonl") {
        let outcome = Call::parse(&method, Some(&params.to_string())).map_err(RpcError::from);
        match (outcome, code) {
            (Ok(call), None) => assert_eq!(call.method(), method),
            (Err(error), Some(code)) => {
                assert_eq!(error.code, code, "{method} {params}");
                assert!(error.message.contains(&message), "{method} {params}: {error}");
            }
            (outcome, _) => panic!("{method} {params}: {outcome:?}"),
        }
    }
}

#[derive(Deserialize)]
struct Spelling {
    text: String,
    native: Option<String>,
    uri: Option<String>,
    error: Option<String>,
    #[serde(default)]
    foreign: bool,
}

#[test]
fn every_path_matches_its_vector() {
    for Spelling { text, native, uri, error, foreign } in vectors("paths.jsonl") {
        let path = HostPath::parse(&text);
        assert!(path.is_ok() || !foreign, "{text}");
        let read = path.and_then(|path| Ok((path.native()?.to_owned(), path.to_uri())));
        match (read, error) {
            (Ok((read_native, read_uri)), None) => {
                assert_eq!((read_native.to_str(), Some(read_uri)), (native.as_deref(), uri), "{text}");
            }
            (Err(read), Some(error)) => assert!(read.to_string().starts_with(&error), "{text}: {read}"),
            (read, _) => panic!("{text}: {read:?}"),
        }
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Output {
    process_id: String,
    session_id: Option<String>,
    incarnation: Option<u64>,
    seq: u64,
    stream: process::Stream,
    hex: String,
    text: String,
}

fn bytes_of(hex: &str) -> Vec<u8> {
    let digits: Vec<_> = hex.chars().map(|digit| digit.to_digit(16).unwrap()).collect();
    digits.chunks(2).map(|pair| u8::try_from(pair[0] << 4 | pair[1]).unwrap()).collect()
}

#[test]
fn every_output_notification_matches_its_vector() {
    for Output { process_id, session_id, incarnation, seq, stream, hex, text } in vectors("output.jsonl") {
        let bytes = bytes_of(&hex);
        let (process, session) = (json!(process_id).to_string(), session_id.map(|id| json!(id).to_string()));
        let frame = OutputFrame {
            process_id: &process,
            session_id: session.as_deref(),
            incarnation,
            seq,
            stream,
            bytes: &bytes,
        };
        let mut out = Vec::new();
        frame.write(&mut out);
        assert_eq!(String::from_utf8(out).unwrap(), text);
    }
}

#[derive(Deserialize)]
struct BinaryVector {
    about: String,
    hex: String,
    json: Option<Value>,
    #[serde(default)]
    error: String,
}

/// Decodes what a message says, as a client or a server would.
fn decoded(json: &[u8]) -> Result<Value, String> {
    let reason = |error: &dyn std::fmt::Display| error.to_string();
    match Message::parse(json, MessageLimits::WIRE).map_err(|error| reason(&error))? {
        Message::Request { method, params, .. } => {
            let call = Call::parse(&method, params).map_err(|error| RpcError::from(error).to_string())?;
            let mut body = b"{\"id\":0".to_vec();
            call.write_body(&mut body);
            Ok(serde_json::from_slice(&body).unwrap())
        }
        Message::Notification { method, params } => {
            let note =
                ServerNote::parse(&method, params).map_err(|error| RpcError::from(error).to_string())?;
            Ok(json!(format!("{note:?}")))
        }
        Message::Response { outcome, .. } => {
            let result = outcome.unwrap();
            let shape: Value = serde_json::from_str(result).unwrap();
            if shape.get("stdout").is_some() {
                reply::<process::SnapshotReply>(result)
            } else if shape.get("dataBase64").is_some() {
                reply::<wire_fs::ReadFileReply>(result)
            } else if shape.get("chunk").is_some() {
                reply::<wire_fs::Block>(result)
            } else {
                Ok(shape)
            }
        }
    }
}

fn reply<R: DeserializeOwned + serde::Serialize>(result: &str) -> Result<Value, String> {
    let reply: R = serde_json::from_str(result).map_err(|error| error.to_string())?;
    Ok(serde_json::to_value(reply).unwrap())
}

#[test]
fn every_binary_message_matches_its_vector() {
    for BinaryVector { about, hex, json, error } in vectors("binary.jsonl") {
        let message = Bytes::from(bytes_of(&hex));
        assert!(binary::is_binary(&message), "{about}");
        let read =
            Binary::parse(&message).map_err(|error| error.to_string()).and_then(|parsed| match parsed {
                Binary::Output(output) => Ok(json!(format!("{:?}", ServerNote::from(output)))),
                Binary::Message { json, attached } => attachment::with(attached, || decoded(&json)),
            });
        match (read, json) {
            (Ok(read), Some(json)) => {
                let expected = decoded(json.to_string().as_bytes()).unwrap();
                assert_eq!(read, expected, "{about}");
            }
            (Err(read), None) => assert!(!error.is_empty() && read.contains(&error), "{about}: {read}"),
            (read, _) => panic!("{about}: {read:?}"),
        }
    }
}
