//! Files: read, write, list.

use std::path::{Path, PathBuf};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use remex_client::{
    Client, Error, ErrorKind,
    fs::{ContentHash, Fs, IfMatch, WalkOptions},
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, BufReader};

use super::Tools;
use crate::{
    answer::{Answer, Image, ToolError, ToolResult},
    environment::Environment,
};

/// The longest image that is returned: clients take 1 MiB, and base64 makes it longer.
const MAX_IMAGE: u64 = 600 << 10;

/// How much of a file or a listing is returned, in bytes.
const MAX_TEXT: usize = 64 << 10;

/// Longer files are not hashed, so that returning a page does not require reading the whole file.
const MAX_HASHED: u64 = 16 << 20;

/// How many lines of a file are returned by default.
const DEFAULT_LINES: u64 = 2000;

/// The notice for a model about text with replaced characters.
const NOT_UTF8: &str = "[these lines are not UTF-8: replaced characters are shown as \u{fffd}, and writing them back would \
                        change the file; use a command to edit it]\n";

/// How many entries of a directory are returned.
const DEFAULT_ENTRIES: usize = 500;
const MAX_ENTRIES: usize = 5000;

/// The parameters of `read_file`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ReadFile {
    /// Relative to the directory of the environment; `~` is the home directory.
    path: String,
    environment: Option<String>,
    /// Default: 1.
    first_line: Option<u64>,
    /// Default: 2000.
    lines: Option<u64>,
    /// False returns the lines without numbers.
    numbers: Option<bool>,
}

/// What `read_file` returns.
#[derive(Debug, Serialize)]
struct FileText {
    path: String,
    content: String,
    first_line: u64,
    /// How many lines `content` has.
    lines: u64,
    /// Whether lines after these are left out.
    more: bool,
    /// The size of the file in bytes.
    bytes: u64,
    /// The hash of the whole file, for `if_match`, unless the file is long.
    #[serde(skip_serializing_if = "Option::is_none")]
    hash: Option<String>,
    /// Whether these lines are UTF-8. If not, bytes are replaced in `content`, and writing it back would change the file.
    is_utf8: bool,
}

/// What `read_file` returns of a file that is no text.
#[derive(Debug, Serialize)]
struct BinaryFile {
    path: String,
    bytes: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    hash: Option<String>,
}

/// The parameters of `write_file`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct WriteFile {
    path: String,
    content: String,
    environment: Option<String>,
    /// Write only if the file has this hash, or does not exist: `absent`.
    if_match: Option<String>,
}

/// What `write_file` and `edit_file` return.
#[derive(Debug, Serialize)]
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
    path: Option<String>,
    environment: Option<String>,
    /// Levels below it, up to 64. Default: 0.
    #[serde(default)]
    depth: u64,
    /// Default: 500.
    limit: Option<usize>,
}

/// What `list_directory` returns.
#[derive(Debug, Serialize)]
pub(super) struct Listing {
    path: String,
    /// Relative to `path`; those of directories end in a slash.
    entries: Vec<String>,
    /// Whether entries are left out.
    more: bool,
}

impl Tools {
    pub(super) async fn read_file(&self, params: ReadFile) -> Answer {
        let (_, client, path) = self.at(params.environment.as_deref(), Some(&params.path)).await?;
        let fs = client.fs();
        let failed = |error: Error| ToolError::of_file(&error, &path);
        // The hash of a long file is taken before its content is read: if it still matches when the model writes, the file
        // has not changed since.
        let size = fs.metadata(&path).await.map_err(failed)?.size;
        let is_long = size > MAX_TEXT as u64;
        let is_hashed = is_long && size <= MAX_HASHED;
        let older = if is_hashed { Some(fs.hash(&path).await.map_err(failed)?.hash) } else { None };
        let file = fs.open(&path).await.map_err(failed)?;
        let bytes = file.metadata().size;
        let (first, limit) = (params.first_line.unwrap_or(1).max(1), params.lines.unwrap_or(DEFAULT_LINES));
        let (mut reader, mut content, mut line, mut lines) =
            (BufReader::new(file), Vec::new(), Vec::new(), 0);
        let (mut number, mut more, mut is_binary) = (0, false, false);
        let mut hash = (!is_long).then(Sha256::new);
        loop {
            line.clear();
            let read = (&mut reader).take(MAX_TEXT as u64).read_until(b'\n', &mut line).await;
            if read.map_err(|error| unreadable(&path, &error))? == 0 {
                break;
            }
            if let Some(hash) = &mut hash {
                hash.update(&line);
            }
            if more || is_binary {
                continue;
            }
            number += 1;
            is_binary = line.contains(&0) || (number == 1 && is_image_head(&line));
            if is_binary {
                if hash.is_none() {
                    break;
                }
                continue;
            }
            if line.len() == MAX_TEXT && line.last() != Some(&b'\n') {
                return Err(ToolError::new(format!("line {number} of `{}` is too long", path.display()))
                    .with_hint("read it with a command such as `cut` or `fold`, or find a part of it with `search_files`"));
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
        let hash = older.or_else(|| Some(ContentHash(hash?.finalize().into()))).map(|hash| hash.to_string());
        if is_binary {
            return self.read_binary(&fs, &path, bytes, hash).await;
        }
        if lines == 0 && number > 0 && number < first {
            return Err(ToolError::new(format!("`{}` has only {number} lines", path.display()))
                .with_hint("choose a smaller `first_line`"));
        }
        let is_utf8 = std::str::from_utf8(&content).is_ok();
        let content = String::from_utf8_lossy(&content).into_owned();
        let mut text =
            if params.numbers.unwrap_or(true) { numbered(&content, first) } else { content.clone() };
        if !text.is_empty() && !text.ends_with('\n') {
            text.push('\n');
        }
        if more {
            text.push_str(&format!("[more lines follow; continue with `first_line` {}]\n", first + lines));
        }
        if content.contains("\r\n") {
            text.push_str("[lines end with CRLF]\n");
        }
        if !is_utf8 {
            text.push_str(NOT_UTF8);
        }
        text.push_str(&format!("[{}]", size_and_hash(bytes, hash.as_deref())));
        let path = path.display().to_string();
        let found = FileText { path, content, first_line: first, lines, more, bytes, hash, is_utf8 };
        Ok(ToolResult::new(text, &found))
    }

    /// Returns an image as one, and says of other files how long they are.
    async fn read_binary(&self, fs: &Fs, path: &Path, bytes: u64, hash: Option<String>) -> Answer {
        let name = path.display().to_string();
        let text = format!("binary, {}", size_and_hash(bytes, hash.as_deref()));
        let data = BinaryFile { path: name, bytes, hash };
        if bytes > MAX_IMAGE {
            let note = "\n[look at it with a command such as `file` or `xxd`; an image has to be smaller to be shown]";
            return Ok(ToolResult::new(text + note, &data));
        }
        let content = fs.read(path).await.map_err(|error| ToolError::of_file(&error, path))?;
        Ok(match image_type(&content) {
            Some(mime_type) => {
                let image = Image { base64: STANDARD.encode(&content), mime_type };
                ToolResult::new(format!("an image, {text}"), &data).with_image(image)
            }
            None => ToolResult::new(text + "\n[look at it with a command such as `file` or `xxd`]", &data),
        })
    }

    pub(super) async fn write_file(&self, params: WriteFile) -> Answer {
        let (_, client, path) = self.at(params.environment.as_deref(), Some(&params.path)).await?;
        let fs = client.fs();
        let expected = params.if_match.as_deref().map(if_match).transpose()?;
        if let Some(parent) = path.parent()
            && !matches!(expected, Some(IfMatch::Content(_)))
        {
            fs.create_dir_all(parent).await.map_err(|error| ToolError::of_file(&error, parent))?;
        }
        match expected {
            Some(expected) => {
                let written = fs.write(&path, &params.content).if_match(expected).atomic().await;
                written.map_err(|error| changed(&error, &path))?;
            }
            None => {
                let written = fs.write(&path, &params.content).atomic().await;
                written.map_err(|error| ToolError::of_file(&error, &path))?;
            }
        }
        Ok(written(&path, &params.content, 0))
    }

    pub(super) async fn list_directory(&self, params: ListDirectory) -> Answer {
        let (_, client, path) = self.at(params.environment.as_deref(), params.path.as_deref()).await?;
        let fs = client.fs();
        let failed = |error: Error| ToolError::of_file(&error, &path);
        let limit = params.limit.unwrap_or(DEFAULT_ENTRIES).clamp(1, MAX_ENTRIES);
        let (mut entries, mut more) = (Vec::new(), false);
        if params.depth == 0 {
            let mut pages = fs.read_dir_pages(&path).map_err(failed)?;
            while entries.len() <= limit
                && let Some(page) = pages.next().await.map_err(failed)?
            {
                entries.extend(page.iter().map(|entry| marked(&entry.file_name, entry.is_directory)));
            }
        } else {
            let mut options = WalkOptions::default();
            (options.max_depth, options.max_entries) = (params.depth.min(64), limit as u64 + 1);
            let walk = fs.walk(&path, options).await.map_err(failed)?;
            more = walk.truncated;
            for entry in walk.entries {
                let is_directory = entry.kind == remex_client::fs::WalkKind::Directory;
                let name = entry.path.native().ok().map(PathBuf::from);
                let name =
                    name.as_deref().and_then(|name| name.strip_prefix(&path).ok()).map(Path::to_string_lossy);
                entries.push(marked(name.as_deref().unwrap_or(&entry.path.to_string()), is_directory));
            }
        }
        more |= entries.len() > limit;
        // What is near comes first, so that one deep directory does not hide the others.
        entries.truncate(limit);
        entries.sort();
        let mut text = entries.join("\n");
        if entries.is_empty() {
            text = "the directory is empty".to_owned();
        } else if more {
            let raise =
                if limit < MAX_ENTRIES { format!("raise `limit` ({limit}), ") } else { String::new() };
            text.push_str(&format!(
                "\n[more entries follow: {raise}list a directory below this one, or find names with \
                 `search_files` and `glob`]"
            ));
        }
        let path = path.display().to_string();
        Ok(ToolResult::new(text, &Listing { path, entries, more }))
    }

    /// Returns an environment, its client, and a path on it; by default its directory.
    pub(super) async fn at(
        &self,
        environment: Option<&str>,
        path: Option<&str>,
    ) -> Result<(&Environment, Client, PathBuf), ToolError> {
        let environment = self.environment(environment)?;
        let client = environment.client().await?;
        let path = environment.path(&client, path.unwrap_or(""))?;
        Ok((environment, client, path))
    }
}

fn marked(name: &str, is_directory: bool) -> String {
    format!("{}{}", on_one_line(name), if is_directory { "/" } else { "" })
}

/// Returns a name with its control characters escaped, so that it is one line of a list.
pub(super) fn on_one_line(name: &str) -> String {
    let escaped = |character: char| {
        if character.is_control() { character.escape_default().to_string() } else { character.to_string() }
    };
    name.chars().map(escaped).collect()
}

fn size_and_hash(bytes: u64, hash: Option<&str>) -> String {
    match hash {
        Some(hash) => format!("{bytes} bytes; for `if_match`: {hash}"),
        None => format!("{bytes} bytes; over 16 MiB there is no hash for `if_match`"),
    }
}

/// Returns lines with their numbers.
fn numbered(content: &str, first: u64) -> String {
    (first..)
        .zip(content.split_inclusive('\n'))
        .map(|(number, line)| format!("{number:>6}\t{line}"))
        .collect()
}

/// Returns whether a file that begins so is an image, and no text.
fn is_image_head(line: &[u8]) -> bool {
    line.starts_with(b"\x89PNG\r\n") || line.starts_with(b"\xff\xd8\xff")
}

/// Returns the type of a complete image that clients can show.
fn image_type(content: &[u8]) -> Option<&'static str> {
    let is_complete = |ends: bool, name| ends.then_some(name);
    match content {
        [0x89, b'P', b'N', b'G', b'\r', b'\n', 0x1a, b'\n', 0, 0, 0, 13, b'I', b'H', b'D', b'R', ..] => {
            is_complete(content.ends_with(b"\0\0\0\0IEND\xaeB`\x82"), "image/png")
        }
        [0xff, 0xd8, 0xff, ..] => is_complete(content.ends_with(b"\xff\xd9"), "image/jpeg"),
        [b'G', b'I', b'F', b'8', b'7' | b'9', b'a', w0, w1, h0, h1, _, _, _, .., end] => {
            let has_size = (*w0, *w1) != (0, 0) && (*h0, *h1) != (0, 0);
            is_complete(has_size && *end == b';' && content.contains(&0), "image/gif")
        }
        [b'R', b'I', b'F', b'F', a, b, c, d, b'W', b'E', b'B', b'P', rest @ ..] => {
            let len = u32::from_le_bytes([*a, *b, *c, *d]) as usize;
            is_complete(len == rest.len() + 4 || len + 1 == rest.len() + 4, "image/webp")
        }
        _ => None,
    }
}

pub(super) fn written(path: &Path, content: &str, replacements: usize) -> ToolResult {
    let hash = ContentHash(Sha256::digest(content).into()).to_string();
    let (path, bytes) = (path.display().to_string(), content.len());
    let what = match replacements {
        0 => format!("wrote {bytes} bytes to {path}"),
        1 => format!("replaced 1 place in {path}"),
        count => format!("replaced {count} places in {path}"),
    };
    ToolResult::new(
        format!("{what}\n[for `if_match`: {hash}]"),
        &WrittenFile { path, bytes, hash, replacements },
    )
}

pub(super) fn if_match(text: &str) -> Result<IfMatch, ToolError> {
    if text == "absent" {
        return Ok(IfMatch::Absent);
    }
    text.parse().map(IfMatch::Content).map_err(|_| {
        ToolError::new(format!("`{text}` is not a hash"))
            .with_hint("use the `hash` that `read_file`, `write_file` or `edit_file` returned, or `absent`")
    })
}

pub(super) fn changed(error: &Error, path: &Path) -> ToolError {
    if error.kind() == Some(ErrorKind::ContentChanged) {
        has_changed(path)
    } else {
        ToolError::of_file(error, path)
    }
}

pub(super) fn has_changed(path: &Path) -> ToolError {
    ToolError::new(format!("`{}` is not what was expected; nothing was written", path.display()))
        .with_hint("read it again with `read_file`, and repeat the change on what is there now")
}

fn unreadable(path: &Path, error: &std::io::Error) -> ToolError {
    ToolError::new(format!("cannot read `{}`: {error}", path.display()))
}
