//! The handshake: the client's name, its session, and the capabilities of both sides.

use std::collections::BTreeSet;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::{
    areas::environment,
    base::lenient::{default_unless_decodable, null_as_default},
};

/// The protocol version in every reply to `initialize`.
pub const PROTOCOL_VERSION: &str = "exec-server.v0";

/// `initialize`, the first request of every connection.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Initialize {
    /// What the client calls itself; may be empty.
    pub client_name: String,
    /// The session to continue, null for a new one.
    #[serde(default, skip_serializing_if = "Resume::is_absent")]
    #[cfg_attr(feature = "schema", schemars(with = "Option<String>"))]
    pub resume_session_id: Resume,
    /// What the client wants beyond the base dialect; unknown words are ignored.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "known_or_absent")]
    pub capabilities: Option<BTreeSet<Capability>>,
    /// With `resumeSessionId`: detach the current controller instead of failing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub takeover: Option<bool>,
    /// How long the session may live without a connection, up to the server's cap.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detach_ttl_ms: Option<u64>,
    /// A name that people can use instead of the id; unique among the identity's sessions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session_name: Option<String>,
}

impl Initialize {
    /// Returns the dialect that the client speaks, judging by the members it sent.
    pub fn dialect(&self) -> Dialect {
        let asks_for_more = self.capabilities.is_some()
            || self.takeover.is_some()
            || self.detach_ttl_ms.is_some()
            || self.session_name.is_some();
        if self.resume_session_id.is_absent() && !asks_for_more { Dialect::V0 } else { Dialect::Current }
    }

    /// Returns whether the client requested `capability`.
    pub fn wants(&self, capability: Capability) -> bool {
        self.capabilities.as_ref().is_some_and(|wanted| wanted.contains(&capability))
    }
}

/// How old the client is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dialect {
    /// `exec-server.v0`: no sessions, so its processes end with the connection.
    V0,
    /// Today's clients and remex's own: the session outlives the connection.
    Current,
}

/// What the member `resumeSessionId` says; its mere presence tells the age of a client.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Resume {
    /// The member is missing: a new session.
    #[default]
    Absent,
    /// The member is null: a new session.
    New,
    /// The id or name of the session to continue.
    Session(String),
}

impl Resume {
    /// Returns the session to continue.
    pub fn session(&self) -> Option<&str> {
        match self {
            Self::Session(id) => Some(id),
            Self::Absent | Self::New => None,
        }
    }

    fn is_absent(&self) -> bool {
        *self == Self::Absent
    }
}

impl Serialize for Resume {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.session().serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Resume {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(Option::deserialize(deserializer)?.map_or(Self::New, Self::Session))
    }
}

macro_rules! capabilities {
    ($($(#[$doc:meta])* $variant:ident = $word:literal;)*) => {
        /// Something beyond the base dialect that a client must ask for.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
        #[cfg_attr(
            feature = "schema",
            derive(schemars::JsonSchema),
            schemars(transform = crate::base::words::open_words)
        )]
        #[non_exhaustive]
        pub enum Capability {
            $($(#[$doc])* #[serde(rename = $word)] $variant,)*
        }

        impl Capability {
            /// All capabilities that this version knows.
            pub const ALL: &[Self] = &[$(Self::$variant,)*];

            /// Returns the name on the wire.
            pub const fn word(self) -> &'static str {
                match self {
                    $(Self::$variant => $word,)*
                }
            }
        }
    };
}

capabilities! {
    /// Notification `process/started`.
    ProcessStarted = "processStarted";
    /// Notification `process/failed`.
    ProcessFailed = "processFailed";
    /// Notification `process/gap`.
    ProcessGap = "processGap";
    /// The client may send `request/cancel`.
    Cancel = "cancel";
    /// The client answers `flow/mark` with `flow/ack` where there is no ping.
    Acks = "acks";
    /// The client reports with `flow/consumed` how much output of each process it has consumed, and with
    /// `flow/bodyConsumed` the body of each HTTP stream.
    Consumed = "consumed";
    /// Messages with bytes travel as binary messages, without base64, both ways.
    BinaryFrames = "binaryFrames";
}

impl Capability {
    /// Returns the capability with this name, if this version knows it.
    pub fn from_word(word: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|capability| capability.word() == word)
    }
}

/// The answer to [`Initialize`].
///
/// A server other than remex may send only `sessionId`, and one of the oldest dialect only `protocolVersion`. Of the other
/// members, those that describe the server count as absent if they do not decode.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "InitializeReply"))]
#[non_exhaustive]
#[serde(rename_all = "camelCase")]
pub struct Reply {
    /// Resumes this session after a disconnect; empty on a server without sessions.
    #[serde(default, deserialize_with = "null_as_default")]
    pub session_id: String,
    /// `exec-server.v0`.
    #[serde(default, deserialize_with = "default_unless_decodable")]
    pub protocol_version: String,
    /// Which program answers.
    #[serde(default, deserialize_with = "default_unless_decodable")]
    pub server: Server,
    /// What is on for this connection, and what the server can do at all.
    #[serde(default, deserialize_with = "default_unless_decodable")]
    pub capabilities: Capabilities,
    /// Whether an existing session was attached.
    #[serde(default, deserialize_with = "null_as_default")]
    pub resumed: bool,
    /// How long the session lives without a connection; null until the server ends.
    #[serde(default)]
    pub detach_ttl_ms: Option<u64>,
    /// What the server allows.
    #[serde(default, deserialize_with = "default_unless_decodable")]
    pub limits: Limits,
    /// What the host is; the same as `environment/info` answers.
    #[serde(default, deserialize_with = "default_unless_decodable", skip_serializing_if = "Option::is_none")]
    pub environment_info: Option<environment::Info>,
}

impl Reply {
    /// Returns whether the server has sessions; one of the oldest dialect has none, and processes end with the connection.
    pub fn has_sessions(&self) -> bool {
        !self.session_id.is_empty()
    }

    /// Creates the least answer: the id of a session.
    pub fn new(session_id: impl Into<String>) -> Self {
        Self {
            session_id: session_id.into(),
            protocol_version: String::new(),
            server: Server::default(),
            capabilities: Capabilities::default(),
            resumed: false,
            detach_ttl_ms: None,
            limits: Limits::default(),
            environment_info: None,
        }
    }
}

/// The server program.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct Server {
    /// `remex` for this one.
    pub name: String,
    /// Its version.
    #[serde(default, deserialize_with = "default_unless_decodable")]
    pub version: String,
}

impl Server {
    /// Creates the name and version of a server.
    pub fn new(name: impl Into<String>, version: impl Into<String>) -> Self {
        Self { name: name.into(), version: version.into() }
    }
}

/// The capabilities enabled on a connection, and those the server supports.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
#[serde(from = "CapabilityWords", into = "CapabilityWords")]
pub struct Capabilities {
    /// Requested and enabled.
    pub enabled: BTreeSet<Capability>,
    /// Supported by the server.
    pub available: BTreeSet<Capability>,
    /// Supported by the server, and unknown to this version.
    pub unknown: BTreeSet<String>,
}

/// [`Capabilities`] on the wire.
#[derive(Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "Capabilities"))]
struct CapabilityWords {
    /// Requested and enabled.
    #[serde(default, deserialize_with = "null_as_default")]
    #[cfg_attr(feature = "schema", schemars(with = "BTreeSet<Capability>"))]
    enabled: Vec<String>,
    /// Supported by the server.
    #[serde(default, deserialize_with = "null_as_default")]
    #[cfg_attr(feature = "schema", schemars(with = "BTreeSet<Capability>"))]
    available: Vec<String>,
}

impl From<CapabilityWords> for Capabilities {
    fn from(words: CapabilityWords) -> Self {
        let known = |words: &[String]| words.iter().filter_map(|word| Capability::from_word(word)).collect();
        Self {
            enabled: known(&words.enabled),
            available: known(&words.available),
            unknown: words
                .available
                .into_iter()
                .filter(|word| Capability::from_word(word).is_none())
                .collect(),
        }
    }
}

impl From<Capabilities> for CapabilityWords {
    fn from(capabilities: Capabilities) -> Self {
        let words =
            |known: &BTreeSet<Capability>| known.iter().map(|known| known.word().to_owned()).collect();
        let mut available: Vec<_> = words(&capabilities.available);
        available.extend(capabilities.unknown);
        Self { enabled: words(&capabilities.enabled), available }
    }
}

/// What a server allows one client; 0 means that the server did not say.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
#[serde(rename_all = "camelCase", default)]
pub struct Limits {
    /// Length of one message, in bytes.
    pub message_bytes: u64,
    /// Processes of one session.
    pub processes: u64,
    /// The most that `output.retainBytes` of a start can ask for.
    pub retain_bytes: u64,
    /// Unanswered requests before the server stops reading.
    pub pending_requests: u64,
    /// Open file handles of one connection.
    pub handles: u64,
}

fn known<'de, D: Deserializer<'de>>(deserializer: D) -> Result<BTreeSet<Capability>, D::Error> {
    let words = Vec::<String>::deserialize(deserializer)?;
    Ok(words.iter().filter_map(|word| Capability::from_word(word)).collect())
}

fn known_or_absent<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<BTreeSet<Capability>>, D::Error> {
    #[derive(Deserialize)]
    struct Known(#[serde(deserialize_with = "known")] BTreeSet<Capability>);

    Ok(Option::<Known>::deserialize(deserializer)?.map(|Known(capabilities)| capabilities))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(params: &str) -> Initialize {
        serde_json::from_str(params).unwrap()
    }

    #[test]
    fn the_members_of_initialize_determine_the_dialect() {
        assert_eq!(parse(r#"{"clientName":"x"}"#).dialect(), Dialect::V0);
        assert_eq!(parse(r#"{"clientName":"x","other":1}"#).dialect(), Dialect::V0);
        for member in [
            r#""resumeSessionId":null"#,
            r#""resumeSessionId":"s""#,
            r#""capabilities":[]"#,
            r#""takeover":false"#,
            r#""detachTtlMs":0"#,
            r#""sessionName":"n""#,
        ] {
            let params = format!(r#"{{"clientName":"x",{member}}}"#);
            assert_eq!(parse(&params).dialect(), Dialect::Current, "{params}");
        }
    }

    #[test]
    fn unknown_capabilities_are_ignored() {
        let initialize = parse(r#"{"clientName":"","capabilities":["timeTravel","cancel","acks"]}"#);
        assert_eq!(initialize.capabilities, Some([Capability::Cancel, Capability::Acks].into()));
        assert!(initialize.wants(Capability::Cancel) && !initialize.wants(Capability::ProcessGap));
        assert!(serde_json::from_str::<Initialize>(r#"{"clientName":"","capabilities":[1]}"#).is_err());
    }

    #[test]
    fn initialize_round_trips() {
        for text in [
            r#"{"clientName":"x"}"#,
            r#"{"clientName":"x","resumeSessionId":null}"#,
            r#"{"clientName":"x","resumeSessionId":"s","capabilities":["processStarted"],"takeover":true,"detachTtlMs":5,"sessionName":"n"}"#,
        ] {
            assert_eq!(serde_json::to_string(&parse(text)).unwrap(), text);
        }
    }

    #[test]
    fn an_answer_of_the_base_dialect_suffices() {
        let reply: Reply = serde_json::from_str(r#"{"sessionId":"s"}"#).unwrap();
        assert_eq!(reply.session_id, "s");
        assert!(!reply.resumed);
    }

    #[test]
    fn unknown_capabilities_of_a_server_are_kept() {
        let text = r#"{"enabled":["cancel"],"available":["cancel","acks","timeTravel"]}"#;
        let capabilities: Capabilities = serde_json::from_str(text).unwrap();
        assert_eq!(capabilities.available, [Capability::Cancel, Capability::Acks].into());
        assert_eq!(capabilities.unknown, ["timeTravel".to_owned()].into());
        assert_eq!(serde_json::to_string(&capabilities).unwrap(), text);
    }

    #[test]
    fn details_of_a_server_that_do_not_decode_count_as_absent() {
        let members = ["protocolVersion", "server", "capabilities", "limits", "environmentInfo"];
        for member in members {
            for value in ["null", "7", "[[]]", r#"{"name":1e999,"shell":"sh"}"#] {
                let text = format!(r#"{{"sessionId":"s","{member}":{value}}}"#);
                let reply: Reply = serde_json::from_str(&text).unwrap();
                assert_eq!(reply, serde_json::from_str(r#"{"sessionId":"s"}"#).unwrap(), "{text}");
            }
        }
        assert!(serde_json::from_str::<Reply>(r#"{"sessionId":7}"#).is_err());
        assert!(serde_json::from_str::<Reply>(r#"{"sessionId":"s","detachTtlMs":"long"}"#).is_err());
    }
}
