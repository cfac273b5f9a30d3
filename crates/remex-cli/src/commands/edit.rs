//! `remex edit`: a file elsewhere in the user's own editor.

use std::{
    ffi::OsString,
    fs::{self, DirBuilder, OpenOptions},
    io::{self, Write as _},
    os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
    process::ExitStatus,
};

use remex_client::{
    Error, ErrorKind,
    fs::{ContentHash, IfMatch, Write},
};
use sha2::{Digest as _, Sha256};
use tokio::signal::unix::{SignalKind, signal};

use super::Outcome;
use crate::{
    args::edit::Flags,
    remote::path_arg::{Connections, RemotePath, note_local_paths},
    render::{
        failure::{Failure, Kind},
        print, text,
    },
};

/// The largest file that is edited: it is written back in one message, in bytes.
const MAX_LEN: u64 = 32 << 20;

/// How often a write that a cut left open is tried.
const TRIES: u32 = 8;

pub(crate) async fn run(flags: &Flags) -> Outcome {
    note_local_paths([&flags.path]);
    let mut connections = Connections::default();
    let site = connections.reach(&flags.path, |text| print::note(text)).await?;
    let failed = |failure: Failure| failure.context(&format!("cannot edit `{}`", text::plain(&site.shown)));
    let before = read(&site).await.map_err(failed)?;
    let copy = Copy::new(&site.path, before.as_deref()).map_err(failed)?;
    let edited = edit(&site, before.as_deref(), &copy).await;
    let outcome = match edited {
        Ok(()) => {
            copy.remove();
            Ok(0)
        }
        Err(failure) if copy.differs_from(before.as_deref()) => {
            let kept = format!("your version is in {}; compare the two, then try again", copy.file.display());
            Err(Failure::of(failure.kind(), failure.what(), kept))
        }
        Err(failure) => {
            copy.remove();
            Err(failure)
        }
    };
    connections.close().await;
    outcome.map_err(failed)
}

/// Returns what is in the file, nothing where there is none.
async fn read(site: &RemotePath) -> Result<Option<Vec<u8>>, Failure> {
    let fs = &site.at.fs;
    if site.is_directory {
        return Err(Failure::usage("it names a directory", "name the file"));
    }
    let metadata = match fs.metadata(&site.path).await {
        Ok(metadata) => metadata,
        Err(error) if error.refusal() == Some(ErrorKind::NotFound) => {
            let parent = site.path.parent().unwrap_or(Path::new("/"));
            return match fs.metadata(parent).await {
                Ok(parent) if parent.is_directory => Ok(None),
                _ => Err(Failure::of(
                    Kind::NotFound,
                    format!("there is no directory `{}`", text::plain(&parent.display().to_string())),
                    "check the path, or make the directory first",
                )),
            };
        }
        Err(error) => return Err(error.into()),
    };
    if metadata.is_directory {
        return Err(Failure::new("it is a directory", "name a file in it"));
    }
    if metadata.size > MAX_LEN {
        return Err(Failure::new(
            format!(
                "it has {}, and at most {} can be edited",
                text::size(metadata.size),
                text::size(MAX_LEN)
            ),
            "copy it here with `remex cp`, edit it, and copy it back",
        ));
    }
    Ok(Some(fs.read(&site.path).await?.to_vec()))
}

async fn edit(site: &RemotePath, before: Option<&[u8]>, copy: &Copy) -> Result<(), Failure> {
    let status = run_editor(&copy.file).await?;
    if !status.success() {
        return Err(Failure::new(
            format!("the editor failed ({status}), so nothing was written"),
            "save and leave the editor without an error, or name another one in EDITOR",
        ));
    }
    match copy.read()? {
        Some(content) if Some(&content[..]) == before => print::note("nothing was changed"),
        None if before.is_some() => {
            return Err(Failure::new(
                "the editor removed its file, so nothing was written",
                "save the file before you leave the editor",
            ));
        }
        None => print::note("nothing was written, so there is no new file"),
        Some(content) if content.is_empty() && before.is_none() => {
            print::note("nothing was written, so there is no new file");
        }
        Some(content) => write(site, before, &content).await?,
    }
    Ok(())
}

/// Runs the user's editor as a shell would, so that it may have arguments.
async fn run_editor(file: &Path) -> Result<ExitStatus, Failure> {
    let named = |name| std::env::var(name).ok().filter(|value| !value.trim().is_empty());
    let editor = named("VISUAL").or_else(|| named("EDITOR")).unwrap_or_else(|| "vi".to_owned());
    let mut command = std::process::Command::new("/bin/sh");
    command.arg("-c").arg(format!("trap : INT QUIT; {editor} \"$@\"")).arg(&editor).arg(file);
    // Ctrl-C is for the editor; whoever listens to it does not die of it.
    let _listening = (signal(SignalKind::interrupt()), signal(SignalKind::quit()));
    let running = tokio::task::spawn_blocking(move || command.status());
    let status = running.await.map_err(io::Error::other).and_then(|status| status);
    status.map_err(|error| Failure::io(&format!("start the editor `{}`", text::plain(&editor)), &error))
}

/// Writes the file, if it is still what it was.
async fn write(site: &RemotePath, before: Option<&[u8]>, content: &[u8]) -> Result<(), Failure> {
    let expected = before.map_or(IfMatch::Absent, |before| IfMatch::Content(hash(before)));
    for _ in 0..TRIES {
        match site.at.fs.write_if(&site.path, content, expected, Write::Atomic).await {
            Ok(_) => return Ok(()),
            Err(Error::Interrupted { .. }) => {
                // If it took effect before the cut, it is done; otherwise it is tried again.
                if site.at.fs.hash(&site.path).await.is_ok_and(|there| there.hash == hash(content)) {
                    return Ok(());
                }
            }
            Err(error) if error.refusal() == Some(ErrorKind::ContentChanged) => {
                return Err(Failure::new("it was changed by someone else in the meantime", "edit it again"));
            }
            Err(error) => return Err(error.into()),
        }
    }
    Err(Failure::of(Kind::Unreachable, "the connection was cut again and again", "try again"))
}

fn hash(content: &[u8]) -> ContentHash {
    ContentHash(Sha256::digest(content).into())
}

/// The file that the editor sees, in a directory of its own that nobody else can enter.
struct Copy {
    directory: PathBuf,
    file: PathBuf,
}

impl Copy {
    fn new(path: &Path, content: Option<&[u8]>) -> Result<Self, Failure> {
        let failed = |error| Failure::io("make a temporary copy", &error);
        let directory = private_directory().map_err(failed)?;
        // The name tells the editor what is in the file.
        let name = path.file_name().map_or_else(|| OsString::from("file"), ToOwned::to_owned);
        let copy = Self { file: directory.join(name), directory };
        if let Some(content) = content {
            let mut options = OpenOptions::new();
            options.write(true).create_new(true).mode(0o600);
            let written = options.open(&copy.file).and_then(|mut file| file.write_all(content));
            if let Err(error) = written {
                copy.remove();
                return Err(failed(error));
            }
        }
        Ok(copy)
    }

    /// Returns what is in it, nothing if it is not there.
    fn read(&self) -> Result<Option<Vec<u8>>, Failure> {
        match fs::read(&self.file) {
            Ok(content) => Ok(Some(content)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(Failure::io(&format!("read `{}`", self.file.display()), &error)),
        }
    }

    /// Tells whether there is something in it that would be a loss.
    fn differs_from(&self, before: Option<&[u8]>) -> bool {
        match fs::read(&self.file) {
            Ok(now) => before.map_or(!now.is_empty(), |before| before != now),
            // Whatever the editor has put there, a directory perhaps, is kept.
            Err(error) => error.kind() != io::ErrorKind::NotFound,
        }
    }

    fn remove(&self) {
        // What an editor leaves beside it goes too; if it cannot be removed, nothing is lost.
        let _ = fs::remove_dir_all(&self.directory);
    }
}

fn private_directory() -> io::Result<PathBuf> {
    let base = std::env::temp_dir();
    for number in 0.. {
        let name = format!("remex-edit-{}-{}-{number}", std::process::id(), text::now_ms());
        let directory = base.join(name);
        match DirBuilder::new().mode(0o700).create(&directory) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            made => return made.map(|()| directory),
        }
    }
    Err(io::ErrorKind::AlreadyExists.into())
}
