//! The id of an environment.
//!
//! Start at [`Id`].

use std::{fmt, str::FromStr};

/// The id of an environment: 1 to 64 ASCII letters, digits, `-` and `_`.
///
/// `local` is this host. A definition can use neither that id nor `none`.
///
/// ```
/// use remex_client::environment::{Id, InvalidId};
///
/// assert_eq!(Id::new("build-7").unwrap().as_str(), "build-7");
/// assert_eq!(Id::new("a b"), Err(InvalidId::Characters));
/// assert!(Id::local().is_reserved());
/// ```
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Id(String);

/// Why a text is not a valid [`Id`].
///
/// ```
/// use remex_client::environment::{Id, InvalidId};
///
/// assert_eq!(Id::new(""), Err(InvalidId::Empty));
/// assert_eq!(Id::new("x".repeat(65)), Err(InvalidId::TooLong));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[error("{}; {}", self.message(), self.hint())]
pub enum InvalidId {
    /// It is empty.
    Empty,
    /// It is too long.
    TooLong,
    /// It contains an invalid character.
    Characters,
}

impl InvalidId {
    /// Returns what is wrong, without what to do about it.
    ///
    /// ```
    /// use remex_client::environment::InvalidId;
    ///
    /// assert_eq!(InvalidId::TooLong.message(), "the id is longer than 64 characters");
    /// assert_eq!(InvalidId::TooLong.hint(), "shorten it");
    /// ```
    pub fn message(self) -> String {
        match self {
            Self::Empty => "the id is empty".to_owned(),
            Self::TooLong => format!("the id is longer than {} characters", Id::MAX_LEN),
            Self::Characters => "an id may contain only ASCII letters, digits, `-` and `_`".to_owned(),
        }
    }

    /// Returns what to do about it.
    ///
    /// See [`InvalidId::message`] for an example.
    pub fn hint(self) -> &'static str {
        match self {
            Self::Empty => "choose a name",
            Self::TooLong => "shorten it",
            Self::Characters => "rename it",
        }
    }
}

impl Id {
    /// The maximum length, in bytes.
    pub const MAX_LEN: usize = 64;

    /// Validates an id.
    ///
    /// # Errors
    ///
    /// [`InvalidId`] when it is not 1 to 64 ASCII letters, digits, `-` and `_`.
    ///
    /// ```
    /// use remex_client::environment::Id;
    ///
    /// assert_eq!(Id::new("build-7")?.to_string(), "build-7");
    /// # Ok::<(), remex_client::environment::InvalidId>(())
    /// ```
    pub fn new(text: impl Into<String>) -> Result<Self, InvalidId> {
        let text = text.into();
        if text.is_empty() {
            return Err(InvalidId::Empty);
        }
        if !text.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_')) {
            return Err(InvalidId::Characters);
        }
        if text.len() > Self::MAX_LEN {
            return Err(InvalidId::TooLong);
        }
        Ok(Self(text))
    }

    /// Returns `local`, the id of this host.
    pub fn local() -> Self {
        Self("local".to_owned())
    }

    /// Returns `remote`, the id of an environment that is defined by a variable.
    pub(crate) fn remote() -> Self {
        Self("remote".to_owned())
    }

    /// Returns whether it is reserved: `local` or `none`.
    pub fn is_reserved(&self) -> bool {
        matches!(self.as_str(), "local" | "none")
    }

    /// Returns the text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for Id {
    type Err = InvalidId;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::new(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_has_1_to_64_plain_characters() {
        let longest = "x".repeat(64);
        for good in ["a", "Z-9_", "local", &longest] {
            assert_eq!(Id::new(good).map(|id| id.to_string()), Ok(good.to_owned()));
        }
        assert_eq!(Id::new(""), Err(InvalidId::Empty));
        assert_eq!(Id::new("x".repeat(65)), Err(InvalidId::TooLong));
        for bad in ["a b", "a.b", "ä", "a/b", "a\n", "\0"] {
            assert_eq!(Id::new(bad), Err(InvalidId::Characters), "{bad:?}");
        }
    }
}
