//! `remex cp`: files and trees from any place to any other.
//!
//! Every place is a client, this machine too, so all copies take the same way. Start at [`run`]; [`goal`] decides what
//! becomes what, [`tree`] copies, [`report`] tells.

mod goal;
mod report;
mod tree;

use std::sync::Arc;

use clap::Args;
use tokio::signal::unix::SignalKind;

use super::Outcome;
use crate::{
    failure::{Failure, Kind},
    interrupt::Came,
    print,
    spot::{Connections, Spot, note_local_paths, note_new_file},
    text,
};
use report::{Detail, Report};

/// Flags of `remex cp`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Flags {
    /// Files and directories: `ENV:path` elsewhere, `:path` in the environment of REMEX_ON or `remex env default`, `[URL]:path` at an
    /// address; a plain path is always one of this machine
    #[arg(required = true, value_name = "SRC")]
    sources: Vec<Spot>,

    /// Where to: a directory that is there, or the new name of the one thing that is copied
    #[arg(value_name = "DST")]
    destination: Spot,

    /// Print what would be copied and what is there already, and touch nothing
    #[arg(short = 'n', long)]
    dry_run: bool,

    /// Print each file
    #[arg(short, long)]
    verbose: bool,

    /// No progress, no summary; errors only
    #[arg(short, long, conflicts_with = "verbose")]
    quiet: bool,

    /// Trees are copied anyway
    #[arg(short = 'r', short_alias = 'R', long = "recursive", hide = true)]
    _recursive: bool,

    /// Everything that can be kept is kept anyway
    #[arg(short = 'a', long = "archive", hide = true)]
    _archive: bool,

    /// The same
    #[arg(short = 'p', long = "preserve", hide = true)]
    _preserve: bool,
}

const EXAMPLES: &str = "\
Examples:
  A file to the home on `build`:
    remex cp notes.txt build:
  A tree, and what is in a tree:
    remex cp site build:site-copy
    remex cp site/. build:site-copy
  From one environment to another, under another name:
    remex cp build:app.tar gpu:app-of-build.tar
  See first what it would do:
    remex cp --dry-run site notes.txt build:

Relative paths elsewhere are relative to the home there. A local name with a colon is written ./a:b.
Permissions, symbolic links and times are kept, as with `cp -a`, which is understood. What is there already with the same size and time is skipped.
After an interruption or a failure, the same command goes on where it stopped: a tree has a file `.remex-part` in it until it is complete, and a large file gathers in `.NAME.remex-part`.";

pub(crate) async fn run(flags: &Flags) -> Outcome {
    let detail = match (flags.quiet, flags.verbose) {
        (true, _) => Detail::Errors,
        (_, true) => Detail::Files,
        _ => Detail::Summary,
    };
    if !flags.quiet {
        note_local_paths(flags.sources.iter().chain([&flags.destination]));
        note_new_file(&flags.destination);
    }
    let report = Arc::new(Report::new(detail, flags.dry_run));
    let mut connections = Connections::default();
    let work = async {
        let outcome = copy(flags, &mut connections, &report).await;
        report.finish();
        report.tell_left();
        outcome
    };
    let outcome = tokio::select! {
        outcome = work => outcome,
        code = interruption() => {
            report.clear();
            if !flags.dry_run {
                print::note("interrupted; the same command goes on where it stopped");
            }
            Ok(code)
        }
    };
    connections.close().await;
    outcome.map_err(|failure| match failure.kind() {
        Kind::Unreachable if report.has_begun() => Failure::of(
            Kind::Unreachable,
            failure.what(),
            "when it is back, the same command goes on where it stopped",
        ),
        _ => failure,
    })
}

async fn copy(flags: &Flags, connections: &mut Connections, report: &Arc<Report>) -> Outcome {
    let mut sites = Vec::new();
    for spot in flags.sources.iter().chain([&flags.destination]) {
        let teller = Arc::clone(report);
        let site = connections.reach(spot, move |text| teller.note(text)).await?;
        if site.at.client.welcome().server.name.is_empty() {
            return Err(Failure::new(
                format!(
                    "cannot copy with `{}`: its server is not remex, and cannot rename or hash",
                    text::plain(&spot.shown())
                ),
                "serve it with `remex serve`",
            ));
        }
        sites.push(site);
    }
    let Some(destination) = sites.pop() else { return Ok(0) };
    let errands = goal::errands(sites, &destination, report).await?;
    let _drawing = report.draw();
    tree::copy(errands, report).await?;
    Ok(report.code())
}

/// Waits for a signal that asks to stop, and returns the exit code that goes with it.
async fn interruption() -> u8 {
    let (Ok(mut interrupt), Ok(mut terminate)) =
        (Came::listen(SignalKind::interrupt()), Came::listen(SignalKind::terminate()))
    else {
        return std::future::pending().await;
    };
    tokio::select! {
        () = interrupt.recv() => 130,
        () = terminate.recv() => 143,
    }
}
