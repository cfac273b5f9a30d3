//! What a consumer costs the client that takes nothing.

use remex_client::Command;
use std::process;

use anyhow::{Result, ensure};
use tokio::{io::AsyncReadExt as _, time::sleep};

use super::{Figures, Goal, Measure, Row, Scale, Unit};
use crate::{proc::Holdings, server::Server, way::Way};

/// The window of 256 KiB, a message on its way and what an allocator keeps of both.
const GROWTH_LIMIT_KIB: f64 = 2048.0;

pub(crate) const MEMORY: Measure = Measure {
    name: "client-memory",
    server: memory,
    bare: None,
    rows: &[Row::alone(
        "client: no consumer: memory added to it",
        Unit::Kib,
        "growth",
        Goal::AtMost(GROWTH_LIMIT_KIB),
    )],
};

fn memory(server: &Server, scale: &Scale) -> Result<Figures> {
    let stall = scale.stall;
    Way::WebSocket.measure(server, move |client| async move {
        Command::new("/bin/true").output(&client).await?;
        let before = Holdings::of(&[process::id()])?.rss_kib;
        let process = Command::new("yes").start(&client).await?;
        let mut stdout = process.stdout();
        sleep(stall).await;
        let growth = Holdings::of(&[process::id()])?.rss_kib - before;
        let mut first = [0; 2];
        stdout.read_exact(&mut first).await?;
        ensure!(&first == b"y\n", "the first line of `yes` is {first:?}");
        process.kill().await?;
        Ok(vec![("growth", growth)])
    })
}
