//! Decides the destination of each source: the rules of `cp` for directories, names and slashes.

use std::{
    ffi::OsString,
    path::{Path, PathBuf},
    sync::Arc,
};

use remex_client::{
    Error, ErrorKind,
    fs::{CopyMarker, CopyPath, CopyTask, Extraneous, HostPath, Metadata, MetadataKind},
};

use super::{
    Selection,
    report::{self, Report},
};
use crate::{
    remote::path_arg::RemotePath,
    render::{
        failure::{Failure, Kind},
        text,
    },
};

/// Creates a task for each source; reports and skips missing sources.
pub(super) async fn copy_tasks(
    sources: Vec<RemotePath>,
    destination: &RemotePath,
    selection: &Selection,
    report: &Report,
) -> Result<Vec<CopyTask>, Failure> {
    let there = find_metadata(destination).await?;
    let is_directory = there.as_ref().is_some_and(|there| there.is_directory);
    let shown = text::plain(&destination.shown);
    if !is_directory {
        let what = if there.is_some() { "it is not a directory" } else { "it does not exist" };
        if sources.len() > 1 {
            let kind = if there.is_some() { Kind::Usage } else { Kind::NotFound };
            let failure = Failure::of(
                kind,
                format!("cannot copy {} sources to `{shown}`", sources.len()),
                "choose an existing directory, or copy a single source",
            );
            return Err(failure.because(what));
        }
        check_parent(destination).await?;
    }
    let resolved = resolve(destination).await?;
    let mut copy_tasks: Vec<CopyTask> = Vec::new();
    let is_only = sources.len() == 1;
    let into = DestinationInfo { exists: there.is_some(), is_directory, is_only };
    for from in sources {
        match copy_task(from, destination, &resolved, into, selection).await {
            Ok(copy_task) => {
                check_twice(&copy_tasks, &copy_task)?;
                copy_tasks.push(copy_task);
            }
            Err(failure) => report.failure(failure)?,
        }
    }
    if report.is_incomplete() {
        // A source that is missing may have been what is at the destination.
        copy_tasks.iter_mut().for_each(|task| task.extraneous = Extraneous::Keep);
    } else if selection.extraneous == Extraneous::Delete {
        check_deletion(&copy_tasks)?;
    }
    Ok(copy_tasks)
}

/// Refuses `--delete` without a directory, or where it would delete what another source becomes.
fn check_deletion(copy_tasks: &[CopyTask]) -> Result<(), Failure> {
    if copy_tasks.iter().all(|task| !task.metadata.is_directory) {
        return Err(Failure::usage(
            "`--delete` has no effect on files",
            "copy a directory, or omit `--delete`",
        ));
    }
    for task in copy_tasks.iter().filter(|task| task.metadata.is_directory) {
        let is_within =
            |other: &&CopyTask| other.to.path != task.to.path && other.to.path.starts_with(&task.to.path);
        if let Some(other) = copy_tasks.iter().find(is_within) {
            let (label, to) = (text::plain(&other.from.label), text::plain(&task.to.label));
            return Err(Failure::usage(
                format!("cannot copy `{label}` into `{to}` with `--delete`"),
                "copy it with a command of its own, or omit `--delete`",
            )
            .because(format!(
                "`{}` does not have it, so it would be deleted",
                text::plain(&task.from.label)
            )));
        }
    }
    Ok(())
}

/// Returns the metadata of a path, following links; `None` if it does not exist.
async fn find_metadata(path: &RemotePath) -> Result<Option<Metadata>, Failure> {
    match path.at.fs.metadata(&path.path).await {
        Ok(metadata) => Ok(Some(metadata)),
        Err(error) if error.kind() == Some(ErrorKind::NotFound) => Ok(None),
        Err(error) => Err(cannot_copy_to(path, error)),
    }
}

async fn check_parent(destination: &RemotePath) -> Result<(), Failure> {
    let parent = destination.path.parent().unwrap_or(Path::new("/"));
    let parent_shown = format!("`{}`", text::plain(&parent.display().to_string()));
    let what = format!("cannot copy to `{}`", text::plain(&destination.shown));
    match destination.at.fs.metadata(parent).await {
        Ok(parent) if parent.is_directory => Ok(()),
        Ok(_) => {
            Err(Failure::new(what, "check the path").because(format!("{parent_shown} is not a directory")))
        }
        Err(error) if error.kind() == Some(ErrorKind::NotFound) => {
            Err(Failure::of(Kind::NotFound, what, "check the path, or create the directory first")
                .because(format!("directory {parent_shown} does not exist")))
        }
        Err(error) => Err(cannot_copy_to(destination, error)),
    }
}

/// Returns the destination with all links resolved; it need not exist.
async fn resolve(destination: &RemotePath) -> Result<PathBuf, Failure> {
    let fs = &destination.at.fs;
    let native = |path: HostPath| path.native().map(Path::to_owned).unwrap_or_default();
    match fs.canonicalize(&destination.path).await {
        Ok(path) => return Ok(native(path)),
        Err(error) if error.kind() == Some(ErrorKind::NotFound) => {}
        Err(error) => return Err(cannot_copy_to(destination, error)),
    }
    let (Some(parent), Some(name)) = (destination.path.parent(), destination.path.file_name()) else {
        return Ok(destination.path.clone());
    };
    let parent = fs.canonicalize(parent).await.map_err(|error| cannot_copy_to(destination, error))?;
    Ok(native(parent).join(name))
}

/// Facts about the destination.
#[derive(Clone, Copy)]
struct DestinationInfo {
    exists: bool,
    /// Whether it is an existing directory.
    is_directory: bool,
    /// Whether there is only one source.
    is_only: bool,
}

async fn copy_task(
    from: RemotePath,
    destination: &RemotePath,
    resolved: &Path,
    into: DestinationInfo,
    selection: &Selection,
) -> Result<CopyTask, Failure> {
    let failed = |error: Error| from.failed("copy", error);
    let metadata = from.at.fs.metadata(&from.path).await.map_err(failed)?;
    if from.is_directory && !metadata.is_directory {
        return Err(
            Failure::new(cannot_copy(&from), "omit the trailing slash").because("it is not a directory")
        );
    }
    if destination.is_directory && !into.is_directory && !metadata.is_directory {
        let shown = text::plain(&destination.shown);
        return Err(if into.exists {
            Failure::new(cannot_copy(&from), "omit the trailing slash")
                .because(format!("`{shown}` is not a directory"))
        } else {
            Failure::of(Kind::NotFound, cannot_copy(&from), "create it first, or omit the trailing slash")
                .because(format!("directory `{shown}` does not exist"))
        });
    }
    let real = from.at.fs.canonicalize(&from.path).await.map_err(failed)?;
    let real =
        real.native().map_err(|error| Failure::new(error.to_string(), "choose another path"))?.to_owned();
    let mut to = RemotePath { path: resolved.to_owned(), ..destination.clone() };
    let mut marker = CopyMarker::new(marker_text(&from, &real));
    if into.is_directory && into.is_only && metadata.is_directory {
        marker.is_continued = marker.is_in(&copy_path(&to)).await;
    }
    if into.is_directory
        && !marker.is_continued
        && !from.is_content
        && let Some(name) = name(&from, &real)
    {
        to = to.join(&name);
    }
    let mut there = find_metadata(&to).await?;
    if to.path.as_path() != resolved && there.as_ref().is_some_and(|there| there.is_symlink) {
        // The final link is followed, as by `cp`.
        to.path = resolve(&to).await?;
        there = find_metadata(&to).await?;
    }
    check_kinds(&from, &metadata, &to, there.as_ref())?;
    check_itself(&from, &real, &metadata, &to).await?;
    if selection.extraneous == Extraneous::Delete && metadata.is_directory {
        check_source_stays(&from, &real, &to).await?;
    }
    if metadata.is_directory && there.is_some() && !marker.is_continued {
        marker.is_continued = marker.is_in(&copy_path(&to)).await;
    }
    let Selection { rules, skip_unchanged, extraneous } = selection.clone();
    let mut task = CopyTask::new(copy_path(&from), metadata, copy_path(&to), marker);
    (task.there, task.contents_only) = (there, from.is_content);
    (task.rules, task.skip_unchanged, task.extraneous) = (rules, skip_unchanged, extraneous);
    Ok(task)
}

/// Converts a path for the client library.
fn copy_path(path: &RemotePath) -> CopyPath {
    CopyPath::new(path.at.fs.clone(), path.path.clone(), path.shown.clone())
}

/// Returns the text that identifies a source in the marker of an unfinished copy; bytes, because paths need not be
/// UTF-8.
fn marker_text(from: &RemotePath, real: &Path) -> Vec<u8> {
    let mut text = format!("remex cp {}:", from.at.name).into_bytes();
    text.extend_from_slice(real.as_os_str().as_encoded_bytes());
    text.push(b'\n');
    text
}

/// Returns whether it is neither a file, a directory nor a link.
fn is_special(metadata: &Metadata) -> bool {
    !metadata.is_file && !metadata.is_directory && metadata.kind != Some(MetadataKind::Symlink)
}

/// Returns the file name of a source; the root directory has none.
fn name(from: &RemotePath, real: &Path) -> Option<OsString> {
    let typed = from.path.components().next_back();
    match typed {
        Some(std::path::Component::Normal(name)) => Some(name.to_owned()),
        _ => real.file_name().map(ToOwned::to_owned),
    }
}

fn check_kinds(
    from: &RemotePath,
    metadata: &Metadata,
    to: &RemotePath,
    there: Option<&Metadata>,
) -> Result<(), Failure> {
    let Some(there) = there else { return Ok(()) };
    let (what, hint) = match (metadata.is_directory, there.is_directory) {
        (true, false) => ("is not a directory", "remove it, or copy to another name"),
        (false, true) => ("is a directory", "copy to another name"),
        (false, false) if is_special(there) => return Err(report::special_exists(&from.shown, &to.shown)),
        _ => return Ok(()),
    };
    Err(Failure::new(cannot_copy(from), hint).because(format!("`{}` {what}", text::plain(&to.shown))))
}

/// Refuses to copy a file onto itself, or a directory into itself, which would never end.
async fn check_itself(
    from: &RemotePath,
    real: &Path,
    metadata: &Metadata,
    to: &RemotePath,
) -> Result<(), Failure> {
    if !to.path.starts_with(real) || !is_same_host(from, to, real).await {
        return Ok(());
    }
    if to.path == real && !metadata.is_directory {
        return Err(Failure::new(cannot_copy(from), "copy to another name")
            .because(format!("`{}` is the same file", text::plain(&to.shown))));
    }
    Err(Failure::new(cannot_copy(from), "choose a destination outside of it")
        .because(format!("`{}` is inside of it", text::plain(&to.shown))))
}

/// Refuses to sync a directory with one that contains it, which would delete the source.
async fn check_source_stays(from: &RemotePath, real: &Path, to: &RemotePath) -> Result<(), Failure> {
    if !real.starts_with(&to.path) || !is_same_host(from, to, real).await {
        return Ok(());
    }
    Err(Failure::new(cannot_copy(from), "choose another destination, or omit `--delete`")
        .because(format!("it is inside of `{}`, so `--delete` would delete it", text::plain(&to.shown))))
}

/// Returns whether a path is the same on both hosts, even if one host has two names.
async fn is_same_host(from: &RemotePath, to: &RemotePath, path: &Path) -> bool {
    if Arc::ptr_eq(&from.at, &to.at) {
        return true;
    }
    // Not every file system records when its root was created; compare the destination as well.
    let parent = to.path.parent().unwrap_or(path);
    for path in [path, &to.path, parent] {
        let looks = tokio::join!(from.at.fs.metadata(path), to.at.fs.metadata(path));
        if matches!(&looks, (Ok(from), Ok(to)) if from.created_at_ms != 0 && from == to) {
            return true;
        }
    }
    false
}

/// Refuses two sources that would overwrite each other.
fn check_twice(copy_tasks: &[CopyTask], new: &CopyTask) -> Result<(), Failure> {
    let Some(other) = copy_tasks.iter().find(|other| other.to.path == new.to.path) else { return Ok(()) };
    Err(Failure::usage(
        format!(
            "cannot copy both `{}` and `{}`",
            text::plain(&other.from.label),
            text::plain(&new.from.label)
        ),
        "copy one of them to another name",
    )
    .because(format!("both would become `{}`", text::plain(&new.to.label))))
}

fn cannot_copy(from: &RemotePath) -> String {
    format!("cannot copy `{}`", text::plain(&from.shown))
}

fn cannot_copy_to(to: &RemotePath, error: Error) -> Failure {
    Failure::from(error).context(&format!("cannot copy to `{}`", text::plain(&to.shown)))
}
