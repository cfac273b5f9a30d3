//! Rebinds unix sockets whose files were deleted, for example by a program that cleans up `/tmp`.
//!
//! Start at [`serve`].

use std::{
    fs::{self, DirBuilder, Metadata, Permissions},
    io,
    os::unix::fs::{DirBuilderExt as _, MetadataExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use remex_rpc::{ListenAddress, Listener};
use remex_server::Server;

use super::handover::PassedSocket;

/// How often the file of a socket is checked.
const LOOK_PERIOD: Duration = Duration::from_secs(1);

/// Accepts connections until the server shuts down; binds a new socket whenever the file of the current one is gone.
pub(super) async fn serve(server: Arc<Server>, mut listener: Listener, passed: PassedSocket) {
    loop {
        let address = listener.address().clone();
        let ListenAddress::Unix(path) = &address else { return server.serve(listener).await };
        let Ok(file) = fs::symlink_metadata(path) else { return server.serve(listener).await };
        tokio::select! {
            () = Arc::clone(&server).serve(listener) => return,
            again = bound_again(&server, &address, path, file) => {
                if let Err(error) = passed.replace(&again) {
                    tracing::warn!(%error, "the next program will not have this socket");
                }
                listener = again;
            }
        }
    }
}

/// Waits until the file of a socket is gone, and binds another one in its place.
async fn bound_again(server: &Server, address: &ListenAddress, path: &Path, mut file: Metadata) -> Listener {
    let mut is_logged = false;
    loop {
        tokio::time::sleep(LOOK_PERIOD).await;
        match server.run_blocking(look(path.to_owned())).await {
            Some(Ok(found)) if (found.dev(), found.ino()) == (file.dev(), file.ino()) => {
                // Its permissions may have changed.
                file = found;
                continue;
            }
            // Another program listens there now, or the file cannot be inspected.
            Some(Ok(_)) | None => continue,
            Some(Err(error)) if error.kind() != io::ErrorKind::NotFound => continue,
            Some(Err(_)) => {}
        }
        match bind(server, address, path, file.permissions()).await {
            Ok(listener) => {
                tracing::warn!(path = %path.display(), "the socket was deleted; listening there again");
                return listener;
            }
            Err(error) if !is_logged => {
                tracing::error!(path = %path.display(), error, "the socket was deleted, and cannot be bound again; trying on");
                is_logged = true;
            }
            Err(_) => {}
        }
    }
}

fn look(path: PathBuf) -> impl FnOnce() -> io::Result<Metadata> + Send {
    move || fs::symlink_metadata(path)
}

async fn bind(
    server: &Server,
    address: &ListenAddress,
    path: &Path,
    permissions: Permissions,
) -> Result<Listener, String> {
    let directory = path.parent().unwrap_or(Path::new("/")).to_owned();
    let restored = server.run_blocking(move || restore(&directory)).await;
    restored.unwrap_or(Ok(())).map_err(|error| format!("cannot restore its directory: {error}"))?;
    let listener = Listener::bind(address).await.map_err(|error| error.message())?;
    fs::set_permissions(path, Permissions::from_mode(permissions.mode() & 0o777))
        .map_err(|error| error.to_string())?;
    Ok(listener)
}

/// Creates the directory of a socket again, for this user only; refuses one that another user has put there.
fn restore(directory: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
    let found = fs::symlink_metadata(directory)?;
    let is_trusted = [rustix::process::geteuid().as_raw(), 0].contains(&found.uid());
    if found.is_dir() && is_trusted {
        return Ok(());
    }
    Err(io::Error::new(io::ErrorKind::PermissionDenied, "it is not a directory of this user"))
}
