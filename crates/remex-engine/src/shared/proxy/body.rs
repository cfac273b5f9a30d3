//! Where the body of a request or of a response ends, so that nothing after it is passed on.

/// How the length of a body is encoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Framing {
    /// Not at all: there is none.
    None,
    /// By a number.
    Length(u64),
    /// By chunks.
    Chunked,
}

/// The longest line between chunks, and all lines after the last one.
const MAX_LINES: usize = 8 << 10;

impl Framing {
    /// Reads the headers of a request, or returns what is wrong with them.
    pub(super) fn of(headers: &[httparse::Header<'_>], version: u8) -> Result<Self, &'static str> {
        let mut lengths = values(headers, "content-length");
        let mut encodings = values(headers, "transfer-encoding");
        match (lengths.next(), encodings.next()) {
            (None, None) => Ok(Self::None),
            (Some(_), Some(_)) => Err("the request has both a `Content-Length` and a `Transfer-Encoding`"),
            (Some(length), None) => {
                let is_number = !length.is_empty() && length.iter().all(u8::is_ascii_digit);
                let bytes =
                    std::str::from_utf8(length).ok().filter(|_| is_number).and_then(|text| text.parse().ok());
                match bytes {
                    Some(bytes) if lengths.all(|other| other == length) => Ok(Self::Length(bytes)),
                    _ => Err("the request has a `Content-Length` that is not one number"),
                }
            }
            (None, Some(encoding)) => {
                let is_chunked = encoding.trim_ascii().eq_ignore_ascii_case(b"chunked");
                if is_chunked && encodings.next().is_none() && version == 1 {
                    Ok(Self::Chunked)
                } else {
                    Err("the request has a `Transfer-Encoding` other than `chunked`")
                }
            }
        }
    }

    /// Returns the header for this encoding.
    pub(super) fn header(self) -> String {
        match self {
            Self::None => String::new(),
            Self::Length(bytes) => format!("Content-Length: {bytes}\r\n"),
            Self::Chunked => "Transfer-Encoding: chunked\r\n".to_owned(),
        }
    }

    pub(super) fn body(self) -> Body {
        match self {
            Self::None => Body::Counted { left: 0 },
            Self::Length(bytes) => Body::Counted { left: bytes },
            Self::Chunked => Body::Chunked(Chunks::Size { size: None, line: 0, is_extension: false }),
        }
    }
}

/// Returns the values of all headers with a name.
fn values<'a>(
    headers: &'a [httparse::Header<'a>],
    name: &'static str,
) -> impl DoubleEndedIterator<Item = &'a [u8]> {
    headers.iter().filter(move |header| header.name.eq_ignore_ascii_case(name)).map(|header| header.value)
}

/// A body in transit.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Body {
    Counted {
        left: u64,
    },
    Chunked(Chunks),
    /// All that follows on the connection.
    Rest,
}

/// Where in the chunks a body is.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Chunks {
    /// In the line with the size of a chunk.
    Size {
        size: Option<u64>,
        line: usize,
        is_extension: bool,
    },
    /// At the second byte of the end of that line.
    SizeEnd {
        size: u64,
    },
    Data {
        left: u64,
    },
    /// At the end of a chunk, after this many bytes of the line break.
    DataEnd {
        passed: u8,
    },
    /// In the lines after the last chunk, `column` bytes into one; `ends` if its carriage return has passed.
    Trailer {
        column: usize,
        len: usize,
        ends: bool,
    },
    Over,
}

/// Chunks that are not as they should be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Malformed;

impl Body {
    /// Returns that of a response with these headers; in doubt, all that follows.
    pub(super) fn of_response(headers: &[httparse::Header<'_>], version: u8) -> Self {
        if let Some(encodings) = values(headers, "transfer-encoding").next_back() {
            let last = encodings.rsplit(|byte| *byte == b',').next().unwrap_or_default();
            let is_chunked = last.trim_ascii().eq_ignore_ascii_case(b"chunked");
            return if is_chunked && version == 1 { Framing::Chunked.body() } else { Self::Rest };
        }
        match Framing::of(headers, version) {
            Ok(framing @ Framing::Length(_)) => framing.body(),
            _ => Self::Rest,
        }
    }

    pub(super) fn is_over(&self) -> bool {
        matches!(self, Self::Counted { left: 0 } | Self::Chunked(Chunks::Over))
    }

    /// Returns how many of these bytes belong to the body.
    pub(super) fn pass(&mut self, bytes: &[u8]) -> Result<usize, Malformed> {
        match self {
            Self::Counted { left } => {
                let len = usize::try_from(*left).unwrap_or(usize::MAX).min(bytes.len());
                *left -= len as u64;
                Ok(len)
            }
            Self::Rest => Ok(bytes.len()),
            Self::Chunked(chunks) => {
                let mut at = 0;
                while at < bytes.len() && *chunks != Chunks::Over {
                    at += chunks.step(&bytes[at..])?;
                }
                Ok(at)
            }
        }
    }
}

impl Chunks {
    /// Takes at least one byte; returns how many.
    fn step(&mut self, bytes: &[u8]) -> Result<usize, Malformed> {
        let Some(&byte) = bytes.first() else { return Ok(0) };
        let mut taken = 1;
        *self = match *self {
            Self::Size { line, .. } if line >= MAX_LINES => return Err(Malformed),
            Self::Size { size: Some(size), .. } if byte == b'\r' => Self::SizeEnd { size },
            Self::Size { size: Some(size), line, is_extension }
                if is_extension || matches!(byte, b';' | b' ' | b'\t') =>
            {
                if byte == b'\n' {
                    return Err(Malformed);
                }
                Self::Size { size: Some(size), line: line + 1, is_extension: true }
            }
            Self::Size { size, line, is_extension: false } => {
                let digit = (byte as char).to_digit(16).ok_or(Malformed)?;
                let size = size.unwrap_or(0).checked_mul(16).ok_or(Malformed)? + u64::from(digit);
                Self::Size { size: Some(size), line: line + 1, is_extension: false }
            }
            Self::SizeEnd { size } if byte == b'\n' => match size {
                0 => Self::Trailer { column: 0, len: 0, ends: false },
                size => Self::Data { left: size },
            },
            Self::Data { left } => {
                taken = usize::try_from(left).unwrap_or(usize::MAX).min(bytes.len());
                match left - taken as u64 {
                    0 => Self::DataEnd { passed: 0 },
                    left => Self::Data { left },
                }
            }
            Self::DataEnd { passed: 0 } if byte == b'\r' => Self::DataEnd { passed: 1 },
            Self::DataEnd { passed: 1 } if byte == b'\n' => {
                Self::Size { size: None, line: 0, is_extension: false }
            }
            Self::Trailer { len, .. } if len >= MAX_LINES => return Err(Malformed),
            Self::Trailer { column, len, ends: true } if byte == b'\n' => match column {
                0 => Self::Over,
                _ => Self::Trailer { column: 0, len: len + 1, ends: false },
            },
            Self::Trailer { column, len, ends: false } if byte == b'\r' => {
                Self::Trailer { column, len, ends: true }
            }
            Self::Trailer { column, len, ends: false } if byte != b'\n' => {
                Self::Trailer { column: column + 1, len: len + 1, ends: false }
            }
            Self::Size { .. }
            | Self::SizeEnd { .. }
            | Self::DataEnd { .. }
            | Self::Trailer { .. }
            | Self::Over => {
                return Err(Malformed);
            }
        };
        Ok(taken)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const CHUNKED: &[u8] = b"5\r\nhello\r\n0A;ext=\"x\"\r\n0123456789\r\n0\r\nTrailer: x\r\n\r\n";

    #[test]
    fn chunks_end_where_they_say_however_they_arrive() {
        for cut in 0..=CHUNKED.len() {
            let mut body = Framing::Chunked.body();
            assert_eq!(body.pass(&CHUNKED[..cut]), Ok(cut));
            assert_eq!(body.is_over(), cut == CHUNKED.len(), "{cut}");
            let rest = [&CHUNKED[cut..], b"GET http://other/ HTTP/1.1\r\n\r\n"].concat();
            assert_eq!(body.pass(&rest), Ok(CHUNKED.len() - cut));
            assert!(body.is_over());
        }
        let mut body = Framing::Length(3).body();
        assert_eq!((body.pass(b"ab"), body.pass(b"cGET"), body.is_over()), (Ok(2), Ok(1), true));
    }

    #[test]
    fn ambiguous_chunk_headers_are_refused() {
        for bytes in [
            "\r\n",
            "x\r\n",
            "-1\r\n",
            "+1\r\n",
            "0x1\r\n",
            "1\nA",
            "1\rA",
            "1;a\nA",
            "1\r\nAB",
            "1\r\nA\n",
            "0\r\n\n",
            "0\r\nA: b\n",
            "10000000000000000\r\n",
            " 1\r\n",
        ] {
            assert_eq!(Framing::Chunked.body().pass(bytes.as_bytes()), Err(Malformed), "{bytes:?}");
        }
        let long = format!("1;{}", "a".repeat(MAX_LINES + 1));
        assert_eq!(Framing::Chunked.body().pass(long.as_bytes()), Err(Malformed));
        let long = format!("0\r\n{}", "A: b\r\n".repeat(MAX_LINES));
        assert_eq!(Framing::Chunked.body().pass(long.as_bytes()), Err(Malformed));
    }

    proptest! {
        #[test]
        fn no_input_panics_and_no_truncation_changes_the_result(bytes in prop::collection::vec(prop::sample::select(b"01aF;\r\n x".to_vec()), 0..60), cut in 0..60_usize) {
            let mut whole = Framing::Chunked.body();
            let expected = whole.pass(&bytes);
            let cut = cut.min(bytes.len());
            let mut parts = Framing::Chunked.body();
            let found = parts.pass(&bytes[..cut]).and_then(|first| parts.pass(&bytes[cut..]).map(|rest| first + rest));
            prop_assert_eq!(found, expected);
        }
    }
}
