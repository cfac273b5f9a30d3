//! Processes for the tool calls of a language model.
//!
//! A model starts a command, waits a little, reads some output, and calls again. So a call returns when the command has
//! ended or a time limit has passed, with the output truncated to a budget; the process continues under a number. Start at [`Agent`].

mod clock;
mod collector;
mod limits;
mod open;
mod step;
mod table;
mod truncate;

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

pub use clock::{Clock, RealTime};
pub use limits::{Limits, Window};
pub use step::{ListedProcess, Progress, RetainedOutput, Step, Write};
pub use truncate::{Count, TruncatedText, Truncator};

pub use crate::refusal::{Handle, Refusal};

use crate::{
    Command, Error,
    process::{OnDrop, SignalName},
};
use open::OpenProcess;
use table::Table;

/// The processes of one model.
///
/// Clones share them. Between calls all output is read and its beginning and end are kept, so no process blocks until the
/// next call. Dropping the last clone kills all running processes and their descendants, regardless of their
/// [`OnDrop`].
///
/// ```
/// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let client = remex_client::Client::connect(remex::Local::here()?.target()).await?;
/// use std::time::Duration;
/// use remex_client::{
///     agent::{Agent, Limits, Progress, Window, Write},
///     process::Input,
/// };
///
/// let agent = Agent::new(Limits::default());
/// let command = client.shell("read name; echo hello, $name").input(Input::Piped);
/// let briefly = Window { yield_after: Some(Duration::from_millis(250)), ..Window::default() };
/// let step = agent.exec_command(command, briefly).await?;
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
    /// Locked only for short lookups and insertions.
    table: Mutex<Table>,
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
    /// let agent = Agent::new(Limits { open: 8, ..Limits::default() });
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
        Self { shared: Arc::new(Shared { limits, clock, table: Mutex::default() }) }
    }

    /// Starts a command, and returns when it has ended or the time limit has passed.
    ///
    /// The time starts when the process has started. If the future is dropped after that, the process continues and is
    /// listed.
    ///
    /// # Errors
    ///
    /// Those of [`Command::start`], and [`Refusal::Full`] when too many processes run; none is killed to make room.
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let client = remex_client::Client::connect(remex::Local::here()?.target()).await?;
    /// # use remex_client::agent::*;
    /// # use remex_client::process::Input;
    /// # let agent = Agent::new(Limits::default());
    /// use std::time::Duration;
    ///
    /// let window = Window { yield_after: Some(Duration::from_secs(5)), max_output_bytes: Some(4096) };
    /// let step = agent.exec_command(client.shell("echo built; exit 2"), window).await?;
    /// let answer = match step.progress {
    ///     Progress::Running => format!("{}process {} goes on", step.output.text, step.handle),
    ///     Progress::Ended(exit) => format!("{}exit code {}", step.output.text, exit.code),
    ///     Progress::Lost(error) => return Err(error.into()),
    /// };
    /// assert_eq!(answer, "built\nexit code 2");
    /// # Ok(()) }
    /// ```
    pub async fn exec_command(&self, command: Command, window: Window) -> Result<Step, Error> {
        let Shared { limits, clock, .. } = &*self.shared;
        let mut reservation = self.reserve()?;
        let command = command.on_drop(OnDrop::Terminate).retain_otherwise(limits.retain);
        let open = Arc::new(OpenProcess::start(command, limits.collect_bytes).await?);
        reservation.state = Reserved::Used;
        let handle = self.table().insert(&open, limits.open, clock.now());
        self.step(handle, &open, Write::Nothing, window).await
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
    /// # use remex_client::process::Input;
    /// # let agent = Agent::new(Limits::default());
    /// # let briefly = Window { yield_after: Some(std::time::Duration::ZERO), ..Window::default() };
    /// let command = client.command("wc").arg("-c").input(Input::Piped);
    /// let handle = agent.exec_command(command, briefly).await?.handle;
    /// let step = agent.write_stdin(handle, Write::BytesAndEnd(b"hello"), Window::default()).await?;
    /// assert_eq!((step.accepted_bytes, step.output.text.as_str()), (5, "5\n"));
    /// # Ok(()) }
    /// ```
    pub async fn write_stdin(&self, handle: Handle, write: Write<'_>, window: Window) -> Result<Step, Error> {
        let open = self.open(handle)?;
        if write != Write::Nothing {
            open.running(handle)?;
        }
        self.step(handle, &open, write, window).await
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
    /// # use remex_client::process::Input;
    /// # let agent = Agent::new(Limits::default());
    /// let window = Window { max_output_bytes: Some(100), ..Window::default() };
    /// let step = agent.exec_command(client.command("seq").arg("1000"), window).await?;
    /// assert!(step.output.omitted_bytes > 0);
    /// let retained = agent.output(step.handle, 1 << 20).await?;
    /// assert_eq!((retained.output.text.lines().count(), retained.evicted_bytes), (1000, 0));
    /// # Ok(()) }
    /// ```
    pub async fn output(&self, handle: Handle, max_bytes: usize) -> Result<RetainedOutput, Error> {
        self.open(handle)?.retained(max_bytes).await
    }

    /// Returns all processes, in the order of their starts.
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let client = remex_client::Client::connect(remex::Local::here()?.target()).await?;
    /// # use remex_client::agent::*;
    /// # use remex_client::process::Input;
    /// # let agent = Agent::new(Limits::default());
    /// agent.exec_command(client.command("true"), Window::default()).await?;
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
    /// # use remex_client::process::Input;
    /// # let agent = Agent::new(Limits::default());
    /// # let briefly = Window { yield_after: Some(std::time::Duration::ZERO), ..Window::default() };
    ///
    /// let handle = agent.exec_command(client.command("sleep").arg("1000"), briefly).await?.handle;
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
    /// # use remex_client::process::Input;
    /// # let agent = Agent::new(Limits::default());
    /// # let briefly = Window { yield_after: Some(std::time::Duration::ZERO), ..Window::default() };
    ///
    /// use remex_client::process::SignalName;
    ///
    /// let handle = agent.exec_command(client.command("sleep").arg("1000"), briefly).await?.handle;
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
    /// It does not wait for the end; the next step does.
    ///
    /// # Errors
    ///
    /// [`Refusal::Unknown`], and those of [`Client::call`](crate::Client::call).
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let client = remex_client::Client::connect(remex::Local::here()?.target()).await?;
    /// # use remex_client::agent::*;
    /// # use remex_client::process::Input;
    /// # let agent = Agent::new(Limits::default());
    /// # let briefly = Window { yield_after: Some(std::time::Duration::ZERO), ..Window::default() };
    ///
    /// use std::time::Duration;
    ///
    /// let handle = agent.exec_command(client.command("sleep").arg("1000"), briefly).await?.handle;
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
    /// # use remex_client::process::Input;
    /// # let agent = Agent::new(Limits::default());
    /// # let briefly = Window { yield_after: Some(std::time::Duration::ZERO), ..Window::default() };
    ///
    /// let handle = agent.exec_command(client.command("sleep").arg("1000"), briefly).await?.handle;
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

    async fn step(
        &self,
        handle: Handle,
        open: &OpenProcess,
        write: Write<'_>,
        window: Window,
    ) -> Result<Step, Error> {
        let Shared { limits, clock, .. } = &*self.shared;
        let began = clock.now();
        let over = clock.sleep(limits.patience(window));
        let mut accepted_bytes = 0;
        let write_and_wait = async {
            open.write(handle, write, &mut accepted_bytes).await?;
            open.collector.ended().await;
            Ok::<_, Error>(())
        };
        tokio::select! {
            biased;
            () = open.collector.ended() => {}
            failed = write_and_wait => failed?,
            () = over => {}
        }
        let now = clock.now();
        // The process may have been evicted meanwhile, which does not affect this step.
        let _ = self.table().find(handle, now);
        let (progress, output) = open.collector.take(limits.budget(window));
        Ok(Step { handle, output, progress, accepted_bytes, waited: now.saturating_duration_since(began) })
    }

    fn reserve(&self) -> Result<Reservation<'_>, Error> {
        self.table().reserve(self.shared.limits.open)?;
        Ok(Reservation { shared: &self.shared, state: Reserved::Held })
    }

    fn open(&self, handle: Handle) -> Result<Arc<OpenProcess>, Error> {
        Ok(self.table().find(handle, self.shared.clock.now())?)
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.shared.table()
    }
}

impl Shared {
    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Reservation<'_> {
    fn drop(&mut self) {
        if self.state == Reserved::Held {
            self.shared.table().give_up();
        }
    }
}
