//! A running program, where processes have groups, signals and terminals.
//!
//! A dedicated thread supervises each program. It outlives the runtime, so the program is ended even if the future, task
//! or runtime that started it is dropped. Start at [`start`] and [`Child`].

mod foreground;
mod pidfd;
mod stderr;
mod supervisor;
#[cfg(test)]
mod tests;
mod tree;

use std::{
    io::{self, PipeWriter, Write as _},
    os::unix::process::CommandExt,
    process::{self, Stdio},
    sync::{Condvar, Mutex, MutexGuard, PoisonError},
    thread,
    time::Duration,
};

use remex_base::lock;
use remex_rpc::{ReadHalf, WriteHalf};
use tokio::{
    net::unix::pipe,
    sync::{oneshot, watch},
    time::timeout,
};

use self::{stderr::Tail, supervisor::Streams};
use super::ssh::exit_hint;
use crate::{
    Error, Program, Prompts,
    base::error::{stderr_suffix, unreachable},
};

/// How long to wait for the exit status and the last output of a program.
const EXIT_TIMEOUT: Duration = Duration::from_secs(1);

/// How long a user may take to answer a prompt; ssh servers give up the login earlier.
const PROMPT_TIMEOUT: Duration = Duration::from_secs(300);

/// How many characters of an unexpected line are quoted.
const QUOTED: usize = 120;

/// The message to the supervisor of a program that has connected.
const CONNECTED: &[u8] = b"c";

/// A running program and its descendants.
///
/// Dropping it ends the program in the background, without a runtime: its standard input is already closed, so it gets a
/// grace period to exit; then its whole tree receives SIGTERM, and SIGKILL after another grace period.
#[derive(Debug)]
pub(crate) struct Child {
    target: String,
    /// The command to run by hand to answer the prompts of the program.
    login_command: String,
    is_ssh: bool,
    /// Sends [`CONNECTED`] to the supervisor; dropping it ends the program.
    commands: PipeWriter,
    /// Closed when the program has been ended and reaped.
    state: watch::Receiver<ProgramState>,
}

/// The state of a program as seen by its supervisor.
#[derive(Debug, Default)]
struct ProgramState {
    /// The exit status, once it has exited.
    status: Option<String>,
    stderr: Tail,
    /// Whether standard error is closed.
    silent: bool,
    prompt: PromptState,
}

/// Whether a program prompts the user.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum PromptState {
    /// It has not prompted so far.
    #[default]
    NotAsked,
    /// It is prompting, or waits until another program releases the terminal.
    Asking,
    /// It must not prompt.
    Refused(PromptRefusal),
    /// It has connected, and this process has the terminal again.
    Connected,
}

/// Why a program must not prompt the user.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PromptRefusal {
    /// The caller does not allow it.
    NotAllowed,
    /// This process is in the background.
    Background,
    /// The terminal cannot be used.
    NoTerminal,
}

/// The prompts of a program that is connecting.
#[derive(Debug)]
pub(crate) struct Prompt {
    target: String,
    login_command: String,
    state: watch::Receiver<ProgramState>,
}

impl Prompt {
    /// Waits until the handshake has to be given up, and returns why: it takes longer than `limit`, not counting the time
    /// that the user takes to answer prompts, or the program must not prompt.
    pub(crate) async fn handshake_overdue(mut self, limit: Duration) -> Error {
        let too_long = |after| Error::TimedOut { what: "the handshake", after };
        if self.until(limit, |state| state != PromptState::NotAsked).await.is_none() {
            return too_long(limit);
        }
        let refused = |state| matches!(state, PromptState::Refused(_));
        let Some(refusal) = self.until(PROMPT_TIMEOUT, refused).await else {
            return too_long(PROMPT_TIMEOUT);
        };
        let why = match refusal {
            PromptState::Refused(PromptRefusal::Background) => "and this process is in the background",
            PromptState::Refused(PromptRefusal::NoTerminal) => "and the terminal cannot be used",
            _ => "which is not allowed here",
        };
        Error::PromptRefused {
            program: self.target,
            reason: format!("it prompts on the terminal, {why}"),
            hint: format!("run {} once at a terminal and answer the prompt", self.login_command),
        }
    }

    /// Waits for a state; `None` after `limit`.
    async fn until(
        &mut self,
        limit: Duration,
        mut is_wanted: impl FnMut(PromptState) -> bool,
    ) -> Option<PromptState> {
        let waited = timeout(limit, self.state.wait_for(|state| is_wanted(state.prompt)));
        let state = waited.await.map(|state| state.map(|state| state.prompt));
        match state {
            Ok(Ok(state)) => Some(state),
            // The program has exited, which the handshake notices.
            Ok(Err(_)) => std::future::pending().await,
            Err(_) => None,
        }
    }
}

/// The number of running supervisors.
static RUNNING: Mutex<usize> = Mutex::new(0);

/// Notified when a supervisor finishes.
static FINISHED: Condvar = Condvar::new();

/// Counts one program until it is dropped.
struct ProgramGuard(());

impl ProgramGuard {
    fn new() -> Self {
        *running() += 1;
        Self(())
    }
}

impl Drop for ProgramGuard {
    fn drop(&mut self) {
        *running() -= 1;
        FINISHED.notify_all();
    }
}

fn running() -> MutexGuard<'static, usize> {
    lock(&RUNNING)
}

/// Waits until every program that clients of this process started has ended; returns whether that happened in time.
///
/// Programs are ended in the background when their connection is closed, which takes some seconds if they do not exit by
/// themselves. Returning from `main` earlier leaves such a program running, so call this last, after all clients are
/// dropped. It blocks, so call it outside of a runtime.
///
/// ```
/// use std::time::Duration;
///
/// // No program was started.
/// assert!(remex_client::wait_for_programs(Duration::from_secs(5)));
/// ```
pub fn wait_for_programs(limit: Duration) -> bool {
    let waited = FINISHED.wait_timeout_while(running(), limit, |guard| *guard > 0);
    *waited.unwrap_or_else(PoisonError::into_inner).0 == 0
}

/// Starts a program; the two halves are its standard output and input.
///
/// Dropping the future leaves nothing behind.
pub(crate) async fn start(
    program: &Program,
    prompts: Prompts,
) -> Result<(ReadHalf, WriteHalf, Child), Error> {
    let target = program.to_string();
    let failed = |error| start_error(&target, program, &error);
    let command = command(program);
    let login = program.ssh_login();
    let is_ssh = login.is_some();
    let login_command = login.map_or_else(
        || target.clone(),
        |mut login| {
            login.args.push("true".to_owned());
            login.to_string()
        },
    );
    let (commands, command_sender) = io::pipe().map_err(failed)?;
    let (state_sender, state) = watch::channel(ProgramState::default());
    let (started, streams) = oneshot::channel();
    thread::Builder::new()
        .name("remex-program".to_owned())
        .spawn({
            let guard = ProgramGuard::new();
            move || {
                let _guard = guard;
                supervisor::supervise(command, &commands, prompts, state_sender, started);
            }
        })
        .map_err(failed)?;
    let Streams { stdin, stdout } = streams
        .await
        .unwrap_or_else(|_| Err(io::Error::other("the supervisor thread panicked")))
        .map_err(failed)?;
    let reader = pipe::Receiver::from_owned_fd(stdout.into()).map_err(failed)?;
    let writer = pipe::Sender::from_owned_fd(stdin.into()).map_err(failed)?;
    let child = Child { target, login_command, is_ssh, commands: command_sender, state };
    Ok((Box::new(reader), Box::new(writer), child))
}

impl Child {
    /// Returns the prompts of the program.
    pub(crate) fn prompt(&self) -> Prompt {
        Prompt {
            target: self.target.clone(),
            login_command: self.login_command.clone(),
            state: self.state.clone(),
        }
    }

    /// Records that the program has connected, and waits until the terminal is restored.
    pub(crate) async fn connected(&mut self) {
        // A finished supervisor has restored the terminal.
        if self.commands.write_all(CONNECTED).is_ok() {
            let _ = self.state.wait_for(|state| state.prompt == PromptState::Connected).await;
        }
    }

    /// Returns the error for a program whose output ended before the handshake was complete.
    pub(crate) async fn exit_error(&mut self) -> Error {
        // Descendants may keep standard error open, so do not wait for its end forever.
        let _ =
            timeout(EXIT_TIMEOUT, self.state.wait_for(|state| state.status.is_some() && state.silent)).await;
        let state = self.state.borrow();
        let stderr = state.stderr.to_string();
        match &state.status {
            Some(status) => {
                let (program, status) = (self.target.clone(), status.clone());
                let hint = if self.is_ssh { exit_hint(&self.login_command, &status) } else { None };
                Error::ProgramEnded { program, status, stderr, hint }
            }
            None => unreachable(
                &self.target,
                format!("it closed its output without a response{}", stderr_suffix(&stderr)),
                "check that it serves on its standard streams, such as `remex serve --listen stdio`",
            ),
        }
    }

    /// Returns the error for a program that printed something other than a response.
    pub(crate) fn unexpected_output_error(&self, line: &[u8]) -> Error {
        let line = String::from_utf8_lossy(line);
        let shown: String = line.trim().chars().filter(|letter| !letter.is_control()).take(QUOTED).collect();
        let rest = if shown.chars().count() == QUOTED { "…" } else { "" };
        unreachable(
            &self.target,
            format!("it printed `{shown}{rest}` instead of a JSON response"),
            "make shell start-up files there, such as `.bashrc`, print only in interactive shells",
        )
    }

    /// Ends the program and its tree, and waits until they have exited.
    ///
    /// The write half must be dropped before, because a server exits at the end of its input.
    pub(crate) async fn end(self) {
        let Self { commands, mut state, .. } = self;
        drop(commands);
        while state.changed().await.is_ok() {}
    }
}

fn command(program: &Program) -> process::Command {
    let mut command = process::Command::new(&program.program);
    command
        .args(&program.args)
        .envs(&program.env)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0);
    if let Some(cwd) = &program.cwd {
        command.current_dir(cwd);
    }
    command
}

/// Explains why a program did not start, and what to do.
fn start_error(target: &str, program: &Program, error: &io::Error) -> Error {
    let name = &program.program;
    if let Some(cwd) = program.cwd.as_ref().filter(|cwd| !cwd.is_dir()) {
        let reason = format!("the working directory `{}` does not exist", cwd.display());
        return unreachable(target, reason, "create it, or choose another");
    }
    let (reason, hint) = match error.kind() {
        io::ErrorKind::NotFound if name.contains('/') => {
            (format!("program `{name}` or its interpreter not found"), "check the path")
        }
        io::ErrorKind::NotFound => {
            (format!("program `{name}` not found in the PATH"), "install it, or give its absolute path")
        }
        io::ErrorKind::PermissionDenied => {
            (format!("permission denied to run `{name}`"), "make it executable, or check its owner")
        }
        _ => (format!("`{name}` did not start: {error}"), "try to run it by hand"),
    };
    unreachable(target, reason, hint)
}
