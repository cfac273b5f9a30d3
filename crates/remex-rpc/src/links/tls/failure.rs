//! Why a TLS handshake failed.

use std::{fmt, io};

use rustls::{AlertDescription, CertificateError, Error, InvalidMessage, OtherError, PeerIncompatible};
use x509_parser::time::ASN1Time;

use super::Pin;

/// Why a client has no encrypted connection.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}; {}", self.message(), self.hint())]
pub enum TlsFailure {
    /// The server responded with something else.
    NotTls,
    /// The server closed the connection, as one without TLS does.
    Closed,
    /// The server supports neither version 1.2 nor 1.3.
    Version,
    /// The certificate has expired.
    Expired {
        /// When, in seconds since 1970.
        not_after: Option<u64>,
    },
    /// The certificate is not valid yet, or the clock of this host is slow.
    NotYetValid {
        /// When it becomes valid, in seconds since 1970.
        not_before: Option<u64>,
    },
    /// The certificate is for other names.
    WrongName {
        /// The name in the URL.
        expected: String,
        /// The names in the certificate.
        presented: Vec<String>,
    },
    /// The certificate is not signed by a CA that the client trusts.
    UnknownIssuer,
    /// The server uses the certificate of a CA as its own.
    IsAuthority,
    /// The server has another key.
    PinMismatch {
        /// The pin of the client.
        expected: Pin,
        /// The pin of the server.
        found: Pin,
    },
    /// The server requires a client certificate, and none was presented.
    CertificateRequired,
    /// The server refused the client certificate.
    CertificateRefused {
        /// The alert that it sent.
        alert: String,
    },
    /// The host of the URL cannot be in a certificate.
    Name(String),
    /// Anything else.
    Other(String),
}

/// The server has another key than expected; travels through rustls.
#[derive(Debug)]
pub(super) struct WrongKey {
    pub(super) expected: Pin,
    pub(super) found: Pin,
}

impl TlsFailure {
    /// Returns what failed and why, without what to do about it.
    pub fn message(&self) -> String {
        match self {
            Self::NotTls => "the server does not speak TLS on this port".to_owned(),
            Self::Closed => "the server closed the connection during the TLS handshake".to_owned(),
            Self::Version => "the server supports neither TLS 1.2 nor TLS 1.3".to_owned(),
            Self::Expired { not_after } => format!("the server certificate has expired{}", at(*not_after)),
            Self::NotYetValid { not_before } => {
                format!("the server certificate is not valid yet{}", at(*not_before))
            }
            Self::WrongName { expected, presented } => {
                format!("the server certificate is not for `{expected}`{}", names(presented))
            }
            Self::UnknownIssuer => "the server certificate is not signed by a trusted CA".to_owned(),
            Self::IsAuthority => "the server certificate is the certificate of a CA".to_owned(),
            Self::PinMismatch { expected, found } => {
                format!("the public key of the server is {found}, not the pinned {expected}")
            }
            Self::CertificateRequired => "the server requires a client certificate".to_owned(),
            Self::CertificateRefused { alert } => {
                format!("the server refused the client certificate ({alert})")
            }
            Self::Name(name) => format!("`{name}` cannot be the name in a certificate"),
            Self::Other(reason) => format!("the TLS handshake failed: {reason}"),
        }
    }

    /// Returns what to do about it.
    pub fn hint(&self) -> &'static str {
        match self {
            Self::NotTls => "use `ws://`, or check the port",
            Self::Closed => "check that it listens on `wss://`, and check its log",
            Self::Version => "enable TLS 1.2 or 1.3 on the server",
            Self::Expired { .. } => "renew it, or check the clock of this host",
            Self::NotYetValid { .. } => "check the clocks of both hosts",
            Self::WrongName { .. } => "use one of its names, or get a certificate for this name",
            Self::UnknownIssuer => "set the CA or the pin of the server",
            Self::IsAuthority => "set its pin instead of a CA, or sign a separate certificate for the server",
            Self::PinMismatch { .. } => {
                "change the pin if the server has a new key; otherwise another server responds at this address"
            }
            Self::CertificateRequired | Self::CertificateRefused { .. } => {
                "set a client certificate and its key"
            }
            Self::Name(_) => "use a DNS name or an IP address",
            Self::Other(_) => "check the log of the server",
        }
    }

    /// Returns why a handshake, or a stream after it, failed; `None` if the reason is not TLS.
    pub(crate) fn find(error: &io::Error) -> Option<Self> {
        error.get_ref()?.downcast_ref::<Error>().map(Self::from)
    }
}

impl From<&io::Error> for TlsFailure {
    fn from(error: &io::Error) -> Self {
        match (Self::find(error), error.kind()) {
            (Some(failure), _) => failure,
            (None, io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset) => Self::Closed,
            (None, _) => Self::Other(error.to_string()),
        }
    }
}

impl From<&Error> for TlsFailure {
    fn from(error: &Error) -> Self {
        match error {
            Error::InvalidMessage(InvalidMessage::InvalidContentType) => Self::NotTls,
            Error::PeerIncompatible(
                PeerIncompatible::ServerDoesNotSupportTls12Or13
                | PeerIncompatible::ServerTlsVersionIsDisabledByOurConfig,
            )
            | Error::AlertReceived(AlertDescription::ProtocolVersion)
            | Error::InvalidMessage(InvalidMessage::UnknownProtocolVersion) => Self::Version,
            Error::InvalidCertificate(error) => error.into(),
            Error::AlertReceived(AlertDescription::CertificateRequired) => Self::CertificateRequired,
            Error::AlertReceived(
                alert @ (AlertDescription::BadCertificate
                | AlertDescription::UnsupportedCertificate
                | AlertDescription::CertificateRevoked
                | AlertDescription::CertificateExpired
                | AlertDescription::CertificateUnknown
                | AlertDescription::UnknownCA
                | AlertDescription::AccessDenied
                | AlertDescription::DecryptError),
            ) => Self::CertificateRefused { alert: spelled(*alert) },
            Error::AlertReceived(alert) => {
                Self::Other(format!("the server sent the alert `{}`", spelled(*alert)))
            }
            other => Self::Other(other.to_string()),
        }
    }
}

impl From<&CertificateError> for TlsFailure {
    fn from(error: &CertificateError) -> Self {
        match error {
            CertificateError::Expired => Self::Expired { not_after: None },
            CertificateError::ExpiredContext { not_after, .. } => {
                Self::Expired { not_after: Some(not_after.as_secs()) }
            }
            CertificateError::NotValidYet => Self::NotYetValid { not_before: None },
            CertificateError::NotValidYetContext { not_before, .. } => {
                Self::NotYetValid { not_before: Some(not_before.as_secs()) }
            }
            CertificateError::NotValidForNameContext { expected, presented } => {
                let presented = presented.iter().map(|name| bare(name).to_owned()).collect();
                Self::WrongName { expected: expected.to_str().into_owned(), presented }
            }
            CertificateError::UnknownIssuer => Self::UnknownIssuer,
            CertificateError::Other(OtherError(inner)) => match inner.downcast_ref::<WrongKey>() {
                Some(WrongKey { expected, found }) => {
                    Self::PinMismatch { expected: *expected, found: *found }
                }
                // The text of a webpki error for which rustls has no variant.
                None if inner.to_string().contains("CaUsedAsEndEntity") => Self::IsAuthority,
                None => Self::Other(inner.to_string()),
            },
            other => Self::Other(format!("the server certificate is invalid: {other}")),
        }
    }
}

impl fmt::Display for WrongKey {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { expected, found } = self;
        write!(out, "the public key is {found}, not {expected}")
    }
}

impl std::error::Error for WrongKey {}

/// Writes the name of an alert in words.
fn spelled(alert: AlertDescription) -> String {
    let mut words = String::new();
    for letter in format!("{alert:?}").chars() {
        if letter.is_uppercase() && words.ends_with(|last: char| last.is_lowercase()) {
            words.push(' ');
        }
        words.extend(letter.to_lowercase());
    }
    words
}

/// Returns a name that rustls writes as `DnsName("name")`.
fn bare(name: &str) -> &str {
    let name = name.split_once('(').map_or(name, |(_, name)| name);
    name.trim_end_matches(')').trim_matches('"')
}

fn at(seconds: Option<u64>) -> String {
    let time = seconds.and_then(|seconds| ASN1Time::from_timestamp(seconds.try_into().ok()?).ok());
    time.map(|time| format!(" ({time})")).unwrap_or_default()
}

fn names(presented: &[String]) -> String {
    match presented {
        [] => ", and contains no name".to_owned(),
        names => format!(", but for {}", names.join(", ")),
    }
}
