//! The head and tail of each stream that snapshots show after the log has evicted the output.

use super::Stream;

/// The head and tail of every stream, filled as bytes leave the log.
///
/// Streams have separate buffers, so that a line on one survives megabytes on another.
#[derive(Debug, Default)]
pub(super) struct HeadTail {
    streams: [StreamEnds; 3],
    /// The limit on all heads together; each of two streams may always use half of it.
    heads: usize,
    /// The limit on one tail, including the readable bytes of the stream.
    tail: usize,
}

/// The head and tail of one stream.
#[derive(Debug, Default)]
struct StreamEnds {
    /// The first bytes of the stream, without gaps.
    head: Vec<u8>,
    /// The last bytes before the readable ones.
    tail: Vec<u8>,
    /// The number of bytes that have left the log.
    evicted: u64,
    /// The number of readable bytes.
    readable: usize,
}

impl HeadTail {
    pub(super) fn new(heads: usize) -> Self {
        HeadTail { streams: Default::default(), heads, tail: heads / 4 }
    }

    /// Records bytes that were appended to the log.
    pub(super) fn appended(&mut self, stream: Stream, len: usize) {
        let tail = self.tail;
        let ends = &mut self.streams[index(stream)];
        ends.readable += len;
        if !ends.tail.is_empty() {
            ends.trim_tail(tail);
        }
    }

    /// Records bytes that were evicted from the log.
    pub(super) fn evicted(&mut self, stream: Stream, bytes: &[u8]) {
        let room = self.head_room(stream).min(bytes.len());
        let (to_head, rest) = bytes.split_at(room);
        self.make_room(stream, to_head.len());
        let tail = self.tail;
        let ends = &mut self.streams[index(stream)];
        ends.head.extend_from_slice(to_head);
        ends.evicted += bytes.len() as u64;
        ends.readable -= bytes.len();
        if ends.readable < tail {
            ends.tail.extend_from_slice(&rest[rest.len().saturating_sub(tail)..]);
        }
        ends.trim_tail(tail);
    }

    /// Drops all heads and tails.
    pub(super) fn clear(&mut self) {
        for ends in &mut self.streams {
            ends.head = Vec::new();
            ends.tail = Vec::new();
        }
    }

    /// Returns how many bytes are kept.
    pub(super) fn len(&self) -> usize {
        self.streams.iter().map(StreamEnds::len).sum()
    }

    /// Returns how much [`Self::len`] may grow when `len` bytes leave the log.
    pub(super) fn growth(&self, len: usize) -> usize {
        let of_stream = |stream: Stream| {
            let ends = &self.streams[index(stream)];
            let tail = if ends.readable < self.tail + len { self.tail - ends.tail.len() } else { 0 };
            (self.head_room(stream) + tail).min(ends.readable)
        };
        [Stream::Stdout, Stream::Stderr, Stream::Pty].into_iter().map(of_stream).sum::<usize>().min(len)
    }

    /// Returns the bytes of memory allocated.
    pub(super) fn memory(&self) -> usize {
        self.streams.iter().map(|ends| ends.head.capacity() + ends.tail.capacity()).sum()
    }

    /// Returns head and tail of a stream.
    pub(super) fn ends(&self, stream: Stream) -> [&[u8]; 2] {
        let ends = &self.streams[index(stream)];
        [&ends.head, &ends.tail]
    }

    /// Returns how much the head of a stream may grow.
    fn head_room(&self, stream: Stream) -> usize {
        let ends = &self.streams[index(stream)];
        if ends.evicted != ends.head.len() as u64 {
            return 0;
        }
        // Another head that exceeds its half gives up the excess.
        let others = self.heads_but(stream).min(self.heads / 2);
        self.heads.saturating_sub(others + ends.head.len())
    }

    /// Shortens other heads so that this one may grow.
    fn make_room(&mut self, stream: Stream, len: usize) {
        let own = index(stream);
        let most = self.heads.saturating_sub(self.streams[own].head.len() + len);
        if self.heads_but(stream) <= most {
            return;
        }
        for (other, ends) in self.streams.iter_mut().enumerate() {
            if other != own && ends.head.len() > most {
                ends.head.truncate(most);
                ends.head.shrink_to_fit();
            }
        }
    }

    fn heads_but(&self, stream: Stream) -> usize {
        let own = index(stream);
        self.streams
            .iter()
            .enumerate()
            .filter(|(other, _)| *other != own)
            .map(|(_, ends)| ends.head.len())
            .sum()
    }
}

impl StreamEnds {
    fn len(&self) -> usize {
        self.head.len() + self.tail.len()
    }

    /// Trims the tail so that it and the readable bytes are at most `tail` bytes.
    fn trim_tail(&mut self, tail: usize) {
        let wanted = tail.saturating_sub(self.readable);
        if wanted == 0 {
            self.tail = Vec::new();
        } else if self.tail.len() > wanted {
            self.tail.drain(..self.tail.len() - wanted);
        }
    }
}

fn index(stream: Stream) -> usize {
    match stream {
        Stream::Stdout => 0,
        Stream::Stderr => 1,
        Stream::Pty | Stream::Unknown => 2,
    }
}
