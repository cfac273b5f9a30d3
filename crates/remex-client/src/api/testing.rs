//! Fakes for unit tests of programs that use this crate: no process is started and no network is used.
//!
//! Start at [`FakeServer`], which a real [`Client`](crate::Client) connects to. [`FakeProcess`] stands in for a single
//! process where the program takes a `&dyn` [`ExecProcess`](crate::api::process::ExecProcess).

mod fake_process;
mod fake_server;

use bytes::Bytes;

use crate::api::process::Stream;

pub use fake_process::FakeProcess;
pub use fake_server::FakeServer;

/// What a fake process does, step by step.
///
/// A script without [`Script::exit`] runs until it is killed, by [`Process::kill`](crate::Process::kill), by a timeout, or
/// by any signal that ends a process without handlers. `exit` is the last step: a step after it panics.
///
/// ```
/// use remex_client::testing::Script;
///
/// let login = Script::new().stdout("name? ").expect_input("ada\n").stdout("hello, ada\n").exit(0);
/// # drop(login);
/// ```
#[derive(Debug, Clone, Default)]
pub struct Script {
    steps: Vec<Step>,
}

#[derive(Debug, Clone)]
enum Step {
    Output(Stream, Bytes),
    /// Waits until this many bytes have been written; the test compares the content.
    Input(Bytes),
    Exit(i32),
}

impl Script {
    /// Returns a process that does nothing and runs until it is killed.
    ///
    /// See [`Script`] for an example.
    pub fn new() -> Self {
        Self::default()
    }

    /// Then it writes this to its standard output.
    ///
    /// See [`Script`] for an example.
    ///
    /// # Panics
    ///
    /// After [`Script::exit`].
    #[track_caller]
    pub fn stdout(self, text: impl Into<Bytes>) -> Self {
        self.then(Step::Output(Stream::Stdout, text.into()))
    }

    /// Then it writes this to its standard error.
    ///
    /// ```
    /// let failing = remex_client::testing::Script::new().stderr("no such file\n").exit(1);
    /// # drop(failing);
    /// ```
    ///
    /// # Panics
    ///
    /// After [`Script::exit`].
    #[track_caller]
    pub fn stderr(self, text: impl Into<Bytes>) -> Self {
        self.then(Step::Output(Stream::Stderr, text.into()))
    }

    /// Then it writes this to its terminal.
    ///
    /// ```
    /// let shell = remex_client::testing::Script::new().terminal("$ ");
    /// # drop(shell);
    /// ```
    ///
    /// # Panics
    ///
    /// After [`Script::exit`].
    #[track_caller]
    pub fn terminal(self, text: impl Into<Bytes>) -> Self {
        self.then(Step::Output(Stream::Pty, text.into()))
    }

    /// Then it waits until as many bytes as this have been written to it.
    ///
    /// Compare what was written with [`FakeServer::written`] or [`FakeProcess::written`].
    ///
    /// If the input is closed before, or the command was started without input, the process says so on its standard error
    /// and exits with 1:
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> Result<(), remex_client::Error> {
    /// use remex_client::{Client, Command, process::Stdio, testing::{FakeServer, Script}};
    ///
    /// let server = FakeServer::new().on("login", Script::new().expect_input("ada\n").exit(0));
    /// let client = Client::connect(server.target()).await?;
    /// let output = Command::new("login").stdin(Stdio::Piped).start(&client).await?.communicate(b"ad").await?;
    /// assert_eq!(output.exit.code, 1);
    /// assert_eq!(output.stderr, b"the script expected input `ada\\n`, but the input was closed after `ad`\n");
    /// # Ok(()) }
    /// ```
    ///
    /// # Panics
    ///
    /// After [`Script::exit`].
    #[track_caller]
    pub fn expect_input(self, text: impl AsRef<[u8]>) -> Self {
        self.then(Step::Input(Bytes::copy_from_slice(text.as_ref())))
    }

    /// Then it exits; no step can follow.
    ///
    /// See [`Script`] for an example.
    ///
    /// # Panics
    ///
    /// After [`Script::exit`].
    #[track_caller]
    pub fn exit(self, code: i32) -> Self {
        self.then(Step::Exit(code))
    }

    #[track_caller]
    fn then(mut self, step: Step) -> Self {
        if let Some(Step::Exit(code)) = self.steps.last() {
            panic!("a script cannot go on after `exit({code})`; make `exit` its last step");
        }
        self.steps.push(step);
        self
    }
}
