//! What the server asks and tells its client about the hosts that a process wants to reach.
//!
//! Both are about processes that were started with a `networkProxy`. Start at [`PolicyRequest`].

use serde::{Deserialize, Serialize};

/// The longest reason of a [`Decision`], in bytes.
pub const MAX_REASON: usize = 1024;

/// The longest host of a [`Target`], in bytes.
pub const MAX_HOST: usize = 253;

/// The longest `processId` of a process whose client decides about hosts, in bytes.
pub const MAX_PROCESS_ID: usize = 256;

/// The reason of a denial that the client did not give.
pub const NOT_ALLOWED: &str = "not_allowed";

/// `network/policyRequest`: the server asks whether a process may reach a host that no rule allows or denies.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct PolicyRequest {
    /// The process.
    pub process_id: String,
    /// What it wants to reach.
    pub request: Target,
}

/// What a process wants to reach.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "NetworkTarget"))]
#[serde(rename_all = "camelCase")]
pub struct Target {
    /// How it asked for it.
    pub protocol: Protocol,
    /// A name, or an address without brackets; 1 to 253 bytes without blanks and control characters.
    pub host: String,
    /// The TCP port.
    pub port: u16,
}

impl Target {
    /// Returns whether a client can be asked about it.
    pub fn is_valid(&self) -> bool {
        let is_plain = |letter: char| !letter.is_whitespace() && !letter.is_control();
        (1..=MAX_HOST).contains(&self.host.len()) && self.host.chars().all(is_plain)
    }
}

/// How a process asks for a host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(
    feature = "schema",
    derive(schemars::JsonSchema),
    schemars(rename = "NetworkProtocol", transform = crate::base::words::open_words)
)]
#[non_exhaustive]
#[serde(rename_all = "snake_case")]
pub enum Protocol {
    /// A plain HTTP request.
    Http,
    /// A tunnel by HTTP CONNECT.
    HttpsConnect,
    /// A connection by SOCKS5.
    Socks5Tcp,
    /// Datagrams by SOCKS5.
    Socks5Udp,
    /// A way that this version does not know.
    #[serde(other)]
    Unknown,
}

/// The answer to [`PolicyRequest`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct PolicyReply {
    /// What the client has decided.
    pub decision: Decision,
}

/// Whether a process may reach a host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "NetworkDecision"))]
#[serde(tag = "type", rename_all = "camelCase")]
pub enum Decision {
    /// It may, this time.
    Allow,
    /// It may not.
    Deny {
        /// Why, in up to 1,024 bytes without control characters.
        reason: String,
    },
    /// It may not, until a person has been asked.
    Ask {
        /// Why, in up to 1,024 bytes without control characters.
        reason: String,
    },
}

impl Decision {
    /// Returns the denial of a client that has not decided.
    pub fn not_allowed() -> Self {
        Self::Deny { reason: NOT_ALLOWED.to_owned() }
    }

    /// Returns the decision, or a denial if its reason is too long or has control characters.
    #[must_use]
    pub fn checked(self) -> Self {
        match &self {
            Self::Deny { reason } | Self::Ask { reason }
                if reason.len() > MAX_REASON || reason.chars().any(char::is_control) =>
            {
                Self::not_allowed()
            }
            Self::Allow | Self::Deny { .. } | Self::Ask { .. } => self,
        }
    }
}

/// `network/policyDecision`: the server tells what was decided about a host that a process asked for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct PolicyDecision {
    /// The process.
    pub process_id: Box<str>,
    /// When, in RFC 3339.
    pub timestamp: Box<str>,
    /// What the decision is about: `domain` for the host, `non_domain` for the way in which it was asked for.
    pub scope: Box<str>,
    /// `allow`, `deny` or `ask`.
    pub decision: Box<str>,
    /// What has decided: `baseline_policy` for the rules of the start, `mode_guard` for its mode, `decider` for the client.
    pub source: Box<str>,
    /// Why; `allowed` for what may be reached.
    pub reason: Box<str>,
    /// How the process asked for the host.
    pub protocol: Protocol,
    /// The host.
    pub host: Box<str>,
    /// The TCP port.
    pub port: u16,
    /// The method of an HTTP request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub method: Option<Box<str>>,
    /// Who asked, if that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client: Option<Box<str>>,
    /// Whether the client has allowed what no rule allows.
    #[serde(default)]
    pub policy_override: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decisions_are_spelled_as_in_the_base_dialect() {
        let deny = |reason: &str| Decision::Deny { reason: reason.to_owned() };
        for (text, decision) in [
            (r#"{"type":"allow"}"#, Decision::Allow),
            (r#"{"type":"deny","reason":"no"}"#, deny("no")),
            (r#"{"type":"ask","reason":""}"#, Decision::Ask { reason: String::new() }),
        ] {
            assert_eq!(serde_json::from_str::<Decision>(text).unwrap(), decision);
            assert_eq!(serde_json::to_string(&decision).unwrap(), text);
            assert_eq!(decision.clone().checked(), decision);
        }
        for reason in ["x".repeat(MAX_REASON + 1), "a\nb".to_owned(), "\u{85}".to_owned()] {
            assert_eq!(deny(&reason).checked(), Decision::not_allowed());
            assert_eq!(Decision::Ask { reason }.checked(), Decision::not_allowed());
        }
        assert!(serde_json::from_str::<Decision>(r#"{"type":"deny"}"#).is_err());
    }

    #[test]
    fn a_client_is_asked_only_about_hosts_that_can_be_shown() {
        let is_valid = |host: &str| {
            Target { protocol: Protocol::HttpsConnect, host: host.to_owned(), port: 1 }.is_valid()
        };
        assert!(is_valid("a.example") && is_valid("::1") && is_valid(&"a".repeat(MAX_HOST)));
        for host in ["", "a b", "a\n", "a\u{0}", "a\u{a0}b", &"a".repeat(MAX_HOST + 1)] {
            assert!(!is_valid(host), "{host:?}");
        }
        assert_eq!(serde_json::to_value(Protocol::Socks5Tcp).unwrap(), "socks5_tcp");
    }
}
