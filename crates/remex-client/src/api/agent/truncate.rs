//! Truncates output to a budget for a language model.
//!
//! Pure: no I/O, no clock. Start at [`Truncator`].

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

/// Collects output and keeps its beginning and its end, as much as fits into a budget.
///
/// Chunks may end within a character. It never holds more than twice the budget.
///
/// ```
/// use remex_client::agent::Truncator;
///
/// let mut truncator = Truncator::new(64);
/// for line in 1..=1000 {
///     truncator.push(format!("line {line}\n").as_bytes());
/// }
/// let text = truncator.finish();
/// assert_eq!(text.text, "line 1\nline 2\n[… 8860 bytes omitted …]\nline 999\nline 1000\n");
/// assert_eq!((text.omitted_bytes, text.total_bytes), (8860, 8893));
/// ```
#[derive(Debug, Clone)]
pub struct Truncator {
    /// In bytes of text.
    budget: usize,
    /// The first bytes, at most `budget`.
    head: Vec<u8>,
    /// The last bytes after `head` and after the last gap, at most `budget`.
    tail: VecDeque<u8>,
    total_bytes: u64,
    gap: Gap,
}

/// Whether lost output lies between `head` and `tail`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Gap {
    None,
    /// A known amount is missing; it is included in `total_bytes`.
    Known,
    /// An unknown amount is missing.
    Unknown,
}

/// Output truncated for a model.
///
/// As JSON: `{"text":"…","omittedBytes":0,"totalBytes":6,"count":"exact"}`, where `count` may be `atLeast`.
///
/// ```
/// use remex_client::agent::{Truncator, TruncatedText};
///
/// let mut truncator = Truncator::new(64);
/// truncator.push(b"hello\n");
/// assert_eq!(truncator.finish(), TruncatedText::whole("hello\n"));
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct TruncatedText {
    /// The output, or its beginning, a notice that says how much is omitted, and its end.
    ///
    /// Invalid UTF-8 is replaced with `U+FFFD`.
    pub text: String,
    /// How many bytes of output `text` does not show.
    pub omitted_bytes: u64,
    /// The total number of output bytes.
    pub total_bytes: u64,
    /// Whether these numbers are exact; a server of the base dialect drops output without saying how much.
    pub count: Count,
}

/// Whether a number of bytes is exact.
///
/// ```
/// use remex_client::agent::{Count, Truncator};
///
/// let mut truncator = Truncator::new(64);
/// truncator.skip(None);
/// truncator.push(b"the end");
/// assert_eq!(truncator.finish().count, Count::AtLeast);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub enum Count {
    /// The exact number.
    #[default]
    Exact,
    /// A lower bound.
    AtLeast,
}

impl TruncatedText {
    /// Returns a text from which nothing is omitted.
    ///
    /// ```
    /// use remex_client::agent::TruncatedText;
    ///
    /// let text = TruncatedText::whole("hello\n");
    /// assert_eq!((text.text.as_str(), text.omitted_bytes, text.total_bytes), ("hello\n", 0, 6));
    /// ```
    pub fn whole(text: impl Into<String>) -> Self {
        let text = text.into();
        let total_bytes = text.len() as u64;
        Self { text, omitted_bytes: 0, total_bytes, count: Count::Exact }
    }
}

impl Truncator {
    /// Creates an empty truncator; its text will have at most `budget` bytes.
    ///
    /// A budget that is too small for the notice is exceeded by the notice alone.
    ///
    /// ```
    /// use remex_client::agent::Truncator;
    ///
    /// assert_eq!(Truncator::new(64).finish().text, "");
    /// ```
    pub fn new(budget: usize) -> Self {
        Self { budget, head: Vec::new(), tail: VecDeque::new(), total_bytes: 0, gap: Gap::None }
    }

    /// Adds output.
    ///
    /// ```
    /// use remex_client::agent::Truncator;
    ///
    /// let mut truncator = Truncator::new(64);
    /// truncator.push(b"hello, ");
    /// truncator.push(b"world");
    /// assert_eq!(truncator.finish().text, "hello, world");
    /// ```
    pub fn push(&mut self, bytes: &[u8]) {
        self.total_bytes += bytes.len() as u64;
        let room = if self.gap == Gap::None { self.budget - self.head.len() } else { 0 };
        let (first, rest) = bytes.split_at(bytes.len().min(room));
        self.head.reserve_exact(growth(self.head.len(), first.len(), self.head.capacity(), self.budget));
        self.head.extend_from_slice(first);
        let rest = &rest[rest.len().saturating_sub(self.budget)..];
        self.tail.drain(..(self.tail.len() + rest.len()).saturating_sub(self.budget));
        self.tail.reserve_exact(growth(self.tail.len(), rest.len(), self.tail.capacity(), self.budget));
        self.tail.extend(rest);
    }

    /// Records that output is missing here, and how much, if known.
    ///
    /// Output before the first gap and after the last one is kept.
    ///
    /// ```
    /// use remex_client::agent::Truncator;
    ///
    /// let mut truncator = Truncator::new(64);
    /// truncator.push(b"begin\n");
    /// truncator.skip(Some(1000));
    /// truncator.push(b"end\n");
    /// assert_eq!(truncator.finish().text, "begin\n[… 1000 bytes omitted …]\nend\n");
    /// ```
    pub fn skip(&mut self, bytes: Option<u64>) {
        self.total_bytes += bytes.unwrap_or(0);
        match bytes {
            Some(0) => return,
            Some(_) if self.gap == Gap::Unknown => {}
            Some(_) => self.gap = Gap::Known,
            None => self.gap = Gap::Unknown,
        }
        self.tail.clear();
    }

    /// Sets the total number of bytes, which makes the amount of missing output exact.
    pub(super) fn settle(&mut self, total_bytes: u64) {
        self.total_bytes = self.total_bytes.max(total_bytes);
        if self.gap == Gap::Unknown {
            self.gap = Gap::Known;
        }
    }

    /// Returns the total number of output bytes so far.
    ///
    /// ```
    /// use remex_client::agent::Truncator;
    ///
    /// let mut truncator = Truncator::new(64);
    /// truncator.push(&[b'x'; 1000]);
    /// assert_eq!(truncator.total_bytes(), 1000);
    /// ```
    pub fn total_bytes(&self) -> u64 {
        self.total_bytes
    }

    /// Returns the text.
    ///
    /// ```
    /// use remex_client::agent::Truncator;
    ///
    /// let mut truncator = Truncator::new(64);
    /// truncator.push(&[b'x'; 1000]);
    /// let text = truncator.finish().text;
    /// assert!(text.len() <= 64 && text.contains("bytes omitted"));
    /// ```
    pub fn finish(self) -> TruncatedText {
        let budget = self.budget;
        self.finish_within(budget)
    }

    /// Returns the text truncated to another budget; one larger than the budget of the truncator has no effect.
    ///
    /// ```
    /// use remex_client::agent::Truncator;
    ///
    /// let mut truncator = Truncator::new(1 << 20);
    /// truncator.push(&[b'x'; 1000]);
    /// assert!(truncator.finish_within(64).text.len() <= 64);
    /// ```
    pub fn finish_within(self, budget: usize) -> TruncatedText {
        let budget = budget.min(self.budget);
        let total_bytes = self.total_bytes;
        if self.gap == Gap::None && total_bytes == self.head.len() as u64 {
            let text = String::from_utf8_lossy(&self.head);
            if text.len() <= budget {
                return TruncatedText {
                    text: text.into_owned(),
                    omitted_bytes: 0,
                    total_bytes,
                    count: Count::Exact,
                };
            }
        }
        let count = if self.gap == Gap::Unknown { Count::AtLeast } else { Count::Exact };
        // The omitted count has at most as many digits as the total; a newline may be needed before and after the notice.
        let Some(room) = budget.checked_sub(notice(total_bytes, count).len() + 2) else {
            return TruncatedText {
                text: notice(total_bytes, count),
                omitted_bytes: total_bytes,
                total_bytes,
                count,
            };
        };
        let head = beginning(&self.head, room / 2);
        let head_text = String::from_utf8_lossy(head);
        let last = self.last(room);
        let tail = end(&last, room - head_text.len());
        let omitted_bytes = total_bytes - (head.len() + tail.len()) as u64;
        let before = if head.is_empty() || head.ends_with(b"\n") { "" } else { "\n" };
        let notice = notice(omitted_bytes, count);
        let text = format!("{head_text}{before}{notice}\n{}", String::from_utf8_lossy(tail));
        TruncatedText { text, omitted_bytes, total_bytes, count }
    }

    /// Returns the last `len` bytes, and a few more if available.
    fn last(&self, len: usize) -> Vec<u8> {
        // The tail continues the head only if there is no gap.
        let before = if self.gap == Gap::None { self.head.len() } else { 0 };
        let missing = (len + MAX_CHAR_LEN).saturating_sub(self.tail.len()).min(before);
        let skipped = self.tail.len().saturating_sub(len + MAX_CHAR_LEN);
        let mut last = self.head[self.head.len() - missing..].to_vec();
        last.extend(self.tail.range(skipped..));
        last
    }
}

/// The longest character, in bytes.
const MAX_CHAR_LEN: usize = 4;

/// Returns as much of the beginning as fits into a text, up to the end of a line if one is near.
fn beginning(bytes: &[u8], room: usize) -> &[u8] {
    let (mut len, mut text_len) = (0, 0);
    for character in characters(bytes) {
        text_len += character.text_len;
        if text_len > room {
            break;
        }
        len += character.len;
    }
    if len == bytes.len() {
        return bytes;
    }
    match bytes[..len].iter().rposition(|byte| *byte == b'\n') {
        Some(at) if is_near(len - (at + 1), room) => &bytes[..=at],
        _ => &bytes[..len],
    }
}

/// Returns as much of the end as fits into a text, from the beginning of a line if one is near.
fn end(bytes: &[u8], room: usize) -> &[u8] {
    // Lossy decoding never shortens the text.
    let mut start = bytes.len().saturating_sub(room);
    if start > 0 {
        let is_within = |byte: &&u8| **byte & 0b1100_0000 == 0b1000_0000;
        start += bytes[start..].iter().take(MAX_CHAR_LEN - 1).take_while(is_within).count();
    }
    let mut text_len: usize = characters(&bytes[start..]).map(|character| character.text_len).sum();
    for character in characters(&bytes[start..]) {
        if text_len <= room {
            break;
        }
        text_len -= character.text_len;
        start += character.len;
    }
    if start == 0 || bytes[start - 1] == b'\n' {
        return &bytes[start..];
    }
    match bytes[start..].iter().position(|byte| *byte == b'\n') {
        Some(at) if is_near(at + 1, room) && start + at + 1 < bytes.len() => &bytes[start + at + 1..],
        _ => &bytes[start..],
    }
}

/// A character, or invalid bytes that are shown as one replacement character.
struct Character {
    len: usize,
    text_len: usize,
}

fn characters(bytes: &[u8]) -> impl Iterator<Item = Character> {
    bytes.utf8_chunks().flat_map(|chunk| {
        let valid = chunk.valid().chars().map(char::len_utf8);
        let valid = valid.map(|len| Character { len, text_len: len });
        let invalid = Some(chunk.invalid().len()).filter(|len| *len > 0);
        let shown = char::REPLACEMENT_CHARACTER.len_utf8();
        valid.chain(invalid.map(|len| Character { len, text_len: shown }))
    })
}

/// Returns whether cutting at a line end loses little enough: at most a quarter.
fn is_near(lost: usize, room: usize) -> bool {
    lost <= room / 4
}

fn notice(omitted_bytes: u64, count: Count) -> String {
    let noun = if omitted_bytes == 1 { "byte" } else { "bytes" };
    match count {
        Count::Exact => format!("[… {omitted_bytes} {noun} omitted …]"),
        Count::AtLeast => format!("[… more than {omitted_bytes} {noun} omitted …]"),
    }
}

/// Returns how much to reserve so that a buffer grows by doubling, but never beyond `limit`.
fn growth(len: usize, more: usize, capacity: usize, limit: usize) -> usize {
    if len + more <= capacity { 0 } else { more.max(len).min(limit - len) }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn truncated(budget: usize, output: &[u8]) -> TruncatedText {
        let mut truncator = Truncator::new(budget);
        truncator.push(output);
        truncator.finish()
    }

    fn exact(text: &str, omitted_bytes: u64, total_bytes: u64) -> TruncatedText {
        TruncatedText { text: text.to_owned(), omitted_bytes, total_bytes, count: Count::Exact }
    }

    #[test]
    fn short_output_is_not_truncated() {
        for output in ["", "a", "grüße\n"] {
            let expected = exact(output, 0, output.len() as u64);
            assert_eq!(truncated(output.len(), output.as_bytes()), expected);
        }
    }

    #[test]
    fn the_middle_is_dropped_preferably_at_line_ends() {
        let output: String = (0..1000).map(|line| format!("line {line:03}\n")).collect();
        let text = "line 000\nline 001\nline 002\n[… 8946 bytes omitted …]\nline 997\nline 998\nline 999\n";
        assert_eq!(truncated(90, output.as_bytes()), exact(text, 8946, 9000));
    }

    #[test]
    fn a_single_line_is_truncated_inside() {
        let text = format!("{}\n[… 960 bytes omitted …]\n{}", "x".repeat(20), "x".repeat(20));
        assert_eq!(truncated(70, "x".repeat(1000).as_bytes()).text, text);
    }

    #[test]
    fn a_budget_too_small_for_the_notice_gives_the_notice() {
        let expected = exact("[… 1000 bytes omitted …]", 1000, 1000);
        for budget in [0, 1, 29] {
            assert_eq!(truncated(budget, &[b'x'; 1000]), expected);
        }
    }

    #[test]
    fn invalid_utf_8_counts_as_displayed() {
        let truncator = truncated(60, &[0xff; 60]);
        assert!(truncator.text.len() <= 60, "{truncator:?}");
        assert_eq!(truncator.text.matches('\u{fffd}').count() as u64, 60 - truncator.omitted_bytes);
    }

    #[test]
    fn memory_does_not_grow_with_the_output() {
        let mut truncator = Truncator::new(1000);
        for len in [1, 7, 999, 5000, 3] {
            for _ in 0..100 {
                truncator.push(&vec![b'x'; len]);
                assert!(truncator.head.capacity() + truncator.tail.capacity() <= 2000);
            }
        }
        Truncator::new(usize::MAX).push(b"no budget at all");
    }

    #[test]
    fn a_gap_is_between_what_came_before_the_first_and_after_the_last() {
        let mut truncator = Truncator::new(100);
        truncator.push(b"one\ntw");
        truncator.skip(Some(10));
        truncator.push(b"between");
        truncator.skip(Some(0));
        truncator.skip(Some(3));
        truncator.push(b"o\nthree\n");
        assert_eq!(truncator.clone().finish(), exact("one\ntw\n[… 20 bytes omitted …]\no\nthree\n", 20, 34));
        truncator.skip(None);
        let text = "one\ntw\n[… more than 28 bytes omitted …]\n".to_owned();
        let expected = TruncatedText { text, omitted_bytes: 28, total_bytes: 34, count: Count::AtLeast };
        assert_eq!(truncator.finish(), expected);
    }

    /// Text with characters of every length, line ends, and bytes that are no text.
    fn output() -> impl Strategy<Value = Vec<u8>> {
        let piece = prop_oneof![
            6 => "[a-z]{0,12}".prop_map(String::into_bytes),
            2 => "[äß€漢🦀]{0,5}".prop_map(String::into_bytes),
            2 => Just(b"\n".to_vec()),
            1 => prop::collection::vec(0x7f_u8.., 0..5),
        ];
        prop::collection::vec(piece, 0..60).prop_map(|pieces| pieces.concat())
    }

    proptest! {
        #[test]
        fn truncated_text_is_head_notice_and_tail_within_the_budget(
            output in output(),
            budget in 0_usize..200,
        ) {
            let TruncatedText { text, omitted_bytes, total_bytes, .. } = truncated(budget, &output);
            let whole = String::from_utf8_lossy(&output);
            prop_assert_eq!(total_bytes, output.len() as u64);
            if whole.len() <= budget {
                prop_assert_eq!((text, omitted_bytes), (whole.into_owned(), 0));
                return Ok(());
            }
            prop_assert!(omitted_bytes > 0);
            let notice = notice(omitted_bytes, Count::Exact);
            prop_assert!(text.len() <= budget.max(notice.len()));
            let (head, tail) = text.split_once(&notice).unwrap();
            let tail = tail.strip_prefix('\n').unwrap_or(tail);
            let is_head = whole.starts_with(head) || whole.starts_with(head.strip_suffix('\n').unwrap_or(head));
            prop_assert!(is_head, "{text:?}");
            prop_assert!(whole.ends_with(tail), "{text:?}");
            let used = head.len().max(1) - 1 + tail.len() + notice.len() + 2;
            // Both ends together lose at most a quarter of their room to line ends, and a character each.
            prop_assert!(budget < notice.len() + 4 || used + budget / 2 + 8 >= budget, "{used} {budget}");
        }

        #[test]
        fn the_notice_counts_every_omitted_byte(text in "[a-zäß€漢🦀\n]{0,300}", budget in 40_usize..200) {
            let truncator = truncated(budget, text.as_bytes());
            if truncator.omitted_bytes == 0 {
                return Ok(());
            }
            let notice = notice(truncator.omitted_bytes, Count::Exact);
            let (head, tail) = truncator.text.split_once(&notice).unwrap();
            let shown = head.len() as u64 + tail.len() as u64 + truncator.omitted_bytes;
            // One line end before and one after the notice may be ours.
            prop_assert!((text.len() as u64..=text.len() as u64 + 2).contains(&shown));
        }

        #[test]
        fn chunk_boundaries_do_not_matter(
            output in output(),
            ends in prop::collection::vec(any::<prop::sample::Index>(), 0..20),
            budget in 0_usize..200,
        ) {
            let mut ends: Vec<_> = ends.iter().map(|end| end.index(output.len() + 1)).collect();
            ends.sort_unstable();
            ends.push(output.len());
            let (mut pieces, mut start) = (Truncator::new(budget), 0);
            for end in ends {
                pieces.push(&output[start..end]);
                start = end;
            }
            prop_assert_eq!(pieces.finish(), truncated(budget, &output));
        }

        #[test]
        fn the_budget_may_be_applied_at_the_end(
            output in output(),
            budget in 0_usize..200,
            more in 0_usize..200,
        ) {
            let mut collected = Truncator::new(budget + more);
            collected.push(&output);
            prop_assert_eq!(collected.finish_within(budget), truncated(budget, &output));
        }
    }
}
