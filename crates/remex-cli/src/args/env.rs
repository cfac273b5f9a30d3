//! The arguments of `remex env`.

pub(crate) mod edit;
pub(crate) mod test;

use clap::{Args, Subcommand};

use crate::args::shared::Format;

/// Flags of `remex env`.
#[derive(Debug, Args)]
#[command(arg_required_else_help = true, after_help = EXAMPLES)]
pub(crate) struct Flags {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// List all environments
    #[command(visible_alias = "ls")]
    List(List),
    /// Add an environment
    Add(edit::Add),
    /// Change the settings of an environment
    Set(edit::Set),
    /// Show or set the default environment
    Default(edit::SetDefault),
    /// Check what works on an environment
    Test(test::Flags),
    /// Remove an environment
    #[command(visible_alias = "rm")]
    Remove(edit::Remove),
}

const EXAMPLES: &str = "\
Examples:
  List them:
    remex env list
  Check all of them:
    remex env test --all

Environments are stored in `~/.config/remex/environments.toml`; you may edit that file, and comments are kept.
`local` is this machine; it always exists unless the file excludes it.
A command uses, in this order: `--here` or `--on`, REMEX_ON, `remex env default`, this machine.";

/// Flags of `remex env list`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  For people:
    remex env list
  For programs:
    remex env list --json")]
pub(crate) struct List {
    #[command(flatten)]
    pub(crate) format: Format,
}

impl Flags {
    /// Returns whether it only edits the environments file; then signals keep their default action.
    pub(crate) fn is_about_the_file(&self) -> bool {
        !matches!(self.command, Command::Test(_))
    }
}
