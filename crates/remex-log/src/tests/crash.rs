//! A crash between any two file operations: everything that was reported as written is there afterwards.

use super::*;

/// Performs every kind of operation until the disk fails. Returns the events that were reported as written.
fn work(dir: &Path, disk: &FailingDisk) -> Vec<Event> {
    let options = Options { retain_bytes: 1500, segment_bytes: Some(700) };
    let mut written = Vec::new();
    let mut offset = 0;
    for start in 0..3_u8 {
        let Ok((mut writer, recovered)) =
            Writer::open_on(Box::new(disk.clone()), dir.to_path_buf(), options, Arc::new(Unlimited))
        else {
            return written;
        };
        assert_eq!(recovered.summary.next_seq - 1, written.len() as Seq);
        for round in 0..6_u8 {
            let bytes = vec![start ^ round; 40 * usize::from(round) + 1];
            if !matches!(writer.room(Hold::Nothing), Room::Bytes(_)) {
                return written;
            }
            let Some(appended) = append(&mut writer, Stream::Stdout, 5, &bytes) else { return written };
            if !appended.is_written {
                return written;
            }
            let (seq, stream, len) = (appended.seq, Stream::Stdout, bytes.len() as u64);
            written.push(Event::Output { seq, stream, at_ms: 5, offset, bytes });
            offset += len;
            if round == 3 && writer.note(start, &[round; 30]).is_err() {
                return written;
            }
        }
        if start == 1 {
            let appended = writer.exited(6, b"status").unwrap();
            if !appended.is_written {
                return written;
            }
            written.push(Event::Exited { seq: appended.seq, at_ms: 6, payload: b"status".to_vec() });
        }
        if writer.sync().is_err() || writer.close().is_err() {
            return written;
        }
    }
    written
}

#[test]
fn everything_reported_as_written_survives_a_crash_at_any_operation() {
    let mut operations = 0;
    for after in 0.. {
        let dir = temp_dir();
        let disk = FailingDisk::new(Failure::Crash, after);
        let written = work(dir.path(), &disk);
        let options = Options { retain_bytes: 1500, segment_bytes: Some(700) };
        let (mut writer, recovered) = Writer::open(dir.path(), options, Arc::new(Unlimited)).unwrap();
        let summary = &recovered.summary;
        assert!(summary.is_exact, "after {after} operations: {recovered:?}");
        // The last record may be whole although its write was not reported.
        let found = summary.next_seq - 1;
        assert!(
            (written.len() as Seq..=written.len() as Seq + 1).contains(&found),
            "after {after}: {recovered:?}"
        );
        let exited = written.iter().find(|event| matches!(event, Event::Exited { .. }));
        assert!(
            exited.is_none()
                || summary.exited.as_ref().map(|end| end.seq) == exited.map(|exit| exit.extent().0)
        );
        let read = read_all(dir.path(), written.len() as Seq);
        assert_faithful(&read, &written);
        // Only what was evicted is missing.
        for event in &read {
            assert!(
                !matches!(event, Event::Gap(gap) if gap.cause != GapCause::Evicted),
                "after {after}: {event:?}"
            );
        }
        let position = writer.position();
        assert_eq!(position.produced.total(), position.retained + position.evicted + position.dropped);
        assert!(matches!(writer.room(Hold::Nothing), Room::Bytes(_)));
        assert_eq!(
            append(&mut writer, Stream::Stderr, 7, b"on").map(|appended| appended.seq),
            Some(found + 1)
        );
        assert!(!dir.path().join("next.tmp").exists());
        operations = after;
        if disk.left.load(Ordering::Relaxed) > 0 {
            break;
        }
    }
    assert!(operations > 60, "only {operations} operations");
}
