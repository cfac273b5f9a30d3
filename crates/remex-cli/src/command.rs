//! The commands, one module each, and the way to them.
//!
//! A command is `Flags` and `run`: it returns the exit code, or a [`Failure`]. Start at [`run`].

pub(crate) mod attach;
pub(crate) mod cat;
pub(crate) mod complete;
pub(crate) mod completions;
pub(crate) mod cp;
pub(crate) mod doctor;
pub(crate) mod edit;
pub(crate) mod env;
pub(crate) mod kill;
pub(crate) mod logs;
pub(crate) mod ls;
pub(crate) mod man;
pub(crate) mod proxy;
pub(crate) mod ps;
pub(crate) mod resize;
pub(crate) mod rm;
pub(crate) mod run;
pub(crate) mod server;
pub(crate) mod shell;
pub(crate) mod top;
pub(crate) mod wait;
pub(crate) mod watch;

use tokio::runtime::Builder;

use crate::{
    arguments::Command,
    failure::{Failure, Kind},
    interrupt, runtime, serve,
};

/// What a command ends with: its exit code, or why it could not.
pub(crate) type Outcome = Result<u8, Failure>;

/// Does what was typed.
pub(crate) fn run(command: &Command) -> Outcome {
    match command {
        Command::Serve(flags) => {
            serve::run(flags, Kind::Failed.code(command))?;
            Ok(0)
        }
        Command::Completions(flags) => completions::run(flags),
        Command::Man(flags) => man::run(flags),
        Command::Complete(flags) => complete::run(flags),
        Command::Env(flags) if flags.is_about_the_file() => env::run_on_file(flags),
        other if listens(other) => block_on(other, client(other)),
        other => block_on(other, interrupt::or_interrupted(client(other))),
    }
}

/// Tells whether a command listens to signals itself, or must not outlive them by a moment.
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
            | Command::Proxy(_)
    )
}

async fn client(command: &Command) -> Outcome {
    match command {
        Command::Run(flags) => Box::pin(run::run(flags)).await,
        Command::Shell(flags) => Box::pin(shell::run(flags)).await,
        Command::Ps(flags) => Box::pin(ps::run(flags)).await,
        Command::Logs(flags) => Box::pin(logs::run(flags)).await,
        Command::Attach(flags) => Box::pin(attach::run(flags)).await,
        Command::Kill(flags) => Box::pin(kill::run(flags)).await,
        Command::Wait(flags) => Box::pin(wait::run(flags)).await,
        Command::Rm(flags) => Box::pin(rm::run(flags)).await,
        Command::Prune(flags) => Box::pin(rm::prune(flags)).await,
        Command::Server(flags) => Box::pin(server::run(flags)).await,
        Command::Resize(flags) => Box::pin(resize::run(flags)).await,
        Command::Top(flags) => Box::pin(top::run(flags)).await,
        Command::Cp(flags) => Box::pin(cp::run(flags)).await,
        Command::Ls(flags) => Box::pin(ls::run(flags)).await,
        Command::Cat(flags) => Box::pin(cat::run(flags)).await,
        Command::Edit(flags) => Box::pin(edit::run(flags)).await,
        Command::Watch(flags) => Box::pin(watch::run(flags)).await,
        Command::Env(flags) => Box::pin(env::run(flags)).await,
        Command::Doctor(flags) => Box::pin(doctor::run(flags)).await,
        Command::Proxy(flags) => Box::pin(proxy::run(flags)).await,
        Command::Serve(_) | Command::Completions(_) | Command::Man(_) | Command::Complete(_) => Ok(0),
    }
}

fn block_on(command: &Command, work: impl Future<Output = Outcome>) -> Outcome {
    let runtime = runtime::build(
        Builder::new_multi_thread()
            .enable_all()
            // One to move bytes and one to answer; a command line is no server.
            .worker_threads(2)
            .thread_name("remex-worker"),
        Kind::Failed.code(command),
    )?;
    let outcome = runtime.block_on(work);
    // A thread that still reads stdin must not hold up the end.
    runtime.shutdown_background();
    interrupt::end_programs();
    outcome
}
