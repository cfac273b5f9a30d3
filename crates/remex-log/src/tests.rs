//! Tests of whole logs: written, damaged, read back. Start at [`Log`].

mod crash;
mod damage;
mod full;
mod model;
mod power;
mod reading;
mod writing;

use std::{
    fs,
    io::{self, ErrorKind},
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use tempfile::TempDir;

use crate::{
    Appended, Cause, Cursor, Gap, GapCause, Hold, Item, Options, Point, Reader, Room, Seq, Space, Stream,
    Unlimited, Writer,
    base::disk::{Disk, FileSystem},
};

/// Small segments, much retention.
const SMALL: Options = Options { retain_bytes: 1 << 30, segment_bytes: Some(600) };

/// An item that owns its bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Event {
    Output { seq: Seq, stream: Stream, at_ms: u64, offset: u64, bytes: Vec<u8> },
    Exited { seq: Seq, at_ms: u64, payload: Vec<u8> },
    Closed { seq: Seq, at_ms: u64, payload: Vec<u8> },
    Gap(Gap),
}

impl Event {
    fn of(item: Item<'_>) -> Event {
        match item {
            Item::Output { seq, stream, at_ms, offset, bytes } => {
                Event::Output { seq, stream, at_ms, offset, bytes: bytes.to_vec() }
            }
            Item::Exited { seq, at_ms, payload } => Event::Exited { seq, at_ms, payload: payload.to_vec() },
            Item::Closed { seq, at_ms, payload } => Event::Closed { seq, at_ms, payload: payload.to_vec() },
            Item::Gap(gap) => Event::Gap(gap),
        }
    }

    /// Returns the first and the last number, and the bytes if known.
    fn extent(&self) -> (Seq, Seq, Option<u64>) {
        match self {
            Event::Output { seq, bytes, .. } => (*seq, *seq, Some(bytes.len() as u64)),
            Event::Exited { seq, .. } | Event::Closed { seq, .. } => (*seq, *seq, Some(0)),
            Event::Gap(gap) => (gap.from_seq, gap.to_seq, gap.bytes),
        }
    }
}

/// A log in a temporary directory, and the events that were appended to it.
struct Log {
    dir: TempDir,
    writer: Option<Writer>,
    events: Vec<Event>,
    offset: u64,
}

impl Log {
    fn new(options: Options) -> Log {
        Log::with_space(options, Arc::new(Unlimited))
    }

    fn with_space(options: Options, space: Arc<dyn Space>) -> Log {
        let dir = temp_dir();
        let writer = Some(Writer::create(dir.path(), options, space).unwrap());
        Log { dir, writer, events: Vec::new(), offset: 0 }
    }

    /// Several segments with every kind of record.
    fn sample() -> Log {
        let mut log = Log::new(SMALL);
        log.writer().note(1, b"what it is").unwrap();
        for round in 0..12_u8 {
            log.append(Stream::Stdout, &[round; 33]);
            log.append(Stream::Stderr, &vec![round; 7 * usize::from(round) + 1]);
            if round == 5 {
                log.drop_output(Stream::Pty, 1000);
            }
            if round == 6 {
                log.writer().note(2, &[6; 20]).unwrap();
            }
            if round == 9 {
                log.exited(b"status 3");
            }
        }
        log.closed(b"bye");
        log
    }

    fn path(&self) -> &Path {
        self.dir.path()
    }

    fn writer(&mut self) -> &mut Writer {
        self.writer.as_mut().unwrap()
    }

    fn last(&self) -> Seq {
        self.events.len() as Seq
    }

    fn next_at(&self) -> (Seq, u64) {
        (self.last() + 1, 1000 + self.last())
    }

    /// Appends output in one piece, with nothing held.
    fn append(&mut self, stream: Stream, bytes: &[u8]) -> Appended {
        let (seq, at_ms) = self.next_at();
        assert!(matches!(self.writer().room(Hold::Nothing), Room::Bytes(room) if room >= bytes.len()));
        let appended = append(self.writer(), stream, at_ms, bytes).unwrap();
        assert_eq!((appended.seq, appended.len), (seq, bytes.len()));
        self.pushed(stream, at_ms, bytes);
        appended
    }

    fn pushed(&mut self, stream: Stream, at_ms: u64, bytes: &[u8]) {
        let seq = self.last() + 1;
        self.events.push(Event::Output { seq, stream, at_ms, offset: self.offset, bytes: bytes.to_vec() });
        self.offset += bytes.len() as u64;
    }

    fn drop_output(&mut self, stream: Stream, len: u64) {
        let cause = Cause::DiskFull;
        let next_seq = self.writer().position().next_seq;
        self.writer().drop_output(stream, len, cause);
        self.offset += len;
        let is_new = self.writer().position().next_seq > next_seq;
        if let Some(Event::Gap(gap)) = self.events.last_mut().filter(|_| !is_new) {
            *gap.bytes.as_mut().unwrap() += len;
            return;
        }
        let seq = self.last() + 1;
        self.events.push(gap(seq, seq, Some(len), GapCause::Dropped(cause)));
    }

    fn exited(&mut self, payload: &[u8]) -> Appended {
        let (seq, at_ms) = self.next_at();
        let appended = self.writer().exited(at_ms, payload).unwrap();
        assert_eq!(appended.seq, seq);
        self.events.push(Event::Exited { seq, at_ms, payload: payload.to_vec() });
        appended
    }

    fn closed(&mut self, payload: &[u8]) -> Appended {
        let (seq, at_ms) = self.next_at();
        let appended = self.writer().closed(at_ms, payload).unwrap();
        assert_eq!(appended.seq, seq);
        self.events.push(Event::Closed { seq, at_ms, payload: payload.to_vec() });
        appended
    }

    fn read(&self) -> Vec<Event> {
        read_all(self.path(), self.last())
    }

    /// The files of the segments, oldest first.
    fn segments(&self) -> Vec<PathBuf> {
        segments(self.path())
    }
}

/// Returns a directory in memory where there is one: these tests make thousands of files.
fn temp_dir() -> TempDir {
    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap()
}

fn append(writer: &mut Writer, stream: Stream, at_ms: u64, bytes: &[u8]) -> Option<Appended> {
    let fill = |buffer: &mut [u8]| {
        let len = bytes.len().min(buffer.len());
        buffer[..len].copy_from_slice(&bytes[..len]);
        Ok::<_, io::Error>(len)
    };
    writer.append(stream, at_ms, bytes.len(), fill).unwrap()
}

fn gap(from_seq: Seq, to_seq: Seq, bytes: Option<u64>, cause: GapCause) -> Event {
    Event::Gap(Gap { from_seq, to_seq, bytes, cause })
}

fn segments(dir: &Path) -> Vec<PathBuf> {
    crate::base::names::list(dir).unwrap().iter().map(|name| dir.join(name.file_name())).collect()
}

fn read_all(dir: &Path, up_to: Seq) -> Vec<Event> {
    read_from(&mut Reader::open(dir).unwrap(), Cursor::START, up_to)
}

fn read_from(reader: &mut Reader, mut cursor: Cursor, up_to: Seq) -> Vec<Event> {
    let mut events = Vec::new();
    while let Some(item) = reader.next(&mut cursor, up_to).unwrap() {
        events.push(Event::of(item));
    }
    events
}

/// Asserts that `read` is `written` with some events replaced by gaps, whose numbers and bytes are right.
///
/// Returns the missing events.
fn assert_faithful(read: &[Event], written: &[Event]) -> Vec<Seq> {
    let mut next = 1;
    let mut missing = Vec::new();
    for event in read {
        let (from, to, bytes) = event.extent();
        assert_eq!(from, next, "numbers follow each other");
        next = to + 1;
        let true_events = &written[from as usize - 1..to as usize];
        if true_events == [event.clone()] {
            continue;
        }
        assert!(matches!(event, Event::Gap(_)), "{event:?} is not {true_events:?}");
        let true_bytes = true_events.iter().map(|event| event.extent().2.unwrap()).sum::<u64>();
        assert!(bytes.is_none_or(|bytes| bytes == true_bytes), "{event:?} has {true_bytes} bytes");
        assert!(bytes.is_some() || to == written.len() as Seq, "{event:?} must know its bytes");
        missing.extend(from..=to);
    }
    assert_eq!(next, written.len() as Seq + 1, "everything is read");
    missing
}

/// A disk on which operations fail from some moment on.
#[derive(Clone)]
struct FailingDisk {
    /// Operations that succeed from now on.
    left: Arc<AtomicU64>,
    /// How they fail then.
    failure: Failure,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Failure {
    /// Every operation fails, and a write is torn, as if the process had been killed.
    Crash,
    /// Operations that need space fail.
    Full,
    /// Operations that need space report an I/O error.
    Broken,
    /// As `Full`, and space cannot be allocated ahead on this file system.
    FullWithoutAllocation,
}

impl FailingDisk {
    fn new(failure: Failure, after: u64) -> FailingDisk {
        FailingDisk { left: Arc::new(AtomicU64::new(after)), failure }
    }

    fn set_left(&self, left: u64) {
        self.left.store(left, Ordering::Relaxed);
    }

    fn spend(&self) -> io::Result<()> {
        let spend = |left: u64| left.checked_sub(1);
        match self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, spend) {
            Ok(_) => Ok(()),
            Err(_) if self.failure == Failure::Crash => Err(ErrorKind::Other.into()),
            Err(_) if self.failure == Failure::Broken => Err(rustix::io::Errno::IO.into()),
            Err(_) => Err(rustix::io::Errno::NOSPC.into()),
        }
    }

    fn spend_if_crash(&self) -> io::Result<()> {
        if self.failure == Failure::Crash { self.spend() } else { Ok(()) }
    }
}

impl Disk for FailingDisk {
    fn create(&self, path: &Path) -> io::Result<fs::File> {
        self.spend()?;
        FileSystem.create(path)
    }

    fn open(&self, path: &Path) -> io::Result<fs::File> {
        self.spend_if_crash()?;
        FileSystem.open(path)
    }

    fn free(&self, _file: &fs::File) -> io::Result<u64> {
        Ok(0)
    }

    fn allocate(&self, file: &fs::File, from: u64, len: u64) -> io::Result<()> {
        if self.failure == Failure::FullWithoutAllocation {
            return Err(rustix::io::Errno::OPNOTSUPP.into());
        }
        self.spend()?;
        FileSystem.allocate(file, from, len)
    }

    fn write_at(&self, file: &fs::File, bytes: &[u8], at: u64) -> io::Result<usize> {
        // What is allocated can be written, even on a full disk.
        if !matches!(self.failure, Failure::Full | Failure::Broken)
            && let Err(error) = self.spend()
        {
            FileSystem.write_at(file, &bytes[..bytes.len() / 2], at)?;
            return Err(error);
        }
        FileSystem.write_at(file, bytes, at)
    }

    fn truncate(&self, file: &fs::File, len: u64) -> io::Result<()> {
        self.spend_if_crash()?;
        FileSystem.truncate(file, len)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.spend_if_crash()?;
        FileSystem.rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.spend_if_crash()?;
        FileSystem.remove(path)
    }

    fn sync(&self, file: &fs::File) -> io::Result<()> {
        self.spend_if_crash()?;
        FileSystem.sync(file)
    }
}
