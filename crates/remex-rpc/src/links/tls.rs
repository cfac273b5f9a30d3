//! TLS for WebSockets, with rustls.
//!
//! Versions 1.2 and 1.3 only. Start at [`ServerTls`] for listeners, and at [`ClientTls`] for connections to them.

#[cfg(feature = "server")]
mod certificate;
mod client;
mod failure;
mod pem;
mod pin;
#[cfg(feature = "server")]
mod server;
mod validity;

use std::{io, path::PathBuf};

use rustls::{
    SupportedProtocolVersion,
    version::{TLS12, TLS13},
};

pub use client::{ClientFiles, ClientTls};
pub use failure::TlsFailure;
pub use pin::{InvalidPin, Pin};
#[cfg(feature = "server")]
pub use server::{NotEncrypted, Reloaded, ServerFiles, ServerTls};
pub use validity::Validity;

/// The protocol versions that are spoken.
const VERSIONS: [&SupportedProtocolVersion; 2] = [&TLS13, &TLS12];

/// The application protocol that is spoken within TLS.
const HTTP: &[u8] = b"http/1.1";

/// The type of the record that begins every TLS connection.
#[cfg(feature = "server")]
pub(crate) const HANDSHAKE_RECORD: u8 = 0x16;

/// Why TLS cannot be set up.
#[derive(Debug, thiserror::Error)]
#[error("{}; {}", self.message(), self.hint())]
pub enum TlsError {
    /// A file cannot be read.
    Unreadable {
        /// The file.
        path: PathBuf,
        /// Why.
        error: io::Error,
    },
    /// A file does not contain what it should.
    Empty {
        /// The file.
        path: PathBuf,
        /// What was expected, such as `certificate`.
        what: &'static str,
    },
    /// The contents of the files are invalid, or do not fit together.
    Invalid {
        /// The file.
        path: PathBuf,
        /// Why.
        reason: String,
    },
    /// Other users can change a file that decides who gets in.
    #[cfg(feature = "server")]
    Writable(remex_base::writers::OthersCanWrite),
    /// The host trusts no CA at all.
    NoRoots,
}

impl TlsError {
    /// Returns what failed and why, without what to do about it.
    pub fn message(&self) -> String {
        match self {
            Self::Unreadable { path, error } => format!("cannot read `{}`: {error}", path.display()),
            Self::Empty { path, what } => format!("`{}` contains no {what} in PEM format", path.display()),
            Self::Invalid { path, reason } => format!("cannot use `{}`: {reason}", path.display()),
            #[cfg(feature = "server")]
            Self::Writable(error) => error.to_string(),
            Self::NoRoots => "this host has no root certificates".to_owned(),
        }
    }

    /// Returns what to do about it.
    pub fn hint(&self) -> String {
        let hint = match self {
            Self::Unreadable { .. } => "check the path and its permissions",
            Self::Empty { .. } => "check that it is the right file",
            Self::Invalid { .. } => "check that the certificate and its key are valid and belong together",
            #[cfg(feature = "server")]
            Self::Writable(error) => return error.hint(),
            Self::NoRoots => "install `ca-certificates`, or set the CA or the pin of the server",
        };
        hint.to_owned()
    }
}
