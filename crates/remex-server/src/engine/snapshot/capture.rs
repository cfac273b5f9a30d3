//! Runs a login shell once, to see what its profile files set up.

use std::{
    collections::BTreeMap,
    ffi::{OsStr, OsString},
    io::ErrorKind,
    os::{
        fd::{AsFd as _, OwnedFd},
        unix::ffi::OsStrExt as _,
    },
};

use remex_process::{Child, ChildIo, Leader, Spawner, Start, Stdin, Stdio, Tag, read, tree, watch};
use tokio::io::{Interest, unix::AsyncFd};

use super::{MAX_LEN, shell::Shell};

/// What a capture may print: the state, and what the profile files print before it.
const MAX_OUTPUT: usize = 2 * MAX_LEN;

/// Bytes per read.
const READ_LEN: usize = 64 << 10;

/// A capture in progress. Dropping its future kills what it has started.
pub(super) struct Capture<'a> {
    pub(super) shell: &'a Shell,
    pub(super) tag: Tag,
    pub(super) spawner: &'a Spawner,
}

/// What a shell has after its profile files.
pub(super) struct Found {
    pub(super) variables: BTreeMap<OsString, OsString>,
    pub(super) script: Vec<u8>,
}

impl Capture<'_> {
    /// Runs the profile files; returns `None` if that fails or there is too much.
    pub(super) async fn run(&self, start: &Start) -> Option<Found> {
        let mark = mark()?;
        let dump = self.shell.dump(&mark);
        let start = Start { args: vec!["-lc".into(), dump.into()], ..start.clone() };
        let output = self.output(start).await?;
        let separator = format!("\n{mark}\n");
        let mut sections = split(&output, separator.as_bytes());
        let (_printed, variables, script) = (sections.next()?, sections.next()?, sections.next()?);
        // The last mark tells that nothing is missing.
        sections.next()?;
        let variables = variables.split(|byte| *byte == 0).filter_map(|entry| {
            let equals = entry.iter().position(|byte| *byte == b'=')?;
            let text = |bytes: &[u8]| OsStr::from_bytes(bytes).to_owned();
            Some((text(&entry[..equals]), text(&entry[equals + 1..])))
        });
        Some(Found { variables: variables.collect(), script: self.shell.script(script) })
    }

    /// Returns whether a command runs after `restore`, which must print nothing.
    pub(super) async fn check(&self, restore: impl FnOnce(Vec<OsString>) -> Start) -> bool {
        let Some(mark) = mark() else { return false };
        let start = restore(vec!["-lc".into(), format!("printf %s {mark}").into()]);
        self.output(start).await.is_some_and(|output| output == mark.as_bytes())
    }

    /// Runs a command to its end and returns what it prints; `None` if it fails or prints too much.
    async fn output(&self, start: Start) -> Option<Vec<u8>> {
        let stdio = Stdio::Pipes { stdin: Stdin::Null };
        let start = Start { stdio, tag: self.tag, arg0: None, ..start };
        let Child { io, mut exit, .. } = self.spawner.start(start).await.ok()?;
        let mut unfinished = KillOnDrop(Some((self.tag, exit.leader().clone())));
        let ChildIo::Pipes { stdout, stderr, .. } = io else { return None };
        let (mut printed, mut ignored) = (Output::new(stdout)?, Output::new(stderr)?);
        let status = loop {
            tokio::select! {
                status = exit.wait() => break status,
                () = printed.more() => {}
                () = ignored.more() => ignored.bytes.clear(),
            }
            if printed.bytes.len() > MAX_OUTPUT {
                return None;
            }
        };
        // What the profile files left running may hold the pipe open, so its end is not awaited.
        while !printed.is_at_end && printed.bytes.len() <= MAX_OUTPUT && printed.read() {}
        // It ends with the session, as if the command had started it.
        unfinished.0 = None;
        (status.code == 0 && printed.bytes.len() <= MAX_OUTPUT).then_some(printed.bytes)
    }
}

/// One stream of a child.
struct Output {
    fd: AsyncFd<OwnedFd>,
    bytes: Vec<u8>,
    is_at_end: bool,
}

impl Output {
    fn new(fd: OwnedFd) -> Option<Self> {
        Some(Output { fd: watch(fd, Interest::READABLE).ok()?, bytes: Vec::new(), is_at_end: false })
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

    /// Reads what is there; returns false if nothing is.
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

/// Kills a child and its descendants, unless it is taken out.
struct KillOnDrop(Option<(Tag, Leader)>);

impl Drop for KillOnDrop {
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

fn split<'a>(bytes: &'a [u8], separator: &'a [u8]) -> impl Iterator<Item = &'a [u8]> {
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
