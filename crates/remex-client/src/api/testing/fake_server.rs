//! A server that follows scripts.

mod connection;

use std::sync::{Arc, Mutex, MutexGuard};

use remex_base::lock;
use remex_rpc::memory;

use super::{FakeProcess, Script};
use crate::{Link, Target};
use connection::Connection;

/// A server for unit tests: it starts no process, but does what the scripts say.
///
/// A real [`Client`](crate::Client) connects to it, so all that a program does with processes can be tested. A command
/// without a script is refused as a program that does not exist. It knows no files and no HTTP, and lists no sessions.
///
/// Otherwise it behaves as a real server does to a process without signal handlers:
///
/// - [`Process::kill`](crate::Process::kill) ends it with 137 and `SIGKILL`,
///   [`Process::terminate`](crate::Process::terminate) with 143 and `SIGTERM`, and so does
///   [`Process::signal`](crate::Process::signal) with every signal whose default action that is.
/// - [`Command::timeout`](crate::Command::timeout) and [`Command::idle_timeout`](crate::Command::idle_timeout) kill it. The
///   time is that of tokio, which a test can pause.
/// - Only a command with [`Stdio::Piped`](crate::api::process::Stdio::Piped) or a terminal accepts input.
/// - A second start with the id of a process is refused. Each client has a session, and so ids, of its own, unless it
///   resumes the session of another.
///
/// ```
/// # #[tokio::main] async fn main() -> Result<(), remex_client::Error> {
/// use remex_client::{Client, Command, testing::{FakeServer, Script}};
///
/// // The program under test.
/// async fn head(client: &Client) -> Result<String, remex_client::Error> {
///     let output = Command::new("git").args(["rev-parse", "HEAD"]).output(client).await?;
///     Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
/// }
///
/// let server = FakeServer::new().on("git rev-parse HEAD", Script::new().stdout("c0ffee\n").exit(0));
/// let client = Client::connect(server.target()).await?;
/// assert_eq!(head(&client).await?, "c0ffee");
/// assert_eq!(server.started(), ["git rev-parse HEAD"]);
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, Default)]
pub struct FakeServer {
    /// The test and the connections; locked only briefly.
    state: Arc<Mutex<State>>,
}

#[derive(Debug, Default)]
struct State {
    scripts: Vec<(String, Script)>,
    started: Vec<String>,
    /// How many sessions were created.
    sessions: u64,
    /// In the order of their starts; never forgotten.
    processes: Vec<KnownProcess>,
}

/// A process and what identifies it.
#[derive(Debug)]
struct KnownProcess {
    session_id: String,
    process_id: String,
    start_id: Option<String>,
    process: Arc<FakeProcess>,
}

impl State {
    fn find(&self, session_id: &str, process_id: &str) -> Option<&KnownProcess> {
        self.processes.iter().find(|known| known.session_id == session_id && known.process_id == process_id)
    }
}

impl FakeServer {
    /// Returns a server without scripts.
    ///
    /// See [`FakeServer`] for an example.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a script for a command line, quoted as by [`Command::line`](crate::Command::line).
    ///
    /// Every start of that command line follows it from the beginning.
    ///
    /// See [`FakeServer`] for an example.
    ///
    /// # Panics
    ///
    /// When the command line has a script already.
    #[track_caller]
    pub fn on(self, line: impl Into<String>, script: Script) -> Self {
        let line = line.into();
        let is_known = self.lock().scripts.iter().any(|(known, _)| *known == line);
        assert!(
            !is_known,
            "`{line}` already has a script, which every start of it follows; remove one of the two, or use another server"
        );
        self.lock().scripts.push((line, script));
        self
    }

    /// Returns its address.
    ///
    /// See [`FakeServer`] for an example.
    pub fn target(&self) -> Target {
        let server = self.clone();
        Target::custom("a fake server", move || {
            let (client_end, server_end) = memory::link();
            tokio::spawn(Connection::serve(server.clone(), server_end));
            async { Ok(Link::memory(client_end)) }
        })
    }

    /// Returns the command lines that were started, in order.
    ///
    /// See [`FakeServer`] for an example.
    pub fn started(&self) -> Vec<String> {
        self.lock().started.clone()
    }

    /// Returns what was written to a process so far; if several clients have a process with this id, to the newest.
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> Result<(), remex_client::Error> {
    /// use remex_client::{Client, Command, process::Stdio, testing::{FakeServer, Script}};
    ///
    /// let server = FakeServer::new().on("bc", Script::new().expect_input("1+1\n").stdout("2\n").exit(0));
    /// let client = Client::connect(server.target()).await?;
    /// let process = Command::new("bc").id("sum").stdin(Stdio::Piped).start(&client).await?;
    /// assert_eq!(process.communicate(b"1+1\n").await?.stdout, b"2\n");
    /// assert_eq!(server.written("sum"), b"1+1\n");
    /// # Ok(()) }
    /// ```
    pub fn written(&self, process_id: &str) -> Vec<u8> {
        let state = self.lock();
        let known = state.processes.iter().rfind(|known| known.process_id == process_id);
        known.map(|known| known.process.written()).unwrap_or_default()
    }

    /// Returns the id of a new session.
    fn new_session(&self) -> String {
        let mut state = self.lock();
        state.sessions += 1;
        format!("fake-{}", state.sessions)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }
}
