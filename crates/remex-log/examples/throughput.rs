//! Measures a log: writes 2 GiB in records of 64 KiB, reads them at the same time, and prints rates and memory.
//!
//! `cargo run --release --example throughput [DIRECTORY]`; the directory should be on a disk with 100 MiB of space.

#![allow(clippy::print_stdout, reason = "it is what this program is for")]

use std::{
    error::Error,
    fs,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::Instant,
};

use remex_log::{Cursor, Hold, Item, MAX_CHUNK, Options, Point, Reader, Room, Stream, Unlimited, Writer};

const TOTAL: u64 = 2 << 30;

fn main() -> Result<(), Box<dyn Error>> {
    let dir = match std::env::args_os().nth(1) {
        Some(parent) => tempfile::tempdir_in(parent)?,
        None => tempfile::tempdir()?,
    };
    measure("write only, 64 KiB records", dir.path(), MAX_CHUNK, TOTAL, Readers::None)?;
    measure("write and read, 64 KiB records, reader may lose", dir.path(), MAX_CHUNK, TOTAL, Readers::Lossy)?;
    measure(
        "write and read, 64 KiB records, reader is waited for",
        dir.path(),
        MAX_CHUNK,
        TOTAL,
        Readers::Held,
    )?;
    measure(
        "write and read, 100-byte records, reader is waited for",
        dir.path(),
        100,
        TOTAL / 32,
        Readers::Held,
    )?;
    Ok(())
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Readers {
    None,
    Lossy,
    Held,
}

fn measure(
    what: &str,
    parent: &Path,
    chunk: usize,
    total: u64,
    readers: Readers,
) -> Result<(), Box<dyn Error>> {
    let dir = tempfile::tempdir_in(parent)?;
    let options = Options { retain_bytes: 64 << 20, segment_bytes: None };
    let mut writer = Writer::create(dir.path(), options, Arc::new(Unlimited))?;
    let (announced, seen_seq, seen_offset) = (AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0));
    let start = Instant::now();
    let read = thread::scope(|scope| {
        let reader = (readers != Readers::None)
            .then(|| scope.spawn(|| read(dir.path(), total, &announced, &seen_seq, &seen_offset)));
        while writer.position().offset < total {
            let hold = match readers {
                Readers::Held => {
                    let offset = seen_offset.load(Ordering::Acquire);
                    Hold::After(Point { seq: seen_seq.load(Ordering::Acquire), offset })
                }
                _ => Hold::Nothing,
            };
            let Room::Bytes(room) = writer.room(hold) else {
                thread::yield_now();
                continue;
            };
            let fill = |buffer: &mut [u8]| {
                buffer.fill(0x61);
                Ok::<_, ()>(buffer.len())
            };
            if let Ok(Some(appended)) = writer.append(Stream::Stdout, 0, chunk.min(room), fill) {
                announced.store(appended.seq, Ordering::Release);
            }
        }
        let written = start.elapsed();
        let rate = total as f64 / 1e6 / written.as_secs_f64();
        println!(
            "{what}: wrote {rate:.0} MB/s, {:.0} records/s",
            (total / chunk as u64) as f64 / written.as_secs_f64()
        );
        reader.map(|reader| reader.join().map_err(|_| "the reader panicked"))
    });
    if let Some(read) = read {
        let Read { bytes, missed } = read?;
        let rate = bytes as f64 / 1e6 / start.elapsed().as_secs_f64();
        println!("  read {rate:.0} MB/s, missed {} MB", missed / 1_000_000);
    }
    println!("  memory {}", memory()?);
    Ok(())
}

struct Read {
    bytes: u64,
    missed: u64,
}

fn read(
    dir: &Path,
    total: u64,
    announced: &AtomicU64,
    seen_seq: &AtomicU64,
    seen_offset: &AtomicU64,
) -> Read {
    let mut reader = Reader::open(dir).expect("the log exists");
    let mut cursor = Cursor::START;
    let mut result = Read { bytes: 0, missed: 0 };
    while cursor.offset.is_none_or(|offset| offset < total) {
        let up_to = announced.load(Ordering::Acquire);
        match reader.next(&mut cursor, up_to).expect("the log can be read") {
            Some(Item::Output { bytes, .. }) => result.bytes += bytes.len() as u64,
            Some(Item::Gap(gap)) => result.missed += gap.bytes.unwrap_or_default(),
            Some(_) => {}
            None => thread::yield_now(),
        }
        seen_offset.store(cursor.offset.unwrap_or_default(), Ordering::Release);
        seen_seq.store(cursor.seq, Ordering::Release);
    }
    result
}

/// Returns what the kernel says about the memory of this process.
fn memory() -> Result<String, Box<dyn Error>> {
    let status = fs::read_to_string("/proc/self/status")?;
    let lines = status.lines().filter(|line| line.starts_with("VmRSS") || line.starts_with("VmHWM"));
    Ok(lines.map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect::<Vec<_>>().join(", "))
}
