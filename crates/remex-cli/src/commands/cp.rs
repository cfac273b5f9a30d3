//! `remex cp`: copies files and directories between hosts.
//!
//! Every host is accessed through a client, including this machine. Start at [`run`]; [`plan`] decides the destination of
//! each source, the client library copies, [`report`] prints progress and errors.

mod plan;
mod report;

use std::sync::Arc;

use remex_client::fs::{Extraneous, SkipUnchanged, TreeRules, copy_trees};
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
use report::{Detail, Report, Style};

pub(crate) async fn run(flags: &Flags) -> Outcome {
    let detail = match (flags.quiet, flags.verbose || flags.dry_run) {
        (true, false) => Detail::Errors,
        (_, true) => Detail::Files,
        _ => Detail::Summary,
    };
    let style = if flags.format.json { Style::Json } else { Style::Text };
    if !flags.quiet {
        note_local_paths(flags.sources.iter().chain([&flags.destination]));
        note_new_file(&flags.destination);
    }
    let selection = selection(flags)?;
    let report = Arc::new(Report::new(detail, style, flags.dry_run, selection.skip_unchanged));
    let mut connections = Connections::default();
    let work = async {
        let outcome = copy(flags, selection, &mut connections, &report).await;
        let finished = report.finish();
        if flags.delete && report.is_incomplete() {
            print::note("nothing was deleted, because not everything could be copied");
        }
        report.print_leftovers();
        outcome.and_then(|code| finished.map(|()| code))
    };
    let outcome = tokio::select! {
        outcome = work => outcome,
        code = interruption() => {
            report.clear();
            if !flags.dry_run {
                print::note("interrupted; repeat the command to resume");
            }
            Ok(code)
        }
    };
    connections.close().await;
    outcome.map_err(|failure| match failure.kind() {
        Kind::Unreachable if report.has_begun() => {
            failure.with_hint("repeat the command to resume once the host is reachable")
        }
        _ => failure,
    })
}

/// Which entries and files are copied.
#[derive(Debug, Clone)]
struct Selection {
    rules: TreeRules,
    skip_unchanged: SkipUnchanged,
    extraneous: Extraneous,
}

fn selection(flags: &Flags) -> Result<Selection, Failure> {
    let rules = TreeRules::new(&flags.exclude)?;
    let rules = if flags.gitignore { rules.with_gitignore_files() } else { rules };
    let skip_unchanged = if flags.checksum { SkipUnchanged::ByContent } else { SkipUnchanged::BySizeAndTime };
    let extraneous = if flags.delete { Extraneous::Delete } else { Extraneous::Keep };
    Ok(Selection { rules, skip_unchanged, extraneous })
}

async fn copy(
    flags: &Flags,
    selection: Selection,
    connections: &mut Connections,
    report: &Arc<Report>,
) -> Outcome {
    let mut remote_paths = Vec::new();
    for arg in flags.sources.iter().chain([&flags.destination]) {
        let teller = Arc::clone(report);
        let remote_path = connections.reach(arg, move |text| teller.note(text)).await?;
        if remote_path.at.client.welcome().server.name.is_empty() {
            return Err(Failure::new(
                format!("cannot copy with `{}`", text::plain(&arg.shown())),
                "run `remex serve` there",
            )
            .because("its server is not remex, and does not support renames and hashes"));
        }
        remote_paths.push(remote_path);
    }
    let Some(destination) = remote_paths.pop() else { return Ok(0) };
    let copy_tasks = plan::copy_tasks(remote_paths, &destination, &selection, report).await?;
    let _drawing = report.draw();
    copy_trees(copy_tasks, report).await?;
    Ok(report.code())
}

/// Waits for a terminating signal, and returns its exit code.
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
