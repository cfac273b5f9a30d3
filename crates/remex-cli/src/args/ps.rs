//! The arguments of `remex ps`.

use clap::{Args, ValueEnum};

use crate::{
    args::{
        moment::past_moment,
        shared::{Format, On},
    },
    render::failure::InvalidArg,
};

/// Flags of `remex ps`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Flags {
    #[command(flatten)]
    pub(crate) on: On,

    /// List the processes of your local remex server and of every environment, ignoring `--on`
    #[arg(long, conflicts_with = "quiet")]
    pub(crate) all_envs: bool,

    /// Include exited processes that are still retained, with their exit status and age
    #[arg(short, long)]
    pub(crate) all: bool,

    /// Print only names, one per line, for scripts
    #[arg(short, long, conflicts_with = "json")]
    pub(crate) quiet: bool,

    #[command(flatten)]
    pub(crate) filter: Filter,

    #[command(flatten)]
    pub(crate) format: Format,
}

/// Selects processes of a listing.
#[derive(Debug, Args)]
pub(crate) struct Filter {
    /// Only processes with this name, in which `*` and `?` are wildcards; repeatable, any of them
    #[arg(long, value_name = "PATTERN")]
    pub(crate) name: Vec<String>,

    /// Only processes with this label (see `remex run --label`); without `=VALUE`, whatever its value; repeatable, all of
    /// them
    #[arg(long, value_name = "NAME[=VALUE]", value_parser = label_filter)]
    pub(crate) label: Vec<LabelFilter>,

    /// Only processes in this state, also exited ones; repeatable, any of them
    #[arg(long, value_name = "STATE", value_enum)]
    pub(crate) state: Vec<StateFilter>,

    /// Only processes that were started since this time: `5m` ago, the last `14:30` (local time), or
    /// `2026-11-15T14:30:00Z`
    #[arg(long, value_name = "TIME", value_parser = past_moment)]
    pub(crate) since: Option<u64>,
}

impl Filter {
    /// Returns whether it selects all processes.
    pub(crate) fn is_empty(&self) -> bool {
        self.name.is_empty() && self.label.is_empty() && self.state.is_empty() && self.since.is_none()
    }
}

/// A label to look for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LabelFilter {
    pub(crate) name: String,
    /// Its value; any, if absent.
    pub(crate) value: Option<String>,
}

/// A state to look for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum StateFilter {
    /// It has not exited
    Running,
    /// It has exited, however
    Exited,
    /// It has exited, and not with code 0
    Failed,
    /// It has exited, but something it started is alive
    Left,
}

fn label_filter(text: &str) -> Result<LabelFilter, InvalidArg> {
    let (name, value) = match text.split_once('=') {
        Some((name, value)) => (name, Some(value.to_owned())),
        None => (text, None),
    };
    if name.is_empty() {
        return Err(InvalidArg::new("a label needs a name", "write `NAME` or `NAME=VALUE`"));
    }
    Ok(LabelFilter { name: name.to_owned(), value })
}

const EXAMPLES: &str = "\
Examples:
  Background processes on this machine:
    remex ps
  Including exited ones:
    remex ps --all
  On this machine and all environments:
    remex ps --all-envs
  Those that failed in the last hour:
    remex ps --state failed --since 1h
  Those with a label, by name:
    remex ps --label team=web --name 'build-*'
  On an environment, as JSON for programs:
    remex ps --on build --json
  End everything with a label:
    remex ps -q --label team=web | xargs -r remex kill --tree
";
