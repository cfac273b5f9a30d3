//! Output that was written before: by lines, by bytes, or the lines that match.
//!
//! Start at [`Again`].

use regex_automata::meta::Regex;
use serde::Serialize;

use super::command::ReadOutput;
use crate::{
    answer::{ToolError, ToolResult},
    output::Transcript,
};

/// Which part of the output of a process is read again.
pub(super) enum Again {
    /// From a line, up to a number of lines.
    Lines { first: u64, count: Option<u64> },
    /// From a byte.
    Bytes { offset: u64 },
    /// The lines that match, from a line.
    Matches { regex: Box<Regex>, first: u64 },
}

/// What a part of the output is, as data.
#[derive(Debug, Serialize)]
struct Part<'a> {
    process: &'a str,
    output: &'a str,
    /// Where the next part begins.
    next_offset: Option<usize>,
    next_line: Option<u64>,
}

impl Again {
    /// Returns what is to be read again; `None` if only what is new is.
    pub(super) fn new(params: &ReadOutput) -> Result<Option<Self>, ToolError> {
        let first = params.first_line.unwrap_or(1).max(1);
        let only_one = [
            params.search.is_some(),
            params.offset.is_some(),
            params.lines.is_some() || (params.first_line.is_some() && params.search.is_none()),
        ];
        if only_one.iter().filter(|is_given| **is_given).count() > 1 {
            return Err(ToolError::new("`offset`, `lines` and `search` exclude each other")
                .with_hint("omit all but one"));
        }
        Ok(match (&params.search, params.offset) {
            (Some(pattern), _) => {
                let regex = Regex::new(pattern).map_err(|error| {
                    ToolError::new(format!("`{pattern}` is not a regular expression: {error}")).with_hint(
                        "escape characters that have a meaning, such as `(` and `$`, with a backslash",
                    )
                })?;
                Some(Self::Matches { regex: Box::new(regex), first })
            }
            (None, Some(offset)) => Some(Self::Bytes { offset }),
            (None, None) if params.first_line.is_some() || params.lines.is_some() => {
                Some(Self::Lines { first, count: params.lines })
            }
            (None, None) => None,
        })
    }

    /// Returns that part, within a budget of bytes.
    pub(super) fn answer(&self, process: &str, transcript: &Transcript, budget: usize) -> ToolResult {
        let all = transcript.text.as_str();
        let kept = if transcript.is_cut { " that are still kept" } else { "" };
        let (text, note, next_offset, next_line) = match self {
            Self::Matches { regex, first } => matches(regex, *first, all, budget),
            Self::Lines { first, count } => {
                let start = start_of_line(all, *first);
                let len = count
                    .map_or(all.len() - start, |count| start_of_line(&all[start..], count.saturating_add(1)));
                part(all, start, start + len, budget)
            }
            Self::Bytes { offset } => {
                let start = usize::try_from(*offset).unwrap_or(usize::MAX).min(all.len());
                part(all, ceil_char(all, start), all.len(), budget)
            }
        };
        let separator = if text.is_empty() || text.ends_with('\n') { "" } else { "\n" };
        let lines = all.lines().count();
        let shown = format!("{text}{separator}[{note} of {lines} lines and {} bytes{kept}]", all.len());
        ToolResult::new(shown, &Part { process, output: &text, next_offset, next_line })
    }
}

type Found = (String, String, Option<usize>, Option<u64>);

/// Returns the text between two positions, up to a line end or a character within the budget.
fn part(all: &str, start: usize, end: usize, budget: usize) -> Found {
    let mut stop = end;
    if end - start > budget {
        stop = floor_char(all, start + budget);
        if let Some(line_end) = all[start..stop].rfind('\n') {
            stop = start + line_end + 1;
        }
    }
    let mut note = format!("bytes {start} to {stop}, from line {}", all[..start].matches('\n').count() + 1);
    let next = (stop < all.len()).then_some(stop);
    if let Some(next) = next {
        note = format!("{note}; continue with `offset` {next};");
    }
    (all[start..stop].to_owned(), note, next, None)
}

fn matches(regex: &Regex, first: u64, all: &str, budget: usize) -> Found {
    let (mut text, mut next) = (String::new(), None);
    let mut count = 0;
    for (number, line) in (1..).zip(all.lines()) {
        if number < first || !regex.is_match(line) {
            continue;
        }
        let shown: String = line.chars().take(400).collect();
        let cut = if shown.len() < line.len() { "…" } else { "" };
        if count > 0 && text.len() + shown.len() > budget {
            next = Some(number);
            break;
        }
        count += 1;
        text.push_str(&format!("{number}: {shown}{cut}\n"));
    }
    let note = match next {
        Some(next) => format!("{count} lines match; continue with `first_line` {next};"),
        None => format!("{count} lines match"),
    };
    (text, note, None, next)
}

/// Returns where a line begins, or the end of the text.
fn start_of_line(text: &str, number: u64) -> usize {
    let before = usize::try_from(number.saturating_sub(1)).unwrap_or(usize::MAX);
    match before.checked_sub(1) {
        None => 0,
        Some(nth) => text.match_indices('\n').nth(nth).map_or(text.len(), |(at, _)| at + 1),
    }
}

fn floor_char(text: &str, at: usize) -> usize {
    (0..=at.min(text.len())).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0)
}

fn ceil_char(text: &str, at: usize) -> usize {
    (at..=text.len()).find(|at| text.is_char_boundary(*at)).unwrap_or(text.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_of_long_output_can_be_read() {
        let all: String =
            (1..=1000).map(|number| format!("line ä {number}\n")).collect::<String>() + &"ß".repeat(500);
        let transcript = Transcript { text: all.clone(), is_cut: false };
        let (mut read, mut offset) = (String::new(), Some(0));
        while let Some(at) = offset {
            let (text, _, next, _) = part(&transcript.text, at, all.len(), 101);
            read.push_str(&text);
            assert!(next.is_none_or(|next| next > at));
            offset = next;
        }
        assert_eq!(read, all);
        assert_eq!(start_of_line("a\nb\n", 2), 2);
        assert_eq!(start_of_line("a\nb\n", 9), 4);
    }
}
