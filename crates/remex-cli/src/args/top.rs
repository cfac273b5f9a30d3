//! The arguments of `remex top`.

use std::time::Duration;

use clap::Args;

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

    /// The refresh interval, such as `500ms` or `2s`
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = pause)]
    pub(crate) interval: Duration,
}

const EXAMPLES: &str = "\
Examples:
  Background processes on this machine:
    remex top
  On another machine, every five seconds:
    remex top --on build --interval 5s

Keys:
  up, down, j, k   select a process
  enter, f         follow its output
  s                send it a signal
  K                end it with everything it started
  a                show exited processes
  /                filter by name or command
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
