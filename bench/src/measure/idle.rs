//! What a server holds while nothing happens: at rest, for each idle process, for each idle connection, and when
//! everything is over.

use std::{
    fs, thread,
    time::{Duration, Instant},
};

use anyhow::Result;

use super::{Figures, Goal, Measure, Row, Scale, Unit, run};
use crate::{Stdio, client::Client, message::Message, proc::Holdings, server::Server};

/// Outlives the measurement, and little else should a server leave it behind.
const SLEEP: &[&str] = &["sleep", "120"];
/// Enough to touch the code and the pools that the first use costs, and that are not paid per process.
const WARM_UP: usize = 8;
/// After this nothing moves in a server that has nothing to do.
const SETTLE: Duration = Duration::from_millis(500);
/// The base keeps what has ended for 30 s, and sessions without a client as long; a server gets some more.
const FORGOTTEN: Duration = Duration::from_secs(75);
const KIB_PER_MIB: f64 = 1024.0;

/// One in twenty forgives a pool that grew by a few.
const NO_THREAD: Goal = Goal::AtMost(0.05);

pub(super) const PIPE: Measure = Measure {
    name: "idle-pipe",
    server: |server, scale| processes(server, scale, Stdio::Pipe),
    bare: None,
    rows: &[
        Row::alone("memory per idle process on a pipe", Unit::Kib, "rss", Goal::AtMost(12.0)),
        Row::alone("threads per idle process on a pipe", Unit::Count, "threads", NO_THREAD),
        Row::alone("descriptors per idle process on a pipe", Unit::Count, "descriptors", Goal::None),
    ],
};

pub(super) const PTY: Measure = Measure {
    name: "idle-pty",
    server: |server, scale| processes(server, scale, Stdio::Pty),
    bare: None,
    rows: &[
        Row::alone("memory per idle process on a PTY", Unit::Kib, "rss", Goal::AtMost(12.0)),
        Row::alone("threads per idle process on a PTY", Unit::Count, "threads", NO_THREAD),
        Row::alone("descriptors per idle process on a PTY", Unit::Count, "descriptors", Goal::None),
    ],
};

pub(super) const CONNECTIONS: Measure = Measure {
    name: "connections",
    server: connections,
    bare: None,
    rows: &[
        Row::alone("memory per idle connection", Unit::Kib, "rss", Goal::AtMost(32.0)),
        Row::alone("threads per idle connection", Unit::Count, "threads", Goal::None),
        Row::alone("descriptors per idle connection", Unit::Count, "descriptors", Goal::None),
    ],
};

pub(super) const REST: Measure = Measure {
    name: "rest",
    server: rest,
    bare: None,
    rows: &[
        Row::alone("memory of the server at rest", Unit::Mib, "rss", Goal::AtMost(10.0)),
        Row::alone("threads of the server at rest", Unit::Count, "threads", Goal::None),
        Row::alone("size of the executable", Unit::Mib, "executable", Goal::AtMost(15.0)),
    ],
};

pub(super) const GIVEN_BACK: Measure = Measure {
    name: "given-back",
    server: given_back,
    bare: None,
    rows: &[
        Row::alone("memory with 1 MiB retained for each of many processes", Unit::Mib, "loaded", Goal::None),
        Row::alone("memory when all of it is forgotten", Unit::Mib, "after", Goal::None),
        Row::alone("the same, over memory before", Unit::Count, "ratio", Goal::AtMost(3.0)),
    ],
};

fn processes(server: &Server, scale: &Scale, stdio: Stdio) -> Result<Figures> {
    let mut client = server.connect()?;
    for _ in 0..WARM_UP {
        run(&mut client, &["/bin/true"], stdio)?;
    }
    start_sleepers(&mut client, WARM_UP, stdio)?;
    let before = settled(server)?;
    start_sleepers(&mut client, scale.idle, stdio)?;
    Ok(per_unit(before, settled(server)?, scale.idle))
}

fn start_sleepers(client: &mut Client, count: usize, stdio: Stdio) -> Result<()> {
    for _ in 0..count {
        client.start(SLEEP, stdio)?;
    }
    let mut started = 0;
    while started < count {
        if let Message::Reply { .. } = client.next_message()? {
            started += 1;
        }
    }
    Ok(())
}

fn connections(server: &Server, scale: &Scale) -> Result<Figures> {
    let _warm = (0..WARM_UP).map(|_| connect_and_ask(server)).collect::<Result<Vec<_>>>()?;
    let before = settled(server)?;
    let _idle = (0..scale.idle).map(|_| connect_and_ask(server)).collect::<Result<Vec<_>>>()?;
    Ok(per_unit(before, settled(server)?, scale.idle))
}

/// Ending a process that never was is the cheapest request that every server of the dialect answers.
fn connect_and_ask(server: &Server) -> Result<Client> {
    let mut client = server.connect()?;
    let request = client.terminate(0)?;
    client.wait_for_reply(request)?;
    Ok(client)
}

fn rest(server: &Server, _: &Scale) -> Result<Figures> {
    let holdings = settled(server)?;
    let executable = fs::metadata(format!("/proc/{}/exe", server.pid()))?.len();
    Ok(vec![
        ("rss", holdings.rss_kib / KIB_PER_MIB),
        ("threads", holdings.threads),
        ("executable", executable as f64 / 1024.0 / KIB_PER_MIB),
    ])
}

fn given_back(server: &Server, scale: &Scale) -> Result<Figures> {
    let mut client = server.connect()?;
    for _ in 0..WARM_UP {
        run(&mut client, &["/bin/true"], Stdio::Pipe)?;
    }
    let before = settled(server)?.rss_kib;
    for _ in 0..scale.idle {
        run(&mut client, &["head", "-c", "1048576", "/dev/zero"], Stdio::Pipe)?;
    }
    let loaded = settled(server)?.rss_kib;
    drop(client);
    let deadline = Instant::now() + FORGOTTEN;
    let mut after = loaded;
    while Instant::now() < deadline && after > 2.0 * before {
        after = settled(server)?.rss_kib;
    }
    Ok(vec![("loaded", loaded / KIB_PER_MIB), ("after", after / KIB_PER_MIB), ("ratio", after / before)])
}

fn settled(server: &Server) -> Result<Holdings> {
    thread::sleep(SETTLE);
    Holdings::of(&server.pids())
}

fn per_unit(before: Holdings, after: Holdings, count: usize) -> Figures {
    let each = |before: f64, after: f64| (after - before) / count as f64;
    vec![
        ("rss", each(before.rss_kib, after.rss_kib)),
        ("threads", each(before.threads, after.threads)),
        ("descriptors", each(before.descriptors, after.descriptors)),
    ]
}
