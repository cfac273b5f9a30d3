//! The bytes of segments and records; the crate documentation describes them. Start at [`RecordHeader`].

use std::{error, fmt, io};

use crate::base::{
    event::{Cause, Produced, Seq, Stream, stream_code, stream_from_code},
    names::SegmentName,
    siphash::siphash,
};

/// The format version that this crate reads and writes.
pub const VERSION: u32 = 1;
/// The longest chunk of output, and the longest note.
pub const MAX_CHUNK: usize = 64 << 10;
/// The longest payload of an exit or close; space for both is always reserved.
pub const MAX_END_PAYLOAD: usize = 1024;

const MAGIC: [u8; 8] = *b"REMEXLOG";
const COPY_LEN: usize = 128;
/// Where the records of a segment begin.
pub(crate) const HEAD_LEN: usize = 2 * COPY_LEN;
/// The length of the header of a record.
pub(crate) const RECORD_LEN: usize = 48;
/// The length of the longest record that has to be in memory as a whole.
pub(crate) const MAX_RECORD: usize = RECORD_LEN + MAX_CHUNK;
const GAP_LEN: usize = 32;
/// The length of a gap record.
pub(crate) const GAP_RECORD: u64 = (RECORD_LEN + GAP_LEN) as u64;

/// The error for a log that a newer version of the program wrote.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VersionError {
    /// The version of the log.
    pub found: u32,
    /// The newest version that this program knows.
    pub known: u32,
}

impl fmt::Display for VersionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let VersionError { found, known } = self;
        write!(
            f,
            "cannot read a log of format version {found}: this program knows versions up to {known}; use a newer one"
        )
    }
}

impl error::Error for VersionError {}

impl From<VersionError> for io::Error {
    fn from(error: VersionError) -> io::Error {
        io::Error::new(io::ErrorKind::Unsupported, error)
    }
}

/// What the head of a segment says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SegmentHeader {
    pub(crate) name: SegmentName,
    pub(crate) salt: u64,
    pub(crate) created_ms: u64,
    /// Bytes produced before this segment.
    pub(crate) produced: Produced,
    /// Bytes dropped before this segment.
    pub(crate) dropped: u64,
    /// The number of the exit, or 0 if it is not before this segment.
    pub(crate) exited: Seq,
    /// The number of the close, or 0 if it is not before this segment.
    pub(crate) closed: Seq,
}

/// Why the head of a segment cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HeadError {
    Corrupted,
    Newer(VersionError),
}

impl SegmentHeader {
    /// Returns the key that the checksums of this segment's records are made with.
    pub(crate) fn key(&self) -> [u64; 2] {
        [self.salt, self.name.first_seq]
    }

    /// Returns the head of a segment: the header, twice, so that one damaged byte does not cost the segment.
    pub(crate) fn encode(&self) -> [u8; HEAD_LEN] {
        let mut head = [0; HEAD_LEN];
        let copy = &mut head[..COPY_LEN];
        copy[..8].copy_from_slice(&MAGIC);
        put_u32(copy, 8, VERSION);
        put_u32(copy, 12, COPY_LEN as u32);
        let words = [
            self.name.first_seq,
            self.name.first_offset,
            self.salt,
            self.created_ms,
            self.produced.stdout,
            self.produced.stderr,
            self.produced.pty,
            self.dropped,
            self.exited,
            self.closed,
        ];
        for (index, word) in words.into_iter().enumerate() {
            put_u64(copy, 16 + 8 * index, word);
        }
        let check = siphash([0, 0], &copy[..COPY_LEN - 8]);
        put_u64(copy, COPY_LEN - 8, check);
        head.copy_within(..COPY_LEN, COPY_LEN);
        head
    }

    /// Reads the head of a segment from either copy.
    pub(crate) fn decode(head: &[u8]) -> Result<SegmentHeader, HeadError> {
        let copies = || head.chunks_exact(COPY_LEN).take(2);
        if let Some(header) = copies().find_map(SegmentHeader::decode_copy) {
            return Ok(header);
        }
        // Both copies must agree: a damaged version is not a new one.
        let mut versions = copies().map(|copy| (copy[..8] == MAGIC).then(|| get_u32(copy, 8)));
        match (versions.next().flatten(), versions.next().flatten()) {
            (Some(found), Some(other)) if found == other && found > VERSION => {
                Err(HeadError::Newer(VersionError { found, known: VERSION }))
            }
            _ => Err(HeadError::Corrupted),
        }
    }

    fn decode_copy(copy: &[u8]) -> Option<SegmentHeader> {
        let is_valid = copy[..8] == MAGIC
            && get_u32(copy, 8) == VERSION
            && siphash([0, 0], &copy[..COPY_LEN - 8]) == get_u64(copy, COPY_LEN - 8);
        is_valid.then(|| SegmentHeader {
            name: SegmentName { first_seq: get_u64(copy, 16), first_offset: get_u64(copy, 24) },
            salt: get_u64(copy, 32),
            created_ms: get_u64(copy, 40),
            produced: [48, 56, 64].map(|at| get_u64(copy, at)).into(),
            dropped: get_u64(copy, 72),
            exited: get_u64(copy, 80),
            closed: get_u64(copy, 88),
        })
    }
}

/// The kind of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Output(Stream),
    Exited,
    Closed,
    Gap,
    Note(u8),
    /// A kind that a newer writer invented; readers skip it.
    Unknown,
}

/// The header of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RecordHeader {
    pub(crate) kind: Kind,
    /// Length of the payload.
    pub(crate) len: u32,
    /// Number of the event; of the next event for a note; of the original for a copy.
    pub(crate) seq: Seq,
    /// Bytes of output before it.
    pub(crate) offset: u64,
    pub(crate) at_ms: u64,
    /// How many events it stands for; 0 for notes, and for copies of an exit or close at the start of a segment.
    pub(crate) events: u32,
    pub(crate) payload_crc: u32,
}

impl RecordHeader {
    /// Returns a header for `payload`.
    pub(crate) fn new(kind: Kind, seq: Seq, offset: u64, at_ms: u64, payload: &[u8]) -> RecordHeader {
        debug_assert!(payload.len() <= MAX_CHUNK, "payloads are limited");
        let events = u32::from(!matches!(kind, Kind::Note(_)));
        let payload_crc = crc32fast::hash(payload);
        RecordHeader { kind, len: payload.len() as u32, seq, offset, at_ms, events, payload_crc }
    }

    /// Returns the length of the whole record.
    pub(crate) fn size(&self) -> u64 {
        RECORD_LEN as u64 + u64::from(self.len).next_multiple_of(8)
    }

    /// Returns the last event that it stands for, if it is an event.
    pub(crate) fn last_seq(&self) -> Option<Seq> {
        self.seq.checked_add(u64::from(self.events.checked_sub(1)?))
    }

    /// Returns whether `payload` is what was written.
    pub(crate) fn checks(&self, payload: &[u8]) -> bool {
        payload.len() == self.len as usize && crc32fast::hash(payload) == self.payload_crc
    }

    /// Returns the bytes of this header under the key of its segment.
    pub(crate) fn encode(&self, key: [u64; 2]) -> [u8; RECORD_LEN] {
        let (kind, detail) = match self.kind {
            Kind::Output(stream) => (1, stream_code(stream)),
            Kind::Exited => (2, 0),
            Kind::Closed => (3, 0),
            Kind::Gap => (4, 0),
            Kind::Note(tag) => (5, tag),
            Kind::Unknown => (0xff, 0),
        };
        let mut bytes = [0; RECORD_LEN];
        bytes[0] = kind;
        bytes[1] = detail;
        put_u32(&mut bytes, 4, self.len);
        put_u64(&mut bytes, 8, self.seq);
        put_u64(&mut bytes, 16, self.offset);
        put_u64(&mut bytes, 24, self.at_ms);
        put_u32(&mut bytes, 32, self.payload_crc);
        put_u32(&mut bytes, 36, self.events);
        let check = siphash(key, &bytes[..40]);
        put_u64(&mut bytes, 40, check);
        bytes
    }

    /// Reads a header; `None` if these bytes are none of this segment.
    pub(crate) fn decode(bytes: &[u8], key: [u64; 2]) -> Option<RecordHeader> {
        let bytes = bytes.get(..RECORD_LEN)?;
        if bytes[0] == 0 || siphash(key, &bytes[..40]) != get_u64(bytes, 40) {
            return None;
        }
        let (len, events) = (get_u32(bytes, 4), get_u32(bytes, 36));
        let kind = match (bytes[0], stream_from_code(bytes[1])) {
            (1, Some(stream)) if events == 1 && len > 0 => Kind::Output(stream),
            (2, _) if events <= 1 => Kind::Exited,
            (3, _) if events <= 1 => Kind::Closed,
            (4, _) if events >= 1 && len as usize == GAP_LEN => Kind::Gap,
            (5, _) if events == 0 => Kind::Note(bytes[1]),
            _ => Kind::Unknown,
        };
        // Only what is skipped unread may be longer.
        let kind = if len as usize > MAX_CHUNK { Kind::Unknown } else { kind };
        Some(RecordHeader {
            kind,
            len,
            seq: RecordHeader::peek_seq(bytes),
            offset: get_u64(bytes, 16),
            at_ms: get_u64(bytes, 24),
            payload_crc: get_u32(bytes, 32),
            events,
        })
    }

    /// Returns the number that a header at the start of `bytes` would have, to rule most positions out cheaply.
    pub(crate) fn peek_seq(bytes: &[u8]) -> Seq {
        get_u64(bytes, 8)
    }
}

/// Appends a record with its padding to `out`.
pub(crate) fn push_record(out: &mut Vec<u8>, key: [u64; 2], header: &RecordHeader, payload: &[u8]) {
    out.extend_from_slice(&header.encode(key));
    out.extend_from_slice(payload);
    out.resize(out.len().next_multiple_of(8), 0);
}

/// The payload of a gap record: the bytes dropped, and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DroppedOutput {
    pub(crate) bytes: Produced,
    pub(crate) cause: Cause,
}

impl DroppedOutput {
    pub(crate) fn encode(&self) -> [u8; GAP_LEN] {
        let mut bytes = [0; GAP_LEN];
        put_u64(&mut bytes, 0, self.bytes.stdout);
        put_u64(&mut bytes, 8, self.bytes.stderr);
        put_u64(&mut bytes, 16, self.bytes.pty);
        let [code, errno] = self.cause.to_words();
        put_u32(&mut bytes, 24, code);
        put_u32(&mut bytes, 28, errno);
        bytes
    }

    pub(crate) fn decode(bytes: &[u8]) -> Option<DroppedOutput> {
        (bytes.len() == GAP_LEN).then(|| DroppedOutput {
            bytes: [0, 8, 16].map(|at| get_u64(bytes, at)).into(),
            cause: Cause::from_words([get_u32(bytes, 24), get_u32(bytes, 28)]),
        })
    }
}

fn put_u32(bytes: &mut [u8], at: usize, value: u32) {
    bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
}

fn put_u64(bytes: &mut [u8], at: usize, value: u64) {
    bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
}

fn get_u32(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("the slice has 4 bytes"))
}

fn get_u64(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("the slice has 8 bytes"))
}
