//! Starts a command.

use std::{collections::BTreeMap, ffi::OsString, os::unix::ffi::OsStringExt as _, sync::Arc};

use remex_proto::{Blob, ErrorKind, HostPath, environment::EnvPolicy, process as wire, sandbox::Sandbox};

use super::{Command, Input, OnDrop, Secrets};
use crate::{
    Client, Error,
    error::usage,
    event_queue::{EventQueue, History},
    process::{Handle, Output, Process, Stdin, millis, sandbox::host_path},
};

impl Command {
    /// Starts the process.
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
    /// use remex_client::ErrorKind;
    ///
    /// let process = client.command("sleep").arg("1000").start().await?;
    /// process.kill().await?;
    ///
    /// let error = client.command("no-such-program").start().await.unwrap_err();
    /// assert_eq!(error.kind(), Some(ErrorKind::ProgramNotFound));
    /// # Ok(()) }
    /// ```
    pub async fn start(self) -> Result<Process, Error> {
        let client = self.client.clone();
        let core = client.core();
        let id = self.id.clone().unwrap_or_else(|| core.name("p"));
        let has_stdin = self.input == Input::Piped || self.terminal.is_some();
        let (on_drop, retain) = (self.on_drop, self.retain);
        let cap = Some(core.welcome().limits.retain_bytes).filter(|cap| *cap > 0);
        let queue = Arc::new(EventQueue::new(id.clone(), retain.bytes.into_iter().chain(cap).min()));
        let request = self.request(id.clone())?;
        core.add_queue(&queue)?;
        // From here on, dropping the handle removes the queue.
        let stdin = has_stdin.then(|| Stdin::new(client.clone(), id));
        let mut handle =
            Handle { client: client.clone(), queue, pid: None, on_drop, stdin: std::sync::Mutex::new(stdin) };
        let disconnects = core.disconnects();
        let started = match client.call(request).await {
            Ok(started) => started,
            // A server of the base dialect does not support `startId`: a resent start finds its own process.
            Err(error) if is_taken(&error) && core.disconnects() != disconnects => wire::Started {
                process_id: handle.queue.id.clone(),
                sandbox_type: wire::SandboxType::None,
                pid: None,
                started_at_ms: None,
                replayed: true,
            },
            Err(error) => {
                // After a refusal nothing was started; after any other error the process may be running.
                if matches!(error, Error::Refused(_)) {
                    handle.on_drop = OnDrop::Leave;
                }
                drop(handle.stdin.get_mut().map(|stdin| stdin.take().map(Stdin::forget)));
                return Err(error);
            }
        };
        let history = if started.replayed { History::Possible } else { History::None };
        let action = handle.queue.on_started(history);
        core.perform(&handle.queue, action);
        handle.pid = started.pid;
        Ok(Process::new(handle))
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
    /// let output = client.shell("echo out; echo err >&2").output().await?;
    /// assert!(output.exit.is_success());
    /// assert_eq!((&output.stdout[..], &output.stderr[..]), (&b"out\n"[..], &b"err\n"[..]));
    /// # Ok(()) }
    /// ```
    pub async fn output(self) -> Result<Output, Error> {
        let process = self.on_drop(OnDrop::Terminate).start().await?;
        process.communicate(&[]).await
    }

    fn request(self, process_id: String) -> Result<wire::Start, Error> {
        let info = self.client.welcome().environment_info.as_ref();
        if !self.limits.is_empty() && info.is_none_or(|info| info.process_limits.is_none()) {
            return Err(usage(
                "cannot limit the resources of a process: this server does not support it",
                "omit the limits, or use a current `remex serve` there",
            ));
        }
        let cwd = match self.cwd {
            Some(directory) => host_path(&directory)?,
            None => info
                .and_then(|info| info.cwd.clone())
                .unwrap_or_else(|| HostPath::from(std::path::PathBuf::from("/"))),
        };
        let sandbox = self.sandbox.map_or(Ok(Sandbox::Disabled), |sandbox| sandbox.to_wire(&cwd))?;
        let env_policy = EnvPolicy {
            inherit: self.inherit,
            ignore_default_excludes: self.secrets == Secrets::Inherited,
            exclude: Vec::new(),
            set: BTreeMap::new(),
            include_only: Vec::new(),
        };
        let (rows, cols) = self.terminal.unzip();
        let (argv, argv_base64) = self.client.words(self.argv)?;
        Ok(wire::Start {
            start_id: Some(self.client.core().name("s")),
            process_id,
            argv,
            argv_base64,
            cwd,
            env: self.env,
            tty: self.terminal.is_some(),
            pipe_stdin: self.input == Input::Piped && self.terminal.is_none(),
            arg0: self.arg0,
            env_policy: Some(env_policy),
            shell_snapshot: None,
            sandbox,
            isolate_pids: false,
            enforce_managed_network: false,
            network_proxy: None,
            rows,
            cols,
            timeout_ms: self.timeout.map(millis),
            idle_timeout_ms: self.idle_timeout.map(millis),
            output: wire::OutputOptions {
                retain_bytes: self.retain.bytes,
                retain_ms: self.retain.after_close.map(millis),
                overflow: self.retain.overflow,
            },
            labels: self.labels,
            linger_ms: self.linger.map(millis),
            limits: self.limits,
        })
    }
}

impl Client {
    /// Returns a command line as text, and as bytes if it is not UTF-8.
    fn words(&self, argv: Vec<OsString>) -> Result<(Vec<String>, Option<Vec<Blob>>), Error> {
        let text = argv.iter().map(|word| word.to_string_lossy().into_owned()).collect();
        let Some(odd) = argv.iter().find(|word| word.to_str().is_none()) else { return Ok((text, None)) };
        if self.welcome().server.name.is_empty() {
            let message = format!(
                "cannot pass `{}`: it is not UTF-8, which this server does not support",
                odd.display()
            );
            return Err(usage(message, "use `remex serve` there"));
        }
        let bytes = argv.into_iter().map(|word| Blob(word.into_vec().into())).collect();
        Ok((text, Some(bytes)))
    }
}

fn is_taken(error: &Error) -> bool {
    matches!(error, Error::Refused(refusal) if refusal.kind == ErrorKind::ProcessExists
        || refusal.message.contains("already exists"))
}
