//! Damaged logs: torn, flipped, missing and unreadable bytes, and output that imitates a log.

use std::{fs, os::unix::fs::symlink};

use super::*;
use crate::{
    VersionError,
    base::{
        format::{DroppedOutput, HEAD_LEN, Kind, RecordHeader, SegmentHeader, push_record},
        names::SegmentName,
    },
};

/// Copies a log, so that it can be damaged again and again.
fn copy(log: &Log) -> TempDir {
    let dir = temp_dir();
    for path in log.segments() {
        fs::copy(&path, dir.path().join(path.file_name().unwrap())).unwrap();
    }
    dir
}

#[test]
fn a_log_truncated_anywhere_in_its_last_segment_continues_after_a_prefix() {
    let mut log = Log::new(SMALL);
    for round in 0..9_u8 {
        log.append(Stream::Stdout, &vec![round; 5 + 31 * usize::from(round)]);
    }
    log.drop_output(Stream::Stderr, 10);
    log.append(Stream::Stderr, b"after the loss");
    log.exited(b"status");
    log.closed(b"");
    drop(log.writer.take());
    let last = log.segments().pop().unwrap();
    let whole = fs::read(&last).unwrap();
    for len in HEAD_LEN..=whole.len() {
        let dir = copy(&log);
        let torn = dir.path().join(last.file_name().unwrap());
        fs::write(&torn, &whole[..len]).unwrap();
        let (mut writer, recovered) = Writer::open(dir.path(), SMALL, Arc::new(Unlimited)).unwrap();
        let found = recovered.summary.next_seq - 1;
        let mut events = log.events[..found as usize].to_vec();
        assert!(recovered.summary.is_exact && recovered.cut_bytes <= 48 + 300, "{recovered:?}");
        assert_eq!(read_all(dir.path(), found), events, "cut at {len}");
        let offset = events.iter().map(|event| event.extent().2.unwrap()).sum();
        assert_eq!((recovered.summary.offset, recovered.summary.produced.total()), (offset, offset));
        if recovered.summary.closed.is_some() {
            continue;
        }
        assert!(matches!(writer.room(Hold::Nothing), Room::Bytes(_)));
        let appended = append(&mut writer, Stream::Stdout, 7, b"goes on").unwrap();
        assert_eq!(appended, Appended { seq: found + 1, len: 7, is_written: true });
        let bytes = b"goes on".to_vec();
        events.push(Event::Output { seq: found + 1, stream: Stream::Stdout, at_ms: 7, offset, bytes });
        assert_eq!(read_all(dir.path(), found + 1), events, "cut at {len}");
        // Nothing of the torn record is left.
        let summary = crate::inspect(dir.path()).unwrap();
        assert_eq!((summary.next_seq, summary.is_exact), (found + 2, true), "cut at {len}");
    }
}

#[test]
fn a_last_segment_without_a_complete_head_was_never_used() {
    let mut log = Log::new(SMALL);
    while log.segments().len() < 3 {
        log.append(Stream::Stdout, &[7; 200]);
    }
    let last = log.segments().pop().unwrap();
    let found = SegmentName::parse(last.file_name().unwrap()).unwrap().first_seq - 1;
    drop(log.writer.take());
    for len in [0, 1, HEAD_LEN as u64 - 1] {
        fs::File::options().write(true).open(&last).unwrap().set_len(len).unwrap();
        let (mut writer, recovered) = Writer::open(log.path(), SMALL, Arc::new(Unlimited)).unwrap();
        assert_eq!((recovered.summary.next_seq, recovered.summary.is_exact), (found + 1, true));
        assert!(matches!(writer.room(Hold::Nothing), Room::Bytes(_)));
    }
    assert_eq!(read_all(log.path(), found), log.events[..found as usize]);
}

#[test]
fn zeros_after_the_last_record_are_an_unfinished_write() {
    let mut log = Log::new(SMALL);
    log.append(Stream::Stdout, b"one");
    drop(log.writer.take());
    let path = log.segments().pop().unwrap();
    let len = path.metadata().unwrap().len();
    fs::File::options().write(true).open(&path).unwrap().set_len(len + 5000).unwrap();
    let (_, recovered) = Writer::open(log.path(), SMALL, Arc::new(Unlimited)).unwrap();
    assert_eq!(
        (recovered.summary.next_seq, recovered.summary.is_exact, recovered.cut_bytes),
        (2, true, 5000)
    );
    assert_eq!(log.read(), log.events);
}

#[test]
fn a_flipped_byte_costs_at_most_the_record_it_is_in() {
    let log = Log::sample();
    assert_eq!(log.read(), log.events);
    assert!(log.segments().len() > 3);
    for path in log.segments() {
        let whole = fs::read(&path).unwrap();
        for at in 0..whole.len() {
            let mut bytes = whole.clone();
            bytes[at] ^= 1 << (at % 8);
            fs::write(&path, &bytes).unwrap();
            let missing = assert_faithful(&log.read(), &log.events);
            assert!(missing.len() <= 1, "byte {at} of {path:?} costs {missing:?}");
            assert!(at >= HEAD_LEN || missing.is_empty(), "a head has a copy");
        }
        fs::write(&path, &whole).unwrap();
    }
}

#[test]
fn a_writer_never_reuses_the_number_of_a_damaged_record() {
    let mut log = Log::new(SMALL);
    for round in 0..4_u8 {
        log.append(Stream::Stdout, &[round; 50]);
    }
    drop(log.writer.take());
    let path = log.segments().pop().unwrap();
    let whole = fs::read(&path).unwrap();
    for at in 0..whole.len() {
        let dir = copy(&log);
        let mut bytes = whole.clone();
        bytes[at] ^= 0x10;
        fs::write(dir.path().join(path.file_name().unwrap()), &bytes).unwrap();
        let (mut writer, recovered) = Writer::open(dir.path(), SMALL, Arc::new(Unlimited)).unwrap();
        assert!(recovered.summary.next_seq > log.last(), "byte {at}: {recovered:?}");
        assert_eq!(recovered.cut_bytes, 0);
        assert!(matches!(writer.room(Hold::Nothing), Room::Bytes(_)));
        let appended = append(&mut writer, Stream::Stderr, 0, b"next").unwrap();
        let position = writer.position();
        assert_eq!(position.produced.total(), position.retained + position.evicted + position.dropped);
        let events = read_all(dir.path(), appended.seq);
        let gaps = events.iter().filter(|event| matches!(event, Event::Gap(_))).count();
        assert!(gaps <= 1, "byte {at}: {events:?}");
        assert!(matches!(events.last(), Some(Event::Output { bytes, .. }) if bytes == b"next"));
    }
}

#[test]
fn overwritten_and_missing_ranges_are_gaps() {
    let log = Log::sample();
    for path in log.segments() {
        let whole = fs::read(&path).unwrap();
        for from in (0..whole.len()).step_by(13) {
            for len in [8, 64, 300] {
                let to = whole.len().min(from + len);
                let zeroed = [&whole[..from], &vec![0; to - from], &whole[to..]].concat();
                let removed = [&whole[..from], &whole[to..]].concat();
                let doubled = [&whole[..to], &whole[from..]].concat();
                for bytes in [zeroed, removed, doubled, whole[..from].to_vec()] {
                    fs::write(&path, &bytes).unwrap();
                    assert_faithful(&log.read(), &log.events);
                }
            }
        }
        fs::write(&path, &whole).unwrap();
    }
}

#[test]
fn a_foreign_file_in_place_of_a_segment_is_a_gap_with_its_cause() {
    let log = Log::sample();
    let paths = log.segments();
    let starts: Vec<_> =
        paths.iter().map(|path| SegmentName::parse(path.file_name().unwrap()).unwrap().first_seq).collect();
    for (index, path) in paths.iter().enumerate() {
        let whole = fs::read(path).unwrap();
        let to = starts.get(index + 1).map_or(log.last(), |next| next - 1);
        let check = |expected: GapCause| {
            let read = log.read();
            assert_eq!(assert_faithful(&read, &log.events), (starts[index]..=to).collect::<Vec<_>>());
            let cause = read.iter().find_map(|event| match event {
                Event::Gap(gap) if gap.from_seq == starts[index] => Some(gap.cause),
                _ => None,
            });
            assert_eq!(cause, Some(expected), "{path:?}");
        };
        fs::remove_file(path).unwrap();
        check(if index == 0 { GapCause::Evicted } else { GapCause::Missing });
        fs::create_dir(path).unwrap();
        check(GapCause::Unreadable(rustix::io::Errno::ISDIR.raw_os_error()));
        fs::remove_dir(path).unwrap();
        symlink("/dev/zero", path).unwrap();
        check(GapCause::Unreadable(rustix::io::Errno::LOOP.raw_os_error()));
        fs::remove_file(path).unwrap();
        rustix::fs::mknodat(rustix::fs::CWD, path, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
        check(GapCause::Unreadable(rustix::io::Errno::SPIPE.raw_os_error()));
        fs::remove_file(path).unwrap();
        fs::write(path, b"").unwrap();
        check(GapCause::Missing);
        fs::write(path, vec![0xff; 5000]).unwrap();
        check(GapCause::Corrupted);
        fs::write(path, &whole).unwrap();
    }
}

#[test]
fn a_newer_format_is_refused() {
    let mut log = Log::new(SMALL);
    log.append(Stream::Stdout, b"from the future");
    drop(log.writer.take());
    let path = log.segments().pop().unwrap();
    let mut bytes = fs::read(&path).unwrap();
    bytes[8] = 9;
    bytes[128 + 8] = 9;
    fs::write(&path, &bytes).unwrap();
    let expected = VersionError { found: 9, known: 1 };
    let is_expected = |error: &io::Error| {
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert_eq!(error.get_ref().and_then(|error| error.downcast_ref()), Some(&expected));
    };
    is_expected(&Reader::open(log.path()).unwrap().next(&mut Cursor::START.clone(), 1).unwrap_err());
    is_expected(&Writer::open(log.path(), SMALL, Arc::new(Unlimited)).err().unwrap());
    is_expected(&crate::inspect(log.path()).unwrap_err());
    assert_eq!(
        expected.to_string(),
        "cannot read a log of format version 9: this program knows versions up to 1; use a newer one"
    );
}

/// Output that imitates a record as well as possible without knowing the salt.
fn imitation(seq: Seq, offset: u64) -> Vec<u8> {
    let name = SegmentName { first_seq: seq, first_offset: offset };
    let header = SegmentHeader {
        name,
        salt: 0x1234_5678_9abc_def0,
        created_ms: 5,
        produced: crate::Produced::default(),
        dropped: 0,
        exited: 0,
        closed: 0,
    };
    let mut bytes = header.encode().to_vec();
    for (kind, payload) in [
        (Kind::Output(Stream::Stdout), b"forged".to_vec()),
        (Kind::Exited, b"forged".to_vec()),
        (Kind::Closed, b"forged".to_vec()),
        (
            Kind::Gap,
            DroppedOutput { bytes: crate::Produced::default(), cause: Cause::DiskFull }.encode().to_vec(),
        ),
        (Kind::Note(1), b"forged".to_vec()),
    ] {
        for seq in seq..seq + 4 {
            let record = RecordHeader::new(kind, seq, offset, 5, &payload);
            push_record(&mut bytes, header.key(), &record, &payload);
        }
    }
    bytes
}

#[test]
fn output_that_imitates_a_log_is_output() {
    let mut log = Log::new(Options { retain_bytes: 1 << 30, segment_bytes: Some(20_000) });
    for round in 0..8_u64 {
        let bytes = imitation(log.last() + 1, 1700 * round);
        log.append(Stream::Stdout, &bytes);
        // A log that a program has read and prints, true records included.
        let bytes = fs::read(&log.segments()[0]).unwrap();
        log.append(Stream::Stderr, &bytes[..bytes.len().min(8000)]);
    }
    assert_eq!(log.read(), log.events);
    for path in log.segments() {
        let whole = fs::read(&path).unwrap();
        // Every record loses its header once, so that the search goes through the imitation.
        for at in (HEAD_LEN..whole.len()).step_by(24) {
            let mut bytes = whole.clone();
            bytes[at] ^= 0x40;
            fs::write(&path, &bytes).unwrap();
            assert!(assert_faithful(&log.read(), &log.events).len() <= 1);
        }
        fs::write(&path, &whole).unwrap();
    }
}

#[test]
fn records_of_unknown_kinds_are_skipped() {
    let mut log = Log::new(SMALL);
    log.append(Stream::Stdout, b"one");
    drop(log.writer.take());
    let path = log.segments().pop().unwrap();
    let mut bytes = fs::read(&path).unwrap();
    let head = SegmentHeader::decode(&bytes).unwrap();
    let unknown = RecordHeader { events: 0, ..RecordHeader::new(Kind::Unknown, 2, 3, 0, b"later") };
    push_record(&mut bytes, head.key(), &unknown, b"later");
    // An event of an unknown kind, but with a known number of bytes.
    push_record(&mut bytes, head.key(), &RecordHeader::new(Kind::Unknown, 2, 3, 0, b"new"), b"new");
    let last = RecordHeader::new(Kind::Output(Stream::Stdout), 3, 10, 0, b"three");
    push_record(&mut bytes, head.key(), &last, b"three");
    fs::write(&path, &bytes).unwrap();
    let read = read_all(log.path(), 3);
    assert_eq!(read[0], log.events[0]);
    assert_eq!(read[1], gap(2, 2, Some(7), GapCause::Missing));
    assert_eq!(read[2].extent(), (3, 3, Some(5)));
    assert_eq!(read.len(), 3);
}
