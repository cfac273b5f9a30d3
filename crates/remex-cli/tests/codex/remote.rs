//! The remote side: a server with a home, an environment and a workspace of its own.

use std::{
    fs::{self, File},
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    fs::{CWD, FileType, Mode, OFlags, mknodat},
};
use tempfile::TempDir;

use crate::{
    client,
    support::{PATIENCE, Server, Watched},
};

/// Names another server to run in place of this one, to tell whose fault a failure is.
const PEER: &str = "REMEX_TEST_PEER";

/// What the server gives to files that it creates, other than the client would: the mode of a new file is `0640`.
const UMASK: &str = "027";

/// A server and the place where it works.
pub(crate) struct Remote {
    server: Server,
    place: TempDir,
}

impl Remote {
    pub(crate) fn start() -> Self {
        Self::with_variable("PLACE", "remote")
    }

    /// Starts a server with one more variable in its environment.
    pub(crate) fn with_variable(name: &str, value: &str) -> Self {
        Self::launch(&[], name, value)
    }

    /// Starts a server with these flags.
    pub(crate) fn with_flags(flags: &[&str]) -> Self {
        Self::launch(flags, "PLACE", "remote")
    }

    fn launch(flags: &[&str], name: &str, value: &str) -> Self {
        let place = tempfile::tempdir().expect("a directory can be made");
        for directory in ["home", "workspace"] {
            fs::create_dir(place.path().join(directory)).expect("a directory can be made");
        }
        let mut command = Command::new("sh");
        command.args(["-c", &format!("umask {UMASK} && exec \"$@\""), "sh"]);
        match std::env::var(PEER).as_deref() {
            Err(_) => command.args([env!("CARGO_BIN_EXE_remex"), "serve"]),
            Ok("codex") => command.arg(crate::support::codex_program()).arg("exec-server"),
            Ok(other) => panic!("there is no server `{other}`: unset {PEER}, or set it to `codex`"),
        };
        command
            .args(flags)
            .env_clear()
            .env("PATH", client::path())
            .env("HOME", place.path().join("home"))
            .env(name, value)
            .current_dir(place.path())
            .stdin(Stdio::null());
        Self { server: Server::launch(command, 1), place }
    }

    /// Returns the URL for the client.
    pub(crate) fn url(&self) -> &str {
        self.server.address()
    }

    pub(crate) fn home(&self) -> PathBuf {
        self.place.path().join("home")
    }

    pub(crate) fn workspace(&self) -> PathBuf {
        self.place.path().join("workspace")
    }

    /// Writes the configuration of the user on whose behalf the server runs.
    pub(crate) fn configure(&self, toml: &str) {
        let directory = self.home().join(".codex");
        fs::create_dir(&directory).expect("a directory can be made");
        fs::write(directory.join("config.toml"), toml).expect("a file can be written");
    }

    /// Returns where a file of the workspace is.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.workspace().join(name)
    }

    /// Puts a file into the workspace.
    pub(crate) fn write(&self, name: &str, content: &str) {
        let path = self.path(name);
        fs::create_dir_all(path.parent().expect("a file has a parent")).expect("a directory can be made");
        fs::write(path, content).expect("a file can be written");
    }

    /// Returns the content of a file of the workspace.
    pub(crate) fn read(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).unwrap_or_else(|error| panic!("no file `{name}`: {error}"))
    }

    /// Fails the test unless it was the server, and not the client, who created this file.
    pub(crate) fn assert_created(&self, name: &str) {
        let metadata = fs::metadata(self.path(name)).expect("the file is there");
        assert_eq!(metadata.permissions().mode() & 0o777, 0o640, "mode of `{name}`");
    }

    /// Makes a pipe with a name in the workspace, by which a command can ring.
    pub(crate) fn bell(&self, name: &str) -> Bell {
        let path = self.path(name);
        mknodat(CWD, &path, FileType::Fifo, Mode::RWXU, 0).expect("a pipe can be made");
        // Open for both, so that neither side waits for the other to open it.
        Bell(File::options().read(true).write(true).open(path).expect("a pipe can be opened"))
    }

    /// Makes a named pipe, and watches the processes that will open it to write.
    pub(crate) fn held_by_processes(&self, name: &str) -> Watched {
        let path = self.path(name);
        mknodat(CWD, &path, FileType::Fifo, Mode::RWXU, 0).expect("a pipe can be made");
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
        Watched::holders_of(rustix::fs::open(path, flags, Mode::empty()).expect("a pipe can be opened"))
    }

    /// Returns the names of all files of the workspace, in order.
    pub(crate) fn files(&self) -> Vec<String> {
        let mut names = Vec::new();
        let mut directories = vec![self.workspace()];
        while let Some(directory) = directories.pop() {
            for entry in fs::read_dir(&directory).expect("a directory can be read") {
                let path = entry.expect("a directory can be read").path();
                match path.is_dir() {
                    true => directories.push(path),
                    false => names.push(self.name(&path)),
                }
            }
        }
        names.sort();
        names
    }

    fn name(&self, path: &Path) -> String {
        let name = path.strip_prefix(self.workspace()).expect("it was found in the workspace");
        name.to_str().expect("names are text").to_owned()
    }

    /// Ends the server and checks that it went in order.
    pub(crate) fn stop(self) {
        self.server.stop();
    }
}

/// A pipe into which a command writes when it has come this far.
pub(crate) struct Bell(File);

impl Bell {
    /// Waits until it rings.
    pub(crate) fn wait(&self) {
        let patience = Timespec::try_from(PATIENCE).expect("a minute is not too long");
        let mut rung = [PollFd::new(&self.0, PollFlags::IN)];
        assert_eq!(poll(&mut rung, Some(&patience)), Ok(1), "nobody rings");
    }
}
