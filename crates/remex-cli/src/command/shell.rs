//! `remex shell`: a login shell that survives a cut and can be left.

use clap::Args;
use remex_client::process::Input;

use super::{
    Outcome,
    run::{Shown, process_name, show},
};
use crate::{
    console::WhenEnded,
    escape,
    launch::{Launch, Stay},
    place::{On, Otherwise, PlaceKind},
};

/// Flags of `remex shell`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Flags {
    #[command(flatten)]
    on: On,

    /// What to call it in `remex ps` and the others
    #[arg(long, value_parser = process_name)]
    name: Option<String>,

    /// Where to begin, relative to the directory of the server, `~` is the home there
    #[arg(short = 'C', long, value_name = "DIR")]
    cwd: Option<String>,

    #[command(flatten)]
    escape: escape::Flag,
}

const EXAMPLES: &str = "\
Examples:
  On your own server, so that it survives the end of this terminal:
    remex shell
  On an environment, with a name to come back to:
    remex shell --on build --name work

`~.` at the beginning of a line leaves it running, and so does the end of the terminal; `remex attach` comes back.
The exit code is that of the shell.";

pub(crate) async fn run(flags: &Flags) -> Outcome {
    let place = flags.on.place(Otherwise::Own).await?;
    let shell = match place.kind {
        PlaceKind::Elsewhere => {
            let client = place.connect(|_| {}).await?;
            let shell = client.info().await?.shell.path;
            client.end().await?;
            Some(shell)
        }
        PlaceKind::Here | PlaceKind::Own => std::env::var("SHELL").ok().filter(|shell| !shell.is_empty()),
    };
    let launch = Launch {
        place: &place,
        argv: vec![shell.unwrap_or_else(|| "/bin/sh".to_owned()).into(), "-l".into()],
        cwd: flags.cwd.clone(),
        env: Vec::new(),
        terminal: true,
        input: Input::Piped,
        timeout: None,
        name: flags.name.clone(),
        stay: Stay::Kept,
    };
    let launched = launch.start().await?;
    let shown =
        Shown { terminal: true, forward: true, when_ended: WhenEnded::Leave, escape: flags.escape.escape };
    show(&place, launched, shown).await
}
