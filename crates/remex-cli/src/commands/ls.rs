//! `remex ls`: lists directories.

use std::{
    ffi::{OsStr, OsString},
    io::{self, IsTerminal as _},
    os::unix::ffi::OsStrExt as _,
    path::{Path, PathBuf},
};

use remex_client::{
    Error,
    fs::{HostPath, Metadata, MetadataKind, entry_name},
};
use serde::Serialize;

use super::{Outcome, cat::Failures};
use crate::{
    args::ls::Flags,
    remote::path_arg::{Connections, RemotePath, note_local_paths},
    render::{failure::Failure, local_time::Zone, print, text},
};

/// A listed entry.
struct Entry {
    /// The name; for a file operand, as typed.
    name: OsString,
    path: PathBuf,
    metadata: Metadata,
}

/// The JSON of an entry.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Listed<'a> {
    name: String,
    path: String,
    uri: String,
    kind: &'static str,
    size_bytes: u64,
    modified_at_ms: i64,
    #[serde(skip_serializing_if = "Option::is_none")]
    mode: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    uid: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    gid: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    link_target: Option<&'a str>,
}

/// Prints listings, one page at a time.
struct Printer<'a> {
    flags: &'a Flags,
    /// Whether something was printed before.
    has_begun: bool,
    /// Whether the last listing was a directory, so that an empty line must precede a file.
    is_after_directory: bool,
}

pub(crate) async fn run(flags: &Flags) -> Outcome {
    note_local_paths(&flags.paths);
    let mut connections = Connections::default();
    let mut failures = Failures::default();
    let mut printer = Printer { flags, has_begun: false, is_after_directory: false };
    if flags.format.json {
        print::out("{\"version\":1,\"entries\":[")?;
    }
    for arg in &flags.paths {
        let listed = match connections.reach(arg, |text| print::note(text)).await {
            Ok(remote_path) => list(&remote_path, &arg.typed, &mut printer).await,
            Err(failure) => failures.add_unreachable(failure),
        };
        if let Err(failure) = listed {
            failures.add(failure)?;
        }
    }
    if flags.format.json {
        print::out("]}\n")?;
    }
    connections.close().await;
    Ok(failures.code())
}

async fn list(remote_path: &RemotePath, typed: &OsStr, printer: &mut Printer<'_>) -> Result<(), Failure> {
    let failed = |error| remote_path.failed("list", error);
    let fs = &remote_path.at.fs;
    let metadata = match fs.metadata(&remote_path.path).await {
        Ok(metadata) => metadata,
        // A dangling link can be listed.
        Err(error) => match fs.read_link(&remote_path.path).await {
            Ok(_) => dangling(remote_path).await.map_err(failed)?.ok_or_else(|| failed(error))?,
            Err(_) => return Err(failed(error)),
        },
    };
    if !metadata.is_directory {
        if std::mem::take(&mut printer.is_after_directory) {
            print::out("\n")?;
        }
        let entry = Entry { name: typed.to_owned(), path: remote_path.path.clone(), metadata };
        return printer.print(&[entry]);
    }
    if printer.flags.paths.len() > 1 && !printer.flags.format.json {
        let gap = if printer.has_begun { "\n" } else { "" };
        print::out(format!("{gap}{}:\n", text::plain(&remote_path.shown)))?;
    }
    let mut pages = fs.read_dir_pages(&remote_path.path).map_err(failed)?;
    while let Some(page) = pages.next().await.map_err(failed)? {
        let mut entries = Vec::with_capacity(page.len());
        for entry in page {
            let name = entry_name(&remote_path.path, &entry).map_err(failed)?;
            if !printer.flags.all && name.as_bytes().starts_with(b".") {
                continue;
            }
            let path = remote_path.path.join(&name);
            let metadata = match entry.metadata {
                Some(metadata) => *metadata,
                // A server of the base dialect reports no metadata.
                None => fs.metadata(&path).await.map_err(failed)?,
            };
            entries.push(Entry { name, path, metadata });
        }
        printer.print(&entries)?;
    }
    printer.has_begun = true;
    printer.is_after_directory = !printer.flags.format.json;
    Ok(())
}

/// Returns the metadata of a link from its directory.
async fn dangling(link: &RemotePath) -> Result<Option<Metadata>, Error> {
    let (Some(directory), Some(name)) = (link.path.parent(), link.path.file_name()) else { return Ok(None) };
    let mut pages = link.at.fs.read_dir_pages(directory)?;
    while let Some(page) = pages.next().await? {
        for entry in page {
            if entry_name(directory, &entry)? == name {
                return Ok(entry.metadata.map(|metadata| *metadata));
            }
        }
    }
    Ok(None)
}

impl Printer<'_> {
    fn print(&mut self, entries: &[Entry]) -> Result<(), Failure> {
        let mut page = Vec::new();
        let size = |entry: &Entry| match self.flags.human_readable {
            true => text::size(entry.metadata.size),
            false => entry.metadata.size.to_string(),
        };
        let width = entries.iter().map(|entry| size(entry).len()).max().unwrap_or_default();
        for entry in entries {
            if self.flags.format.json {
                if self.has_begun {
                    page.push(b',');
                }
                let text = serde_json::to_string(&entry.listed()).map_err(|error| {
                    Failure::new("cannot print JSON", "report this as a defect").because(error.to_string())
                })?;
                page.extend_from_slice(text.as_bytes());
            } else {
                if self.flags.long {
                    let zone = if self.flags.utc { Zone::Utc } else { Zone::Local };
                    page.extend_from_slice(entry.long(&format!("{:>width$}", size(entry)), zone).as_bytes());
                }
                page.extend_from_slice(&for_stdout(&entry.name));
                if let (true, Some(target)) = (self.flags.long, &entry.metadata.link_target) {
                    page.extend_from_slice(b" -> ");
                    page.extend_from_slice(&for_stdout(OsStr::new(target)));
                }
                page.push(b'\n');
            }
            self.has_begun = true;
        }
        print::out(page)
    }
}

impl Entry {
    fn listed(&self) -> Listed<'_> {
        let Metadata { size, modified_at_ms, mode, uid, gid, link_target, .. } = &self.metadata;
        Listed {
            name: self.path.file_name().unwrap_or(&self.name).to_string_lossy().into_owned(),
            path: self.path.display().to_string(),
            uri: HostPath::from(self.path.clone()).to_uri(),
            kind: kind(&self.metadata).0,
            size_bytes: *size,
            modified_at_ms: *modified_at_ms,
            mode: *mode,
            uid: *uid,
            gid: *gid,
            link_target: link_target.as_deref(),
        }
    }

    /// Formats the columns before the name.
    fn long(&self, size: &str, zone: Zone) -> String {
        let Metadata { modified_at_ms, mode, .. } = self.metadata;
        let letters = mode.map_or_else(|| "?????????".to_owned(), permissions);
        let time = zone.column(modified_at_ms);
        format!("{}{letters} {size} {time} ", kind(&self.metadata).1)
    }
}

/// Returns the kind of an entry, as a word and as a letter.
fn kind(metadata: &Metadata) -> (&'static str, char) {
    match metadata.kind {
        _ if metadata.is_symlink => ("symlink", 'l'),
        Some(MetadataKind::Symlink) => ("symlink", 'l'),
        Some(MetadataKind::Fifo) => ("fifo", 'p'),
        Some(MetadataKind::Socket) => ("socket", 's'),
        Some(MetadataKind::Device) => ("device", 'c'),
        Some(MetadataKind::Directory) => ("directory", 'd'),
        Some(MetadataKind::File) => ("file", '-'),
        Some(_) => ("unknown", '?'),
        None if metadata.is_directory => ("directory", 'd'),
        None => ("file", '-'),
    }
}

/// Formats permission bits as nine letters.
fn permissions(mode: u32) -> String {
    let mut letters = String::with_capacity(9);
    for (shift, special, lower, upper) in
        [(6, 0o4000, 's', 'S'), (3, 0o2000, 's', 'S'), (0, 0o1000, 't', 'T')]
    {
        let bits = mode >> shift;
        letters.push(if bits & 4 != 0 { 'r' } else { '-' });
        letters.push(if bits & 2 != 0 { 'w' } else { '-' });
        letters.push(match (bits & 1 != 0, mode & special != 0) {
            (true, true) => lower,
            (false, true) => upper,
            (true, false) => 'x',
            (false, false) => '-',
        });
    }
    letters
}

/// Formats a name for stdout: exact for pipes, without control characters for terminals.
fn for_stdout(name: &OsStr) -> Vec<u8> {
    if io::stdout().is_terminal() {
        text::plain(&name.to_string_lossy()).into_bytes()
    } else {
        Path::new(name).as_os_str().as_bytes().to_vec()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn permissions_are_nine_letters() {
        for (mode, letters) in
            [(0o644, "rw-r--r--"), (0o4755, "rwsr-xr-x"), (0o1777, "rwxrwxrwt"), (0o2640, "rw-r-S---")]
        {
            assert_eq!(permissions(mode), letters);
        }
    }
}
