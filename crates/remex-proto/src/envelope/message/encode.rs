//! Writes messages into a send buffer.

use std::io::Write as _;

use serde::Serialize;

use super::RequestId;
use crate::{
    RpcError, TraceContext,
    areas::process::Stream,
    base::{
        blob,
        method::{Note, Request},
    },
};

/// Appends `{"id":…,"result":…}`.
pub fn write_result(out: &mut Vec<u8>, id: &RequestId, result: &impl Serialize) {
    write_result_with(out, id, |out| write_json(out, result));
}

/// Appends `{"id":…,"result":…}` with the JSON that `write` appends.
pub fn write_result_with(out: &mut Vec<u8>, id: &RequestId, write: impl FnOnce(&mut Vec<u8>)) {
    out.extend_from_slice(b"{\"id\":");
    write_json(out, id);
    out.extend_from_slice(b",\"result\":");
    write(out);
    out.push(b'}');
}

/// Appends `{"error":{…},"id":…}`.
pub fn write_error(out: &mut Vec<u8>, id: &RequestId, error: &RpcError) {
    out.extend_from_slice(b"{\"error\":");
    write_json(out, error);
    out.extend_from_slice(b",\"id\":");
    write_json(out, id);
    out.push(b'}');
}

/// Appends `{"method":…,"params":…}`.
pub fn write_notification<N: Note>(out: &mut Vec<u8>, note: &N) {
    out.extend_from_slice(b"{\"method\":");
    write_json(out, N::METHOD);
    out.extend_from_slice(b",\"params\":");
    write_json(out, note);
    out.push(b'}');
}

/// Appends `{"id":…,"method":…,"params":…}`.
pub fn write_request<R: Request>(out: &mut Vec<u8>, id: &RequestId, request: &R) {
    write_request_with(out, id, |out| write_request_body(out, request));
}

/// Appends `{"id":…,"method":…,"params":…}` around a body that [`write_request_body`] has written before.
pub fn write_request_with(out: &mut Vec<u8>, id: &RequestId, write: impl FnOnce(&mut Vec<u8>)) {
    out.extend_from_slice(b"{\"id\":");
    write_json(out, id);
    write(out);
}

/// Appends `,"method":…,"params":…}`: a request without its id, which is assigned when it is sent.
pub fn write_request_body<R: Request>(out: &mut Vec<u8>, request: &R) {
    out.extend_from_slice(b",\"method\":");
    write_json(out, R::METHOD);
    out.extend_from_slice(b",\"params\":");
    write_json(out, request);
    out.push(b'}');
}

/// Adds the member `trace` to a request whose body [`write_request_body`] has just appended.
pub fn write_trace(out: &mut Vec<u8>, trace: &TraceContext) {
    debug_assert_eq!(out.last(), Some(&b'}'), "a request ends with a brace");
    out.pop();
    out.extend_from_slice(b",\"trace\":");
    write_json(out, &trace.carrier());
    out.push(b'}');
}

fn write_json<T: Serialize + ?Sized>(out: &mut Vec<u8>, value: &T) {
    serde_json::to_writer(out, value).expect("wire types have string keys, and writes to memory do not fail");
}

/// A `process/output` notification, encoded from the log straight into the send buffer.
///
/// The ids are quoted JSON strings, escaped once per process instead of once per chunk.
///
/// ```
/// use remex_proto::{message::OutputFrame, process::Stream};
///
/// let frame = OutputFrame {
///     process_id: "\"p\"",
///     session_id: None,
///     incarnation: None,
///     seq: 1,
///     stream: Stream::Stdout,
///     bytes: b"hi\n",
/// };
/// let mut out = Vec::new();
/// frame.write(&mut out);
/// assert_eq!(out.len(), frame.len());
/// assert_eq!(
///     out,
///     br#"{"method":"process/output","params":{"processId":"p","seq":1,"stream":"stdout","chunk":"aGkK"}}"#
/// );
/// ```
#[derive(Debug, Clone, Copy)]
pub struct OutputFrame<'a> {
    /// The process, as a JSON string.
    pub process_id: &'a str,
    /// The observed session it belongs to, as a JSON string.
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

impl OutputFrame<'_> {
    pub(super) const PROCESS: &'static str = "{\"method\":\"process/output\",\"params\":{\"processId\":";
    pub(super) const SESSION: &'static str = ",\"sessionId\":";
    pub(super) const INCARNATION: &'static str = ",\"incarnation\":";
    pub(super) const SEQ: &'static str = ",\"seq\":";
    pub(super) const STREAM: &'static str = ",\"stream\":\"";
    pub(super) const CHUNK: &'static str = "\",\"chunk\":\"";
    pub(super) const END: &'static str = "\"}}";

    /// Returns the exact number of bytes that [`write`](Self::write) appends.
    #[allow(clippy::len_without_is_empty)] // A frame is never empty.
    pub fn len(&self) -> usize {
        let texts = [Self::PROCESS, Self::SEQ, Self::STREAM, Self::CHUNK, Self::END];
        let session = self.session_id.map_or(0, |session| Self::SESSION.len() + session.len());
        let incarnation = self.incarnation.map_or(0, |number| Self::INCARNATION.len() + digits(number));
        texts.map(str::len).iter().sum::<usize>()
            + self.process_id.len()
            + session
            + incarnation
            + digits(self.seq)
            + self.stream.name().len()
            + blob::encoded_len(self.bytes.len())
    }

    /// Appends the notification.
    pub fn write(&self, out: &mut Vec<u8>) {
        out.reserve(self.len());
        out.extend_from_slice(Self::PROCESS.as_bytes());
        out.extend_from_slice(self.process_id.as_bytes());
        if let Some(session) = self.session_id {
            out.extend_from_slice(Self::SESSION.as_bytes());
            out.extend_from_slice(session.as_bytes());
        }
        if let Some(incarnation) = self.incarnation {
            write!(out, "{}{incarnation}", Self::INCARNATION).expect("writes to memory do not fail");
        }
        out.extend_from_slice(Self::SEQ.as_bytes());
        write!(out, "{}", self.seq).expect("writes to memory do not fail");
        out.extend_from_slice(Self::STREAM.as_bytes());
        out.extend_from_slice(self.stream.name().as_bytes());
        out.extend_from_slice(Self::CHUNK.as_bytes());
        blob::encode_into(self.bytes, out);
        out.extend_from_slice(Self::END.as_bytes());
    }
}

/// Returns the number of digits of a number.
fn digits(number: u64) -> usize {
    number.checked_ilog10().map_or(1, |digits| digits as usize + 1)
}

/// An `http/request/bodyDelta` notification with a part of the body, encoded straight into the send buffer.
///
/// The last one of a stream is a [`BodyDelta`](crate::areas::http::BodyDelta).
///
/// ```
/// use remex_proto::message::BodyFrame;
///
/// let mut out = Vec::new();
/// BodyFrame { request_id: "\"r\"", seq: 1, bytes: b"hi\n" }.write(&mut out);
/// assert_eq!(
///     out,
///     br#"{"method":"http/request/bodyDelta","params":{"requestId":"r","seq":1,"deltaBase64":"aGkK","done":false,"error":null}}"#
/// );
/// ```
#[derive(Debug, Clone, Copy)]
pub struct BodyFrame<'a> {
    /// The request, as a JSON string.
    pub request_id: &'a str,
    /// The number of the part in its stream.
    pub seq: u64,
    /// The next part of the body.
    pub bytes: &'a [u8],
}

impl BodyFrame<'_> {
    const REQUEST: &'static str = "{\"method\":\"http/request/bodyDelta\",\"params\":{\"requestId\":";
    const SEQ: &'static str = ",\"seq\":";
    const DELTA: &'static str = ",\"deltaBase64\":\"";
    const END: &'static str = "\",\"done\":false,\"error\":null}}";
    /// The length of the longest number.
    const DIGITS: usize = 20;

    /// Appends the notification.
    pub fn write(&self, out: &mut Vec<u8>) {
        let texts = [Self::REQUEST, self.request_id, Self::SEQ, Self::DELTA, Self::END].map(str::len);
        out.reserve(texts.iter().sum::<usize>() + Self::DIGITS + blob::encoded_len(self.bytes.len()));
        out.extend_from_slice(Self::REQUEST.as_bytes());
        out.extend_from_slice(self.request_id.as_bytes());
        out.extend_from_slice(Self::SEQ.as_bytes());
        write!(out, "{}", self.seq).expect("writes to memory do not fail");
        out.extend_from_slice(Self::DELTA.as_bytes());
        blob::encode_into(self.bytes, out);
        out.extend_from_slice(Self::END.as_bytes());
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{
        Blob, ErrorKind, ServerNote,
        areas::{http, process},
        envelope::call::Empty,
    };

    fn written(write: impl FnOnce(&mut Vec<u8>)) -> String {
        let mut out = Vec::new();
        write(&mut out);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn messages_have_the_shapes_of_the_wire() {
        let id = RequestId::Text("a\"b".into());
        assert_eq!(written(|out| write_result(out, &id, &Empty {})), r#"{"id":"a\"b","result":{}}"#);
        let error = RpcError::new(ErrorKind::Other, "no").with_code(-32600);
        assert_eq!(
            written(|out| write_error(out, &RequestId::MALFORMED, &error)),
            r#"{"error":{"code":-32600,"message":"no"},"id":-1}"#
        );
        assert_eq!(
            written(|out| write_notification(out, &crate::base::flow::Mark { mark: 7 })),
            r#"{"method":"flow/mark","params":{"mark":7}}"#
        );
        assert_eq!(
            written(|out| write_request(
                out,
                &RequestId::Integer(0),
                &crate::areas::session::List::default()
            )),
            r#"{"id":0,"method":"session/list","params":{}}"#
        );
    }

    proptest! {
        #[test]
        fn the_fast_encoder_of_bodies_agrees_with_the_type(request_id: String, seq: u64, bytes: Vec<u8>) {
            let quoted = serde_json::to_string(&request_id).unwrap();
            let fast = written(|out| BodyFrame { request_id: &quoted, seq, bytes: &bytes }.write(out));
            let delta_base64 = Blob::from(bytes);
            let note = http::BodyDelta { request_id, seq, delta_base64, done: false, error: None };
            prop_assert_eq!(fast, written(|out| write_notification(out, &note)));
        }

        #[test]
        fn the_fast_encoder_agrees_with_the_type(
            process_id: String,
            session_id: Option<String>,
            incarnation: Option<u64>,
            seq: u64,
            stream in prop::sample::select(vec![Stream::Stdout, Stream::Stderr, Stream::Pty]),
            bytes: Vec<u8>,
        ) {
            let quoted = |text: &String| serde_json::to_string(text).unwrap();
            let (process, session) = (quoted(&process_id), session_id.as_ref().map(quoted));
            let frame = OutputFrame {
                process_id: &process,
                session_id: session.as_deref(),
                incarnation,
                seq,
                stream,
                bytes: &bytes,
            };
            let fast = written(|out| frame.write(out));
            prop_assert_eq!(fast.len(), frame.len());
            let note = process::Output { process_id, session_id, incarnation, seq, stream, chunk: Blob::from(bytes) };
            prop_assert_eq!(&fast, &written(|out| write_notification(out, &note)));
            let message = crate::Message::parse(fast.as_bytes(), crate::MessageLimits::WIRE).unwrap();
            let crate::Message::Notification { method, params } = message else { panic!("{fast}") };
            prop_assert_eq!(ServerNote::parse(&method, params).unwrap(), ServerNote::ProcessOutput(note));
        }
    }
}
