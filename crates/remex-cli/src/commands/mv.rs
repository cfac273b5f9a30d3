//! `remex mv`: renames files and directories on one host.

use std::{collections::BTreeSet, ffi::OsString, path::Path, sync::Arc};

use remex_base::quote::shell_word;
use remex_client::{Error, ErrorKind, fs::Fs};

use super::{Outcome, cat::Failures};
use crate::{
    args::mv::Flags,
    remote::path_arg::{Connections, EntryKind, RemotePath, note_local_paths},
    render::{
        failure::{Failure, Kind},
        print,
        text::plain,
    },
};

/// How often a rename that a disconnect interrupted is tried.
const TRIES: u32 = 8;

/// Whether an existing file is replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Existing {
    Replace,
    Keep,
}

pub(crate) async fn run(flags: &Flags) -> Outcome {
    note_local_paths(flags.sources.iter().chain([&flags.destination]));
    let mut connections = Connections::default();
    let moved = move_all(flags, &mut connections).await;
    connections.close().await;
    moved
}

async fn move_all(flags: &Flags, connections: &mut Connections) -> Outcome {
    let mut sources = Vec::new();
    for arg in &flags.sources {
        sources.push(connections.reach(arg, |text| print::note(text)).await?);
    }
    let destination = connections.reach(&flags.destination, |text| print::note(text)).await?;
    // Before anything is moved.
    for source in &sources {
        check_host(source, &destination)?;
        source.check_may_go("move").await?;
    }
    let into = match destination.at.fs.metadata(&destination.path).await {
        Ok(there) => there.is_directory,
        Err(error) if error.kind() == Some(ErrorKind::NotFound) => false,
        Err(error) => return Err(destination.failed("move to", error)),
    };
    if sources.len() > 1 && !into {
        let what = format!("cannot move {} sources to `{}`", sources.len(), plain(&destination.shown));
        return Err(Failure::usage(what, "choose an existing directory, or move a single source")
            .because("it is not an existing directory"));
    }
    let mut names = BTreeSet::new();
    for name in sources.iter().filter(|_| into).map(name) {
        if !names.insert(name.clone()) {
            let what = format!("cannot move two sources with the name `{}`", plain(&name.to_string_lossy()));
            return Err(Failure::usage(what, "move one of them to another name"));
        }
    }
    let existing = if flags.no_clobber { Existing::Keep } else { Existing::Replace };
    let mut failures = Failures::default();
    for source in &sources {
        let to = if into { destination.join(&name(source)) } else { destination.clone() };
        if let Err(failure) = move_one(source, &to, existing).await {
            failures.add(failure)?;
        }
    }
    Ok(failures.code())
}

/// Returns the name of a source, which is not the root.
fn name(source: &RemotePath) -> OsString {
    source.path.file_name().map(ToOwned::to_owned).unwrap_or_default()
}

fn check_host(source: &RemotePath, destination: &RemotePath) -> Result<(), Failure> {
    if Arc::ptr_eq(&source.at, &destination.at) {
        return Ok(());
    }
    let what = format!("cannot move `{}` to `{}`", plain(&source.shown), plain(&destination.shown));
    let hint = "copy it with `remex cp`, and then remove the source with `remex rm`";
    Err(Failure::usage(what, hint).because("they are on different hosts"))
}

async fn move_one(from: &RemotePath, to: &RemotePath, existing: Existing) -> Result<(), Failure> {
    let kind = from.entry_kind().await.map_err(|error| from.failed("move", error))?;
    from.check_slash(kind, "move")?;
    let refused = |why: String, hint: &str| {
        Err(Failure::new(format!("cannot move `{}`", plain(&from.shown)), hint).because(why))
    };
    let shown = plain(&to.shown);
    let (real_from, real_to) = (from.real_entry().await, to.real_entry().await);
    let real_from = real_from.map_err(|error| from.failed("move", error))?;
    let real_to = real_to.map_err(|error| to.failed("move to", error))?;
    if real_from == real_to {
        return refused(format!("`{shown}` is the same"), "choose another name");
    }
    if kind == EntryKind::Directory && real_to.starts_with(&real_from) {
        return refused(format!("`{shown}` is inside of it"), "choose a destination outside of it");
    }
    match to.find_entry_kind().await.map_err(|error| to.failed("move to", error))? {
        None if to.is_directory && kind != EntryKind::Directory => {
            return Err(Failure::of(
                Kind::NotFound,
                format!("cannot move `{}`", plain(&from.shown)),
                "create it with `remex mkdir`, or omit the trailing slash",
            )
            .because(format!("directory `{shown}` does not exist")));
        }
        None => {}
        Some(_) if existing == Existing::Keep => {
            return refused(
                format!("`{shown}` already exists"),
                "choose another name, or omit `--no-clobber`",
            );
        }
        Some(EntryKind::Directory) if kind != EntryKind::Directory => {
            return refused(format!("`{shown}` is a directory"), "choose another name");
        }
        Some(EntryKind::Link | EntryKind::Other) if kind == EntryKind::Directory => {
            return refused(format!("`{shown}` is not a directory"), "remove it, or choose another name");
        }
        Some(there) => to.check_slash(there, "move to")?,
    }
    rename(&from.at.fs, &from.path, &to.path, existing).await.map_err(|error| match error.kind() {
        Some(ErrorKind::CrossDevice) => from.failed("move", error).with_hint(across_file_systems(from, to)),
        Some(ErrorKind::AlreadyExists | ErrorKind::NotEmpty) => {
            from.failed("move", error).with_hint("remove what is at the destination, or choose another name")
        }
        _ => from.failed("move", error),
    })
}

/// Returns the command that moves between file systems: only there can it keep owners, hard links and pipes.
fn across_file_systems(from: &RemotePath, to: &RemotePath) -> String {
    let quoted = |path: &RemotePath| shell_word(&path.path.to_string_lossy()).into_owned();
    let mut command = format!("mv -T {} {}", quoted(from), quoted(to));
    if !from.at.is_here {
        command = format!("remex run --on {} -- {command}", plain(&from.at.name));
    }
    format!("it has to be copied and then removed, which `{command}` does")
}

/// Renames; after a disconnect, finds out whether that was done.
async fn rename(fs: &Fs, from: &Path, to: &Path, existing: Existing) -> Result<(), Error> {
    let mut tries = 1;
    loop {
        let renamed = match existing {
            Existing::Replace => fs.rename(from, to).await,
            Existing::Keep => fs.rename(from, to).keep_existing().await,
        };
        match renamed {
            Err(Error::Interrupted { .. }) if is_gone(fs, from).await? && !is_gone(fs, to).await? => {
                return Ok(());
            }
            Err(Error::Interrupted { .. }) if tries < TRIES => tries += 1,
            renamed => return renamed,
        }
    }
}

/// Returns whether the path does not exist, not even as a dangling link.
async fn is_gone(fs: &Fs, path: &Path) -> Result<bool, Error> {
    Ok(!fs.exists(path).await? && fs.read_link(path).await.is_err())
}
