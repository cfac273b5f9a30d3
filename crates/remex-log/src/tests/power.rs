//! A power failure between any two file operations: everything that was synced is there afterwards.

use std::{
    collections::HashMap,
    ffi::OsString,
    os::{fd::AsRawFd as _, unix::fs::MetadataExt as _},
    sync::Mutex,
};

use super::*;

/// A disk that ends at some operation, and remembers what was synced by then.
#[derive(Clone)]
struct VolatileDisk {
    disk: FailingDisk,
    /// By inode. The open file keeps the inode from being used again.
    synced: Arc<Mutex<HashMap<u64, (fs::File, Synced)>>>,
}

#[derive(Clone)]
enum Synced {
    File(Vec<u8>),
    Directory(Vec<(OsString, u64)>),
}

/// Which names are there after a power failure. Contents are always those that were synced.
#[derive(Clone, Copy, Debug)]
enum Names {
    Synced,
    /// All: file systems may bring names to the disk early.
    Current,
}

impl VolatileDisk {
    fn ending_after(operations: u64) -> Self {
        VolatileDisk { disk: FailingDisk::new(Failure::Crash, operations), synced: Arc::default() }
    }

    /// Returns a directory with what a power failure leaves of the one at `dir`.
    fn after_power_failure(&self, dir: &Path, names: Names) -> TempDir {
        let after = temp_dir();
        let synced = self.synced.lock().unwrap();
        let known = match synced.get(&fs::metadata(dir).unwrap().ino()) {
            Some((_, Synced::Directory(entries))) => entries.clone(),
            _ => Vec::new(),
        };
        let entries = match names {
            Names::Synced => known,
            Names::Current => entries(dir),
        };
        for (name, inode) in entries {
            let content = match synced.get(&inode) {
                Some((_, Synced::File(content))) => content.clone(),
                _ => Vec::new(),
            };
            fs::write(after.path().join(name), content).unwrap();
        }
        after
    }
}

fn entries(dir: &Path) -> Vec<(OsString, u64)> {
    let entries = fs::read_dir(dir).unwrap().map(Result::unwrap);
    entries.map(|entry| (entry.file_name(), entry.metadata().unwrap().ino())).collect()
}

impl Disk for VolatileDisk {
    fn create(&self, path: &Path) -> io::Result<fs::File> {
        self.disk.create(path)
    }

    fn open(&self, path: &Path) -> io::Result<fs::File> {
        self.disk.open(path)
    }

    fn free(&self, file: &fs::File) -> io::Result<u64> {
        self.disk.free(file)
    }

    fn allocate(&self, file: &fs::File, from: u64, len: u64) -> io::Result<()> {
        self.disk.allocate(file, from, len)
    }

    fn write_at(&self, file: &fs::File, bytes: &[u8], at: u64) -> io::Result<usize> {
        self.disk.write_at(file, bytes, at)
    }

    fn truncate(&self, file: &fs::File, len: u64) -> io::Result<()> {
        self.disk.truncate(file, len)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.disk.rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.disk.remove(path)
    }

    fn sync(&self, file: &fs::File) -> io::Result<()> {
        self.disk.sync(file)?;
        let (metadata, path) = (file.metadata()?, format!("/proc/self/fd/{}", file.as_raw_fd()));
        let synced = if metadata.is_dir() {
            Synced::Directory(entries(Path::new(&path)))
        } else {
            Synced::File(fs::read(path)?)
        };
        self.synced.lock().unwrap().insert(metadata.ino(), (file.try_clone()?, synced));
        Ok(())
    }
}

/// Writes several segments until the disk is gone. Returns what was synced by then, and whether a note was.
fn work(dir: &Path, disk: &VolatileDisk) -> (Vec<Event>, bool) {
    let (mut synced, mut written, mut offset) = (Vec::new(), Vec::new(), 0);
    let mut has_note = false;
    let Ok((mut writer, _)) =
        Writer::open_on(Box::new(disk.clone()), dir.to_path_buf(), SMALL, Arc::new(Unlimited))
    else {
        return (synced, has_note);
    };
    if writer.note(1, b"runs").is_err() || writer.sync().is_err() {
        return (synced, has_note);
    }
    has_note = true;
    for round in 0..12_u8 {
        let bytes = vec![round; 40 * usize::from(round % 5) + 1];
        if !matches!(writer.room(Hold::Nothing), Room::Bytes(_)) {
            return (synced, has_note);
        }
        let Some(appended) = append(&mut writer, Stream::Stdout, 5, &bytes) else {
            return (synced, has_note);
        };
        let (seq, stream, len) = (appended.seq, Stream::Stdout, bytes.len() as u64);
        written.push(Event::Output { seq, stream, at_ms: 5, offset, bytes });
        offset += len;
        if round == 10 {
            let appended = writer.exited(6, b"status").unwrap();
            written.push(Event::Exited { seq: appended.seq, at_ms: 6, payload: b"status".to_vec() });
        }
        if round % 3 == 2 {
            if writer.sync().is_err() {
                return (synced, has_note);
            }
            synced.clone_from(&written);
        }
    }
    (synced, has_note)
}

#[test]
fn everything_synced_survives_a_power_failure_at_any_operation() {
    let mut operations = 0;
    for after in 0.. {
        let dir = temp_dir();
        let disk = VolatileDisk::ending_after(after);
        let (synced, has_note) = work(dir.path(), &disk);
        for names in [Names::Synced, Names::Current] {
            let left = disk.after_power_failure(dir.path(), names);
            let (_, recovered) = Writer::open(left.path(), SMALL, Arc::new(Unlimited)).unwrap();
            let summary = &recovered.summary;
            let note = summary.notes.get(&1).map(Vec::as_slice);
            assert!(!has_note || note == Some(b"runs"), "after {after}, {names:?}: {recovered:?}");
            let exited = synced.iter().any(|event| matches!(event, Event::Exited { .. }));
            assert!(!exited || summary.exited.is_some(), "after {after}, {names:?}: {recovered:?}");
            let read = read_all(left.path(), synced.len() as Seq);
            assert_eq!(read, synced, "after {after}, {names:?}");
        }
        operations = after;
        if disk.disk.left.load(Ordering::Relaxed) > 0 {
            break;
        }
    }
    assert!(operations > 30, "only {operations} operations");
}

#[test]
fn a_sync_after_one_that_failed_does_not_claim_to_cover_it() {
    let dir = temp_dir();
    let (mut writer, _) = Writer::open(dir.path(), SMALL, Arc::new(Unlimited)).unwrap();
    append(&mut writer, Stream::Stdout, 1, b"lost").unwrap();
    let unsynced = writer.unsynced().unwrap();
    unsynced.wait(|_| Err(rustix::io::Errno::IO.into())).unwrap_err();
    append(&mut writer, Stream::Stdout, 1, b"more").unwrap();
    writer.unsynced().unwrap().wait(fs::File::sync_data).unwrap_err();
    writer.sync().unwrap_err();
}
