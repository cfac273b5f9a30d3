//! The subset of HTTP that both ends of a WebSocket handshake need.

use std::io;

use base64::{Engine, prelude::BASE64_STANDARD};
use bytes::BufMut;
use sha1::{Digest, Sha1};
use tokio::io::{AsyncRead, AsyncReadExt};

/// The maximum number of header fields.
pub(crate) const MAX_HEADERS: usize = 64;

/// The bytes to read at once, usually the whole head.
const READ_LEN: usize = 1024;

/// The suffix that RFC 6455 appends to a key before hashing it.
const ACCEPT_SUFFIX: &str = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11";

/// Why the head of a request or response could not be read.
#[derive(Debug)]
pub(crate) enum HeadError {
    Malformed,
    TooLong,
    Closed,
    Io(io::Error),
}

/// A head and its length, or `None` if it is incomplete.
pub(crate) type Parsed<T> = Result<Option<(T, usize)>, httparse::Error>;

/// Reads until `parse` finds a complete head; returns its result and the bytes after the head.
///
/// `parse` receives all bytes so far. Not cancel-safe.
pub(crate) async fn read_head<T>(
    io: &mut (impl AsyncRead + Unpin),
    max_len: usize,
    parse: impl Fn(&[u8]) -> Parsed<T>,
) -> Result<(T, Vec<u8>), HeadError> {
    let mut bytes = Vec::new();
    loop {
        if bytes.len() == max_len {
            return Err(HeadError::TooLong);
        }
        bytes.reserve(READ_LEN);
        let room = max_len - bytes.len();
        if io.read_buf(&mut (&mut bytes).limit(room)).await? == 0 {
            return Err(HeadError::Closed);
        }
        if let Some((head, len)) = parse(&bytes)? {
            bytes.drain(..len);
            return Ok((head, bytes));
        }
    }
}

/// The header fields of one head.
pub(crate) struct Headers<'a>(pub(crate) &'a [httparse::Header<'a>]);

impl<'a> Headers<'a> {
    /// Returns the value of a field that occurs exactly once.
    pub(crate) fn only(&self, name: &str) -> Option<&'a str> {
        let mut values = self.all(name);
        let value = values.next()?;
        if values.next().is_some() { None } else { std::str::from_utf8(value).ok() }
    }

    pub(crate) fn contains(&self, name: &str) -> bool {
        self.all(name).next().is_some()
    }

    /// Returns whether a comma-separated field contains this word, ignoring case.
    pub(crate) fn has_word(&self, name: &str, word: &str) -> bool {
        let mut words = self.all(name).flat_map(|value| value.split(|&byte| byte == b','));
        words.any(|found| found.trim_ascii().eq_ignore_ascii_case(word.as_bytes()))
    }

    fn all(&self, name: &str) -> impl Iterator<Item = &'a [u8]> {
        self.0.iter().filter(move |header| header.name.eq_ignore_ascii_case(name)).map(|header| header.value)
    }
}

/// Returns the value of `Sec-WebSocket-Accept` for this key.
pub(crate) fn accept_for(key: &str) -> String {
    BASE64_STANDARD.encode(Sha1::new_with_prefix(key).chain_update(ACCEPT_SUFFIX).finalize())
}

impl From<io::Error> for HeadError {
    fn from(error: io::Error) -> Self {
        HeadError::Io(error)
    }
}

impl From<httparse::Error> for HeadError {
    fn from(error: httparse::Error) -> Self {
        match error {
            httparse::Error::TooManyHeaders => HeadError::TooLong,
            _ => HeadError::Malformed,
        }
    }
}
