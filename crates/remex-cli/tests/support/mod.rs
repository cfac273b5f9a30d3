//! The harness of the black-box tests: the real program, and clients that we can make misbehave.
//!
//! Nothing here uses the crates of the project: what is said on the wire is written down once more, by hand.
//! Start at [`Server`], then [`Client`].

#![allow(dead_code, reason = "each test crate uses its own part of the harness")]

mod binary;
mod client;
mod codex;
mod disconnecting_proxy;
mod guarded;
mod http;
mod hung;
mod inbox;
mod install;
mod limits;
mod loopback;
mod numbers;
mod patience;
mod place;
mod reader;
mod server;
#[path = "../../../remex-process/tests/harness/skip.rs"]
mod skip;
mod tls;
mod web;
mod wire;

use std::time::Duration;

use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde_json::{Value, json};

#[allow(unused_imports, reason = "each test crate uses its own part of the harness")]
pub(crate) use self::{
    client::{Client, Output},
    codex::program as codex_program,
    disconnecting_proxy::DisconnectingProxy,
    guarded::{
        AuditLog, Guarded, SECRET, base64url, jwt, sign, token_of, unix_now, unsigned, upgrade_status,
        write_private,
    },
    http::{Answer, exchange, request, upgrade},
    hung::{HungFs, Interrupts},
    inbox::{End, Seen},
    install::install,
    limits::Limits,
    loopback::{ATTACKER, answer_so_far, connect_from, raise_file_limit, status_from, status_line},
    numbers::{check_numbers, numbers},
    patience::{InTime, Patient, default_signals, finished_within},
    place::{Place, uri},
    reader::Reader,
    server::{Finished, Server, Watched, finish, program, without_namespaces},
    skip::{Need, has, skip},
    tls::{Authority, Pki, tls_status, tls_stream},
    web::{Web, WebRequest, read_web_request, web_answer},
};

/// How long anything may take before a test fails; far longer than anything takes.
pub(crate) const PATIENCE: Duration = Duration::from_secs(180);

/// Returns the parameters of a `process/start` on pipes, in `/`, with nothing but a `PATH`.
pub(crate) fn start_params(process_id: &str, argv: &[&str]) -> Value {
    json!({
        "processId": process_id,
        "argv": argv,
        "cwd": "file:///",
        "env": {"PATH": "/usr/local/bin:/usr/bin:/bin"},
        "tty": false,
    })
}

/// Returns `base` with the members of `more` put over its own.
pub(crate) fn with(mut base: Value, more: Value) -> Value {
    let (Value::Object(members), Value::Object(more)) = (&mut base, more) else {
        panic!("only objects have members");
    };
    members.extend(more);
    base
}

/// Encodes bytes as the wire wants them.
pub(crate) fn encode(bytes: impl AsRef<[u8]>) -> String {
    STANDARD.encode(bytes)
}

/// Decodes bytes of the wire.
pub(crate) fn decode(text: &Value) -> Vec<u8> {
    let text = text.as_str().unwrap_or_else(|| panic!("bytes travel as a string, not as {text}"));
    STANDARD.decode(text).unwrap_or_else(|error| panic!("`{text}` is not base64: {error}"))
}
