//! Commands: run, write to, read, stop, list.

use std::{collections::BTreeMap, future::Future, time::Duration};

use remex_client::{
    Command,
    agent::Window,
    process::{
        Overflow, ProcessInfo, ProcessRef, Retain, SignalName, Stdio, TerminalSize, Termination, Until,
    },
};
use remex_proto::state::matcher::Search;
use schemars::JsonSchema;
use serde::Deserialize;
use tokio::{
    sync::{Mutex, MutexGuard},
    time::{Instant, timeout},
};

use super::{Tools, again::Again};
use crate::{
    answer::{Answer, ToolError, ToolResult},
    call::{Call, Stop},
    environment::Environment,
    output::{OutputPosition, Report, Transcript},
    processes,
};

/// How much unread output the server keeps for a process, and for how long after its end.
const RETAIN_BYTES: u64 = 16 << 20;
const RETAIN_TIME: Duration = Duration::from_secs(24 * 3600);

/// How long a call waits by default.
const DEFAULT_WAIT: f64 = 10.0;

/// How long a call waits at most: clients give up calls that take long.
const MAX_WAIT: f64 = 600.0;

/// How long the output of a process is awaited after it was written to or stopped.
const SHORT_WAIT: f64 = 1.0;

/// How long the end of a process is awaited that was killed.
const END_WAIT: f64 = 5.0;

/// How long a call that does not want to wait has for what takes a moment.
const MIN_TIME: Duration = Duration::from_millis(100);

/// How long all output of a process may take to arrive.
const TRANSCRIPT_TIME: Duration = Duration::from_secs(60);

/// How long an environment may take to list its processes.
pub(super) const LIST_TIME: Duration = Duration::from_secs(5);

/// The default budget, and its bounds, in tokens; a token is about four bytes.
const DEFAULT_TOKENS: usize = 8_000;
const TOKENS: std::ops::RangeInclusive<usize> = 50..=100_000;
const BYTES_PER_TOKEN: usize = 4;

/// The parameters of `run_command`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct RunCommand {
    command: String,
    /// From `list_environments`.
    environment: Option<String>,
    /// The working directory.
    cwd: Option<String>,
    /// More variables, as `NAME=value`.
    #[serde(default)]
    env: Variables,
    /// To find the process again, such as `dev-server`.
    name: Option<String>,
    /// `pipe` to send input later, `terminal` for REPLs, prompts and full-screen programs.
    #[serde(default)]
    input: InputKind,
    /// Input; it then ends, except on a terminal.
    stdin: Option<String>,
    /// Return after this long even if it still runs. Default: 10, at most 600.
    wait_seconds: Option<f64>,
    /// Kill it after this long.
    timeout_seconds: Option<f64>,
    /// Default: 8000.
    max_output_tokens: Option<usize>,
}

/// Variables: a list of `NAME=value`, which strict schemas can describe, or an object.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Variables {
    Listed(Vec<String>),
    Named(BTreeMap<String, String>),
}

impl Default for Variables {
    fn default() -> Self {
        Self::Listed(Vec::new())
    }
}

impl JsonSchema for Variables {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Variables".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({"type": "array", "items": {"type": "string"}})
    }
}

impl Variables {
    fn parse(self) -> Result<BTreeMap<String, String>, ToolError> {
        let variables = match self {
            Self::Named(variables) => variables,
            Self::Listed(lines) => {
                let pair = |line: String| match line.split_once('=') {
                    Some((name, value)) => Ok((name.to_owned(), value.to_owned())),
                    None => Err(ToolError::new(format!("`{line}` in `env` sets no variable"))
                        .with_hint("write it as `NAME=value`")),
                };
                lines.into_iter().map(pair).collect::<Result<_, _>>()?
            }
        };
        if let Some(name) = variables.keys().find(|name| name.is_empty() || name.contains(['=', '\0'])) {
            return Err(ToolError::new(format!("`{name}` cannot be the name of an environment variable"))
                .with_hint("use a name without `=`"));
        }
        Ok(variables)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(inline)]
enum InputKind {
    #[default]
    None,
    Pipe,
    Terminal,
}

/// The parameters of `send_input`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct SendInput {
    process: String,
    /// End a line with `\n`; on a terminal, `\u0003` is Ctrl-C and `\u0004` the end of input.
    #[serde(default)]
    text: String,
    /// Close the input after the text; not for terminals.
    #[serde(default)]
    end_input: bool,
    environment: Option<String>,
    /// A regular expression.
    wait_for: Option<String>,
    silence_seconds: Option<f64>,
    /// Default: 1, or 10 with one of those.
    wait_seconds: Option<f64>,
    max_output_tokens: Option<usize>,
}

/// The parameters of `read_output`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ReadOutput {
    process: String,
    environment: Option<String>,
    /// Follow it again from the beginning.
    #[serde(default)]
    #[schemars(skip)]
    from_start: bool,
    /// Read again from this line, from 1.
    pub(super) first_line: Option<u64>,
    /// How many lines.
    pub(super) lines: Option<u64>,
    /// Read again from this byte.
    pub(super) offset: Option<u64>,
    /// Return all lines that match this regular expression, with their numbers.
    pub(super) search: Option<String>,
    /// A regular expression.
    wait_for: Option<String>,
    silence_seconds: Option<f64>,
    /// Default: 10; 0 returns at once.
    wait_seconds: Option<f64>,
    max_output_tokens: Option<usize>,
}

/// The parameters of `stop_process`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct StopProcess {
    process: String,
    environment: Option<String>,
    /// Send only this signal, such as `INT`.
    signal: Option<String>,
    /// Between SIGTERM and SIGKILL. Default: 5.
    grace_seconds: Option<f64>,
    /// Also remove it from the list, with its output.
    #[serde(default)]
    remove: bool,
}

impl Tools {
    pub(super) async fn run_command(&self, params: RunCommand, call: &Call) -> Answer {
        let environment = self.environment(params.environment.as_deref())?;
        let client = environment.client().await?;
        let limits = limits(params.wait_seconds, DEFAULT_WAIT, params.max_output_tokens)?;
        let began = Instant::now();
        let env = params.env.parse()?;
        if let Some(name) = &params.name {
            processes::check_name(name)?;
            self.free_name(environment, &client, name).await?;
        }
        let name = params.name.clone().unwrap_or_else(|| processes::name_for(&params.command));
        let shell = environment.shell(&client).await;
        let mut command = Command::new(shell).arg("-c").arg(&params.command).id(&name).envs(env);
        command = command
            .retain(Retain::default().bytes(RETAIN_BYTES).after_close(RETAIN_TIME).overflow(Overflow::Evict));
        if let Some(seconds) = params.timeout_seconds {
            command = command.timeout(duration("timeout_seconds", seconds)?);
        }
        command = match (params.input, &params.stdin) {
            (InputKind::None, None) => command,
            (InputKind::Pipe, _) | (InputKind::None, Some(_)) => command.stdin(Stdio::Piped),
            (InputKind::Terminal, _) => {
                command.terminal(TerminalSize::default()).env("TERM", "xterm-256color")
            }
        };
        let command = environment.command(&client, command, params.cwd.as_deref())?;
        let started = match Box::pin(call.unless_stopped(command.start(&client))).await {
            Ok(started) => started?,
            Err(stop) => {
                // The request may have arrived: whatever it started ends as soon as it is known.
                let reference = client.process_ref(client.session_id(), name);
                return Err(end_if_cancelled(stop, &reference).await);
            }
        };
        // Its output is read with the reference, so that nothing waits for a consumer here.
        let reference = started.detach();
        let mut has_input_left = false;
        if let Some(stdin) = params.stdin {
            let ends = params.input != InputKind::Terminal;
            let writing = write(&reference, stdin.into_bytes(), ends);
            match call.unless_stopped(timeout(limits.time.max(MIN_TIME), writing)).await {
                // A program that does not read everything is no failure.
                Ok(Ok(_)) => {}
                Ok(Err(_)) => has_input_left = true,
                Err(stop) => return Err(end_if_cancelled(stop, &reference).await),
            }
        }
        let limits = Limits { time: limits.time.saturating_sub(began.elapsed()), ..limits };
        let position = self.position(environment.name(), &reference);
        // Another call may have found the process by its name already.
        let mut position = turn(&position, limits, call)
            .await?
            .ok_or_else(|| busy(&name).with_hint("the process was started; that call returns its output"))?;
        let window = limits.window();
        let followed = position.follow(&reference, environment.name(), &Until::Exit, window, call).await?;
        let mut report = match followed {
            Ok(report) => report,
            Err(stop) => return Err(end_if_cancelled(stop, &reference).await),
        };
        if has_input_left && report.running {
            report.state.push_str("; it has not read all of its input yet");
        }
        // An unnamed process with fully returned output need not be remembered.
        if report.is_closed && params.name.is_none() && report.omitted_bytes == 0 {
            let _ = reference.forget().await;
            self.forget(environment.name(), &reference);
        }
        Ok(answered(&report))
    }

    /// Makes a name available: that of a process that has ended can be used again.
    async fn free_name(
        &self,
        environment: &Environment,
        client: &remex_client::Client,
        name: &str,
    ) -> Result<(), ToolError> {
        for process in processes::list(environment, client).await? {
            if process.process_id != name {
                continue;
            }
            if process.is_running() {
                return Err(ToolError::new(format!("a process named `{name}` is already running"))
                    .with_hint(
                        "use it with `read_output`, end it with `stop_process`, or choose another name",
                    ));
            }
            let reference = client.process_ref(process.session_id, process.process_id);
            reference.forget().await?;
            for environment in &self.shared.environments {
                self.forget(environment.name(), &reference);
            }
        }
        Ok(())
    }

    pub(super) async fn send_input(&self, params: SendInput, call: &Call) -> Answer {
        let (until, default_wait) = match until(params.wait_for, params.silence_seconds)? {
            Until::Exit => (Until::Exit, SHORT_WAIT),
            until => (until, DEFAULT_WAIT),
        };
        let limits = limits(params.wait_seconds, default_wait, params.max_output_tokens)?;
        let found = self.find(params.environment.as_deref(), &params.process).await?;
        let (environment, reference, info) = (found.environment, found.reference, found.info);
        if !info.is_running() {
            return Err(ToolError::new(format!("process `{}` has ended", params.process)).with_hint(
                "read the rest of its output with `read_output`, or start it again with `run_command`",
            ));
        }
        let began = Instant::now();
        let writing = write(&reference, params.text.into_bytes(), params.end_input);
        let written =
            call.unless_stopped(timeout(limits.time.max(MIN_TIME), writing)).await.map_err(stopped)?;
        let has_input_left = written.is_err();
        let written = written.unwrap_or(Ok(()));
        written.map_err(|error| {
            let error = ToolError::from(error);
            if info.has_terminal {
                error
            } else {
                error.with_hint("start it with `input` `pipe` or `terminal` to write to it")
            }
        })?;
        // Locked only now: another call that waits for output of this process must not block its input.
        let limits = Limits { time: limits.time.saturating_sub(began.elapsed()), ..limits };
        let position = self.position(environment.name(), &reference);
        let mut position = turn(&position, limits, call).await?.ok_or_else(|| {
            busy(&params.process).with_hint("the text was written; that call returns what comes of it")
        })?;
        let followed = position.follow(&reference, environment.name(), &until, limits.window(), call).await?;
        let mut report = followed.map_err(stopped)?;
        if has_input_left && report.running {
            report.state.push_str("; it has not read all of its input yet");
        }
        Ok(answered(&report))
    }

    pub(super) async fn read_output(&self, params: ReadOutput, call: &Call) -> Answer {
        let again = Again::new(&params)?;
        let until = until(params.wait_for, params.silence_seconds)?;
        let limits = limits(params.wait_seconds, DEFAULT_WAIT, params.max_output_tokens)?;
        let Found { environment, reference, .. } =
            self.find(params.environment.as_deref(), &params.process).await?;
        let position = self.position(environment.name(), &reference);
        if let Some(again) = again {
            let reading = timeout(TRANSCRIPT_TIME, Transcript::read(&reference));
            let transcript = call.unless_stopped(reading).await.map_err(stopped)?;
            let transcript = transcript.map_err(|_| {
                ToolError::new("the output cannot be read in time").with_hint("try again later")
            })??;
            return Ok(again.answer(&params.process, &transcript, limits.bytes));
        }
        let mut position = turn(&position, limits, call)
            .await?
            .ok_or_else(|| busy(&params.process).with_hint("wait for that call, or cancel it"))?;
        if params.from_start {
            *position = OutputPosition::new(reference.clone());
        }
        let report = position.follow(&reference, environment.name(), &until, limits.window(), call).await?;
        Ok(answered(&report.map_err(stopped)?))
    }

    pub(super) async fn stop_process(&self, params: StopProcess, call: &Call) -> Answer {
        let Found { environment, reference, .. } =
            self.find(params.environment.as_deref(), &params.process).await?;
        let grace = duration("grace_seconds", params.grace_seconds.unwrap_or(5.0))?;
        let mut wait = SHORT_WAIT;
        match &params.signal {
            Some(name) => {
                let signal: SignalName = name.trim_start_matches("SIG").parse().map_err(|_| {
                    ToolError::new(format!("`{name}` is not a signal"))
                        .with_hint("use a name such as `INT`, `HUP` or `USR1`")
                })?;
                reference.signal(signal).await?;
            }
            None => {
                reference.terminate_tree(Termination::Graceful(grace)).await?;
                wait = END_WAIT + grace.as_secs_f64();
            }
        }
        let limits = limits(Some(wait), wait, None)?;
        let position = self.position(environment.name(), &reference);
        let mut position = turn(&position, limits, call).await?.ok_or_else(|| {
            busy(&params.process).with_hint("it was told to end; that call returns its last output")
        })?;
        let window = limits.window();
        let report = position.follow(&reference, environment.name(), &Until::Exit, window, call).await?;
        let mut report = report.map_err(stopped)?;
        if params.remove {
            if report.running {
                report.state.push_str("; it was not removed, because it still runs");
            } else {
                reference.forget().await?;
                self.forget(environment.name(), &reference);
                report.state.push_str("; it was removed");
            }
        }
        Ok(answered(&report))
    }

    /// Finds a process by its name: on the environment that is named, or else on the first that has one.
    async fn find(&self, environment: Option<&str>, name: &str) -> Result<Found<'_>, ToolError> {
        let first = self.environment(environment)?;
        let on = async |environment: &Environment| {
            let client = environment.client().await?;
            processes::find(environment, &client, name).await
        };
        let error = match on(first).await {
            Ok((reference, info)) => return Ok(Found { environment: first, reference, info }),
            Err(error) => error,
        };
        if environment.is_none() {
            for other in self.shared.environments[1..].iter().filter(|other| other.was_connected()) {
                // An unresponsive environment must not delay the result.
                if let Ok(Ok((reference, info))) = timeout(LIST_TIME, on(other)).await {
                    return Ok(Found { environment: other, reference, info });
                }
            }
        }
        Err(error)
    }
}

/// How long a call waits, and how much it returns.
#[derive(Debug, Clone, Copy)]
struct Limits {
    time: Duration,
    bytes: usize,
}

impl Limits {
    fn window(self) -> Window {
        Window::default().yield_after(self.time).max_output_bytes(self.bytes)
    }
}

/// A process that was found by its name.
struct Found<'a> {
    environment: &'a Environment,
    reference: ProcessRef,
    info: ProcessInfo,
}

fn stopped(stop: Stop) -> ToolError {
    ToolError::new(match stop {
        Stop::Cancelled => "the call was cancelled",
        Stop::Gone => "the client is gone",
    })
}

/// Ends a process whose start was cancelled; one whose client is only gone runs on, and is found again by its name.
async fn end_if_cancelled(stop: Stop, reference: &ProcessRef) -> ToolError {
    if stop == Stop::Cancelled {
        let _ = reference.terminate_tree(Termination::Kill).await;
    }
    stopped(stop)
}

/// Writes to a process, which may read slowly; continues even if the returned future is dropped.
fn write(
    reference: &ProcessRef,
    text: Vec<u8>,
    ends: bool,
) -> impl Future<Output = Result<(), remex_client::Error>> + use<> {
    let reference = reference.clone();
    let writing = tokio::spawn(async move {
        if !text.is_empty() {
            reference.write(&text).await?;
        }
        if ends { reference.close_stdin().await } else { Ok(()) }
    });
    async { writing.await.unwrap_or(Ok(())) }
}

/// Waits until no other call reads the output of a process; none if that takes too long.
async fn turn<'a>(
    position: &'a Mutex<OutputPosition>,
    limits: Limits,
    call: &Call,
) -> Result<Option<MutexGuard<'a, OutputPosition>>, ToolError> {
    let waiting = timeout(limits.time.max(MIN_TIME), position.lock());
    Ok(call.unless_stopped(waiting).await.map_err(stopped)?.ok())
}

fn busy(process: &str) -> ToolError {
    ToolError::new(format!("another call is waiting for output of `{process}`"))
}

fn until(wait_for: Option<String>, silence: Option<f64>) -> Result<Until, ToolError> {
    match (wait_for, silence) {
        (Some(_), Some(_)) => {
            Err(ToolError::new("`wait_for` and `silence_seconds` exclude each other").with_hint("omit one"))
        }
        (Some(pattern), None) => {
            // Before anything is done that would have to be undone.
            Search::new(&pattern).map_err(|error| {
                let shown: String = pattern.chars().take(100).collect();
                ToolError::new(format!("`{shown}` is not a regular expression: {}", error.message))
                    .with_hint("escape characters that have a meaning, such as `(` and `$`, with a backslash")
            })?;
            Ok(Until::Output(pattern))
        }
        (None, Some(seconds)) => Ok(Until::Idle(duration("silence_seconds", seconds.min(MAX_WAIT))?)),
        (None, None) => Ok(Until::Exit),
    }
}

fn duration(name: &str, seconds: f64) -> Result<Duration, ToolError> {
    Duration::try_from_secs_f64(seconds).map_err(|_| {
        ToolError::new(format!("`{name}` is {seconds}, which is no time"))
            .with_hint("give a number of seconds that is not negative")
    })
}

fn limits(wait: Option<f64>, default_wait: f64, tokens: Option<usize>) -> Result<Limits, ToolError> {
    let time = duration("wait_seconds", wait.unwrap_or(default_wait).min(MAX_WAIT))?;
    let tokens = tokens.unwrap_or(DEFAULT_TOKENS).clamp(*TOKENS.start(), *TOKENS.end());
    Ok(Limits { time, bytes: tokens * BYTES_PER_TOKEN })
}

/// Returns a report as the model reads it: the output, and then what became of the process.
fn answered(report: &Report) -> ToolResult {
    ToolResult::new(report.text(), report)
}
