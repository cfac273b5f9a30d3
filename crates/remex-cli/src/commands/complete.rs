//! `remex complete`: prints completion candidates, for the scripts of `remex completions`.
//!
//! Handles how each shell splits and quotes words. Start at [`run`].

mod candidates;
mod paths;

use tokio::runtime::Builder;

use self::candidates::candidates;
use super::Outcome;
use crate::{
    args::{
        complete::{Flags, Shell},
        line::Candidate,
    },
    commands::runtime,
    render::{print, text::padded},
};

/// Prints one candidate per line, and never an error: the user is typing.
pub(crate) fn run(flags: &Flags) -> Outcome {
    print::suppress_notes();
    let (words, typed) = match flags.shell {
        Shell::Bash => {
            let line = flags.words.first().map(String::as_str).unwrap_or_default();
            let split = Split::of(line);
            (split.words.clone(), Some(split))
        }
        Shell::Zsh | Shell::Fish => (flags.words.clone(), None),
    };
    let runtime = runtime::build(Builder::new_current_thread().enable_all(), 1)?;
    let found = runtime.block_on(candidates(&words));
    runtime.shutdown_background();
    let lines: String = found
        .iter()
        .map(|candidate| match (flags.shell, &typed) {
            (Shell::Bash, Some(typed)) => typed.rest(&candidate.word, &flags.word_breaks) + "\n",
            (Shell::Zsh, _) => format!("{}\t{}\n", escaped(&candidate.word), shown(candidate)),
            _ => format!("{}\t{}\n", candidate.word, candidate.about),
        })
        .collect();
    print::out(lines)?;
    Ok(0)
}

/// Formats a candidate for a list.
fn shown(candidate: &Candidate) -> String {
    if candidate.about.is_empty() {
        return candidate.word.clone();
    }
    format!("{}  {}", padded(&candidate.word, 16), candidate.about)
}

/// A command line split as by a shell; it may end within a word or within quotes.
#[derive(Debug, Default, PartialEq, Eq)]
struct Split {
    /// The words without quotes; the last one is at the cursor and may be empty.
    words: Vec<String>,
    /// The position of an unclosed quote in the last word.
    quoted_from: Option<usize>,
}

impl Split {
    fn of(line: &str) -> Self {
        let (mut words, mut word, mut is_word) = (Vec::new(), String::new(), false);
        let (mut quote, mut quoted_from) = (None, None);
        let mut letters = line.chars();
        while let Some(letter) = letters.next() {
            match (quote, letter) {
                (None, ' ' | '\t' | '\n') => {
                    if std::mem::take(&mut is_word) {
                        words.push(std::mem::take(&mut word));
                    }
                    continue;
                }
                (None, '\'' | '"') => (quote, quoted_from) = (Some(letter), Some(word.len())),
                (Some(open), _) if open == letter => (quote, quoted_from) = (None, None),
                (None | Some('"'), '\\') => word.extend(letters.next()),
                _ => word.push(letter),
            }
            is_word = true;
        }
        words.push(word);
        Self { words, quoted_from }
    }

    /// Returns the part of a candidate that replaces what bash considers the last word.
    fn rest(&self, candidate: &str, word_breaks: &str) -> String {
        if let Some(start) = self.quoted_from {
            return candidate.get(start..).unwrap_or_default().to_owned();
        }
        let word = self.words.last().map(String::as_str).unwrap_or_default();
        let is_break = |letter: char| word_breaks.contains(letter) && !letter.is_whitespace();
        let start = word.rfind(is_break).map_or(0, |found| found + 1);
        let rest = candidate.get(start..).unwrap_or_default();
        escaped(rest)
    }
}

/// Escapes shell metacharacters with backslashes.
fn escaped(word: &str) -> String {
    let mut text = String::with_capacity(word.len());
    for letter in word.chars() {
        if letter.is_whitespace() || "\\'\"`$&|;<>()[]{}*?!#".contains(letter) {
            text.push('\\');
        }
        text.push(letter);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_split_as_a_shell_does() {
        for (line, words, quoted_from) in [
            ("remex ki", &["remex", "ki"][..], None),
            ("remex kill ", &["remex", "kill", ""], None),
            ("remex  ls build:a\\ b", &["remex", "ls", "build:a b"], None),
            ("remex ls 'a b' \"c", &["remex", "ls", "a b", "c"], Some(0)),
            ("remex ls build:'a", &["remex", "ls", "build:a"], Some(6)),
            ("remex ls ''", &["remex", "ls", ""], None),
        ] {
            let words = words.iter().map(ToString::to_string).collect();
            assert_eq!(Split::of(line), Split { words, quoted_from }, "{line}");
        }
    }

    #[test]
    fn bash_completions_start_after_its_last_word_break() {
        let breaks = " \t\n\"'@><=;|&(:";
        for (line, candidate, rest) in [
            ("remex ls build:s", "build:site/", "site/"),
            ("remex ls bu", "build:", "build:"),
            ("remex ps --on=b", "--on=build", "build"),
            ("remex ls build:a", "build:a b", "a\\ b"),
            ("remex ls 'build:a", "build:a b", "build:a b"),
        ] {
            assert_eq!(Split::of(line).rest(candidate, breaks), rest, "{line}");
        }
    }
}
