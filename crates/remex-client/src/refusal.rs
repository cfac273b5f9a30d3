//! Why an agent refuses a call, and how it names its processes.
//!
//! Start at [`Refusal`]. They stand below [`crate::Error`], which carries a refusal; [`crate::agent`] exports them.

use std::fmt;

/// Names one process of one agent: a small number, which a model can be shown and can say.
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

/// Why an agent does not do what it was asked for.
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
    /// There is no such process, or it has finished and made room for others.
    #[error("there is no process {handle}, or no longer; {}", listed(open))]
    Unknown {
        /// As asked for.
        handle: Handle,
        /// Those that there are.
        open: Vec<Handle>,
    },
    /// There is no room for another process, and none that could make room has finished.
    #[error(
        "{open} processes run, and no more may; terminate one that is not needed, or wait until one ends"
    )]
    Full {
        /// How many run.
        open: usize,
    },
    /// The process has ended; what it said is still there.
    #[error(
        "process {handle} has ended, and nothing was done; write nothing to it to get the rest of its output"
    )]
    Ended {
        /// The process.
        handle: Handle,
    },
    /// The process was started without input.
    #[error(
        "process {handle} takes no input, and nothing was written; start it with piped input or a terminal"
    )]
    NoInput {
        /// The process.
        handle: Handle,
    },
    /// The end of the input was given before.
    #[error(
        "the input of process {handle} was ended before, and nothing was written; start it again to give it more"
    )]
    InputEnded {
        /// The process.
        handle: Handle,
    },
}

fn listed(open: &[Handle]) -> String {
    match open {
        [] => "none is open".to_owned(),
        [one] => format!("{one} is open"),
        many => {
            let many: Vec<_> = many.iter().map(Handle::to_string).collect();
            format!("open are {}", many.join(", "))
        }
    }
}
