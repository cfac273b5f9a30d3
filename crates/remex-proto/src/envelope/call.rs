//! The table of all methods and notifications.
//!
//! A new method is one line here; the server does not compile until its `match` over [`Call`]
//! handles the new variant.

use std::{any::TypeId, collections::BTreeMap};

use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::value::RawValue;

pub use crate::base::method::{Family, Method, Note, Origin, Request, Takes};
use crate::{
    ErrorKind, RpcError,
    areas::{discovery, environment, fs, http, initialize, network, process, session},
    base::flow,
    envelope::{message, request},
};

/// The empty answer `{}`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Empty {}

macro_rules! methods {
    ($($variant:ident $name:literal $family:ident $origin:ident $takes:ident
        $params:ty => $reply:ty;)*) => {
        /// One request, decoded.
        #[derive(Debug, Clone, PartialEq, Eq)]
        #[allow(missing_docs)] // The parameter types carry the documentation.
        #[allow(clippy::large_enum_variant)] // Few are alive at a time, and starts are not rare.
        pub enum Call {
            $($variant($params),)*
        }

        /// All methods.
        pub const METHODS: &[Method] = &[$(Method {
            name: $name,
            family: Family::$family,
            origin: Origin::$origin,
            takes: Takes::$takes,
        },)*];

        impl Call {
            /// Decodes a request; absent params count as an empty object.
            pub fn parse(method: &str, params: Option<&str>) -> Result<Self, ParseError> {
                match method {
                    $($name => Ok(Self::$variant(decode($name, Takes::$takes, params)?)),)*
                    _ => Err(ParseError::UnknownMethod { method: method.to_owned() }),
                }
            }

            /// Returns the method's name.
            pub const fn method(&self) -> &'static str {
                match self {
                    $(Self::$variant(_) => $name,)*
                }
            }

            /// Appends the request without its id; see [`message::write_request_body`].
            pub fn write_body(&self, out: &mut Vec<u8>) {
                match self {
                    $(Self::$variant(params) => message::write_request_body(out, params),)*
                }
            }

            /// Returns what the method needs before it may be called.
            pub const fn family(&self) -> Family {
                match self {
                    $(Self::$variant(_) => Family::$family,)*
                }
            }

            /// Returns the type of the reply, for transports that pass it on without encoding it.
            pub fn reply_type(&self) -> TypeId {
                match self {
                    $(Self::$variant(_) => TypeId::of::<$reply>(),)*
                }
            }
        }

        $(
            impl Request for $params {
                const METHOD: &'static str = $name;
                type Reply = $reply;
            }

            impl From<$params> for Call {
                fn from(params: $params) -> Self {
                    Self::$variant(params)
                }
            }
        )*

        /// Returns the schemas of params and answer, in the order of [`METHODS`].
        #[cfg(feature = "schema")]
        pub(crate) fn method_schemas(
            params: &mut schemars::SchemaGenerator,
            replies: &mut schemars::SchemaGenerator,
        ) -> Vec<(schemars::Schema, schemars::Schema)> {
            vec![$((params.subschema_for::<$params>(), replies.subschema_for::<$reply>()),)*]
        }
    };
}

methods! {
    Initialize            "initialize"             Handshake         Base  Params  initialize::Initialize  => initialize::Reply;
    ProcessStart          "process/start"          Exec              Base  Params  process::Start          => process::Started;
    ProcessRead           "process/read"           Exec              Base  Params  process::Read           => process::ReadReply;
    ProcessWrite          "process/write"          Exec              Base  Params  process::Write          => process::WriteReply;
    ProcessSignal         "process/signal"         Exec              Base  Params  process::Signal         => Empty;
    ProcessTerminate      "process/terminate"      Exec              Base  Params  process::Terminate      => process::Terminated;
    ProcessRestart        "process/restart"        Exec              Remex Params  process::StartAgain     => process::Started;
    ProcessCloseStdin     "process/closeStdin"     Exec              Remex Params  process::CloseStdin     => Empty;
    ProcessRelease        "process/release"        Exec              Remex Params  process::Release        => Empty;
    ProcessForget         "process/forget"         Exec              Remex Params  process::Forget         => Empty;
    ProcessResize         "process/resize"         Exec              Remex Params  process::Resize         => Empty;
    ProcessWait           "process/wait"           Exec              Remex Params  process::Wait           => process::Waited;
    ProcessSnapshot       "process/snapshot"       Exec              Remex Params  process::Snapshot       => process::SnapshotReply;
    ProcessList           "process/list"           Exec              Remex Params  process::List           => process::Listing;
    ProcessSeek           "process/seek"           Exec              Remex Params  process::Seek           => process::Sought;
    ProcessCollect        "process/collect"        Exec              Remex Params  process::Collect        => process::Collected;
    SessionList           "session/list"           Exec              Remex Params  session::List           => session::Listing;
    SessionEnd            "session/end"            Exec              Remex Params  session::End            => Empty;
    SessionObserve        "session/observe"        Exec              Remex Params  session::Observe        => Empty;
    SessionUnobserve      "session/unobserve"      Exec              Remex Params  session::Unobserve      => Empty;
    FsReadFile            "fs/readFile"            Filesystem        Base  Params  fs::ReadFile            => fs::ReadFileReply;
    FsWriteFile           "fs/writeFile"           Filesystem        Base  Params  fs::WriteFile           => fs::WriteFileReply;
    FsCreateDirectory     "fs/createDirectory"     Filesystem        Base  Params  fs::CreateDirectory     => Empty;
    FsGetMetadata         "fs/getMetadata"         Filesystem        Base  Params  fs::GetMetadata         => fs::Metadata;
    FsCanonicalize        "fs/canonicalize"        Filesystem        Base  Params  fs::Canonicalize        => fs::CanonicalizeReply;
    FsReadDirectory       "fs/readDirectory"       Filesystem        Base  Params  fs::ReadDirectory       => fs::DirectoryListing;
    FsWalk                "fs/walk"                Filesystem        Base  Params  fs::Walk                => fs::WalkReply;
    FsRemove              "fs/remove"              Filesystem        Base  Params  fs::Remove              => Empty;
    FsCopy                "fs/copy"                Filesystem        Base  Params  fs::Copy                => Empty;
    FsOpen                "fs/open"                Filesystem        Base  Params  fs::Open                => fs::OpenReply;
    FsReadBlock           "fs/readBlock"           Filesystem        Base  Params  fs::ReadBlock           => fs::Block;
    FsWriteBlock          "fs/writeBlock"          Filesystem        Base  Params  fs::WriteBlock          => Empty;
    FsClose               "fs/close"               Filesystem        Base  Params  fs::Close               => Empty;
    FsWatchMissing        "fs/watchMissing"        Filesystem        Base  Params  fs::WatchMissing        => fs::WatchMissingReply;
    FsRename              "fs/rename"              Filesystem        Remex Params  fs::Rename              => Empty;
    FsSetPermissions      "fs/setPermissions"      Filesystem        Remex Params  fs::SetPermissions      => fs::SetPermissionsReply;
    FsSetTimes            "fs/setTimes"            Filesystem        Remex Params  fs::SetTimes            => Empty;
    FsSymlink             "fs/symlink"             Filesystem        Remex Params  fs::Symlink             => Empty;
    FsReadLink            "fs/readLink"            Filesystem        Remex Params  fs::ReadLink            => fs::LinkTarget;
    FsHash                "fs/hash"                Filesystem        Remex Params  fs::HashFile            => fs::FileHash;
    FsSearch              "fs/search"              Filesystem        Remex Params  fs::SearchFiles         => fs::SearchReply;
    FsWatch               "fs/watch"               Filesystem        Remex Params  fs::Watch               => Empty;
    FsUnwatch             "fs/unwatch"             Filesystem        Remex Params  fs::Unwatch             => Empty;
    HttpRequest           "http/request"           Http              Base  Params  http::HttpRequest       => http::HttpResponse;
    EnvironmentInfo       "environment/info"       EnvironmentInfo   Base  Nothing environment::GetInfo    => environment::Info;
    EnvironmentStatus     "environment/status"     EnvironmentStatus Base  Nothing environment::GetStatus  => environment::StatusReply;
    EnvironmentConfigRead "environmentConfig/read" EnvironmentConfig Base  Params  environment::ReadConfig => environment::ConfigReply;
    CapabilityRootsDiscover "capabilityRoots/discoverV1" CapabilityDiscovery Base Params discovery::DiscoverRoots => discovery::DiscoverRootsReply;
    CapabilitiesDiscover    "capabilities/discoverV2"    CapabilityDiscovery Base Params discovery::Discover      => discovery::DiscoverReply;
}

macro_rules! notes {
    ($(#[$doc:meta])* $set:ident, $table:ident, $schemas:ident:
        $($variant:ident $name:literal $origin:ident $takes:ident $params:ty;)*) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq)]
        #[allow(missing_docs)] // The parameter types carry the documentation.
        pub enum $set {
            $($variant($params),)*
        }

        #[doc = concat!("The name and origin of every [`", stringify!($set), "`].")]
        pub const $table: &[(&str, Origin)] = &[$(($name, Origin::$origin),)*];

        impl $set {
            /// Appends the notification; see [`message::write_notification`].
            pub fn write(&self, out: &mut Vec<u8>) {
                match self {
                    $(Self::$variant(params) => message::write_notification(out, params),)*
                }
            }

            /// Decodes a notification.
            pub fn parse(method: &str, params: Option<&str>) -> Result<Self, ParseError> {
                match method {
                    $($name => Ok(Self::$variant(decode($name, Takes::$takes, params)?)),)*
                    _ => Err(ParseError::UnknownMethod { method: method.to_owned() }),
                }
            }
        }

        $(
            impl Note for $params {
                const METHOD: &'static str = $name;
            }

            impl From<$params> for $set {
                fn from(params: $params) -> Self {
                    Self::$variant(params)
                }
            }
        )*

        #[doc = concat!("Returns the schemas of the params, in the order of [`", stringify!($table), "`].")]
        #[cfg(feature = "schema")]
        pub(crate) fn $schemas(params: &mut schemars::SchemaGenerator) -> Vec<schemars::Schema> {
            vec![$(params.subschema_for::<$params>(),)*]
        }
    };
}

/// `initialized`: the client has seen the answer to `initialize`. It may repeat.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Initialized {}

notes! {
    /// One notification from the client, decoded.
    ClientNote, CLIENT_NOTES, client_note_schemas:
    Initialized      "initialized"       Base  Anything Initialized;
    RequestCancel    "request/cancel"    Remex Params   request::Cancel;
    FlowAck          "flow/ack"          Remex Params   flow::Ack;
    FlowConsumed     "flow/consumed"     Remex Params   flow::Consumed;
    FlowBodyConsumed "flow/bodyConsumed" Remex Params   flow::BodyConsumed;
}

notes! {
    /// One notification from the server, decoded.
    ServerNote, SERVER_NOTES, server_note_schemas:
    ProcessOutput    "process/output"         Base  Params process::Output;
    ProcessExited    "process/exited"         Base  Params process::Exited;
    ProcessClosed    "process/closed"         Base  Params process::Closed;
    ProcessStarted   "process/started"        Remex Params process::StartedNote;
    ProcessFailed    "process/failed"         Remex Params process::Failed;
    ProcessGap       "process/gap"            Remex Params process::Gap;
    SessionEnded     "session/ended"          Remex Params session::Ended;
    HttpBodyDelta    "http/request/bodyDelta" Base  Params http::BodyDelta;
    FsMissingChanged "fs/missingChanged"      Base  Params fs::MissingChanged;
    FsChanged        "fs/changed"             Remex Params fs::Changed;
    FlowMark         "flow/mark"              Remex Params flow::Mark;
    NetworkPolicyDecision "network/policyDecision" Base Params network::PolicyDecision;
}

/// The name and origin of every request from the server.
pub const SERVER_METHODS: &[(&str, Origin)] = &[(network::PolicyRequest::METHOD, Origin::Base)];

impl Request for network::PolicyRequest {
    const METHOD: &'static str = "network/policyRequest";
    type Reply = network::PolicyReply;
}

/// Returns the schemas of params and answer, in the order of [`SERVER_METHODS`].
#[cfg(feature = "schema")]
pub(crate) fn server_method_schemas(
    params: &mut schemars::SchemaGenerator,
    replies: &mut schemars::SchemaGenerator,
) -> Vec<(schemars::Schema, schemars::Schema)> {
    vec![(params.subschema_for::<network::PolicyRequest>(), replies.subschema_for::<network::PolicyReply>())]
}

/// Why a request or notification did not decode.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ParseError {
    /// No such method or notification.
    #[error("unknown method `{method}`")]
    UnknownMethod {
        /// The name that was sent.
        method: String,
    },
    /// The params do not fit the method.
    #[error("{reason}")]
    InvalidParams {
        /// The method.
        method: &'static str,
        /// Why they do not fit.
        reason: String,
        /// The top-level member with the error.
        member: Option<String>,
    },
}

impl From<ParseError> for RpcError {
    fn from(error: ParseError) -> Self {
        let message = error.to_string();
        match error {
            ParseError::UnknownMethod { method } => {
                let hint = if CLIENT_NOTES.iter().any(|(name, _)| *name == method) {
                    format!("`{method}` is a notification: send it without an id")
                } else {
                    let names: Vec<_> = METHODS.iter().map(|method| method.name).collect();
                    format!("the methods are {}", names.join(", "))
                };
                Self::new(ErrorKind::UnknownMethod, message).with_hint(hint)
            }
            ParseError::InvalidParams { method, member, .. } => {
                let subject = member.map_or(String::new(), |member| format!(" member `{member}` of"));
                Self::new(ErrorKind::InvalidParams, message)
                    .with_hint(format!("check{subject} the params of `{method}`"))
            }
        }
    }
}

fn decode<T: DeserializeOwned>(
    method: &'static str,
    takes: Takes,
    params: Option<&str>,
) -> Result<T, ParseError> {
    let params = params.filter(|params| *params != "null" && takes != Takes::Anything).unwrap_or("{}");
    let invalid = |reason: String, member| Err(ParseError::InvalidParams { method, reason, member });
    // Derived types also decode an array as the members in order; the protocol allows only objects.
    if !params.starts_with('{') {
        return invalid("params must be an object".to_owned(), None);
    }
    if takes == Takes::Nothing && !is_empty_object(params) {
        return invalid(format!("`{method}` takes no params"), None);
    }
    match serde_json::from_str(params) {
        Ok(decoded) => Ok(decoded),
        Err(error) => invalid(reason(&error), member(params, &error)),
    }
}

fn is_empty_object(params: &str) -> bool {
    params.strip_prefix('{').is_some_and(|rest| rest.trim_start() == "}")
}

/// Returns the error without its position, which refers to the params and not to the whole message.
fn reason(error: &serde_json::Error) -> String {
    let mut text = error.to_string();
    let position = format!(" at line {} column {}", error.line(), error.column());
    if text.ends_with(&position) {
        text.truncate(text.len() - position.len());
    }
    text
}

/// Returns the top-level member that was being decoded when the error occurred.
fn member(params: &str, error: &serde_json::Error) -> Option<String> {
    let line = params.split_inclusive('\n').take(error.line().checked_sub(1)?);
    let error_at = line.map(str::len).sum::<usize>() + error.column();
    let members: BTreeMap<String, &RawValue> = serde_json::from_str(params).ok()?;
    members
        .into_iter()
        .map(|(name, value)| (value.get().as_ptr() as usize - params.as_ptr() as usize, name, value))
        .find(|(start, _, value)| (*start..=start + value.get().len()).contains(&error_at))
        .map(|(_, name, _)| name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::error::{INVALID_PARAMS, METHOD_NOT_FOUND};

    fn refused(method: &str, params: Option<&str>) -> RpcError {
        Call::parse(method, params).unwrap_err().into()
    }

    #[test]
    fn every_name_in_the_table_is_known_and_stands_there_once() {
        for (index, method) in METHODS.iter().enumerate() {
            let unknown = ParseError::UnknownMethod { method: method.name.to_owned() };
            assert_ne!(Call::parse(method.name, None), Err(unknown));
            assert!(METHODS[..index].iter().all(|other| other.name != method.name));
        }
    }

    #[test]
    fn an_unknown_method_is_named() {
        let error = refused("process/dance", Some("[]"));
        assert_eq!((error.code, error.kind), (METHOD_NOT_FOUND, ErrorKind::UnknownMethod));
        assert!(error.message.contains("`process/dance`"));
        assert!(error.hint.is_some_and(|hint| hint.contains("process/start")));
        let hint = refused("initialized", None).hint;
        assert_eq!(hint.as_deref(), Some("`initialized` is a notification: send it without an id"));
    }

    #[test]
    fn a_missing_member_is_named() {
        for params in [None, Some("null"), Some("{}"), Some(r#"{"argv":[]}"#)] {
            let error = refused("process/start", params);
            assert_eq!((error.code, error.message.as_str()), (INVALID_PARAMS, "missing field `processId`"));
        }
    }

    #[test]
    fn the_member_that_is_wrong_is_named() {
        let error = refused("process/read", Some("{\"processId\":\"p\",\n\"waitMs\": -1, \"x\": 2}"));
        assert_eq!(error.message, "invalid value: integer `-1`, expected u64");
        assert_eq!(error.hint.as_deref(), Some("check member `waitMs` of the params of `process/read`"));
        let start = r#"{"processId":"p","argv":[],"env":{},"cwd":"a","tty":false}"#;
        let error = refused("process/start", Some(start));
        assert_eq!(error.message, "invalid URI: relative URL without a base");
        assert_eq!(error.hint.as_deref(), Some("check member `cwd` of the params of `process/start`"));
    }

    #[test]
    fn a_method_without_params_takes_nothing() {
        for params in [None, Some("null"), Some("{}"), Some("{ }")] {
            assert_eq!(Call::parse("environment/status", params), Ok(environment::GetStatus {}.into()));
        }
        for params in [r#"{"a":1}"#, "[]", "1"] {
            assert_eq!(refused("environment/status", Some(params)).code, INVALID_PARAMS);
        }
        assert_eq!(Call::parse("process/list", None), Ok(process::List::default().into()));
    }

    #[test]
    fn params_have_names() {
        assert_eq!(refused("initialize", Some(r#"["x"]"#)).message, "params must be an object");
    }

    #[test]
    fn the_params_of_initialized_are_ignored() {
        for params in [None, Some("null"), Some("{}"), Some("[1]"), Some("7"), Some(r#"{"a":{}}"#)] {
            assert_eq!(ClientNote::parse("initialized", params), Ok(Initialized {}.into()), "{params:?}");
        }
        assert!(ClientNote::parse("process/start", None).is_err());
        assert_eq!(
            ClientNote::parse("request/cancel", Some(r#"{"id":"7"}"#)),
            Ok(request::Cancel { id: crate::RequestId::Text("7".into()) }.into())
        );
    }
}
