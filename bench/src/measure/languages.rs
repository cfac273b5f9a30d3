//! What the clients in Python and TypeScript achieve beside the Rust client, with the same server.
//!
//! Each works in a program of its own, which prints its figures.

use std::{
    env,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

use super::{Figures, Goal, Measure, Row, Scale, Unit, client};
use crate::{server::Server, way::Way};

macro_rules! languages {
    ($name:literal, $way:expr, $words:literal) => {
        Measure {
            name: $name,
            server: |server, scale| measure(server, scale, $way),
            bare: None,
            rows: &[
                Row::alone(concat!("Rust: output ", $words), Unit::MibPerSecond, "rust-rate", Goal::None),
                Row::against_rust(
                    "Python: the same",
                    Unit::MibPerSecond,
                    "python-rate",
                    "rust-rate",
                    Goal::RatioAtLeast(0.5),
                ),
                Row::against_rust(
                    "TypeScript: the same",
                    Unit::MibPerSecond,
                    "typescript-rate",
                    "rust-rate",
                    Goal::RatioAtLeast(0.6),
                ),
                Row::alone(
                    concat!("Rust: `/bin/true` ", $words, ", p50"),
                    Unit::Microseconds,
                    "rust-run",
                    Goal::None,
                ),
                Row::alone("Python: over that", Unit::Microseconds, "python-over", Goal::AtMost(1000.0)),
                Row::alone(
                    "TypeScript: over that",
                    Unit::Microseconds,
                    "typescript-over",
                    Goal::AtMost(1000.0),
                ),
            ],
        }
    };
}

pub(super) const UNIX: Measure = languages!("languages-unix", Way::Unix, "over a unix socket");
pub(super) const WEBSOCKET: Measure = languages!("languages-ws", Way::WebSocket, "over a WebSocket");

/// What a program prints.
#[derive(Deserialize)]
struct Report {
    /// The median of a run, in microseconds.
    run: f64,
    /// The rate of output, in MiB per second.
    rate: f64,
}

/// So much more output than elsewhere, because an interpreter takes a while to compile what it repeats.
const LONGER: u64 = 4;

fn measure(server: &Server, scale: &Scale, way: Way) -> Result<Figures> {
    let Some(url) = way.url(server) else { return Ok(Vec::new()) };
    let scale = &Scale { pipe_bytes: LONGER * scale.pipe_bytes, ..scale.clone() };
    let rust_rate = figure(&client::read(server, scale, way)?, "rate")?;
    let rust_run = figure(&client::run(server, scale, way)?, "p50")?;
    let python = report(python(), scale, &url)?;
    let typescript = report(typescript()?, scale, &url)?;
    Ok(vec![
        ("rust-rate", rust_rate),
        ("python-rate", python.rate),
        ("typescript-rate", typescript.rate),
        ("rust-run", rust_run),
        ("python-over", python.run - rust_run),
        ("typescript-over", typescript.run - rust_run),
    ])
}

fn figure(figures: &Figures, name: &str) -> Result<f64> {
    let found = figures.iter().find(|(figure, _)| *figure == name);
    Ok(found.with_context(|| format!("the Rust client has no figure `{name}`"))?.1)
}

fn report(mut command: Command, scale: &Scale, url: &str) -> Result<Report> {
    command.args([url, &scale.spawns.to_string(), &scale.pipe_bytes.to_string()]);
    let output = command.output().with_context(|| format!("cannot run {:?}", command.get_program()))?;
    ensure!(
        output.status.success(),
        "{:?} ended with {}: {}",
        command.get_program(),
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(serde_json::from_slice(&output.stdout)?)
}

/// Returns the program for Python; `PYTHON` names another interpreter.
fn python() -> Command {
    let directory = clients().join("python");
    let mut command = Command::new(env::var_os("PYTHON").unwrap_or_else(|| "python3".into()));
    command.env("PYTHONPATH", directory.join("src")).arg(directory.join("scripts/benchmark.py"));
    command
}

/// Returns the program for TypeScript; `NODE` names another one than `node`.
fn typescript() -> Result<Command> {
    let directory = clients().join("typescript");
    ensure!(
        directory.join("dist").is_dir(),
        "the client is not built; run `npm install && npm run build` in `clients/typescript`"
    );
    let mut command = Command::new(env::var_os("NODE").unwrap_or_else(|| "node".into()));
    command.arg(directory.join("scripts/benchmark.mjs"));
    Ok(command)
}

fn clients() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).with_file_name("clients")
}
