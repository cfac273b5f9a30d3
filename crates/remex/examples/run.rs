//! Runs a command in the default environment, streams its output, and exits with its exit code.
//!
//! ```sh
//! cargo run -p remex --example run -- uname -a
//! REMEX_URL=ws://127.0.0.1:4000 cargo run -p remex --example run -- uname -a
//! ```

#![allow(clippy::print_stderr, reason = "an example prints")]

use std::{
    env,
    io::{Write as _, stderr, stdout},
    process::ExitCode,
};

use anyhow::Context as _;
use remex::{Local, environments::configured};
use remex_client::{
    Command, Options,
    environment::Environments,
    process::{Event, OnDrop, Stream},
};

#[tokio::main]
async fn main() -> anyhow::Result<ExitCode> {
    // The environments of the environments file, the one of `REMEX_URL`, or this machine alone.
    let configured = configured(|name| env::var_os(name))?;
    for warning in &configured.warnings {
        eprintln!("warning: {warning}");
    }
    let here = Local::here()?.target();
    let environments = Environments::new(configured.definitions, Some(here), &Options::default());
    let environment =
        environments.default_environment().context("the configuration has no default environment")?;

    let client = environment.client().await?;

    let mut words = env::args().skip(1);
    let command = match words.next() {
        Some(program) => Command::new(program).args(words),
        None => Command::shell("echo \"hello from $(uname -n)\""),
    };
    // If anything fails from here on, the command is killed.
    let process = command.on_drop(OnDrop::Terminate).start(&client).await?;

    let mut code = 1;
    let mut events = process.events();
    while let Some(event) = events.next().await? {
        match event {
            Event::Output(chunk) if chunk.stream == Stream::Stderr => stderr().write_all(&chunk.bytes)?,
            Event::Output(chunk) => {
                stdout().write_all(&chunk.bytes)?;
                stdout().flush()?;
            }
            Event::Gap(gap) => eprintln!("[output is missing: events {} to {}]", gap.from_seq, gap.to_seq),
            Event::Exited { exit, .. } => code = exit.code,
            _ => {}
        }
    }
    // Leave nothing behind on a remote server.
    client.end().await?;
    Ok(ExitCode::from(u8::try_from(code).unwrap_or(1)))
}
