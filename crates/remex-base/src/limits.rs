//! Limits and timeouts: one table from which the type, its defaults, the configuration file and its
//! documentation come.
//!
//! Plain values; nothing here reads files. Start at [`Limits`].

use std::time::Duration;

use remex_proto::{ErrorKind, RpcError, state::output_log};

use crate::clock::millis;

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;

/// The longest time that a limit may have: later points in time cannot be represented everywhere.
const LONGEST: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

/// Times that may be 0; with another one at 0, some task would never sleep.
const MAY_BE_ZERO: [&str; 6] =
    ["closed_ttl", "detach_ttl", "detach_ttl_max", "failed_login_delay", "resume_hold", "shutdown_grace"];

/// What is known about one limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limit {
    /// Its name: the field of [`Limits`] and the key in the configuration file.
    pub name: &'static str,
    /// What it limits, as lines of its documentation.
    pub doc: &'static [&'static str],
    /// What happens when it is reached.
    pub effect: &'static str,
    /// When a new value takes effect.
    pub reload: Reload,
}

/// When a changed value takes effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reload {
    /// For everything that begins after the reload.
    New,
    /// When the server starts again.
    Restart,
}

/// The value of a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LimitValue {
    /// A number of bytes.
    Bytes(usize),
    /// A count.
    Count(usize),
    /// A count; `None` means that there is no limit.
    OptionalCount(Option<usize>),
    /// A time.
    Time(Duration),
    /// A time; `None` means forever.
    OptionalTime(Option<Duration>),
}

/// Why a value cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidLimit {
    /// There is no limit with this name.
    #[error("there is no limit with this name")]
    Unknown,
    /// It is of another type.
    #[error("it has a value of another type")]
    Type,
    /// It is too small.
    #[error("it must not be 0")]
    Zero,
    /// It is too large.
    #[error("it is too large")]
    TooLarge,
}

impl LimitValue {
    /// Returns the value if the server can work with it.
    fn check(self, name: &str) -> Result<Self, InvalidLimit> {
        let (is_zero, is_too_large) = match self {
            // Semaphores count no further than an eighth of what fits.
            LimitValue::Bytes(bytes) => (bytes == 0, bytes > usize::MAX >> 16),
            LimitValue::Count(count) | LimitValue::OptionalCount(Some(count)) => {
                (count == 0, count > u32::MAX as usize)
            }
            LimitValue::Time(time) | LimitValue::OptionalTime(Some(time)) => {
                (time.is_zero() && !MAY_BE_ZERO.contains(&name), time > LONGEST)
            }
            LimitValue::OptionalCount(None) | LimitValue::OptionalTime(None) => (false, false),
        };
        match (is_zero, is_too_large) {
            (true, _) => Err(InvalidLimit::Zero),
            (_, true) => Err(InvalidLimit::TooLarge),
            _ => Ok(self),
        }
    }
}

/// The type of a field for each kind of limit.
macro_rules! field_type {
    (Bytes) => { usize };
    (Count) => { usize };
    (OptionalCount) => { Option<usize> };
    (Time) => { Duration };
    (OptionalTime) => { Option<Duration> };
}

macro_rules! limits {
    ($($(#[doc = $doc:literal])+ $name:ident: $kind:ident = $default:expr, $reload:ident, $effect:literal;)*) => {
        /// Limits and timeouts of a server; the bound of every queue is defined here.
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub struct Limits {
            $($(#[doc = $doc])+ pub $name: field_type!($kind),)*
        }

        impl Limits {
            /// All limits, in the order in which they are documented.
            pub const TABLE: &[Limit] = &[$(Limit {
                name: stringify!($name),
                doc: &[$($doc),+],
                effect: $effect,
                reload: Reload::$reload,
            },)*];

            /// Returns the value of the limit with this name.
            pub fn get(&self, name: &str) -> Option<LimitValue> {
                match name {
                    $(stringify!($name) => Some(LimitValue::$kind(self.$name)),)*
                    _ => None,
                }
            }

            /// Sets the limit with this name.
            ///
            /// # Errors
            ///
            /// If there is no such limit, or it cannot have this value.
            pub fn set(&mut self, name: &str, value: LimitValue) -> Result<(), InvalidLimit> {
                match (name, value.check(name)?) {
                    $((stringify!($name), LimitValue::$kind(value)) => self.$name = value,)*
                    (name, _) if self.get(name).is_some() => return Err(InvalidLimit::Type),
                    _ => return Err(InvalidLimit::Unknown),
                }
                Ok(())
            }
        }

        impl Default for Limits {
            /// Uses the values of the base dialect where it defines them.
            fn default() -> Self {
                Limits { $($name: $default,)* }
            }
        }
    };
}

limits! {
    /// Connections of the whole server that have been admitted.
    connections: Count = 4096, New, "refused: 429 over HTTP, an error and the end over a unix socket";
    /// Connections of one identity; one identity alone cannot use up all connections.
    connections_per_identity: Count = 2048, New, "refused: 429 over HTTP, an error and the end over a unix socket";
    /// TCP connections from one address (IPv6: from one /64 network), or over loopback of one user; the
    /// connections of the server's own user over loopback do not count.
    connections_per_address: Count = 2048, New, "refused with 429";
    /// TCP connections that have been accepted and have not completed TLS, the HTTP request and
    /// authentication.
    half_open: Count = 1024, New, "the address with the most half-open connections loses its oldest one";
    /// Of those, connections from one address (IPv6: from one /64 network), or over loopback of one user.
    half_open_per_address: Count = 256, New, "refused with 429";
    /// How long the answer to the first wrong token from an address is delayed; each further one doubles the
    /// delay.
    failed_login_delay: Time = Duration::from_millis(100), New, "the answer waits; the connection stays half-open";
    /// The longest such delay.
    failed_login_delay_max: Time = Duration::from_secs(10), New, "later answers wait no longer";
    /// How long wrong tokens from an address are remembered after the last one.
    failed_login_ttl: Time = Duration::from_secs(600), New, "forgotten; so is the oldest beyond 4,096 addresses";
    /// How long a client on a WebSocket or a unix socket may take to send an `initialize` that succeeds.
    initialize_timeout: Time = Duration::from_secs(60), New, "the connection is closed";
    /// Requests of one identity per second, on all its connections; as many may come at once after a pause.
    requests_per_second: OptionalCount = None, New, "the connections of that identity are not read until the next request is due";
    /// Sessions of the whole server.
    sessions: Count = 4096, New, "refused";
    /// Sessions of one identity; one identity alone cannot use up all sessions.
    sessions_per_identity: Count = 2048, New, "refused";
    /// The longest message.
    message_bytes: Bytes = 64 * MIB, New, "error and skip (lines), close 1009 (WebSocket)";
    /// The longest id, name or label that a client may choose. The server stores them and repeats them in every
    /// event.
    id_bytes: Bytes = KIB, New, "refused";
    /// Requests of one connection that run at once; pending reads and waits do not count.
    concurrent_requests: Count = 256, New, "starts and lists wait; a start that hangs counts for 1 s";
    /// Unanswered requests of one connection.
    unanswered_requests: Count = 1024, New, "the connection is not read";
    // One message of maximum length, and as much again for those that wait behind it.
    /// Bytes of messages with waiting requests, per connection.
    waiting_request_bytes: Bytes = 128 * MIB, New, "the connection is not read";
    /// Bytes of answers waiting for one connection.
    waiting_answer_bytes: Bytes = 16 * MIB, New, "the connection is not read; large answers are built below half of it";
    /// How long a client may read nothing while an answer, or the rest of one, waits to be sent.
    stalled_writer: Time = Duration::from_secs(30), New, "the connection is closed";
    /// Waits for text in output that one connection may have at once; each uses at most about 1 MiB.
    output_waits: Count = 64, New, "waits for a text are refused";
    /// File requests of one connection that run at once.
    file_requests: Count = 64, New, "file requests wait, for a second at most while none ends";
    /// File requests of one session that wait for others on the same paths, including cancelled ones.
    waiting_file_requests: Count = 4096, New, "those that would have to wait are refused";
    /// Large answers about files that one connection builds at once; a longer one is built alone, and one that
    /// hangs counts for 1 s.
    making_bytes: Bytes = 8 * MIB, New, "the others wait";
    // Two of the longest files that can be read whole.
    /// Long answers that all connections are building or sending: whole files longer than `making_bytes`, and
    /// output, snapshots, lists of processes and HTTP bodies of more than 1 MiB.
    answer_bytes: Bytes = 1026 * MIB, Restart, "they wait, and are refused after a minute";
    // Sixteen messages of maximum length.
    /// Messages of more than 1 MiB that all connections are receiving, from their second MiB until they are
    /// parsed.
    incoming_bytes: Bytes = 1024 * MIB, Restart, "the connection is not read";
    /// Bytes of messages with waiting requests, for all connections, beyond 1 MiB for each.
    server_request_bytes: Bytes = 1024 * MIB, Restart, "connections with more than 1 MiB are not read";
    /// Memory for everything that clients make the server keep: processes with their output and input, sessions,
    /// requests, answers, watches. At most half of what the host or its cgroup allows the server, or a quarter of its
    /// address space; if that is less, the budgets for output, answers, messages and requests are a third of it at
    /// most.
    server_memory_bytes: Bytes = 4096 * MIB, Restart, "starts, handles, watches and streams are refused; output pauses or is evicted at 64 KiB; answers and connections wait";
    /// Of that, memory for one identity; one identity alone cannot use up all of it. It is lowered like the whole,
    /// and of each budget an identity has the same part.
    identity_memory_bytes: Bytes = 3072 * MIB, Restart, "closed processes of the identity are forgotten early; then as for the server";
    /// How long a peer may take for 1 MiB of a long message, body or answer while others wait for the memory
    /// reserved for it.
    slow_transfer: Time = Duration::from_secs(10), New, "the connection is closed; for a body, the request fails";
    /// Open file handles of one connection.
    handles: Count = 128, New, "refused";
    /// Watches of one connection.
    watches: Count = 128, New, "refused";
    /// HTTP requests of one connection that run at once, apart from streams.
    http_requests: Count = 128, New, "buffered requests wait";
    /// HTTP streams of one connection.
    http_streams: Count = 128, New, "streams are refused";
    // Encoded as base64, it is well below the longest message.
    /// The longest body of a response that is not streamed.
    http_body_bytes: Bytes = 32 * MIB, New, "the request fails: stream it";
    /// Bytes of output after which the server requests an acknowledgement.
    mark_bytes: Bytes = 64 * KIB, New, "an acknowledgement is requested";
    /// Bytes accepted for the stdin of one process that it has not read yet, also of a single larger write.
    stdin_bytes: Bytes = MIB, New, "writes wait for their answer and count as requests in progress";
    /// Write ids remembered per process, 64 bytes each on average.
    write_ids: Count = 4096, New, "the oldest is forgotten";
    /// Start ids remembered per session, 1 KiB each.
    start_ids: Count = 16_384, New, "starts with new ids are refused";
    /// Output kept of one process unless the client chooses another amount, heads and tails for snapshots
    /// included.
    retain_bytes: Bytes = MIB, New, "pause or evict";
    /// Events kept of one process.
    retain_events: Count = 50_000, New, "pause or evict";
    /// The longest chunk that output is gathered into.
    chunk_bytes: Bytes = 64 * KIB, New, "a new chunk begins";
    /// The longest time that a chunk gathers: the time of a chunk is that of all its bytes, give or take this.
    chunk_time: Time = Duration::from_millis(100), New, "a new chunk begins";
    /// How many of the first bytes of all streams are kept for snapshots, within `retain_bytes`; a quarter of
    /// that may be kept of the last bytes of each.
    head_bytes: Bytes = 32 * KIB, New, "the rest is kept only as output";
    /// The maximum for `output.retainBytes`.
    retain_bytes_max: Bytes = 64 * MIB, New, "a larger value is reduced to this";
    /// Retained output of all processes of a session, including the index of the logs.
    session_retain_bytes: Bytes = 256 * MIB, New, "closed processes lose output, then logs pause or evict at 64 KiB";
    /// Retained output of all sessions.
    server_retain_bytes: Bytes = 1024 * MIB, Restart, "closed processes lose output, then logs pause or evict at 64 KiB";
    /// Output kept on disk of one durable process unless the client chooses another amount.
    durable_retain_bytes: Bytes = 64 * MIB, New, "pause or evict";
    /// The maximum for `output.retainBytes` of a durable process.
    durable_retain_bytes_max: Bytes = 16 * 1024 * MIB, New, "a larger value is reduced to this";
    /// Disk space for the logs of one session in the state directory.
    session_disk_bytes: Bytes = 32 * 1024 * MIB, New, "closed processes lose their logs, then logs pause or lose output";
    /// Disk space for all logs in the state directory.
    disk_bytes: Bytes = 64 * 1024 * MIB, New, "closed processes lose their logs, then logs pause or lose output";
    /// How long a closed process stays readable unless the client chooses another time.
    closed_ttl: Time = Duration::from_secs(80), New, "the process is forgotten";
    /// The maximum for `output.retainMs`.
    closed_ttl_max: Time = Duration::from_secs(24 * 3600), New, "a longer value is reduced to this";
    /// The maximum for `output.retainMs` of a durable process.
    durable_ttl_max: Time = Duration::from_secs(90 * 24 * 3600), New, "a longer value is reduced to this";
    /// How long a login shell may take to set up a snapshot.
    shell_snapshot_time: Time = Duration::from_secs(10), New, "commands run without it";
    /// Processes of one session that are not closed.
    processes: Count = 4096, New, "starts are refused";
    /// Closed processes of one session that are still readable.
    closed_processes: Count = 65_536, New, "the oldest is forgotten early";
    /// Bytes that they keep besides their output: ids, command lines, labels.
    closed_bytes: Bytes = 64 * MIB, New, "the oldest is forgotten early";
    /// How long a session survives without a connection unless the client chooses another time.
    detach_ttl: Time = Duration::from_secs(80), New, "the session ends";
    /// The maximum for `detachTtlMs`; without one, until the server ends.
    detach_ttl_max: OptionalTime = Some(Duration::from_secs(24 * 3600)), New, "a longer value is reduced to this";
    /// How long the server holds unacknowledged output after a disconnect, pausing the child.
    resume_hold: Time = Duration::from_secs(2), New, "unacknowledged output of a detached session may be evicted";
    /// How long the holder of a session may stay silent before a resume by another client takes the session.
    holder_silence: Time = Duration::from_secs(2), New, "the holder of a session loses it to a resume";
    /// How long a WebSocket may be idle before the server sends a ping.
    keep_alive: Time = Duration::from_secs(30), New, "an idle WebSocket gets a ping";
    /// How long processes get between TERM and KILL when the server shuts down.
    shutdown_grace: Time = Duration::from_secs(1), New, "KILL";
}

impl Limits {
    /// Returns how much of the output of one process is kept unless the client chooses another amount.
    pub fn retain(&self) -> output_log::Limits {
        output_log::Limits {
            retain_bytes: self.retain_bytes,
            retain_events: self.retain_events,
            chunk_bytes: self.chunk_bytes,
            chunk_ms: millis(self.chunk_time),
            head_bytes: self.head_bytes,
        }
    }

    /// Rejects an id, name or label longer than [`id_bytes`](Self::id_bytes).
    pub fn check_id(&self, what: &str, text: &str) -> Result<(), RpcError> {
        if text.len() <= self.id_bytes {
            return Ok(());
        }
        let message = format!("{what} has {} bytes; at most {} are allowed", text.len(), self.id_bytes);
        Err(RpcError::new(ErrorKind::InvalidParams, message))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_limit_can_be_read_and_set_by_its_name() {
        let mut limits = Limits::default();
        for limit in Limits::TABLE {
            let value = limits.get(limit.name).expect("the table has only limits that exist");
            assert_eq!(limits.set(limit.name, value), Ok(()), "{}", limit.name);
        }
        assert_eq!(limits, Limits::default());
        assert_eq!(limits.set("sessions", LimitValue::Count(7)), Ok(()));
        assert_eq!((limits.sessions, limits.get("sessions")), (7, Some(LimitValue::Count(7))));
    }

    #[test]
    fn unusable_values_are_refused() {
        let mut limits = Limits::default();
        let mut set = |name, value| limits.set(name, value).unwrap_err();
        assert_eq!(set("session", LimitValue::Count(7)), InvalidLimit::Unknown);
        assert_eq!(set("sessions", LimitValue::Bytes(7)), InvalidLimit::Type);
        assert_eq!(set("sessions", LimitValue::Count(0)), InvalidLimit::Zero);
        assert_eq!(set("keep_alive", LimitValue::Time(Duration::ZERO)), InvalidLimit::Zero);
        assert_eq!(set("sessions", LimitValue::Count(usize::MAX)), InvalidLimit::TooLarge);
        assert_eq!(set("message_bytes", LimitValue::Bytes(usize::MAX)), InvalidLimit::TooLarge);
        assert_eq!(set("keep_alive", LimitValue::Time(Duration::MAX)), InvalidLimit::TooLarge);
        assert_eq!(limits, Limits::default());
    }

    #[test]
    fn retention_is_that_of_the_base_dialect() {
        assert_eq!(Limits::default().retain(), output_log::Limits::default());
    }
}
