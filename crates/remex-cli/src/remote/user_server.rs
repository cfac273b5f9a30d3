//! The user's local server: one per user, machine and directory of states, on a socket in a runtime directory, started on
//! demand.
//!
//! Background processes run on it. It keeps them in a state directory, where they survive it: the next command that needs
//! it starts a new one. A program with another runtime directory, such as one that cron starts, finds the server by that
//! state directory. Start at [`ensure_running`].

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
    fs::{Access, FlockOperation, access},
    process::Pid,
};
use tokio::net::UnixStream;

use crate::{
    remote::{
        local_server,
        lock_holder::{Found, holder},
    },
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

/// How long a new server may take to announce its sockets after it listens.
const SAY_PATIENCE: Duration = Duration::from_secs(10);

/// The socket of the server, and where it keeps processes and sessions that survive it.
#[derive(Clone, Debug)]
pub(crate) struct Socket {
    pub(crate) path: PathBuf,
    /// `None` for a user without a home.
    state: Option<PathBuf>,
}

impl Socket {
    /// Returns where the server is: that of this runtime directory, or another one that this user already has here.
    pub(crate) fn default_path() -> Self {
        let usual = Self::usual();
        let others = || usual.other_states().into_iter();
        if usual.has_server() {
            // It may have been started for another runtime directory, and continue what that of this one left.
            return usual.state().and_then(|state| usual.running_in(&state)).unwrap_or(usual);
        }
        // A keeper runs durable processes, which the next server continues.
        if usual.state().is_some_and(|state| {
            matches!(holder(&state.join("keeper.lock")), Ok(Found::By(_) | Found::Starting))
        }) {
            return usual;
        }
        if let Some(running) = others().find_map(|state| usual.running_in(&state)) {
            return running;
        }
        if usual.has_left_sessions() {
            return usual;
        }
        // The next server continues there, on a socket where this program would look for it.
        let left = others()
            .map(|state| Self { path: usual.path.clone(), state: Some(state) })
            .find(Self::has_left_sessions);
        left.unwrap_or(usual)
    }

    /// Returns where the first server of this user is, with this runtime directory.
    fn usual() -> Self {
        let runtime = runtime_directory();
        let directory = runtime.map_or_else(temporary_directory, |runtime| runtime.join("remex"));
        let state = states().map(|states| states.join(state_name(&directory)));
        Self { path: directory.join("own.sock"), state }
    }

    /// Returns the state directories of servers that were started with other runtime directories.
    fn other_states(&self) -> Vec<PathBuf> {
        let Some(Ok(states)) = states().map(fs::read_dir) else { return Vec::new() };
        let mut found: Vec<_> = states.flatten().map(|entry| entry.path()).collect();
        found.retain(|path| path.is_dir() && Some(path) != self.state.as_ref());
        // The order in which a directory is listed is arbitrary.
        found.sort();
        found
    }

    /// Returns whether a server that was started with another runtime directory has not announced its socket yet.
    fn has_starting_neighbour(&self) -> bool {
        self.other_states().iter().any(|state| match holder(&state.join("server.lock")) {
            Ok(Found::By(found)) => found.server.is_none(),
            Ok(Found::Starting) => true,
            Ok(Found::Nobody) | Err(_) => false,
        })
    }

    /// Returns the server that uses a state directory, if this user's commands can reach it; this socket is preferred.
    fn running_in(&self, state: &Path) -> Option<Self> {
        let Ok(Found::By(found)) = holder(&state.join("server.lock")) else { return None };
        let mut said = found.server.map(|server| server.sockets).unwrap_or_default();
        said.sort_by_key(|path| *path != self.path);
        // An older server does not announce its socket, but there are few candidates.
        let run = PathBuf::from(format!("/run/user/{}/remex", rustix::process::geteuid().as_raw()));
        let places = [run, temporary_directory()].into_iter();
        let likely = places.filter(|place| state.ends_with(state_name(place)));
        let paths = said.into_iter().chain(likely.map(|place| place.join("own.sock")));
        let sockets = paths.map(|path| Self { path, state: Some(state.to_owned()) });
        sockets.into_iter().find(|socket| socket.check().is_ok())
    }

    pub(crate) fn directory(&self) -> &Path {
        self.path.parent().unwrap_or(Path::new("/"))
    }

    /// Returns where the server keeps processes and sessions that survive it; `None` for a user without a home.
    pub(crate) fn state(&self) -> Option<PathBuf> {
        self.state.clone()
    }

    /// Returns whether an earlier server has left sessions that a new one would restore.
    pub(crate) fn has_left_sessions(&self) -> bool {
        let Some(state) = self.state() else { return false };
        let Ok(mut sessions) = fs::read_dir(state.join("sessions")) else { return false };
        sessions
            .any(|entry| entry.is_ok_and(|entry| entry.path().extension().is_some_and(|kind| kind == "json")))
    }

    /// Returns whether a server uses the state directory, whatever has become of its socket.
    fn has_server(&self) -> bool {
        let Some(state) = &self.state else { return false };
        matches!(holder(&state.join("server.lock")), Ok(Found::By(_) | Found::Starting))
    }

    /// Returns the log file of the server.
    pub(crate) fn log(&self) -> PathBuf {
        self.directory().join("own.log")
    }

    /// Creates the directory, and checks that only this user can write to it.
    fn prepare(&self) -> Result<(), Failure> {
        let directory = self.directory();
        let made = DirBuilder::new().recursive(true).mode(0o700).create(directory);
        made.map_err(|error| {
            let failure = Failure::io(&format!("create `{}`", directory.display()), &error);
            match runtime_directory() {
                Some(_) => failure.with_hint("set XDG_RUNTIME_DIR to a directory of yours, or unset it"),
                None => failure,
            }
        })?;
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

/// Returns the runtime directory of the user's login.
fn runtime_directory() -> Option<PathBuf> {
    absolute("XDG_RUNTIME_DIR")
}

/// Returns where the socket is without a runtime directory.
fn temporary_directory() -> PathBuf {
    PathBuf::from(format!("/tmp/remex-{}", rustix::process::geteuid().as_raw()))
}

/// Returns where the state directories of this user's servers on this host are; a home may be shared by hosts.
fn states() -> Option<PathBuf> {
    let home = || absolute("HOME").map(|home| home.join(".local/state"));
    let states = absolute("XDG_STATE_HOME").or_else(home)?;
    let host = rustix::system::uname().nodename().to_string_lossy().replace('/', "-");
    Some(states.join("remex").join(host))
}

/// Returns the name of the state directory of a server whose socket is in `directory`.
fn state_name(directory: &Path) -> String {
    directory.display().to_string().trim_matches('/').replace('/', "-")
}

fn absolute(variable: &str) -> Option<PathBuf> {
    std::env::var_os(variable).map(PathBuf::from).filter(|path| path.is_absolute())
}

/// Refuses the runtime directory of another user, which `su` and `sudo` may pass on.
pub(crate) fn check_runtime_directory() -> Result<(), Failure> {
    let Some(runtime) = runtime_directory() else { return Ok(()) };
    let Ok(metadata) = fs::metadata(&runtime) else { return Ok(()) };
    let (owner, own) = (metadata.uid(), rustix::process::geteuid().as_raw());
    // On some systems it is the same for all users, such as `/tmp`.
    let is_shared = owner == 0 && access(&runtime, Access::WRITE_OK | Access::EXEC_OK).is_ok();
    if owner == own || is_shared {
        return Ok(());
    }
    Err(Failure::new(
        "cannot use your local remex server",
        "`unset XDG_RUNTIME_DIR`, or log in with `su - USER` or `sudo -i`",
    )
    .because(format!(
        "XDG_RUNTIME_DIR is `{}`, which belongs to user {owner} and not to you (user {own}), as after `su`",
        runtime.display()
    )))
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
pub(crate) fn explain_stale_socket() -> &'static str {
    if Socket::default_path().has_left_sessions() {
        "your local remex server died: it was killed, it crashed, or the machine restarted; its processes and their output were \
         kept, and the next command continues with them"
    } else {
        "your local remex server died: it was killed, it crashed, or the machine restarted; it ran no processes that survive it"
    }
}

/// Returns whether the server is running.
///
/// A cleanup of temporary files may delete the socket of a running server; it then listens again within a second.
pub(crate) async fn find() -> Result<ServerStatus, Failure> {
    check_runtime_directory()?;
    let deadline = Instant::now() + REBIND_PATIENCE;
    loop {
        let socket = Socket::default_path();
        match look(socket.clone()).await? {
            ServerStatus::Nothing
                if (socket.has_server() || socket.has_starting_neighbour()) && Instant::now() < deadline =>
            {
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

/// Returns the socket of the server if it is running or has sessions to restore; `None` otherwise.
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
            explain_stale_socket(),
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
    listening_on(&socket.path).await.map_err(|failure| match failure {
        Missing::Io(error) => Failure::io("find the process of your local remex server", &error),
        Missing::Other => Failure::of(
            Kind::Failed,
            "cannot find the process of your local remex server",
            "stop its unit, such as with `systemctl --user stop remex.service`",
        )
        .because("its socket was created by systemd or another program"),
    })
}

/// Why the process that listens on a socket is not known.
pub(crate) enum Missing {
    Io(io::Error),
    /// Another program has created the socket.
    Other,
}

/// Returns the remex server of this user that listens on a socket.
pub(crate) async fn listening_on(path: &Path) -> Result<Pid, Missing> {
    // Fails at once if the backlog of a hanging server is full.
    let peer =
        UnixStream::connect(path).await.and_then(|connection| connection.peer_cred()).map_err(Missing::Io)?;
    let pid = peer.pid().and_then(Pid::from_raw);
    let line = pid.and_then(|pid| fs::read(format!("/proc/{}/cmdline", pid.as_raw_nonzero())).ok());
    let line = line.unwrap_or_default();
    let mut words = line.split(|byte| *byte == 0);
    let is_server = words.nth(1).is_some_and(|word| word == b"serve" || word == b"exec-server");
    let is_own = is_server && peer.uid() == rustix::process::geteuid().as_raw();
    pid.filter(|_| is_own).ok_or(Missing::Other)
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
    // Another one may have been started meanwhile, for another runtime directory.
    let socket = Socket::default_path();
    socket.prepare()?;
    let found = probe(socket.clone()).await?;
    if let (ServerStatus::Nothing, Some(failure)) = (&found, unreachable(&socket)) {
        return Err(failure);
    }
    if let ServerStatus::Died = found {
        print::note(explain_stale_socket());
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

/// Returns the failure for a server that runs without a socket, which is not coming back.
fn unreachable(socket: &Socket) -> Option<Failure> {
    let state = socket.state.as_ref()?;
    let Ok(Found::By(found)) = holder(&state.join("server.lock")) else { return None };
    let pid = found.pid.as_raw_nonzero();
    let paths = found.server?.sockets;
    let gone = paths.first().filter(|path| !path.exists())?;
    Some(
        Failure::of(
            Kind::Unreachable,
            format!("your local remex server (pid {pid}) runs, but cannot be reached"),
            format!(
                "`kill {pid}`; the next command starts another one, which continues with what runs on it"
            ),
        )
        .because(format!("its socket `{}` is gone", gone.display())),
    )
}

/// The locks that a program holds while it starts the server, released with the files.
struct StartLocks {
    _files: Vec<File>,
}

/// Waits for the start locks: that of the runtime directory, and that of all servers of this user and host.
fn lock(socket: &Socket) -> Result<StartLocks, Failure> {
    let mut files = vec![lock_file(&socket.directory().join("own.lock"))?];
    if let Some(states) = states()
        && DirBuilder::new().recursive(true).mode(0o700).create(&states).is_ok()
    {
        // Without a place that can be written to, servers have no states by which they could be found anyway.
        files.extend(lock_file(&states.join("start.lock")).ok());
    }
    Ok(StartLocks { _files: files })
}

fn lock_file(path: &Path) -> Result<File, Failure> {
    let action = format!("lock `{}`", path.display());
    let file = OpenOptions::new().create(true).append(true).mode(0o600).open(path);
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
    let io_failure = |error: &io::Error| Failure::io("start your local remex server", error);
    let file = OpenOptions::new().create(true).write(true).truncate(true).mode(0o600).open(&log);
    let file = file.map_err(|error| io_failure(&error))?;
    let home = std::env::var_os("HOME").map(PathBuf::from).filter(|home| home.is_dir());
    let mut child = Command::new(std::env::current_exe().map_err(|error| io_failure(&error))?)
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
        .map_err(|error| io_failure(&error))?;
    let mut announced = String::new();
    let stdout = child.stdout.take();
    // Waits for the intermediate process, which exits once it has started the server.
    child.wait().map_err(|error| io_failure(&error))?;
    if let Some(stdout) = stdout {
        io::BufReader::new(stdout).read_line(&mut announced).map_err(|error| io_failure(&error))?;
    }
    if !announced.is_empty() {
        wait_until_said(socket);
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

/// Waits until a listening server has announced its socket, so that programs with another runtime directory find it. Blocks.
fn wait_until_said(socket: &Socket) {
    let Some(state) = &socket.state else { return };
    let deadline = Instant::now() + SAY_PATIENCE;
    let has_said = || match holder(&state.join("server.lock")) {
        Ok(Found::By(found)) => found.server.is_some(),
        Ok(Found::Starting) => false,
        // It has ended already, or has no state directory.
        Ok(Found::Nobody) | Err(_) => true,
    };
    while !has_said() && Instant::now() < deadline {
        std::thread::sleep(REBIND_PAUSE);
    }
}
