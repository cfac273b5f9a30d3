//! Builds a command.

mod start;

use std::{collections::BTreeMap, ffi::OsString, fmt, num::NonZeroU16, time::Duration};

use remex_proto::{environment::Inherit, process::ResourceLimits};

use super::{Overflow, Sandbox};
use crate::{Client, shell_word::quoted};

/// A command to start on the remote host.
///
/// By default it runs in the working directory of the server, with the environment of the server except variables that
/// look like secrets, with pipes for its output and an empty standard input. Dropping it before the start does nothing.
///
/// ```
/// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let client = remex_client::Client::connect(remex::Local::here()?.target()).await?;
/// use std::time::Duration;
///
/// let command = client.command("env").env("GREETING", "hello").cwd("/").timeout(Duration::from_secs(60));
/// let output = command.output().await?;
/// assert!(String::from_utf8(output.stdout)?.lines().any(|line| line == "GREETING=hello"));
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Command {
    client: Client,
    id: Option<String>,
    argv: Vec<OsString>,
    arg0: Option<String>,
    cwd: Option<OsString>,
    env: BTreeMap<String, String>,
    inherit: Inherit,
    secrets: Secrets,
    terminal: Option<(NonZeroU16, NonZeroU16)>,
    input: Input,
    timeout: Option<Duration>,
    idle_timeout: Option<Duration>,
    linger: Option<Duration>,
    limits: ResourceLimits,
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
/// use remex_client::process::Input;
///
/// let nothing = client.command("cat").input(Input::None).start().await?;
/// assert_eq!(nothing.communicate(b"unread").await?.stdout, b"");
/// let piped = client.command("cat").input(Input::Piped).start().await?;
/// assert_eq!(piped.communicate(b"read").await?.stdout, b"read");
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Input {
    /// Empty: end of file at once.
    #[default]
    None,
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
/// use remex_client::process::OnDrop;
///
/// let process = client.command("sleep").arg("1000").id("nap").on_drop(OnDrop::Terminate).start().await?;
/// drop(process);
/// assert_eq!(client.process("nap").await?.wait().await?.code, 137);
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OnDrop {
    /// It keeps running until it exits or its session ends.
    #[default]
    Leave,
    /// It is killed with all its descendants.
    Terminate,
}

/// How much output of a process the server retains.
///
/// ```
/// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let client = remex_client::Client::connect(remex::Local::here()?.target()).await?;
/// use std::time::Duration;
/// use remex_client::process::{Overflow, Retain};
///
/// // Keeps the last MiB for ten minutes after the exit, and never blocks the process.
/// let retain = Retain {
///     bytes: Some(1 << 20),
///     after_close: Some(Duration::from_secs(600)),
///     overflow: Overflow::Evict,
/// };
/// let process = client.shell("seq 1000000").retain(retain).start().await?;
/// assert!(process.wait().await?.is_success());
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Retain {
    /// How many bytes; 1 MiB by default, limited by the server.
    pub bytes: Option<u64>,
    /// How long after the end of the process; 30 s by default.
    pub after_close: Option<Duration>,
    /// What happens when the buffer is full; by default backpressure blocks the process.
    pub overflow: Overflow,
}

impl Client {
    /// Creates a command; a `program` without a slash is looked up in the `PATH` of its environment.
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let client = remex_client::Client::connect(remex::Local::here()?.target()).await?;
    /// let output = client.command("echo").arg("hello").output().await?;
    /// assert_eq!(output.stdout, b"hello\n");
    /// # Ok(()) }
    /// ```
    pub fn command(&self, program: impl Into<OsString>) -> Command {
        Command {
            client: self.clone(),
            id: None,
            argv: vec![program.into()],
            arg0: None,
            cwd: None,
            env: BTreeMap::new(),
            inherit: Inherit::All,
            secrets: Secrets::Withheld,
            terminal: None,
            input: Input::None,
            timeout: None,
            idle_timeout: None,
            linger: None,
            limits: ResourceLimits::default(),
            sandbox: None,
            retain: Retain::default(),
            labels: BTreeMap::new(),
            on_drop: OnDrop::Leave,
        }
    }

    /// Creates a command that runs a command line with `sh -c`.
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let client = remex_client::Client::connect(remex::Local::here()?.target()).await?;
    /// let output = client.shell("printf '%s' a b | wc -c").output().await?;
    /// assert_eq!(String::from_utf8(output.stdout)?.trim(), "2");
    /// # Ok(()) }
    /// ```
    pub fn shell(&self, line: impl Into<OsString>) -> Command {
        self.command("/bin/sh").arg("-c").arg(line)
    }
}

impl Command {
    /// Adds an argument; it may be non-UTF-8, except on a server of the base dialect.
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let client = remex_client::Client::connect(remex::Local::here()?.target()).await?;
    /// let output = client.command("printf").arg("%s").arg("a b").output().await?;
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
    /// let output = client.command("echo").args(["a", "b"]).output().await?;
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
    /// let output = client.command("/bin/sh").arg0("me").args(["-c", "echo $0"]).output().await?;
    /// assert_eq!(output.stdout, b"me\n");
    /// # Ok(()) }
    /// ```
    pub fn arg0(mut self, arg0: impl Into<String>) -> Self {
        self.arg0 = Some(arg0.into());
        self
    }

    /// Sets the working directory: an absolute path, or a `file:` URI.
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let client = remex_client::Client::connect(remex::Local::here()?.target()).await?;
    /// assert_eq!(client.command("pwd").cwd("/").output().await?.stdout, b"/\n");
    /// # Ok(()) }
    /// ```
    pub fn cwd(mut self, directory: impl Into<OsString>) -> Self {
        self.cwd = Some(directory.into());
        self
    }

    /// Sets an environment variable.
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let client = remex_client::Client::connect(remex::Local::here()?.target()).await?;
    /// let output = client.shell("echo $GREETING").env("GREETING", "hello").output().await?;
    /// assert_eq!(output.stdout, b"hello\n");
    /// # Ok(()) }
    /// ```
    pub fn env(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.env.insert(name.into(), value.into());
        self
    }

    /// Sets which variables of the server's environment it inherits.
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let client = remex_client::Client::connect(remex::Local::here()?.target()).await?;
    /// use remex_client::process::Inherit;
    ///
    /// let output = client.command("/usr/bin/env").inherit(Inherit::None).env("ONLY", "this").output().await?;
    /// assert_eq!(output.stdout, b"ONLY=this\n");
    /// # Ok(()) }
    /// ```
    pub fn inherit(mut self, inherit: Inherit) -> Self {
        self.inherit = inherit;
        self
    }

    /// Sets whether it inherits variables that look like secrets.
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use remex_client::{Client, process::Secrets};
    ///
    /// let mut config = remex::config_from_env();
    /// config.host_env.push(("API_TOKEN".into(), "s3cret".into()));
    /// let client = Client::connect(remex::Local::new(config)?.target()).await?;
    /// let command = client.shell("echo ${API_TOKEN-none}");
    /// assert_eq!(command.clone().output().await?.stdout, b"none\n");
    /// assert_eq!(command.secrets(Secrets::Inherited).output().await?.stdout, b"s3cret\n");
    /// # Ok(()) }
    /// ```
    pub fn secrets(mut self, secrets: Secrets) -> Self {
        self.secrets = secrets;
        self
    }

    /// Runs it on a terminal of this size instead of pipes.
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let client = remex_client::Client::connect(remex::Local::here()?.target()).await?;
    /// use std::num::NonZeroU16;
    ///
    /// let (rows, cols) = (NonZeroU16::new(24).unwrap(), NonZeroU16::new(80).unwrap());
    /// let output = client.command("stty").arg("size").terminal(rows, cols).output().await?;
    /// assert_eq!(output.terminal, b"24 80\r\n");
    /// # Ok(()) }
    /// ```
    pub fn terminal(mut self, rows: NonZeroU16, cols: NonZeroU16) -> Self {
        self.terminal = Some((rows, cols));
        self
    }

    /// Sets its standard input; a terminal always accepts input.
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let client = remex_client::Client::connect(remex::Local::here()?.target()).await?;
    /// use remex_client::process::Input;
    ///
    /// let process = client.command("wc").arg("-c").input(Input::Piped).start().await?;
    /// assert_eq!(process.communicate(b"hello").await?.stdout, b"5\n");
    /// # Ok(()) }
    /// ```
    pub fn input(mut self, input: Input) -> Self {
        self.input = input;
        self
    }

    /// Kills it after this run time.
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let client = remex_client::Client::connect(remex::Local::here()?.target()).await?;
    /// use std::time::Duration;
    /// use remex_client::process::ExitCause;
    ///
    /// let output = client.command("sleep").arg("1000").timeout(Duration::from_millis(50)).output().await?;
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
    /// use remex_client::process::ExitCause;
    ///
    /// let command = client.shell("echo hello; sleep 1000").idle_timeout(Duration::from_millis(50));
    /// assert_eq!(command.output().await?.exit.cause, Some(ExitCause::IdleTimeout));
    /// # Ok(()) }
    /// ```
    pub fn idle_timeout(mut self, limit: Duration) -> Self {
        self.idle_timeout = Some(limit);
        self
    }

    /// Sets how long after its exit descendants may keep its output open.
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let client = remex_client::Client::connect(remex::Local::here()?.target()).await?;
    /// use std::time::Duration;
    ///
    /// // `sleep` keeps the output open after the shell has exited, but the process is closed soon.
    /// let command = client.shell("echo done; sleep 1000 &").linger(Duration::from_millis(50));
    /// assert_eq!(command.output().await?.stdout, b"done\n");
    /// # Ok(()) }
    /// ```
    pub fn linger(mut self, limit: Duration) -> Self {
        self.linger = Some(limit);
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
    /// use remex_client::process::ResourceLimits;
    ///
    /// let limits = ResourceLimits { open_files: NonZeroU64::new(32), ..ResourceLimits::default() };
    /// let output = client.shell("ulimit -n").limits(limits).output().await?;
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
    /// use remex_client::process::Retain;
    ///
    /// let retain = Retain { bytes: Some(16 << 20), ..Retain::default() };
    /// let process = client.command("seq").arg("1000").retain(retain).start().await?;
    /// assert!(process.wait().await?.is_success());
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
    /// use remex_proto::process::List;
    ///
    /// let _process = client.command("sleep").arg("1000").label("job", "nightly").start().await?;
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
    /// let process = client.command("true").id("build").start().await?;
    /// assert_eq!(process.id(), "build");
    /// assert!(client.command("true").id("build").start().await.is_err());
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
    /// use remex_client::process::OnDrop;
    ///
    /// // Even if this function fails or panics, the process does not keep running.
    /// let process = client.command("sleep").arg("1000").on_drop(OnDrop::Terminate).start().await?;
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
    /// assert_eq!(client.command("grep").args(["-r", "two words"]).line(), "grep -r 'two words'");
    /// # Ok(()) }
    /// ```
    pub fn line(&self) -> String {
        self.argv
            .iter()
            .map(|word| quoted(&word.to_string_lossy()).into_owned())
            .collect::<Vec<_>>()
            .join(" ")
    }

    /// Sets the retention options that the command does not set itself.
    pub(crate) fn retain_otherwise(mut self, otherwise: Retain) -> Self {
        self.retain.bytes = self.retain.bytes.or(otherwise.bytes);
        self.retain.after_close = self.retain.after_close.or(otherwise.after_close);
        self
    }

    /// Returns whether it runs on a terminal.
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
            .field("env", &self.env.keys().collect::<Vec<_>>())
            .finish_non_exhaustive()
    }
}
