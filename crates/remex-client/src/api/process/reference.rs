//! Processes of other sessions: listing, reading and controlling them without taking over their session.
//!
//! Start at [`ProcessRef`].

use std::time::Duration;

use remex_base::clock::millis;
use remex_proto::process as wire;
use tokio::time::Instant;

use super::{
    Exit, OutputBatch, Process, ProcessInfo, SignalName, TerminalSize,
    stdin::{self, WRITE_BYTES},
};
use crate::{Client, Error, ErrorKind, core::event_queue::AFTER_EVERYTHING};

/// How long a read or wait may block on the server before the client repeats it.
const POLL: Duration = Duration::from_secs(20);

/// A process of any session of the same identity.
///
/// It reads the output log of the process with its own cursor and never takes over the session from its client. It does
/// not cause backpressure: output that the server evicts before it is read is reported as a gap.
///
/// ```
/// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let client = remex_client::Client::connect(remex::Local::here()?.target()).await?;
/// use std::time::Duration;
/// use remex_client::{Command, process::Stream};
///
/// Command::shell("echo hello; exit 3").id("greeting").start(&client).await?;
/// let process = client.process_ref(client.session_id(), "greeting");
/// assert_eq!(process.wait().await?.code, 3);
///
/// let batch = process.read(0, 1 << 20, Duration::ZERO).await?;
/// assert_eq!((batch.chunks[0].stream, &batch.chunks[0].bytes[..]), (Stream::Stdout, &b"hello\n"[..]));
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct ProcessRef {
    client: Client,
    session_id: String,
    process_id: String,
    /// The start that is meant; `None`: whichever runs at the time of a call.
    incarnation: Option<u64>,
}

/// A process that [`ProcessRef::restart`] has started again.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Restarted {
    /// Its pid, if the server reported it.
    pub pid: Option<u32>,
    /// A reference to it.
    pub process: ProcessRef,
}

/// How a process is ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Termination {
    /// SIGKILL to the whole tree.
    Kill,
    /// SIGTERM to the whole tree, then SIGKILL after this time to the processes still alive.
    Graceful(Duration),
}

impl ProcessRef {
    /// Returns the client that it uses.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// Returns the id of its session.
    pub fn session_id(&self) -> &str {
        &self.session_id
    }

    /// Returns the id of the process.
    pub fn process_id(&self) -> &str {
        &self.process_id
    }

    /// Returns the number that distinguishes this start of the process from those before and after a restart; `None` if
    /// the reference is to the process that runs at the time of a call, or if the server does not report it.
    pub fn incarnation(&self) -> Option<u64> {
        self.incarnation
    }

    /// Returns a reference to one start of the process, such as that of a [`ProcessInfo`]: once it was restarted, calls fail
    /// with an error of which [`Error::is_restarted`] is true. With `None` it is to whichever runs at the time of a call.
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let client = remex_client::Client::connect(remex::Local::here()?.target()).await?;
    /// use remex_client::{Command, process::Termination};
    ///
    /// Command::new("sleep").arg("1000").id("nap").restartable().start(&client).await?.detach();
    /// let listed = client.processes().await?.remove(0);
    /// let nap = client.process_ref(&listed.session_id, "nap");
    /// let first = nap.clone().with_incarnation(listed.incarnation);
    /// let second = nap.restart(Termination::Kill).await?.process;
    /// assert!(first.terminate(Termination::Kill).await.unwrap_err().is_restarted());
    /// assert!(second.info().await?.is_some_and(|info| info.exit_code.is_none()));
    /// # Ok(()) }
    /// ```
    pub fn with_incarnation(mut self, incarnation: Option<u64>) -> Self {
        self.incarnation = incarnation;
        self
    }

    /// Returns its current state from the server; `None` if its session no longer has it.
    ///
    /// # Errors
    ///
    /// Those of [`Client::call`].
    pub async fn info(&self) -> Result<Option<ProcessInfo>, Error> {
        let list = wire::List { session_id: Some(self.session_id.clone()), scope: wire::Scope::Session };
        let processes = self.client.call(list).await?.processes;
        let found = processes.into_iter().find(|entry| {
            let is_meant = self.incarnation.is_none() || entry.incarnation == self.incarnation;
            entry.process_id == self.process_id && is_meant
        });
        Ok(found.map(ProcessInfo::of))
    }

    /// Returns a cursor at most `events` before the newest event.
    ///
    /// # Errors
    ///
    /// Those of [`Client::call`].
    pub async fn cursor_before_newest(&self, events: u64) -> Result<u64, Error> {
        let (process_id, session_id) = self.ids();
        let after_seq = Some(AFTER_EVERYTHING);
        let probe = wire::Read {
            process_id,
            session_id,
            incarnation: self.incarnation,
            after_seq,
            max_bytes: Some(0),
            wait_ms: None,
        };
        Ok(self.client.call(probe).await?.next_seq.saturating_sub(1 + events))
    }

    /// Finds a position in the output, to [`read`](Self::read) from there without reading what precedes it.
    ///
    /// # Errors
    ///
    /// Those of [`Client::call`]; servers without this method refuse it with [`ErrorKind::UnknownMethod`].
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let client = remex_client::Client::connect(remex::Local::here()?.target()).await?;
    /// use std::time::Duration;
    /// use remex_client::{Command, process::SeekTo};
    ///
    /// let process = Command::new("seq").arg("100000").start(&client).await?.reference();
    /// process.wait().await?;
    /// let last = process.seek(SeekTo::TailBytes(7)).await?;
    /// let batch = process.read(last.after_seq, 1 << 20, Duration::ZERO).await?;
    /// assert!(batch.chunks.last().unwrap().bytes.ends_with(b"100000\n"));
    /// # Ok(()) }
    /// ```
    pub async fn seek(&self, to: wire::SeekTo) -> Result<wire::Sought, Error> {
        let (process_id, session_id) = self.ids();
        self.client.call(wire::Seek { process_id, session_id, incarnation: self.incarnation, to }).await
    }

    /// Reads the events after the one with the sequence number `after`, at most `max_bytes` of output, and waits for
    /// `wait` if there are none yet; 0 starts at the oldest retained output.
    ///
    /// At least one chunk is returned, even if it is longer than `max_bytes`. Unlike [`Process::read`] it consumes nothing.
    ///
    /// # Errors
    ///
    /// Those of [`Client::call`]; [`ProcessRef::is_forgotten`] recognises a process that no longer exists.
    pub async fn read(&self, after: u64, max_bytes: u64, wait: Duration) -> Result<OutputBatch, Error> {
        // A wait too long for a deadline is a wait without one.
        let deadline = Instant::now().checked_add(wait);
        loop {
            let left = deadline.map_or(POLL, |deadline| deadline - Instant::now());
            let (process_id, session_id) = self.ids();
            let read = wire::Read {
                process_id,
                session_id,
                incarnation: self.incarnation,
                after_seq: (after > 0).then_some(after),
                max_bytes: Some(max_bytes),
                wait_ms: Some(millis(left.min(POLL))),
            };
            let reply = self.client.call_without_limit(read).await?;
            let batch = OutputBatch::of(reply, after);
            if batch.last_seq > after || batch.is_closed || left <= POLL {
                return Ok(batch);
            }
        }
    }

    /// Writes to its stdin, and returns when the server has accepted all of it.
    ///
    /// The bytes arrive exactly once, even across disconnects; up to 64 KiB arrive in one piece. It waits while the process
    /// does not read.
    ///
    /// # Errors
    ///
    /// [`Error::Refused`] when the process has ended or closed its stdin, and those of [`Client::call`].
    pub async fn write(&self, bytes: &[u8]) -> Result<(), Error> {
        for piece in bytes.chunks(WRITE_BYTES) {
            let mut write = stdin::request(self.client.core(), &self.process_id, self.incarnation, piece);
            write.session_id = Some(self.session_id.clone());
            stdin::accepted(self.client.call_without_limit(write).await?, &self.process_id)?;
        }
        Ok(())
    }

    /// Closes its stdin after all written data.
    ///
    /// # Errors
    ///
    /// Those of [`Client::call`].
    pub async fn close_stdin(&self) -> Result<(), Error> {
        let (process_id, session_id) = self.ids();
        self.client
            .call(wire::CloseStdin { process_id, session_id, incarnation: self.incarnation })
            .await
            .map(drop)
    }

    /// Changes the size of its terminal.
    ///
    /// # Errors
    ///
    /// Those of [`Client::call`].
    pub async fn resize(&self, size: TerminalSize) -> Result<(), Error> {
        let TerminalSize { rows, cols } = size;
        let (process_id, session_id) = self.ids();
        self.client
            .call(wire::Resize { process_id, session_id, incarnation: self.incarnation, rows, cols })
            .await
            .map(drop)
    }

    /// Sends a signal to its process group.
    ///
    /// # Errors
    ///
    /// Those of [`Client::call`].
    pub async fn signal(&self, signal: SignalName) -> Result<(), Error> {
        let (process_id, session_id) = self.ids();
        self.client
            .call(wire::Signal { process_id, session_id, incarnation: self.incarnation, signal })
            .await
            .map(drop)
    }

    /// Stops holding its output for a disconnected client, so that backpressure no longer blocks the process.
    ///
    /// # Errors
    ///
    /// Those of [`Client::call`].
    pub async fn discard_output(&self) -> Result<(), Error> {
        let (process_id, session_id) = self.ids();
        let detach_ttl_ms = None;
        self.client
            .call(wire::Release { process_id, session_id, incarnation: self.incarnation, detach_ttl_ms })
            .await
            .map(drop)
    }

    /// Like [`discard_output`](Self::discard_output), and lets its session live at least this long from now on if its client is away;
    /// a server that cannot do that only discards the output.
    ///
    /// # Errors
    ///
    /// Those of [`Client::call`].
    pub async fn discard_output_for(&self, detach_ttl: Duration) -> Result<(), Error> {
        let (process_id, session_id) = self.ids();
        let detach_ttl_ms = Some(millis(detach_ttl));
        self.client
            .call(wire::Release { process_id, session_id, incarnation: self.incarnation, detach_ttl_ms })
            .await
            .map(drop)
    }

    /// Removes a closed process from the server before its retention time is over.
    ///
    /// # Errors
    ///
    /// When the process has not closed, and those of [`Client::call`].
    pub async fn forget(&self) -> Result<(), Error> {
        let (process_id, session_id) = self.ids();
        self.client
            .call(wire::Forget { process_id, session_id, incarnation: self.incarnation })
            .await
            .map(drop)
    }

    /// Terminates a running process with all its descendants; of one that has exited, its process group and session.
    ///
    /// Does nothing once the process has closed.
    ///
    /// # Errors
    ///
    /// Those of [`Client::call`].
    pub async fn terminate(&self, termination: Termination) -> Result<(), Error> {
        self.end(termination, wire::TerminateScope::Usual).await
    }

    /// Terminates the process, if it still runs, and all its living descendants, even after it has exited or closed.
    ///
    /// # Errors
    ///
    /// Those of [`Client::call`].
    pub async fn terminate_tree(&self, termination: Termination) -> Result<(), Error> {
        self.end(termination, wire::TerminateScope::Tree).await
    }

    /// Ends the process with its whole tree, if it still runs, and starts it again under its id, as it was started:
    /// with its environment, terminal, sandbox and limits. Returns the new one.
    ///
    /// Its start must have asked for that with [`Command::restartable`](crate::Command::restartable), and no other client
    /// may be attached to its session. Handles of the process end with it, and so do earlier references, unless they
    /// are to the process that runs; [`Client::process`] makes a handle on the new one. An earlier handle still gets all
    /// that the process has printed; until it is read or dropped, its unread output delays that of the new process.
    /// Carried out once, even across disconnects.
    ///
    /// # Errors
    ///
    /// Those of [`Client::call`]; the error of a failed start states that the process has ended.
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let client = remex_client::Client::connect(remex::Local::here()?.target()).await?;
    /// use std::time::Duration;
    /// use remex_client::{Command, process::Termination};
    ///
    /// let process = Command::new("sleep").arg("1000").restartable().start(&client).await?;
    /// let again = process.reference().restart(Termination::Graceful(Duration::from_secs(5))).await?;
    /// assert_ne!(again.pid, process.pid());
    /// again.process.terminate(Termination::Kill).await?;
    /// # Ok(()) }
    /// ```
    pub async fn restart(&self, termination: Termination) -> Result<Restarted, Error> {
        let (process_id, session_id) = self.ids();
        let grace_ms = match termination {
            Termination::Kill => None,
            Termination::Graceful(grace) => Some(millis(grace)),
        };
        let restart_id = Some(self.client.core().name("s"));
        let again =
            wire::StartAgain { process_id, session_id, incarnation: self.incarnation, grace_ms, restart_id };
        let started = self.client.call_without_limit(again).await?;
        let process = self.clone().with_incarnation(started.incarnation);
        Ok(Restarted { pid: started.pid, process })
    }

    async fn end(&self, termination: Termination, scope: wire::TerminateScope) -> Result<(), Error> {
        let (process_id, session_id) = self.ids();
        let mode = match termination {
            Termination::Kill => wire::TerminateMode::Force,
            Termination::Graceful(grace) => wire::TerminateMode::Graceful { timeout_ms: millis(grace) },
        };
        self.client
            .call(wire::Terminate { process_id, session_id, incarnation: self.incarnation, mode, scope })
            .await
            .map(drop)
    }

    /// Waits until it has exited. `usage` and `network_denied` of the exit are unknown.
    ///
    /// # Errors
    ///
    /// Those of [`Client::call`].
    pub async fn wait(&self) -> Result<Exit, Error> {
        loop {
            let waited = self.wait_until(wire::Until::Exit, POLL).await?;
            if waited.reason != wire::WaitReason::Timeout {
                let code = waited
                    .exit_code
                    .ok_or_else(|| Error::Protocol { what: "an exit without an exit code".to_owned() })?;
                return Ok(Exit { signal: waited.signal, cause: waited.cause, ..Exit::new(code) });
            }
        }
    }

    /// Waits at most `limit` until its output is closed; returns whether it is.
    ///
    /// # Errors
    ///
    /// Those of [`Client::call`].
    pub async fn closes_within(&self, limit: Duration) -> Result<bool, Error> {
        match self.wait_until(wire::Until::Closed, limit).await {
            Ok(waited) => Ok(waited.reason != wire::WaitReason::Timeout),
            // The server removes only closed processes.
            Err(error) if Self::is_forgotten(&error) => Ok(true),
            Err(error) => Err(error),
        }
    }

    /// Waits at most `limit` for output after the event `newest`, and then at most as long again until there is no
    /// output for `quiet`.
    ///
    /// # Errors
    ///
    /// Those of [`Client::call`].
    pub async fn settle(&self, newest: u64, limit: Duration, quiet: Duration) -> Result<(), Error> {
        let any_byte = wire::Until::Output { regex: "(?s-u:.)".to_owned(), after_seq: Some(newest) };
        for until in [any_byte, wire::Until::IdleMs(millis(quiet))] {
            if self.wait_until(until, limit).await?.reason == wire::WaitReason::Timeout {
                break;
            }
        }
        Ok(())
    }

    /// Returns whether an error says that the process, or its session, no longer exists.
    pub fn is_forgotten(error: &Error) -> bool {
        matches!(error.kind(), Some(ErrorKind::UnknownProcess | ErrorKind::UnknownSession))
    }

    async fn wait_until(&self, until: wire::Until, limit: Duration) -> Result<wire::Waited, Error> {
        let (process_id, session_id) = self.ids();
        let wait = wire::Wait {
            process_id,
            session_id,
            incarnation: self.incarnation,
            wait_ms: Some(millis(limit)),
            until,
        };
        self.client.call_without_limit(wait).await
    }

    fn ids(&self) -> (String, Option<String>) {
        (self.process_id.clone(), Some(self.session_id.clone()))
    }
}

impl Process {
    /// Reads the events after the one with the sequence number `after`, at most `max_bytes` of output, and waits for
    /// `wait` if there are none yet.
    ///
    /// What it returns is consumed: output that was read this way no longer blocks the process. Use it instead of
    /// [`Process::events`] to poll, not beside it.
    ///
    /// # Errors
    ///
    /// Those of [`Client::call`]; [`ProcessRef::is_forgotten`] recognises a process that no longer exists.
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let client = remex_client::Client::connect(remex::Local::here()?.target()).await?;
    /// use std::time::Duration;
    /// use remex_client::Command;
    ///
    /// let process = Command::new("seq").arg("100000").start(&client).await?;
    /// let (mut after, mut bytes) = (0, 0);
    /// loop {
    ///     let batch = process.read(after, 64 << 10, Duration::from_secs(10)).await?;
    ///     bytes += batch.chunks.iter().map(|chunk| chunk.bytes.len()).sum::<usize>();
    ///     after = batch.last_seq;
    ///     if batch.is_closed {
    ///         break;
    ///     }
    /// }
    /// assert_eq!(bytes, 588_895);
    /// # Ok(()) }
    /// ```
    pub async fn read(&self, after: u64, max_bytes: u64, wait: Duration) -> Result<OutputBatch, Error> {
        let batch = self.reference().read(after, max_bytes, wait).await?;
        self.client().core().on_polled(&self.handle.queue, batch.last_seq);
        Ok(batch)
    }

    /// Returns a reference to this process, which reads its log without being one of its consumers.
    pub fn reference(&self) -> ProcessRef {
        let process = self.client().process_ref(self.client().session_id(), self.id());
        process.with_incarnation(self.handle.queue.incarnation())
    }
}

impl Client {
    /// Returns a reference to a process of any session of the same identity, without contacting the server.
    ///
    /// Each call is for the process that has this id then, also after a restart; see [`ProcessRef::with_incarnation`].
    pub fn process_ref(&self, session_id: impl Into<String>, process_id: impl Into<String>) -> ProcessRef {
        let (session_id, process_id) = (session_id.into(), process_id.into());
        ProcessRef { client: self.clone(), session_id, process_id, incarnation: None }
    }

    /// Lists the processes of all sessions of the same identity, the oldest first.
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
    /// Command::shell("sleep 1000").id("nap").start(&client).await?;
    /// let processes = client.processes().await?;
    /// assert_eq!(processes[0].process_id, "nap");
    /// # Ok(()) }
    /// ```
    pub async fn processes(&self) -> Result<Vec<ProcessInfo>, Error> {
        let list = wire::List { session_id: None, scope: wire::Scope::Identity };
        let mut processes = self.call(list).await?.processes;
        processes.sort_by(|one, other| {
            (one.started_at_ms, &one.process_id).cmp(&(other.started_at_ms, &other.process_id))
        });
        Ok(processes.into_iter().map(ProcessInfo::of).collect())
    }
}
