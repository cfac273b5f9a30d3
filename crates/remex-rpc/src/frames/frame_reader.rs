//! Reads messages from one connection.

use std::{cell::Cell, future::poll_fn, io, pin::Pin, task::Poll};

use bytes::Bytes;
use remex_proto::state::line_framer::{Line, LineFramer};
use tokio::io::{AsyncRead, AsyncReadExt, ReadBuf};

use crate::{Framing, ReadHalf, frames::websocket};

/// The most that one read returns, unless it goes straight into a large message.
const READ_LEN: usize = 64 * 1024;

/// From this length on, the rest of a line is read straight into its message.
const DIRECT_LEN: usize = 16 * 1024;

/// The buffer of a line doubles, but grows by at most this much.
const MAX_ROOM: usize = 4 * 1024 * 1024;

thread_local! {
    /// The read buffer, before messages are split. One per thread instead of per connection, so that an idle
    /// connection holds no buffer and a busy one still reads large blocks.
    static SCRATCH: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

/// Reads messages from one connection, in either framing.
///
/// Memory grows with the received bytes, up to the limit of one message; between messages it holds almost nothing.
pub struct FrameReader {
    io: ReadHalf,
    decoder: FrameDecoder,
    max_message_len: usize,
    state: ReaderState,
    /// The length from which a message is announced.
    long_len: usize,
    /// Whether the current message was announced.
    is_announced: bool,
    /// The current message is abandoned once it is longer than this.
    allowed_len: usize,
}

/// A message, control frame or end of a connection; see [`FrameReader::next`].
#[derive(Debug)]
pub enum Incoming {
    /// A whole message without its framing; never blank on lines, possibly empty on a WebSocket.
    Message(Bytes),
    /// A message exceeds the limit. With line framing it is skipped and the next one follows; a WebSocket ends here.
    TooLong {
        /// The limit in bytes.
        limit: usize,
    },
    /// An incomplete message exceeds the length given to [`FrameReader::announcing`]; the rest is read when
    /// [`FrameReader::next`] is called again.
    Long {
        /// The longest that it may become, in bytes.
        max_len: usize,
    },
    /// Memory for a message could not be allocated, or is not allowed ([`FrameReader::limit_unfinished`]). With line
    /// framing it is skipped and the next one follows; a WebSocket ends here.
    NoMemory {
        /// The bytes received of it.
        received: usize,
    },
    /// A WebSocket ping; respond with a pong of the same payload.
    Ping(Bytes),
    /// A WebSocket pong.
    Pong(Bytes),
    /// A WebSocket close frame.
    Close {
        /// The status code, if the peer sent one.
        code: Option<u16>,
        /// The reason; often empty.
        reason: String,
    },
    /// The peer violated the WebSocket protocol.
    Violation {
        /// The status code to close the connection with.
        code: u16,
        /// The violation, for the close frame and the log.
        reason: String,
    },
    /// The peer has closed its sending side.
    End,
    /// The connection failed.
    Failed(io::Error),
}

enum FrameDecoder {
    Lines(LineFramer),
    WebSocket(websocket::Decoder),
}

#[derive(PartialEq)]
enum ReaderState {
    Open,
    /// The input has ended; an unterminated last line may be left.
    Draining,
    Ended,
}

impl FrameReader {
    /// Creates a reader for messages of up to `max_message_len` bytes, not counting framing.
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
            state: ReaderState::Open,
            long_len: usize::MAX,
            is_announced: false,
            allowed_len: usize::MAX,
        }
    }

    /// Announces each message longer than this once, with [`Incoming::Long`], before reading the rest of it.
    #[must_use]
    pub fn announcing(mut self, long_len: usize) -> Self {
        self.long_len = long_len;
        self
    }

    /// Accepts binary messages between lines from the next message on; on a WebSocket every message may be binary.
    pub fn accept_binary(&mut self) {
        if let FrameDecoder::Lines(framer) = &mut self.decoder {
            framer.accept_binary();
        }
    }

    /// Announces messages from another length on; the current one once more, if it becomes longer than this.
    pub fn announce_from(&mut self, long_len: usize) {
        self.long_len = long_len;
    }

    /// Abandons the current message once it is longer than this, as if there were no memory for it.
    pub fn limit_unfinished(&mut self, max_len: usize) {
        self.allowed_len = max_len;
    }

    /// Returns the received length of the current message in bytes.
    pub fn unfinished_len(&self) -> usize {
        self.decoder.unfinished_len().0
    }

    /// Adds bytes that were already read from the connection.
    pub(crate) fn with_received(mut self, bytes: &[u8]) -> Self {
        self.decoder.push(bytes);
        self
    }

    /// Returns whether the peer has closed its sending side; with line framing, the last message may then be
    /// incomplete.
    pub fn has_ended(&self) -> bool {
        self.state != ReaderState::Open
    }

    /// Waits for the next item. After the end it always returns the end again.
    ///
    /// Cancel-safe: dropping the future loses nothing.
    pub async fn next(&mut self) -> Incoming {
        loop {
            let found = match self.state {
                ReaderState::Open => self.decoder.next(self.max_message_len),
                ReaderState::Draining => Some(self.decoder.finish(self.max_message_len)),
                ReaderState::Ended => Some(Incoming::End),
            };
            if let Some(incoming) = found {
                if self.is_last(&incoming) {
                    self.state = ReaderState::Ended;
                }
                // Control frames may come between the fragments of a message.
                if !matches!(incoming, Incoming::Ping(_) | Incoming::Pong(_)) {
                    (self.is_announced, self.allowed_len) = (false, usize::MAX);
                }
                return incoming;
            }
            let (received, max_len) = self.decoder.unfinished_len();
            if received > self.allowed_len {
                return self.give_up(received);
            }
            let was_announced = std::mem::replace(&mut self.is_announced, received > self.long_len);
            if self.is_announced && !was_announced {
                return Incoming::Long { max_len };
            }
            match self.read().await {
                Ok(0) => self.state = ReaderState::Draining,
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::OutOfMemory => {
                    return self.give_up(received);
                }
                Err(error) => {
                    self.state = ReaderState::Ended;
                    return Incoming::Failed(error);
                }
            }
        }
    }

    /// Skips the rest of the current message.
    fn give_up(&mut self, received: usize) -> Incoming {
        (self.is_announced, self.allowed_len) = (false, usize::MAX);
        match &mut self.decoder {
            FrameDecoder::Lines(framer) => framer.skip_unfinished(),
            FrameDecoder::WebSocket(_) => self.state = ReaderState::Ended,
        }
        Incoming::NoMemory { received }
    }

    /// Reads and discards input until the peer closes its sending side.
    ///
    /// Closing a socket with unread bytes resets the connection, and the peer may lose the last messages. To end a
    /// connection early, send them, shut down the sending side, then call this with a timeout.
    pub async fn discard(&mut self) {
        self.state = ReaderState::Ended;
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

    /// Returns the received length of the current message, and its maximum length.
    fn unfinished_len(&self) -> (usize, usize) {
        match self {
            FrameDecoder::Lines(framer) => (framer.unfinished_len(), framer.unfinished_max_len()),
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
