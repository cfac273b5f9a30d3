//! How fast a large file gets here and there.

use std::{
    fs::{self, File},
    io::{Read as _, Write as _},
    path::Path,
    time::Instant,
};

use anyhow::{Result, ensure};
use tempfile::TempDir;

use super::{Base, Figures, Goal, Measure, Row, Scale, Unit};
use crate::{measure::output::MIB, server::Server, way::Way};

const BLOCK: usize = 1 << 20;

macro_rules! files {
    ($name:literal, $way:expr, $words:literal) => {
        Measure {
            name: $name,
            server: |server, scale| transfer(server, scale, $way),
            bare: Some(bare_copy),
            rows: &[
                Row {
                    what: concat!("client: download of a file, ", $words),
                    unit: Unit::MibPerSecond,
                    figure: "download",
                    base: Base::Bare("copy"),
                    goal: Goal::None,
                    durable: Goal::None,
                },
                Row {
                    what: concat!("client: upload of a file, ", $words),
                    unit: Unit::MibPerSecond,
                    figure: "upload",
                    base: Base::Bare("copy"),
                    goal: Goal::None,
                    durable: Goal::None,
                },
            ],
        }
    };
}

pub(crate) const FILES_IN_PROCESS: Measure = files!("client-file-in-process", Way::InProcess, "in process");
pub(crate) const FILES_UNIX: Measure = files!("client-file-unix", Way::Unix, "over a unix socket");
pub(crate) const FILES_WEBSOCKET: Measure = files!("client-file-ws", Way::WebSocket, "over a WebSocket");

fn transfer(server: &Server, scale: &Scale, way: Way) -> Result<Figures> {
    let directory = with_large_file(scale)?;
    let bytes = scale.pipe_bytes;
    way.measure(server, move |client| async move {
        let place = |name| directory.path().join(name);
        let begin = Instant::now();
        let mut here = tokio::fs::File::create(place("here")).await?;
        client.fs().download(place("large"), &mut here).await?;
        let download = rate(bytes, begin, &place("here"))?;
        let begin = Instant::now();
        let here = tokio::fs::File::open(place("here")).await?;
        client.fs().upload(here, place("there")).await?;
        let upload = rate(bytes, begin, &place("there"))?;
        Ok(vec![("download", download), ("upload", upload)])
    })
}

/// Through a buffer, because the kernel's own copy would not move the bytes at all on some file systems.
fn bare_copy(scale: &Scale) -> Result<Figures> {
    let directory = with_large_file(scale)?;
    let begin = Instant::now();
    let mut from = File::open(directory.path().join("large"))?;
    let mut to = File::create(directory.path().join("copy"))?;
    let mut buffer = vec![0; BLOCK];
    loop {
        match from.read(&mut buffer)? {
            0 => break,
            len => to.write_all(&buffer[..len])?,
        }
    }
    Ok(vec![("copy", rate(scale.pipe_bytes, begin, &directory.path().join("copy"))?)])
}

/// Makes a directory with a file in it that is in the page cache.
fn with_large_file(scale: &Scale) -> Result<TempDir> {
    let directory = tempfile::tempdir()?;
    let mut file = File::create(directory.path().join("large"))?;
    let block = vec![b'x'; BLOCK];
    for _ in 0..scale.pipe_bytes / BLOCK as u64 {
        file.write_all(&block)?;
    }
    Ok(directory)
}

/// Returns how fast the file came into being; fails when something of it is missing.
fn rate(bytes: u64, begin: Instant, path: &Path) -> Result<f64> {
    let elapsed = begin.elapsed();
    let written = fs::metadata(path)?.len();
    ensure!(written == bytes, "{written} bytes were written instead of {bytes}");
    Ok(bytes as f64 / MIB / elapsed.as_secs_f64())
}
