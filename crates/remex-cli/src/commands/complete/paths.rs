//! Paths and programs that begin with what was typed.
//!
//! Start at [`anywhere`].

use std::{fs, os::unix::fs::PermissionsExt as _, path::Path};

use remex_client::fs::entry_name;

use super::candidates::quiet_endpoint;
use crate::args::line::Candidate;
use crate::remote::path_arg::{Connections, PathArg};

/// The most entries of a directory that are looked at.
const MOST: usize = 10_000;

/// Returns paths of this machine, or those of the place that was typed before a colon.
pub(super) async fn anywhere(typed: &str) -> Vec<Candidate> {
    match place_in(typed) {
        Some((place, path)) => {
            let place = place.to_owned();
            there(&typed[..typed.len() - path.len()], &place, path).await.unwrap_or_default()
        }
        None => here(typed),
    }
}

/// Splits what was typed into a place and a path, as a [`PathArg`] does.
fn place_in(typed: &str) -> Option<(&str, &str)> {
    if let Some(bracketed) = typed.strip_prefix('[') {
        return bracketed.split_once("]:");
    }
    typed.split_once(':').filter(|(place, _)| !place.is_empty() && !place.contains('/'))
}

/// Returns paths of this machine that begin like this.
pub(super) fn here(typed: &str) -> Vec<Candidate> {
    let (directory, name) = split(typed);
    let home = std::env::var_os("HOME").unwrap_or_default();
    let real = match directory.strip_prefix("~/") {
        Some(rest) => Path::new(&home).join(rest),
        None if directory.is_empty() => Path::new(".").to_owned(),
        None => Path::new(directory).to_owned(),
    };
    let Ok(entries) = fs::read_dir(real) else { return Vec::new() };
    let entries = entries.take(MOST).filter_map(Result::ok).filter_map(|entry| {
        let is_directory = fs::metadata(entry.path()).is_ok_and(|metadata| metadata.is_dir());
        Some((entry.file_name().into_string().ok()?, is_directory))
    });
    offered(directory, name, entries)
}

/// Returns paths of another place that begin like this; `before` is what stands before the path.
async fn there(before: &str, place: &str, path: &str) -> Option<Vec<Candidate>> {
    quiet_endpoint(place)?;
    let (directory, name) = split(path);
    let spot = PathArg::parse(format!("{before}{directory}").into()).ok()?;
    let mut connections = Connections::default();
    let site = connections.reach(&spot, |_| {}).await.ok()?;
    let mut entries = Vec::new();
    let mut pages = site.at.fs.read_dir_pages(&site.path).ok()?;
    while let Some(page) = pages.next().await.ok()? {
        for entry in page {
            let is_directory =
                entry.is_directory || entry.metadata.as_ref().is_some_and(|metadata| metadata.is_directory);
            let name = entry_name(&site.path, &entry).ok().and_then(|name| name.into_string().ok());
            entries.extend(name.map(|name| (name, is_directory)));
        }
        if entries.len() >= MOST {
            break;
        }
    }
    Some(offered(&format!("{before}{directory}"), name, entries.into_iter()))
}

/// Returns the programs in the `PATH` that begin like this, or paths if it is one.
pub(super) fn programs(typed: &str) -> Vec<Candidate> {
    if typed.contains('/') {
        return here(typed);
    }
    let directories = std::env::var_os("PATH").unwrap_or_default();
    let entries = std::env::split_paths(&directories).filter_map(|directory| fs::read_dir(directory).ok());
    let is_program = |path: &Path| {
        fs::metadata(path)
            .is_ok_and(|metadata| metadata.is_file() && metadata.permissions().mode() & 0o111 != 0)
    };
    entries
        .flat_map(|entries| entries.filter_map(Result::ok))
        .filter_map(|entry| Some((entry.file_name().into_string().ok()?, entry.path())))
        .filter(|(name, path)| !typed.is_empty() && name.starts_with(typed) && is_program(path))
        .map(|(name, _)| Candidate::new(name, ""))
        .collect()
}

/// Splits a path after its last slash.
fn split(path: &str) -> (&str, &str) {
    path.split_at(path.rfind('/').map_or(0, |slash| slash + 1))
}

/// Returns entries of a directory that begin like a name; hidden ones only where a dot was typed.
fn offered(directory: &str, name: &str, entries: impl Iterator<Item = (String, bool)>) -> Vec<Candidate> {
    entries
        .filter(|(entry, _)| entry.starts_with(name) && (name.starts_with('.') || !entry.starts_with('.')))
        .map(|(entry, is_directory)| {
            let slash = if is_directory { "/" } else { "" };
            Candidate::new(format!("{directory}{entry}{slash}"), "")
        })
        .collect()
}
