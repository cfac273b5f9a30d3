//! What a client that does not read costs, and whether it can still end what it started.

use std::{
    io::{self, Write},
    process, thread,
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};

use super::{Figures, Goal, Measure, Row, Scale, Tally, Unit, run};
use crate::{
    Stdio,
    client::Client,
    message::Message,
    proc::{Holdings, is_running, peak_rss_kib},
    server::Server,
};

/// How long the end of the process is waited for while the client still reads nothing.
const END_LIMIT: Duration = Duration::from_secs(3);
/// Caps leave little to read, so that this is ample.
const DRAIN_LIMIT: Duration = Duration::from_secs(10);
const LOOK_INTERVAL: Duration = Duration::from_millis(2);
/// The base's retention of 1 MiB, the same again on its way out, and what an allocator keeps of both.
const GROWTH_LIMIT_MIB: f64 = 8.0;
const KIB_PER_MIB: f64 = 1024.0;

pub(super) const STALL: Measure = Measure {
    name: "stall",
    server: stall,
    bare: None,
    rows: &[
        Row::alone(
            "no reader: memory added at the peak",
            Unit::Mib,
            "growth",
            Goal::AtMost(GROWTH_LIMIT_MIB),
        ),
        Row::alone("no reader: terminate works", Unit::YesOrNo, "terminated", Goal::Yes),
        Row::alone("no reader: terminate until gone", Unit::Milliseconds, "end", Goal::None),
        Row::alone("no reader: nothing missing afterwards", Unit::YesOrNo, "complete", Goal::Yes),
    ],
};

fn stall(server: &Server, scale: &Scale) -> Result<Figures> {
    let mut client = server.connect()?;
    run(&mut client, &["/bin/true"], Stdio::Pipe)?;
    let before = Holdings::of(&server.pids())?.rss_kib;
    let word = format!("remex-bench-{}-{}", process::id(), server.pid());
    let mut tally = Tally::of(client.start(&["yes", &word], Stdio::Pipe)?);
    wait_for_start(&mut client, &mut tally)?;
    thread::sleep(scale.stall);
    let begin = Instant::now();
    client.terminate(tally.process)?;
    let gone = wait_until_gone(&word)?;
    let end = begin.elapsed();
    let drained = drain(&mut client, &mut tally);
    if let Err(error) = &drained {
        writeln!(io::stderr(), "stall: {error:#}")?;
    }
    let growth = peak_rss_kib(&server.pids())? - before;
    Ok(vec![
        ("growth", growth / KIB_PER_MIB),
        ("terminated", f64::from(u8::from(gone))),
        ("end", end.as_secs_f64() * 1e3),
        ("complete", f64::from(u8::from(drained.is_ok()))),
    ])
}

fn wait_for_start(client: &mut Client, tally: &mut Tally) -> Result<()> {
    loop {
        let message = client.next_message()?;
        if let Message::Reply { .. } = message {
            return Ok(());
        }
        tally.note(&message)?;
    }
}

/// Looks for the process itself, because a server that cannot write cannot tell.
fn wait_until_gone(word: &str) -> Result<bool> {
    let deadline = Instant::now() + END_LIMIT;
    while is_running(word)? {
        if Instant::now() > deadline {
            return Ok(false);
        }
        thread::sleep(LOOK_INTERVAL);
    }
    Ok(true)
}

/// Reads what waited, to the last event; fails when the ledger or the numbers tell of a loss.
fn drain(client: &mut Client, tally: &mut Tally) -> Result<()> {
    let deadline = Instant::now() + DRAIN_LIMIT;
    while !tally.note(&client.next_message()?)? {
        // Where terminate did not work the flood goes on for ever.
        ensure!(
            Instant::now() < deadline,
            "the process was terminated, and still writes after {DRAIN_LIMIT:?}"
        );
    }
    Ok(())
}
