//! Collects the complete output of a process.

use std::io::ErrorKind;

use tokio::io::AsyncWriteExt as _;

use super::{Event, Exit, Process, Stdin, Stream};
use crate::Error;

/// The end-of-file key of a terminal: it hands over the line so far, and an empty one is the end of the file.
const END_OF_FILE_KEY: u8 = 0x04;

/// The longest line that a terminal keeps; it drops the rest.
const TERMINAL_LINE_BYTES: usize = 4095;

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
    /// On a terminal the input is typed, followed by the end-of-file key (Ctrl-D), which also divides lines that are too
    /// long for a terminal. It is not an error if the process does not read all its input.
    ///
    /// # Errors
    ///
    /// [`Error::Gap`] if output was evicted before it was read, and [`Error::Lost`].
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let client = remex_client::Client::connect(remex::Local::here()?.target()).await?;
    /// use remex_client::{Command, process::Stdio};
    ///
    /// let process = Command::new("tr").args(["a-z", "A-Z"]).stdin(Stdio::Piped).start(&client).await?;
    /// assert_eq!(process.communicate(b"hello").await?.stdout, b"HELLO");
    /// # Ok(()) }
    /// ```
    pub async fn communicate(&self, input: &[u8]) -> Result<Output, Error> {
        let stdin = self.stdin();
        let write = async {
            let Some(mut stdin) = stdin else { return Ok(()) };
            let written = if self.has_terminal().await {
                let written = write_all_and_flush(&mut stdin, &typed(input)).await;
                stdin.forget();
                written
            } else {
                let written = stdin.write_all(input).await;
                // A server of the base dialect cannot close the input.
                let _ = stdin.shutdown().await;
                written
            };
            // A process may exit without reading; its exit status is more informative than the broken pipe.
            written.or_else(|error| match error.kind() {
                ErrorKind::BrokenPipe => Ok(()),
                _ => Err(Error::local(format!("write to process `{}`", self.id()), error)),
            })
        };
        let (output, written) = tokio::join!(self.collect(), write);
        let output = output?;
        // A process that has exited or was removed accepts no input either.
        if output.exit.success() { written.map(|()| output) } else { Ok(output) }
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

    /// Returns whether it runs on a terminal; asks the server about a process that another client started.
    async fn has_terminal(&self) -> bool {
        match self.handle.has_terminal {
            Some(has_terminal) => has_terminal,
            // A server of the base dialect does not report it.
            None => matches!(self.reference().info().await, Ok(Some(info)) if info.has_terminal),
        }
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

async fn write_all_and_flush(stdin: &mut Stdin, bytes: &[u8]) -> std::io::Result<()> {
    stdin.write_all(bytes).await?;
    stdin.flush().await
}

/// Returns the keys that enter `input` and end of file on a terminal.
fn typed(input: &[u8]) -> Vec<u8> {
    let ends_line = |key: &u8| matches!(*key, b'\n' | b'\r' | END_OF_FILE_KEY);
    let mut keys = Vec::with_capacity(input.len() + 2);
    for line in input.split_inclusive(ends_line) {
        for (index, part) in line.chunks(TERMINAL_LINE_BYTES).enumerate() {
            if index > 0 {
                keys.push(END_OF_FILE_KEY);
            }
            keys.extend_from_slice(part);
        }
    }
    if keys.last().is_some_and(|last| !ends_line(last)) {
        keys.push(END_OF_FILE_KEY);
    }
    keys.push(END_OF_FILE_KEY);
    keys
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn end_of_file_is_sent_at_the_beginning_of_a_line() {
        assert_eq!(typed(b""), b"\x04");
        assert_eq!(typed(b"a\n"), b"a\n\x04");
        assert_eq!(typed(b"a"), b"a\x04\x04");
    }

    #[test]
    fn a_line_too_long_for_a_terminal_is_sent_in_parts() {
        let long = [b'x'; 4096];
        let expected = [&long[..4095], b"\x04", b"x", b"\x04\x04"].concat();
        assert_eq!(typed(&long), expected);
        assert_eq!(typed(&[b'\r'; 5000]), [&[b'\r'; 5000][..], b"\x04"].concat());
    }
}
