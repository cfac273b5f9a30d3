//! How long one byte takes to a raw-mode `cat` and back, alone and beside a flood on the same connection.

use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};

use super::{Figures, Goal, Measure, Row, Scale, Unit};
use crate::{Stdio, bare::Terminal, client::Client, message::Message, server::Server, stats::percentile_us};

/// The byte tells that the terminal is in raw mode, so that nothing but `cat` will echo.
const CAT: &[&str] = &["sh", "-c", "stty raw -echo; printf r; exec cat"];
const WARM_UP: usize = 50;

pub(super) const ECHO: Measure = Measure {
    name: "echo",
    server: echo,
    bare: Some(bare_echo),
    rows: &[
        Row::against_bare("echo of one byte, p50", Unit::Microseconds, "p50", Goal::RatioAtMost(2.5)),
        Row::against_bare("echo of one byte, p99", Unit::Microseconds, "p99", Goal::None),
        Row {
            what: "echo beside `yes`, p50 (against bare p50)",
            unit: Unit::Microseconds,
            figure: "flood-p50",
            bare: Some("p50"),
            goal: Goal::None,
        },
        Row {
            what: "echo beside `yes`, p99 (against bare p50)",
            unit: Unit::Microseconds,
            figure: "flood-p99",
            bare: Some("p50"),
            goal: Goal::RatioAtMost(30.0),
        },
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
    let ended = client.terminate(yes)?;
    client.wait_for_reply(ended)?;
    Ok(vec![
        ("p50", percentile_us(&mut alone, 50)),
        ("p99", percentile_us(&mut alone, 99)),
        ("flood-p50", percentile_us(&mut flooded, 50)),
        ("flood-p99", percentile_us(&mut flooded, 99)),
    ])
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

fn sample(scale: &Scale, mut once: impl FnMut() -> Result<Duration>) -> Result<Vec<Duration>> {
    for _ in 0..WARM_UP {
        once()?;
    }
    (0..scale.echoes).map(|_| once()).collect()
}

/// Writes one byte; the clock stops at its echo, but the answer to the write is waited for too.
fn round_trip(client: &mut Client, cat: u64) -> Result<Duration> {
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

fn wait_for_output(client: &mut Client, wanted: u64) -> Result<()> {
    loop {
        match client.next_message()? {
            Message::Output { process, .. } if process == wanted => return Ok(()),
            _ => {}
        }
    }
}
