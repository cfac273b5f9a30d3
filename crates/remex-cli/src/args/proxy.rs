//! The arguments of `remex proxy`.

use clap::Args;

/// Flags of `remex proxy`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Flags {}

const EXAMPLES: &str = "\
Examples:
  As the program of an environment: what runs there survives a cut of the ssh connection, and nothing is lost:
    remex env add far -- ssh far.example remex proxy
  By hand, to see that your own server can be reached:
    remex proxy < /dev/null

Your own server is started if it is not there, and stays when this program ends.";
