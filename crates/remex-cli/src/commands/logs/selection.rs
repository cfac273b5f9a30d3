//! Selects the output to print.
//!
//! Pure: output in, items to print out. Start at [`Selection`].

use std::collections::VecDeque;

use regex_automata::meta::Regex;
use remex_client::process::{GapCause, OutputBatch, Stream, TimedChunk};

use super::lines::{Line, Lines, Unsure};
use crate::render::text::utc;

/// The selection criteria.
#[derive(Clone, Debug, Default)]
pub(super) struct Criteria {
    /// Only output since this time, in milliseconds since 1970.
    pub(super) since_ms: Option<u64>,
    /// Only output until this time.
    pub(super) until_ms: Option<u64>,
    /// Only lines that match.
    pub(super) pattern: Option<Regex>,
    /// Only this many of the last lines so far.
    pub(super) tail: Option<usize>,
    /// Whether to print the time of each line.
    pub(super) times: bool,
    /// The prefix of each line.
    pub(super) prefix: Option<String>,
}

/// An item to print.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Item {
    Bytes(Stream, Vec<u8>),
    Gap(Missing),
}

/// Output that cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Missing {
    /// How much; `None` if that is unknown.
    pub(super) bytes: Option<u64>,
    /// Why; `None` if it was evicted.
    pub(super) cause: Option<GapCause>,
}

/// Selects output, in order.
#[derive(Debug)]
pub(super) struct Selection {
    criteria: Criteria,
    lines: Lines,
    /// The last lines so far, while more may follow.
    held: Option<VecDeque<Line>>,
    /// The gap before the oldest of them.
    gap: Option<Missing>,
}

impl Selection {
    pub(super) fn new(criteria: Criteria) -> Self {
        let held = criteria.tail.map(|_| VecDeque::new());
        Self { criteria, lines: Lines::default(), held, gap: None }
    }

    /// Returns a selection from output whose beginning is not read, for the last lines.
    pub(super) fn from_the_middle(criteria: Criteria, unsure: Unsure) -> Self {
        Self { lines: Lines::from_the_middle(unsure), ..Self::new(criteria) }
    }

    /// Returns whether the last lines so far are as many as asked for and whole, so that nothing earlier is needed.
    pub(super) fn has_whole_tail(&self) -> bool {
        let (Some(held), Some(most)) = (&self.held, self.criteria.tail) else { return true };
        // A line without its line feed counts as well.
        let open = self.lines.open().filter(|line| line.is_partial || self.is_selected(line));
        let lines: Vec<_> = open.chain(held.iter().rev()).take(most).collect();
        let is_enough = lines.len() == most || self.gap.is_some();
        is_enough && lines.iter().all(|line| !line.is_partial)
    }

    /// Returns the prefix of each line.
    pub(super) fn prefix(&self) -> Option<&str> {
        self.criteria.prefix.as_deref()
    }

    /// Adds output: a gap, then the chunks after it.
    pub(super) fn take(&mut self, gap: Option<Missing>, pieces: Vec<TimedChunk>) -> Vec<Item> {
        let mut items = Vec::new();
        if let Some(missing) = gap {
            // A gap is older than the chunks after it, so leave it out if they are too old.
            let asked = pieces.first().is_none_or(|piece| !self.is_too_old(piece));
            let broken = self.lines.finish();
            self.put(broken, &mut items);
            match &mut self.held {
                _ if !asked => {}
                Some(held) => {
                    held.clear();
                    self.gap = Some(missing);
                }
                None => items.push(Item::Gap(missing)),
            }
        }
        for piece in pieces {
            if !self.is_in_time(&piece) {
                continue;
            }
            if self.by_line() {
                let lines = self.lines.take(&piece);
                self.put(lines, &mut items);
            } else {
                items.push(Item::Bytes(piece.stream, piece.bytes.to_vec()));
            }
        }
        items
    }

    /// Adds what one read returned.
    pub(super) fn take_batch(&mut self, batch: OutputBatch) -> Vec<Item> {
        let missing = batch.gap.map(|gap| Missing { bytes: gap.bytes, cause: gap.cause });
        self.take(missing, batch.chunks)
    }

    /// Records that all existing output was added; later output is new.
    pub(super) fn caught_up(&mut self) -> Vec<Item> {
        if self.held.is_none() {
            return Vec::new();
        }
        let mut items = Vec::new();
        if self.criteria.pattern.is_none() && !self.criteria.times && self.criteria.prefix.is_none() {
            // From here on bytes are printed as they arrive, so flush incomplete lines first.
            let begun = self.lines.finish();
            self.put(begun, &mut items);
        }
        self.let_go(&mut items);
        items
    }

    /// Records the end of the output.
    pub(super) fn finish(&mut self) -> Vec<Item> {
        let mut items = Vec::new();
        let last = self.lines.finish();
        self.put(last, &mut items);
        self.let_go(&mut items);
        items
    }

    fn by_line(&self) -> bool {
        self.criteria.pattern.is_some()
            || self.criteria.times
            || self.criteria.prefix.is_some()
            || self.held.is_some()
    }

    fn is_in_time(&self, piece: &TimedChunk) -> bool {
        let is_too_new = piece.at_ms.zip(self.criteria.until_ms).is_some_and(|(at, until)| at > until);
        !is_too_new && !self.is_too_old(piece)
    }

    fn is_too_old(&self, piece: &TimedChunk) -> bool {
        piece.at_ms.zip(self.criteria.since_ms).is_some_and(|(at, since)| at < since)
    }

    fn is_selected(&self, line: &Line) -> bool {
        self.criteria.pattern.as_ref().is_none_or(|pattern| pattern.is_match(line.text()))
    }

    fn put(&mut self, mut lines: Vec<Line>, items: &mut Vec<Item>) {
        // Whether a line matches depends on all of it.
        lines.retain(|line| line.is_partial || self.is_selected(line));
        let (Some(held), Some(most)) = (&mut self.held, self.criteria.tail) else {
            return items.extend(lines.into_iter().map(|line| item(line, &self.criteria)));
        };
        held.extend(lines);
        while held.len() > most {
            held.pop_front();
            // A gap precedes the lines that are shown.
            self.gap = None;
        }
    }

    fn let_go(&mut self, items: &mut Vec<Item>) {
        items.extend(self.gap.take().map(Item::Gap));
        let criteria = &self.criteria;
        items.extend(self.held.take().into_iter().flatten().map(|line| item(line, criteria)));
    }
}

fn item(line: Line, criteria: &Criteria) -> Item {
    if !criteria.times && criteria.prefix.is_none() {
        return Item::Bytes(line.stream, line.bytes);
    }
    let mut bytes = criteria.prefix.clone().unwrap_or_default().into_bytes();
    if criteria.times {
        let time = line.at_ms.map_or_else(|| "-".to_owned(), |ms| utc(ms.cast_signed()));
        bytes.extend_from_slice(time.as_bytes());
        bytes.push(b' ');
    }
    bytes.extend_from_slice(&line.bytes);
    if !bytes.ends_with(b"\n") {
        // The next timestamp or prefix must start on its own line.
        bytes.push(b'\n');
    }
    Item::Bytes(line.stream, bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn out(at_ms: u64, text: &str) -> TimedChunk {
        let mut chunk = TimedChunk::new(1, Stream::Stdout, text.to_owned());
        chunk.at_ms = Some(at_ms);
        chunk
    }

    fn gap(bytes: Option<u64>) -> Option<Missing> {
        Some(Missing { bytes, cause: None })
    }

    fn shown(items: Vec<Item>) -> String {
        items
            .into_iter()
            .map(|item| match item {
                Item::Bytes(_, bytes) => String::from_utf8(bytes).unwrap(),
                Item::Gap(Missing { bytes, .. }) => format!("<{bytes:?} gone>"),
            })
            .collect()
    }

    #[test]
    fn bytes_go_through_as_they_come() {
        let mut all = Selection::new(Criteria::default());
        assert_eq!(shown(all.take(None, vec![out(1, "a\nb")])), "a\nb");
        assert_eq!(shown(all.take(gap(Some(7)), vec![out(2, "c")])), "<Some(7) gone>c");
        assert_eq!(shown(all.finish()), "");
    }

    #[test]
    fn a_pattern_sees_whole_lines_and_the_last_one_too() {
        let pattern = Some(Regex::new("^b.*d$").unwrap());
        let mut matching = Selection::new(Criteria { pattern, ..Criteria::default() });
        assert_eq!(shown(matching.take(None, vec![out(1, "abd\nb"), out(1, "c")])), "");
        assert_eq!(shown(matching.take(None, vec![out(2, "d\r\nb d")])), "bcd\r\n");
        assert_eq!(shown(matching.finish()), "b d");
    }

    #[test]
    fn the_last_lines_are_held_back_until_they_are_the_last() {
        let criteria = || Criteria { tail: Some(2), ..Criteria::default() };
        let mut tail = Selection::new(criteria());
        assert_eq!(shown(tail.take(gap(Some(9)), vec![out(1, "a\nb\nc\nd")])), "");
        assert_eq!(shown(tail.caught_up()), "c\nd");
        // Later bytes continue the line.
        assert_eq!(shown(tail.take(None, vec![out(2, "D\ne")])), "D\ne");
        let mut short = Selection::new(criteria());
        assert_eq!(shown(short.take(gap(Some(9)), vec![out(1, "a\n")])), "");
        assert_eq!(shown(short.finish()), "<Some(9) gone>a\n");
        let mut none = Selection::new(Criteria { tail: Some(0), ..Criteria::default() });
        assert_eq!(shown(none.take(None, vec![out(1, "a\nb")])), "");
        assert_eq!(shown(none.caught_up()), "");
    }

    #[test]
    fn what_is_older_than_asked_is_left_out_and_so_is_its_gap() {
        let criteria = || Criteria { since_ms: Some(10), ..Criteria::default() };
        let mut since = Selection::new(criteria());
        assert_eq!(shown(since.take(gap(Some(3)), vec![out(9, "old"), out(10, "new")])), "new");
        let mut since = Selection::new(criteria());
        assert_eq!(shown(since.take(gap(None), vec![out(11, "new")])), "<None gone>new");
    }

    #[test]
    fn what_is_missing_before_output_that_is_too_new_may_have_been_asked_for() {
        let mut until = Selection::new(Criteria { until_ms: Some(10), ..Criteria::default() });
        assert_eq!(shown(until.take(gap(Some(3)), vec![out(11, "new")])), "<Some(3) gone>");
        let mut until = Selection::new(Criteria { until_ms: Some(10), tail: Some(1), ..Criteria::default() });
        assert_eq!(shown(until.take(gap(Some(3)), Vec::new())), "");
        assert_eq!(shown(until.finish()), "<Some(3) gone>");
    }

    #[test]
    fn each_line_has_the_time_when_it_began() {
        let mut times = Selection::new(Criteria { times: true, ..Criteria::default() });
        assert_eq!(
            shown(times.take(None, vec![out(0, "a"), out(1000, "b\n")])),
            "1970-01-01T00:00:00.000Z ab\n"
        );
        assert_eq!(shown(times.take(None, vec![out(2000, "c")])), "");
        assert_eq!(shown(times.finish()), "1970-01-01T00:00:02.000Z c\n");
    }
}
