//! Certificates of a test's own, made without the program under test.

use std::{
    fs,
    io::{self, Read as _, Write as _},
    net::{IpAddr, TcpStream},
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, PublicKeyData as _, SanType,
};
use rustls::{
    ClientConfig, ClientConnection, RootCertStore, StreamOwned,
    pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject as _},
};
use sha2::{Digest as _, Sha256};
use tempfile::TempDir;

use super::{PATIENCE, Server};

/// A directory with certificates and keys in PEM format.
pub(crate) struct Pki {
    directory: TempDir,
}

/// A CA.
pub(crate) struct Authority {
    directory: PathBuf,
    issuer: Issuer<'static, KeyPair>,
}

impl Pki {
    /// Makes a CA in `ca.pem`, and a certificate of it for `localhost` and `127.0.0.1` in `server.pem`.
    pub(crate) fn new() -> (Self, Authority) {
        let pki = Self { directory: tempfile::tempdir().expect("a directory can be made") };
        let authority = pki.authority("ca");
        authority.server("server", &["localhost", "127.0.0.1"]);
        (pki, authority)
    }

    /// Makes another CA in `NAME.pem`.
    pub(crate) fn authority(&self, name: &str) -> Authority {
        let key = KeyPair::generate().expect("a key can be made");
        let mut params = named(name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        let certificate = params.self_signed(&key).expect("a CA can be made");
        fs::write(self.path(&format!("{name}.pem")), certificate.pem()).expect("the directory is ours");
        Authority { directory: self.directory.path().to_owned(), issuer: Issuer::new(params, key) }
    }

    pub(crate) fn path(&self, file: &str) -> PathBuf {
        self.directory.path().join(file)
    }

    /// Returns the path of a file as an argument.
    pub(crate) fn arg(&self, file: &str) -> String {
        self.path(file).to_str().expect("temporary paths are UTF-8").to_owned()
    }

    /// Starts a server on a `wss://` port with the certificate in `server.pem`, and further flags.
    pub(crate) fn serve(&self, flags: &[&str]) -> Server {
        let (certificate, key) = (self.arg("server.pem"), self.arg("server.key"));
        let tls = ["--listen", "wss://127.0.0.1:0", "--tls-cert", &certificate, "--tls-key", &key];
        Server::serve(&[&tls, flags].concat())
    }

    /// Starts a server that admits clients with certificates of the CA in `ca.pem`.
    pub(crate) fn serve_mutual(&self, flags: &[&str]) -> Server {
        let ca = self.arg("ca.pem");
        self.serve(&[&["--tls-client-ca", &ca], flags].concat())
    }

    /// Returns what a client needs that trusts `ca.pem`, with the certificate in `FILE.pem` or without one.
    pub(crate) fn client_config(&self, certificate: Option<&str>) -> ClientConfig {
        let mut roots = RootCertStore::empty();
        let ca = CertificateDer::from_pem_file(self.path("ca.pem")).expect("the CA is in its file");
        roots.add(ca).expect("the CA can be used");
        let builder = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .with_safe_default_protocol_versions()
            .expect("the versions fit the ciphers")
            .with_root_certificates(roots);
        let Some(file) = certificate else { return builder.with_no_client_auth() };
        let [certificate, key] = ["pem", "key"].map(|extension| self.path(&format!("{file}.{extension}")));
        let certificate = CertificateDer::from_pem_file(certificate).expect("a certificate is in its file");
        let key = PrivateKeyDer::from_pem_file(key).expect("a key is in its file");
        builder.with_client_auth_cert(vec![certificate], key).expect("the key fits the certificate")
    }

    /// Replaces files in one step each, as those who renew certificates do.
    pub(crate) fn replace(&self, from: &str, to: &str) {
        for extension in ["pem", "key"] {
            let new = self.path(&format!("{from}.{extension}"));
            fs::rename(new, self.path(&format!("{to}.{extension}"))).expect("files can be renamed");
        }
    }
}

impl Authority {
    /// Makes a server certificate in `FILE.pem`, and its key in `FILE.key`; returns its pin.
    pub(crate) fn server(&self, file: &str, names: &[&str]) -> String {
        self.server_with(file, names, |_| {})
    }

    /// Makes a server certificate with a change.
    pub(crate) fn server_with(
        &self,
        file: &str,
        names: &[&str],
        change: impl FnOnce(&mut CertificateParams),
    ) -> String {
        let mut params = named(file);
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        params.subject_alt_names = names.iter().map(|name| alternative(name)).collect();
        change(&mut params);
        self.issue(file, &params)
    }

    /// Makes a server certificate that expired a day ago.
    pub(crate) fn expired_server(&self, file: &str) {
        self.server_with(file, &["localhost"], |params| {
            let day = Duration::from_secs(24 * 3600);
            params.not_before =
                std::time::SystemTime::now().checked_sub(2 * day).expect("1970 is long ago").into();
            params.not_after =
                std::time::SystemTime::now().checked_sub(day).expect("1970 is long ago").into();
        });
    }

    /// Makes a client certificate in `FILE.pem`, with a common name and alternative names: `spiffe://…` or DNS names.
    pub(crate) fn client(&self, file: &str, common: &str, names: &[&str]) {
        self.client_with(file, common, names, |_| {});
    }

    /// Makes a client certificate that expires after this time.
    pub(crate) fn brief_client(&self, file: &str, common: &str, lifetime: Duration) {
        self.client_with(file, common, &[common], |params| {
            params.not_after = (std::time::SystemTime::now() + lifetime).into();
        });
    }

    fn client_with(
        &self,
        file: &str,
        common: &str,
        names: &[&str],
        change: impl FnOnce(&mut CertificateParams),
    ) {
        let mut params = named(common);
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        params.subject_alt_names = names.iter().map(|name| alternative(name)).collect();
        change(&mut params);
        self.issue(file, &params);
    }

    fn issue(&self, file: &str, params: &CertificateParams) -> String {
        let key = KeyPair::generate().expect("a key can be made");
        let certificate = params.signed_by(&key, &self.issuer).expect("a certificate can be signed");
        write(&self.directory, file, "pem", &certificate.pem());
        write(&self.directory, file, "key", &key.serialize_pem());
        let digest = Sha256::digest(key.subject_public_key_info());
        let digits: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
        format!("sha256:{digits}")
    }
}

/// Sends a request over TLS to a server that has this name in its certificate; returns the status of the answer.
pub(crate) fn tls_status(
    server: &Server,
    config: ClientConfig,
    name: &str,
    request: &str,
) -> io::Result<String> {
    let mut stream = tls_stream(server, config, name);
    stream.write_all(request.as_bytes())?;
    let mut answer = [0; 12];
    stream.read_exact(&mut answer)?;
    Ok(String::from_utf8_lossy(&answer[9..]).into_owned())
}

/// Connects to the TLS port of a server; the handshake begins with the first use.
pub(crate) fn tls_stream(
    server: &Server,
    config: ClientConfig,
    name: &str,
) -> StreamOwned<ClientConnection, TcpStream> {
    let name = ServerName::try_from(name.to_owned()).expect("a name");
    let connection = ClientConnection::new(Arc::new(config), name).expect("the configuration fits");
    let address = server.address().strip_prefix("wss://").expect("the port has TLS");
    let stream = TcpStream::connect(address).expect("the listener accepts");
    stream.set_read_timeout(Some(PATIENCE)).expect("a minute is a time-out");
    StreamOwned::new(connection, stream)
}

fn named(common: &str) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, common);
    params
}

fn alternative(name: &str) -> SanType {
    match name.parse::<IpAddr>() {
        Ok(address) => SanType::IpAddress(address),
        Err(_) if name.contains("://") => SanType::URI(name.try_into().expect("a URI is ASCII")),
        Err(_) => SanType::DnsName(name.try_into().expect("a name is ASCII")),
    }
}

fn write(directory: &Path, file: &str, extension: &str, text: &str) {
    fs::write(directory.join(format!("{file}.{extension}")), text).expect("the directory is ours");
}
