//! The arguments of `remex rm` and `remex prune`.

use std::ffi::OsString;

use clap::{
    Args,
    builder::{OsStringValueParser, TypedValueParser as _},
};

use crate::{
    args::shared::{Format, On},
    remote::path_arg::PathArg,
    render::failure::InvalidArg,
};

/// Flags of `remex rm`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Flags {
    /// Processes by full name (on a terminal, a prefix asks for confirmation), or remote paths: `ENV:path`, `:path` or
    /// `[URL]:path`; what has a colon is a path, and never a process
    #[arg(required = true, value_name = "NAME|ENV:PATH",
        value_parser = OsStringValueParser::new().try_map(operand))]
    pub(crate) operands: Vec<Operand>,

    /// Remove directories with everything in them
    #[arg(short, short_alias = 'R', long)]
    pub(crate) recursive: bool,

    /// Ignore paths that do not exist
    #[arg(short, long)]
    pub(crate) force: bool,

    #[command(flatten)]
    pub(crate) on: On,

    #[command(flatten)]
    pub(crate) format: Format,
}

/// What is removed.
#[derive(Clone, Debug)]
pub(crate) enum Operand {
    /// A process, by name.
    Process(String),
    /// A path with a colon.
    Path(PathArg),
}

/// Tells a path from the name of a process: by the colon of [`PathArg`], and nothing else.
fn operand(typed: OsString) -> Result<Operand, InvalidArg> {
    if typed.is_empty() {
        return Ok(Operand::Process(String::new()));
    }
    let path = PathArg::parse(typed)?;
    Ok(if path.is_local() { Operand::Process(path.shown()) } else { Operand::Path(path) })
}

const EXAMPLES: &str = "\
Examples:
  Remove an exited process and its output:
    remex rm build
  Remove all of them:
    remex prune
  Remove a file on the environment `build`, and a directory with everything in it:
    remex rm build:notes.txt
    remex rm -r build:site

Running processes are refused: end them with `remex kill` first.
Otherwise, a process is removed a day after its exit.
Links are removed, and never followed. Home directories and `/` are refused.";

/// Flags of `remex prune`.
#[derive(Debug, Args)]
#[command(after_help = PRUNE_EXAMPLES)]
pub(crate) struct Prune {
    #[command(flatten)]
    pub(crate) on: On,

    #[command(flatten)]
    pub(crate) format: Format,
}

const PRUNE_EXAMPLES: &str = "\
Examples:
  Remove all exited processes on this machine:
    remex prune
  On an environment:
    remex prune --on build

Processes of clients that are connected, or may reconnect, are kept.";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_colon_makes_a_path() {
        for typed in ["build", "night/build", "./a:b", "/tmp/x", "[a", "a/b:c", ""] {
            assert!(matches!(operand(typed.into()), Ok(Operand::Process(name)) if name == typed), "{typed}");
        }
        for typed in ["build:", "build:x", ":x", "build:a:b", "[ws://h:1]:x"] {
            assert!(matches!(operand(typed.into()), Ok(Operand::Path(_))), "{typed}");
        }
        assert!(operand("ws://h:1".into()).is_err());
    }
}
