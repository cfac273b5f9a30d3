//! The names and the key in a certificate.

use std::{fmt, str::FromStr, sync::Arc, time::SystemTime};

/// How a SPIFFE URI begins.
const SPIFFE: &str = "spiffe://";

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

/// A name in a certificate. Names of different kinds are never the same: a CA that may sign only some DNS names can
/// still write anything into a common name.
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
    /// Returns the name for a URI, if it is a SPIFFE URI.
    pub fn spiffe(uri: &str) -> Option<Self> {
        uri.starts_with(SPIFFE).then(|| CertificateName::Uri(uri.into()))
    }

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

/// Why a text is not the name of a certificate with its kind.
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
    /// use remex_base::certificate::CertificateName;
    ///
    /// assert_eq!("dns:Ann.example".parse(), Ok(CertificateName::Dns("ann.example".into())));
    /// assert_eq!("spiffe://example.com/ci".parse(), "uri:spiffe://example.com/ci".parse::<CertificateName>());
    /// assert!("ann".parse::<CertificateName>().is_err());
    /// ```
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if let Some(name) = CertificateName::spiffe(text) {
            return Ok(name);
        }
        match text.split_once(':') {
            Some(("dns" | "uri" | "cn", "")) => Err(InvalidCertificateName::Empty),
            Some(("dns", name)) => Ok(CertificateName::dns(name)),
            Some(("cn", name)) => Ok(CertificateName::Common(name.into())),
            Some(("uri", uri)) => CertificateName::spiffe(uri).ok_or(InvalidCertificateName::OtherUri),
            _ => Err(InvalidCertificateName::Untyped(text.to_owned())),
        }
    }
}
