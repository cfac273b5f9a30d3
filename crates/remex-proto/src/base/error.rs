//! Errors on the wire: a code, a message for people, and a kind that programs can match.
//!
//! Start at [`RpcError`].

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer, ser::SerializeStruct as _};

use crate::base::lenient::default_unless_decodable;

/// The message is malformed, out of order, or names something that does not exist.
pub const INVALID_REQUEST: i64 = -32600;
/// No such method.
pub const METHOD_NOT_FOUND: i64 = -32601;
/// The parameters do not decode or are invalid.
pub const INVALID_PARAMS: i64 = -32602;
/// Something failed while executing.
pub const INTERNAL_ERROR: i64 = -32603;
/// No such file or file handle.
pub const NOT_FOUND: i64 = -32004;
/// The session is attached to another connection.
pub const SESSION_ATTACHED: i64 = -32010;

/// Messages quote the peer, which may send strings of any length.
const MAX_MESSAGE_LEN: usize = 4096;

/// The error of a call: what failed, why, and what to do.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub struct RpcError {
    /// One of the codes of this module, unless the server is not remex.
    pub code: i64,
    /// What failed and why, for people.
    pub message: String,
    /// The kind for programs: `data.kind`.
    pub kind: ErrorKind,
    /// What to do about it, for people: `data.hint`.
    pub hint: Option<String>,
    /// What could not be started, if the operating system refused it; the message does not repeat it.
    pub start: Option<Box<FailedStart>>,
    /// Whether the request was for a process that was restarted since: `data.restarted`.
    pub restarted: bool,
}

/// What could not be started.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct FailedStart {
    /// The program: `data.program`.
    pub program: String,
    /// The directory in which it could not be started, if that is why: `data.cwd`.
    pub cwd: Option<String>,
}

impl RpcError {
    /// Creates an error with the usual code of `kind`; a very long message is truncated.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        let message = truncated(message.into());
        Self { code: kind.code(), message, kind, hint: None, start: None, restarted: false }
    }

    /// Replaces the kind, not the code.
    pub fn with_kind(self, kind: ErrorKind) -> Self {
        Self { kind, ..self }
    }

    /// Replaces the code.
    pub fn with_code(self, code: i64) -> Self {
        Self { code, ..self }
    }

    /// Adds what to do about it.
    pub fn with_hint(self, hint: impl Into<String>) -> Self {
        Self { hint: Some(hint.into()), ..self }
    }

    /// Adds the program that could not be started, and the directory if that is why; very long names are truncated.
    pub fn with_start(self, program: impl Into<String>, cwd: Option<String>) -> Self {
        let start = FailedStart { program: truncated(program.into()), cwd: cwd.map(truncated) };
        Self { start: Some(Box::new(start)), ..self }
    }

    /// Says that the request was for a process that was restarted since.
    pub fn with_restarted(self) -> Self {
        Self { restarted: true, ..self }
    }

    /// Returns what failed and why, the program that could not be started included.
    ///
    /// ```
    /// use remex_proto::{ErrorKind, RpcError};
    ///
    /// let error = RpcError::new(ErrorKind::ProgramNotFound, "No such file or directory (os error 2)");
    /// let text = error.with_start("frob", None).text();
    /// assert_eq!(text, "cannot start `frob`: No such file or directory (os error 2)");
    /// ```
    pub fn text(&self) -> String {
        let Some(FailedStart { program, cwd }) = self.start.as_deref() else { return self.message.clone() };
        match cwd {
            None => format!("cannot start `{program}`: {}", self.message),
            Some(cwd) => format!("cannot start `{program}` in `{cwd}`: {}", self.message),
        }
    }
}

fn truncated(mut text: String) -> String {
    if text.len() > MAX_MESSAGE_LEN {
        let is_boundary = |at: &usize| text.is_char_boundary(*at);
        text.truncate((0..=MAX_MESSAGE_LEN).rev().find(is_boundary).unwrap_or(0));
        text.push('…');
    }
    text
}

impl fmt::Display for RpcError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text())?;
        self.hint.as_ref().map_or(Ok(()), |hint| write!(f, "; {hint}"))
    }
}

macro_rules! kinds {
    ($($(#[$doc:meta])* $variant:ident = $word:literal, $code:expr;)*) => {
        /// What went wrong, as a stable word.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum ErrorKind {
            $($(#[$doc])* $variant,)*
        }

        impl ErrorKind {
            /// All kinds.
            pub const ALL: &[Self] = &[$(Self::$variant,)*];

            /// Returns the name on the wire.
            pub const fn word(self) -> &'static str {
                match self {
                    $(Self::$variant => $word,)*
                }
            }

            /// Returns the usual code of errors of this kind.
            pub const fn code(self) -> i64 {
                match self {
                    $(Self::$variant => $code,)*
                }
            }
        }
    };
}

kinds! {
    /// The message could not be parsed.
    Malformed = "malformed", INVALID_REQUEST;
    /// The call came before the handshake was complete, or `initialize` came twice.
    Handshake = "handshake", INVALID_REQUEST;
    /// No such method.
    UnknownMethod = "unknownMethod", METHOD_NOT_FOUND;
    /// The parameters do not decode or are invalid.
    InvalidParams = "invalidParams", INVALID_PARAMS;
    /// No such session, or it has ended.
    UnknownSession = "unknownSession", INVALID_REQUEST;
    /// Another connection controls the session.
    SessionAttached = "sessionAttached", SESSION_ATTACHED;
    /// Another live session of the identity has that name.
    SessionNameTaken = "sessionNameTaken", INVALID_REQUEST;
    /// No such process, or it has been forgotten.
    UnknownProcess = "unknownProcess", INVALID_REQUEST;
    /// The process id is in use.
    ProcessExists = "processExists", INVALID_REQUEST;
    /// The process is still starting.
    ProcessStarting = "processStarting", INVALID_REQUEST;
    /// The process id belongs to a start with another `startId`.
    StartIdMismatch = "startIdMismatch", INVALID_REQUEST;
    /// The program does not exist.
    ProgramNotFound = "programNotFound", INTERNAL_ERROR;
    /// The program exists but cannot be executed.
    NotExecutable = "notExecutable", INTERNAL_ERROR;
    /// The working directory cannot be used.
    BadCwd = "badCwd", INTERNAL_ERROR;
    /// The session or the host has no room for another process.
    TooManyProcesses = "tooManyProcesses", INTERNAL_ERROR;
    /// The program could not be started for another reason.
    SpawnFailed = "spawnFailed", INTERNAL_ERROR;
    /// A limit would be exceeded.
    LimitExceeded = "limitExceeded", INVALID_REQUEST;
    /// The file does not exist.
    NotFound = "notFound", NOT_FOUND;
    /// The operation does not support this name, number or type of file.
    InvalidInput = "invalidInput", INVALID_REQUEST;
    /// Not a regular file, where one is required.
    NotAFile = "notAFile", INVALID_REQUEST;
    /// The path exists already.
    AlreadyExists = "alreadyExists", INTERNAL_ERROR;
    /// A directory, where a file is required.
    IsADirectory = "isADirectory", INTERNAL_ERROR;
    /// A component of the path is not a directory.
    NotADirectory = "notADirectory", INTERNAL_ERROR;
    /// The directory is not empty.
    NotEmpty = "notEmpty", INTERNAL_ERROR;
    /// A symbolic link where none is allowed, or a loop of links.
    SymbolicLink = "symbolicLink", INTERNAL_ERROR;
    /// The disk is full, or the user's quota is exceeded.
    NoSpace = "noSpace", INTERNAL_ERROR;
    /// Source and destination are on different file systems.
    CrossDevice = "crossDevice", INTERNAL_ERROR;
    /// The content does not match the `ifMatch` of the writer.
    ContentChanged = "contentChanged", INVALID_REQUEST;
    /// Another file system error.
    Io = "io", INTERNAL_ERROR;
    /// No such file handle, or it is closed.
    UnknownHandle = "unknownHandle", NOT_FOUND;
    /// The handle, watch or stream id is in use.
    IdInUse = "idInUse", INVALID_REQUEST;
    /// The HTTP exchange failed.
    HttpFailed = "httpFailed", INTERNAL_ERROR;
    /// The operating system denied the operation.
    PermissionDenied = "permissionDenied", INVALID_REQUEST;
    /// The requested sandbox cannot be enforced.
    SandboxUnavailable = "sandboxUnavailable", INVALID_PARAMS;
    /// The server cannot run the process as the user that the request names.
    UserUnavailable = "userUnavailable", INVALID_PARAMS;
    /// The process has no terminal.
    NotATerminal = "notATerminal", INVALID_REQUEST;
    /// The process has no standard input, or it is closed.
    StdinClosed = "stdinClosed", INVALID_REQUEST;
    /// The client cancelled the request.
    Cancelled = "cancelled", INTERNAL_ERROR;
    /// The server is shutting down and accepts no new work.
    ShuttingDown = "shuttingDown", INTERNAL_ERROR;
    /// This server or platform does not support the operation.
    NotSupported = "notSupported", INTERNAL_ERROR;
    /// A defect of the server.
    Internal = "internal", INTERNAL_ERROR;
    /// No kind, or one that this version does not know.
    Other = "other", INTERNAL_ERROR;
}

impl ErrorKind {
    /// Returns the kind with this name, or [`ErrorKind::Other`] if it is unknown.
    pub fn from_word(word: &str) -> Self {
        Self::ALL.iter().copied().find(|kind| kind.word() == word).unwrap_or(Self::Other)
    }
}

impl Serialize for ErrorKind {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.word())
    }
}

impl<'de> Deserialize<'de> for ErrorKind {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(Self::from_word(&String::deserialize(deserializer)?))
    }
}

/// The shape of an error on the wire.
#[derive(Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "Error"))]
pub(crate) struct Wire {
    code: i64,
    message: String,
    /// Omitted when empty.
    #[serde(default, deserialize_with = "default_unless_decodable")]
    data: Option<Extra>,
}

#[derive(Default, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "ErrorData"))]
struct Extra {
    #[serde(default, deserialize_with = "default_unless_decodable")]
    kind: Option<ErrorKind>,
    #[serde(default, deserialize_with = "default_unless_decodable")]
    hint: Option<String>,
    #[serde(default, deserialize_with = "default_unless_decodable")]
    program: Option<String>,
    #[serde(default, deserialize_with = "default_unless_decodable")]
    cwd: Option<String>,
    #[serde(default, deserialize_with = "default_unless_decodable")]
    restarted: bool,
}

impl Serialize for RpcError {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let kind = (self.kind != ErrorKind::Other).then_some(self.kind);
        let data = ExtraRef {
            kind,
            hint: self.hint.as_deref(),
            program: self.start.as_ref().map(|start| &*start.program),
            cwd: self.start.as_ref().and_then(|start| start.cwd.as_deref()),
            restarted: self.restarted,
        };
        let has_data = kind.is_some() || data.hint.is_some() || data.program.is_some() || data.restarted;
        let mut error = serializer.serialize_struct("Error", 2 + usize::from(has_data))?;
        error.serialize_field("code", &self.code)?;
        error.serialize_field("message", &self.message)?;
        if has_data {
            error.serialize_field("data", &data)?;
        }
        error.end()
    }
}

#[derive(Serialize)]
struct ExtraRef<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    kind: Option<ErrorKind>,
    #[serde(skip_serializing_if = "Option::is_none")]
    hint: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    program: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cwd: Option<&'a str>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    restarted: bool,
}

impl<'de> Deserialize<'de> for RpcError {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let Wire { code, message, data } = Wire::deserialize(deserializer)?;
        let Extra { kind, hint, program, cwd, restarted } = data.unwrap_or_default();
        let start = program.map(|program| Box::new(FailedStart { program, cwd }));
        Ok(Self { code, message, kind: kind.unwrap_or(ErrorKind::Other), hint, start, restarted })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_round_trips_through_its_name() {
        for kind in ErrorKind::ALL {
            assert_eq!(ErrorKind::from_word(kind.word()), *kind);
        }
        assert_eq!(ErrorKind::from_word("fromTheFuture"), ErrorKind::Other);
    }

    #[test]
    fn an_error_round_trips() {
        let error = RpcError::new(ErrorKind::UnknownProcess, "unknown process id p").with_hint("start it");
        let text = serde_json::to_string(&error).unwrap();
        assert_eq!(
            text,
            r#"{"code":-32600,"message":"unknown process id p","data":{"kind":"unknownProcess","hint":"start it"}}"#
        );
        assert_eq!(serde_json::from_str::<RpcError>(&text).unwrap(), error);
    }

    #[test]
    fn a_failed_start_separates_the_text_of_the_system_from_the_program() {
        let error = RpcError::new(ErrorKind::BadCwd, "Not a directory (os error 20)");
        let error = error.with_start("make", Some("/etc/hosts".to_owned()));
        let text = serde_json::to_string(&error).unwrap();
        assert_eq!(
            text,
            r#"{"code":-32603,"message":"Not a directory (os error 20)","data":{"kind":"badCwd","program":"make","cwd":"/etc/hosts"}}"#
        );
        assert_eq!(serde_json::from_str::<RpcError>(&text).unwrap(), error);
        assert_eq!(error.to_string(), "cannot start `make` in `/etc/hosts`: Not a directory (os error 20)");
    }

    #[test]
    fn a_very_long_message_is_truncated() {
        let error = RpcError::new(ErrorKind::UnknownProcess, "é".repeat(1 << 20));
        assert_eq!(error.message, "é".repeat(2048) + "…");
    }

    #[test]
    fn an_error_of_a_foreign_server_has_no_data() {
        let text = r#"{"code":-1,"message":"no"}"#;
        let error: RpcError = serde_json::from_str(text).unwrap();
        assert_eq!(error.kind, ErrorKind::Other);
        assert_eq!(serde_json::to_string(&error).unwrap(), text);
    }

    #[test]
    fn data_of_another_shape_does_not_hide_the_message() {
        for data in ["null", "7", "[]", r#"{"kind":7,"hint":{}}"#, r#"{"kind":null,"size":1e999}"#] {
            let text = format!(r#"{{"code":-32600,"message":"no","data":{data},"more":1}}"#);
            let error: RpcError = serde_json::from_str(&text).unwrap();
            assert_eq!(error, RpcError::new(ErrorKind::Other, "no").with_code(INVALID_REQUEST), "{data}");
        }
        let text = r#"{"code":-1,"message":"no","data":{"kind":"fromTheFuture","hint":"update"}}"#;
        let error: RpcError = serde_json::from_str(text).unwrap();
        assert_eq!((error.kind, error.hint.as_deref()), (ErrorKind::Other, Some("update")));
    }
}
