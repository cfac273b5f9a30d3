//! Errors as the other side sees them: a code, a sentence, and a word that programs can match.
//!
//! Start at [`RpcError`].

use serde::{Deserialize, Deserializer, Serialize, Serializer, ser::SerializeStruct as _};

/// The message is malformed, comes at the wrong moment, or names something that is not there.
pub const INVALID_REQUEST: i64 = -32600;
/// No such method.
pub const METHOD_NOT_FOUND: i64 = -32601;
/// The parameters do not decode or are invalid.
pub const INVALID_PARAMS: i64 = -32602;
/// Something failed while executing.
pub const INTERNAL_ERROR: i64 = -32603;
/// A file or file handle is not there.
pub const NOT_FOUND: i64 = -32004;
/// The session is attached to another connection.
pub const SESSION_ATTACHED: i64 = -32010;

/// Messages quote what a peer sent, which may be as long as a message may be.
const MAX_MESSAGE_LEN: usize = 4096;

/// The error of a call: what failed, why, and what to do.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct RpcError {
    /// One of the codes of this module, unless it comes from a foreign server.
    pub code: i64,
    /// For people.
    pub message: String,
    /// For programs: `data.kind`.
    pub kind: ErrorKind,
    /// What to do, where the message has to be the base dialect's own: `data.hint`.
    pub hint: Option<String>,
}

impl RpcError {
    /// Makes an error with the code that usually goes with `kind`; a very long message is cut.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        let mut message = message.into();
        if message.len() > MAX_MESSAGE_LEN {
            let is_boundary = |at: &usize| message.is_char_boundary(*at);
            message.truncate((0..=MAX_MESSAGE_LEN).rev().find(is_boundary).unwrap_or(0));
            message.push('…');
        }
        Self { code: kind.code(), message, kind, hint: None }
    }

    /// Replaces the code.
    pub fn with_code(self, code: i64) -> Self {
        Self { code, ..self }
    }

    /// Adds what to do about it.
    pub fn with_hint(self, hint: impl Into<String>) -> Self {
        Self { hint: Some(hint.into()), ..self }
    }
}

macro_rules! kinds {
    ($($(#[$doc:meta])* $variant:ident = $word:literal, $code:expr;)*) => {
        /// What went wrong, as a stable word.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum ErrorKind {
            $($(#[$doc])* $variant,)*
        }

        impl ErrorKind {
            /// Every kind there is.
            pub const ALL: &[Self] = &[$(Self::$variant,)*];

            /// Returns the word on the wire.
            pub const fn word(self) -> &'static str {
                match self {
                    $(Self::$variant => $word,)*
                }
            }

            /// Returns the code that usually goes with it.
            pub const fn code(self) -> i64 {
                match self {
                    $(Self::$variant => $code,)*
                }
            }
        }
    };
}

kinds! {
    /// The message could not be read.
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
    /// The process is not there yet.
    ProcessStarting = "processStarting", INVALID_REQUEST;
    /// The process id belongs to a start with another `startId`.
    StartIdMismatch = "startIdMismatch", INVALID_REQUEST;
    /// The program is not there.
    ProgramNotFound = "programNotFound", INTERNAL_ERROR;
    /// The program is there but cannot be executed.
    NotExecutable = "notExecutable", INTERNAL_ERROR;
    /// The working directory cannot be used.
    BadCwd = "badCwd", INTERNAL_ERROR;
    /// The session or the host has no room for another process.
    TooManyProcesses = "tooManyProcesses", INTERNAL_ERROR;
    /// The program could not be started for another reason.
    SpawnFailed = "spawnFailed", INTERNAL_ERROR;
    /// A cap would be passed.
    LimitExceeded = "limitExceeded", INVALID_REQUEST;
    /// A file is not there.
    NotFound = "notFound", NOT_FOUND;
    /// A name, number or kind of file that the operation cannot work with.
    InvalidInput = "invalidInput", INVALID_REQUEST;
    /// Something else than a regular file where one is needed.
    NotAFile = "notAFile", INVALID_REQUEST;
    /// Something is there already.
    AlreadyExists = "alreadyExists", INTERNAL_ERROR;
    /// A directory where a file is needed.
    IsADirectory = "isADirectory", INTERNAL_ERROR;
    /// A part of the path is not a directory.
    NotADirectory = "notADirectory", INTERNAL_ERROR;
    /// A directory that is not empty.
    NotEmpty = "notEmpty", INTERNAL_ERROR;
    /// A symbolic link where none is allowed, or links that go in a circle.
    SymbolicLink = "symbolicLink", INTERNAL_ERROR;
    /// The disk, or the user's share of it, is full.
    NoSpace = "noSpace", INTERNAL_ERROR;
    /// Source and destination are on different file systems.
    CrossDevice = "crossDevice", INTERNAL_ERROR;
    /// The content is not what the writer believed.
    ContentChanged = "contentChanged", INVALID_REQUEST;
    /// Another failure of the file system.
    Io = "io", INTERNAL_ERROR;
    /// No such file handle, or it is closed.
    UnknownHandle = "unknownHandle", NOT_FOUND;
    /// The handle, watch or stream id is in use.
    IdInUse = "idInUse", INVALID_REQUEST;
    /// The HTTP exchange failed.
    HttpFailed = "httpFailed", INTERNAL_ERROR;
    /// The operating system refuses.
    PermissionDenied = "permissionDenied", INVALID_REQUEST;
    /// The confinement asked for cannot be enforced.
    SandboxUnavailable = "sandboxUnavailable", INVALID_PARAMS;
    /// The process has no terminal.
    NotATerminal = "notATerminal", INVALID_REQUEST;
    /// The process takes no input, or no longer.
    StdinClosed = "stdinClosed", INVALID_REQUEST;
    /// The client cancelled the request.
    Cancelled = "cancelled", INTERNAL_ERROR;
    /// The server takes no new work.
    ShuttingDown = "shuttingDown", INTERNAL_ERROR;
    /// This server, or this platform, cannot do that.
    NotSupported = "notSupported", INTERNAL_ERROR;
    /// Something broke inside the server.
    Internal = "internal", INTERNAL_ERROR;
    /// A foreign server gave no word, or one that is not known here.
    Other = "other", INTERNAL_ERROR;
}

impl ErrorKind {
    /// Returns the kind with that word, [`ErrorKind::Other`] when there is none.
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
    #[serde(default)]
    data: Option<Extra>,
}

#[derive(Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "ErrorData"))]
struct Extra {
    #[serde(default)]
    kind: Option<ErrorKind>,
    #[serde(default)]
    hint: Option<String>,
}

impl Serialize for RpcError {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let kind = (self.kind != ErrorKind::Other).then_some(self.kind);
        let has_data = kind.is_some() || self.hint.is_some();
        let mut error = serializer.serialize_struct("Error", 2 + usize::from(has_data))?;
        error.serialize_field("code", &self.code)?;
        error.serialize_field("message", &self.message)?;
        if has_data {
            error.serialize_field("data", &ExtraRef { kind, hint: self.hint.as_deref() })?;
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
}

impl<'de> Deserialize<'de> for RpcError {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let Wire { code, message, data } = Wire::deserialize(deserializer)?;
        let Extra { kind, hint } = data.unwrap_or(Extra { kind: None, hint: None });
        Ok(Self { code, message, kind: kind.unwrap_or(ErrorKind::Other), hint })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_word_leads_back_to_its_kind() {
        for kind in ErrorKind::ALL {
            assert_eq!(ErrorKind::from_word(kind.word()), *kind);
        }
        assert_eq!(ErrorKind::from_word("fromTheFuture"), ErrorKind::Other);
    }

    #[test]
    fn an_error_survives_the_wire() {
        let error = RpcError::new(ErrorKind::UnknownProcess, "unknown process id p").with_hint("start it");
        let text = serde_json::to_string(&error).unwrap();
        assert_eq!(
            text,
            r#"{"code":-32600,"message":"unknown process id p","data":{"kind":"unknownProcess","hint":"start it"}}"#
        );
        assert_eq!(serde_json::from_str::<RpcError>(&text).unwrap(), error);
    }

    #[test]
    fn what_a_peer_sent_is_not_echoed_without_end() {
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
}
