//! Why an agent refuses a call, and how it names its processes.
//!
//! Start at [`Refusal`]. They stand below [`crate::Error`], which carries a refusal; [`crate::agent`] exports them.

use std::fmt;

/// Identifies a process of an agent by a small number, which a model can repeat reliably.
///
/// ```
/// use remex_client::agent::Handle;
///
/// let handle: Handle = "7".parse()?;
/// assert_eq!(handle.to_string(), "7");
/// assert!("the first".parse::<Handle>().is_err());
/// # Ok::<(), remex_client::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
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
/// # use remex_client::process::Input;
/// # let agent = Agent::new(Limits::default());
/// use remex_client::Error;
///
/// let step = agent.exec_command(client.command("true"), Window::default()).await?;
/// let error = agent.write_stdin(step.handle, Write::Bytes(b"too late"), Window::default()).await;
/// assert_eq!(error, Err(Error::Agent(Refusal::Ended { handle: step.handle })));
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The process does not exist, or it finished and was removed to make room.
    #[error("process {handle} does not exist, or no longer; {}", listed(open))]
    Unknown {
        /// The requested handle.
        handle: Handle,
        /// The existing handles.
        open: Vec<Handle>,
    },
    /// Too many processes are running.
    #[error("{open} processes are running, which is the maximum; terminate one, or wait until one ends")]
    Full {
        /// How many are running.
        open: usize,
    },
    /// The process has ended; its output is still available.
    #[error("process {handle} has already ended; write nothing to it to get the rest of its output")]
    Ended {
        /// The process.
        handle: Handle,
    },
    /// The process was started without input.
    #[error(
        "process {handle} accepts no input, and nothing was written; start it with piped input or a terminal"
    )]
    NoInput {
        /// The process.
        handle: Handle,
    },
    /// The input was already closed.
    #[error(
        "the input of process {handle} is already closed, and nothing was written; start it again to send more"
    )]
    InputEnded {
        /// The process.
        handle: Handle,
    },
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
