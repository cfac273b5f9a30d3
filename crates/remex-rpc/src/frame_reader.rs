//! Reads messages from one connection.

use std::{cell::Cell, future::poll_fn, io, pin::Pin, task::Poll};

use bytes::Bytes;
use remex_proto::state::line_framer::{Line, LineFramer};
use tokio::io::{AsyncRead, AsyncReadExt, ReadBuf};

use crate::{Framing, ReadHalf, websocket};

/// How much one read takes at most, unless it goes straight into a large message.
const READ_LEN: usize = 64 * 1024;

/// From here on the rest of a line is read straight into its message.
const DIRECT_LEN: usize = 16 * 1024;

/// A line gets room for as much again as it has, and for no more than this.
const MAX_ROOM: usize = 4 * 1024 * 1024;

thread_local! {
    /// Where reads land before they are cut into messages. It belongs to the thread, not to the connection, so
    /// that an idle connection holds no buffer and a busy one still reads much at once.
    static SCRATCH: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

/// Reads messages from one connection, in either framing.
///
/// Memory grows with what has arrived, up to the limit of one message; between messages almost nothing is held.
pub struct FrameReader {
    io: ReadHalf,
    decoder: FrameDecoder,
    max_message_len: usize,
    state: State,
    /// From this length on a message is announced.
    long_len: usize,
    /// The message that is being received was announced.
    is_announced: bool,
}

/// What [`FrameReader::next`] found.
#[derive(Debug)]
pub enum Incoming {
    /// A whole message without its framing; never blank on lines, possibly empty on a WebSocket.
    Message(Bytes),
    /// A message passed the limit. On lines it is skipped and the next one follows; a WebSocket ends here.
    TooLong {
        /// The limit in bytes.
        limit: usize,
    },
    /// More of a message has come than [`FrameReader::announcing`] says, and its end has not; the rest is read when
    /// [`FrameReader::next`] is called again.
    Long {
        /// The most that it may have, in bytes.
        max_len: usize,
    },
    /// There is no memory for a message. On lines it is skipped and the next one follows; a WebSocket ends here.
    NoMemory {
        /// How much of it had come, in bytes.
        received: usize,
    },
    /// A WebSocket peer wants a pong with the same payload.
    Ping(Bytes),
    /// The answer of a WebSocket peer to a ping.
    Pong(Bytes),
    /// A WebSocket peer says goodbye.
    Close {
        /// The peer's reason as a number, if it gave one.
        code: Option<u16>,
        /// The peer's reason in words, often empty.
        reason: String,
    },
    /// A WebSocket peer broke the protocol.
    Violation {
        /// What to close the connection with.
        code: u16,
        /// What it did, for the close frame and the log.
        reason: String,
    },
    /// The peer sends no more.
    End,
    /// The connection broke.
    Failed(io::Error),
}

enum FrameDecoder {
    Lines(LineFramer),
    WebSocket(websocket::Decoder),
}

#[derive(PartialEq)]
enum State {
    Open,
    /// The input has ended; lines may still hold an unterminated last one.
    Draining,
    Ended,
}

impl FrameReader {
    /// Creates a reader; `max_message_len` bounds one message without its framing.
    pub fn new(io: ReadHalf, framing: Framing, max_message_len: usize) -> Self {
        let decoder = match framing {
            Framing::Lines => FrameDecoder::Lines(LineFramer::new(max_message_len)),
            Framing::WebSocket(role) => {
                FrameDecoder::WebSocket(websocket::Decoder::new(role, max_message_len))
            }
        };
        FrameReader {
            io,
            decoder,
            max_message_len,
            state: State::Open,
            long_len: usize::MAX,
            is_announced: false,
        }
    }

    /// Announces messages that are longer than this, once each, before the rest of them is read.
    #[must_use]
    pub fn announcing(mut self, long_len: usize) -> Self {
        self.long_len = long_len;
        self
    }

    /// Returns how much has come of the message that is being received, in bytes.
    pub fn unfinished_len(&self) -> usize {
        self.decoder.unfinished_len(self.max_message_len).0
    }

    /// Adds bytes that somebody else has already read from the connection.
    pub(crate) fn with_received(mut self, bytes: &[u8]) -> Self {
        self.decoder.push(bytes);
        self
    }

    /// Tells whether the peer sends no more; the last message on lines may then be a part of one.
    pub fn has_ended(&self) -> bool {
        self.state != State::Open
    }

    /// Waits for what comes next. Once the end was reported, it is reported for ever.
    ///
    /// Cancel-safe: nothing is lost when the future is dropped.
    pub async fn next(&mut self) -> Incoming {
        loop {
            let found = match self.state {
                State::Open => self.decoder.next(self.max_message_len),
                State::Draining => Some(self.decoder.finish(self.max_message_len)),
                State::Ended => Some(Incoming::End),
            };
            if let Some(incoming) = found {
                if self.is_last(&incoming) {
                    self.state = State::Ended;
                }
                // Control frames come between the fragments of a message.
                if !matches!(incoming, Incoming::Ping(_) | Incoming::Pong(_)) {
                    self.is_announced = false;
                }
                return incoming;
            }
            let (received, max_len) = self.decoder.unfinished_len(self.max_message_len);
            let was_announced = std::mem::replace(&mut self.is_announced, received > self.long_len);
            if self.is_announced && !was_announced {
                return Incoming::Long { max_len };
            }
            match self.read().await {
                Ok(0) => self.state = State::Draining,
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::OutOfMemory => {
                    self.is_announced = false;
                    match &mut self.decoder {
                        FrameDecoder::Lines(framer) => framer.skip_unfinished(),
                        FrameDecoder::WebSocket(_) => self.state = State::Ended,
                    }
                    return Incoming::NoMemory { received };
                }
                Err(error) => {
                    self.state = State::Ended;
                    return Incoming::Failed(error);
                }
            }
        }
    }

    /// Reads and forgets until the peer sends no more.
    ///
    /// A socket that is closed with unread bytes resets the connection, and the last words to the peer are lost.
    /// Whoever ends a connection in the middle of a conversation sends, shuts its sending side down, then calls
    /// this for a moment.
    pub async fn discard(&mut self) {
        self.state = State::Ended;
        while matches!(self.read_scratch(|_, _| {}).await, Ok(len) if len > 0) {}
    }

    fn is_last(&self, incoming: &Incoming) -> bool {
        match incoming {
            Incoming::Message(_) | Incoming::Long { .. } | Incoming::Ping(_) | Incoming::Pong(_) => false,
            Incoming::TooLong { .. } | Incoming::NoMemory { .. } => {
                matches!(self.decoder, FrameDecoder::WebSocket(_))
            }
            Incoming::Close { .. } | Incoming::Violation { .. } | Incoming::End | Incoming::Failed(_) => true,
        }
    }

    async fn read(&mut self) -> io::Result<usize> {
        match &mut self.decoder {
            FrameDecoder::Lines(framer) => {
                let line = framer.buffer_mut();
                if line.len() >= DIRECT_LEN {
                    if line.capacity() - line.len() < DIRECT_LEN {
                        line.try_reserve_exact(line.len().clamp(READ_LEN, MAX_ROOM))?;
                    }
                    return self.io.read_buf(line).await;
                }
            }
            FrameDecoder::WebSocket(decoder) => {
                if let Some(mut room) = decoder.direct_room()? {
                    return self.io.read_buf(&mut room).await;
                }
            }
        }
        self.read_scratch(FrameDecoder::push).await
    }

    async fn read_scratch(&mut self, take: fn(&mut FrameDecoder, &[u8])) -> io::Result<usize> {
        poll_fn(|context| {
            let mut scratch = SCRATCH.take();
            scratch.resize(READ_LEN, 0);
            let mut buffer = ReadBuf::new(&mut scratch);
            let polled = Pin::new(&mut self.io).poll_read(context, &mut buffer);
            let read = match polled {
                Poll::Ready(Ok(())) => {
                    take(&mut self.decoder, buffer.filled());
                    Poll::Ready(Ok(buffer.filled().len()))
                }
                Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
                Poll::Pending => Poll::Pending,
            };
            SCRATCH.set(scratch);
            read
        })
        .await
    }
}

impl FrameDecoder {
    fn push(&mut self, bytes: &[u8]) {
        match self {
            FrameDecoder::Lines(framer) => framer.push(bytes),
            FrameDecoder::WebSocket(decoder) => decoder.push(bytes),
        }
    }

    /// Returns how much of a message has come, and how long it may be at most.
    fn unfinished_len(&self, limit: usize) -> (usize, usize) {
        match self {
            FrameDecoder::Lines(framer) => (framer.unfinished_len(), limit),
            FrameDecoder::WebSocket(decoder) => decoder.unfinished_len(),
        }
    }

    fn next(&mut self, limit: usize) -> Option<Incoming> {
        match self {
            FrameDecoder::Lines(framer) => framer.next().map(|line| Incoming::from_line(line, limit)),
            FrameDecoder::WebSocket(decoder) => {
                decoder.next().map(|event| Incoming::from_event(event, limit))
            }
        }
    }

    fn finish(&mut self, limit: usize) -> Incoming {
        match self {
            FrameDecoder::Lines(framer) => {
                framer.finish().map_or(Incoming::End, |line| Incoming::from_line(line, limit))
            }
            FrameDecoder::WebSocket(_) => Incoming::End,
        }
    }
}

impl Incoming {
    fn from_line(line: Line, limit: usize) -> Self {
        match line {
            Line::Message(message) => Incoming::Message(message),
            Line::TooLong => Incoming::TooLong { limit },
        }
    }

    fn from_event(event: websocket::Event, limit: usize) -> Self {
        use websocket::Event;
        match event {
            Event::Message(message) => Incoming::Message(message),
            Event::Ping(payload) => Incoming::Ping(payload),
            Event::Pong(payload) => Incoming::Pong(payload),
            Event::Close { code, reason } => Incoming::Close { code, reason },
            Event::TooLong => Incoming::TooLong { limit },
            Event::NoMemory => Incoming::NoMemory { received: 0 },
            Event::Violation(violation) => {
                Incoming::Violation { code: violation.code(), reason: violation.to_string() }
            }
        }
    }
}
