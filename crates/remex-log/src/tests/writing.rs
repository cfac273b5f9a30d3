//! Retention, notes, reservations and what is found again.

use std::os::unix::fs::MetadataExt as _;

use super::*;
use crate::{EmptyLog, MAX_CHUNK, MAX_END_PAYLOAD, Produced, discard_output, inspect};

#[test]
fn a_reopened_log_has_its_totals_ends_and_notes() {
    let mut log = Log::sample();
    let position = log.writer().position();
    drop(log.writer.take());
    let (writer, recovered) = Writer::open(log.path(), SMALL, Arc::new(Unlimited)).unwrap();
    let summary = recovered.summary;
    assert_eq!(summary, inspect(log.path()).unwrap());
    assert_eq!((summary.next_seq, summary.offset, summary.dropped), (log.last() + 1, log.offset, 1000));
    let stderr = (0..12).map(|round| 7 * round + 1).sum();
    assert_eq!(summary.produced, Produced::from([12 * 33, stderr, 1000]));
    assert_eq!(summary.exited.unwrap().payload.unwrap(), b"status 3");
    assert_eq!(summary.closed.unwrap().payload.unwrap(), b"bye");
    assert_eq!(summary.notes, [(1, b"what it is".to_vec()), (2, vec![6; 20])].into());
    assert_eq!(writer.position().produced, position.produced);
    assert_eq!(writer.position().retained, position.retained);
}

#[test]
fn notes_and_the_exit_survive_eviction() {
    let mut log = Log::new(Options { retain_bytes: 1000, segment_bytes: Some(2000) });
    log.writer().note(7, b"description").unwrap();
    log.exited(b"status");
    for round in 0..100_u8 {
        log.append(Stream::Stdout, &[round; 100]);
    }
    let summary = inspect(log.path()).unwrap();
    assert!(summary.first_seq > 50 && summary.is_exact);
    assert_eq!(summary.notes[&7], b"description");
    assert_eq!(summary.exited.unwrap().payload.unwrap(), b"status");
}

#[test]
fn an_exit_whose_copy_is_damaged_is_found_in_an_older_segment() {
    let mut log = Log::new(SMALL);
    log.exited(b"the status of it");
    for round in 0..20_u8 {
        log.append(Stream::Stdout, &[round; 100]);
    }
    drop(log.writer.take());
    let path = log.segments().pop().unwrap();
    let whole = fs::read(&path).unwrap();
    let copy = whole.windows(16).position(|bytes| bytes == b"the status of it").unwrap();
    for at in [copy, copy - 1, copy - 40] {
        let mut bytes = whole.clone();
        bytes[at] ^= 1;
        fs::write(&path, &bytes).unwrap();
        let exited = inspect(log.path()).unwrap().exited.unwrap();
        assert_eq!((exited.seq, exited.at_ms, exited.payload), (1, 1000, Some(b"the status of it".to_vec())));
        assert_eq!(log.read(), log.events);
    }
}

#[test]
fn notes_alone_do_not_grow_a_log_and_readers_follow() {
    let mut log = Log::new(SMALL);
    log.append(Stream::Stdout, b"one");
    let mut reader = Reader::open(log.path()).unwrap();
    let mut cursor = Cursor::START;
    assert!(reader.next(&mut cursor, 1).unwrap().is_some());
    for round in 0..1000_u64 {
        log.writer().note(1, &round.to_le_bytes()).unwrap();
        if round % 100 == 30 {
            // It now has a segment open that more notes will replace.
            cursor = reader.cursor_after(log.last()).unwrap();
        }
        if round % 100 == 50 {
            log.append(Stream::Stderr, &[9; 10]);
            let expected = log.events.last().cloned();
            assert_eq!(reader.next(&mut cursor, log.last()).unwrap().map(Event::of), expected);
        }
    }
    let sum: u64 = log.segments().iter().map(|path| path.metadata().unwrap().len()).sum();
    assert!(sum < 20_000, "{sum}");
    assert_eq!(inspect(log.path()).unwrap().notes[&1], 999_u64.to_le_bytes());
    assert_eq!(log.read(), log.events);
}

#[test]
fn a_held_log_is_full_at_its_retention_and_continues_when_acknowledged() {
    let mut log = Log::new(Options { retain_bytes: 1000, segment_bytes: Some(300) });
    let hold = Hold::After(Point { seq: 0, offset: 0 });
    for round in 0..9_u8 {
        assert_eq!(log.writer().room(hold), Room::Bytes(1000 - 100 * usize::from(round)));
        log.append(Stream::Stdout, &[round; 100]);
    }
    log.append(Stream::Stdout, &[9; 100]);
    assert_eq!(log.writer().room(hold), Room::Full(Cause::Retention));
    // Dropped output is not held.
    log.drop_output(Stream::Stdout, 5000);
    assert_eq!(log.writer().room(Hold::After(Point { seq: 9, offset: 900 })), Room::Bytes(900));
    assert_eq!(log.writer().room(Hold::After(Point { seq: 3, offset: 300 })), Room::Bytes(300));
    assert_eq!(log.read(), log.events);
    assert_eq!(log.writer().position().first_seq, 1, "the rest alone holds less than is to be retained");
}

#[test]
fn eviction_keeps_at_least_the_retention_and_at_most_two_segments_more() {
    let options = Options { retain_bytes: 100_000, segment_bytes: None };
    let mut log = Log::new(options);
    for round in 0..500_u64 {
        log.append(Stream::Stdout, &vec![round as u8; 1 + (round as usize * 997) % 9000]);
        log.writer().evict(Hold::Nothing);
        let position = log.writer().position();
        assert!(position.retained >= log.offset.min(100_000));
        assert!(position.retained <= 100_000 + 2 * (64 << 10) + 9000, "{position:?}");
        assert_eq!(position.produced.total(), position.retained + position.evicted);
    }
    let read = log.read();
    let missing = assert_faithful(&read, &log.events);
    assert_eq!(missing, (1..log.writer().position().first_seq).collect::<Vec<_>>());
    assert!(matches!(read[0], Event::Gap(Gap { cause: GapCause::Evicted, .. })));
}

#[test]
fn reserved_blocks_are_freed_at_the_end() {
    const OPTIONS: Options = Options { retain_bytes: 1 << 30, segment_bytes: None };
    let mut log = Log::new(OPTIONS);
    log.writer = None;
    fs::remove_file(&log.segments()[0]).unwrap();
    // A disk without ample space that never refuses an operation.
    let disk = Box::new(FailingDisk::new(Failure::Full, u64::MAX));
    let opened = Writer::open_on(disk, log.path().to_path_buf(), OPTIONS, Arc::new(Unlimited));
    log.writer = Some(opened.unwrap().0);
    log.append(Stream::Stdout, &[1; 50_000]);
    log.append(Stream::Stdout, &[1; 50_000]);
    let blocks = |log: &Log| log.segments()[0].metadata().unwrap().blocks() * 512;
    let disk_bytes = log.writer().position().disk_bytes;
    assert!(disk_bytes > 105_000 && log.segments()[0].metadata().unwrap().len() < 101_000);
    assert!(blocks(&log) >= disk_bytes, "space is allocated");
    log.closed(b"");
    assert!(blocks(&log) < 105_000 + 4096);
    assert_eq!(log.writer().position().disk_bytes, log.segments()[0].metadata().unwrap().len());
}

#[test]
fn on_a_disk_with_ample_space_no_blocks_are_allocated_in_advance() {
    let mut log = Log::new(Options { retain_bytes: 1 << 30, segment_bytes: None });
    log.append(Stream::Stdout, &[1; 1000]);
    let file = fs::File::open(&log.segments()[0]).unwrap();
    if FileSystem.free(&file).unwrap() > 2 << 30 {
        file.sync_all().unwrap();
        assert!(file.metadata().unwrap().blocks() * 512 <= 8192, "only what is written takes space");
    }
    assert!(log.writer().position().disk_bytes >= 64 << 10, "what is reserved counts");
    log.closed(b"");
    assert_eq!(log.writer().position().disk_bytes, file.metadata().unwrap().len());
}

#[test]
fn an_empty_log_may_be_moved_before_it_is_used() {
    let dir = tempfile::tempdir().unwrap();
    let (here, there) = (dir.path().join("here"), dir.path().join("there"));
    fs::create_dir(&here).unwrap();
    let blank = EmptyLog::create(&here).unwrap();
    fs::rename(&here, &there).unwrap();
    let mut writer = blank.into_writer(&there, SMALL, Arc::new(Unlimited)).unwrap();
    assert!(append(&mut writer, Stream::Stdout, 1, b"output").unwrap().is_written);
    writer.closed(2, b"").unwrap();
    let summary = inspect(&there).unwrap();
    assert_eq!((summary.offset, summary.closed.map(|end| end.seq)), (6, Some(2)));
}

#[test]
fn records_that_are_too_long_or_too_late_are_refused() {
    let mut log = Log::new(SMALL);
    let kind = |result: io::Result<Appended>| result.unwrap_err().kind();
    assert_eq!(kind(log.writer().exited(0, &[0; MAX_END_PAYLOAD + 1])), ErrorKind::InvalidInput);
    assert_eq!(log.writer().note(0, &[0; MAX_CHUNK + 1]).unwrap_err().kind(), ErrorKind::InvalidInput);
    log.exited(b"");
    assert_eq!(kind(log.writer().exited(0, b"")), ErrorKind::AlreadyExists);
    log.closed(b"");
    assert_eq!(kind(log.writer().closed(0, b"")), ErrorKind::AlreadyExists);
    assert_eq!(log.read(), log.events);
    let again = Writer::create(log.path(), SMALL, Arc::new(Unlimited)).err().unwrap();
    assert_eq!(again.kind(), ErrorKind::AlreadyExists);
}

#[test]
fn nothing_is_appended_without_output_or_after_an_error() {
    let mut log = Log::new(SMALL);
    assert!(matches!(log.writer().room(Hold::Nothing), Room::Bytes(_)));
    assert_eq!(log.writer().append(Stream::Stdout, 0, 10, |_| Ok::<_, ()>(0)), Ok(None));
    assert_eq!(log.writer().append(Stream::Stdout, 0, 10, |_| Err("broken pipe")), Err("broken pipe"));
    log.append(Stream::Stdout, &[1; MAX_CHUNK]);
    assert_eq!(log.read(), log.events);
}

#[test]
fn a_log_can_be_synced() {
    let mut log = Log::sample();
    log.writer().sync().unwrap();
    log.writer().sync().unwrap();
}

#[test]
fn a_log_can_be_synced_while_its_writer_appends_and_evicts() {
    let mut log = Log::new(Options { retain_bytes: 1000, segment_bytes: Some(2000) });
    for round in 0..50_u8 {
        log.append(Stream::Stdout, &[round; 100]);
        let unsynced = log.writer().unsynced().unwrap();
        for _ in 0..30 {
            log.append(Stream::Stderr, &[round; 100]);
        }
        // Segments that it knows may be evicted by now.
        unsynced.wait(fs::File::sync_data).unwrap();
        log.writer().synced(&unsynced);
    }
    log.writer().sync().unwrap();
}

#[test]
fn a_closed_log_is_opened_without_keeping_a_descriptor() {
    let mut log = Log::sample();
    let closed = log.writer.take().unwrap().position();
    let (writer, _) = Writer::open(log.path(), SMALL, Arc::new(Unlimited)).unwrap();
    let open_files = fs::read_dir("/proc/self/fd").unwrap().flatten();
    let open_here = open_files
        .filter_map(|entry| fs::read_link(entry.path()).ok())
        .filter(|file| file.starts_with(log.path()));
    assert_eq!(open_here.count(), 0);
    assert_eq!(writer.position(), closed, "nothing is reserved for it either");
}

#[test]
fn a_log_with_discarded_output_has_only_its_notes() {
    let log = Log::sample();
    let before = inspect(log.path()).unwrap();
    discard_output(log.path()).unwrap();
    let after = inspect(log.path()).unwrap();
    assert_eq!(after.notes, before.notes);
    assert_eq!(crate::base::names::list(log.path()).unwrap().len(), 1);
    assert!(after.disk_bytes < 600 && after.disk_bytes < before.disk_bytes / 4, "{after:?}");
    discard_output(log.path()).unwrap();
    assert_eq!(inspect(log.path()).unwrap(), after);
}
