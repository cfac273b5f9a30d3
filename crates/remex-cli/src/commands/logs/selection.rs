//! Selects the output to print.
//!
//! Pure: output in, items to print out. Start at [`Selection`].

use std::collections::VecDeque;

use regex_automata::meta::Regex;
use remex_client::process::{GapCause, OutputBatch, Stream, TimedChunk};

use super::{
    lines::{Line, Lines, PartialFirstLine},
    record,
};
use crate::render::local_time::Zone;

/// The selection criteria.
#[derive(Clone, Debug, Default)]
pub(super) struct Criteria {
    /// Only output since this time, in milliseconds since 1970.
    pub(super) since_ms: Option<u64>,
    /// Only output until this time.
    pub(super) until_ms: Option<u64>,
    /// Only certain lines.
    pub(super) matching: Option<Matching>,
    /// Only this many of the last lines so far; of the matches, if there is a pattern.
    pub(super) tail: Option<usize>,
    pub(super) format: LineFormat,
}

/// Which lines are selected.
#[derive(Clone, Debug)]
pub(super) struct Matching {
    pub(super) regex: Regex,
    pub(super) select: Select,
    pub(super) context: Context,
}

/// Whether the lines that match are selected, or the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Select {
    Matches,
    Others,
}

/// How many lines around each selected one are printed as well.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Context {
    pub(super) before: usize,
    pub(super) after: usize,
}

impl Context {
    const NONE: Self = Self { before: 0, after: 0 };
}

/// How lines are printed.
#[derive(Clone, Debug)]
pub(super) enum LineFormat {
    Text {
        /// The prefix of each line.
        prefix: Option<String>,
        /// The zone of the time of each line, if that is printed.
        times: Option<Zone>,
    },
    /// An object for each line, with the name of the process.
    Json { name: String },
}

impl Default for LineFormat {
    fn default() -> Self {
        Self::Text { prefix: None, times: None }
    }
}

impl LineFormat {
    pub(super) fn prefix(&self) -> Option<&str> {
        match self {
            Self::Text { prefix, .. } => prefix.as_deref(),
            Self::Json { .. } => None,
        }
    }

    /// Returns whether bytes are printed as they are.
    fn is_verbatim(&self) -> bool {
        matches!(self, Self::Text { prefix: None, times: None })
    }
}

impl Criteria {
    /// Returns whether lines around the selected ones are printed.
    pub(super) fn has_context(&self) -> bool {
        self.matching.as_ref().is_some_and(|matching| matching.context != Context::NONE)
    }
}

/// An item to print.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Item {
    Bytes(Stream, Vec<u8>),
    /// A line for stdout, whatever its stream was.
    Line(String),
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

/// A line with its place among all lines.
#[derive(Clone, Debug)]
struct Found {
    line: Line,
    number: u64,
    role: Role,
}

/// Why a line is printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    Selected,
    Context,
}

/// Selects output, in order.
#[derive(Debug)]
pub(super) struct Selection {
    criteria: Criteria,
    lines: Lines,
    /// How many lines were complete so far.
    count: u64,
    /// The last lines that were not selected, for the context of the next one that is.
    before: VecDeque<(u64, Line)>,
    /// How many more lines belong to the context of the last selected one.
    after: usize,
    /// The number of the line that was printed last.
    printed: Option<u64>,
    /// The last lines so far, while more may follow.
    held: Option<VecDeque<Found>>,
    /// How many of them are selected.
    held_selected: usize,
    /// The gap before the oldest of them.
    gap: Option<Missing>,
}

impl Selection {
    pub(super) fn new(criteria: Criteria) -> Self {
        let held = criteria.tail.map(|_| VecDeque::new());
        Self {
            criteria,
            lines: Lines::default(),
            count: 0,
            before: VecDeque::new(),
            after: 0,
            printed: None,
            held,
            held_selected: 0,
            gap: None,
        }
    }

    /// Returns a selection from output whose beginning is not read, for the last lines.
    pub(super) fn from_the_middle(criteria: Criteria, partial: PartialFirstLine) -> Self {
        Self { lines: Lines::from_the_middle(partial), ..Self::new(criteria) }
    }

    /// Returns whether the last lines so far are as many as asked for and whole, so that nothing earlier is needed.
    pub(super) fn has_whole_tail(&self) -> bool {
        let (Some(held), Some(most)) = (&self.held, self.criteria.tail) else { return true };
        // A line without its line feed counts as well.
        let open = self.lines.open().filter(|line| line.is_partial || self.is_selected(line));
        let held = held.iter().rev().filter(|found| found.role == Role::Selected).map(|found| &found.line);
        let lines: Vec<_> = open.chain(held).take(most).collect();
        let is_enough = lines.len() == most || self.gap.is_some();
        is_enough && lines.iter().all(|line| !line.is_partial)
    }

    /// Returns the prefix of each line.
    pub(super) fn prefix(&self) -> Option<&str> {
        self.criteria.format.prefix()
    }

    /// Adds output: a gap, then the chunks after it.
    pub(super) fn take(&mut self, gap: Option<Missing>, pieces: Vec<TimedChunk>) -> Vec<Item> {
        let mut items = Vec::new();
        if let Some(missing) = gap {
            // A gap is older than the chunks after it, so leave it out if they are too old.
            let asked = pieces.first().is_none_or(|piece| !self.is_too_old(piece));
            let broken = self.lines.finish();
            self.put(broken, &mut items);
            // No context reaches over a gap.
            self.before.clear();
            self.after = 0;
            match &mut self.held {
                _ if !asked => {}
                Some(held) => {
                    held.clear();
                    self.held_selected = 0;
                    self.gap = Some(missing);
                }
                None => items.push(self.gap_item(missing)),
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
        if self.criteria.matching.is_none() && self.criteria.format.is_verbatim() {
            // From here on bytes are printed as they arrive, so flush incomplete lines first.
            let begun = self.lines.finish();
            self.put(begun, &mut items);
        }
        self.release_held(&mut items);
        items
    }

    /// Records the end of the output.
    pub(super) fn finish(&mut self) -> Vec<Item> {
        let mut items = Vec::new();
        let last = self.lines.finish();
        self.put(last, &mut items);
        self.release_held(&mut items);
        items
    }

    fn by_line(&self) -> bool {
        self.criteria.matching.is_some() || !self.criteria.format.is_verbatim() || self.held.is_some()
    }

    fn is_in_time(&self, piece: &TimedChunk) -> bool {
        let is_too_new = piece.at_ms.zip(self.criteria.until_ms).is_some_and(|(at, until)| at > until);
        !is_too_new && !self.is_too_old(piece)
    }

    fn is_too_old(&self, piece: &TimedChunk) -> bool {
        piece.at_ms.zip(self.criteria.since_ms).is_some_and(|(at, since)| at < since)
    }

    fn is_selected(&self, line: &Line) -> bool {
        self.criteria.matching.as_ref().is_none_or(|matching| {
            matching.regex.is_match(line.text()) == (matching.select == Select::Matches)
        })
    }

    fn put(&mut self, lines: Vec<Line>, items: &mut Vec<Item>) {
        let context = self.criteria.matching.as_ref().map_or(Context::NONE, |matching| matching.context);
        for line in lines {
            self.count += 1;
            let number = self.count;
            // Whether a line matches depends on all of it.
            if line.is_partial || self.is_selected(&line) {
                for (number, line) in std::mem::take(&mut self.before) {
                    self.print(Found { line, number, role: Role::Context }, items);
                }
                self.after = context.after;
                self.print(Found { line, number, role: Role::Selected }, items);
            } else if self.after > 0 {
                self.after -= 1;
                self.print(Found { line, number, role: Role::Context }, items);
            } else if context.before > 0 {
                if self.before.len() == context.before {
                    self.before.pop_front();
                }
                self.before.push_back((number, line));
            }
        }
    }

    /// Prints a line, or holds it back while it may not be one of the last.
    fn print(&mut self, found: Found, items: &mut Vec<Item>) {
        let (Some(held), Some(most)) = (&mut self.held, self.criteria.tail) else {
            return self.item(found, items);
        };
        if most == 0 {
            self.gap = None;
            return;
        }
        self.held_selected += usize::from(found.role == Role::Selected);
        held.push_back(found);
        if self.held_selected > most {
            self.held_selected = most;
            // A gap precedes the lines that are shown.
            self.gap = None;
            let before = self.criteria.matching.as_ref().map_or(0, |matching| matching.context.before);
            let mut selected = held.iter_mut().filter(|found| found.role == Role::Selected);
            // The first selected line is at most the context of the next one.
            if let Some(first) = selected.next() {
                first.role = Role::Context;
            }
            let next = selected.next().map_or(self.count, |found| found.number);
            while held.front().is_some_and(|found| found.number + (before as u64) < next) {
                held.pop_front();
            }
        }
    }

    fn release_held(&mut self, items: &mut Vec<Item>) {
        if let Some(missing) = self.gap.take() {
            items.push(self.gap_item(missing));
        }
        for found in self.held.take().into_iter().flatten() {
            self.item(found, items);
        }
    }

    fn gap_item(&self, missing: Missing) -> Item {
        match &self.criteria.format {
            LineFormat::Text { .. } => Item::Gap(missing),
            LineFormat::Json { name } => Item::Line(record::gap(name, missing)),
        }
    }

    /// Formats a line, with a separator before it if it begins another group.
    fn item(&mut self, found: Found, items: &mut Vec<Item>) {
        let Found { line, number, role } = found;
        let is_apart = self.printed.is_some_and(|printed| printed + 1 != number);
        self.printed = Some(number);
        match &self.criteria.format {
            LineFormat::Json { name } => {
                let line = record::line(name, &line, role == Role::Context);
                items.push(Item::Line(line));
            }
            LineFormat::Text { prefix, times } => {
                if is_apart && self.criteria.has_context() {
                    items.push(Item::Bytes(line.stream, b"--\n".to_vec()));
                }
                items.push(item(line, prefix.as_deref(), *times));
            }
        }
    }
}

fn item(line: Line, prefix: Option<&str>, times: Option<Zone>) -> Item {
    if times.is_none() && prefix.is_none() {
        return Item::Bytes(line.stream, line.bytes);
    }
    let mut bytes = prefix.unwrap_or_default().as_bytes().to_vec();
    if let Some(zone) = times {
        let time = line.at_ms.map_or_else(|| "-".to_owned(), |ms| zone.rfc3339(ms.cast_signed()));
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

    fn grep(pattern: &str, select: Select, context: Context) -> Criteria {
        let matching = Matching { regex: Regex::new(pattern).unwrap(), select, context };
        Criteria { matching: Some(matching), ..Criteria::default() }
    }

    fn gap(bytes: Option<u64>) -> Option<Missing> {
        Some(Missing { bytes, cause: None })
    }

    fn shown(items: Vec<Item>) -> String {
        items
            .into_iter()
            .map(|item| match item {
                Item::Bytes(_, bytes) => String::from_utf8(bytes).unwrap(),
                Item::Line(line) => line,
                Item::Gap(Missing { bytes, .. }) => format!("<{bytes:?} gone>"),
            })
            .collect()
    }

    #[test]
    fn unfiltered_bytes_are_passed_through() {
        let mut all = Selection::new(Criteria::default());
        assert_eq!(shown(all.take(None, vec![out(1, "a\nb")])), "a\nb");
        assert_eq!(shown(all.take(gap(Some(7)), vec![out(2, "c")])), "<Some(7) gone>c");
        assert_eq!(shown(all.finish()), "");
    }

    #[test]
    fn a_pattern_sees_whole_lines_and_the_last_one_too() {
        let mut matching = Selection::new(grep("^b.*d$", Select::Matches, Context::NONE));
        assert_eq!(shown(matching.take(None, vec![out(1, "abd\nb"), out(1, "c")])), "");
        assert_eq!(shown(matching.take(None, vec![out(2, "d\r\nb d")])), "bcd\r\n");
        assert_eq!(shown(matching.finish()), "b d");
    }

    #[test]
    fn lines_around_a_match_are_printed_once_and_groups_are_separated() {
        let text = "1\n2\nhit 3\n4\nhit 5\n6\n7\n8\n9\nhit 10\n11";
        let all = |criteria: Criteria| {
            let mut selection = Selection::new(criteria);
            shown(selection.take(None, vec![out(1, text)])) + &shown(selection.finish())
        };
        let around = |before, after| Context { before, after };
        assert_eq!(
            all(grep("hit", Select::Matches, around(1, 1))),
            "2\nhit 3\n4\nhit 5\n6\n--\n9\nhit 10\n11"
        );
        assert_eq!(all(grep("hit", Select::Matches, around(0, 1))), "hit 3\n4\nhit 5\n6\n--\nhit 10\n11");
        assert_eq!(all(grep("hit", Select::Others, Context::NONE)), "1\n2\n4\n6\n7\n8\n9\n11");
        let last =
            |tail, context| all(Criteria { tail: Some(tail), ..grep("hit", Select::Matches, context) });
        assert_eq!(last(1, around(1, 1)), "9\nhit 10\n11");
        assert_eq!(last(2, around(1, 1)), "4\nhit 5\n6\n--\n9\nhit 10\n11");
        assert_eq!(last(2, Context::NONE), "hit 5\nhit 10\n");
        assert_eq!(last(0, around(1, 1)), "");
        // No context reaches over a gap.
        let mut selection = Selection::new(grep("hit", Select::Matches, around(2, 2)));
        assert_eq!(shown(selection.take(None, vec![out(1, "1\nhit\n")])), "1\nhit\n");
        assert_eq!(shown(selection.take(gap(None), vec![out(1, "9\nhit\n")])), "<None gone>9\nhit\n");
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
    fn older_output_and_its_gap_are_left_out() {
        let criteria = || Criteria { since_ms: Some(10), ..Criteria::default() };
        let mut since = Selection::new(criteria());
        assert_eq!(shown(since.take(gap(Some(3)), vec![out(9, "old"), out(10, "new")])), "new");
        let mut since = Selection::new(criteria());
        assert_eq!(shown(since.take(gap(None), vec![out(11, "new")])), "<None gone>new");
    }

    #[test]
    fn a_gap_before_too_new_output_is_reported() {
        let mut until = Selection::new(Criteria { until_ms: Some(10), ..Criteria::default() });
        assert_eq!(shown(until.take(gap(Some(3)), vec![out(11, "new")])), "<Some(3) gone>");
        let mut until = Selection::new(Criteria { until_ms: Some(10), tail: Some(1), ..Criteria::default() });
        assert_eq!(shown(until.take(gap(Some(3)), Vec::new())), "");
        assert_eq!(shown(until.finish()), "<Some(3) gone>");
    }

    #[test]
    fn each_line_has_the_time_of_its_first_byte() {
        let format = LineFormat::Text { prefix: None, times: Some(Zone::Utc) };
        let mut times = Selection::new(Criteria { format, ..Criteria::default() });
        assert_eq!(
            shown(times.take(None, vec![out(0, "a"), out(1000, "b\n")])),
            "1970-01-01T00:00:00.000Z ab\n"
        );
        assert_eq!(shown(times.take(None, vec![out(2000, "c")])), "");
        assert_eq!(shown(times.finish()), "1970-01-01T00:00:02.000Z c\n");
    }
}
