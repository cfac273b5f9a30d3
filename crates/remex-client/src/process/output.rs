//! Collects the complete output of a process.

use std::io::ErrorKind;

use tokio::io::AsyncWriteExt as _;

use super::{Event, Exit, Process, Stream};
use crate::Error;

/// The complete output of a process, and its exit status.
///
/// ```
/// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let client = remex_client::Client::connect(remex::Local::here()?.target()).await?;
/// use remex_client::Command;
///
/// let output = Command::shell("echo out; exit 3").output(&client).await?;
/// assert_eq!((output.exit.code, output.stdout), (3, b"out\n".to_vec()));
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Output {
    /// How it ended.
    pub exit: Exit,
    /// Its standard output.
    pub stdout: Vec<u8>,
    /// Its standard error.
    pub stderr: Vec<u8>,
    /// Its terminal output.
    pub terminal: Vec<u8>,
    /// Its output on streams that this version does not know, in the order of arrival.
    pub other: Vec<u8>,
}

impl Process {
    /// Writes `input`, closes the standard input, reads all output and waits for the exit, all concurrently.
    ///
    /// It is not an error if the process does not read all its input.
    ///
    /// # Errors
    ///
    /// [`Error::Gap`] if output was evicted before it was read, and [`Error::Lost`].
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let client = remex_client::Client::connect(remex::Local::here()?.target()).await?;
    /// use remex_client::{Command, process::Input};
    ///
    /// let process = Command::new("tr").args(["a-z", "A-Z"]).input(Input::Piped).start(&client).await?;
    /// assert_eq!(process.communicate(b"hello").await?.stdout, b"HELLO");
    /// # Ok(()) }
    /// ```
    pub async fn communicate(&self, input: &[u8]) -> Result<Output, Error> {
        let stdin = self.stdin();
        let write = async {
            let Some(mut stdin) = stdin else { return Ok(()) };
            let written = stdin.write_all(input).await;
            // A server of the base dialect cannot close the input.
            let _ = stdin.shutdown().await;
            // A process may exit without reading; its exit status is more informative than the broken pipe.
            written.or_else(|error| match error.kind() {
                ErrorKind::BrokenPipe => Ok(()),
                _ => Err(Error::local(format!("write to process `{}`", self.id()), error)),
            })
        };
        let (output, written) = tokio::join!(self.collect(), write);
        let output = output?;
        // A process that has exited or was removed accepts no input either.
        if output.exit.is_success() { written.map(|()| output) } else { Ok(output) }
    }

    /// Closes the standard input, reads all output and waits for the exit.
    ///
    /// If [`Process::stdin`] was taken, that writer keeps the input open until it is dropped.
    ///
    /// # Errors
    ///
    /// Those of [`Process::communicate`].
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let client = remex_client::Client::connect(remex::Local::here()?.target()).await?;
    /// use remex_client::Command;
    ///
    /// let process = Command::shell("echo out; echo err >&2").start(&client).await?;
    /// let output = process.wait_with_output().await?;
    /// assert_eq!((&output.stdout[..], &output.stderr[..]), (&b"out\n"[..], &b"err\n"[..]));
    /// # Ok(()) }
    /// ```
    pub async fn wait_with_output(&self) -> Result<Output, Error> {
        self.communicate(&[]).await
    }

    async fn collect(&self) -> Result<Output, Error> {
        let mut events = self.events();
        let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
        let (mut terminal, mut other) = (Vec::new(), Vec::new());
        let mut exit = None;
        while let Some(event) = events.next().await? {
            match event {
                Event::Output(chunk) => match chunk.stream {
                    Stream::Stdout => stdout.extend_from_slice(&chunk.bytes),
                    Stream::Stderr => stderr.extend_from_slice(&chunk.bytes),
                    Stream::Pty => terminal.extend_from_slice(&chunk.bytes),
                    _ => other.extend_from_slice(&chunk.bytes),
                },
                Event::Exited { exit: how, .. } => exit = Some(how),
                Event::Gap(gap) => return Err(Error::Gap { bytes: gap.bytes }),
                Event::Closed(_) => break,
            }
        }
        let exit = exit.ok_or_else(|| Error::Protocol {
            what: format!("process `{}` is closed but has not exited", self.id()),
        })?;
        Ok(Output { exit, stdout, stderr, terminal, other })
    }
}
