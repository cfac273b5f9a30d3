use proptest::{collection, prelude::*};

use super::*;

const SMALL: Limits =
    Limits { retain_bytes: 400, retain_events: 30, chunk_bytes: 64, chunk_ms: 100, head_bytes: 50 };

fn append(log: &mut OutputLog, stream: Stream, bytes: &[u8]) -> usize {
    append_at(log, 0, stream, bytes)
}

fn append_at(log: &mut OutputLog, now_ms: u64, stream: Stream, bytes: &[u8]) -> usize {
    log.append::<()>(stream, now_ms, bytes.len(), |spare| {
        let len = spare.len().min(bytes.len());
        spare[..len].copy_from_slice(&bytes[..len]);
        Ok(len)
    })
    .unwrap()
}

fn append_all(log: &mut OutputLog, hold: Hold, stream: Stream, mut bytes: &[u8]) {
    while !bytes.is_empty() {
        let room = log.room(hold, usize::MAX).min(bytes.len());
        assert!(room > 0, "the log is full");
        bytes = &bytes[append(log, stream, &bytes[..room])..];
        log.evict(hold, usize::MAX);
    }
}

#[test]
fn bytes_join_the_last_chunk_until_a_reader_takes_it() {
    let mut log = OutputLog::new(Limits::default());
    append(&mut log, Stream::Stdout, b"one ");
    append(&mut log, Stream::Stdout, b"two");
    let mut cursor = Cursor::START;
    let first = Next::Output { seq: 1, stream: Stream::Stdout, at_ms: 0, bytes: b"one two" };
    assert_eq!(log.next(&mut cursor), Some(first));
    append(&mut log, Stream::Stdout, b"three");
    let second = Next::Output { seq: 2, stream: Stream::Stdout, at_ms: 0, bytes: b"three" };
    assert_eq!(log.next(&mut cursor), Some(second));
    assert_eq!(log.next(&mut cursor), None);
}

#[test]
fn a_chunk_has_bytes_of_one_moment_only() {
    let mut log = OutputLog::new(Limits::default());
    // The host's clock goes back at the end.
    for (now_ms, bytes) in [(1000, b"a"), (1040, b"b"), (1099, b"c"), (1100, b"d"), (2000, b"e"), (500, b"f")]
    {
        append_at(&mut log, now_ms, Stream::Stdout, bytes);
    }
    let mut cursor = Cursor::START;
    for (seq, at_ms, bytes) in [(1, 1000, &b"abc"[..]), (2, 1100, b"d"), (3, 2000, b"e"), (4, 500, b"f")] {
        let chunk = Next::Output { seq, stream: Stream::Stdout, at_ms, bytes };
        assert_eq!(log.next(&mut cursor), Some(chunk));
    }
    assert_eq!(log.next(&mut cursor), None);
}

#[test]
fn a_log_at_its_limit_of_events_merges_chunks() {
    let mut log = OutputLog::new(SMALL);
    let say = |log: &mut OutputLog, hold: Hold, second: u64| {
        assert!(log.room(hold, usize::MAX) > 0, "a process with little to say does not wait");
        append_at(log, second * 1000, Stream::Stdout, b".");
        log.evict(hold, usize::MAX);
    };
    for second in 0..60 {
        say(&mut log, Hold::After(0), second);
    }
    assert_eq!((log.entries.len(), log.evicted_bytes(), log.total()), (30, 0, 60));
    // Evictable events make room for new chunks with their own timestamps.
    for second in 60..70 {
        say(&mut log, Hold::Nothing, second);
    }
    assert_eq!((log.entries.len(), log.entries.back().map(|last| last.at_ms)), (30, Some(69_000)));
}

#[test]
fn exactly_the_cap_is_kept_and_one_byte_more_evicts_the_oldest_chunk() {
    let mut log = OutputLog::new(Limits::default());
    append_all(&mut log, Hold::Nothing, Stream::Stdout, &vec![7; 1 << 20]);
    assert_eq!((log.evicted_bytes(), log.held_bytes()), (0, 1 << 20));
    append_all(&mut log, Hold::Nothing, Stream::Stdout, b"!");
    assert!(log.evicted_bytes() > 0 && log.held_bytes() <= 1 << 20);
}

#[test]
fn a_full_log_has_no_room_until_the_reader_acknowledges() {
    let mut log = OutputLog::new(SMALL);
    append_all(&mut log, Hold::After(0), Stream::Pty, &[1; 400]);
    assert_eq!(log.room(Hold::After(0), usize::MAX), 0);
    assert!(log.room(Hold::After(3), usize::MAX) > 0);
    assert_eq!(log.evicted_bytes(), 0);
}

#[test]
fn a_snapshot_keeps_head_and_tail_and_counts_the_middle() {
    let mut log = OutputLog::new(SMALL);
    let bytes: Vec<u8> = (0..2000u32).map(|n| (n % 251) as u8).collect();
    append_all(&mut log, Hold::Nothing, Stream::Stdout, &bytes);
    let all = log.snapshot(usize::MAX).unwrap();
    assert_eq!(all.stdout[..50], bytes[..50]);
    assert_eq!(all.stdout[50..], bytes[2000 - (all.stdout.len() - 50)..]);
    assert_eq!(all.omitted + all.stdout.len() as u64, 2000);
    let cut = log.snapshot(21).unwrap();
    assert_eq!(cut.stdout, [&bytes[..10], &bytes[1989..]].concat());
    assert_eq!(cut.omitted, 2000 - 21);
}

#[test]
fn a_line_on_one_stream_survives_a_flood_on_the_other() {
    let mut log = OutputLog::new(SMALL);
    append_all(&mut log, Hold::Nothing, Stream::Stderr, b"first line\n");
    append_all(&mut log, Hold::Nothing, Stream::Stdout, &[b'.'; 5_000]);
    assert_eq!(log.snapshot(usize::MAX).unwrap().stderr, b"first line\n");
    append_all(&mut log, Hold::Nothing, Stream::Stderr, &[b'!'; 5_000]);
    append_all(&mut log, Hold::Nothing, Stream::Stderr, b"last line\n");
    append_all(&mut log, Hold::Nothing, Stream::Stdout, &[b'.'; 5_000]);
    let stderr = log.snapshot(usize::MAX).unwrap().stderr;
    assert!(stderr.starts_with(b"first line\n!!!!!") && stderr.ends_with(b"!last line\n"), "{stderr:?}");
    let cut = log.snapshot(40).unwrap();
    assert_eq!((cut.stdout.len(), cut.stderr.len()), (20, 20));
    assert!(cut.stderr.starts_with(b"first") && cut.stderr.ends_with(b"line\n"));
}

#[test]
fn a_head_gives_up_more_than_half_only_for_another() {
    let mut log = OutputLog::new(SMALL);
    append_all(&mut log, Hold::Nothing, Stream::Stdout, &[b'.'; 1_000]);
    assert_eq!(log.head_tail.ends(Stream::Stdout)[0].len(), 50);
    append_all(&mut log, Hold::Nothing, Stream::Stderr, &[b'!'; 10]);
    append_all(&mut log, Hold::Nothing, Stream::Stdout, &[b'.'; 1_000]);
    assert_eq!(log.head_tail.ends(Stream::Stdout)[0].len(), 40);
    append_all(&mut log, Hold::Nothing, Stream::Stderr, &[b'!'; 1_000]);
    append_all(&mut log, Hold::Nothing, Stream::Stdout, &[b'.'; 1_000]);
    assert_eq!([Stream::Stdout, Stream::Stderr].map(|stream| log.head_tail.ends(stream)[0].len()), [25, 25]);
}

#[test]
fn an_index_of_tiny_events_counts_and_shrinks_with_them() {
    let tiny = |log: &mut OutputLog, budget: usize| {
        let room = log.room(Hold::Nothing, budget);
        assert!(room > 0, "nothing is held, so there is always room");
        append(log, Stream::Stdout, b"x");
        log.newest();
        log.evict(Hold::Nothing, budget);
    };
    let mut log = OutputLog::new(Limits::default());
    (0..60_000).for_each(|_| tiny(&mut log, usize::MAX));
    assert_eq!(log.entries.len(), 50_000);
    assert!(log.memory() > 50_000 * EVENT_BYTES);
    (0..1_000).for_each(|_| tiny(&mut log, 64 << 10));
    assert!(log.footprint() <= 64 << 10);
    assert!(log.memory() < 256 << 10, "{} bytes", log.memory());
    log.give_up(Hold::Nothing);
    assert_eq!((log.held_bytes(), log.footprint()), (0, 0));
    assert!(log.memory() < 40 << 10, "{} bytes", log.memory());
}

#[test]
fn a_late_reader_gets_the_exact_gap() {
    let mut log = OutputLog::new(SMALL);
    append_all(&mut log, Hold::Nothing, Stream::Stdout, &[b'a'; 64]);
    let mut seen = Cursor::START;
    assert!(log.next(&mut seen).is_some());
    append_all(&mut log, Hold::Nothing, Stream::Stdout, &[b'b'; 1000]);
    let mut late = log.cursor_after(1);
    let gap = log.gap(&late).expect("output was evicted");
    assert_eq!(log.gap(&seen), Some(gap));
    assert_eq!(gap.bytes, Some(log.evicted_bytes() - 64));
    assert_eq!(log.next(&mut late), Some(Next::Gap(gap)));
    assert!(matches!(log.next(&mut late), Some(Next::Output { seq, .. }) if seq == gap.to_seq + 1));
}

#[derive(Clone, Debug)]
enum Step {
    Append(Stream, u8, usize),
    Read { reader: usize, events: usize },
    Acknowledge,
    Attach,
    Detach,
    Exit,
}

fn step() -> impl Strategy<Value = Step> {
    let stream = prop_oneof![Just(Stream::Stdout), Just(Stream::Stderr)];
    prop_oneof![
        5 => (stream, any::<u8>(), 1..200usize).prop_map(|(s, b, n)| Step::Append(s, b, n)),
        4 => (0..3usize, 1..6usize).prop_map(|(reader, events)| Step::Read { reader, events }),
        2 => Just(Step::Acknowledge),
        1 => Just(Step::Attach),
        1 => Just(Step::Detach),
        1 => Just(Step::Exit),
    ]
}

/// What one reader has assembled.
#[derive(Default)]
struct Seen {
    cursor: Option<Cursor>,
    next: Seq,
    bytes: u64,
    lost: u64,
    ended: bool,
}

fn read(log: &mut OutputLog, seen: &mut Seen, truth: &[(Stream, u8)], events: usize) {
    let mut cursor = seen.cursor.unwrap_or(Cursor::START);
    for _ in 0..events {
        let Some(next) = log.next(&mut cursor) else { break };
        assert!(!seen.ended, "nothing follows the close");
        let seq = match next {
            Next::Gap(gap) => {
                assert_eq!(gap.from_seq, seen.next + 1);
                seen.lost += gap.bytes.expect("a cursor that reads on knows its offset");
                seen.next = gap.to_seq;
                continue;
            }
            Next::Output { seq, stream, bytes, .. } => {
                let from = (seen.bytes + seen.lost) as usize;
                let expected = &truth[from..from + bytes.len()];
                assert!(expected.iter().zip(bytes).all(|(truth, byte)| *truth == (stream, *byte)));
                seen.bytes += bytes.len() as u64;
                seq
            }
            Next::Exited(seq) => seq,
            Next::Closed(seq) => {
                seen.ended = true;
                seq
            }
        };
        assert_eq!(seq, seen.next + 1, "every event once and in order");
        seen.next = seq;
    }
    seen.cursor = Some(cursor);
}

proptest! {
    #[test]
    fn every_reader_sees_each_event_once_in_order_or_the_exact_gap(steps in collection::vec(step(), 1..200)) {
        let mut log = OutputLog::new(SMALL);
        let mut truth: Vec<(Stream, u8)> = Vec::new();
        let mut readers: [Seen; 3] = Default::default();
        let mut hold = Hold::Nothing;
        for step in steps {
            match step {
                Step::Append(stream, byte, len) => {
                    let room = log.room(hold, usize::MAX).min(len);
                    let bytes: Vec<u8> = (0..room).map(|n| byte.wrapping_add(n as u8)).collect();
                    let taken = if room == 0 { 0 } else { append(&mut log, stream, &bytes) };
                    log.evict(hold, usize::MAX);
                    truth.extend(bytes[..taken].iter().map(|&b| (stream, b)));
                }
                Step::Read { reader, events } => read(&mut log, &mut readers[reader], &truth, events),
                Step::Acknowledge => {
                    if let Hold::After(_) = hold {
                        hold = Hold::After(readers[0].next);
                    }
                }
                Step::Attach => hold = Hold::After(readers[0].next),
                Step::Detach => hold = Hold::Nothing,
                Step::Exit if log.exited().is_none() => {
                    log.push_exited(0);
                }
                Step::Exit => {}
            }
            prop_assert!(log.held_bytes() <= SMALL.retain_bytes);
            prop_assert_eq!(log.total(), truth.len() as u64);
        }
        log.push_closed(0);
        for reader in &mut readers {
            read(&mut log, reader, &truth, usize::MAX);
            prop_assert!(reader.ended);
            prop_assert_eq!(reader.bytes + reader.lost, truth.len() as u64);
        }
    }

    #[test]
    fn a_snapshot_has_beginning_and_end_of_each_stream(pieces in collection::vec((any::<bool>(), 1..120usize), 1..100)) {
        let mut log = OutputLog::new(SMALL);
        let mut truth = [Vec::new(), Vec::new()];
        for (n, (is_error, len)) in pieces.into_iter().enumerate() {
            let stream = if is_error { Stream::Stderr } else { Stream::Stdout };
            let bytes = vec![n as u8; len];
            append_all(&mut log, Hold::Nothing, stream, &bytes);
            truth[usize::from(is_error)].extend(bytes);
            prop_assert!(log.held_bytes() <= SMALL.retain_bytes);
            prop_assert!(log.head_tail.len() <= SMALL.head_bytes * 3 / 2);
        }
        let snapshot = log.snapshot(usize::MAX).unwrap();
        prop_assert_eq!(
            snapshot.omitted,
            (truth[0].len() + truth[1].len() - snapshot.stdout.len() - snapshot.stderr.len()) as u64
        );
        for (truth, shown) in truth.iter().zip([&snapshot.stdout, &snapshot.stderr]) {
            let (head, tail) = (truth.len().min(SMALL.head_bytes / 2), truth.len().min(SMALL.head_bytes / 4));
            prop_assert!(shown.len() <= truth.len());
            prop_assert!(shown.len() >= head.max(tail));
            prop_assert_eq!(&shown[..head], &truth[..head]);
            prop_assert_eq!(&shown[shown.len() - tail..], &truth[truth.len() - tail..]);
            if truth.len() <= SMALL.head_bytes / 2 {
                prop_assert_eq!(shown, truth);
            }
        }
    }

    #[test]
    fn a_controller_that_acknowledges_never_meets_a_gap(pieces in collection::vec((1..300usize, 0..4usize), 1..100)) {
        let mut log = OutputLog::new(SMALL);
        let mut truth = Vec::new();
        let mut seen = Seen::default();
        for (len, events) in pieces {
            let hold = Hold::After(seen.next);
            let room = log.room(hold, usize::MAX).min(len);
            if room > 0 {
                let taken = append(&mut log, Stream::Pty, &vec![len as u8; room]);
                truth.extend(std::iter::repeat_n((Stream::Pty, len as u8), taken));
                log.evict(hold, usize::MAX);
            }
            read(&mut log, &mut seen, &truth, events);
        }
        prop_assert_eq!(seen.lost, 0);
    }
}

#[test]
fn the_newest_chunk_survives_a_budget_that_is_smaller_than_it() {
    let mut log = OutputLog::new(SMALL);
    append_all(&mut log, Hold::Nothing, Stream::Stdout, &[b'x'; 300]);
    // Heads and tails count, and leave less than one chunk.
    append(&mut log, Stream::Stdout, b"the end");
    log.evict(Hold::Nothing, SMALL.chunk_bytes);
    let mut cursor = Cursor::START;
    let mut readable = Vec::new();
    while let Some(next) = log.next(&mut cursor) {
        if let Next::Output { bytes, .. } = next {
            readable.extend_from_slice(bytes);
        }
    }
    assert!(readable.ends_with(b"the end"), "{} bytes are readable", readable.len());
    log.give_up(Hold::Nothing);
    assert_eq!(log.held_bytes(), 0);
}
