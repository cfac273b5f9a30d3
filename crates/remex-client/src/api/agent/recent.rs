//! The latest output of a process, for live viewers.
//!
//! Pure: no I/O, no clock. Positions count the bytes of all live text from the start of the process. Start at
//! [`RecentOutput`].

use std::collections::VecDeque;

use super::{Count, Delta};
use crate::api::process::Stream;

/// How long a piece may become: viewers that keep up get less, and what is dropped goes piece by piece.
const PIECE_BYTES: usize = 4 << 10;

/// The latest output of a process, within a limit; the oldest goes first.
#[derive(Debug)]
pub(super) struct RecentOutput {
    limit: usize,
    /// In order; there may be gaps between them.
    pieces: VecDeque<RecentPiece>,
    len: usize,
    end: u64,
    /// The position of the last gap of unknown length.
    unknown_gap: Option<u64>,
}

#[derive(Debug)]
struct RecentPiece {
    start: u64,
    stream: Stream,
    text: String,
}

impl RecentPiece {
    fn end(&self) -> u64 {
        self.start + self.text.len() as u64
    }
}

impl RecentOutput {
    pub(super) fn new(limit: usize) -> Self {
        Self { limit, pieces: VecDeque::new(), len: 0, end: 0, unknown_gap: None }
    }

    /// Adds output, which consists of whole characters or of bytes that are no text.
    pub(super) fn push(&mut self, stream: Stream, bytes: &[u8]) {
        let text = String::from_utf8_lossy(bytes);
        let skipped = next_char_start(&text, text.len().saturating_sub(self.limit));
        if skipped > 0 {
            // What is older goes first.
            self.pieces.clear();
            self.len = 0;
        }
        self.end += skipped as u64;
        let mut rest = &text[skipped..];
        while !rest.is_empty() {
            let is_after_gap = self.unknown_gap == Some(self.end);
            let room = match self.pieces.back() {
                Some(last) if last.stream == stream && last.end() == self.end && !is_after_gap => {
                    PIECE_BYTES.saturating_sub(last.text.len())
                }
                _ => 0,
            };
            // A character that does not fit begins a piece.
            let (first, after) = rest.split_at(char_border(rest, room));
            if let (false, Some(last)) = (first.is_empty(), self.pieces.back_mut()) {
                last.text.push_str(first);
                self.advance(first.len());
                rest = after;
                continue;
            }
            let (first, after) = rest.split_at(char_border(rest, PIECE_BYTES));
            self.pieces.push_back(RecentPiece { start: self.end, stream, text: first.to_owned() });
            self.advance(first.len());
            rest = after;
        }
        while self.len > self.limit {
            let Some(oldest) = self.pieces.pop_front() else { break };
            self.len -= oldest.text.len();
        }
    }

    fn advance(&mut self, bytes: usize) {
        self.len += bytes;
        self.end += bytes as u64;
    }

    /// Records that output is missing here, and how much, if known.
    pub(super) fn skip(&mut self, bytes: Option<u64>) {
        self.end += bytes.unwrap_or(0);
        if bytes.is_none() {
            self.unknown_gap = Some(self.end);
        }
    }

    pub(super) fn end(&self) -> u64 {
        self.end
    }

    /// Returns the first piece of text after a position, and the position after it.
    pub(super) fn after(&self, position: u64) -> Option<(Delta, u64)> {
        let first = self.pieces.partition_point(|piece| piece.end() <= position);
        let piece = self.pieces.get(first)?;
        let omitted_bytes = piece.start.saturating_sub(position);
        let from = usize::try_from(position.saturating_sub(piece.start)).ok()?;
        let is_unknown =
            self.unknown_gap.is_some_and(|at| (position..=piece.start.max(position)).contains(&at));
        let count = if is_unknown { Count::AtLeast } else { Count::Exact };
        let text = piece.text.get(from..)?.to_owned();
        Some((Delta { stream: piece.stream, text, omitted_bytes, count }, piece.end()))
    }
}

/// Returns the last border between characters that is at most at `len`.
fn char_border(text: &str, len: usize) -> usize {
    (0..=len.min(text.len())).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0)
}

fn next_char_start(text: &str, from: usize) -> usize {
    (from..=text.len()).find(|at| text.is_char_boundary(*at)).unwrap_or(text.len())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Returns everything after a position as one viewer sees it.
    fn seen(recent: &RecentOutput, mut position: u64) -> Vec<(Stream, String, u64, Count)> {
        let mut seen = Vec::new();
        while let Some((Delta { stream, text, omitted_bytes, count }, next)) = recent.after(position) {
            seen.push((stream, text, omitted_bytes, count));
            position = next;
        }
        seen
    }

    #[test]
    fn output_of_one_stream_is_joined_and_the_order_of_streams_is_kept() {
        let mut recent = RecentOutput::new(100);
        for (stream, text) in
            [(Stream::Stdout, "a"), (Stream::Stdout, "b"), (Stream::Stderr, "c"), (Stream::Stdout, "d")]
        {
            recent.push(stream, text.as_bytes());
        }
        let exact = |stream, text: &str| (stream, text.to_owned(), 0, Count::Exact);
        let all = [exact(Stream::Stdout, "ab"), exact(Stream::Stderr, "c"), exact(Stream::Stdout, "d")];
        assert_eq!(seen(&recent, 0), all);
        assert_eq!(seen(&recent, 1)[0], exact(Stream::Stdout, "b"));
        assert_eq!(seen(&recent, 4), []);
    }

    #[test]
    fn a_viewer_that_is_too_slow_learns_how_much_it_missed() {
        let mut recent = RecentOutput::new(10_000);
        for _ in 0..100 {
            recent.push(Stream::Stdout, &[b'x'; 1000]);
            assert!(recent.len <= 10_000);
        }
        let seen = seen(&recent, 3);
        assert!(seen[0].2 >= 90_000 - 3 && seen[1..].iter().all(|piece| piece.2 == 0), "{seen:?}");
        let shown: usize = seen.iter().map(|piece| piece.1.len()).sum();
        assert_eq!(shown as u64 + seen[0].2, 100_000 - 3);
    }

    #[test]
    fn gaps_are_reported() {
        let mut recent = RecentOutput::new(100);
        recent.push(Stream::Stdout, b"one");
        recent.skip(Some(10));
        recent.push(Stream::Stdout, b"two");
        recent.skip(None);
        recent.push(Stream::Stdout, b"three");
        let expected = [
            (Stream::Stdout, "one".to_owned(), 0, Count::Exact),
            (Stream::Stdout, "two".to_owned(), 10, Count::Exact),
            (Stream::Stdout, "three".to_owned(), 0, Count::AtLeast),
        ];
        assert_eq!(seen(&recent, 0), expected);
    }

    #[test]
    fn a_character_longer_than_the_limit_replaces_older_output() {
        let mut recent = RecentOutput::new(1);
        recent.push(Stream::Stdout, b"a");
        recent.push(Stream::Stdout, "ß".as_bytes());
        assert_eq!((seen(&recent, 0), recent.end()), (Vec::new(), 3));
    }

    proptest! {
        #[test]
        fn seen_and_missed_bytes_add_up(
            chunks in prop::collection::vec("[a-zäß🦀]{0,40}", 0..30),
            limit in 0_usize..200,
        ) {
            let mut recent = RecentOutput::new(limit);
            chunks.iter().for_each(|chunk| recent.push(Stream::Stdout, chunk.as_bytes()));
            let all = chunks.concat();
            let text: String = seen(&recent, 0).into_iter().map(|piece| piece.1).collect();
            prop_assert!(text.len() <= limit && all.ends_with(&text));
            prop_assert_eq!(recent.end(), all.len() as u64);
        }
    }
}
