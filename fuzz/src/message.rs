//! The envelope of a message, and what is asked and told in it.

use remex_proto::{
    Call, ClientNote, Malformed, Message, MessageLimits, RequestId, RpcError, ServerNote, TraceCarrier,
    call::{ParseError, Request},
    discovery, environment, fs, http, initialize,
    message::{self, Source, write_error},
    process, session,
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};

/// The envelope agrees with serde_json, its limits are exact, and whatever is wrong can be answered.
pub fn message(data: &[u8]) {
    let parsed = Message::parse(data, MessageLimits::WIRE);
    let value = serde_json::from_slice::<Value>(data);
    if let Ok(value) = &value {
        check_plain_spelling(value, &parsed);
    }
    match (parsed, value) {
        (Ok(message), Ok(value)) => {
            check_parts(&message, &value);
            check_limits(data, &value);
            check_content(&message);
        }
        (Ok(_), Err(error)) => panic!("accepted, but serde_json says {error}"),
        (Err(malformed), value) => {
            let is_json = value.is_ok();
            let is_object = value.is_ok_and(|value| value.is_object());
            match malformed {
                Malformed::NotUtf8 { .. } | Malformed::Syntax { .. } => assert!(!is_json, "{malformed}"),
                Malformed::NotAnObject => assert!(!is_object, "{malformed}"),
                _ => {}
            }
            for source in [Source::WebSocket, Source::Stdio, Source::Unix] {
                check_answer(&RequestId::MALFORMED, &malformed.clone().into_error(source));
            }
        }
    }
}

/// Checks that a message means the same however it is spelled.
fn check_plain_spelling(value: &Value, parsed: &Result<Message<'_>, Malformed>) {
    let plain = value.to_string();
    let again = Message::parse(plain.as_bytes(), MessageLimits::WIRE);
    match (parsed, again) {
        (Ok(parsed), Ok(again)) => assert_eq!(summary(parsed), summary(&again)),
        // The tree keeps one of two equal keys and rounds what does not fit 64 bits.
        (Err(Malformed::DuplicateKey { .. } | Malformed::NumberOutOfRange { .. }), _) => {}
        // To the tree `-0` is a fraction.
        (_, Err(Malformed::Id)) if value["id"].as_f64() == Some(0.0) => {}
        (Err(parsed), Err(again)) => assert_eq!(*parsed, again),
        (parsed, again) => panic!("{parsed:?}, but in plain spelling {again:?}"),
    }
}

/// Returns what does not depend on the spelling.
fn summary<'a>(message: &'a Message<'_>) -> (&'static str, Option<&'a RequestId>, Option<&'a str>) {
    match message {
        Message::Request { id, method, .. } => ("request", Some(id), Some(method)),
        Message::Notification { method, .. } => ("notification", None, Some(method)),
        Message::Response { id, outcome: Ok(_) } => ("result", Some(id), None),
        Message::Response { id, outcome: Err(_) } => ("error", Some(id), None),
    }
}

/// Checks that every part is the member of that name.
fn check_parts(message: &Message<'_>, value: &Value) {
    let (id, method) = match message {
        Message::Request { id, method, .. } => (Some(id), Some(&**method)),
        Message::Notification { method, .. } => (None, Some(&**method)),
        Message::Response { id, .. } => (Some(id), None),
    };
    assert_eq!(method, value.get("method").map(|method| method.as_str().unwrap()));
    match id {
        Some(RequestId::Integer(0)) => assert_eq!(value["id"].as_f64(), Some(0.0)),
        Some(id) => assert_eq!(json!(id), value["id"]),
        None => assert_eq!(value.get("id"), None),
    }
    let (name, part) = match *message {
        Message::Request { params, .. } | Message::Notification { params, .. } => ("params", params),
        Message::Response { outcome: Ok(result), .. } => ("result", Some(result)),
        Message::Response { outcome: Err(error), .. } => ("error", Some(error)),
    };
    let part = part.map(|part| serde_json::from_str::<Value>(part).unwrap());
    assert_eq!(part.as_ref(), value.get(name));
}

/// Checks that a message passes the limits it just reaches and no tighter ones.
fn check_limits(data: &[u8], value: &Value) {
    let (values, depth) = size(value);
    let exact = MessageLimits { max_values: values, max_depth: depth, ..MessageLimits::WIRE };
    let outcome = |limits| Message::parse(data, limits).map(|_| ());
    assert_eq!(outcome(exact), Ok(()));
    // The message itself is a value and a level, and is never refused for that.
    if values > 1 {
        let limit = values - 1;
        let narrow = MessageLimits { max_values: limit, ..exact };
        assert_eq!(outcome(narrow), Err(Malformed::TooManyValues { limit }));
    }
    if depth > 1 {
        let limit = depth - 1;
        let shallow = MessageLimits { max_depth: limit, ..exact };
        assert_eq!(outcome(shallow), Err(Malformed::TooDeep { limit }));
    }
}

/// Returns how many values there are, and how deep they nest.
fn size(value: &Value) -> (usize, u8) {
    let sum = |(values, depth): (usize, u8), part: &Value| {
        let (part_values, part_depth) = size(part);
        (values + part_values, depth.max(part_depth + 1))
    };
    match value {
        Value::Array(items) => items.iter().fold((1, 1), sum),
        Value::Object(members) => members.values().fold((1, 1), sum),
        _ => (1, 0),
    }
}

/// A context that was understood means the same when it is passed on.
fn check_trace(carrier: Option<&TraceCarrier>) {
    if let Some(Ok(Some(context))) = carrier.map(TraceCarrier::context) {
        let mut request = br#"{"id":1,"method":"m"}"#.to_vec();
        message::write_trace(&mut request, &context);
        match Message::parse(&request, MessageLimits::WIRE) {
            Ok(Message::Request { trace: Some(trace), .. }) => {
                let passed_on = trace.context().map(|context| context.map(|context| context.carrier()));
                assert_eq!(passed_on, Ok(Some(context.carrier())));
            }
            other => panic!("a request with a trace became {other:?}"),
        }
    }
}

fn check_content(message: &Message<'_>) {
    match message {
        Message::Request { id, method, params, trace } => {
            check_trace(trace.as_ref());
            match Call::parse(method, *params) {
                Ok(call) => check_call(method, &call),
                Err(error) => check_refusal(id, error),
            }
        }
        Message::Notification { method, params } => {
            for error in [ClientNote::parse(method, *params).err(), ServerNote::parse(method, *params).err()]
            {
                error.into_iter().for_each(|error| check_refusal(&RequestId::MALFORMED, error));
            }
        }
        Message::Response { outcome: Ok(result), .. } => check_results(result),
        Message::Response { outcome: Err(error), .. } => check_stable::<RpcError>(error),
    }
}

fn check_call(method: &str, call: &Call) {
    assert_eq!(call.method(), method);
    match call {
        Call::Initialize(params) => check_rewriting(params),
        Call::ProcessStart(params) => check_rewriting(params),
        Call::ProcessRead(params) => check_rewriting(params),
        Call::ProcessWrite(params) => check_rewriting(params),
        Call::ProcessSignal(params) => check_rewriting(params),
        Call::ProcessTerminate(params) => check_rewriting(params),
        Call::ProcessRestart(params) => check_rewriting(params),
        Call::ProcessCloseStdin(params) => check_rewriting(params),
        Call::ProcessRelease(params) => check_rewriting(params),
        Call::ProcessForget(params) => check_rewriting(params),
        Call::ProcessResize(params) => check_rewriting(params),
        Call::ProcessWait(params) => check_rewriting(params),
        Call::ProcessSnapshot(params) => check_rewriting(params),
        Call::ProcessList(params) => check_rewriting(params),
        Call::ProcessSeek(params) => check_rewriting(params),
        Call::ProcessCollect(params) => check_rewriting(params),
        Call::SessionList(params) => check_rewriting(params),
        Call::SessionEnd(params) => check_rewriting(params),
        Call::SessionObserve(params) => check_rewriting(params),
        Call::SessionUnobserve(params) => check_rewriting(params),
        Call::FsReadFile(params) => check_rewriting(params),
        Call::FsWriteFile(params) => check_rewriting(params),
        Call::FsCreateDirectory(params) => check_rewriting(params),
        Call::FsGetMetadata(params) => check_rewriting(params),
        Call::FsCanonicalize(params) => check_rewriting(params),
        Call::FsReadDirectory(params) => check_rewriting(params),
        Call::FsWalk(params) => check_rewriting(params),
        Call::FsRemove(params) => check_rewriting(params),
        Call::FsCopy(params) => check_rewriting(params),
        Call::FsOpen(params) => check_rewriting(params),
        Call::FsReadBlock(params) => check_rewriting(params),
        Call::FsWriteBlock(params) => check_rewriting(params),
        Call::FsClose(params) => check_rewriting(params),
        Call::FsWatchMissing(params) => check_rewriting(params),
        Call::FsRename(params) => check_rewriting(params),
        Call::FsSetPermissions(params) => check_rewriting(params),
        Call::FsSetTimes(params) => check_rewriting(params),
        Call::FsSymlink(params) => check_rewriting(params),
        Call::FsReadLink(params) => check_rewriting(params),
        Call::FsHash(params) => check_rewriting(params),
        Call::FsSearch(params) => check_rewriting(params),
        Call::FsWatch(params) => check_rewriting(params),
        Call::FsUnwatch(params) => check_rewriting(params),
        Call::HttpRequest(params) => check_rewriting(params),
        Call::EnvironmentInfo(params) => check_rewriting(params),
        Call::EnvironmentStatus(params) => check_rewriting(params),
        Call::EnvironmentConfigRead(params) => check_rewriting(params),
        Call::CapabilityRootsDiscover(params) => check_rewriting(params),
        Call::CapabilitiesDiscover(params) => check_rewriting(params),
    }
}

/// Reads a result as the answer to every method, because a client believes its own pending table.
fn check_results(result: &str) {
    check_stable::<<initialize::Initialize as Request>::Reply>(result);
    check_stable::<<process::Start as Request>::Reply>(result);
    check_stable::<<process::Read as Request>::Reply>(result);
    check_stable::<<process::Write as Request>::Reply>(result);
    check_stable::<<process::Terminate as Request>::Reply>(result);
    check_stable::<<process::Wait as Request>::Reply>(result);
    check_stable::<<process::Snapshot as Request>::Reply>(result);
    check_stable::<<process::List as Request>::Reply>(result);
    check_stable::<<session::List as Request>::Reply>(result);
    check_stable::<<fs::ReadFile as Request>::Reply>(result);
    check_stable::<<fs::WriteFile as Request>::Reply>(result);
    check_stable::<<fs::GetMetadata as Request>::Reply>(result);
    check_stable::<<fs::Canonicalize as Request>::Reply>(result);
    check_stable::<<fs::ReadDirectory as Request>::Reply>(result);
    check_stable::<<fs::Walk as Request>::Reply>(result);
    check_stable::<<fs::Open as Request>::Reply>(result);
    check_stable::<<fs::ReadBlock as Request>::Reply>(result);
    check_stable::<<fs::WatchMissing as Request>::Reply>(result);
    check_stable::<<fs::ReadLink as Request>::Reply>(result);
    check_stable::<<fs::HashFile as Request>::Reply>(result);
    check_stable::<<fs::SearchFiles as Request>::Reply>(result);
    check_stable::<<http::HttpRequest as Request>::Reply>(result);
    check_stable::<<environment::GetInfo as Request>::Reply>(result);
    check_stable::<<environment::GetStatus as Request>::Reply>(result);
    check_stable::<<environment::ReadConfig as Request>::Reply>(result);
    check_stable::<<discovery::DiscoverRoots as Request>::Reply>(result);
    check_stable::<<discovery::Discover as Request>::Reply>(result);
}

fn check_stable<T: Serialize + DeserializeOwned>(text: &str) {
    if let Ok(value) = serde_json::from_str::<T>(text) {
        check_rewriting(&value);
    }
}

/// Checks that what is written can be read, and is written the same from then on.
fn check_rewriting<T: Serialize + DeserializeOwned>(value: &T) {
    // A plain path is taken verbatim and its URI is resolved, so the first text may differ from the others.
    let rewrite = |text: &str| serde_json::to_string(&serde_json::from_str::<T>(text).unwrap()).unwrap();
    let once = rewrite(&serde_json::to_string(value).unwrap());
    assert_eq!(rewrite(&once), once);
}

fn check_refusal(id: &RequestId, error: ParseError) {
    check_answer(id, &error.into());
}

/// Checks that the peer can read an error that it is answered with.
fn check_answer(id: &RequestId, error: &RpcError) {
    let mut answer = Vec::new();
    write_error(&mut answer, id, error);
    let Ok(Message::Response { id: read_id, outcome: Err(text) }) =
        Message::parse(&answer, MessageLimits::WIRE)
    else {
        panic!("unreadable answer {}", answer.escape_ascii());
    };
    assert_eq!((&read_id, &serde_json::from_str::<RpcError>(text).unwrap()), (id, error));
}
