//! Helpers shared by the tests with real children.
#![allow(dead_code, clippy::unwrap_used, reason = "a part of every test program, which uses a part of it")]

mod skip;

use std::{
    ffi::OsString,
    future::Future,
    io::ErrorKind,
    os::fd::{AsFd, OwnedFd},
    path::PathBuf,
    sync::LazyLock,
    time::{Duration, Instant},
};

use remex_process::{
    Child, ChildIo, ExitStatus, Pid, Rlimits, Size, Spawner, Start, Stdin, Stdio, Tag, Tags, read,
    register_fd, tree,
};
use tokio::io::{Interest, unix::AsyncFd};

#[allow(unused_imports, reason = "not every test program has such needs")]
pub(crate) use skip::{Need, has};

pub(crate) const NULL: Stdio = Stdio::Pipes { stdin: Stdin::Null };
pub(crate) const PIPED: Stdio = Stdio::Pipes { stdin: Stdin::Piped };
pub(crate) const PTY: Stdio = Stdio::Pty { size: Size { rows: 31, cols: 97 } };

pub(crate) static TAGS: LazyLock<Tags> = LazyLock::new(Tags::new);

/// Much longer than anything here takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(20);

pub(crate) fn spawner() -> Spawner {
    Spawner::new(2).unwrap()
}

/// A start of `program` in `/` with an empty environment.
pub(crate) fn start(stdio: Stdio, tag: Tag, program: &str, args: &[&str]) -> Start {
    Start {
        program: program.into(),
        arg0: None,
        args: args.iter().map(OsString::from).collect(),
        cwd: PathBuf::from("/"),
        env: Vec::new(),
        stdio,
        tag,
        parent_death: None,
        rlimits: Rlimits::default(),
        cgroup: None,
        jail: None,
        user: None,
    }
}

pub(crate) fn shell(stdio: Stdio, tag: Tag, script: &str) -> Start {
    start(stdio, tag, "/bin/sh", &["-c", script])
}

/// Runs a program to its end and returns what it wrote to stdout or the terminal, and how it ended.
pub(crate) async fn run(start: Start) -> (String, ExitStatus) {
    finish(spawner().start(start).await.unwrap()).await
}

pub(crate) async fn finish(mut child: Child) -> (String, ExitStatus) {
    let output = match child.io {
        ChildIo::Pipes { stdout, .. } => stdout,
        ChildIo::Pty { master } => master,
    };
    let bytes = Reader::new(output).rest().await;
    (String::from_utf8(bytes).unwrap(), within(child.exit.wait()).await)
}

/// Waits for a future, and fails the test if it takes too long.
pub(crate) async fn within<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, future).await.expect("takes too long")
}

/// Waits until a condition holds that a thread of the spawner or the kernel brings about.
pub(crate) async fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < deadline, "never: {what}");
        tokio::task::yield_now().await;
    }
}

/// The living children of this program, and its zombies.
pub(crate) fn own_children() -> Vec<Pid> {
    let own = format!("PPid:\t{}", std::process::id());
    let statuses = std::fs::read_dir("/proc").unwrap().filter_map(|entry| {
        let pid = Pid::new(entry.ok()?.file_name().to_str()?.parse().ok()?)?;
        Some((pid, std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?))
    });
    statuses.filter(|(_, status)| status.lines().any(|line| line == own)).map(|(pid, _)| pid).collect()
}

pub(crate) fn pids(scope: &tree::Scope) -> Vec<Pid> {
    let mut pids: Vec<_> =
        tree::members(scope).wait().unwrap().into_iter().map(|member| member.pid).collect();
    pids.sort();
    pids
}

/// Reads a pipe or the master of a terminal.
pub(crate) struct Reader {
    fd: AsyncFd<OwnedFd>,
    seen: Vec<u8>,
}

impl Reader {
    pub(crate) fn new(fd: OwnedFd) -> Self {
        Self { fd: register_fd(fd, Interest::READABLE).unwrap(), seen: Vec::new() }
    }

    /// Reads until the text so far contains `needle`, and returns that text.
    pub(crate) async fn until(&mut self, needle: &str) -> String {
        loop {
            let text = String::from_utf8_lossy(&self.seen).into_owned();
            if text.contains(needle) {
                return text;
            }
            assert!(within(self.more()).await, "ended before {needle:?} with {text:?}");
        }
    }

    /// Reads to the end and returns everything.
    pub(crate) async fn rest(mut self) -> Vec<u8> {
        while within(self.more()).await {}
        self.seen
    }

    async fn more(&mut self) -> bool {
        let mut buffer = [0; 4096];
        loop {
            let mut ready = self.fd.readable().await.unwrap();
            match read(ready.get_inner().as_fd(), &mut buffer) {
                Ok(0) => return false,
                Ok(len) => {
                    self.seen.extend_from_slice(&buffer[..len]);
                    return true;
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => ready.clear_ready(),
                Err(error) => panic!("cannot read: {error}"),
            }
        }
    }
}

/// Splits a child on pipes.
pub(crate) fn pipes(io: ChildIo) -> (Option<OwnedFd>, Reader) {
    match io {
        ChildIo::Pipes { stdin, stdout, .. } => (stdin, Reader::new(stdout)),
        ChildIo::Pty { .. } => panic!("not on pipes"),
    }
}

/// The master of a child on a terminal, to read from and to do more with.
pub(crate) fn terminal(io: ChildIo) -> (Reader, OwnedFd) {
    match io {
        ChildIo::Pty { master } => (Reader::new(master.try_clone().unwrap()), master),
        ChildIo::Pipes { .. } => panic!("not on a terminal"),
    }
}
