//! Whether the program that listens on a unix socket may be told command lines and environments.

use std::{
    fs, io,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
};

use tokio::net::UnixStream;

use super::Untrusted;

const ROOT: u32 = 0;

/// Permissions of the group and others to create files in a directory.
const OTHERS_WRITE: u32 = 0o022;

/// Checks the program at the other end of a new connection, to which nothing has been sent.
///
/// It is trusted if it runs as this user, the administrator or the owner of the directory, and no sandbox confines it:
/// a confined program has the same user, and may be able to create a socket where a server is expected.
pub(super) fn check(stream: &UnixStream, path: &Path) -> io::Result<()> {
    let server = stream.peer_cred()?;
    let user = server.uid();
    if user != ROOT && user != own_user()? && !is_private_place_of(user, path) {
        return Err(refuse(Untrusted::Foreign { user }));
    }
    #[cfg(target_os = "linux")]
    if let Some(pid) = server.pid().and_then(|pid| u32::try_from(pid).ok()) {
        use remex_rpc::PeerProcess;
        match PeerProcess::find(pid) {
            PeerProcess::Unconfined => {}
            PeerProcess::Jailed => return Err(refuse(Untrusted::Jailed { pid })),
            PeerProcess::Gone => return Err(refuse(Untrusted::Gone { pid })),
        }
    }
    Ok(())
}

/// Returns the user of this process: the peer of its own pair of sockets.
fn own_user() -> io::Result<u32> {
    Ok(UnixStream::pair()?.0.peer_cred()?.uid())
}

/// Returns whether only this user or the administrator can have created a socket.
fn is_private_place_of(user: u32, socket: &Path) -> bool {
    let directory = socket.parent().filter(|parent| !parent.as_os_str().is_empty());
    let directory = directory.map_or_else(|| PathBuf::from("."), Path::to_owned);
    fs::metadata(directory)
        .is_ok_and(|found| (found.uid() == user || found.uid() == ROOT) && found.mode() & OTHERS_WRITE == 0)
}

fn refuse(why: Untrusted) -> io::Error {
    io::Error::new(io::ErrorKind::PermissionDenied, why)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use tokio::net::UnixListener;

    use super::*;

    #[tokio::test]
    async fn a_server_of_the_same_user_is_trusted_at_any_path() {
        let directory = tempfile::tempdir().unwrap();
        fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o1777)).unwrap();
        let path = directory.path().join("socket");
        let _listener = UnixListener::bind(&path).unwrap();
        check(&UnixStream::connect(&path).await.unwrap(), &path).unwrap();
    }

    #[test]
    fn another_user_is_trusted_in_a_directory_only_it_can_write() {
        let directory = tempfile::tempdir().unwrap();
        let owner = fs::metadata(directory.path()).unwrap().uid();
        let socket = directory.path().join("socket");
        let is_private = |user, mode| {
            fs::set_permissions(directory.path(), fs::Permissions::from_mode(mode)).unwrap();
            is_private_place_of(user, &socket)
        };
        assert!(is_private(owner, 0o755));
        assert!(!is_private(owner, 0o1777), "anybody can create a socket first");
        assert!(!is_private(owner, 0o775));
        // The directory of the administrator is a place where others put nothing by themselves.
        assert_eq!(is_private(owner.wrapping_add(1), 0o755), owner == ROOT);
        assert!(!is_private_place_of(owner, Path::new("/nowhere/socket")));
    }
}
