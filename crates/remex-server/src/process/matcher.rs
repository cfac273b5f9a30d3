//! Finds a regular expression in bytes that arrive in pieces.
//!
//! Every byte is looked at once: a lazy DFA carries its state from one piece to the next. Only when
//! it has seen that there is a match is the text searched for where the match lies.

use regex_automata::{
    Anchored, MatchKind,
    hybrid::{
        LazyStateID,
        dfa::{Cache, DFA},
    },
    meta,
    nfa::thompson,
    util::{start, syntax},
};
use remex_proto::{ErrorKind, RpcError};

/// The most memory a compiled expression may take.
const COMPILED_BYTES: usize = 512 << 10;

/// One expression, fed with one stream.
#[derive(Debug)]
pub(super) struct Matcher {
    dfa: DFA,
    cache: Cache,
    at: Progress,
    regex: meta::Regex,
}

#[derive(Clone, Copy, Debug)]
enum Progress {
    State(LazyStateID),
    /// The automaton cannot go on (it gave up or met a byte it does not handle): search the text itself.
    Search,
}

/// What a piece of input told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Seen {
    Match,
    Nothing,
    /// Only a search of the whole text can tell.
    Unsure,
}

impl Matcher {
    /// Compiles `pattern`, which matches bytes.
    pub(super) fn new(pattern: &str) -> Result<Self, RpcError> {
        let invalid = |error: &dyn std::fmt::Display| {
            RpcError::new(
                ErrorKind::InvalidParams,
                format!("cannot wait for regex `{pattern}`: {error}; use the syntax of the Rust regex crate"),
            )
        };
        let syntax = syntax::Config::new().utf8(false);
        let nfa = thompson::Config::new().utf8(false).nfa_size_limit(Some(COMPILED_BYTES));
        let regex = meta::Regex::builder()
            .syntax(syntax)
            .configure(meta::Regex::config().utf8_empty(false).nfa_size_limit(Some(COMPILED_BYTES)))
            .build(pattern)
            .map_err(|error| invalid(&root_cause(&error)))?;
        let dfa = DFA::builder()
            .syntax(syntax)
            .thompson(nfa)
            .configure(
                DFA::config()
                    .match_kind(MatchKind::All)
                    .unicode_word_boundary(true)
                    .cache_capacity(COMPILED_BYTES),
            )
            .build(pattern)
            .map_err(|error| invalid(&root_cause(&error)))?;
        let cache = dfa.create_cache();
        let mut matcher = Matcher { dfa, cache, at: Progress::Search, regex };
        matcher.restart();
        Ok(matcher)
    }

    /// Begins anew: what comes next does not continue what came before.
    pub(super) fn restart(&mut self) {
        let begin = start::Config::new().anchored(Anchored::No);
        self.at = self.dfa.start_state(&mut self.cache, &begin).map_or(Progress::Search, Progress::State);
    }

    /// Looks at the next piece.
    pub(super) fn feed(&mut self, bytes: &[u8]) -> Seen {
        let Progress::State(mut state) = self.at else { return Seen::Unsure };
        for &byte in bytes {
            match self.dfa.next_state(&mut self.cache, state, byte) {
                Ok(next) if next.is_match() => return Seen::Match,
                Ok(next) if next.is_quit() => return self.give_up(),
                Ok(next) => state = next,
                Err(_) => return self.give_up(),
            }
        }
        self.at = Progress::State(state);
        // What has arrived so far may be a match that only its end was missing for.
        match self.dfa.next_eoi_state(&mut self.cache, state) {
            Ok(end) if end.is_match() => Seen::Match,
            Ok(_) => Seen::Nothing,
            Err(_) => self.give_up(),
        }
    }

    /// Returns the leftmost match in `text`.
    pub(super) fn find<'t>(&self, text: &'t [u8]) -> Option<&'t [u8]> {
        self.regex.find(text).map(|found| &text[found.range()])
    }

    fn give_up(&mut self) -> Seen {
        self.at = Progress::Search;
        Seen::Unsure
    }
}

fn root_cause(error: &dyn std::error::Error) -> String {
    let mut cause = error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    // A syntax error is drawn over several lines, the last of which says what is wrong.
    cause.to_string().lines().last().unwrap_or_default().trim_start_matches("error: ").to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pieces(pattern: &str, pieces: &[&[u8]]) -> Option<(usize, Vec<u8>)> {
        let mut matcher = Matcher::new(pattern).unwrap();
        let mut text = Vec::new();
        for (index, piece) in pieces.iter().enumerate() {
            text.extend_from_slice(piece);
            if matcher.feed(piece) != Seen::Nothing
                && let Some(found) = matcher.find(&text)
            {
                return Some((index, found.to_vec()));
            }
        }
        None
    }

    #[test]
    fn a_match_may_lie_across_pieces() {
        assert_eq!(
            pieces("listening on \\d+", &[b"list", b"ening", b" on 80", b"80"]),
            Some((2, b"listening on 80".to_vec()))
        );
        assert_eq!(pieces("ab.*yz", &[b"ab", &[b'x'; 5000], b"yz"]).map(|(index, _)| index), Some(2));
        assert_eq!(pieces("needle", &[b"hay", b"stack"]), None);
    }

    #[test]
    fn anchors_mean_the_stream_and_not_the_piece() {
        assert_eq!(pieces("^two", &[b"one\n", b"two"]), None);
        assert_eq!(pieces("(?m)^two", &[b"one\n", b"two"]), Some((1, b"two".to_vec())));
        assert_eq!(pieces("\\$ $", &[b"host", b":~$ "]), Some((1, b"$ ".to_vec())));
    }

    #[test]
    fn bytes_that_are_not_text_are_matched_too() {
        assert_eq!(pieces(r"(?-u:\xff)b", &[&[0xff], b"b"]), Some((1, vec![0xff, b'b'])));
        assert_eq!(pieces(r"\bready\b", &["é ".as_bytes(), b"ready", b" now"]), Some((1, b"ready".to_vec())));
    }

    #[test]
    fn a_wrong_expression_is_named_with_its_fault() {
        let error = Matcher::new("a(b").unwrap_err();
        assert!(
            error.message.contains("`a(b`") && error.message.contains("unclosed group"),
            "{}",
            error.message
        );
    }
}
