//! Unix socket files: restricted to their owner, replaced if stale, removed at the end.

use std::{
    fs::{self, Metadata, Permissions},
    io,
    os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt},
    path::{Path, PathBuf},
};

use rustix::fs::{CWD, RenameFlags, renameat_with};
use tokio::net::{UnixListener, UnixSocket, UnixStream};

/// How many connections may wait to be accepted.
const BACKLOG: u32 = 1024;

/// The kernel stores a path and a NUL in 108 bytes.
const MAX_PATH_LEN: usize = 107;

/// The file of a socket that we listen on; removed on drop, unless another file has replaced it.
#[derive(Debug)]
pub(crate) struct SocketFile {
    path: PathBuf,
    identity: Identity,
}

#[derive(Debug)]
pub(crate) enum Error {
    InUse,
    Occupied,
    PathTooLong,
    Io(io::Error),
}

/// The identity of a file, independent of its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Identity {
    device: u64,
    inode: u64,
}

/// Listens on `path`.
///
/// The socket is created under a temporary name, restricted to its owner before it listens (until then every
/// connect is refused), and renamed when it is ready. So it is never reachable with wider permissions, a socket that
/// refuses connections is really stale, and the umask of the process does not have to change.
pub(crate) async fn bind(path: &Path) -> Result<(UnixListener, SocketFile), Error> {
    let temporary = TemporaryFile(path.with_file_name(temporary_name()));
    if path.as_os_str().len().max(temporary.0.as_os_str().len()) > MAX_PATH_LEN {
        return Err(Error::PathTooLong);
    }
    let socket = UnixSocket::new_stream()?;
    socket.bind(&temporary.0)?;
    fs::set_permissions(&temporary.0, Permissions::from_mode(0o600))?;
    let listener = socket.listen(BACKLOG)?;
    let identity = Identity::of(&fs::symlink_metadata(&temporary.0)?);
    publish(&temporary.0, path).await?;
    Ok((listener, SocketFile { path: path.to_owned(), identity }))
}

/// Renames the socket at `temporary` to `path`; if a stale socket is there, it ends up at `temporary`.
async fn publish(temporary: &Path, path: &Path) -> Result<(), Error> {
    match renameat_with(CWD, temporary, CWD, path, RenameFlags::NOREPLACE) {
        Ok(()) => return Ok(()),
        Err(rustix::io::Errno::EXIST) => {}
        Err(error) => return Err(Error::Io(error.into())),
    }
    let found = fs::symlink_metadata(path)?;
    if !found.file_type().is_socket() {
        return Err(Error::Occupied);
    }
    match UnixStream::connect(path).await {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {}
        // Permission denied or a full backlog also mean that a server listens.
        _ => return Err(Error::InUse),
    }
    exchange(temporary, path)?;
    let removed = fs::symlink_metadata(temporary)?;
    if Identity::of(&removed) == Identity::of(&found) {
        return Ok(());
    }
    // Another server has replaced the stale socket in the meantime: the path is in use.
    exchange(temporary, path)?;
    Err(Error::InUse)
}

fn exchange(one: &Path, other: &Path) -> io::Result<()> {
    Ok(renameat_with(CWD, one, CWD, other, RenameFlags::EXCHANGE)?)
}

fn temporary_name() -> String {
    let mut random = [0; 4];
    getrandom::fill(&mut random).expect("the kernel provides random bytes");
    format!(".{:08x}", u32::from_ne_bytes(random))
}

impl Identity {
    fn of(metadata: &Metadata) -> Self {
        Identity { device: metadata.dev(), inode: metadata.ino() }
    }
}

impl SocketFile {
    /// Takes over the file of a socket.
    pub(crate) fn of(path: &Path) -> io::Result<Self> {
        Ok(SocketFile { path: path.to_owned(), identity: Identity::of(&fs::symlink_metadata(path)?) })
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        let ours = fs::symlink_metadata(&self.path).is_ok_and(|found| Identity::of(&found) == self.identity);
        if ours && let Err(error) = fs::remove_file(&self.path) {
            tracing::warn!(path = %self.path.display(), %error, "cannot remove socket file");
        }
    }
}

/// A temporary file, removed on drop unless it was renamed.
struct TemporaryFile(PathBuf);

impl Drop for TemporaryFile {
    fn drop(&mut self) {
        // It has usually been renamed.
        let _ = fs::remove_file(&self.0);
    }
}

impl From<io::Error> for Error {
    fn from(error: io::Error) -> Self {
        Error::Io(error)
    }
}
