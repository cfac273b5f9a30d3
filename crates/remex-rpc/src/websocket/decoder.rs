//! Turns received bytes into messages and control frames.

use std::collections::TryReserveError;

use bytes::{BufMut, Bytes, buf::Limit};

use super::frame::{
    self, BINARY, CLOSE, CONTINUATION, FIN, LENGTH, LENGTH_IN_2, LENGTH_IN_8, MASKED, MAX_CONTROL_LEN,
    OPCODE, PING, PONG, RESERVED, TEXT,
};
use crate::Role;

/// From here on a payload is worth being read straight into its message, without passing through a buffer.
const DIRECT_LEN: usize = 16 * 1024;

/// What an idle decoder may keep allocated for the next bytes.
const IDLE_CAPACITY: usize = 1024;

/// Turns received bytes into messages and control frames; fragments are joined, masks removed.
///
/// The same bytes give the same events however they are split. Memory grows with what has arrived, never with
/// what a head declares. After [`Event::Close`], [`Event::TooLong`], [`Event::NoMemory`] or [`Event::Violation`] the rest is ignored,
/// because nothing can be trusted to begin where it seems to.
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
    state: State,
    /// Received and not yet looked at, from `consumed` on.
    input: Vec<u8>,
    /// consumed <= input.len()
    consumed: usize,
    /// What has come of the current message, over all its fragments.
    message: Vec<u8>,
    /// How much of `message` is unmasked and counted; beyond it lies what was read in directly.
    settled: usize,
    /// Whether the current message began in an earlier frame.
    fragmented: bool,
}

/// What a [`Decoder`] found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// A whole message, text or binary.
    Message(Bytes),
    /// The peer wants a pong with the same payload.
    Ping(Bytes),
    /// The answer to a ping, or a sign of life.
    Pong(Bytes),
    /// The peer says goodbye.
    Close {
        /// The peer's reason as a number, if it gave one.
        code: Option<u16>,
        /// The peer's reason in words, often empty.
        reason: String,
    },
    /// A message would exceed the limit.
    TooLong,
    /// There is no memory for a message.
    NoMemory,
    /// The peer broke the protocol.
    Violation(Violation),
}

/// How a peer broke the WebSocket protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    /// A reserved bit is set, although no extension was negotiated.
    #[error("a reserved bit is set in a frame although no extension was negotiated")]
    ReservedBits,
    /// The opcode has no meaning.
    #[error("a frame has the reserved opcode {opcode:#x}")]
    ReservedOpcode {
        /// The opcode found.
        opcode: u8,
    },
    /// A client must mask.
    #[error("a frame from the client is not masked")]
    Unmasked,
    /// A server must not mask.
    #[error("a frame from the server is masked")]
    Masked,
    /// The length could have been written shorter, or does not fit 63 bits.
    #[error("a frame does not write its length in the shortest form")]
    LengthNotMinimal,
    /// A control frame with more than 125 bytes.
    #[error("a control frame is longer than 125 bytes")]
    ControlTooLong,
    /// A control frame in several fragments.
    #[error("a control frame is fragmented")]
    ControlFragmented,
    /// A continuation of nothing.
    #[error("a continuation frame continues no message")]
    NothingToContinue,
    /// A new message inside an unfinished one.
    #[error("a message begins before the one before it has ended")]
    MessageInterrupted,
    /// A close frame with half a code or with a code that must not be sent.
    #[error("a close frame has no valid code")]
    CloseCode,
    /// A close frame whose reason is not UTF-8.
    #[error("the reason in a close frame is not valid UTF-8")]
    CloseReason,
}

impl Violation {
    /// Returns the code to close the connection with.
    pub fn code(self) -> u16 {
        match self {
            Violation::CloseReason => 1007,
            _ => 1002,
        }
    }
}

#[derive(Debug, Clone, Copy)]
enum State {
    Head,
    Payload(Payload),
    Finished,
}

/// The rest of a data frame.
#[derive(Debug, Clone, Copy)]
struct Payload {
    /// message.len() + remaining <= max_message_len, direct bytes counted once
    remaining: usize,
    /// Turned so that its first byte meets the next byte.
    key: Option<[u8; 4]>,
    last: bool,
}

impl Decoder {
    /// Creates a decoder for the end with this role; a longer message is [`Event::TooLong`].
    pub fn new(role: Role, max_message_len: usize) -> Self {
        Decoder {
            role,
            max_message_len,
            state: State::Head,
            input: Vec::new(),
            consumed: 0,
            message: Vec::new(),
            settled: 0,
            fragmented: false,
        }
    }

    /// Adds received bytes. Take the events before adding more, or they are kept here.
    pub fn push(&mut self, bytes: &[u8]) {
        if !matches!(self.state, State::Finished) {
            self.input.extend_from_slice(bytes);
        }
    }

    /// Returns where the bytes that follow may be read to directly, when that saves copying them.
    ///
    /// Only to be asked when the decoder has just returned `None`.
    ///
    /// # Errors
    ///
    /// When there is no memory for them.
    pub(crate) fn direct_room(&mut self) -> Result<Option<Limit<&mut Vec<u8>>>, TryReserveError> {
        let State::Payload(Payload { remaining, .. }) = self.state else { return Ok(None) };
        if remaining < DIRECT_LEN {
            return Ok(None);
        }
        if self.message.capacity() - self.message.len() < DIRECT_LEN {
            // Doubling copies little and trusts the declared length no further than what has come.
            self.message.try_reserve_exact(remaining.min(self.message.len().max(DIRECT_LEN)))?;
        }
        let room = remaining.min(self.message.capacity() - self.message.len());
        Ok(Some((&mut self.message).limit(room)))
    }

    /// Returns how much of the current message has come, and how long it may be at most.
    pub(crate) fn unfinished_len(&self) -> (usize, usize) {
        let received = self.message.len();
        match self.state {
            State::Payload(Payload { remaining, last: true, .. }) => (received, self.settled + remaining),
            State::Payload(_) | State::Head | State::Finished => (received, self.max_message_len),
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
        self.state =
            State::Payload(Payload { remaining: head.payload_len as usize, key: head.key, last: head.last });
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
            self.state = State::Payload(payload);
            return Found::Nothing;
        }
        self.state = State::Head;
        if !payload.last {
            return Found::Progress;
        }
        self.fragmented = false;
        self.settled = 0;
        let mut message = std::mem::take(&mut self.message);
        // Fragments were gathered with room to spare, which the message would keep as long as it lives.
        message.shrink_to_fit();
        Found::Event(Event::Message(message.into()))
    }

    /// Forgets what was consumed: at most a part of a head or of a control frame is left.
    fn tidy(&mut self) {
        self.input.drain(..self.consumed);
        self.consumed = 0;
        if self.input.capacity() > IDLE_CAPACITY {
            self.input.shrink_to(0);
        }
    }

    fn finish(&mut self) {
        self.state = State::Finished;
        self.input = Vec::new();
        self.message = Vec::new();
    }
}

/// Ends where more bytes are needed, and goes on when they have been pushed.
impl Iterator for Decoder {
    type Item = Event;

    fn next(&mut self) -> Option<Event> {
        loop {
            let found = match self.state {
                State::Head => self.head(),
                State::Payload(payload) => self.payload(payload),
                State::Finished => return None,
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
    /// Of the head itself.
    len: usize,
    opcode: u8,
    payload_len: u64,
    key: Option<[u8; 4]>,
    last: bool,
}

impl Head {
    /// Returns the head at the start of `bytes`, or `None` when it is not all there.
    ///
    /// `continues` tells whether a fragmented message waits for its continuation.
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
    // 1004 to 1006 and 1015 are for programs to tell themselves, never for the wire.
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
    fn memory_follows_what_has_come_and_not_what_was_declared() {
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
