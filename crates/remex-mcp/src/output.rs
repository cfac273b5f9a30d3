//! What is new in the output of a process since the last call, until something happens.
//!
//! Start at [`OutputPosition`].

use std::{
    convert::Infallible,
    future::pending,
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

use remex_base::lock;
use remex_client::{
    Error,
    agent::{ControlSequences, Excerpt, Limits, Progress, ReadStep, StepOutcome, StepReader, Window},
    process::{Exit, ExitCause, OutputBatch, ProcessRef, Stream, Until},
};
use schemars::JsonSchema;
use serde::Serialize;
use tokio::time::{MissedTickBehavior, interval_at};

use crate::{
    answer::ToolError,
    call::{Call, Stop},
};

/// How much one read returns at most.
const READ_BYTES: u64 = 1 << 20;

/// How much output is sampled to detect binary data.
const SAMPLE: usize = 16 << 10;

/// The longest output that is read as a whole; more than a server keeps.
const MAX_TRANSCRIPT: usize = 64 << 20;

/// How often progress is reported while a process runs.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(1);

/// How much of the output a report of progress is made of.
const PROGRESS_BYTES: usize = 200;

/// The position of the model in the output of a process.
#[derive(Debug)]
pub(crate) struct OutputPosition {
    reader: StepReader,
    /// How many lines end before that position; unknown if output is no longer kept.
    lines: Option<u64>,
}

/// Why a call no longer waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Reason {
    /// The process has ended.
    Ended,
    /// The awaited text was written.
    Matched,
    /// Nothing was written for the time that was asked for.
    Silent,
    /// The time is over.
    Time,
}

/// What a process has done during a call.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Report {
    /// The name of the process, for other tools.
    pub(crate) process: String,
    pub(crate) environment: String,
    /// What became of it, in words.
    pub(crate) state: String,
    /// Whether it still runs.
    pub(crate) running: bool,
    /// Why the call returned.
    pub(crate) returned: Reason,
    /// Its exit code, once it has ended; 128 and the number of the signal if a signal ended it.
    pub(crate) exit_code: Option<i32>,
    /// The signal that ended it, such as SIGKILL.
    pub(crate) signal: Option<String>,
    /// What it has written since the last call: the beginning and the end, if it is too long.
    pub(crate) output: String,
    /// How many bytes of that are left out.
    pub(crate) omitted_bytes: u64,
    pub(crate) total_bytes: u64,
    /// How long the call took.
    pub(crate) seconds: f64,
    /// Which line of the whole output is the first that is left out.
    #[serde(skip)]
    first_omitted: Option<u64>,
    #[serde(skip)]
    is_binary: bool,
    /// The exit as reported by the server.
    #[serde(skip)]
    pub(crate) exit: Option<Exit>,
    /// Whether everything that the process will ever write is in this or earlier reports.
    #[serde(skip)]
    pub(crate) is_closed: bool,
}

impl From<StepOutcome> for Reason {
    fn from(outcome: StepOutcome) -> Self {
        match outcome {
            StepOutcome::Exited => Self::Ended,
            StepOutcome::Matched => Self::Matched,
            StepOutcome::Idle => Self::Silent,
            _ => Self::Time,
        }
    }
}

impl OutputPosition {
    /// Returns the position before the first output.
    pub(crate) fn new(process: ProcessRef) -> Self {
        // Each call has its own wait time.
        let limits = Limits::default().yield_min(Duration::ZERO).yield_max(Duration::MAX);
        Self { reader: StepReader::new(process, limits), lines: Some(0) }
    }

    /// Reads until the condition holds, the process ends or the time is over.
    ///
    /// The output read by a failed or abandoned call is returned again by the next one.
    pub(crate) async fn follow(
        &mut self,
        process: &ProcessRef,
        environment: &str,
        until: &Until,
        window: Window,
        call: &Call,
    ) -> Result<Result<Report, Stop>, ToolError> {
        self.reader.rebind(process.clone());
        let lines_before = self.lines;
        let seen = Mutex::new(Seen { lines: lines_before, ..Seen::default() });
        let reading = self.reader.step(until, window, |batch| lock(&seen).add(batch));
        let reading = async {
            tokio::select! {
                step = reading => step,
                never = report_progress(call, &seen) => match never {},
            }
        };
        let step = match call.unless_stopped(reading).await {
            Ok(step) => step?,
            Err(stop) => return Ok(Err(stop)),
        };
        let seen = seen.into_inner().unwrap_or_else(PoisonError::into_inner);
        self.lines = seen.lines;
        Ok(Ok(Report::new(process, environment, step, &seen, lines_before)))
    }
}

/// Reports progress to a client that requested it, as long as this is polled.
async fn report_progress(call: &Call, seen: &Mutex<Seen>) -> Infallible {
    if !call.wants_progress() {
        return pending().await;
    }
    let began = Instant::now();
    let mut ticks = interval_at((began + PROGRESS_INTERVAL).into(), PROGRESS_INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut reports = 0;
    loop {
        ticks.tick().await;
        reports += 1;
        let line = last_line(&lock(seen).end);
        call.report(reports, format!("{} s: {line}", began.elapsed().as_secs())).await;
    }
}

impl Report {
    fn new(
        process: &ProcessRef,
        environment: &str,
        step: ReadStep,
        seen: &Seen,
        lines_before: Option<u64>,
    ) -> Self {
        let ReadStep { output, progress, outcome, waited, .. } = step;
        let first_omitted = lines_before.filter(|_| seen.lines.is_some()).and_then(|before| {
            let (head, _) = output.text.split_once("[… ").filter(|_| output.omitted_bytes > 0)?;
            // The last line of the beginning may be cut.
            Some((before + head.matches('\n').count() as u64).max(1))
        });
        let (is_binary, total) = (seen.is_binary(), seen.total);
        let exit = progress.exit().cloned();
        let mut report = Self {
            process: process.process_id().to_owned(),
            environment: environment.to_owned(),
            state: String::new(),
            running: progress == Progress::Running,
            returned: outcome.into(),
            exit_code: exit.as_ref().map(|exit| exit.code),
            signal: exit.as_ref().and_then(|exit| exit.signal.clone()),
            output: if is_binary { format!("binary, {total} bytes") } else { output.text },
            omitted_bytes: if is_binary { total } else { output.omitted_bytes },
            total_bytes: if is_binary { total } else { output.total_bytes },
            first_omitted,
            is_binary,
            seconds: (waited.as_secs_f64() * 1000.0).round() / 1000.0,
            exit,
            is_closed: progress.is_final(),
        };
        report.state = report.describe();
        report
    }

    /// Returns the report as the model reads it: the output, how the rest of it can be read, and what became of the process.
    pub(crate) fn text(&self) -> String {
        let output = &self.output;
        let mut text = output.clone();
        if !output.is_empty() && !output.ends_with('\n') {
            text.push('\n');
        }
        let name = &self.process;
        if self.is_binary {
            text.push_str("[to look at it, run the command again with `| xxd | head`, or with `> FILE`]\n");
        } else if let Some(line) = self.first_omitted {
            text.push_str(&format!(
                "[read what is left out with `read_output`, `process` `{name}` and `first_line` {line}, or find lines in it with \
                 `search`]\n"
            ));
        } else if self.omitted_bytes > 0 {
            text.push_str(&format!(
                "[read what is left out with `read_output`, `process` `{name}` and `offset` 0, or find lines in it with \
                 `search`]\n"
            ));
        }
        text.push_str(&format!("[{}]", self.state));
        text
    }

    fn describe(&self) -> String {
        let name = &self.process;
        match (&self.exit, self.returned) {
            (Some(exit), _) => {
                let how = match (exit.cause, &exit.signal) {
                    (Some(ExitCause::Timeout), _) => "was ended by its time limit".to_owned(),
                    (Some(ExitCause::OutOfMemory), _) => "was ended because memory ran out".to_owned(),
                    (_, Some(signal)) => format!("was ended by {signal}"),
                    _ => format!("ended with exit code {}", exit.code),
                };
                let rest =
                    if self.is_closed { "" } else { "; something that it started still has its output open" };
                let matched = match self.returned {
                    Reason::Matched => "; the awaited text was written",
                    _ => "",
                };
                format!("`{name}` {how}{rest}{matched}")
            }
            (None, _) if self.is_closed => format!("`{name}` has ended"),
            (None, Reason::Matched) => format!("`{name}` is running; the awaited text was written"),
            (None, Reason::Silent) => format!("`{name}` is running, and silent"),
            (None, _) => format!("`{name}` is still running; read on with `read_output`"),
        }
    }
}

/// Statistics of the raw output that one call has read.
#[derive(Debug, Default)]
struct Seen {
    /// How many lines end before the position; unknown if output is no longer kept.
    lines: Option<u64>,
    /// The end of the output, for reports of progress.
    end: Vec<u8>,
    /// How much output there was, except that of a terminal.
    total: u64,
    /// How much of that was sampled.
    sampled: usize,
    /// Control characters that no text has.
    controls: u64,
    /// Bytes that are not UTF-8.
    invalid: u64,
}

impl Seen {
    fn add(&mut self, batch: &OutputBatch) {
        if batch.gap.is_some() {
            self.lines = None;
        }
        for chunk in &batch.chunks {
            let ends = memchr::memchr_iter(b'\n', &chunk.bytes).count() as u64;
            self.lines = self.lines.map(|lines| lines + ends);
            if chunk.stream != Stream::Pty {
                self.sample(&chunk.bytes);
            }
        }
        if let Some(chunk) = batch.chunks.last() {
            let kept = chunk.bytes.len().saturating_sub(PROGRESS_BYTES);
            self.end.clear();
            self.end.extend_from_slice(&chunk.bytes[kept..]);
        }
    }

    /// Counts bytes that distinguish binary output from text.
    fn sample(&mut self, bytes: &[u8]) {
        let is_control = |byte: &&u8| **byte < 7 || (14..27).contains(*byte) || (28..32).contains(*byte);
        self.total += bytes.len() as u64;
        let bytes = &bytes[..bytes.len().min(SAMPLE.saturating_sub(self.sampled))];
        self.sampled += bytes.len();
        self.controls += bytes.iter().filter(is_control).count() as u64;
        self.invalid += bytes.utf8_chunks().map(|chunk| chunk.invalid().len() as u64).sum::<u64>();
    }

    fn is_binary(&self) -> bool {
        let (both, sampled) = (self.controls + self.invalid, self.sampled as u64);
        self.controls * 20 > sampled || (self.controls > 0 && both * 10 > sampled)
    }
}

/// All output of a process that is still kept, as text.
pub(crate) struct Transcript {
    pub(crate) text: String,
    /// Whether output before it is no longer kept.
    pub(crate) is_cut: bool,
}

impl Transcript {
    /// Reads what is there, without waiting for more.
    pub(crate) async fn read(reference: &ProcessRef) -> Result<Self, Error> {
        let mut excerpt = Excerpt::new(MAX_TRANSCRIPT, ControlSequences::Remove);
        let (mut after, mut is_cut) = (0, false);
        loop {
            let batch = reference.read(after, READ_BYTES, Duration::ZERO).await?;
            is_cut |= batch.gap.is_some();
            for chunk in &batch.chunks {
                excerpt.push(chunk.stream, &chunk.bytes);
            }
            if batch.chunks.is_empty() || batch.last_seq <= after {
                break;
            }
            after = batch.last_seq;
        }
        Ok(Self { text: excerpt.finish().text, is_cut })
    }
}

/// Returns the last line that has text, as one can print it.
fn last_line(bytes: &[u8]) -> String {
    let mut excerpt = Excerpt::new(4 * PROGRESS_BYTES, ControlSequences::Remove);
    excerpt.push(Stream::Stdout, bytes);
    let text = excerpt.finish().text;
    text.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or_default().trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_shows_the_last_line_with_text() {
        assert_eq!(last_line(b"one\n\x1b[32mtwo\x1b[0m\r\n\n"), "two");
        assert_eq!(last_line(b"10%\r50%\r"), "50%");
        assert_eq!(last_line(b""), "");
    }
}
