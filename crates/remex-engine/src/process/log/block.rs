//! Output copied from a log into memory, to be streamed or searched without the log. Start at [`Block`].

use std::{collections::TryReserveError, ops::Range};

use remex_proto::{
    process::{GapCause, Stream},
    state::output_log::{Cursor, Gap, Next, Seq},
};

/// Consecutive output and gaps of one log; exit and close are not in it.
#[derive(Debug)]
pub struct Block {
    /// Before the first event.
    start: Cursor,
    /// After the last event.
    end: Cursor,
    items: Vec<BlockItem>,
    bytes: Vec<u8>,
}

/// One chunk of output, or one gap.
#[derive(Debug)]
struct BlockItem {
    first: Seq,
    last: Seq,
    /// Bytes of output of the log up to and including it.
    end: Option<u64>,
    content: Content,
}

#[derive(Debug)]
enum Content {
    Output { stream: Stream, at_ms: u64, range: Range<usize> },
    Gap { bytes: Option<u64>, cause: Option<GapCause> },
}

impl Block {
    /// Begins an empty block after `start`.
    pub fn new(start: Cursor) -> Self {
        Block { start, end: start, items: Vec::new(), bytes: Vec::new() }
    }

    /// Appends what was read; `end` is the cursor after it.
    ///
    /// # Errors
    ///
    /// If memory cannot be allocated.
    pub fn push(&mut self, next: Next<'_>, end: Cursor) -> Result<(), TryReserveError> {
        let (first, content) = match next {
            Next::Output { seq, stream, at_ms, bytes } => {
                self.bytes.try_reserve(bytes.len())?;
                let from = self.bytes.len();
                self.bytes.extend_from_slice(bytes);
                (seq, Content::Output { stream, at_ms, range: from..self.bytes.len() })
            }
            Next::Gap(gap) => {
                self.push_gap(gap, end);
                return Ok(());
            }
            Next::Exited(_) | Next::Closed(_) => {
                self.end = end;
                return Ok(());
            }
        };
        self.items.push(BlockItem { first, last: end.seq, end: end.offset, content });
        self.end = end;
        Ok(())
    }

    /// Appends a gap; `end` is the cursor after it.
    pub(crate) fn push_gap(&mut self, gap: Gap, end: Cursor) {
        let Gap { from_seq: first, bytes, cause, .. } = gap;
        self.items.push(BlockItem {
            first,
            last: end.seq,
            end: end.offset,
            content: Content::Gap { bytes, cause },
        });
        self.end = end;
    }

    /// Returns the cursor before its first event.
    pub fn start(&self) -> Cursor {
        self.start
    }

    /// Returns the cursor after its last event.
    pub fn end(&self) -> Cursor {
        self.end
    }

    /// Returns whether no event is in it.
    pub fn is_empty(&self) -> bool {
        self.end.seq == self.start.seq
    }

    /// Returns the bytes of output in it.
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Returns the memory that it needs.
    pub fn memory(&self) -> usize {
        self.bytes.capacity() + self.items.capacity() * size_of::<BlockItem>()
    }

    /// Returns the item after `cursor`, and the cursor after that; `None` if it is not in this block, or if `cursor` is
    /// within a gap, so that the bytes before it are unknown.
    pub fn next(&self, cursor: &Cursor) -> Option<(Next<'_>, Cursor)> {
        let seq = cursor.seq.checked_add(1)?;
        let index = self.items.partition_point(|item| item.last < seq);
        let item = self.items.get(index).filter(|item| item.first == seq)?;
        let end = Cursor { seq: item.last, offset: item.end };
        let next = match &item.content {
            Content::Output { stream, at_ms, range } => {
                let bytes = self.bytes.get(range.clone())?;
                Next::Output { seq: item.last, stream: *stream, at_ms: *at_ms, bytes }
            }
            Content::Gap { bytes, cause } => {
                Next::Gap(Gap { from_seq: seq, to_seq: item.last, bytes: *bytes, cause: *cause })
            }
        };
        Some((next, end))
    }

    /// Returns everything after event `seq`, in order.
    pub(crate) fn after(&self, seq: Seq) -> impl Iterator<Item = Next<'_>> {
        let mut cursor = Cursor { seq: seq.max(self.start.seq), offset: None };
        std::iter::from_fn(move || {
            // An exit between two chunks has no item.
            let next = self.items.get(self.items.partition_point(|item| item.last <= cursor.seq))?;
            cursor.seq = next.first - 1;
            let (next, end) = self.next(&cursor)?;
            cursor = end;
            Some(next)
        })
    }

    /// Returns its events and the bytes of output up to each, as far as they are known.
    pub(crate) fn ends(&self) -> impl Iterator<Item = (Seq, u64)> {
        self.items.iter().filter_map(|item| Some((item.last, item.end?)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn output(seq: Seq, bytes: &[u8]) -> Next<'_> {
        Next::Output { seq, stream: Stream::Stdout, at_ms: 0, bytes }
    }

    fn at(seq: Seq, offset: u64) -> Cursor {
        Cursor { seq, offset: Some(offset) }
    }

    #[test]
    fn a_block_returns_what_was_put_into_it_from_any_event_on() {
        let gap = |from_seq, bytes| Next::Gap(Gap { from_seq, to_seq: 7, bytes, cause: None });
        let mut block = Block::new(at(3, 10));
        block.push(output(4, b"four"), at(4, 14)).unwrap();
        block.push(gap(5, Some(6)), at(7, 20)).unwrap();
        block.push(Next::Exited(8), at(8, 20)).unwrap();
        block.push(output(9, b"nine"), at(9, 24)).unwrap();
        assert_eq!((block.start(), block.end(), block.len()), (at(3, 10), at(9, 24), 8));
        assert_eq!(block.next(&at(3, 10)), Some((output(4, b"four"), at(4, 14))));
        assert_eq!(block.next(&at(4, 14)), Some((gap(5, Some(6)), at(7, 20))));
        assert_eq!(block.next(&at(5, 15)), None, "in the middle of the gap");
        assert_eq!(block.next(&at(8, 20)), Some((output(9, b"nine"), at(9, 24))));
        for outside in [2, 7, 9] {
            assert_eq!(block.next(&at(outside, 0)), None, "{outside}");
        }
        let all: Vec<_> = block.after(0).collect();
        assert_eq!(all, [output(4, b"four"), gap(5, Some(6)), output(9, b"nine")]);
        assert_eq!(block.after(7).collect::<Vec<_>>(), [output(9, b"nine")]);
        assert_eq!(block.after(5).next(), Some(gap(5, Some(6))), "a search starts again after the gap");
        assert_eq!(block.ends().collect::<Vec<_>>(), [(4, 14), (7, 20), (9, 24)]);
    }
}
