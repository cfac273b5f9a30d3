//! A server under measurement: how to start it, and one running instance.

use std::{
    fs,
    io::{BufRead, BufReader},
    net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream},
    os::{fd::OwnedFd, unix::process::CommandExt},
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
    process::{Pid, PidfdFlags, Signal, kill_process, kill_process_group, pidfd_open, pidfd_send_signal},
};
use rustls::{ClientConfig, RootCertStore, crypto::ring};
use tempfile::TempDir;

use crate::{
    client::Client,
    results::{DURABLE, REMEX},
    spawn::end_with_us,
};

/// How long a server may take until it listens.
const START_LIMIT: Duration = Duration::from_secs(10);
/// How long a server may take to end in order before it is killed.
const END_LIMIT: Timespec = Timespec { tv_sec: 3, tv_nsec: 0 };
/// How long a keeper may take to end everything that it runs.
const KEEPER_END_LIMIT: Timespec = Timespec { tv_sec: 20, tv_nsec: 0 };
const CONNECT_INTERVAL: Duration = Duration::from_millis(5);

/// A server that can be started again and again.
#[derive(Clone, Debug)]
pub(crate) struct Subject {
    pub(crate) name: String,
    launch: Launch,
    frames: Frames,
}

#[derive(Clone, Debug)]
enum Launch {
    /// Our program, which picks a port and prints it.
    Remex(PathBuf, Flavour),
    /// A command line for the shell with `{port}` in it.
    Shell(String),
}

impl Subject {
    pub(crate) fn remex(program: PathBuf) -> Self {
        Self { name: REMEX.to_owned(), launch: Launch::Remex(program, Flavour::Plain), frames: Frames::Json }
    }

    /// Our program for a client that reads binary messages, to be measured beside that for one that does not.
    pub(crate) fn remex_binary(program: PathBuf) -> Self {
        Self { name: "remex, binary".to_owned(), frames: Frames::Binary, ..Self::remex(program) }
    }

    /// Our program with TLS, to be measured beside the plain one.
    pub(crate) fn remex_tls(program: PathBuf) -> Self {
        let launch = Launch::Remex(program, Flavour::Tls);
        Self { name: "remex with TLS".to_owned(), launch, frames: Frames::Json }
    }

    /// Our program with a state directory, to be measured beside the one without.
    pub(crate) fn remex_durable(program: PathBuf) -> Self {
        let launch = Launch::Remex(program, Flavour::Durable);
        Self { name: DURABLE.to_owned(), launch, frames: Frames::Json }
    }

    /// Starts a fresh instance and waits until it listens.
    pub(crate) fn start(&self) -> Result<Server> {
        let started = match &self.launch {
            Launch::Remex(program, flavour) => start_remex(program, *flavour),
            Launch::Shell(line) => start_peer(line),
        };
        let mut server = started.with_context(|| format!("cannot start `{}`", self.name))?;
        server.frames = self.frames;
        Ok(server)
    }
}

/// Parses `name=command with {port}`.
impl FromStr for Subject {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        match text.split_once('=') {
            Some((name, command)) if !name.is_empty() && command.contains("{port}") => {
                let launch = Launch::Shell(command.to_owned());
                Ok(Self { name: name.to_owned(), launch, frames: Frames::Json })
            }
            _ => bail!("`{text}` is not a peer; write it as `name=command with {{port}}`"),
        }
    }
}

/// How messages with bytes travel.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Frames {
    /// As base64 in JSON.
    Json,
    Binary,
}

/// How our program is run.
#[derive(Clone, Copy, Debug)]
enum Flavour {
    Plain,
    /// On a port with TLS.
    Tls,
    /// With a state directory.
    Durable,
}

/// A running instance; dropping it ends it.
pub(crate) struct Server {
    group: Group,
    /// Ends after the server, which would start another one.
    keeper: Option<Keeper>,
    address: SocketAddr,
    /// How to connect to a port with TLS.
    tls: Option<Arc<ClientConfig>>,
    ours: Option<Ours>,
    frames: Frames,
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

    /// Returns the state directory of a durable server.
    pub(crate) fn state(&self) -> PathBuf {
        self.directory.path().join("state")
    }

    /// Starts a server on the state directory of one that is gone; on the same unix socket, and nothing else.
    pub(crate) fn succeed(&self) -> Result<Group> {
        let mut group = Group::spawn(self.serve().arg("--state").arg(self.state()))?;
        read_address(&mut group, 1)?;
        Ok(group)
    }

    fn serve(&self) -> Command {
        let mut command = Command::new(&self.program);
        let socket = format!("unix://{}", self.socket().display());
        command.args(["serve", "--listen", &socket]).stdout(Stdio::piped());
        command
    }
}

impl Server {
    pub(crate) fn pid(&self) -> u32 {
        self.group.0.id()
    }

    /// Returns all processes that are the server: itself and its keeper, if it has one.
    pub(crate) fn pids(&self) -> Vec<u32> {
        let keeper = self.keeper.as_ref().map(|keeper| keeper.pid);
        [self.pid()].into_iter().chain(keeper).collect()
    }

    /// Returns what only a durable server has.
    pub(crate) fn durable(&self) -> Option<&Ours> {
        self.ours.as_ref().filter(|_| self.keeper.is_some())
    }

    /// Kills the server as the kernel would, and waits until it is gone.
    pub(crate) fn kill(&self) -> Result<()> {
        let pid = Pid::from_child(&self.group.0);
        kill_process(pid, Signal::KILL)?;
        await_end(pid, &END_LIMIT);
        Ok(())
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
        Client::connect(self.address, self.tls.as_ref(), self.frames)
            .with_context(|| format!("cannot connect to {}", self.address))
    }
}

fn start_remex(program: &Path, flavour: Flavour) -> Result<Server> {
    let ours = Ours { program: program.to_owned(), directory: tempfile::tempdir()? };
    let mut command = ours.serve();
    let (scheme, tls) = match flavour {
        Flavour::Plain => ("ws://", None),
        Flavour::Tls => {
            let tls = ours.make_certificate()?;
            command.arg("--tls-cert").arg(ours.certificate()).arg("--tls-key").arg(ours.key());
            ("wss://", Some(tls))
        }
        Flavour::Durable => {
            command.arg("--state").arg(ours.state());
            ("ws://", None)
        }
    };
    command.args(["--listen", &format!("{scheme}127.0.0.1:0")]);
    let mut group = Group::spawn(&mut command)?;
    // That of the WebSocket is the last.
    let line = read_address(&mut group, 2)?;
    let keeper = match flavour {
        Flavour::Plain | Flavour::Tls => None,
        Flavour::Durable => Some(Keeper::of(&ours.state())?),
    };
    let address = line
        .strip_prefix(scheme)
        .and_then(|address| address.parse().ok())
        .with_context(|| format!("its last line is `{line}`, not an address; run it by hand to see why"))?;
    Ok(Server { group, keeper, address, tls, ours: Some(ours), frames: Frames::Json })
}

/// Waits until a server has printed one line for each of its listeners, and returns the last.
fn read_address(group: &mut Group, listeners: usize) -> Result<String> {
    let mut line = String::new();
    let mut stdout = BufReader::new(group.0.stdout.as_mut().context("the server has no stdout")?);
    for _ in 0..listeners {
        line.clear();
        stdout.read_line(&mut line)?;
    }
    ensure!(!line.is_empty(), "it ended before it listened; run it by hand to see why");
    Ok(line.trim().to_owned())
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
    Ok(Server { group, keeper: None, address, tls: None, ours: None, frames: Frames::Json })
}

/// A child that leads a process group of its own; dropping it ends the whole group.
pub(crate) struct Group(Child);

impl Group {
    fn spawn(command: &mut Command) -> Result<Self> {
        end_with_us(command);
        Ok(Self(command.stdin(Stdio::null()).stderr(Stdio::null()).process_group(0).spawn()?))
    }
}

impl Drop for Group {
    /// Nothing can be done about a server that is gone already, so errors are passed over.
    fn drop(&mut self) {
        let group = Pid::from_child(&self.0);
        let _ = kill_process_group(group, Signal::TERM);
        await_end(group, &END_LIMIT);
        let _ = kill_process_group(group, Signal::KILL);
        let _ = self.0.wait();
    }
}

/// The process that runs the durable processes of a server; dropping it ends it and them.
struct Keeper {
    pid: u32,
    handle: OwnedFd,
    /// Ends the keeper when its input ends, which it does with the bench, however that dies.
    guard: Child,
}

impl Keeper {
    /// Returns the keeper of a state directory, which has its process id in the file that it locks.
    fn of(state: &Path) -> Result<Self> {
        let lock = fs::read_to_string(state.join("keeper.lock")).context("the server has no keeper")?;
        let pid = lock.trim().parse().context("the keeper has no process id")?;
        let handle = Pid::from_raw(pid).context("the keeper has no process id")?;
        let handle = pidfd_open(handle, PidfdFlags::empty())?;
        let guard = Command::new("sh")
            .args(["-c", &format!("read end; kill {pid}")])
            .stdin(Stdio::piped())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn()?;
        Ok(Self { pid: pid.cast_unsigned(), handle, guard })
    }
}

impl Drop for Keeper {
    /// As with a server, errors are passed over.
    fn drop(&mut self) {
        drop(self.guard.stdin.take());
        let _ = self.guard.wait();
        let _ = poll(&mut [PollFd::new(&self.handle, PollFlags::IN)], Some(&KEEPER_END_LIMIT));
        let _ = pidfd_send_signal(&self.handle, Signal::KILL);
    }
}

/// Waits until a process is gone, or for so long.
fn await_end(pid: Pid, limit: &Timespec) {
    if let Ok(handle) = pidfd_open(pid, PidfdFlags::empty()) {
        let _ = poll(&mut [PollFd::new(&handle, PollFlags::IN)], Some(limit));
    }
}
