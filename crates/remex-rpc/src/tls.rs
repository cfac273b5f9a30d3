//! TLS for WebSockets, with rustls.
//!
//! Start at [`ServerTls`].

mod certificate;
mod server;

use std::{io, path::PathBuf};

pub use certificate::PeerCertificate;
pub use server::{ServerFiles, ServerTls};

/// Why TLS cannot be set up.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file cannot be read.
    #[error("cannot read `{}`: {error}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// Why.
        error: io::Error,
    },
    /// A file has none of what it should have.
    #[error("`{}` contains no {what} in PEM format", path.display())]
    Empty {
        /// The file.
        path: PathBuf,
        /// What was expected, such as `certificate`.
        what: &'static str,
    },
    /// The contents of the files do not fit together or cannot be used.
    #[error("cannot use `{}`: {reason}", path.display())]
    Invalid {
        /// The file.
        path: PathBuf,
        /// Why.
        reason: String,
    },
}
