//! Events as a log on disk returns them, with the causes of gaps. Start at [`Item`].

use std::{fmt, io};

use remex_proto::state::output;
pub use remex_proto::state::output::{Cursor, Point, Produced, Seq, Stream};
use rustix::io::Errno;

/// The code of a stream in a record.
pub(crate) fn stream_code(stream: Stream) -> u8 {
    match stream {
        Stream::Stdout => 1,
        Stream::Stderr => 2,
        _ => 3,
    }
}

pub(crate) fn stream_from_code(code: u8) -> Option<Stream> {
    match code {
        1 => Some(Stream::Stdout),
        2 => Some(Stream::Stderr),
        3 => Some(Stream::Pty),
        _ => None,
    }
}

/// Why a log has no room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// The log holds as many unacknowledged bytes as it may retain.
    Retention,
    /// The quota of the process is used up.
    ProcessQuota,
    /// The quota of the session is used up.
    SessionQuota,
    /// The quota of the server is used up.
    ServerQuota,
    /// The file system has no space left.
    DiskFull,
    /// The file system reported this error number.
    Io(i32),
}

impl Cause {
    /// Returns the cause for an error of the file system.
    pub fn of(error: &io::Error) -> Cause {
        match Errno::from_io_error(error) {
            Some(Errno::NOSPC | Errno::DQUOT) => Cause::DiskFull,
            Some(errno) => Cause::Io(errno.raw_os_error()),
            None => Cause::Io(Errno::IO.raw_os_error()),
        }
    }

    /// Returns whether deleting old segments can help.
    pub(crate) fn is_lack_of_space(self) -> bool {
        !matches!(self, Cause::Retention | Cause::Io(_))
    }

    pub(crate) fn to_words(self) -> [u32; 2] {
        match self {
            Cause::Retention => [1, 0],
            Cause::ProcessQuota => [2, 0],
            Cause::SessionQuota => [3, 0],
            Cause::ServerQuota => [4, 0],
            Cause::DiskFull => [5, 0],
            Cause::Io(errno) => [6, errno.cast_unsigned()],
        }
    }

    /// Returns the cause with these words; one that a newer writer invented becomes an I/O error without a number.
    pub(crate) fn from_words(words: [u32; 2]) -> Cause {
        match words[0] {
            1 => Cause::Retention,
            2 => Cause::ProcessQuota,
            3 => Cause::SessionQuota,
            4 => Cause::ServerQuota,
            5 => Cause::DiskFull,
            6 => Cause::Io(words[1].cast_signed()),
            _ => Cause::Io(0),
        }
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Cause::Retention => f.write_str("the retention limit is reached"),
            Cause::ProcessQuota => f.write_str("the disk quota of the process is used up"),
            Cause::SessionQuota => f.write_str("the disk quota of the session is used up"),
            Cause::ServerQuota => f.write_str("the disk quota of the server is used up"),
            Cause::DiskFull => f.write_str("no space left on the file system"),
            Cause::Io(errno) => write!(f, "{}", io::Error::from_raw_os_error(*errno)),
        }
    }
}

/// The events that eviction must keep; it deletes whole segments.
pub type Hold = output::Hold<Point>;

/// Events that a reader cannot have.
pub type Gap = output::Gap<GapCause>;

/// Why events are missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GapCause {
    /// They were evicted before the reader reached them.
    Evicted,
    /// Their bytes are damaged.
    Corrupted,
    /// Their file, or their part of it, does not exist.
    Missing,
    /// Their file cannot be read: this is the error number.
    Unreadable(i32),
    /// They were dropped before they were written.
    Dropped(Cause),
}

/// The next item for a reader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Item<'a> {
    /// A chunk of output.
    Output {
        /// Its number.
        seq: Seq,
        /// Its stream.
        stream: Stream,
        /// When it was read from the process.
        at_ms: u64,
        /// Bytes of output before it.
        offset: u64,
        /// The output; never empty.
        bytes: &'a [u8],
    },
    /// The direct child has ended.
    Exited {
        /// Its number.
        seq: Seq,
        /// When it ended.
        at_ms: u64,
        /// What the writer stored with it.
        payload: &'a [u8],
    },
    /// Nothing more will come.
    Closed {
        /// Its number.
        seq: Seq,
        /// When the last stream ended.
        at_ms: u64,
        /// What the writer stored with it.
        payload: &'a [u8],
    },
    /// Events are missing here; the cursor is now after them.
    Gap(Gap),
}

/// An exit or close that the log holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct End {
    /// Its number.
    pub seq: Seq,
    /// When it happened; 0 if that is damaged.
    pub at_ms: u64,
    /// What the writer stored with it; `None` if that is damaged.
    pub payload: Option<Vec<u8>>,
}
