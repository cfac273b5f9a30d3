//! The program under test, as a child of the test.

use std::{
    fs,
    io::{BufRead as _, BufReader, Read},
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    process::{Child, ChildStdin, Command, ExitStatus, Stdio},
    sync::{
        Mutex, PoisonError,
        mpsc::{Receiver, channel},
    },
    thread,
    time::Duration,
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal},
};
use tempfile::TempDir;

use super::{Client, PATIENCE, Reader, default_signals};

/// Returns the command `remex` with these arguments.
pub(crate) fn program(arguments: &[&str]) -> Command {
    default_signals();
    let mut command = Command::new(env!("CARGO_BIN_EXE_remex"));
    // What tests ask for over HTTP is on this machine, whatever proxies it has.
    command.args(arguments).env("no_proxy", "*").stdin(Stdio::null());
    command
}

/// Returns the command `remex` as [`program`], where no user namespace may be created; arguments follow.
pub(crate) fn without_namespaces() -> Command {
    const FORBID: &str = "echo 0 > /proc/sys/user/max_user_namespaces && exec \"$@\"";
    default_signals();
    let mut command = Command::new("unshare");
    command.args(["-r", "sh", "-c", FORBID, "sh", env!("CARGO_BIN_EXE_remex")]);
    command.env("no_proxy", "*").stdin(Stdio::null());
    command
}

/// A running server; killed when dropped.
pub(crate) struct Server {
    child: Child,
    watched: Watched,
    stdout: Lines,
    stderr: Lines,
    addresses: Vec<String>,
    /// Where a unix socket or the program itself lives.
    directory: Option<TempDir>,
}

impl Server {
    /// Starts one server for each transport, and connects to it.
    pub(crate) fn on_every_transport() -> [(&'static str, Self, Client); 3] {
        let (websocket, unix, (stdio, client)) = (Self::start(), Self::unix(&[]), Self::stdio(&[]));
        let (over_websocket, over_unix) = (websocket.connect(), unix.connect());
        [("websocket", websocket, over_websocket), ("unix", unix, over_unix), ("stdio", stdio, client)]
    }

    /// Runs a test on a server with a WebSocket and on one with a Unix socket, both at the same time.
    pub(crate) fn on_websocket_and_unix(test: impl Fn(Self) + Sync) {
        thread::scope(|scope| {
            scope.spawn(|| test(Self::start()));
            test(Self::unix(&[]));
        });
    }

    /// Starts `remex serve` on a WebSocket with a port of its own.
    pub(crate) fn start() -> Self {
        Self::serve(&[])
    }

    /// Starts `remex serve` with these flags, and waits for the address of each listener on stdout.
    pub(crate) fn serve(flags: &[&str]) -> Self {
        let listeners = flags.iter().filter(|flag| **flag == "--listen").count().max(1);
        let mut command = program(&[&["serve"], flags].concat());
        command.stdin(Stdio::null());
        Self::launch(command, listeners)
    }

    /// Starts `remex serve` on a unix socket in a directory of its own, with further flags.
    pub(crate) fn unix(flags: &[&str]) -> Self {
        let directory = tempfile::tempdir().expect("a directory can be made");
        let address = format!("unix://{}", directory.path().join("remex.sock").display());
        let mut server = Self::serve(&[&["--listen", &address], flags].concat());
        server.directory = Some(directory);
        server
    }

    /// Starts a prepared command, and waits for this many addresses on stdout.
    pub(crate) fn launch(command: Command, listeners: usize) -> Self {
        let mut server = Self::spawn(command);
        server.stdout = Lines::of(server.child.stdout.take().expect("stdout is piped"));
        server.addresses = (0..listeners)
            .map(|_| {
                server
                    .stdout
                    .next()
                    .unwrap_or_else(|| panic!("no address on stdout: {}", server.stderr.rest()))
            })
            .collect();
        server
    }

    /// Starts `remex serve --listen stdio` with further flags, and connects to it.
    pub(crate) fn stdio(flags: &[&str]) -> (Self, Client) {
        Self::launch_stdio(program(&[&["serve", "--listen", "stdio"], flags].concat()))
    }

    /// Starts a prepared command that speaks on its standard streams, and connects to it.
    pub(crate) fn launch_stdio(mut command: Command) -> (Self, Client) {
        command.stdin(Stdio::piped());
        let mut server = Self::spawn(command);
        let stdin = server.child.stdin.take().expect("stdin is piped");
        let stdout = server.child.stdout.take().expect("stdout is piped");
        (server, Client::over_stdio(stdin, stdout))
    }

    /// Starts `remex serve --listen stdio` with further flags, and connects to it with a client that reads only when the
    /// test does.
    pub(crate) fn stdio_reader(flags: &[&str]) -> (Self, Reader) {
        let mut command = program(&[&["serve", "--listen", "stdio"], flags].concat());
        command.stdin(Stdio::piped());
        let mut server = Self::spawn(command);
        let stdin = server.child.stdin.take().expect("stdin is piped");
        let stdout = server.child.stdout.take().expect("stdout is piped");
        (server, Reader::over_stdio(stdin, stdout))
    }

    fn spawn(mut command: Command) -> Self {
        default_signals();
        let mut child = command
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap_or_else(|error| panic!("cannot start {command:?}: {error}"));
        let watched = Watched::new(Pid::from_child(&child));
        let stderr = Lines::of(child.stderr.take().expect("stderr is piped"));
        Self {
            child,
            watched,
            stdout: Lines::of(std::io::empty()),
            stderr,
            addresses: Vec::new(),
            directory: None,
        }
    }

    /// Keeps a directory until the server has ended.
    pub(crate) fn keep(&mut self, directory: TempDir) {
        self.directory = Some(directory);
    }

    /// Returns the address of the first listener.
    pub(crate) fn address(&self) -> &str {
        &self.addresses[0]
    }

    /// Returns the addresses of all listeners.
    pub(crate) fn addresses(&self) -> &[String] {
        &self.addresses
    }

    /// Opens a connection to the first listener.
    pub(crate) fn connect(&self) -> Client {
        Client::connect(self.address())
    }

    /// Opens a connection and shakes hands.
    pub(crate) fn client(&self) -> Client {
        let client = self.connect();
        client.initialize();
        client
    }

    /// Returns the memory that the server has in use.
    pub(crate) fn resident_bytes(&self) -> u64 {
        self.memory("VmRSS:")
    }

    /// Returns the most memory that the server ever had in use.
    pub(crate) fn peak_bytes(&self) -> u64 {
        self.memory("VmHWM:")
    }

    fn memory(&self, field: &str) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid())).expect("the server runs");
        let line = status.lines().find(|line| line.starts_with(field)).expect("Linux tells the memory");
        let kib: u64 =
            line.split_whitespace().nth(1).and_then(|kib| kib.parse().ok()).expect("memory is a number");
        kib * 1024
    }

    /// Returns the process id.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Takes the pipe to the server's stdin.
    pub(crate) fn take_stdin(&mut self) -> ChildStdin {
        self.child.stdin.take().expect("stdin is piped")
    }

    /// Waits for the next line on stderr that contains `part`.
    pub(crate) fn stderr_line(&self, part: &str) -> String {
        let mut others = Vec::new();
        loop {
            match self.stderr.next() {
                Some(line) if line.contains(part) => return line,
                Some(line) => others.push(line),
                None => panic!("stderr ended without `{part}`: {others:?}"),
            }
        }
    }

    pub(crate) fn signal(&self, signal: Signal) {
        self.watched.signal(signal);
    }

    /// Waits for the end and returns how it ended.
    pub(crate) fn wait(&mut self) -> Finished {
        assert!(
            self.watched.ended_within(PATIENCE),
            "the server does not end: {}",
            self.stderr.rest_so_far()
        );
        let status = self.child.wait().expect("a child can be waited for");
        Finished { status, stdout: self.stdout.rest(), stderr: self.stderr.rest() }
    }

    /// Ends the server with SIGTERM and checks that it went in order.
    pub(crate) fn stop(mut self) -> Finished {
        self.signal(Signal::TERM);
        let finished = self.wait();
        assert_eq!(finished.status.code(), Some(0), "SIGTERM ends in order: {finished:?}");
        finished
    }
}

impl Drop for Server {
    #[allow(clippy::print_stderr, reason = "what the server said explains why a test failed")]
    fn drop(&mut self) {
        if !self.watched.ended_within(Duration::ZERO) {
            // In order first, so that the processes of a failed test end too.
            self.signal(Signal::TERM);
            if !self.watched.ended_within(Duration::from_secs(5)) {
                self.signal(Signal::KILL);
            }
        }
        let _ = self.child.wait();
        if thread::panicking() {
            eprintln!("stderr of the server:\n{}", self.stderr.rest());
        }
    }
}

/// How a program ended and what was left to read.
#[derive(Debug)]
pub(crate) struct Finished {
    pub(crate) status: ExitStatus,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Finished {
    pub(crate) fn code(&self) -> Option<i32> {
        self.status.code()
    }
}

/// Runs `remex` with these arguments until it ends by itself.
pub(crate) fn finish(arguments: &[&str]) -> Finished {
    let mut command = program(arguments);
    command.stdin(Stdio::null());
    finish_command(command)
}

/// Runs a prepared command until it ends by itself.
pub(crate) fn finish_command(command: Command) -> Finished {
    let mut server = Server::spawn(command);
    server.stdout = Lines::of(server.child.stdout.take().expect("stdout is piped"));
    server.wait()
}

/// A process that is watched through a descriptor, so that its number cannot come to mean another.
pub(crate) struct Watched(OwnedFd);

impl Watched {
    pub(crate) fn new(pid: Pid) -> Self {
        Self(
            pidfd_open(pid, PidfdFlags::empty())
                .unwrap_or_else(|error| panic!("no process {pid:?}: {error}")),
        )
    }

    /// Watches a process that may have ended.
    pub(crate) fn find(pid: Pid) -> Option<Self> {
        pidfd_open(pid, PidfdFlags::empty()).ok().map(Self)
    }

    /// Watches all processes that hold the other end of a pipe open.
    #[allow(dead_code, reason = "not every test program has confined processes")]
    pub(crate) fn holders_of(pipe: OwnedFd) -> Self {
        Self(pipe)
    }

    /// Watches the process with a printed pid.
    pub(crate) fn printed(pid: &str) -> Self {
        let pid = pid.trim().parse().ok().and_then(Pid::from_raw);
        Self::new(pid.expect("a process id is a positive number"))
    }

    pub(crate) fn signal(&self, signal: Signal) {
        // A process that has ended meanwhile is what most signals are meant to bring about.
        let _ = pidfd_send_signal(&self.0, signal);
    }

    /// Tells whether the process has ended, waiting at most this long.
    pub(crate) fn ended_within(&self, patience: Duration) -> bool {
        let patience = Timespec::try_from(patience).expect("a minute is not too long");
        let mut watched = [PollFd::new(&self.0, PollFlags::IN)];
        poll(&mut watched, Some(&patience)).expect("a process descriptor can be polled") > 0
    }

    /// Fails the test unless the process ends.
    pub(crate) fn assert_ends(&self) {
        assert!(self.ended_within(PATIENCE), "the process does not end");
    }
}

impl AsFd for Watched {
    /// Becomes readable when the process ends.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// The lines of a stream, read in the background so that the writer never blocks.
struct Lines(Mutex<Receiver<String>>);

impl Lines {
    fn of(stream: impl Read + Send + 'static) -> Self {
        let (send, receive) = channel();
        thread::spawn(move || {
            let mut stream = BufReader::new(stream);
            let mut line = Vec::new();
            while stream.read_until(b'\n', &mut line).is_ok_and(|len| len > 0) {
                let text = String::from_utf8_lossy(&line);
                if send.send(text.strip_suffix('\n').unwrap_or(&text).to_owned()).is_err() {
                    return;
                }
                line.clear();
            }
        });
        Self(Mutex::new(receive))
    }

    /// Waits for the next line; none at the end of the stream.
    fn next(&self) -> Option<String> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).recv_timeout(PATIENCE).ok()
    }

    /// Waits for the end of the stream and returns what is left.
    fn rest(&self) -> String {
        let lines = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let rest: Vec<_> = std::iter::from_fn(|| lines.recv_timeout(PATIENCE).ok()).collect();
        rest.join("\n")
    }

    /// Returns what has arrived, without waiting.
    fn rest_so_far(&self) -> String {
        let lines = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        lines.try_iter().collect::<Vec<_>>().join("\n")
    }
}
