//! Definitions of environments, before any connection is made.
//!
//! Start at [`Definitions`].

use std::time::Duration;

use super::{Id, InvalidVariable};
use crate::{Error, Target, base::url::without_user};

/// The definition of one environment: its id, and the address of its server.
///
/// ```
/// use std::time::Duration;
/// use remex_client::{Target, environment::{Definition, Id}};
///
/// let build = Definition::new(Id::new("build")?, Target::parse("ws://build.example:4000")?)
///     .connect_timeout(Duration::from_secs(30))
///     .initialize_timeout(Duration::from_secs(5))
///     .reconnect_timeout(Duration::from_secs(3600));
/// assert!(!build.id.is_reserved());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Definition {
    /// Its name; neither `local` nor `none`.
    pub id: Id,
    /// The address of its server, with the token to present.
    pub target: Target,
    /// Timeout for connecting, if the definition sets one.
    pub connect_timeout: Option<Duration>,
    /// Timeout for the handshake, if the definition sets one.
    pub initialize_timeout: Option<Duration>,
    /// How long to try to reconnect after a disconnect, if the definition says so; [`Duration::MAX`] is forever.
    ///
    /// Sessions live as long without a connection, if the server lets them.
    pub reconnect_timeout: Option<Duration>,
}

impl Definition {
    /// Creates a definition without timeouts of its own.
    ///
    /// See [`Definition`] for an example.
    #[must_use]
    pub fn new(id: Id, target: Target) -> Self {
        Self { id, target, connect_timeout: None, initialize_timeout: None, reconnect_timeout: None }
    }

    /// Sets the timeout for connecting: [`Definition::connect_timeout`](Definition#structfield.connect_timeout).
    ///
    /// See [`Definition`] for an example.
    #[must_use]
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.connect_timeout = Some(timeout);
        self
    }

    /// Sets the timeout for the handshake:
    /// [`Definition::initialize_timeout`](Definition#structfield.initialize_timeout).
    ///
    /// See [`Definition`] for an example.
    #[must_use]
    pub fn initialize_timeout(mut self, timeout: Duration) -> Self {
        self.initialize_timeout = Some(timeout);
        self
    }

    /// Sets how long to try to reconnect: [`Definition::reconnect_timeout`](Definition#structfield.reconnect_timeout).
    ///
    /// See [`Definition`] for an example.
    #[must_use]
    pub fn reconnect_timeout(mut self, timeout: Duration) -> Self {
        self.reconnect_timeout = Some(timeout);
        self
    }
}

/// All defined environments.
///
/// They come from a file ([`Definitions::parse`]) or from a variable ([`Definitions::from_url`]); others begin with
/// [`Definitions::local`] or [`Definitions::nothing`].
///
/// ```
/// use remex_client::environment::{Definitions, LocalInclusion};
///
/// let definitions = Definitions::from_url(Some("/run/remex.sock"), "REMEX_URL")?;
/// assert_eq!((definitions.environments.len(), definitions.local), (1, LocalInclusion::Included));
/// # Ok::<(), remex_client::environment::InvalidVariable>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Definitions {
    /// The environment to use if none is specified: one of `environments`, `local`, or none.
    pub default: Option<Id>,
    /// Whether `local` is included.
    pub local: LocalInclusion,
    /// The other environments; ids are unique.
    pub environments: Vec<Definition>,
}

/// Whether this host is an environment.
///
/// ```
/// use std::path::Path;
/// use remex_client::environment::{Definitions, LocalInclusion};
///
/// let draft = Definitions::parse("include_local = false", Path::new("environments.toml")).unwrap();
/// let definitions = draft.with_tokens(|path| Ok(std::fs::read_to_string(path)?)).unwrap();
/// assert_eq!(definitions.local, LocalInclusion::Excluded);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum LocalInclusion {
    /// It is, with the id `local`.
    Included,
    /// It is not.
    Excluded,
}

impl Definitions {
    /// Returns `local` alone, as the default: used when nothing is configured.
    ///
    /// ```
    /// use remex_client::environment::{Definitions, Id};
    ///
    /// assert_eq!(Definitions::local().default, Some(Id::local()));
    /// ```
    pub fn local() -> Self {
        Self { default: Some(Id::local()), local: LocalInclusion::Included, environments: Vec::new() }
    }

    /// Returns no environment at all.
    ///
    /// ```
    /// use remex_client::environment::{Definitions, LocalInclusion};
    ///
    /// assert_eq!(Definitions::nothing().local, LocalInclusion::Excluded);
    /// ```
    pub fn nothing() -> Self {
        Self { default: None, local: LocalInclusion::Excluded, environments: Vec::new() }
    }

    /// Parses the value of a variable such as `REMEX_URL` or `CODEX_EXEC_SERVER_URL`.
    ///
    /// - absent or empty: `local` alone;
    /// - `none`, ignoring case: no environments;
    /// - an address as [`Target::parse`] takes it: `remote`, which is the default, and `local`.
    ///
    /// # Errors
    ///
    /// [`InvalidVariable`] names the variable, and what is wrong with its value.
    ///
    /// ```
    /// use remex_client::environment::Definitions;
    ///
    /// let remote = Definitions::from_url(Some("ws://127.0.0.1:4000"), "REMEX_URL").unwrap();
    /// assert_eq!(remote.default.unwrap().as_str(), "remote");
    /// assert_eq!(Definitions::from_url(Some("none"), "REMEX_URL"), Ok(Definitions::nothing()));
    /// assert_eq!(Definitions::from_url(None, "REMEX_URL"), Ok(Definitions::local()));
    /// ```
    pub fn from_url(value: Option<&str>, variable: &str) -> Result<Self, InvalidVariable> {
        let value = value.unwrap_or_default().trim();
        if value.is_empty() {
            return Ok(Self::local());
        }
        if value.eq_ignore_ascii_case("none") {
            return Ok(Self::nothing());
        }
        let target = Target::parse(value).map_err(|error| {
            let (reason, hint) = reason_and_hint(error);
            InvalidVariable { variable: variable.to_owned(), value: without_user(value), reason, hint }
        })?;
        let remote = Definition::new(Id::remote(), target);
        Ok(Self { default: Some(Id::remote()), local: LocalInclusion::Included, environments: vec![remote] })
    }

    /// Returns the definition with this id; `None` for `local` and for unknown ids.
    ///
    /// ```
    /// use remex_client::environment::{Definitions, Id};
    ///
    /// let definitions = Definitions::from_url(Some("/run/remex.sock"), "REMEX_URL").unwrap();
    /// let remote = definitions.find(&Id::new("remote").unwrap()).unwrap();
    /// assert_eq!(remote.target.to_string(), "unix:///run/remex.sock");
    /// ```
    pub fn find(&self, id: &Id) -> Option<&Definition> {
        self.environments.iter().find(|definition| definition.id == *id)
    }
}

/// Returns what is wrong with an address and what is valid, without the address, because that may contain a password.
pub(super) fn reason_and_hint(error: Error) -> (String, String) {
    match error {
        Error::Address { reason, hint, .. } => (reason, hint),
        other => (other.message(), other.hint().unwrap_or_default().to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_variable_selects_local_remote_or_none() {
        let read = |value| Definitions::from_url(value, "REMEX_URL");
        for absent in [None, Some(""), Some("  ")] {
            assert_eq!(read(absent), Ok(Definitions::local()));
        }
        for none in ["none", "None", " NONE\n"] {
            assert_eq!(read(Some(none)), Ok(Definitions::nothing()));
        }
        let remote = Definition {
            id: Id::new("remote").unwrap(),
            target: Target::unix("/run/remex.sock"),
            connect_timeout: None,
            reconnect_timeout: None,
            initialize_timeout: None,
        };
        assert_eq!(
            read(Some(" /run/remex.sock ")),
            Ok(Definitions {
                default: Some(remote.id.clone()),
                local: LocalInclusion::Included,
                environments: vec![remote]
            })
        );
    }

    #[test]
    fn a_bad_value_is_named_with_its_variable_and_without_its_password() {
        let read =
            |value| Definitions::from_url(Some(value), "CODEX_EXEC_SERVER_URL").unwrap_err().to_string();
        assert_eq!(
            read("ftp://host"),
            "CODEX_EXEC_SERVER_URL: cannot use `ftp://host` as a server: not a server address; use `ws://host:port`, `wss://host:port`, `ssh://host`, `unix:///path` or `/path`"
        );
        assert_eq!(
            read("ws://me:secret@host"),
            "CODEX_EXEC_SERVER_URL: cannot use `ws://…@host` as a server: it contains a user name, which `ws://` does not use; write `ws://host:port` or `wss://host:port`"
        );
    }
}
