//! How a client recognizes a server with TLS, and which certificate it presents.
//!
//! Versions 1.2 and 1.3 only. The files are read again for each connection, so that renewed certificates need no
//! restart. Start at [`TlsOptions`].

use std::path::PathBuf;

use remex_rpc::tls::{ClientFiles, ClientTls, TlsError};
pub use remex_rpc::tls::{InvalidPin, Pin};

/// How to recognize the server of a `wss://` URL, and which certificate to present to it.
///
/// By default the CAs that the host trusts decide (or those in `SSL_CERT_FILE` and `SSL_CERT_DIR`), and no certificate
/// is presented.
///
/// ```no_run
/// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use remex_client::{Client, WebSocket, tls::TlsOptions};
///
/// let tls = TlsOptions::new().ca("certs/ca.pem").identity("certs/me.pem", "certs/me.key");
/// let client = Client::connect(WebSocket::new("wss://build.example:4000").tls(tls).into()).await?;
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct TlsOptions {
    /// A PEM file with the CAs that may have signed the server's certificate, instead of those that the host trusts.
    pub ca: Option<PathBuf>,
    /// The public key that the server must have. Without `ca` it alone decides, whatever the issuer, name and dates of
    /// the certificate; with `ca` both must hold.
    pub pin: Option<Pin>,
    /// The certificate to present.
    pub identity: Option<Identity>,
}

/// A client certificate.
///
/// ```
/// use remex_client::tls::TlsOptions;
///
/// let options = TlsOptions::new().identity("me.pem", "me.key");
/// assert_eq!(options.identity.unwrap().key, std::path::Path::new("me.key"));
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Identity {
    /// A PEM file with the certificate, followed by those that link it to its CA.
    pub certificate: PathBuf,
    /// A PEM file with its private key.
    pub key: PathBuf,
}

impl TlsOptions {
    /// Returns the default options.
    ///
    /// ```
    /// use remex_client::tls::TlsOptions;
    ///
    /// assert_eq!(TlsOptions::new(), TlsOptions::default());
    /// ```
    pub fn new() -> Self {
        Self::default()
    }

    /// Trusts the CAs in this PEM file instead of those that the host trusts.
    ///
    /// ```
    /// let options = remex_client::tls::TlsOptions::new().ca("certs/ca.pem");
    /// assert!(options.ca.is_some());
    /// ```
    pub fn ca(mut self, path: impl Into<PathBuf>) -> Self {
        self.ca = Some(path.into());
        self
    }

    /// Accepts only this public key.
    ///
    /// ```
    /// use remex_client::tls::TlsOptions;
    ///
    /// let pin = "sha256:c0535e4be2b79ffd93291305436bf889314e4a3faec05ecffcbb7df31ad9e51a".parse()?;
    /// assert_eq!(TlsOptions::new().pin(pin).pin, Some(pin));
    /// # Ok::<(), remex_client::tls::InvalidPin>(())
    /// ```
    pub fn pin(mut self, pin: Pin) -> Self {
        self.pin = Some(pin);
        self
    }

    /// Presents the certificate and proves it with the key of these PEM files.
    ///
    /// ```
    /// let options = remex_client::tls::TlsOptions::new().identity("me.pem", "me.key");
    /// assert!(options.identity.is_some());
    /// ```
    pub fn identity(mut self, certificate: impl Into<PathBuf>, key: impl Into<PathBuf>) -> Self {
        self.identity = Some(Identity { certificate: certificate.into(), key: key.into() });
        self
    }

    /// Returns whether anything differs from the defaults.
    pub(crate) fn is_default(&self) -> bool {
        *self == Self::default()
    }

    /// Reads the files, without blocking the runtime.
    pub(crate) async fn load(&self) -> Result<ClientTls, TlsError> {
        let Self { ca, pin, identity } = self.clone();
        let identity = identity.map(|Identity { certificate, key }| (certificate, key));
        let files = ClientFiles { ca, pin, identity };
        match tokio::task::spawn_blocking(move || ClientTls::load(&files)).await {
            Ok(loaded) => loaded,
            Err(error) => std::panic::resume_unwind(error.into_panic()),
        }
    }
}
