//! The places that stories take place at.

use std::{path::PathBuf, time::Duration};

use remex::Local;
use remex_client::{Client, Program, Target};
use tempfile::TempDir;

use crate::support::{PATIENCE, Server, codex_program};

/// A server of some kind, and a directory to work in.
pub(crate) struct Place {
    target: Target,
    directory: TempDir,
    _keeps: Keeps,
}

/// What the place lives by.
#[allow(dead_code, reason = "it is there to be dropped")]
enum Keeps {
    Nothing,
    Server(Server),
    Local(Local),
}

impl Place {
    pub(crate) fn in_process() -> Self {
        let local = Local::here().unwrap();
        Self::new(local.target(), Keeps::Local(local))
    }

    pub(crate) fn stdio() -> Self {
        Self::new(
            Target::program(env!("CARGO_BIN_EXE_remex"), ["serve", "--listen", "stdio"]),
            Keeps::Nothing,
        )
    }

    pub(crate) fn websocket() -> Self {
        let server = Server::start();
        Self::new(Target::parse(server.address()).unwrap(), Keeps::Server(server))
    }

    pub(crate) fn unix() -> Self {
        let server = Server::unix(&[]);
        Self::new(Target::parse(server.address()).unwrap(), Keeps::Server(server))
    }

    /// The server that the base dialect comes from.
    pub(crate) fn codex() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let program = Program::new(codex_program().to_str().unwrap())
            .args(["exec-server", "--listen", "stdio"])
            .env("CODEX_HOME", directory.path().to_str().unwrap());
        Self { target: Target::Program(program), directory, _keeps: Keeps::Nothing }
    }

    fn new(target: Target, keeps: Keeps) -> Self {
        Self { target, directory: tempfile::tempdir().unwrap(), _keeps: keeps }
    }

    pub(crate) fn target(&self) -> Target {
        self.target.clone()
    }

    /// Connects.
    pub(crate) async fn client(&self) -> Client {
        Client::connect(self.target()).await.unwrap()
    }

    /// Returns a path in the place's directory.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Returns the same as text.
    pub(crate) fn name(&self, name: &str) -> String {
        self.path(name).to_str().unwrap().to_owned()
    }
}

/// Tells one story, within the time that anything may take.
pub(crate) fn run<S, F>(place: fn() -> Place, story: S)
where
    S: FnOnce(Place) -> F,
    F: Future<Output = ()>,
{
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        tokio::time::timeout(PATIENCE, story(place())).await.expect("the story comes to its end in time");
    });
    runtime.shutdown_timeout(Duration::from_secs(5));
}
