//! The thread that owns a program: listens to it, learns of its end, and brings it about.
//!
//! Nobody else reaps the program, so its number and its group are its own until the last step.
//! Start at [`keep`].

use std::{
    io::{self, PipeReader},
    os::fd::{AsFd, OwnedFd},
    process::{self, ChildStdin, ChildStdout},
    thread,
    time::{Duration, Instant},
};

use rustix::{
    io::retry_on_intr,
    process::{Pid, Signal, WaitId, WaitIdOptions, WaitIdStatus, waitid},
};
use tokio::sync::{oneshot, watch};

use super::{Life, pidfd, stderr::Stderr, tree::Tree};

/// How long a program may take to end by itself, and once more after TERM.
const GRACE: Duration = Duration::from_secs(2);

/// How a program ended that somebody else has reaped.
const UNKNOWN: &str = "status unknown";

/// Our ends of a program's standard streams.
#[derive(Debug)]
pub(super) struct Streams {
    pub(super) stdin: ChildStdin,
    pub(super) stdout: ChildStdout,
}

/// Starts a program, tells about it, and ends it with its tree as soon as `hangup` has no writer any more.
///
/// A program that ends by itself takes its tree with it at once.
pub(super) fn keep(
    mut command: process::Command,
    hangup: &PipeReader,
    life: watch::Sender<Life>,
    born: oneshot::Sender<io::Result<Streams>>,
) {
    match Keeper::start(&mut command, life) {
        Ok((keeper, streams)) => {
            // When nobody waits for them any more, the streams are closed here, and the hangup has come.
            let _ = born.send(Ok(streams));
            keeper.run(hangup);
        }
        Err(error) => {
            let _ = born.send(Err(error));
        }
    }
}

struct Keeper {
    leader: process::Child,
    tree: Tree,
    stderr: Stderr,
}

impl Keeper {
    fn start(command: &mut process::Command, life: watch::Sender<Life>) -> io::Result<(Self, Streams)> {
        let mut leader = command.spawn()?;
        let (stdin, stdout, stderr) = (leader.stdin.take(), leader.stdout.take(), leader.stderr.take());
        let (Some(stdin), Some(stdout), Some(stderr)) = (stdin, stdout, stderr) else {
            unreachable!("all three were asked for");
        };
        let pid = Pid::from_child(&leader);
        let exit = match exit_of(pid) {
            Ok(exit) => exit,
            Err(error) => {
                leader.kill()?;
                leader.wait()?;
                return Err(error);
            }
        };
        tracing::debug!(pid = pid.as_raw_pid(), "program started");
        let keeper = Self { leader, tree: Tree::new(pid, exit), stderr: Stderr::new(stderr, life) };
        Ok((keeper, Streams { stdin, stdout }))
    }

    fn run(mut self, hangup: &PipeReader) {
        let hangup = hangup.as_fd();
        if self.stderr.drain_until(&[hangup, self.tree.exit()], None) == Some(1) {
            let status =
                self.tree.status().ok().flatten().as_ref().map_or_else(|| UNKNOWN.to_owned(), describe);
            self.stderr.life().send_modify(|life| life.status = Some(status));
            // What it has started serves nobody any more, whether or not its connection is still held open.
            self.finish(Signal::TERM);
            self.finish(Signal::KILL);
            self.stderr.drain_until(&[hangup], None);
        }
        self.end();
    }

    fn end(mut self) {
        self.stderr.drain_until(&[self.tree.exit()], Some(Instant::now() + GRACE));
        self.finish(Signal::TERM);
        self.finish(Signal::KILL);
        // Whoever could not be seen.
        self.tree.signal(Signal::KILL);
        // It may have left its own group.
        let _ = self.leader.kill();
        if matches!(self.leader.try_wait(), Ok(None)) {
            // The kernel does not let it go, perhaps for a disk that does not answer. This thread can wait.
            tracing::warn!(pid = self.leader.id(), "a program cannot be killed yet");
            drop(self.stderr);
        }
        let _ = self.leader.wait();
    }

    /// Signals what is left of the tree, and waits until it is gone or has had its grace.
    fn finish(&mut self, signal: Signal) {
        let deadline = Instant::now() + GRACE;
        while self.tree.look() && Instant::now() < deadline {
            self.tree.signal(signal);
            for end in self.tree.ends() {
                if self.stderr.drain_until(&[end], Some(deadline)).is_none() {
                    return;
                }
            }
        }
    }
}

/// Returns what can be read as soon as the child has ended, and after.
fn exit_of(pid: Pid) -> io::Result<OwnedFd> {
    if let Ok(exit) = pidfd::open(pid) {
        return Ok(exit);
    }
    let (ended, running) = io::pipe()?;
    thread::Builder::new().name("remex-program".to_owned()).spawn(move || {
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
        let _ = retry_on_intr(|| waitid(WaitId::Pid(pid), options));
        drop(running);
    })?;
    Ok(ended.into())
}

fn describe(status: &WaitIdStatus) -> String {
    match (status.exit_status(), status.terminating_signal()) {
        (Some(code), _) => format!("exit code {code}"),
        (None, Some(signal)) => format!("signal {}", name(signal)),
        (None, None) => UNKNOWN.to_owned(),
    }
}

fn name(signal: i32) -> String {
    let name = match Signal::from_named_raw(signal) {
        Some(Signal::HUP) => "SIGHUP",
        Some(Signal::INT) => "SIGINT",
        Some(Signal::QUIT) => "SIGQUIT",
        Some(Signal::ILL) => "SIGILL",
        Some(Signal::TRAP) => "SIGTRAP",
        Some(Signal::ABORT) => "SIGABRT",
        Some(Signal::BUS) => "SIGBUS",
        Some(Signal::FPE) => "SIGFPE",
        Some(Signal::KILL) => "SIGKILL",
        Some(Signal::SEGV) => "SIGSEGV",
        Some(Signal::PIPE) => "SIGPIPE",
        Some(Signal::ALARM) => "SIGALRM",
        Some(Signal::TERM) => "SIGTERM",
        Some(Signal::XCPU) => "SIGXCPU",
        Some(Signal::XFSZ) => "SIGXFSZ",
        Some(Signal::SYS) => "SIGSYS",
        _ => return signal.to_string(),
    };
    name.to_owned()
}
