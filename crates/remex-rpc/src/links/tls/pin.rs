//! The digest of a public key, by which a server is recognized.

use std::{fmt, str::FromStr};

use base64::{Engine, prelude::BASE64_STANDARD};
use rustls::pki_types::CertificateDer;
use sha2::{Digest, Sha256};
use x509_parser::{certificate::X509Certificate, prelude::FromDer};

/// The SHA-256 digest of a public key (the DER form of its `SubjectPublicKeyInfo`).
///
/// A renewed certificate with the same key has the same pin. Written as `sha256:` and 64 hexadecimal digits; the
/// digits alone, and the form of `curl --pinnedpubkey`, are accepted as well.
///
/// ```
/// use remex_rpc::tls::Pin;
///
/// let pin: Pin = "sha256//AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=".parse()?;
/// assert_eq!(pin.to_string(), format!("sha256:{}", "00".repeat(32)));
/// # Ok::<(), remex_rpc::tls::InvalidPin>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Pin(pub [u8; 32]);

/// A text is not a valid [`Pin`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{}; {}", self.message(), self.hint())]
pub struct InvalidPin;

impl InvalidPin {
    /// Returns what is wrong, without what to do about it.
    ///
    /// ```
    /// use remex_rpc::tls::InvalidPin;
    ///
    /// assert_eq!(InvalidPin.message(), "it is not the SHA-256 digest of a public key");
    /// assert_eq!(InvalidPin.hint(), "write `sha256:` and 64 hexadecimal digits");
    /// ```
    pub fn message(self) -> &'static str {
        "it is not the SHA-256 digest of a public key"
    }

    /// Returns what to do about it.
    ///
    /// See [`InvalidPin::message`] for an example.
    pub fn hint(self) -> &'static str {
        "write `sha256:` and 64 hexadecimal digits"
    }
}

impl Pin {
    /// Returns the pin of a certificate's key; `None` if the certificate is malformed.
    pub fn of(certificate: &CertificateDer<'_>) -> Option<Self> {
        let (_, certificate) = X509Certificate::from_der(certificate).ok()?;
        Some(Self::of_key(certificate.public_key().raw))
    }

    /// Returns the pin of a public key in DER form.
    pub fn of_key(public_key: &[u8]) -> Self {
        Pin(Sha256::digest(public_key).into())
    }
}

impl fmt::Display for Pin {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("sha256:")?;
        self.0.iter().try_for_each(|byte| write!(out, "{byte:02x}"))
    }
}

impl FromStr for Pin {
    type Err = InvalidPin;

    fn from_str(text: &str) -> Result<Self, InvalidPin> {
        if let Some(base64) = text.strip_prefix("sha256//") {
            let digest = BASE64_STANDARD.decode(base64).map_err(|_| InvalidPin)?;
            return digest.try_into().map(Pin).map_err(|_| InvalidPin);
        }
        let digits = text.strip_prefix("sha256:").unwrap_or(text).as_bytes();
        let mut digest = [0; 32];
        if digits.len() != 2 * digest.len() || !digits.iter().all(u8::is_ascii_hexdigit) {
            return Err(InvalidPin);
        }
        let digit = |digit: u8| (digit as char).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
        for (byte, pair) in digest.iter_mut().zip(digits.chunks(2)) {
            *byte = digit(pair[0]).ok_or(InvalidPin)? << 4 | digit(pair[1]).ok_or(InvalidPin)?;
        }
        Ok(Pin(digest))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_form_of_a_pin_parses_to_the_same() {
        let mut digest = [0xab; 32];
        digest[0] = 0x01;
        let pin = Pin(digest);
        let hex = format!("01{}", "ab".repeat(31));
        let base64 = BASE64_STANDARD.encode(digest);
        for text in [
            pin.to_string(),
            hex.clone(),
            hex.to_uppercase(),
            format!("sha256:{hex}"),
            format!("sha256//{base64}"),
        ] {
            assert_eq!(text.parse(), Ok(pin), "{text}");
        }
    }

    #[test]
    fn other_texts_are_not_pins() {
        for text in
            ["", "sha256:", "sha1:00", "sha256//AAAA", &"0".repeat(63), &"0".repeat(65), &"é".repeat(32)]
        {
            assert_eq!(text.parse::<Pin>(), Err(InvalidPin), "{text}");
        }
    }
}
