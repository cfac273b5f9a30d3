//! `remex rm ENV:path`: removes files and directories on remote hosts.

use remex_client::{Error, ErrorKind};

use crate::{
    args::rm::Flags,
    commands::{Outcome, cat::Failures},
    remote::path_arg::{Connections, EntryKind, PathArg, RemotePath},
    render::{failure::Failure, print, text::plain},
};

/// How often a removal that a disconnect interrupted is tried.
const TRIES: u32 = 8;

/// Whether directories are removed recursively.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Directories {
    Refuse,
    Remove,
}

/// Removes paths, each of which has a colon.
pub(super) async fn remove(args: &[&PathArg], flags: &Flags) -> Outcome {
    let mut connections = Connections::default();
    let removed = remove_all(args, flags, &mut connections).await;
    connections.close().await;
    removed
}

async fn remove_all(args: &[&PathArg], flags: &Flags, connections: &mut Connections) -> Outcome {
    let directories = if flags.recursive { Directories::Remove } else { Directories::Refuse };
    let mut failures = Failures::default();
    let mut paths = Vec::new();
    for arg in args {
        match connections.reach(arg, |text| print::note(text)).await {
            Ok(path) => {
                // Before anything is removed.
                path.check_may_go("remove").await?;
                paths.push(path);
            }
            Err(failure) => failures.add_unreachable(failure)?,
        }
    }
    for path in paths {
        match remove_one(&path, directories).await {
            Ok(()) => {}
            Err(failure) if flags.force && failure.refusal() == Some(ErrorKind::NotFound) => {}
            Err(failure) => failures.add(failure)?,
        }
    }
    Ok(failures.code())
}

async fn remove_one(path: &RemotePath, directories: Directories) -> Result<(), Failure> {
    let failed = |error| path.failed("remove", error);
    let kind = path.entry_kind().await.map_err(failed)?;
    path.check_slash(kind, "remove")?;
    if kind == EntryKind::Directory && directories == Directories::Refuse {
        let what = format!("cannot remove `{}`", plain(&path.shown));
        return Err(
            Failure::new(what, "add `-r` to remove it with everything in it").because("it is a directory")
        );
    }
    let mut tries = 0;
    loop {
        let removed = match kind {
            EntryKind::Directory => path.at.fs.remove(&path.path).recursive().missing_ok().await,
            EntryKind::Link | EntryKind::Other => path.at.fs.remove(&path.path).await,
        };
        match removed {
            Ok(()) => return Ok(()),
            Err(Error::Interrupted { .. }) if tries < TRIES => tries += 1,
            // It was removed before the disconnect.
            Err(error) if tries > 0 && error.kind() == Some(ErrorKind::NotFound) => return Ok(()),
            Err(error) => return Err(failed(error)),
        }
    }
}
