//! Search: lines in files, and files by name.

use std::{path::Path, time::Duration};

use remex_base::clock::millis;
use remex_client::{
    Client, Error, ErrorKind,
    fs::{FoundFile, SearchLimit, SearchOptions, SearchReply, SearchReport},
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Tools, files::on_one_line};
use crate::{
    answer::{Answer, ToolError, ToolResult},
    call::{Call, Stop},
    environment::Environment,
};

/// How long the server may search, and how much longer its answer may take.
const SEARCH_TIME: Duration = Duration::from_secs(60);
const ANSWER_TIME: Duration = Duration::from_secs(30);

/// How much text is returned, in bytes.
const MAX_TEXT: u64 = 64 << 10;

/// How much of a line is returned, in bytes.
const MAX_LINE: u64 = 400;

/// How many characters of a wrong glob are repeated.
const MAX_ECHOED: usize = 100;

/// How many lines or files are returned.
const DEFAULT_LIMIT: u64 = 200;
const MAX_LIMIT: u64 = 2000;

/// The parameters of `search_files`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct SearchFiles {
    /// A regular expression as ripgrep has it.
    pattern: Option<String>,
    /// A file or directory.
    path: Option<String>,
    environment: Option<String>,
    /// Only files whose path fits, such as `*.rs`, `src/**/*.{c,h}`, `docs/` or `!*.min.js`.
    #[serde(default, alias = "include")]
    glob: Globs,
    /// Take `pattern` as plain text.
    #[serde(default)]
    literal: bool,
    #[serde(default)]
    ignore_case: bool,
    /// Lines to show around each match.
    #[serde(default)]
    context: u64,
    /// What to return: `lines` (the default), `files` or `counts`.
    #[serde(default)]
    report: Report,
    /// Also search what `.gitignore` excludes.
    #[serde(default)]
    ignored: bool,
    /// Default: 200.
    limit: Option<u64>,
    /// Matches to skip, to continue a search.
    #[serde(default)]
    skip: u64,
}

/// One glob or several.
#[derive(Debug, Default, Deserialize)]
#[serde(untagged)]
enum Globs {
    #[default]
    None,
    One(String),
    Several(Vec<String>),
}

impl JsonSchema for Globs {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Globs".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({"type": "array", "items": {"type": "string"}})
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(inline)]
enum Report {
    #[default]
    Lines,
    Files,
    Counts,
}

/// What `search_files` returns.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct Found {
    /// Lines such as `src/main.rs:12:fn main() {`.
    matches: Vec<String>,
    /// Whether matches are left out.
    more: bool,
}

impl Tools {
    pub(super) async fn search_files(&self, params: SearchFiles, call: &Call) -> Answer {
        let (environment, client, path) =
            self.at(params.environment.as_deref(), params.path.as_deref()).await?;
        let options = params.options()?;
        let fs = client.fs();
        let searching = tokio::time::timeout(SEARCH_TIME + ANSWER_TIME, fs.search(&path, options));
        let reply = match Box::pin(call.unless_stopped(searching)).await {
            Ok(Ok(Ok(reply))) => reply,
            Ok(Ok(Err(error))) => return Err(not_searched(&error, &params.glob, environment, &client)),
            Ok(Err(_)) => {
                return Err(ToolError::new("the search does not end: a file system there may hang")
                    .with_hint("search a narrower `path`"));
            }
            Err(Stop::Cancelled | Stop::Gone) => return Err(ToolError::new("the search was cancelled")),
        };
        Ok(params.answer(&reply, &path))
    }
}

impl Globs {
    fn all(&self) -> &[String] {
        match self {
            Self::None => &[],
            Self::One(glob) => std::slice::from_ref(glob),
            Self::Several(globs) => globs,
        }
    }
}

impl SearchFiles {
    fn options(&self) -> Result<SearchOptions, ToolError> {
        let globs = self.glob.all();
        if self.pattern.is_none() && globs.is_empty() {
            return Err(ToolError::new("there is nothing to search for")
                .with_hint("give `pattern` for lines in files, or `glob` for names of files"));
        }
        let mut options = SearchOptions::default();
        options.pattern.clone_from(&self.pattern);
        options.globs = globs.to_vec();
        (options.literal, options.ignore_case) = (self.literal, self.ignore_case);
        (options.with_ignored, options.skip) = (self.ignored, self.skip);
        let report = match self.report {
            Report::Lines => SearchReport::Lines,
            Report::Files => SearchReport::Files,
            Report::Counts => SearchReport::Counts,
        };
        let context = self.context.min(20);
        let timeout = millis(SEARCH_TIME);
        Ok(options
            .report(report)
            .context(context, context)
            .max_items(self.limit.unwrap_or(DEFAULT_LIMIT).clamp(1, MAX_LIMIT))
            .max_bytes(MAX_TEXT)
            .max_line_bytes(MAX_LINE)
            .timeout_ms(timeout))
    }

    fn answer(&self, reply: &SearchReply, root: &Path) -> ToolResult {
        let (mut matches, mut returned) = (Vec::new(), 0);
        for file in &reply.files {
            let native = file.path.native().ok();
            let path = native.map_or_else(
                || file.path.to_string(),
                |path| {
                    path.strip_prefix(root)
                        .ok()
                        .filter(|below| !below.as_os_str().is_empty())
                        .unwrap_or(path)
                        .to_string_lossy()
                        .into_owned()
                },
            );
            let path = on_one_line(&path);
            returned += self.lines(file, &path, &mut matches);
        }
        let mut notes = Vec::new();
        let next = self.skip + returned;
        match reply.truncated {
            None => {}
            Some(SearchLimit::Time) => notes.push(
                "the time was over before everything was searched; use a narrower `path` or `glob`"
                    .to_owned(),
            ),
            Some(SearchLimit::Items | SearchLimit::Bytes) => {
                notes.push(format!(
                    "more follows; continue with `skip` {next}, or use a narrower `pattern`, `path` or `glob`"
                ));
            }
            Some(_) => notes
                .push("there are too many files for one search; use a narrower `path` or `glob`".to_owned()),
        }
        if reply.binary > 0 {
            let names: Vec<_> = reply.binary_files.iter().take(3).map(ToString::to_string).collect();
            let names: Vec<_> = names.iter().filter_map(|name| name.rsplit('/').next()).collect();
            notes.push(format!(
                "{} binary files were not searched, such as {}",
                reply.binary,
                names.join(", ")
            ));
        }
        for error in reply.errors.iter().take(3) {
            notes.push(format!("not searched completely: {}: {}", error.path, error.message));
        }
        if let Some(others) = reply.errors.len().checked_sub(4) {
            notes.push(format!("and {} others were not searched completely", others + 1));
        }
        if matches.is_empty() && reply.ignored > 0 {
            notes.push(format!(
                "{} files and directories that `.gitignore` excludes were left out; search them with `ignored`",
                reply.ignored
            ));
        }
        let mut text = matches.join("\n");
        if matches.is_empty() {
            text = match &self.pattern {
                Some(_) => format!("nothing matches in the {} files that were searched", reply.searched),
                None => "no file has such a name".to_owned(),
            };
        }
        for note in &notes {
            text.push_str(&format!("\n[{note}]"));
        }
        ToolResult::new(text, &Found { matches, more: reply.truncated.is_some() })
    }

    /// Adds the lines of a file as a model reads them; returns how many items they are.
    fn lines(&self, file: &FoundFile, path: &str, matches: &mut Vec<String>) -> u64 {
        if self.pattern.is_none() || self.report == Report::Files {
            matches.push(path.to_owned());
            return 1;
        }
        if self.report == Report::Counts {
            matches.push(format!("{path}: {}", file.count));
            return 1;
        }
        let (mut last, mut returned) = (None, 0);
        for line in &file.lines {
            if self.context > 0 && last.is_none_or(|last| last + 1 < line.number) && !matches.is_empty() {
                matches.push("--".to_owned());
            }
            last = Some(line.number);
            returned += u64::from(line.is_match);
            let mark = if line.is_match { ':' } else { '-' };
            let cut = |bytes: u64| if bytes > 0 { format!("[{bytes} bytes]") } else { String::new() };
            let (before, after) = (cut(line.omitted_before), cut(line.omitted_after));
            matches.push(format!("{path}{mark}{}{mark}{before}{}{after}", line.number, line.text));
        }
        returned
    }
}

fn not_searched(error: &Error, glob: &Globs, environment: &Environment, client: &Client) -> ToolError {
    if error.kind() != Some(ErrorKind::UnknownMethod) {
        let mut message = error.message();
        for glob in glob.all() {
            message = shortened(&message, glob);
        }
        return ToolError::new(message);
    }
    let server = &client.welcome().server;
    let version = if server.version.is_empty() { "" } else { &format!(" (version {})", server.version) };
    ToolError::new(format!(
        "the server of environment `{}`{version} is too old to search files",
        environment.name()
    ))
    .with_hint("use `run_command` with `grep -rn`, and have the server updated")
}

/// Returns a message with only the beginning of a long glob that it repeats, or repeats a part of.
fn shortened(message: &str, glob: &str) -> String {
    let Some((end, _)) = glob.char_indices().nth(MAX_ECHOED) else { return message.to_owned() };
    let (head, tail) = glob.split_at(end);
    let mut parts = message.split(head);
    let mut short = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let same = part.chars().zip(tail.chars()).take_while(|(one, other)| one == other);
        let repeated: usize = same.map(|(character, _)| character.len_utf8()).sum();
        short.push_str(head);
        short.push_str("...");
        short.push_str(&part[repeated..]);
    }
    short
}
