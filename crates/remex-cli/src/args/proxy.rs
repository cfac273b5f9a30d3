//! The arguments of `remex proxy`.

use clap::Args;

use crate::remote::agent_link;

/// Flags of `remex proxy`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Flags {
    /// Keep a link with this name to the agent that ssh forwards; for `remex run --forward-agent`
    #[arg(long, value_name = "NAME", hide = true, value_parser = agent_link::name)]
    pub(crate) agent_link: Option<String>,
}

const EXAMPLES: &str = "\
Examples:
  As the program of an environment; processes survive a lost ssh connection, and no output is lost:
    remex env add far -- ssh far.example remex proxy
  By hand, to check that your local remex server answers:
    remex proxy < /dev/null

Your local remex server is started on demand, and keeps running when this program exits.";
