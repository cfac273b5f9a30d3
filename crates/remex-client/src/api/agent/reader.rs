//! Steps on processes that an agent has not started.
//!
//! Start at [`StepReader`].

use std::time::Duration;

use remex_proto::state::matcher::Search;
use tokio::time::{Instant, sleep_until};

use super::{Excerpt, Limits, Progress, TruncatedText, Window};
use crate::{
    Error,
    api::process::{Exit, OutputBatch, ProcessRef, Until},
};

/// How much one read returns at most.
const READ_BYTES: u64 = 1 << 20;

/// How long the last output of a process that has exited is awaited.
const CLOSE_GRACE: Duration = Duration::from_millis(250);

/// How long output that has already arrived is read after the time is over.
const DRAIN_TIME: Duration = Duration::from_secs(1);

/// How much longer than requested a server may take to answer a read.
const ANSWER_TIME: Duration = Duration::from_secs(10);

/// Reads the output of a process in steps, like those of an [`Agent`](super::Agent), without owning the process.
///
/// The process may belong to another session. It continues when the reader is dropped, and between the steps its output
/// stays on the server, which may evict it ([`Command::retain`](crate::Command::retain)).
///
/// ```
/// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let client = remex_client::Client::connect(remex::Local::here()?.target()).await?;
/// use remex_client::{
///     Command,
///     agent::{Limits, StepOutcome, StepReader, Window},
///     process::{Stdio, Until},
/// };
///
/// let command = Command::shell("echo ready; read line; echo got $line; exit 3").stdin(Stdio::Piped);
/// let process = command.start(&client).await?.detach();
/// let mut reader = StepReader::new(process.clone(), Limits::default());
/// let ready = Until::Output("ready".to_owned());
/// let step = reader.step(&ready, Window::default(), |_| {}).await?;
/// assert_eq!((step.outcome, step.output.text.as_str()), (StepOutcome::Matched, "ready\n"));
///
/// process.write(b"it\n").await?;
/// let step = reader.step(&Until::Exit, Window::default(), |_| {}).await?;
/// assert_eq!((step.output.text.as_str(), step.progress.exit().map(|exit| exit.code)), ("got it\n", Some(3)));
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct StepReader {
    process: ProcessRef,
    limits: Limits,
    /// The last event that a step has returned.
    after: u64,
    /// Incomplete characters and sequences at that position.
    unfinished: Option<Excerpt>,
}

/// The result of a [`StepReader::step`].
///
/// See [`StepReader`] for an example.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ReadStep {
    /// The output of the process since the previous step, truncated to the budget.
    pub output: TruncatedText,
    /// Whether the process is running.
    pub progress: Progress,
    /// Why the step has ended.
    pub outcome: StepOutcome,
    /// How long the step took.
    pub waited: Duration,
}

/// Why a [`StepReader::step`] has ended.
///
/// See [`StepReader`] for an example.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum StepOutcome {
    /// The process has exited.
    Exited,
    /// Output matched; the process may have exited since.
    Matched,
    /// There was no output for the requested time.
    Idle,
    /// The time is over.
    Yielded,
}

impl StepReader {
    /// Returns a reader that begins with the oldest retained output.
    ///
    /// See [`StepReader`] for an example.
    pub fn new(process: ProcessRef, limits: Limits) -> Self {
        Self { process, limits, after: 0, unfinished: None }
    }

    /// Continues with another reference to the same process, such as that of a new connection.
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let local = remex::Local::here()?;
    /// # let client = remex_client::Client::connect(local.target()).await?;
    /// # use remex_client::{Client, Command, agent::*, process::Until};
    /// let process = Command::shell("echo once; exec sleep 1000").start(&client).await?.reference();
    /// let mut reader = StepReader::new(process.clone(), Limits::default());
    /// let once = Until::Output("once".to_owned());
    /// reader.step(&once, Window::default(), |_| {}).await?;
    ///
    /// let other = Client::connect(local.target()).await?;
    /// reader.rebind(other.process_ref(process.session_id(), process.process_id()));
    /// let briefly = Window::default().yield_after(std::time::Duration::ZERO);
    /// assert_eq!(reader.step(&once, briefly, |_| {}).await?.output.text, "");
    /// # Ok(()) }
    /// ```
    pub fn rebind(&mut self, process: ProcessRef) {
        self.process = process;
    }

    /// Reads on until the condition holds, the process has exited or the time limit has passed.
    ///
    /// Only output since the previous step counts, so that [`Until::OutputAfter`] is like [`Until::Output`]. `on_batch`
    /// gets the raw output as it arrives; output is read again by the next step if this one fails or is dropped. After an
    /// exit, it waits a moment for the rest of the output.
    ///
    /// # Errors
    ///
    /// [`Error::Refused`] for an invalid expression, and those of [`ProcessRef::read`].
    ///
    /// See [`StepReader`] for an example.
    pub async fn step(
        &mut self,
        until: &Until,
        window: Window,
        on_batch: impl FnMut(&OutputBatch),
    ) -> Result<ReadStep, Error> {
        let began = Instant::now();
        let (budget, patience) = (self.limits.budget(window), self.limits.patience(window));
        let unfinished = self.unfinished.clone();
        let text = unfinished.unwrap_or_else(|| Excerpt::new(budget, self.limits.control_sequences));
        let mut reading = Reading {
            process: &self.process,
            after: self.after,
            text: text.budget(budget),
            search: match until {
                Until::Output(pattern) | Until::OutputAfter { pattern, .. } => Some(Search::new(pattern)?),
                Until::Idle(_) | Until::Exit => None,
            },
            last_output: began,
            on_batch,
        };
        let silence = match until {
            Until::Idle(silence) => Some(*silence),
            _ => None,
        };
        let (outcome, progress) = Box::pin(reading.wait(silence, began + patience)).await?;
        let Reading { after, mut text, .. } = reading;
        // No `await` from here on: a step that is dropped has consumed nothing.
        self.after = after;
        let output = if progress.is_final() {
            self.unfinished = None;
            text.finish()
        } else {
            let taken = text.take();
            self.unfinished = Some(text);
            taken
        };
        Ok(ReadStep { output, progress, outcome, waited: began.elapsed() })
    }
}

/// One step that reads the output of a process.
struct Reading<'a, F> {
    process: &'a ProcessRef,
    after: u64,
    text: Excerpt,
    search: Option<Search>,
    last_output: Instant,
    on_batch: F,
}

impl<F: FnMut(&OutputBatch)> Reading<'_, F> {
    async fn wait(
        &mut self,
        silence: Option<Duration>,
        deadline: Instant,
    ) -> Result<(StepOutcome, Progress), Error> {
        // The last output of a process may follow its exit.
        let (mut exit, mut ends_at): (Option<Exit>, Option<Instant>) = (None, None);
        loop {
            let idle_at = silence.map(|silence| self.last_output + silence);
            let wake = ends_at.unwrap_or_else(|| idle_at.map_or(deadline, |at| at.min(deadline)));
            let has_more = match self.read(wake).await? {
                Some(batch) => {
                    let has_matched = self.take(&batch);
                    exit = batch.exit.or(exit);
                    let outcome = if has_matched { StepOutcome::Matched } else { StepOutcome::Exited };
                    if batch.is_closed {
                        return Ok((outcome, Progress::closed(exit)));
                    }
                    if has_matched {
                        return Ok((outcome, self.progress_after_match(exit).await?));
                    }
                    if exit.is_some() && ends_at.is_none() {
                        ends_at = Some(Instant::now() + CLOSE_GRACE);
                    }
                    !batch.chunks.is_empty()
                }
                None => false,
            };
            let now = Instant::now();
            if let (Some(exit), Some(ends_at)) = (&exit, ends_at) {
                if now >= ends_at {
                    return Ok((StepOutcome::Exited, Progress::Exited(exit.clone())));
                }
                continue;
            }
            // What has already arrived is read even if there is no time to wait for more.
            if now >= deadline && !(has_more && now < deadline + DRAIN_TIME) {
                return Ok((StepOutcome::Yielded, Progress::Running));
            }
            if !has_more && idle_at.is_some_and(|at| now >= at) {
                return Ok((StepOutcome::Idle, Progress::Running));
            }
        }
    }

    /// Returns whether the process has ended with the output that matched: its exit is known only when all output is read.
    async fn progress_after_match(&self, exit: Option<Exit>) -> Result<Progress, Error> {
        let next = self.read(Instant::now()).await?;
        let last = next.filter(|next| next.chunks.is_empty() && next.gap.is_none());
        let is_closed = last.as_ref().is_some_and(|last| last.is_closed);
        let exit = last.and_then(|last| last.exit).or(exit);
        Ok(match exit {
            exit if is_closed => Progress::closed(exit),
            Some(exit) => Progress::Exited(exit),
            None => Progress::Running,
        })
    }

    /// Reads what is there, or waits for more until `wake`; `None` if the server does not answer in time.
    async fn read(&self, wake: Instant) -> Result<Option<OutputBatch>, Error> {
        let wait = wake.saturating_duration_since(Instant::now());
        tokio::select! {
            batch = self.process.read(self.after, READ_BYTES, wait) => batch.map(Some),
            () = sleep_until(wake + ANSWER_TIME) => Ok(None),
        }
    }

    /// Takes output, and returns whether it matches.
    fn take(&mut self, batch: &OutputBatch) -> bool {
        (self.on_batch)(batch);
        if let Some(gap) = &batch.gap {
            self.text.skip(gap.bytes);
            if let Some(search) = &mut self.search {
                search.restart();
            }
        }
        let mut has_matched = false;
        for chunk in &batch.chunks {
            self.text.push(chunk.stream, &chunk.bytes);
            if let Some(search) = &mut self.search {
                has_matched |= search.look_at(chunk.stream, &chunk.bytes).is_some();
            }
        }
        if !batch.chunks.is_empty() {
            self.last_output = Instant::now();
        }
        self.after = batch.last_seq;
        has_matched
    }
}
