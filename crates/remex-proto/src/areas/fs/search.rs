//! Searching the files of a tree.

use serde::{Deserialize, Serialize};

use super::WalkError;
use crate::{
    areas::sandbox::Sandbox,
    base::{lenient::null_as_default, path::HostPath},
};

/// `fs/search`: the lines of the files below a directory that match a regular expression, or the files themselves.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SearchFiles {
    /// The directory, or a single file.
    pub path: HostPath,
    /// What to look for.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "is_default")]
    pub options: SearchOptions,
    /// The confinement asked for.
    #[serde(default, skip_serializing_if = "Sandbox::is_disabled")]
    pub sandbox: Sandbox,
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// What a [`SearchFiles`] looks for, where, and how much it returns.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
#[serde(rename_all = "camelCase")]
pub struct SearchOptions {
    /// A regular expression of Rust, for one line; absent: every file is found.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pattern: Option<String>,
    /// The pattern is plain text.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "is_default")]
    pub literal: bool,
    /// Upper and lower case are the same in the pattern.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "is_default")]
    pub ignore_case: bool,
    /// Only files whose paths below `path` match one of these globs, and none of those that begin with `!`.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "is_default")]
    pub globs: Vec<String>,
    /// Also what `.gitignore` and `.ignore` files exclude, and directories of version control.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "is_default")]
    pub with_ignored: bool,
    /// What is returned of each file.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "is_default")]
    pub report: SearchReport,
    /// Lines to return before each match; at most 100.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "is_default")]
    pub context_before: u64,
    /// Lines to return after each match; at most 100.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "is_default")]
    pub context_after: u64,
    /// How many levels below `path` to search: 0 is its own files; absent: all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_depth: Option<u64>,
    /// How many matching lines, or files, to skip, to continue a search.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "is_default")]
    pub skip: u64,
    /// How many matching lines, or files, to return; 1 to 10,000, absent: 500.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_items: Option<u64>,
    /// How much text and paths to return, in bytes; 1 to 1,048,576, absent: 262,144.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_bytes: Option<u64>,
    /// How much of one line to return, in bytes; 1 to 65,536, absent: 1,024.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_line_bytes: Option<u64>,
    /// After how long to return what was found; up to 120,000, absent: 20,000.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_ms: Option<u64>,
}

impl SearchOptions {
    /// Creates a search for a regular expression of Rust.
    #[must_use]
    pub fn pattern(pattern: impl Into<String>) -> Self {
        Self { pattern: Some(pattern.into()), ..Self::default() }
    }

    /// Takes the pattern as plain text.
    #[must_use]
    pub fn literal(self) -> Self {
        Self { literal: true, ..self }
    }

    /// Makes upper and lower case the same in the pattern.
    #[must_use]
    pub fn ignore_case(self) -> Self {
        Self { ignore_case: true, ..self }
    }

    /// Adds a glob as ripgrep has it: only files that match one are searched, and none that match one with a `!` before it.
    #[must_use]
    pub fn glob(mut self, glob: impl Into<String>) -> Self {
        self.globs.push(glob.into());
        self
    }

    /// Also searches what `.gitignore` and `.ignore` files exclude, and directories of version control.
    #[must_use]
    pub fn with_ignored(self) -> Self {
        Self { with_ignored: true, ..self }
    }

    /// Sets what is returned of each file.
    #[must_use]
    pub fn report(self, report: SearchReport) -> Self {
        Self { report, ..self }
    }

    /// Sets how many lines to return before and after each match; at most 100.
    #[must_use]
    pub fn context(self, before: u64, after: u64) -> Self {
        Self { context_before: before, context_after: after, ..self }
    }

    /// Sets how many levels below the directory to search: 0 is its own files.
    #[must_use]
    pub fn max_depth(self, max_depth: u64) -> Self {
        Self { max_depth: Some(max_depth), ..self }
    }

    /// Sets how many matching lines, or files, to skip, to continue a search.
    #[must_use]
    pub fn skip(self, skip: u64) -> Self {
        Self { skip, ..self }
    }

    /// Sets how many matching lines, or files, to return; 1 to 10,000.
    #[must_use]
    pub fn max_items(self, max_items: u64) -> Self {
        Self { max_items: Some(max_items), ..self }
    }

    /// Sets how much text and paths to return, in bytes; 1 to 1,048,576.
    #[must_use]
    pub fn max_bytes(self, max_bytes: u64) -> Self {
        Self { max_bytes: Some(max_bytes), ..self }
    }

    /// Sets how much of one line to return, in bytes; 1 to 65,536.
    #[must_use]
    pub fn max_line_bytes(self, max_line_bytes: u64) -> Self {
        Self { max_line_bytes: Some(max_line_bytes), ..self }
    }

    /// Sets after how many milliseconds to return what was found; up to 120,000.
    #[must_use]
    pub fn timeout_ms(self, timeout_ms: u64) -> Self {
        Self { timeout_ms: Some(timeout_ms), ..self }
    }
}

/// What a [`SearchFiles`] returns of each file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
#[serde(rename_all = "camelCase")]
pub enum SearchReport {
    /// The lines that match.
    #[default]
    Lines,
    /// How many lines match.
    Counts,
    /// That a line matches.
    Files,
}

/// The answer to [`SearchFiles`].
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
#[serde(rename_all = "camelCase")]
pub struct SearchReply {
    /// The files with matches, depth first, each directory in the byte order of its names.
    pub files: Vec<FoundFile>,
    /// How many files were searched.
    #[serde(default)]
    pub searched: u64,
    /// How many files and directories were left out because of ignore files, or as directories of version control.
    #[serde(default)]
    pub ignored: u64,
    /// How many files were not searched because they are binary.
    #[serde(default)]
    pub binary: u64,
    /// The first of them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub binary_files: Vec<HostPath>,
    /// What could not be searched completely, at most 50.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub errors: Vec<WalkError>,
    /// Which limit ended the search; absent: it is complete.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub truncated: Option<SearchLimit>,
}

/// A file that a [`SearchFiles`] found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct FoundFile {
    /// Where it is.
    pub path: HostPath,
    /// How many of its lines match, as far as it was searched.
    #[serde(default)]
    pub count: u64,
    /// Those lines, and the lines around them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub lines: Vec<FoundLine>,
}

impl FoundFile {
    /// Creates a file without lines.
    #[must_use]
    pub fn new(path: HostPath) -> Self {
        Self { path, count: 0, lines: Vec::new() }
    }
}

/// A line of a [`FoundFile`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
#[serde(rename_all = "camelCase")]
pub struct FoundLine {
    /// Its number, from 1.
    pub number: u64,
    /// Its text without the line end; bytes that are not UTF-8 are replaced.
    pub text: String,
    /// Whether it matches, or is only near a match.
    #[serde(default = "yes", skip_serializing_if = "is_yes")]
    pub is_match: bool,
    /// How many bytes of the line before the text are left out, because it is long.
    #[serde(default, skip_serializing_if = "is_default")]
    pub omitted_before: u64,
    /// How many bytes of the line after the text are left out.
    #[serde(default, skip_serializing_if = "is_default")]
    pub omitted_after: u64,
}

fn yes() -> bool {
    true
}

fn is_yes(value: &bool) -> bool {
    *value
}

impl FoundLine {
    /// Creates a line that matches.
    #[must_use]
    pub fn new(number: u64, text: impl Into<String>) -> Self {
        Self { number, text: text.into(), is_match: true, omitted_before: 0, omitted_after: 0 }
    }
}

/// What ended a [`SearchFiles`] early.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(transform = crate::base::words::open_words))]
#[non_exhaustive]
#[serde(rename_all = "camelCase")]
pub enum SearchLimit {
    /// `maxItems`: the search goes on with `skip`.
    Items,
    /// `maxBytes`: the search goes on with `skip`.
    Bytes,
    /// `timeoutMs`.
    Time,
    /// The tree has more files than one search visits, or a directory has more names.
    Entries,
    /// Something that this version does not know.
    #[serde(other)]
    Unknown,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_search_omits_members_with_default_values() {
        let text = r#"{"path":"file:///w","options":{"pattern":"a+","globs":["*.rs"]}}"#;
        let search: SearchFiles = serde_json::from_str(text).unwrap();
        assert_eq!(search.options, SearchOptions::pattern("a+").glob("*.rs"));
        assert_eq!(serde_json::to_string(&search).unwrap(), text);
        let nulls = r#"{"path":"/w","options":{"pattern":null,"globs":null,"skip":null,"report":null,"maxItems":null}}"#;
        let search: SearchFiles = serde_json::from_str(nulls).unwrap();
        assert_eq!(search.options, SearchOptions::default());
        assert_eq!(serde_json::from_str::<SearchFiles>(r#"{"path":"/w","options":null}"#).unwrap(), search);
    }
}
