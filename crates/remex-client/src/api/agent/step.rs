//! The input and the results of an agent's calls.
//!
//! Start at [`Step`].

use std::{str::FromStr, time::Duration};

use serde::{Deserialize, Serialize};

use super::{Handle, TruncatedText, json};
use crate::{Error, api::process::Exit, base::error::usage};

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
/// It is written as JSON like this, so that it can be logged or handed to a model; members are added, but not changed:
///
/// ```
/// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let client = remex_client::Client::connect(remex::Local::here()?.target()).await?;
/// # use remex_client::agent::*;
/// # let agent = Agent::new(Limits::default());
/// use remex_client::Command;
/// use serde_json::json;
///
/// let step = agent.exec_command(&client, &Command::shell("echo hello; exit 3"), Window::default()).await?;
/// let mut json = serde_json::to_value(&step)?;
/// json["waitedMs"] = json!(12);
/// json["progress"]["usage"] = json!({"userMs": 1, "systemMs": 2, "maxRssBytes": 4096, "wallMs": 7});
/// assert_eq!(json, json!({
///     "handle": 1,
///     "output": {"text": "hello\n", "omittedBytes": 0, "totalBytes": 6, "count": "exact"},
///     "progress": {
///         "state": "ended",
///         "code": 3,
///         "cause": "exit",
///         "usage": {"userMs": 1, "systemMs": 2, "maxRssBytes": 4096, "wallMs": 7},
///     },
///     "acceptedBytes": 0,
///     "waitedMs": 12,
/// }));
/// # Ok(()) }
/// ```
///
/// ```
/// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let client = remex_client::Client::connect(remex::Local::here()?.target()).await?;
/// # use remex_client::agent::*;
/// # use remex_client::process::Stdio;
/// # let agent = Agent::new(Limits::default());
/// use remex_client::Command;
///
/// let step = agent.exec_command(&client, &Command::new("echo").arg("hello"), Window::default()).await?;
/// assert_eq!((step.output.text.as_str(), step.output.omitted_bytes), ("hello\n", 0));
/// assert!(matches!(step.progress, Progress::Ended(exit) if exit.success()));
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
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
    /// How long the step took; `waitedMs` in JSON.
    #[serde(rename = "waitedMs", serialize_with = "json::millis")]
    pub waited: Duration,
}

/// Whether a process is running.
///
/// A step waits for the end, not only for the exit, because output may follow: it returns with [`Progress::Exited`] if its
/// time is over first.
///
/// As JSON, `state` is `running`, `exited`, `ended` or `lost`, beside the members of the [`Exit`], or the `message` and
/// `hint` of the [`Error`].
///
/// ```
/// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let client = remex_client::Client::connect(remex::Local::here()?.target()).await?;
/// # use remex_client::agent::*;
/// # use remex_client::process::Stdio;
/// # let agent = Agent::new(Limits::default());
/// use remex_client::Command;
///
/// let step = agent.exec_command(&client, &Command::shell("exit 3"), Window::default()).await?;
/// assert!(matches!(step.progress, Progress::Ended(exit) if exit.code == 3));
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Progress {
    /// It has not exited.
    Running,
    /// It has exited, but a descendant in the background still holds its output open, and may print more.
    ///
    /// [`Progress::Ended`] follows when that output ends, or after [`Limits::linger`](super::Limits::linger).
    Exited(Exit),
    /// It has exited, and all its output was received.
    Ended(Exit),
    /// Unknown: the session is lost, and the process with it.
    Lost(Error),
}

impl Progress {
    /// Returns how the process exited, once it has.
    ///
    /// ```
    /// use remex_client::{agent::Progress, process::Exit};
    ///
    /// assert_eq!(Progress::Running.exit(), None);
    /// assert_eq!(Progress::Ended(Exit::new(3)).exit().map(|exit| exit.code), Some(3));
    /// ```
    pub fn exit(&self) -> Option<&Exit> {
        match self {
            Self::Exited(exit) | Self::Ended(exit) => Some(exit),
            Self::Running | Self::Lost(_) => None,
        }
    }

    /// Returns whether neither output nor another state follows.
    ///
    /// ```
    /// use remex_client::{agent::Progress, process::Exit};
    ///
    /// assert!(!Progress::Running.is_final() && !Progress::Exited(Exit::new(0)).is_final());
    /// assert!(Progress::Ended(Exit::new(0)).is_final());
    /// ```
    pub fn is_final(&self) -> bool {
        matches!(self, Self::Ended(_) | Self::Lost(_))
    }

    /// Returns the progress of a process all of whose output was received.
    pub(super) fn closed(exit: Option<Exit>) -> Self {
        let no_exit = || Error::Protocol { what: "a process is closed but has not exited".to_owned() };
        exit.map_or_else(|| Self::Lost(no_exit()), Self::Ended)
    }
}

/// Input for a process.
///
/// ```
/// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let client = remex_client::Client::connect(remex::Local::here()?.target()).await?;
/// # use remex_client::agent::*;
/// # use remex_client::process::Stdio;
/// # let agent = Agent::new(Limits::default());
/// # let briefly = Window::default().yield_after(std::time::Duration::ZERO);
/// use remex_client::Command;
///
/// let step = agent.exec_command(&client, &Command::new("cat").stdin(Stdio::Piped), briefly).await?;
/// let step = agent.write_stdin(step.handle, Write::Bytes(b"one\n"), briefly).await?;
/// let step = agent.write_stdin(step.handle, Write::BytesAndEnd(b"two\n"), Window::default()).await?;
/// assert!(step.output.text.ends_with("two\n") && step.progress != Progress::Running);
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Write<'a> {
    /// Nothing: the step only waits.
    Nothing,
    /// These bytes.
    Bytes(&'a [u8]),
    /// These bytes, then end of file. The input stays open until all bytes are accepted.
    BytesAndEnd(&'a [u8]),
}

impl<'a> Write<'a> {
    pub(super) fn bytes(self) -> &'a [u8] {
        match self {
            Self::Nothing => &[],
            Self::Bytes(bytes) | Self::BytesAndEnd(bytes) => bytes,
        }
    }
}

/// A process in [`Agent::list`](super::Agent::list).
///
/// ```
/// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let client = remex_client::Client::connect(remex::Local::here()?.target()).await?;
/// # use remex_client::agent::*;
/// # use remex_client::process::Stdio;
/// # let agent = Agent::new(Limits::default());
/// # let briefly = Window::default().yield_after(std::time::Duration::ZERO);
/// use remex_client::Command;
///
/// agent.exec_command(&client, &Command::new("sleep").arg("1000"), briefly).await?;
/// for ListedProcess { handle, command, progress, .. } in agent.list() {
///     assert_eq!((handle.to_string().as_str(), command.as_str()), ("1", "sleep 1000"));
///     assert_eq!(progress, Progress::Running);
/// }
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct ListedProcess {
    /// The process.
    pub handle: Handle,
    /// Its command line.
    pub command: String,
    /// Whether it is running.
    pub progress: Progress,
    /// The time since the last step or signal; `idleForMs` in JSON.
    #[serde(rename = "idleForMs", serialize_with = "json::millis")]
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
/// # use remex_client::process::Stdio;
/// # let agent = Agent::new(Limits::default());
/// use remex_client::Command;
///
/// let step = agent.exec_command(&client, &Command::new("echo").arg("hello"), Window::default()).await?;
/// let RetainedOutput { output, evicted_bytes, .. } = agent.output(step.handle, 1 << 20).await?;
/// assert_eq!((output.text.as_str(), evicted_bytes), ("hello\n", 0));
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct RetainedOutput {
    /// The output from its beginning, truncated to the budget; evicted output counts as omitted.
    pub output: TruncatedText,
    /// How much output the server has evicted; not what the budget omits.
    pub evicted_bytes: u64,
}
