//! What a copy tells: a line that moves for a person, sentences for what went wrong, and a summary.

use std::{
    collections::{BTreeSet, VecDeque},
    io::{self, IsTerminal as _, Write as _},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use remex_client::fs::{CopyAction, CopyFailure, CopyObserver, CopyProblem};
use tokio::task::JoinSet;

use crate::{
    commands::cat::Failures,
    render::{
        failure::Failure,
        print,
        text::{age, beginning, plain, size},
    },
};

/// How often the line is drawn anew.
const REDRAW: Duration = Duration::from_millis(100);

/// The time over which a rate is taken.
const RATE_OVER: Duration = Duration::from_secs(5);

/// How many of the files that a failed copy leaves are named.
const MOST_NAMED: usize = 8;

/// How much a copy says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Detail {
    Errors,
    Summary,
    Files,
}

/// What was done so far, and how it is told.
#[derive(Debug)]
pub(super) struct Report {
    detail: Detail,
    is_dry: bool,
    /// A person looks on.
    is_watched: bool,
    began: Instant,
    files: AtomicU64,
    skipped: AtomicU64,
    /// What went wrong, and how much of it is only that pipes, sockets and devices are not copied.
    failed: AtomicU64,
    specials: AtomicU64,
    /// Bytes that are there, and those that were copied now.
    done: AtomicU64,
    moved: AtomicU64,
    /// What there is to do; counted while the copy goes on.
    total_files: AtomicU64,
    total_bytes: AtomicU64,
    /// What a failed copy leaves for the next one, as it is shown; held for moments.
    left: Mutex<BTreeSet<String>>,
    /// Held for moments, by whoever writes to the terminal.
    screen: Mutex<Screen>,
}

#[derive(Debug, Default)]
struct Screen {
    failures: Failures,
    is_counted: bool,
    is_drawn: bool,
    current: String,
    /// How much was moved when, for the rate.
    samples: VecDeque<(Instant, u64)>,
}

impl Report {
    pub(super) fn new(detail: Detail, is_dry: bool) -> Self {
        Self {
            detail,
            is_dry,
            is_watched: io::stderr().is_terminal() && detail != Detail::Errors,
            began: Instant::now(),
            files: AtomicU64::new(0),
            skipped: AtomicU64::new(0),
            failed: AtomicU64::new(0),
            specials: AtomicU64::new(0),
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

    /// Says what went wrong with one thing; returns it when it makes no sense to go on.
    pub(super) fn failure(&self, failure: Failure) -> Result<(), Failure> {
        self.failed.fetch_add(1, Relaxed);
        let mut screen = self.screen();
        screen.clear();
        screen.failures.add(failure)
    }

    /// Names what a failed copy leaves, and what to do with it.
    pub(super) fn tell_left(&self) {
        let left = std::mem::take(&mut *self.left.lock().unwrap_or_else(PoisonError::into_inner));
        if left.is_empty() {
            return;
        }
        let mut names: Vec<_> =
            left.iter().take(MOST_NAMED).map(|name| format!("`{}`", plain(name))).collect();
        if left.len() > MOST_NAMED {
            names.push(format!("{} more", left.len() - MOST_NAMED));
        }
        self.clear();
        if self.failed.load(Relaxed) == self.specials.load(Relaxed) {
            // To try again helps nobody.
            let (stay, them) = if left.len() == 1 { ("stays", "it") } else { ("stay", "them") };
            print::note(format!(
                "everything else is there; {} {stay} because something was skipped",
                names.join(", ")
            ));
            print::aside(&format!(
                "  hint: remove {them} if nothing more is to come; until then the same command updates the copy"
            ));
            return;
        }
        print::note(format!("the copy is incomplete; it left {}", names.join(", ")));
        print::aside("  hint: the same command continues it and removes them");
    }

    pub(super) fn note(&self, text: &str) {
        let mut screen = self.screen();
        screen.clear();
        print::note(text);
    }

    pub(super) fn clear(&self) {
        self.screen().clear();
    }

    /// Says at the end what was done.
    pub(super) fn finish(&self) {
        self.clear();
        if !(self.is_watched || self.detail == Detail::Files) || self.is_dry {
            return;
        }
        let (files, moved, time) = (self.files.load(Relaxed), self.moved.load(Relaxed), self.began.elapsed());
        let mut text = format!("{} copied, {} in {}", count(files), size(moved), age(time));
        let skipped = self.skipped.load(Relaxed);
        if skipped > 0 {
            text += &format!("; {} skipped, with the same size and time", count(skipped));
        }
        print::note(text);
    }

    pub(super) fn code(&self) -> u8 {
        self.screen().failures.code()
    }

    /// Draws the line until what is returned is dropped.
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

    #[allow(clippy::print_stderr)] // A person looks on.
    fn draw_once(&self, now: Instant) {
        let moved = self.moved.load(Relaxed);
        let mut screen = self.screen();
        screen.samples.push_back((now, moved));
        while screen.samples.front().is_some_and(|(then, _)| now - *then > RATE_OVER) {
            screen.samples.pop_front();
        }
        let shown = Shown {
            done: self.done.load(Relaxed),
            total: screen.is_counted.then(|| self.total_bytes.load(Relaxed)),
            files: self.files.load(Relaxed) + self.skipped.load(Relaxed),
            total_files: self.total_files.load(Relaxed),
            rate: screen.rate(),
            current: &screen.current,
        };
        let columns = rustix::termios::tcgetwinsize(io::stderr()).map_or(0, |size| size.ws_col);
        // Some terminals do not know.
        let columns = if columns == 0 { 80 } else { columns };
        let line = shown.line(usize::from(columns));
        screen.is_drawn = true;
        // A terminal that takes nothing more is no reason to stop.
        let _ = write!(io::stderr().lock(), "\r{line}\u{1b}[K");
    }

    fn screen(&self) -> MutexGuard<'_, Screen> {
        self.screen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Screen {
    fn clear(&mut self) {
        if std::mem::take(&mut self.is_drawn) {
            let _ = write!(io::stderr().lock(), "\r\u{1b}[K");
        }
    }

    /// Returns bytes per second.
    #[allow(clippy::cast_precision_loss)] // Nobody counts them.
    fn rate(&self) -> f64 {
        match (self.samples.front(), self.samples.back()) {
            (Some((first, before)), Some((last, now))) if last > first => {
                (now - before) as f64 / (*last - *first).as_secs_f64()
            }
            _ => 0.0,
        }
    }
}

/// What the line says.
struct Shown<'a> {
    done: u64,
    /// Nothing while it is still counted.
    total: Option<u64>,
    files: u64,
    total_files: u64,
    rate: f64,
    current: &'a str,
}

impl Shown<'_> {
    #[allow(clippy::cast_precision_loss, clippy::cast_possible_truncation, clippy::cast_sign_loss)] // For the eye.
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
                // Where there is no room for all, when it ends matters more than how it looks.
                if whole.len() < columns { whole } else { format!("{percent}% {rate} {left}") }
            }
            None => format!("{} {rate} counting", size(self.done)),
        };
        if self.total_files > 1 {
            line += &format!(" {}/{}", self.files, self.total_files);
        }
        line += &format!(" {}", self.current);
        // The last column stays free: some terminals would begin a new line.
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
        self.left.lock().unwrap_or_else(PoisonError::into_inner).insert(label);
    }

    fn on_action(&self, action: CopyAction, from: &str, to: &str) -> Result<(), Failure> {
        let verb = match action {
            CopyAction::Make => "make",
            CopyAction::Copy => "copy",
            CopyAction::Link => "link",
            CopyAction::Skip => "skip",
        };
        match action {
            CopyAction::Make => {}
            CopyAction::Copy | CopyAction::Link => _ = self.files.fetch_add(1, Relaxed),
            CopyAction::Skip => _ = self.skipped.fetch_add(1, Relaxed),
        }
        if !self.is_dry && self.detail != Detail::Files {
            return Ok(());
        }
        // Held until it is printed, or the progress line would come between.
        let mut screen = self.screen();
        screen.clear();
        print::out(format!("{verb} {} -> {}\n", plain(from), plain(to)))
    }

    fn on_failure(&self, failure: CopyFailure) -> Result<(), Failure> {
        if failure.problem == CopyProblem::Special {
            self.specials.fetch_add(1, Relaxed);
        }
        self.failure(explained(failure))
    }
}

/// Says why something was not copied, and what to do.
fn explained(failure: CopyFailure) -> Failure {
    const OTHER_NAME: &str = "remove it, or copy to another name";

    let CopyFailure { label, problem } = failure;
    let cannot_copy = format!("cannot copy `{}`", plain(&label));
    match problem {
        // What goes missing on the way is not what was asked for and is not there.
        CopyProblem::Failed(error) => Failure::from(error).context(&cannot_copy).on_the_way(),
        CopyProblem::Special => Failure::new(
            format!("{cannot_copy}: it is a pipe, socket or device, and is skipped"),
            "copy what is read from it with `remex run`, if that is what you want",
        ),
        CopyProblem::SpecialExists { to } => special_exists(&label, &to),
        CopyProblem::DirectoryExists { to } => {
            Failure::new(format!("{cannot_copy}: `{}` is a directory", plain(&to)), OTHER_NAME)
        }
        CopyProblem::NotADirectory { to } => {
            Failure::new(format!("{cannot_copy}: `{}` is not a directory", plain(&to)), OTHER_NAME)
        }
        CopyProblem::TooDeep { limit } => Failure::new(
            format!("{cannot_copy}: more than {limit} directories are in each other"),
            "copy it by itself",
        ),
        CopyProblem::Unordered { name } => Failure::new(
            format!("{cannot_copy}: its server lists `{}` twice, or out of order", plain(&name)),
            "try again; if it stays so, do not trust that server",
        ),
    }
}

pub(super) fn special_exists(from: &str, to: &str) -> Failure {
    Failure::new(
        format!("cannot copy `{}`: `{}` is a pipe, socket or device", plain(from), plain(to)),
        "remove it, or copy to another name",
    )
}

fn count(files: u64) -> String {
    if files == 1 { "1 file".to_owned() } else { format!("{files} files") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_says_how_much_is_done_and_how_long_it_takes() {
        let mut shown = Shown {
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
