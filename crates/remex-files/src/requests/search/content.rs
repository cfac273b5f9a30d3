//! Finds lines in one file.
//!
//! Start at [`Content`].

use std::{
    fs::File,
    io::{self, Read},
    time::Instant,
};

use grep_matcher::{LineTerminator, Matcher as _};
use grep_regex::{RegexMatcher, RegexMatcherBuilder};
use grep_searcher::{
    BinaryDetection, Searcher, SearcherBuilder, Sink, SinkContext, SinkContextKind, SinkFinish, SinkMatch,
};
use remex_proto::{ErrorKind, RpcError, fs as wire};

use super::{Budget, CancelCheck, DEFAULT_LINE, shown};
use crate::paths::open;

/// The longest line that is searched, which bounds the memory of a search.
const MAX_LINE_SEARCHED: usize = 8 << 20;

/// The longest pattern, how deep its groups are nested, and the largest automaton for one.
const MAX_PATTERN: usize = 16 << 10;
const MAX_NESTING: u32 = 100;
const MAX_AUTOMATON: usize = 10 << 20;

/// A search for content, in one file after the other.
pub(super) struct Content {
    /// None finds every file.
    matcher: Option<RegexMatcher>,
    searcher: Searcher,
}

/// How the search of a file ended.
pub(super) enum Outcome {
    Done,
    /// Not searched to its end.
    OutOfTime,
    Binary,
    Failed(String),
}

impl Content {
    pub(super) fn new(options: &wire::SearchOptions) -> Result<Self, RpcError> {
        let matcher = options.pattern.as_deref().map(|pattern| compile(pattern, options)).transpose()?;
        let has_lines = options.report == wire::SearchReport::Lines;
        let lines = |count| if has_lines { usize::try_from(count).unwrap_or(0) } else { 0 };
        let searcher = SearcherBuilder::new()
            .line_terminator(LineTerminator::crlf())
            .binary_detection(BinaryDetection::quit(0))
            .before_context(lines(options.context_before))
            .after_context(lines(options.context_after))
            .heap_limit(Some(MAX_LINE_SEARCHED))
            .build();
        Ok(Self { matcher, searcher })
    }

    /// Searches a file; what is found becomes part of `found`.
    pub(super) fn search(
        &mut self,
        options: &wire::SearchOptions,
        file: &File,
        wanted: &CancelCheck,
        budget: &mut Budget,
        found: &mut wire::FoundFile,
    ) -> Outcome {
        let Some(matcher) = &self.matcher else { return Outcome::Done };
        let reader = Interruptible { file, wanted, deadline: budget.deadline, read: 0 };
        let max_line = usize::try_from(options.max_line_bytes.unwrap_or(DEFAULT_LINE)).unwrap_or(usize::MAX);
        let mut lines = Lines {
            matcher,
            report: options.report,
            max_line,
            budget,
            found,
            before: Vec::new(),
            is_binary: false,
            is_after_match: false,
        };
        let searched = self.searcher.search_reader(matcher, reader, &mut lines);
        if lines.is_binary {
            lines.found.lines.clear();
            return Outcome::Binary;
        }
        match searched {
            Ok(()) => Outcome::Done,
            Err(error) if error.kind() == io::ErrorKind::TimedOut => Outcome::OutOfTime,
            Err(error) if error.to_string().contains("allocation limit") => {
                Outcome::Failed(format!("a line is longer than {MAX_LINE_SEARCHED} bytes"))
            }
            Err(error) => Outcome::Failed(error.to_string()),
        }
    }
}

fn compile(pattern: &str, options: &wire::SearchOptions) -> Result<RegexMatcher, RpcError> {
    let invalid = |message: String, hint: &str| {
        Err(RpcError::new(ErrorKind::InvalidInput, message).with_hint(hint.to_owned()))
    };
    if pattern.len() > MAX_PATTERN {
        let message = format!("the pattern has {} bytes; limit is {MAX_PATTERN}", pattern.len());
        return invalid(message, "search for a part of it");
    }
    if pattern.contains('\n') {
        return invalid(
            "the pattern contains a line feed, and lines are searched one by one".to_owned(),
            "search for one of its lines",
        );
    }
    let mut builder = RegexMatcherBuilder::new();
    builder
        .multi_line(true)
        .case_insensitive(options.ignore_case)
        .fixed_strings(options.literal)
        .crlf(true)
        .nest_limit(MAX_NESTING)
        .size_limit(MAX_AUTOMATON)
        .dfa_size_limit(MAX_AUTOMATON);
    builder.build(pattern).or_else(|error| {
        let mut why = error.to_string();
        // It repeats the pattern before the reason.
        if pattern.len() > 100
            && let Some((_, reason)) = why.rsplit_once("error: ")
        {
            why = shown(reason);
        }
        invalid(
            format!("`{}` is not a regular expression: {why}", shown(pattern)),
            "write it as Rust and ripgrep do, escape characters that have a meaning, such as `(` and `{`, or set `literal`",
        )
    })
}

/// Reads a file until its search is cancelled or its time is over.
struct Interruptible<'a> {
    file: &'a File,
    wanted: &'a CancelCheck,
    deadline: Instant,
    read: u64,
}

impl Read for Interruptible<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.wanted.check()?;
        if Instant::now() >= self.deadline {
            return Err(io::ErrorKind::TimedOut.into());
        }
        let read = open::end_of(self.file.read(buffer), self.read)?;
        self.read += read as u64;
        Ok(read)
    }
}

/// Collects the lines of one file.
struct Lines<'a> {
    matcher: &'a RegexMatcher,
    report: wire::SearchReport,
    max_line: usize,
    budget: &'a mut Budget,
    found: &'a mut wire::FoundFile,
    /// Lines that belong to the next match, if that is returned.
    before: Vec<wire::FoundLine>,
    is_binary: bool,
    is_after_match: bool,
}

impl Lines<'_> {
    /// Returns a line as it is returned: without its end, and cut around its first match.
    fn line(&self, number: u64, bytes: &[u8], is_match: bool) -> wire::FoundLine {
        let bytes = bytes.strip_suffix(b"\n").unwrap_or(bytes);
        let bytes = bytes.strip_suffix(b"\r").unwrap_or(bytes);
        let mut start = 0;
        if bytes.len() > self.max_line && is_match {
            let at = self.matcher.find(bytes).ok().flatten().map_or(0, |found| found.start());
            start = at.saturating_sub(self.max_line / 4).min(bytes.len() - self.max_line);
        }
        let mut end = bytes.len().min(start + self.max_line);
        // Not within a character.
        let is_inner = |at: usize| bytes.get(at).is_some_and(|byte| byte & 0xc0 == 0x80);
        for _ in 0..3 {
            if is_inner(start) && start < end {
                start += 1;
            }
            if end < bytes.len() && is_inner(end) && end > start {
                end -= 1;
            }
        }
        let mut line = wire::FoundLine::new(number, String::from_utf8_lossy(&bytes[start..end]));
        line.is_match = is_match;
        (line.omitted_before, line.omitted_after) = (start as u64, (bytes.len() - end) as u64);
        line
    }

    fn push(&mut self, line: wire::FoundLine) -> bool {
        let has_room = self.budget.take_bytes(line.text.len());
        if has_room {
            self.found.lines.push(line);
        }
        has_room
    }
}

impl Sink for Lines<'_> {
    type Error = io::Error;

    fn matched(&mut self, _: &Searcher, found: &SinkMatch<'_>) -> io::Result<bool> {
        self.found.count += 1;
        match self.report {
            wire::SearchReport::Files => return Ok(false),
            wire::SearchReport::Lines => {}
            _ => return Ok(true),
        }
        let before = std::mem::take(&mut self.before);
        self.is_after_match = self.budget.take_item();
        if self.budget.reached.is_some() {
            self.found.count -= 1;
            return Ok(false);
        }
        if self.is_after_match {
            let line = self.line(found.line_number().unwrap_or(0), found.bytes(), true);
            return Ok(before.into_iter().all(|line| self.push(line)) && self.push(line));
        }
        Ok(true)
    }

    fn context(&mut self, _: &Searcher, context: &SinkContext<'_>) -> io::Result<bool> {
        let line = self.line(context.line_number().unwrap_or(0), context.bytes(), false);
        if *context.kind() == SinkContextKind::Before {
            self.before.push(line);
            return Ok(true);
        }
        Ok(!self.is_after_match || self.push(line))
    }

    fn context_break(&mut self, _: &Searcher) -> io::Result<bool> {
        self.before.clear();
        self.is_after_match = false;
        Ok(true)
    }

    fn binary_data(&mut self, _: &Searcher, _: u64) -> io::Result<bool> {
        self.is_binary = true;
        Ok(false)
    }

    fn finish(&mut self, _: &Searcher, finish: &SinkFinish) -> io::Result<()> {
        self.is_binary |= finish.binary_byte_offset().is_some();
        Ok(())
    }
}
