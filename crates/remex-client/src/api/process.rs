//! Starting, following and controlling processes.
//!
//! Start at [`Command`], which gives a [`Process`].

mod command;
mod events;
mod exec_process;
mod find;
mod info;
mod lines;
mod output;
mod output_batch;
mod reference;
mod retain;
mod sandbox;
mod stdin;
mod subscription;
mod terminal_size;
mod wait;

use std::{sync::Arc, time::Duration};

use remex_base::{clock::millis, lock};
use remex_proto::process as wire;

pub use crate::base::event::{Chunk, Closed, Event, Exit, Gap};
pub use command::{Command, OnDrop, Secrets, Stdio};
pub use events::{Events, Reader};
pub use exec_process::{ExecProcess, Executor, ProcessFuture};
pub use find::{NameRank, NamedProcess, find_by_name};
pub use info::ProcessInfo;
pub use lines::{Line, Lines};
pub use output::Output;
pub use output_batch::{OutputBatch, TimedChunk};
pub use reference::{ProcessRef, Restarted, Termination};
pub use remex_proto::{
    environment::Inherit,
    process::{
        DeniedHost, ExitCause, GapCause, Overflow, Produced, ResourceLimits, Restart, RestartPolicy, SeekTo,
        SignalName, SnapshotReply, Sought, State, Stream, Usage,
    },
};
pub use retain::Retain;
pub use sandbox::Sandbox;
pub use stdin::Stdin;
pub use subscription::Subscription;
pub use terminal_size::TerminalSize;
pub use wait::{Match, Until, WaitOutcome};

use crate::{
    Client, Error,
    core::event_queue::{AFTER_EVERYTHING, EventQueue, History},
};

/// A process on the remote host.
///
/// Clones are handles on the same process. Output is buffered for the first consumer ([`Process::events`],
/// [`Process::stdout`] and so on); when the buffer is full, backpressure blocks the process, as on a full pipe.
/// [`Process::wait`], dropping all handles, or reading with `process/read` ([`Client::call`]) lifts that backpressure.
///
/// Dropping the last handle and the last consumer leaves the process running, unless it was started with
/// [`OnDrop::Terminate`]; it ends with its session at the latest.
///
/// ```
/// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let client = remex_client::Client::connect(remex::Local::here()?.target()).await?;
/// use remex_client::Command;
///
/// let process = Command::shell("echo out; echo err >&2; exit 3").start(&client).await?;
/// let output = process.communicate(b"").await?;
/// assert_eq!((output.exit.code, &output.stdout[..], &output.stderr[..]), (3, &b"out\n"[..], &b"err\n"[..]));
/// # Ok(()) }
/// ```
#[derive(Debug, Clone)]
pub struct Process {
    handle: Arc<Handle>,
}

/// The state shared by all handles and consumers of one process.
#[derive(Debug)]
pub(crate) struct Handle {
    pub(crate) client: Client,
    pub(crate) queue: Arc<EventQueue>,
    pid: Option<u32>,
    /// Unknown for a process that others started.
    has_terminal: Option<bool>,
    on_drop: OnDrop,
    /// Taken by the first caller of [`Process::stdin`].
    stdin: std::sync::Mutex<StdinSlot>,
}

/// The standard input of a process, as far as one handle is concerned.
#[derive(Debug)]
enum StdinSlot {
    /// There is none, or it was taken.
    Empty,
    /// Of a process that this handle started: closed with the handle unless it is taken.
    Owned(Box<Stdin>),
    /// Of a process that another client started: closed only by a caller that takes it.
    Foreign,
}

impl Drop for Handle {
    fn drop(&mut self) {
        let core = self.client.core();
        if self.on_drop == OnDrop::Terminate && self.queue.known().closed.is_none() {
            core.enqueue_unbounded(terminate(&self.queue, wire::TerminateMode::Force).into());
        }
        core.remove_queue(&self.queue);
    }
}

impl Process {
    /// Returns the id of the process in its session.
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let client = remex_client::Client::connect(remex::Local::here()?.target()).await?;
    /// use remex_client::Command;
    ///
    /// let process = Command::new("true").id("build").start(&client).await?;
    /// assert_eq!(process.id(), "build");
    /// # Ok(()) }
    /// ```
    pub fn id(&self) -> &str {
        &self.handle.queue.id
    }

    /// Returns its process id on the remote host, if the server reported it.
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let client = remex_client::Client::connect(remex::Local::here()?.target()).await?;
    /// use remex_client::Command;
    ///
    /// let process = Command::shell("echo $$").start(&client).await?;
    /// let pid = process.pid().expect("ours tells it");
    /// assert_eq!(process.communicate(b"").await?.stdout, format!("{pid}\n").into_bytes());
    /// # Ok(()) }
    /// ```
    pub fn pid(&self) -> Option<u32> {
        self.handle.pid
    }

    /// Returns the client that the process belongs to.
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let client = remex_client::Client::connect(remex::Local::here()?.target()).await?;
    /// use remex_client::Command;
    ///
    /// let process = Command::new("true").start(&client).await?;
    /// assert_eq!(process.client().session_id(), client.session_id());
    /// # Ok(()) }
    /// ```
    pub fn client(&self) -> &Client {
        &self.handle.client
    }

    /// Returns the events of the process from its beginning, as far as its output is retained.
    ///
    /// Each call creates an independent consumer; the slowest one determines the backpressure.
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let client = remex_client::Client::connect(remex::Local::here()?.target()).await?;
    /// use remex_client::{Command, process::Event};
    ///
    /// let process = Command::shell("echo hello").start(&client).await?;
    /// let (mut events, mut said) = (process.events(), Vec::new());
    /// while let Some(event) = events.next().await? {
    ///     if let Event::Output(chunk) = event {
    ///         said.extend_from_slice(&chunk.bytes);
    ///     }
    /// }
    /// assert_eq!(said, b"hello\n");
    /// # Ok(()) }
    /// ```
    pub fn events(&self) -> Events {
        self.events_after(0)
    }

    /// Returns the events of the process after the one with this sequence number; 0 begins with the first.
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let client = remex_client::Client::connect(remex::Local::here()?.target()).await?;
    /// use remex_client::{Command, process::Event};
    ///
    /// let process = Command::shell("echo hello; exit 3").start(&client).await?;
    /// let first = process.events().next().await?.expect("it prints a line");
    /// // Later, a new consumer continues there:
    /// let next = process.events_after(first.seq()).next().await?;
    /// assert!(matches!(next, Some(Event::Exited { exit, .. }) if exit.code == 3));
    /// # Ok(()) }
    /// ```
    pub fn events_after(&self, seq: u64) -> Events {
        Events::new(Arc::clone(&self.handle), seq)
    }

    /// Returns its standard output as a byte stream.
    ///
    /// To read both streams, read them concurrently or use [`Process::communicate`]: the process waits for the slowest
    /// consumer.
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let client = remex_client::Client::connect(remex::Local::here()?.target()).await?;
    /// use remex_client::Command;
    /// use tokio::io::{AsyncBufReadExt as _, BufReader};
    ///
    /// let process = Command::new("seq").arg("3").start(&client).await?;
    /// let mut lines = BufReader::new(process.stdout()).lines();
    /// assert_eq!(lines.next_line().await?.as_deref(), Some("1"));
    /// # Ok(()) }
    /// ```
    pub fn stdout(&self) -> Reader {
        Reader::new(self.events(), Stream::Stdout)
    }

    /// Returns its standard error as a byte stream.
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let client = remex_client::Client::connect(remex::Local::here()?.target()).await?;
    /// use remex_client::Command;
    /// use tokio::io::AsyncReadExt as _;
    ///
    /// let process = Command::shell("echo oh >&2").start(&client).await?;
    /// let mut complaints = String::new();
    /// process.stderr().read_to_string(&mut complaints).await?;
    /// assert_eq!(complaints, "oh\n");
    /// # Ok(()) }
    /// ```
    pub fn stderr(&self) -> Reader {
        Reader::new(self.events(), Stream::Stderr)
    }

    /// Returns its terminal output as a byte stream.
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let client = remex_client::Client::connect(remex::Local::here()?.target()).await?;
    /// use remex_client::{Command, process::TerminalSize};
    /// use tokio::io::AsyncReadExt as _;
    ///
    /// let process = Command::new("tty").terminal(TerminalSize::default()).start(&client).await?;
    /// let mut screen = String::new();
    /// process.terminal().read_to_string(&mut screen).await?;
    /// assert!(screen.starts_with("/dev/pts/"));
    /// # Ok(()) }
    /// ```
    pub fn terminal(&self) -> Reader {
        Reader::new(self.events(), Stream::Pty)
    }

    /// Returns a writer to its standard input; `None` if it has none, or if it was already taken.
    ///
    /// Dropping the writer closes the input after all written data.
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let client = remex_client::Client::connect(remex::Local::here()?.target()).await?;
    /// use remex_client::{Command, process::Stdio};
    /// use tokio::io::AsyncWriteExt as _;
    ///
    /// let process = Command::new("cat").stdin(Stdio::Piped).start(&client).await?;
    /// let mut stdin = process.stdin().expect("it is piped");
    /// stdin.write_all(b"hello").await?;
    /// drop(stdin);
    /// assert_eq!(process.communicate(b"").await?.stdout, b"hello");
    /// # Ok(()) }
    /// ```
    pub fn stdin(&self) -> Option<Stdin> {
        let mut slot = lock(&self.handle.stdin);
        match std::mem::replace(&mut *slot, StdinSlot::Empty) {
            StdinSlot::Empty => None,
            StdinSlot::Owned(stdin) => Some(*stdin),
            StdinSlot::Foreign => Some(Stdin::new(self.client().clone(), &self.handle.queue)),
        }
    }

    /// Writes to its standard input, and returns when the server has accepted all of it.
    ///
    /// Any handle can write, also while another one holds the [`Stdin`]; each call arrives in one piece and exactly once,
    /// even across disconnects. It waits while the process does not read.
    ///
    /// # Errors
    ///
    /// [`Error::Refused`] when the input is closed or the process has ended, and those of [`Client::call`].
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let client = remex_client::Client::connect(remex::Local::here()?.target()).await?;
    /// use remex_client::{Command, process::Stdio};
    ///
    /// let process = Command::new("cat").stdin(Stdio::Piped).start(&client).await?;
    /// let other_handle = process.clone();
    /// process.write(b"one ").await?;
    /// other_handle.write(b"two").await?;
    /// process.close_stdin().await?;
    /// assert_eq!(process.wait_with_output().await?.stdout, b"one two");
    /// # Ok(()) }
    /// ```
    pub async fn write(&self, bytes: &[u8]) -> Result<(), Error> {
        self.reference().write(bytes).await
    }

    /// Gives up this handle but leaves the input of the process open, and returns a reference to the process.
    ///
    /// Otherwise the input is closed with the last handle, unless it was taken.
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let client = remex_client::Client::connect(remex::Local::here()?.target()).await?;
    /// use remex_client::{Command, process::Stdio};
    ///
    /// let reference = Command::new("head").args(["-n", "1"]).stdin(Stdio::Piped).start(&client).await?.detach();
    /// reference.write(b"later\n").await?;
    /// assert_eq!(reference.wait().await?.code, 0);
    /// # Ok(()) }
    /// ```
    pub fn detach(self) -> ProcessRef {
        let mut slot = lock(&self.handle.stdin);
        if let StdinSlot::Owned(stdin) = std::mem::replace(&mut *slot, StdinSlot::Foreign) {
            stdin.forget();
        }
        drop(slot);
        self.reference()
    }

    /// Closes its standard input after all written data.
    ///
    /// # Errors
    ///
    /// Those of [`Client::call`].
    ///
    /// See [`Process::write`] for an example.
    pub async fn close_stdin(&self) -> Result<(), Error> {
        self.reference().close_stdin().await
    }

    /// Sets the size of its terminal.
    ///
    /// # Errors
    ///
    /// Those of [`Client::call`]; a process without a terminal has no size.
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let client = remex_client::Client::connect(remex::Local::here()?.target()).await?;
    /// use remex_client::{Command, process::TerminalSize};
    ///
    /// let command = Command::shell("read line; stty size").terminal(TerminalSize::default());
    /// let process = command.start(&client).await?;
    /// process.resize(TerminalSize::new(50, 132)?).await?;
    /// let said = process.communicate(b"go on\n").await?.terminal;
    /// assert!(String::from_utf8(said)?.ends_with("50 132\r\n"));
    /// # Ok(()) }
    /// ```
    pub async fn resize(&self, size: TerminalSize) -> Result<(), Error> {
        let (process_id, incarnation) = (self.id().to_owned(), self.handle.queue.incarnation());
        let TerminalSize { rows, cols } = size;
        let request = wire::Resize { process_id, session_id: None, incarnation, rows, cols };
        self.client().call(request).await.map(drop)
    }

    /// Sends a signal to its process group.
    ///
    /// # Errors
    ///
    /// Those of [`Client::call`], and [`Error::Interrupted`] if the connection is lost meanwhile: a signal is never sent
    /// twice.
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let client = remex_client::Client::connect(remex::Local::here()?.target()).await?;
    /// use remex_client::{Command, process::SignalName};
    ///
    /// let process = Command::new("sleep").arg("1000").start(&client).await?;
    /// process.signal(SignalName::Int).await?;
    /// assert_eq!(process.wait().await?.signal.as_deref(), Some("SIGINT"));
    /// # Ok(()) }
    /// ```
    pub async fn signal(&self, signal: SignalName) -> Result<(), Error> {
        let (process_id, incarnation) = (self.id().to_owned(), self.handle.queue.incarnation());
        let request = wire::Signal { process_id, session_id: None, incarnation, signal };
        self.client().call(request).await.map(drop)
    }

    /// Kills the process and all its descendants at once.
    ///
    /// Does nothing if the process has already ended.
    ///
    /// # Errors
    ///
    /// Those of [`Client::call`].
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let client = remex_client::Client::connect(remex::Local::here()?.target()).await?;
    /// use remex_client::Command;
    ///
    /// let process = Command::new("sleep").arg("1000").start(&client).await?;
    /// process.kill().await?;
    /// assert_eq!(process.wait().await?.code, 128 + 9);
    /// # Ok(()) }
    /// ```
    pub async fn kill(&self) -> Result<(), Error> {
        self.client().call(terminate(&self.handle.queue, wire::TerminateMode::Force)).await.map(drop)
    }

    /// Sends SIGTERM, and kills the process and all its descendants after `grace`.
    ///
    /// # Errors
    ///
    /// Those of [`Client::call`]. A server of the base dialect has no grace period and kills at once.
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let client = remex_client::Client::connect(remex::Local::here()?.target()).await?;
    /// use std::time::Duration;
    /// use remex_client::{Command, process::Until};
    ///
    /// let process = Command::shell("trap 'exit 7' TERM; echo ready; while :; do sleep 0.01; done").start(&client).await?;
    /// process.wait_for(&Until::Output("ready".to_owned())).await?;
    /// process.terminate(Duration::from_secs(10)).await?;
    /// assert_eq!(process.wait().await?.code, 7);
    /// # Ok(()) }
    /// ```
    pub async fn terminate(&self, grace: Duration) -> Result<(), Error> {
        let timeout_ms = millis(grace);
        let mode = wire::TerminateMode::Graceful { timeout_ms };
        self.client().call(terminate(&self.handle.queue, mode)).await.map(drop)
    }

    /// Returns the beginning and the end of its output so far, at most `max_bytes` in total.
    ///
    /// Consumers are not affected.
    ///
    /// # Errors
    ///
    /// Those of [`Client::call`]; a server of the base dialect has no snapshots.
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let client = remex_client::Client::connect(remex::Local::here()?.target()).await?;
    /// use remex_client::Command;
    ///
    /// let process = Command::new("seq").arg("1000").start(&client).await?;
    /// process.wait().await?;
    /// let snapshot = process.snapshot(100).await?;
    /// assert!(snapshot.stdout.0.starts_with(b"1\n2\n") && snapshot.stdout.0.ends_with(b"1000\n"));
    /// assert!(snapshot.truncated && !snapshot.running);
    /// # Ok(()) }
    /// ```
    pub async fn snapshot(&self, max_bytes: u64) -> Result<SnapshotReply, Error> {
        let (process_id, incarnation) = (self.id().to_owned(), self.handle.queue.incarnation());
        let max_bytes = Some(max_bytes);
        let request = wire::Snapshot { process_id, session_id: None, incarnation, max_bytes };
        self.client().call(request).await
    }
}

impl Client {
    /// Returns a handle on an existing process of the session, such as one started before the session was resumed.
    ///
    /// Its consumers receive the retained output, and then new output. A second handle is independent of the first one.
    ///
    /// # Errors
    ///
    /// When the server does not know the process, and those of [`Client::call`].
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let client = remex_client::Client::connect(remex::Local::here()?.target()).await?;
    /// use remex_client::Command;
    ///
    /// Command::shell("echo hello").id("greeting").start(&client).await?;
    /// // Later, perhaps in another program that has resumed the session:
    /// let process = client.process("greeting").await?;
    /// assert_eq!(process.communicate(b"").await?.stdout, b"hello\n");
    /// # Ok(()) }
    /// ```
    pub async fn process(&self, id: impl Into<String>) -> Result<Process, Error> {
        let id = id.into();
        if let Some(process) = Process::shared(self, &id, None) {
            return Ok(process);
        }
        let probe = wire::Read {
            process_id: id.clone(),
            session_id: None,
            incarnation: None,
            after_seq: Some(AFTER_EVERYTHING),
            max_bytes: Some(0),
            wait_ms: None,
        };
        let missed_closes = self.core().missed_closes();
        let found = self.call(probe).await?;
        // The retention limit is unknown here; if it is small, only frequent reports keep the process from blocking.
        let queue = Arc::new(EventQueue::new(id.clone(), Some(0), self.core().close()));
        queue.identify(found.incarnation);
        if let Err(error) = self.core().add_queue(&queue) {
            // Another task may have made a handle meanwhile.
            return Process::shared(self, &id, found.incarnation).ok_or(error);
        }
        if found.closed || self.core().missed_closes() != missed_closes {
            queue.on_maybe_closed();
        }
        let action = queue.on_started(History::Possible, found.incarnation);
        self.core().perform(&queue, action);
        Ok(Process::foreign(self, queue))
    }
}

impl Process {
    pub(crate) fn new(handle: Handle) -> Self {
        Self { handle: Arc::new(handle) }
    }

    /// Returns another handle on a process that this client follows: on this start, or on the one that has the id now.
    pub(crate) fn shared(client: &Client, id: &str, incarnation: Option<u64>) -> Option<Self> {
        client.core().share_queue(id, incarnation).map(|queue| Self::foreign(client, queue))
    }

    /// Returns a handle on a process that others started.
    fn foreign(client: &Client, queue: Arc<EventQueue>) -> Self {
        Self::new(Handle {
            client: client.clone(),
            queue,
            pid: None,
            has_terminal: None,
            on_drop: OnDrop::Leave,
            stdin: std::sync::Mutex::new(StdinSlot::Foreign),
        })
    }
}

fn terminate(queue: &EventQueue, mode: wire::TerminateMode) -> wire::Terminate {
    let (process_id, scope) = (queue.id.clone(), wire::TerminateScope::Usual);
    wire::Terminate { process_id, session_id: None, incarnation: queue.incarnation(), mode, scope }
}
