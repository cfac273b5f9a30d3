//! Decodes received bytes into messages and control frames.

use std::collections::TryReserveError;

use bytes::{BufMut, Bytes, buf::Limit};

use super::frame::{
    self, BINARY, CLOSE, CONTINUATION, FIN, LENGTH, LENGTH_IN_2, LENGTH_IN_8, MASKED, MAX_CONTROL_LEN,
    OPCODE, PING, PONG, RESERVED, TEXT,
};
use crate::Role;

/// From this length on, a payload is read straight into its message, without an intermediate buffer.
const DIRECT_LEN: usize = 16 * 1024;

/// The capacity that an idle decoder may keep.
const IDLE_CAPACITY: usize = 1024;

/// Decodes received bytes into messages and control frames; joins fragments and removes masks.
///
/// The same bytes give the same events however they are split. Memory grows with the received bytes, never with the
/// length that a head declares. After [`Event::Close`], [`Event::TooLong`], [`Event::NoMemory`] or
/// [`Event::Violation`] all further input is ignored, because frame boundaries can no longer be trusted.
///
/// ```
/// use remex_rpc::{Role, websocket::{Decoder, Event}};
///
/// let mut decoder = Decoder::new(Role::Client, 1024);
/// decoder.push(b"\x81\x02h");
/// assert_eq!(decoder.next(), None);
/// decoder.push(b"i");
/// assert_eq!(decoder.next(), Some(Event::Message("hi".into())));
/// ```
#[derive(Debug)]
pub struct Decoder {
    role: Role,
    max_message_len: usize,
    state: DecoderState,
    /// Received bytes; those from `consumed` on are not decoded yet.
    input: Vec<u8>,
    /// consumed <= input.len()
    consumed: usize,
    /// The received part of the current message, over all its fragments.
    message: Vec<u8>,
    /// The length of `message` that is unmasked and counted; bytes after it were read in directly.
    settled: usize,
    /// Whether the current message began in an earlier frame.
    fragmented: bool,
}

/// A decoded message or control frame, or an error.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// A whole message, text or binary.
    Message(Bytes),
    /// A ping; respond with a pong of the same payload.
    Ping(Bytes),
    /// A pong, in response to a ping or unsolicited.
    Pong(Bytes),
    /// The peer closes the connection.
    Close {
        /// The status code, if the peer sent one.
        code: Option<u16>,
        /// The reason; often empty.
        reason: String,
    },
    /// A message would exceed the limit.
    TooLong,
    /// Memory for a message could not be allocated.
    NoMemory,
    /// The peer violated the protocol.
    Violation(Violation),
}

/// A violation of the WebSocket protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    /// A reserved bit is set, although no extension was negotiated.
    #[error("a reserved bit is set in a frame although no extension was negotiated")]
    ReservedBits,
    /// The opcode is reserved.
    #[error("a frame has the reserved opcode {opcode:#x}")]
    ReservedOpcode {
        /// The opcode found.
        opcode: u8,
    },
    /// A frame from the client is not masked.
    #[error("a frame from the client is not masked")]
    Unmasked,
    /// A frame from the server is masked.
    #[error("a frame from the server is masked")]
    Masked,
    /// The length is not in its shortest form, or does not fit 63 bits.
    #[error("the length of a frame is not in its shortest form")]
    LengthNotMinimal,
    /// A control frame with more than 125 bytes.
    #[error("a control frame is longer than 125 bytes")]
    ControlTooLong,
    /// A control frame in several fragments.
    #[error("a control frame is fragmented")]
    ControlFragmented,
    /// A continuation frame without a message to continue.
    #[error("a continuation frame has no message to continue")]
    NothingToContinue,
    /// A new message before the previous one is complete.
    #[error("a message begins before the previous one is complete")]
    MessageInterrupted,
    /// A close frame with an incomplete or reserved status code.
    #[error("a close frame has no valid code")]
    CloseCode,
    /// A close frame whose reason is not UTF-8.
    #[error("the reason in a close frame is not valid UTF-8")]
    CloseReason,
}

impl Violation {
    /// Returns the status code to close the connection with.
    pub fn code(self) -> u16 {
        match self {
            Violation::CloseReason => 1007,
            _ => 1002,
        }
    }
}

#[derive(Debug, Clone, Copy)]
enum DecoderState {
    Head,
    Payload(Payload),
    Finished,
}

/// The rest of a data frame.
#[derive(Debug, Clone, Copy)]
struct Payload {
    /// message.len() + remaining <= max_message_len, direct bytes counted once
    remaining: usize,
    /// The mask, rotated so that its first byte applies to the next byte of the payload.
    key: Option<[u8; 4]>,
    last: bool,
}

impl Decoder {
    /// Creates a decoder for the end with this role; a longer message is [`Event::TooLong`].
    pub fn new(role: Role, max_message_len: usize) -> Self {
        Decoder {
            role,
            max_message_len,
            state: DecoderState::Head,
            input: Vec::new(),
            consumed: 0,
            message: Vec::new(),
            settled: 0,
            fragmented: false,
        }
    }

    /// Adds received bytes. Take all events before adding more, or the input accumulates.
    pub fn push(&mut self, bytes: &[u8]) {
        if !matches!(self.state, DecoderState::Finished) {
            self.input.extend_from_slice(bytes);
        }
    }

    /// Returns a buffer to read the next bytes into directly, if that saves copying them.
    ///
    /// Call it only right after the decoder has returned `None`.
    ///
    /// # Errors
    ///
    /// If memory cannot be allocated.
    pub(crate) fn direct_room(&mut self) -> Result<Option<Limit<&mut Vec<u8>>>, TryReserveError> {
        let DecoderState::Payload(Payload { remaining, .. }) = self.state else { return Ok(None) };
        if remaining < DIRECT_LEN {
            return Ok(None);
        }
        if self.message.capacity() - self.message.len() < DIRECT_LEN {
            // Doubling copies little, and allocates no more for the declared length than has been received.
            self.message.try_reserve_exact(remaining.min(self.message.len().max(DIRECT_LEN)))?;
        }
        let room = remaining.min(self.message.capacity() - self.message.len());
        Ok(Some((&mut self.message).limit(room)))
    }

    /// Returns the received length of the current message, and its maximum length.
    pub(crate) fn unfinished_len(&self) -> (usize, usize) {
        let received = self.message.len();
        match self.state {
            DecoderState::Payload(Payload { remaining, last: true, .. }) => {
                (received, self.settled + remaining)
            }
            DecoderState::Payload(_) | DecoderState::Head | DecoderState::Finished => {
                (received, self.max_message_len)
            }
        }
    }

    fn head(&mut self) -> Found {
        let unread = &self.input[self.consumed..];
        let head = match Head::parse(unread, self.role, self.fragmented) {
            Ok(Some(head)) => head,
            Ok(None) => return Found::Nothing,
            Err(violation) => return Found::Event(Event::Violation(violation)),
        };
        if head.is_control() {
            let frame_len = head.len + head.payload_len as usize;
            let Some(payload) = unread.get(head.len..frame_len) else { return Found::Nothing };
            let event = control(&head, payload);
            self.consumed += frame_len;
            return Found::Event(event);
        }
        if head.payload_len > (self.max_message_len - self.message.len()) as u64 {
            return Found::Event(Event::TooLong);
        }
        self.consumed += head.len;
        self.fragmented |= !head.last;
        self.state = DecoderState::Payload(Payload {
            remaining: head.payload_len as usize,
            key: head.key,
            last: head.last,
        });
        Found::Progress
    }

    fn payload(&mut self, mut payload: Payload) -> Found {
        let unread = &self.input[self.consumed..];
        let direct = self.message.len() - self.settled;
        let taken = unread.len().min(payload.remaining - direct);
        let reserved = if self.fragmented {
            self.message.try_reserve(taken)
        } else {
            self.message.try_reserve_exact(taken)
        };
        if reserved.is_err() {
            return Found::Event(Event::NoMemory);
        }
        self.message.extend_from_slice(&unread[..taken]);
        self.consumed += taken;

        let fresh = &mut self.message[self.settled..];
        if let Some(key) = &mut payload.key {
            frame::mask(fresh, *key);
            key.rotate_left(fresh.len() % 4);
        }
        payload.remaining -= fresh.len();
        self.settled = self.message.len();

        if payload.remaining > 0 {
            self.state = DecoderState::Payload(payload);
            return Found::Nothing;
        }
        self.state = DecoderState::Head;
        if !payload.last {
            return Found::Progress;
        }
        self.fragmented = false;
        self.settled = 0;
        let mut message = std::mem::take(&mut self.message);
        // Release the spare capacity from joining fragments, which the message would otherwise keep.
        message.shrink_to_fit();
        Found::Event(Event::Message(message.into()))
    }

    /// Drops consumed input; at most an incomplete head or control frame remains.
    fn tidy(&mut self) {
        self.input.drain(..self.consumed);
        self.consumed = 0;
        if self.input.capacity() > IDLE_CAPACITY {
            self.input.shrink_to(0);
        }
    }

    fn finish(&mut self) {
        self.state = DecoderState::Finished;
        self.input = Vec::new();
        self.message = Vec::new();
    }
}

/// Returns `None` when it needs more bytes, and continues after they are pushed.
impl Iterator for Decoder {
    type Item = Event;

    fn next(&mut self) -> Option<Event> {
        loop {
            let found = match self.state {
                DecoderState::Head => self.head(),
                DecoderState::Payload(payload) => self.payload(payload),
                DecoderState::Finished => return None,
            };
            match found {
                Found::Event(event) => {
                    if matches!(
                        event,
                        Event::Close { .. } | Event::TooLong | Event::NoMemory | Event::Violation(_)
                    ) {
                        self.finish();
                    }
                    return Some(event);
                }
                Found::Progress => {}
                Found::Nothing => {
                    self.tidy();
                    return None;
                }
            }
        }
    }
}

enum Found {
    Event(Event),
    Progress,
    Nothing,
}

struct Head {
    /// The length of the head itself.
    len: usize,
    opcode: u8,
    payload_len: u64,
    key: Option<[u8; 4]>,
    last: bool,
}

impl Head {
    /// Returns the head at the start of `bytes`, or `None` if it is incomplete.
    ///
    /// `continues` says whether a fragmented message is incomplete.
    fn parse(bytes: &[u8], role: Role, continues: bool) -> Result<Option<Head>, Violation> {
        let &[first, second, ref rest @ ..] = bytes else { return Ok(None) };
        let last = first & FIN != 0;
        let opcode = first & OPCODE;
        let short_len = second & LENGTH;
        if first & RESERVED != 0 {
            return Err(Violation::ReservedBits);
        }
        match opcode {
            CONTINUATION if !continues => return Err(Violation::NothingToContinue),
            TEXT | BINARY if continues => return Err(Violation::MessageInterrupted),
            CONTINUATION | TEXT | BINARY => {}
            CLOSE | PING | PONG if !last => return Err(Violation::ControlFragmented),
            CLOSE | PING | PONG if usize::from(short_len) > MAX_CONTROL_LEN => {
                return Err(Violation::ControlTooLong);
            }
            CLOSE | PING | PONG => {}
            _ => return Err(Violation::ReservedOpcode { opcode }),
        }
        let masked = second & MASKED != 0;
        match role {
            Role::Server if !masked => return Err(Violation::Unmasked),
            Role::Client if masked => return Err(Violation::Masked),
            _ => {}
        }
        let (payload_len, rest) = match short_len {
            LENGTH_IN_2 => {
                let Some((len, rest)) = rest.split_first_chunk() else { return Ok(None) };
                (u64::from(u16::from_be_bytes(*len)), rest)
            }
            LENGTH_IN_8 => {
                let Some((len, rest)) = rest.split_first_chunk() else { return Ok(None) };
                (u64::from_be_bytes(*len), rest)
            }
            len => (u64::from(len), rest),
        };
        let minimal = match short_len {
            LENGTH_IN_2 => payload_len > MAX_CONTROL_LEN as u64,
            LENGTH_IN_8 => payload_len > u64::from(u16::MAX) && payload_len <= i64::MAX as u64,
            _ => true,
        };
        if !minimal {
            return Err(Violation::LengthNotMinimal);
        }
        let (key, rest) = if masked {
            let Some((key, rest)) = rest.split_first_chunk() else { return Ok(None) };
            (Some(*key), rest)
        } else {
            (None, rest)
        };
        Ok(Some(Head { len: bytes.len() - rest.len(), opcode, payload_len, key, last }))
    }

    fn is_control(&self) -> bool {
        matches!(self.opcode, CLOSE | PING | PONG)
    }
}

fn control(head: &Head, payload: &[u8]) -> Event {
    let mut payload = payload.to_vec();
    if let Some(key) = head.key {
        frame::mask(&mut payload, key);
    }
    match head.opcode {
        PING => Event::Ping(payload.into()),
        PONG => Event::Pong(payload.into()),
        _ => close(&payload),
    }
}

fn close(payload: &[u8]) -> Event {
    if payload.is_empty() {
        return Event::Close { code: None, reason: String::new() };
    }
    let Some((code, reason)) = payload.split_first_chunk() else {
        return Event::Violation(Violation::CloseCode);
    };
    let code = u16::from_be_bytes(*code);
    // 1004 to 1006 and 1015 are reserved and must not be sent.
    if !matches!(code, 1000..=1003 | 1007..=1014 | 3000..=4999) {
        return Event::Violation(Violation::CloseCode);
    }
    match std::str::from_utf8(reason) {
        Ok(reason) => Event::Close { code: Some(code), reason: reason.to_owned() },
        Err(_) => Event::Violation(Violation::CloseReason),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_grows_with_received_bytes_and_not_with_the_declared_length() {
        let mut decoder = Decoder::new(Role::Client, 64 << 20);
        decoder.push(b"\x81\x7F\x00\x00\x00\x00\x03\xFF\xFF\xFF");
        assert_eq!(decoder.next(), None);
        assert_eq!(decoder.direct_room().unwrap().unwrap().remaining_mut(), DIRECT_LEN);
        decoder.push(&[b'x'; 100_000]);
        assert_eq!(decoder.next(), None);
        assert_eq!(decoder.direct_room().unwrap().unwrap().remaining_mut(), 100_000);
    }

    #[test]
    fn an_idle_decoder_holds_almost_nothing() {
        let mut decoder = Decoder::new(Role::Client, 64 << 20);
        decoder.push(&b"\x81\x02hi".repeat(20_000));
        decoder.push(b"\x81");
        assert_eq!(decoder.by_ref().count(), 20_000);
        assert!(decoder.input.capacity() + decoder.message.capacity() <= IDLE_CAPACITY);
    }
}
