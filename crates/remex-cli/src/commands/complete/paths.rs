//! Completes paths and programs.
//!
//! Start at [`anywhere`].

use std::{fs, os::unix::fs::PermissionsExt as _, path::Path};

use remex_client::fs::entry_name;

use super::candidates::quiet_endpoint;
use crate::args::line::Candidate;
use crate::remote::path_arg::{Connections, PathArg};

/// The maximum number of directory entries to read.
const MAX_ENTRIES: usize = 10_000;

/// Completes a path on this machine, or on the host before a colon.
pub(super) async fn anywhere(typed: &str) -> Vec<Candidate> {
    match split_host(typed) {
        Some((host, path)) => {
            let host = host.to_owned();
            complete_remote(&typed[..typed.len() - path.len()], &host, path).await.unwrap_or_default()
        }
        None => here(typed),
    }
}

/// Splits `ENV:path` like a [`PathArg`].
fn split_host(typed: &str) -> Option<(&str, &str)> {
    if let Some(bracketed) = typed.strip_prefix('[') {
        return bracketed.split_once("]:");
    }
    typed.split_once(':').filter(|(host, _)| !host.is_empty() && !host.contains('/'))
}

/// Completes a path on this machine.
pub(super) fn here(typed: &str) -> Vec<Candidate> {
    let (directory, name) = split(typed);
    let home = std::env::var_os("HOME").unwrap_or_default();
    let real = match directory.strip_prefix("~/") {
        Some(rest) => Path::new(&home).join(rest),
        None if directory.is_empty() => Path::new(".").to_owned(),
        None => Path::new(directory).to_owned(),
    };
    let Ok(entries) = fs::read_dir(real) else { return Vec::new() };
    let entries = entries.take(MAX_ENTRIES).filter_map(Result::ok).filter_map(|entry| {
        let is_directory = fs::metadata(entry.path()).is_ok_and(|metadata| metadata.is_dir());
        Some((entry.file_name().into_string().ok()?, is_directory))
    });
    offered(directory, name, entries)
}

/// Completes a path on a remote host; `before` is the text before the path.
async fn complete_remote(before: &str, host: &str, path: &str) -> Option<Vec<Candidate>> {
    quiet_endpoint(host)?;
    let (directory, name) = split(path);
    let arg = PathArg::parse(format!("{before}{directory}").into()).ok()?;
    let mut connections = Connections::default();
    let remote_path = connections.reach(&arg, |_| {}).await.ok()?;
    let mut entries = Vec::new();
    let mut pages = remote_path.at.fs.read_dir_pages(&remote_path.path).ok()?;
    while let Some(page) = pages.next().await.ok()? {
        for entry in page {
            let is_directory =
                entry.is_directory || entry.metadata.as_ref().is_some_and(|metadata| metadata.is_directory);
            let name = entry_name(&remote_path.path, &entry).ok().and_then(|name| name.into_string().ok());
            entries.extend(name.map(|name| (name, is_directory)));
        }
        if entries.len() >= MAX_ENTRIES {
            break;
        }
    }
    Some(offered(&format!("{before}{directory}"), name, entries.into_iter()))
}

/// Completes the name of a program in the `PATH`, or a path if it contains a slash.
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

/// Returns the entries of a directory with this prefix; hidden ones only after a dot.
fn offered(directory: &str, name: &str, entries: impl Iterator<Item = (String, bool)>) -> Vec<Candidate> {
    entries
        .filter(|(entry, _)| entry.starts_with(name) && (name.starts_with('.') || !entry.starts_with('.')))
        .map(|(entry, is_directory)| {
            let slash = if is_directory { "/" } else { "" };
            Candidate::new(format!("{directory}{entry}{slash}"), "")
        })
        .collect()
}
