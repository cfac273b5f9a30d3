//! The description of a session by its server.

use remex_proto::session as wire;

/// A session in a listing.
///
/// See [`Client::sessions`](crate::Client::sessions) for an example.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct SessionInfo {
    /// The id that resumes it.
    pub session_id: String,
    /// Its name, which can be used instead of the id.
    pub name: Option<String>,
    /// Whose session it is, such as `owner` or `token:ci`.
    pub identity: String,
    /// The name of the client that attached last.
    pub client_name: String,
    /// Whether a client is attached now.
    pub is_attached: bool,
    /// When it lost its client, in milliseconds since 1970.
    pub detached_at_ms: Option<u64>,
    /// When it expires unless a client resumes it, in milliseconds since 1970.
    pub expires_at_ms: Option<u64>,
    /// How many processes it has, including ended ones that are still remembered.
    pub processes: u64,
}

impl From<wire::Entry> for SessionInfo {
    fn from(entry: wire::Entry) -> Self {
        Self {
            session_id: entry.session_id,
            name: entry.name,
            identity: entry.identity,
            client_name: entry.client_name,
            is_attached: entry.attached,
            detached_at_ms: entry.detached_at_ms,
            expires_at_ms: entry.expires_at_ms,
            processes: entry.processes,
        }
    }
}
