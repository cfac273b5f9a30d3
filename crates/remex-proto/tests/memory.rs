//! Compares the memory that an output log accounts for with the figures of the kernel.
//!
//! In its own test program, so that nothing else allocates meanwhile.

use std::{convert::Infallible, fs};

use remex_proto::state::output_log::{Hold, Limits, OutputLog, Stream};

/// How far the account may be from the truth, in per cent.
const TOLERANCE: u64 = 30;

/// Enough to drown what the test itself needs.
const ENOUGH: u64 = 48 << 20;

#[test]
fn a_log_accounts_for_what_it_has_allocated() {
    type Shape = (&'static str, fn(&mut OutputLog));
    let shapes: [Shape; 4] = [
        ("tiny events, each taken by a reader", |log| events(log, 50_000, b"x", Hold::Nothing)),
        ("events of a line", |log| events(log, 12_000, &[b'x'; 80], Hold::Nothing)),
        ("chunks, most of them evicted", |log| events(log, 100, &[b'x'; 32 << 10], Hold::Nothing)),
        ("tiny events that were evicted", |log| {
            events(log, 3_000, b"x", Hold::Nothing);
            log.evict(Hold::Nothing, 16 << 10);
        }),
    ];
    // All of them stay, because freed memory that is used again would not be seen.
    let mut stay = Vec::new();
    for (shape, fill) in shapes {
        let before = resident();
        let (mut logs, mut account) = (Vec::new(), 0);
        while account < ENOUGH {
            let mut log = OutputLog::new(Limits::default());
            fill(&mut log);
            account += log.memory() as u64;
            logs.push(log);
            assert!(logs.len() < 10_000, "{shape}: an account of {account} bytes for {} logs", logs.len());
        }
        let real = resident() - before;
        assert!(
            real.abs_diff(account) * 100 <= account * TOLERANCE,
            "{shape}: {account} bytes are accounted for and {real} are allocated by {} logs",
            logs.len()
        );
        stay.extend(logs);
    }
}

fn events(log: &mut OutputLog, count: usize, bytes: &[u8], hold: Hold) {
    for _ in 0..count {
        let mut rest = bytes;
        while !rest.is_empty() {
            let room = log.room(hold, usize::MAX);
            let taken = log.append::<Infallible>(Stream::Stdout, 0, room, |spare| {
                let len = spare.len().min(rest.len());
                spare[..len].copy_from_slice(&rest[..len]);
                Ok(len)
            });
            rest = &rest[taken.unwrap_or_else(|never| match never {})..];
            log.newest();
            log.evict(hold, usize::MAX);
        }
    }
}

fn resident() -> u64 {
    let status = fs::read_to_string("/proc/self/status").expect("Linux tells about processes");
    let line = status.lines().find(|line| line.starts_with("RssAnon:")).expect("Linux tells the memory");
    let kib: u64 = line.split_whitespace().nth(1).and_then(|kib| kib.parse().ok()).expect("a number");
    kib * 1024
}
