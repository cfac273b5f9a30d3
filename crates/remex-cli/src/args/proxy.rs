//! The arguments of `remex proxy`.

use clap::Args;

/// Flags of `remex proxy`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Flags {}

const EXAMPLES: &str = "\
Examples:
  As the program of an environment; processes survive a lost ssh connection, and no output is lost:
    remex env add far -- ssh far.example remex proxy
  By hand, to check that your local remex server answers:
    remex proxy < /dev/null

Your local remex server is started on demand, and keeps running when this program exits.";
