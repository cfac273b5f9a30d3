//! A durable server that can be killed and started again in the same place.

use std::{
    fs,
    io::{BufRead as _, BufReader},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use remex_client::{Client, Options, Target};
use rustix::{
    net::{Shutdown, shutdown},
    process::{
        Pid, PidfdFlags, PidfdGetfdFlags, Signal, kill_process, pidfd_getfd, pidfd_open, test_kill_process,
    },
};
use tempfile::TempDir;

use super::{in_time, restarts::poll};
use crate::support::{PATIENCE, program};

/// Makes another command of the usual one and the state directory.
type Wrap = Box<dyn Fn(Command, &Path) -> Command + Send + Sync>;

/// A state directory, a socket, and the server that uses both now.
pub(super) struct DurableHost {
    directory: TempDir,
    flags: Vec<String>,
    /// Changes the command that starts the server.
    wrap: Wrap,
    addresses: Vec<String>,
    server: Option<Child>,
    keeper: Option<Pid>,
}

impl DurableHost {
    pub(super) fn start() -> Self {
        Self::with(&[])
    }

    /// Starts a server with further flags, which all its successors have.
    pub(super) fn with(flags: &[&str]) -> Self {
        let flags = flags.iter().map(|flag| (*flag).to_owned()).collect();
        Self::new(flags, tempfile::tempdir().unwrap(), |command, _| command)
    }

    /// Starts a server with these settings.
    pub(super) fn with_config(text: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("server.toml");
        fs::write(&path, text).unwrap();
        let flags = vec!["--config".to_owned(), path.display().to_string()];
        Self::new(flags, directory, |command, _| command)
    }

    /// Starts a server with a command that `wrap` makes of the usual one and the state directory.
    pub(super) fn launched(wrap: impl Fn(Command, &Path) -> Command + Send + Sync + 'static) -> Self {
        Self::new(Vec::new(), tempfile::tempdir().unwrap(), wrap)
    }

    fn new(
        flags: Vec<String>,
        directory: TempDir,
        wrap: impl Fn(Command, &Path) -> Command + Send + Sync + 'static,
    ) -> Self {
        let mut host = DurableHost {
            directory,
            flags,
            wrap: Box::new(wrap),
            addresses: Vec::new(),
            server: None,
            keeper: None,
        };
        host.launch();
        host
    }

    pub(super) fn state(&self) -> PathBuf {
        self.directory.path().join("state")
    }

    pub(super) fn socket(&self) -> PathBuf {
        self.directory.path().join("remex.sock")
    }

    pub(super) fn address(&self) -> String {
        format!("unix://{}", self.socket().display())
    }

    /// Returns where else it listens.
    pub(super) fn other_address(&self) -> &str {
        &self.addresses[1]
    }

    /// Starts a server, and waits until it listens.
    pub(super) fn launch(&mut self) {
        let (state, address) = (self.state(), self.address());
        let mut command = program(&["serve", "--listen", &address, "--state", state.to_str().unwrap()]);
        command.args(&self.flags);
        let mut command = (self.wrap)(command, &state);
        let log = fs::OpenOptions::new().create(true).append(true).open(self.log()).unwrap();
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(log);
        let mut server = command.spawn().unwrap();
        let mut stdout = BufReader::new(server.stdout.take().unwrap());
        let listeners = 1 + self.flags.iter().filter(|flag| *flag == "--listen").count();
        self.addresses = (0..listeners)
            .map(|_| {
                let mut line = String::new();
                stdout.read_line(&mut line).unwrap();
                line.trim().to_owned()
            })
            .collect();
        assert_eq!(self.addresses[0], address, "{}", self.said());
        // The server may see another file system there.
        let lock = format!("/proc/{}/root{}/keeper.lock", server.id(), state.display());
        let keeper = fs::read_to_string(lock).unwrap();
        self.keeper = Pid::from_raw(keeper.trim().parse().unwrap());
        self.server = Some(server);
    }

    /// Gives other flags to the servers that are started from now on.
    pub(super) fn set_flags(&mut self, flags: &[&str]) {
        self.flags = flags.iter().map(|flag| (*flag).to_owned()).collect();
    }

    /// Kills the server with SIGKILL.
    pub(super) fn kill(&mut self) {
        let mut server = self.server.take().unwrap();
        server.kill().unwrap();
        server.wait().unwrap();
    }

    /// Ends the server with SIGTERM.
    pub(super) fn stop(&mut self) {
        let mut server = self.server.take().unwrap();
        kill_process(Pid::from_child(&server), Signal::TERM).unwrap();
        let status = server.wait().unwrap();
        assert!(status.success(), "{status}: {}", self.said());
    }

    /// Starts a server whose program can be renewed, and which may have this many open files, as may its keeper.
    pub(super) fn renewable_with_files(files: u32) -> Self {
        let mut host = Self::renewable(&[]);
        host.stop();
        let renewable = std::mem::replace(&mut host.wrap, Box::new(|command, _| command));
        host.wrap = Box::new(move |command, state| {
            let command = renewable(command, state);
            let mut limited = Command::new("/bin/sh");
            limited.args(["-c", &format!("ulimit -n {files}; exec \"$@\""), "sh"]);
            limited.arg(command.get_program()).args(command.get_args());
            limited.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
            limited
        });
        // A keeper has the limits of the server that starts it; this one has nothing to keep.
        poll("the end of the keeper", || test_kill_process(host.keeper()).is_err());
        host.launch();
        host
    }

    /// Starts a server whose program can be renewed.
    pub(super) fn renewable(flags: &[&str]) -> Self {
        let flags = flags.iter().map(|flag| (*flag).to_owned()).collect();
        let directory = tempfile::tempdir().unwrap();
        let own = directory.path().join("remex");
        // By another process: a file that this one writes cannot be executed while a child of another test has a copy of
        // the descriptor.
        let copied = Command::new("cp").arg(program(&[]).get_program()).arg(&own).status().unwrap();
        assert!(copied.success(), "cannot copy the program: {copied}");
        Self::new(flags, directory, move |command, _| {
            let mut renewable = Command::new(&own);
            renewable.args(command.get_args());
            renewable.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
            renewable
        })
    }

    /// Changes the program on disk as far as anybody can tell who does not run it.
    pub(super) fn renew(&self) {
        let file = fs::File::open(self.directory.path().join("remex")).unwrap();
        file.set_modified(std::time::SystemTime::now()).unwrap();
    }

    /// Returns how often the keeper has gone on with another program.
    pub(super) fn replaced_keepers(&self) -> usize {
        let log = fs::read_to_string(self.state().join("keeper.log")).unwrap();
        log.matches("continuing as the keeper after the upgrade").count()
    }

    /// Has the server read other settings; only for one that was started with some.
    pub(super) fn reload(&self, text: &str) {
        fs::write(self.directory.path().join("server.toml"), text).unwrap();
        kill_process(Pid::from_child(self.server.as_ref().unwrap()), Signal::HUP).unwrap();
    }

    /// Has the server replaced by the program on disk, which goes on with its sockets as the same process.
    pub(super) fn upgrade(&self) {
        kill_process(Pid::from_child(self.server.as_ref().unwrap()), Signal::USR2).unwrap();
    }

    /// Returns the process of the server.
    pub(super) fn server(&self) -> Pid {
        Pid::from_child(self.server.as_ref().unwrap())
    }

    /// Returns the program of a renewable server.
    pub(super) fn own_program(&self) -> PathBuf {
        self.directory.path().join("remex")
    }

    /// Puts a script in the place of the program.
    pub(super) fn replace_program(&self, script: &str) {
        let new = self.directory.path().join("new");
        let mut write = Command::new("sh");
        write.args(["-c", "printf %s \"$1\" > \"$2\" && chmod 700 \"$2\"", "sh", script]).arg(&new);
        let written = write.status().unwrap();
        assert!(written.success(), "cannot write a script: {written}");
        fs::rename(new, self.own_program()).unwrap();
    }

    /// Returns how many files the server has open.
    pub(super) fn open_files(&self) -> usize {
        fs::read_dir(format!("/proc/{}/fd", self.server.as_ref().unwrap().id())).unwrap().count()
    }

    /// Returns the state directory as the server sees it.
    pub(super) fn state_of_server(&self) -> PathBuf {
        let server = self.server.as_ref().unwrap().id();
        PathBuf::from(format!("/proc/{server}/root{}", self.state().display()))
    }

    pub(super) fn keeper(&self) -> Pid {
        self.keeper.unwrap()
    }

    /// Cuts the connection between server and keeper, both of which go on; returns whether there was one.
    pub(super) fn cut_link(&self) -> bool {
        let keeper = self.keeper().as_raw_nonzero();
        let sockets = fs::read_to_string(format!("/proc/{keeper}/net/unix")).unwrap();
        // The state of a socket that is connected is 3.
        let connected =
            sockets.lines().map(|line| line.split_whitespace().collect::<Vec<_>>()).filter(|fields| {
                fields.get(5) == Some(&"03")
                    && fields.get(7).is_some_and(|path| path.ends_with("/keeper.sock"))
            });
        let names: Vec<_> = connected.map(|fields| format!("socket:[{}]", fields[6])).collect();
        let process = pidfd_open(self.keeper(), PidfdFlags::empty()).unwrap();
        let mut is_cut = false;
        for entry in fs::read_dir(format!("/proc/{keeper}/fd")).unwrap().flatten() {
            let target = fs::read_link(entry.path()).unwrap_or_default();
            if names.iter().any(|name| target == Path::new(name)) {
                let number = entry.file_name().to_str().unwrap().parse().unwrap();
                let Ok(socket) = pidfd_getfd(&process, number, PidfdGetfdFlags::empty()) else { continue };
                is_cut |= shutdown(&socket, Shutdown::Both).is_ok();
            }
        }
        is_cut
    }

    pub(super) fn log(&self) -> PathBuf {
        self.directory.path().join("server.log")
    }

    /// Returns what server and keeper have logged.
    pub(super) fn said(&self) -> String {
        let read = |path: PathBuf| fs::read_to_string(path).unwrap_or_default();
        format!("server:\n{}\nkeeper:\n{}", read(self.log()), read(self.state().join("keeper.log")))
    }

    pub(super) async fn connect(&self, options: Options) -> Client {
        let connecting = Client::connect_with(Target::parse(&self.address()).unwrap(), options);
        in_time("a connection", connecting).await.unwrap()
    }
}

impl Drop for DurableHost {
    /// Ends the keeper and with it everything that it runs.
    fn drop(&mut self) {
        if let Some(mut server) = self.server.take() {
            let _ = server.kill();
            let _ = server.wait();
        }
        let Some(keeper) = self.keeper else { return };
        let _ = kill_process(keeper, Signal::TERM);
        let deadline = Instant::now() + PATIENCE;
        while test_kill_process(keeper).is_ok() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}
