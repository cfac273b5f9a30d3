//! How long a command takes that does nothing, and how many of them fit into a second.

use std::{
    thread,
    time::{Duration, Instant},
};

use anyhow::Result;

use super::{Figures, Goal, Measure, Row, Scale, Unit, run};
use crate::{Stdio, bare, client::Client, message::Message, proc, server::Server, stats::percentile_us};

const TRUE: &[&str] = &["/bin/true"];
/// Runs before the clock counts.
const WARM_UP: usize = 20;
/// Starts that are under way at any time.
const IN_FLIGHT: usize = 32;
/// Outlives the measurement, and little else should a server leave it behind.
const STAYS: &[&str] = &["sleep", "600"];
/// Idle processes of one client; a session may have 4,096.
const OF_ONE_CLIENT: usize = 2000;
const DURABLE_START: Goal = Goal::RatioAtMost(1.2);

pub(super) const PIPE: Measure = Measure {
    name: "spawn-pipe",
    server: |server, scale| latency(server, scale, Stdio::Pipe),
    bare: Some(|scale| bare_latency(scale, Stdio::Pipe)),
    rows: &[
        Row::against_bare("`/bin/true` on a pipe, p50", Unit::Microseconds, "p50", Goal::RatioAtMost(2.0))
            .durable(DURABLE_START),
        Row::against_bare("`/bin/true` on a pipe, p99", Unit::Microseconds, "p99", Goal::None),
    ],
};

pub(super) const PTY: Measure = Measure {
    name: "spawn-pty",
    server: |server, scale| latency(server, scale, Stdio::Pty),
    bare: Some(|scale| bare_latency(scale, Stdio::Pty)),
    rows: &[
        Row::against_bare("`/bin/true` on a PTY, p50", Unit::Microseconds, "p50", Goal::RatioAtMost(2.0))
            .durable(DURABLE_START),
        Row::against_bare("`/bin/true` on a PTY, p99", Unit::Microseconds, "p99", Goal::None),
    ],
};

pub(super) const MANY: Measure = Measure {
    name: "starts",
    server: many,
    bare: Some(bare_many),
    rows: &[
        Row::against_bare("starts, 32 in flight", Unit::PerSecond, "rate", Goal::RatioAtLeast(0.5)),
        Row::alone("server CPU per 1,000 starts", Unit::Seconds, "cpu", Goal::None),
    ],
};

pub(super) const CROWDED: Measure = Measure {
    name: "spawn-crowded",
    server: crowded,
    bare: None,
    rows: &[
        Row::alone(
            "`/bin/true` beside thousands of idle processes, p50",
            Unit::Microseconds,
            "p50",
            Goal::None,
        ),
        Row::alone("its p50, over that without them", Unit::Count, "ratio", Goal::AtMost(1.5)),
    ],
};

fn latency(server: &Server, scale: &Scale, stdio: Stdio) -> Result<Figures> {
    let mut client = server.connect()?;
    sample(scale.spawns, || run(&mut client, TRUE, stdio))
}

/// Runs `/bin/true` before and after many processes were started that stay.
fn crowded(server: &Server, scale: &Scale) -> Result<Figures> {
    let mut client = server.connect()?;
    let before = sample(scale.spawns, || run(&mut client, TRUE, Stdio::Pipe))?;
    let mut crowd = Vec::new();
    for first in (0..scale.crowd).step_by(OF_ONE_CLIENT) {
        let mut owner = server.connect()?;
        start_idle(&mut owner, OF_ONE_CLIENT.min(scale.crowd - first))?;
        crowd.push(owner);
    }
    let after = sample(scale.spawns, || run(&mut client, TRUE, Stdio::Pipe))?;
    let p50 =
        |figures: &Figures| figures.iter().find(|(name, _)| *name == "p50").map_or(f64::NAN, |found| found.1);
    Ok(vec![("p50", p50(&after)), ("ratio", p50(&after) / p50(&before))])
}

/// Starts processes that stay, a few at a time.
fn start_idle(client: &mut Client, count: usize) -> Result<()> {
    for started in (0..count).step_by(IN_FLIGHT) {
        let batch = IN_FLIGHT.min(count - started);
        for _ in 0..batch {
            client.start(STAYS, Stdio::Pipe)?;
        }
        let mut answered = 0;
        while answered < batch {
            if let Message::Reply { .. } = client.next_message()? {
                answered += 1;
            }
        }
    }
    Ok(())
}

fn bare_latency(scale: &Scale, stdio: Stdio) -> Result<Figures> {
    sample(scale.spawns, || bare::run(TRUE, stdio))
}

fn sample(count: usize, mut once: impl FnMut() -> Result<u64>) -> Result<Figures> {
    for _ in 0..WARM_UP {
        once()?;
    }
    let mut durations = Vec::with_capacity(count);
    for _ in 0..count {
        let begin = Instant::now();
        once()?;
        durations.push(begin.elapsed());
    }
    Ok(vec![("p50", percentile_us(&mut durations, 50)), ("p99", percentile_us(&mut durations, 99))])
}

fn many(server: &Server, scale: &Scale) -> Result<Figures> {
    let mut client = server.connect()?;
    for _ in 0..WARM_UP {
        run(&mut client, TRUE, Stdio::Pipe)?;
    }
    let cpu_before = proc::cpu_time(&server.pids())?;
    let begin = Instant::now();
    for _ in 0..IN_FLIGHT.min(scale.starts) {
        client.start(TRUE, Stdio::Pipe)?;
    }
    let (mut started, mut closed) = (IN_FLIGHT.min(scale.starts), 0);
    while closed < scale.starts {
        if let Message::Closed { .. } = client.next_message()? {
            closed += 1;
            if started < scale.starts {
                client.start(TRUE, Stdio::Pipe)?;
                started += 1;
            }
        }
    }
    let elapsed = begin.elapsed();
    let cpu = proc::cpu_time(&server.pids())? - cpu_before;
    Ok(vec![rate(scale.starts, elapsed), ("cpu", cpu.as_secs_f64() * 1000.0 / scale.starts as f64)])
}

fn bare_many(scale: &Scale) -> Result<Figures> {
    let threads = thread::available_parallelism()?.get();
    let each = scale.starts.div_ceil(threads);
    let begin = Instant::now();
    thread::scope(|scope| {
        let loops: Vec<_> = (0..threads)
            .map(|_| scope.spawn(|| (0..each).try_for_each(|_| bare::run(TRUE, Stdio::Pipe).map(drop))))
            .collect();
        loops.into_iter().try_for_each(|handle| handle.join().expect("a spawn loop returns its errors"))
    })?;
    Ok(vec![rate(each * threads, begin.elapsed())])
}

fn rate(count: usize, elapsed: Duration) -> (&'static str, f64) {
    ("rate", count as f64 / elapsed.as_secs_f64())
}
