//! A fast path for `process/output`, by far the most frequent message.

use super::OutputFrame;
use crate::{
    areas::process::{Output, Stream},
    base::blob,
};

impl OutputFrame<'_> {
    /// Parses a `process/output` notification in exactly the form that [`write`](Self::write) produces, in one pass.
    ///
    /// Returns `None` for anything else: other messages, another order of members, white space, escapes, errors. Use
    /// [`Message::parse`](crate::Message::parse) for those; it gives the same result for messages that this accepts.
    ///
    /// ```
    /// use remex_proto::message::OutputFrame;
    ///
    /// let text = br#"{"method":"process/output","params":{"processId":"p","seq":1,"stream":"stdout","chunk":"aGkK"}}"#;
    /// assert_eq!(&OutputFrame::read(text).unwrap().chunk[..], b"hi\n");
    /// assert_eq!(OutputFrame::read(br#"{"method":"process/output"}"#), None);
    /// ```
    pub fn read(message: &[u8]) -> Option<Output> {
        let rest = message.strip_prefix(Self::PROCESS.as_bytes())?;
        let (process_id, rest) = plain_string(rest)?;
        let (session_id, rest) = match rest.strip_prefix(Self::SESSION.as_bytes()) {
            Some(rest) => plain_string(rest).map(|(session_id, rest)| (Some(session_id), rest))?,
            None => (None, rest),
        };
        let (incarnation, rest) = match rest.strip_prefix(Self::INCARNATION.as_bytes()) {
            Some(rest) => number(rest).map(|(incarnation, rest)| (Some(incarnation), rest))?,
            None => (None, rest),
        };
        let (seq, rest) = number(rest.strip_prefix(Self::SEQ.as_bytes())?)?;
        let rest = rest.strip_prefix(Self::STREAM.as_bytes())?;
        let (stream, rest) = [Stream::Stdout, Stream::Stderr, Stream::Pty]
            .into_iter()
            .find_map(|stream| Some((stream, rest.strip_prefix(stream.name().as_bytes())?)))?;
        let text = rest.strip_prefix(Self::CHUNK.as_bytes())?.strip_suffix(Self::END.as_bytes())?;
        // Valid base64 contains no quote, no escape and only ASCII.
        let chunk = blob::decode(text).ok()?;
        Some(Output { process_id, session_id, incarnation, seq, stream, chunk })
    }
}

/// Returns a string without escapes and the rest of the input.
fn plain_string(json: &[u8]) -> Option<(String, &[u8])> {
    let inner = json.strip_prefix(b"\"")?;
    let len = inner.iter().position(|byte| matches!(byte, b'"' | b'\\' | ..0x20))?;
    let text = std::str::from_utf8(&inner[..len]).ok()?;
    Some((text.to_owned(), inner[len..].strip_prefix(b"\"")?))
}

fn number(json: &[u8]) -> Option<(u64, &[u8])> {
    let len = json.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let (digits, rest) = json.split_at(len);
    if len > 1 && digits[0] == b'0' {
        return None;
    }
    Some((std::str::from_utf8(digits).ok()?.parse().ok()?, rest))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{Message, MessageLimits, ServerNote};

    /// The result of the general parser.
    fn parsed(message: &[u8]) -> Option<Output> {
        match Message::parse(message, MessageLimits::WIRE).ok()? {
            Message::Notification { method, params } => match ServerNote::parse(&method, params).ok()? {
                ServerNote::ProcessOutput(output) => Some(output),
                _ => None,
            },
            Message::Request { .. } | Message::Response { .. } => None,
        }
    }

    fn written(
        process_id: &str,
        session_id: Option<&str>,
        incarnation: Option<u64>,
        seq: u64,
        bytes: &[u8],
    ) -> Vec<u8> {
        let quoted = |text: &str| serde_json::to_string(text).unwrap();
        let (process_id, session_id) = (quoted(process_id), session_id.map(quoted));
        let mut out = Vec::new();
        let session_id = session_id.as_deref();
        OutputFrame { process_id: &process_id, session_id, incarnation, seq, stream: Stream::Stderr, bytes }
            .write(&mut out);
        out
    }

    #[test]
    fn almost_valid_messages_are_left_to_the_general_parser() {
        let right =
            r#"{"method":"process/output","params":{"processId":"p","seq":1,"stream":"pty","chunk":"aGkK"}}"#;
        assert!(OutputFrame::read(right.as_bytes()).is_some());
        for (part, wrong) in [
            (r#":1,"#, r#":01,"#),
            (r#":1,"#, r#":-1,"#),
            (r#":1,"#, r#":,"#),
            (r#":1,"#, r#":18446744073709551616,"#),
            (r#""p""#, r#""\u0070""#),
            (r#""p""#, "\"\n\""),
            (r#""p""#, "p"),
            (r#""pty""#, r#""tty""#),
            ("aGkK", "aGk"),
            ("aGkK", r#"aGkK","x":""#),
            ("}}", "}} "),
            ("}}", "}"),
        ] {
            let wrong = right.replacen(part, wrong, 1);
            assert_eq!(OutputFrame::read(wrong.as_bytes()), None, "{wrong}");
        }
    }

    proptest! {
        #[test]
        fn the_fast_decoder_agrees_with_the_general_parser(
            process_id: String,
            session_id: Option<String>,
            incarnation: Option<u64>,
            seq: u64,
            bytes: Vec<u8>,
        ) {
            let text = written(&process_id, session_id.as_deref(), incarnation, seq, &bytes);
            let fast = OutputFrame::read(&text);
            prop_assert!(fast.is_some() || text.contains(&b'\\'));
            prop_assert!(fast.is_none() || fast == parsed(&text));
        }

        #[test]
        fn with_any_byte_changed_the_fast_decoder_accepts_nothing_that_the_general_parser_rejects(
            session_id in prop::option::of("[a-z\"]{0,4}"),
            incarnation: Option<u64>,
            seq: u64,
            bytes in prop::collection::vec(any::<u8>(), 0..8),
            at: prop::sample::Index,
            byte: u8,
        ) {
            let mut text = written("p-1", session_id.as_deref(), incarnation, seq, &bytes);
            let at = at.index(text.len());
            text[at] = byte;
            let fast = OutputFrame::read(&text);
            prop_assert!(fast.is_none() || fast == parsed(&text));
        }
    }
}
