//! Output as a model reads it, for programs that read it themselves.
//!
//! Pure: no I/O, no clock. Start at [`Excerpt`].

use super::{ControlSequences, TruncatedText, Truncator, output_text::OutputText};
use crate::api::process::Stream;

/// Turns pieces of output into text within a budget: its beginning and its end, whole characters, without control
/// sequences if they are to be removed.
///
/// [`Agent`](super::Agent) uses it for the processes that it starts, and [`StepReader`](super::StepReader) for others.
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
        self.push_live(stream, bytes, |_| {});
    }

    /// Adds output, and passes what a viewer sees of it to `on_live`.
    pub(super) fn push_live(&mut self, stream: Stream, bytes: &[u8], on_live: impl FnMut(&[u8])) {
        self.text.push(stream, bytes, &mut self.truncator, on_live);
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
        self.flush_live(|_, _| {});
        self.truncator.skip(bytes);
    }

    /// Completes the text with incomplete characters as they are, which a viewer gets as well: the output ends here, or
    /// has a gap.
    pub(super) fn flush_live(&mut self, on_live: impl FnMut(Stream, &[u8])) {
        self.text.flush(&mut self.truncator, on_live);
    }

    /// Adds output that was in gaps of unknown length, which makes the amount of missing output exact.
    pub(super) fn settle(&mut self, uncounted_bytes: u64) {
        self.flush_live(|_, _| {});
        self.truncator.settle(self.truncator.total_bytes() + uncounted_bytes);
    }

    /// Returns how many bytes were added since the last call of [`Excerpt::take`].
    pub(super) fn added_bytes(&self) -> u64 {
        self.truncator.total_bytes() + self.text.len() as u64
    }

    /// Returns what was added since the last call; an incomplete character or sequence stays for the next one.
    ///
    /// See [`Excerpt`] for an example.
    pub fn take(&mut self) -> TruncatedText {
        self.take_truncator().finish()
    }

    /// Does the same, and leaves it to the caller to make the text.
    pub(super) fn take_truncator(&mut self) -> Truncator {
        self.text.flush_line(&mut self.truncator);
        std::mem::replace(&mut self.truncator, Truncator::new(self.budget))
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
        self.flush_live(|_, _| {});
        self.truncator.finish()
    }
}
