//! `remex edit`: edits a remote file in the local editor.

use std::{
    ffi::OsString,
    fs::{self, DirBuilder, OpenOptions},
    io::{self, Write as _},
    os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
    process::ExitStatus,
    time::Duration,
};

use remex_client::{
    Error, ErrorKind,
    fs::{AsHostPath as _, ContentHash, IfMatch},
};
use remex_proto::{
    fs::{Close, Open, OpenMode},
    sandbox::Sandbox,
};
use rustix::process::{Pid, Signal, kill_process};
use sha2::{Digest as _, Sha256};
use tokio::signal::unix::{SignalKind, signal};

use super::Outcome;
use crate::{
    args::edit::Flags,
    console::interrupt::Termination,
    remote::path_arg::{Connections, RemotePath, note_local_paths},
    render::{
        failure::{Failure, Kind},
        print, text,
    },
};

/// The maximum size of a file, which is written back in one message; in bytes.
const MAX_LEN: u64 = 32 << 20;

/// How often a write that was interrupted by a disconnect is repeated.
const TRIES: u32 = 8;

/// How long the editor may take to exit after a signal before it is killed.
const EDITOR_EXIT_TIMEOUT: Duration = Duration::from_secs(5);

pub(crate) async fn run(flags: &Flags) -> Outcome {
    note_local_paths([&flags.path]);
    let mut connections = Connections::default();
    let remote_path = connections.reach(&flags.path, |text| print::note(text)).await?;
    let failed =
        |failure: Failure| failure.context(&format!("cannot edit `{}`", text::plain(&remote_path.shown)));
    let before = read(&remote_path).await.map_err(failed)?;
    check_writable(&remote_path).await.map_err(failed)?;
    let mut termination = Termination::listen()?;
    let copy = LocalCopy::new(&remote_path.path, before.as_deref()).map_err(failed)?;
    let edited = edit(&remote_path, before.as_deref(), &copy, &mut termination).await;
    let outcome = match edited {
        Ok(()) => {
            copy.remove();
            Ok(0)
        }
        Err(failure) if matches!(failure.kind(), Kind::Signalled(_)) => {
            if !copy.remove_unchanged(before.as_deref()) {
                print::note(format!("interrupted; your version is in {}", copy.directory.display()));
            }
            return Err(failure);
        }
        Err(failure) if copy.differs_from(before.as_deref()) => {
            let kept = format!("your version is in {}; compare the two, then try again", copy.file.display());
            Err(failure.with_hint(kept))
        }
        Err(failure) => {
            copy.remove();
            Err(failure)
        }
    };
    connections.close().await;
    outcome.map_err(failed)
}

/// Returns the content of the file; `None` if it does not exist.
async fn read(remote_path: &RemotePath) -> Result<Option<Vec<u8>>, Failure> {
    let fs = &remote_path.at.fs;
    if remote_path.is_directory {
        return Err(Failure::usage("it names a directory", "name the file"));
    }
    let metadata = match fs.metadata(&remote_path.path).await {
        Ok(metadata) => metadata,
        Err(error) if error.kind() == Some(ErrorKind::NotFound) => {
            let parent = remote_path.path.parent().unwrap_or(Path::new("/"));
            return match fs.metadata(parent).await {
                Ok(parent) if parent.is_directory => Ok(None),
                _ => Err(Failure::of(
                    Kind::NotFound,
                    format!("directory `{}` does not exist", text::plain(&parent.display().to_string())),
                    "check the path, or create the directory first",
                )),
            };
        }
        Err(error) => return Err(error.into()),
    };
    if metadata.is_directory {
        return Err(Failure::new("it is a directory", "name a file"));
    }
    if metadata.size > MAX_LEN {
        return Err(Failure::new(
            format!(
                "its size is {}, but at most {} can be edited",
                text::size(metadata.size),
                text::size(MAX_LEN)
            ),
            "copy it here with `remex cp`, edit it, and copy it back",
        ));
    }
    Ok(Some(fs.read(&remote_path.path).await?.to_vec()))
}

/// Fails if the file cannot be written, before the user spends time on editing it.
///
/// Prepares the very write that follows the editor, and discards it: the file and its directory stay unchanged.
async fn check_writable(remote_path: &RemotePath) -> Result<(), Failure> {
    let client = &remote_path.at.client;
    if !client.welcome().has_sessions() {
        // The oldest dialect has no handles.
        return Ok(());
    }
    let handle_id = "writable".to_owned();
    let open = Open {
        handle_id: handle_id.clone(),
        path: remote_path.path.as_host_path()?,
        mode: OpenMode::Replace,
        atomic: true,
        create_mode: None,
        exclusive: false,
        sandbox: Sandbox::default(),
    };
    match client.call(open).await {
        Ok(_) => {
            // After a disconnect, the handle has ended with its connection.
            let _ = client.call(Close { handle_id, discard: true }).await;
            Ok(())
        }
        // Only the write itself can find that out then.
        Err(Error::Interrupted { .. }) => Ok(()),
        Err(error) => Err(Failure::from(error).with_clause("the editor was not opened").into_plain_failure()),
    }
}

/// Runs the editor and writes the result; fails if a signal arrives.
async fn edit(
    remote_path: &RemotePath,
    before: Option<&[u8]>,
    copy: &LocalCopy,
    termination: &mut Termination,
) -> Result<(), Failure> {
    let editor = Editor::from_env();
    let status = editor.run(&copy.file, termination).await?;
    if !status.success() {
        let set_another = match editor.variable {
            Some(variable) => format!("set {variable} to another one"),
            None => "set EDITOR to another one".to_owned(),
        };
        return Err(Failure::new(
            format!(
                "the editor `{}` failed ({status}), so nothing was written",
                text::plain(&editor.command)
            ),
            format!("save and quit the editor without an error, or {set_another}"),
        ));
    }
    match copy.read()? {
        Some(content) if Some(&content[..]) == before => print::note("nothing was changed"),
        None if before.is_some() => {
            return Err(Failure::new(
                "the editor removed its file, so nothing was written",
                "save the file before you quit the editor",
            ));
        }
        None => print::note("nothing was written, so no file was created"),
        Some(content) if content.is_empty() && before.is_none() => {
            print::note("nothing was written, so no file was created");
        }
        Some(content) => tokio::select! {
            written = write(remote_path, before, &content) => written?,
            code = termination.recv() => return Err(Failure::signalled(code)),
        },
    }
    Ok(())
}

/// The user's editor.
struct Editor {
    /// Run by a shell, so that it may have arguments.
    command: String,
    /// The environment variable that names it.
    variable: Option<&'static str>,
}

impl Editor {
    fn from_env() -> Self {
        let named = |variable| {
            let command = std::env::var(variable).ok().filter(|value| !value.trim().is_empty())?;
            Some(Self { command, variable: Some(variable) })
        };
        let usual = || Self { command: "vi".to_owned(), variable: None };
        named("VISUAL").or_else(|| named("EDITOR")).unwrap_or_else(usual)
    }

    /// Runs it until it exits, or a signal arrives, which is passed on to it.
    async fn run(&self, file: &Path, termination: &mut Termination) -> Result<ExitStatus, Failure> {
        let mut shell = std::process::Command::new("/bin/sh");
        shell.arg("-c").arg(format!("trap : INT QUIT; {} \"$@\"", self.command)).arg(&self.command).arg(file);
        // Ctrl-C is for the editor; a handler keeps it from ending this process.
        let _listening = (signal(SignalKind::interrupt()), signal(SignalKind::quit()));
        let failed = |error| Failure::io(&format!("run the editor `{}`", text::plain(&self.command)), &error);
        let mut child = shell.spawn().map_err(failed)?;
        let pid = Pid::from_child(&child);
        let mut exited = tokio::task::spawn_blocking(move || child.wait());
        let code = tokio::select! {
            status = &mut exited => return status.map_err(io::Error::other).and_then(|status| status).map_err(failed),
            code = termination.recv() => code,
        };
        // The pid is still that of the shell, which waits for the editor and exits after it.
        if !signal_descendants(pid, Signal::TERM) {
            let _ = kill_process(pid, Signal::TERM);
        }
        if tokio::time::timeout(EDITOR_EXIT_TIMEOUT, &mut exited).await.is_err() {
            signal_descendants(pid, Signal::KILL);
            let _ = kill_process(pid, Signal::KILL);
            let _ = exited.await;
        }
        Err(Failure::signalled(code))
    }
}

/// Sends a signal to all descendants of a process; returns whether it has any.
fn signal_descendants(pid: Pid, signal: Signal) -> bool {
    let path = format!("/proc/{0}/task/{0}/children", pid.as_raw_nonzero());
    let children = fs::read_to_string(path).unwrap_or_default();
    let mut has_children = false;
    for child in children.split_whitespace().filter_map(|child| Pid::from_raw(child.parse().ok()?)) {
        has_children = true;
        signal_descendants(child, signal);
        // It may have exited.
        let _ = kill_process(child, signal);
    }
    has_children
}

/// Writes the file, if it is unchanged.
async fn write(remote_path: &RemotePath, before: Option<&[u8]>, content: &[u8]) -> Result<(), Failure> {
    let expected = before.map_or(IfMatch::Absent, |before| IfMatch::Content(hash(before)));
    for _ in 0..TRIES {
        match remote_path.at.fs.write(&remote_path.path, content).if_match(expected).atomic().await {
            Ok(_) => return Ok(()),
            Err(Error::Interrupted { .. }) => {
                // Done if the write took effect before the disconnect; otherwise it is repeated.
                if remote_path
                    .at
                    .fs
                    .hash(&remote_path.path)
                    .await
                    .is_ok_and(|there| there.hash == hash(content))
                {
                    return Ok(());
                }
            }
            Err(error) if error.kind() == Some(ErrorKind::ContentChanged) => {
                return Err(Failure::new("it has been modified in the meantime", "edit it again"));
            }
            Err(error) => return Err(error.into()),
        }
    }
    Err(Failure::of(Kind::Unreachable, "the connection was lost repeatedly", "try again"))
}

fn hash(content: &[u8]) -> ContentHash {
    ContentHash(Sha256::digest(content).into())
}

/// The local copy for the editor, in its own private directory.
struct LocalCopy {
    directory: PathBuf,
    file: PathBuf,
}

impl LocalCopy {
    fn new(path: &Path, content: Option<&[u8]>) -> Result<Self, Failure> {
        let failed = |error| Failure::io("make a temporary copy", &error);
        let directory = private_directory().map_err(failed)?;
        // Keep the name, so that the editor recognizes the file type.
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

    /// Returns its content; `None` if it does not exist.
    fn read(&self) -> Result<Option<Vec<u8>>, Failure> {
        match fs::read(&self.file) {
            Ok(content) => Ok(Some(content)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(Failure::io(&format!("read `{}`", self.file.display()), &error)),
        }
    }

    /// Returns whether it contains changes that must not be lost.
    fn differs_from(&self, before: Option<&[u8]>) -> bool {
        match fs::read(&self.file) {
            Ok(now) => before.map_or(!now.is_empty(), |before| before != now),
            // Keep anything else that the editor has created, such as a directory.
            Err(error) => error.kind() != io::ErrorKind::NotFound,
        }
    }

    /// Removes it unless it contains changes, or the editor has left other files; returns whether it is removed.
    fn remove_unchanged(&self, before: Option<&[u8]>) -> bool {
        if self.differs_from(before) {
            return false;
        }
        // It does not exist if the editor has not written it.
        let _ = fs::remove_file(&self.file);
        fs::remove_dir(&self.directory).is_ok()
    }

    fn remove(&self) {
        // Also removes other files of the editor; a failure does no harm.
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
