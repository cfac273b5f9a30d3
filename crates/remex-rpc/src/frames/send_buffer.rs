//! The bytes that one connection still has to send.

use remex_proto::binary::{LINE_HEAD_LEN, LINE_MARK};

use crate::{
    Framing, Role,
    frames::websocket::{self, BINARY, CLOSE, MAX_CONTROL_LEN, PING, PONG, TEXT},
};

/// The capacity that an idle buffer may keep.
const IDLE_CAPACITY: usize = 1024;

/// How many frame masks a client generates at once.
const MASKS_AT_ONCE: usize = 64;

/// The outgoing bytes of one connection, framed and contiguous, ready for one large write.
///
/// Unbounded: callers check [`SendBuffer::len`] before they encode into it.
///
/// ```
/// use remex_rpc::{Framing, SendBuffer};
///
/// let mut buffer = SendBuffer::new(Framing::Lines);
/// buffer.message(2, |out| out.extend_from_slice(b"{}"));
/// assert_eq!(buffer.pending(), b"{}\n");
/// buffer.advance(3);
/// assert!(buffer.is_empty());
/// ```
#[derive(Debug)]
pub struct SendBuffer {
    framing: Framing,
    bytes: Vec<u8>,
    /// How much of `bytes` is sent; sent <= bytes.len()
    sent: usize,
    /// Random bytes for future masks; used only by clients.
    masks: Vec<u8>,
}

impl SendBuffer {
    /// Creates an empty buffer that holds no memory yet.
    pub fn new(framing: Framing) -> Self {
        SendBuffer { framing, bytes: Vec::new(), sent: 0, masks: Vec::new() }
    }

    /// Frames exactly what `encode` appends as one text message.
    ///
    /// With an accurate `len_hint` the payload is not moved; an inaccurate one only costs a move.
    /// With [`Framing::Lines`] the payload must not contain a line feed.
    pub fn message(&mut self, len_hint: usize, encode: impl FnOnce(&mut Vec<u8>)) {
        self.forget_sent();
        match self.framing {
            Framing::Lines => {
                let start = self.bytes.len();
                self.bytes.reserve(len_hint + 1);
                encode(&mut self.bytes);
                debug_assert!(
                    !self.bytes[start..].contains(&b'\n'),
                    "a line feed would end the message early"
                );
                self.bytes.push(b'\n');
            }
            Framing::WebSocket(role) => self.frame(role, TEXT, len_hint, encode),
        }
    }

    /// Frames exactly what `encode` appends, `len` bytes, as one binary message; see [`remex_proto::binary`].
    ///
    /// # Panics
    ///
    /// If the message is longer than 4 GiB.
    pub fn binary(&mut self, len: usize, encode: impl FnOnce(&mut Vec<u8>)) {
        self.forget_sent();
        match self.framing {
            Framing::Lines => {
                self.bytes.reserve(LINE_HEAD_LEN + len);
                self.line_head(len);
                let start = self.bytes.len();
                encode(&mut self.bytes);
                debug_assert_eq!(
                    self.bytes.len() - start,
                    len,
                    "the head of a binary message has its length"
                );
            }
            Framing::WebSocket(role) => self.frame(role, BINARY, len, encode),
        }
    }

    /// Begins a text message of exactly `len` bytes, added by any number of calls of [`SendBuffer::append`] and ended
    /// by [`SendBuffer::finish`]. Nothing else may be added in between.
    ///
    /// For servers only: a client masks whole messages.
    pub fn begin(&mut self, len: usize) {
        self.begin_frame(TEXT, len);
    }

    /// Begins a binary message of exactly `len` bytes like [`SendBuffer::begin`]; nothing ends it but its last byte.
    ///
    /// # Panics
    ///
    /// If the message is longer than 4 GiB.
    pub fn begin_binary(&mut self, len: usize) {
        self.begin_frame(BINARY, len);
        if self.framing == Framing::Lines {
            self.line_head(len);
        }
    }

    fn begin_frame(&mut self, opcode: u8, len: usize) {
        self.forget_sent();
        if let Framing::WebSocket(role) = self.framing {
            debug_assert!(role == Role::Server, "a client masks whole messages");
            let start = self.bytes.len();
            self.bytes.resize(start + websocket::head_len(role, len), 0);
            websocket::write_head(&mut self.bytes[start..], opcode, len, None);
        }
    }

    fn line_head(&mut self, len: usize) {
        let len = u32::try_from(len).expect("messages are shorter than 4 GiB");
        self.bytes.push(LINE_MARK);
        self.bytes.extend_from_slice(&len.to_be_bytes());
    }

    /// Adds what `encode` appends to the message that was begun.
    pub fn append(&mut self, encode: impl FnOnce(&mut Vec<u8>)) {
        self.forget_sent();
        encode(&mut self.bytes);
    }

    /// Ends the text message that was begun.
    pub fn finish(&mut self) {
        if self.framing == Framing::Lines {
            self.bytes.push(b'\n');
        }
    }

    /// Sends a WebSocket ping; does nothing with line framing. The payload is truncated to 125 bytes.
    pub fn ping(&mut self, payload: &[u8]) {
        self.control(PING, payload);
    }

    /// Sends a WebSocket pong; does nothing with line framing. The payload is truncated to 125 bytes.
    pub fn pong(&mut self, payload: &[u8]) {
        self.control(PONG, payload);
    }

    /// Sends a WebSocket close frame; does nothing with line framing. The reason is truncated to 123 bytes.
    pub fn close(&mut self, code: u16, reason: &str) {
        let mut reason_len = reason.len().min(MAX_CONTROL_LEN - 2);
        while !reason.is_char_boundary(reason_len) {
            reason_len -= 1;
        }
        self.control(CLOSE, &[&code.to_be_bytes(), &reason.as_bytes()[..reason_len]].concat());
    }

    /// Returns the bytes to send next.
    pub fn pending(&self) -> &[u8] {
        &self.bytes[self.sent..]
    }

    /// Records that the first `len` pending bytes were sent.
    pub fn advance(&mut self, len: usize) {
        debug_assert!(len <= self.len(), "more was sent than there is");
        self.sent += len;
        if self.sent >= self.bytes.len() {
            self.bytes.clear();
            self.sent = 0;
        }
    }

    /// Returns the number of pending bytes.
    pub fn len(&self) -> usize {
        self.bytes.len() - self.sent
    }

    /// Returns whether nothing is pending.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Releases the memory of an empty buffer, for an idle connection.
    pub fn reset_if_idle(&mut self) {
        if self.is_empty() && self.bytes.capacity() > IDLE_CAPACITY {
            self.bytes = Vec::new();
        }
    }

    fn control(&mut self, opcode: u8, payload: &[u8]) {
        self.forget_sent();
        if let Framing::WebSocket(role) = self.framing {
            let payload = &payload[..payload.len().min(MAX_CONTROL_LEN)];
            self.frame(role, opcode, payload.len(), |out| out.extend_from_slice(payload));
        }
    }

    fn frame(&mut self, role: Role, opcode: u8, len_hint: usize, encode: impl FnOnce(&mut Vec<u8>)) {
        let start = self.bytes.len();
        let guessed = start + websocket::head_len(role, len_hint);
        self.bytes.reserve(websocket::MAX_HEAD_LEN + len_hint);
        self.bytes.resize(guessed, 0);
        encode(&mut self.bytes);

        let len = self.bytes.len() - guessed;
        let payload = start + websocket::head_len(role, len);
        if payload != guessed {
            self.bytes.resize(payload.max(guessed) + len, 0);
            self.bytes.copy_within(guessed..guessed + len, payload);
            self.bytes.truncate(payload + len);
        }
        let key = match role {
            Role::Server => None,
            Role::Client => Some(self.next_mask()),
        };
        websocket::write_head(&mut self.bytes[start..payload], opcode, len, key);
        if let Some(key) = key {
            websocket::mask(&mut self.bytes[payload..], key);
        }
    }

    /// Moves the pending bytes to the front once they are fewer than the sent ones, so that each byte moves at most
    /// once on average.
    fn forget_sent(&mut self) {
        if self.sent > self.len() {
            self.bytes.drain(..self.sent);
            self.sent = 0;
        }
    }

    fn next_mask(&mut self) -> [u8; 4] {
        if self.masks.is_empty() {
            self.masks.resize(4 * MASKS_AT_ONCE, 0);
            getrandom::fill(&mut self.masks).expect("the kernel provides random bytes");
        }
        let rest = self.masks.len() - 4;
        let mask = self.masks[rest..].try_into().expect("masks are generated and taken four bytes at a time");
        self.masks.truncate(rest);
        mask
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_in_pieces_looks_like_a_whole_one() {
        for framing in [Framing::Lines, Framing::WebSocket(Role::Server)] {
            for len in [0, 1, 125, 126, 0xFFFF, 0x1_0000] {
                let text = vec![b'x'; len];
                let (mut whole, mut pieces) = (SendBuffer::new(framing), SendBuffer::new(framing));
                whole.message(len, |out| out.extend_from_slice(&text));
                pieces.begin(len);
                for piece in text.chunks(1000) {
                    pieces.append(|out| out.extend_from_slice(piece));
                }
                pieces.finish();
                assert!(whole.pending() == pieces.pending(), "{framing:?}, {len} bytes");

                let (mut whole, mut pieces) = (SendBuffer::new(framing), SendBuffer::new(framing));
                whole.binary(len, |out| out.extend_from_slice(&text));
                pieces.begin_binary(len);
                for piece in text.chunks(1000) {
                    pieces.append(|out| out.extend_from_slice(piece));
                }
                assert!(whole.pending() == pieces.pending(), "{framing:?}, {len} bytes, binary");
            }
        }
    }
}
