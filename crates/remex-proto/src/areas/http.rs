//! HTTP requests that the server makes for its client.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::{Blob, base::lenient::null_as_default};

/// `http/request`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct HttpRequest {
    /// Sent as given.
    pub method: String,
    /// `http` or `https`; a fragment is not sent.
    pub url: String,
    /// Names the stream of the body; unique among the streams of the connection.
    pub request_id: String,
    /// Order and repeats are kept.
    #[serde(default, deserialize_with = "null_as_default")]
    pub headers: Vec<Header>,
    /// The body.
    #[serde(default)]
    pub body_base64: Option<Blob>,
    /// For the whole exchange; absent: no limit. 0 fails at once.
    #[serde(default)]
    pub timeout_ms: Option<u64>,
    /// What to do with a redirect.
    #[serde(default, deserialize_with = "null_as_default")]
    pub redirect_policy: RedirectPolicy,
    /// Sends the body after the answer in [`BodyDelta`]s.
    #[serde(default, deserialize_with = "null_as_default")]
    pub stream_response: bool,
}

/// One header of a request. `Debug` hides its value, which is often a secret.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "HttpHeader"))]
#[serde(rename_all = "camelCase")]
pub struct Header {
    /// Its name.
    pub name: String,
    /// Its value, or the beginning of it.
    pub value: String,
    /// A variable of the server's environment whose value is put behind `value`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value_env_var: Option<String>,
}

impl fmt::Debug for Header {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Header")
            .field("name", &self.name)
            .field("value_env_var", &self.value_env_var)
            .finish_non_exhaustive()
    }
}

/// What to do with a redirect.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum RedirectPolicy {
    /// Follows up to ten.
    #[default]
    Follow,
    /// The redirect itself is the answer.
    Stop,
}

/// The answer to [`HttpRequest`], for any status.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct HttpResponse {
    /// The status code.
    pub status: u16,
    /// Names in lower case; values that are not visible ASCII are left out.
    pub headers: Vec<ResponseHeader>,
    /// The body as received, not decompressed; empty if it is streamed.
    pub body_base64: Blob,
}

/// One header of a response.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct ResponseHeader {
    /// In lower case.
    pub name: String,
    /// Its value.
    pub value: String,
}

impl ResponseHeader {
    /// Creates a header; the name is in lower case.
    pub fn new(name: impl Into<String>, value: impl Into<String>) -> Self {
        Self { name: name.into(), value: value.into() }
    }
}

/// `http/request/bodyDelta`, from the server: the next part of a streamed body.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct BodyDelta {
    /// The request.
    pub request_id: String,
    /// 1, 2, 3 and so on.
    pub seq: u64,
    /// At most 1 MiB, and 64 KiB from this server; empty in the last.
    pub delta_base64: Blob,
    /// This is the last.
    pub done: bool,
    /// Why the body is not complete, in the last.
    pub error: Option<String>,
}
