//! What can be typed: every command with its flags.

use std::ffi::OsString;

use clap::{Parser, Subcommand};

use crate::{command, serve};

/// Hands on any machine: processes, files and HTTP requests on this host for programs and people elsewhere.
#[derive(Debug, Parser)]
#[command(name = "remex", version, propagate_version = true, arg_required_else_help = true, after_long_help = command::man::GENERAL)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run a command here or elsewhere, as if it were local
    Run(Box<command::run::Flags>),
    /// Open a login shell that survives a cut
    Shell(command::shell::Flags),
    /// List processes, also those that were left running
    Ps(command::ps::Flags),
    /// Print what a process has said
    Logs(command::logs::Flags),
    /// Come back to a process: its output, and a keyboard for it
    Attach(command::attach::Flags),
    /// Signal a process, or end it with everything it started
    Kill(command::kill::Flags),
    /// Wait for processes to end, and exit with the code of the last
    Wait(command::wait::Flags),
    /// Forget processes that have ended, with their output
    Rm(command::rm::Flags),
    /// Forget all processes that have ended
    Prune(command::rm::Prune),
    /// Change the size of a process's terminal
    Resize(command::resize::Flags),
    /// Watch processes live: CPU, memory, output
    Top(command::top::Flags),
    /// Copy files and trees between places
    Cp(command::cp::Flags),
    /// List a directory
    Ls(command::ls::Flags),
    /// Print files
    Cat(command::cat::Flags),
    /// Edit a file elsewhere in your own editor
    Edit(command::edit::Flags),
    /// Tell what changes in a directory
    Watch(command::watch::Flags),
    /// Name the places to run things: list, add, test, remove
    Env(command::env::Flags),
    /// Find out what is wrong on this machine or with a server
    Doctor(command::doctor::Flags),
    /// See whether your own server runs, or stop it
    Server(command::server::Flags),
    /// Serve clients over stdio, WebSocket or a unix socket
    #[command(visible_alias = "exec-server")]
    Serve(Box<serve::Flags>),
    /// Join stdin and stdout with your own server, for `ssh HOST remex proxy`
    Proxy(command::proxy::Flags),
    /// Print a script for the completions of your shell
    Completions(command::completions::Flags),
    /// Print what may follow on a command line, for the script of `remex completions`
    #[command(hide = true)]
    Complete(command::complete::Flags),
    /// Write the man pages
    Man(command::man::Flags),
}

/// Returns the words of a command line as they are parsed: `kill -9 NAME` and `kill -KILL NAME` become options.
pub(crate) fn typed(words: impl Iterator<Item = OsString>) -> Vec<OsString> {
    let mut words: Vec<_> = words.collect();
    if words.get(1).is_some_and(|command| command == "kill") {
        let options = words.iter_mut().skip(2).take_while(|word| *word != "--");
        for word in options {
            if let Some(signal) = word.to_str().and_then(command::kill::short_signal) {
                *word = format!("--signal={signal}").into();
            }
        }
    }
    words
}
