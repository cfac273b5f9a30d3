//! Reads certificates and keys from files.

use std::{fs, path::Path};

use rustls::{
    RootCertStore,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
};

use super::TlsError;

/// Reads all certificates of a file.
pub(super) fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let pem = read(path)?;
    let certificates: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&pem).collect();
    let certificates = certificates.map_err(|error| invalid(path, &error))?;
    if certificates.is_empty() {
        return Err(TlsError::Empty { path: path.to_owned(), what: "certificate" });
    }
    Ok(certificates)
}

/// Reads the first private key of a file.
pub(super) fn private_key(path: &Path) -> Result<PrivateKeyDer<'static>, TlsError> {
    PrivateKeyDer::from_pem_slice(&read(path)?)
        .map_err(|_| TlsError::Empty { path: path.to_owned(), what: "private key" })
}

/// Reads a file of CAs.
pub(super) fn roots(path: &Path) -> Result<RootCertStore, TlsError> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(path)? {
        roots.add(certificate).map_err(|error| invalid(path, &error))?;
    }
    Ok(roots)
}

pub(super) fn invalid(path: &Path, reason: &impl ToString) -> TlsError {
    TlsError::Invalid { path: path.to_owned(), reason: reason.to_string() }
}

fn read(path: &Path) -> Result<Vec<u8>, TlsError> {
    fs::read(path).map_err(|error| TlsError::Unreadable { path: path.to_owned(), error })
}
