//! Where no program can be started: without the feature `program`, and on platforms that are not Unix.

use std::{convert::Infallible, time::Duration};

use crate::Error;

/// A running program, which cannot exist here.
#[derive(Debug)]
pub(crate) struct Child(Infallible);

/// The prompts of a program, which cannot exist either.
pub(crate) struct Prompt(Infallible);

impl Child {
    pub(crate) fn prompt(&self) -> Prompt {
        match self.0 {}
    }

    pub(crate) async fn connected(&mut self) {
        match self.0 {}
    }

    pub(crate) async fn exit_error(&mut self) -> Error {
        match self.0 {}
    }

    pub(crate) fn unexpected_output_error(&self, _: &[u8]) -> Error {
        match self.0 {}
    }

    pub(crate) async fn end(self) {
        match self.0 {}
    }
}

impl Prompt {
    pub(crate) async fn handshake_overdue(self, _: Duration) -> Error {
        match self.0 {}
    }
}

#[cfg(feature = "program")]
pub(crate) use unsupported::start;
#[cfg(feature = "program")]
pub use unsupported::wait_for_programs;

#[cfg(feature = "program")]
mod unsupported {
    use std::time::Duration;

    use remex_rpc::{ReadHalf, WriteHalf};

    use super::Child;
    use crate::{Error, Program, Prompts, base::error::unreachable};

    /// Fails: ending a program with everything it started takes process groups and signals.
    pub(crate) async fn start(program: &Program, _: Prompts) -> Result<(ReadHalf, WriteHalf, Child), Error> {
        Err(unreachable(
            &program.to_string(),
            "a client on this platform cannot start programs",
            "connect to a `ws://` or `wss://` address, through `ssh -L` if necessary",
        ))
    }

    /// Waits for nothing: no program was started.
    pub fn wait_for_programs(_: Duration) -> bool {
        true
    }
}
