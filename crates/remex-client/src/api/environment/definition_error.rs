//! Errors in an environments file or a variable: where, what, and what to do.
//!
//! Never shows a token. Start at [`DefinitionErrors`].

use std::{fmt, io, path::PathBuf};

use remex_base::quote::quoted;

use super::InvalidId;
use crate::transport::tls::InvalidPin;

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
#[non_exhaustive]
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
#[non_exhaustive]
pub enum DefinitionErrorKind {
    /// The file is not TOML.
    Syntax {
        /// The message of the TOML parser.
        message: String,
    },
    /// A value has the wrong type.
    Type {
        /// The key.
        key: &'static str,
        /// The expected type.
        expected: ValueType,
    },
    /// `environments` is not a list of tables.
    NoTables,
    /// An unknown key, which is ignored.
    UnknownKey {
        /// The key.
        key: String,
        /// A known key with a similar spelling.
        meant: Option<&'static str>,
    },
    /// A value is empty.
    Empty {
        /// The key.
        key: &'static str,
    },
    /// A value contains a NUL byte, which the operating system does not accept.
    Zero {
        /// The key.
        key: &'static str,
    },
    /// A path starts with `~`.
    Tilde {
        /// The key.
        key: &'static str,
    },
    /// An environment has no id.
    NoId,
    /// An environment has an invalid id.
    Id(InvalidId),
    /// An environment has the id `local` or `none`.
    Reserved,
    /// Two environments have the same id.
    Duplicate {
        /// The line of the first one.
        first: usize,
    },
    /// An environment has no server.
    NoServer,
    /// An environment has two servers.
    TwoServers,
    /// A key is valid only with another one.
    Misplaced {
        /// The key.
        key: &'static str,
        /// `url` or `program`.
        with: &'static str,
    },
    /// A URL is invalid.
    Url {
        /// As written, without the user and password.
        url: String,
        /// What is wrong with it.
        reason: String,
        /// What is valid.
        hint: String,
    },
    /// A TLS key is set for a server that does not use TLS.
    NeedsTls {
        /// The key.
        key: &'static str,
    },
    /// A client certificate has no key, or a key no certificate.
    Alone {
        /// The key that is present.
        key: &'static str,
        /// The key that is missing.
        with: &'static str,
    },
    /// A pin is invalid.
    Pin(InvalidPin),
    /// The name of a variable is invalid.
    Variable {
        /// The name.
        name: String,
    },
    /// A timeout is invalid.
    Seconds {
        /// The key.
        key: &'static str,
    },
    /// An environment has two tokens.
    TwoTokens,
    /// A token is set for a server that does not use one.
    SocketToken,
    /// A token contains characters that a header cannot contain.
    Token,
    /// A token file is empty.
    EmptyTokenFile {
        /// The file.
        path: PathBuf,
    },
    /// A token file cannot be used.
    TokenFile {
        /// The file.
        path: PathBuf,
        /// Why.
        error: FileError,
    },
    /// The default is not defined.
    UnknownDefault {
        /// As written.
        default: String,
    },
    /// `local` is the default, but excluded.
    ExcludedDefault,
}

/// Why a file cannot be read, or is unsafe to use.
///
/// ```
/// use std::io;
/// use remex_client::environment::FileError;
///
/// let error = FileError::from(io::Error::from(io::ErrorKind::NotFound));
/// assert_eq!((error.kind, error.hint), (io::ErrorKind::NotFound, None));
/// ```
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub struct FileError {
    /// The kind of failure, for programs.
    pub kind: io::ErrorKind,
    /// The failure, for people.
    pub message: String,
    /// What to do about it, if that is known.
    pub hint: Option<String>,
}

impl FileError {
    /// Creates an error without a hint.
    ///
    /// ```
    /// use std::io;
    /// use remex_client::environment::FileError;
    ///
    /// let error = FileError::new(io::ErrorKind::PermissionDenied, "others can read it").hint("run `chmod 600` on it");
    /// assert_eq!((&*error.message, error.hint.as_deref()), ("others can read it", Some("run `chmod 600` on it")));
    /// ```
    pub fn new(kind: io::ErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), hint: None }
    }

    /// Adds what to do about it.
    ///
    /// See [`FileError::new`] for an example.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }
}

/// The type of a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
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
#[non_exhaustive]
#[error("{}; {}", self.message(), self.hint)]
pub struct InvalidVariable {
    /// The variable.
    pub variable: String,
    /// Its value, without the user and password.
    pub value: String,
    /// What is wrong with it.
    pub reason: String,
    /// What is valid.
    pub hint: String,
}

impl InvalidVariable {
    /// Returns what is wrong, without what is valid.
    ///
    /// ```
    /// use remex_client::environment::Definitions;
    ///
    /// let error = Definitions::from_url(Some("ws://host:0"), "REMEX_URL").unwrap_err();
    /// assert_eq!(
    ///     error.message(),
    ///     "REMEX_URL: cannot use `ws://host:0` as a server: the port is not a number from 1 to 65535"
    /// );
    /// assert_eq!(error.hint, "write `ws://host:port` or `wss://host:port`");
    /// ```
    pub fn message(&self) -> String {
        format!("{}: cannot use {} as a server: {}", self.variable, quoted(&self.value), self.reason)
    }
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

impl DefinitionError {
    /// Returns where the error is and what is wrong, without what to do about it.
    ///
    /// ```
    /// use std::path::Path;
    /// use remex_client::environment::Definitions;
    ///
    /// let error = Definitions::parse("default = ''", Path::new("environments.toml")).unwrap_err().0.remove(0);
    /// assert_eq!(error.message(), "environments.toml:1: `default` is empty");
    /// assert_eq!(error.hint().as_deref(), Some("give it a value, or remove it"));
    /// ```
    pub fn message(&self) -> String {
        let Self { file, line, environment, kind } = self;
        let subject =
            environment.as_ref().map_or_else(String::new, |id| format!("environment {}: ", quoted(id)));
        format!("{}:{line}: {subject}{}", file.display(), kind.message())
    }

    /// Returns what to do about it, if that is known.
    ///
    /// See [`DefinitionError::message`] for an example.
    pub fn hint(&self) -> Option<String> {
        self.kind.hint()
    }
}

impl fmt::Display for DefinitionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message())?;
        self.hint().map_or(Ok(()), |hint| write!(f, "; {hint}"))
    }
}

impl From<io::Error> for FileError {
    fn from(error: io::Error) -> Self {
        Self { kind: error.kind(), message: error.to_string(), hint: None }
    }
}

impl fmt::Display for FileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)?;
        self.hint.as_ref().map_or(Ok(()), |hint| write!(f, "; {hint}"))
    }
}

impl fmt::Display for DefinitionErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message())?;
        self.hint().map_or(Ok(()), |hint| write!(f, "; {hint}"))
    }
}

impl DefinitionErrorKind {
    /// Returns what is wrong, without what to do about it.
    ///
    /// ```
    /// use remex_client::environment::DefinitionErrorKind;
    ///
    /// let kind = DefinitionErrorKind::NoId;
    /// assert_eq!(kind.message(), "an environment has no id");
    /// assert_eq!(kind.hint().as_deref(), Some("add `id = \"…\"`"));
    /// ```
    pub fn message(&self) -> String {
        match self {
            Self::Syntax { message } => message.clone(),
            Self::Type { key, expected } => format!("`{key}` is not {expected}"),
            Self::NoTables => "`environments` is not a list of tables".to_owned(),
            Self::UnknownKey { key, .. } => format!("unknown key {} is ignored", quoted(key)),
            Self::Empty { key } => format!("`{key}` is empty"),
            Self::Zero { key } => format!("`{key}` contains a NUL byte"),
            Self::Tilde { key } => format!("`{key}` starts with `~`, which is not expanded"),
            Self::NoId => "an environment has no id".to_owned(),
            Self::Id(error) => error.message(),
            Self::Reserved => "the ids `local` and `none` are reserved".to_owned(),
            Self::Duplicate { first } => format!("the id is already used in line {first}"),
            Self::NoServer => "`url` or `program` is missing".to_owned(),
            Self::TwoServers => "both `url` and `program` are set".to_owned(),
            Self::Misplaced { key, with } => format!("`{key}` is valid only with `{with}`"),
            Self::Url { url, reason, .. } => format!("cannot use {} as a server: {reason}", quoted(url)),
            Self::NeedsTls { key } => format!("`{key}` is valid only with a `wss://` address"),
            Self::Alone { key, with } => format!("`{key}` is set without `{with}`"),
            Self::Pin(error) => format!("cannot use `pin`: {}", error.message()),
            Self::Variable { name } => {
                format!("`env` contains the invalid variable name {}", quoted(name))
            }
            Self::Seconds { key } => format!("`{key}` is not a positive number of seconds"),
            Self::TwoTokens => "both `auth_bearer_token` and `auth_bearer_token_file` are set".to_owned(),
            Self::SocketToken => "only a WebSocket uses a token".to_owned(),
            Self::Token => "the token contains white space or invalid characters".to_owned(),
            Self::EmptyTokenFile { path } => format!("the token file `{}` is empty", path.display()),
            Self::TokenFile { path, error } => {
                format!("cannot use the token file `{}`: {}", path.display(), error.message)
            }
            Self::UnknownDefault { default } => {
                format!("the default environment {} is not defined", quoted(default))
            }
            Self::ExcludedDefault => "`local` is the default, but `include_local` is false".to_owned(),
        }
    }

    /// Returns what to do about it, if that is known.
    ///
    /// See [`DefinitionErrorKind::message`] for an example.
    pub fn hint(&self) -> Option<String> {
        let hint = match self {
            // The message of the parser says it.
            Self::Syntax { .. } => return None,
            Self::Type { key, expected } => return Some(format!("write `{key} = {}`", expected.example())),
            Self::NoTables => "begin each environment with `[[environments]]`",
            Self::UnknownKey { meant: Some(meant), .. } => return Some(format!("did you mean `{meant}`?")),
            Self::UnknownKey { meant: None, .. } => {
                "check the spelling, unless the key is for another program"
            }
            Self::Empty { .. } => "give it a value, or remove it",
            Self::Tilde { .. } => "write an absolute path, or one relative to the directory of this file",
            Self::NoId => "add `id = \"…\"`",
            Self::Id(error) => error.hint(),
            Self::Reserved | Self::Variable { .. } => "rename it",
            Self::Duplicate { .. } => "rename one of them",
            Self::NoServer => "add one of them",
            Self::TwoServers | Self::TwoTokens => "keep one of them",
            Self::Zero { .. } | Self::Misplaced { .. } | Self::SocketToken => "remove it",
            Self::Url { hint, .. } => hint,
            Self::NeedsTls { .. } => "change `url`, or remove it",
            Self::Alone { with, .. } => return Some(format!("add `{with}`")),
            Self::Pin(error) => error.hint(),
            Self::Seconds { key: "reconnect_timeout_sec" } => {
                "write a number such as `3600`, or `\"forever\"`"
            }
            Self::Seconds { .. } => "write `5` or `0.5`, or remove it",
            Self::Token => "check it",
            Self::EmptyTokenFile { .. } => "write the token to it",
            Self::TokenFile { error, .. } => return error.hint.clone(),
            Self::UnknownDefault { .. } => "set it with `remex env default NAME`, or ignore it with `--here`",
            Self::ExcludedDefault => "make it true, or choose another default",
        };
        Some(hint.to_owned())
    }

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
        matches!(self, Self::UnknownKey { .. })
    }
}

impl DefinitionErrors {
    /// Returns what is wrong: a single error without what to do about it, several errors on one line each.
    ///
    /// ```
    /// use std::path::Path;
    /// use remex_client::environment::Definitions;
    ///
    /// let errors = Definitions::parse("default = ''", Path::new("environments.toml")).unwrap_err();
    /// assert_eq!(errors.message(), "environments.toml:1: `default` is empty");
    /// assert_eq!(errors.hint().as_deref(), Some("give it a value, or remove it"));
    /// ```
    pub fn message(&self) -> String {
        match self.0.as_slice() {
            [error] => error.message(),
            _ => self.to_string(),
        }
    }

    /// Returns what to do about a single error, if that is known; of several errors each line says it.
    ///
    /// See [`DefinitionErrors::message`] for an example.
    pub fn hint(&self) -> Option<String> {
        match self.0.as_slice() {
            [error] => error.hint(),
            _ => None,
        }
    }
}

impl fmt::Display for DefinitionErrors {
    /// Writes one line for each.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lines: Vec<_> = self.0.iter().map(ToString::to_string).collect();
        f.write_str(&lines.join("\n"))
    }
}

impl std::error::Error for DefinitionErrors {}
