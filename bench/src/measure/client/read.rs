//! How fast output gets to a consumer that reads it as a stream.

use anyhow::Result;
use remex_client::Command;
use tokio::io::AsyncReadExt as _;

use super::{Figures, Goal, Measure, Row, Scale, Unit};
use crate::{
    measure::output::{GIB, Producer, bare_throughput, rate, throughput},
    server::Server,
    way::Way,
};

/// What one read takes at most.
const READ_LEN: usize = 64 * 1024;

macro_rules! read {
    ($name:literal, $way:expr, $words:literal $(, $row:expr)?) => {
        Measure {
            name: $name,
            server: |server, scale| read(server, scale, $way),
            bare: Some(|scale| bare_throughput(&Producer::zero(scale))),
            rows: &[
                Row::against_bare(
                    concat!("client: output as a stream, ", $words),
                    Unit::MibPerSecond,
                    "rate",
                    Goal::None,
                ),
                Row::alone("client and server: CPU per GiB of it", Unit::Seconds, "cpu", Goal::None),
                $($row,)?
            ],
        }
    };
}

pub(crate) const READ_IN_PROCESS: Measure = read!("client-read-in-process", Way::InProcess, "in process");
pub(crate) const READ_UNIX: Measure = read!("client-read-unix", Way::Unix, "over a unix socket");
pub(crate) const READ_WEBSOCKET: Measure = read!(
    "client-read-ws",
    Way::WebSocket,
    "over a WebSocket",
    Row::alone("client: that rate over the wire client's", Unit::Count, "over-wire", Goal::None)
);

pub(crate) fn read(server: &Server, scale: &Scale, way: Way) -> Result<Figures> {
    let producer = Producer::zero(scale);
    let pids = server.pids();
    let mut figures = way.measure(server, move |client| async move {
        Command::new("/bin/true").output(&client).await?;
        let before = way.cpu_time(&pids)?;
        let begin = std::time::Instant::now();
        let (program, args) = producer.argv.split_first().expect("a producer has a program");
        let process = Command::new(program).args(args.to_vec()).start(&client).await?;
        let mut stdout = process.stdout();
        let mut buffer = vec![0; READ_LEN];
        let mut bytes = 0;
        loop {
            match stdout.read(&mut buffer).await? {
                0 => break,
                len => bytes += len as u64,
            }
        }
        let rate = rate(&producer, bytes, begin.elapsed())?;
        let cpu = way.cpu_time(&pids)? - before;
        Ok(vec![rate, ("cpu", cpu * GIB / bytes as f64)])
    })?;
    if let (Way::WebSocket, [(_, ours), ..]) = (way, &figures[..]) {
        let wire = throughput(server, &Producer::zero(scale))?;
        figures.push(("over-wire", ours / wire[0].1));
    }
    Ok(figures)
}
