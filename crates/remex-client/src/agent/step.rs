//! What an agent is asked for, and what it answers.
//!
//! Start at [`Step`].

use std::{str::FromStr, time::Duration};

use super::{Handle, TruncatedText};
use crate::{Error, process::Exit};

impl FromStr for Handle {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let wrong =
            |_| Error::Usage(format!("`{text}` is no process; give the number that its start returned"));
        text.trim().parse().map(Self).map_err(wrong)
    }
}

/// What came of one call.
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
    /// What it has said since the last step, cut to the budget.
    pub output: TruncatedText,
    /// How it stands.
    pub progress: Progress,
    /// How much of the input was taken: it reaches the process in order and once, unless that ends first.
    ///
    /// Less than was given when the process did not read in time, or ended; the rest was not written.
    pub accepted_bytes: usize,
    /// How long the step took.
    pub waited: Duration,
}

/// How a process stands.
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
    /// It has not ended, or something that it has started still holds its output open.
    Running,
    /// It has ended, and everything it said has been seen.
    Ended(Exit),
    /// Nobody knows: the session is lost, and the process with it.
    Lost(Error),
}

/// What a process is given.
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
    /// These bytes, and then the end of the input. While not all are taken, the input stays open.
    BytesAndEnd(&'a [u8]),
}

/// One process in the list.
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
    /// How it stands.
    pub progress: Progress,
    /// How long it has not been used: no step, no signal.
    pub idle_for: Duration,
    /// How much output the next step will be about.
    pub unseen_bytes: u64,
}

/// All output of a process that the server still has.
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
    /// The output from the beginning, cut to the budget; what is gone counts as omitted.
    pub output: TruncatedText,
    /// How much of it nobody has any more; a smaller budget is not the reason.
    pub evicted_bytes: u64,
}
