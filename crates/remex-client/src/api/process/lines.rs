//! The output of a process as lines of text.

use std::{collections::VecDeque, fmt};

use super::{Event, Events, Process, Stream};
use crate::Error;

/// The longest line that is returned in one piece, in bytes.
const MAX_LINE_BYTES: usize = 64 << 10;

/// The output of a process as lines of text, in the order in which they were completed, across all its streams.
///
/// A stalled consumer blocks only its own process; dropping it lifts the backpressure.
///
/// ```
/// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let client = remex_client::Client::connect(remex::Local::here()?.target()).await?;
/// use remex_client::{Command, process::Stream};
///
/// let process = Command::shell("echo one; echo two; printf three >&2").start(&client).await?;
/// let (mut lines, mut said) = (process.lines(), Vec::new());
/// while let Some(line) = lines.next().await? {
///     said.push((line.stream, line.text));
/// }
/// assert_eq!(said.last(), Some(&(Stream::Stderr, "three".to_owned())));
/// # Ok(()) }
/// ```
pub struct Lines {
    events: Events,
    max_bytes: usize,
    /// The beginning of the current line of each stream.
    partial: Vec<(Stream, Vec<u8>)>,
    ready: VecDeque<Result<Line, Error>>,
}

/// A line of output.
///
/// See [`Lines`] for an example.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Line {
    /// The stream it was written to.
    pub stream: Stream,
    /// The event that completed it.
    pub seq: u64,
    /// Its text without the line end; bytes that are not UTF-8 are replaced by U+FFFD.
    pub text: String,
    /// Whether the line is longer than the limit and continues as the next line of this stream.
    pub is_continued: bool,
}

impl Process {
    /// Returns its output as lines, from the beginning, as far as it is retained.
    ///
    /// Lines longer than 64 KiB are returned in pieces; see [`Lines::max_bytes`].
    ///
    /// See [`Lines`] for an example.
    pub fn lines(&self) -> Lines {
        Lines {
            events: self.events(),
            max_bytes: MAX_LINE_BYTES,
            partial: Vec::new(),
            ready: VecDeque::new(),
        }
    }
}

impl Lines {
    /// Sets the length in bytes at which a line is returned in pieces; at least 4.
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let client = remex_client::Client::connect(remex::Local::here()?.target()).await?;
    /// use remex_client::Command;
    ///
    /// let process = Command::shell("echo 123456").start(&client).await?;
    /// let mut lines = process.lines().max_bytes(4);
    /// let first = lines.next().await?.expect("there is a line");
    /// assert_eq!((first.text.as_str(), first.is_continued), ("1234", true));
    /// # Ok(()) }
    /// ```
    pub fn max_bytes(mut self, max_bytes: usize) -> Self {
        // A character of UTF-8 has up to four bytes, and a piece ends between two of them.
        self.max_bytes = max_bytes.max(4);
        self
    }

    /// Waits for the next line; `None` after the last. Cancel-safe.
    ///
    /// # Errors
    ///
    /// [`Error::Gap`] once where output is missing, after the output before it; the lines continue after it.
    /// [`Error::Lost`] when the session is lost.
    ///
    /// See [`Lines`] for an example.
    pub async fn next(&mut self) -> Result<Option<Line>, Error> {
        loop {
            if let Some(line) = self.ready.pop_front() {
                return line.map(Some);
            }
            match self.events.next().await? {
                Some(Event::Output(chunk)) => self.take(chunk.stream, chunk.seq, &chunk.bytes),
                Some(Event::Gap(gap)) => {
                    self.finish(gap.to_seq);
                    self.ready.push_back(Err(Error::Gap { bytes: gap.bytes }));
                }
                Some(Event::Closed(closed)) => self.finish(closed.seq),
                Some(Event::Exited { .. }) => {}
                None => return Ok(None),
            }
        }
    }

    fn take(&mut self, stream: Stream, seq: u64, mut bytes: &[u8]) {
        let known = self.partial.iter().position(|(other, _)| *other == stream);
        let at = known.unwrap_or_else(|| {
            self.partial.push((stream, Vec::new()));
            self.partial.len() - 1
        });
        let partial = &mut self.partial[at].1;
        while !bytes.is_empty() {
            let room = self.max_bytes - partial.len();
            let window = &bytes[..bytes.len().min(room + 1)];
            if let Some(end) = window.iter().position(|byte| *byte == b'\n') {
                partial.extend_from_slice(&bytes[..end]);
                bytes = &bytes[end + 1..];
                let text = partial.strip_suffix(b"\r").unwrap_or(partial);
                self.ready.push_back(Ok(line(stream, seq, text, false)));
                partial.clear();
            } else if bytes.len() <= room {
                partial.extend_from_slice(bytes);
                return;
            } else {
                partial.extend_from_slice(&bytes[..room]);
                bytes = &bytes[room..];
                let end = between_characters(partial);
                self.ready.push_back(Ok(line(stream, seq, &partial[..end], true)));
                partial.drain(..end);
            }
        }
    }

    /// Returns the lines without an end.
    fn finish(&mut self, seq: u64) {
        for (stream, partial) in &mut self.partial {
            if !partial.is_empty() {
                self.ready.push_back(Ok(line(*stream, seq, partial, false)));
                partial.clear();
            }
        }
    }
}

impl fmt::Debug for Lines {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lines").field("events", &self.events).finish_non_exhaustive()
    }
}

fn line(stream: Stream, seq: u64, bytes: &[u8], is_continued: bool) -> Line {
    Line { stream, seq, text: String::from_utf8_lossy(bytes).into_owned(), is_continued }
}

/// Returns where to cut a piece, so that no character is split: at its end, or up to three bytes before it.
fn between_characters(bytes: &[u8]) -> usize {
    match bytes.utf8_chunks().last() {
        // An invalid rest of up to three bytes may be the beginning of a character.
        Some(last) if last.invalid().len() < bytes.len() => bytes.len() - last.invalid().len(),
        _ => bytes.len(),
    }
}
