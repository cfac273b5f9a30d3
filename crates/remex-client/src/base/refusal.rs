//! Why an agent refuses a call, and how it names its processes.
//!
//! Start at [`Refusal`]. They stand below [`crate::Error`], which carries a refusal; [`crate::api::agent`] exports them.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Identifies a process of an agent by a small number, which a model can repeat reliably; as JSON, it is that number.
///
/// ```
/// use remex_client::agent::Handle;
///
/// let handle: Handle = "7".parse()?;
/// assert_eq!(handle.to_string(), "7");
/// assert!("the first".parse::<Handle>().is_err());
/// # Ok::<(), remex_client::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Handle(pub(crate) u32);

impl fmt::Display for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Why an agent refused a call.
///
/// ```
/// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let client = remex_client::Client::connect(remex::Local::here()?.target()).await?;
/// # use remex_client::agent::*;
/// # use remex_client::process::Stdio;
/// # let agent = Agent::new(Limits::default());
/// use remex_client::{Command, Error};
///
/// let step = agent.exec_command(&client, &Command::new("true"), Window::default()).await?;
/// let error = agent.write_stdin(step.handle, Write::Bytes(b"too late"), Window::default()).await;
/// assert_eq!(error, Err(Error::Agent(Refusal::Ended { handle: step.handle })));
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// The process does not exist, or it finished and was removed to make room.
    Unknown {
        /// The requested handle.
        handle: Handle,
        /// The existing handles.
        open: Vec<Handle>,
    },
    /// Too many processes are running.
    Full {
        /// How many are running.
        open: usize,
    },
    /// The process has ended; its output is still available.
    Ended {
        /// The process.
        handle: Handle,
    },
    /// The process was started without input.
    NoInput {
        /// The process.
        handle: Handle,
    },
    /// The input was already closed.
    InputEnded {
        /// The process.
        handle: Handle,
    },
}

impl Refusal {
    /// Returns what was refused and why, without the hint.
    ///
    /// ```
    /// use remex_client::agent::Refusal;
    ///
    /// let refusal = Refusal::Full { open: 64 };
    /// assert_eq!(refusal.message(), "64 processes are running, which is the maximum");
    /// assert_eq!(refusal.hint(), Some("terminate one, or wait until one ends"));
    /// ```
    pub fn message(&self) -> String {
        match self {
            Self::Unknown { handle, open } => {
                format!("process {handle} does not exist, or no longer; {}", listed(open))
            }
            Self::Full { open } => format!("{open} processes are running, which is the maximum"),
            Self::Ended { handle } => format!("process {handle} has already ended"),
            Self::NoInput { handle } => {
                format!("process {handle} accepts no input, and nothing was written")
            }
            Self::InputEnded { handle } => {
                format!("the input of process {handle} is already closed, and nothing was written")
            }
        }
    }

    /// Returns what to do about it, if anything can be done.
    ///
    /// See [`Refusal::message`] for an example.
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            Self::Unknown { .. } => None,
            Self::Full { .. } => Some("terminate one, or wait until one ends"),
            Self::Ended { .. } => Some("write nothing to it to get the rest of its output"),
            Self::NoInput { .. } => Some("start it with piped input or a terminal"),
            Self::InputEnded { .. } => Some("start it again to send more"),
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message())?;
        self.hint().map_or(Ok(()), |hint| write!(f, "; {hint}"))
    }
}

fn listed(open: &[Handle]) -> String {
    match open {
        [] => "no process is open".to_owned(),
        many => {
            let many: Vec<_> = many.iter().map(Handle::to_string).collect();
            format!("open: {}", many.join(", "))
        }
    }
}
