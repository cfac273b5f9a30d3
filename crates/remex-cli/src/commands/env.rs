//! `remex env`: manages environments.

mod edit;
mod test;

use std::path::Path;

use remex::environments::Source;
use remex_base::clock::millis;
use remex_client::{
    Target,
    environment::{Definition, Id, LocalInclusion},
    tls::TlsOptions,
};
use serde::Serialize;
use serde_json::Value;

use super::Outcome;
use crate::{
    args::env::{Command, Flags, List},
    remote::{endpoint, reconnect},
    render::{failure::Failure, print},
};

/// Runs the commands that only edit the environments file.
pub(crate) fn run_on_file(flags: &Flags) -> Outcome {
    match &flags.command {
        Command::List(flags) => list(flags),
        Command::Add(flags) => edit::add(flags),
        Command::Set(flags) => edit::set(flags),
        Command::Default(flags) => edit::default(flags),
        Command::Remove(flags) => edit::remove(flags),
        Command::Test(_) => Ok(0),
    }
}

pub(crate) async fn run(flags: &Flags) -> Outcome {
    match &flags.command {
        Command::Test(flags) => test::run(flags).await,
        _ => run_on_file(flags),
    }
}

#[derive(Serialize)]
struct Listing {
    environments: Vec<Entry>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Entry {
    id: String,
    default: bool,
    kind: &'static str,
    #[serde(rename = "where")]
    address: String,
    /// Whether a token is presented.
    token: bool,
    /// What a `wss://` address needs besides; null for other addresses.
    tls: Option<Tls>,
    connect_timeout_ms: Option<u64>,
    /// How long to try to reconnect, in milliseconds or `"forever"`; null unless set.
    reconnect_timeout_ms: Value,
    /// The file or variable that defines it; null for `local`.
    source: Option<String>,
}

/// How a server is recognized, and which certificate is presented to it.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Tls {
    /// Null for the CAs that this host trusts, or a pin alone.
    ca: Option<String>,
    pin: Option<String>,
    client_cert: Option<String>,
    client_key: Option<String>,
}

impl Tls {
    fn of(options: &TlsOptions) -> Self {
        let shown = |path: &Path| path.display().to_string();
        let identity = options.identity.as_ref();
        Self {
            ca: options.ca.as_deref().map(shown),
            pin: options.pin.map(|pin| pin.to_string()),
            client_cert: identity.map(|identity| shown(&identity.certificate)),
            client_key: identity.map(|identity| shown(&identity.key)),
        }
    }
}

impl Entry {
    fn local() -> Self {
        Self {
            id: Id::local().to_string(),
            default: false,
            kind: "local",
            address: "this machine".to_owned(),
            token: false,
            tls: None,
            connect_timeout_ms: None,
            reconnect_timeout_ms: Value::Null,
            source: None,
        }
    }

    fn of(definition: &Definition, source: &Source) -> Self {
        let (kind, token) = match &definition.target {
            Target::WebSocket(socket) => ("webSocket", socket.bearer.is_some()),
            Target::Unix(_) => ("unix", false),
            Target::Program(_) => ("program", false),
            _ => ("custom", false),
        };
        let tls = match &definition.target {
            Target::WebSocket(socket) if socket.url.starts_with("wss://") => Some(Tls::of(&socket.tls)),
            _ => None,
        };
        Self {
            id: definition.id.to_string(),
            default: false,
            kind,
            address: bare(&definition.target),
            token,
            tls,
            connect_timeout_ms: definition.connect_timeout.map(millis),
            reconnect_timeout_ms: match definition.reconnect_timeout {
                Some(reconnect::FOREVER) => "forever".into(),
                time => time.map(millis).into(),
            },
            source: match source {
                Source::File(path) => Some(path.display().to_string()),
                Source::Variable(name) => Some((*name).to_owned()),
                Source::BuiltIn => None,
            },
        }
    }
}

/// Formats a target without the quotes around a program.
pub(super) fn bare(target: &Target) -> String {
    match target {
        Target::Program(program) => {
            let words: Vec<_> = [&program.program].into_iter().chain(&program.args).cloned().collect();
            crate::render::text::line(&words)
        }
        other => other.to_string(),
    }
}

fn list(flags: &List) -> Outcome {
    let entries = entries()?;
    if flags.format.json {
        print::json(&Listing { environments: entries })?;
        return Ok(0);
    }
    let rows: Vec<_> = entries
        .into_iter()
        .map(|entry| {
            let default = if entry.default { "default" } else { "" };
            [
                entry.id,
                default.to_owned(),
                crate::render::text::plain(&entry.address),
                entry.source.unwrap_or("-".to_owned()),
            ]
        })
        .collect();
    print::table(["NAME", "", "WHERE", "FROM"], &rows)?;
    Ok(0)
}

fn entries() -> Result<Vec<Entry>, Failure> {
    let configured = endpoint::environments()?;
    let definitions = &configured.definitions;
    let mut entries = Vec::new();
    if definitions.local == LocalInclusion::Included {
        entries.push(Entry::local());
    }
    entries
        .extend(definitions.environments.iter().map(|definition| Entry::of(definition, &configured.source)));
    let default = match configured.source {
        // It is the default for the library, but not for commands.
        Source::Variable(_) => Some(Id::local()),
        _ => definitions.default.clone(),
    };
    for entry in &mut entries {
        entry.default = default.as_ref().is_some_and(|id| id.as_str() == entry.id);
    }
    Ok(entries)
}
