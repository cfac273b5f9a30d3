//! Processes for the tool calls of a language model.
//!
//! A model starts a command, waits a little, reads some output, and calls again. So a call returns when the command has
//! ended or a time limit has passed, with the output truncated to a budget; the process continues under a number. Start at [`Agent`].

mod clock;
mod collector;
mod control_sequences;
mod events;
mod excerpt;
mod json;
mod limits;
mod live;
mod open;
mod output_text;
mod reader;
mod recent;
mod step;
mod table;
mod truncate;

use std::{
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use remex_base::lock;
use tokio::time::Instant;

pub use clock::{Clock, RealTime};
pub use control_sequences::ControlSequences;
pub use events::{AgentEvent, AgentEvents};
pub use excerpt::Excerpt;
pub use limits::{Limits, Window};
pub use live::{Delta, LiveStep, StepEvent};
pub use reader::{ReadStep, StepOutcome, StepReader};
pub use step::{ListedProcess, Progress, RetainedOutput, Step, Write};
pub use truncate::{Count, TruncatedText, Truncator};

pub use crate::base::refusal::{Handle, Refusal};

use crate::{
    Client, Command, Error, Process,
    api::process::{OnDrop, SignalName},
};
use collector::Viewed;
use events::{EventSender, StepGuard};
use open::OpenProcess;
use table::Table;

/// The processes of one model.
///
/// Clones share them. Between calls all output is read and its beginning and end are kept, so no process blocks until the
/// next call. Dropping the last clone kills all running processes and their descendants, regardless of their
/// [`OnDrop`], except those whose [`Agent::process`] is still held.
///
/// ```
/// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let client = remex_client::Client::connect(remex::Local::here()?.target()).await?;
/// use remex_client::Command;
/// use std::time::Duration;
/// use remex_client::{
///     agent::{Agent, Limits, Progress, Window, Write},
///     process::Stdio,
/// };
///
/// let agent = Agent::new(Limits::default());
/// let command = Command::shell("read name; echo hello, $name").stdin(Stdio::Piped);
/// let briefly = Window::default().yield_after(Duration::from_millis(250));
/// let step = agent.exec_command(&client, &command, briefly).await?;
/// assert_eq!(step.progress, Progress::Running);
/// let step = agent.write_stdin(step.handle, Write::Bytes(b"world\n"), Window::default()).await?;
/// assert_eq!(step.output.text, "hello, world\n");
/// # Ok(()) }
/// ```
#[derive(Debug, Clone)]
pub struct Agent {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    limits: Limits,
    clock: Arc<dyn Clock>,
    events: EventSender,
    /// Locked only for short lookups and insertions.
    table: Mutex<Table>,
}

/// When a step began, and when its time is over.
struct Timer {
    began: Instant,
    over: Pin<Box<dyn Future<Output = ()> + Send>>,
}

/// A step whose wait is over.
#[derive(Debug, Clone, Copy)]
struct FinishedWait {
    accepted_bytes: usize,
    duration: Duration,
}

/// A reserved slot for a process that is being started.
struct Reservation<'a> {
    shared: &'a Shared,
    state: Reserved,
}

#[derive(PartialEq, Eq)]
enum Reserved {
    Held,
    Used,
}

impl Agent {
    /// Returns an agent without processes.
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let client = remex_client::Client::connect(remex::Local::here()?.target()).await?;
    /// use remex_client::agent::{Agent, Limits};
    ///
    /// let agent = Agent::new(Limits::default().open(8));
    /// assert_eq!(agent.list(), []);
    /// # Ok(()) }
    /// ```
    pub fn new(limits: Limits) -> Self {
        Self::with_clock(limits, Arc::new(RealTime))
    }

    /// Returns an agent with its own time source.
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let client = remex_client::Client::connect(remex::Local::here()?.target()).await?;
    /// use std::sync::Arc;
    /// use remex_client::agent::{Agent, Limits, RealTime};
    ///
    /// let agent = Agent::with_clock(Limits::default(), Arc::new(RealTime));
    /// assert_eq!(agent.list(), []);
    /// # Ok(()) }
    /// ```
    pub fn with_clock(limits: Limits, clock: Arc<dyn Clock>) -> Self {
        Self {
            shared: Arc::new(Shared { limits, clock, events: EventSender::new(), table: Mutex::default() }),
        }
    }

    /// Starts a command, and returns when it has ended or the time limit has passed.
    ///
    /// The time starts when the process has started. If the future is dropped after that, the process continues and is
    /// listed.
    ///
    /// [`Agent::exec_command_live`] also tells what is printed meanwhile.
    ///
    /// # Errors
    ///
    /// Those of [`Command::start`], and [`Refusal::Full`] when too many processes run; none is killed to make room.
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let client = remex_client::Client::connect(remex::Local::here()?.target()).await?;
    /// # use remex_client::agent::*;
    /// # use remex_client::process::Stdio;
    /// # let agent = Agent::new(Limits::default());
    /// use remex_client::Command;
    /// use std::time::Duration;
    ///
    /// let window = Window::default().yield_after(Duration::from_secs(5)).max_output_bytes(4096);
    /// let step = agent.exec_command(&client, &Command::shell("echo built; exit 2"), window).await?;
    /// let answer = match step.progress {
    ///     Progress::Running => format!("{}process {} goes on", step.output.text, step.handle),
    ///     Progress::Exited(_) => format!("{}a background process goes on", step.output.text),
    ///     Progress::Ended(exit) => format!("{}exit code {}", step.output.text, exit.code),
    ///     Progress::Lost(error) => return Err(error.into()),
    ///     other => format!("{other:?}"),
    /// };
    /// assert_eq!(answer, "built\nexit code 2");
    /// # Ok(()) }
    /// ```
    pub async fn exec_command(
        &self,
        client: &Client,
        command: &Command,
        window: Window,
    ) -> Result<Step, Error> {
        let (handle, open, guard) = self.start(client, command).await?;
        self.step(handle, &open, Write::Nothing, window, guard).await
    }

    /// Writes input, or nothing, to a process, and returns when it has ended or the time limit has passed.
    ///
    /// The step contains the output since the previous one. It returns in time even if the process does not read, and
    /// reports how much input was accepted ([`Step::accepted_bytes`]). Concurrent calls write one after the other, and
    /// each piece of output goes to one of them. A dropped call consumes no output.
    ///
    /// # Errors
    ///
    /// [`Refusal`] when there is no such process, it accepts no input, or it has ended; nothing is written and no output
    /// is lost, and [`Write::Nothing`] returns the rest of it. [`Error::Refused`] when the
    /// process has closed its input.
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let client = remex_client::Client::connect(remex::Local::here()?.target()).await?;
    /// # use remex_client::agent::*;
    /// # use remex_client::process::Stdio;
    /// # let agent = Agent::new(Limits::default());
    /// # let briefly = Window::default().yield_after(std::time::Duration::ZERO);
    /// use remex_client::Command;
    ///
    /// let command = Command::new("wc").arg("-c").stdin(Stdio::Piped);
    /// let handle = agent.exec_command(&client, &command, briefly).await?.handle;
    /// let step = agent.write_stdin(handle, Write::BytesAndEnd(b"hello"), Window::default()).await?;
    /// assert_eq!((step.accepted_bytes, step.output.text.as_str()), (5, "5\n"));
    /// # Ok(()) }
    /// ```
    pub async fn write_stdin(&self, handle: Handle, write: Write<'_>, window: Window) -> Result<Step, Error> {
        let open = self.open_for(handle, write)?;
        let guard = open.step();
        self.step(handle, &open, write, window, guard).await
    }

    /// Returns the retained output of a process from its beginning, truncated to `max_bytes`.
    ///
    /// Steps are not affected. It also works after the process has ended.
    ///
    /// # Errors
    ///
    /// [`Refusal::Unknown`], and [`Error::Lost`].
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let client = remex_client::Client::connect(remex::Local::here()?.target()).await?;
    /// # use remex_client::agent::*;
    /// # use remex_client::process::Stdio;
    /// # let agent = Agent::new(Limits::default());
    /// use remex_client::Command;
    ///
    /// let window = Window::default().max_output_bytes(100);
    /// let step = agent.exec_command(&client, &Command::new("seq").arg("1000"), window).await?;
    /// assert!(step.output.omitted_bytes > 0);
    /// let retained = agent.output(step.handle, 1 << 20).await?;
    /// assert_eq!((retained.output.text.lines().count(), retained.evicted_bytes), (1000, 0));
    /// # Ok(()) }
    /// ```
    pub async fn output(&self, handle: Handle, max_bytes: usize) -> Result<RetainedOutput, Error> {
        self.open(handle)?.retained(max_bytes, self.shared.limits.control_sequences).await
    }

    /// Returns all processes, in the order of their starts.
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let client = remex_client::Client::connect(remex::Local::here()?.target()).await?;
    /// # use remex_client::agent::*;
    /// # use remex_client::process::Stdio;
    /// # let agent = Agent::new(Limits::default());
    /// use remex_client::Command;
    ///
    /// agent.exec_command(&client, &Command::new("true"), Window::default()).await?;
    /// let listed = agent.list();
    /// assert_eq!((listed.len(), listed[0].command.as_str()), (1, "true"));
    /// # Ok(()) }
    /// ```
    pub fn list(&self) -> Vec<ListedProcess> {
        let now = self.shared.clock.now();
        let listed = |(handle, open, used_at): (_, &OpenProcess, _)| ListedProcess {
            handle,
            command: open.command.clone(),
            progress: open.collector.progress(),
            idle_for: now.saturating_duration_since(used_at),
            unseen_bytes: open.collector.unseen_bytes(),
        };
        self.table().iter().map(listed).collect()
    }

    /// Returns the process itself, to follow its raw output, resize its terminal or wait for it.
    ///
    /// The agent keeps the standard input; [`Process::write`] works beside it. A consumer that stalls, such as
    /// [`Process::events`], blocks the process, which steps never do. The process is killed when the agent and all these
    /// handles are dropped.
    ///
    /// # Errors
    ///
    /// [`Refusal::Unknown`].
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let client = remex_client::Client::connect(remex::Local::here()?.target()).await?;
    /// # use remex_client::agent::*;
    /// # let agent = Agent::new(Limits::default());
    /// # let briefly = Window::default().yield_after(std::time::Duration::ZERO);
    /// use remex_client::{Command, process::TerminalSize};
    ///
    /// let command = Command::shell("read line; stty size").terminal(TerminalSize::default());
    /// let handle = agent.exec_command(&client, &command, briefly).await?.handle;
    /// agent.process(handle)?.resize(TerminalSize::new(50, 132)?).await?;
    /// let step = agent.write_stdin(handle, Write::Bytes(b"\n"), Window::default()).await?;
    /// assert!(step.output.text.ends_with("50 132\n"));
    /// # Ok(()) }
    /// ```
    pub fn process(&self, handle: Handle) -> Result<Process, Error> {
        Ok(self.open(handle)?.process().clone())
    }

    /// Interrupts a process like Ctrl-C: sends the key on a terminal, otherwise SIGINT to its process group.
    ///
    /// # Errors
    ///
    /// [`Refusal::Unknown`] and [`Refusal::Ended`], those of [`Client::call`](crate::Client::call), and
    /// [`Error::TimedOut`] when the terminal accepts no input.
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let client = remex_client::Client::connect(remex::Local::here()?.target()).await?;
    /// # use remex_client::agent::*;
    /// # use remex_client::process::Stdio;
    /// # let agent = Agent::new(Limits::default());
    /// # let briefly = Window::default().yield_after(std::time::Duration::ZERO);
    /// use remex_client::Command;
    ///
    /// let handle = agent.exec_command(&client, &Command::new("sleep").arg("1000"), briefly).await?.handle;
    /// agent.interrupt(handle).await?;
    /// let step = agent.write_stdin(handle, Write::Nothing, Window::default()).await?;
    /// assert!(matches!(step.progress, Progress::Ended(exit) if exit.signal.as_deref() == Some("SIGINT")));
    /// # Ok(()) }
    /// ```
    pub async fn interrupt(&self, handle: Handle) -> Result<(), Error> {
        let open = self.open(handle)?;
        open.running(handle)?;
        let after = self.shared.limits.yield_max;
        tokio::select! {
            biased;
            interrupted = open.interrupt() => interrupted,
            () = self.shared.clock.sleep(after) => Err(Error::TimedOut { what: "the interrupt", after }),
        }
    }

    /// Sends a signal to the process group of a process.
    ///
    /// # Errors
    ///
    /// [`Refusal::Unknown`] and [`Refusal::Ended`], and those of [`Process::signal`](crate::Process::signal).
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let client = remex_client::Client::connect(remex::Local::here()?.target()).await?;
    /// # use remex_client::agent::*;
    /// # use remex_client::process::Stdio;
    /// # let agent = Agent::new(Limits::default());
    /// # let briefly = Window::default().yield_after(std::time::Duration::ZERO);
    ///
    /// use remex_client::{Command, process::SignalName};
    ///
    /// let handle = agent.exec_command(&client, &Command::new("sleep").arg("1000"), briefly).await?.handle;
    /// agent.signal(handle, SignalName::Hup).await?;
    /// let step = agent.write_stdin(handle, Write::Nothing, Window::default()).await?;
    /// assert!(matches!(step.progress, Progress::Ended(exit) if exit.signal.as_deref() == Some("SIGHUP")));
    /// # Ok(()) }
    /// ```
    pub async fn signal(&self, handle: Handle, signal: SignalName) -> Result<(), Error> {
        self.open(handle)?.running(handle)?.signal(signal).await
    }

    /// Sends SIGTERM to a process, and kills it and all its descendants after `grace`; does nothing if it has ended.
    ///
    /// It does not wait for the end; the next step does. After [`Progress::Exited`], it ends what is left in the process
    /// group and the session of the command.
    ///
    /// # Errors
    ///
    /// [`Refusal::Unknown`], and those of [`Client::call`](crate::Client::call).
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let client = remex_client::Client::connect(remex::Local::here()?.target()).await?;
    /// # use remex_client::agent::*;
    /// # use remex_client::process::Stdio;
    /// # let agent = Agent::new(Limits::default());
    /// # let briefly = Window::default().yield_after(std::time::Duration::ZERO);
    /// use remex_client::Command;
    ///
    /// use std::time::Duration;
    ///
    /// let handle = agent.exec_command(&client, &Command::new("sleep").arg("1000"), briefly).await?.handle;
    /// agent.terminate(handle, Duration::from_secs(5)).await?;
    /// let step = agent.write_stdin(handle, Write::Nothing, Window::default()).await?;
    /// assert!(matches!(step.progress, Progress::Ended(exit) if exit.code == 128 + 15));
    /// # Ok(()) }
    /// ```
    pub async fn terminate(&self, handle: Handle, grace: Duration) -> Result<(), Error> {
        match self.open(handle)?.running(handle) {
            Ok(process) => process.terminate(grace).await,
            Err(_) => Ok(()),
        }
    }

    /// Kills a process and all its descendants at once; does nothing if it has ended.
    ///
    /// # Errors
    ///
    /// As [`Agent::terminate`].
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let client = remex_client::Client::connect(remex::Local::here()?.target()).await?;
    /// # use remex_client::agent::*;
    /// # use remex_client::process::Stdio;
    /// # let agent = Agent::new(Limits::default());
    /// # let briefly = Window::default().yield_after(std::time::Duration::ZERO);
    /// use remex_client::Command;
    ///
    /// let handle = agent.exec_command(&client, &Command::new("sleep").arg("1000"), briefly).await?.handle;
    /// agent.kill(handle).await?;
    /// let step = agent.write_stdin(handle, Write::Nothing, Window::default()).await?;
    /// assert!(matches!(step.progress, Progress::Ended(exit) if exit.code == 128 + 9));
    /// # Ok(()) }
    /// ```
    pub async fn kill(&self, handle: Handle) -> Result<(), Error> {
        match self.open(handle)?.running(handle) {
            Ok(process) => process.kill().await,
            Err(_) => Ok(()),
        }
    }

    /// Starts a process, and returns it with the guard of its first step.
    async fn start(
        &self,
        client: &Client,
        command: &Command,
    ) -> Result<(Handle, Arc<OpenProcess>, Option<StepGuard>), Error> {
        let Shared { limits, clock, events, .. } = &*self.shared;
        let mut reservation = self.reserve()?;
        let command = command.clone().on_drop(OnDrop::Terminate);
        let command = command.retain_otherwise(limits.retain).linger_otherwise(limits.linger);
        let open = Arc::new(OpenProcess::start(client, &command, limits).await?);
        reservation.state = Reserved::Used;
        let handle = self.table().insert(&open, limits.open, clock.now());
        let guard = open.report_end(handle, events.clone());
        Ok((handle, open, guard))
    }

    async fn step(
        &self,
        handle: Handle,
        open: &OpenProcess,
        write: Write<'_>,
        window: Window,
        guard: Option<StepGuard>,
    ) -> Result<Step, Error> {
        let waited = self.wait(handle, open, write, self.timer(window)).await?;
        Ok(self.finish(handle, open, window, waited, Viewed::WithStep, guard))
    }

    fn timer(&self, window: Window) -> Timer {
        let Shared { limits, clock, .. } = &*self.shared;
        Timer { began: clock.now(), over: clock.sleep(limits.patience(window)) }
    }

    /// Writes, and waits until the process has ended or the time is over; consumes no output.
    async fn wait(
        &self,
        handle: Handle,
        open: &OpenProcess,
        write: Write<'_>,
        timer: Timer,
    ) -> Result<FinishedWait, Error> {
        let mut accepted_bytes = 0;
        let mut told_bytes = 0;
        let write_and_wait = async {
            open.write(handle, write, &mut accepted_bytes).await?;
            // Before the output that answers it.
            told_bytes = accepted_bytes;
            self.shared.events.input(handle, &write.bytes()[..told_bytes]);
            open.collector.ended().await;
            Ok::<_, Error>(())
        };
        let failed = tokio::select! {
            biased;
            () = open.collector.ended() => Ok(()),
            failed = write_and_wait => failed,
            () = timer.over => Ok(()),
        };
        self.shared.events.input(handle, &write.bytes()[told_bytes..accepted_bytes]);
        failed?;
        let duration = self.shared.clock.now().saturating_duration_since(timer.began);
        Ok(FinishedWait { accepted_bytes, duration })
    }

    /// Ends a step with the output since the previous one.
    fn finish(
        &self,
        handle: Handle,
        open: &OpenProcess,
        window: Window,
        waited: FinishedWait,
        viewed: Viewed,
        guard: Option<StepGuard>,
    ) -> Step {
        let Shared { limits, clock, .. } = &*self.shared;
        // The process may have been evicted meanwhile, which does not affect this step.
        let _ = self.table().find(handle, clock.now());
        let (progress, output) = open.collector.take(limits.budget(window), viewed);
        if let Some(guard) = guard {
            guard.finish(&progress);
        }
        let FinishedWait { accepted_bytes, duration: waited } = waited;
        Step { handle, output, progress, accepted_bytes, waited }
    }

    fn reserve(&self) -> Result<Reservation<'_>, Error> {
        self.table().reserve(self.shared.limits.open)?;
        Ok(Reservation { shared: &self.shared, state: Reserved::Held })
    }

    fn open(&self, handle: Handle) -> Result<Arc<OpenProcess>, Error> {
        Ok(self.table().find(handle, self.shared.clock.now())?)
    }

    /// Finds a process that is to be written to.
    fn open_for(&self, handle: Handle, write: Write<'_>) -> Result<Arc<OpenProcess>, Error> {
        let open = self.open(handle)?;
        if write != Write::Nothing {
            open.running(handle)?;
        }
        Ok(open)
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.shared.table()
    }
}

impl Shared {
    fn table(&self) -> MutexGuard<'_, Table> {
        lock(&self.table)
    }
}

impl Drop for Reservation<'_> {
    fn drop(&mut self) {
        if self.state == Reserved::Held {
            self.shared.table().give_up();
        }
    }
}
