//! A user of a test's own: home, configuration and runtime directory.

use std::{
    fs,
    io::Write as _,
    os::unix::{fs::PermissionsExt as _, net::UnixStream},
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal},
};
use tempfile::TempDir;

use crate::support::{InTime as _, PATIENCE, default_signals};

/// A user: nothing of the machine's real one is seen or touched, and what was left running ends with it.
pub(crate) struct Home {
    directory: TempDir,
}

/// What a command printed, and how it ended.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Said {
    pub(crate) code: Option<i32>,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl Home {
    pub(crate) fn new() -> Self {
        default_signals();
        let directory = TempDir::new().unwrap();
        for name in ["home", "config/remex", "run", "bin"] {
            fs::create_dir_all(directory.path().join(name)).unwrap();
        }
        fs::set_permissions(directory.path().join("run"), fs::Permissions::from_mode(0o700)).unwrap();
        Self { directory }
    }

    /// Returns a path in the user's home.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join("home").join(name)
    }

    /// Makes a program that this user finds before all others of its name.
    pub(crate) fn program(&self, name: &str, script: &str) {
        let path = self.directory.path().join("bin").join(name);
        fs::write(&path, script).unwrap();
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
    }

    /// Makes a named pipe in the user's home: who opens it to read waits for who writes.
    pub(crate) fn pipe(&self, name: &str) -> PathBuf {
        let path = self.path(name);
        rustix::fs::mkfifoat(rustix::fs::CWD, &path, rustix::fs::Mode::RWXU).unwrap();
        path
    }

    /// Returns where the user's own server listens.
    pub(crate) fn own_socket(&self) -> PathBuf {
        self.directory.path().join("run/remex/own.sock")
    }

    /// Returns the environments file.
    pub(crate) fn environments(&self) -> PathBuf {
        self.directory.path().join("config/remex/environments.toml")
    }

    /// Adds an environment to the file.
    pub(crate) fn add_environment(&self, id: &str, url: &str) {
        let mut file = fs::OpenOptions::new().create(true).append(true).open(self.environments()).unwrap();
        write!(file, "[[environments]]\nid = \"{id}\"\nurl = \"{url}\"\n\n").unwrap();
        fs::set_permissions(self.environments(), fs::Permissions::from_mode(0o600)).unwrap();
    }

    /// Returns the program with its arguments, as this user.
    pub(crate) fn remex(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_remex"));
        command.args(args);
        self.dress(&mut command);
        command
    }

    /// Runs the program to its end, with nothing to read.
    pub(crate) fn say(&self, args: &[&str]) -> Said {
        said(&self.remex(args).stdin(Stdio::null()).finished())
    }

    /// Runs the program to its end, with something to read.
    pub(crate) fn say_with(&self, args: &[&str], input: &[u8]) -> Said {
        let mut child = self
            .remex(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut stdin = child.stdin.take().unwrap();
        let input = input.to_vec();
        let feeder = std::thread::spawn(move || stdin.write_all(&input));
        let output = child.finished();
        let _ = feeder.join().unwrap();
        said(&output)
    }

    /// Gives a command this user's environment, and its home as the directory.
    pub(crate) fn dress(&self, command: &mut Command) {
        let path = std::env::var("PATH").unwrap();
        let program = Path::new(env!("CARGO_BIN_EXE_remex")).parent().unwrap().display().to_string();
        let own = self.directory.path().join("bin").display().to_string();
        command
            .stdin(Stdio::null())
            .env_clear()
            .env("PATH", format!("{own}:{program}:{path}"))
            .env("HOME", self.directory.path().join("home"))
            .env("XDG_CONFIG_HOME", self.directory.path().join("config"))
            .env("XDG_RUNTIME_DIR", self.directory.path().join("run"))
            .env("XDG_STATE_HOME", self.directory.path().join("state"))
            .env("TERM", "xterm")
            .env("SHELL", "/bin/sh")
            .env("LANG", "C.UTF-8")
            .env("TZ", "UTC0")
            .current_dir(self.directory.path().join("home"));
    }
}

impl Home {
    /// Returns the process of the user's own server, if it runs.
    pub(crate) fn own_server(&self) -> Option<Pid> {
        let connection = UnixStream::connect(self.own_socket()).ok()?;
        Some(rustix::net::sockopt::socket_peercred(&connection).ok()?.pid)
    }

    /// Returns where the user's own server keeps processes.
    pub(crate) fn own_states(&self) -> Vec<PathBuf> {
        let below =
            |path: PathBuf| fs::read_dir(path).into_iter().flatten().flatten().map(|entry| entry.path());
        below(self.directory.path().join("state/remex"))
            .flat_map(below)
            .filter(|path| path.is_dir())
            .collect()
    }

    /// Returns the keepers of the user's processes that run.
    pub(crate) fn keepers(&self) -> Vec<Pid> {
        let states = self.own_states().into_iter();
        let keepers = states.filter_map(|state| {
            // Without a socket, the keeper has ended, and its number may be that of another process.
            let text = fs::read_to_string(state.join("keeper.lock"))
                .ok()
                .filter(|_| state.join("keeper.sock").exists())?;
            Pid::from_raw(text.trim().parse().ok()?)
        });
        keepers.collect()
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        // The user's own server, if there is one, and then its keeper with everything in it.
        if let Some(server) = self.own_server() {
            end(server);
        }
        for keeper in self.keepers() {
            end(keeper);
        }
    }
}

/// Ends a process, and waits for that.
fn end(process: Pid) {
    let Ok(watched) = pidfd_open(process, PidfdFlags::empty()) else { return };
    let _ = pidfd_send_signal(&watched, Signal::TERM);
    let patience = Timespec::try_from(PATIENCE).unwrap();
    let _ = poll(&mut [PollFd::new(&watched, PollFlags::IN)], Some(&patience));
}

/// Returns what a finished command printed.
pub(crate) fn said(output: &Output) -> Said {
    Said {
        code: output.status.code(),
        out: String::from_utf8_lossy(&output.stdout).into_owned(),
        err: String::from_utf8_lossy(&output.stderr).into_owned(),
    }
}
