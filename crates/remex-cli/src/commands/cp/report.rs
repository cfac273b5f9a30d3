//! The output of a copy: a progress line on terminals, errors, and a summary.

use std::{
    collections::{BTreeSet, VecDeque},
    io::{self, IsTerminal as _, Write as _},
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use remex_base::{clock::millis, lock};
use remex_client::fs::{CopyAction, CopyFailure, CopyObserver, CopyProblem, SkipUnchanged};
use serde::Serialize;
use tokio::task::JoinSet;

use crate::{
    commands::cat::Failures,
    render::{
        failure::Failure,
        print,
        text::{age, beginning, plain, size},
    },
};

/// The refresh interval of the progress line.
const REDRAW: Duration = Duration::from_millis(100);

/// The time over which the transfer rate is averaged.
const RATE_OVER: Duration = Duration::from_secs(5);

/// How many leftover files of a failed copy are named.
const MOST_NAMED: usize = 8;

/// The verbosity of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Detail {
    Errors,
    Summary,
    Files,
}

/// How lines on stdout are printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Style {
    Text,
    /// One object per line, and the summary as the last one.
    Json,
}

/// The JSON of one entry.
#[derive(Serialize)]
struct Event<'a> {
    event: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    from: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    to: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

impl Event<'_> {
    fn new(event: &'static str) -> Self {
        Self { event, from: None, to: None, error: None }
    }
}

/// The JSON of the summary.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Summary {
    event: &'static str,
    dry_run: bool,
    copied: u64,
    copied_bytes: u64,
    skipped: u64,
    excluded: u64,
    special: u64,
    deleted: u64,
    failed: u64,
    elapsed_ms: u64,
}

/// The progress of a copy, and how it is printed.
#[derive(Debug)]
pub(super) struct Report {
    detail: Detail,
    style: Style,
    is_dry: bool,
    skip_unchanged: SkipUnchanged,
    /// Whether stderr is a terminal.
    is_watched: bool,
    began: Instant,
    files: AtomicU64,
    skipped: AtomicU64,
    excluded: AtomicU64,
    /// The pipes, sockets and devices that were left out of trees.
    specials: AtomicU64,
    deleted: AtomicU64,
    /// The number of failures, and how many of them are deletions.
    failed: AtomicU64,
    undeleted: AtomicU64,
    /// Bytes at the destination, and those copied by this command.
    done: AtomicU64,
    moved: AtomicU64,
    /// The total, counted while the copy runs.
    total_files: AtomicU64,
    total_bytes: AtomicU64,
    /// Leftover files of a failed copy, for messages; locked only briefly.
    left: Mutex<BTreeSet<String>>,
    /// Locked briefly to write to the terminal.
    screen: Mutex<Screen>,
}

#[derive(Debug, Default)]
struct Screen {
    failures: Failures,
    is_counted: bool,
    is_drawn: bool,
    current: String,
    /// Samples of the copied bytes, for the rate.
    samples: VecDeque<(Instant, u64)>,
}

impl Report {
    pub(super) fn new(detail: Detail, style: Style, is_dry: bool, skip_unchanged: SkipUnchanged) -> Self {
        Self {
            detail,
            style,
            is_dry,
            skip_unchanged,
            is_watched: io::stderr().is_terminal() && detail != Detail::Errors,
            began: Instant::now(),
            files: AtomicU64::new(0),
            skipped: AtomicU64::new(0),
            excluded: AtomicU64::new(0),
            specials: AtomicU64::new(0),
            deleted: AtomicU64::new(0),
            failed: AtomicU64::new(0),
            undeleted: AtomicU64::new(0),
            done: AtomicU64::new(0),
            moved: AtomicU64::new(0),
            total_files: AtomicU64::new(0),
            total_bytes: AtomicU64::new(0),
            left: Mutex::default(),
            screen: Mutex::default(),
        }
    }

    pub(super) fn has_begun(&self) -> bool {
        self.done.load(Relaxed) > 0
    }

    /// Returns whether something could not be copied.
    pub(super) fn is_incomplete(&self) -> bool {
        self.failed.load(Relaxed) > self.undeleted.load(Relaxed)
    }

    /// Reports the failure of one source; returns it if the copy cannot continue.
    pub(super) fn failure(&self, failure: Failure) -> Result<(), Failure> {
        self.failed.fetch_add(1, Relaxed);
        let mut screen = self.screen();
        screen.clear();
        if self.style == Style::Json {
            print::json(&Event { error: Some(failure.message()), ..Event::new("failed") })?;
        }
        screen.failures.add(failure)
    }

    /// Prints the leftovers of a failed copy, and what to do with them.
    pub(super) fn print_leftovers(&self) {
        let left = std::mem::take(&mut *lock(&self.left));
        if left.is_empty() {
            return;
        }
        let mut names: Vec<_> =
            left.iter().take(MOST_NAMED).map(|name| format!("`{}`", plain(name))).collect();
        if left.len() > MOST_NAMED {
            names.push(format!("{} more", left.len() - MOST_NAMED));
        }
        self.clear();
        print::note(format!("the copy is incomplete and left {}", names.join(", ")));
        print::aside("  hint: repeat the command to resume it and to remove the leftovers");
    }

    pub(super) fn note(&self, text: &str) {
        let mut screen = self.screen();
        screen.clear();
        print::note(text);
    }

    pub(super) fn clear(&self) {
        self.screen().clear();
    }

    /// Prints the summary.
    pub(super) fn finish(&self) -> Result<(), Failure> {
        self.clear();
        if self.style == Style::Json {
            return print::json(&self.summary());
        }
        if !(self.is_watched || self.detail == Detail::Files) || self.is_dry {
            return Ok(());
        }
        let (files, moved, time) = (self.files.load(Relaxed), self.moved.load(Relaxed), self.began.elapsed());
        let mut text = format!("{} copied, {} in {}", count(files), size(moved), age(time));
        let skipped = self.skipped.load(Relaxed);
        if skipped > 0 {
            let what = match self.skip_unchanged {
                SkipUnchanged::ByContent => "content",
                _ => "size and time",
            };
            text += &format!("; {} skipped with the same {what}", count(skipped));
        }
        let excluded = self.excluded.load(Relaxed);
        if excluded > 0 {
            text += &format!("; {excluded} excluded");
        }
        let deleted = self.deleted.load(Relaxed);
        if deleted > 0 {
            text += &format!("; {deleted} deleted");
        }
        print::note(text);
        Ok(())
    }

    fn summary(&self) -> Summary {
        Summary {
            event: "summary",
            dry_run: self.is_dry,
            copied: self.files.load(Relaxed),
            copied_bytes: self.moved.load(Relaxed),
            skipped: self.skipped.load(Relaxed),
            excluded: self.excluded.load(Relaxed),
            special: self.specials.load(Relaxed),
            deleted: self.deleted.load(Relaxed),
            failed: self.failed.load(Relaxed),
            elapsed_ms: millis(self.began.elapsed()),
        }
    }

    /// Prints a line about an entry, if they are wanted.
    fn print_entry(&self, event: &Event<'_>, line: &str) -> Result<(), Failure> {
        if self.detail != Detail::Files {
            return Ok(());
        }
        // Locked while printing, so that the progress line does not interfere.
        let mut screen = self.screen();
        screen.clear();
        match self.style {
            Style::Text => print::out(line),
            Style::Json => print::json(event),
        }
    }

    pub(super) fn code(&self) -> u8 {
        self.screen().failures.code()
    }

    /// Draws the progress line until the returned set is dropped.
    pub(super) fn draw(self: &Arc<Self>) -> JoinSet<()> {
        let mut drawing = JoinSet::new();
        if self.wants_total() && print::can_erase() {
            let report = Arc::clone(self);
            drawing.spawn(async move {
                let mut ticks = tokio::time::interval(REDRAW);
                loop {
                    ticks.tick().await;
                    report.draw_once(Instant::now());
                }
            });
        }
        drawing
    }

    #[allow(clippy::print_stderr)] // Draws on a terminal.
    fn draw_once(&self, now: Instant) {
        let moved = self.moved.load(Relaxed);
        let mut screen = self.screen();
        screen.samples.push_back((now, moved));
        while screen.samples.front().is_some_and(|(then, _)| now - *then > RATE_OVER) {
            screen.samples.pop_front();
        }
        let shown = ProgressLine {
            done: self.done.load(Relaxed),
            total: screen.is_counted.then(|| self.total_bytes.load(Relaxed)),
            files: self.files.load(Relaxed) + self.skipped.load(Relaxed),
            total_files: self.total_files.load(Relaxed),
            rate: screen.rate(),
            current: &screen.current,
        };
        let columns = rustix::termios::tcgetwinsize(io::stderr()).map_or(0, |size| size.ws_col);
        // Some terminals do not report their size.
        let columns = if columns == 0 { 80 } else { columns };
        let line = shown.line(usize::from(columns));
        screen.is_drawn = true;
        // A failed write to the terminal is no reason to stop.
        let _ = write!(io::stderr().lock(), "\r{line}\u{1b}[K");
    }

    fn screen(&self) -> MutexGuard<'_, Screen> {
        lock(&self.screen)
    }
}

impl Screen {
    fn clear(&mut self) {
        if std::mem::take(&mut self.is_drawn) {
            let _ = write!(io::stderr().lock(), "\r\u{1b}[K");
        }
    }

    /// Returns bytes per second.
    #[allow(clippy::cast_precision_loss)] // Approximate.
    fn rate(&self) -> f64 {
        match (self.samples.front(), self.samples.back()) {
            (Some((first, before)), Some((last, now))) if last > first => {
                (now - before) as f64 / (*last - *first).as_secs_f64()
            }
            _ => 0.0,
        }
    }
}

/// The content of the progress line.
struct ProgressLine<'a> {
    done: u64,
    /// `None` while counting.
    total: Option<u64>,
    files: u64,
    total_files: u64,
    rate: f64,
    current: &'a str,
}

impl ProgressLine<'_> {
    #[allow(clippy::cast_precision_loss, clippy::cast_possible_truncation, clippy::cast_sign_loss)] // Approximate.
    fn line(&self, columns: usize) -> String {
        const BAR: usize = 20;
        let rate = format!("{}/s", size(self.rate as u64));
        let mut line = match self.total {
            Some(total) => {
                let share = if total == 0 { 1.0 } else { (self.done as f64 / total as f64).min(1.0) };
                let full = (share * BAR as f64) as usize;
                let bar = "#".repeat(full) + &"-".repeat(BAR - full);
                let left = if self.rate >= 1.0 {
                    let seconds = total.saturating_sub(self.done) as f64 / self.rate;
                    format!("{} left", age(Duration::from_secs_f64(seconds.min(1e9))))
                } else {
                    "stalled".to_owned()
                };
                let percent = (share * 100.0) as u32;
                let whole = format!("{percent:3}% [{bar}] {}/{} {rate} {left}", size(self.done), size(total));
                // On narrow terminals the remaining time is more important than the bar.
                if whole.len() < columns { whole } else { format!("{percent}% {rate} {left}") }
            }
            None => format!("{} {rate} counting", size(self.done)),
        };
        if self.total_files > 1 {
            line += &format!(" {}/{}", self.files, self.total_files);
        }
        line += &format!(" {}", self.current);
        // The last column stays empty: some terminals would wrap.
        beginning(&line, columns.saturating_sub(1)).to_owned()
    }
}

impl CopyObserver for Report {
    type Stop = Failure;

    fn is_dry_run(&self) -> bool {
        self.is_dry
    }

    fn wants_total(&self) -> bool {
        self.is_watched && !self.is_dry
    }

    fn on_started(&self, label: &str) {
        if self.is_watched {
            self.screen().current = plain(label);
        }
    }

    fn on_excluded(&self, _label: &str) {
        self.excluded.fetch_add(1, Relaxed);
    }

    fn on_existing(&self, bytes: u64) {
        self.done.fetch_add(bytes, Relaxed);
    }

    fn on_copied(&self, bytes: u64) {
        self.moved.fetch_add(bytes, Relaxed);
        self.done.fetch_add(bytes, Relaxed);
    }

    fn on_counted(&self, files: u64, bytes: u64) {
        self.total_files.fetch_add(files, Relaxed);
        self.total_bytes.fetch_add(bytes, Relaxed);
    }

    fn on_total_known(&self) {
        self.screen().is_counted = true;
    }

    fn on_leftover(&self, label: String) {
        lock(&self.left).insert(label);
    }

    fn on_action(&self, action: CopyAction, from: &str, to: &str) -> Result<(), Failure> {
        let verb = match action {
            CopyAction::Make => "make",
            CopyAction::Copy => "copy",
            CopyAction::Link => "link",
            CopyAction::Skip => "skip",
            _ => "do",
        };
        match action {
            CopyAction::Copy | CopyAction::Link => _ = self.files.fetch_add(1, Relaxed),
            CopyAction::Skip => _ = self.skipped.fetch_add(1, Relaxed),
            _ => {}
        }
        let event = Event { from: Some(from), to: Some(to), ..Event::new(verb) };
        self.print_entry(&event, &format!("{verb} {} -> {}\n", plain(from), plain(to)))
    }

    fn on_special(&self, label: &str) -> Result<(), Failure> {
        self.specials.fetch_add(1, Relaxed);
        let mut screen = self.screen();
        screen.clear();
        if self.style == Style::Json {
            print::json(&Event { from: Some(label), ..Event::new("special") })?;
        }
        if self.detail != Detail::Errors {
            print::note(format!("left out `{}`: it is a pipe, socket or device", plain(label)));
        }
        Ok(())
    }

    fn on_deleted(&self, label: &str) -> Result<(), Failure> {
        self.deleted.fetch_add(1, Relaxed);
        let event = Event { to: Some(label), ..Event::new("delete") };
        self.print_entry(&event, &format!("delete {}\n", plain(label)))
    }

    fn on_failure(&self, failure: CopyFailure) -> Result<(), Failure> {
        if matches!(failure.problem, CopyProblem::NotDeleted(_)) {
            self.undeleted.fetch_add(1, Relaxed);
        }
        self.failure(explain(failure))
    }
}

/// Explains why an entry was not copied, and what to do.
fn explain(failure: CopyFailure) -> Failure {
    const OTHER_NAME: &str = "remove it, or copy to another name";

    let CopyFailure { label, problem, .. } = failure;
    let cannot_copy = format!("cannot copy `{}`", plain(&label));
    match problem {
        // An entry that vanishes during the copy does not count as a missing source.
        CopyProblem::Failed(error) => Failure::from(error).context(&cannot_copy).into_plain_failure(),
        CopyProblem::NotDeleted(error) => {
            Failure::from(error).context(&format!("cannot delete `{}`", plain(&label))).into_plain_failure()
        }
        CopyProblem::Special => Failure::new(cannot_copy, "read it with `remex run` if you want its content")
            .because("it is a pipe, socket or device"),
        CopyProblem::SpecialExists { to } => special_exists(&label, &to),
        CopyProblem::DirectoryExists { to } => {
            Failure::new(cannot_copy, OTHER_NAME).because(format!("`{}` is a directory", plain(&to)))
        }
        CopyProblem::NotADirectory { to } => {
            Failure::new(cannot_copy, OTHER_NAME).because(format!("`{}` is not a directory", plain(&to)))
        }
        CopyProblem::TooDeep { limit } => Failure::new(cannot_copy, "copy that directory separately")
            .because(format!("directories are nested more than {limit} levels deep")),
        CopyProblem::Unordered { name } => {
            Failure::new(cannot_copy, "try again; if it happens again, do not trust that server")
                .because(format!("the server listed `{}` twice or out of order", plain(&name)))
        }
        problem => Failure::new(cannot_copy, "try again").because(format!("{problem:?}")),
    }
}

pub(super) fn special_exists(from: &str, to: &str) -> Failure {
    Failure::new(format!("cannot copy `{}`", plain(from)), "remove it, or copy to another name")
        .because(format!("`{}` is a pipe, socket or device", plain(to)))
}

fn count(files: u64) -> String {
    if files == 1 { "1 file".to_owned() } else { format!("{files} files") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_shows_the_amount_done_and_the_remaining_time() {
        let mut shown = ProgressLine {
            done: 512 << 20,
            total: Some(2 << 30),
            files: 1,
            total_files: 4,
            rate: 1e8,
            current: "build:image",
        };
        assert_eq!(
            shown.line(120),
            " 25% [#####---------------] 512MiB/2.0GiB 95MiB/s 16s left 1/4 build:image"
        );
        assert_eq!(shown.line(20), "25% 95MiB/s 16s lef");
        shown.total = None;
        assert_eq!(shown.line(120), "512MiB 95MiB/s counting 1/4 build:image");
    }
}
