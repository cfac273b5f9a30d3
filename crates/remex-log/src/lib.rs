//! The on-disk log of the output of one process.
//!
//! One [`Writer`] appends output, exit and close; any number of [`Reader`]s in other processes read them at the same
//! time. It survives the death of all of them, because data in the page cache does; it survives a power failure only
//! after [`Writer::sync`], or [`Unsynced::wait`] on another thread. It knows nothing of processes, pipes or sessions,
//! starts no threads and never waits, except for the file system. Streams, cursors, holds and gaps are those of logs in
//! memory ([`remex_proto::state::output`]). Start at [`Writer::open`] and [`Reader::next`].
//!
//! ```
//! use std::sync::Arc;
//!
//! use remex_log::{Cursor, Hold, Item, Options, Reader, Room, Stream, Unlimited, Writer};
//!
//! # fn main() -> std::io::Result<()> {
//! let dir = tempfile::tempdir()?;
//! let options = Options { retain_bytes: 1 << 20, segment_bytes: None };
//! let mut writer = Writer::create(dir.path(), options, Arc::new(Unlimited))?;
//! let mut pipe = &b"hello"[..];
//! if let Room::Bytes(room) = writer.room(Hold::Nothing) {
//!     writer.append(Stream::Stdout, 0, room, |buffer| std::io::Read::read(&mut pipe, buffer))?;
//! }
//! let up_to = writer.position().written_seq;
//!
//! let mut reader = Reader::open(dir.path())?;
//! let mut cursor = Cursor::START;
//! let item = reader.next(&mut cursor, up_to)?;
//! assert!(matches!(item, Some(Item::Output { seq: 1, bytes: b"hello", .. })));
//! # Ok(())
//! # }
//! ```
//!
//! # Format
//!
//! This is version 1. All numbers are little endian.
//!
//! A log is a directory of segments. Each is a file `SEQ-OFFSET.log`, both as 16 lower-case hexadecimal digits: the
//! number of its first event, and the bytes of output before that. So the sorted names are an index of
//! the log. `next.tmp` is a segment that is being created; other files do not belong to the log.
//!
//! *Events* are numbered from 1: a chunk of output, the exit, the close, and a run of dropped output. An *offset* counts
//! the bytes of output of all streams before an event, including dropped ones. A segment has all events from its first one
//! up to the first of the next segment. The first events of a log may be evicted, always whole segments.
//!
//! ## Head of a segment
//!
//! The first 128 bytes of a segment are its header, and the next 128 bytes are a copy. Either is valid if its checksum
//! is right; the numbers must be those of the name. Every version has magic and version at these places in both.
//!
//! | at | bytes | what |
//! | --- | --- | --- |
//! | 0 | 8 | `REMEXLOG` |
//! | 8 | 4 | version: 1 |
//! | 12 | 4 | length of the header: 128 |
//! | 16 | 8 | number of the first event |
//! | 24 | 8 | its offset |
//! | 32 | 8 | salt: random |
//! | 40 | 8 | when it was created, in ms since 1970 |
//! | 48 | 24 | bytes produced before it on stdout, stderr and the terminal, 8 bytes each |
//! | 72 | 8 | bytes of these that were dropped |
//! | 80 | 16 | numbers of the exit and of the close, if they are before this segment, or 0 |
//! | 96 | 24 | 0 |
//! | 120 | 8 | checksum: SipHash-2-4 of bytes 0 to 119 with the key 0, 0 |
//!
//! ## Records
//!
//! Records follow from byte 256 on without space between: 48 bytes of header, the payload, and zeros up to a multiple
//! of 8.
//!
//! | at | bytes | what |
//! | --- | --- | --- |
//! | 0 | 1 | kind, see below; never 0 |
//! | 1 | 1 | stream of output (1 stdout, 2 stderr, 3 terminal), or tag of a note |
//! | 2 | 2 | 0 |
//! | 4 | 4 | length of the payload |
//! | 8 | 8 | number of the event; of the next event if it is none |
//! | 16 | 8 | offset |
//! | 24 | 8 | when it happened, in ms since 1970 as the writer's clock said; 0 for notes |
//! | 32 | 4 | CRC-32 (IEEE) of the payload |
//! | 36 | 4 | how many events it stands for |
//! | 40 | 8 | checksum: SipHash-2-4 of bytes 0 to 39 with the salt and the first number of the segment as the key |
//!
//! | kind | what | payload |
//! | --- | --- | --- |
//! | 1 | output | the output, 1 byte to 64 KiB |
//! | 2 | exit | opaque, up to 1 KiB |
//! | 3 | close | opaque, up to 1 KiB |
//! | 4 | dropped output | bytes dropped of stdout, stderr and the terminal (8 bytes each), cause, error number (4 bytes each) |
//! | 5 | note; no event | opaque, up to 64 KiB |
//!
//! Causes are 1 retention, 2 to 4 quota of process, session and server, 5 disk full, 6 error with its number.
//!
//! A segment begins with copies of the exit, of the close and of the newest note of each tag, as far as there are any,
//! so that eviction does not lose them. Copies stand for 0 events; those of exit and close have the number and time of
//! the original.
//!
//! ## How to read it
//!
//! Skip records of unknown kinds. If the checksum of a header is wrong, the next record is at the next multiple of 8
//! where it is right and the number is not smaller than expected; output cannot imitate that, because it does not know
//! the salt. How many events and bytes are missing follows from the number and offset there, or from the name of the
//! next segment. If only the payload is damaged, its header tells what is missing. A record at the end whose payload is
//! too short, fewer than 48 bytes, or zeros are a write that was not finished.

mod base;

mod discard_output;
mod reader;
mod scan;
mod writer;

pub use base::event::{Cause, Cursor, End, Gap, GapCause, Hold, Item, Point, Produced, Seq, Stream};
pub use base::format::{MAX_CHUNK, MAX_END_PAYLOAD, VERSION, VersionError};
pub use base::scanner::is_lasting;
pub use base::space::{Quota, Space, Unlimited};
pub use discard_output::discard_output;
pub use reader::{Bookmark, Reader};
pub use scan::{Summary, inspect};
pub use writer::{Appended, EmptyLog, Options, Position, Recovered, Room, Unsynced, Writer};

#[cfg(test)]
mod tests;
