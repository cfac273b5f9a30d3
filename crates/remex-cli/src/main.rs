//! The `remex` program: runs processes, serves files and makes HTTP requests on this host and on remote ones.
//!
//! Reads flags, files and the environment, passes plain values to the libraries, prints, and decides exit codes. From the
//! top: `args` parses command lines, `commands` runs them, `console` handles the terminal with its keys and signals,
//! `remote` connects to servers, `render` formats the output. Start at [`main`].

// Elsewhere nothing reads the flags of a server.
#![cfg_attr(not(target_os = "linux"), allow(dead_code))]

mod args;
mod commands;
mod console;
mod remote;
mod render;

use std::process::ExitCode;

use tokio::runtime::Builder;

use self::{args::Command, commands::Outcome, console::interrupt, render::failure::Kind};

fn main() -> ExitCode {
    let command = match args::parse() {
        Ok(command) => command,
        Err(code) => return code,
    };
    match run(&command) {
        Ok(code) => ExitCode::from(code),
        Err(failure) => {
            failure.print();
            ExitCode::from(failure.code(command.exit_codes()))
        }
    }
}

/// Runs a command.
fn run(command: &Command) -> Outcome {
    match command {
        Command::Serve(flags) => {
            commands::serve::run(flags, Kind::Failed.code(command.exit_codes()))?;
            Ok(0)
        }
        Command::Keeper(flags) => commands::keeper::run(flags),
        Command::Supervise(flags) => commands::supervise::run(flags),
        Command::Completions(flags) => commands::completions::run(flags),
        Command::Man(flags) => commands::man::run(flags),
        Command::Complete(flags) => commands::complete::run(flags),
        Command::Token(flags) => commands::token::run(flags),
        Command::Cert(flags) => commands::cert::run(flags),
        Command::Env(flags) if flags.is_about_the_file() => commands::env::run_on_file(flags),
        other if listens(other) => block_on(other, client(other)),
        other => block_on(other, interrupt::or_interrupted(client(other))),
    }
}

/// Returns whether a command handles signals itself, or must be ended by them at once.
fn listens(command: &Command) -> bool {
    matches!(
        command,
        Command::Run(_)
            | Command::Shell(_)
            | Command::Attach(_)
            | Command::Top(_)
            | Command::Cp(_)
            | Command::Edit(_)
            | Command::Watch(_)
            | Command::Mcp(_)
            | Command::Proxy(_)
    )
}

async fn client(command: &Command) -> Outcome {
    match command {
        Command::Run(flags) => Box::pin(commands::run::run(flags)).await,
        Command::Shell(flags) => Box::pin(commands::shell::run(flags)).await,
        Command::Ps(flags) => Box::pin(commands::ps::run(flags)).await,
        Command::Inspect(flags) => Box::pin(commands::inspect::run(flags)).await,
        Command::Logs(flags) => Box::pin(commands::logs::run(flags)).await,
        Command::Attach(flags) => Box::pin(commands::attach::run(flags)).await,
        Command::Kill(flags) => Box::pin(commands::kill::run(flags)).await,
        Command::Restart(flags) => Box::pin(commands::restart::run(flags)).await,
        Command::Wait(flags) => Box::pin(commands::wait::run(flags)).await,
        Command::Rm(flags) => Box::pin(commands::rm::run(flags)).await,
        Command::Prune(flags) => Box::pin(commands::rm::prune(flags)).await,
        Command::Gc(flags) => Box::pin(commands::gc::run(flags)).await,
        Command::Server(flags) => Box::pin(commands::server::run(flags)).await,
        Command::Upgrade(flags) => Box::pin(commands::upgrade::run(flags)).await,
        Command::Resize(flags) => Box::pin(commands::resize::run(flags)).await,
        Command::Top(flags) => Box::pin(commands::top::run(flags)).await,
        Command::Cp(flags) => Box::pin(commands::cp::run(flags)).await,
        Command::Mv(flags) => Box::pin(commands::mv::run(flags)).await,
        Command::Mkdir(flags) => Box::pin(commands::mkdir::run(flags)).await,
        Command::Ls(flags) => Box::pin(commands::ls::run(flags)).await,
        Command::Cat(flags) => Box::pin(commands::cat::run(flags)).await,
        Command::Edit(flags) => Box::pin(commands::edit::run(flags)).await,
        Command::Watch(flags) => Box::pin(commands::watch::run(flags)).await,
        Command::Http(flags) => Box::pin(commands::http::run(flags)).await,
        Command::Env(flags) => Box::pin(commands::env::run(flags)).await,
        Command::Doctor(flags) => Box::pin(commands::doctor::run(flags)).await,
        Command::Mcp(flags) => Box::pin(commands::mcp::run(flags)).await,
        Command::Proxy(flags) => Box::pin(commands::proxy::run(flags)).await,
        Command::Serve(_)
        | Command::Keeper(_)
        | Command::Supervise(_)
        | Command::Completions(_)
        | Command::Man(_)
        | Command::Complete(_)
        | Command::Token(_)
        | Command::Cert(_) => Ok(0),
    }
}

fn block_on(command: &Command, work: impl Future<Output = Outcome>) -> Outcome {
    let runtime = commands::runtime::build(
        Builder::new_multi_thread()
            .enable_all()
            // Two threads are enough for a client.
            .worker_threads(2)
            .thread_name("remex-worker"),
        Kind::Failed.code(command.exit_codes()),
    )?;
    let outcome = runtime.block_on(work);
    // A thread blocked reading stdin must not delay the exit.
    runtime.shutdown_background();
    interrupt::end_programs();
    outcome
}
