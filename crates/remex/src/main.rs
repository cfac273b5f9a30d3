//! Hands on any machine: the `remex` program.
//!
//! Reads flags, files and the environment and hands plain values to the libraries; prints, and
//! decides exit codes. Start at [`main`].

mod serve;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Hands on any machine: processes, files and HTTP requests on this host for programs and people elsewhere.
#[derive(Debug, Parser)]
#[command(name = "remex", version, propagate_version = true, arg_required_else_help = true)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Serve clients over stdio, WebSocket or a unix socket.
    #[command(visible_alias = "exec-server")]
    Serve(Box<serve::Flags>),
}

fn main() -> ExitCode {
    let Command::Serve(flags) = Arguments::parse().command;
    match serve::run(&flags) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            complain(&error);
            ExitCode::FAILURE
        }
    }
}

/// Says on stderr what went wrong, once.
#[allow(clippy::print_stderr)] // The place where errors reach people.
fn complain(error: &anyhow::Error) {
    eprintln!("remex: {error:#}");
}
