//! Errors in a configuration file: their place, cause and hint.
//!
//! Start at [`ConfigErrors`].

use std::{fmt, path::PathBuf};

use remex_base::quote::quoted;

/// Everything that is wrong in one file, in the order of its lines.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigErrors(pub Vec<ConfigError>);

/// One thing that is wrong in a file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}{}", self.message(), self.hint().map_or_else(String::new, |hint| format!("; {hint}")))]
pub struct ConfigError {
    /// The file, as it was named to the parser.
    pub file: PathBuf,
    /// The line, from 1.
    pub line: usize,
    /// What is wrong.
    pub kind: ConfigErrorKind,
}

/// What is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ConfigErrorKind {
    /// The file is not TOML.
    Syntax {
        /// What the parser says.
        message: String,
    },
    /// A key that does not exist.
    UnknownKey {
        /// The key.
        key: String,
        /// The table that it is in; empty at the top.
        table: &'static str,
        /// What was probably meant.
        meant: Option<String>,
    },
    /// A key whose value is of another type.
    Type {
        /// The key.
        key: String,
        /// What it has to be.
        expected: &'static str,
        /// A value that it can have.
        example: &'static str,
    },
    /// A key whose value cannot be used.
    Value {
        /// The key.
        key: String,
        /// As written.
        value: String,
        /// Why.
        reason: String,
        /// What to do.
        hint: String,
    },
    /// A table of a list without a key that it needs.
    Missing {
        /// The list.
        list: &'static str,
        /// The key.
        key: &'static str,
    },
    /// A key that has no effect without another.
    Alone {
        /// The key.
        key: &'static str,
        /// What it needs.
        with: &'static str,
    },
}

impl ConfigError {
    /// Returns where the error is and what is wrong, without what to do about it.
    pub fn message(&self) -> String {
        format!("{}:{}: {}", self.file.display(), self.line, self.kind.message())
    }

    /// Returns what to do about it, if that is known.
    pub fn hint(&self) -> Option<String> {
        self.kind.hint()
    }
}

impl ConfigErrorKind {
    /// Returns what is wrong, without what to do about it.
    pub fn message(&self) -> String {
        match self {
            Self::Syntax { message } => message.clone(),
            Self::UnknownKey { key, table: "", .. } => format!("unknown key {}", quoted(key)),
            Self::UnknownKey { key, table, .. } => format!("unknown key {} in `[{table}]`", quoted(key)),
            Self::Type { key, expected, .. } => format!("`{key}` is not {expected}"),
            Self::Value { key, value, reason, .. } => {
                format!("cannot use {} for `{key}`: {reason}", quoted(value))
            }
            Self::Missing { list, key } => format!("an entry of `{list}` has no `{key}`"),
            Self::Alone { key, with } => format!("`{key}` has no effect without `{with}`"),
        }
    }

    /// Returns what to do about it, if that is known.
    pub fn hint(&self) -> Option<String> {
        Some(match self {
            // The message of the parser says it.
            Self::Syntax { .. } => return None,
            Self::UnknownKey { meant: Some(meant), .. } => format!("did you mean {meant}?"),
            Self::UnknownKey { meant: None, .. } => "`remex serve --print-config` lists all keys".to_owned(),
            Self::Type { key, example, .. } => format!("write `{key} = {example}`"),
            Self::Value { hint, .. } => hint.clone(),
            Self::Missing { key, .. } => format!("add `{key}`"),
            Self::Alone { with, .. } => format!("add `{with}`"),
        })
    }
}

impl fmt::Display for ConfigErrors {
    /// Writes one line for each.
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lines: Vec<_> = self.0.iter().map(ToString::to_string).collect();
        out.write_str(&lines.join(
            "
",
        ))
    }
}

impl std::error::Error for ConfigErrors {}
