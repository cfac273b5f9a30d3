//! Messages that are encoded piece by piece: their contents are in memory once, without a second copy as
//! base64.
//!
//! Start at [`LongMessage`].

use std::{collections::VecDeque, io, sync::Arc};

use remex_access::{
    account::{Account, Charge, FLOOR, Kind},
    budget::Share,
};
use remex_proto::{
    Blob, RequestId, attachment::Attached, binary, blob, http::HttpResponse, message, process,
};
use remex_rpc::SendBuffer;

use super::Reply;

/// Bytes encoded at a time: whole groups of three, so that only the last piece of a blob is padded.
const PIECE_LEN: usize = 48 << 10;

/// JSON with empty strings, and the blobs that belong there; or what comes before the blobs of a binary message.
#[derive(Debug)]
pub(crate) struct LongMessage {
    json: Vec<u8>,
    /// Whether it is a binary message, whose blobs are at its end as they are.
    is_binary: bool,
    /// Each with its position in `json`, in order.
    blobs: VecDeque<(usize, Blob)>,
    /// Bytes of `json` already encoded; written <= json.len()
    written: usize,
    /// Bytes of the first blob already encoded.
    encoded: usize,
    /// The length of the whole message.
    len: usize,
    /// Held until the message is completely encoded.
    memory: MessageMemory,
}

/// What covers the memory of a message until it is completely encoded.
#[derive(Debug)]
enum MessageMemory {
    Share(#[expect(dead_code, reason = "releases a resource when dropped")] Share),
    Charge(#[expect(dead_code, reason = "releases a resource when dropped")] Charge),
    /// The bytes of its blob have a share.
    Blob,
    Nothing,
}

/// An answer with blobs that may be long.
pub(crate) trait LongReply: Reply {
    /// The members that contain blobs, in JSON order, repeating.
    const MEMBERS: &'static [&'static str];

    /// Visits all blobs in JSON order.
    fn for_each_blob(&mut self, each: &mut dyn FnMut(&mut Blob));
}

impl LongReply for process::ReadReply {
    const MEMBERS: &'static [&'static str] = &["\"chunk\":\"\""];

    fn for_each_blob(&mut self, each: &mut dyn FnMut(&mut Blob)) {
        self.chunks.iter_mut().for_each(|chunk| each(&mut chunk.chunk));
    }
}

impl LongReply for process::SnapshotReply {
    const MEMBERS: &'static [&'static str] = &["\"stdout\":\"\"", "\"stderr\":\"\"", "\"terminal\":\"\""];

    fn for_each_blob(&mut self, each: &mut dyn FnMut(&mut Blob)) {
        [&mut self.stdout, &mut self.stderr, &mut self.terminal].into_iter().for_each(each);
    }
}

impl LongReply for HttpResponse {
    const MEMBERS: &'static [&'static str] = &["\"bodyBase64\":\"\""];

    fn for_each_blob(&mut self, each: &mut dyn FnMut(&mut Blob)) {
        each(&mut self.body_base64);
    }
}

impl LongMessage {
    /// Creates a message from complete JSON.
    pub(super) fn text(json: Vec<u8>, share: Option<Share>) -> Self {
        let len = json.len();
        let memory = MessageMemory::Nothing;
        let blobs = VecDeque::new();
        let text = LongMessage { json, is_binary: false, blobs, written: 0, encoded: 0, len, memory };
        text.with(share)
    }

    /// Keeps as much of `share` as it needs.
    pub(super) fn with(mut self, share: Option<Share>) -> Self {
        if let Some(mut share) = share {
            share.shrink(self.len as u64);
            self.memory = MessageMemory::Share(share);
        }
        self
    }

    /// Charges its memory to `account`, unless it has a share.
    pub(super) fn charge(&mut self, account: &Arc<Account>) {
        if let MessageMemory::Nothing = self.memory {
            self.memory = MessageMemory::Charge(account.take(Kind::Answers, self.len));
        }
    }

    /// Creates a binary message from JSON and the bytes that it refers to.
    pub(super) fn binary(json: &[u8], attached: Attached) -> Self {
        let mut head = Vec::with_capacity(binary::MESSAGE_HEAD_LEN + json.len());
        assert!(binary::write_head(&mut head, json.len()), "the JSON beside bytes is shorter than 4 GiB");
        head.extend_from_slice(json);
        let (offset, len) = (head.len(), head.len() + attached.len);
        let blobs = attached.pieces.into_iter().map(|piece| (offset, Blob(piece))).collect();
        LongMessage { is_binary: true, blobs, len, ..LongMessage::text(head, None) }
    }

    /// Creates a binary message whose bytes have a share if they are long.
    pub(super) fn shared_binary(json: &[u8], attached: Attached) -> Self {
        let memory = if attached.len > FLOOR { MessageMemory::Blob } else { MessageMemory::Nothing };
        LongMessage { memory, ..LongMessage::binary(json, attached) }
    }

    /// Creates an answer whose result is the base64 of `blob` between two texts; a long one has its own share.
    pub(super) fn around(id: &RequestId, around: [&str; 2], blob: Blob) -> Self {
        let mut json = Vec::with_capacity(128);
        let mut offset = 0;
        message::write_result_with(&mut json, id, |json| {
            json.extend_from_slice(around[0].as_bytes());
            offset = json.len();
            json.extend_from_slice(around[1].as_bytes());
        });
        let len = json.len() + blob::encoded_len(blob.len());
        let memory = if blob.len() > FLOOR { MessageMemory::Blob } else { MessageMemory::Nothing };
        LongMessage { memory, blobs: VecDeque::from([(offset, blob)]), len, ..LongMessage::text(json, None) }
    }

    /// Creates a message from `reply`.
    ///
    /// # Errors
    ///
    /// If there is no memory for the JSON around the blobs.
    pub(super) fn reply<R: LongReply>(
        id: &RequestId,
        mut reply: R,
        share: Option<Share>,
    ) -> io::Result<Self> {
        let mut count = 0;
        reply.for_each_blob(&mut |_| count += 1);
        let mut blobs = VecDeque::new();
        blobs.try_reserve_exact(count)?;
        reply.for_each_blob(&mut |blob| blobs.push_back((0, std::mem::take(blob))));
        let json = json_of(id, &reply)?;
        drop(reply);
        let (mut offset, mut len) = (0, json.len());
        for ((start, blob), member) in blobs.iter_mut().zip(R::MEMBERS.iter().cycle()) {
            offset += find(&json[offset..], member.as_bytes()) + member.len();
            // Between the quotes of an empty string.
            *start = offset - 1;
            len += blob::encoded_len(blob.len());
        }
        Ok(LongMessage { blobs, len, ..LongMessage::text(json, None) }.with(share))
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Begins it in the send buffer.
    pub(super) fn begin(&self, buffer: &mut SendBuffer) {
        if self.is_binary {
            buffer.begin_binary(self.len);
        } else {
            buffer.begin(self.len);
        }
    }

    /// Encodes the next piece; returns `false` after the last one.
    pub(super) fn encode(&mut self, buffer: &mut SendBuffer) -> bool {
        let text_end = self.blobs.front().map_or(self.json.len(), |(offset, _)| *offset);
        if self.written < text_end {
            let end = text_end.min(self.written + PIECE_LEN);
            buffer.append(|bytes| bytes.extend_from_slice(&self.json[self.written..end]));
            self.written = end;
        } else if let Some((_, blob)) = self.blobs.front() {
            let end = blob.len().min(self.encoded + PIECE_LEN);
            let (piece, is_binary) = (&blob[self.encoded..end], self.is_binary);
            buffer.append(|bytes| {
                if is_binary { bytes.extend_from_slice(piece) } else { blob::encode_into(piece, bytes) }
            });
            self.encoded = end;
            if end == blob.len() {
                self.blobs.pop_front();
                self.encoded = 0;
            }
        }
        let is_unfinished = self.written < self.json.len() || !self.blobs.is_empty();
        if !is_unfinished && !self.is_binary {
            buffer.finish();
        }
        is_unfinished
    }
}

/// Returns the position of `member`.
fn find(json: &[u8], member: &[u8]) -> usize {
    json.windows(member.len())
        .position(|window| window == member)
        .expect("every blob is a member of its reply, and a quote within a string is escaped")
}

/// Encodes an answer, or fails if there is no memory for it.
pub(super) fn json_of<R: Reply>(id: &RequestId, reply: &R) -> io::Result<Vec<u8>> {
    let mut json = Vec::with_capacity(128);
    let mut written = Ok(());
    message::write_result_with(&mut json, id, |json| written = serde_json::to_writer(Fallible(json), reply));
    written?;
    Ok(json)
}

/// A writer that appends to a vector and fails if memory runs out.
pub(crate) struct Fallible<'a>(pub(crate) &'a mut Vec<u8>);

impl io::Write for Fallible<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.try_reserve(bytes.len())?;
        self.0.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use remex_proto::{attachment, http, process::Stream};
    use remex_rpc::Framing;

    use super::*;

    /// Compares with the encoding in one step.
    fn assert_same<R: LongReply + Clone>(reply: R) {
        let id = RequestId::Text("\"chunk\":\"\" and \"stdout\":\"\"".into());
        let (json, attached) = attachment::collect(|| json_of(&id, &reply).unwrap());
        let mut expected = Vec::new();
        assert!(binary::write_head(&mut expected, json.len()));
        binary::write_rest(&mut expected, &json, &attached);
        let mut message = LongMessage::binary(&json, attached);
        assert_eq!(message.len(), expected.len());
        let mut buffer = SendBuffer::new(Framing::Lines);
        message.begin(&mut buffer);
        while message.encode(&mut buffer) {}
        assert!(buffer.pending()[binary::LINE_HEAD_LEN..] == expected, "as a binary message");

        let mut expected = Vec::new();
        message::write_result(&mut expected, &id, &reply);
        let mut message = LongMessage::reply(&id, reply, None).unwrap();
        assert_eq!(message.len(), expected.len());
        let mut buffer = SendBuffer::new(Framing::Lines);
        message.begin(&mut buffer);
        while message.encode(&mut buffer) {}
        expected.push(b'\n');
        assert!(buffer.pending() == expected, "{}", String::from_utf8_lossy(buffer.pending()));
    }

    #[test]
    fn encoding_in_pieces_equals_encoding_at_once() {
        for len in [0, 1, PIECE_LEN, PIECE_LEN + 1, 3 * PIECE_LEN - 1] {
            let blob = Blob::from(vec![7; len]);
            let text = "\"bodyBase64\":\"\"".to_owned();
            let headers = ["", &text].map(|value| http::ResponseHeader::new(&text, value));
            assert_same(HttpResponse { status: 200, headers: headers.to_vec(), body_base64: blob.clone() });
            let mut snapshot = process::SnapshotReply::default();
            snapshot.stdout = blob.clone();
            snapshot.terminal = blob.clone();
            snapshot.truncated = true;
            snapshot.omitted_bytes = 7;
            snapshot.running = true;
            assert_same(snapshot);
            let chunk = |seq| process::Chunk {
                seq,
                stream: Stream::Stdout,
                chunk: if seq == 2 { Blob::default() } else { blob.clone() },
                at_ms: Some(seq),
            };
            assert_same(process::ReadReply {
                chunks: (1..4).map(chunk).collect(),
                next_seq: 4,
                incarnation: Some(7),
                exited: true,
                exit_code: Some(0),
                closed: true,
                failure: Some("\"chunk\":\"\"".to_owned()),
                sandbox_denied: false,
                network_denied: Vec::new(),
                gap: None,
                signal: Some(String::new()),
                cause: None,
                usage: None,
                produced: None,
                evicted_bytes: None,
            });
        }
    }
}
