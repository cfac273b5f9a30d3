//! The state directory of a durable server: where everything is, who may use it, and in which form.
//!
//! ```text
//! version           the form of everything here
//! tags              the number that marks the processes of the keeper
//! server.lock       held by the server; its pid, its program, how it is, since when, and its unix sockets
//! keeper.lock       held by the keeper
//! keeper.sock       where the keeper listens
//! keeper.log        what the keeper has to say
//! processes/KEY/    the description and the log of one process
//! spares/N/         the same for a process that will start
//! sessions/ID.json  a session; ID.starts its starts that are not in `processes`
//! ```

mod files;

use std::{
    fs::{self, DirBuilder, File, OpenOptions},
    io::{self, Read as _, Write as _},
    os::{
        fd::{AsFd, AsRawFd as _, BorrowedFd},
        unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _},
    },
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use remex_base::trace::LOG_TARGET;
use remex_process::Tags;
use rustix::fs::FlockOperation;

#[cfg(any(test, feature = "testing"))]
pub(crate) use files::ON_SYNC;
pub(crate) use files::{Survival, open_regular, read, replace, sync, sync_dir};

/// The form of what is in a state directory.
const VERSION: u32 = 1;

/// How long a server that has just been killed may take to end.
const LOCK_PATIENCE: Duration = Duration::from_secs(5);
const LOCK_PAUSE: Duration = Duration::from_millis(5);

/// A state directory that this process may use.
#[derive(Debug)]
pub struct StateDir {
    path: PathBuf,
    /// Paths below it are as short as a socket address needs.
    dir: File,
    tags: Tags,
}

/// Why a state directory cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum StateError {
    #[error("cannot {action} `{}`: {error}", path.display())]
    Io { action: &'static str, path: PathBuf, error: io::Error },
    #[error("cannot trust `{}`: it is not a private directory of this user", .0.display())]
    NotPrivate(PathBuf),
    #[error("`{}` is in use by another server{}", path.display(), pid.map(|pid| format!(" (pid {pid})")).unwrap_or_default())]
    InUse { path: PathBuf, pid: Option<u32> },
    #[error("`{}` was written by a newer remex (state version {found}; this one knows {VERSION})", path.display())]
    Newer { path: PathBuf, found: u32 },
    #[error("`{}` is damaged: {what}", path.display())]
    Damaged { path: PathBuf, what: String },
    #[error("cannot use `{}`: {error}", path.display())]
    NotRegular { path: PathBuf, error: io::Error },
}

impl StateError {
    /// Returns what to do about it.
    pub(crate) fn hint(&self) -> &'static str {
        match self {
            StateError::Io { .. } => "check the path, its permissions and the space on its disk",
            StateError::NotPrivate(_) => "`chmod 700` it if it is yours, or choose another directory",
            StateError::InUse { .. } => "stop that server, or choose another state directory",
            StateError::Newer { .. } => "use that version or a later one, or choose another state directory",
            StateError::Damaged { .. } => "remove that file, or choose another state directory",
            StateError::NotRegular { .. } => {
                "find out who has put it there, and remove it, or choose another state directory"
            }
        }
    }
}

/// A lock that ends with the process that has it.
#[derive(Debug)]
pub struct Lock {
    file: File,
}

impl Lock {
    /// Writes into the lock file who holds it, and further lines for those who read it.
    fn say(&self, lines: &[&str]) -> io::Result<()> {
        let mut text = format!("{}\n", std::process::id());
        for line in lines {
            text.push_str(&line.replace('\n', " "));
            text.push('\n');
        }
        self.file.set_len(0)?;
        (&self.file).write_all(text.as_bytes())
    }

    /// Records the program of the server, its status with the time, and its unix sockets in the lock file, which only
    /// commands of remex on this host read.
    pub fn say_status(&self, program: &Path, status: &str, sockets: &[PathBuf]) {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
        let when = format!("{}.{:09}", now.tv_sec, now.tv_nsec);
        let (program, sockets) = (
            program.to_string_lossy(),
            sockets.iter().map(|path| path.to_string_lossy()).collect::<Vec<_>>(),
        );
        let lines: Vec<_> =
            [&*program, status, &when].into_iter().chain(sockets.iter().map(|path| &**path)).collect();
        if let Err(error) = self.say(&lines) {
            tracing::warn!(target: LOG_TARGET, %error, "cannot write to the lock file of the server");
        }
    }

    /// Goes on with a lock that the program before this one has passed on.
    pub(crate) fn passed(file: File) -> Self {
        Lock { file }
    }
}

impl AsFd for Lock {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl StateDir {
    /// Opens the directory, and creates it if it is not there.
    pub(crate) fn open(path: &Path) -> Result<Self, StateError> {
        let failed = |action, path: &Path| {
            let path = path.to_owned();
            move |error| StateError::Io { action, path, error }
        };
        DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(failed("create", path))?;
        let path = fs::canonicalize(path).map_err(failed("find", path))?;
        let dir = File::open(&path).map_err(failed("open", &path))?;
        let metadata = dir.metadata().map_err(failed("inspect", &path))?;
        let is_own = metadata.uid() == rustix::process::geteuid().as_raw();
        if !metadata.is_dir() || !is_own || metadata.mode() & 0o077 != 0 {
            return Err(StateError::NotPrivate(path));
        }
        let version = path.join("version");
        if !version.exists() {
            sync_ancestors(&path).map_err(failed("sync", &path))?;
        }
        match number_in(&version, || VERSION.into())? {
            0 => {
                let what = "there is no state version 0".to_owned();
                return Err(StateError::Damaged { path: version, what });
            }
            // Files of earlier versions are read as they are: the format has not changed yet.
            found if found <= u64::from(VERSION) => {}
            found => {
                let found = u32::try_from(found).unwrap_or(u32::MAX);
                return Err(StateError::Newer { path, found });
            }
        }
        let tags_file = path.join("tags");
        let number = number_in(&tags_file, || Tags::new().number())?;
        let tags = Tags::from_number(number).ok_or_else(|| StateError::Damaged {
            path: tags_file,
            what: format!("{number} is not a number of tags"),
        })?;
        for below in ["processes", "sessions"] {
            let below = path.join(below);
            DirBuilder::new().recursive(true).mode(0o700).create(&below).map_err(failed("create", &below))?;
        }
        // Every start that survives a power failure syncs the names in the directory itself.
        Ok(StateDir { path, dir, tags })
    }

    /// Takes the lock of the server; waits a little for one that is just ending.
    pub(crate) fn lock_server(&self) -> Result<Lock, StateError> {
        self.lock("server.lock", LOCK_PATIENCE)
    }

    /// Takes the lock of the keeper.
    pub(crate) fn lock_keeper(&self) -> Result<Lock, StateError> {
        self.lock_keeper_within(LOCK_PATIENCE)
    }

    /// Takes the lock of the keeper; waits for one that ends in this time.
    pub(crate) fn lock_keeper_within(&self, patience: Duration) -> Result<Lock, StateError> {
        self.lock("keeper.lock", patience)
    }

    /// Returns whether servers find this lock of a keeper; not if the directory was deleted or replaced.
    pub(crate) fn has_keeper_lock(&self, lock: &Lock) -> bool {
        let (Ok(own), Ok(found)) = (lock.file.metadata(), fs::metadata(self.path.join("keeper.lock"))) else {
            return false;
        };
        (own.dev(), own.ino()) == (found.dev(), found.ino())
    }

    /// Returns whether there is certainly no keeper: its lock file exists, and no process holds the lock.
    pub(crate) fn has_no_keeper(&self) -> bool {
        let lock = open_regular(OpenOptions::new().read(true), &self.path.join("keeper.lock"));
        lock.is_ok_and(|lock| rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive).is_ok())
    }

    fn lock(&self, name: &str, patience: Duration) -> Result<Lock, StateError> {
        let path = self.path.join(name);
        let failed = |error| unusable("lock", &path, error);
        let mut options = OpenOptions::new();
        options.create(true).read(true).append(true).mode(0o600);
        let mut file = open_regular(&options, &path).map_err(failed)?;
        let deadline = Instant::now() + patience;
        loop {
            match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => break,
                Err(rustix::io::Errno::WOULDBLOCK) if Instant::now() < deadline => {
                    std::thread::sleep(LOCK_PAUSE);
                }
                Err(rustix::io::Errno::WOULDBLOCK) => {
                    let mut text = String::new();
                    let _ = file.read_to_string(&mut text);
                    let pid = text.lines().next().and_then(|line| line.parse().ok());
                    return Err(StateError::InUse { path: self.path.clone(), pid });
                }
                Err(error) => return Err(failed(error.into())),
            }
        }
        let lock = Lock { file };
        lock.say(&[]).map_err(failed)?;
        Ok(lock)
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the tags of the keeper's processes.
    pub fn tags(&self) -> &Tags {
        &self.tags
    }

    /// Returns the address of the keeper, whatever the length of the path.
    pub(crate) fn socket(&self) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}/keeper.sock", self.dir.as_raw_fd()))
    }

    pub fn processes(&self) -> PathBuf {
        self.path.join("processes")
    }

    pub(crate) fn spares(&self) -> PathBuf {
        self.path.join("spares")
    }

    pub fn sessions(&self) -> PathBuf {
        self.path.join("sessions")
    }
}

/// Waits until the names on the way to a new directory are on the disk: some may have been created with it.
fn sync_ancestors(path: &Path) -> io::Result<()> {
    path.ancestors().skip(1).try_for_each(|dir| match sync_dir(dir) {
        // Those that this user cannot read were there before.
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Ok(()),
        synced => synced,
    })
}

/// Returns why a file of the state directory cannot be used.
fn unusable(action: &'static str, path: &Path, error: io::Error) -> StateError {
    let path = path.to_owned();
    match error.kind() {
        io::ErrorKind::InvalidInput => StateError::NotRegular { path, error },
        _ => StateError::Io { action, path, error },
    }
}

/// Returns the number in a file, or writes a new one if the file is not there.
fn number_in(path: &Path, new: impl FnOnce() -> u64) -> Result<u64, StateError> {
    let failed = |action| {
        let path = path.to_owned();
        move |error| unusable(action, &path, error)
    };
    match read(path).map(|content| String::from_utf8_lossy(&content).into_owned()) {
        Ok(text) => text.trim().parse().map_err(|_| StateError::Damaged {
            path: path.to_owned(),
            what: "it does not contain a number".to_owned(),
        }),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let number = new();
            replace(path, format!("{number}\n").as_bytes(), Survival::PowerFailure)
                .map_err(failed("write"))?;
            Ok(number)
        }
        Err(error) => Err(failed("read")(error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fifo_in_the_place_of_a_file_is_refused_with_its_name() {
        for name in ["version", "tags", "server.lock", "keeper.lock"] {
            let parent = tempfile::tempdir().unwrap();
            let path = parent.path().join("state");
            drop(StateDir::open(&path).unwrap());
            let _ = fs::remove_file(path.join(name));
            rustix::fs::mkfifoat(rustix::fs::CWD, path.join(name), rustix::fs::Mode::RWXU).unwrap();
            let open = || {
                let state = StateDir::open(&path)?;
                Ok::<_, StateError>((state.lock_server()?, state.lock_keeper()?))
            };
            let error = open().unwrap_err();
            assert!(matches!(error, StateError::NotRegular { .. }), "{name}: {error}");
            assert!(error.to_string().contains(&format!("/{name}`: it is not a regular file")), "{error}");
        }
    }

    #[test]
    fn a_keeper_notices_that_its_directory_was_deleted_or_replaced() {
        let parent = tempfile::tempdir().unwrap();
        let path = parent.path().join("state");
        let state = StateDir::open(&path).unwrap();
        let lock = state.lock_keeper().unwrap();
        assert!(state.has_keeper_lock(&lock));
        fs::remove_dir_all(&path).unwrap();
        assert!(!state.has_keeper_lock(&lock));
        let _other = StateDir::open(&path).unwrap().lock_keeper().unwrap();
        assert!(!state.has_keeper_lock(&lock));
    }
}
