//! The handshake: the client's name, its session, and the capabilities of both sides.

use std::collections::BTreeSet;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::environment;

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

/// Something beyond the base dialect that a client must ask for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum Capability {
    /// Notification `process/started`.
    ProcessStarted,
    /// Notification `process/failed`.
    ProcessFailed,
    /// Notification `process/gap`.
    ProcessGap,
    /// The client may send `request/cancel`.
    Cancel,
    /// The client answers `flow/mark` with `flow/ack` where there is no ping.
    Acks,
    /// The client reports with `flow/consumed` how much output of each process it has consumed, and with
    /// `flow/bodyConsumed` the body of each HTTP stream.
    Consumed,
}

impl Capability {
    /// Every capability there is.
    pub const ALL: [Self; 6] = [
        Self::ProcessStarted,
        Self::ProcessFailed,
        Self::ProcessGap,
        Self::Cancel,
        Self::Acks,
        Self::Consumed,
    ];
}

/// The answer to [`Initialize`].
///
/// A server other than remex may send only `sessionId`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "InitializeReply"))]
#[serde(rename_all = "camelCase")]
pub struct Reply {
    /// Resumes this session after a cut.
    pub session_id: String,
    /// Always [`PROTOCOL_VERSION`](crate::PROTOCOL_VERSION).
    #[serde(default)]
    pub protocol_version: String,
    /// Which program answers.
    #[serde(default)]
    pub server: Server,
    /// What is on for this connection, and what the server can do at all.
    #[serde(default)]
    pub capabilities: Capabilities,
    /// Whether an existing session was attached.
    #[serde(default)]
    pub resumed: bool,
    /// How long the session lives without a connection; null until the server ends.
    #[serde(default)]
    pub detach_ttl_ms: Option<u64>,
    /// What the server allows.
    #[serde(default)]
    pub limits: Limits,
    /// What the host is; the same as `environment/info` answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub environment_info: Option<environment::Info>,
}

/// The server program.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Server {
    /// `remex` for this one.
    pub name: String,
    /// Its version.
    pub version: String,
}

/// The capabilities enabled on a connection, and those the server supports.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Capabilities {
    /// Requested and enabled.
    #[serde(default, deserialize_with = "known")]
    pub enabled: BTreeSet<Capability>,
    /// Supported by the server.
    #[serde(default, deserialize_with = "known")]
    pub available: BTreeSet<Capability>,
}

/// What a server allows one client; 0 means that the server did not say.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
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
    use serde::de::{IntoDeserializer as _, value::StrDeserializer};

    let words = Vec::<String>::deserialize(deserializer)?;
    let parse = |word: &String| {
        let word: StrDeserializer<'_, serde::de::value::Error> = word.as_str().into_deserializer();
        Capability::deserialize(word).ok()
    };
    Ok(words.iter().filter_map(parse).collect())
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
    fn the_members_of_initialize_tell_the_dialect() {
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
        let initialize = parse(r#"{"clientName":"","capabilities":["binaryFrames","cancel","acks"]}"#);
        assert_eq!(initialize.capabilities, Some([Capability::Cancel, Capability::Acks].into()));
        assert!(initialize.wants(Capability::Cancel) && !initialize.wants(Capability::ProcessGap));
        assert!(serde_json::from_str::<Initialize>(r#"{"clientName":"","capabilities":[1]}"#).is_err());
    }

    #[test]
    fn what_a_client_sends_is_what_the_server_reads() {
        for text in [
            r#"{"clientName":"x"}"#,
            r#"{"clientName":"x","resumeSessionId":null}"#,
            r#"{"clientName":"x","resumeSessionId":"s","capabilities":["processStarted"],"takeover":true,"detachTtlMs":5,"sessionName":"n"}"#,
        ] {
            assert_eq!(serde_json::to_string(&parse(text)).unwrap(), text);
        }
    }

    #[test]
    fn an_answer_of_the_base_dialect_is_enough() {
        let reply: Reply = serde_json::from_str(r#"{"sessionId":"s"}"#).unwrap();
        assert_eq!(reply.session_id, "s");
        assert!(!reply.resumed);
    }
}
