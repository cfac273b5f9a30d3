//! The input and the results of an agent's calls.
//!
//! Start at [`Step`].

use std::{str::FromStr, time::Duration};

use super::{Handle, TruncatedText};
use crate::{Error, error::usage, process::Exit};

impl FromStr for Handle {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let invalid = |_| {
            usage(
                format!("`{text}` is not a process handle"),
                "give the number that starting the process returned",
            )
        };
        text.trim().parse().map(Self).map_err(invalid)
    }
}

/// The result of one call.
///
/// ```
/// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let client = remex_client::Client::connect(remex::Local::here()?.target()).await?;
/// # use remex_client::agent::*;
/// # use remex_client::process::Input;
/// # let agent = Agent::new(Limits::default());
/// let step = agent.exec_command(client.command("echo").arg("hello"), Window::default()).await?;
/// assert_eq!((step.output.text.as_str(), step.output.omitted_bytes), ("hello\n", 0));
/// assert!(matches!(step.progress, Progress::Ended(exit) if exit.is_success()));
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    /// The process.
    pub handle: Handle,
    /// Its output since the previous step, truncated to the budget.
    pub output: TruncatedText,
    /// Whether it is running.
    pub progress: Progress,
    /// How many bytes of the input were accepted; they reach the process in order and exactly once, unless it ends first.
    ///
    /// Less than the input if the process did not read in time or ended; the rest was not written.
    pub accepted_bytes: usize,
    /// How long the step took.
    pub waited: Duration,
}

/// Whether a process is running.
///
/// ```
/// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let client = remex_client::Client::connect(remex::Local::here()?.target()).await?;
/// # use remex_client::agent::*;
/// # use remex_client::process::Input;
/// # let agent = Agent::new(Limits::default());
/// let step = agent.exec_command(client.shell("exit 3"), Window::default()).await?;
/// assert!(matches!(step.progress, Progress::Ended(exit) if exit.code == 3));
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Progress {
    /// It has not ended, or a descendant still holds its output open.
    Running,
    /// It has ended, and all its output was received.
    Ended(Exit),
    /// Unknown: the session is lost, and the process with it.
    Lost(Error),
}

/// Input for a process.
///
/// ```
/// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let client = remex_client::Client::connect(remex::Local::here()?.target()).await?;
/// # use remex_client::agent::*;
/// # use remex_client::process::Input;
/// # let agent = Agent::new(Limits::default());
/// # let briefly = Window { yield_after: Some(std::time::Duration::ZERO), ..Window::default() };
///
/// let step = agent.exec_command(client.command("cat").input(Input::Piped), briefly).await?;
/// let step = agent.write_stdin(step.handle, Write::Bytes(b"one\n"), briefly).await?;
/// let step = agent.write_stdin(step.handle, Write::BytesAndEnd(b"two\n"), Window::default()).await?;
/// assert!(step.output.text.ends_with("two\n") && step.progress != Progress::Running);
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Write<'a> {
    /// Nothing: the step only waits.
    Nothing,
    /// These bytes.
    Bytes(&'a [u8]),
    /// These bytes, then end of file. The input stays open until all bytes are accepted.
    BytesAndEnd(&'a [u8]),
}

/// A process in [`Agent::list`](super::Agent::list).
///
/// ```
/// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let client = remex_client::Client::connect(remex::Local::here()?.target()).await?;
/// # use remex_client::agent::*;
/// # use remex_client::process::Input;
/// # let agent = Agent::new(Limits::default());
/// # let briefly = Window { yield_after: Some(std::time::Duration::ZERO), ..Window::default() };
///
/// agent.exec_command(client.command("sleep").arg("1000"), briefly).await?;
/// for ListedProcess { handle, command, progress, .. } in agent.list() {
///     assert_eq!((handle.to_string().as_str(), command.as_str()), ("1", "sleep 1000"));
///     assert_eq!(progress, Progress::Running);
/// }
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListedProcess {
    /// The process.
    pub handle: Handle,
    /// Its command line.
    pub command: String,
    /// Whether it is running.
    pub progress: Progress,
    /// The time since the last step or signal.
    pub idle_for: Duration,
    /// How much output the next step covers.
    pub unseen_bytes: u64,
}

/// The retained output of a process.
///
/// ```
/// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let client = remex_client::Client::connect(remex::Local::here()?.target()).await?;
/// # use remex_client::agent::*;
/// # use remex_client::process::Input;
/// # let agent = Agent::new(Limits::default());
/// let step = agent.exec_command(client.command("echo").arg("hello"), Window::default()).await?;
/// let RetainedOutput { output, evicted_bytes } = agent.output(step.handle, 1 << 20).await?;
/// assert_eq!((output.text.as_str(), evicted_bytes), ("hello\n", 0));
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RetainedOutput {
    /// The output from its beginning, truncated to the budget; evicted output counts as omitted.
    pub output: TruncatedText,
    /// How much output the server has evicted; not what the budget omits.
    pub evicted_bytes: u64,
}
