//! Searches for a regular expression in bytes that arrive in pieces.
//!
//! Each byte is processed once: a lazy DFA keeps its state from one piece to the next. Only after it
//! reports a match is the text searched for the position of the match. Start at [`Search`].

use std::ops::Range;

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

use crate::{ErrorKind, RpcError, areas::process::Stream};

/// The longest expression accepted.
const PATTERN_BYTES: usize = 8 << 10;

/// The most memory a compiled expression may take.
const COMPILED_BYTES: usize = 512 << 10;

/// How much of a stream is kept to return the text of the match.
const KEPT_BYTES: usize = 256 << 10;

/// A search for one expression in the output of one process, in each stream separately.
///
/// ```
/// use remex_proto::{process::Stream, state::matcher::Search};
///
/// let mut search = Search::new("rea+dy")?;
/// assert_eq!(search.look_at(Stream::Stdout, b"not re"), None);
/// assert_eq!(search.look_at(Stream::Stderr, b"ady"), None);
/// let found = search.look_at(Stream::Stdout, b"ady to go").expect("it is complete");
/// assert_eq!((found.before(), found.bytes(), found.rest()), (&b"not "[..], &b"ready"[..], &b" to go"[..]));
/// # Ok::<(), remex_proto::RpcError>(())
/// ```
#[derive(Debug)]
pub struct Search {
    /// Standard output or the terminal, and standard error.
    streams: [(Matcher, Vec<u8>); 2],
}

/// A match, and the output of its stream around it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    text: Vec<u8>,
    range: Range<usize>,
}

impl Found {
    /// Returns what precedes the match, as far as it was kept.
    pub fn before(&self) -> &[u8] {
        &self.text[..self.range.start]
    }

    /// Returns the match; empty if its beginning was no longer kept.
    pub fn bytes(&self) -> &[u8] {
        &self.text[self.range.clone()]
    }

    /// Returns what follows the match in the last piece.
    pub fn rest(&self) -> &[u8] {
        &self.text[self.range.end..]
    }
}

impl Search {
    /// Compiles `pattern`; see [`Matcher::new`].
    ///
    /// # Errors
    ///
    /// If the expression is invalid or too large.
    pub fn new(pattern: &str) -> Result<Self, RpcError> {
        let first = Matcher::new(pattern)?;
        let second = first.another().map_or_else(|| Matcher::new(pattern), Ok)?;
        Ok(Search { streams: [(first, Vec::new()), (second, Vec::new())] })
    }

    /// Restarts after a gap: the next piece does not continue the previous one.
    pub fn restart(&mut self) {
        for (matcher, text) in &mut self.streams {
            matcher.restart();
            text.clear();
        }
    }

    /// Processes the next piece and returns the match once it is complete; the search is then over. Unknown streams are
    /// not searched.
    pub fn look_at(&mut self, stream: Stream, bytes: &[u8]) -> Option<Found> {
        if stream == Stream::Unknown {
            return None;
        }
        let (matcher, text) = &mut self.streams[usize::from(stream == Stream::Stderr)];
        text.extend_from_slice(bytes);
        if matcher.feed(bytes) == MatchStatus::Match {
            // A match that began before the kept text still counts.
            let range = matcher.find_range(text).unwrap_or(text.len()..text.len());
            return Some(Found { text: std::mem::take(text), range });
        }
        if text.len() > KEPT_BYTES {
            text.drain(..text.len() - KEPT_BYTES / 2);
        }
        None
    }
}

/// A search for one expression in one stream.
#[derive(Debug)]
pub struct Matcher {
    dfa: DFA,
    cache: Cache,
    at: LazyStateID,
    regex: meta::Regex,
}

/// The result of processing a piece of input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum MatchStatus {
    /// The expression matches somewhere in the input so far.
    Match,
    /// Not yet.
    Nothing,
}

impl Matcher {
    /// Compiles `pattern`, which matches bytes: classes such as `\w` and `\b` are ASCII-only.
    ///
    /// ```
    /// use remex_proto::state::matcher::{Matcher, MatchStatus};
    ///
    /// let mut matcher = Matcher::new("rea+dy")?;
    /// assert_eq!(matcher.feed(b"not re"), MatchStatus::Nothing);
    /// assert_eq!(matcher.feed(b"ady"), MatchStatus::Match);
    /// assert_eq!(matcher.find(b"not ready"), Some(&b"ready"[..]));
    /// # Ok::<(), remex_proto::RpcError>(())
    /// ```
    pub fn new(pattern: &str) -> Result<Self, RpcError> {
        if pattern.len() > PATTERN_BYTES {
            let message = format!("regex has {} bytes; at most {PATTERN_BYTES} are compiled", pattern.len());
            return Err(RpcError::new(ErrorKind::InvalidParams, message));
        }
        let syntax = syntax::Config::new().unicode(false).utf8(false);
        let nfa = thompson::Config::new().utf8(false).nfa_size_limit(Some(COMPILED_BYTES));
        let regex = meta::Regex::builder()
            .syntax(syntax)
            .configure(meta::Regex::config().utf8_empty(false).nfa_size_limit(Some(COMPILED_BYTES)))
            .build(pattern)
            .map_err(|error| invalid(pattern, &root_cause(&error)))?;
        let dfa = DFA::builder()
            .syntax(syntax)
            .thompson(nfa)
            .configure(DFA::config().match_kind(MatchKind::All).cache_capacity(COMPILED_BYTES))
            .build(pattern)
            .map_err(|error| invalid(pattern, &root_cause(&error)))?;
        Self::begin(dfa, regex).ok_or_else(|| invalid(pattern, "it is too large to begin with"))
    }

    /// Returns a matcher of the same expression for another stream.
    pub fn another(&self) -> Option<Self> {
        Self::begin(self.dfa.clone(), self.regex.clone())
    }

    fn begin(dfa: DFA, regex: meta::Regex) -> Option<Self> {
        let mut cache = dfa.create_cache();
        let at = dfa.start_state(&mut cache, &start::Config::new().anchored(Anchored::No)).ok()?;
        Some(Matcher { dfa, cache, at, regex })
    }

    /// Restarts: the next piece does not continue the previous one.
    pub fn restart(&mut self) {
        if let Some(anew) = self.another() {
            *self = anew;
        }
    }

    /// Processes the next piece.
    pub fn feed(&mut self, bytes: &[u8]) -> MatchStatus {
        for &byte in bytes {
            // If the cache cannot hold another state, the search reports no match.
            let Ok(next) = self.dfa.next_state(&mut self.cache, self.at, byte) else {
                return MatchStatus::Nothing;
            };
            if next.is_match() {
                return MatchStatus::Match;
            }
            self.at = next;
        }
        // The input so far may match if it ends here.
        match self.dfa.next_eoi_state(&mut self.cache, self.at) {
            Ok(end) if end.is_match() => MatchStatus::Match,
            Ok(_) | Err(_) => MatchStatus::Nothing,
        }
    }

    /// Returns the leftmost match in `text`.
    pub fn find<'t>(&self, text: &'t [u8]) -> Option<&'t [u8]> {
        self.find_range(text).map(|range| &text[range])
    }

    fn find_range(&self, text: &[u8]) -> Option<Range<usize>> {
        self.regex.find(text).map(|found| found.range())
    }
}

fn invalid(pattern: &str, why: &str) -> RpcError {
    RpcError::new(ErrorKind::InvalidParams, format!("cannot wait for regex `{pattern}`: {why}"))
        .with_hint("use the syntax of the Rust regex crate, over bytes (`(?-u)` is on)")
}

fn root_cause(error: &dyn std::error::Error) -> String {
    let mut cause = error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    // A syntax error has several lines; the last one states the cause.
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
            if matcher.feed(piece) == MatchStatus::Match {
                return Some((index, matcher.find(&text).unwrap().to_vec()));
            }
        }
        None
    }

    #[test]
    fn a_match_may_span_pieces() {
        assert_eq!(
            pieces("listening on \\d+", &[b"list", b"ening", b" on 80", b"80"]),
            Some((2, b"listening on 80".to_vec()))
        );
        assert_eq!(pieces("ab.*yz", &[b"ab", &[b'x'; 5000], b"yz"]).map(|(index, _)| index), Some(2));
        assert_eq!(pieces("needle", &[b"hay", b"stack"]), None);
    }

    #[test]
    fn anchors_refer_to_the_stream_and_not_to_the_piece() {
        assert_eq!(pieces("^two", &[b"one\n", b"two"]), None);
        assert_eq!(pieces("(?m)^two", &[b"one\n", b"two"]), Some((1, b"two".to_vec())));
        assert_eq!(pieces("\\$ $", &[b"host", b":~$ "]), Some((1, b"$ ".to_vec())));
    }

    #[test]
    fn a_match_leaves_the_rest_of_its_piece() {
        let mut search = Search::new("a+").unwrap();
        assert_eq!(search.look_at(Stream::Stdout, b"one "), None);
        let found = search.look_at(Stream::Stdout, b"two aa three aa").unwrap();
        assert_eq!(
            (found.before(), found.bytes(), found.rest()),
            (&b"one two "[..], &b"aa"[..], &b" three aa"[..])
        );
    }

    #[test]
    fn bytes_that_are_not_utf_8_can_match() {
        assert_eq!(pieces(r"\xff+b", &[&[0xff], b"b"]), Some((1, vec![0xff, b'b'])));
        assert_eq!(pieces(r"\bready\b", &["é ".as_bytes(), b"ready", b" now"]), Some((1, b"ready".to_vec())));
        assert_eq!(pieces("é", &["caf\u{e9}".as_bytes()]), Some((0, "é".as_bytes().to_vec())));
    }

    #[test]
    fn an_invalid_expression_is_reported_with_its_cause() {
        let error = Matcher::new("a(b").unwrap_err();
        assert!(
            error.message.contains("`a(b`") && error.message.contains("unclosed group"),
            "{}",
            error.message
        );
        assert!(Matcher::new(&"a".repeat(PATTERN_BYTES + 1)).is_err());
        assert!(Matcher::new("(?:a{1000}){1000}").is_err());
    }
}
