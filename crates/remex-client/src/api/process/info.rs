//! The description of a process by its server.

use std::collections::BTreeMap;

use remex_proto::{HostPath, process as wire};

use super::{ExitCause, Produced, State};

/// A process in a listing.
///
/// See [`Client::processes`](crate::Client::processes) for an example.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ProcessInfo {
    /// Its id, which is unique in its session.
    pub process_id: String,
    /// The session it belongs to.
    pub session_id: String,
    /// The number that distinguishes this start from those before and after a restart, if the server reports it.
    pub incarnation: Option<u64>,
    /// The program and its arguments.
    pub argv: Vec<String>,
    /// Its working directory at the start.
    pub cwd: HostPath,
    /// Its process id on the remote host, once that is known.
    pub pid: Option<u32>,
    /// Whether it runs on a terminal.
    pub has_terminal: bool,
    /// As given at the start.
    pub labels: BTreeMap<String, String>,
    /// Its state.
    pub state: State,
    /// In milliseconds since 1970.
    pub started_at_ms: u64,
    /// When it exited, in milliseconds since 1970.
    pub ended_at_ms: Option<u64>,
    /// Its exit status once it has exited, or 128 + the number of the signal.
    pub exit_code: Option<i32>,
    /// The signal that ended it, such as `SIGKILL`.
    pub signal: Option<String>,
    /// Why it ended.
    pub cause: Option<ExitCause>,
    /// How much output it has produced.
    pub produced: Produced,
    /// How much of it the server retains, in bytes.
    pub retained_bytes: u64,
    /// The CPU time of the process and its descendants, if the host knows it.
    pub cpu_ms: Option<u64>,
    /// The resident memory of the process and its descendants, if the host knows it.
    pub resident_bytes: Option<u64>,
    /// The living processes of its tree, at most 64, the smallest numbers first.
    pub living_pids: Vec<u32>,
    /// Whether it outlives the server.
    pub durable: bool,
    /// The user of the host as whom it runs, if not that of the server.
    pub user: Option<String>,
}

impl ProcessInfo {
    pub(super) fn of(entry: wire::Entry) -> Self {
        Self {
            process_id: entry.process_id,
            session_id: entry.session_id,
            incarnation: entry.incarnation,
            argv: entry.argv,
            cwd: entry.cwd,
            pid: entry.pid,
            has_terminal: entry.tty,
            labels: entry.labels,
            state: entry.state,
            started_at_ms: entry.started_at_ms,
            ended_at_ms: entry.ended_at_ms,
            exit_code: entry.exit_code,
            signal: entry.signal,
            cause: entry.cause,
            produced: entry.produced,
            retained_bytes: entry.retained_bytes,
            cpu_ms: entry.cpu_ms,
            resident_bytes: entry.resident_bytes,
            living_pids: entry.living_pids,
            durable: entry.durable,
            user: entry.user,
        }
    }

    /// Returns whether it has not exited yet.
    ///
    /// ```
    /// use remex_client::process::{ProcessInfo, State};
    ///
    /// let mut info = ProcessInfo::new("session", "build");
    /// assert!(info.is_running() && info.is_alive());
    /// info.state = State::Exited;
    /// assert!(!info.is_running() && info.is_alive());
    /// ```
    pub fn is_running(&self) -> bool {
        match self.state {
            State::Starting | State::Running => true,
            State::Exited | State::Closed => false,
            // A state of a newer server.
            _ => self.ended_at_ms.is_none(),
        }
    }

    /// Returns whether it or one of its descendants may be alive.
    ///
    /// The server does not count descendants that removed their tag, but notices them if they keep the output open.
    ///
    /// See [`ProcessInfo::is_running`] for an example.
    pub fn is_alive(&self) -> bool {
        self.state != State::Closed || self.resident_bytes.is_some()
    }

    /// Returns a running process about which nothing else is known, for tests of programs that list processes.
    ///
    /// ```
    /// use remex_client::process::{ProcessInfo, State};
    ///
    /// let mut info = ProcessInfo::new("session", "build");
    /// info.argv = vec!["make".to_owned()];
    /// assert_eq!((info.state, info.exit_code), (State::Running, None));
    /// ```
    pub fn new(session_id: impl Into<String>, process_id: impl Into<String>) -> Self {
        Self {
            process_id: process_id.into(),
            session_id: session_id.into(),
            incarnation: None,
            argv: Vec::new(),
            cwd: HostPath::from(std::path::PathBuf::from("/")),
            pid: None,
            has_terminal: false,
            labels: BTreeMap::new(),
            state: State::Running,
            started_at_ms: 0,
            ended_at_ms: None,
            exit_code: None,
            signal: None,
            cause: None,
            produced: Produced::default(),
            retained_bytes: 0,
            cpu_ms: None,
            resident_bytes: None,
            living_pids: Vec::new(),
            durable: false,
            user: None,
        }
    }
}
