//! Errors of the system within ours.

use std::{fmt, io, ops::Deref, sync::Arc};

/// A failure of the operating system behind an [`Error`](crate::Error), as an [`io::Error`] that can be cloned and compared.
///
/// ```
/// use remex_client::Cause;
/// use std::io;
///
/// let cause = Cause::from(io::Error::from(io::ErrorKind::NotFound));
/// assert_eq!(cause.kind(), io::ErrorKind::NotFound);
/// assert_eq!(cause, cause.clone());
/// ```
#[derive(Debug, Clone)]
pub struct Cause(pub(super) Arc<io::Error>);

impl Deref for Cause {
    type Target = io::Error;

    fn deref(&self) -> &io::Error {
        &self.0
    }
}

impl From<io::Error> for Cause {
    fn from(error: io::Error) -> Self {
        Self(Arc::new(error))
    }
}

/// Two are equal if they have the same kind and the same text.
impl PartialEq for Cause {
    fn eq(&self, other: &Self) -> bool {
        self.kind() == other.kind() && self.to_string() == other.to_string()
    }
}

impl Eq for Cause {}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
