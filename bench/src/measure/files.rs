//! Questions about files, large files in blocks, and a walk.

use std::{
    fs::{self, File},
    io::{Read as _, Write as _},
    path::Path,
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};
use serde_json::json;
use tempfile::TempDir;

use super::{Figures, Goal, Measure, Row, Scale, Unit, confined};
use crate::{
    client::{Bytes, Client},
    server::Server,
    stats::percentile_us,
};

const WARM_UP: usize = 50;
const BLOCK: usize = 1 << 20;
/// Blocks asked for before the answer to the first.
const IN_FLIGHT: u64 = 8;
const FILES_PER_DIRECTORY: usize = 99;

pub(super) const METADATA: Measure = Measure {
    name: "metadata",
    server: |server, scale| {
        let place = Place::new()?;
        let params = json!({"path": place.uri("small")}).to_string();
        ask(server, scale, "fs/getMetadata", &params)
    },
    bare: Some(|scale| {
        let place = Place::new()?;
        sample(scale, || fs::metadata(place.small()).map(drop).map_err(Into::into))
    }),
    rows: &[
        Row::against_bare("metadata of a file, p50", Unit::Microseconds, "p50", Goal::None),
        Row::against_bare("metadata of a file, p99", Unit::Microseconds, "p99", Goal::None),
    ],
};

pub(super) const SMALL: Measure = Measure {
    name: "read-small",
    server: |server, scale| {
        let place = Place::new()?;
        let params = json!({"path": place.uri("small")}).to_string();
        ask(server, scale, "fs/readFile", &params)
    },
    bare: Some(|scale| {
        let place = Place::new()?;
        sample(scale, || fs::read(place.small()).map(drop).map_err(Into::into))
    }),
    rows: &[
        Row::against_bare("read of 1 KiB, p50", Unit::Microseconds, "p50", Goal::None),
        Row::against_bare("read of 1 KiB, p99", Unit::Microseconds, "p99", Goal::None),
    ],
};

pub(super) const METADATA_CONFINED: Measure = Measure {
    name: "metadata-confined",
    server: |server, scale| ask_confined(server, scale, "fs/getMetadata"),
    bare: None,
    rows: &[
        Row::alone("metadata of a file with a sandbox profile, p50", Unit::Microseconds, "p50", Goal::None),
        Row::alone("the same, over that without a profile", Unit::Count, "ratio", Goal::None),
    ],
};

pub(super) const SMALL_CONFINED: Measure = Measure {
    name: "read-small-confined",
    server: |server, scale| ask_confined(server, scale, "fs/readFile"),
    bare: None,
    rows: &[
        Row::alone("read of 1 KiB with a sandbox profile, p50", Unit::Microseconds, "p50", Goal::None),
        Row::alone("the same, over that without a profile", Unit::Count, "ratio", Goal::None),
    ],
};

pub(super) const READ: Measure = Measure {
    name: "file-read",
    server: read,
    bare: Some(bare_read),
    rows: &[Row::against_bare("64 MiB read in blocks", Unit::MibPerSecond, "rate", Goal::None)],
};

pub(super) const WRITE: Measure = Measure {
    name: "file-write",
    server: write,
    bare: Some(bare_write),
    rows: &[Row::against_bare("64 MiB written in blocks", Unit::MibPerSecond, "rate", Goal::None)],
};

pub(super) const READ_WHOLE: Measure = Measure {
    name: "file-read-whole",
    server: read_whole,
    bare: Some(bare_read),
    rows: &[Row::against_bare("64 MiB in one `fs/readFile`", Unit::MibPerSecond, "rate", Goal::None)],
};

pub(super) const WRITE_WHOLE: Measure = Measure {
    name: "file-write-whole",
    server: write_whole,
    bare: None,
    rows: &[Row::alone("16 MiB in one `fs/writeFile`", Unit::MibPerSecond, "rate", Goal::None)],
};

pub(super) const WALK: Measure = Measure {
    name: "walk",
    server: walk,
    bare: Some(bare_walk),
    rows: &[Row::against_bare("walk of 20,000 entries", Unit::Milliseconds, "time", Goal::None)],
};

/// A directory with a small file in it.
struct Place(TempDir);

impl Place {
    fn new() -> Result<Self> {
        let place = Self(tempfile::tempdir()?);
        fs::write(place.small(), [b'x'; 1024])?;
        Ok(place)
    }

    fn small(&self) -> std::path::PathBuf {
        self.0.path().join("small")
    }

    fn uri(&self, name: &str) -> String {
        format!("file://{}/{name}", self.0.path().display())
    }

    fn make_large(&self, scale: &Scale) -> Result<std::path::PathBuf> {
        let path = self.0.path().join("large");
        let mut file = File::create(&path)?;
        let block = vec![b'x'; BLOCK];
        for _ in 0..scale.file_bytes / BLOCK as u64 {
            file.write_all(&block)?;
        }
        Ok(path)
    }

    fn make_tree(&self, scale: &Scale) -> Result<std::path::PathBuf> {
        let root = self.0.path().join("tree");
        for number in 0..scale.walked / (FILES_PER_DIRECTORY + 1) {
            let directory = root.join(format!("directory-{number:04}"));
            fs::create_dir_all(&directory)?;
            for number in 0..FILES_PER_DIRECTORY {
                File::create(directory.join(format!("file-{number:04}")))?;
            }
        }
        Ok(root)
    }
}

fn ask(server: &Server, scale: &Scale, method: &str, params: &str) -> Result<Figures> {
    let mut client = server.connect()?;
    sample(scale, || {
        client.ask(method, params)?;
        client.next_reply().map(drop)
    })
}

/// Asks about a file with and without the profile that Codex sends by default and a pattern, in turns.
fn ask_confined(server: &Server, scale: &Scale, method: &str) -> Result<Figures> {
    let place = Place::new()?;
    let sandbox = confined::profile(&place.uri(""), &["**/*.env"]);
    let open = json!({"path": place.uri("small")}).to_string();
    let confined = json!({"path": place.uri("small"), "sandbox": sandbox}).to_string();
    let mut client = server.connect()?;
    let mut once = |params: &str| {
        let begin = Instant::now();
        client.ask(method, params)?;
        client.next_reply()?;
        Ok::<_, anyhow::Error>(begin.elapsed())
    };
    for _ in 0..WARM_UP {
        once(&open)?;
        once(&confined)?;
    }
    let (mut without, mut with) = (Vec::new(), Vec::new());
    for _ in 0..scale.questions {
        without.push(once(&open)?);
        with.push(once(&confined)?);
    }
    let p50 = percentile_us(&mut with, 50);
    Ok(vec![("p50", p50), ("ratio", p50 / percentile_us(&mut without, 50))])
}

fn sample(scale: &Scale, mut once: impl FnMut() -> Result<()>) -> Result<Figures> {
    for _ in 0..WARM_UP {
        once()?;
    }
    let mut durations = Vec::with_capacity(scale.questions);
    for _ in 0..scale.questions {
        let begin = Instant::now();
        once()?;
        durations.push(begin.elapsed());
    }
    Ok(vec![("p50", percentile_us(&mut durations, 50)), ("p99", percentile_us(&mut durations, 99))])
}

fn read(server: &Server, scale: &Scale) -> Result<Figures> {
    let place = Place::new()?;
    place.make_large(scale)?;
    let mut client = server.connect()?;
    let begin = Instant::now();
    client.ask("fs/open", &json!({"handleId": "h", "path": place.uri("large")}).to_string())?;
    client.next_reply()?;
    let encoded = client.encoded_len(BLOCK);
    in_turn(
        &mut client,
        scale,
        |client, offset| {
            client
                .ask("fs/readBlock", &format!(r#"{{"handleId":"h","offset":{offset},"len":{BLOCK}}}"#))
                .map(drop)
        },
        |len| ensure_len(len, encoded),
    )?;
    client.ask("fs/close", r#"{"handleId":"h"}"#)?;
    client.next_reply()?;
    Ok(rate(scale, begin.elapsed()))
}

fn ensure_len(len: usize, encoded: usize) -> Result<()> {
    ensure!(len > encoded, "an answer of {len} bytes has no block of {BLOCK} bytes in it");
    Ok(())
}

fn write(server: &Server, scale: &Scale) -> Result<Figures> {
    let place = Place::new()?;
    let mut client = server.connect()?;
    let block = Bytes::letters(BLOCK);
    let begin = Instant::now();
    let open = json!({"handleId": "h", "path": place.uri("large"), "mode": "replace"});
    client.ask("fs/open", &open.to_string())?;
    client.next_reply()?;
    in_turn(
        &mut client,
        scale,
        |client, offset| {
            let params = |chunk: &str| format!(r#"{{"handleId":"h","offset":{offset},"chunk":{chunk}}}"#);
            client.ask_with("fs/writeBlock", params, &block).map(drop)
        },
        |_| Ok(()),
    )?;
    client.ask("fs/close", r#"{"handleId":"h"}"#)?;
    client.next_reply()?;
    let elapsed = begin.elapsed();
    let written = fs::metadata(place.0.path().join("large"))?.len();
    ensure!(written == scale.file_bytes, "{written} bytes were written instead of {}", scale.file_bytes);
    Ok(rate(scale, elapsed))
}

fn read_whole(server: &Server, scale: &Scale) -> Result<Figures> {
    let place = Place::new()?;
    place.make_large(scale)?;
    let mut client = server.connect()?;
    let params = json!({"path": place.uri("large")}).to_string();
    let encoded = client.encoded_len(scale.file_bytes as usize);
    let best = best_of(|| {
        client.ask("fs/readFile", &params)?;
        let len = client.next_reply()?;
        ensure!(len > encoded, "an answer of {len} bytes has no {} bytes in it", scale.file_bytes);
        Ok(())
    })?;
    Ok(per_second(scale.file_bytes, &best))
}

fn write_whole(server: &Server, _: &Scale) -> Result<Figures> {
    let place = Place::new()?;
    let mut client = server.connect()?;
    // One more than a multiple of three.
    let bytes = Bytes::letters(16 << 20);
    let uri = place.uri("whole");
    let best = best_of(|| {
        client.ask_with(
            "fs/writeFile",
            |data| format!(r#"{{"path":"{uri}","dataBase64":{data}}}"#),
            &bytes,
        )?;
        client.next_reply().map(drop)
    })?;
    Ok(per_second(16 << 20, &best))
}

/// Turns the shortest time into a rate.
fn per_second(bytes: u64, best: &Figures) -> Figures {
    let milliseconds = best[0].1;
    vec![("rate", bytes as f64 / f64::from(1 << 20) / (milliseconds / 1000.0))]
}

/// Asks for every block of a file, some of them at once.
fn in_turn(
    client: &mut Client,
    scale: &Scale,
    mut ask: impl FnMut(&mut Client, u64) -> Result<()>,
    mut check: impl FnMut(usize) -> Result<()>,
) -> Result<()> {
    let blocks = scale.file_bytes / BLOCK as u64;
    for number in 0..blocks + IN_FLIGHT {
        if number >= IN_FLIGHT {
            check(client.next_reply()?)?;
        }
        if number < blocks {
            ask(client, number * BLOCK as u64)?;
        }
    }
    Ok(())
}

fn bare_read(scale: &Scale) -> Result<Figures> {
    let place = Place::new()?;
    let path = place.make_large(scale)?;
    let mut buffer = vec![0; BLOCK];
    let begin = Instant::now();
    let mut file = File::open(path)?;
    while file.read(&mut buffer)? > 0 {}
    Ok(rate(scale, begin.elapsed()))
}

fn bare_write(scale: &Scale) -> Result<Figures> {
    let place = Place::new()?;
    let begin = Instant::now();
    place.make_large(scale)?;
    Ok(rate(scale, begin.elapsed()))
}

fn rate(scale: &Scale, elapsed: Duration) -> Figures {
    let mib = scale.file_bytes as f64 / f64::from(1 << 20);
    vec![("rate", mib / elapsed.as_secs_f64())]
}

fn walk(server: &Server, scale: &Scale) -> Result<Figures> {
    let place = Place::new()?;
    place.make_tree(scale)?;
    let mut client = server.connect()?;
    let options = json!({
        "maxDepth": 8, "maxDirectories": 10_000, "maxEntries": 50_000, "followDirectorySymlinks": false,
    });
    let params = json!({"path": place.uri("tree"), "options": options}).to_string();
    best_of(|| {
        client.ask("fs/walk", &params)?;
        let len = client.next_reply()?;
        ensure!(
            len > scale.walked * 50,
            "an answer of {len} bytes does not tell of {} entries",
            scale.walked
        );
        Ok(())
    })
}

fn bare_walk(scale: &Scale) -> Result<Figures> {
    let place = Place::new()?;
    let root = place.make_tree(scale)?;
    best_of(|| {
        let mut uris = Vec::new();
        list(&root, &mut uris)?;
        ensure!(uris.len() == scale.walked, "{} entries instead of {}", uris.len(), scale.walked);
        Ok(())
    })
}

fn list(directory: &Path, uris: &mut Vec<String>) -> Result<()> {
    let mut entries = fs::read_dir(directory)?.collect::<std::io::Result<Vec<_>>>()?;
    entries.sort_by_key(fs::DirEntry::file_name);
    for entry in entries {
        uris.push(format!("file://{}", entry.path().display()));
        if entry.file_type()?.is_dir() {
            list(&entry.path(), uris)?;
        }
    }
    Ok(())
}

/// Walks a few times, because the first reads from the disk.
fn best_of(mut once: impl FnMut() -> Result<()>) -> Result<Figures> {
    let mut best = Duration::MAX;
    for _ in 0..5 {
        let begin = Instant::now();
        once()?;
        best = best.min(begin.elapsed());
    }
    Ok(vec![("time", best.as_secs_f64() * 1e3)])
}
