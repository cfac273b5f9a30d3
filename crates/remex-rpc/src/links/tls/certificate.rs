//! Reads the names in a certificate.

use std::time::{Duration, SystemTime};

use remex_base::certificate::{CertificateName, PeerCertificate};
use rustls::pki_types::CertificateDer;
use x509_parser::{
    certificate::X509Certificate,
    extensions::GeneralName,
    prelude::{FromDer, ParsedExtension},
};

use super::Pin;

/// Reads a verified certificate; returns `None` if it is malformed or has no name.
pub(super) fn peer(der: &CertificateDer<'_>) -> Option<PeerCertificate> {
    let (_, certificate) = X509Certificate::from_der(der).ok()?;
    let Pin(key_sha256) = Pin::of_key(certificate.public_key().raw);
    let names = alternative_names(&certificate);
    let spiffe = names.iter().find_map(|name| match name {
        GeneralName::URI(uri) => CertificateName::spiffe(uri),
        _ => None,
    });
    let dns = names.iter().find_map(|name| match name {
        GeneralName::DNSName(dns) => Some(CertificateName::dns(dns)),
        _ => None,
    });
    let common = || {
        let name = certificate.subject().iter_common_name().next()?.as_str().ok()?;
        Some(CertificateName::Common(name.into()))
    };
    let name = spiffe.or(dns).or_else(common).filter(|name| !name.text().is_empty())?;
    let not_after = u64::try_from(certificate.validity().not_after.timestamp()).unwrap_or_default();
    let expires_at = SystemTime::UNIX_EPOCH + Duration::from_secs(not_after);
    Some(PeerCertificate { name, key_sha256, expires_at })
}

/// Returns the DNS names of a certificate.
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
