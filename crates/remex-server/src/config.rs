//! The configuration of a server: plain values; nothing here reads files or the environment.

use std::{ffi::OsString, path::PathBuf, sync::Arc, time::Duration};

use remex_proto::{ErrorKind, RpcError, environment, state::output_log};
use remex_rpc::tls::PeerCertificate;

use crate::{
    audit::AuditConfig,
    scope::Scopes,
    token::{CredentialFiles, TokenGrant},
};

/// Everything a [`Server`](crate::Server) needs to know.
#[derive(Clone, Debug)]
pub struct Config {
    /// Limits and timeouts.
    pub limits: Limits,
    /// The environment that an `envPolicy` may pass on to children.
    pub host_env: Vec<(OsString, OsString)>,
    /// Who may connect, and what each may do.
    pub auth: Auth,
    /// Facts about the host that clients may see.
    pub host: HostInfo,
    /// Proxies for HTTP requests.
    pub proxies: Proxies,
    /// Root certificates for HTTP requests.
    pub trust: Trust,
    /// Where to record what clients do, if anywhere.
    pub audit: Option<AuditConfig>,
    /// Who may read `/metrics` on the listeners of clients.
    pub metrics: MetricsAccess,
}

/// Who may read `/metrics`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum MetricsAccess {
    /// Clients whose credential has the scope `metrics`.
    #[default]
    Authenticated,
    /// Everyone who can reach the listener.
    Open,
}

/// Facts about the host that clients may see.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostInfo {
    /// The answer to `environment/info`.
    pub info: environment::Info,
    /// The host name.
    pub hostname: String,
    /// The user's Codex configuration directory, if set explicitly (`CODEX_HOME`).
    pub codex_home: Option<PathBuf>,
    /// The administrators' Codex configuration directory.
    pub codex_system_dir: PathBuf,
}

/// Proxies for HTTP requests, named like the usual environment variables.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Proxies {
    /// For `http` URLs: `http_proxy`.
    pub http: Option<String>,
    /// For `https` URLs: `HTTPS_PROXY`.
    pub https: Option<String>,
    /// For both, unless they have a proxy of their own: `ALL_PROXY`.
    pub all: Option<String>,
    /// Hosts to connect to directly: `NO_PROXY`.
    pub none: Option<String>,
}

/// Root certificates that HTTP requests trust.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub enum Trust {
    /// The host's root certificates.
    #[default]
    System,
    /// Only these certificates.
    Only {
        /// A file with certificates: `SSL_CERT_FILE`.
        file: Option<PathBuf>,
        /// Directories with such files: `SSL_CERT_DIR`.
        directories: Vec<PathBuf>,
    },
}

/// Who may connect, and what each may do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Auth {
    /// What the server's own user may do over unix sockets, and over loopback while there are no tokens.
    pub owner: Scopes,
    /// Other users of this host that may connect in the same ways.
    pub users: Vec<UserGrant>,
    /// Tokens; with any, every client on a TCP port must present one, unless it has a certificate.
    pub tokens: Vec<TokenGrant>,
    /// Further tokens, and the keys of signed ones, in files that are read again when they change.
    pub files: Option<Arc<CredentialFiles>>,
    /// Which of the client certificates that TLS has verified may connect.
    pub certificates: CertificatePolicy,
    /// Browser origins that may connect.
    pub origins: Arc<[String]>,
    /// Names that the `Host` header may have besides IP addresses, `localhost`, and those of the host and the
    /// TLS certificate.
    pub hosts: Vec<String>,
}

impl Default for Auth {
    /// Admits the server's own user only.
    fn default() -> Self {
        Auth {
            owner: Scopes::all(),
            users: Vec::new(),
            tokens: Vec::new(),
            files: None,
            certificates: CertificatePolicy::Any(Scopes::all()),
            origins: Arc::default(),
            hosts: Vec::new(),
        }
    }
}

impl Auth {
    /// Returns whether clients on TCP ports need a bearer token, unless they have a certificate.
    pub fn requires_bearer(&self) -> bool {
        !self.tokens.is_empty() || self.files.is_some()
    }
}

/// A user of this host that may connect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UserGrant {
    /// The user id.
    pub uid: u32,
    /// The user name, for logs.
    pub name: String,
    /// What it may do.
    pub scopes: Scopes,
}

/// Which verified client certificates may connect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CertificatePolicy {
    /// All of them, with these scopes.
    Any(Scopes),
    /// Only those listed.
    Only(Vec<CertificateGrant>),
}

/// A client certificate that may connect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CertificateGrant {
    /// Its SPIFFE URI, DNS name or common name.
    pub name: String,
    /// The SHA-256 digest of its public key, if only that key may connect.
    pub key_sha256: Option<[u8; 32]>,
    /// What it may do.
    pub scopes: Scopes,
}

impl CertificateGrant {
    /// Returns whether the grant is for this certificate.
    pub(crate) fn matches(&self, certificate: &PeerCertificate) -> bool {
        self.name == certificate.name && self.key_sha256.is_none_or(|key| key == certificate.key_sha256)
    }
}

/// Limits and timeouts of a server; the bound of every queue is defined here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The longest message, in bytes.
    pub message_bytes: usize,
    /// The longest id, name or label that a client may choose, in bytes. The server stores them and repeats
    /// them in every event.
    pub id_bytes: usize,
    /// Requests of one connection that run at once; pending reads and waits do not count.
    pub concurrent_requests: usize,
    /// Unanswered requests of one connection before the server stops reading from it.
    pub unanswered_requests: usize,
    /// Bytes of messages with waiting requests, per connection, before the server stops reading from it.
    pub waiting_request_bytes: usize,
    /// Waits for text in output that one connection may have at once; each uses at most about 1 MiB.
    pub output_waits: usize,
    /// Bytes of answers waiting for one connection before the server stops reading from it.
    pub waiting_answer_bytes: usize,
    /// File requests of one connection that run at once; if all of them hang, others proceed after a second.
    pub file_requests: usize,
    /// File requests of one session that wait for others on the same paths; beyond this, a request that would
    /// have to wait is refused.
    pub waiting_file_requests: usize,
    /// Large answers about files that one connection builds at once, in bytes; a longer one is built alone.
    pub making_bytes: usize,
    /// Long answers that all connections are building or sending, in bytes: whole files longer than
    /// `making_bytes`, and output, lists of processes and HTTP bodies of more than 1 MiB.
    pub answer_bytes: usize,
    /// Messages of more than 1 MiB that all connections are receiving, in bytes.
    pub incoming_bytes: usize,
    /// Bytes of messages with waiting requests, for all connections; beyond it, connections with more than 1
    /// MiB are not read.
    pub server_request_bytes: usize,
    /// How long a peer may take for 1 MiB of a long message, body or answer while others wait for the memory
    /// reserved for it.
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
    /// How long a client may read nothing while an answer, or the rest of one, waits to be sent; then its
    /// connection is closed.
    pub stalled_writer: Duration,
    /// Bytes of output after which the server requests an acknowledgement.
    pub mark_bytes: usize,
    /// Bytes accepted for the stdin of one process that it has not read yet.
    pub stdin_bytes: usize,
    /// Write ids remembered per process.
    pub write_ids: usize,
    /// Start ids remembered per session.
    pub start_ids: usize,
    /// Retention of one process unless the client chooses another.
    pub retain: output_log::Limits,
    /// The maximum for `output.retainBytes`.
    pub retain_bytes_max: usize,
    /// Retained output of all processes of a session, in bytes.
    pub session_retain_bytes: usize,
    /// Retained output of all sessions, in bytes.
    pub server_retain_bytes: usize,
    /// How long a closed process stays readable unless the client chooses another time.
    pub closed_ttl: Duration,
    /// The maximum for `output.retainMs`.
    pub closed_ttl_max: Duration,
    /// Processes of one session that are not closed.
    pub processes: usize,
    /// Closed processes of one session that are still readable; beyond it, the oldest is forgotten early.
    pub closed_processes: usize,
    /// Bytes that they keep besides their output (ids, command lines, labels); beyond it, the oldest is
    /// forgotten early.
    pub closed_bytes: usize,
    /// Sessions of the whole server.
    pub sessions: usize,
    /// Connections of the whole server, including those that have not finished their HTTP handshake.
    pub connections: usize,
    /// How long a session survives without a connection unless the client chooses another time.
    pub detach_ttl: Duration,
    /// The maximum for `detachTtlMs`; `None` means until the server ends.
    pub detach_ttl_max: Option<Duration>,
    /// How long the server holds unacknowledged output after a disconnect, pausing the child.
    pub resume_hold: Duration,
    /// How long the holder of a session may stay silent before a resume by another client takes the session.
    pub holder_silence: Duration,
    /// How long a WebSocket may be idle before the server sends a ping.
    pub keep_alive: Duration,
    /// How long processes get between TERM and KILL when the server shuts down.
    pub shutdown_grace: Duration,
}

impl Limits {
    /// Rejects an id, name or label longer than [`id_bytes`](Self::id_bytes).
    pub(crate) fn check_id(&self, what: &str, text: &str) -> Result<(), RpcError> {
        if text.len() <= self.id_bytes {
            return Ok(());
        }
        let message = format!("{what} has {} bytes; at most {} are allowed", text.len(), self.id_bytes);
        Err(RpcError::new(ErrorKind::InvalidParams, message))
    }
}

impl Default for Limits {
    /// Uses the values of the base dialect where it defines them.
    fn default() -> Self {
        const MIB: usize = 1 << 20;
        Limits {
            message_bytes: 64 * MIB,
            id_bytes: 1 << 10,
            concurrent_requests: 256,
            unanswered_requests: 1024,
            // One message of maximum length, and as much again for those that wait behind it.
            waiting_request_bytes: 128 * MIB,
            output_waits: 64,
            waiting_answer_bytes: 16 * MIB,
            file_requests: 64,
            waiting_file_requests: 4096,
            making_bytes: 8 * MIB,
            // Two of the longest files that can be read whole.
            answer_bytes: 1024 * MIB + 2 * MIB,
            // Sixteen messages of maximum length.
            incoming_bytes: 1024 * MIB,
            server_request_bytes: 1024 * MIB,
            slow_transfer: Duration::from_secs(10),
            handles: 128,
            watches: 128,
            http_requests: 128,
            http_streams: 128,
            // Encoded as base64, it is well below the longest message.
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
