//! How long a command takes that does nothing.

use anyhow::{Result, ensure};
use remex_client::Command;

use super::{Figures, Goal, Measure, Row, Samples, Scale, Unit};
use crate::{Stdio, bare, server::Server, way::Way};

macro_rules! run {
    ($name:literal, $way:expr, $words:literal) => {
        Measure {
            name: $name,
            server: |server, scale| run(server, scale, $way),
            bare: Some(bare_run),
            rows: &[
                Row::against_bare(
                    concat!("client: `/bin/true` ", $words, ", p50"),
                    Unit::Microseconds,
                    "p50",
                    Goal::None,
                ),
                Row::against_bare(
                    concat!("client: `/bin/true` ", $words, ", p99"),
                    Unit::Microseconds,
                    "p99",
                    Goal::None,
                ),
            ],
        }
    };
}

pub(crate) const RUN_IN_PROCESS: Measure = run!("client-run-in-process", Way::InProcess, "in process");
pub(crate) const RUN_UNIX: Measure = run!("client-run-unix", Way::Unix, "over a unix socket");
pub(crate) const RUN_WEBSOCKET: Measure = run!("client-run-ws", Way::WebSocket, "over a WebSocket");
pub(crate) const RUN_STDIO: Measure = run!("client-run-stdio", Way::Stdio, "in a child");

pub(crate) fn run(server: &Server, scale: &Scale, way: Way) -> Result<Figures> {
    let mut samples = Samples::new(scale.spawns);
    way.measure(server, move |client| async move {
        while samples.begin() {
            let output = Command::new("/bin/true").output(&client).await?;
            samples.end();
            ensure!(output.exit.success(), "`/bin/true` ended with {}", output.exit.code);
        }
        Ok(samples.figures())
    })
}

fn bare_run(scale: &Scale) -> Result<Figures> {
    let mut samples = Samples::new(scale.spawns);
    while samples.begin() {
        bare::run(&["/bin/true"], Stdio::Pipe)?;
        samples.end();
    }
    Ok(samples.figures())
}
