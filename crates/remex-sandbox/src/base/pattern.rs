//! Patterns of paths, as in `.gitignore` and shells.
//!
//! `*` and `?` match within a name, `**` any number of directories, `[a-z]` and `[!a-z]` one character, `{a,b}` either
//! text; a backslash takes the next character literally. All patterns of a policy become one regular expression over
//! bytes: a decision is one pass over the path, whatever a client wrote. Start at [`parse`].

use std::{
    borrow::Cow,
    ffi::OsStr,
    os::unix::ffi::OsStrExt as _,
    path::{Path, PathBuf},
};

use regex_automata::{
    Anchored, Input,
    meta::{Config, Regex},
    util::syntax,
};

use crate::base::error::Reason;

/// What `{a,b}` may expand to; each alternative becomes a part of the expression.
const MAX_ALTERNATIVES: usize = 256;

/// The size of the compiled patterns of one policy, in bytes.
const MAX_COMPILED_LEN: usize = 4 << 20;

/// A pattern as written, split where the first wildcard is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Glob {
    pub(crate) start: Start,
    /// The names before the first wildcard.
    pub(crate) literal: PathBuf,
    /// The components from the first wildcard on; empty if there is none.
    pub(crate) rest: Vec<String>,
    /// Whether it ended in `/**`.
    pub(crate) is_tree: bool,
}

/// What a pattern is relative to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Start {
    FileSystem,
    Roots,
    Home,
}

/// Parses a pattern into one glob for each alternative in its braces.
pub(crate) fn parse(pattern: &str) -> Result<Vec<Glob>, Reason> {
    if pattern.is_empty() || pattern.contains('\0') {
        return Err(Reason::Pattern("the pattern is empty or has a NUL character".into()));
    }
    let mut expanded = Vec::new();
    expand(pattern, &mut expanded)?;
    expanded.iter().map(|pattern| split(pattern)).collect()
}

/// Writes every choice of alternatives for the first braces, and so on for those behind.
fn expand(pattern: &str, expanded: &mut Vec<String>) -> Result<(), Reason> {
    let mut pending = vec![pattern.to_owned()];
    while let Some(pattern) = pending.pop() {
        let Some(braces) = first_braces(&pattern)? else {
            expanded.push(pattern);
            continue;
        };
        let (before, after) = (&pattern[..braces.open], &pattern[braces.close + 1..]);
        for alternative in &braces.alternatives {
            pending.push(format!("{before}{alternative}{after}"));
        }
        if pending.len() + expanded.len() > MAX_ALTERNATIVES {
            return Err(Reason::TooLarge { what: "alternatives in braces".into(), limit: MAX_ALTERNATIVES });
        }
    }
    Ok(())
}

struct Braces<'a> {
    /// The position of `{`.
    open: usize,
    /// The position of the matching `}`.
    close: usize,
    alternatives: Vec<&'a str>,
}

fn first_braces(pattern: &str) -> Result<Option<Braces<'_>>, Reason> {
    let (mut open, mut start, mut depth) = (0, 0, 0usize);
    let mut alternatives = Vec::new();
    let mut chars = pattern.char_indices();
    while let Some((at, c)) = chars.next() {
        match c {
            '\\' => _ = chars.next(),
            '[' => {
                let rest = &pattern[at..];
                let end = at + class_len(rest)?;
                while chars.as_str().len() > pattern.len() - end {
                    chars.next();
                }
            }
            '{' => {
                depth += 1;
                if depth == 1 {
                    (open, start) = (at, at + 1);
                }
            }
            ',' if depth == 1 => {
                alternatives.push(&pattern[start..at]);
                start = at + 1;
            }
            '}' if depth == 1 => {
                alternatives.push(&pattern[start..at]);
                return Ok(Some(Braces { open, close: at, alternatives }));
            }
            '}' if depth > 1 => depth -= 1,
            _ => {}
        }
    }
    if depth > 0 { Err(Reason::Pattern("a `{` has no `}`".into())) } else { Ok(None) }
}

/// Returns the length of the class that starts `text`, brackets included.
fn class_len(text: &str) -> Result<usize, Reason> {
    let mut chars = text.char_indices().skip(1).peekable();
    chars.next_if(|(_, c)| matches!(c, '!' | '^'));
    // A closing bracket right behind the opening one is a member.
    chars.next_if(|(_, c)| *c == ']');
    while let Some((at, c)) = chars.next() {
        match c {
            '\\' => _ = chars.next(),
            ']' => return Ok(at + 1),
            _ => {}
        }
    }
    Err(Reason::Pattern("a `[` has no `]`".into()))
}

/// Splits a pattern without braces at its first wildcard.
fn split(pattern: &str) -> Result<Glob, Reason> {
    let (start, pattern) = match pattern.strip_prefix('/') {
        Some(pattern) => (Start::FileSystem, pattern),
        None if pattern == "~" => (Start::Home, ""),
        None => pattern.strip_prefix("~/").map_or((Start::Roots, pattern), |rest| (Start::Home, rest)),
    };
    let mut glob = Glob { start, literal: PathBuf::new(), rest: Vec::new(), is_tree: false };
    for component in components(pattern)? {
        match component {
            "" | "." => continue,
            ".." => return Err(Reason::Pattern("the pattern has `..`".into())),
            _ => {}
        }
        match literal(component) {
            Some(name) if name.contains('/') => {
                return Err(Reason::Pattern("a name has an escaped `/`".into()));
            }
            Some(name) if glob.rest.is_empty() && !matches!(&*name, "." | "..") => glob.literal.push(name),
            _ => {
                // Fails here for what would fail later.
                translate(component, &mut String::new())?;
                glob.rest.push(component.to_owned());
            }
        }
    }
    while glob.rest.last().is_some_and(|last| last == "**") {
        glob.rest.pop();
        glob.is_tree = true;
    }
    Ok(glob)
}

/// Splits at slashes that are not within a class.
fn components(pattern: &str) -> Result<Vec<&str>, Reason> {
    let mut components = Vec::new();
    let (mut start, mut at) = (0, 0);
    while let Some(c) = pattern[at..].chars().next() {
        at += match c {
            '\\' => 1 + pattern[at + 1..].chars().next().map_or(0, char::len_utf8),
            '[' => class_len(&pattern[at..])?,
            '/' => {
                components.push(&pattern[start..at]);
                start = at + 1;
                1
            }
            _ => c.len_utf8(),
        };
    }
    components.push(&pattern[start..]);
    Ok(components)
}

/// Returns the only name that a component matches, or `None` if it has wildcards.
fn literal(component: &str) -> Option<String> {
    let mut name = String::new();
    let mut chars = component.chars();
    while let Some(c) = chars.next() {
        match c {
            '*' | '?' | '[' => return None,
            '\\' => name.push(chars.next()?),
            _ => name.push(c),
        }
    }
    Some(name)
}

/// Appends the regular expression of one component that is not `**`.
fn translate(component: &str, regex: &mut String) -> Result<(), Reason> {
    // One character; or one byte, where a name is not UTF-8.
    const ANY: &str = r"(?:[^/\x80-\xFF]|[\xC2-\xF4][\x80-\xBF]{1,3}|[\x80-\xFF])";
    let mut at = 0;
    while let Some(c) = component[at..].chars().next() {
        at += match c {
            '*' => {
                regex.push_str("[^/]*");
                1
            }
            '?' => {
                regex.push_str(ANY);
                1
            }
            '[' => {
                let len = class_len(&component[at..])?;
                translate_class(&component[at + 1..at + len - 1], regex)?;
                len
            }
            '\\' => {
                let escaped = component[at + 1..].chars().next();
                let escaped = escaped.ok_or_else(|| Reason::Pattern("a `\\` ends the pattern".into()))?;
                push_char(escaped, regex);
                1 + escaped.len_utf8()
            }
            _ => {
                push_char(c, regex);
                c.len_utf8()
            }
        };
    }
    Ok(())
}

/// Appends the regular expression of a class, given what is between its brackets.
fn translate_class(members: &str, regex: &mut String) -> Result<(), Reason> {
    let negated = members.starts_with(['!', '^']);
    let mut chars = members.chars().skip(usize::from(negated)).peekable();
    let mut set = String::new();
    let unescape = |c: char, chars: &mut dyn Iterator<Item = char>| match c {
        '\\' => chars.next().ok_or_else(|| Reason::Pattern("a `\\` ends a class".into())),
        c => Ok(c),
    };
    while let Some(c) = chars.next() {
        let low = unescape(c, &mut chars)?;
        let mut ahead = chars.clone();
        let high = match (ahead.next(), ahead.next()) {
            (Some('-'), Some(high)) => {
                chars = ahead;
                unescape(high, &mut chars)?
            }
            _ => low,
        };
        if low > high {
            return Err(Reason::Pattern("a range in a class ends before it starts".into()));
        }
        set.push_str(&format!(r"\x{{{:X}}}-\x{{{:X}}}", u32::from(low), u32::from(high)));
    }
    if set.is_empty() {
        return Err(Reason::Pattern("a class has no members".into()));
    }
    regex.push_str(&match negated {
        false => format!("(?u:[[{set}]&&[^/]])"),
        true => format!(r"(?:(?u:[^/{set}])|[\x80-\xFF])"),
    });
    Ok(())
}

/// Appends a character that stands for itself.
fn push_char(c: char, regex: &mut String) {
    push_bytes(c.encode_utf8(&mut [0; 4]).as_bytes(), regex);
}

fn push_bytes(bytes: &[u8], regex: &mut String) {
    for byte in bytes {
        match byte {
            b'/' | b'_' | b'0'..=b'9' | b'A'..=b'Z' | b'a'..=b'z' => regex.push(char::from(*byte)),
            _ => regex.push_str(&format!(r"\x{byte:02X}")),
        }
    }
}

/// Paths that a policy denies wherever they are: those that match, and everything below them.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Pattern {
    /// The directory that all matches are in, or the only match if there is no wildcard; without links.
    pub base: PathBuf,
    /// What follows below, with wildcards; empty if there is none.
    pub rest: String,
}

impl Pattern {
    fn to_regex(&self) -> Result<String, Reason> {
        let mut regex = String::new();
        if self.base != Path::new("/") {
            push_bytes(self.base.as_os_str().as_bytes(), &mut regex);
        }
        for component in components(&self.rest)?.into_iter().filter(|component| !component.is_empty()) {
            match component {
                "**" => regex.push_str("(?:/[^/]+)*"),
                _ => {
                    regex.push('/');
                    translate(component, &mut regex)?;
                }
            }
        }
        Ok(regex)
    }
}

/// All patterns of a policy.
#[derive(Debug, Clone, Default)]
pub(crate) struct Patterns {
    /// Sorted, each once.
    patterns: Vec<Pattern>,
    /// All of them; `None` if there are none.
    regex: Option<Regex>,
}

impl PartialEq for Patterns {
    fn eq(&self, other: &Self) -> bool {
        self.patterns == other.patterns
    }
}

impl Eq for Patterns {}

impl Patterns {
    pub(crate) fn compile(mut patterns: Vec<Pattern>) -> Result<Self, Reason> {
        patterns.sort();
        patterns.dedup();
        if patterns.is_empty() {
            return Ok(Self::default());
        }
        let alternatives: Vec<_> = patterns.iter().map(Pattern::to_regex).collect::<Result<_, _>>()?;
        let config = Config::new()
            .utf8_empty(false)
            .nfa_size_limit(Some(MAX_COMPILED_LEN))
            .hybrid_cache_capacity(256 << 10);
        let regex = Regex::builder()
            .configure(config)
            .syntax(syntax::Config::new().unicode(false).utf8(false))
            .build(&format!(r"(?:{})(?:/|\z)", alternatives.join("|")))
            .map_err(|_| Reason::TooLarge {
                what: "bytes of compiled patterns".into(),
                limit: MAX_COMPILED_LEN,
            })?;
        Ok(Self { patterns, regex: Some(regex) })
    }

    pub(crate) fn as_slice(&self) -> &[Pattern] {
        &self.patterns
    }

    /// Returns whether a path or a directory above it matches.
    pub(crate) fn matches(&self, path: &Path) -> bool {
        let Some(regex) = &self.regex else { return false };
        let path = normalized(path);
        regex.is_match(Input::new(path.as_bytes()).anchored(Anchored::Yes))
    }
}

/// Returns a path without repeated slashes and `.`, which costs an allocation only if it has some.
fn normalized(path: &Path) -> Cow<'_, OsStr> {
    let bytes = path.as_os_str().as_bytes();
    let is_plain = bytes == b"/"
        || !bytes.ends_with(b"/") && !bytes.ends_with(b"/.") && {
            let mut pairs = bytes.windows(3);
            !bytes.ends_with(b"//") && !pairs.any(|three| three.starts_with(b"//") || three == b"/./")
        };
    if is_plain {
        Cow::Borrowed(path.as_os_str())
    } else {
        Cow::Owned(path.components().collect::<PathBuf>().into_os_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns whether a pattern below `/w` denies a path.
    fn denies(pattern: &str, path: &str) -> bool {
        let to_pattern = |glob: Glob| Pattern {
            base: Path::new("/w").join(&glob.literal).components().collect(),
            rest: glob.rest.join("/"),
        };
        let patterns = parse(pattern).unwrap().into_iter().map(to_pattern).collect();
        Patterns::compile(patterns).unwrap().matches(Path::new(path))
    }

    #[test]
    fn a_pattern_matches_what_it_says_and_everything_below() {
        for (pattern, matching, other) in [
            ("a", "/w/a /w/a/b", "/w /w/ab /a /x/w/a"),
            ("*.env", "/w/.env /w/x.env /w/x.env/y", "/w/a/x.env /w/x.envy"),
            ("**/*.env", "/w/x.env /w/a/b/x.env /w/a.env/b", "/w /x.env /wx.env"),
            ("**/a/**/b", "/w/a/b /w/x/a/y/z/b", "/w/b /w/a /w/ab"),
            ("a/**", "/w/a /w/a/b/c", "/w /w/b"),
            ("**", "/w /w/a", "/ /x /wx"),
            ("a/*", "/w/a/b /w/a/.b/c", "/w/a"),
            ("a?c", "/w/abc /w/aéc /w/a€c /w/a😀c", "/w/ac /w/a/c /w/abbc"),
            ("[a-c]", "/w/a /w/b /w/c", "/w/d /w/ab"),
            ("[!a-c]x", "/w/dx /w/éx", "/w/ax /w//x"),
            ("[]!]", "/w/] /w/!", "/w/a"),
            ("[é-ü]", "/w/ö", "/w/e"),
            ("[a/]b", "/w/ab", "/w/b /w/a/b"),
            ("x{a,b{c,d},}", "/w/xa /w/xbc /w/xbd /w/x", "/w/xb /w/xc"),
            ("{a/b,c}/*.k", "/w/a/b/x.k /w/c/x.k", "/w/a/x.k"),
            (r"\*\{", "/w/*{", "/w/a{"),
            ("a**b", "/w/ab /w/axb", "/w/a/b"),
            ("./a//b/", "/w/a/b", "/w/a"),
            ("a.b", "/w/a.b", "/w/axb"),
            ("é", "/w/é", "/w/e"),
        ] {
            for path in matching.split(' ') {
                assert!(denies(pattern, path), "{pattern} should match {path}");
            }
            for path in other.split(' ') {
                assert!(!denies(pattern, path), "{pattern} should not match {path}");
            }
        }
    }

    #[test]
    fn names_that_are_not_utf_8_can_match() {
        let path = |bytes: &'static [u8]| Path::new(OsStr::from_bytes(bytes));
        let glob = |text: &str| Pattern { base: "/".into(), rest: text.to_owned() };
        let patterns = Patterns::compile(vec![glob("**/a?.env"), glob("*.key")]).unwrap();
        assert!(patterns.matches(path(b"/x\xff/a\xfe.env")));
        assert!(patterns.matches(path(b"/\xff.key")));
        assert!(!patterns.matches(path(b"/x/\xff.key")));
    }

    #[test]
    fn an_invalid_pattern_is_an_error() {
        for pattern in ["", "a\0", "[a", "{a", "a\\", "[z-a]", "[]", "[!]", "../a", "a/../b", "a\\/b", "*/["]
        {
            assert!(matches!(parse(pattern), Err(Reason::Pattern(_))), "{pattern:?}: {:?}", parse(pattern));
        }
        let many = "{a,b,c,d}".repeat(5);
        assert!(matches!(parse(&many), Err(Reason::TooLarge { .. })));
    }

    #[test]
    fn a_pattern_is_split_at_its_first_wildcard() {
        let glob = |pattern: &str| parse(pattern).unwrap().remove(0);
        let split = |pattern: &str| {
            let glob = glob(pattern);
            (glob.start, glob.literal.display().to_string(), glob.rest.join("/"), glob.is_tree)
        };
        assert_eq!(split("/a/b/*.c"), (Start::FileSystem, "a/b".into(), "*.c".into(), false));
        assert_eq!(split("a/**"), (Start::Roots, "a".into(), String::new(), true));
        assert_eq!(split("~/.ssh/**"), (Start::Home, ".ssh".into(), String::new(), true));
        assert_eq!(split(r"/a\*/b"), (Start::FileSystem, "a*/b".into(), String::new(), false));
        assert_eq!(split("~x"), (Start::Roots, "~x".into(), String::new(), false));
    }
}
