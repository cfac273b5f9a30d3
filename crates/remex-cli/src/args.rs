//! The command line: commands, flags and parsing.
//!
//! The only part of the program that knows the argument parser. Start at [`parse`].

pub(crate) mod attach;
pub(crate) mod byte_range;
pub(crate) mod cat;
pub(crate) mod cert;
pub(crate) mod complete;
pub(crate) mod completions;
pub(crate) mod cp;
pub(crate) mod doctor;
pub(crate) mod edit;
pub(crate) mod env;
pub(crate) mod gc;
mod groups;
pub(crate) mod http;
pub(crate) mod inspect;
pub(crate) mod keeper;
pub(crate) mod kill;
pub(crate) mod limit;
pub(crate) mod line;
pub(crate) mod logs;
pub(crate) mod ls;
pub(crate) mod man;
pub(crate) mod mcp;
pub(crate) mod mkdir;
mod moment;
pub(crate) mod mv;
pub(crate) mod proxy;
pub(crate) mod ps;
pub(crate) mod resize;
pub(crate) mod restart;
pub(crate) mod rm;
pub(crate) mod run;
pub(crate) mod sandbox;
pub(crate) mod serve;
pub(crate) mod server;
pub(crate) mod shared;
pub(crate) mod shell;
pub(crate) mod signal;
pub(crate) mod supervise;
pub(crate) mod token;
pub(crate) mod top;
pub(crate) mod upgrade;
mod usage_error;
pub(crate) mod variables;
pub(crate) mod wait;
pub(crate) mod watch;

use std::{ffi::OsString, process::ExitCode};

use clap::{ArgMatches, CommandFactory as _, FromArgMatches as _, Parser, Subcommand, parser::ValueSource};

use crate::render::failure::{ExitCodes, Failure};

/// Run processes, copy files and make HTTP requests on remote hosts, and survive disconnects.
#[derive(Debug, Parser)]
#[command(name = "remex", version, propagate_version = true, arg_required_else_help = true, after_long_help = man::GENERAL)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run a command on this machine or a remote host as if it were local
    Run(Box<run::Flags>),
    /// Open a login shell that survives disconnects
    Shell(shell::Flags),
    /// List processes, including background ones
    Ps(ps::Flags),
    /// Print everything that the server knows about a process
    Inspect(inspect::Flags),
    /// Print the output of a process
    Logs(logs::Flags),
    /// Attach to a running process: show its output and send it your input
    Attach(attach::Flags),
    /// Send a signal to a process, or end it with everything it started
    Kill(kill::Flags),
    /// End processes with everything they started, and start them again as they were started
    Restart(restart::Flags),
    /// Wait for processes to exit, and exit with the code of the last one named
    Wait(wait::Flags),
    /// Remove exited processes and their output, or files in an environment
    Rm(rm::Flags),
    /// Remove all exited processes
    Prune(rm::Prune),
    /// Remove logs of exited processes from disk, by age or down to a size
    Gc(gc::Flags),
    /// Change the terminal size of a process
    Resize(resize::Flags),
    /// Show a live view of processes: CPU, memory, output
    Top(top::Flags),
    /// Copy files and directories between hosts
    Cp(cp::Flags),
    /// Rename files and directories
    Mv(mv::Flags),
    /// Create directories
    Mkdir(mkdir::Flags),
    /// List a directory
    Ls(ls::Flags),
    /// Print files
    Cat(cat::Flags),
    /// Edit a remote file in your local editor
    Edit(edit::Flags),
    /// Report changes in a directory
    Watch(watch::Flags),
    /// Make an HTTP request from a host
    Http(Box<http::Flags>),
    /// Manage environments, the named servers that commands run on
    Env(env::Flags),
    /// Diagnose problems on this machine or with a server
    Doctor(doctor::Flags),
    /// Show the status of your local remex server, or stop it
    Server(server::Flags),
    /// Replace your local remex server by the program now on disk; its processes run on
    Upgrade(upgrade::Flags),
    /// Serve clients over stdio, WebSocket or a unix socket
    #[command(visible_alias = "exec-server")]
    Serve(Box<serve::Flags>),
    /// Make tokens for `remex serve`
    Token(token::Flags),
    /// Make TLS certificates for a small installation
    Cert(cert::Flags),
    /// Give a model hands: serve tools over the Model Context Protocol
    Mcp(mcp::Flags),
    /// Connect stdin and stdout to your local remex server, for `ssh HOST remex proxy`
    Proxy(proxy::Flags),
    /// Print the completion script for a shell
    Completions(completions::Flags),
    /// Print completion candidates, for the scripts of `remex completions`
    #[command(hide = true)]
    Complete(complete::Flags),
    /// Run the durable processes of a server; started by `remex serve --state`
    #[command(hide = true)]
    Keeper(keeper::Flags),
    /// Run a command again when it ends; started by a server for `remex run --restart`
    #[command(hide = true)]
    Supervise(supervise::Flags),
    /// Write the man pages
    Man(man::Flags),
}

impl Command {
    /// Returns which exit codes failures of remex itself may use.
    pub(crate) fn exit_codes(&self) -> ExitCodes {
        match self {
            Self::Run(_) | Self::Shell(_) | Self::Attach(_) | Self::Wait(_) | Self::Supervise(_) => {
                ExitCodes::OfTheProcess
            }
            _ => ExitCodes::Ours,
        }
    }
}

/// Parses the command line; on an error, or for help, prints a message and returns the exit code.
pub(crate) fn parse() -> Result<Command, ExitCode> {
    let mut command = groups::grouped(Arguments::command());
    let parsed = command.try_get_matches_from_mut(typed(std::env::args_os())).and_then(|matches| {
        let conflict = has_here_and_on(&matches);
        Ok((Arguments::from_arg_matches(&matches)?, conflict))
    });
    match parsed {
        Ok((_, true)) => {
            let what = "`--here` and `--on` exclude each other";
            Err(usage_error::print(&Failure::usage(what, "omit one of them")))
        }
        Ok((arguments, false)) => Ok(arguments.command),
        Err(error) => Err(usage_error::report(&error)),
    }
}

/// Returns whether `--here` and `--on` were both typed; REMEX_ON does not count.
fn has_here_and_on(matches: &ArgMatches) -> bool {
    let is_typed = |id| {
        matches!(matches.try_contains_id(id), Ok(true))
            && matches.value_source(id) == Some(ValueSource::CommandLine)
    };
    (is_typed("here") && is_typed("on"))
        || matches.subcommand().is_some_and(|(_, inner)| has_here_and_on(inner))
}

/// Rewrites a command line before it is parsed: `kill -9 NAME` and `kill -KILL NAME` become options.
fn typed(words: impl Iterator<Item = OsString>) -> Vec<OsString> {
    let mut words: Vec<_> = words.collect();
    if words.get(1).is_some_and(|command| command == "kill") {
        let options = words.iter_mut().skip(2).take_while(|word| *word != "--");
        for word in options {
            if let Some(signal) = word.to_str().and_then(signal::short_signal) {
                *word = format!("--signal={signal}").into();
            }
        }
    }
    words
}
