//! How long an echo takes while another thread opens connections that never send a request.

use std::{
    collections::VecDeque,
    net::{SocketAddr, TcpStream},
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::Instant,
};

use anyhow::{Result, anyhow};

use super::{
    Figures, Goal, Measure, Row, Scale, Unit,
    echo::{CAT, round_trip, sample, wait_for_output},
};
use crate::{Stdio, server::Server, stats::percentile_us};

/// Connections that are open at once; a server may refuse most of them.
const CONNECTIONS: usize = 2000;

pub(super) const HALF_OPEN: Measure = Measure {
    name: "half-open",
    server: half_open,
    bare: None,
    rows: &[
        Row::alone("echo of one byte before the flood, p50", Unit::Microseconds, "p50", Goal::None),
        Row::alone("echo of one byte before the flood, p99", Unit::Microseconds, "p99", Goal::None),
        Row::alone(
            "echo beside 2,000 half-open connections, p50",
            Unit::Microseconds,
            "flood-p50",
            Goal::None,
        ),
        Row::alone(
            "echo beside 2,000 half-open connections, p99",
            Unit::Microseconds,
            "flood-p99",
            Goal::None,
        ),
        Row::alone("connections of the flood", Unit::PerSecond, "flood-rate", Goal::None),
    ],
};

fn half_open(server: &Server, scale: &Scale) -> Result<Figures> {
    let mut client = server.connect()?;
    let cat = client.start(CAT, Stdio::Pty)?;
    wait_for_output(&mut client, cat)?;
    let mut alone = sample(scale, || round_trip(&mut client, cat))?;
    let (address, is_full, is_over) = (server.address(), AtomicBool::new(false), AtomicBool::new(false));
    let (mut flooded, rate) = thread::scope(|scope| {
        let flooding = scope.spawn(|| flood(address, &is_full, &is_over));
        while !is_full.load(Ordering::Relaxed) && !flooding.is_finished() {
            round_trip(&mut client, cat)?;
        }
        let flooded = sample(scale, || round_trip(&mut client, cat));
        is_over.store(true, Ordering::Relaxed);
        let rate = flooding.join().map_err(|_| anyhow!("the flood failed"))??;
        anyhow::Ok((flooded?, rate))
    })?;
    Ok(vec![
        ("p50", percentile_us(&mut alone, 50)),
        ("p99", percentile_us(&mut alone, 99)),
        ("flood-p50", percentile_us(&mut flooded, 50)),
        ("flood-p99", percentile_us(&mut flooded, 99)),
        ("flood-rate", rate),
    ])
}

/// Keeps connections open and replaces the oldest by new ones; returns how many it opened per second.
fn flood(address: SocketAddr, is_full: &AtomicBool, is_over: &AtomicBool) -> Result<f64> {
    let (begin, mut opened, mut held) = (Instant::now(), 0_u32, VecDeque::new());
    while !is_over.load(Ordering::Relaxed) {
        held.push_back(TcpStream::connect(address)?);
        opened += 1;
        if held.len() > CONNECTIONS {
            held.pop_front();
            is_full.store(true, Ordering::Relaxed);
        }
    }
    Ok(f64::from(opened) / begin.elapsed().as_secs_f64())
}
