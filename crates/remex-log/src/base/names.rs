//! The names of segments, which are the index of a log. Start at [`SegmentName`].

use std::{ffi::OsStr, fs, io, path::Path};

use crate::base::event::Seq;

/// Where a segment starts; segments sort by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct SegmentName {
    pub(crate) first_seq: Seq,
    pub(crate) first_offset: u64,
}

impl SegmentName {
    /// The first segment of a log.
    pub(crate) const FIRST: SegmentName = SegmentName { first_seq: 1, first_offset: 0 };

    /// Returns the name of the file.
    pub(crate) fn file_name(&self) -> String {
        format!("{:016x}-{:016x}.log", self.first_seq, self.first_offset)
    }

    /// Reads the name of a file; `None` if it is no segment.
    pub(crate) fn parse(name: &OsStr) -> Option<SegmentName> {
        let (seq, offset) = name.to_str()?.strip_suffix(".log")?.split_once('-')?;
        let name = SegmentName { first_seq: hex(seq)?, first_offset: hex(offset)? };
        (name.first_seq > 0).then_some(name)
    }
}

/// Returns the segments in `dir`, oldest first.
pub(crate) fn list(dir: &Path) -> io::Result<Vec<SegmentName>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(dir)? {
        names.extend(SegmentName::parse(&entry?.file_name()));
    }
    names.sort_unstable();
    Ok(names)
}

/// Parses exactly 16 lower-case digits, so that every segment has one spelling.
fn hex(digits: &str) -> Option<u64> {
    let is_plain = digits.len() == 16 && digits.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    is_plain.then(|| u64::from_str_radix(digits, 16).ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_has_one_spelling() {
        let name = SegmentName { first_seq: 0x1f, first_offset: u64::MAX };
        assert_eq!(name.file_name(), "000000000000001f-ffffffffffffffff.log");
        assert_eq!(SegmentName::parse(OsStr::new(&name.file_name())), Some(name));
        for other in [
            "000000000000001F-ffffffffffffffff.log",
            "+00000000000001f-ffffffffffffffff.log",
            "1f-0.log",
            "0000000000000000-0000000000000000.log",
            "000000000000001f-ffffffffffffffff.log2",
            "next.tmp",
        ] {
            assert_eq!(SegmentName::parse(OsStr::new(other)), None, "{other}");
        }
    }
}
