//! `remex attach`: back to a process that was left running, or a look over somebody's shoulder.

use std::io::IsTerminal as _;

use clap::Args;
use remex_client::Client;

use super::Outcome;
use crate::{
    console::{Console, Ending, Interrupts, Remote, WhenEnded, say},
    cut, escape,
    failure::Failure,
    find::Processes,
    followed::Followed,
    interrupt,
    place::{On, Otherwise, PlaceKind},
    terminal,
};

/// How much of what was said before is shown again: pieces of up to 64 KiB.
const SHOWN_AGAIN: u64 = 32;

/// Flags of `remex attach`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Flags {
    #[command(flatten)]
    on: On,

    /// Forward standard input also when it is not a terminal; its end is the end of the process's input
    #[arg(short, long)]
    interactive: bool,

    /// Watch only: no key and no Ctrl-C reaches the process
    #[arg(short, long, conflicts_with = "interactive")]
    read_only: bool,

    #[command(flatten)]
    escape: escape::Flag,

    /// The process: its name, or the beginning of it; not needed where exactly one runs
    name: Option<String>,
}

const EXAMPLES: &str = "\
Examples:
  Back to what you left running:
    remex attach build
  On an environment, to look only:
    remex attach --on build --read-only work

`~.` at the beginning of a line leaves it running; so does the end of this terminal, and Ctrl-C with `--read-only`.
Whoever has the process keeps it: everybody sees the same output, and keys of all reach it.
The exit code is that of the process if it ends meanwhile, and 0 if you leave.";

pub(crate) async fn run(flags: &Flags) -> Outcome {
    let place = flags.on.place(Otherwise::OwnIfThere).await?;
    let client = interrupt::during(place.connect(cut::outlive)).await?;
    let (console, name) = interrupt::during(console(flags, &client, place.kind)).await?;
    let ending = console.show().await;
    let outcome = match ending {
        Ok(Ending::Detached) => {
            say(false, &format!("`{name}` runs on"));
            Ok(0)
        }
        Ok(Ending::Exited(code) | Ending::Signalled(code)) => Ok(code),
        Ok(Ending::Deaf) => Ok(141),
        Err(failure) => Err(failure),
    };
    cut::end(client).await;
    outcome
}

/// Finds the process, and returns how it is shown and what it is called.
async fn console(flags: &Flags, client: &Client, place: PlaceKind) -> Result<(Console, String), Failure> {
    let processes = Processes::list(client).await?;
    let row = match &flags.name {
        Some(name) => processes.find(name)?,
        None => processes.only_running()?,
    };
    let followed = processes.followed(row);
    if row.is_running() {
        // A client that went away may have left it waiting for a reader: this is one.
        followed.release().await?;
    }
    let cursor = followed.shortly_before(SHOWN_AGAIN).await?;
    let forward =
        !flags.read_only && (flags.interactive || std::io::stdin().is_terminal()) && row.is_running();
    if row.entry.tty && forward {
        fit(&followed).await?;
    }
    let console = Console {
        remote: Remote::followed(followed, cursor),
        terminal: row.entry.tty,
        forward,
        stay: None,
        when_ended: WhenEnded::Leave,
        escape: flags.escape.escape,
        place,
        interrupts: if flags.read_only { Interrupts::Leave } else { Interrupts::Pass },
    };
    Ok((console, row.name.clone()))
}

/// Gives the process the size of this terminal, and a reason to draw its screen anew.
async fn fit(followed: &Followed) -> Result<(), Failure> {
    let (rows, cols) = terminal::size();
    let other = std::num::NonZeroU16::new(cols.get().saturating_sub(1)).unwrap_or(cols);
    followed.resize(rows, other).await?;
    Ok(followed.resize(rows, cols).await?)
}
