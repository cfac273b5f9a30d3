//! How the servers of one user tell each other which files to hide: by records in the directories of remex.
//!
//! A server with credentials keeps a record while it runs, locked, so that its end ends the record whatever ends it. Each
//! jail of the user, of whichever server, hides what the records name. They contain paths only, and nothing confined sees
//! them. Start at [`CredentialRecord`].

use std::{
    collections::BTreeSet,
    ffi::OsStr,
    fs::{self, DirBuilder, File, OpenOptions},
    io::{self, Read as _, Write as _},
    os::unix::{
        ffi::OsStrExt as _,
        fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _},
    },
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, SystemTime},
};

use remex_base::{lock, trace::LOG_TARGET};
use rustix::{
    fs::{FlockOperation, OFlags, flock},
    process::geteuid,
};

use super::own_directories;

/// Where the records are, in each directory of remex.
const DIRECTORY: &str = "servers";

/// As many records of a directory as are looked at.
const MAX_RECORDS: usize = 256;

/// As much as is read of a record.
const MAX_RECORD_LEN: u64 = 256 * 1024;

/// How coarse the times of a file system may be: what changed more recently may change again unnoticed.
const COARSE: Duration = Duration::from_secs(2);

/// How long the record of a server that was killed may count.
const MAX_AGE: Duration = Duration::from_secs(60);

/// Tells the other servers of this user which files to hide from everything confined, until it is dropped.
#[derive(Debug, Default)]
#[must_use = "the record ends when it is dropped"]
pub struct CredentialRecord {
    copies: Vec<LockedFile>,
}

/// A file with a lock.
#[derive(Debug)]
struct LockedFile {
    path: PathBuf,
    /// Holds the lock.
    _file: File,
}

impl CredentialRecord {
    /// Records the files that exist, in each of the directories that the jails of this user hide.
    ///
    /// Servers may have been started with different variables, so they need not share all directories. Blocks. A failure is
    /// logged: the server itself hides its files all the same.
    pub fn keep(own_directories: &[PathBuf], files: &[PathBuf]) -> Self {
        let paths: Vec<_> = files.iter().filter(|path| path.is_absolute() && path.exists()).collect();
        if paths.is_empty() || own_directories.is_empty() {
            return Self::default();
        }
        let content = paths.iter().map(|path| path.as_os_str().as_bytes()).collect::<Vec<_>>().join(&0);
        let mut copies = Vec::new();
        for directory in own_directories::create(own_directories) {
            match LockedFile::write(&directory.join(DIRECTORY), &content) {
                Ok(copy) => copies.push(copy),
                Err(error) => {
                    tracing::debug!(target: LOG_TARGET, path = %directory.display(), %error, "cannot record which files to hide");
                }
            }
        }
        if copies.is_empty() {
            tracing::warn!(
                target: LOG_TARGET,
                "sandboxes of other servers of this user cannot know which files of this one to hide"
            );
        }
        Self { copies }
    }
}

impl LockedFile {
    fn write(directory: &Path, content: &[u8]) -> io::Result<Self> {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
        let time = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_nanos();
        let name = format!("{}-{time:x}-{}", std::process::id(), NUMBER.fetch_add(1, Relaxed));
        let (unfinished, path) = (directory.join(format!(".{name}")), directory.join(name));
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&unfinished)?;
        // Nobody sees it without its lock or its content.
        let written = flock(&file, FlockOperation::NonBlockingLockExclusive)
            .map_err(io::Error::from)
            .and_then(|()| file.write_all(content))
            .and_then(|()| fs::rename(&unfinished, &path));
        match written {
            Ok(()) => Ok(Self { path, _file: file }),
            Err(error) => {
                // It means nothing to anybody.
                let _ = fs::remove_file(&unfinished);
                Err(error)
            }
        }
    }
}

impl Drop for CredentialRecord {
    fn drop(&mut self) {
        for copy in &self.copies {
            // Somebody else may have cleaned up. Without its lock it counts no longer.
            let _ = fs::remove_file(&copy.path);
        }
    }
}

/// What the records of all servers of this user name.
#[derive(Debug, Default)]
pub(super) struct Records {
    /// What was read last. Held briefly, never during a system call.
    last: Mutex<Option<Arc<Known>>>,
}

#[derive(Debug)]
struct Known {
    stamps: Vec<Option<Stamp>>,
    read_at: SystemTime,
    files: Vec<PathBuf>,
}

/// What changes with a directory.
#[derive(Debug, PartialEq, Eq)]
struct Stamp {
    inode: u64,
    owner: u32,
    changed: Option<SystemTime>,
}

impl Records {
    /// Returns the files, without links, as far as they exist. May block.
    pub(super) fn files(&self, own_directories: &[PathBuf]) -> Vec<PathBuf> {
        let last = || lock(&self.last);
        let stamps: Vec<_> =
            own_directories.iter().map(|directory| stamp(&directory.join(DIRECTORY))).collect();
        let known = last().clone();
        if let Some(known) = known.filter(|known| known.is_current(&stamps)) {
            return known.files.clone();
        }
        let read_at = SystemTime::now();
        let named: BTreeSet<PathBuf> = own_directories::usable(own_directories)
            .flat_map(|directory| read(&directory.join(DIRECTORY)))
            .collect();
        // One that cannot be found cannot be read there either.
        let real = named.iter().filter_map(|path| fs::canonicalize(path).ok());
        let files: BTreeSet<PathBuf> =
            real.chain(named.iter().filter(|path| path.is_symlink()).cloned()).collect();
        let files: Vec<_> = files.into_iter().collect();
        *last() = Some(Arc::new(Known { stamps, read_at, files: files.clone() }));
        files
    }
}

impl Known {
    fn is_current(&self, stamps: &[Option<Stamp>]) -> bool {
        let is_settled = |stamp: &Stamp| {
            stamp.changed.is_some_and(|at| self.read_at.duration_since(at).is_ok_and(|age| age > COARSE))
        };
        self.stamps == stamps
            && self.stamps.iter().flatten().all(is_settled)
            && self.read_at.elapsed().is_ok_and(|age| age < MAX_AGE)
    }
}

fn stamp(directory: &Path) -> Option<Stamp> {
    let found = fs::symlink_metadata(directory).ok()?;
    Some(Stamp { inode: found.ino(), owner: found.uid(), changed: found.modified().ok() })
}

/// Returns what the records in a directory name, and removes those of servers that have ended.
fn read(directory: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(directory) else { return Vec::new() };
    let entries = entries.filter_map(Result::ok).take(MAX_RECORDS);
    let finished = entries.filter(|entry| !entry.file_name().as_bytes().starts_with(b"."));
    finished.filter_map(|entry| read_record(&entry.path()).ok()).flatten().collect()
}

fn read_record(path: &Path) -> io::Result<Vec<PathBuf>> {
    let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits();
    let file = OpenOptions::new().read(true).custom_flags(flags.cast_signed()).open(path)?;
    let found = file.metadata()?;
    if !found.is_file() || found.uid() != geteuid().as_raw() {
        return Ok(Vec::new());
    }
    if flock(&file, FlockOperation::NonBlockingLockShared).is_ok() {
        // Names are never used again, so it is still that of a server that has ended.
        fs::remove_file(path)?;
        return Ok(Vec::new());
    }
    let mut content = Vec::new();
    file.take(MAX_RECORD_LEN).read_to_end(&mut content)?;
    let paths = content.split(|byte| *byte == 0).map(|bytes| PathBuf::from(OsStr::from_bytes(bytes)));
    Ok(paths.filter(|path| path.is_absolute()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_server_records_is_known_until_it_ends() {
        let directory = tempfile::tempdir().unwrap();
        let place = fs::canonicalize(directory.path()).unwrap();
        let own = [place.join("runtime/remex"), place.join("state/remex")];
        let (token, key) = (place.join("token"), place.join("key"));
        fs::write(&token, "").unwrap();
        fs::write(&key, "").unwrap();
        let records = Records::default();
        assert_eq!(records.files(&own), [] as [PathBuf; 0]);
        assert!(!own[0].exists(), "looking creates nothing");
        let first = CredentialRecord::keep(&own, &[token.clone(), place.join("missing"), "relative".into()]);
        assert_eq!(records.files(&own), std::slice::from_ref(&token));
        assert_eq!(records.files(&own[1..]), std::slice::from_ref(&token), "each directory has it");
        let second = CredentialRecord::keep(&own[1..], std::slice::from_ref(&key));
        assert_eq!(records.files(&own), [key.clone(), token.clone()]);
        drop(first);
        assert_eq!(records.files(&own), [key]);
        drop(second);
        assert_eq!(records.files(&own), [] as [PathBuf; 0]);
        assert_eq!(fs::read_dir(own[0].join(DIRECTORY)).unwrap().count(), 0);
        assert!(CredentialRecord::keep(&own, &[]).copies.is_empty());
    }

    #[test]
    fn the_record_of_a_server_that_was_killed_is_removed() {
        let directory = tempfile::tempdir().unwrap();
        let place = fs::canonicalize(directory.path()).unwrap();
        let own = [place.join("remex")];
        fs::write(place.join("token"), "").unwrap();
        let servers = own[0].join(DIRECTORY);
        fs::create_dir_all(&servers).unwrap();
        let left = servers.join("1-2-3");
        fs::write(&left, place.join("token").as_os_str().as_bytes()).unwrap();
        // Something that is no record, and would hold up who opens it.
        rustix::fs::mkfifoat(rustix::fs::CWD, servers.join("fifo"), rustix::fs::Mode::RUSR).unwrap();
        assert_eq!(Records::default().files(&own), [] as [PathBuf; 0]);
        assert!(!left.exists());
    }

    #[test]
    fn a_settled_directory_is_not_read_again() {
        let now = SystemTime::now();
        let stamp =
            |age: u64| Stamp { inode: 1, owner: 2, changed: now.checked_sub(Duration::from_secs(age)) };
        let known =
            |age: u64| Known { stamps: vec![None, Some(stamp(age))], read_at: now, files: Vec::new() };
        assert!(known(10).is_current(&[None, Some(stamp(10))]));
        assert!(!known(1).is_current(&[None, Some(stamp(1))]), "it may have changed again in the same tick");
        assert!(!known(10).is_current(&[None, Some(stamp(9))]));
        assert!(!known(10).is_current(&[Some(stamp(10)), Some(stamp(10))]));
        let old = Known { read_at: now.checked_sub(MAX_AGE).unwrap(), ..known(1000) };
        assert!(!old.is_current(&[None, Some(stamp(1000))]));
    }
}
