//! What is wrong in an environments file or a variable: where, what, and what to do.
//!
//! Never shows a token. Start at [`DefinitionErrors`].

use std::{fmt, io, path::PathBuf};

use super::InvalidId;

/// Everything that is wrong in one file, in the order of its lines; at least one of them makes it unusable.
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

/// One thing that is wrong in a file.
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
    /// The file, as it was named to the parser.
    pub file: PathBuf,
    /// The line, from 1.
    pub line: usize,
    /// The id of the environment that it is about, as written.
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
        /// What the parser says.
        message: String,
    },
    /// A key with a value of another type.
    #[error("`{key}` is not {expected}; write `{key} = {}`", expected.example())]
    Type {
        /// The key.
        key: &'static str,
        /// What it has to be.
        expected: ValueType,
    },
    /// `environments` is something else than tables.
    #[error("`environments` is not a list of tables; begin each environment with `[[environments]]`")]
    NoTables,
    /// A key that means nothing here. It is ignored.
    #[error("the key {} is not known and ignored; {}", quoted(key), remedy(*meant))]
    UnknownKey {
        /// The key.
        key: String,
        /// One that is written almost like it.
        meant: Option<&'static str>,
    },
    /// A key with an empty text.
    #[error("`{key}` is empty; give it a value, or remove it")]
    Empty {
        /// The key.
        key: &'static str,
    },
    /// A text with a zero byte, which the operating system cannot take.
    #[error("`{key}` contains a zero byte; remove it")]
    Zero {
        /// The key.
        key: &'static str,
    },
    /// A path that begins with `~`.
    #[error(
        "`{key}` begins with `~`, which is not expanded; write the whole path, or one from the directory of this file"
    )]
    Tilde {
        /// The key.
        key: &'static str,
    },
    /// An environment without a name.
    #[error("an environment has no id; add `id = \"…\"`")]
    NoId,
    /// An environment with a name that cannot be.
    #[error("{0}")]
    Id(InvalidId),
    /// An environment with the name `local` or `none`.
    #[error("the ids `local` and `none` have a meaning of their own; rename it")]
    Reserved,
    /// Two environments with one name.
    #[error("the id is already taken in line {first}; rename one of the two")]
    Duplicate {
        /// Where the name stands first.
        first: usize,
    },
    /// An environment without a server.
    #[error("neither `url` nor `program` says where the server is; add one of them")]
    NoServer,
    /// An environment with two servers.
    #[error("`url` and `program` are both given; keep one of them")]
    TwoServers,
    /// A key that makes sense only with another.
    #[error("`{key}` goes with `{with}` only; remove it")]
    Misplaced {
        /// The key.
        key: &'static str,
        /// `url` or `program`.
        with: &'static str,
    },
    /// A url that leads nowhere.
    #[error("cannot use {} as a server: {reason}", quoted(url))]
    Url {
        /// As written, without the user and password.
        url: String,
        /// What is wrong, and what would be right.
        reason: String,
    },
    /// A url that cannot be used yet. The environment is kept, and fails when it is used.
    #[error("{} needs TLS, which is not offered yet; use a tunnel such as `ssh -L` and `ws://`", quoted(url))]
    Tls {
        /// As written, without the user and password.
        url: String,
    },
    /// A variable with a name that cannot be.
    #[error("`env` has a variable {}, and no variable can be called that; rename it", quoted(name))]
    Variable {
        /// The name.
        name: String,
    },
    /// A limit that is none.
    #[error("`{key}` is not a positive number of seconds; write `5` or `0.5`, or remove it")]
    Seconds {
        /// The key.
        key: &'static str,
    },
    /// Two tokens.
    #[error("`auth_bearer_token` and `auth_bearer_token_file` are both given; keep one of them")]
    TwoTokens,
    /// A token for a server that asks for none.
    #[error("a unix socket takes no token; remove it")]
    SocketToken,
    /// A token that cannot travel in a header.
    #[error("the token has white space or characters that no token has; check it")]
    Token,
    /// A file without a token in it.
    #[error("the token file `{}` is empty; write the token to it", path.display())]
    EmptyTokenFile {
        /// The file.
        path: PathBuf,
    },
    /// A token that cannot be had.
    #[error("cannot use the token file `{}`: {message}", path.display())]
    TokenFile {
        /// The file.
        path: PathBuf,
        /// The kind of failure, for programs.
        kind: io::ErrorKind,
        /// The failure, for people.
        message: String,
    },
    /// A default that is not there.
    #[error(
        "there is no environment {} to be the default; write the id of one, `local` or `none`",
        quoted(default)
    )]
    UnknownDefault {
        /// As written.
        default: String,
    },
    /// `local` is the default, and is excluded.
    #[error("`local` is the default, but `include_local` is false; make it true, or choose another default")]
    ExcludedDefault,
}

/// What kind of value a key has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ValueType {
    /// One string.
    String,
    /// A list of them.
    Strings,
    /// A table of them.
    Table,
    /// One of two words.
    Flag,
}

/// A variable with a value that is no address.
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
    /// What is wrong, and what would be right.
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
    /// Tells whether the file can be used all the same.
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
        None => "check its spelling, unless another program reads it".to_owned(),
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
