//! `remex watch`: reports changes in a directory.

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
};

use remex_client::fs::{Change, ChangeKind, Changes, Depth, Fs, HostPath, entry_name};
use serde::Serialize;

use super::Outcome;
use crate::{
    args::{shared::Format, watch::Flags},
    console::interrupt,
    remote::path_arg::{Connections, note_local_paths},
    render::{failure::Failure, print, text},
};

/// The exit code after Ctrl-C.
const INTERRUPTED: u8 = 128 + 2;

/// The JSON of one change.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Event {
    event: &'static str,
    path: String,
    uri: String,
}

impl Event {
    fn new(event: &'static str, path: &HostPath) -> Self {
        let uri = path.to_uri();
        let path = path.native().map_or_else(|_| uri.clone(), |path| path.display().to_string());
        Self { event, path, uri }
    }
}

pub(crate) async fn run(flags: &Flags) -> Outcome {
    note_local_paths([&flags.path]);
    let mut connections = Connections::default();
    let mut ended = std::pin::pin!(interrupt::or_interrupted(std::future::pending()));
    let remote_path = tokio::select! {
        biased;
        code = &mut ended => return code,
        remote_path = connections.reach(&flags.path, |text| print::note(text)) => remote_path?,
    };
    let shown = text::plain(&remote_path.shown);
    let failed = |error| remote_path.failed("watch", error);
    let depth = if flags.flat { Depth::Directory } else { Depth::Everything };
    let mut watch = remote_path.at.fs.watch(&remote_path.path, depth).await.map_err(failed)?;
    let mut known = KnownPaths::find(&remote_path.at.fs, &remote_path.path, depth).await;
    if flags.format.json {
        print::json(&Event::new("watching", &HostPath::from(remote_path.path.clone())))?;
    } else {
        print::note(format!("watching `{shown}`; Ctrl-C stops it"));
    }
    loop {
        tokio::select! {
            biased;
            code = &mut ended => match code? {
                // Ctrl-C is the normal way to stop a watch.
                INTERRUPTED => break,
                code => return Ok(code),
            },
            changes = watch.next() => print_changes(&changes.map_err(failed)?, &remote_path.path, &mut known, &flags.format)?,
        }
    }
    drop(watch);
    connections.close().await;
    Ok(0)
}

/// The maximum number of remembered paths.
const MAX_KNOWN_PATHS: usize = 10_000;

/// The paths that existed when the watch began or were reported since.
///
/// A server also reports the removal of files that were created and removed between two notifications, because a client
/// may have seen them; the user has not.
#[derive(Debug)]
struct KnownPaths {
    /// `None` if there are too many, or not all are known.
    paths: Option<BTreeSet<PathBuf>>,
}

impl KnownPaths {
    async fn find(fs: &Fs, root: &Path, depth: Depth) -> Self {
        let mut paths = BTreeSet::from([root.to_owned()]);
        let mut directories = vec![root.to_owned()];
        while let Some(directory) = directories.pop() {
            let Ok(mut pages) = fs.read_dir_pages(&directory) else { return Self { paths: None } };
            loop {
                let page = match pages.next().await {
                    Ok(Some(page)) => page,
                    Ok(None) => break,
                    // A file, or a directory that was removed or is unreadable.
                    Err(_) if directory == root => break,
                    Err(_) => return Self { paths: None },
                };
                for entry in page {
                    let Ok(name) = entry_name(&directory, &entry) else { return Self { paths: None } };
                    let path = directory.join(name);
                    if entry.is_directory && depth == Depth::Everything {
                        directories.push(path.clone());
                    }
                    paths.insert(path);
                }
                if paths.len() > MAX_KNOWN_PATHS {
                    return Self { paths: None };
                }
            }
        }
        Self { paths: Some(paths) }
    }

    /// Records a change, and returns whether to report it.
    fn note(&mut self, change: &Change) -> bool {
        let (Some(paths), Ok(path)) = (&mut self.paths, change.path.native()) else { return true };
        if change.kind != ChangeKind::Removed {
            paths.insert(path.to_owned());
            if paths.len() > MAX_KNOWN_PATHS {
                self.paths = None;
            }
            return true;
        }
        let is_here = |known: &Path| known.starts_with(path);
        let gone: Vec<_> =
            paths.range(path.to_owned()..).take_while(|known| is_here(known)).cloned().collect();
        for known in &gone {
            paths.remove(known);
        }
        !gone.is_empty()
    }
}

fn print_changes(
    changes: &Changes,
    watched: &Path,
    known: &mut KnownPaths,
    format: &Format,
) -> Result<(), Failure> {
    let news = changes.changes.iter().filter(|change| known.note(change));
    let mut events: Vec<_> = news.map(|change| (word(change.kind), &change.path)).collect();
    let watched = HostPath::from(watched.to_owned());
    if changes.overflow {
        known.paths = None;
        events.push(("overflow", &watched));
    }
    for (word, path) in events {
        let event = Event::new(word, path);
        if format.json {
            print::json(&event)?;
        } else {
            print::out(format!("{word:8}  {}\n", text::plain(&event.path)))?;
        }
    }
    Ok(())
}

fn word(kind: ChangeKind) -> &'static str {
    match kind {
        ChangeKind::Created => "created",
        ChangeKind::Modified => "modified",
        ChangeKind::Removed => "removed",
        _ => "unknown",
    }
}
