//! Every JSON block of `PROTOCOL.md` and `spec/examples.md` is what the types and the schema say.

#![allow(clippy::unwrap_used, reason = "in a test it is the assertion")]

mod json_schema;

use std::{collections::BTreeSet, fs, path::Path};

use json_schema::Validator;
use remex_proto::{
    Call, ClientNote, Message, MessageLimits, RequestId, RpcError, ServerNote,
    call::{CLIENT_NOTES, METHODS, Request, SERVER_METHODS, SERVER_NOTES},
    discovery, environment, fs as files, http, initialize, network, process, session,
};
use serde_json::Value;

/// Decodes a reply as the type of its method.
type Decode = fn(&str) -> Result<(), serde_json::Error>;

fn row<R: Request>() -> (&'static str, Decode) {
    (R::METHOD, |result| serde_json::from_str::<R::Reply>(result).map(drop))
}

fn replies() -> Vec<(&'static str, Decode)> {
    vec![
        row::<initialize::Initialize>(),
        row::<process::Start>(),
        row::<process::Read>(),
        row::<process::Write>(),
        row::<process::Signal>(),
        row::<process::Terminate>(),
        row::<process::StartAgain>(),
        row::<process::CloseStdin>(),
        row::<process::Release>(),
        row::<process::Forget>(),
        row::<process::Resize>(),
        row::<process::Wait>(),
        row::<process::Snapshot>(),
        row::<process::List>(),
        row::<process::Seek>(),
        row::<process::Collect>(),
        row::<session::List>(),
        row::<session::End>(),
        row::<session::Observe>(),
        row::<session::Unobserve>(),
        row::<files::ReadFile>(),
        row::<files::WriteFile>(),
        row::<files::CreateDirectory>(),
        row::<files::GetMetadata>(),
        row::<files::Canonicalize>(),
        row::<files::ReadDirectory>(),
        row::<files::Walk>(),
        row::<files::Remove>(),
        row::<files::Copy>(),
        row::<files::Open>(),
        row::<files::ReadBlock>(),
        row::<files::WriteBlock>(),
        row::<files::Close>(),
        row::<files::WatchMissing>(),
        row::<files::Rename>(),
        row::<files::SetPermissions>(),
        row::<files::SetTimes>(),
        row::<files::Symlink>(),
        row::<files::ReadLink>(),
        row::<files::HashFile>(),
        row::<files::SearchFiles>(),
        row::<files::Watch>(),
        row::<files::Unwatch>(),
        row::<http::HttpRequest>(),
        row::<environment::GetInfo>(),
        row::<environment::GetStatus>(),
        row::<environment::ReadConfig>(),
        row::<discovery::DiscoverRoots>(),
        row::<discovery::Discover>(),
        row::<network::PolicyRequest>(),
    ]
}

/// The messages of one block, with the line of the document at which each stands.
struct Block {
    lines: Vec<(usize, String)>,
}

/// Returns the JSON blocks of a document, except those that are only parts of messages.
fn blocks(document: &str) -> Vec<Block> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(document);
    let text = fs::read_to_string(path).unwrap();
    let (mut blocks, mut open) = (Vec::new(), None);
    for (line, number) in text.lines().zip(1..) {
        match (&mut open, line.strip_prefix("```")) {
            (None, Some(info)) => open = Some((info.to_owned(), Vec::new())),
            (Some((info, lines)), Some(_)) => {
                if info.starts_with("json") && info != "json fragment" {
                    blocks.push(Block { lines: std::mem::take(lines) });
                }
                open = None;
            }
            (Some((_, lines)), None) if !line.is_empty() => lines.push((number, line.to_owned())),
            _ => {}
        }
    }
    assert!(open.is_none(), "{document}: a block does not end");
    blocks
}

/// What the examples of a document show.
#[derive(Default)]
struct Shown {
    requests: BTreeSet<String>,
    results: BTreeSet<String>,
    notifications: BTreeSet<String>,
}

fn check(document: &str) -> Shown {
    let schema = remex_proto::schema::schema();
    let validator = Validator::new(&schema);
    let mut shown = Shown::default();
    for Block { lines } in blocks(document) {
        let mut asked: Vec<(RequestId, String)> = Vec::new();
        for (number, text) in lines {
            let at = format!("{document}:{number}");
            let json: Value = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{at}: {error}"));
            validator.check(&json).unwrap_or_else(|why| panic!("{at}: {why}"));
            let message = Message::parse(text.as_bytes(), MessageLimits::WIRE);
            match message.unwrap_or_else(|error| panic!("{at}: {error}")) {
                Message::Request { id, method, params, .. } => {
                    if method == network::PolicyRequest::METHOD {
                        let params = params.unwrap_or_default();
                        serde_json::from_str::<network::PolicyRequest>(params)
                            .unwrap_or_else(|error| panic!("{at}: {error}"));
                    } else {
                        Call::parse(&method, params).unwrap_or_else(|error| panic!("{at}: {error}"));
                    }
                    shown.requests.insert(method.clone().into_owned());
                    asked.push((id, method.into_owned()));
                }
                Message::Notification { method, params } => {
                    let is_decoded = ServerNote::parse(&method, params).map(drop);
                    let is_decoded = is_decoded.or_else(|_| ClientNote::parse(&method, params).map(drop));
                    is_decoded.unwrap_or_else(|error| panic!("{at}: {error}"));
                    shown.notifications.insert(method.into_owned());
                }
                Message::Response { id, outcome: Ok(result) } => {
                    let request = asked.iter().rev().find(|(asked, _)| *asked == id);
                    let (_, method) =
                        request.unwrap_or_else(|| panic!("{at}: the block has no request {id}"));
                    let (_, decode) = replies().into_iter().find(|(name, _)| name == method).unwrap();
                    decode(result).unwrap_or_else(|error| panic!("{at}: {error}"));
                    let tables = ["methods", "serverMethods"].map(|table| &schema[table][method]);
                    let name = tables.iter().find_map(|row| row["response"]["$ref"].as_str()).unwrap();
                    let name = name.rsplit('/').next().unwrap();
                    validator.check_as(name, &json).unwrap_or_else(|why| panic!("{at}: {why}"));
                    shown.results.insert(method.clone());
                }
                Message::Response { outcome: Err(error), .. } => {
                    let error: RpcError = serde_json::from_str(error).unwrap();
                    assert_ne!(error.kind, remex_proto::ErrorKind::Other, "{at}: no kind");
                }
            }
        }
    }
    shown
}

#[test]
fn the_messages_in_the_description_of_the_protocol_are_valid() {
    assert!(check("PROTOCOL.md").requests.len() > 10, "the blocks of the description are found");
}

#[test]
fn every_method_and_notification_has_a_valid_example() {
    let shown = check("spec/examples.md");
    let methods = METHODS.iter().map(|method| method.name);
    let methods: BTreeSet<_> =
        methods.chain(SERVER_METHODS.iter().map(|(name, _)| *name)).map(str::to_owned).collect();
    assert_eq!(shown.requests, methods);
    assert_eq!(shown.results, methods);
    let notifications = CLIENT_NOTES.iter().chain(SERVER_NOTES).map(|(name, _)| (*name).to_owned());
    assert_eq!(shown.notifications, notifications.collect());
}

#[test]
fn every_method_is_in_the_tables_of_the_description() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../PROTOCOL.md");
    let text = fs::read_to_string(path).unwrap();
    let (_, all) = text.split_once("\n## 16. All methods\n").unwrap();
    let names = METHODS.iter().map(|method| method.name);
    for name in
        names.chain(CLIENT_NOTES.iter().chain(SERVER_NOTES).chain(SERVER_METHODS).map(|(name, _)| *name))
    {
        assert!(all.contains(&format!("`{name}`")), "section 16 lacks `{name}`");
    }
}
