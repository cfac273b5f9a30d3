//! What was on the recorded host, as far as the recording tells.
//!
//! Others than the client put files there too: the recorder, and commands that are refused here. So
//! before each question about files the place is made to be what the recorded answer says, but never
//! where the client itself has written: there our own answers must be right.

use std::{
    collections::{BTreeSet, HashMap},
    fs,
    path::{Path, PathBuf},
};

use serde_json::Value;

use super::recording::{Recording, Step};
use crate::support::decode;

/// The answers to come, and what the client has changed so far.
pub(crate) struct World {
    /// By connection and id.
    answers: HashMap<(u64, String), Value>,
    changed: BTreeSet<PathBuf>,
}

impl World {
    pub(crate) fn new(recording: &Recording) -> Self {
        let answers = recording.lines.iter().filter_map(|line| match &line.step {
            Step::Hear(message) if message.get("method").is_none() => {
                Some(((line.connection, message["id"].to_string()), message.clone()))
            }
            _ => None,
        });
        Self { answers: answers.collect(), changed: BTreeSet::new() }
    }

    /// Returns the recorded answer to a request.
    pub(crate) fn answer(&self, connection: u64, id: &Value) -> Option<Value> {
        self.answers.get(&(connection, id.to_string())).cloned()
    }

    /// Makes the place what `answer` says before `method` is asked; paths are those of the place.
    pub(crate) fn prepare(&mut self, method: &str, params: &Value, answer: &Value) {
        let Some(path) = params["path"].as_str().map(native) else { return };
        let result = &answer["result"];
        match method {
            "fs/writeFile" | "fs/createDirectory" | "fs/remove" => self.change(&path),
            "fs/open" if params["mode"] == "replace" => self.change(&path),
            _ if self.changed.contains(&path) => {}
            _ if answer["error"]["code"] == -32004 => remove(&path),
            "fs/readFile" if result.is_object() => write(&path, &decode(&result["dataBase64"])),
            "fs/getMetadata" if result["isDirectory"] == true => make_directory(&path),
            "fs/getMetadata" if result["isFile"] == true && !path.exists() => write(&path, b""),
            "fs/walk" => result["entries"].as_array().into_iter().flatten().for_each(make),
            _ => {}
        }
    }

    fn change(&mut self, path: &Path) {
        self.changed.extend(path.ancestors().map(Path::to_owned));
    }
}

/// Makes one entry of a walk.
fn make(entry: &Value) {
    let path = native(entry["path"].as_str().expect("an entry has a path"));
    match entry["kind"].as_str() {
        Some("directory") => make_directory(&path),
        _ if !path.exists() => write(&path, b""),
        _ => {}
    }
}

fn native(uri: &str) -> PathBuf {
    PathBuf::from(uri.strip_prefix("file://").expect("the recorded client sends URIs"))
}

fn make_directory(path: &Path) {
    fs::create_dir_all(path).expect("a directory can be made");
}

fn write(path: &Path, content: &[u8]) {
    make_directory(path.parent().expect("a file has a parent"));
    fs::write(path, content).expect("a file can be written");
}

fn remove(path: &Path) {
    if path.is_dir() {
        fs::remove_dir_all(path).expect("a directory can be removed");
    } else if path.exists() {
        fs::remove_file(path).expect("a file can be removed");
    }
}
