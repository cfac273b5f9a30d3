//! Understands a server's messages by searching for bytes.
//!
//! Never builds a tree and never decodes a chunk: at gigabytes per second the client would be what is measured.
//! Start at [`Message::parse`].

use anyhow::{Context, Result};
use memchr::{
    memchr,
    memmem::{find, rfind},
};

/// One message of a server, reduced to what the measurements ask for.
#[derive(Debug, PartialEq)]
pub(crate) enum Message {
    /// `len` bytes of output, decoded.
    Output {
        process: u64,
        seq: u64,
        len: u64,
    },
    Exited {
        process: u64,
        seq: u64,
    },
    /// `produced` is the sum of the ledger, where the server keeps one.
    Closed {
        process: u64,
        seq: u64,
        produced: Option<u64>,
    },
    /// `error` is the whole message of a refusal; `len` is that of the message.
    Reply {
        id: u64,
        error: Option<String>,
        len: usize,
    },
    /// A notification that no measurement needs.
    Other,
}

impl Message {
    pub(crate) fn parse(text: &[u8]) -> Result<Self> {
        Self::try_parse(text).with_context(|| {
            format!(
                "cannot understand the message `{}`",
                String::from_utf8_lossy(&text[..text.len().min(200)])
            )
        })
    }

    fn try_parse(text: &[u8]) -> Option<Self> {
        match text.first() {
            Some(1) => return parse_binary_output(text),
            Some(2) => {
                let len = u32::from_be_bytes(*text.get(4..)?.first_chunk()?) as usize;
                let reply = parse_reply(text.get(8..8 + len)?)?;
                return Some(match reply {
                    Self::Reply { id, error, .. } => Self::Reply { id, error, len: text.len() },
                    other => other,
                });
            }
            _ => {}
        }
        // The answer to a read may be long, and need not be searched for what it is not.
        if text.starts_with(b"{\"id\":") {
            return parse_reply(text);
        }
        if let Some(output) = parse_output(text) {
            return Some(output);
        }
        let event = || Some((number_after(text, b"\"processId\":\"")?, number_after(text, b"\"seq\":")?));
        if find(text, b"\"method\":\"process/exited\"").is_some() {
            let (process, seq) = event()?;
            Some(Self::Exited { process, seq })
        } else if find(text, b"\"method\":\"process/closed\"").is_some() {
            let (process, seq) = event()?;
            Some(Self::Closed { process, seq, produced: produced(text) })
        } else if find(text, b"\"method\":").is_some() {
            Some(Self::Other)
        } else {
            parse_reply(text)
        }
    }
}

fn parse_output(text: &[u8]) -> Option<Message> {
    let chunk_start = find(text, b"\"chunk\":\"")? + b"\"chunk\":\"".len();
    let chunk_len = memchr(b'"', &text[chunk_start..])?;
    let (head, rest) = text.split_at(chunk_start);
    let (chunk, tail) = rest.split_at(chunk_len);
    // The order of members is the server's choice, and the chunk is not worth a second look.
    find(head, b"\"method\":\"process/output\"").or_else(|| find(tail, b"\"method\":\"process/output\""))?;
    let number = |key| number_after(head, key).or_else(|| number_after(tail, key));
    Some(Message::Output {
        process: number(b"\"processId\":\"")?,
        seq: number(b"\"seq\":")?,
        len: decoded_len(chunk),
    })
}

/// Output with a binary head.
fn parse_binary_output(message: &[u8]) -> Option<Message> {
    let (head, rest) = message.split_first_chunk::<24>()?;
    let id_len = usize::from(u16::from_be_bytes([head[4], head[5]]));
    let (id, bytes) = rest.split_at_checked(id_len)?;
    Some(Message::Output {
        process: std::str::from_utf8(id).ok()?.parse().ok()?,
        seq: u64::from_be_bytes(*head[8..].first_chunk()?),
        len: bytes.len() as u64,
    })
}

fn parse_reply(text: &[u8]) -> Option<Message> {
    let at = if text.starts_with(b"{\"id\":") { 0 } else { rfind(text, b"\"id\":")? };
    let id = number_after(&text[at..], b"\"id\":")?;
    // An error is short, and the content of a file has no quotes.
    let failed = find(&text[..text.len().min(4096)], b"\"error\":{").is_some();
    let error = failed.then(|| String::from_utf8_lossy(text).into_owned());
    Some(Message::Reply { id, error, len: text.len() })
}

fn decoded_len(base64: &[u8]) -> u64 {
    let padding = base64.iter().rev().take_while(|&&symbol| symbol == b'=').count();
    (base64.len() / 4 * 3 - padding.min(2)) as u64
}

fn produced(text: &[u8]) -> Option<u64> {
    let ledger = &text[find(text, b"\"produced\":{")?..];
    let ledger = &ledger[..memchr(b'}', ledger)?];
    Some(
        [&b"\"stdout\":"[..], b"\"stderr\":", b"\"pty\":"]
            .into_iter()
            .filter_map(|key| number_after(ledger, key))
            .sum(),
    )
}

fn number_after(text: &[u8], key: &[u8]) -> Option<u64> {
    let digits = &text[find(text, key)? + key.len()..];
    let len = digits.iter().take_while(|byte| byte.is_ascii_digit()).count();
    std::str::from_utf8(&digits[..len]).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_is_measured_without_decoding_whatever_the_order_of_members() {
        let expected = Message::Output { process: 7, seq: 12, len: 4 };
        for text in [
            r#"{"method":"process/output","params":{"processId":"7","seq":12,"stream":"stdout","chunk":"aGkhCg=="}}"#,
            r#"{"params":{"chunk":"aGkhCg==","stream":"pty","seq":12,"processId":"7"},"method":"process/output"}"#,
        ] {
            assert_eq!(Message::parse(text.as_bytes()).unwrap(), expected);
        }
    }

    #[test]
    fn binary_messages_are_measured_too() {
        let output = b"\x01\x00\x00\x00\x00\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x0c\
            \x00\x00\x00\x00\x00\x00\x00\x007hi!\n";
        assert_eq!(Message::parse(output).unwrap(), Message::Output { process: 7, seq: 12, len: 4 });
        let reply = b"\x02\x00\x00\x00\x00\x00\x00\x1f{\"id\":4,\"result\":{\"chunk\":[0,3]}}abc";
        assert_eq!(Message::parse(reply).unwrap(), Message::Reply { id: 4, error: None, len: reply.len() });
    }

    #[test]
    fn the_ledger_of_a_closed_process_is_summed_where_there_is_one() {
        let text = r#"{"method":"process/closed","params":{"processId":"3","seq":9,"produced":{"stdout":20,"stderr":2,"pty":0},"evictedBytes":5}}"#;
        assert_eq!(
            Message::parse(text.as_bytes()).unwrap(),
            Message::Closed { process: 3, seq: 9, produced: Some(22) }
        );
        let text = r#"{"method":"process/closed","params":{"processId":"3","seq":9}}"#;
        assert_eq!(
            Message::parse(text.as_bytes()).unwrap(),
            Message::Closed { process: 3, seq: 9, produced: None }
        );
    }

    #[test]
    fn replies_carry_their_id_before_or_after_the_rest() {
        let text = r#"{"id":4,"result":{"processId":"1","sandboxType":"none"}}"#;
        assert_eq!(
            Message::parse(text.as_bytes()).unwrap(),
            Message::Reply { id: 4, error: None, len: text.len() }
        );
        let text = r#"{"error":{"code":-32600,"message":"no"},"id":5}"#;
        assert_eq!(
            Message::parse(text.as_bytes()).unwrap(),
            Message::Reply { id: 5, error: Some(text.to_owned()), len: text.len() }
        );
    }

    #[test]
    fn a_message_that_is_none_of_these_is_quoted_in_the_error() {
        let error = Message::parse(b"[1]").unwrap_err();
        assert_eq!(error.to_string(), "cannot understand the message `[1]`");
    }
}
