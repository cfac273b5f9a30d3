//! What a certificate says about its owner.

use std::{
    fmt,
    path::Path,
    str::FromStr,
    sync::Arc,
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
    pub name: CertificateName,
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
            GeneralName::URI(uri) if uri.starts_with(SPIFFE) => Some(CertificateName::Uri((*uri).into())),
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
}

/// How a SPIFFE URI begins.
const SPIFFE: &str = "spiffe://";

/// A name in a certificate. Names of different kinds are never the same: a CA that may sign only some DNS names can still
/// write anything into a common name.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum CertificateName {
    /// A SPIFFE URI among the alternative names.
    Uri(Arc<str>),
    /// A DNS name among the alternative names, in lower case.
    Dns(Arc<str>),
    /// The common name of the subject, which name constraints of CAs do not cover.
    Common(Arc<str>),
}

impl CertificateName {
    /// Returns a DNS name, which is the same in upper and lower case.
    pub fn dns(name: &str) -> Self {
        CertificateName::Dns(name.to_ascii_lowercase().into())
    }

    /// Returns the name without its kind.
    pub fn text(&self) -> &str {
        match self {
            CertificateName::Uri(text) | CertificateName::Dns(text) | CertificateName::Common(text) => text,
        }
    }
}

impl fmt::Display for CertificateName {
    /// Writes the kind and the name, such as `dns:ann.example`.
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self {
            CertificateName::Uri(_) => "uri",
            CertificateName::Dns(_) => "dns",
            CertificateName::Common(_) => "cn",
        };
        write!(out, "{kind}:{}", self.text())
    }
}

/// A text that is no name of a certificate with its kind.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}; {}", self.message(), self.hint())]
pub enum InvalidCertificateName {
    /// The kind is missing.
    Untyped(String),
    /// There is nothing after the kind.
    Empty,
    /// A URI that is none of SPIFFE; others do not count.
    OtherUri,
}

impl InvalidCertificateName {
    /// Returns what is wrong, in words that follow the text.
    pub fn message(&self) -> &'static str {
        match self {
            InvalidCertificateName::Untyped(_) => "it does not say which kind of name it is",
            InvalidCertificateName::Empty => "there is no name after the kind",
            InvalidCertificateName::OtherUri => "it is not a SPIFFE URI, and other URIs do not count",
        }
    }

    /// Returns what to do about it.
    pub fn hint(&self) -> String {
        match self {
            InvalidCertificateName::Untyped(name) => {
                format!("write `dns:{name}`, `uri:spiffe://…` or `cn:{name}`, as the certificate has it")
            }
            InvalidCertificateName::Empty => "write `dns:NAME`, `uri:spiffe://…` or `cn:NAME`".to_owned(),
            InvalidCertificateName::OtherUri => "write `uri:spiffe://domain/path`".to_owned(),
        }
    }
}

impl FromStr for CertificateName {
    type Err = InvalidCertificateName;

    /// Reads what [`Display`](fmt::Display) writes, and a SPIFFE URI alone.
    ///
    /// ```
    /// use remex_rpc::tls::CertificateName;
    ///
    /// assert_eq!("dns:Ann.example".parse(), Ok(CertificateName::Dns("ann.example".into())));
    /// assert_eq!("spiffe://example.com/ci".parse(), "uri:spiffe://example.com/ci".parse::<CertificateName>());
    /// assert!("ann".parse::<CertificateName>().is_err());
    /// ```
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text.starts_with(SPIFFE) {
            return Ok(CertificateName::Uri(text.into()));
        }
        match text.split_once(':') {
            Some(("dns" | "uri" | "cn", "")) => Err(InvalidCertificateName::Empty),
            Some(("dns", name)) => Ok(CertificateName::dns(name)),
            Some(("cn", name)) => Ok(CertificateName::Common(name.into())),
            Some(("uri", uri)) if uri.starts_with(SPIFFE) => Ok(CertificateName::Uri(uri.into())),
            Some(("uri", _)) => Err(InvalidCertificateName::OtherUri),
            _ => Err(InvalidCertificateName::Untyped(text.to_owned())),
        }
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
