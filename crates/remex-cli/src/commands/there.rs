//! Runs commands of the remex on an ssh host that are about its own server.
//!
//! Start at [`run`].

use std::process::Stdio;

use remex_client::{Program, Target};

use super::Outcome;
use crate::{
    remote::{endpoint::Endpoint, ssh},
    render::{
        failure::{Failure, Kind},
        print,
        text::plain,
    },
};

/// The exit codes of ssh itself, and of a shell that does not find the command.
const LOGIN_FAILED: i32 = 255;
const NO_SUCH_COMMAND: i32 = 127;

/// Returns the command line that runs `remex WORDS` on the host of an environment, if ssh leads there.
pub(crate) fn command(endpoint: &Endpoint, words: &[&str]) -> Option<Program> {
    match &endpoint.target {
        Target::Program(program) => ssh::other_command(program, words),
        _ => None,
    }
}

/// Upgrades the server that an environment leads to through ssh.
pub(crate) async fn upgrade(endpoint: &Endpoint) -> Outcome {
    let goal = format!("upgrade the server on `{}`", plain(&endpoint.name));
    let command = command(endpoint, &["upgrade"]).ok_or_else(|| {
        Failure::usage(
            format!("cannot {goal}"),
            "log in there, and run `remex upgrade --state DIR` with its state directory",
        )
        .because("ssh does not lead to it, as in `ssh HOST remex proxy`")
    })?;
    run(endpoint, command, &goal).await
}

/// Runs a command line from [`command`], and prints its output with the name of the environment before each line.
pub(crate) async fn run(endpoint: &Endpoint, command: Program, goal: &str) -> Outcome {
    let name = plain(&endpoint.name);
    let shown = command.to_string();
    let running = tokio::task::spawn_blocking(move || ssh::run(&command, Stdio::inherit()));
    let output = running
        .await
        .map_err(|error| Failure::new(format!("cannot {goal}"), "try again").because(error.to_string()))??;
    for line in String::from_utf8_lossy(&output.stdout).lines() {
        print::out(format!("{name}: {}\n", plain(line)))?;
    }
    match output.status.code() {
        None => Err(Failure::signalled(128 + 2)),
        Some(LOGIN_FAILED) => Err(Failure::of(
            Kind::Unreachable,
            format!("cannot {goal}"),
            format!("run {shown} at a terminal and check its output"),
        )
        .because(format!("{shown} could not log in"))),
        Some(NO_SUCH_COMMAND) => Err(Failure::new(
            format!("cannot {goal}"),
            format!("install remex there with `remex env set {name} --install`"),
        )
        .because("that host has no remex where the environment looks for it")),
        // It has printed the cause on stderr.
        Some(code) => Ok(u8::try_from(code).unwrap_or(1)),
    }
}
