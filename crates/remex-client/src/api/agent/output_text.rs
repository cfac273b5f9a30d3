//! Turns the chunks of a process into text: whole characters, without control sequences if the agent removes them.
//!
//! Pure: no I/O, no clock. Start at [`OutputText`].

use std::borrow::Cow;

use super::{
    ControlSequences, Truncator,
    control_sequences::{CurrentLine, Piece, SequenceFilter},
};
use crate::api::process::Stream;

/// What precedes a text: the incomplete characters, sequences and lines at the end of the output so far.
#[derive(Clone, Debug, Default)]
pub(super) struct OutputText {
    control_sequences: ControlSequences,
    streams: [StreamText; 4],
    /// Shared by the streams, as on a terminal; empty if sequences are kept.
    line: CurrentLine,
}

#[derive(Clone, Debug, Default)]
struct StreamText {
    /// The incomplete UTF-8 character at the end.
    unfinished: Vec<u8>,
    filter: SequenceFilter,
}

impl OutputText {
    pub(super) fn new(control_sequences: ControlSequences) -> Self {
        Self { control_sequences, ..Self::default() }
    }

    /// Adds a chunk to the truncator, and passes what a viewer sees of it to `on_live`.
    ///
    /// A character is added whole, so that neither the other stream nor the end of a step separates its bytes.
    pub(super) fn push(
        &mut self,
        stream: Stream,
        bytes: &[u8],
        truncator: &mut Truncator,
        mut on_live: impl FnMut(&[u8]),
    ) {
        let Self { control_sequences, streams, line } = self;
        let StreamText { unfinished, filter } = &mut streams[stream_index(stream)];
        let bytes = if unfinished.is_empty() {
            Cow::Borrowed(bytes)
        } else {
            let mut joined = std::mem::take(unfinished);
            joined.extend_from_slice(bytes);
            Cow::Owned(joined)
        };
        let (whole, rest) = bytes.split_at(bytes.len() - unfinished_len(&bytes));
        unfinished.extend_from_slice(rest);
        match control_sequences {
            ControlSequences::Keep => {
                truncator.push(whole);
                on_live(whole);
            }
            ControlSequences::Remove => filter.push(whole, |piece| {
                match piece {
                    Piece::Text(text) => on_live(text),
                    // A viewer can redraw the line.
                    Piece::Return => on_live(b"\r"),
                    Piece::Backspace => on_live(b"\x08"),
                    Piece::EraseLine | Piece::EraseToStart | Piece::EraseToEnd => {}
                }
                line.apply(piece, truncator);
            }),
        }
    }

    /// Moves the current line into the truncator, at the end of a step.
    pub(super) fn flush_line(&mut self, truncator: &mut Truncator) {
        self.line.flush(truncator);
    }

    /// Moves everything into the truncator, incomplete characters as they are: the output ends here, or has a gap.
    pub(super) fn flush(&mut self, truncator: &mut Truncator, mut on_live: impl FnMut(Stream, &[u8])) {
        self.line.flush(truncator);
        for (stream, text) in STREAMS.into_iter().zip(&mut self.streams) {
            truncator.push(&text.unfinished);
            on_live(stream, &text.unfinished);
            *text = StreamText::default();
        }
    }

    /// Returns how many bytes are not in the truncator yet.
    pub(super) fn len(&self) -> usize {
        self.line.len() + self.streams.iter().map(|text| text.unfinished.len()).sum::<usize>()
    }
}

const STREAMS: [Stream; 4] = [Stream::Stdout, Stream::Stderr, Stream::Pty, Stream::Unknown];

fn stream_index(stream: Stream) -> usize {
    match stream {
        Stream::Stdout => 0,
        Stream::Stderr => 1,
        Stream::Pty => 2,
        _ => 3,
    }
}

/// Returns the length of the incomplete character at the end.
fn unfinished_len(bytes: &[u8]) -> usize {
    let last = &bytes[bytes.len().saturating_sub(3)..];
    let start = last.iter().rposition(|byte| *byte >= 0b1100_0000);
    let Some(start) = start else { return 0 };
    match std::str::from_utf8(&last[start..]) {
        Err(error) if error.valid_up_to() == 0 && error.error_len().is_none() => last.len() - start,
        _ => 0,
    }
}
