//! `remex supervise`: runs a command again when it ends, on behalf of the server that was asked for that.
//!
//! It is the first process of its tree and the leader of the group in which the command runs, so signals reach the command
//! as if it were alone: the server and the terminal send them to the group. They reach this program as well, which survives
//! all that can be caught, passes them on only to a command that has left the group, and ends as its command does. Start at
//! [`run`].

use std::{
    ffi::OsString,
    future::poll_fn,
    io,
    os::unix::process::ExitStatusExt as _,
    process::{Child, ExitStatus},
    task::Poll,
    time::Duration,
};

use remex_client::process::{Restart, RestartPolicy};
use remex_process::{Rlimit, Rlimits, Supervised, TerminalState};
use rustix::process::{Pid, Signal, getpgid, getpgrp, kill_process_group};
use tokio::{
    runtime::Builder,
    signal::unix::{self, SignalKind, signal},
    time::{Instant, timeout},
};

use crate::{
    args::supervise::Flags,
    commands::{Outcome, run::shown_program, runtime},
    console::interrupt::SignalListener,
    render::{
        failure::{Failure, Kind},
        print,
    },
};

/// The delay before the first restart; each is twice as long as the one before.
const FIRST_DELAY: Duration = Duration::from_millis(100);

const MAX_DELAY: Duration = Duration::from_secs(60);

/// How much of a delay passes before it is reported: a signal to the whole tree may reach the command first.
const SETTLING: Duration = Duration::from_millis(50);

/// A run that lasts this long resets the delay.
const GOOD_RUN: Duration = Duration::from_secs(10);

/// How long after a signal that stops the restarts, other than SIGTERM, an exit counts as caused by it: a command that
/// handles the signal and keeps running, such as a daemon that reloads its configuration, is restarted when it ends later.
const STOPPING: Duration = Duration::from_secs(10);

/// What stops the restarts.
const STOP: [Signal; 4] = [Signal::TERM, Signal::HUP, Signal::INT, Signal::QUIT];

/// Signals that terminate a program by default, other than those that stop the restarts.
const SURVIVED: [Signal; 13] = [
    Signal::ABORT,
    Signal::TRAP,
    Signal::SYS,
    Signal::USR1,
    Signal::USR2,
    Signal::ALARM,
    Signal::STKFLT,
    Signal::XCPU,
    Signal::XFSZ,
    Signal::VTALARM,
    Signal::PROF,
    Signal::IO,
    Signal::POWER,
];

/// The exit code of a command that cannot be executed, as in shells.
const NOT_EXECUTABLE: u8 = 126;

/// How a run has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Code(u8),
    Signal(i32),
}

/// Runs the command until it is not run again, and ends as its last run.
pub(crate) fn run(flags: &Flags) -> Outcome {
    let runtime = runtime::build(Builder::new_current_thread().enable_all(), 1)?;
    match runtime.block_on(supervise(flags))? {
        End::Code(code) => Ok(code),
        End::Signal(signal) => remex_process::exit_by_signal(signal),
    }
}

async fn supervise(flags: &Flags) -> Result<End, Failure> {
    remex_process::ignore_faults();
    let mut signals = Signals::listen()?;
    let terminal = TerminalState::save();
    let (mut restarts, mut delay) = (0, FIRST_DELAY);
    loop {
        let begun = Instant::now();
        let end = match start(flags) {
            Ok(child) => signals.wait(child).await?,
            Err(error) if error.raw_os_error().is_some_and(is_passing) => {
                print::note(format!("cannot run `{}`: {error}", shown_program(&flags.command)));
                End::Code(NOT_EXECUTABLE)
            }
            Err(error) => return Err(not_started(&flags.command, &error)),
        };
        if !is_wanted(&flags.policy, end) {
            return Ok(end);
        }
        signals.forget_handled();
        if let Some(stop) = signals.stop_within(SETTLING).await {
            if end != End::Signal(stop.as_raw()) {
                let what = format!("`{}` {}", shown_program(&flags.command), describe_end(end));
                print::note(format!("{what} after signal {}; it is not run again", stop.as_raw()));
            }
            return Ok(end);
        }
        if let Some(terminal) = &terminal {
            terminal.restore();
        }
        let what = format!("`{}` {}", shown_program(&flags.command), describe_end(end));
        if flags.policy.max_restarts.is_some_and(|most| restarts >= most) {
            print::note(format!("{what}; it is not run again after {}", counted(restarts)));
            return Ok(end);
        }
        if begun.elapsed() >= GOOD_RUN {
            delay = FIRST_DELAY;
        }
        restarts += 1;
        let of = flags.policy.max_restarts.map(|most| format!(" of {most}")).unwrap_or_default();
        print::note(format!("{what}; restarting in {delay:?} ({restarts}{of})"));
        if let Some(stop) = signals.stop_within(delay.saturating_sub(SETTLING)).await {
            print::note(format!(
                "signal {} came; `{}` is not run again",
                stop.as_raw(),
                shown_program(&flags.command)
            ));
            return Ok(end);
        }
        delay = delay.saturating_mul(2).min(MAX_DELAY);
    }
}

fn start(flags: &Flags) -> io::Result<Child> {
    let limits = [(Rlimit::AddressSpace, flags.address_space), (Rlimit::OpenFiles, flags.open_files)];
    let limits = limits.into_iter().filter_map(|(limit, value)| Some((limit, value?)));
    let limits = limits.fold(Rlimits::default(), |set, (limit, value)| set.with(limit, value));
    Supervised { command: &flags.command, arg0: flags.arg0.as_deref(), limits }.spawn()
}

/// Returns whether this error is likely to be gone at the next attempt.
fn is_passing(error: i32) -> bool {
    let passing = [rustix::io::Errno::AGAIN, rustix::io::Errno::NOMEM, rustix::io::Errno::TXTBSY];
    passing.iter().any(|one| one.raw_os_error() == error)
}

/// Returns whether a command is run again after such an end.
fn is_wanted(restart: &Restart, end: End) -> bool {
    match restart.policy {
        RestartPolicy::Always => true,
        _ => end != End::Code(0),
    }
}

/// The signals that this program receives together with its command.
struct Signals {
    listeners: Vec<(Signal, SignalListener)>,
    /// The last one of those that stop the restarts.
    stop: Option<(Signal, Instant)>,
    child: unix::Signal,
}

impl Signals {
    fn listen() -> Result<Self, Failure> {
        let failed = |error| Failure::io("wait for signals", &error);
        let listen = |one: Signal| Ok((one, SignalListener::listen(SignalKind::from_raw(one.as_raw()))?));
        Ok(Signals {
            listeners: STOP.into_iter().chain(SURVIVED).map(listen).collect::<Result<_, Failure>>()?,
            stop: None,
            child: signal(SignalKind::child()).map_err(failed)?,
        })
    }

    /// Waits until a run has ended.
    async fn wait(&mut self, mut child: Child) -> Result<End, Failure> {
        loop {
            let ended = child.try_wait().map_err(|error| Failure::io("wait for the command", &error))?;
            tokio::select! {
                // A signal to the group is noticed before the end that it causes.
                biased;
                signal = next(&mut self.listeners) => {
                    self.note(signal);
                    if ended.is_none() {
                        pass_on(signal, &child);
                    }
                    continue;
                }
                _ = self.child.recv(), if ended.is_none() => {}
                () = async {}, if ended.is_some() => {}
            }
            if let Some(status) = ended {
                return Ok(End::from(status));
            }
        }
    }

    fn note(&mut self, signal: Signal) {
        let is_final = self.stop.is_some_and(|(stop, _)| stop == Signal::TERM);
        if STOP.contains(&signal) && !is_final {
            self.stop = Some((signal, Instant::now()));
        }
    }

    /// Forgets a signal that arrived long before the end of the run.
    fn forget_handled(&mut self) {
        self.stop = self.stop.filter(|(stop, at)| *stop == Signal::TERM || at.elapsed() < STOPPING);
    }

    /// Returns the signal that stops the restarts, if it has arrived or arrives within this time.
    async fn stop_within(&mut self, time: Duration) -> Option<Signal> {
        let stopping = async {
            while self.stop.is_none() {
                let signal = next(&mut self.listeners).await;
                self.note(signal);
            }
        };
        let _ = timeout(time, stopping).await;
        self.stop.map(|(signal, _)| signal)
    }
}

/// Waits for a signal.
async fn next(listeners: &mut [(Signal, SignalListener)]) -> Signal {
    poll_fn(|context| {
        let came = listeners
            .iter_mut()
            .find_map(|(signal, listener)| listener.poll_recv(context).is_ready().then_some(*signal));
        came.map_or(Poll::Pending, Poll::Ready)
    })
    .await
}

/// Forwards a signal to a command outside of the process group of this program; inside, the kernel delivers it to both.
fn pass_on(signal: Signal, child: &Child) {
    if let Ok(group) = getpgid(Some(Pid::from_child(child)))
        && group != getpgrp()
    {
        let _ = kill_process_group(group, signal);
    }
}

impl From<ExitStatus> for End {
    fn from(status: ExitStatus) -> Self {
        match (status.code(), status.signal()) {
            (_, Some(signal)) => End::Signal(signal),
            (code, None) => End::Code(code.and_then(|code| u8::try_from(code).ok()).unwrap_or(u8::MAX)),
        }
    }
}

/// Returns why a command does not run, with the exit code that shells have for that.
fn not_started(command: &[OsString], error: &io::Error) -> Failure {
    let kind = match error.kind() {
        io::ErrorKind::NotFound => Kind::ProgramNotFound,
        _ => Kind::NotExecutable,
    };
    let what = format!("cannot run `{}`: {error}", shown_program(command));
    Failure::of(kind, what, "check the command; it is not run again")
}

fn describe_end(end: End) -> String {
    match end {
        End::Code(code) => format!("exited with code {code}"),
        End::Signal(signal) => format!("was ended by signal {signal}"),
    }
}

fn counted(restarts: u32) -> String {
    match restarts {
        1 => "1 restart".to_owned(),
        _ => format!("{restarts} restarts"),
    }
}
