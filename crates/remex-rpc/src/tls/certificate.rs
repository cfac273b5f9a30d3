//! What a certificate says about its owner.

use std::{
    path::Path,
    time::{Duration, SystemTime},
};

use rustls::pki_types::CertificateDer;
use x509_parser::{
    certificate::X509Certificate,
    extensions::GeneralName,
    prelude::{FromDer, ParsedExtension},
};

use super::{Pin, TlsError, pem};

/// The verified certificate of a peer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PeerCertificate {
    /// Its SPIFFE URI, DNS name or common name, in that order of preference.
    pub name: String,
    /// The SHA-256 digest of its public key, as `openssl pkey -pubin -outform DER | sha256sum` prints it.
    pub key_sha256: [u8; 32],
    /// When it expires.
    pub expires_at: SystemTime,
}

impl PeerCertificate {
    /// Reads a certificate; returns `None` if it is malformed or names nobody.
    pub fn parse(der: &CertificateDer<'_>) -> Option<Self> {
        let (_, certificate) = X509Certificate::from_der(der).ok()?;
        let Pin(key_sha256) = Pin::of_key(certificate.public_key().raw);
        let names = alternative_names(&certificate);
        let spiffe = names.iter().find_map(|name| match name {
            GeneralName::URI(uri) if uri.starts_with("spiffe://") => Some((*uri).to_owned()),
            _ => None,
        });
        let dns = names.iter().find_map(|name| match name {
            GeneralName::DNSName(dns) => Some((*dns).to_owned()),
            _ => None,
        });
        let common = || certificate.subject().iter_common_name().next()?.as_str().ok().map(str::to_owned);
        let name = spiffe.or(dns).or_else(common).filter(|name| !name.is_empty())?;
        let not_after = u64::try_from(certificate.validity().not_after.timestamp()).unwrap_or_default();
        let expires_at = SystemTime::UNIX_EPOCH + Duration::from_secs(not_after);
        Some(PeerCertificate { name, key_sha256, expires_at })
    }
}

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

/// Returns the DNS names of a certificate.
#[cfg(feature = "server")]
pub(super) fn dns_names(der: &CertificateDer<'_>) -> Vec<String> {
    let Ok((_, certificate)) = X509Certificate::from_der(der) else { return Vec::new() };
    let names = alternative_names(&certificate).into_iter().filter_map(|name| match name {
        GeneralName::DNSName(dns) => Some((*dns).to_owned()),
        _ => None,
    });
    names.collect()
}

fn alternative_names<'a>(certificate: &'a X509Certificate<'a>) -> Vec<&'a GeneralName<'a>> {
    let names = certificate.extensions().iter().filter_map(|extension| match extension.parsed_extension() {
        ParsedExtension::SubjectAlternativeName(names) => Some(&names.general_names),
        _ => None,
    });
    names.flatten().collect()
}
