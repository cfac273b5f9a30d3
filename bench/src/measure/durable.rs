//! What only a durable server can do: keep more output than memory, and be killed.

use std::{
    path::Path,
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};
use remex_client::{Options, Session, Target};
use rustix::fs::statvfs;
use tokio::runtime::Runtime;

use super::{Figures, Goal, Measure, Row, Scale, Unit, run};
use crate::{
    Stdio,
    client::Client,
    message::Message,
    proc::{Holdings, peak_rss_kib},
    server::Server,
};

/// What a log keeps of everything that passes through it, at most.
const RETAIN_BYTES: u64 = 1 << 30;
/// Room for what else is in a state directory, and for what else the disk is used for.
const SPARE_BYTES: u64 = 1 << 30;
/// Runs before memory is looked at: the first use of code is not a cost of a log.
const WARM_UP: usize = 8;
/// Processes that write at the same time.
const AT_ONCE: u64 = 20;
const SESSION: &str = "survivor";
const KIB_PER_MIB: f64 = 1024.0;

pub(super) const LOG: Measure = Measure {
    name: "durable-log",
    server: log,
    bare: None,
    rows: &[
        Row::alone("durable: output through one log", Unit::MibPerSecond, "rate", Goal::None),
        Row::alone("durable: memory added at the peak", Unit::Mib, "growth", Goal::AtMost(8.0)),
    ],
};

pub(super) const RESTART: Measure = Measure {
    name: "durable-restart",
    server: restart,
    bare: None,
    rows: &[
        Row::alone("durable: killed until it listens again", Unit::Milliseconds, "listens", Goal::None),
        Row::alone(
            "durable: … until its session is resumed and its processes are listed",
            Unit::Milliseconds,
            "listed",
            Goal::AtMost(1000.0),
        ),
    ],
};

fn log(server: &Server, scale: &Scale) -> Result<Figures> {
    let Some(ours) = server.durable() else { return Ok(Vec::new()) };
    ensure_space(&ours.state(), RETAIN_BYTES.min(scale.log_bytes))?;
    let mut client = server.connect()?;
    for _ in 0..WARM_UP {
        run(&mut client, &["head", "-c", "1048576", "/dev/zero"], Stdio::Pipe)?;
    }
    let before = Holdings::of(&server.pids())?.rss_kib;
    let begin = Instant::now();
    let retain = RETAIN_BYTES.min(scale.log_bytes / 4);
    client.start_evicting(retain, &["head", "-c", &scale.log_bytes.to_string(), "/dev/zero"])?;
    let produced = loop {
        // A client that is slower than the process misses what the log has dropped meanwhile.
        if let Message::Closed { produced, .. } = client.next_message()? {
            break produced;
        }
    };
    ensure!(produced == Some(scale.log_bytes), "{produced:?} bytes went through the log");
    let rate = scale.log_bytes as f64 / f64::from(1 << 20) / begin.elapsed().as_secs_f64();
    let growth = peak_rss_kib(&server.pids())? - before;
    Ok(vec![("rate", rate), ("growth", growth / KIB_PER_MIB)])
}

fn restart(server: &Server, scale: &Scale) -> Result<Figures> {
    let Some(ours) = server.durable() else { return Ok(Vec::new()) };
    ensure_space(&ours.state(), scale.log_bytes)?;
    let mut client = Client::connect_as(server.address(), SESSION)?;
    start_survivors(&mut client, scale)?;
    server.kill()?;
    drop(client);
    let begin = Instant::now();
    let successor = ours.succeed()?;
    let listens = begin.elapsed();
    let (listed, alive) = Runtime::new()?.block_on(async {
        let options = Options::default().session(Session::Resume { id: SESSION.to_owned(), takeover: false });
        let client = remex_client::Client::connect_with(Target::unix(ours.socket()), options).await?;
        let processes = client.processes().await?;
        let listed = begin.elapsed();
        let alive = processes.iter().filter(|process| process.exit_code.is_none()).count();
        client.end().await?;
        anyhow::Ok((listed, alive))
    })?;
    drop(successor);
    ensure!(alive as u64 == scale.survivors, "{alive} of {} processes survived", scale.survivors);
    let ms = |time: Duration| time.as_secs_f64() * 1e3;
    Ok(vec![("listens", ms(listens)), ("listed", ms(listed))])
}

/// Starts processes that fill their logs and then idle.
fn start_survivors(client: &mut Client, scale: &Scale) -> Result<()> {
    let each = scale.log_bytes / scale.survivors;
    let script = format!("head -c {each} /dev/zero; exec sleep 600");
    let mut started = 0;
    while started < scale.survivors {
        let batch = AT_ONCE.min(scale.survivors - started);
        for _ in 0..batch {
            client.start(&["sh", "-c", &script], Stdio::Pipe)?;
        }
        started += batch;
        let mut missing = batch * each;
        while missing > 0 {
            if let Message::Output { len, .. } = client.next_message()? {
                missing -= len;
            }
        }
    }
    Ok(())
}

/// Fails if a disk has less room than a measurement needs.
fn ensure_space(state: &Path, bytes: u64) -> Result<()> {
    let disk = statvfs(state)?;
    let (free, needed) = (disk.f_bavail * disk.f_frsize, bytes + SPARE_BYTES);
    ensure!(
        free >= needed,
        "it needs {:.1} GiB on the disk of `{}`, which has {:.1} GiB; set `TMPDIR` to a directory with more, or use \
         `--quick`",
        needed as f64 / f64::from(1 << 30),
        state.display(),
        free as f64 / f64::from(1 << 30),
    );
    Ok(())
}
