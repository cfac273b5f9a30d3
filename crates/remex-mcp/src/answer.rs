//! What a tool answers: text for the model, and the same as data.

use std::fmt;

use remex_client::Error;
use rmcp::model::{CallToolResult, ContentBlock};
use serde::Serialize;

/// Why a tool call failed, and what to do about it, in sentences for the model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Problem {
    message: String,
    hint: Option<String>,
}

impl Problem {
    pub(crate) fn new(message: impl Into<String>) -> Self {
        Self { message: message.into(), hint: None }
    }

    pub(crate) fn with_hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }
}

impl From<Error> for Problem {
    fn from(error: Error) -> Self {
        Self { message: error.message(), hint: error.hint().map(ToString::to_string) }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)?;
        match &self.hint {
            Some(hint) => write!(f, "\n{hint}"),
            None => Ok(()),
        }
    }
}

/// What a tool call answers.
pub(crate) type Answer = Result<Answered, Problem>;

/// The outcome of a tool call that succeeded.
#[derive(Debug)]
pub(crate) struct Answered {
    text: String,
    data: serde_json::Value,
}

impl Answered {
    pub(crate) fn new(text: impl Into<String>, data: &impl Serialize) -> Self {
        let data = serde_json::to_value(data).expect("results have only text keys");
        Self { text: text.into(), data }
    }
}

/// Returns an answer as the protocol has it.
pub(crate) fn tool_result(answer: Answer) -> CallToolResult {
    match answer {
        Ok(Answered { text, data }) => {
            let mut result = CallToolResult::success(vec![ContentBlock::text(text)]);
            result.structured_content = Some(data);
            result
        }
        Err(problem) => CallToolResult::error(vec![ContentBlock::text(problem.to_string())]),
    }
}
