//! Splits output into lines, separately for each stream.
//!
//! Pure: chunks in, complete lines out. Start at [`Lines`].

use remex_client::process::{Stream, TimedChunk};

/// Longer lines are split, to bound memory.
const LINE_BYTES: usize = 1 << 20;

/// One line, including its line feed if any.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Line {
    pub(super) stream: Stream,
    /// The time of its first byte, in milliseconds since 1970.
    pub(super) at_ms: Option<u64>,
    pub(super) bytes: Vec<u8>,
    /// Whether its beginning was not read.
    pub(super) is_partial: bool,
}

impl Line {
    /// Returns the line without its line feed and a preceding carriage return.
    pub(super) fn text(&self) -> &[u8] {
        let text = self.bytes.strip_suffix(b"\n").unwrap_or(&self.bytes);
        text.strip_suffix(b"\r").unwrap_or(text)
    }
}

/// Collects incomplete lines.
#[derive(Debug, Default)]
pub(super) struct Lines {
    /// In the order of their first bytes.
    open: Vec<Line>,
    /// The streams that have begun, unless reading began with the first byte.
    begun: Option<(PartialFirstLine, Vec<Stream>)>,
}

/// The streams whose first line may be incomplete if reading starts in the middle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PartialFirstLine {
    /// Every stream.
    Each,
    /// Only the stream of the first chunk; a line of another stream cannot have begun that long ago.
    First,
}

impl Lines {
    /// Returns lines of output whose beginning is not read.
    pub(super) fn from_the_middle(partial: PartialFirstLine) -> Self {
        Self { open: Vec::new(), begun: Some((partial, Vec::new())) }
    }

    /// Adds a chunk, and returns the lines that it completes.
    pub(super) fn take(&mut self, piece: &TimedChunk) -> Vec<Line> {
        let mut complete = Vec::new();
        for part in piece.bytes.split_inclusive(|byte| *byte == b'\n') {
            let open = self.open.iter().position(|line| line.stream == piece.stream);
            let index = open.unwrap_or_else(|| self.begin(piece));
            let line = &mut self.open[index];
            line.bytes.extend_from_slice(part);
            let is_long = line.bytes.len() >= LINE_BYTES;
            if part.ends_with(b"\n") || is_long {
                let mut line = self.open.remove(index);
                // It is split in any case.
                line.is_partial &= !is_long;
                complete.push(line);
            }
        }
        complete
    }

    /// Begins a line, and returns its index.
    fn begin(&mut self, piece: &TimedChunk) -> usize {
        let is_partial = self.begun.as_mut().is_some_and(|(partial, begun)| {
            let is_first = !begun.contains(&piece.stream);
            if is_first {
                begun.push(piece.stream);
            }
            is_first && (*partial == PartialFirstLine::Each || begun.len() == 1)
        });
        self.open.push(Line { stream: piece.stream, at_ms: piece.at_ms, bytes: Vec::new(), is_partial });
        self.open.len() - 1
    }

    /// Returns incomplete lines.
    pub(super) fn open(&self) -> impl Iterator<Item = &Line> {
        self.open.iter()
    }

    /// Returns incomplete lines at the end of the output.
    pub(super) fn finish(&mut self) -> Vec<Line> {
        std::mem::take(&mut self.open)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn piece(stream: Stream, at_ms: u64, text: &str) -> TimedChunk {
        let mut chunk = TimedChunk::new(1, stream, text.to_owned());
        chunk.at_ms = Some(at_ms);
        chunk
    }

    fn line(stream: Stream, at_ms: u64, text: &str) -> Line {
        Line { stream, at_ms: Some(at_ms), bytes: text.as_bytes().to_vec(), is_partial: false }
    }

    #[test]
    fn a_line_is_complete_however_it_was_chunked() {
        let text = "one\n\ntwo\r\nthree";
        for cut in 0..text.len() {
            for again in cut..text.len() {
                let mut lines = Lines::default();
                let mut out = Vec::new();
                for part in [&text[..cut], &text[cut..again], &text[again..]] {
                    out.extend(lines.take(&piece(Stream::Stdout, 1, part)));
                }
                out.extend(lines.finish());
                let expected = ["one\n", "\n", "two\r\n", "three"].map(|text| line(Stream::Stdout, 1, text));
                assert_eq!(out, expected);
            }
        }
    }

    #[test]
    fn lines_of_different_streams_do_not_mix() {
        let mut lines = Lines::default();
        assert_eq!(lines.take(&piece(Stream::Stdout, 1, "so")), []);
        assert_eq!(lines.take(&piece(Stream::Stderr, 2, "oh\nno")), [line(Stream::Stderr, 2, "oh\n")]);
        assert_eq!(lines.take(&piece(Stream::Stdout, 3, "me\n")), [line(Stream::Stdout, 1, "some\n")]);
        assert_eq!(lines.finish(), [line(Stream::Stderr, 2, "no")]);
        assert_eq!(lines.finish(), []);
    }

    #[test]
    fn the_first_line_of_each_stream_may_not_be_whole_if_reading_begins_in_the_middle() {
        let mut lines = Lines::from_the_middle(PartialFirstLine::Each);
        let complete = |lines: Vec<Line>| lines.iter().map(|line| line.is_partial).collect::<Vec<_>>();
        assert_eq!(complete(lines.take(&piece(Stream::Stdout, 1, "d\nwhole\n"))), [true, false]);
        assert_eq!(complete(lines.take(&piece(Stream::Stderr, 1, "d\nwhole\n"))), [true, false]);
        assert_eq!(complete(lines.take(&piece(Stream::Stdout, 1, "whole\n"))), [false]);
        let mut lines = Lines::from_the_middle(PartialFirstLine::Each);
        let long = "x".repeat(LINE_BYTES);
        assert_eq!(complete(lines.take(&piece(Stream::Stdout, 1, &long))), [false], "it is split anyway");
        let mut lines = Lines::from_the_middle(PartialFirstLine::First);
        assert_eq!(complete(lines.take(&piece(Stream::Stdout, 1, "d\nwhole\n"))), [true, false]);
        assert_eq!(complete(lines.take(&piece(Stream::Stderr, 1, "whole\n"))), [false]);
    }

    #[test]
    fn an_unterminated_line_is_bounded_in_memory() {
        let mut lines = Lines::default();
        let long = "x".repeat(LINE_BYTES / 2);
        assert_eq!(lines.take(&piece(Stream::Pty, 1, &long)), []);
        assert_eq!(
            lines.take(&piece(Stream::Pty, 1, &long)),
            [line(Stream::Pty, 1, &(long.clone() + &long))]
        );
        assert_eq!(lines.finish(), []);
    }
}
