//! Follows the output of a process: what is new since the last call, until something happens.
//!
//! Start at [`Followed`].

use std::time::Duration;

use remex_client::{
    Error,
    agent::{ControlSequences, Excerpt},
    process::{Exit, ExitCause, OutputBatch, ProcessRef, Stream},
};
use remex_proto::state::matcher::Search;
use schemars::JsonSchema;
use serde::Serialize;
use tokio::time::{Instant, sleep_until};

use crate::{
    answer::Problem,
    call::{Call, Stop},
};

/// How much one read returns at most.
const READ_BYTES: u64 = 1 << 20;

/// How much output tells whether it is binary.
const SAMPLE: usize = 16 << 10;

/// The longest output that is read as a whole; more than a server keeps.
const MAX_TRANSCRIPT: usize = 64 << 20;

/// How often progress is reported while a process runs.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(1);

/// How much of the output a report of progress is made of.
const PROGRESS_BYTES: usize = 200;

/// How long the last output of a process that has exited is awaited.
const CLOSE_GRACE: Duration = Duration::from_millis(250);

/// How long output that is there already is read after the time is over.
const DRAIN_TIME: Duration = Duration::from_secs(1);

/// How much longer than it was asked to a server may take to answer a read.
const PATIENCE: Duration = Duration::from_secs(10);

/// The position of the model in the output of a process.
#[derive(Debug)]
pub(crate) struct Followed {
    /// The last event that the model has seen.
    after: u64,
    /// Incomplete characters and sequences at that position.
    unfinished: Option<Excerpt>,
    /// How many lines end before that position; unknown if output is no longer kept.
    lines: Option<u64>,
}

impl Default for Followed {
    fn default() -> Self {
        Self { after: 0, unfinished: None, lines: Some(0) }
    }
}

/// Until when a call waits, besides its time.
#[derive(Debug)]
pub(crate) enum Condition {
    /// The end of the process.
    End,
    /// Output that matches this regular expression.
    Output(Box<Search>),
    /// No output for this long.
    Silence(Duration),
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
    /// The exit as the server tells it.
    #[serde(skip)]
    pub(crate) exit: Option<Exit>,
    /// Whether everything that the process will ever write is in this or earlier reports.
    #[serde(skip)]
    pub(crate) is_closed: bool,
}

/// How long a call waits, and how much it returns.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    pub(crate) time: Duration,
    pub(crate) bytes: usize,
}

/// What happened while a call waited.
struct Waited {
    returned: Reason,
    exit: Option<Exit>,
    is_closed: bool,
}

impl Waited {
    fn running(returned: Reason) -> Self {
        Self { returned, exit: None, is_closed: false }
    }
}

impl Followed {
    /// Reads on until the condition holds, the process ends or the time is over.
    ///
    /// What a call has read that fails, or that nobody waits for any more, is read again by the next one.
    pub(crate) async fn follow(
        &mut self,
        reference: &ProcessRef,
        environment: &str,
        condition: Condition,
        limits: Limits,
        call: &Call,
    ) -> Result<Result<Report, Stop>, Problem> {
        let began = Instant::now();
        let unfinished = self.unfinished.clone();
        let text = unfinished.unwrap_or_else(|| Excerpt::new(limits.bytes, ControlSequences::Remove));
        let silence = match condition {
            Condition::Silence(silence) => Some(silence),
            _ => None,
        };
        let mut reading = Reading {
            reference,
            after: self.after,
            text: text.budget(limits.bytes),
            search: match condition {
                Condition::Output(search) => Some(search),
                _ => None,
            },
            last_output: began,
            last_line: Vec::new(),
            lines: self.lines,
            tally: Tally::default(),
        };
        let waiting = reading.wait(silence, began + limits.time, began, call);
        let Waited { returned, exit, is_closed } = match call.unless_stopped(waiting).await {
            Ok(waited) => waited?,
            Err(stop) => return Ok(Err(stop)),
        };
        let Reading { after, mut text, lines, tally, .. } = reading;
        let lines_before = self.lines;
        (self.after, self.lines) = (after, lines);
        let output = if is_closed {
            self.unfinished = None;
            text.finish()
        } else {
            let taken = text.take();
            self.unfinished = Some(text);
            taken
        };
        let first_omitted = lines_before.filter(|_| lines.is_some()).and_then(|before| {
            let (head, _) = output.text.split_once("[… ").filter(|_| output.omitted_bytes > 0)?;
            // The last line of the beginning may be cut.
            Some((before + head.matches('\n').count() as u64).max(1))
        });
        let is_binary = tally.is_binary();
        let mut report = Report {
            process: reference.process_id().to_owned(),
            environment: environment.to_owned(),
            state: String::new(),
            running: exit.is_none() && !is_closed,
            returned,
            exit_code: exit.as_ref().map(|exit| exit.code),
            signal: exit.as_ref().and_then(|exit| exit.signal.clone()),
            output: if is_binary { format!("binary, {} bytes", tally.total) } else { output.text },
            omitted_bytes: if is_binary { tally.total } else { output.omitted_bytes },
            total_bytes: if is_binary { tally.total } else { output.total_bytes },
            first_omitted,
            is_binary,
            seconds: (began.elapsed().as_secs_f64() * 1000.0).round() / 1000.0,
            exit,
            is_closed,
        };
        report.state = report.describe();
        Ok(Ok(report))
    }
}

impl Report {
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

/// One call that reads the output of a process.
struct Reading<'a> {
    reference: &'a ProcessRef,
    after: u64,
    text: Excerpt,
    search: Option<Box<Search>>,
    last_output: Instant,
    /// The end of the output, for reports of progress.
    last_line: Vec<u8>,
    /// How many lines end before the position.
    lines: Option<u64>,
    tally: Tally,
}

/// Counts what tells binary output from text.
#[derive(Debug, Default)]
struct Tally {
    total: u64,
    /// How much of that was looked at.
    sampled: usize,
    /// Control characters that no text has.
    controls: u64,
    /// Bytes that are not UTF-8.
    invalid: u64,
}

impl Tally {
    fn add(&mut self, bytes: &[u8]) {
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

impl Reading<'_> {
    async fn wait(
        &mut self,
        silence: Option<Duration>,
        deadline: Instant,
        began: Instant,
        call: &Call,
    ) -> Result<Waited, Problem> {
        let mut next_report = began + PROGRESS_INTERVAL;
        let mut reports = 0;
        // The last output of a process may follow its exit.
        let (mut exit, mut ends_at): (Option<Exit>, Option<Instant>) = (None, None);
        loop {
            let silent_at = silence.map(|silence| self.last_output + silence);
            let mut wake = [silent_at, ends_at].into_iter().flatten().fold(deadline, Instant::min);
            if call.wants_progress() {
                wake = wake.min(next_report);
            }
            let has_more = match self.read(wake).await? {
                Some(batch) => {
                    let has_matched = self.take(&batch);
                    exit = batch.exit.or(exit);
                    let returned = if has_matched { Reason::Matched } else { Reason::Ended };
                    if batch.is_closed {
                        return Ok(Waited { returned, exit, is_closed: true });
                    }
                    if exit.is_some() && ends_at.is_none() {
                        ends_at = Some(Instant::now() + CLOSE_GRACE);
                    }
                    if has_matched {
                        // The end is told only when all output is read: it may be there already.
                        let next = self.read(Instant::now()).await?;
                        let last = next.filter(|next| next.chunks.is_empty() && next.gap.is_none());
                        let is_closed = last.as_ref().is_some_and(|last| last.is_closed);
                        exit = last.and_then(|last| last.exit).or(exit);
                        return Ok(Waited { returned, exit, is_closed });
                    }
                    !batch.chunks.is_empty()
                }
                None => false,
            };
            let now = Instant::now();
            if exit.is_some() && (now >= deadline + DRAIN_TIME || ends_at.is_some_and(|at| now >= at)) {
                return Ok(Waited { returned: Reason::Ended, exit, is_closed: false });
            }
            // What is there already is read even if there is no time to wait for more.
            if now >= deadline && !(has_more && now < deadline + DRAIN_TIME) {
                return Ok(Waited::running(Reason::Time));
            }
            if !has_more && silent_at.is_some_and(|at| now >= at) {
                return Ok(Waited::running(Reason::Silent));
            }
            if call.wants_progress() && now >= next_report {
                reports += 1;
                let seconds = began.elapsed().as_secs();
                call.report(reports, format!("{seconds} s: {}", last_line(&self.last_line))).await;
                next_report = now + PROGRESS_INTERVAL;
            }
        }
    }

    /// Reads what is there, or waits for more until `wake`; none if the server does not answer in time.
    async fn read(&self, wake: Instant) -> Result<Option<OutputBatch>, Error> {
        let wait = wake.saturating_duration_since(Instant::now());
        tokio::select! {
            batch = self.reference.read(self.after, READ_BYTES, wait) => batch.map(Some),
            () = sleep_until(wake + PATIENCE) => Ok(None),
        }
    }

    /// Takes output, and returns whether it matches what is awaited.
    fn take(&mut self, batch: &OutputBatch) -> bool {
        if let Some(gap) = &batch.gap {
            self.text.skip(gap.bytes);
            self.lines = None;
        }
        let mut has_matched = false;
        for chunk in &batch.chunks {
            self.text.push(chunk.stream, &chunk.bytes);
            let ends = memchr::memchr_iter(b'\n', &chunk.bytes).count() as u64;
            self.lines = self.lines.map(|lines| lines + ends);
            if chunk.stream != Stream::Pty {
                self.tally.add(&chunk.bytes);
            }
            if let Some(search) = &mut self.search {
                has_matched |= search.look_at(chunk.stream, &chunk.bytes).is_some();
            }
        }
        if let Some(chunk) = batch.chunks.last() {
            self.last_output = Instant::now();
            let kept = chunk.bytes.len().saturating_sub(PROGRESS_BYTES);
            self.last_line.clear();
            self.last_line.extend_from_slice(&chunk.bytes[kept..]);
        }
        self.after = batch.last_seq;
        has_matched
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
