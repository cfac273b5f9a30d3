//! Servers that run out of something: process slots, descriptors, address space.

use std::{
    fs,
    os::unix::{fs::PermissionsExt as _, process::CommandExt as _},
    process::{Command, Stdio},
    sync::atomic::{AtomicU32, Ordering},
};

use tempfile::TempDir;

use super::{
    Server,
    server::{Finished, finish_command, program},
};

/// What a server may use. The limits hold from its first instruction on, and hard, so that it cannot raise them.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Limits {
    /// Processes and threads of the server and everything it starts, which have a user or a user namespace of their own.
    pub(crate) processes: Option<u64>,
    pub(crate) descriptors: Option<u64>,
    /// Bytes of address space of each process.
    pub(crate) address_space: Option<u64>,
    /// How many file locks a process may have: what the tag of a process is stored in.
    pub(crate) locks: Option<u64>,
}

impl Limits {
    pub(crate) fn processes(count: u64) -> Self {
        Self { processes: Some(count), ..Self::default() }
    }

    pub(crate) fn descriptors(count: u64) -> Self {
        Self { descriptors: Some(count), ..Self::default() }
    }

    pub(crate) fn address_space(bytes: u64) -> Self {
        Self { address_space: Some(bytes), ..Self::default() }
    }

    /// Starts `remex serve` with these flags under these limits.
    pub(crate) fn serve(self, flags: &[&str]) -> Server {
        let listeners = flags.iter().filter(|flag| **flag == "--listen").count().max(1);
        let (command, directory) = self.command(&[&["serve"], flags].concat());
        let mut server = Server::launch(command, listeners);
        server.keep(directory);
        server
    }

    /// Runs the program with these arguments under these limits until it ends by itself.
    pub(crate) fn finish(self, arguments: &[&str]) -> Finished {
        let (command, _directory) = self.command(arguments);
        finish_command(command)
    }

    /// Returns the program with these arguments under these limits, and a directory to keep until it has ended.
    fn command(self, arguments: &[&str]) -> (Command, TempDir) {
        let remex = program(&[]).get_program().to_owned();
        let directory = tempfile::tempdir().expect("a directory can be made");
        let mut command;
        match self.processes {
            // The limit does not bind root, and counts everything else that the user runs.
            Some(_) if rustix::process::geteuid().is_root() => {
                fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o755))
                    .expect("our own directory");
                // The build directory may be closed to other users.
                let reachable = directory.path().join("remex");
                fs::hard_link(&remex, &reachable)
                    .or_else(|_| fs::copy(&remex, &reachable).map(drop))
                    .expect("the program can be copied");
                command = Command::new("prlimit");
                command.args(self.arguments()).arg(reachable).uid(unused_user());
            }
            Some(_) => {
                // A user namespace has a count of its own.
                command = Command::new("unshare");
                command.args(["--user", "--map-root-user", "prlimit"]).args(self.arguments()).arg(remex);
            }
            None => {
                command = Command::new("prlimit");
                command.args(self.arguments()).arg(remex);
            }
        }
        // The home of the user who runs the tests may be inaccessible to the other user.
        command.env("HOME", directory.path()).env_remove("XDG_CONFIG_HOME");
        command.args(arguments);
        if self.processes.is_some() && arguments.first() == Some(&"serve") {
            // A loopback port is for the user of the server, and for those that it names.
            command.args(["--allow-user", &rustix::process::geteuid().as_raw().to_string()]);
        }
        command.current_dir("/").stdin(Stdio::null()).env("no_proxy", "*");
        (command, directory)
    }

    fn arguments(self) -> Vec<String> {
        let limit = |name: &str, value: Option<u64>| value.map(|value| format!("--{name}={value}:{value}"));
        [
            limit("nproc", self.processes),
            limit("nofile", self.descriptors),
            limit("as", self.address_space),
            limit("locks", self.locks),
        ]
        .into_iter()
        .flatten()
        .collect()
    }
}

/// Returns the number of a user who has no other process.
fn unused_user() -> u32 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    const PER_TEST_PROGRAM: u32 = 256;
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    assert!(number < PER_TEST_PROGRAM, "more servers with limits than expected: raise the constant");
    1_000_000 + std::process::id() * PER_TEST_PROGRAM + number
}
