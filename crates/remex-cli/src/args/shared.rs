//! Options that several commands have in common.
//!
//! Start at [`On`].

use std::{ffi::OsString, path::PathBuf, time::Duration};

use clap::{
    ArgMatches, Args, Command, FromArgMatches,
    builder::{
        OsStringValueParser, PathBufValueParser, TryMapValueParser, TypedValueParser as _, ValueParserFactory,
    },
    parser::ValueSource,
};

use crate::{
    console::escape::{Character, character},
    remote::{
        endpoint::{
            DefaultEndpoint, Endpoint, Selected, SelectedBy, default_endpoint, default_environment, selected,
        },
        path_arg::PathArg,
        reconnect::window,
        user_server,
    },
    render::{
        failure::{Failure, InvalidArg},
        print,
    },
};

/// Takes a path and makes it absolute at once: the working directory may change before it is used.
pub(crate) fn absolute() -> impl clap::builder::TypedValueParser<Value = PathBuf> {
    PathBufValueParser::new().try_map(std::path::absolute)
}

/// Selects the server.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct On {
    // Before `on`, whose origin is unknown once its value is taken.
    #[command(flatten)]
    pub(crate) origin: OnOrigin,

    /// The environment to use (see `remex env list`), or an address such as `ws://host:7070`, `ssh://host` or
    /// `unix:///path`
    #[arg(long, value_name = "ENV|URL", env = "REMEX_ON")]
    pub(crate) on: Option<String>,

    /// Read the bearer token from this file, instead of the token of the environment
    #[arg(long, value_name = "PATH", requires = "on")]
    pub(crate) token_file: Option<PathBuf>,

    /// Use this machine, ignoring REMEX_ON and `remex env default`
    // `args::parse` rejects it beside `--on`: clap would treat REMEX_ON like the option.
    #[arg(long)]
    pub(crate) here: bool,
}

impl On {
    /// Finds the server; must be called within a runtime.
    ///
    /// `None` with [`DefaultEndpoint::RunningUserServer`] when no server is running.
    pub(crate) async fn find(&self, otherwise: DefaultEndpoint) -> Result<Option<Endpoint>, Failure> {
        match self.selected()? {
            Some(selected) if selected.word != "local" => {
                Endpoint::selected(&selected, self.token_file.as_deref()).map(Some)
            }
            _ => default_endpoint(otherwise).await,
        }
    }

    /// Returns the selected server: from `--here` or `--on`, from REMEX_ON, or the default environment, in this order.
    fn selected(&self) -> Result<Option<Selected>, Failure> {
        if self.here {
            return Ok(None);
        }
        match self.named() {
            Some(word) => Ok(Some(self.origin.selected(word))),
            None => selected(),
        }
    }

    /// Returns the value of `--on` or REMEX_ON.
    fn named(&self) -> Option<&str> {
        self.on.as_deref().filter(|word| !word.is_empty())
    }

    /// Prints a note if a listing comes from the default environment.
    pub(crate) fn note_default(&self) {
        if self.here || self.named().is_some() {
            return;
        }
        if let Ok(Some(default)) = default_environment() {
            print::note(format!(
                "showing `{default}`, your default environment; use `--here` for this machine"
            ));
        }
    }

    /// Finds the server for files, which always exists.
    pub(crate) async fn endpoint(&self, otherwise: DefaultEndpoint) -> Result<Endpoint, Failure> {
        match self.find(otherwise).await? {
            Some(endpoint) => Ok(endpoint),
            None => Err(user_server::not_running().await),
        }
    }
}

/// Where the value of `--on` comes from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum OnOrigin {
    /// The flag itself.
    #[default]
    Flag,
    /// REMEX_ON.
    Variable,
}

impl OnOrigin {
    /// Returns the server that `word` selects.
    pub(crate) fn selected(self, word: &str) -> Selected {
        let by = match self {
            Self::Flag => SelectedBy::Argument,
            Self::Variable => SelectedBy::Variable,
        };
        Selected { word: word.to_owned(), by }
    }
}

impl FromArgMatches for OnOrigin {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        Ok(match matches.value_source("on") {
            Some(ValueSource::EnvVariable) => Self::Variable,
            _ => Self::Flag,
        })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

/// Adds no flag: it describes one that its command has.
impl Args for OnOrigin {
    fn augment_args(command: Command) -> Command {
        command
    }

    fn augment_args_for_update(command: Command) -> Command {
        command
    }
}

/// Selects the output format of a listing.
#[derive(Debug, Args)]
pub(crate) struct Format {
    /// Print JSON; docs/json.md documents the format
    #[arg(long)]
    pub(crate) json: bool,
}

/// Selects the escape character.
#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct Escape {
    /// The escape character: one character, a control character such as `^]`, or `none`
    #[arg(long, value_name = "CHAR|none", env = "REMEX_ESCAPE", default_value = "~", value_parser = character)]
    pub(crate) escape: Character,
}

/// Selects how long to try to reconnect.
#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct Reconnect {
    /// How long to try to reconnect after a disconnect, such as `30m`, or `forever` [default: that of the environment, or
    /// `1h`]
    #[arg(long, value_name = "TIME|forever", value_parser = window)]
    pub(crate) reconnect: Option<Duration>,
}

/// Selects the user of the host as whom a command runs.
#[derive(Clone, Debug, Args)]
pub(crate) struct AsUser {
    /// Run it as this user of the host, by name or uid, with its groups, and on a remote host in its home directory unless
    /// `--cwd` says otherwise; only where the server runs as root
    #[arg(long, value_name = "NAME|UID")]
    pub(crate) user: Option<String>,
}

/// Lets clap parse [`PathArg`]s.
impl ValueParserFactory for PathArg {
    type Parser = TryMapValueParser<OsStringValueParser, fn(OsString) -> Result<PathArg, InvalidArg>>;

    fn value_parser() -> Self::Parser {
        OsStringValueParser::new().try_map(PathArg::parse)
    }
}
