//! The measurements: what each does to a server, what it does without one, and how the figures are to be read.
//!
//! Each round gives a measurement a fresh server, so that none inherits what another left behind.
//! Start at [`ALL`].

mod client;
mod confined;
mod durable;
mod echo;
mod files;
mod half_open;
mod idle;
mod languages;
mod output;
mod spawn;
mod stall;

use std::time::Duration;

use anyhow::{Result, ensure};

use crate::{Stdio, client::Client, message::Message, server::Server};

/// Every measurement, in the order of the table.
pub(crate) const ALL: &[Measure] = &[
    spawn::PIPE,
    spawn::PTY,
    spawn::MANY,
    spawn::CROWDED,
    confined::SPAWN,
    output::PIPE_ZERO,
    output::PIPE_SEQ,
    output::PTY,
    output::PIPE_LINES,
    output::PTY_LINES,
    echo::ECHO,
    half_open::HALF_OPEN,
    idle::PIPE,
    idle::PTY,
    idle::CONNECTIONS,
    idle::REST,
    idle::GIVEN_BACK,
    stall::STALL,
    durable::LOG,
    durable::RESTART,
    files::METADATA,
    files::SMALL,
    files::METADATA_CONFINED,
    files::SMALL_CONFINED,
    files::READ,
    files::WRITE,
    files::READ_WHOLE,
    files::WRITE_WHOLE,
    files::WALK,
    client::MEMORY,
    client::CALL_IN_PROCESS,
    client::CALL_UNIX,
    client::CALL_WEBSOCKET,
    client::CALL_STDIO,
    client::RUN_IN_PROCESS,
    client::RUN_UNIX,
    client::RUN_WEBSOCKET,
    client::RUN_STDIO,
    client::READ_IN_PROCESS,
    client::READ_UNIX,
    client::READ_WEBSOCKET,
    client::FILES_IN_PROCESS,
    client::FILES_UNIX,
    client::FILES_WEBSOCKET,
    languages::UNIX,
    languages::WEBSOCKET,
];

/// One measurement with all its figures.
pub(crate) struct Measure {
    /// The word for `--only`.
    pub(crate) name: &'static str,
    pub(crate) server: fn(&Server, &Scale) -> Result<Figures>,
    /// The same work without a server, where that exists.
    pub(crate) bare: Option<fn(&Scale) -> Result<Figures>>,
    pub(crate) rows: &'static [Row],
}

impl Measure {
    /// Tells whether a word of `--only` names it, or a group that it belongs to.
    pub(crate) fn is_meant_by(&self, word: &str) -> bool {
        self.name.strip_prefix(word).is_some_and(|rest| rest.is_empty() || rest.starts_with('-'))
    }

    /// Tells whether only a durable server can be measured so.
    pub(crate) fn needs_durable(&self) -> bool {
        self.is_meant_by("durable")
    }

    /// Tells whether it needs Python and Node.
    pub(crate) fn needs_languages(&self) -> bool {
        self.is_meant_by("languages")
    }
}

/// What one run of a measurement yields, by the name of the figure.
pub(crate) type Figures = Vec<(&'static str, f64)>;

/// One line of the table.
pub(crate) struct Row {
    pub(crate) what: &'static str,
    pub(crate) unit: Unit,
    pub(crate) figure: &'static str,
    pub(crate) base: Base,
    pub(crate) goal: Goal,
    /// The same for a durable server, whose figure is divided by that of one that is not.
    pub(crate) durable: Goal,
}

impl Row {
    /// A line with a bare counterpart of the same name.
    const fn against_bare(what: &'static str, unit: Unit, figure: &'static str, goal: Goal) -> Self {
        Self { what, unit, figure, base: Base::Bare(figure), goal, durable: Goal::None }
    }

    /// A line that stands alone.
    const fn alone(what: &'static str, unit: Unit, figure: &'static str, goal: Goal) -> Self {
        Self { what, unit, figure, base: Base::None, goal, durable: Goal::None }
    }

    /// A line beside what the Rust client achieves with the same server.
    const fn against_rust(
        what: &'static str,
        unit: Unit,
        figure: &'static str,
        of_rust: &'static str,
        goal: Goal,
    ) -> Self {
        Self { what, unit, figure, base: Base::Rust(of_rust), goal, durable: Goal::None }
    }

    /// The same line with a goal for a durable server.
    const fn durable(self, goal: Goal) -> Self {
        Self { durable: goal, ..self }
    }
}

/// The figure that another one is divided by.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Base {
    /// None: it stands alone.
    None,
    /// This one of the bare run.
    Bare(&'static str),
    /// This one of the same server, which is that of the Rust client.
    Rust(&'static str),
}

/// What a figure counts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Unit {
    Microseconds,
    Milliseconds,
    Seconds,
    PerSecond,
    MibPerSecond,
    Kib,
    Mib,
    Count,
    /// 1 is yes, everything else no.
    YesOrNo,
}

/// What counts as reached.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Goal {
    /// Reported for orientation.
    None,
    /// At most so many times the figure that this one is divided by.
    RatioAtMost(f64),
    /// At least this part of it.
    RatioAtLeast(f64),
    /// At most this, in the row's own unit.
    AtMost(f64),
    /// Yes.
    Yes,
}

/// How much work each measurement does.
#[derive(Clone, Debug)]
pub(crate) struct Scale {
    /// Starts one after the other.
    pub(crate) spawns: usize,
    /// Starts with many in flight.
    pub(crate) starts: usize,
    pub(crate) pipe_bytes: u64,
    /// The last number that `seq` counts to.
    pub(crate) seq_last: u64,
    pub(crate) pty_bytes: u64,
    /// Short lines, each written on its own.
    pub(crate) lines: u64,
    pub(crate) echoes: usize,
    /// Idle processes or connections at once.
    pub(crate) idle: usize,
    /// Idle processes beside which others are started.
    pub(crate) crowd: usize,
    /// How long a client does not read.
    pub(crate) stall: Duration,
    /// Questions about files, one after the other.
    pub(crate) questions: usize,
    /// The size of a large file.
    pub(crate) file_bytes: u64,
    /// Files in a tree to walk.
    pub(crate) walked: usize,
    /// What passes through one log on disk, and what many logs hold together.
    pub(crate) log_bytes: u64,
    /// Processes that run while their server is killed.
    pub(crate) survivors: u64,
}

impl Scale {
    pub(crate) const FULL: Self = Self {
        spawns: 1000,
        starts: 3000,
        pipe_bytes: 256 << 20,
        seq_last: 20_000_000,
        pty_bytes: 64 << 20,
        lines: 1_500_000,
        echoes: 2000,
        idle: 1000,
        crowd: 6000,
        stall: Duration::from_secs(2),
        questions: 5000,
        file_bytes: 64 << 20,
        walked: 20_000,
        log_bytes: 10 << 30,
        survivors: 1000,
    };

    pub(crate) const QUICK: Self = Self {
        spawns: 200,
        starts: 500,
        pipe_bytes: 64 << 20,
        seq_last: 2_000_000,
        pty_bytes: 16 << 20,
        lines: 300_000,
        echoes: 300,
        idle: 50,
        crowd: 1000,
        stall: Duration::from_millis(500),
        questions: 1000,
        file_bytes: 64 << 20,
        walked: 20_000,
        log_bytes: 256 << 20,
        survivors: 50,
    };
}

/// Runs one process from the request to `closed` and returns the bytes of its output.
fn run(client: &mut Client, argv: &[&str], stdio: Stdio) -> Result<u64> {
    let mut tally = Tally::of(client.start(argv, stdio)?);
    while !tally.note(&client.next_message()?)? {}
    Ok(tally.bytes)
}

/// Counts what arrives of one process, so that no figure is earned by losing something.
struct Tally {
    process: u64,
    events: u64,
    bytes: u64,
}

impl Tally {
    fn of(process: u64) -> Self {
        Self { process, events: 0, bytes: 0 }
    }

    /// Notes a message and returns whether it was the last of this process.
    ///
    /// Fails when the last event tells that an earlier one, or a byte, never came.
    fn note(&mut self, message: &Message) -> Result<bool> {
        match *message {
            Message::Output { process, len, .. } if process == self.process => {
                self.events += 1;
                self.bytes += len;
            }
            Message::Exited { process, .. } if process == self.process => self.events += 1,
            Message::Closed { process, seq, produced } if process == self.process => {
                let (events, bytes) = (self.events + 1, self.bytes);
                ensure!(events == seq, "{events} events of process {process} came, its last number is {seq}");
                let produced = produced.unwrap_or(bytes);
                ensure!(bytes == produced, "{bytes} bytes of process {process} came, it wrote {produced}");
                return Ok(true);
            }
            _ => {}
        }
        Ok(false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OUTPUT: Message = Message::Output { process: 1, seq: 1, len: 5 };

    #[test]
    fn a_tally_ends_with_closed_when_everything_came() {
        let mut tally = Tally::of(1);
        assert!(!tally.note(&OUTPUT).unwrap());
        assert!(!tally.note(&Message::Exited { process: 2, seq: 1 }).unwrap());
        assert!(!tally.note(&Message::Exited { process: 1, seq: 2 }).unwrap());
        assert!(tally.note(&Message::Closed { process: 1, seq: 3, produced: Some(5) }).unwrap());
    }

    #[test]
    fn a_tally_tells_lost_events_and_lost_bytes_apart() {
        let mut tally = Tally::of(1);
        tally.note(&OUTPUT).unwrap();
        let error = tally.note(&Message::Closed { process: 1, seq: 4, produced: None }).unwrap_err();
        assert_eq!(error.to_string(), "2 events of process 1 came, its last number is 4");
        let error = tally.note(&Message::Closed { process: 1, seq: 2, produced: Some(9) }).unwrap_err();
        assert_eq!(error.to_string(), "5 bytes of process 1 came, it wrote 9");
    }
}
