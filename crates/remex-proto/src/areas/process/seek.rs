//! Positions in output: by time, by offset and from the end.

use serde::{Deserialize, Serialize};

/// `process/seek`: finds a position in the output, to read from there without reading what precedes it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Seek {
    /// The process.
    pub process_id: String,
    /// Another session of the same identity.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session_id: Option<String>,
    /// The start that is meant, as its answer named it: if the process was restarted since, the request fails and does nothing.
    /// Absent: whichever runs now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub incarnation: Option<u64>,
    /// Which position.
    pub to: SeekTo,
}

/// A position in the output of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum SeekTo {
    /// Before the first event at or after this time, in milliseconds since the Unix epoch.
    AtMs(u64),
    /// Before the event with this byte; bytes of all streams count, from 0, also those that are evicted.
    Offset(u64),
    /// Before the event with the first of the last bytes, this many.
    TailBytes(u64),
}

/// The answer to [`Seek`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Sought {
    /// The `afterSeq` of a read from there; 0 if that output is evicted, or may be, so that the read reports the gap.
    pub after_seq: u64,
    /// Bytes of output before that position; null if the server no longer knows.
    pub offset: Option<u64>,
    /// The newest event.
    pub newest_seq: u64,
    /// Bytes of output so far.
    pub produced_bytes: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_position_is_a_time_an_offset_or_a_length() {
        let to = |text: &str| serde_json::from_str::<Seek>(text).map(|seek| seek.to);
        assert_eq!(to(r#"{"processId":"p","to":{"atMs":5}}"#).unwrap(), SeekTo::AtMs(5));
        assert_eq!(to(r#"{"processId":"p","to":{"offset":6}}"#).unwrap(), SeekTo::Offset(6));
        assert_eq!(to(r#"{"processId":"p","to":{"tailBytes":7}}"#).unwrap(), SeekTo::TailBytes(7));
        for wrong in [r#"{"processId":"p"}"#, r#"{"processId":"p","to":{"offset":-1}}"#] {
            assert!(to(wrong).is_err(), "{wrong}");
        }
    }
}
