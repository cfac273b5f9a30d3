//! The server's side: a certificate that is reloaded when its files change, and client certificates.

use std::{
    fs, io,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
};

use rustls::{
    RootCertStore, ServerConfig,
    crypto::ring,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
    server::WebPkiClientVerifier,
};
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;

use super::{PeerCertificate, TlsError, certificate};
use crate::Stream;

/// The files that a TLS listener uses, in PEM format.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerFiles {
    /// The certificate of the server, followed by those that link it to its CA.
    pub certificate: PathBuf,
    /// Its private key.
    pub key: PathBuf,
    /// The CAs that sign client certificates; with them, every client must present one.
    pub client_ca: Option<PathBuf>,
}

/// Accepts TLS connections with the newest contents of its files.
#[derive(Debug)]
pub struct ServerTls {
    files: ServerFiles,
    /// Replaced as a whole on a reload; connections keep the one they started with.
    loaded: Mutex<Arc<Loaded>>,
}

#[derive(Debug)]
struct Loaded {
    config: Arc<ServerConfig>,
    names: Arc<[String]>,
    versions: Vec<Option<Version>>,
}

/// Which version of a file was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Version {
    inode: u64,
    len: u64,
    modified_ns: (i64, i64),
}

impl ServerTls {
    /// Loads the files.
    ///
    /// # Errors
    ///
    /// If one of them is missing, malformed, or does not fit the others.
    pub fn load(files: ServerFiles) -> Result<Self, TlsError> {
        let loaded = Mutex::new(Arc::new(files.load()?));
        Ok(ServerTls { files, loaded })
    }

    /// Loads the files again if they have changed; returns whether they had.
    ///
    /// # Errors
    ///
    /// Like [`ServerTls::load`]; the previous contents stay in use.
    pub fn reload(&self) -> Result<bool, TlsError> {
        if self.files.versions() == self.loaded().versions {
            return Ok(false);
        }
        let loaded = Arc::new(self.files.load()?);
        *self.loaded.lock().unwrap_or_else(PoisonError::into_inner) = loaded;
        Ok(true)
    }

    /// Returns the DNS names of the certificate.
    pub fn names(&self) -> Arc<[String]> {
        Arc::clone(&self.loaded().names)
    }

    /// Encrypts a fresh connection; waits as long as the peer does.
    ///
    /// # Errors
    ///
    /// If the peer speaks no TLS or presents no valid certificate where one is required.
    pub async fn accept(&self, stream: TcpStream) -> io::Result<(Stream, Option<PeerCertificate>)> {
        let acceptor = TlsAcceptor::from(Arc::clone(&self.loaded().config));
        let stream = acceptor.accept(stream).await?;
        let presented = stream.get_ref().1.peer_certificates().and_then(<[_]>::first);
        let certificate = match presented {
            None => None,
            Some(der) => Some(PeerCertificate::parse(der).ok_or_else(|| {
                io::Error::new(io::ErrorKind::InvalidData, "the client certificate contains no name")
            })?),
        };
        Ok((tokio_rustls::TlsStream::from(stream).into(), certificate))
    }

    fn loaded(&self) -> Arc<Loaded> {
        Arc::clone(&self.loaded.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl ServerFiles {
    fn load(&self) -> Result<Loaded, TlsError> {
        // Taken first: a change while the files are read is noticed next time.
        let versions = self.versions();
        let chain = certificates(&self.certificate)?;
        let names = chain.first().map(certificate::dns_names).unwrap_or_default().into();
        let key = private_key(&self.key)?;
        let provider = Arc::new(ring::default_provider());
        let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .expect("the provider supports the default protocol versions");
        let builder = match &self.client_ca {
            None => builder.with_no_client_auth(),
            Some(path) => {
                let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots(path)?), provider);
                builder.with_client_cert_verifier(verifier.build().map_err(|error| invalid(path, &error))?)
            }
        };
        let config = builder.with_single_cert(chain, key).map_err(|error| invalid(&self.key, &error))?;
        Ok(Loaded { config: Arc::new(config), names, versions })
    }

    fn versions(&self) -> Vec<Option<Version>> {
        let files = [Some(&self.certificate), Some(&self.key), self.client_ca.as_ref()];
        files.into_iter().flatten().map(|path| Version::of(path)).collect()
    }
}

impl Version {
    fn of(path: &Path) -> Option<Self> {
        let metadata = fs::metadata(path).ok()?;
        let modified_ns = (metadata.mtime(), metadata.mtime_nsec());
        Some(Version { inode: metadata.ino(), len: metadata.len(), modified_ns })
    }
}

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

fn read(path: &Path) -> Result<Vec<u8>, TlsError> {
    fs::read(path).map_err(|error| TlsError::Unreadable { path: path.to_owned(), error })
}

fn invalid(path: &Path, reason: &impl ToString) -> TlsError {
    TlsError::Invalid { path: path.to_owned(), reason: reason.to_string() }
}
