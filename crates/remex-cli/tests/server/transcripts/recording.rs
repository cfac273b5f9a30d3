//! A recorded session as a list of steps.

use std::{collections::BTreeSet, fs, path::PathBuf};

use serde_json::Value;

/// One recorded session.
pub(crate) struct Recording {
    pub(crate) lines: Vec<Line>,
}

/// What happened next, and on which connection.
pub(crate) struct Line {
    pub(crate) connection: u64,
    pub(crate) step: Step,
}

pub(crate) enum Step {
    /// A WebSocket was opened.
    Open,
    /// The server was started as a child of the client.
    Spawn,
    /// The client said something.
    Say(Value),
    /// The server said something.
    Hear(Value),
    /// The connection ended, with or without the client's will.
    Close,
    /// The server was stopped; the next connection meets another one.
    Restart,
}

impl Recording {
    pub(crate) fn load(name: &str) -> Self {
        let path = directory().join(format!("{name}.jsonl"));
        let text = fs::read_to_string(&path)
            .unwrap_or_else(|error| panic!("cannot read {}: {error}", path.display()));
        let lines: Vec<Value> = text
            .lines()
            .map(|line| serde_json::from_str(line).expect("each line of a recording is JSON"))
            .collect();
        // A reply that the recorder made up answers a request that no server has seen.
        let made_up: Vec<_> = lines
            .iter()
            .filter(|line| line.get("injected").is_some())
            .map(|line| (&line["conn"], &line["msg"]["id"]))
            .collect();
        let real = |line: &&Value| !made_up.contains(&(&line["conn"], &line["msg"]["id"]));
        Self { lines: lines.iter().filter(real).filter_map(Line::parse).collect() }
    }

    /// Returns the messages of the server, in order.
    pub(crate) fn heard(&self) -> impl Iterator<Item = &Value> {
        self.lines.iter().filter_map(|line| match &line.step {
            Step::Hear(message) => Some(message),
            _ => None,
        })
    }
}

impl Line {
    /// Returns nothing for notes, control frames and attempts that never reached a server.
    fn parse(line: &Value) -> Option<Self> {
        let step = match (line["dir"].as_str()?, line["event"].as_str()) {
            ("c2s", _) => Step::Say(line.get("msg")?.clone()),
            ("s2c", _) => Step::Hear(line.get("msg")?.clone()),
            ("event", Some("open")) => Step::Open,
            ("event", Some("spawn")) => Step::Spawn,
            ("event", Some("close")) => Step::Close,
            ("event", Some("error")) => Step::Restart,
            _ => return None,
        };
        Some(Self { connection: line["conn"].as_u64()?, step })
    }
}

/// Returns the names of all recordings.
pub(crate) fn names() -> BTreeSet<String> {
    let entries = fs::read_dir(directory()).expect("the recordings are there");
    let names = entries.map(|entry| entry.expect("a directory can be read").path());
    let recordings = names.filter(|path| path.extension().is_some_and(|extension| extension == "jsonl"));
    recordings
        .map(|path| path.file_stem().expect("a file has a name").to_string_lossy().into_owned())
        .collect()
}

fn directory() -> PathBuf {
    match std::env::var_os("REMEX_TRANSCRIPTS") {
        Some(directory) => directory.into(),
        None => PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../spec/transcripts"),
    }
}
