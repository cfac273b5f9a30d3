//! Builds a command.

mod environment;
mod restart;
mod start;

use std::{collections::BTreeMap, ffi::OsString, fmt, time::Duration};

use remex_base::quote::shell_word;
use remex_proto::{
    environment::Inherit,
    process::{ResourceLimits, Restart},
};

use super::{Retain, Sandbox, TerminalSize};

/// A command to start on a remote host.
///
/// It is a plain value: build it once, and start it on any number of clients, any number of times.
///
/// **By default it inherits the environment of the server**, except variables whose names contain `KEY`, `SECRET` or
/// `TOKEN`; nothing of the environment of *this* program is passed on. [`Command::inherit`], [`Command::secrets`],
/// [`Command::env_exclude`] and [`Command::env_include_only`] change that, and [`Command::env`] adds to it.
///
/// By default it runs in the working directory of the server, with pipes for its output and an empty standard input.
///
/// ```
/// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let client = remex_client::Client::connect(remex::Local::here()?.target()).await?;
/// use remex_client::Command;
/// use std::time::Duration;
///
/// let command = Command::new("env").env("GREETING", "hello").cwd("/").timeout(Duration::from_secs(60));
/// let output = command.output(&client).await?;
/// assert!(String::from_utf8(output.stdout)?.lines().any(|line| line == "GREETING=hello"));
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Command {
    id: Option<String>,
    argv: Vec<OsString>,
    arg0: Option<String>,
    cwd: Option<OsString>,
    user: Option<String>,
    env: BTreeMap<String, String>,
    inherit: Inherit,
    secrets: Secrets,
    env_exclude: Vec<String>,
    env_include_only: Vec<String>,
    terminal: Option<TerminalSize>,
    stdin: Stdio,
    timeout: Option<Duration>,
    idle_timeout: Option<Duration>,
    timeout_grace: Option<Duration>,
    linger: Option<Duration>,
    durable: Option<bool>,
    sync: bool,
    limits: ResourceLimits,
    restart: Option<Restart>,
    is_restartable: bool,
    sandbox: Option<Sandbox>,
    retain: Retain,
    labels: BTreeMap<String, String>,
    on_drop: OnDrop,
}

/// The standard input of a process.
///
/// ```
/// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let client = remex_client::Client::connect(remex::Local::here()?.target()).await?;
/// use remex_client::{Command, process::Stdio};
///
/// let nothing = Command::new("cat").stdin(Stdio::Null).start(&client).await?;
/// assert_eq!(nothing.communicate(b"unread").await?.stdout, b"");
/// let piped = Command::new("cat").stdin(Stdio::Piped).start(&client).await?;
/// assert_eq!(piped.communicate(b"read").await?.stdout, b"read");
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Stdio {
    /// Empty: end of file at once.
    #[default]
    Null,
    /// A pipe that [`Process::stdin`](super::Process::stdin) writes to.
    Piped,
}

/// Whether a process inherits variables of the server whose names contain `KEY`, `SECRET` or `TOKEN`.
///
/// ```
/// use remex_client::process::Secrets;
///
/// assert_eq!(Secrets::default(), Secrets::Withheld);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Secrets {
    /// They are removed from its environment.
    #[default]
    Withheld,
    /// They are inherited like other variables.
    Inherited,
}

/// What happens to a process when its last handle is dropped.
///
/// ```
/// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let client = remex_client::Client::connect(remex::Local::here()?.target()).await?;
/// use remex_client::{Command, process::OnDrop};
///
/// let process = Command::new("sleep").arg("1000").id("nap").on_drop(OnDrop::Terminate).start(&client).await?;
/// drop(process);
/// assert_eq!(client.process("nap").await?.wait().await?.code, 137);
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum OnDrop {
    /// It keeps running until it exits or its session ends.
    #[default]
    Leave,
    /// It is killed with all its descendants.
    Terminate,
}

impl Command {
    /// Creates a command; a `program` without a slash is looked up in the `PATH` of its environment.
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let client = remex_client::Client::connect(remex::Local::here()?.target()).await?;
    /// use std::path::Path;
    /// use remex_client::Command;
    ///
    /// let greet = Command::new(Path::new("/bin/echo")).arg("hello");
    /// assert_eq!(greet.output(&client).await?.stdout, b"hello\n");
    /// # Ok(()) }
    /// ```
    pub fn new(program: impl Into<OsString>) -> Self {
        Self {
            id: None,
            argv: vec![program.into()],
            arg0: None,
            cwd: None,
            user: None,
            env: BTreeMap::new(),
            inherit: Inherit::All,
            secrets: Secrets::Withheld,
            env_exclude: Vec::new(),
            env_include_only: Vec::new(),
            terminal: None,
            stdin: Stdio::Null,
            timeout: None,
            idle_timeout: None,
            timeout_grace: None,
            linger: None,
            durable: None,
            sync: false,
            limits: ResourceLimits::default(),
            restart: None,
            is_restartable: false,
            sandbox: None,
            retain: Retain::default(),
            labels: BTreeMap::new(),
            on_drop: OnDrop::Leave,
        }
    }

    /// Creates a command that runs a command line with `/bin/sh -c`.
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let client = remex_client::Client::connect(remex::Local::here()?.target()).await?;
    /// use remex_client::Command;
    ///
    /// let output = Command::shell("printf '%s' a b | wc -c").output(&client).await?;
    /// assert_eq!(String::from_utf8(output.stdout)?.trim(), "2");
    /// # Ok(()) }
    /// ```
    pub fn shell(line: impl Into<OsString>) -> Self {
        Self::new("/bin/sh").arg("-c").arg(line)
    }

    /// Adds an argument; it may be non-UTF-8, except on a server of the base dialect.
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let client = remex_client::Client::connect(remex::Local::here()?.target()).await?;
    /// use remex_client::Command;
    ///
    /// let output = Command::new("printf").arg("%s").arg("a b").output(&client).await?;
    /// assert_eq!(output.stdout, b"a b");
    /// # Ok(()) }
    /// ```
    pub fn arg(mut self, arg: impl Into<OsString>) -> Self {
        self.argv.push(arg.into());
        self
    }

    /// Adds arguments.
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let client = remex_client::Client::connect(remex::Local::here()?.target()).await?;
    /// use remex_client::Command;
    ///
    /// let output = Command::new("echo").args(["a", "b"]).output(&client).await?;
    /// assert_eq!(output.stdout, b"a b\n");
    /// # Ok(()) }
    /// ```
    pub fn args<A: Into<OsString>>(mut self, args: impl IntoIterator<Item = A>) -> Self {
        self.argv.extend(args.into_iter().map(Into::into));
        self
    }

    /// Sets the name that the program sees as its own (`argv[0]`).
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let client = remex_client::Client::connect(remex::Local::here()?.target()).await?;
    /// use remex_client::Command;
    ///
    /// let output = Command::new("/bin/sh").arg0("me").args(["-c", "echo $0"]).output(&client).await?;
    /// assert_eq!(output.stdout, b"me\n");
    /// # Ok(()) }
    /// ```
    pub fn arg0(mut self, arg0: impl Into<String>) -> Self {
        self.arg0 = Some(arg0.into());
        self
    }

    /// Sets the working directory on the remote host: a path or a `file:` URI.
    ///
    /// A relative path begins in the working directory of the server, and `~` is the home of its user.
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let client = remex_client::Client::connect(remex::Local::here()?.target()).await?;
    /// use remex_client::Command;
    ///
    /// assert_eq!(Command::new("pwd").cwd("/").output(&client).await?.stdout, b"/\n");
    /// # Ok(()) }
    /// ```
    pub fn cwd(mut self, directory: impl Into<OsString>) -> Self {
        self.cwd = Some(directory.into());
        self
    }

    /// Runs it as this user of the host, named by its account or its uid in decimal digits.
    ///
    /// It has the groups of the account, and `HOME`, `LOGNAME`, `SHELL` and `USER` are about it, unless they are set here. Without a
    /// [`cwd`](Self::cwd) it starts in the home of the account. Nothing else of a login happens: no PAM module is asked, and no
    /// profile is read. It cannot be combined with a [`sandbox`](Self::sandbox).
    ///
    /// Only a server that runs as root supports it.
    ///
    /// ```no_run
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let client = remex_client::Client::connect(remex_client::Target::parse("unix:///run/remex.sock")?).await?;
    /// use remex_client::Command;
    ///
    /// let output = Command::new("id").user("nobody").output(&client).await?;
    /// # Ok(()) }
    /// ```
    pub fn user(mut self, user: impl Into<String>) -> Self {
        self.user = Some(user.into());
        self
    }

    /// Runs it on a terminal of this size instead of pipes.
    ///
    /// `TERM` is `xterm-256color` unless [`Command::env`] sets it.
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let client = remex_client::Client::connect(remex::Local::here()?.target()).await?;
    /// use remex_client::{Command, process::TerminalSize};
    ///
    /// let show = Command::shell("stty size; echo $TERM").terminal(TerminalSize::new(24, 80)?);
    /// assert_eq!(show.output(&client).await?.terminal, b"24 80\r\nxterm-256color\r\n");
    /// # Ok(()) }
    /// ```
    pub fn terminal(mut self, size: TerminalSize) -> Self {
        self.terminal = Some(size);
        self
    }

    /// Sets its standard input; a terminal always accepts input.
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let client = remex_client::Client::connect(remex::Local::here()?.target()).await?;
    /// use remex_client::{Command, process::Stdio};
    ///
    /// let process = Command::new("wc").arg("-c").stdin(Stdio::Piped).start(&client).await?;
    /// assert_eq!(process.communicate(b"hello").await?.stdout, b"5\n");
    /// # Ok(()) }
    /// ```
    pub fn stdin(mut self, stdin: Stdio) -> Self {
        self.stdin = stdin;
        self
    }

    /// Kills it after this run time.
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let client = remex_client::Client::connect(remex::Local::here()?.target()).await?;
    /// use std::time::Duration;
    /// use remex_client::{Command, process::ExitCause};
    ///
    /// let output = Command::new("sleep").arg("1000").timeout(Duration::from_millis(50)).output(&client).await?;
    /// assert_eq!(output.exit.cause, Some(ExitCause::Timeout));
    /// # Ok(()) }
    /// ```
    pub fn timeout(mut self, limit: Duration) -> Self {
        self.timeout = Some(limit);
        self
    }

    /// Kills it after this time without output.
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let client = remex_client::Client::connect(remex::Local::here()?.target()).await?;
    /// use std::time::Duration;
    /// use remex_client::{Command, process::ExitCause};
    ///
    /// let command = Command::shell("echo hello; sleep 1000").idle_timeout(Duration::from_millis(50));
    /// assert_eq!(command.output(&client).await?.exit.cause, Some(ExitCause::IdleTimeout));
    /// # Ok(()) }
    /// ```
    pub fn idle_timeout(mut self, limit: Duration) -> Self {
        self.idle_timeout = Some(limit);
        self
    }

    /// Gives it this time to end after SIGTERM when one of the timeouts has passed; by default it is killed at once.
    ///
    /// A server that does not know this kills it at once, too.
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let client = remex_client::Client::connect(remex::Local::here()?.target()).await?;
    /// use std::time::Duration;
    /// use remex_client::{Command, process::ExitCause};
    ///
    /// let command = Command::shell("trap 'echo cleaned up; exit 1' TERM; while :; do sleep 0.01; done")
    ///     .timeout(Duration::from_millis(500))
    ///     .timeout_grace(Duration::from_secs(10));
    /// let output = command.output(&client).await?;
    /// assert_eq!((&output.stdout[..], output.exit.cause), (&b"cleaned up\n"[..], Some(ExitCause::Timeout)));
    /// # Ok(()) }
    /// ```
    pub fn timeout_grace(mut self, grace: Duration) -> Self {
        self.timeout_grace = Some(grace);
        self
    }

    /// Sets how long after its exit descendants may keep its output open.
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let client = remex_client::Client::connect(remex::Local::here()?.target()).await?;
    /// use remex_client::Command;
    /// use std::time::Duration;
    ///
    /// // `sleep` keeps the output open after the shell has exited, but the process is closed soon.
    /// let command = Command::shell("echo done; sleep 1000 &").linger(Duration::from_millis(50));
    /// assert_eq!(command.output(&client).await?.stdout, b"done\n");
    /// # Ok(()) }
    /// ```
    pub fn linger(mut self, limit: Duration) -> Self {
        self.linger = Some(limit);
        self
    }

    /// Sets whether it must outlive the server, or ends with it.
    ///
    /// Otherwise it outlives a server that has a state directory. A server that cannot keep it refuses the start.
    pub fn durable(mut self, is_durable: bool) -> Self {
        self.durable = Some(is_durable);
        self
    }

    /// Has its output on the disk before this client sees it, so that it survives a power failure.
    ///
    /// It is then durable, or refused. Each announcement waits for the disk: output arrives later by that time, and a
    /// process that writes more than the disk can take waits once its log is full.
    pub fn sync(mut self) -> Self {
        self.sync = true;
        self
    }

    /// Limits the resources that it and its descendants may use.
    ///
    /// Limits that the server cannot enforce are refused at the start; `process_limits` of
    /// [`Client::info`](crate::Client::info) says how it enforces each.
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let client = remex_client::Client::connect(remex::Local::here()?.target()).await?;
    /// use std::num::NonZeroU64;
    /// use remex_client::{Command, process::ResourceLimits};
    ///
    /// let limits = ResourceLimits::default().open_files(NonZeroU64::try_from(32)?);
    /// let output = Command::shell("ulimit -n").limits(limits).output(&client).await?;
    /// assert_eq!(output.stdout, b"32\n");
    /// # Ok(()) }
    /// ```
    pub fn limits(mut self, limits: ResourceLimits) -> Self {
        self.limits = limits;
        self
    }

    /// Confines it and its descendants.
    ///
    /// A server that cannot enforce all of it refuses the start.
    ///
    /// See [`Sandbox::read_only`] for an example.
    pub fn sandbox(mut self, sandbox: Sandbox) -> Self {
        self.sandbox = Some(sandbox);
        self
    }

    /// Sets how much of its output the server retains.
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let client = remex_client::Client::connect(remex::Local::here()?.target()).await?;
    /// use remex_client::{Command, process::Retain};
    ///
    /// let retain = Retain::default().bytes(16 << 20);
    /// let process = Command::new("seq").arg("1000").retain(retain).start(&client).await?;
    /// assert!(process.wait().await?.success());
    /// # Ok(()) }
    /// ```
    pub fn retain(mut self, retain: Retain) -> Self {
        self.retain = retain;
        self
    }

    /// Adds a label, which process listings show.
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let client = remex_client::Client::connect(remex::Local::here()?.target()).await?;
    /// use remex_client::Command;
    /// use remex_proto::process::List;
    ///
    /// let _process = Command::new("sleep").arg("1000").label("job", "nightly").start(&client).await?;
    /// let listing = client.call(List::default()).await?;
    /// assert_eq!(listing.processes[0].labels["job"], "nightly");
    /// # Ok(()) }
    /// ```
    pub fn label(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.labels.insert(name.into(), value.into());
        self
    }

    /// Sets the id of the process, which must be unique in its session; generated by default.
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let client = remex_client::Client::connect(remex::Local::here()?.target()).await?;
    /// use remex_client::Command;
    ///
    /// let process = Command::new("true").id("build").start(&client).await?;
    /// assert_eq!(process.id(), "build");
    /// assert!(Command::new("true").id("build").start(&client).await.is_err());
    /// # Ok(()) }
    /// ```
    pub fn id(mut self, id: impl Into<String>) -> Self {
        self.id = Some(id.into());
        self
    }

    /// Sets what happens when its last handle is dropped.
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let client = remex_client::Client::connect(remex::Local::here()?.target()).await?;
    /// use remex_client::{Command, process::OnDrop};
    ///
    /// // Even if this function fails or panics, the process does not keep running.
    /// let process = Command::new("sleep").arg("1000").on_drop(OnDrop::Terminate).start(&client).await?;
    /// assert!(process.pid().is_some());
    /// # Ok(()) }
    /// ```
    pub fn on_drop(mut self, on_drop: OnDrop) -> Self {
        self.on_drop = on_drop;
        self
    }

    /// Returns the command line, quoted for a shell.
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let client = remex_client::Client::connect(remex::Local::here()?.target()).await?;
    /// use remex_client::Command;
    ///
    /// assert_eq!(Command::new("grep").args(["-r", "two words"]).line(), "grep -r 'two words'");
    /// # Ok(()) }
    /// ```
    pub fn line(&self) -> String {
        self.argv
            .iter()
            .map(|word| shell_word(&word.to_string_lossy()).into_owned())
            .collect::<Vec<_>>()
            .join(" ")
    }

    /// Sets the retention options that the command does not set itself.
    #[cfg(feature = "agent")]
    pub(crate) fn retain_otherwise(mut self, otherwise: Retain) -> Self {
        self.retain.bytes = self.retain.bytes.or(otherwise.bytes);
        self.retain.after_close = self.retain.after_close.or(otherwise.after_close);
        self
    }

    /// Sets how long descendants may keep its output open, unless the command sets it itself.
    #[cfg(feature = "agent")]
    pub(crate) fn linger_otherwise(mut self, otherwise: Option<Duration>) -> Self {
        self.linger = self.linger.or(otherwise);
        self
    }

    /// Returns whether it runs on a terminal.
    #[cfg(feature = "agent")]
    pub(crate) fn has_terminal(&self) -> bool {
        self.terminal.is_some()
    }
}

/// Shows the command line and the working directory; hides the values of environment variables.
impl fmt::Debug for Command {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Command")
            .field("argv", &self.argv)
            .field("cwd", &self.cwd)
            .field("user", &self.user)
            .field("env", &self.env.keys().collect::<Vec<_>>())
            .finish_non_exhaustive()
    }
}
