//! Starts a command.

use std::{collections::BTreeMap, ffi::OsString, path::Path, sync::Arc};

use remex_base::clock::millis;
use remex_proto::{Blob, ErrorKind, HostPath, environment::EnvPolicy, process as wire, sandbox::Sandbox};

use super::{Command, OnDrop, Secrets, Stdio};
use crate::{
    Client, Error,
    api::{
        fs::AsHostPath,
        process::{Handle, Output, Process, Stdin, StdinSlot},
    },
    base::error::{is_unknown_process, usage},
    core::event_queue::{EventQueue, History},
};

/// The default terminal type of programs; nearly every terminal emulator understands it.
const DEFAULT_TERM: &str = "xterm-256color";

impl Command {
    /// Starts a process on the host of this client.
    ///
    /// The process is started at most once, even if the connection is lost and re-established meanwhile.
    ///
    /// # Errors
    ///
    /// Those of [`Client::call`], for example when the program or the directory does not exist. After [`Error::TimedOut`]
    /// the process may have been started; with [`OnDrop::Terminate`] it is killed in that case.
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let client = remex_client::Client::connect(remex::Local::here()?.target()).await?;
    /// use remex_client::{Command, ErrorKind};
    ///
    /// let process = Command::new("sleep").arg("1000").start(&client).await?;
    /// process.kill().await?;
    ///
    /// let error = Command::new("no-such-program").start(&client).await.unwrap_err();
    /// assert_eq!(error.kind(), Some(ErrorKind::ProgramNotFound));
    /// # Ok(()) }
    /// ```
    pub async fn start(&self, client: &Client) -> Result<Process, Error> {
        self.start_with(client, self.on_drop).await
    }

    async fn start_with(&self, client: &Client, on_drop: OnDrop) -> Result<Process, Error> {
        let core = client.core();
        let id = self.id.clone().unwrap_or_else(|| core.name("p"));
        let has_stdin = self.stdin == Stdio::Piped || self.terminal.is_some();
        let retain = self.retain;
        let cap = Some(core.welcome().limits.retain_bytes).filter(|cap| *cap > 0);
        let queue =
            Arc::new(EventQueue::new(id.clone(), retain.bytes.into_iter().chain(cap).min(), core.close()));
        let cwd = match &self.cwd {
            Some(directory) => Some(core.resolve(host_directory(directory)?).await?),
            None => None,
        };
        let request = self.request(client, id, cwd)?;
        core.add_queue(&queue)?;
        // From here on, dropping the handle removes the queue.
        let stdin = if has_stdin {
            StdinSlot::Owned(Box::new(Stdin::new(client.clone(), &queue)))
        } else {
            StdinSlot::Empty
        };
        let mut handle = Handle {
            client: client.clone(),
            queue,
            pid: None,
            has_terminal: Some(self.terminal.is_some()),
            on_drop,
            stdin: std::sync::Mutex::new(stdin),
        };
        let disconnects = core.disconnects();
        let started = match client.call(request).await {
            Ok(started) => started,
            // A server of the base dialect does not support `startId`: a resent start finds its own process.
            Err(error) if is_taken(&error) && core.disconnects() != disconnects => wire::Started {
                process_id: handle.queue.id.clone(),
                sandbox_type: wire::SandboxType::None,
                pid: None,
                started_at_ms: None,
                incarnation: None,
                replayed: true,
            },
            Err(error) => {
                // After a refusal nothing was started; after any other error the process may be running.
                if matches!(error, Error::Refused(_)) {
                    handle.on_drop = OnDrop::Leave;
                }
                if let Ok(slot) = handle.stdin.get_mut()
                    && let StdinSlot::Owned(stdin) = std::mem::replace(slot, StdinSlot::Empty)
                {
                    stdin.forget();
                }
                return Err(error);
            }
        };
        let history = if started.replayed { History::Possible } else { History::None };
        let action = handle.queue.on_started(history, started.incarnation);
        core.perform(&handle.queue, action);
        handle.pid = started.pid;
        let process = Process::new(handle);
        client.announce(process.id());
        Ok(process)
    }

    /// Runs the command to completion and returns its output.
    ///
    /// # Errors
    ///
    /// Those of [`Command::start`], and [`Error::Lost`].
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let client = remex_client::Client::connect(remex::Local::here()?.target()).await?;
    /// use remex_client::Command;
    ///
    /// let output = Command::shell("echo out; echo err >&2").output(&client).await?;
    /// assert!(output.exit.success());
    /// assert_eq!((&output.stdout[..], &output.stderr[..]), (&b"out\n"[..], &b"err\n"[..]));
    /// # Ok(()) }
    /// ```
    pub async fn output(&self, client: &Client) -> Result<Output, Error> {
        Box::pin(async { self.start_with(client, OnDrop::Terminate).await?.wait_with_output().await }).await
    }

    /// Attaches to the process with the id of this command if the session has one, and starts it otherwise.
    ///
    /// One that has ended counts as long as the server retains its output. [`Session::Named`](crate::Session::Named) lets
    /// the next run of a program find the session.
    ///
    /// # Errors
    ///
    /// [`Error::Usage`] for a command without an [`id`](Command::id), and those of [`Command::start`].
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let client = remex_client::Client::connect(remex::Local::here()?.target()).await?;
    /// use remex_client::Command;
    ///
    /// let watcher = Command::shell("echo $$; exec sleep 1000").id("watcher");
    /// let first = watcher.attach_or_start(&client).await?;
    /// let again = watcher.attach_or_start(&client).await?;
    /// assert_eq!(again.lines().next().await?, first.lines().next().await?);
    /// # Ok(()) }
    /// ```
    pub async fn attach_or_start(&self, client: &Client) -> Result<Process, Error> {
        let Some(id) = &self.id else {
            return Err(usage("cannot attach to a process without an id", "set the `id` of the command"));
        };
        // A start would first take the output that is held for the client of the session, and be refused.
        match client.process(id.clone()).await {
            Err(error) if is_unknown_process(&error) => {}
            found => return found,
        }
        match self.start(client).await {
            Err(error) if is_taken(&error) => client.process(id.clone()).await,
            // Another task of this program is starting it.
            Err(error) => Process::shared(client, id, None).ok_or(error),
            started => started,
        }
    }

    fn request(
        &self,
        client: &Client,
        process_id: String,
        cwd: Option<HostPath>,
    ) -> Result<wire::Start, Error> {
        let info = client.welcome().environment_info.as_ref();
        if !self.limits.is_empty() && info.is_none_or(|info| info.process_limits.is_none()) {
            return Err(usage(
                "cannot limit the resources of a process: this server does not support it",
                "omit the limits, or use a current `remex serve` there",
            ));
        }
        if self.restart.is_some() && info.is_none_or(|info| !info.capabilities.process_restart) {
            return Err(usage(
                "cannot run a command again when it ends: this server does not support it",
                "omit that, or use a current `remex serve` there",
            ));
        }
        if self.user.is_some() && info.is_none_or(|info| !info.capabilities.process_user) {
            return Err(usage(
                "cannot run a command as another user: this server does not support it",
                "omit the user, or use a current `remex serve` there that runs as root and starts any process",
            ));
        }
        let cwd = match cwd {
            Some(directory) => directory,
            // The home of the account, which only the server knows.
            None if self.user.is_some() => HostPath::default(),
            None => info
                .and_then(|info| info.cwd.clone())
                .unwrap_or_else(|| HostPath::from(std::path::PathBuf::from("/"))),
        };
        let sandbox = self.sandbox.as_ref().map_or(Ok(Sandbox::Disabled), |sandbox| sandbox.to_wire(&cwd))?;
        let env_policy = EnvPolicy {
            inherit: self.inherit,
            ignore_default_excludes: self.secrets == Secrets::Inherited,
            exclude: self.env_exclude.clone(),
            set: BTreeMap::new(),
            include_only: self.env_include_only.clone(),
        };
        let (argv, argv_base64) = client.words(&self.argv)?;
        let mut env = self.env.clone();
        if self.terminal.is_some() {
            env.entry("TERM".to_owned()).or_insert_with(|| DEFAULT_TERM.to_owned());
        }
        Ok(wire::Start {
            start_id: Some(client.core().name("s")),
            process_id,
            argv,
            argv_base64,
            cwd,
            user: self.user.clone(),
            env,
            tty: self.terminal.is_some(),
            pipe_stdin: self.stdin == Stdio::Piped && self.terminal.is_none(),
            arg0: self.arg0.clone(),
            env_policy: Some(env_policy),
            shell_snapshot: None,
            sandbox,
            isolate_pids: false,
            durable: self.durable,
            sync: self.sync,
            enforce_managed_network: false,
            managed_network: None,
            network_proxy: None,
            rows: self.terminal.map(|size| size.rows),
            cols: self.terminal.map(|size| size.cols),
            timeout_ms: self.timeout.map(millis),
            idle_timeout_ms: self.idle_timeout.map(millis),
            timeout_grace_ms: self.timeout_grace.map(millis),
            output: wire::OutputOptions {
                retain_bytes: self.retain.bytes,
                retain_ms: self.retain.after_close.map(millis),
                overflow: self.retain.overflow,
            },
            labels: self.labels.clone(),
            linger_ms: self.linger.map(millis),
            limits: self.limits,
            restart: self.restart,
            restartable: self.is_restartable
                && info.is_some_and(|info| info.capabilities.process_restart_request),
        })
    }
}

impl Client {
    /// Returns a command line as text, and as bytes if it is not UTF-8.
    fn words(&self, argv: &[OsString]) -> Result<(Vec<String>, Option<Vec<Blob>>), Error> {
        let text = argv.iter().map(|word| word.to_string_lossy().into_owned()).collect();
        let Some(odd) = argv.iter().find(|word| word.to_str().is_none()) else { return Ok((text, None)) };
        if cfg!(windows) {
            let message = format!("cannot pass `{}`: it is not Unicode", odd.display());
            return Err(usage(message, "pass text"));
        }
        if self.welcome().server.name.is_empty() {
            let message = format!(
                "cannot pass `{}`: it is not UTF-8, which this server does not support",
                odd.display()
            );
            return Err(usage(message, "use `remex serve` there"));
        }
        let bytes = argv.iter().map(|word| Blob(word.clone().into_encoded_bytes().into())).collect();
        Ok((text, Some(bytes)))
    }
}

/// Returns a working directory as it was given.
fn host_directory(directory: &OsString) -> Result<HostPath, Error> {
    directory.to_str().map_or_else(|| Path::new(directory).as_host_path(), AsHostPath::as_host_path)
}

fn is_taken(error: &Error) -> bool {
    matches!(error, Error::Refused(refusal) if refusal.kind == ErrorKind::ProcessExists
        || refusal.message.contains("already exists"))
}
