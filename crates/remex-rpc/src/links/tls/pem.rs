//! Reads certificates and keys from files.

use std::{
    fs::File,
    io::{self, Read as _},
    path::Path,
};

use rustls::{
    RootCertStore,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
};

use super::TlsError;

/// The longest file, in bytes: that of a system with all its CAs has a few hundred KiB.
const MAX_FILE_LEN: u64 = 16 << 20;

/// Opens a file: [`open_any`], or a function that never blocks on a FIFO, such as `open_regular`.
pub(super) type Open = fn(&Path) -> io::Result<File>;

/// Opens a file of any kind, such as a pipe of the shell.
pub(super) fn open_any(path: &Path) -> io::Result<File> {
    File::open(path)
}

/// Reads all certificates of a file.
pub(super) fn certificates(path: &Path, open: Open) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let pem = read(path, open)?;
    let certificates: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&pem).collect();
    let certificates = certificates.map_err(|error| invalid(path, &error))?;
    if certificates.is_empty() {
        return Err(TlsError::Empty { path: path.to_owned(), what: "certificate" });
    }
    Ok(certificates)
}

/// Reads the first private key of a file.
pub(super) fn private_key(path: &Path, open: Open) -> Result<PrivateKeyDer<'static>, TlsError> {
    PrivateKeyDer::from_pem_slice(&read(path, open)?)
        .map_err(|_| TlsError::Empty { path: path.to_owned(), what: "private key" })
}

/// Reads a file of CAs.
pub(super) fn roots(path: &Path, open: Open) -> Result<RootCertStore, TlsError> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(path, open)? {
        roots.add(certificate).map_err(|error| invalid(path, &error))?;
    }
    Ok(roots)
}

pub(super) fn invalid(path: &Path, reason: &impl ToString) -> TlsError {
    TlsError::Invalid { path: path.to_owned(), reason: reason.to_string() }
}

fn read(path: &Path, open: Open) -> Result<Vec<u8>, TlsError> {
    let mut bytes = Vec::new();
    let read = open(path).and_then(|file| {
        let len = file.take(MAX_FILE_LEN + 1).read_to_end(&mut bytes)?;
        if len as u64 > MAX_FILE_LEN { Err(io::Error::other("it is longer than 16 MiB")) } else { Ok(()) }
    });
    match read {
        Ok(()) => Ok(bytes),
        Err(error) => Err(TlsError::Unreadable { path: path.to_owned(), error }),
    }
}
