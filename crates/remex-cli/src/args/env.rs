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
    /// List the environments there are
    #[command(visible_alias = "ls")]
    List(List),
    /// Add an environment
    Add(edit::Add),
    /// Change what an environment consists of
    Set(edit::Set),
    /// Choose where commands work when nothing says where
    Default(edit::SetDefault),
    /// Try what works there and what does not
    Test(test::Flags),
    /// Remove an environment
    #[command(visible_alias = "rm")]
    Remove(edit::Remove),
}

const EXAMPLES: &str = "\
Examples:
  See which there are:
    remex env list
  Try every one of them:
    remex env test --all

They are in `~/.config/remex/environments.toml`, which you may edit as well; comments are kept.
`local` is this machine and always there unless that file excludes it.
Where a command works: what `--here` or `--on` says, else REMEX_ON, else `remex env default`, else this machine.";

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
    /// Tells whether it is about the file alone; then nothing listens to signals, which end us at once.
    pub(crate) fn is_about_the_file(&self) -> bool {
        !matches!(self.command, Command::Test(_))
    }
}
