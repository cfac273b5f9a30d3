//! The server's side: a certificate that is reloaded when its files change, and client certificates.

use std::{
    fs, io,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use rustls::{ServerConfig, crypto::ring, server::WebPkiClientVerifier};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::timeout,
};
use tokio_rustls::TlsAcceptor;

use super::{
    HANDSHAKE_RECORD, HTTP, PeerCertificate, TlsError, TlsFailure, VERSIONS, certificate,
    pem::{Open, certificates, invalid, open_any, private_key, roots},
};
use crate::{Stream, open_regular};

/// How long a refused peer may take to read why.
const GOODBYE_TIMEOUT: Duration = Duration::from_secs(1);

/// How much of a refused peer's bytes is read, so that it is not reset before it has read why.
const UNREAD_BYTES: usize = 64 << 10;

/// The answer to plain HTTP on a TLS port, with the status of RFC 2817.
const USE_TLS: &[u8] = b"HTTP/1.1 426 Upgrade Required\r\nUpgrade: TLS/1.2, HTTP/1.1\r\nConnection: Upgrade, close\r\n\
    Content-Type: text/plain\r\nContent-Length: 55\r\n\r\nthis port speaks TLS: use a `wss://` or `https://` URL\n";

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
    /// The files that were last tried, good or bad.
    tried: Mutex<Vec<Option<Version>>>,
}

/// Why a connection was not encrypted; a peer that listens has been told.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NotEncrypted {
    /// The peer closed the connection before it sent anything.
    #[error("the client closed the connection before the TLS handshake")]
    Closed,
    /// The peer speaks plain HTTP or something else.
    #[error("the client does not speak TLS, which this port requires; it has to use `wss://` or `https://`")]
    NotTls,
    /// The peer and the server did not agree.
    #[error("the TLS handshake failed: {0}")]
    Failed(String),
    /// The certificate of the peer has no name to know it by.
    #[error("the client certificate contains neither a SPIFFE URI nor a DNS name nor a common name")]
    Nameless,
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
    /// Also tells of permissions, and of writes within one tick of the clock.
    changed_ns: (i64, i64),
}

impl ServerTls {
    /// Loads the files.
    ///
    /// # Errors
    ///
    /// If one of them is missing, malformed, or does not fit the others.
    pub fn load(files: ServerFiles) -> Result<Self, TlsError> {
        let loaded = files.load(open_any)?;
        let tried = Mutex::new(loaded.versions.clone());
        Ok(ServerTls { files, loaded: Mutex::new(Arc::new(loaded)), tried })
    }

    /// Loads the files again if they have changed; returns whether they had.
    ///
    /// # Errors
    ///
    /// Like [`ServerTls::load`], or if one of them is no regular file now; the previous contents stay in use.
    pub fn reload(&self) -> Result<bool, TlsError> {
        let versions = self.files.versions();
        self.tried.lock().unwrap_or_else(PoisonError::into_inner).clone_from(&versions);
        if versions == self.loaded().versions {
            return Ok(false);
        }
        let loaded = Arc::new(self.files.load(open_regular)?);
        *self.loaded.lock().unwrap_or_else(PoisonError::into_inner) = loaded;
        Ok(true)
    }

    /// Loads the files again like [`ServerTls::reload`], unless these very files were tried before; blocks.
    ///
    /// # Errors
    ///
    /// Like [`ServerTls::reload`], once for each broken state of the files.
    pub fn refresh(&self) -> Result<bool, TlsError> {
        let versions = self.files.versions();
        if *self.tried.lock().unwrap_or_else(PoisonError::into_inner) == versions {
            return Ok(false);
        }
        self.reload()
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
    pub async fn accept(&self, stream: TcpStream) -> Result<(Stream, Option<PeerCertificate>), NotEncrypted> {
        let mut first = [0];
        match stream.peek(&mut first).await {
            Ok(0) => return Err(NotEncrypted::Closed),
            Ok(_) if first[0] == HANDSHAKE_RECORD => {}
            Ok(_) => {
                let answer = if first[0].is_ascii_alphabetic() { USE_TLS } else { b"" };
                say_goodbye(stream, answer).await;
                return Err(NotEncrypted::NotTls);
            }
            Err(error) => return Err(NotEncrypted::Failed(error.to_string())),
        }
        let acceptor = TlsAcceptor::from(Arc::clone(&self.loaded().config));
        let stream = match acceptor.accept(stream).into_fallible().await {
            Ok(stream) => stream,
            Err((error, stream)) => {
                // The alert has been sent.
                say_goodbye(stream, b"").await;
                return Err(NotEncrypted::Failed(reason(&error)));
            }
        };
        let presented = stream.get_ref().1.peer_certificates().and_then(<[_]>::first);
        let certificate = match presented {
            None => None,
            Some(der) => Some(PeerCertificate::parse(der).ok_or(NotEncrypted::Nameless)?),
        };
        Ok((Stream::new(stream), certificate))
    }

    fn loaded(&self) -> Arc<Loaded> {
        Arc::clone(&self.loaded.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl ServerFiles {
    fn load(&self, open: Open) -> Result<Loaded, TlsError> {
        // Taken first: a change while the files are read is noticed next time.
        let versions = self.versions();
        let chain = certificates(&self.certificate, open)?;
        let names = chain.first().map(certificate::dns_names).unwrap_or_default().into();
        let key = private_key(&self.key, open)?;
        let provider = Arc::new(ring::default_provider());
        let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_protocol_versions(&VERSIONS)
            .expect("the provider supports both versions");
        let builder = match &self.client_ca {
            None => builder.with_no_client_auth(),
            Some(path) => {
                let verifier =
                    WebPkiClientVerifier::builder_with_provider(Arc::new(roots(path, open)?), provider);
                builder.with_client_cert_verifier(verifier.build().map_err(|error| invalid(path, &error))?)
            }
        };
        let mut config = builder.with_single_cert(chain, key).map_err(|error| invalid(&self.key, &error))?;
        config.alpn_protocols = vec![HTTP.to_vec()];
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
        let changed_ns = (metadata.ctime(), metadata.ctime_nsec());
        Some(Version { inode: metadata.ino(), len: metadata.len(), modified_ns, changed_ns })
    }
}

/// Sends the last bytes and closes the connection; what the peer still sends is read, or it would be reset first.
async fn say_goodbye(mut stream: TcpStream, bytes: &[u8]) {
    let goodbye = async {
        stream.write_all(bytes).await?;
        stream.shutdown().await?;
        let mut unread = (&mut stream).take(UNREAD_BYTES as u64);
        tokio::io::copy(&mut unread, &mut tokio::io::sink()).await
    };
    // A peer that does not read is not told.
    let _ = timeout(GOODBYE_TIMEOUT, goodbye).await;
}

/// Says why a handshake failed, from the server's side.
fn reason(error: &io::Error) -> String {
    match TlsFailure::find(error) {
        Some(_) => error.to_string(),
        None if error.kind() == io::ErrorKind::UnexpectedEof => "the client closed the connection".to_owned(),
        None => error.to_string(),
    }
}
