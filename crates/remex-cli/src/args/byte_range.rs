//! Ranges of bytes, as people type them: `1M..2M`, `64K..`, `..64K`, `-64K..`. Start at [`byte_range`].

use super::limit::size;
use crate::render::failure::InvalidArg;

/// A range of bytes, of which either end may count from the end of the output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ByteRange {
    start: Bound,
    /// Exclusive; `None` for the end of the output.
    end: Option<Bound>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Bound {
    FromStart(u64),
    FromEnd(u64),
}

impl Bound {
    fn parse(text: &str) -> Option<Self> {
        match text.strip_prefix('-') {
            Some(text) => size(text).map(Self::FromEnd),
            None => size(text).map(Self::FromStart),
        }
    }

    fn of(self, total: u64) -> u64 {
        match self {
            Self::FromStart(bytes) => bytes.min(total),
            Self::FromEnd(bytes) => total.saturating_sub(bytes),
        }
    }
}

impl ByteRange {
    /// Returns the first byte, and the first one after the range, of `total` bytes.
    pub(crate) fn of(self, total: u64) -> (u64, u64) {
        let (start, end) = (self.start.of(total), self.end.map_or(total, |end| end.of(total)));
        (start, end.max(start))
    }
}

/// Parses a range.
pub(crate) fn byte_range(text: &str) -> Result<ByteRange, InvalidArg> {
    let invalid = || {
        InvalidArg::new(
            "it is not a range of bytes",
            "write `START..END` with sizes such as `64K` or `1000`, and leave one of them out for an end of the output; \
             `-64K..` is the last 64 KiB",
        )
    };
    let (start, end) = text.split_once("..").ok_or_else(invalid)?;
    if start.is_empty() && end.is_empty() {
        return Err(invalid());
    }
    let bound = |text: &str, otherwise| match text {
        "" => Some(otherwise),
        text => Bound::parse(text).map(Some),
    };
    let start = bound(start, Some(Bound::FromStart(0))).flatten().ok_or_else(invalid)?;
    let end = bound(end, None).ok_or_else(invalid)?;
    Ok(ByteRange { start, end })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_counts_from_either_end() {
        let of = |text: &str, total| byte_range(text).unwrap().of(total);
        assert_eq!(of("1K..2K", 10_000), (1024, 2048));
        assert_eq!(of("100..", 1000), (100, 1000));
        assert_eq!(of("..100", 1000), (0, 100));
        assert_eq!(of("-100..", 1000), (900, 1000));
        assert_eq!(of("-100..-50", 1000), (900, 950));
        assert_eq!(of("-1M..", 1000), (0, 1000));
        assert_eq!(of("500..100", 1000), (500, 500), "nothing");
        assert_eq!(of("2000..3000", 1000), (1000, 1000), "not written yet");
        for wrong in ["", "..", "5", "a..b", "1-2", "--5..", "1..2..3"] {
            assert!(byte_range(wrong).is_err(), "{wrong}");
        }
    }
}
