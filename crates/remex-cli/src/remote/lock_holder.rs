//! The holder of a lock file of a state directory: the server, or the keeper of its durable processes.
//!
//! Start at [`holder`].

#[cfg(target_os = "linux")]
mod ending;

#[cfg(target_os = "linux")]
use std::os::unix::fs::MetadataExt as _;
use std::{
    fs::File,
    io::{self, Read as _},
    path::{Path, PathBuf},
};

#[cfg(target_os = "linux")]
pub(crate) use ending::Ending;
use rustix::{
    fs::{FlockOperation, Mode, OFlags},
    process::Pid,
};

#[cfg(target_os = "linux")]
use crate::render::failure::Failure;

/// The holder of a lock file, if any.
pub(crate) enum Found {
    Nobody,
    /// A process that has not identified itself yet.
    Starting,
    By(Holder),
}

/// The process that holds a lock file, and the content of that file.
pub(crate) struct Holder {
    pub(crate) pid: Pid,
    /// The description of a server; a keeper writes none.
    pub(crate) server: Option<ServerWords>,
}

/// The description of a server in its lock file.
pub(crate) struct ServerWords {
    pub(crate) program: PathBuf,
    /// How it is, as [`handover`](crate::commands::serve::handover) has it.
    pub(crate) status: String,
    /// When it reported the status; only compared for equality.
    pub(crate) when: String,
    /// The unix sockets on which it listens; an older server does not record them.
    pub(crate) sockets: Vec<PathBuf>,
}

/// Fails if the pid in a lock file is not that of a process of this host which has the file open.
///
/// A server in a container, or one that uses the same file from another host, has a pid that means something else here.
#[cfg(target_os = "linux")]
pub(crate) fn check_here(pid: Pid, lock: &Path, goal: &str) -> Result<(), Failure> {
    let is_lock = |file: &std::fs::Metadata| {
        std::fs::metadata(lock).is_ok_and(|lock| (file.dev(), file.ino()) == (lock.dev(), lock.ino()))
    };
    let mut descriptors =
        std::fs::read_dir(format!("/proc/{}/fd", pid.as_raw_nonzero())).into_iter().flatten().flatten();
    if descriptors.any(|entry| entry.path().metadata().is_ok_and(|file| is_lock(&file))) {
        return Ok(());
    }
    let why = format!(
        "the process that uses it, with pid {} where it runs, is in a container, on another host or of another user",
        pid.as_raw_nonzero()
    );
    Err(Failure::new(format!("cannot {goal}"), "do it where that process runs, as its user").because(why))
}

/// Returns who holds a lock file.
pub(crate) fn holder(lock: &Path) -> io::Result<Found> {
    // A FIFO would be waited for otherwise.
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mut file = match rustix::fs::open(lock, flags, Mode::empty()) {
        Err(rustix::io::Errno::NOENT) => return Ok(Found::Nobody),
        opened => File::from(opened?),
    };
    if !file.metadata()?.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not a regular file"));
    }
    if rustix::fs::flock(&file, FlockOperation::NonBlockingLockShared).is_ok() {
        return Ok(Found::Nobody);
    }
    let mut text = String::new();
    file.read_to_string(&mut text)?;
    let mut lines = text.lines();
    let Some(pid) = lines.next().and_then(|line| line.parse().ok()).and_then(Pid::from_raw) else {
        return Ok(Found::Starting);
    };
    let server = match (lines.next(), lines.next(), lines.next()) {
        (Some(program), Some(status), Some(when)) => {
            let (program, status, when) = (program.into(), status.to_owned(), when.to_owned());
            Some(ServerWords { program, status, when, sockets: lines.map(PathBuf::from).collect() })
        }
        _ => None,
    };
    Ok(Found::By(Holder { pid, server }))
}
