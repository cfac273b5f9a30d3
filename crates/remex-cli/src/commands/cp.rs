//! `remex cp`: files and trees from any place to any other.
//!
//! Every place is a client, this machine too, so all copies take the same way. Start at [`run`]; [`plan`] decides what
//! becomes what, the client copies, [`report`] tells.

mod plan;
mod report;

use std::sync::Arc;

use remex_client::fs::copy_trees;
use tokio::signal::unix::SignalKind;

use super::Outcome;
use crate::{
    args::cp::Flags,
    console::interrupt::SignalListener,
    remote::path_arg::{Connections, note_local_paths, note_new_file},
    render::{
        failure::{Failure, Kind},
        print, text,
    },
};
use report::{Detail, Report};

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
    let copy_jobs = plan::copy_jobs(sites, &destination, report).await?;
    let _drawing = report.draw();
    copy_trees(copy_jobs, report).await?;
    Ok(report.code())
}

/// Waits for a signal that asks to stop, and returns the exit code that goes with it.
async fn interruption() -> u8 {
    let (Ok(mut interrupt), Ok(mut terminate)) =
        (SignalListener::listen(SignalKind::interrupt()), SignalListener::listen(SignalKind::terminate()))
    else {
        return std::future::pending().await;
    };
    tokio::select! {
        () = interrupt.recv() => 130,
        () = terminate.recv() => 143,
    }
}
