//! When certificates are valid.

use std::path::Path;

use x509_parser::{certificate::X509Certificate, prelude::FromDer};

use super::{TlsError, pem};

/// When a certificate is valid, in seconds since 1970.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Validity {
    /// From when.
    pub not_before: i64,
    /// Until when.
    pub not_after: i64,
}

impl Validity {
    /// Returns the time in which all certificates of a PEM file are valid; blocks.
    ///
    /// # Errors
    ///
    /// If the file cannot be read, or has no valid certificates.
    pub fn of_file(path: &Path) -> Result<Self, TlsError> {
        let mut validity = Validity { not_before: i64::MIN, not_after: i64::MAX };
        for der in pem::certificates(path, pem::open_any)? {
            let (_, certificate) =
                X509Certificate::from_der(&der).map_err(|error| pem::invalid(path, &error))?;
            let dates = certificate.validity();
            validity.not_before = validity.not_before.max(dates.not_before.timestamp());
            validity.not_after = validity.not_after.min(dates.not_after.timestamp());
        }
        Ok(validity)
    }
}
