//! The arguments of `remex top`.

use std::time::Duration;

use clap::{Args, ValueEnum};

use crate::{
    args::shared::On,
    render::{failure::InvalidArg, text::duration},
};

/// Flags of `remex top`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Flags {
    #[command(flatten)]
    pub(crate) on: On,

    /// Show the processes of your local remex server and of every environment, ignoring `--on`
    #[arg(long)]
    pub(crate) all_envs: bool,

    /// Sort by this column
    #[arg(long, value_name = "COLUMN", value_enum, default_value = "cpu")]
    pub(crate) sort: Column,

    /// The refresh interval, such as `500ms` or `2s`
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = pause)]
    pub(crate) interval: Duration,
}

/// A column, in display order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Column {
    /// The environment
    Env,
    /// The name
    Name,
    /// The state
    State,
    /// The use of processors
    Cpu,
    /// The use of memory
    Mem,
    /// Output per second
    Rate,
    /// Output in all
    Out,
    /// How long it has been running, or ran
    Age,
    /// Whether it survives the server
    Durable,
    /// The command
    Command,
}

const EXAMPLES: &str = "\
Examples:
  Background processes on this machine:
    remex top
  On another machine, every five seconds:
    remex top --on build --interval 5s
  On this machine and all environments, what needs most memory first:
    remex top --all-envs --sort mem

Keys:
  up, down, j, k   select a process
  enter, f         follow its output
  t                attach to it; `~.` returns to the list
  s                send it a signal, by name or from a list
  K                end it with everything it started
  a                show exited processes
  <, >             sort by the column to the left or right
  r                reverse the order
  /                filter by name, command, label or environment
  ?, h             help
  q, Esc, Ctrl-C   quit; Esc clears the filter first
";

pub(crate) fn pause(text: &str) -> Result<Duration, InvalidArg> {
    const LEAST: Duration = Duration::from_millis(100);
    const MOST: Duration = Duration::from_secs(24 * 3600);
    let pause = duration(text)?;
    if !(LEAST..=MOST).contains(&pause) {
        return Err(InvalidArg::new("it is too short or too long", "use a time from `100ms` to `24h`"));
    }
    Ok(pause)
}
