//! Validates a message in one strict pass.
//!
//! It builds no tree: it checks that the text is JSON within the limits and finds the members of
//! the envelope. It remembers only the keys of open objects, to detect duplicates.

use std::{borrow::Cow, collections::HashSet};

use super::{Malformed, MessageLimits, NumberRange};

/// The JSON text of each member of the envelope.
#[derive(Debug, Default)]
pub(super) struct Members<'a> {
    pub(super) id: Option<&'a str>,
    pub(super) method: Option<&'a str>,
    pub(super) params: Option<&'a str>,
    pub(super) result: Option<&'a str>,
    pub(super) error: Option<&'a str>,
    pub(super) trace: Option<&'a str>,
}

/// Scans a whole message.
pub(super) fn members(text: &str, limits: MessageLimits) -> Result<Members<'_>, Malformed> {
    let mut scanner = Scanner { text, at: 0, values: 1, limits, keys: Vec::new() };
    let mut members = Members::default();
    scanner.skip_space();
    if scanner.peek() != Some(b'{') {
        return Err(Malformed::NotAnObject);
    }
    scanner.object(1, |key, value| {
        let slot = match key {
            "id" => &mut members.id,
            "method" => &mut members.method,
            "params" => &mut members.params,
            "result" => &mut members.result,
            "error" => &mut members.error,
            "trace" => &mut members.trace,
            _ => return,
        };
        *slot = Some(value);
    })?;
    scanner.skip_space();
    if scanner.at < text.len() { scanner.expected("nothing more") } else { Ok(members) }
}

/// Returns the text of a JSON string that has been scanned, or `None` for any other value.
pub(super) fn unquote(json: &str) -> Option<Cow<'_, str>> {
    let inner = json.strip_prefix('"')?.strip_suffix('"')?;
    if inner.contains('\\') { serde_json::from_str(json).ok().map(Cow::Owned) } else { Some(inner.into()) }
}

struct Scanner<'a> {
    text: &'a str,
    /// at <= text.len()
    at: usize,
    values: usize,
    limits: MessageLimits,
    /// The keys of all open objects, innermost last.
    keys: Vec<Cow<'a, str>>,
}

impl<'a> Scanner<'a> {
    /// Scans a value; `depth` is that of its container.
    fn value(&mut self, depth: u8) -> Result<(), Malformed> {
        self.values += 1;
        if self.values > self.limits.max_values {
            return Err(Malformed::TooManyValues { limit: self.limits.max_values });
        }
        match self.peek() {
            Some(b'"') => self.string(),
            Some(b'{' | b'[') if depth >= self.limits.max_depth => {
                Err(Malformed::TooDeep { limit: self.limits.max_depth })
            }
            Some(b'{') => self.object(depth + 1, |_, _| {}),
            Some(b'[') => self.array(depth + 1),
            Some(b'-' | b'0'..=b'9') => self.number(),
            Some(b't') => self.literal("true"),
            Some(b'f') => self.literal("false"),
            Some(b'n') => self.literal("null"),
            _ => self.expected("a value"),
        }
    }

    fn object(&mut self, depth: u8, mut member: impl FnMut(&str, &'a str)) -> Result<(), Malformed> {
        let outer_keys = self.keys.len();
        self.at += 1;
        self.skip_space();
        if self.take(b'}') {
            return Ok(());
        }
        loop {
            let key_at = self.at;
            if self.peek() != Some(b'"') {
                return self.expected("a key");
            }
            self.string()?;
            let key = unquote(&self.text[key_at..self.at]).expect("a string was scanned here");
            self.skip_space();
            if !self.take(b':') {
                return self.expected("`:`");
            }
            self.skip_space();
            let value_at = self.at;
            self.value(depth)?;
            member(&key, &self.text[value_at..self.at]);
            self.keys.push(key);
            self.skip_space();
            if self.take(b'}') {
                break;
            }
            if !self.take(b',') {
                return self.expected("`,` or `}`");
            }
            self.skip_space();
        }
        if let Some(key) = duplicate(&self.keys[outer_keys..]) {
            return Err(Malformed::DuplicateKey { key: key.to_owned() });
        }
        self.keys.truncate(outer_keys);
        Ok(())
    }

    fn array(&mut self, depth: u8) -> Result<(), Malformed> {
        self.at += 1;
        self.skip_space();
        if self.take(b']') {
            return Ok(());
        }
        loop {
            self.value(depth)?;
            self.skip_space();
            if self.take(b']') {
                return Ok(());
            }
            if !self.take(b',') {
                return self.expected("`,` or `]`");
            }
            self.skip_space();
        }
    }

    fn string(&mut self) -> Result<(), Malformed> {
        self.at += 1;
        loop {
            self.at += plain_len(&self.text.as_bytes()[self.at..]);
            match self.peek() {
                Some(b'"') => {
                    self.at += 1;
                    return Ok(());
                }
                Some(b'\\') => self.escape()?,
                _ => return self.expected("a character of a string"),
            }
        }
    }

    fn escape(&mut self) -> Result<(), Malformed> {
        match self.text.as_bytes().get(self.at + 1) {
            Some(b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't') => {
                self.at += 2;
                Ok(())
            }
            Some(b'u') => match self.unicode_escape()? {
                0xD800..=0xDBFF if !matches!(self.unicode_escape()?, 0xDC00..=0xDFFF) => {
                    self.expected("the second half of a surrogate pair before this")
                }
                0xDC00..=0xDFFF => self.expected("the first half of a surrogate pair before this"),
                _ => Ok(()),
            },
            _ => self.expected("an escape"),
        }
    }

    fn unicode_escape(&mut self) -> Result<u32, Malformed> {
        let escape = self.text.as_bytes().get(self.at..self.at + 6);
        let Some([b'\\', b'u', digits @ ..]) = escape else { return self.expected("`\\u` and four digits") };
        let digit = |unit: u32, digit: &u8| Some(unit << 4 | char::from(*digit).to_digit(16)?);
        let Some(unit) = digits.iter().try_fold(0, digit) else {
            return self.expected("`\\u` and four digits");
        };
        self.at += 6;
        Ok(unit)
    }

    fn number(&mut self) -> Result<(), Malformed> {
        let start = self.at;
        let negative = self.take(b'-');
        if !self.take(b'0') && self.digits() == 0 {
            return self.expected("a digit");
        }
        let integer_len = self.at - start;
        if self.take(b'.') && self.digits() == 0 {
            return self.expected("a digit");
        }
        if self.take(b'e') || self.take(b'E') {
            let _sign = self.take(b'-') || self.take(b'+');
            if self.digits() == 0 {
                return self.expected("a digit");
            }
        }
        if self.limits.numbers == NumberRange::Any {
            return Ok(());
        }
        let number = &self.text[start..self.at];
        let fits = match number.len() {
            // The decoder that reads it later applies the same limit.
            len if len > integer_len => serde_json::from_str::<f64>(number).is_ok(),
            // Any number this short fits 64 bits.
            ..=18 => true,
            _ if negative => number.parse::<i64>().is_ok(),
            _ => number.parse::<u64>().is_ok(),
        };
        if fits { Ok(()) } else { Err(Malformed::NumberOutOfRange { at: start }) }
    }

    fn digits(&mut self) -> usize {
        let rest = &self.text.as_bytes()[self.at..];
        let len = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
        self.at += len;
        len
    }

    fn literal(&mut self, word: &'static str) -> Result<(), Malformed> {
        if !self.text.as_bytes()[self.at..].starts_with(word.as_bytes()) {
            return self.expected("a value");
        }
        self.at += word.len();
        Ok(())
    }

    fn skip_space(&mut self) {
        while let Some(b' ' | b'\t' | b'\n' | b'\r') = self.peek() {
            self.at += 1;
        }
    }

    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    fn take(&mut self, byte: u8) -> bool {
        let is_there = self.peek() == Some(byte);
        self.at += usize::from(is_there);
        is_there
    }

    fn expected<T>(&self, expected: &'static str) -> Result<T, Malformed> {
        Err(Malformed::Syntax { expected, at: self.at })
    }
}

/// Returns the length of the prefix that needs no escape in a string.
fn plain_len(bytes: &[u8]) -> usize {
    /// Most strings are shorter; longer ones are checked with wide registers.
    const BLOCK: usize = 64;

    let mut plain = 0;
    while let Some(block) = bytes.get(plain..plain + BLOCK) {
        // No early exit, so that the compiler can vectorize the loop.
        if block.iter().fold(false, |found, byte| found | is_special(*byte)) {
            break;
        }
        plain += BLOCK;
    }
    let rest = &bytes[plain..];
    plain + rest.iter().position(|byte| is_special(*byte)).unwrap_or(rest.len())
}

fn is_special(byte: u8) -> bool {
    byte < 0x20 || byte == b'"' || byte == b'\\'
}

fn duplicate<'k>(keys: &'k [Cow<'_, str>]) -> Option<&'k str> {
    /// Up to this many keys, comparing all pairs is cheaper than hashing.
    const FEW: usize = 16;

    if keys.len() <= FEW {
        let is_repeated = |(index, key): &(usize, &Cow<'_, str>)| keys[..*index].contains(key);
        return keys.iter().enumerate().find(is_repeated).map(|(_, key)| &**key);
    }
    let mut seen = HashSet::with_capacity(keys.len());
    keys.iter().find(|key| !seen.insert(&***key)).map(|key| &**key)
}
