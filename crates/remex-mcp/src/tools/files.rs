//! Files: read, write, edit, list, search, copy.

use std::{
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use remex_client::{
    Client, Command, Error, ErrorKind,
    agent::{ControlSequences, Excerpt},
    fs::{
        ContentHash, CopyAction, CopyFailure, CopyMarker, CopyObserver, CopyPath, CopyProblem, CopyTask,
        IfMatch, WalkOptions, copy_trees,
    },
    process::{ExitCause, Termination},
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
    processes,
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

/// How long a search may take.
const SEARCH_TIME: Duration = Duration::from_secs(120);

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

/// The parameters of `search_files`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct SearchFiles {
    /// An extended regular expression, as `grep -E` has it.
    pattern: String,
    /// The file or directory to search. Default: the directory of the environment.
    path: Option<String>,
    environment: Option<String>,
    /// Only in files with such names, such as `*.rs`.
    include: Option<String>,
    /// Whether upper and lower case are the same.
    #[serde(default)]
    ignore_case: bool,
}

/// What `search_files` returns.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct Found {
    /// Lines such as `src/main.rs:12:fn main() {`.
    matches: Vec<String>,
    /// Whether matches are left out.
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
    /// Pipes, sockets and devices of a tree; the copy is complete without them.
    left_out: Vec<String>,
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
                let written = fs.write(&path, &params.content).if_match(expected).atomic().await;
                written.map_err(|error| changed(error, &path))?;
            }
            None => drop(fs.write(&path, &params.content).atomic().await?),
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
        let edited = fs.write(&path, &text).if_match(IfMatch::Content(hash)).atomic().await;
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

    pub(super) async fn search_files(&self, params: SearchFiles, call: &Call) -> Answer {
        let (environment, client, path) =
            self.at(params.environment.as_deref(), params.path.as_deref()).await?;
        let mut command =
            Command::new("grep").args(["-rnIE", "--devices=skip", "--exclude-dir=.git"]).timeout(SEARCH_TIME);
        let name = processes::name_for("grep");
        command = command.id(&name);
        if params.ignore_case {
            command = command.arg("-i");
        }
        if let Some(include) = &params.include {
            command = command.arg(format!("--include={include}"));
        }
        let command = command.arg("-e").arg(&params.pattern).arg("--").arg(&path);
        let command = environment.command(&client, command, None)?.env("LC_ALL", "C.UTF-8");
        let searched = async {
            let process = command.start(&client).await?;
            let (mut lines, mut found, mut more) = (process.lines(), Vec::new(), false);
            let (mut len, mut errors) = (0, Excerpt::new(1024, ControlSequences::Remove));
            while let Some(line) = lines.next().await? {
                if line.stream != remex_client::process::Stream::Stdout {
                    errors.push(line.stream, format!("{}\n", line.text).as_bytes());
                    continue;
                }
                len += line.text.len() + 1;
                if len > MAX_TEXT {
                    more = true;
                    break;
                }
                found.push(line.text);
            }
            // A consumer that does not go on would hold up the rest of the output, and so the end.
            drop(lines);
            process.kill().await?;
            let exit = process.wait().await?;
            Ok::<_, Error>((found, more, exit, errors.finish().text))
        };
        let searched = call.unless_stopped(searched).await;
        let reference = client.process_ref(client.session_id(), name);
        if !matches!(searched, Ok(Ok(_))) {
            // Nobody needs it any more, whatever went wrong.
            let _ = reference.terminate_tree(Termination::Kill).await;
        }
        // It is nobody's process; as long as its output is open, it stays listed.
        let _ = reference.forget().await;
        let Ok(searched) = searched else { return Err(Problem::new("the search was cancelled")) };
        let (found, more, exit, errors) = searched?;
        if exit.cause == Some(ExitCause::Timeout) {
            let seconds = SEARCH_TIME.as_secs();
            return Err(Problem::new(format!("the search took longer than {seconds} s"))
                .with_hint("use a simpler pattern, or a narrower path or `include`"));
        }
        if found.is_empty() && exit.code > 1 {
            return Err(Problem::new(format!("cannot search `{}`: {}", path.display(), errors.trim()))
                .with_hint("check the path and the pattern, an extended regular expression"));
        }
        let base = format!("{}/", path.display());
        let matches: Vec<_> =
            found.iter().map(|line| line.strip_prefix(&base).unwrap_or(line).to_owned()).collect();
        let mut text = matches.join("\n");
        if matches.is_empty() {
            text = "nothing matches".to_owned();
        } else if more {
            text.push_str("\n[more matches follow; use a narrower pattern, path or `include`]");
        }
        Ok(Answered::new(text, &Found { matches, more }))
    }

    pub(super) async fn copy(&self, params: Copy, call: &Call) -> Answer {
        let (from_environment, from_client, from) =
            self.at(params.from_environment.as_deref(), Some(&params.from_path)).await?;
        let (to_environment, to_client, to) =
            self.at(params.to_environment.as_deref(), Some(&params.to_path)).await?;
        let metadata = from_client.fs().metadata(&from).without_links().await?;
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
        let there = to.fs.metadata(&to.path).without_links().await.ok();
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
            let mut text = format!("copied {} files and links", copied.copied);
            for label in &copied.left_out {
                text.push_str(&format!("\n[left out {label}: it is a pipe, a socket or a device]"));
            }
            text
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
    async fn at(
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
        self.0.lock().unwrap_or_else(PoisonError::into_inner).left_out.push(label.to_owned());
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
