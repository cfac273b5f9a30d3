//! Hands on any machine: the `remex` program.
//!
//! Reads flags, files and the environment and hands plain values to the libraries; prints, and
//! decides exit codes. Start at [`main`], then [`arguments`]; each command has a module in [`command`].

mod arguments;
mod command;
mod complete;
mod confirm;
mod console;
mod cut;
mod escape;
mod failure;
mod find;
mod finding;
mod followed;
mod input;
mod interrupt;
mod launch;
mod mistyped;
mod moment;
mod own;
mod place;
mod print;
mod probe;
mod runtime;
mod serve;
mod spot;
mod ssh;
mod terminal;
mod text;

use std::process::ExitCode;

use clap::Parser as _;

fn main() -> ExitCode {
    let arguments = match arguments::Arguments::try_parse_from(arguments::typed(std::env::args_os())) {
        Ok(arguments) => arguments,
        Err(error) => return mistyped::refuse(&error),
    };
    match command::run(&arguments.command) {
        Ok(code) => ExitCode::from(code),
        Err(failure) => {
            failure.print();
            ExitCode::from(failure.code(&arguments.command))
        }
    }
}
