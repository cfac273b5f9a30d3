//! The arguments of `remex restart`; and when a command is run again, as people type it: `on-failure:5`.

use std::time::Duration;

use clap::Args;
use remex_client::process::Restart;

use crate::{
    args::{
        run::grace,
        shared::{Format, On},
    },
    render::failure::InvalidArg,
};

/// Flags of `remex restart`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Flags {
    /// The processes, running or exited, by full name; on a terminal, a prefix asks for confirmation
    #[arg(required = true, value_name = "NAME")]
    pub(crate) names: Vec<String>,

    #[command(flatten)]
    pub(crate) on: On,

    /// How long they may take to end after TERM, such as `500ms` or `30s`; `0` kills them at once
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = grace)]
    pub(crate) grace: Duration,

    #[command(flatten)]
    pub(crate) format: Format,
}

const EXAMPLES: &str = "\
Examples:
  Start it again, with the same command, directory and environment:
    remex restart web
  One that takes longer to end, on an environment:
    remex restart --grace 1m --on build worker
";

/// What can be typed, each with its meaning.
pub(super) const POLICIES: [(&str, &str); 3] = [
    ("on-failure", "when it fails"),
    ("on-failure:5", "when it fails, 5 times at most"),
    ("always", "whenever it ends"),
];

/// Parses `on-failure`, `always`, or either with a number after a colon.
pub(crate) fn restart(text: &str) -> Result<Restart, InvalidArg> {
    let (word, most) = text.split_once(':').map_or((text, None), |(word, most)| (word, Some(most)));
    let restart = match word {
        "on-failure" => Restart::on_failure(),
        "always" => Restart::always(),
        _ => {
            let what = format!("`{word}` does not say when to run it again");
            return Err(InvalidArg::new(what, "use `on-failure`, `on-failure:N` or `always`"));
        }
    };
    let Some(most) = most else { return Ok(restart) };
    let most = most.parse().map_err(|_| {
        InvalidArg::new(
            format!("`{most}` is not a number of restarts"),
            format!("write `{word}:5`, for example"),
        )
    })?;
    Ok(restart.at_most(most))
}
