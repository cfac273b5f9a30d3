//! Starts a command for the user: its name, working directory, environment and lifetime.
//!
//! Start at [`Launch`].

pub(super) mod confine;
mod refusal;
pub(crate) mod variables;

use std::{
    ffi::OsString,
    hash::{BuildHasher as _, Hasher as _, RandomState},
    path::PathBuf,
    time::Duration,
};

use remex_client::{
    Client, Command, ErrorKind, Options, Process, Session,
    process::{Inherit, Overflow, ResourceLimits, Restart, Retain, Secrets, State, Stdio},
};

use crate::{
    args::sandbox::{Confine, Profile},
    console::{interrupt, terminal},
    remote::{
        endpoint::{CLIENT_NAME, Endpoint, EndpointKind},
        processes::Processes,
        reconnect::{self, FOREVER},
        silent_keeper,
    },
    render::failure::{Failure, Kind},
};

/// How much output of a background process is retained.
const BACKGROUND_RETAIN_BYTES: u64 = 16 << 20;

/// How long it is retained after the exit.
const BACKGROUND_RETAIN_TIME: Duration = Duration::from_secs(24 * 3600);

/// The least time for which the output of a foreground process is retained after the exit, as by default.
const CLOSED_RETAIN_TIME: Duration = Duration::from_secs(80);

/// How much unacknowledged output of a foreground process is retained.
const FOREGROUND_RETAIN_BYTES: u64 = 4 << 20;

/// A command to start.
#[derive(Debug)]
pub(crate) struct Launch<'a> {
    pub(crate) endpoint: &'a Endpoint,
    pub(crate) command: CommandLine,
    pub(crate) cwd: Option<String>,
    /// The user of the host as whom it runs, if not that of the server.
    pub(crate) user: Option<String>,
    pub(crate) env: Vec<(String, String)>,
    pub(crate) terminal: bool,
    pub(crate) input: Stdio,
    pub(crate) timeout: Option<Duration>,
    /// How long it may take to end after SIGTERM when the timeout has passed; zero kills it at once.
    pub(crate) grace: Duration,
    pub(crate) limits: ResourceLimits,
    /// When to run it again, if it ends.
    pub(crate) restart: Option<Restart>,
    pub(crate) confine: Confine,
    pub(crate) name: Option<String>,
    pub(crate) labels: Vec<(String, String)>,
    pub(crate) mode: RunMode,
    /// How long to try to reconnect, if the user sets it.
    pub(crate) reconnect: Option<Duration>,
}

/// The command to start.
#[derive(Clone, Debug)]
pub(crate) enum CommandLine {
    Given(Vec<OsString>),
    /// The login shell of the user there, which only the server knows.
    LoginShell,
    /// The login shell of the account as which it runs.
    ShellOfUser,
}

impl CommandLine {
    /// Returns the program and its arguments; asks the server if need be.
    async fn resolve(&self, client: &Client) -> Result<Vec<OsString>, Failure> {
        match self {
            Self::Given(argv) => Ok(argv.clone()),
            Self::LoginShell => Ok(vec![client.info().await?.shell.path.into(), "-l".into()]),
            // The server sets `SHELL` for the account.
            Self::ShellOfUser => Ok(["/bin/sh", "-c", "exec \"$SHELL\" -l"].map(Into::into).to_vec()),
        }
    }
}

/// What happens to the command when this client disconnects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RunMode {
    /// It survives a short disconnect, and ends if the client does not reconnect.
    Foreground,
    /// It runs until it exits, and can be reattached, like a terminal session.
    Reattachable,
    /// It runs until it exits, and no client waits for its output.
    Background,
}

/// A command that was started in its own session.
#[derive(Debug)]
pub(crate) struct Launched {
    pub(crate) client: Client,
    pub(crate) process: Process,
    /// Its name.
    pub(crate) name: String,
}

impl Launch<'_> {
    pub(crate) async fn start(self) -> Result<Launched, Failure> {
        let (client, name) = Box::pin(interrupt::during(self.connect())).await?;
        match Box::pin(interrupt::during(self.start_in(&client, &name))).await {
            Ok(process) => Ok(Launched { client, process, name }),
            Err(failure) => {
                // The session ends with everything that may have been started.
                reconnect::end(client).await;
                Err(failure)
            }
        }
    }

    /// Connects with the requested session name, or with a new unique one.
    async fn connect(&self) -> Result<(Client, String), Failure> {
        if let Some(name) = &self.name {
            return Ok((self.connect_as(name).await?, name.clone()));
        }
        loop {
            let name = name_for(&self.command);
            match self.dial(&name).await {
                Ok(client) => return Ok((client, name)),
                Err(failure) if failure.refusal() == Some(ErrorKind::SessionNameTaken) => {}
                Err(failure) => return Err(failure),
            }
        }
    }

    async fn connect_as(&self, name: &str) -> Result<Client, Failure> {
        let connected = self.dial(name).await;
        let Err(failure) = connected else { return connected };
        if failure.refusal() != Some(ErrorKind::SessionNameTaken) {
            return Err(failure);
        }
        self.make_room(name).await?;
        self.dial(name).await
    }

    async fn dial(&self, name: &str) -> Result<Client, Failure> {
        let kept = self.mode != RunMode::Foreground;
        let window = self.endpoint.reconnect_window(self.reconnect);
        let adapt = |options: &mut Options| {
            if kept || self.name.is_some() {
                options.session = Session::Create(name.to_owned());
            }
            options.detach_ttl = Some(if kept { FOREVER } else { window });
            options.reconnect_timeout = window;
        };
        let client = self.endpoint.connect(adapt).await?;
        if let Some(asked) = self.endpoint.asked_window(self.reconnect)
            && self.mode != RunMode::Background
            && self.endpoint.kind != EndpointKind::InProcess
        {
            reconnect::warn_if_shorter(self.endpoint, &client, asked);
        }
        Ok(client)
    }

    /// Ends the session with this name if nothing is running in it.
    async fn make_room(&self, name: &str) -> Result<(), Failure> {
        let client = self.endpoint.connect(|_| {}).await?;
        let sessions = client.sessions().await?;
        let Some(holder) = sessions.into_iter().find(|session| session.name.as_deref() == Some(name)) else {
            return Ok(client.end().await?);
        };
        let processes = Processes::list(&client).await?;
        let runs = |state| !matches!(state, State::Closed);
        let busy = holder.is_attached
            || processes
                .rows
                .iter()
                .any(|row| row.entry.session_id == holder.session_id && runs(row.entry.state));
        if busy {
            let _ = client.end().await;
            let hint = format!(
                "choose another `--name`, attach to it with `remex attach {name}`, or end it with `remex kill --tree \
                 {name}`"
            );
            let failure = Failure::new(format!("cannot start `{name}`"), hint);
            return Err(failure.because("a process with that name is already running"));
        }
        client.end_session(holder.session_id).await?;
        Ok(client.end().await?)
    }

    async fn start_in(&self, client: &Client, name: &str) -> Result<Process, Failure> {
        if self.mode == RunMode::Background && client.welcome().detach_ttl_ms == Some(0) {
            return Err(cannot_detach(&self.endpoint.name));
        }
        if self.mode != RunMode::Foreground {
            end_empty_sessions(client).await?;
        }
        let argv = self.command.resolve(client).await?;
        let (program, args) =
            argv.split_first().ok_or_else(|| Failure::usage("no command given", "add it after `--`"))?;
        let mut command = Command::new(program).args(args).id(name);
        command = match self.endpoint.kind {
            // Variables of this user are not passed to another one.
            _ if self.user.is_some() => command,
            EndpointKind::InProcess => command.inherit(Inherit::All).secrets(Secrets::Inherited),
            // A long-running server may have an outdated environment.
            EndpointKind::UserServer => own_env()
                .into_iter()
                .fold(command.inherit(Inherit::None), |command, (name, value)| command.env(name, value)),
            EndpointKind::Remote => command,
        };
        if self.terminal {
            let term = std::env::var("TERM").ok().filter(|term| !term.is_empty());
            command = command.terminal(terminal::size()).envs(term.map(|term| ("TERM", term)));
        }
        if let Some(socket) = self.endpoint.agent_socket(client)? {
            command = command.env("SSH_AUTH_SOCK", socket);
        }
        for (variable, value) in &self.env {
            command = command.env(variable, value);
        }
        for (label, value) in &self.labels {
            command = command.label(label, value);
        }
        if let Some((label, value)) = self.endpoint.agent_label() {
            command = command.label(label, value);
        }
        if let Some(directory) = self.directory(client)? {
            command = command.cwd(directory);
        }
        if let Some(user) = &self.user {
            command = command.user(user);
        }
        if let Some(sandbox) = confine::sandbox(&self.confine, |path| self.absolute(client, path))? {
            command = command.sandbox(sandbox);
        }
        if let Some(limit) = self.timeout {
            command = command.timeout(limit).timeout_grace(self.grace);
        }
        if let Some(restart) = self.restart {
            command = command.restart(restart);
        }
        if self.mode != RunMode::Foreground || self.name.is_some() {
            command = command.restartable();
        }
        let command = command.stdin(self.input).limits(self.limits).retain(self.retain());
        let started = silent_keeper::explained(client, command.start(client)).await;
        started.map_err(|error| {
            let cwd = self.cwd.as_deref().unwrap_or(".");
            let hidden = (self.confine.sandbox == Some(Profile::Minimal)).then_some(cwd);
            refusal::explain(error, program, args, hidden)
        })
    }

    fn retain(&self) -> Retain {
        let background = Retain::default().bytes(BACKGROUND_RETAIN_BYTES).after_close(BACKGROUND_RETAIN_TIME);
        match self.mode {
            // Its output is held for as long as the client may reconnect.
            RunMode::Foreground => Retain::default()
                .bytes(FOREGROUND_RETAIN_BYTES)
                .after_close(self.endpoint.reconnect_window(self.reconnect).max(CLOSED_RETAIN_TIME))
                .overflow(Overflow::Hold),
            RunMode::Reattachable => background.overflow(Overflow::Hold),
            RunMode::Background => background.overflow(Overflow::Evict),
        }
    }

    /// Returns the working directory; `None` for that of the server.
    fn directory(&self, client: &Client) -> Result<Option<OsString>, Failure> {
        match &self.cwd {
            Some(path) => self.absolute(client, path).map(Some),
            // The home of the account.
            None if matches!(self.command, CommandLine::ShellOfUser) => Ok(None),
            None if self.endpoint.kind == EndpointKind::Remote => Ok(None),
            None => current_directory().map(|here| Some(here.into_os_string())),
        }
    }

    /// Completes a path that was typed: on a remote host, a relative one begins at the directory of the server.
    fn absolute(&self, client: &Client, path: &str) -> Result<OsString, Failure> {
        if self.endpoint.kind == EndpointKind::Remote {
            return Endpoint::remote_absolute(client, path).map(OsString::from);
        }
        Ok(current_directory()?.join(expand_home(path)).into_os_string())
    }
}

fn current_directory() -> Result<PathBuf, Failure> {
    std::env::current_dir().map_err(|error| {
        Failure::io("determine the current directory", &error).with_hint("change to an existing directory")
    })
}

/// Ends empty sessions of earlier runs of this program, except those of clients that may be reconnecting.
async fn end_empty_sessions(client: &Client) -> Result<(), Failure> {
    for session in client.sessions().await? {
        let (detached, expires) = (session.detached_at_ms.unwrap_or(0), session.expires_at_ms.unwrap_or(0));
        let is_awaited = u128::from(expires.saturating_sub(detached)) >= reconnect::DETACH_TTL.as_millis();
        let is_empty = session.processes == 0 && !session.is_attached && !is_awaited;
        if is_empty && session.client_name == CLIENT_NAME {
            // Another client may have ended it already.
            let _ = client.end_session(session.session_id).await;
        }
    }
    Ok(())
}

/// Expands `~`, as on remote hosts.
fn expand_home(path: &str) -> PathBuf {
    let home = std::env::home_dir().filter(|home| !home.as_os_str().is_empty());
    match (path.strip_prefix('~'), home) {
        (Some(""), Some(home)) => home,
        (Some(rest), Some(home)) if rest.starts_with('/') => home.join(rest.trim_start_matches('/')),
        _ => PathBuf::from(path),
    }
}

/// Returns the failure for a server that ends its processes with the connection.
pub(crate) fn cannot_detach(endpoint: &str) -> Failure {
    Failure::of(
        Kind::Failed,
        format!("cannot keep processes running on {endpoint}"),
        "use `remex proxy` instead of `remex serve --listen stdio` as its program, or connect to a socket",
    )
    .because("its server ends them with the connection")
}

pub(crate) fn own_env() -> Vec<(String, String)> {
    let text =
        |(name, value): (OsString, OsString)| Some((name.into_string().ok()?, value.into_string().ok()?));
    std::env::vars_os().filter_map(text).collect()
}

/// Creates a name that is easy to type: the program and six hexadecimal digits.
fn name_for(command: &CommandLine) -> String {
    const MOST: usize = 20;
    let argv = match command {
        CommandLine::Given(argv) => argv,
        CommandLine::LoginShell | CommandLine::ShellOfUser => &vec!["shell".into()],
    };
    let program = argv.first().map(|program| program.to_string_lossy()).unwrap_or_default();
    let stem = program.rsplit('/').next().unwrap_or_default();
    let stem: String = stem
        .chars()
        .filter(|letter| letter.is_ascii_alphanumeric() || "-_.".contains(*letter))
        .take(MOST)
        .collect();
    let stem = if stem.is_empty() { "run".to_owned() } else { stem };
    let random = RandomState::new().build_hasher().finish();
    format!("{stem}-{:06x}", random & 0xff_ffff)
}
