//! What is wrong in a configuration file: where, what, and what to do.
//!
//! Start at [`ConfigErrors`].

use std::{fmt, path::PathBuf};

/// Everything that is wrong in one file, in the order of its lines.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigErrors(pub Vec<ConfigError>);

/// One thing that is wrong in a file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}:{line}: {kind}", file.display())]
pub struct ConfigError {
    /// The file, as it was named to the parser.
    pub file: PathBuf,
    /// The line, from 1.
    pub line: usize,
    /// What is wrong.
    pub kind: ConfigErrorKind,
}

/// What is wrong.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigErrorKind {
    /// The file is not TOML.
    #[error("{message}; correct the TOML")]
    Syntax {
        /// What the parser says.
        message: String,
    },
    /// A key that does not exist.
    #[error("unknown key {}{}; {}", quoted(key), place(table), remedy(meant.as_deref()))]
    UnknownKey {
        /// The key.
        key: String,
        /// The table that it is in; empty at the top.
        table: &'static str,
        /// What was probably meant.
        meant: Option<String>,
    },
    /// A key whose value is of another type.
    #[error("`{key}` is not {expected}; write `{key} = {example}`")]
    Type {
        /// The key.
        key: String,
        /// What it has to be.
        expected: &'static str,
        /// A value that it can have.
        example: &'static str,
    },
    /// A key whose value cannot be used.
    #[error("cannot use {} for `{key}`: {reason}", quoted(value))]
    Value {
        /// The key.
        key: String,
        /// As written.
        value: String,
        /// Why, and what to do.
        reason: String,
    },
    /// A table of a list without a key that it needs.
    #[error("an entry of `{list}` has no `{key}`; add it")]
    Missing {
        /// The list.
        list: &'static str,
        /// The key.
        key: &'static str,
    },
    /// A key that has no effect without another.
    #[error("`{key}` has no effect without `{with}`; add that")]
    Alone {
        /// The key.
        key: &'static str,
        /// What it needs.
        with: &'static str,
    },
}

impl fmt::Display for ConfigErrors {
    /// Writes one line for each.
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, error) in self.0.iter().enumerate() {
            write!(out, "{}{error}", if at == 0 { "" } else { "\n" })?;
        }
        Ok(())
    }
}

impl std::error::Error for ConfigErrors {}

fn place(table: &str) -> String {
    if table.is_empty() { String::new() } else { format!(" in `[{table}]`") }
}

fn remedy(meant: Option<&str>) -> String {
    match meant {
        Some(meant) => format!("did you mean {meant}?"),
        None => "`remex serve --print-config` lists all keys".to_owned(),
    }
}

/// Returns a text of the user's on one line, and not longer than one.
fn quoted(text: &str) -> String {
    const MAX_LEN: usize = 80;
    let mut shown: String =
        text.chars().take(MAX_LEN).map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect();
    if text.chars().nth(MAX_LEN).is_some() {
        shown.push('…');
    }
    format!("`{shown}`")
}
