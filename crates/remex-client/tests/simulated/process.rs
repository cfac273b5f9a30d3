//! A process that the simulated server believes in.
//!
//! Start at [`Process`].

use std::collections::VecDeque;

use remex_proto::{
    Blob, RequestId, process as wire,
    process::{Overflow, Stream},
    state::{
        output_log::{self, Cursor, Hold, Next, OutputLog, Seq},
        stdin_ledger::{self, Offer, StdinLedger},
    },
};
use tokio::time::Instant;

use crate::{random::Random, server::Dialect};

const STDIN: stdin_ledger::Limits =
    stdin_ledger::Limits { ids: 4_096, id_bytes: 256 << 10, queue_bytes: 16 << 10 };

/// What somebody may wait for in the output of a process.
pub(crate) const MARKER: &str = "READY-42";

/// A process, and everything that ever happened to it.
pub(crate) struct Process {
    random: Random,
    /// Whose it is.
    pub(crate) session: String,
    pub(crate) start_id: Option<String>,
    /// Who waits for its start.
    pub(crate) starters: Vec<(u32, RequestId)>,
    /// When the start is over.
    pub(crate) starts_at: Instant,
    pub(crate) is_running: bool,
    pub(crate) log: OutputLog,
    dialect: Dialect,
    overflow: Overflow,
    /// Where the live stream stands; `None` until the start was answered.
    pub(crate) live: Option<Cursor>,
    pub(crate) consumed: Seq,
    script: Script,
    next_at: Instant,
    ledger: StdinLedger,
    /// Accepted, and not yet read by the process.
    stdin: VecDeque<u8>,
    /// Writes and closes that wait for room, in order.
    pub(crate) waiting: VecDeque<Wish>,
    pub(crate) truth: Truth,
}

/// What a client asked of the input of a process.
pub(crate) struct Wish {
    pub(crate) connection: u32,
    pub(crate) id: RequestId,
    pub(crate) what: Input,
}

pub(crate) enum Input {
    Write(wire::Write),
    Close,
}

/// What really happened.
#[derive(Default)]
pub(crate) struct Truth {
    /// The event with the number n at n - 1.
    pub(crate) events: Vec<Said>,
    pub(crate) stdout: Vec<u8>,
    pub(crate) stderr: Vec<u8>,
    /// What was accepted for its input.
    pub(crate) input: Vec<u8>,
    pub(crate) is_input_closed: bool,
    pub(crate) exit_code: Option<i32>,
    pub(crate) starts: usize,
    pub(crate) signals: usize,
    pub(crate) repeated_writes: usize,
    /// It was ended by an order.
    pub(crate) is_terminated: bool,
}

/// One event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Said {
    Output { stream: Stream, start: usize, len: usize },
    Exited,
    Closed,
}

impl Said {
    pub(crate) fn len(self) -> u64 {
        match self {
            Said::Output { len, .. } => len as u64,
            Said::Exited | Said::Closed => 0,
        }
    }
}

/// What a process does.
enum Script {
    /// Says this, piece by piece.
    Say {
        pieces: VecDeque<(Stream, Vec<u8>)>,
        pause_ms: usize,
    },
    /// Says what it reads, until the end of its input or so many bytes.
    Echo {
        left: usize,
    },
    /// Waits to be ended.
    Hang,
    /// Has exited; something that it left behind may say more.
    Exited {
        rest: VecDeque<(Stream, Vec<u8>)>,
    },
    Closed,
}

impl Script {
    /// Reads the script from the arguments of a start.
    fn parse(argv: &[String]) -> Self {
        let number = |at: usize| argv.get(at).and_then(|arg| arg.parse().ok()).unwrap_or(0_usize);
        match argv[0].as_str() {
            "say" => {
                let mut random = Random::new(number(1) as u64);
                let (bytes, pause_ms) = (number(2), number(3));
                let mut pieces = VecDeque::new();
                let mut left = bytes;
                while left > 0 {
                    let len = random.between(1, (bytes / 8).max(40)).min(left);
                    let stream = if random.chance(70) { Stream::Stdout } else { Stream::Stderr };
                    pieces.push_back((stream, random.letters(len)));
                    left -= len;
                }
                let at = random.below(pieces.len() + 1);
                pieces.insert(at, (Stream::Stdout, MARKER.into()));
                Script::Say { pieces, pause_ms }
            }
            "echo" => Script::Echo { left: number(1) },
            _ => Script::Hang,
        }
    }
}

impl Process {
    pub(crate) fn new(
        start: &wire::Start,
        session: String,
        dialect: Dialect,
        mut random: Random,
        now: Instant,
    ) -> Self {
        let retain_bytes = start.output.retain_bytes.unwrap_or(1 << 20) as usize;
        let limits = output_log::Limits {
            retain_bytes,
            retain_events: 50_000,
            chunk_bytes: (retain_bytes / 4).min(8 << 10),
            chunk_ms: 100,
            head_bytes: retain_bytes / 32,
        };
        Process {
            session,
            start_id: start.start_id.clone(),
            starters: Vec::new(),
            starts_at: now
                + if random.chance(50) { random.millis(0, 300) } else { std::time::Duration::ZERO },
            is_running: false,
            log: OutputLog::new(limits),
            dialect,
            overflow: start.output.overflow,
            live: None,
            consumed: 0,
            script: Script::parse(&start.argv),
            next_at: now,
            ledger: StdinLedger::new(STDIN),
            stdin: VecDeque::new(),
            waiting: VecDeque::new(),
            truth: Truth { starts: 1, ..Truth::default() },
            random,
        }
    }

    fn hold(&self) -> Hold {
        match (self.dialect, self.overflow) {
            (Dialect::Remex, Overflow::Pause) => Hold::After(self.consumed),
            _ => Hold::Nothing,
        }
    }

    /// Lets the process live a little; tells whether something happened.
    pub(crate) fn live(&mut self, now: Instant) -> bool {
        if !self.is_running || now < self.next_at {
            return false;
        }
        let hold = self.hold();
        let before = (self.log.next_seq(), self.log.total(), self.stdin.len());
        match &mut self.script {
            Script::Say { pieces, pause_ms } => {
                let pause = *pause_ms;
                match pieces.pop_front() {
                    Some((stream, piece)) => {
                        let rest = self.print(stream, &piece);
                        if let (Script::Say { pieces, .. }, Some(rest)) = (&mut self.script, rest) {
                            pieces.push_front((stream, rest));
                        }
                        self.next_at = now + self.random.millis(0, pause);
                    }
                    None => self.exit(0),
                }
            }
            Script::Echo { left } => {
                let room = self.log.room(hold, usize::MAX);
                let len = self.stdin.len().min(room).min(*left).min(self.random.between(1, 3_000));
                let bytes: Vec<u8> = self.stdin.drain(..len).collect();
                *left -= len;
                let is_over = *left == 0 || self.stdin.is_empty() && self.ledger.is_closed();
                self.ledger.delivered(len as u64);
                if len > 0 {
                    self.print(Stream::Stdout, &bytes);
                }
                if is_over {
                    self.exit(0);
                }
            }
            Script::Exited { rest } => match rest.pop_front() {
                Some((stream, piece)) => {
                    let unsaid = self.print(stream, &piece);
                    if let (Script::Exited { rest }, Some(unsaid)) = (&mut self.script, unsaid) {
                        rest.push_front((stream, unsaid));
                    }
                }
                None => self.close(),
            },
            Script::Hang | Script::Closed => {}
        }
        before != (self.log.next_seq(), self.log.total(), self.stdin.len())
    }

    /// Says as much as there is room for, and returns the rest.
    fn print(&mut self, stream: Stream, bytes: &[u8]) -> Option<Vec<u8>> {
        let mut said = 0;
        while said < bytes.len() {
            let hold = self.hold();
            let room = self.log.room(hold, usize::MAX).min(bytes.len() - said);
            if room == 0 {
                return Some(bytes[said..].to_vec());
            }
            let piece = &bytes[said..said + room];
            let len = self.log.append(stream, 0, room, |spare| {
                spare.copy_from_slice(&piece[..spare.len()]);
                Ok::<_, ()>(spare.len())
            });
            let len = len.unwrap();
            assert!(len > 0, "a log with room takes something");
            self.truth.say(stream, &piece[..len], self.log.next_seq() - 1);
            self.log.evict(hold, usize::MAX);
            said += len;
        }
        None
    }

    fn exit(&mut self, code: i32) {
        self.truth.exit_code = Some(code);
        self.truth.events.push(Said::Exited);
        let seq = self.log.push_exited(0);
        assert_eq!(seq as usize, self.truth.events.len());
        let mut rest = VecDeque::new();
        if self.random.chance(20) && matches!(self.script, Script::Say { .. }) {
            rest.push_back((Stream::Stdout, self.random.letters(30)));
        }
        self.ledger.fail();
        self.stdin.clear();
        self.script = Script::Exited { rest };
    }

    fn close(&mut self) {
        self.truth.events.push(Said::Closed);
        let seq = self.log.push_closed(0);
        assert_eq!(seq as usize, self.truth.events.len());
        self.script = Script::Closed;
    }

    pub(crate) fn terminate(&mut self) -> bool {
        let running = self.truth.exit_code.is_none();
        if running {
            self.truth.is_terminated = true;
            self.exit(137);
            self.close();
        }
        running
    }

    /// Takes the input that has room; returns what to answer.
    pub(crate) fn take_input(&mut self) -> Vec<(u32, RequestId, Option<wire::WriteStatus>)> {
        let mut answers = Vec::new();
        while let Some(wish) = self.waiting.pop_front() {
            let status = match &wish.what {
                Input::Close => {
                    self.ledger.close();
                    self.truth.is_input_closed = true;
                    None
                }
                Input::Write(write) => {
                    let id = write.write_id.as_deref();
                    let offer = stdin_ledger::Write { id, len: write.chunk.len() as u64, accepted: 0 };
                    match self.ledger.offer(offer) {
                        Offer::Accepted(range) => {
                            let taken = part(&write.chunk, range);
                            self.stdin.extend(taken);
                            self.truth.input.extend_from_slice(taken);
                            Some(wire::WriteStatus::Accepted)
                        }
                        Offer::Part(range) => {
                            let taken = part(&write.chunk, range);
                            self.stdin.extend(taken);
                            self.truth.input.extend_from_slice(taken);
                            self.waiting.push_front(wish);
                            continue;
                        }
                        Offer::Repeated => {
                            self.truth.repeated_writes += 1;
                            Some(wire::WriteStatus::Accepted)
                        }
                        Offer::Closed => Some(wire::WriteStatus::StdinClosed),
                        Offer::Full => {
                            self.waiting.push_front(wish);
                            break;
                        }
                    }
                }
            };
            answers.push((wish.connection, wish.id, status));
        }
        answers
    }

    pub(crate) fn read(&mut self, read: &wire::Read) -> wire::ReadReply {
        let limit = read.max_bytes.unwrap_or(u64::MAX);
        let mut cursor = self.log.cursor_after(read.after_seq.unwrap_or(0));
        let (mut chunks, mut gap, mut bytes, mut last) = (Vec::new(), None, 0, None);
        loop {
            let len = self.log.peek_len(&cursor).unwrap_or(0) as u64;
            if len > 0 && !chunks.is_empty() && bytes + len > limit {
                break;
            }
            match self.log.next(&mut cursor) {
                None => break,
                Some(Next::Gap(found)) => gap = Some(range(found)),
                Some(Next::Output { seq, stream, bytes: chunk, .. }) => {
                    bytes += chunk.len() as u64;
                    last = Some(seq);
                    chunks.push(wire::Chunk { seq, stream, chunk: Blob::from(chunk.to_vec()), at_ms: None });
                }
                Some(Next::Exited(_) | Next::Closed(_)) => {}
            }
        }
        let is_limited = read.max_bytes.is_some();
        wire::ReadReply {
            incarnation: None,
            next_seq: last.filter(|_| is_limited).map_or(self.log.next_seq(), |last| last + 1),
            chunks,
            exited: self.log.exited().is_some(),
            exit_code: self.truth.exit_code,
            closed: self.log.is_closed(),
            failure: None,
            sandbox_denied: false,
            network_denied: Vec::new(),
            signal: None,
            cause: None,
            usage: None,
            produced: None,
            evicted_bytes: None,
            gap: gap.filter(|_| self.dialect == Dialect::Remex),
        }
    }

    /// Returns how many bytes were streamed and are not used up.
    pub(crate) fn unconsumed(&mut self) -> u64 {
        let consumed = self.log.cursor_after(self.consumed).offset.unwrap_or(0);
        self.live.map_or(0, |live| live.offset.unwrap_or(0).saturating_sub(consumed))
    }
}

pub(crate) fn range(gap: output_log::Gap) -> wire::GapRange {
    wire::GapRange { from_seq: gap.from_seq, to_seq: gap.to_seq, bytes: gap.bytes, cause: gap.cause }
}

impl Truth {
    fn say(&mut self, stream: Stream, bytes: &[u8], seq: Seq) {
        let said = if stream == Stream::Stdout { &mut self.stdout } else { &mut self.stderr };
        let start = said.len();
        said.extend_from_slice(bytes);
        if self.events.len() < seq as usize {
            self.events.push(Said::Output { stream, start, len: 0 });
        }
        let Some(Said::Output { stream: of, len, .. }) = self.events.last_mut() else { panic!("not output") };
        assert_eq!(*of, stream);
        *len += bytes.len();
    }
}

fn part(chunk: &[u8], range: std::ops::Range<u64>) -> &[u8] {
    let at = |offset: u64| usize::try_from(offset).expect("a chunk is in memory");
    &chunk[at(range.start)..at(range.end)]
}
