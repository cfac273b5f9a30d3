//! Binary messages: what carries bytes without base64, for peers with the capability `binaryFrames`.
//!
//! The first byte says what follows; no JSON message begins like that. Integers are big-endian.
//!
//! - [`OUTPUT`]: a `process/output` notification, as a fixed head, the ids and the bytes; see [`Output::write`].
//! - [`MESSAGE`]: any other message that contains bytes. Its JSON comes first, in which the offset and the length of
//!   bytes, `[0,1024]`, take the place of each base64 string that is not empty; then the bytes; see [`write_head`].
//!
//! On a WebSocket they are binary messages. Between lines each follows the byte [`LINE_MARK`] and its length in four bytes.
//!
//! Start at [`Binary::parse`].

use bytes::Bytes;

use crate::{
    areas::process::{self, Stream},
    base::attachment::Attached,
};

/// The first byte of a `process/output` notification.
pub const OUTPUT: u8 = 1;

/// The first byte of any other message with bytes.
pub const MESSAGE: u8 = 2;

/// What announces a binary message between lines.
pub const LINE_MARK: u8 = 0;

/// The length of what comes before a binary message between lines.
pub const LINE_HEAD_LEN: usize = 5;

/// The length of the head of a [`MESSAGE`].
pub const MESSAGE_HEAD_LEN: usize = 8;

/// The length of the head of an [`OUTPUT`].
pub const OUTPUT_HEAD_LEN: usize = 24;

/// In the head of an [`OUTPUT`]: the process can be restarted.
const HAS_INCARNATION: u8 = 1;

/// In the head of an [`OUTPUT`]: the process belongs to an observed session.
const HAS_SESSION: u8 = 2;

/// Returns whether a message is binary rather than JSON.
pub fn is_binary(message: &[u8]) -> bool {
    matches!(message.first(), Some(byte) if *byte < b' ' && !byte.is_ascii_whitespace())
}

/// A binary message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Binary {
    /// Output of a process.
    Output(process::Output),
    /// A message in JSON, and the bytes that it refers to.
    Message {
        /// The JSON.
        json: Bytes,
        /// The bytes; pass them to [`attachment::with`](crate::attachment::with) while the JSON is parsed.
        attached: Bytes,
    },
}

impl Binary {
    /// Parses a binary message without copying its bytes.
    ///
    /// ```
    /// use remex_proto::binary::Binary;
    ///
    /// let message = b"\x02\0\0\0\0\0\0\x02{}abc";
    /// let parsed = Binary::parse(&message[..].into()).unwrap();
    /// assert_eq!(parsed, Binary::Message { json: "{}".into(), attached: "abc".into() });
    /// ```
    pub fn parse(message: &Bytes) -> Result<Self, MalformedBinary> {
        match message.first() {
            Some(&OUTPUT) => Ok(Self::Output(parse_output(message)?)),
            Some(&MESSAGE) => {
                let too_short = MalformedBinary::TooShort { len: message.len() };
                let Some((head, rest)) = message.split_first_chunk::<MESSAGE_HEAD_LEN>() else {
                    return Err(too_short);
                };
                let [_, 0, 0, 0, len @ ..] = *head else { return Err(MalformedBinary::Reserved) };
                let len = u32::from_be_bytes(len) as usize;
                if len > rest.len() {
                    return Err(too_short);
                }
                let json_end = MESSAGE_HEAD_LEN + len;
                Ok(Self::Message {
                    json: message.slice(MESSAGE_HEAD_LEN..json_end),
                    attached: message.slice(json_end..),
                })
            }
            kind => Err(MalformedBinary::Kind { kind: kind.copied().unwrap_or_default() }),
        }
    }
}

/// Returns how much of a binary message is JSON, as it says itself.
pub fn json_len(message: &[u8]) -> usize {
    match message.first_chunk::<MESSAGE_HEAD_LEN>() {
        Some(&[MESSAGE, _, _, _, a, b, c, d]) => u32::from_be_bytes([a, b, c, d]) as usize,
        _ => 0,
    }
}

/// Appends the head of a [`MESSAGE`] whose JSON has `json_len` bytes; the JSON and the attached bytes follow it.
///
/// Returns `false` and appends nothing if the JSON is too long for that.
///
/// ```
/// use remex_proto::{Blob, attachment, binary};
///
/// let (json, attached) = attachment::collect(|| serde_json::to_vec(&Blob::from("abc")).unwrap());
/// let mut out = Vec::new();
/// assert!(binary::write_head(&mut out, json.len()));
/// binary::write_rest(&mut out, &json, &attached);
/// assert_eq!(out, b"\x02\0\0\0\0\0\0\x05[0,3]abc");
/// ```
pub fn write_head(out: &mut Vec<u8>, json_len: usize) -> bool {
    let Ok(len) = u32::try_from(json_len) else { return false };
    out.extend_from_slice(&[MESSAGE, 0, 0, 0]);
    out.extend_from_slice(&len.to_be_bytes());
    true
}

/// Appends the JSON and the bytes of a [`MESSAGE`].
pub fn write_rest(out: &mut Vec<u8>, json: &[u8], attached: &Attached) {
    out.extend_from_slice(json);
    for piece in &attached.pieces {
        out.extend_from_slice(piece);
    }
}

/// The head of a `process/output` notification, encoded straight into the send buffer with its bytes.
///
/// ```
/// use remex_proto::{binary::Output, process::Stream};
///
/// let output =
///     Output { process_id: "p", session_id: None, incarnation: None, seq: 7, stream: Stream::Stderr, bytes: b"hi\n" };
/// let mut out = Vec::new();
/// output.write(&mut out);
/// assert_eq!(out.len(), output.len());
/// assert_eq!(out, *b"\x01\x01\0\0\0\x01\0\0\0\0\0\0\0\0\0\x07\0\0\0\0\0\0\0\0phi\n");
/// ```
#[derive(Debug, Clone, Copy)]
pub struct Output<'a> {
    /// The process.
    pub process_id: &'a str,
    /// The observed session it belongs to.
    pub session_id: Option<&'a str>,
    /// The start that it belongs to, if the process may be restarted.
    pub incarnation: Option<u64>,
    /// The number of the event in its process.
    pub seq: u64,
    /// The stream that the bytes come from.
    pub stream: Stream,
    /// The output.
    pub bytes: &'a [u8],
}

impl Output<'_> {
    /// Returns whether the stream and the ids fit the head; if not, the notification is sent as JSON.
    pub fn fits(&self) -> bool {
        let max = usize::from(u16::MAX);
        number(self.stream).is_some()
            && self.process_id.len() <= max
            && self.session_id.is_none_or(|id| id.len() <= max)
    }

    /// Returns the exact number of bytes that [`write`](Self::write) appends.
    #[allow(clippy::len_without_is_empty)] // A frame is never empty.
    pub fn len(&self) -> usize {
        let session_len = self.session_id.map_or(0, str::len);
        OUTPUT_HEAD_LEN + self.process_id.len() + session_len + self.bytes.len()
    }

    /// Appends the notification; call it only if it [fits](Self::fits).
    pub fn write(&self, out: &mut Vec<u8>) {
        let session_id = self.session_id.unwrap_or_default();
        let flags = if self.incarnation.is_some() { HAS_INCARNATION } else { 0 }
            | if self.session_id.is_some() { HAS_SESSION } else { 0 };
        let stream = number(self.stream).expect("the stream fits the head");
        let len16 = |id: &str| u16::try_from(id.len()).expect("the ids fit the head").to_be_bytes();
        out.reserve(self.len());
        out.extend_from_slice(&[OUTPUT, stream, flags, 0]);
        out.extend_from_slice(&len16(self.process_id));
        out.extend_from_slice(&len16(session_id));
        out.extend_from_slice(&self.seq.to_be_bytes());
        out.extend_from_slice(&self.incarnation.unwrap_or_default().to_be_bytes());
        out.extend_from_slice(self.process_id.as_bytes());
        out.extend_from_slice(session_id.as_bytes());
        out.extend_from_slice(self.bytes);
    }
}

fn number(stream: Stream) -> Option<u8> {
    match stream {
        Stream::Stdout => Some(0),
        Stream::Stderr => Some(1),
        Stream::Pty => Some(2),
        Stream::Unknown => None,
    }
}

fn parse_output(message: &Bytes) -> Result<process::Output, MalformedBinary> {
    let too_short = MalformedBinary::TooShort { len: message.len() };
    let Some(head) = message.first_chunk::<OUTPUT_HEAD_LEN>() else { return Err(too_short) };
    let u64_at = |at: usize| u64::from_be_bytes(head[at..at + 8].try_into().expect("eight bytes"));
    let u16_at = |at: usize| usize::from(u16::from_be_bytes([head[at], head[at + 1]]));
    let stream = match head[1] {
        0 => Stream::Stdout,
        1 => Stream::Stderr,
        2 => Stream::Pty,
        _ => Stream::Unknown,
    };
    let flags = head[2];
    let (has_incarnation, has_session) = (flags & HAS_INCARNATION != 0, flags & HAS_SESSION != 0);
    let (process_len, session_len) = (u16_at(4), u16_at(6));
    if flags & !(HAS_INCARNATION | HAS_SESSION) != 0
        || head[3] != 0
        || !has_session && session_len != 0
        || !has_incarnation && u64_at(16) != 0
    {
        return Err(MalformedBinary::Reserved);
    }
    let session_at = OUTPUT_HEAD_LEN + process_len;
    let bytes_at = session_at + session_len;
    let (Some(process_id), Some(session_id)) =
        (message.get(OUTPUT_HEAD_LEN..session_at), message.get(session_at..bytes_at))
    else {
        return Err(too_short);
    };
    let text = |id: &[u8]| {
        let text = std::str::from_utf8(id).map_err(|_| MalformedBinary::NotUtf8);
        text.map(str::to_owned)
    };
    Ok(process::Output {
        process_id: text(process_id)?,
        session_id: if has_session { Some(text(session_id)?) } else { None },
        incarnation: has_incarnation.then(|| u64_at(16)),
        seq: u64_at(8),
        stream,
        chunk: message.slice(bytes_at..).into(),
    })
}

/// Why bytes are not a binary message. The connection stays open.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MalformedBinary {
    /// The first byte is that of no binary message.
    #[error("no binary message begins with the byte {kind}")]
    Kind {
        /// The first byte.
        kind: u8,
    },
    /// It ends within its head, its JSON or its ids.
    #[error("a binary message ends after {len} bytes, before its head, its ids or its JSON do")]
    TooShort {
        /// Its length.
        len: usize,
    },
    /// A reserved part of the head is not 0.
    #[error("a reserved byte or an unknown flag of a binary message is not 0")]
    Reserved,
    /// An id is not UTF-8.
    #[error("an id in a binary message is not UTF-8")]
    NotUtf8,
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn no_json_is_mistaken_for_a_binary_message() {
        for json in ["{}", " {}", "\n{}", "\t{}", "\r\n{}", "[]", "\"\"", "1", ""] {
            assert!(!is_binary(json.as_bytes()), "{json:?}");
        }
        assert!(is_binary(&[OUTPUT]) && is_binary(&[MESSAGE]));
    }

    #[test]
    fn what_is_reserved_must_be_zero() {
        let mut right = Vec::new();
        let output = Output {
            process_id: "p",
            session_id: None,
            incarnation: None,
            seq: 1,
            stream: Stream::Pty,
            bytes: b"x",
        };
        output.write(&mut right);
        for (at, wrong) in [(2, 4), (3, 1), (7, 1), (16, 1), (5, 200)] {
            let mut message = right.clone();
            message[at] = wrong;
            assert!(Binary::parse(&message.into()).is_err(), "{wrong} at {at}");
        }
        for len in 0..OUTPUT_HEAD_LEN {
            assert!(Binary::parse(&right[..len].to_vec().into()).is_err());
        }
        for wrong in [&b"\x02\0\0\x01\0\0\0\0"[..], b"\x02\0\0\0\0\0\0\x03{}", b"\x03", b"\x02\0\0\0\0\0\0"] {
            assert!(Binary::parse(&wrong.into()).is_err(), "{wrong:?}");
        }
    }

    proptest! {
        #[test]
        fn output_round_trips(
            process_id: String,
            session_id: Option<String>,
            incarnation: Option<u64>,
            seq: u64,
            stream in prop::sample::select(vec![Stream::Stdout, Stream::Stderr, Stream::Pty]),
            bytes: Vec<u8>,
        ) {
            let output = Output {
                process_id: &process_id,
                session_id: session_id.as_deref(),
                incarnation,
                seq,
                stream,
                bytes: &bytes,
            };
            let mut message = Vec::new();
            output.write(&mut message);
            prop_assert_eq!(message.len(), output.len());
            prop_assert!(is_binary(&message));
            let expected =
                process::Output { process_id, session_id, incarnation, seq, stream, chunk: bytes.into() };
            prop_assert_eq!(Binary::parse(&message.into()), Ok(Binary::Output(expected)));
        }

        #[test]
        fn anything_is_a_message_or_an_error(message: Vec<u8>) {
            let message = Bytes::from(message);
            if let Ok(Binary::Message { json, attached }) = Binary::parse(&message) {
                prop_assert_eq!(MESSAGE_HEAD_LEN + json.len() + attached.len(), message.len());
            }
        }
    }
}
