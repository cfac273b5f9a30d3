//! What becomes what: the rules of `cp` about directories, names and slashes.

use std::{
    ffi::OsString,
    path::{Path, PathBuf},
    sync::Arc,
};

use remex_client::{
    Error, ErrorKind,
    fs::{CopyMarker, CopyPath, CopyTask, HostPath, Metadata, MetadataKind},
};

use super::report::{self, Report};
use crate::{
    remote::path_arg::RemotePath,
    render::{failure::Failure, text},
};

/// Decides what becomes of each source; those that are not there are reported and left out.
pub(super) async fn copy_jobs(
    sources: Vec<RemotePath>,
    destination: &RemotePath,
    report: &Report,
) -> Result<Vec<CopyTask>, Failure> {
    let there = look(destination).await?;
    let is_directory = there.as_ref().is_some_and(|there| there.is_directory);
    let shown = text::plain(&destination.shown);
    if !is_directory {
        let what = if there.is_some() { "it is not a directory" } else { "there is no such directory" };
        if sources.len() > 1 {
            let failure = Failure::usage(
                format!("cannot copy {} things to `{shown}`: {what}", sources.len()),
                "name a directory that is there, or copy one thing",
            );
            return Err(failure);
        }
        check_parent(destination).await?;
    }
    let resolved = resolve(destination).await?;
    let mut copy_jobs: Vec<CopyTask> = Vec::new();
    let is_only = sources.len() == 1;
    for from in sources {
        match copy_job(from, destination, &resolved, Into { is_directory, is_only }).await {
            Ok(copy_job) => {
                check_twice(&copy_jobs, &copy_job)?;
                copy_jobs.push(copy_job);
            }
            Err(failure) => report.failure(failure)?,
        }
    }
    Ok(copy_jobs)
}

/// Returns what is at a site, links followed; nothing where nothing is.
async fn look(site: &RemotePath) -> Result<Option<Metadata>, Failure> {
    match site.at.fs.metadata(&site.path).await {
        Ok(metadata) => Ok(Some(metadata)),
        Err(error) if error.refusal() == Some(ErrorKind::NotFound) => Ok(None),
        Err(error) => Err(cannot_copy_to(site, error)),
    }
}

async fn check_parent(destination: &RemotePath) -> Result<(), Failure> {
    let parent = destination.path.parent().unwrap_or(Path::new("/"));
    match destination.at.fs.metadata(parent).await {
        Ok(parent) if parent.is_directory => Ok(()),
        Err(error) if error.refusal() != Some(ErrorKind::NotFound) => Err(cannot_copy_to(destination, error)),
        _ => Err(Failure::new(
            format!(
                "cannot copy to `{}`: there is no directory `{}`",
                text::plain(&destination.shown),
                text::plain(&parent.display().to_string())
            ),
            "check the path, or make the directory first",
        )),
    }
}

/// Returns the destination with all links resolved, whether it is there or not.
async fn resolve(destination: &RemotePath) -> Result<PathBuf, Failure> {
    let fs = &destination.at.fs;
    let native = |path: HostPath| path.native().map(Path::to_owned).unwrap_or_default();
    match fs.canonicalize(&destination.path).await {
        Ok(path) => return Ok(native(path)),
        Err(error) if error.refusal() == Some(ErrorKind::NotFound) => {}
        Err(error) => return Err(cannot_copy_to(destination, error)),
    }
    let (Some(parent), Some(name)) = (destination.path.parent(), destination.path.file_name()) else {
        return Ok(destination.path.clone());
    };
    let parent = fs.canonicalize(parent).await.map_err(|error| cannot_copy_to(destination, error))?;
    Ok(native(parent).join(name))
}

/// What is known about the destination.
#[derive(Clone, Copy)]
struct Into {
    /// A directory is there.
    is_directory: bool,
    /// One thing is to go there.
    is_only: bool,
}

async fn copy_job(
    from: RemotePath,
    destination: &RemotePath,
    resolved: &Path,
    into: Into,
) -> Result<CopyTask, Failure> {
    let failed = |error: Error| from.failed("copy", error);
    let metadata = from.at.fs.metadata(&from.path).await.map_err(failed)?;
    if from.is_directory && !metadata.is_directory {
        return Err(Failure::new(
            format!("{}: it is not a directory", cannot_copy(&from)),
            "leave out the slash at the end",
        ));
    }
    if destination.is_directory && !into.is_directory && !metadata.is_directory {
        return Err(Failure::new(
            format!("{}: there is no directory `{}`", cannot_copy(&from), text::plain(&destination.shown)),
            "make it first, or leave out the slash at the end",
        ));
    }
    let real = from.at.fs.canonicalize(&from.path).await.map_err(failed)?;
    let real =
        real.native().map_err(|error| Failure::new(error.to_string(), "name another path"))?.to_owned();
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
    let mut there = look(&to).await?;
    if to.path.as_path() != resolved && there.as_ref().is_some_and(|there| there.is_symlink) {
        // A link at the end is followed, as by `cp`.
        to.path = resolve(&to).await?;
        there = look(&to).await?;
    }
    check_kinds(&from, &metadata, &to, there.as_ref())?;
    check_itself(&from, &real, &metadata, &to).await?;
    if metadata.is_directory && there.is_some() && !marker.is_continued {
        marker.is_continued = marker.is_in(&copy_path(&to)).await;
    }
    let contents_only = from.is_content;
    let (from, to) = (copy_path(&from), copy_path(&to));
    Ok(CopyTask { from, metadata, to, there, contents_only, marker })
}

/// Returns the path as the client copies it.
fn copy_path(path: &RemotePath) -> CopyPath {
    CopyPath { fs: path.at.fs.clone(), path: path.path.clone(), label: path.shown.clone() }
}

/// Returns what identifies a source in the marker of an unfinished copy; bytes, because paths need not be UTF-8.
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

/// Returns the name that a source has in a directory; the root of a file system has none.
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
    let (what, todo) = match (metadata.is_directory, there.is_directory) {
        (true, false) => ("is not a directory", "remove it, or copy to another name"),
        (false, true) => ("is a directory", "copy to another name"),
        (false, false) if is_special(there) => return Err(report::special_exists(&from.shown, &to.shown)),
        _ => return Ok(()),
    };
    Err(Failure::new(format!("{}: `{}` {what}", cannot_copy(from), text::plain(&to.shown)), todo))
}

/// Refuses a file onto itself, and a directory into itself, which would never end.
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
        return Err(Failure::new(
            format!("{}: it is `{}` itself", cannot_copy(from), text::plain(&to.shown)),
            "copy to another name",
        ));
    }
    Err(Failure::new(
        format!("{}: `{}` is in it", cannot_copy(from), text::plain(&to.shown)),
        "copy to a place outside of it",
    ))
}

/// Tells whether a path is the same thing at both places, also where one host has two names.
async fn is_same_host(from: &RemotePath, to: &RemotePath, path: &Path) -> bool {
    if Arc::ptr_eq(&from.at, &to.at) {
        return true;
    }
    // Not every file system knows when its root was made, but then where the copy goes may be the same at both.
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
fn check_twice(copy_jobs: &[CopyTask], new: &CopyTask) -> Result<(), Failure> {
    let Some(other) = copy_jobs.iter().find(|other| other.to.path == new.to.path) else { return Ok(()) };
    Err(Failure::usage(
        format!(
            "cannot copy both `{}` and `{}`: each would be `{}`",
            text::plain(&other.from.label),
            text::plain(&new.from.label),
            text::plain(&new.to.label)
        ),
        "copy one of them to another name",
    ))
}

fn cannot_copy(from: &RemotePath) -> String {
    format!("cannot copy `{}`", text::plain(&from.shown))
}

fn cannot_copy_to(to: &RemotePath, error: Error) -> Failure {
    Failure::from(error).context(&format!("cannot copy to `{}`", text::plain(&to.shown)))
}
