//! Files: read, write, edit, list, copy.

use std::{
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
};

use remex_client::{
    Client, Error, ErrorKind,
    fs::{
        ContentHash, CopyAction, CopyFailure, CopyMarker, CopyObserver, CopyPath, CopyProblem, CopyTask,
        IfMatch, WalkOptions, Write, copy_trees,
    },
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, BufReader};

use super::Tools;
use crate::{
    answer::{Answer, Answered, Problem},
    call::Call,
    environment::Environment,
};

/// The longest file that can be edited, in bytes.
const MAX_EDITED: u64 = 16 << 20;

/// How much of a file or a listing is returned, in bytes.
const MAX_TEXT: usize = 64 << 10;

/// How many lines of a file are returned without being told.
const DEFAULT_LINES: u64 = 2000;

/// What a model is told about text that it sees with replacements.
const NOT_UTF8: &str = "\n[these lines are not UTF-8: replaced characters are shown as \u{fffd}, and writing them back would \
                        change the file; use a command to edit it]";

/// How many entries of a directory are returned.
const MAX_ENTRIES: usize = 2000;

/// The parameters of `read_file`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ReadFile {
    /// The path; a relative one begins at the directory of the environment, and `~` is the home directory.
    path: String,
    environment: Option<String>,
    /// The first line to return, from 1. Default: 1.
    first_line: Option<u64>,
    /// How many lines to return. Default: 2000.
    lines: Option<u64>,
}

/// What `read_file` returns.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct FileText {
    path: String,
    content: String,
    first_line: u64,
    /// How many lines `content` has.
    lines: u64,
    /// Whether lines after these are left out.
    more: bool,
    /// The size of the file in bytes.
    bytes: u64,
    /// The hash of the whole file, for `if_match`.
    hash: String,
    /// Whether these lines are UTF-8. If not, bytes are replaced in `content`, and writing it back would change the file.
    is_utf8: bool,
}

/// The parameters of `write_file`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct WriteFile {
    path: String,
    /// The whole new content.
    content: String,
    environment: Option<String>,
    /// Write only if the file has this hash, from `read_file`, or if it does not exist: `absent`.
    if_match: Option<String>,
}

/// The parameters of `edit_file`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct EditFile {
    path: String,
    environment: Option<String>,
    /// The replacements, in order.
    edits: Vec<Edit>,
    /// Edit only if the file has this hash, from `read_file`.
    if_match: Option<String>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Edit {
    /// The exact text to replace, with its whitespace; it must occur exactly once unless `all` is true.
    old: String,
    /// The text to put there.
    new: String,
    /// Replace every occurrence.
    #[serde(default)]
    all: bool,
}

/// What `write_file` and `edit_file` return.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct WrittenFile {
    path: String,
    bytes: usize,
    /// The hash of the new content, for `if_match`.
    hash: String,
    /// How many places were replaced.
    replacements: usize,
}

/// The parameters of `list_directory`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ListDirectory {
    /// Default: the directory of the environment.
    path: Option<String>,
    environment: Option<String>,
    /// How many levels below it to list as well, up to 64. Default: 0.
    #[serde(default)]
    depth: u64,
}

/// What `list_directory` returns.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct Listing {
    path: String,
    /// Relative to `path`; those of directories end in a slash.
    entries: Vec<String>,
    /// Whether entries are left out.
    more: bool,
}

/// The parameters of `copy`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Copy {
    /// The file or directory to copy.
    from_path: String,
    from_environment: Option<String>,
    /// Where the copy is to be, with its own name; what is there is replaced, and a directory is merged.
    to_path: String,
    to_environment: Option<String>,
}

/// What `copy` returns.
#[derive(Debug, Default, Serialize, JsonSchema)]
pub(super) struct Copied {
    /// How many files and links were copied.
    copied: usize,
    /// What could not be copied, and why.
    failures: Vec<String>,
}

impl Tools {
    pub(super) async fn read_file(&self, params: ReadFile) -> Answer {
        let (_, client, path) = self.at(params.environment.as_deref(), Some(&params.path)).await?;
        let fs = client.fs();
        // The hash of a long file is older than what is read of it, never newer: if it still matches when the model writes,
        // nobody has changed the file since.
        let is_long = fs.metadata(&path).await?.size > MAX_TEXT as u64;
        let older = if is_long { Some(fs.hash(&path).await?.hash) } else { None };
        let file = fs.open(&path).await?;
        let bytes = file.metadata().size;
        let (first, limit) = (params.first_line.unwrap_or(1).max(1), params.lines.unwrap_or(DEFAULT_LINES));
        let (mut reader, mut content, mut line, mut lines) =
            (BufReader::new(file), Vec::new(), Vec::new(), 0);
        let (mut number, mut more) = (0, false);
        let mut hash = older.is_none().then(Sha256::new);
        loop {
            line.clear();
            let read = (&mut reader).take(MAX_TEXT as u64).read_until(b'\n', &mut line).await;
            if read.map_err(|error| unreadable(&path, &error))? == 0 {
                break;
            }
            if let Some(hash) = &mut hash {
                hash.update(&line);
            }
            if more {
                continue;
            }
            number += 1;
            if line.contains(&0) {
                return Err(Problem::new(format!("`{}` is not a text file", path.display()))
                    .with_hint("inspect it with a command such as `file` or `xxd`"));
            }
            if line.len() == MAX_TEXT && line.last() != Some(&b'\n') {
                return Err(Problem::new(format!("line {number} of `{}` is too long", path.display()))
                    .with_hint("read it with a command such as `cut` or `fold`"));
            }
            if number < first {
                continue;
            }
            if lines == limit || content.len() + line.len() > MAX_TEXT {
                more = true;
                if hash.is_none() {
                    break;
                }
                continue;
            }
            content.extend_from_slice(&line);
            lines += 1;
        }
        drop(reader);
        if lines == 0 && number > 0 && number < first {
            return Err(Problem::new(format!("`{}` has only {number} lines", path.display()))
                .with_hint("choose a smaller `first_line`"));
        }
        let hash = older.or_else(|| Some(ContentHash(hash?.finalize().into())));
        let hash = hash.expect("one of the two is there").to_string();
        let is_utf8 = std::str::from_utf8(&content).is_ok();
        let content = String::from_utf8_lossy(&content).into_owned();
        let notice = if more {
            let end = if content.ends_with('\n') { "" } else { "\n" };
            format!("{end}[more lines follow; continue with `first_line` {}]", first + lines)
        } else {
            String::new()
        };
        let encoding = if is_utf8 { "" } else { NOT_UTF8 };
        let text = format!("{content}{notice}{encoding}");
        let path = path.display().to_string();
        let found = FileText { path, content, first_line: first, lines, more, bytes, hash, is_utf8 };
        Ok(Answered::new(text, &found))
    }

    pub(super) async fn write_file(&self, params: WriteFile) -> Answer {
        let (_, client, path) = self.at(params.environment.as_deref(), Some(&params.path)).await?;
        let fs = client.fs();
        let expected = params.if_match.as_deref().map(if_match).transpose()?;
        if let Some(parent) = path.parent()
            && !matches!(expected, Some(IfMatch::Content(_)))
        {
            fs.create_dir_all(parent).await?;
        }
        match expected {
            Some(expected) => {
                let written = fs.write_if(&path, &params.content, expected, Write::Atomic).await;
                written.map_err(|error| changed(error, &path))?;
            }
            None => fs.write_atomic(&path, &params.content).await?,
        }
        Ok(written(&path, &params.content, 0))
    }

    pub(super) async fn edit_file(&self, params: EditFile) -> Answer {
        let (_, client, path) = self.at(params.environment.as_deref(), Some(&params.path)).await?;
        let fs = client.fs();
        let size = fs.metadata(&path).await?.size;
        if size > MAX_EDITED {
            return Err(Problem::new(format!("`{}` is too large to edit: {size} bytes", path.display()))
                .with_hint("use a command such as `sed -i`"));
        }
        let content = fs.read(&path).await?;
        let hash = ContentHash(Sha256::digest(&content).into());
        if let Some(expected) = &params.if_match
            && if_match(expected)? != IfMatch::Content(hash)
        {
            return Err(has_changed(&path));
        }
        let mut text = String::from_utf8(content.to_vec()).map_err(|_| {
            Problem::new(format!("`{}` is not UTF-8", path.display()))
                .with_hint("edit it with a command such as `perl -pi -e`")
        })?;
        if params.edits.is_empty() {
            return Err(Problem::new("there are no edits").with_hint("give at least one in `edits`"));
        }
        let mut replacements = 0;
        for (number, edit) in (1..).zip(&params.edits) {
            let count = if edit.old.is_empty() { 0 } else { text.matches(&edit.old).count() };
            let why = match count {
                0 if edit.old.is_empty() => "its `old` is empty",
                0 => "its `old` text does not occur in the file",
                1 => "",
                _ if edit.all => "",
                _ => "its `old` text occurs more than once",
            };
            if !why.is_empty() {
                return Err(Problem::new(format!("edit {number} cannot be made: {why}; nothing was changed")).with_hint(
                    "give the exact text with its whitespace and enough lines around it, or set `all`; read the file again \
                     if it may have changed",
                ));
            }
            let len =
                (text.len() - count * edit.old.len()).saturating_add(count.saturating_mul(edit.new.len()));
            if len as u64 > MAX_EDITED {
                return Err(Problem::new(format!(
                    "edit {number} cannot be made: the file would have {len} bytes; nothing was changed"
                ))
                .with_hint("use a command such as `sed -i`"));
            }
            text = text.replace(&edit.old, &edit.new);
            replacements += count;
        }
        let edited = fs.write_if(&path, &text, IfMatch::Content(hash), Write::Atomic).await;
        edited.map_err(|error| changed(error, &path))?;
        Ok(written(&path, &text, replacements))
    }

    pub(super) async fn list_directory(&self, params: ListDirectory) -> Answer {
        let (_, client, path) = self.at(params.environment.as_deref(), params.path.as_deref()).await?;
        let fs = client.fs();
        let (mut entries, mut more) = (Vec::new(), false);
        if params.depth == 0 {
            let listed = fs.read_dir(&path).await?.into_iter();
            entries.extend(listed.map(|entry| marked(&entry.file_name, entry.is_directory)));
        } else {
            let mut options = WalkOptions::default();
            (options.max_depth, options.max_entries) = (params.depth.min(64), 50_000);
            let walk = fs.walk(&path, options).await?;
            more = walk.truncated;
            for entry in walk.entries {
                let is_directory = entry.kind == remex_client::fs::WalkKind::Directory;
                let name = entry.path.native().ok().map(PathBuf::from);
                let name =
                    name.as_deref().and_then(|name| name.strip_prefix(&path).ok()).map(Path::to_string_lossy);
                entries.push(marked(name.as_deref().unwrap_or(&entry.path.to_string()), is_directory));
            }
        }
        entries.sort();
        more |= entries.len() > MAX_ENTRIES;
        entries.truncate(MAX_ENTRIES);
        let mut text = entries.join("\n");
        if entries.is_empty() {
            text = "the directory is empty".to_owned();
        } else if more {
            text.push_str(
                "\n[more entries follow; list a directory below this one, or search with `search_files`]",
            );
        }
        let path = path.display().to_string();
        Ok(Answered::new(text, &Listing { path, entries, more }))
    }

    pub(super) async fn copy(&self, params: Copy, call: &Call) -> Answer {
        let (from_environment, from_client, from) =
            self.at(params.from_environment.as_deref(), Some(&params.from_path)).await?;
        let (to_environment, to_client, to) =
            self.at(params.to_environment.as_deref(), Some(&params.to_path)).await?;
        let metadata = from_client.fs().metadata_without_links(&from).await?;
        let is_same_host = from_environment.name() == to_environment.name();
        if metadata.is_directory && is_same_host && is_within(&to_client, &to, &from).await {
            return Err(Problem::new(format!("`{}` is in `{}` itself", to.display(), from.display()))
                .with_hint("copy it to a place outside"));
        }
        if let Some(parent) = to.parent() {
            to_client.fs().create_dir_all(parent).await?;
        }
        let end = |environment: &Environment, client: &Client, path: PathBuf| {
            let label = format!("{}:{}", environment.name(), path.display());
            CopyPath::new(client.fs(), path, label)
        };
        let marker = format!("{}:{}", from_environment.name(), from.display()).into_bytes();
        let from = end(from_environment, &from_client, from);
        let to = end(to_environment, &to_client, to);
        let there = to.fs.metadata_without_links(&to.path).await.ok();
        let mut task = CopyTask::new(from, metadata, to, CopyMarker::new(marker));
        task.contents_only =
            there.as_ref().is_some_and(|there| there.is_directory) && task.metadata.is_directory;
        task.there = there;
        let counted = Arc::new(Counted::default());
        let Ok(copied) = call.unless_stopped(Box::pin(copy_trees(vec![task], &counted))).await else {
            return Err(Problem::new("the copy was cancelled; what is complete stays"));
        };
        let Ok(()) = copied;
        let copied = std::mem::take(&mut *counted.0.lock().unwrap_or_else(PoisonError::into_inner));
        let text = if copied.failures.is_empty() {
            format!("copied {} files and links", copied.copied)
        } else {
            let failures = copied.failures.join("\n");
            return Err(Problem::new(format!(
                "copied {} files and links, but not all:\n{failures}",
                copied.copied
            )));
        };
        Ok(Answered::new(text, &copied))
    }

    /// Returns an environment, its client, and a path on it; by default its directory.
    pub(super) async fn at(
        &self,
        environment: Option<&str>,
        path: Option<&str>,
    ) -> Result<(&Environment, Client, PathBuf), Problem> {
        let environment = self.environment(environment)?;
        let client = environment.client().await?;
        let path = environment.path(&client, path.unwrap_or(""))?;
        Ok((environment, client, path))
    }
}

/// Counts what a copy does.
#[derive(Default)]
struct Counted(Mutex<Copied>);

impl CopyObserver for Counted {
    type Stop = std::convert::Infallible;

    fn on_action(&self, action: CopyAction, _: &str, _: &str) -> Result<(), Self::Stop> {
        if matches!(action, CopyAction::Copy | CopyAction::Link) {
            self.0.lock().unwrap_or_else(PoisonError::into_inner).copied += 1;
        }
        Ok(())
    }

    fn on_special(&self, label: &str) -> Result<(), Self::Stop> {
        let text = format!("{label}: it is a pipe, a socket or a device, and was left out");
        self.0.lock().unwrap_or_else(PoisonError::into_inner).failures.push(text);
        Ok(())
    }

    fn on_failure(&self, failure: CopyFailure) -> Result<(), Self::Stop> {
        let why = match failure.problem {
            CopyProblem::Failed(error) => error.message(),
            CopyProblem::Special => "it is a pipe, a socket or a device".to_owned(),
            CopyProblem::SpecialExists { to } => format!("{to} is a pipe, a socket or a device"),
            CopyProblem::DirectoryExists { to } => format!("{to} is a directory"),
            CopyProblem::NotADirectory { to } => format!("{to} is not a directory"),
            other => format!("{other:?}"),
        };
        let text = format!("{}: {why}", failure.label);
        self.0.lock().unwrap_or_else(PoisonError::into_inner).failures.push(text);
        Ok(())
    }
}

/// Returns whether a path, which need not exist, is below a directory.
async fn is_within(client: &Client, path: &Path, directory: &Path) -> bool {
    let real = async |path: &Path| {
        let found = client.fs().canonicalize(path).await.ok()?;
        found.native().ok().map(PathBuf::from)
    };
    let Some(directory) = real(directory).await else { return false };
    // What does not exist yet is below what does.
    for above in path.ancestors().skip(1) {
        if let Some(above) = real(above).await {
            return above.starts_with(&directory);
        }
    }
    false
}

fn marked(name: &str, is_directory: bool) -> String {
    format!("{name}{}", if is_directory { "/" } else { "" })
}

fn written(path: &Path, content: &str, replacements: usize) -> Answered {
    let hash = ContentHash(Sha256::digest(content).into()).to_string();
    let (path, bytes) = (path.display().to_string(), content.len());
    let text = match replacements {
        0 => format!("wrote {bytes} bytes to {path}"),
        1 => format!("replaced 1 place in {path}"),
        count => format!("replaced {count} places in {path}"),
    };
    Answered::new(text, &WrittenFile { path, bytes, hash, replacements })
}

fn if_match(text: &str) -> Result<IfMatch, Problem> {
    if text == "absent" {
        return Ok(IfMatch::Absent);
    }
    text.parse().map(IfMatch::Content).map_err(|_| {
        Problem::new(format!("`{text}` is not a hash"))
            .with_hint("use the `hash` that `read_file`, `write_file` or `edit_file` returned, or `absent`")
    })
}

fn changed(error: Error, path: &Path) -> Problem {
    if error.kind() == Some(ErrorKind::ContentChanged) { has_changed(path) } else { error.into() }
}

fn has_changed(path: &Path) -> Problem {
    Problem::new(format!("`{}` is not what was expected; nothing was written", path.display()))
        .with_hint("read it again with `read_file`, and repeat the change on what is there now")
}

fn unreadable(path: &Path, error: &std::io::Error) -> Problem {
    Problem::new(format!("cannot read `{}`: {error}", path.display()))
}
