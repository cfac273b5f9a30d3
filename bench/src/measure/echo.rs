//! How long one byte takes to a raw-mode `cat` and back: alone, and beside a flood on the same or another connection.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use anyhow::{Result, anyhow, bail, ensure};

use super::{Base, Figures, Goal, Measure, Row, Scale, Unit};
use crate::{Stdio, bare::Terminal, client::Client, message::Message, server::Server, stats::percentile_us};

/// The byte tells that the terminal is in raw mode, so that nothing but `cat` will echo.
pub(super) const CAT: &[&str] = &["sh", "-c", "stty raw -echo; printf r; exec cat"];
const WARM_UP: usize = 50;

pub(super) const ECHO: Measure = Measure {
    name: "echo",
    server: echo,
    bare: Some(bare_echo),
    rows: &[
        Row::against_bare("echo of one byte, p50", Unit::Microseconds, "p50", Goal::RatioAtMost(2.5))
            .durable(Goal::RatioAtMost(1.3)),
        Row::against_bare("echo of one byte, p99", Unit::Microseconds, "p99", Goal::None),
        Row {
            what: "echo beside `yes`, p50 (against bare p50)",
            unit: Unit::Microseconds,
            figure: "flood-p50",
            base: Base::Bare("p50"),
            goal: Goal::None,
            durable: Goal::None,
        },
        Row {
            what: "echo beside `yes`, p99 (against bare p50)",
            unit: Unit::Microseconds,
            figure: "flood-p99",
            base: Base::Bare("p50"),
            goal: Goal::RatioAtMost(30.0),
            durable: Goal::None,
        },
        Row {
            what: "echo beside `yes` of another connection, p50 (against bare p50)",
            unit: Unit::Microseconds,
            figure: "other-p50",
            base: Base::Bare("p50"),
            goal: Goal::None,
            durable: Goal::None,
        },
        Row {
            what: "echo beside `yes` of another connection, p99 (against bare p50)",
            unit: Unit::Microseconds,
            figure: "other-p99",
            base: Base::Bare("p50"),
            goal: Goal::RatioAtMost(30.0),
            durable: Goal::None,
        },
        Row::alone("… as a multiple of p99 on the same connection", Unit::Count, "other-ratio", Goal::None),
        Row::alone("the flood meanwhile", Unit::MibPerSecond, "other-rate", Goal::None),
    ],
};

fn echo(server: &Server, scale: &Scale) -> Result<Figures> {
    let mut client = server.connect()?;
    let cat = client.start(CAT, Stdio::Pty)?;
    wait_for_output(&mut client, cat)?;
    let mut alone = sample(scale, || round_trip(&mut client, cat))?;
    let yes = client.start(&["yes"], Stdio::Pipe)?;
    wait_for_output(&mut client, yes)?;
    let mut flooded = sample(scale, || round_trip(&mut client, cat))?;
    client.terminate(yes)?;
    wait_for_close(&mut client, yes)?;
    let flood = Flood::begin(server)?;
    let mut beside = sample(scale, || round_trip(&mut client, cat))?;
    let rate = flood.end()?;
    let (flooded_p99, beside_p99) = (percentile_us(&mut flooded, 99), percentile_us(&mut beside, 99));
    Ok(vec![
        ("p50", percentile_us(&mut alone, 50)),
        ("p99", percentile_us(&mut alone, 99)),
        ("flood-p50", percentile_us(&mut flooded, 50)),
        ("flood-p99", flooded_p99),
        ("other-p50", percentile_us(&mut beside, 50)),
        ("other-p99", beside_p99),
        ("other-ratio", beside_p99 / flooded_p99),
        ("other-rate", rate),
    ])
}

/// `yes` on a connection of its own, read by a thread of its own.
struct Flood {
    reader: JoinHandle<Result<f64>>,
    is_over: Arc<AtomicBool>,
}

impl Flood {
    fn begin(server: &Server) -> Result<Self> {
        let mut client = server.connect()?;
        let yes = client.start(&["yes"], Stdio::Pipe)?;
        wait_for_output(&mut client, yes)?;
        let is_over = Arc::new(AtomicBool::new(false));
        let over = Arc::clone(&is_over);
        let reader = thread::spawn(move || {
            let (begin, mut bytes) = (Instant::now(), 0);
            while !over.load(Ordering::Relaxed) {
                if let Message::Output { len, .. } = client.next_message()? {
                    bytes += len;
                }
            }
            let rate = bytes as f64 / f64::from(1 << 20) / begin.elapsed().as_secs_f64();
            let ended = client.terminate(yes)?;
            client.wait_for_reply(ended)?;
            Ok(rate)
        });
        Ok(Flood { reader, is_over })
    }

    /// Ends it and returns how many MiB came in a second.
    fn end(self) -> Result<f64> {
        self.is_over.store(true, Ordering::Relaxed);
        self.reader.join().map_err(|_| anyhow!("the reader of the flood failed"))?
    }
}

fn bare_echo(scale: &Scale) -> Result<Figures> {
    let mut terminal = Terminal::start(CAT)?;
    terminal.read_byte()?;
    let mut durations = sample(scale, || {
        let begin = Instant::now();
        terminal.write_byte(b'x')?;
        let byte = terminal.read_byte()?;
        ensure!(byte == b'x', "`cat` answered with byte {byte}");
        Ok(begin.elapsed())
    })?;
    terminal.hang_up()?;
    Ok(vec![("p50", percentile_us(&mut durations, 50)), ("p99", percentile_us(&mut durations, 99))])
}

pub(super) fn sample(scale: &Scale, mut once: impl FnMut() -> Result<Duration>) -> Result<Vec<Duration>> {
    for _ in 0..WARM_UP {
        once()?;
    }
    (0..scale.echoes).map(|_| once()).collect()
}

/// Writes one byte; the clock stops at its echo, but the answer to the write is waited for too.
pub(super) fn round_trip(client: &mut Client, cat: u64) -> Result<Duration> {
    let begin = Instant::now();
    let write = client.write_byte(cat)?;
    let (mut echoed, mut answered) = (None, false);
    loop {
        match client.next_message()? {
            Message::Output { process, len, .. } if process == cat => {
                ensure!(len == 1, "`cat` answered with {len} bytes");
                echoed = Some(begin.elapsed());
            }
            Message::Reply { id, .. } if id == write => answered = true,
            Message::Closed { process, .. } => bail!("process {process} ended too early"),
            _ => continue,
        }
        if let (Some(elapsed), true) = (echoed, answered) {
            return Ok(elapsed);
        }
    }
}

pub(super) fn wait_for_output(client: &mut Client, wanted: u64) -> Result<()> {
    loop {
        match client.next_message()? {
            Message::Output { process, .. } if process == wanted => return Ok(()),
            _ => {}
        }
    }
}

fn wait_for_close(client: &mut Client, wanted: u64) -> Result<()> {
    loop {
        match client.next_message()? {
            Message::Closed { process, .. } if process == wanted => return Ok(()),
            _ => {}
        }
    }
}
