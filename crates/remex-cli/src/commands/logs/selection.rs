//! Which of the output somebody wants to see.
//!
//! Pure: what was read goes in, what is to be printed comes out. Start at [`Selection`].

use std::collections::VecDeque;

use regex_automata::meta::Regex;
use remex_client::process::{Stream, TimedChunk};

use super::lines::{Line, Lines};
use crate::render::text::utc;

/// What is wanted.
#[derive(Debug, Default)]
pub(super) struct Wanted {
    /// Nothing that was read before, in milliseconds since 1970.
    pub(super) since_ms: Option<u64>,
    /// Nothing that was read later.
    pub(super) until_ms: Option<u64>,
    /// Lines that match.
    pub(super) pattern: Option<Regex>,
    /// Of what has been said so far, this many of the last lines.
    pub(super) tail: Option<usize>,
    /// Each line with its time.
    pub(super) times: bool,
    /// What each line begins with.
    pub(super) prefix: Option<String>,
}

/// Something to print.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Item {
    Bytes(Stream, Vec<u8>),
    /// This much is missing here; `None` when nobody remembers how much.
    Gap(Option<u64>),
}

/// Picks what is wanted, in order.
#[derive(Debug)]
pub(super) struct Selection {
    wanted: Wanted,
    lines: Lines,
    /// The last lines so far, while it is not known whether they are the last.
    held: Option<VecDeque<Line>>,
    /// What was missing before the oldest of them.
    gap: Option<Option<u64>>,
}

impl Selection {
    pub(super) fn new(wanted: Wanted) -> Self {
        let held = wanted.tail.map(|_| VecDeque::new());
        Self { wanted, lines: Lines::default(), held, gap: None }
    }

    /// Returns what each line begins with.
    pub(super) fn prefix(&self) -> Option<&str> {
        self.wanted.prefix.as_deref()
    }

    /// Takes what follows: first what is missing, then what was read behind it.
    pub(super) fn take(&mut self, gap: Option<Option<u64>>, pieces: Vec<TimedChunk>) -> Vec<Item> {
        let mut items = Vec::new();
        if let Some(bytes) = gap {
            // Missing output is older than what follows it: nobody asked for it if nobody asked for that.
            let asked = pieces.first().is_none_or(|piece| self.is_in_time(piece));
            let broken = self.lines.finish();
            self.put(broken, &mut items);
            match &mut self.held {
                _ if !asked => {}
                Some(held) => {
                    held.clear();
                    self.gap = Some(bytes);
                }
                None => items.push(Item::Gap(bytes)),
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

    /// Learns that everything said so far was taken; what comes next is new.
    pub(super) fn caught_up(&mut self) -> Vec<Item> {
        if self.held.is_none() {
            return Vec::new();
        }
        let mut items = Vec::new();
        if self.wanted.pattern.is_none() && !self.wanted.times && self.wanted.prefix.is_none() {
            // From here on bytes go out as they come, so the beginnings of lines go first.
            let begun = self.lines.finish();
            self.put(begun, &mut items);
        }
        self.let_go(&mut items);
        items
    }

    /// Learns that nothing follows.
    pub(super) fn finish(&mut self) -> Vec<Item> {
        let mut items = Vec::new();
        let last = self.lines.finish();
        self.put(last, &mut items);
        self.let_go(&mut items);
        items
    }

    fn by_line(&self) -> bool {
        self.wanted.pattern.is_some()
            || self.wanted.times
            || self.wanted.prefix.is_some()
            || self.held.is_some()
    }

    fn is_in_time(&self, piece: &TimedChunk) -> bool {
        let Some(at) = piece.at_ms else { return true };
        self.wanted.since_ms.is_none_or(|since| at >= since)
            && self.wanted.until_ms.is_none_or(|until| at <= until)
    }

    fn put(&mut self, mut lines: Vec<Line>, items: &mut Vec<Item>) {
        if let Some(pattern) = &self.wanted.pattern {
            lines.retain(|line| pattern.is_match(line.text()));
        }
        let (Some(held), Some(most)) = (&mut self.held, self.wanted.tail) else {
            return items.extend(lines.into_iter().map(|line| item(line, &self.wanted)));
        };
        held.extend(lines);
        while held.len() > most {
            held.pop_front();
            // What is missing lies before what is shown.
            self.gap = None;
        }
    }

    fn let_go(&mut self, items: &mut Vec<Item>) {
        items.extend(self.gap.take().map(Item::Gap));
        let wanted = &self.wanted;
        items.extend(self.held.take().into_iter().flatten().map(|line| item(line, wanted)));
    }
}

fn item(line: Line, wanted: &Wanted) -> Item {
    if !wanted.times && wanted.prefix.is_none() {
        return Item::Bytes(line.stream, line.bytes);
    }
    let mut bytes = wanted.prefix.clone().unwrap_or_default().into_bytes();
    if wanted.times {
        let time = line.at_ms.map_or_else(|| "-".to_owned(), |ms| utc(ms.cast_signed()));
        bytes.extend_from_slice(time.as_bytes());
        bytes.push(b' ');
    }
    bytes.extend_from_slice(&line.bytes);
    if !bytes.ends_with(b"\n") {
        // The next time or name begins a line of its own.
        bytes.push(b'\n');
    }
    Item::Bytes(line.stream, bytes)
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    fn out(at_ms: u64, text: &str) -> TimedChunk {
        TimedChunk {
            stream: Stream::Stdout,
            at_ms: Some(at_ms),
            bytes: Bytes::copy_from_slice(text.as_bytes()),
        }
    }

    fn shown(items: Vec<Item>) -> String {
        items
            .into_iter()
            .map(|item| match item {
                Item::Bytes(_, bytes) => String::from_utf8(bytes).unwrap(),
                Item::Gap(bytes) => format!("<{bytes:?} gone>"),
            })
            .collect()
    }

    #[test]
    fn bytes_go_through_as_they_come() {
        let mut all = Selection::new(Wanted::default());
        assert_eq!(shown(all.take(None, vec![out(1, "a\nb")])), "a\nb");
        assert_eq!(shown(all.take(Some(Some(7)), vec![out(2, "c")])), "<Some(7) gone>c");
        assert_eq!(shown(all.finish()), "");
    }

    #[test]
    fn a_pattern_sees_whole_lines_and_the_last_one_too() {
        let pattern = Some(Regex::new("^b.*d$").unwrap());
        let mut matching = Selection::new(Wanted { pattern, ..Wanted::default() });
        assert_eq!(shown(matching.take(None, vec![out(1, "abd\nb"), out(1, "c")])), "");
        assert_eq!(shown(matching.take(None, vec![out(2, "d\r\nb d")])), "bcd\r\n");
        assert_eq!(shown(matching.finish()), "b d");
    }

    #[test]
    fn the_last_lines_are_held_back_until_they_are_the_last() {
        let wanted = || Wanted { tail: Some(2), ..Wanted::default() };
        let mut tail = Selection::new(wanted());
        assert_eq!(shown(tail.take(Some(Some(9)), vec![out(1, "a\nb\nc\nd")])), "");
        assert_eq!(shown(tail.caught_up()), "c\nd");
        // Later bytes go on in the line that was begun.
        assert_eq!(shown(tail.take(None, vec![out(2, "D\ne")])), "D\ne");
        let mut short = Selection::new(wanted());
        assert_eq!(shown(short.take(Some(Some(9)), vec![out(1, "a\n")])), "");
        assert_eq!(shown(short.finish()), "<Some(9) gone>a\n");
        let mut none = Selection::new(Wanted { tail: Some(0), ..Wanted::default() });
        assert_eq!(shown(none.take(None, vec![out(1, "a\nb")])), "");
        assert_eq!(shown(none.caught_up()), "");
    }

    #[test]
    fn what_is_older_than_asked_is_left_out_and_so_is_its_gap() {
        let wanted = || Wanted { since_ms: Some(10), ..Wanted::default() };
        let mut since = Selection::new(wanted());
        assert_eq!(shown(since.take(Some(Some(3)), vec![out(9, "old"), out(10, "new")])), "new");
        let mut since = Selection::new(wanted());
        assert_eq!(shown(since.take(Some(None), vec![out(11, "new")])), "<None gone>new");
    }

    #[test]
    fn each_line_has_the_time_when_it_began() {
        let mut times = Selection::new(Wanted { times: true, ..Wanted::default() });
        assert_eq!(
            shown(times.take(None, vec![out(0, "a"), out(1000, "b\n")])),
            "1970-01-01T00:00:00.000Z ab\n"
        );
        assert_eq!(shown(times.take(None, vec![out(2000, "c")])), "");
        assert_eq!(shown(times.finish()), "1970-01-01T00:00:02.000Z c\n");
    }
}
