//! The user's local server: one per user and machine, on a socket in the runtime directory, started on demand.
//!
//! Background processes run on it. It keeps them in a state directory, where they survive it: the next command that needs
//! it starts a new one. Start at [`ensure_running`].

use std::{
    ffi::OsString,
    fs::{self, DirBuilder, File, OpenOptions},
    io::{self, BufRead as _},
    os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use remex_client::Error;
use rustix::{
    fs::{FlockOperation, Mode, OFlags},
    process::Pid,
};
use tokio::net::UnixStream;

use crate::{
    remote::local_server,
    render::{
        failure::{Failure, Kind},
        print,
    },
};

/// The idle timeout of the server.
const IDLE_TIMEOUT: &str = "10m";

/// How long a server whose socket was deleted may take to listen again, or to end.
const REBIND_PATIENCE: Duration = Duration::from_secs(5);
const REBIND_PAUSE: Duration = Duration::from_millis(20);

/// The socket of the server.
#[derive(Clone, Debug)]
pub(crate) struct Socket {
    pub(crate) path: PathBuf,
}

impl Socket {
    /// Returns the default path, whether a server is running or not.
    pub(crate) fn default_path() -> Self {
        let runtime =
            std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|path| path.is_absolute());
        let directory = runtime.map_or_else(
            || PathBuf::from(format!("/tmp/remex-{}", rustix::process::geteuid().as_raw())),
            |runtime| runtime.join("remex"),
        );
        Self { path: directory.join("own.sock") }
    }

    pub(crate) fn directory(&self) -> &Path {
        self.path.parent().unwrap_or(Path::new("/"))
    }

    /// Returns where the server keeps processes and sessions that survive it; `None` for a user without a home.
    ///
    /// A home may be shared by hosts, and a user may have more than one runtime directory: each has its own.
    pub(crate) fn state(&self) -> Option<PathBuf> {
        let absolute =
            |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
        let home = || absolute("HOME").map(|home| home.join(".local/state"));
        let states = absolute("XDG_STATE_HOME").or_else(home)?;
        let host = rustix::system::uname().nodename().to_string_lossy().replace('/', "-");
        let directory = self.directory().display().to_string();
        Some(states.join("remex").join(host).join(directory.trim_matches('/').replace('/', "-")))
    }

    /// Returns whether an earlier server has left sessions, which a new one continues.
    pub(crate) fn has_left_sessions(&self) -> bool {
        let Some(state) = self.state() else { return false };
        let Ok(mut sessions) = fs::read_dir(state.join("sessions")) else { return false };
        sessions
            .any(|entry| entry.is_ok_and(|entry| entry.path().extension().is_some_and(|kind| kind == "json")))
    }

    /// Returns whether a server uses the state directory, whatever has become of its socket.
    fn has_server(&self) -> bool {
        let Some(state) = self.state() else { return false };
        // A FIFO would be waited for otherwise.
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let lock = rustix::fs::open(state.join("server.lock"), flags, Mode::empty());
        let in_use = Err(rustix::io::Errno::WOULDBLOCK);
        lock.is_ok_and(|lock| rustix::fs::flock(&lock, FlockOperation::NonBlockingLockShared) == in_use)
    }

    /// Returns the log file of the server.
    pub(crate) fn log(&self) -> PathBuf {
        self.directory().join("own.log")
    }

    /// Creates the directory, and checks that only this user can write to it.
    fn prepare(&self) -> Result<(), Failure> {
        let directory = self.directory();
        let made = DirBuilder::new().recursive(true).mode(0o700).create(directory);
        made.map_err(|error| Failure::io(&format!("create `{}`", directory.display()), &error))?;
        self.check()
    }

    /// Checks that only this user can write to the directory.
    pub(crate) fn check(&self) -> Result<(), Failure> {
        let directory = self.directory();
        let metadata = fs::symlink_metadata(directory)
            .map_err(|error| Failure::io(&format!("inspect `{}`", directory.display()), &error))?;
        let safe = metadata.is_dir()
            && metadata.uid() == rustix::process::geteuid().as_raw()
            && metadata.mode() & 0o077 == 0;
        if safe {
            return Ok(());
        }
        Err(Failure::new(
            format!("cannot trust `{}`", directory.display()),
            "remove it, or `chmod 700` it if it is yours",
        )
        .because("it is not a private directory of yours"))
    }
}

/// Whether the server is running.
#[derive(Debug)]
pub(crate) enum ServerStatus {
    Running(Socket),
    /// No socket: the server was never started, or exited normally.
    Nothing,
    /// A stale socket: the server died before it could remove it.
    Died,
}

/// Explains a stale socket.
pub(crate) fn died() -> &'static str {
    if Socket::default_path().has_left_sessions() {
        "your local remex server died: it was killed, it crashed, or the machine restarted; its processes and their output were \
         kept, and the next command continues with them"
    } else {
        "your local remex server died: it was killed, it crashed, or the machine restarted; it ran no processes that survive it"
    }
}

/// Returns whether the server is running.
///
/// Somebody who cleans up may delete the socket of one that runs; it then listens again within a second.
pub(crate) async fn find() -> Result<ServerStatus, Failure> {
    let socket = Socket::default_path();
    let deadline = Instant::now() + REBIND_PATIENCE;
    loop {
        match look(socket.clone()).await? {
            ServerStatus::Nothing if socket.has_server() && Instant::now() < deadline => {
                tokio::time::sleep(REBIND_PAUSE).await;
            }
            found => return Ok(found),
        }
    }
}

async fn look(socket: Socket) -> Result<ServerStatus, Failure> {
    if !socket.directory().exists() {
        return Ok(ServerStatus::Nothing);
    }
    socket.check()?;
    probe(socket).await
}

/// Returns the socket of the server if it is running, or if there is something to continue with; `None` otherwise.
pub(crate) async fn running() -> Result<Option<Socket>, Failure> {
    match find().await? {
        ServerStatus::Running(socket) => Ok(Some(socket)),
        ServerStatus::Nothing | ServerStatus::Died if Socket::default_path().has_left_sessions() => {
            ensure_running().await.map(Some)
        }
        ServerStatus::Nothing | ServerStatus::Died => Ok(None),
    }
}

/// Returns the failure for a server that is not running; explains if the last one died.
pub(crate) async fn not_running() -> Failure {
    if let Err(failure) = local_server::check() {
        return failure;
    }
    match find().await {
        Ok(ServerStatus::Died) => Failure::of(
            Kind::NotFound,
            died(),
            format!(
                "start your processes again with `remex run --detach -- COMMAND`; see the log `{}`",
                Socket::default_path().log().display()
            ),
        ),
        Ok(_) => Failure::of(
            Kind::NotFound,
            "your local remex server is not running",
            "start a background process with `remex run --detach -- COMMAND`, or choose another server with `--on`",
        ),
        Err(failure) => failure,
    }
}

/// Returns the process that listens on the socket.
///
/// The kernel reports the process that called `listen`; for socket activation that is systemd, which must not be killed.
pub(crate) async fn process(socket: &Socket) -> Result<Pid, Failure> {
    // Fails at once if the backlog of a hanging server is full.
    let peer = UnixStream::connect(&socket.path)
        .await
        .and_then(|connection| connection.peer_cred())
        .map_err(|error| Failure::io("find the process of your local remex server", &error))?;
    let pid = peer.pid().and_then(Pid::from_raw);
    let line = pid.and_then(|pid| fs::read(format!("/proc/{}/cmdline", pid.as_raw_nonzero())).ok());
    let line = line.unwrap_or_default();
    let mut words = line.split(|byte| *byte == 0);
    let is_server = words.nth(1).is_some_and(|word| word == b"serve" || word == b"exec-server");
    if let Some(pid) = pid.filter(|_| is_server && peer.uid() == rustix::process::geteuid().as_raw()) {
        return Ok(pid);
    }
    Err(Failure::of(
        Kind::Failed,
        "cannot find the process of your local remex server",
        "stop its unit, such as with `systemctl --user stop remex.service`",
    )
    .because("its socket was created by systemd or another program"))
}

/// Returns the failure for a server that does not respond.
pub(crate) async fn not_answering(socket: &Socket, error: Error) -> Failure {
    let failure = Failure::from(error);
    let why = failure.message();
    match process(socket).await {
        Ok(pid) => {
            let pid = pid.as_raw_nonzero();
            Failure::of(
                Kind::Unreachable,
                format!("your local remex server (pid {pid}) does not respond"),
                format!(
                    "if it is suspended, `kill -CONT {pid}` resumes it; after `kill -KILL {pid}` the next command \
                     continues with what runs on it"
                ),
            )
            .because(why)
        }
        Err(_) => Failure::of(
            Kind::Unreachable,
            format!("your local remex server at `{}` does not respond", socket.path.display()),
            "try again; if that does not help, restart its unit or kill its process",
        )
        .because(why),
    }
}

/// Returns the socket of the server, and starts it if necessary.
pub(crate) async fn ensure_running() -> Result<Socket, Failure> {
    local_server::check()?;
    if let ServerStatus::Running(socket) = find().await? {
        return Ok(socket);
    }
    let socket = Socket::default_path();
    socket.prepare()?;
    // Serialize concurrent starts.
    let lock = socket.clone();
    let held = tokio::task::spawn_blocking(move || self::lock(&lock)).await;
    let _held = held.map_err(|error| {
        Failure::new("cannot start your local remex server", "try again").because(error.to_string())
    })??;
    let found = probe(socket.clone()).await?;
    if let ServerStatus::Died = found {
        print::note(died());
    }
    if !matches!(found, ServerStatus::Running(_)) {
        let starting = socket.clone();
        let started = tokio::task::spawn_blocking(move || start(&starting)).await;
        started.map_err(|error| {
            Failure::new("cannot start your local remex server", "try again").because(error.to_string())
        })??;
    }
    Ok(socket)
}

async fn probe(socket: Socket) -> Result<ServerStatus, Failure> {
    match UnixStream::connect(&socket.path).await {
        Ok(_) => Ok(ServerStatus::Running(socket)),
        Err(error) => match error.kind() {
            io::ErrorKind::NotFound => Ok(ServerStatus::Nothing),
            io::ErrorKind::ConnectionRefused => Ok(ServerStatus::Died),
            io::ErrorKind::InvalidInput => Err(Failure::new(
                "cannot use your local remex server",
                "set XDG_RUNTIME_DIR to a shorter path",
            )
            .because(format!("its socket path is too long: `{}`", socket.path.display()))),
            _ => {
                let action = format!("connect to your local remex server at `{}`", socket.path.display());
                Err(Failure::io(&action, &error))
            }
        },
    }
}

/// Waits for the start lock, which is released with the file.
fn lock(socket: &Socket) -> Result<File, Failure> {
    let path = socket.directory().join("own.lock");
    let action = format!("lock `{}`", path.display());
    let file = OpenOptions::new().create(true).append(true).mode(0o600).open(&path);
    let file = file.map_err(|error| Failure::io(&action, &error))?;
    rustix::fs::flock(&file, FlockOperation::LockExclusive)
        .map_err(|error| Failure::io(&action, &error.into()))?;
    Ok(file)
}

/// Returns the flag that makes processes survive the server, unless there is no place for them.
fn state_flag(socket: &Socket) -> Vec<OsString> {
    let Some(state) = socket.state() else {
        print::note("processes end with your local remex server: you have no home directory to keep them in");
        return Vec::new();
    };
    if let Err(error) = DirBuilder::new().recursive(true).mode(0o700).create(&state) {
        let state = state.display();
        print::note(format!("processes end with your local remex server: cannot create `{state}`: {error}"));
        return Vec::new();
    }
    vec!["--state".into(), state.into()]
}

fn start(socket: &Socket) -> Result<(), Failure> {
    let log = socket.log();
    let trouble = |error: &io::Error| Failure::io("start your local remex server", error);
    let file = OpenOptions::new().create(true).write(true).truncate(true).mode(0o600).open(&log);
    let file = file.map_err(|error| trouble(&error))?;
    let home = std::env::var_os("HOME").map(PathBuf::from).filter(|home| home.is_dir());
    let mut child = Command::new(std::env::current_exe().map_err(|error| trouble(&error))?)
        .args([
            "serve",
            "--background=fork",
            "--max-detach-ttl",
            "forever",
            "--exit-when-idle",
            IDLE_TIMEOUT,
            "--listen",
        ])
        .arg(format!("unix://{}", socket.path.display()))
        .args(state_flag(socket))
        .current_dir(home.unwrap_or_else(|| PathBuf::from("/")))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(file)
        .spawn()
        .map_err(|error| trouble(&error))?;
    let mut announced = String::new();
    let stdout = child.stdout.take();
    // Waits for the intermediate process, which exits once it has started the server.
    child.wait().map_err(|error| trouble(&error))?;
    if let Some(stdout) = stdout {
        io::BufReader::new(stdout).read_line(&mut announced).map_err(|error| trouble(&error))?;
    }
    if !announced.is_empty() {
        return Ok(());
    }
    let said = fs::read_to_string(&log).unwrap_or_default();
    let reason = said.lines().next().unwrap_or("it logged nothing; its disk may be full");
    Err(Failure::of(
        Kind::Unreachable,
        "your local remex server did not start",
        format!("see `{}`", log.display()),
    )
    .because(reason.trim_start_matches("remex: ")))
}
