//! `remex mkdir`: creates directories.

use remex_client::ErrorKind;

use super::{Outcome, cat::Failures};
use crate::{
    args::mkdir::Flags,
    remote::path_arg::{Connections, RemotePath, note_local_paths},
    render::{failure::Failure, print},
};

pub(crate) async fn run(flags: &Flags) -> Outcome {
    note_local_paths(&flags.paths);
    let mut connections = Connections::default();
    let mut failures = Failures::default();
    for arg in &flags.paths {
        let made = match connections.reach(arg, |text| print::note(text)).await {
            Ok(path) if flags.parents => make_with_parents(&path).await,
            Ok(path) => make(&path).await,
            Err(failure) => failures.add_unreachable(failure),
        };
        if let Err(failure) = made {
            failures.add(failure)?;
        }
    }
    connections.close().await;
    Ok(failures.code())
}

async fn make(path: &RemotePath) -> Result<(), Failure> {
    path.at.fs.create_dir(&path.path).await.map_err(|error| {
        let (is_missing, exists) =
            (error.kind() == Some(ErrorKind::NotFound), error.kind() == Some(ErrorKind::AlreadyExists));
        let failure = path.failed("create", error);
        match () {
            () if is_missing => failure.with_hint("add `-p` to create its parents as well"),
            () if exists => {
                failure.with_hint("choose another name; with `-p` an existing directory is no error")
            }
            () => failure,
        }
    })
}

async fn make_with_parents(path: &RemotePath) -> Result<(), Failure> {
    path.at.fs.create_dir_all(&path.path).await.map_err(|error| path.failed("create", error))
}
