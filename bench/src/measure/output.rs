//! How fast output travels, from the request to start the producer until `closed`.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use super::{Figures, Goal, Measure, Row, Scale, Unit, run};
use crate::{Stdio, bare, proc, server::Server};

pub(super) const MIB: f64 = 1024.0 * 1024.0;
pub(super) const GIB: f64 = 1024.0 * MIB;
const DURABLE_OUTPUT: Goal = Goal::RatioAtLeast(0.9);

pub(super) const PIPE_ZERO: Measure = Measure {
    name: "pipe-zero",
    server: |server, scale| throughput(server, &Producer::zero(scale)),
    bare: Some(|scale| bare_throughput(&Producer::zero(scale))),
    rows: &[
        Row::against_bare(
            "pipe output, `head /dev/zero`",
            Unit::MibPerSecond,
            "rate",
            Goal::RatioAtLeast(0.3),
        )
        .durable(DURABLE_OUTPUT),
        Row::alone("server CPU per GiB of it", Unit::Seconds, "cpu", Goal::AtMost(2.0)),
    ],
};

pub(super) const PIPE_SEQ: Measure = Measure {
    name: "pipe-seq",
    server: |server, scale| throughput(server, &Producer::seq(scale)),
    bare: Some(|scale| bare_throughput(&Producer::seq(scale))),
    rows: &[
        Row::against_bare("pipe output, `seq`", Unit::MibPerSecond, "rate", Goal::RatioAtLeast(0.3))
            .durable(DURABLE_OUTPUT),
        Row::alone("server CPU per GiB of it", Unit::Seconds, "cpu", Goal::AtMost(2.0)),
    ],
};

pub(super) const PTY: Measure = Measure {
    name: "pty",
    server: |server, scale| throughput(server, &Producer::pty(scale)),
    bare: Some(|scale| bare_throughput(&Producer::pty(scale))),
    rows: &[
        Row::against_bare("PTY output, raw mode", Unit::MibPerSecond, "rate", Goal::RatioAtLeast(0.8))
            .durable(DURABLE_OUTPUT),
        Row::alone("server CPU per GiB of it", Unit::Seconds, "cpu", Goal::None),
    ],
};

pub(super) const PIPE_LINES: Measure = Measure {
    name: "pipe-lines",
    server: |server, scale| throughput(server, &Producer::flushed_lines(scale)),
    bare: Some(|scale| bare_throughput(&Producer::flushed_lines(scale))),
    rows: &[
        Row::against_bare(
            "pipe output, each line of 41 bytes flushed",
            Unit::MibPerSecond,
            "rate",
            Goal::RatioAtLeast(0.3),
        )
        .durable(DURABLE_OUTPUT),
        Row::alone("server CPU per GiB of it", Unit::Seconds, "cpu", Goal::AtMost(5.0)),
    ],
};

pub(super) const PTY_LINES: Measure = Measure {
    name: "pty-lines",
    server: |server, scale| throughput(server, &Producer::terminal_lines(scale)),
    bare: Some(|scale| bare_throughput(&Producer::terminal_lines(scale))),
    rows: &[
        Row::against_bare("PTY output, lines of text", Unit::MibPerSecond, "rate", Goal::RatioAtLeast(0.8))
            .durable(DURABLE_OUTPUT),
        Row::alone("server CPU per GiB of it", Unit::Seconds, "cpu", Goal::None),
    ],
};

/// A program that writes a known number of bytes.
pub(super) struct Producer {
    pub(super) argv: Vec<String>,
    stdio: Stdio,
    bytes: u64,
}

impl Producer {
    pub(super) fn zero(scale: &Scale) -> Self {
        let bytes = scale.pipe_bytes;
        let argv = ["head", "-c", &bytes.to_string(), "/dev/zero"].map(str::to_owned).into();
        Self { argv, stdio: Stdio::Pipe, bytes }
    }

    fn seq(scale: &Scale) -> Self {
        let last = scale.seq_last;
        let argv = ["seq", "1", &last.to_string()].map(str::to_owned).into();
        Self { argv, stdio: Stdio::Pipe, bytes: len_of_lines(last) }
    }

    fn pty(scale: &Scale) -> Self {
        let bytes = scale.pty_bytes;
        let script = format!("stty raw -echo; exec head -c {bytes} /dev/zero");
        Self { argv: vec!["sh".to_owned(), "-c".to_owned(), script], stdio: Stdio::Pty, bytes }
    }

    /// Lines of 41 bytes, each in a write of its own.
    fn flushed_lines(scale: &Scale) -> Self {
        let lines = scale.lines.to_string();
        let argv = ["stdbuf", "-oL", "seq", "-f", "%040.0f", "1", &lines].map(str::to_owned).into();
        Self { argv, stdio: Stdio::Pipe, bytes: scale.lines * 41 }
    }

    /// The same on a terminal, which adds a carriage return to each.
    fn terminal_lines(scale: &Scale) -> Self {
        let lines = scale.lines.to_string();
        let argv = ["seq", "-f", "%040.0f", "1", &lines].map(str::to_owned).into();
        Self { argv, stdio: Stdio::Pty, bytes: scale.lines * 42 }
    }

    fn argv(&self) -> Vec<&str> {
        self.argv.iter().map(String::as_str).collect()
    }
}

pub(super) fn throughput(server: &Server, producer: &Producer) -> Result<Figures> {
    let mut client = server.connect()?;
    run(&mut client, &["/bin/true"], producer.stdio)?;
    let cpu_before = proc::cpu_time(&server.pids())?;
    let rate = timed(producer, || run(&mut client, &producer.argv(), producer.stdio))?;
    let cpu = proc::cpu_time(&server.pids())? - cpu_before;
    Ok(vec![rate, ("cpu", cpu.as_secs_f64() * GIB / producer.bytes as f64)])
}

pub(super) fn bare_throughput(producer: &Producer) -> Result<Figures> {
    Ok(vec![timed(producer, || bare::run(&producer.argv(), producer.stdio))?])
}

fn timed(producer: &Producer, produce: impl FnOnce() -> Result<u64>) -> Result<(&'static str, f64)> {
    let begin = Instant::now();
    let bytes = produce()?;
    rate(producer, bytes, begin.elapsed())
}

/// Returns how fast everything came; fails when something did not.
pub(super) fn rate(producer: &Producer, bytes: u64, elapsed: Duration) -> Result<(&'static str, f64)> {
    ensure!(bytes == producer.bytes, "{bytes} bytes came, `{}` writes {}", producer.argv[0], producer.bytes);
    Ok(("rate", bytes as f64 / MIB / elapsed.as_secs_f64()))
}

/// The bytes of the numbers from 1 to `last`, one a line.
fn len_of_lines(last: u64) -> u64 {
    // Each power of ten up to `last` adds a digit to every number from there on.
    (0..=last.ilog10()).map(|power| last + 1 - 10_u64.pow(power)).sum::<u64>() + last
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_length_of_numbered_lines_is_what_seq_writes() {
        let written: usize = (1..=2345).map(|number| format!("{number}\n").len()).sum();
        assert_eq!(super::len_of_lines(2345), written as u64);
    }
}
