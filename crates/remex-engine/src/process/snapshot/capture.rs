//! Runs a login shell once, to see what its files set up.

use std::{
    collections::BTreeMap,
    ffi::{OsStr, OsString},
    io::ErrorKind,
    os::{
        fd::{AsFd as _, OwnedFd},
        unix::ffi::OsStrExt as _,
    },
};

use remex_process::{Child, ChildIo, Leader, Spawner, Start, Stdin, Stdio, Tag, read, register_fd, tree};
use tokio::io::{Interest, unix::AsyncFd};

use super::{
    MAX_LEN,
    shell::{self, Files, Shell},
};
use crate::process::LOG_TARGET;

/// The most output of a capture: the state, and everything that the login files print before it.
const MAX_OUTPUT: usize = 2 * MAX_LEN;

/// Bytes per read.
const READ_LEN: usize = 64 << 10;

/// A capture in progress. Dropping its future kills what it has started.
pub(super) struct Capture<'a> {
    pub(super) shell: &'a Shell,
    pub(super) tag: Tag,
    pub(super) spawner: &'a Spawner,
}

/// The state of a shell after it has read its files.
pub(super) struct Found {
    pub(super) variables: BTreeMap<OsString, OsString>,
    pub(super) script: Vec<u8>,
    /// Whether the shell has read a file for interactive shells.
    pub(super) has_read: bool,
    /// Processes that the files have left running.
    pub(super) left: Left,
}

/// A capture without a result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Failed {
    /// Before the shell has read a file for interactive shells.
    Login,
    /// After the login files, so that a capture without further files may succeed.
    Interactive,
}

impl Failed {
    pub(super) fn after(has_read: bool) -> Self {
        if has_read { Self::Interactive } else { Self::Login }
    }
}

impl Capture<'_> {
    /// Runs the files of the shell. What they leave running after a failure is killed.
    pub(super) async fn run(&self, start: &Start, files: Files) -> Result<Found, Failed> {
        let mark = mark().ok_or(Failed::Login)?;
        let dump = self.shell.dump(&mark, files);
        let start = Start { args: vec!["-lc".into(), dump.into()], ..start.clone() };
        let Ended { is_success, printed, left } = self.output(start).await.ok_or(Failed::Login)?;
        let read = shell::reading(&mark);
        let has_read = printed.windows(read.len()).any(|window| window == read.as_bytes());
        match sections(&printed, &mark) {
            Some((variables, script)) if is_success => {
                Ok(Found { variables, script: self.shell.script(script), has_read, left })
            }
            _ => {
                left.kill().await;
                Err(Failed::after(has_read))
            }
        }
    }

    /// Returns whether a command runs after `restore`, which must print nothing.
    pub(super) async fn check(&self, restore: impl FnOnce(Vec<OsString>) -> Start) -> bool {
        let Some(mark) = mark() else { return false };
        let start = restore(vec!["-lc".into(), self.shell.print(&format!("%s {mark}")).into()]);
        let Some(mut ended) = self.output(start).await else { return false };
        let runs = ended.is_success && ended.printed == mark.as_bytes();
        if runs {
            ended.left.keep();
        } else {
            ended.left.kill().await;
        }
        runs
    }

    /// Runs a command to its end; `None` if it cannot be started.
    async fn output(&self, start: Start) -> Option<Ended> {
        let stdio = Stdio::Pipes { stdin: Stdin::Null };
        let start = Start { stdio, tag: self.tag, arg0: None, ..start };
        let Child { io, mut exit, .. } = self.spawner.start(start).await.ok()?;
        let left = Left(Some((self.tag, exit.leader().clone())));
        let ChildIo::Pipes { stdout, stderr, .. } = io else { return None };
        let (mut printed, mut ignored) = (Output::new(stdout)?, Output::new(stderr)?);
        let status = loop {
            tokio::select! {
                status = exit.wait() => break Some(status),
                () = printed.more() => {}
                () = ignored.more() => ignored.bytes.clear(),
            }
            if printed.bytes.len() > MAX_OUTPUT {
                break None;
            }
        };
        // What the files left running may hold the pipe open, so its end is not awaited.
        while !printed.is_at_end && printed.bytes.len() <= MAX_OUTPUT && printed.read() {}
        let is_success = status.is_some_and(|status| status.code == 0) && printed.bytes.len() <= MAX_OUTPUT;
        Some(Ended { is_success, printed: printed.bytes, left })
    }
}

/// A command that has ended, or has printed too much.
struct Ended {
    is_success: bool,
    printed: Vec<u8>,
    left: Left,
}

/// Returns the variables and the script that a shell has printed, if nothing is missing.
fn sections<'a>(printed: &'a [u8], mark: &str) -> Option<(BTreeMap<OsString, OsString>, &'a [u8])> {
    let separator = format!("\n{mark}\n").into_bytes();
    let mut sections = split(printed, &separator);
    let (_noise, variables, script) = (sections.next()?, sections.next()?, sections.next()?);
    // The last mark proves that nothing is missing.
    sections.next()?;
    let variables = variables.split(|byte| *byte == 0).filter_map(|entry| {
        let equals = entry.iter().position(|byte| *byte == b'=')?;
        let text = |bytes: &[u8]| OsStr::from_bytes(bytes).to_owned();
        Some((text(&entry[..equals]), text(&entry[equals + 1..])))
    });
    Some((variables.collect(), script))
}

/// One stream of a child.
struct Output {
    fd: AsyncFd<OwnedFd>,
    bytes: Vec<u8>,
    is_at_end: bool,
}

impl Output {
    fn new(fd: OwnedFd) -> Option<Self> {
        Some(Output { fd: register_fd(fd, Interest::READABLE).ok()?, bytes: Vec::new(), is_at_end: false })
    }

    /// Waits for more; never returns at the end. Cancel-safe.
    async fn more(&mut self) {
        loop {
            if self.is_at_end {
                std::future::pending::<()>().await;
            }
            match self.fd.readable().await {
                Ok(mut ready) => ready.clear_ready(),
                Err(_) => std::future::pending().await,
            }
            if self.read() {
                return;
            }
        }
    }

    /// Reads the available output; returns false if there is none.
    fn read(&mut self) -> bool {
        let mut buffer = vec![0; READ_LEN];
        let mut has_read = false;
        loop {
            match read(self.fd.as_fd(), &mut buffer) {
                Ok(0) => self.is_at_end = true,
                Ok(len) => {
                    self.bytes.extend_from_slice(&buffer[..len]);
                    has_read = true;
                    if self.bytes.len() <= MAX_OUTPUT {
                        continue;
                    }
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => self.is_at_end |= error.kind() != ErrorKind::WouldBlock,
            }
            return has_read;
        }
    }
}

/// A child and its descendants, which are killed when this is dropped.
pub(super) struct Left(Option<(Tag, Leader)>);

impl Left {
    /// Lets them run; they end with the session, as if the command had started them.
    pub(super) fn keep(&mut self) {
        self.0 = None;
    }

    /// Kills them and waits until they are gone.
    pub(super) async fn kill(mut self) {
        let Some((tag, leader)) = self.0.take() else { return };
        if let Err(error) = tree::kill_start(tag, &leader).await {
            tracing::warn!(target: LOG_TARGET, %error, "cannot kill what the files of a shell have left running");
        }
    }
}

impl Drop for Left {
    fn drop(&mut self) {
        if let Some((tag, leader)) = self.0.take() {
            drop(tree::kill_start(tag, &leader));
        }
    }
}

/// Returns a word that no profile file prints.
fn mark() -> Option<String> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).ok()?;
    Some(bytes.iter().fold("remex-".to_owned(), |mark, byte| format!("{mark}{byte:02x}")))
}

fn split<'a, 'b>(bytes: &'a [u8], separator: &'b [u8]) -> impl Iterator<Item = &'a [u8]> + use<'a, 'b> {
    let mut rest = Some(bytes);
    std::iter::from_fn(move || {
        let bytes = rest?;
        let at = bytes.windows(separator.len()).position(|window| window == separator);
        rest = at.map(|at| &bytes[at + separator.len()..]);
        Some(&bytes[..at.unwrap_or(bytes.len())])
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sections_are_separated_by_whole_marks() {
        let sections: Vec<_> = split(b"a\n--\nb\n-\n\n--\n", b"\n--\n").collect();
        assert_eq!(sections, [&b"a"[..], b"b\n-\n", b""]);
    }
}
