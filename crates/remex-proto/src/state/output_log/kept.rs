//! What a snapshot still has of output that can no longer be read: head and tail of each stream.

use super::Stream;

/// Head and tail of every stream, filled when bytes leave the log.
///
/// The streams have their own, so that a line on one survives megabytes on the other.
#[derive(Debug, Default)]
pub(super) struct Kept {
    streams: [Ends; 3],
    /// What all heads may have together; each of two streams may have half of it in any case.
    heads: usize,
    /// What one tail may have, readable bytes of the stream included.
    tail: usize,
}

/// What is kept of one stream.
#[derive(Debug, Default)]
struct Ends {
    /// The first bytes, as long as nothing is missing in between.
    head: Vec<u8>,
    /// The last bytes before those that can be read.
    tail: Vec<u8>,
    /// How many bytes have left the log.
    evicted: u64,
    /// How many bytes can be read.
    readable: usize,
}

impl Kept {
    pub(super) fn new(heads: usize) -> Self {
        Kept { streams: Default::default(), heads, tail: heads / 4 }
    }

    /// Notes bytes that can be read from now on.
    pub(super) fn appended(&mut self, stream: Stream, len: usize) {
        let tail = self.tail;
        let ends = &mut self.streams[index(stream)];
        ends.readable += len;
        if !ends.tail.is_empty() {
            ends.trim_tail(tail);
        }
    }

    /// Notes bytes that can no longer be read.
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

    /// Forgets everything that is kept.
    pub(super) fn clear(&mut self) {
        for ends in &mut self.streams {
            ends.head = Vec::new();
            ends.tail = Vec::new();
        }
    }

    /// Returns how many bytes are kept.
    pub(super) fn len(&self) -> usize {
        self.streams.iter().map(Ends::len).sum()
    }

    /// Returns by how much [`Self::len`] may grow when `len` bytes leave the log.
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

    /// Returns by how much the head of a stream may grow.
    fn head_room(&self, stream: Stream) -> usize {
        let ends = &self.streams[index(stream)];
        if ends.evicted != ends.head.len() as u64 {
            return 0;
        }
        // Another head with more than its share gives the rest of it up.
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

impl Ends {
    fn len(&self) -> usize {
        self.head.len() + self.tail.len()
    }

    /// Keeps as much of the tail as makes `tail` bytes with those that can be read.
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
        Stream::Pty => 2,
    }
}
