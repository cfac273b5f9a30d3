//! `remex supervise`: runs a command again when it ends, on behalf of the server that was asked for that.
//!
//! It is the first process of its tree and the leader of the group in which the command runs, so signals reach the command
//! as if it were alone: the server and the terminal send them to the group. They reach this program as well, which therefore
//! passes none on, survives all that can be caught, and ends as its command does. Start at [`run`].

use std::{
    ffi::OsString,
    io,
    os::unix::process::{CommandExt as _, ExitStatusExt as _},
    process::{self, Child, ExitStatus},
    time::Duration,
};

use remex_client::process::{Restart, RestartPolicy};
use remex_server::Foreground;
use tokio::{
    runtime::Builder,
    signal::unix::{Signal, SignalKind, signal},
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

/// How much of a delay passes before anything is said: a signal to the whole tree may reach the command first.
const SETTLING: Duration = Duration::from_millis(50);

/// After a run that took so long, the next delay is the first one again.
const GOOD_RUN: Duration = Duration::from_secs(10);

/// What ends a program that does not handle it, besides what stops the restarts.
const SURVIVED: [rustix::process::Signal; 10] = [
    rustix::process::Signal::USR1,
    rustix::process::Signal::USR2,
    rustix::process::Signal::ALARM,
    rustix::process::Signal::STKFLT,
    rustix::process::Signal::XCPU,
    rustix::process::Signal::XFSZ,
    rustix::process::Signal::VTALARM,
    rustix::process::Signal::PROF,
    rustix::process::Signal::IO,
    rustix::process::Signal::POWER,
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
        End::Signal(signal) => remex_server::end_by(signal),
    }
}

async fn supervise(flags: &Flags) -> Result<End, Failure> {
    let mut signals = Signals::listen()?;
    let terminal = Foreground::note();
    let (mut restarts, mut delay) = (0, FIRST_DELAY);
    loop {
        let begun = Instant::now();
        let end = match start(&flags.command, flags.arg0.as_ref()) {
            Ok(child) => signals.wait(child).await?,
            Err(error) if error.raw_os_error().is_some_and(is_passing) => {
                print::note(format!("cannot run `{}`: {error}", shown_program(&flags.command)));
                End::Code(NOT_EXECUTABLE)
            }
            Err(error) => return Err(not_started(&flags.command, &error)),
        };
        if !is_wanted(&flags.policy, end) || signals.stop_within(SETTLING).await {
            return Ok(end);
        }
        if let Some(terminal) = &terminal {
            terminal.restore();
        }
        let what = format!("`{}` {}", shown_program(&flags.command), told(end));
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
        if signals.stop_within(delay.saturating_sub(SETTLING)).await {
            return Ok(end);
        }
        delay = delay.saturating_mul(2).min(MAX_DELAY);
    }
}

fn start(command: &[OsString], arg0: Option<&OsString>) -> io::Result<Child> {
    let (program, args) = command.split_first().ok_or(io::ErrorKind::NotFound)?;
    let mut starting = process::Command::new(program);
    starting.args(args);
    if let Some(name) = arg0 {
        starting.arg0(name);
    }
    starting.spawn()
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
    stop: [SignalListener; 4],
    /// Whether one of them has come.
    is_stopped: bool,
    child: Signal,
    #[expect(dead_code, reason = "its handlers are there as long as it is")]
    survived: Vec<SignalListener>,
}

impl Signals {
    fn listen() -> Result<Self, Failure> {
        let failed = |error| Failure::io("wait for signals", &error);
        Ok(Signals {
            stop: [
                SignalListener::listen(SignalKind::terminate())?,
                SignalListener::listen(SignalKind::hangup())?,
                SignalListener::listen(SignalKind::interrupt())?,
                SignalListener::listen(SignalKind::quit())?,
            ],
            is_stopped: false,
            child: signal(SignalKind::child()).map_err(failed)?,
            survived: SURVIVED
                .into_iter()
                .map(|one| SignalListener::listen(SignalKind::from_raw(one.as_raw())))
                .collect::<Result<_, _>>()?,
        })
    }

    /// Waits until a run has ended.
    async fn wait(&mut self, mut child: Child) -> Result<End, Failure> {
        loop {
            let ended = child.try_wait().map_err(|error| Failure::io("wait for the command", &error))?;
            tokio::select! {
                // A signal to the group is noticed before the end that it causes.
                biased;
                () = stop(&mut self.stop) => self.is_stopped = true,
                _ = self.child.recv(), if ended.is_none() => {}
                () = async {}, if ended.is_some() => {}
            }
            if let Some(status) = ended {
                return Ok(End::from(status));
            }
        }
    }

    /// Returns whether a signal after which the command is not run again has come, or comes within this time.
    async fn stop_within(&mut self, time: Duration) -> bool {
        if !self.is_stopped {
            self.is_stopped = timeout(time, stop(&mut self.stop)).await.is_ok();
        }
        self.is_stopped
    }
}

async fn stop([terminate, hangup, interrupt, quit]: &mut [SignalListener; 4]) {
    tokio::select! {
        () = terminate.recv() => {}
        () = hangup.recv() => {}
        () = interrupt.recv() => {}
        () = quit.recv() => {}
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

fn told(end: End) -> String {
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
