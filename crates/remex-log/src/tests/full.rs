//! Full disks and quotas.

use std::{os::unix::process::ExitStatusExt as _, process::Command};

use super::*;
use crate::Quota;

const OPTIONS: Options = Options { retain_bytes: 1 << 20, segment_bytes: Some(100_000) };

fn open_on(dir: &Path, disk: &FailingDisk) -> Writer {
    Writer::open_on(Box::new(disk.clone()), dir.to_path_buf(), OPTIONS, Arc::new(Unlimited)).unwrap().0
}

/// Appends chunks until there is no room, and returns why.
fn fill(log: &mut Log, hold: Hold) -> Cause {
    loop {
        match log.writer().room(hold) {
            Room::Full(cause) => return cause,
            Room::Bytes(room) => {
                let (_, at_ms) = log.next_at();
                let bytes: Vec<u8> = (0..room.min(5000)).map(|at| at as u8).collect();
                assert!(append(log.writer(), Stream::Stdout, at_ms, &bytes).unwrap().is_written);
                log.pushed(Stream::Stdout, at_ms, &bytes);
            }
        }
    }
}

const ACKED_NOTHING: Hold = Hold::After(Point { seq: 0, offset: 0 });

#[test]
fn a_full_disk_has_no_room_but_records_the_exit_and_the_close() {
    for after in 3..12 {
        let disk = FailingDisk::new(Failure::Full, after);
        let mut log = Log::new(OPTIONS);
        log.writer = None;
        fs::remove_file(&log.segments()[0]).unwrap();
        log.writer = Some(open_on(log.path(), &disk));
        assert_eq!(fill(&mut log, ACKED_NOTHING), Cause::DiskFull);
        let reserved = log.writer().position().disk_bytes;
        log.drop_output(Stream::Stdout, 100);
        log.drop_output(Stream::Stderr, 23);
        assert!(log.exited(&[1; crate::MAX_END_PAYLOAD]).is_written);
        log.drop_output(Stream::Stdout, 5);
        assert!(log.closed(&[2; crate::MAX_END_PAYLOAD]).is_written);
        assert_eq!(log.read(), log.events);
        let position = log.writer().position();
        assert_eq!(position.dropped, 128);
        assert_eq!(position.produced.total(), position.retained + position.dropped);
        assert!(std_len(&log) <= reserved, "nothing is written past the reservation");
        assert_eq!(log.writer.take().unwrap().close().unwrap(), std_len(&log));
    }
}

fn std_len(log: &Log) -> u64 {
    log.segments().iter().map(|path| fs::metadata(path).unwrap().len()).sum()
}

#[test]
fn output_continues_after_a_drop_when_there_is_space_again() {
    let disk = FailingDisk::new(Failure::Full, 6);
    let mut log = Log::new(OPTIONS);
    log.writer = None;
    fs::remove_file(&log.segments()[0]).unwrap();
    log.writer = Some(open_on(log.path(), &disk));
    assert_eq!(fill(&mut log, ACKED_NOTHING), Cause::DiskFull);
    log.drop_output(Stream::Stdout, 1_000_000);
    assert_eq!(log.writer().room(ACKED_NOTHING), Room::Full(Cause::DiskFull));
    log.drop_output(Stream::Pty, 1);
    assert_eq!(log.writer().position().written_seq, log.last() - 1);
    disk.set_left(u64::MAX);
    log.append(Stream::Stdout, b"there is space again");
    assert_eq!(log.writer().position().written_seq, log.last());
    assert_eq!(log.read(), log.events);
    drop(log.writer.take());
    let (_, recovered) = Writer::open(log.path(), OPTIONS, Arc::new(Unlimited)).unwrap();
    assert_eq!((recovered.summary.dropped, recovered.summary.offset), (1_000_001, log.offset));
    assert_eq!(recovered.summary.produced.pty, 1);
}

#[test]
fn without_allocation_refused_records_are_kept_and_written_first() {
    for after in 2..8 {
        let disk = FailingDisk::new(Failure::FullWithoutAllocation, after);
        let mut log = Log::new(OPTIONS);
        log.writer = None;
        fs::remove_file(&log.segments()[0]).unwrap();
        log.writer = Some(open_on(log.path(), &disk));
        let written = loop {
            let seq = log.last();
            if !log.append(Stream::Stdout, &[7; 3000]).is_written {
                break seq;
            }
        };
        let writer = log.writer();
        assert_eq!(writer.room(Hold::Nothing), Room::Full(Cause::DiskFull));
        assert_eq!(append(writer, Stream::Stdout, 0, b"not taken"), None);
        assert_eq!(writer.note(1, b"not taken").unwrap_err().kind(), ErrorKind::StorageFull);
        assert_eq!(writer.position().written_seq, written);
        assert!(!log.exited(b"kept").is_written);
        assert_eq!(read_all(log.path(), written), log.events[..written as usize]);
        disk.set_left(u64::MAX);
        log.append(Stream::Stderr, b"goes on");
        assert_eq!(log.read(), log.events);
    }
}

#[test]
fn a_full_disk_makes_a_log_evict_if_it_may() {
    let disk = FailingDisk::new(Failure::Full, 30);
    let mut log = Log::new(OPTIONS);
    log.writer = None;
    fs::remove_file(&log.segments()[0]).unwrap();
    log.writer = Some(open_on(log.path(), &disk));
    let space = 30;
    // Every deleted segment makes the disk work again for a while.
    for _ in 0..200 {
        let before = log.segments().len();
        match log.writer().room(Hold::Nothing) {
            Room::Bytes(_) => drop(log.append(Stream::Stdout, &[1; 4000])),
            Room::Full(cause) => {
                assert_eq!(cause, Cause::DiskFull);
                assert_eq!(log.segments().len(), 1, "everything but the newest segment is evicted");
                disk.set_left(space);
            }
        }
        assert!(before >= log.segments().len() || disk.left.load(Ordering::Relaxed) < space);
    }
    assert_faithful(&log.read(), &log.events);
}

#[test]
fn an_io_error_does_not_evict() {
    let disk = FailingDisk::new(Failure::Broken, u64::MAX);
    let mut log = Log::new(OPTIONS);
    log.writer = Some(open_on(log.path(), &disk));
    while log.segments().len() < 3 {
        log.append(Stream::Stdout, &[1; 4000]);
    }
    disk.set_left(0);
    assert_eq!(fill(&mut log, Hold::Nothing), Cause::Io(rustix::io::Errno::IO.raw_os_error()));
    assert_eq!(log.segments().len(), 3);
    assert_eq!(log.read(), log.events);
}

#[test]
fn quotas_are_a_tree_whose_limits_can_change() {
    let server = Quota::server(1000);
    let session = Quota::session(&server, 700);
    let [one, two] = [Quota::process(&session, 500), Quota::process(&session, 500)];
    assert_eq!(one.reserve(501), Err(Cause::ProcessQuota));
    assert_eq!(one.reserve(500), Ok(()));
    assert_eq!(two.reserve(300), Err(Cause::SessionQuota));
    session.set_limit(2000);
    assert_eq!(two.reserve(500), Ok(()));
    two.set_limit(1000);
    assert_eq!(two.reserve(1), Err(Cause::ServerQuota));
    assert_eq!((server.used(), session.used(), one.used(), two.used()), (1000, 1000, 500, 500));
    one.set_limit(100);
    one.release(350);
    assert_eq!(one.reserve(1), Err(Cause::ProcessQuota));
    one.charge(1000);
    assert_eq!((server.used(), one.used(), one.limit()), (1650, 1150, 100));
}

#[test]
fn a_quota_fills_a_held_log_and_evicts_from_another() {
    let server = Quota::server(1 << 30);
    let session = Quota::session(&server, 1 << 30);
    let process = Quota::process(&session, 350_000);
    let mut log = Log::with_space(OPTIONS, Arc::clone(&process) as Arc<dyn Space>);
    assert_eq!(fill(&mut log, ACKED_NOTHING), Cause::ProcessQuota);
    assert!(process.used() > 340_000 && log.offset > 300_000, "{} of {}", log.offset, process.used());
    assert_eq!(log.read(), log.events);
    // Acknowledged events may be evicted.
    let Event::Output { seq, offset, .. } = log.events[30] else { panic!("all is output") };
    let hold = Hold::After(Point { seq: seq - 1, offset });
    assert!(matches!(log.writer().room(hold), Room::Bytes(_)));
    assert_eq!(fill(&mut log, hold), Cause::ProcessQuota);
    for _ in 0..300 {
        log.append(Stream::Stdout, &[3; 4000]);
        assert!(process.used() <= 350_000);
        assert_eq!(server.used(), log.writer().position().disk_bytes);
    }
    let read = log.read();
    assert!(!assert_faithful(&read, &log.events).is_empty());
    assert_eq!(log.writer.take().unwrap().close().unwrap(), process.used());
    assert_eq!(std_len(&log), process.used());
    // A log that is there counts, even if it is over the limit.
    process.release(process.used());
    process.set_limit(1000);
    let (mut writer, _) = Writer::open(log.path(), OPTIONS, Arc::clone(&process) as Arc<dyn Space>).unwrap();
    assert_eq!(process.used(), std_len(&log));
    let hold = Hold::After(Point { seq: log.last(), offset: log.offset });
    assert_eq!(writer.room(hold), Room::Full(Cause::ProcessQuota));
}

/// Set for the process that has a small file system of its own.
const SMALL_DISK: &str = "REMEX_LOG_SMALL_DISK";

#[test]
fn a_real_full_disk() {
    if let Some(dir) = std::env::var_os(SMALL_DISK) {
        return on_small_disk(Path::new(&dir));
    }
    let dir = tempfile::tempdir().unwrap();
    let mount =
        "mount -t tmpfs -o size=1m remex-log \"$REMEX_LOG_SMALL_DISK\" || exit 77; exec \"$0\" \"$@\"";
    let started = Command::new("unshare")
        .args(["-Urm", "sh", "-c", mount])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", "tests::full::a_real_full_disk", "--nocapture"])
        .env(SMALL_DISK, dir.path())
        .output();
    match started {
        Ok(output) if output.status.success() => {
            assert!(String::from_utf8_lossy(&output.stdout).contains("1 passed"), "{output:?}");
        }
        Ok(output) if output.status.code() == Some(101) || output.status.signal().is_some() => {
            panic!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        }
        // Other tests have a simulated one.
        Ok(output) => {
            println!("no file system can be mounted here: {}", String::from_utf8_lossy(&output.stderr));
        }
        Err(error) => println!("no file system can be mounted here: {error}"),
    }
}

fn on_small_disk(dir: &Path) {
    let options = Options { retain_bytes: 1 << 30, segment_bytes: Some(100_000) };
    let path = dir.join("log");
    fs::create_dir(&path).unwrap();
    let mut writer = Writer::create(&path, options, Arc::new(Unlimited)).unwrap();
    let mut sum = 0;
    let cause = loop {
        match writer.room(ACKED_NOTHING) {
            Room::Full(cause) => break cause,
            Room::Bytes(room) => {
                let appended = append(&mut writer, Stream::Stdout, 1, &vec![5; room]).unwrap();
                assert!(appended.is_written, "what there was room for is written");
                sum += appended.len as u64;
            }
        }
    };
    assert_eq!(cause, Cause::DiskFull);
    assert!(sum > 900_000, "{sum}");
    // Another log takes the remaining space.
    let mut rest = 0;
    while fs::write(dir.join(format!("rest{rest}")), [1; 4096]).is_ok() {
        rest += 1;
    }
    writer.drop_output(Stream::Stdout, 77, cause);
    assert!(writer.exited(2, &[3; crate::MAX_END_PAYLOAD]).unwrap().is_written);
    // Room is made once readers no longer need the old output.
    assert!(matches!(writer.room(Hold::Nothing), Room::Bytes(_)));
    assert!(append(&mut writer, Stream::Stdout, 3, b"more").unwrap().is_written);
    assert!(writer.closed(4, &[4; crate::MAX_END_PAYLOAD]).unwrap().is_written);
    let position = writer.position();
    assert_eq!(position.produced.total(), sum + 77 + 4);
    assert_eq!(position.retained + position.evicted + position.dropped, sum + 77 + 4);
    let events = read_all(&path, position.written_seq);
    assert!(matches!(events[0], Event::Gap(Gap { cause: GapCause::Evicted, .. })));
    assert!(matches!(events.last(), Some(Event::Closed { .. })));
    let gaps = events.iter().filter(|event| matches!(event, Event::Gap(_))).count();
    assert_eq!(gaps, 2, "evicted, and lost");
}

/// Fills all available space with output that is never read.
fn take_everything(log: &mut Log) {
    assert_eq!(fill(log, ACKED_NOTHING), Cause::ServerQuota);
}

#[test]
fn a_log_that_is_read_continues_beside_logs_that_take_all_space() {
    let server = Quota::server(1 << 20);
    let session = Quota::session(&server, 1 << 30);
    let options = Options { retain_bytes: 1 << 30, segment_bytes: None };
    let new = || Log::with_space(options, Quota::process(&session, 1 << 30));
    let (mut read, mut greedy) = (new(), new());
    let (mut written, mut first) = (0, 0);
    while written < 4 << 20 {
        take_everything(&mut greedy);
        let all_read = Hold::After(Point { seq: read.last(), offset: read.offset });
        let Room::Bytes(room) = read.writer().room(all_read) else {
            panic!("it is full after {written} bytes");
        };
        let at_ms = read.next_at().1;
        let bytes = vec![b'x'; room.min(5000)];
        assert!(append(read.writer(), Stream::Stdout, at_ms, &bytes).unwrap().is_written);
        read.pushed(Stream::Stdout, at_ms, &bytes);
        written += bytes.len();
        let position = read.writer().position();
        assert_eq!(position.next_seq, read.last() + 1);
        first = position.first_seq;
        assert!(server.used() <= server.limit(), "{} of {}", server.used(), server.limit());
    }
    assert!(first > 1, "it has replaced segments");
    assert_faithful(&read.read(), &read.events);
    read.exited(b"exit");
    read.closed(b"");
    greedy.exited(b"exit");
    greedy.closed(b"");
    assert_eq!(greedy.read(), greedy.events);
}
