//! `remex watch`: what changes, as it happens.

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

/// What Ctrl-C ends a command with.
const INTERRUPTED: u8 = 128 + 2;

/// One change, as a program reads it.
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
    let site = tokio::select! {
        biased;
        code = &mut ended => return code,
        site = connections.reach(&flags.path, |text| print::note(text)) => site?,
    };
    let shown = text::plain(&site.shown);
    let failed = |error| site.failed("watch", error);
    let depth = if flags.flat { Depth::Directory } else { Depth::Everything };
    let mut watch = site.at.fs.watch(&site.path, depth).await.map_err(failed)?;
    let mut known = Known::find(&site.at.fs, &site.path, depth).await;
    if flags.format.json {
        print::json(&Event::new("watching", &HostPath::from(site.path.clone())))?;
    } else {
        print::note(format!("watching `{shown}`; Ctrl-C ends it"));
    }
    loop {
        tokio::select! {
            biased;
            code = &mut ended => match code? {
                // Ctrl-C is how a watch ends.
                INTERRUPTED => break,
                code => return Ok(code),
            },
            changes = watch.next() => tell(&changes.map_err(failed)?, &site.path, &mut known, &flags.format)?,
        }
    }
    drop(watch);
    connections.close().await;
    Ok(0)
}

/// The most paths that are remembered.
const MOST: usize = 10_000;

/// What was there when the watch began, or was told of since.
///
/// A server tells the removal of what came and went between two notifications, because a client may have seen it
/// meanwhile; a person has not.
#[derive(Debug)]
struct Known {
    /// `None` where there is too much of it, or not all of it is known.
    paths: Option<BTreeSet<PathBuf>>,
}

impl Known {
    async fn find(fs: &Fs, root: &Path, depth: Depth) -> Self {
        let mut paths = BTreeSet::from([root.to_owned()]);
        let mut directories = vec![root.to_owned()];
        while let Some(directory) = directories.pop() {
            let Ok(mut pages) = fs.read_dir_pages(&directory) else { return Self { paths: None } };
            loop {
                let page = match pages.next().await {
                    Ok(Some(page)) => page,
                    Ok(None) => break,
                    // A file, or a directory that is gone again or may not be read.
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
                if paths.len() > MOST {
                    return Self { paths: None };
                }
            }
        }
        Self { paths: Some(paths) }
    }

    /// Takes note of a change, and tells whether it is news.
    fn note(&mut self, change: &Change) -> bool {
        let (Some(paths), Ok(path)) = (&mut self.paths, change.path.native()) else { return true };
        if change.kind != ChangeKind::Removed {
            paths.insert(path.to_owned());
            if paths.len() > MOST {
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

fn tell(changes: &Changes, watched: &Path, known: &mut Known, format: &Format) -> Result<(), Failure> {
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
    }
}
