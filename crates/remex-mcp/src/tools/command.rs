//! Commands: run, write to, read, stop, list.

use std::{collections::BTreeMap, future::Future, time::Duration};

use remex_client::{
    Command,
    process::{Overflow, ProcessRef, Retain, SignalName, Stdio, TerminalSize, Termination},
};
use remex_proto::state::matcher::Search;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tokio::{
    sync::{Mutex, MutexGuard},
    time::{Instant, timeout},
};

use super::Tools;
use crate::{
    answer::{Answer, Answered, Problem},
    call::{Call, Stop},
    environment::Environment,
    output::{Condition, Followed, Limits, Report},
    processes,
};

/// How much of its output the server keeps for a process that nobody reads, and for how long after its end.
const RETAIN_BYTES: u64 = 16 << 20;
const RETAIN_TIME: Duration = Duration::from_secs(24 * 3600);

/// How long a call waits without being told.
const DEFAULT_WAIT: f64 = 10.0;

/// How long a call waits at most: clients give up calls that take long.
const MAX_WAIT: f64 = 600.0;

/// How long the output of a process is awaited after it was written to or stopped.
const SHORT_WAIT: f64 = 1.0;

/// How long a call that does not want to wait has for what takes a moment.
const MIN_TIME: Duration = Duration::from_millis(100);

/// How long an environment may take to list its processes.
const LIST_TIME: Duration = Duration::from_secs(5);

/// The default budget, and its bounds, in tokens; a token is about four bytes.
const DEFAULT_TOKENS: usize = 8_000;
const TOKENS: std::ops::RangeInclusive<usize> = 50..=100_000;
const BYTES_PER_TOKEN: usize = 4;

/// The parameters of `run_command`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct RunCommand {
    /// The command line, for the shell `sh`.
    command: String,
    /// Where to run it: a name from `list_environments`. Default: the first one.
    environment: Option<String>,
    /// The working directory. Default: the directory of the environment.
    cwd: Option<String>,
    /// Additional environment variables.
    #[serde(default)]
    env: BTreeMap<String, String>,
    /// A name for the process, such as `dev-server`, to find it again later. Default: made from the command.
    name: Option<String>,
    /// What it reads: `none` (the default), `pipe` to send it input later, or `terminal` for programs that need one, such
    /// as REPLs, password prompts and full-screen programs.
    #[serde(default)]
    input: InputKind,
    /// Text to write to its input at once. With `pipe` input, or without `input`, the input then ends.
    stdin: Option<String>,
    /// Return after this many seconds even if it still runs; it then goes on in the background. Default: 10, at most 600.
    wait_seconds: Option<f64>,
    /// End it, with everything that it started, after this many seconds.
    timeout_seconds: Option<f64>,
    /// How much output to return, in tokens; the middle of longer output is left out. Default: 8000.
    max_output_tokens: Option<usize>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
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
    /// The name of the process.
    process: String,
    /// The text to write. End a line with `\n`; on a terminal, `\u0003` is Ctrl-C and `\u0004` the end of input.
    #[serde(default)]
    text: String,
    /// Close the input after the text, so that a program that reads to the end goes on. Not for terminals.
    #[serde(default)]
    end_input: bool,
    environment: Option<String>,
    /// Wait for output that matches this regular expression, such as a prompt.
    wait_for: Option<String>,
    /// Wait until nothing was written for this many seconds.
    silence_seconds: Option<f64>,
    /// How long to wait for output at most. Default: 1, or 10 with `wait_for` or `silence_seconds`.
    wait_seconds: Option<f64>,
    /// How much output to return, in tokens. Default: 8000.
    max_output_tokens: Option<usize>,
}

/// The parameters of `read_output`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ReadOutput {
    /// The name of the process.
    process: String,
    environment: Option<String>,
    /// Read all output again from the beginning, as far as it is retained, instead of only what is new.
    #[serde(default)]
    from_start: bool,
    /// Wait for new output that matches this regular expression.
    wait_for: Option<String>,
    /// Wait until nothing was written for this many seconds.
    silence_seconds: Option<f64>,
    /// Wait at most this many seconds for the end of the process, or for what is awaited. Default: 10; 0 returns at once.
    wait_seconds: Option<f64>,
    /// How much output to return, in tokens. Default: 8000.
    max_output_tokens: Option<usize>,
}

/// The parameters of `stop_process`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct StopProcess {
    /// The name of the process.
    process: String,
    environment: Option<String>,
    /// Send only this signal, such as `INT` or `HUP`, to the process. Default: end it and everything that it started,
    /// with SIGTERM, and with SIGKILL if that does not help.
    signal: Option<String>,
    /// How long to wait between SIGTERM and SIGKILL. Default: 5.
    grace_seconds: Option<f64>,
}

/// The parameters of `list_processes`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ListProcesses {
    /// Default: all environments that are connected, and the default one.
    environment: Option<String>,
}

/// What `list_processes` returns.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct ListedProcesses {
    processes: Vec<ListedProcess>,
    /// Environments whose processes could not be listed, and why.
    failures: Vec<String>,
}

#[derive(Debug, Serialize, JsonSchema)]
struct ListedProcess {
    process: String,
    environment: String,
    running: bool,
    exit_code: Option<i32>,
    command: Vec<String>,
    seconds: u64,
    output_bytes: u64,
}

impl Tools {
    pub(super) async fn run_command(&self, params: RunCommand, call: &Call) -> Answer {
        let environment = self.environment(params.environment.as_deref())?;
        let client = environment.client().await?;
        let limits = limits(params.wait_seconds, DEFAULT_WAIT, params.max_output_tokens)?;
        let began = Instant::now();
        if let Some(name) = params.env.keys().find(|name| name.is_empty() || name.contains(['=', '\0'])) {
            return Err(Problem::new(format!("`{name}` cannot be the name of an environment variable"))
                .with_hint("use a name without `=`"));
        }
        if let Some(name) = &params.name {
            processes::check_name(name)?;
            self.free_name(environment, &client, name).await?;
        }
        let name = params.name.clone().unwrap_or_else(|| processes::name_for(&params.command));
        let mut command = Command::shell(&params.command).id(&name).envs(params.env);
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
        let started = match call.unless_stopped(command.start(&client)).await {
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
        let followed = self.followed(environment.name(), &reference);
        let mut followed = followed.lock().await;
        let followed = followed.follow(&reference, environment.name(), Condition::End, limits, call).await?;
        let mut report = match followed {
            Ok(report) => report,
            Err(stop) => return Err(end_if_cancelled(stop, &reference).await),
        };
        if has_input_left && report.running {
            report.state.push_str("; it has not read all of its input yet");
        }
        // A process that nobody will ask for again need not be remembered.
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
    ) -> Result<(), Problem> {
        for process in processes::list(environment, client).await? {
            if process.process_id != name {
                continue;
            }
            if processes::is_running(&process) {
                return Err(Problem::new(format!("a process named `{name}` is already running")).with_hint(
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
        let environment = self.environment(params.environment.as_deref())?;
        let client = environment.client().await?;
        let (condition, default_wait) = match condition(params.wait_for, params.silence_seconds)? {
            Condition::End => (Condition::End, SHORT_WAIT),
            condition => (condition, DEFAULT_WAIT),
        };
        let limits = limits(params.wait_seconds, default_wait, params.max_output_tokens)?;
        let (reference, info) = processes::find(environment, &client, &params.process).await?;
        if !processes::is_running(&info) {
            return Err(Problem::new(format!("process `{}` has ended", params.process)).with_hint(
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
            let problem = Problem::from(error);
            if info.has_terminal {
                problem
            } else {
                problem.with_hint("start it with `input` `pipe` or `terminal` to write to it")
            }
        })?;
        // Only now: what waits for output of this process must not hold up its input.
        let limits = Limits { time: limits.time.saturating_sub(began.elapsed()), ..limits };
        let followed = self.followed(environment.name(), &reference);
        let mut followed = turn(&followed, limits, call).await?.ok_or_else(|| {
            busy(&params.process).with_hint("the text was written; that call returns what comes of it")
        })?;
        let followed = followed.follow(&reference, environment.name(), condition, limits, call).await?;
        let mut report = followed.map_err(stopped)?;
        if has_input_left && report.running {
            report.state.push_str("; it has not read all of its input yet");
        }
        Ok(answered(&report))
    }

    pub(super) async fn read_output(&self, params: ReadOutput, call: &Call) -> Answer {
        let environment = self.environment(params.environment.as_deref())?;
        let client = environment.client().await?;
        let condition = condition(params.wait_for, params.silence_seconds)?;
        let limits = limits(params.wait_seconds, DEFAULT_WAIT, params.max_output_tokens)?;
        let (reference, _) = processes::find(environment, &client, &params.process).await?;
        let followed = self.followed(environment.name(), &reference);
        let mut followed = turn(&followed, limits, call)
            .await?
            .ok_or_else(|| busy(&params.process).with_hint("wait for that call, or cancel it"))?;
        if params.from_start {
            *followed = Followed::default();
        }
        let report = followed.follow(&reference, environment.name(), condition, limits, call).await?;
        Ok(answered(&report.map_err(stopped)?))
    }

    pub(super) async fn stop_process(&self, params: StopProcess, call: &Call) -> Answer {
        let environment = self.environment(params.environment.as_deref())?;
        let client = environment.client().await?;
        let (reference, _) = processes::find(environment, &client, &params.process).await?;
        let grace = duration("grace_seconds", params.grace_seconds.unwrap_or(5.0))?;
        let mut wait = SHORT_WAIT;
        match &params.signal {
            Some(name) => {
                let signal: SignalName = name.trim_start_matches("SIG").parse().map_err(|_| {
                    Problem::new(format!("`{name}` is not a signal"))
                        .with_hint("use a name such as `INT`, `HUP` or `USR1`")
                })?;
                reference.signal(signal).await?;
            }
            None => {
                reference.terminate_tree(Termination::Graceful(grace)).await?;
                wait += grace.as_secs_f64();
            }
        }
        let limits = limits(Some(wait), wait, None)?;
        let followed = self.followed(environment.name(), &reference);
        let mut followed = turn(&followed, limits, call).await?.ok_or_else(|| {
            busy(&params.process).with_hint("it was told to end; that call returns its last output")
        })?;
        let report = followed.follow(&reference, environment.name(), Condition::End, limits, call).await?;
        Ok(answered(&report.map_err(stopped)?))
    }

    pub(super) async fn list_processes(&self, params: ListProcesses) -> Answer {
        let environments = match &params.environment {
            Some(name) => vec![self.environment(Some(name))?],
            None => {
                let mut environments = vec![self.environment(None)?];
                for other in &self.shared.environments[1..] {
                    if other.was_connected() {
                        environments.push(other);
                    }
                }
                environments
            }
        };
        let (mut listed, mut failures) = (Vec::new(), Vec::new());
        let is_only = environments.len() == 1;
        for environment in environments {
            let listing = async { processes::list(environment, &environment.client().await?).await };
            // One that does not respond must not hide the others; alone, it may take its time to connect.
            let limit = if is_only { Duration::MAX } else { LIST_TIME };
            let found = match timeout(limit, listing).await {
                Ok(Ok(found)) => found,
                Ok(Err(problem)) if is_only => return Err(problem),
                Ok(Err(problem)) => {
                    failures.push(format!("{}: {problem}", environment.name()));
                    continue;
                }
                Err(_) => {
                    failures.push(format!("{}: it does not respond", environment.name()));
                    continue;
                }
            };
            let now = now_ms().unwrap_or_default();
            for process in found {
                let until = process.ended_at_ms.unwrap_or(now);
                listed.push(ListedProcess {
                    running: processes::is_running(&process),
                    environment: environment.name().to_owned(),
                    exit_code: process.exit_code,
                    seconds: until.saturating_sub(process.started_at_ms) / 1000,
                    output_bytes: process.produced.stdout + process.produced.stderr + process.produced.pty,
                    process: process.process_id,
                    command: process.argv,
                });
            }
        }
        let mut lines: Vec<_> = listed.iter().map(ListedProcess::line).collect();
        if lines.is_empty() && failures.is_empty() {
            lines.push("there are no processes".to_owned());
        }
        lines.extend(failures.iter().map(|failure| format!("[not listed: {failure}]")));
        Ok(Answered::new(lines.join("\n"), &ListedProcesses { processes: listed, failures }))
    }
}

impl ListedProcess {
    fn line(&self) -> String {
        let state = match self.exit_code {
            _ if self.running => "running".to_owned(),
            Some(code) => format!("ended with code {code}"),
            None => "ended".to_owned(),
        };
        let command = match self.command.as_slice() {
            [shell, flag, line, ..] if shell.ends_with("sh") && flag == "-c" => line.clone(),
            argv => argv.join(" "),
        };
        let command: String =
            command.chars().map(|c| if c.is_control() { ' ' } else { c }).take(200).collect();
        format!(
            "{} on {}: {state}, {} s, {} bytes of output: {command}",
            self.process, self.environment, self.seconds, self.output_bytes
        )
    }
}

fn now_ms() -> Option<u64> {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).ok()?;
    u64::try_from(since.as_millis()).ok()
}

fn stopped(stop: Stop) -> Problem {
    Problem::new(match stop {
        Stop::Cancelled => "the call was cancelled",
        Stop::Gone => "the client is gone",
    })
}

/// Ends a process whose start was cancelled; one whose client is only gone runs on, and is found again by its name.
async fn end_if_cancelled(stop: Stop, reference: &ProcessRef) -> Problem {
    if stop == Stop::Cancelled {
        let _ = reference.terminate_tree(Termination::Kill).await;
    }
    stopped(stop)
}

/// Writes to a process, also after whoever awaits it has given up: the process may read slowly.
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
    followed: &'a Mutex<Followed>,
    limits: Limits,
    call: &Call,
) -> Result<Option<MutexGuard<'a, Followed>>, Problem> {
    let waiting = timeout(limits.time.max(MIN_TIME), followed.lock());
    Ok(call.unless_stopped(waiting).await.map_err(stopped)?.ok())
}

fn busy(process: &str) -> Problem {
    Problem::new(format!("another call is waiting for output of `{process}`"))
}

fn condition(wait_for: Option<String>, silence: Option<f64>) -> Result<Condition, Problem> {
    match (wait_for, silence) {
        (Some(_), Some(_)) => {
            Err(Problem::new("`wait_for` and `silence_seconds` exclude each other").with_hint("omit one"))
        }
        (Some(pattern), None) => {
            let search = Search::new(&pattern).map_err(|error| {
                let shown: String = pattern.chars().take(100).collect();
                Problem::new(format!("`{shown}` is not a regular expression: {}", error.message))
                    .with_hint("escape characters that have a meaning, such as `(` and `$`, with a backslash")
            })?;
            Ok(Condition::Output(Box::new(search)))
        }
        (None, Some(seconds)) => Ok(Condition::Silence(duration("silence_seconds", seconds.min(MAX_WAIT))?)),
        (None, None) => Ok(Condition::End),
    }
}

fn duration(name: &str, seconds: f64) -> Result<Duration, Problem> {
    Duration::try_from_secs_f64(seconds).map_err(|_| {
        Problem::new(format!("`{name}` is {seconds}, which is no time"))
            .with_hint("give a number of seconds that is not negative")
    })
}

fn limits(wait: Option<f64>, default_wait: f64, tokens: Option<usize>) -> Result<Limits, Problem> {
    let time = duration("wait_seconds", wait.unwrap_or(default_wait).min(MAX_WAIT))?;
    let tokens = tokens.unwrap_or(DEFAULT_TOKENS).clamp(*TOKENS.start(), *TOKENS.end());
    Ok(Limits { time, bytes: tokens * BYTES_PER_TOKEN })
}

/// Returns a report as the model reads it: the output, and then what became of the process.
fn answered(report: &Report) -> Answered {
    let output = &report.output;
    let separator = if output.is_empty() || output.ends_with('\n') { "" } else { "\n" };
    Answered::new(format!("{output}{separator}[{}]", report.state), report)
}
