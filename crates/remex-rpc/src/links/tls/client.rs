//! The client's side: how it verifies the server, and which certificate it presents.

use std::{
    path::PathBuf,
    sync::{Arc, Mutex},
};

use remex_base::lock;
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, Error, OtherError, RootCertStore, SignatureScheme,
    client::{
        WebPkiServerVerifier,
        danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    },
    crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature},
    pki_types::{CertificateDer, ServerName, UnixTime},
};
use tokio_rustls::TlsConnector;

use super::{
    HTTP, Pin, TlsError, TlsFailure, VERSIONS,
    failure::WrongKey,
    pem::{certificates, invalid, open_any, private_key, roots},
};
use crate::Stream;

/// How a client recognizes a server, and the files that it uses, in PEM format.
///
/// Without a CA and a pin, the CAs that the host trusts decide. A pin alone suffices: then neither the issuer nor the
/// name nor the dates of the certificate matter. With both, both must hold.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ClientFiles {
    /// The CAs that sign server certificates.
    pub ca: Option<PathBuf>,
    /// The public key of the server.
    pub pin: Option<Pin>,
    /// The client's own certificate, followed by those that link it to its CA, and its private key.
    pub identity: Option<(PathBuf, PathBuf)>,
}

/// Opens TLS connections.
#[derive(Debug, Clone)]
pub struct ClientTls(Arc<ClientConfig>);

impl ClientTls {
    /// Reads the files; blocks.
    ///
    /// # Errors
    ///
    /// If one of them is missing, malformed, or does not fit the others.
    pub fn load(files: &ClientFiles) -> Result<Self, TlsError> {
        let provider = Arc::new(ring::default_provider());
        let verifier = verifier(files, &provider)?;
        let builder = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&VERSIONS)
            .expect("the provider supports both versions")
            .dangerous()
            .with_custom_certificate_verifier(verifier);
        let mut config = match &files.identity {
            None => builder.with_no_client_auth(),
            Some((chain, key)) => builder
                .with_client_auth_cert(certificates(chain, open_any)?, private_key(key, open_any)?)
                .map_err(|error| invalid(key, &error))?,
        };
        config.alpn_protocols = vec![HTTP.to_vec()];
        Ok(ClientTls(Arc::new(config)))
    }

    /// Encrypts a fresh connection to `host`; waits as long as the server does.
    ///
    /// # Errors
    ///
    /// If the server is not who it has to be, or speaks no TLS. A server that refuses the client's certificate may say
    /// so only on the first read.
    pub async fn connect(&self, stream: Stream, host: &str) -> Result<Stream, TlsFailure> {
        // The zone of an IPv6 address is meaningful only on this host.
        let name = host.split('%').next().unwrap_or_default();
        let name = ServerName::try_from(name.to_owned()).map_err(|_| TlsFailure::Name(host.to_owned()))?;
        let connector = TlsConnector::from(Arc::clone(&self.0));
        match connector.connect(name, stream).await {
            Ok(stream) => Ok(Stream::new(stream)),
            Err(error) => Err(TlsFailure::from(&error)),
        }
    }
}

fn verifier(
    files: &ClientFiles,
    provider: &Arc<CryptoProvider>,
) -> Result<Arc<dyn ServerCertVerifier>, TlsError> {
    let given = match &files.ca {
        Some(path) => Some(chain_verifier(Arc::new(roots(path, open_any)?), provider)),
        None => None,
    };
    Ok(match (files.pin, given) {
        (Some(pin), chain) => Arc::new(PinVerifier { pin, chain, provider: Arc::clone(provider) }),
        (None, Some(chain)) => chain,
        (None, None) => chain_verifier(host_roots()?, provider),
    })
}

fn chain_verifier(roots: Arc<RootCertStore>, provider: &Arc<CryptoProvider>) -> Arc<WebPkiServerVerifier> {
    WebPkiServerVerifier::builder_with_provider(roots, Arc::clone(provider))
        .build()
        .expect("there are roots, and no revocation lists")
}

/// Returns the CAs that the host trusts, or those in `SSL_CERT_FILE` and `SSL_CERT_DIR`; read once.
fn host_roots() -> Result<Arc<RootCertStore>, TlsError> {
    // Shared by all connections of this process: hundreds of certificates are parsed.
    static ROOTS: Mutex<Option<Arc<RootCertStore>>> = Mutex::new(None);
    let mut known = lock(&ROOTS);
    if let Some(roots) = &*known {
        return Ok(Arc::clone(roots));
    }
    let mut roots = RootCertStore::empty();
    let found = rustls_native_certs::load_native_certs();
    for error in &found.errors {
        tracing::debug!(%error, "cannot read some root certificates");
    }
    roots.add_parsable_certificates(found.certs);
    if roots.is_empty() {
        return Err(TlsError::NoRoots);
    }
    Ok(Arc::clone(known.insert(Arc::new(roots))))
}

/// Accepts the server with one public key, and, with a chain, only if its CA, name and dates are right as well.
#[derive(Debug)]
struct PinVerifier {
    pin: Pin,
    chain: Option<Arc<WebPkiServerVerifier>>,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for PinVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        if let Some(chain) = &self.chain {
            chain.verify_server_cert(end_entity, intermediates, name, ocsp_response, now)?;
        }
        let found = Pin::of(end_entity).ok_or(CertificateError::BadEncoding)?;
        if found == self.pin {
            return Ok(ServerCertVerified::assertion());
        }
        let wrong = WrongKey { expected: self.pin, found };
        Err(CertificateError::Other(OtherError(Arc::new(wrong))).into())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls12_signature(message, certificate, signature, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signature, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}
