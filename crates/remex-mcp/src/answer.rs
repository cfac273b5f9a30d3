//! What a tool answers: text for the model, and the same as data if it is short.

use std::{fmt, path::Path};

use remex_client::{Error, ErrorKind};
use rmcp::model::{CallToolResult, ContentBlock};
use serde::Serialize;

/// The longest text that is repeated as data, in bytes: some clients show a model both.
const MAX_REPEATED: usize = 2048;

/// How long the text of an answer may be as JSON: clients refuse events of more than 1 MiB.
const MAX_ENCODED: usize = 900 << 10;

/// Why a tool call failed, and what to do about it, in sentences for the model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ToolError {
    message: String,
    hint: Option<String>,
}

impl ToolError {
    pub(crate) fn new(message: impl Into<String>) -> Self {
        Self { message: message.into(), hint: None }
    }

    pub(crate) fn with_hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// Describes the failure of a request about a file.
    pub(crate) fn of_file(error: &Error, path: &Path) -> Self {
        let (message, path) = (error.message(), path.display().to_string());
        let message = if message.contains(&path) { message } else { format!("`{path}`: {message}") };
        Self { message, hint: hint(error).map(str::to_owned) }
    }
}

impl From<Error> for ToolError {
    fn from(error: Error) -> Self {
        Self { message: error.message(), hint: hint(&error).map(str::to_owned) }
    }
}

/// Returns what a model can do about an error. Those of the protocol speak of requests that it cannot make.
fn hint(error: &Error) -> Option<&'static str> {
    let kind = match error {
        Error::Refused(refusal) => refusal.kind,
        Error::Unreachable { .. } | Error::ProgramEnded { .. } => {
            return Some("choose another environment, or try again later");
        }
        Error::Unauthorized { .. } => {
            return Some("this is for the user: the server does not accept this program");
        }
        Error::TimedOut { .. } => return Some("try again, or check with `run_command` what is slow there"),
        Error::Interrupted { .. } => return Some("check whether it took effect before you repeat it"),
        Error::Lost(_) => {
            return Some("repeat the call: it connects anew; `list_processes` shows what still runs");
        }
        Error::Gap { .. } | Error::Overrun { .. } | Error::Changed { .. } => return Some("repeat the call"),
        _ => return None,
    };
    Some(match kind {
        ErrorKind::NotFound => "check the path, for example with `list_directory`",
        ErrorKind::IsADirectory => "it is a directory: use `list_directory`, or name a file in it",
        ErrorKind::NotADirectory => "a part of the path is a file; check it with `list_directory`",
        ErrorKind::NotAFile => {
            "it is no regular file: use `list_directory` for a directory, or `run_command`"
        }
        ErrorKind::AlreadyExists => "choose another path",
        ErrorKind::PermissionDenied => "use a path that may be accessed, or ask the user",
        ErrorKind::SymbolicLink => "name what the link leads to",
        ErrorKind::NoSpace => "the disk is full: tell the user",
        ErrorKind::ContentChanged => "read the file again, and repeat the change on what is there now",
        ErrorKind::UnknownProcess => "see `list_processes`",
        ErrorKind::ProcessExists => "choose another `name`",
        ErrorKind::StdinClosed => {
            "start it with `input` `pipe` or `terminal` to write to it; one that has ended reads nothing"
        }
        ErrorKind::NotATerminal => "start it with `input` `terminal` for that",
        ErrorKind::BadCwd => "check `cwd` with `list_directory`",
        ErrorKind::TooManyProcesses => "end some with `stop_process`, and remove them with `remove`",
        ErrorKind::LimitExceeded => "ask for less at once, or try again later",
        ErrorKind::UnknownMethod => "the server of this environment is too old for it; use `run_command`",
        ErrorKind::SandboxUnavailable => "this environment cannot confine commands: tell the user",
        ErrorKind::ShuttingDown | ErrorKind::Cancelled => "try again in a moment",
        _ => return None,
    })
}

impl fmt::Display for ToolError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)?;
        match &self.hint {
            Some(hint) => write!(f, "\n{hint}"),
            None => Ok(()),
        }
    }
}

/// What a tool call answers.
pub(crate) type Answer = Result<ToolResult, ToolError>;

/// The outcome of a tool call that succeeded.
#[derive(Debug)]
pub(crate) struct ToolResult {
    text: String,
    data: serde_json::Value,
    image: Option<Image>,
}

/// A picture that a model can see.
#[derive(Debug)]
pub(crate) struct Image {
    pub(crate) base64: String,
    pub(crate) mime_type: &'static str,
}

impl ToolResult {
    pub(crate) fn new(text: impl Into<String>, data: &impl Serialize) -> Self {
        let data = serde_json::to_value(data).expect("results have only text keys");
        Self { text: text.into(), data, image: None }
    }

    /// Adds a sentence to the text.
    pub(crate) fn with_note(mut self, note: &str) -> Self {
        self.text.push('\n');
        self.text.push_str(note);
        self
    }

    pub(crate) fn with_image(self, image: Image) -> Self {
        Self { image: Some(image), ..self }
    }
}

/// Returns an answer as the protocol has it.
pub(crate) fn call_result(answer: Answer) -> CallToolResult {
    match answer {
        Ok(ToolResult { text, data, image }) => {
            let is_short = text.len() <= MAX_REPEATED && image.is_none();
            let mut content = vec![ContentBlock::text(bounded(text, MAX_ENCODED))];
            content.extend(image.map(|image| ContentBlock::image(image.base64, image.mime_type)));
            let mut result = CallToolResult::success(content);
            result.structured_content = is_short.then_some(data);
            result
        }
        Err(error) => {
            CallToolResult::error(vec![ContentBlock::text(bounded(error.to_string(), MAX_ENCODED))])
        }
    }
}

/// Leaves the middle of a text out that would be too long as JSON.
fn bounded(text: String, limit: usize) -> String {
    let encoded = |c: char| match c {
        '"' | '\\' | '\n' | '\r' | '\t' => 2,
        c if c.is_control() && c.is_ascii() => 6,
        c => c.len_utf8(),
    };
    if text.chars().map(encoded).sum::<usize>() <= limit {
        return text;
    }
    let (half, mut used) = (limit / 2 - 100, 0);
    let fits = |used: &mut usize, c: char| {
        *used += encoded(c);
        *used <= half
    };
    let head: usize = text.chars().take_while(|c| fits(&mut used, *c)).map(char::len_utf8).sum();
    used = 0;
    let tail: usize = text.chars().rev().take_while(|c| fits(&mut used, *c)).map(char::len_utf8).sum();
    let left_out = text.len() - head - tail;
    format!(
        "{}\n[{left_out} bytes left out; ask for less at once]\n{}",
        &text[..head],
        &text[text.len() - tail..]
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_stays_below_what_clients_accept() {
        for text in ["\n".repeat(1 << 20), "\u{1}".repeat(1 << 20), "ä".repeat(1 << 20), "a".repeat(1 << 20)]
        {
            let result = call_result(Ok(ToolResult::new(text, &())));
            let json = serde_json::to_string(&result).unwrap();
            assert!(json.len() < 1 << 20 && json.contains("bytes left out"), "{}", json.len());
        }
        assert_eq!(bounded("short".to_owned(), 1000), "short");
    }

    #[test]
    fn long_text_is_not_repeated_as_data() {
        let repeated = |len: usize| {
            let text = "x".repeat(len);
            call_result(Ok(ToolResult::new(text.clone(), &text))).structured_content.is_some()
        };
        assert!(repeated(2000) && !repeated(3000));
    }
}
