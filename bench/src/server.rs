//! A server under measurement: how to start it, and one running instance.

use std::{
    fs,
    io::{BufRead, BufReader},
    net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream},
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    str::FromStr,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    process::{Pid, PidfdFlags, Signal, kill_process_group, pidfd_open},
};
use rustls::{ClientConfig, RootCertStore, crypto::ring};
use tempfile::TempDir;

use crate::{client::Client, spawn::end_with_us};

/// How long a server may take until it listens.
const START_LIMIT: Duration = Duration::from_secs(10);
/// How long a server may take to end in order before it is killed.
const END_LIMIT: Timespec = Timespec { tv_sec: 3, tv_nsec: 0 };
const CONNECT_INTERVAL: Duration = Duration::from_millis(5);

/// A server that can be started again and again.
#[derive(Clone, Debug)]
pub(crate) struct Subject {
    pub(crate) name: String,
    launch: Launch,
}

#[derive(Clone, Debug)]
enum Launch {
    /// Our program, which picks a port and prints it.
    Remex(PathBuf),
    /// The same, on a port with TLS.
    RemexTls(PathBuf),
    /// A command line for the shell with `{port}` in it.
    Shell(String),
}

impl Subject {
    pub(crate) fn remex(program: PathBuf) -> Self {
        Self { name: "remex".to_owned(), launch: Launch::Remex(program) }
    }

    /// Our program with TLS, to be measured beside the plain one.
    pub(crate) fn remex_tls(program: PathBuf) -> Self {
        Self { name: "remex with TLS".to_owned(), launch: Launch::RemexTls(program) }
    }

    /// Starts a fresh instance and waits until it listens.
    pub(crate) fn start(&self) -> Result<Server> {
        match &self.launch {
            Launch::Remex(program) => start_remex(program, Encryption::None),
            Launch::RemexTls(program) => start_remex(program, Encryption::Tls),
            Launch::Shell(line) => start_peer(line),
        }
        .with_context(|| format!("cannot start `{}`", self.name))
    }
}

/// Parses `name=command with {port}`.
impl FromStr for Subject {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        match text.split_once('=') {
            Some((name, command)) if !name.is_empty() && command.contains("{port}") => {
                Ok(Self { name: name.to_owned(), launch: Launch::Shell(command.to_owned()) })
            }
            _ => bail!("`{text}` is not a peer; write it as `name=command with {{port}}`"),
        }
    }
}

/// Whether a WebSocket port is encrypted.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Encryption {
    None,
    Tls,
}

/// A running instance; dropping it ends it.
pub(crate) struct Server {
    group: Group,
    address: SocketAddr,
    /// How to connect to a port with TLS.
    tls: Option<Arc<ClientConfig>>,
    ours: Option<Ours>,
}

/// What only our own program has: other ways than the WebSocket.
pub(crate) struct Ours {
    program: PathBuf,
    directory: TempDir,
}

impl Ours {
    /// Returns the program, to be run again.
    pub(crate) fn program(&self) -> String {
        self.program.to_string_lossy().into_owned()
    }

    /// Returns the certificate of the port with TLS.
    pub(crate) fn certificate(&self) -> PathBuf {
        self.directory.path().join("server.pem")
    }

    fn key(&self) -> PathBuf {
        self.directory.path().join("server.key")
    }

    /// Makes a certificate for loopback, and returns what trusts it.
    fn make_certificate(&self) -> Result<Arc<ClientConfig>> {
        let made = rcgen::generate_simple_self_signed([Ipv4Addr::LOCALHOST.to_string()])?;
        fs::write(self.certificate(), made.cert.pem())?;
        fs::write(self.key(), made.signing_key.serialize_pem())?;
        let mut roots = RootCertStore::empty();
        roots.add(made.cert.der().clone())?;
        let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()?
            .with_root_certificates(roots)
            .with_no_client_auth();
        Ok(Arc::new(config))
    }

    /// Returns the unix socket that the server listens on.
    pub(crate) fn socket(&self) -> PathBuf {
        self.directory.path().join("socket")
    }
}

impl Server {
    pub(crate) fn pid(&self) -> u32 {
        self.group.0.id()
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    pub(crate) fn has_tls(&self) -> bool {
        self.tls.is_some()
    }

    pub(crate) fn ours(&self) -> Option<&Ours> {
        self.ours.as_ref()
    }

    /// Opens a connection with a session of its own.
    pub(crate) fn connect(&self) -> Result<Client> {
        Client::connect(self.address, self.tls.as_ref())
            .with_context(|| format!("cannot connect to {}", self.address))
    }
}

fn start_remex(program: &Path, encryption: Encryption) -> Result<Server> {
    let ours = Ours { program: program.to_owned(), directory: tempfile::tempdir()? };
    let socket = format!("unix://{}", ours.socket().display());
    let mut command = Command::new(program);
    command.args(["serve", "--listen", &socket]).stdout(Stdio::piped());
    let (scheme, tls) = match encryption {
        Encryption::None => ("ws://", None),
        Encryption::Tls => {
            let tls = ours.make_certificate()?;
            command.arg("--tls-cert").arg(ours.certificate()).arg("--tls-key").arg(ours.key());
            ("wss://", Some(tls))
        }
    };
    command.args(["--listen", &format!("{scheme}127.0.0.1:0")]);
    let mut group = Group::spawn(&mut command)?;
    let mut line = String::new();
    let mut stdout = BufReader::new(group.0.stdout.as_mut().context("the server has no stdout")?);
    // One line for each listener; that of the WebSocket is the last.
    for _ in 0..2 {
        line.clear();
        stdout.read_line(&mut line)?;
    }
    let address =
        line.trim().strip_prefix(scheme).and_then(|address| address.parse().ok()).with_context(|| {
            format!("its first line is `{}`, not an address; run it by hand to see why", line.trim())
        })?;
    Ok(Server { group, address, tls, ours: Some(ours) })
}

fn start_peer(line: &str) -> Result<Server> {
    let address = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?;
    let line = format!("exec {}", line.replace("{port}", &address.port().to_string()));
    let mut group = Group::spawn(Command::new("sh").args(["-c", &line]).stdout(Stdio::null()))?;
    // A listening port is the only sign that all servers share, and the kernel announces it to nobody.
    let deadline = Instant::now() + START_LIMIT;
    while TcpStream::connect(address).is_err() {
        if let Some(status) = group.0.try_wait()? {
            bail!("`{line}` ended with {status}");
        }
        ensure!(Instant::now() < deadline, "`{line}` does not listen on {address} after {START_LIMIT:?}");
        thread::sleep(CONNECT_INTERVAL);
    }
    Ok(Server { group, address, tls: None, ours: None })
}

/// A child that leads a process group of its own; dropping it ends the whole group.
struct Group(Child);

impl Group {
    fn spawn(command: &mut Command) -> Result<Self> {
        end_with_us(command);
        Ok(Self(command.stdin(Stdio::null()).stderr(Stdio::null()).process_group(0).spawn()?))
    }
}

impl Drop for Group {
    /// Nothing can be done about a server that is gone already, so errors are passed over.
    fn drop(&mut self) {
        let Some(group) = Pid::from_raw(self.0.id().cast_signed()) else { return };
        let _ = kill_process_group(group, Signal::TERM);
        if let Ok(handle) = pidfd_open(group, PidfdFlags::empty()) {
            let _ = poll(&mut [PollFd::new(&handle, PollFlags::IN)], Some(&END_LIMIT));
        }
        let _ = kill_process_group(group, Signal::KILL);
        let _ = self.0.wait();
    }
}
