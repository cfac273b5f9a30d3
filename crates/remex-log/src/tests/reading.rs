//! Cursors, concurrent readers, and what reading costs.

use std::{sync::atomic::AtomicBool, thread};

use super::*;

/// A log whose clock advances 1 ms with each event.
fn long_log() -> Log {
    let mut log = Log::new(Options { retain_bytes: 1 << 30, segment_bytes: Some(30_000) });
    for round in 0..300_usize {
        log.append(Stream::Stdout, &vec![round as u8; 1 + (round * 7919) % 3000]);
        if round % 50 == 20 {
            log.drop_output(Stream::Stderr, 17);
        }
    }
    log.exited(b"status");
    log.append(Stream::Pty, b"the last word");
    log
}

#[test]
fn a_cursor_after_any_event_yields_the_rest() {
    let log = long_log();
    let mut reader = Reader::open(log.path()).unwrap();
    let mut offset = 0;
    for seq in 0..=log.last() {
        if seq > 0 {
            offset += log.events[seq as usize - 1].extent().2.unwrap();
        }
        let cursor = reader.cursor_after(seq).unwrap();
        assert_eq!((cursor.seq, cursor.offset), (seq, Some(offset)));
        let mut cursor = cursor;
        let next = reader.next(&mut cursor, log.last()).unwrap().map(Event::of);
        assert_eq!(next.as_ref(), log.events.get(seq as usize));
    }
    let beyond = reader.cursor_after(log.last() + 10).unwrap();
    assert_eq!((beyond.seq, beyond.offset), (log.last() + 10, None));
}

#[test]
fn a_cursor_at_an_offset_is_before_the_event_that_ends_after_it() {
    let log = long_log();
    let mut reader = Reader::open(log.path()).unwrap();
    for offset in (0..log.offset).step_by(487) {
        let cursor = reader.cursor_at_offset(offset).unwrap();
        let mut end = 0;
        let expected = log.events.iter().position(|event| {
            end += event.extent().2.unwrap();
            end > offset
        });
        assert_eq!(cursor.seq, expected.unwrap() as Seq, "offset {offset}");
    }
    assert_eq!(reader.cursor_at_offset(log.offset).unwrap(), reader.cursor_after(log.last()).unwrap());
}

#[test]
fn a_cursor_since_a_time_is_before_the_first_event_from_then_on() {
    let log = long_log();
    let mut reader = Reader::open(log.path()).unwrap();
    let at = |event: &Event| match event {
        Event::Output { at_ms, .. } | Event::Exited { at_ms, .. } | Event::Closed { at_ms, .. } => {
            Some(*at_ms)
        }
        Event::Gap(_) => None,
    };
    for at_ms in (990..1000 + log.last()).step_by(3) {
        let found = reader.cursor_since(at_ms).unwrap().seq;
        let expected =
            log.events.iter().position(|event| at(event).is_some_and(|at| at >= at_ms)).unwrap() as Seq;
        assert_eq!(found, expected, "at {at_ms}");
    }
    assert_eq!(reader.cursor_since(u64::MAX).unwrap().seq, log.last());
}

#[test]
fn a_clock_set_back_does_not_break_seeking() {
    let mut log = Log::new(SMALL);
    for at_ms in [500, 900, 100, 50, 700, 0, u64::MAX, 3] {
        for _ in 0..5 {
            assert!(matches!(log.writer().room(Hold::Nothing), Room::Bytes(_)));
            append(log.writer(), Stream::Stdout, at_ms, &[1; 100]).unwrap();
        }
    }
    let mut reader = Reader::open(log.path()).unwrap();
    for at_ms in [0, 1, 60, 600, 800, 1000, u64::MAX] {
        assert!(reader.cursor_since(at_ms).unwrap().seq <= 40);
    }
}

#[test]
fn the_tail_has_about_as_many_bytes_as_requested() {
    let log = long_log();
    let mut reader = Reader::open(log.path()).unwrap();
    for bytes in [0, 1, 13, 14, 1000, 20_000, 100_000, log.offset, u64::MAX] {
        let cursor = reader.tail(bytes).unwrap();
        let behind = log.offset - cursor.offset.unwrap();
        assert!(behind >= bytes.min(log.offset) && behind < bytes.saturating_add(3001), "{bytes}: {behind}");
        let read = read_from(&mut reader, cursor, log.last());
        assert_eq!(read, log.events[cursor.seq as usize..]);
    }
}

#[test]
fn the_tail_of_a_large_segment_is_found_from_its_end() {
    let mut log = Log::new(Options { retain_bytes: 1 << 30, segment_bytes: Some(8 << 20) });
    for round in 0..800_usize {
        log.append(Stream::Stdout, &vec![round as u8; 5000]);
    }
    let mut reader = Reader::open(log.path()).unwrap();
    let cursor = reader.tail(12_000).unwrap();
    assert_eq!((cursor.seq, cursor.offset), (797, Some(797 * 5000)));
    assert_eq!(read_from(&mut reader, cursor, 800), log.events[797..]);
    // Damage in the middle is not even seen.
    let path = &log.segments()[0];
    let mut bytes = fs::read(path).unwrap();
    bytes[1_000_000..2_000_000].fill(0x55);
    fs::write(path, &bytes).unwrap();
    assert_eq!(Reader::open(log.path()).unwrap().tail(12_000).unwrap(), cursor);
}

#[test]
fn nothing_after_the_announced_event_is_returned() {
    let log = long_log();
    let mut reader = Reader::open(log.path()).unwrap();
    let mut cursor = Cursor::START;
    for up_to in 0..=log.last() {
        while let Some(item) = reader.next(&mut cursor, up_to).unwrap() {
            assert_eq!(Event::of(item), log.events[up_to as usize - 1]);
        }
        assert_eq!(cursor.seq, up_to);
    }
}

#[test]
fn a_missing_announced_event_is_a_gap_of_unknown_size() {
    let mut log = Log::new(SMALL);
    log.append(Stream::Stdout, b"one");
    assert_eq!(read_all(log.path(), 5)[1..], [gap(2, 5, None, GapCause::Missing)]);
    let empty = tempfile::tempdir().unwrap();
    assert_eq!(read_all(empty.path(), 3), [gap(1, 3, None, GapCause::Missing)]);
    assert_eq!(read_all(empty.path(), Seq::MAX), [gap(1, Seq::MAX, None, GapCause::Missing)]);
    assert!(Reader::open(empty.path().join("nowhere")).is_err());
}

#[test]
fn a_half_written_record_in_the_buffer_is_read_again() {
    let mut log = Log::new(Options { retain_bytes: 1 << 30, segment_bytes: None });
    log.append(Stream::Stdout, b"one");
    log.append(Stream::Stdout, &[7; 500]);
    let path = log.segments().pop().unwrap();
    let whole = fs::read(&path).unwrap();
    let second = 256 + 48 + 8;
    for len in second..whole.len() {
        let mut half = whole.clone();
        half[len..].fill(0);
        for half in [&half[..], &whole[..len]] {
            fs::write(&path, half).unwrap();
            let mut reader = Reader::open(log.path()).unwrap();
            let mut cursor = Cursor::START;
            assert!(reader.next(&mut cursor, 1).unwrap().is_some());
            fs::write(&path, &whole).unwrap();
            let after = reader.cursor_after(2).unwrap();
            assert_eq!((after.seq, after.offset), (2, Some(503)));
            fs::write(&path, half).unwrap();
            let mut reader = Reader::open(log.path()).unwrap();
            let mut cursor = Cursor::START;
            assert!(reader.next(&mut cursor, 1).unwrap().is_some());
            fs::write(&path, &whole).unwrap();
            assert_eq!(reader.next(&mut cursor, 2).unwrap().map(Event::of).as_ref(), Some(&log.events[1]));
        }
    }
}

/// Returns how often this thread has called `read` or `pread`.
fn read_calls() -> u64 {
    let io = fs::read_to_string("/proc/thread-self/io").unwrap();
    io.lines().find_map(|line| line.strip_prefix("syscr: ")).unwrap().parse().unwrap()
}

/// Returns how often `work` calls `pread`.
fn preads_of(work: impl FnOnce()) -> u64 {
    let counting = {
        let before = read_calls();
        read_calls() - before
    };
    let before = read_calls();
    work();
    read_calls() - before - counting
}

#[test]
fn reading_costs_one_call_per_block_and_one_per_event_at_the_tail() {
    for len in [100, 5000, 60_000, crate::MAX_CHUNK] {
        let mut log = Log::new(Options { retain_bytes: 1 << 30, segment_bytes: Some(4 << 20) });
        while log.offset < 10 << 20 && log.last() < 20_000 {
            let Room::Bytes(room) = log.writer().room(Hold::Nothing) else { panic!("there is always room") };
            log.append(Stream::Stdout, &vec![1; len.min(room)]);
        }
        let mut reader = Reader::open(log.path()).unwrap();
        let mut cursor = Cursor::START;
        let calls = preads_of(|| while reader.next(&mut cursor, log.last()).unwrap().is_some() {});
        let bytes: u64 = log.segments().iter().map(|path| path.metadata().unwrap().len()).sum();
        // One more for each segment, whose last block is short.
        let most = bytes / (128 << 10) + log.segments().len() as u64;
        assert!(calls <= most, "{calls} calls for {bytes} bytes in records of {len}");
        log.append(Stream::Stdout, b"at the tail");
        assert_eq!(preads_of(|| assert!(reader.next(&mut cursor, log.last()).unwrap().is_some())), 1);
        assert_eq!(preads_of(|| assert!(reader.next(&mut cursor, log.last()).unwrap().is_none())), 0);
    }
}

#[test]
fn readers_in_other_threads_see_everything_or_exact_gaps() {
    let dir = tempfile::tempdir().unwrap();
    let options = Options { retain_bytes: 300_000, segment_bytes: Some(64 << 10) };
    let mut writer = Writer::create(dir.path(), options, Arc::new(Unlimited)).unwrap();
    let announced = AtomicU64::new(0);
    let is_done = AtomicBool::new(false);
    let byte_of = |seq: Seq| (seq % 251) as u8;
    thread::scope(|scope| {
        for lag in [0, 1, 40] {
            let (announced, is_done, dir) = (&announced, &is_done, dir.path());
            scope.spawn(move || {
                let mut reader = Reader::open(dir).unwrap();
                let (mut cursor, mut offset, mut is_last) = (Cursor::START, 0, false);
                while !is_last {
                    is_last = is_done.load(Ordering::Acquire);
                    let up_to = announced.load(Ordering::Acquire);
                    if !is_last && up_to < cursor.seq + lag {
                        thread::yield_now();
                        continue;
                    }
                    let mut next = cursor.seq + 1;
                    while let Some(item) = reader.next(&mut cursor, up_to).unwrap() {
                        let event = Event::of(item);
                        let (from, to, bytes) = event.extent();
                        assert_eq!(from, next);
                        next = to + 1;
                        match event {
                            Event::Output { seq, bytes, offset: at, .. } => {
                                assert_eq!(at, offset);
                                assert!(bytes.iter().all(|byte| *byte == byte_of(seq)));
                            }
                            Event::Gap(gap) => assert_eq!(gap.cause, GapCause::Evicted),
                            other => panic!("{other:?}"),
                        }
                        offset += bytes.unwrap();
                        assert_eq!(cursor.offset, Some(offset));
                    }
                }
            });
        }
        for round in 0..4000_u64 {
            let len = if round % 10 == 0 { 60_000 } else { 1 + (round as usize * 31) % 3000 };
            let Room::Bytes(room) = writer.room(Hold::Nothing) else { panic!("there is always room") };
            let bytes = vec![byte_of(writer.position().next_seq); len.min(room)];
            let appended = append(&mut writer, Stream::Stdout, round, &bytes).unwrap();
            announced.store(appended.seq, Ordering::Release);
        }
        is_done.store(true, Ordering::Release);
    });
}
