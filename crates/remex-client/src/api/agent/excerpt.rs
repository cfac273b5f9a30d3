//! Output as a model reads it, for programs that read it themselves.
//!
//! Pure: no I/O, no clock. Start at [`Excerpt`].

use super::{ControlSequences, TruncatedText, Truncator, output_text::OutputText};
use crate::api::process::Stream;

/// Turns pieces of output into text within a budget: its beginning and its end, whole characters, without control
/// sequences if they are to be removed.
///
/// [`Agent`](super::Agent) uses it for the processes that it starts; this is for others, such as those of other
/// sessions.
///
/// ```
/// use remex_client::{agent::{ControlSequences, Excerpt}, process::Stream};
///
/// let mut excerpt = Excerpt::new(64, ControlSequences::Remove);
/// excerpt.push(Stream::Pty, b"\x1b[32mok\x1b[0m caf\xc3");
/// assert_eq!(excerpt.take().text, "ok caf");
/// excerpt.push(Stream::Pty, b"\xa9\r\n");
/// assert_eq!(excerpt.take().text, "\u{e9}\n");
/// ```
#[derive(Clone, Debug)]
pub struct Excerpt {
    text: OutputText,
    truncator: Truncator,
    budget: usize,
}

impl Excerpt {
    /// Returns an empty excerpt; its text will have at most `budget` bytes.
    ///
    /// See [`Excerpt`] for an example.
    pub fn new(budget: usize, control_sequences: ControlSequences) -> Self {
        Self { text: OutputText::new(control_sequences), truncator: Truncator::new(budget), budget }
    }

    /// Changes the budget of what is added from now on; nothing may have been added since the last call of
    /// [`Excerpt::take`].
    ///
    /// ```
    /// use remex_client::{agent::{ControlSequences, Excerpt}, process::Stream};
    ///
    /// let mut excerpt = Excerpt::new(64, ControlSequences::Keep).budget(1 << 20);
    /// excerpt.push(Stream::Stdout, &[b'x'; 1000]);
    /// assert_eq!(excerpt.take().omitted_bytes, 0);
    /// ```
    #[must_use]
    pub fn budget(self, bytes: usize) -> Self {
        Self { truncator: Truncator::new(bytes), budget: bytes, ..self }
    }

    /// Adds output, which may end within a character or a control sequence.
    ///
    /// See [`Excerpt`] for an example.
    pub fn push(&mut self, stream: Stream, bytes: &[u8]) {
        self.text.push(stream, bytes, &mut self.truncator, |_| {});
    }

    /// Records that output is missing here, and how much, if known.
    ///
    /// ```
    /// use remex_client::{agent::{ControlSequences, Excerpt}, process::Stream};
    ///
    /// let mut excerpt = Excerpt::new(64, ControlSequences::Keep);
    /// excerpt.skip(Some(1000));
    /// excerpt.push(Stream::Stdout, b"end\n");
    /// assert_eq!(excerpt.take().text, "[… 1000 bytes omitted …]\nend\n");
    /// ```
    pub fn skip(&mut self, bytes: Option<u64>) {
        self.text.flush(&mut self.truncator, |_, _| {});
        self.truncator.skip(bytes);
    }

    /// Returns what was added since the last call; an incomplete character or sequence stays for the next one.
    ///
    /// See [`Excerpt`] for an example.
    pub fn take(&mut self) -> TruncatedText {
        self.text.flush_line(&mut self.truncator);
        std::mem::replace(&mut self.truncator, Truncator::new(self.budget)).finish()
    }

    /// Returns the rest, incomplete characters as they are: no more output follows.
    ///
    /// ```
    /// use remex_client::{agent::{ControlSequences, Excerpt}, process::Stream};
    ///
    /// let mut excerpt = Excerpt::new(64, ControlSequences::Keep);
    /// excerpt.push(Stream::Stdout, b"caf\xc3");
    /// assert_eq!(excerpt.finish().text, "caf\u{fffd}");
    /// ```
    pub fn finish(mut self) -> TruncatedText {
        self.text.flush(&mut self.truncator, |_, _| {});
        self.truncator.finish()
    }
}
