//! The thread that supervises a program: drains its standard error, waits for its exit, and ends it.
//!
//! Only this thread reaps the program, so its pid and process group stay valid until the last step.
//! Start at [`supervise`].

use std::{
    io::{self, PipeReader, Read as _, Write as _},
    os::fd::{AsFd, OwnedFd},
    process::{self, ChildStdin, ChildStdout},
    thread,
    time::{Duration, Instant},
};

use rustix::{
    io::retry_on_intr,
    process::{Pid, Signal, WaitId, WaitIdOptions, WaitIdStatus, getpgrp, kill_process_group, waitid},
};
use tokio::sync::{oneshot, watch};

use super::{
    ProgramState, PromptRefusal, PromptState,
    foreground::{self, Denied, ForegroundTerminal},
    pidfd,
    stderr::Stderr,
    tree::Tree,
};
use crate::Prompts;

/// The grace period to exit after the input is closed, and again after SIGTERM.
const GRACE: Duration = Duration::from_secs(2);

/// The status of a program that was reaped elsewhere.
const UNKNOWN: &str = "status unknown";

/// Our ends of a program's standard streams.
#[derive(Debug)]
pub(super) struct Streams {
    pub(super) stdin: ChildStdin,
    pub(super) stdout: ChildStdout,
}

/// Starts a program, publishes its state, and ends it with its tree when the other end of `commands` is closed.
///
/// If the program exits by itself, its tree is ended at once.
pub(super) fn supervise(
    mut command: process::Command,
    commands: &PipeReader,
    prompts: Prompts,
    state: watch::Sender<ProgramState>,
    started: oneshot::Sender<io::Result<Streams>>,
) {
    match Supervisor::start(&mut command, prompts, state) {
        Ok((supervisor, streams)) => {
            // If the caller is gone, the streams are closed here, and the command pipe is closed too.
            let _ = started.send(Ok(streams));
            supervisor.run(commands);
        }
        Err(error) => {
            let _ = started.send(Err(error));
        }
    }
}

struct Supervisor {
    leader: process::Child,
    tree: Tree,
    stderr: Stderr,
    phase: ConnectionPhase,
    prompts: Prompts,
    /// One byte for each time the leader is stopped: the signal; `None` where that cannot be detected.
    stops: Option<PipeReader>,
    /// The terminal while the program prompts the user.
    foreground: Option<ForegroundTerminal>,
    /// Closed when another program may have released the terminal.
    terminal_free: Option<PipeReader>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum ConnectionPhase {
    Connecting,
    Connected,
    Exited,
}

/// What a supervisor waits for.
#[derive(Clone, Copy)]
enum Event {
    Command,
    Exit,
    Stop,
    TerminalFree,
}

impl Supervisor {
    fn start(
        command: &mut process::Command,
        prompts: Prompts,
        state: watch::Sender<ProgramState>,
    ) -> io::Result<(Self, Streams)> {
        let mut leader = command.spawn()?;
        let (stdin, stdout, stderr) = (leader.stdin.take(), leader.stdout.take(), leader.stderr.take());
        let (Some(stdin), Some(stdout), Some(stderr)) = (stdin, stdout, stderr) else {
            unreachable!("all three are piped");
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
        let supervisor = Self {
            leader,
            tree: Tree::new(pid, exit),
            stderr: Stderr::new(stderr, state),
            phase: ConnectionPhase::Connecting,
            prompts,
            stops: stops_of(pid).ok(),
            foreground: None,
            terminal_free: None,
        };
        Ok((supervisor, Streams { stdin, stdout }))
    }

    fn run(mut self, commands: &PipeReader) {
        while let Some(event) = self.next_event(commands) {
            match event {
                Event::Command => match (&*commands).read(&mut [0]) {
                    Ok(1) => self.on_connected(),
                    _ => break,
                },
                Event::Exit => self.on_exit(),
                Event::Stop => self.on_stop(),
                Event::TerminalFree => {
                    self.terminal_free = None;
                    self.grant_terminal();
                }
            }
        }
        self.end();
    }

    /// Drains standard error until the next event; `None` if polling fails.
    fn next_event(&mut self, commands: &PipeReader) -> Option<Event> {
        let exit = (self.phase != ConnectionPhase::Exited).then(|| (Event::Exit, self.tree.exit()));
        let stop = self.stops.as_ref().map(|stops| (Event::Stop, stops.as_fd()));
        let terminal_free =
            self.terminal_free.as_ref().map(|terminal_free| (Event::TerminalFree, terminal_free.as_fd()));
        let (events, sources): (Vec<_>, Vec<_>) =
            [Some((Event::Command, commands.as_fd())), exit, stop, terminal_free]
                .into_iter()
                .flatten()
                .unzip();
        self.stderr.drain_until(&sources, None).map(|index| events[index])
    }

    fn on_connected(&mut self) {
        self.reclaim_terminal();
        (self.stops, self.terminal_free) = (None, None);
        if self.phase == ConnectionPhase::Connecting {
            self.phase = ConnectionPhase::Connected;
        }
        self.stderr.state().send_modify(|state| state.prompt = PromptState::Connected);
    }

    fn on_exit(&mut self) {
        self.phase = ConnectionPhase::Exited;
        (self.stops, self.terminal_free) = (None, None);
        let status = self.tree.status().ok().flatten();
        let interrupted =
            status.as_ref().and_then(WaitIdStatus::terminating_signal) == Some(Signal::INT.as_raw());
        if self.reclaim_terminal() && interrupted {
            // If this process had kept the terminal, Ctrl-C would have interrupted it as well.
            let _ = kill_process_group(getpgrp(), Signal::INT);
        }
        let status = status.as_ref().map_or_else(|| UNKNOWN.to_owned(), describe);
        self.stderr.state().send_modify(|state| state.status = Some(status));
        // Its descendants are useless now, even if they keep the connection open.
        self.finish(Signal::TERM);
        self.finish(Signal::KILL);
    }

    /// Finds out why the program was stopped: because it used the terminal from the background, or by the user.
    fn on_stop(&mut self) {
        let mut signal = [0];
        let read = self.stops.as_ref().map(|mut stops| stops.read(&mut signal));
        if !matches!(read, Some(Ok(1))) {
            self.stops = None;
            return;
        }
        match Signal::from_named_raw(i32::from(signal[0])) {
            Some(Signal::TTIN | Signal::TTOU) => {
                self.reclaim_terminal();
                self.grant_terminal();
            }
            Some(Signal::TSTP) if self.reclaim_terminal() => {
                foreground::suspend();
                self.grant_terminal();
            }
            _ => {}
        }
    }

    /// Gives the terminal to the program, if it may prompt.
    fn grant_terminal(&mut self) {
        let acquired = match self.prompts {
            Prompts::Allow => ForegroundTerminal::acquire(self.tree.group()),
            Prompts::Refuse => Err(Denied::Refused(PromptRefusal::NotAllowed)),
        };
        let prompt = match acquired {
            Ok(foreground) => {
                if let Ok(terminal) = foreground.terminal() {
                    self.stderr.show_on(terminal);
                }
                self.foreground = Some(foreground);
                PromptState::Asking
            }
            Err(Denied::Taken(free)) => {
                self.terminal_free = Some(free);
                PromptState::Asking
            }
            Err(Denied::Refused(refusal)) => PromptState::Refused(refusal),
        };
        self.stderr.state().send_modify(|state| state.prompt = prompt);
        if self.foreground.is_some() {
            let _ = kill_process_group(self.tree.group(), Signal::CONT);
        }
    }

    /// Takes the terminal back, and returns whether the program had it.
    fn reclaim_terminal(&mut self) -> bool {
        self.stderr.hide();
        self.foreground.take().is_some()
    }

    fn end(mut self) {
        let asks =
            matches!(self.stderr.state().borrow().prompt, PromptState::Asking | PromptState::Refused(_));
        self.reclaim_terminal();
        // A program that prompts or is stopped does not notice the end of its input.
        if !asks {
            self.stderr.drain_until(&[self.tree.exit()], Some(Instant::now() + GRACE));
        }
        self.finish(Signal::TERM);
        self.finish(Signal::KILL);
        // For processes that could not be listed.
        self.tree.signal(Signal::KILL);
        // The leader may have left its own group.
        let _ = self.leader.kill();
        if matches!(self.leader.try_wait(), Ok(None)) {
            // Blocked in the kernel, perhaps on a disk that does not respond. This thread can wait.
            tracing::warn!(pid = self.leader.id(), "program still running after SIGKILL");
            drop(self.stderr);
        }
        let _ = self.leader.wait();
    }

    /// Signals the rest of the tree, and waits until it has exited or the grace period is over.
    fn finish(&mut self, signal: Signal) {
        let deadline = Instant::now() + GRACE;
        while self.tree.scan() && Instant::now() < deadline {
            self.tree.signal(signal);
            // A stopped process handles SIGTERM only when it is resumed.
            self.tree.signal(Signal::CONT);
            for end in self.tree.ends() {
                if self.stderr.drain_until(&[end], Some(deadline)).is_none() {
                    return;
                }
            }
        }
    }
}

/// Returns a descriptor that becomes readable when the child has exited.
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

/// Returns a pipe with one byte for each time the child is stopped: the number of the signal.
fn stops_of(pid: Pid) -> io::Result<PipeReader> {
    let child = pidfd::open(pid)?;
    let (stops, mut stopped) = io::pipe()?;
    // Stops cannot be polled, so a thread waits for them; it ends with the child.
    thread::Builder::new().name("remex-program".to_owned()).spawn(move || {
        while let Some(signal) = pidfd::next_stop(child.as_fd()) {
            let is_sent = u8::try_from(signal).is_ok_and(|signal| stopped.write_all(&[signal]).is_ok());
            if !is_sent {
                return;
            }
        }
    })?;
    Ok(stops)
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
