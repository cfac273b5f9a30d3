//! What a server is told when it is made: plain values, no files and no environment read here.

use std::{ffi::OsString, path::PathBuf, time::Duration};

use remex_proto::{ErrorKind, RpcError, environment, state::output_log};

/// Everything a [`Server`](crate::Server) needs to know.
#[derive(Clone, Debug)]
pub struct Config {
    /// Caps and times.
    pub limits: Limits,
    /// The environment that an `envPolicy` may let through to children.
    pub host_env: Vec<(OsString, OsString)>,
    /// Who gets in over WebSocket.
    pub auth: Auth,
    /// What clients may know about the host.
    pub host: HostInfo,
    /// The way to the web.
    pub proxies: Proxies,
    /// Whose certificates are believed there.
    pub trust: Trust,
}

/// What clients may know about the host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostInfo {
    /// The answer to `environment/info`.
    pub info: environment::Info,
    /// The host's name.
    pub hostname: String,
    /// Where the user's configuration of Codex is, when it was named explicitly (`CODEX_HOME`).
    pub codex_home: Option<PathBuf>,
    /// Where the administrators' configuration of Codex is.
    pub codex_system_dir: PathBuf,
}

/// Which proxies HTTP requests go through, as the usual variables of the environment name them.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Proxies {
    /// For `http` URLs: `http_proxy`.
    pub http: Option<String>,
    /// For `https` URLs: `HTTPS_PROXY`.
    pub https: Option<String>,
    /// For both, where there is none of their own: `ALL_PROXY`.
    pub all: Option<String>,
    /// Hosts that are reached directly: `NO_PROXY`.
    pub none: Option<String>,
}

/// Whose certificates HTTP requests believe.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub enum Trust {
    /// The roots of the host.
    #[default]
    System,
    /// These instead.
    Only {
        /// A file with certificates: `SSL_CERT_FILE`.
        file: Option<PathBuf>,
        /// Directories with such files: `SSL_CERT_DIR`.
        directories: Vec<PathBuf>,
    },
}

/// Who gets in over WebSocket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Auth {
    /// Everybody who can reach the port: for loopback only.
    Open,
    /// Who presents the token with this SHA-256 digest.
    Token([u8; 32]),
}

/// The caps and times of a server; every queue has its bound here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The longest message, in bytes.
    pub message_bytes: usize,
    /// The longest id, name or label that a client may choose, in bytes: they are kept, and repeated in every event.
    pub id_bytes: usize,
    /// Requests of one connection that run at once; parked reads and waits do not count.
    pub concurrent_requests: usize,
    /// Unanswered requests of one connection before the server stops reading from it.
    pub unanswered_requests: usize,
    /// Bytes of messages whose requests wait, per connection, before the server stops reading from it.
    pub waiting_request_bytes: usize,
    /// Waits for a text in the output that one connection may have at once; each keeps about 1 MiB at most.
    pub output_waits: usize,
    /// Bytes of answers waiting for one connection before the server stops reading from it.
    pub waiting_answer_bytes: usize,
    /// File requests of one connection that run at once; when all of them hang, others go on after a second.
    pub file_requests: usize,
    /// File requests of one session that wait for others on the same paths; further ones that would have to are refused.
    pub waiting_file_requests: usize,
    /// Large answers about files that one connection has in the making, in bytes; a longer one is made alone.
    pub making_bytes: usize,
    /// Long answers that all connections have in the making or waiting to be sent, in bytes: whole files longer than
    /// `making_bytes`, and output, lists of processes and bodies of HTTP responses of more than 1 MiB.
    pub answer_bytes: usize,
    /// Messages of more than 1 MiB that all connections are receiving, in bytes.
    pub incoming_bytes: usize,
    /// Bytes of messages whose requests wait, of all connections; one with more than 1 MiB is not read beyond it.
    pub server_request_bytes: usize,
    /// In this time 1 MiB of a long message or body must come, or of long answers be taken, while others wait for the
    /// memory that is kept for it.
    pub slow_transfer: Duration,
    /// Open file handles of one connection.
    pub handles: usize,
    /// Watches of one connection.
    pub watches: usize,
    /// HTTP requests of one connection that run at once, apart from streams; further ones wait.
    pub http_requests: usize,
    /// HTTP streams of one connection.
    pub http_streams: usize,
    /// The longest body of a response that is not streamed.
    pub http_body_bytes: usize,
    /// How long a connection may take no byte while an answer waits, or the rest of one, before it is closed.
    pub stalled_writer: Duration,
    /// After how many bytes of output an acknowledgement is asked for.
    pub mark_bytes: usize,
    /// Bytes accepted for the stdin of one process and not yet taken by it.
    pub stdin_bytes: usize,
    /// Write ids remembered per process.
    pub write_ids: usize,
    /// Start ids remembered per session.
    pub start_ids: usize,
    /// Retention of one process unless the client asks for another.
    pub retain: output_log::Limits,
    /// The most a client may ask for with `output.retainBytes`.
    pub retain_bytes_max: usize,
    /// Output retained for all processes of a session, in bytes.
    pub session_retain_bytes: usize,
    /// Output retained for all sessions, in bytes.
    pub server_retain_bytes: usize,
    /// How long a closed process stays readable unless the client asks for another time.
    pub closed_ttl: Duration,
    /// The most a client may ask for with `output.retainMs`.
    pub closed_ttl_max: Duration,
    /// Processes of one session that have not closed.
    pub processes: usize,
    /// Closed processes of one session that are still readable; the oldest is forgotten early beyond it.
    pub closed_processes: usize,
    /// What they keep beside their output (ids, command lines, labels), in bytes; the same happens beyond it.
    pub closed_bytes: usize,
    /// Sessions of the whole server.
    pub sessions: usize,
    /// Connections of the whole server, those that have not finished their HTTP handshake included.
    pub connections: usize,
    /// How long a session lives without a connection unless the client asks for another time.
    pub detach_ttl: Duration,
    /// The most a client may ask for with `detachTtlMs`; `None` is until the server ends.
    pub detach_ttl_max: Option<Duration>,
    /// How long after a cut output that the client did not acknowledge is held for it, pausing the child.
    pub resume_hold: Duration,
    /// How long the holder of a session may be silent when somebody else wants to resume it.
    pub holder_silence: Duration,
    /// How long an idle WebSocket stays without a ping.
    pub keep_alive: Duration,
    /// How long processes get between TERM and KILL when the server ends.
    pub shutdown_grace: Duration,
}

impl Limits {
    /// Refuses an id, a name or a label that is longer than [`id_bytes`](Self::id_bytes).
    pub(crate) fn check_id(&self, what: &str, text: &str) -> Result<(), RpcError> {
        if text.len() <= self.id_bytes {
            return Ok(());
        }
        let message = format!("{what} has {} bytes; at most {} are allowed", text.len(), self.id_bytes);
        Err(RpcError::new(ErrorKind::InvalidParams, message))
    }
}

impl Default for Limits {
    /// The base dialect's values where it has them; see each line.
    fn default() -> Self {
        const MIB: usize = 1 << 20;
        Limits {
            message_bytes: 64 * MIB,
            id_bytes: 1 << 10,
            concurrent_requests: 256,
            unanswered_requests: 1024,
            // One message of full length and as much again for those that wait behind it.
            waiting_request_bytes: 128 * MIB,
            output_waits: 64,
            waiting_answer_bytes: 16 * MIB,
            file_requests: 64,
            waiting_file_requests: 4096,
            making_bytes: 8 * MIB,
            // Two of the longest files that are read whole.
            answer_bytes: 1024 * MIB + 2 * MIB,
            // Sixteen of full length.
            incoming_bytes: 1024 * MIB,
            server_request_bytes: 1024 * MIB,
            slow_transfer: Duration::from_secs(10),
            handles: 128,
            watches: 128,
            http_requests: 128,
            http_streams: 128,
            // With base64 it is well below the longest message.
            http_body_bytes: 32 * MIB,
            stalled_writer: Duration::from_secs(30),
            mark_bytes: 64 << 10,
            stdin_bytes: MIB,
            write_ids: 4096,
            start_ids: 16_384,
            retain: output_log::Limits::default(),
            retain_bytes_max: 64 * MIB,
            session_retain_bytes: 256 * MIB,
            server_retain_bytes: 1024 * MIB,
            closed_ttl: Duration::from_secs(30),
            closed_ttl_max: Duration::from_secs(24 * 3600),
            processes: 4096,
            closed_processes: 65_536,
            closed_bytes: 64 * MIB,
            sessions: 4096,
            connections: 4096,
            detach_ttl: Duration::from_secs(30),
            detach_ttl_max: Some(Duration::from_secs(24 * 3600)),
            resume_hold: Duration::from_secs(2),
            holder_silence: Duration::from_secs(2),
            keep_alive: Duration::from_secs(30),
            shutdown_grace: Duration::from_secs(1),
        }
    }
}
