//! The token file: one capability token per line, with a name, scopes and an expiry.

use std::time::SystemTime;

use sha2::{Digest, Sha256};
use time::{OffsetDateTime, format_description::well_known::Rfc3339};

use super::{TokenGrant, Weakness, check_strength, parse_digest};
use crate::scope::{ScopeError, Scopes};

/// The longest name of a token.
const MAX_NAME_LEN: usize = 64;

/// The contents of a token file.
///
/// ```
/// use remex_access::token::TokenFile;
///
/// let file = TokenFile::parse(
///     "# Rotated every month.\n\
///      rV7xq0Dk2mYw9ZsT4uJc1A name=ci scope=processes=4,files:read=/srv expires=2027-01-01T00:00:00Z\n\
///      sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08\n",
/// )?;
/// assert_eq!(file.tokens[0].name, "ci");
/// assert_eq!(file.tokens[1].name, "9f86d081");
/// # Ok::<(), remex_access::token::FileError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenFile {
    /// The tokens in the order of their lines; at least one.
    pub tokens: Vec<TokenGrant>,
    /// Whether it contains tokens themselves and not only digests.
    pub has_secrets: bool,
}

/// Why a text is not a token file. Never contains a token.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FileError {
    /// A line cannot be used.
    #[error("line {line}: {problem}")]
    Line {
        /// The line, from 1.
        line: usize,
        /// What is wrong with it.
        problem: FileProblem,
    },
    /// There is no token in it.
    #[error("it contains no token")]
    Empty,
}

impl FileError {
    /// Returns what to do about it.
    pub fn hint(&self) -> &'static str {
        match self {
            FileError::Line { problem: FileProblem::Weak(_), .. } => "`remex token new` makes a strong one",
            FileError::Line { problem: FileProblem::Scope(error), .. } => error.hint(),
            FileError::Line { problem: FileProblem::Word(_), .. } => "write scopes with commas between them",
            FileError::Line { problem: FileProblem::Duplicate(_) | FileProblem::Twice(_), .. } => {
                "remove one"
            }
            FileError::Line { .. } => "correct the line",
            FileError::Empty => "`remex token new` makes one",
        }
    }
}

/// What is wrong with a line of a token file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FileProblem {
    /// The token can be guessed.
    #[error("the token is weak: {0}")]
    Weak(Weakness),
    /// What follows `sha256:` is no digest.
    #[error("`sha256:` is not followed by 64 hexadecimal digits")]
    Digest,
    /// A word after the token has no known name.
    #[error("word {0} is none of `name=`, `scope=` and `expires=`")]
    Word(usize),
    /// A word occurs twice.
    #[error("`{0}=` occurs twice")]
    Twice(&'static str),
    /// The name cannot be used.
    #[error("the name is not 1 to {MAX_NAME_LEN} letters, digits, `.`, `_`, `-` or `@`")]
    Name,
    /// The scopes cannot be used.
    #[error("{0}")]
    Scope(#[from] ScopeError),
    /// The expiry is no time.
    #[error("`expires=` is not followed by a time such as 2027-01-31T00:00:00Z")]
    Expires,
    /// The token occurs twice.
    #[error("the same token is on line {0}")]
    Duplicate(usize),
}

impl TokenFile {
    /// Parses the text of a token file.
    ///
    /// # Errors
    ///
    /// If a line is malformed, a token is weak or occurs twice, or there is none.
    pub fn parse(text: &str) -> Result<Self, FileError> {
        let (mut tokens, mut lines, mut has_secrets) = (Vec::<TokenGrant>::new(), Vec::new(), false);
        for (index, line) in text.lines().enumerate() {
            let line_number = index + 1;
            let at = |problem| FileError::Line { line: line_number, problem };
            let mut words = line.split_ascii_whitespace();
            let Some(first) = words.next().filter(|first| !first.starts_with('#')) else { continue };
            let token = parse_line(first, words).map_err(at)?;
            if let Some(known) = tokens.iter().position(|known| known.sha256 == token.sha256) {
                return Err(at(FileProblem::Duplicate(lines[known])));
            }
            has_secrets |= !first.starts_with(DIGEST);
            tokens.push(token);
            lines.push(line_number);
        }
        if tokens.is_empty() { Err(FileError::Empty) } else { Ok(TokenFile { tokens, has_secrets }) }
    }
}

/// What a digest in place of a token begins with.
const DIGEST: &str = "sha256:";

fn parse_line<'a>(first: &str, words: impl Iterator<Item = &'a str>) -> Result<TokenGrant, FileProblem> {
    let sha256 = match first.strip_prefix(DIGEST) {
        Some(hex) => parse_digest(hex).ok_or(FileProblem::Digest)?,
        None => {
            check_strength(first).map_err(FileProblem::Weak)?;
            Sha256::digest(first.as_bytes()).into()
        }
    };
    let (mut name, mut scopes, mut expires_at) = (None, None, None);
    for (index, word) in words.enumerate() {
        match word.split_once('=') {
            Some(("name", text)) => set("name", &mut name, parse_name(text)?)?,
            Some(("scope", text)) => set("scope", &mut scopes, text.parse::<Scopes>()?)?,
            Some(("expires", text)) => set("expires", &mut expires_at, parse_time(text)?)?,
            _ => return Err(FileProblem::Word(index + 2)),
        }
    }
    let name = name.unwrap_or_else(|| TokenGrant::default_name(&sha256));
    Ok(TokenGrant { name, sha256, scopes: scopes.unwrap_or_else(Scopes::all), expires_at })
}

fn set<T>(word: &'static str, slot: &mut Option<T>, value: T) -> Result<(), FileProblem> {
    match slot.replace(value) {
        None => Ok(()),
        Some(_) => Err(FileProblem::Twice(word)),
    }
}

/// Accepts names that cannot be mistaken for anything else in a log.
fn parse_name(text: &str) -> Result<String, FileProblem> {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-' | b'@');
    if (1..=MAX_NAME_LEN).contains(&text.len()) && text.bytes().all(is_plain) {
        Ok(text.to_owned())
    } else {
        Err(FileProblem::Name)
    }
}

fn parse_time(text: &str) -> Result<SystemTime, FileProblem> {
    OffsetDateTime::parse(text, &Rfc3339).map(SystemTime::from).map_err(|_| FileProblem::Expires)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;

    const TOKEN: &str = "rV7xq0Dk2mYw9ZsT4uJc1A";
    const OTHER: &str = "0f2a61c9d84be35770ac19e2f4d6b8a3";

    fn problem(text: &str) -> FileProblem {
        match TokenFile::parse(text) {
            Err(FileError::Line { problem, .. }) => problem,
            other => panic!("{text}: {other:?}"),
        }
    }

    #[test]
    fn lines_have_a_token_or_its_digest_and_what_it_may_do() {
        let digest: String = Sha256::digest(OTHER).iter().map(|byte| format!("{byte:02X}")).collect();
        let text = format!(
            "# comment\n\n  {TOKEN}\texpires=1970-01-01T01:00:01+01:00 name=ci scope=files:read=/srv,http \r\n#{TOKEN}\nsha256:{digest}"
        );
        let file = TokenFile::parse(&text).unwrap();
        let scopes = "files:read=/srv http".parse().unwrap();
        let expires_at = Some(SystemTime::UNIX_EPOCH + Duration::from_secs(1));
        let first = TokenGrant { expires_at, ..TokenGrant::new("ci", TOKEN, scopes) };
        let second = TokenGrant::new(digest[..8].to_lowercase(), OTHER, Scopes::all());
        assert_eq!(file, TokenFile { tokens: vec![first, second], has_secrets: true });
        assert!(!TokenFile::parse(&format!("sha256:{digest}")).unwrap().has_secrets);
    }

    #[test]
    fn a_line_that_is_not_understood_is_named_and_its_token_is_not_shown() {
        assert_eq!(problem(&format!("{TOKEN} name=a name=b")), FileProblem::Twice("name"));
        assert_eq!(problem(&format!("{TOKEN} name=a other")), FileProblem::Word(3));
        assert_eq!(problem(&format!("{TOKEN} scopes=all")), FileProblem::Word(2));
        assert_eq!(problem(&format!("{TOKEN} name=a\u{1b}[0m")), FileProblem::Name);
        assert_eq!(problem(&format!("{TOKEN} name=")), FileProblem::Name);
        assert_eq!(problem(&format!("{TOKEN} expires=tomorrow")), FileProblem::Expires);
        assert_eq!(problem("sha256:abc"), FileProblem::Digest);
        assert_eq!(problem(&format!("{TOKEN}\n\n{TOKEN} name=b")), FileProblem::Duplicate(1));
        let unknown = ScopeError::Unknown { word: "fly".to_owned() };
        assert_eq!(problem(&format!("{TOKEN} scope=http,fly")), FileProblem::Scope(unknown));
        assert_eq!(problem(&format!("{TOKEN} scope=")), FileProblem::Scope(ScopeError::Empty));
        for text in ["", "\n", "# nothing"] {
            assert_eq!(TokenFile::parse(text), Err(FileError::Empty));
        }
        let error = TokenFile::parse(&format!("{TOKEN}\nhunter2 name=me")).unwrap_err();
        assert!(error.hint().contains("remex token new"), "{}", error.hint());
        let error = error.to_string();
        assert!(error.starts_with("line 2: the token is weak: 7 characters"), "{error}");
        assert!(!error.contains("hunter2"), "{error}");
    }

    proptest! {
        #[test]
        fn any_text_is_a_token_file_or_an_error(text in "([ #\\n=:,]|name|sha256|scope|expires|all|rV7xq0Dk2mYw9ZsT4uJc1A|\\PC){0,20}") {
            if let Ok(file) = TokenFile::parse(&text) {
                prop_assert!(!file.tokens.is_empty());
            }
        }
    }
}
