//! `remex cert new`: a CA and its certificates, for installations without one.

use std::{
    fs::{self, DirBuilder, File, OpenOptions},
    io::{self, Write as _},
    net::IpAddr,
    os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
};

use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer,
    KeyPair, KeyUsagePurpose, PublicKeyData as _, SanType,
};
use remex_base::certificate::CertificateName;
use remex_base::quote::shell_word;
use remex_rpc::tls::Pin;
use time::{Duration, OffsetDateTime};

use super::Outcome;
use crate::{
    args::cert::{Command, Flags, Kind, New},
    render::{failure::Failure, print, text::plain},
};

/// How long a CA is valid.
const CA_LIFETIME: Duration = Duration::days(3650);

/// Clocks of other hosts may be this late.
const CLOCK_SKEW: Duration = Duration::hours(1);

pub(crate) fn run(flags: &Flags) -> Outcome {
    match &flags.command {
        Command::New(flags) => new(flags),
    }
}

fn new(flags: &New) -> Outcome {
    let names = Names::parse(flags)?;
    let directory = &flags.dir;
    let (certificate, key) =
        (directory.join(format!("{}.pem", names.file)), directory.join(format!("{}.key", names.file)));
    let lock = lock(directory)?;
    for path in [&certificate, &key] {
        if path.symlink_metadata().is_ok() {
            return Err(Failure::usage(
                format!("`{}` already exists", path.display()),
                "move it away first, or choose another name or `--dir`",
            ));
        }
    }
    let authority = Authority::open_or_make(directory)?;
    let pair = KeyPair::generate().map_err(|error| cannot("make a key", &error))?;
    let signed = names.params(flags).signed_by(&pair, &authority.issuer);
    let signed = signed.map_err(|error| cannot("sign the certificate", &error))?;
    write_new(&key, &pair.serialize_pem(), 0o600)?;
    write_new(&certificate, &signed.pem(), 0o644)?;
    drop(lock);
    let pin = Pin::of_key(&pair.subject_public_key_info());
    print::out(report(flags, &names, &authority, &CreatedFiles { certificate, key, pin }))?;
    Ok(0)
}

/// The files of the new certificate.
struct CreatedFiles {
    certificate: PathBuf,
    key: PathBuf,
    pin: Pin,
}

/// The names of a certificate.
struct Names {
    /// The base name of the files.
    file: String,
    common: String,
    alternative: Vec<SanType>,
}

impl Names {
    fn parse(flags: &New) -> Result<Self, Failure> {
        let common = flags.names.first().cloned().unwrap_or_default();
        if flags.kind == Kind::Client && flags.names.len() > 1 {
            return Err(Failure::usage(
                "a client has one name",
                "give one, and make a certificate for each client",
            ));
        }
        let is_file_name = !common.starts_with(['.', '-']) && !common.contains(['/', '\0']) && common != "ca";
        if common.is_empty() || common.len() > 64 || !is_file_name {
            return Err(Failure::usage(
                format!("`{}` cannot be the name of a certificate", plain(&common)),
                "use 1 to 64 characters without `/`, other than `ca`",
            ));
        }
        let mut alternative = Vec::new();
        for name in flags.names.iter().filter(|_| flags.kind == Kind::Server) {
            alternative.push(match name.parse::<IpAddr>() {
                Ok(address) => SanType::IpAddress(address),
                Err(_) => dns_name(name)?,
            });
        }
        if let Some(uri) = &flags.spiffe {
            let path =
                uri.strip_prefix("spiffe://").filter(|rest| !rest.is_empty() && !rest.starts_with('/'));
            let uri = path.and_then(|_| uri.as_str().try_into().ok()).ok_or_else(|| {
                Failure::usage(
                    format!("`{}` is not a SPIFFE URI", plain(uri)),
                    "write `spiffe://domain/path`",
                )
            })?;
            alternative.push(SanType::URI(uri));
        }
        if alternative.is_empty() {
            // Servers know a client by a name of a certain kind, and common names have none.
            alternative.push(client_name(&common)?);
        }
        // A `*` in a file name is a nuisance in a shell.
        let file = common.replace('*', "_");
        Ok(Self { file, common, alternative })
    }

    /// Returns what servers know a client by.
    fn known_as(&self) -> CertificateName {
        let uri = self.alternative.iter().find_map(|name| match name {
            SanType::URI(uri) => Some(CertificateName::Uri(uri.as_str().into())),
            _ => None,
        });
        uri.unwrap_or_else(|| CertificateName::dns(&self.common))
    }

    fn params(&self, flags: &New) -> CertificateParams {
        let mut params = CertificateParams::default();
        params.distinguished_name = distinguished(&self.common);
        params.subject_alt_names.clone_from(&self.alternative);
        params.is_ca = IsCa::ExplicitNoCa;
        params.use_authority_key_identifier_extension = true;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![match flags.kind {
            Kind::Server => ExtendedKeyUsagePurpose::ServerAuth,
            Kind::Client => ExtendedKeyUsagePurpose::ClientAuth,
        }];
        set_lifetime(&mut params, Duration::days(flags.days.into()));
        params
    }
}

fn client_name(name: &str) -> Result<SanType, Failure> {
    dns_name(name).map_err(|_| {
        Failure::usage(
            format!("`{}` cannot be the name of a client", plain(name)),
            "use letters, digits, `-`, `_` and dots, or add `--spiffe URI`",
        )
    })
}

fn dns_name(name: &str) -> Result<SanType, Failure> {
    let is_label = |label: &str| {
        !label.is_empty()
            && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_')
    };
    let rest = name.strip_prefix("*.").unwrap_or(name);
    match name.try_into() {
        Ok(name) if rest.split('.').all(is_label) => Ok(SanType::DnsName(name)),
        _ => Err(Failure::usage(
            format!("`{}` is neither a DNS name nor an IP address", plain(name)),
            "give names such as `build.example` or `10.0.0.5`, without a port",
        )),
    }
}

/// The CA of a directory.
struct Authority {
    issuer: Issuer<'static, KeyPair>,
    certificate: PathBuf,
    is_new: bool,
}

impl Authority {
    fn open_or_make(directory: &Path) -> Result<Self, Failure> {
        let (certificate, key) = (directory.join("ca.pem"), directory.join("ca.key"));
        match (read(&certificate)?, read(&key)?) {
            (Some(pem), Some(secret)) => {
                let pair = KeyPair::from_pem(&secret).map_err(|error| unusable(&key, &error))?;
                let issuer =
                    Issuer::from_ca_cert_pem(&pem, pair).map_err(|error| unusable(&certificate, &error))?;
                Ok(Self { issuer, certificate, is_new: false })
            }
            (None, None) => Self::make(certificate, &key),
            (found, _) => {
                let (there, missing) =
                    if found.is_some() { (&certificate, &key) } else { (&key, &certificate) };
                Err(Failure::new(
                    format!("`{}` exists, but `{}` does not", there.display(), missing.display()),
                    "restore it, or use another `--dir` for a new CA",
                ))
            }
        }
    }

    fn make(certificate: PathBuf, key: &Path) -> Result<Self, Failure> {
        let pair = KeyPair::generate().map_err(|error| cannot("make a key", &error))?;
        let mut params = CertificateParams::default();
        // Two CAs of one user can be told apart by the beginning of their keys' digests.
        let Pin(digest) = Pin::of_key(&pair.subject_public_key_info());
        let number: String = digest.iter().take(4).map(|byte| format!("{byte:02x}")).collect();
        params.distinguished_name = distinguished(&format!("remex CA {number}"));
        // It signs no other CAs.
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        set_lifetime(&mut params, CA_LIFETIME);
        let signed = params.self_signed(&pair).map_err(|error| cannot("sign the CA", &error))?;
        write_new(key, &pair.serialize_pem(), 0o600)?;
        write_new(&certificate, &signed.pem(), 0o644)?;
        Ok(Self { issuer: Issuer::new(params, pair), certificate, is_new: true })
    }
}

fn distinguished(common: &str) -> DistinguishedName {
    let mut name = DistinguishedName::new();
    name.push(DnType::CommonName, common);
    name
}

fn set_lifetime(params: &mut CertificateParams, lifetime: Duration) {
    let now = OffsetDateTime::now_utc();
    params.not_before = now - CLOCK_SKEW;
    params.not_after = now + lifetime;
}

fn report(flags: &New, names: &Names, authority: &Authority, made: &CreatedFiles) -> String {
    let shown = |path: &Path| shell_word(&path.display().to_string()).into_owned();
    let (ca, certificate, key) = (shown(&authority.certificate), shown(&made.certificate), shown(&made.key));
    let mut text = String::new();
    if authority.is_new {
        text.push_str(&format!("made the CA {ca}; keep its key to yourself\n"));
    }
    text.push_str(&format!(
        "made {certificate} and {key}, valid for {} days\npin: {}\n",
        flags.days, made.pin
    ));
    let host = match names.common.parse::<IpAddr>() {
        Ok(IpAddr::V6(address)) => format!("[{address}]"),
        _ => names.common.clone(),
    };
    let directory = shown(&flags.dir);
    text.push_str(&match flags.kind {
        Kind::Server => format!(
            "serve clients that have certificates of this CA:\n  remex serve --listen wss://0.0.0.0:7070 \
             --tls-cert {certificate} --tls-key {key} --tls-client-ca {ca}\nmake a certificate for each of them:\n  \
             remex cert new --dir {directory} client NAME\nor, for clients with tokens, omit --tls-client-ca:\n  \
             remex env add NAME wss://{host}:7070 --ca {ca} --token-file PATH\n"
        ),
        Kind::Client => format!(
            "servers know it as `{}`\nconnect with it:\n  remex env add NAME wss://HOST:7070 --ca {ca} --client-cert {certificate} \
             --client-key {key}\n",
            names.known_as(),
        ),
    });
    text
}

/// Creates the directory if it is missing, and locks it.
fn lock(directory: &Path) -> Result<File, Failure> {
    let locked = || {
        DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
        let file = File::open(directory)?;
        rustix::fs::flock(&file, rustix::fs::FlockOperation::LockExclusive)?;
        Ok(file)
    };
    locked().map_err(|error: io::Error| Failure::io(&format!("use `{}`", directory.display()), &error))
}

fn read(path: &Path) -> Result<Option<String>, Failure> {
    match fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(Failure::io(&format!("read `{}`", path.display()), &error)),
    }
}

fn write_new(path: &Path, text: &str, mode: u32) -> Result<(), Failure> {
    let written = || {
        let mut file = OpenOptions::new().create_new(true).write(true).mode(mode).open(path)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()
    };
    written().map_err(|error| Failure::io(&format!("write `{}`", path.display()), &error))
}

fn cannot(action: &str, error: &rcgen::Error) -> Failure {
    Failure::new(format!("cannot {action}"), "check the names").because(error.to_string())
}

fn unusable(path: &Path, error: &rcgen::Error) -> Failure {
    Failure::new(
        format!("cannot use `{}`", path.display()),
        "restore it, or use another `--dir` for a new CA",
    )
    .because(error.to_string())
}
