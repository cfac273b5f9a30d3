//! Storage for the bytes of a log: memory segments, filled front to back and recycled.
//!
//! A chunk is a range of one segment, so a small chunk never pins a large buffer of its own.
//! A store on disk could implement the same few functions.

use std::collections::VecDeque;

/// The size of the first segment; later ones grow with the output of the process.
const SMALLEST_SEGMENT: usize = 1 << 10;

/// A range of one segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Span {
    /// Number of the segment since the log began.
    segment: u64,
    start: usize,
    pub(super) len: usize,
}

impl Span {
    pub(super) fn is_followed_by(self, next: Span) -> bool {
        self.segment == next.segment && self.start + self.len == next.start
    }
}

#[derive(Debug, Default)]
pub(super) struct Store {
    segments: VecDeque<Segment>,
    /// Number of `segments[0]`.
    first: u64,
    /// A released segment of full size, kept so that sustained output allocates nothing.
    recycled: Option<Box<[u8]>>,
}

#[derive(Debug)]
struct Segment {
    bytes: Box<[u8]>,
    /// used <= bytes.len()
    used: usize,
}

impl Store {
    /// Returns the position of the next byte and the free memory that starts there; never empty.
    pub(super) fn spare(&mut self, wanted: usize, largest: usize) -> (Span, &mut [u8]) {
        if self.segments.back().is_none_or(|last| last.used == last.bytes.len()) {
            let size = wanted.next_power_of_two().max(SMALLEST_SEGMENT).min(largest);
            let bytes = match self.recycled.take() {
                Some(bytes) if bytes.len() >= size => bytes,
                _ => vec![0; size].into_boxed_slice(),
            };
            self.segments.push_back(Segment { bytes, used: 0 });
        }
        let span = self.tail();
        let last = self.segments.back_mut().expect("a segment was pushed when there was none");
        (span, &mut last.bytes[last.used..])
    }

    /// Counts `len` bytes of the spare memory as written.
    pub(super) fn commit(&mut self, len: usize) {
        if let Some(last) = self.segments.back_mut() {
            last.used += len;
            debug_assert!(last.used <= last.bytes.len(), "no more is committed than was spare");
        }
    }

    /// Returns the empty span at the end.
    pub(super) fn tail(&self) -> Span {
        match self.segments.back() {
            Some(last) => {
                Span { segment: self.first + self.segments.len() as u64 - 1, start: last.used, len: 0 }
            }
            None => Span { segment: self.first, start: 0, len: 0 },
        }
    }

    pub(super) fn bytes(&self, span: Span) -> &[u8] {
        match self.segments.get((span.segment - self.first) as usize) {
            Some(segment) => &segment.bytes[span.start..span.start + span.len],
            None => &[],
        }
    }

    /// Releases the segments before `oldest`, or all of them if nothing is retained.
    pub(super) fn release_before(&mut self, oldest: Option<Span>) {
        let keep_from = oldest.map_or(self.first + self.segments.len() as u64, |span| span.segment);
        while self.first < keep_from {
            let Some(segment) = self.segments.pop_front() else { break };
            self.first += 1;
            if self.recycled.as_ref().is_none_or(|kept| kept.len() <= segment.bytes.len()) {
                self.recycled = Some(segment.bytes);
            }
        }
    }

    /// Releases unused memory.
    pub(super) fn trim(&mut self) {
        self.recycled = None;
        if let Some(last) = self.segments.back_mut() {
            let mut bytes = std::mem::take(&mut last.bytes).into_vec();
            bytes.truncate(last.used);
            last.bytes = bytes.into_boxed_slice();
        }
    }

    /// Releases the recycled segment.
    pub(super) fn forget_spare(&mut self) {
        self.recycled = None;
    }

    pub(super) fn memory(&self) -> usize {
        self.segments.iter().map(|segment| segment.bytes.len()).sum::<usize>()
            + self.segments.capacity() * size_of::<Segment>()
            + self.recycled.as_ref().map_or(0, |bytes| bytes.len())
    }
}
