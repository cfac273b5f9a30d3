//! The server's side: a certificate that is reloaded when its files change, and client certificates.

use std::{
    fs, io,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
    time::Duration,
};

use remex_base::{
    certificate::PeerCertificate,
    lock,
    regular_file::{open_given, open_regular},
    writers::check_writers,
};
use rustls::{
    ServerConfig,
    crypto::ring,
    server::{WebPkiClientVerifier, danger::ClientCertVerifier},
    sign::{CertifiedKey, SingleCertAndKey},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::timeout,
};
use tokio_rustls::TlsAcceptor;

use super::{
    HANDSHAKE_RECORD, HTTP, Pin, TlsError, TlsFailure, VERSIONS, certificate,
    pem::{Open, certificates, invalid, private_key, roots},
};
use crate::Stream;

/// How long a refused peer may take to read the reason.
const GOODBYE_TIMEOUT: Duration = Duration::from_secs(1);

/// How many bytes of a refused peer are read, so that it is not reset before it has read the reason.
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
    /// The versions of the files that were last tried, usable or not.
    tried: Mutex<Versions>,
}

/// Why a connection was not encrypted; the peer has been sent the reason.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NotEncrypted {
    /// The peer closed the connection before it sent anything.
    #[error("the client closed the connection before the TLS handshake")]
    Closed,
    /// The peer speaks plain HTTP or something else.
    #[error("the client does not speak TLS, which this port requires; it has to use `wss://` or `https://`")]
    NotTls,
    /// The handshake failed.
    #[error("the TLS handshake failed: {0}")]
    Failed(String),
    /// The certificate of the peer has no name that can identify it.
    #[error("the client certificate contains neither a SPIFFE URI nor a DNS name nor a common name")]
    Nameless,
}

/// The result of a reload.
#[derive(Debug, Default)]
pub struct Reloaded {
    /// Whether new contents are in use.
    pub is_changed: bool,
    /// Why the own certificate, or the client CAs, cannot be used; the previous ones stay in use.
    pub rejected: Vec<TlsError>,
}

#[derive(Debug)]
struct Loaded {
    config: Arc<ServerConfig>,
    own: Reloadable<OwnCertificate>,
    /// Checks client certificates, if they are required.
    clients: Reloadable<Option<Arc<dyn ClientCertVerifier>>>,
}

/// The certificate of the server with its key, and its DNS names.
#[derive(Debug, Clone)]
struct OwnCertificate {
    key: Arc<CertifiedKey>,
    names: Arc<[String]>,
}

/// The contents of some of the files. An error in one part does not block changes of another.
#[derive(Debug, Clone)]
struct Reloadable<T> {
    contents: T,
    versions: Versions,
}

type Versions = Vec<Option<FileVersion>>;

/// Which version of a file was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct FileVersion {
    inode: u64,
    len: u64,
    modified_ns: (i64, i64),
    /// Changes with the permissions, too, and with writes within one tick of the clock.
    changed_ns: (i64, i64),
}

impl ServerTls {
    /// Loads the files.
    ///
    /// # Errors
    ///
    /// If one of them is missing, malformed, or does not fit the others.
    pub fn load(files: ServerFiles) -> Result<Self, TlsError> {
        let tried = files.versions();
        let loaded = Loaded::new(files.own(open_given)?, files.clients(open_given)?);
        Ok(ServerTls { files, loaded: Mutex::new(Arc::new(loaded)), tried: Mutex::new(tried) })
    }

    /// Loads the files again if they have changed: those of the own certificate and the client CAs each for themselves.
    ///
    /// A file that is broken, or no regular file now, is rejected.
    pub fn reload(&self) -> Reloaded {
        *lock(&self.tried) = self.files.versions();
        let before = self.loaded();
        let mut reloaded = Reloaded::default();
        let own = reloaded.newer(&before.own, &self.files.own_versions(), || self.files.own(open_regular));
        let clients = reloaded
            .newer(&before.clients, &self.files.client_versions(), || self.files.clients(open_regular));
        if reloaded.is_changed {
            let loaded = Arc::new(Loaded::new(own, clients));
            *lock(&self.loaded) = loaded;
        }
        reloaded
    }

    /// Loads the files again like [`ServerTls::reload`], unless these very files were tried before; blocks.
    pub fn refresh(&self) -> Reloaded {
        let versions = self.files.versions();
        if *lock(&self.tried) == versions {
            return Reloaded::default();
        }
        self.reload()
    }

    /// Returns the DNS names of the certificate.
    pub fn names(&self) -> Arc<[String]> {
        Arc::clone(&self.loaded().own.contents.names)
    }

    /// Returns the pin of the certificate, by which clients can recognize the server.
    pub fn pin(&self) -> Option<Pin> {
        Pin::of(self.loaded().own.contents.key.cert.first()?)
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
            Some(der) => Some(certificate::peer(der).ok_or(NotEncrypted::Nameless)?),
        };
        Ok((Stream::new(stream), certificate))
    }

    fn loaded(&self) -> Arc<Loaded> {
        Arc::clone(&lock(&self.loaded))
    }
}

impl Reloaded {
    /// Returns a part as its files are now, or as it was if they have not changed or cannot be used.
    fn newer<T: Clone>(
        &mut self,
        before: &Reloadable<T>,
        versions: &Versions,
        load: impl FnOnce() -> Result<Reloadable<T>, TlsError>,
    ) -> Reloadable<T> {
        if before.versions == *versions {
            return before.clone();
        }
        match load() {
            Ok(part) => {
                self.is_changed = true;
                part
            }
            Err(error) => {
                self.rejected.push(error);
                before.clone()
            }
        }
    }
}

impl Loaded {
    fn new(
        own: Reloadable<OwnCertificate>,
        clients: Reloadable<Option<Arc<dyn ClientCertVerifier>>>,
    ) -> Self {
        let builder = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_protocol_versions(&VERSIONS)
            .expect("the provider supports both versions");
        let builder = match &clients.contents {
            None => builder.with_no_client_auth(),
            Some(verifier) => builder.with_client_cert_verifier(Arc::clone(verifier)),
        };
        let key = SingleCertAndKey::from(Arc::clone(&own.contents.key));
        let mut config = builder.with_cert_resolver(Arc::new(key));
        config.alpn_protocols = vec![HTTP.to_vec()];
        Loaded { config: Arc::new(config), own, clients }
    }
}

impl ServerFiles {
    fn own(&self, open: Open) -> Result<Reloadable<OwnCertificate>, TlsError> {
        // Taken first: a change while the files are read is noticed next time.
        let versions = self.own_versions();
        let chain = certificates(&self.certificate, open)?;
        let names = chain.first().map(certificate::dns_names).unwrap_or_default().into();
        check_writers(&self.key).map_err(TlsError::Writable)?;
        let key = private_key(&self.key, open)?;
        let key = CertifiedKey::from_der(chain, key, &ring::default_provider())
            .map_err(|error| invalid(&self.key, &error))?;
        Ok(Reloadable { contents: OwnCertificate { key: Arc::new(key), names }, versions })
    }

    fn clients(&self, open: Open) -> Result<Reloadable<Option<Arc<dyn ClientCertVerifier>>>, TlsError> {
        let versions = self.client_versions();
        let Some(path) = &self.client_ca else { return Ok(Reloadable { contents: None, versions }) };
        check_writers(path).map_err(TlsError::Writable)?;
        let roots = Arc::new(roots(path, open)?);
        let provider = Arc::new(ring::default_provider());
        let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider).build();
        let contents = Some(verifier.map_err(|error| invalid(path, &error))?);
        Ok(Reloadable { contents, versions })
    }

    fn versions(&self) -> Versions {
        [self.own_versions(), self.client_versions()].concat()
    }

    fn own_versions(&self) -> Versions {
        [&self.certificate, &self.key].map(|path| FileVersion::of(path)).to_vec()
    }

    fn client_versions(&self) -> Versions {
        self.client_ca.iter().map(|path| FileVersion::of(path)).collect()
    }
}

impl FileVersion {
    fn of(path: &Path) -> Option<Self> {
        let metadata = fs::metadata(path).ok()?;
        let modified_ns = (metadata.mtime(), metadata.mtime_nsec());
        let changed_ns = (metadata.ctime(), metadata.ctime_nsec());
        Some(FileVersion { inode: metadata.ino(), len: metadata.len(), modified_ns, changed_ns })
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
    // A peer that does not read misses them.
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
