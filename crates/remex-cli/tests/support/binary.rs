//! Binary messages, as `PROTOCOL.md` describes them: decoded here without the code under test.

use std::io::{self, BufRead};

use serde_json::{Value, json};

use super::encode;

/// Returns the same message in JSON, with `"binary": true` beside its members.
pub(crate) fn as_json(message: &[u8]) -> Value {
    let number = |at: usize, len: usize| {
        message[at..at + len].iter().fold(0_u64, |number, byte| number << 8 | u64::from(*byte))
    };
    match message[0] {
        1 => {
            let stream = ["stdout", "stderr", "pty"][usize::from(message[1])];
            let process_end = 24 + number(4, 2) as usize;
            let session_end = process_end + number(6, 2) as usize;
            let text =
                |from: usize, to: usize| std::str::from_utf8(&message[from..to]).expect("an id is UTF-8");
            let mut params = json!({
                "processId": text(24, process_end),
                "seq": number(8, 8),
                "stream": stream,
                "chunk": encode(&message[session_end..]),
            });
            if message[2] & 1 != 0 {
                params["incarnation"] = number(16, 8).into();
            }
            if message[2] & 2 != 0 {
                params["sessionId"] = text(process_end, session_end).into();
            }
            json!({"method": "process/output", "params": params, "binary": true})
        }
        2 => {
            let (json, bytes) = message[8..].split_at(number(4, 4) as usize);
            let mut json: Value = serde_json::from_slice(json).expect("the head of a binary message is JSON");
            let part = if json.get("method").is_some() { "params" } else { "result" };
            resolve(&mut json[part], bytes);
            json["binary"] = true.into();
            json
        }
        kind => panic!("there is no binary message of the kind {kind}"),
    }
}

/// Puts base64 in the place of references.
fn resolve(value: &mut Value, bytes: &[u8]) {
    const MEMBERS: [&str; 7] =
        ["chunk", "dataBase64", "deltaBase64", "bodyBase64", "stdout", "stderr", "terminal"];
    match value {
        Value::Object(members) => {
            for (name, member) in members {
                match member.as_array().map(Vec::as_slice) {
                    Some([from, len]) if MEMBERS.contains(&&**name) => {
                        let at =
                            |index: &Value| index.as_u64().expect("a reference has two integers") as usize;
                        *member = encode(&bytes[at(from)..at(from) + at(len)]).into();
                    }
                    _ => resolve(member, bytes),
                }
            }
        }
        Value::Array(values) => values.iter_mut().for_each(|value| resolve(value, bytes)),
        _ => {}
    }
}

/// Returns a request as a binary message with these bytes beside it.
pub(crate) fn with_bytes(request: &Value, bytes: &[u8]) -> Vec<u8> {
    let json = request.to_string();
    let len = u32::try_from(json.len()).expect("a request is short");
    [&[2, 0, 0, 0], &len.to_be_bytes()[..], json.as_bytes(), bytes].concat()
}

/// Returns a binary message as it stands between lines.
pub(crate) fn between_lines(message: &[u8]) -> Vec<u8> {
    let len = u32::try_from(message.len()).expect("a message is short");
    [&[0], &len.to_be_bytes()[..], message].concat()
}

/// What stands between two line ends.
pub(crate) enum Read {
    Line(Vec<u8>),
    Binary(Vec<u8>),
    End,
}

/// Reads a line, or the binary message in its place.
pub(crate) fn read(from: &mut impl BufRead) -> io::Result<Read> {
    match from.fill_buf()?.first() {
        None => Ok(Read::End),
        Some(0) => {
            let mut head = [0; 5];
            from.read_exact(&mut head)?;
            let len = u32::from_be_bytes([head[1], head[2], head[3], head[4]]);
            let mut message = vec![0; len as usize];
            from.read_exact(&mut message)?;
            Ok(Read::Binary(message))
        }
        Some(_) => {
            let mut line = Vec::new();
            from.read_until(b'\n', &mut line)?;
            Ok(Read::Line(line))
        }
    }
}
