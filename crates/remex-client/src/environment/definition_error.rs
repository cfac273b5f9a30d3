//! Errors in an environments file or a variable: where, what, and what to do.
//!
//! Never shows a token. Start at [`DefinitionErrors`].

use std::{fmt, io, path::PathBuf};

use super::InvalidId;

/// All errors in one file, in the order of lines; at least one of them makes it unusable.
///
/// ```
/// use std::path::Path;
/// use remex_client::environment::Definitions;
///
/// let text = "[[environments]]\nid = 'a b'\nurl = 'ws://a'\n[[environments]]\nid = 'b'\n";
/// let errors = Definitions::parse(text, Path::new("environments.toml")).unwrap_err();
/// assert_eq!(errors.0.iter().map(|error| error.line).collect::<Vec<_>>(), [2, 4]);
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DefinitionErrors(pub Vec<DefinitionError>);

/// One error in a file.
///
/// ```
/// use std::path::Path;
/// use remex_client::environment::{Definitions, DefinitionErrorKind};
///
/// let errors = Definitions::parse("default = 'dev'", Path::new("environments.toml")).unwrap_err();
/// assert_eq!(errors.0[0].line, 1);
/// assert!(matches!(errors.0[0].kind, DefinitionErrorKind::UnknownDefault { .. }));
/// ```
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}:{line}: {}{kind}", file.display(), subject(environment.as_deref()))]
pub struct DefinitionError {
    /// The file, as passed to the parser.
    pub file: PathBuf,
    /// The line, from 1.
    pub line: usize,
    /// The id of the environment, as written.
    pub environment: Option<String>,
    /// What is wrong.
    pub kind: DefinitionErrorKind,
}

/// What is wrong.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DefinitionErrorKind {
    /// The file is not TOML.
    #[error("{message}; correct the TOML")]
    Syntax {
        /// The message of the TOML parser.
        message: String,
    },
    /// A value has the wrong type.
    #[error("`{key}` is not {expected}; write `{key} = {}`", expected.example())]
    Type {
        /// The key.
        key: &'static str,
        /// The expected type.
        expected: ValueType,
    },
    /// `environments` is not a list of tables.
    #[error("`environments` is not a list of tables; begin each environment with `[[environments]]`")]
    NoTables,
    /// An unknown key, which is ignored.
    #[error("unknown key {} is ignored; {}", quoted(key), remedy(*meant))]
    UnknownKey {
        /// The key.
        key: String,
        /// A known key with a similar spelling.
        meant: Option<&'static str>,
    },
    /// A value is empty.
    #[error("`{key}` is empty; give it a value, or remove it")]
    Empty {
        /// The key.
        key: &'static str,
    },
    /// A value contains a NUL byte, which the operating system does not accept.
    #[error("`{key}` contains a NUL byte; remove it")]
    Zero {
        /// The key.
        key: &'static str,
    },
    /// A path starts with `~`.
    #[error(
        "`{key}` starts with `~`, which is not expanded; write an absolute path, or one relative to the directory of this file"
    )]
    Tilde {
        /// The key.
        key: &'static str,
    },
    /// An environment has no id.
    #[error("an environment has no id; add `id = \"…\"`")]
    NoId,
    /// An environment has an invalid id.
    #[error("{0}")]
    Id(InvalidId),
    /// An environment has the id `local` or `none`.
    #[error("the ids `local` and `none` are reserved; rename it")]
    Reserved,
    /// Two environments have the same id.
    #[error("the id is already used in line {first}; rename one of them")]
    Duplicate {
        /// The line of the first one.
        first: usize,
    },
    /// An environment has no server.
    #[error("`url` or `program` is missing; add one of them")]
    NoServer,
    /// An environment has two servers.
    #[error("both `url` and `program` are set; keep one of them")]
    TwoServers,
    /// A key is valid only with another one.
    #[error("`{key}` is valid only with `{with}`; remove it")]
    Misplaced {
        /// The key.
        key: &'static str,
        /// `url` or `program`.
        with: &'static str,
    },
    /// A URL is invalid.
    #[error("cannot use {} as a server: {reason}", quoted(url))]
    Url {
        /// As written, without the user and password.
        url: String,
        /// What is wrong, and what is valid.
        reason: String,
    },
    /// A URL is not supported yet. The environment is kept, and fails when it is used.
    #[error(
        "{} needs TLS, which is not supported yet; use a tunnel such as `ssh -L` and `ws://`",
        quoted(url)
    )]
    Tls {
        /// As written, without the user and password.
        url: String,
    },
    /// The name of a variable is invalid.
    #[error("`env` contains the invalid variable name {}; rename it", quoted(name))]
    Variable {
        /// The name.
        name: String,
    },
    /// A timeout is invalid.
    #[error("`{key}` is not a positive number of seconds; write `5` or `0.5`, or remove it")]
    Seconds {
        /// The key.
        key: &'static str,
    },
    /// An environment has two tokens.
    #[error("both `auth_bearer_token` and `auth_bearer_token_file` are set; keep one of them")]
    TwoTokens,
    /// A token is set for a server that does not use one.
    #[error("a unix socket does not use a token; remove it")]
    SocketToken,
    /// A token contains characters that a header cannot contain.
    #[error("the token contains white space or invalid characters; check it")]
    Token,
    /// A token file is empty.
    #[error("the token file `{}` is empty; write the token to it", path.display())]
    EmptyTokenFile {
        /// The file.
        path: PathBuf,
    },
    /// A token file cannot be used.
    #[error("cannot use the token file `{}`: {message}", path.display())]
    TokenFile {
        /// The file.
        path: PathBuf,
        /// The kind of failure, for programs.
        kind: io::ErrorKind,
        /// The failure, for people.
        message: String,
    },
    /// The default is not defined.
    #[error(
        "the default environment {} is not defined; use the id of an environment, `local` or `none`",
        quoted(default)
    )]
    UnknownDefault {
        /// As written.
        default: String,
    },
    /// `local` is the default, but excluded.
    #[error("`local` is the default, but `include_local` is false; make it true, or choose another default")]
    ExcludedDefault,
}

/// The type of a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ValueType {
    /// A string.
    String,
    /// A list of strings.
    Strings,
    /// A table of strings.
    Table,
    /// `true` or `false`.
    Flag,
}

/// The value of a variable is not a valid address.
///
/// ```
/// use remex_client::environment::Definitions;
///
/// let error = Definitions::from_url(Some("ftp://host"), "REMEX_URL").unwrap_err();
/// assert_eq!((error.variable.as_str(), error.value.as_str()), ("REMEX_URL", "ftp://host"));
/// ```
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{variable}: cannot use {} as a server: {reason}", quoted(value))]
pub struct InvalidVariable {
    /// The variable.
    pub variable: String,
    /// Its value, without the user and password.
    pub value: String,
    /// What is wrong, and what is valid.
    pub reason: String,
}

impl ValueType {
    fn example(self) -> &'static str {
        match self {
            Self::String => "\"…\"",
            Self::Strings => "[\"…\"]",
            Self::Table => "{ NAME = \"…\" }",
            Self::Flag => "true",
        }
    }
}

impl fmt::Display for ValueType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::String => "a string",
            Self::Strings => "a list of strings",
            Self::Table => "a table of strings",
            Self::Flag => "true or false",
        })
    }
}

impl DefinitionErrorKind {
    /// Returns whether the file can be used despite this error.
    ///
    /// ```
    /// use std::path::Path;
    /// use remex_client::environment::Definitions;
    ///
    /// let draft = Definitions::parse("include_locale = true", Path::new("environments.toml")).unwrap();
    /// assert!(draft.warnings.iter().all(|warning| warning.kind.is_warning()));
    /// ```
    pub fn is_warning(&self) -> bool {
        matches!(self, Self::UnknownKey { .. } | Self::Tls { .. })
    }
}

impl fmt::Display for DefinitionErrors {
    /// Writes one line for each.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, error) in self.0.iter().enumerate() {
            write!(f, "{}{error}", if at == 0 { "" } else { "\n" })?;
        }
        Ok(())
    }
}

impl std::error::Error for DefinitionErrors {}

fn subject(environment: Option<&str>) -> String {
    environment.map_or_else(String::new, |id| format!("environment {}: ", quoted(id)))
}

fn remedy(meant: Option<&str>) -> String {
    match meant {
        Some(meant) => format!("did you mean `{meant}`?"),
        None => "check the spelling, unless the key is for another program".to_owned(),
    }
}

/// Quotes a text of the user, shortened to one line.
fn quoted(text: &str) -> String {
    const MAX_LEN: usize = 80;
    let mut shown: String =
        text.chars().take(MAX_LEN).map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect();
    if text.chars().nth(MAX_LEN).is_some() {
        shown.push('…');
    }
    format!("`{shown}`")
}
