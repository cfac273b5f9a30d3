//! Hosts with names.
//!
//! Start at [`Environment`].

use std::{
    fmt,
    future::Future,
    path::PathBuf,
    pin::Pin,
    sync::{
        OnceLock,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use remex_base::clock::now_ms;
use remex_client::{Client, Command, ConnectionState, Options, process::Sandbox};
use remex_proto::HostPath;
use tokio::sync::Mutex;

use crate::answer::ToolError;

/// The client name sent to servers.
const CLIENT_NAME: &str = "remex-mcp";

/// How long a lost connection is re-established before a call fails.
const RECONNECT_TIMEOUT: Duration = Duration::from_secs(60);

/// How long finding the shell may take.
const SHELL_PATIENCE: Duration = Duration::from_secs(5);

/// A connection attempt; a failure is a sentence for the model.
pub type Connected = Pin<Box<dyn Future<Output = Result<Client, String>> + Send>>;

/// Makes absolute paths of paths as people write them, for a host that is connected.
pub type Absolute<'a> = &'a dyn Fn(&str) -> Result<PathBuf, String>;

/// What makes a sandbox; `None` confines nothing, and a failure is a sentence for the model.
type Confine = Box<dyn Fn(Absolute<'_>) -> Result<Option<Sandbox>, String> + Send + Sync>;

/// A host that a model can use, connected to at the first use.
pub struct Environment {
    name: String,
    connect: Box<dyn Fn(Options) -> Connected + Send + Sync>,
    prepare: Box<dyn Fn(Command) -> Command + Send + Sync>,
    confine: Option<Confine>,
    /// Where commands run and relative paths begin; by default the working directory of the server.
    directory: Option<PathBuf>,
    client: Mutex<Option<Client>>,
    /// The shell of its host, once it is known.
    shell: OnceLock<&'static str>,
    /// Whether a connection has succeeded; known without waiting for one that is being made.
    was_connected: AtomicBool,
}

impl Environment {
    /// Creates an environment whose clients `connect` makes with these options.
    pub fn new<F>(name: impl Into<String>, connect: impl Fn(Options) -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = Result<Client, String>> + Send + 'static,
    {
        Self {
            name: name.into(),
            connect: Box::new(move |options| Box::pin(connect(options))),
            prepare: Box::new(|command| command),
            confine: None,
            directory: None,
            client: Mutex::new(None),
            shell: OnceLock::new(),
            was_connected: AtomicBool::new(false),
        }
    }

    /// Sets where commands run and relative paths begin.
    #[must_use]
    pub fn directory(mut self, directory: impl Into<PathBuf>) -> Self {
        self.directory = Some(directory.into());
        self
    }

    /// Sets what is done to each command before it starts, such as giving it an environment.
    #[must_use]
    pub fn prepare(mut self, prepare: impl Fn(Command) -> Command + Send + Sync + 'static) -> Self {
        self.prepare = Box::new(prepare);
        self
    }

    /// Sets what confines commands and file requests; the workspace is the directory of the environment, wherever a command
    /// runs.
    ///
    /// Processes that were not started through this environment since it connected are then out of reach, because they may
    /// be unconfined.
    #[must_use]
    pub fn confine(
        mut self,
        confine: impl Fn(Absolute<'_>) -> Result<Option<Sandbox>, String> + Send + Sync + 'static,
    ) -> Self {
        self.confine = Some(Box::new(confine));
        self
    }

    /// Returns whether commands and file requests are confined.
    pub(crate) fn is_confined(&self) -> bool {
        self.confine.is_some()
    }

    /// Returns its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns its client, which is a new one if there is none yet or its session is lost.
    pub(crate) async fn client(&self) -> Result<Client, ToolError> {
        let mut client = self.client.lock().await;
        if let Some(client) = &*client
            && !matches!(client.connection_state(), ConnectionState::Lost(_))
        {
            return Ok(client.clone());
        }
        let options = Options::default()
            .name(CLIENT_NAME)
            // Processes outlive this program.
            .detach_ttl(Duration::MAX)
            .reconnect_timeout(RECONNECT_TIMEOUT);
        let connected = (self.connect)(options).await.map_err(|error| {
            ToolError::new(format!("cannot connect to environment `{}`: {error}", self.name))
                .with_hint("choose another environment, or try again later")
        })?;
        if let Err(error) = self.confine_files(&connected) {
            let _ = connected.end().await;
            return Err(error);
        }
        tokio::spawn(end_left_behind(connected.clone()));
        *client = Some(connected.clone());
        self.was_connected.store(true, Ordering::Relaxed);
        Ok(connected)
    }

    /// Returns whether it was used before.
    pub(crate) fn was_connected(&self) -> bool {
        self.was_connected.load(Ordering::Relaxed)
    }

    /// Returns the shell for command lines: bash where there is one.
    pub(crate) async fn shell(&self, client: &Client) -> &'static str {
        if let Some(shell) = self.shell.get() {
            return shell;
        }
        match tokio::time::timeout(SHELL_PATIENCE, client.fs().exists("/bin/bash")).await {
            Ok(Ok(exists)) => self.shell.get_or_init(|| if exists { "/bin/bash" } else { "/bin/sh" }),
            // Perhaps another time.
            _ => "/bin/sh",
        }
    }

    /// Prepares a command: its environment, and its directory if none is given.
    pub(crate) fn command(
        &self,
        client: &Client,
        command: Command,
        cwd: Option<&str>,
    ) -> Result<Command, ToolError> {
        let mut command = (self.prepare)(command);
        if let Some(sandbox) = self.sandbox(client)? {
            command = command.sandbox(sandbox);
        }
        match (cwd, &self.directory) {
            (None, None) => Ok(command),
            (None, Some(directory)) => Ok(command.cwd(directory)),
            (Some(cwd), _) => Ok(command.cwd(self.path(client, cwd)?)),
        }
    }

    fn confine_files(&self, client: &Client) -> Result<(), ToolError> {
        let Some(sandbox) = self.sandbox(client)? else { return Ok(()) };
        Ok(client.confine_files(&sandbox, self.path(client, "")?)?)
    }

    fn sandbox(&self, client: &Client) -> Result<Option<Sandbox>, ToolError> {
        let Some(confine) = &self.confine else { return Ok(None) };
        let absolute = |path: &str| self.path(client, path).map_err(|error| error.to_string());
        let sandbox = confine(&absolute).map_err(|why| {
            ToolError::new(format!("cannot confine what runs on environment `{}`: {why}", self.name))
                .with_hint("choose another environment")
        })?;
        // A model chooses where a command runs, and must not choose its workspace with that.
        let Some(sandbox) = sandbox else { return Ok(None) };
        Ok(Some(sandbox.workspace(self.path(client, "")?)))
    }

    /// Makes a path absolute: relative to the directory of the environment; `~` is the home directory.
    pub(crate) fn path(&self, client: &Client, path: &str) -> Result<PathBuf, ToolError> {
        let info = client.welcome().environment_info.as_ref();
        let native = |path: &HostPath| path.native().ok().map(PathBuf::from);
        let (base, rest) = match path.strip_prefix('~') {
            Some(rest) if rest.is_empty() || rest.starts_with('/') => (
                info.and_then(|info| info.user_home_dir.as_ref()).and_then(native),
                rest.trim_start_matches('/'),
            ),
            _ => {
                let cwd = || info.and_then(|info| info.cwd.as_ref()).and_then(native);
                (self.directory.clone().or_else(cwd), path)
            }
        };
        if rest.starts_with('/') {
            return Ok(rest.into());
        }
        let base = base.ok_or_else(|| {
            ToolError::new(format!("cannot resolve `{path}`: the server does not report its directories"))
                .with_hint("give an absolute path")
        })?;
        Ok(if rest.is_empty() { base } else { base.join(rest) })
    }

    /// Disconnects; the session stays if something still runs in it, and ends otherwise.
    pub(crate) async fn close(&self) {
        let Some(client) = self.client.lock().await.take() else { return };
        let is_ours = |id: &str| id == client.session_id();
        let is_idle = match client.processes().await {
            Ok(processes) => !processes.iter().any(|process| {
                is_ours(&process.session_id) && process.state != remex_client::process::State::Closed
            }),
            Err(_) => false,
        };
        if is_idle {
            let _ = client.end().await;
        } else {
            client.close().await;
        }
    }
}

/// Ends empty sessions that killed programs of this kind have left.
async fn end_left_behind(client: Client) {
    let Ok(sessions) = client.sessions().await else { return };
    let now = Duration::from_millis(now_ms());
    for session in sessions {
        let detached = session.detached_at_ms.map(Duration::from_millis);
        // One that was detached just now may be reconnecting.
        let is_left = detached.is_some_and(|at| now.saturating_sub(at) > 2 * RECONNECT_TIMEOUT);
        if is_left && session.processes == 0 && session.client_name == CLIENT_NAME {
            let _ = client.end_session(session.session_id).await;
        }
    }
}

impl fmt::Debug for Environment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Environment").field("name", &self.name).finish_non_exhaustive()
    }
}
