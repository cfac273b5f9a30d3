//! `remex resize`: changes the terminal size of a process.

use remex_client::process::TerminalSize;

use super::Outcome;
use crate::{
    args::resize::Flags,
    remote::{endpoint::DefaultEndpoint, processes::Processes},
    render::{failure::Failure, text::plain},
};

pub(crate) async fn run(flags: &Flags) -> Outcome {
    let endpoint = flags.on.endpoint(DefaultEndpoint::RunningUserServer).await?;
    let client = endpoint.connect(|_| {}).await?;
    let processes = Processes::list(&client).await?;
    let row = processes.find(&flags.name)?;
    let cannot = |why: &str, hint: &str| {
        Err(Failure::new(format!("cannot resize `{}`", plain(&row.name)), hint).because(why))
    };
    if !row.entry.has_terminal {
        return cannot("it has no terminal", "start it with `remex run -t`");
    }
    if !row.is_running() {
        return cannot(&format!("it has exited ({})", row.outcome()), "see `remex ps`");
    }
    processes.process_ref(row).resize(TerminalSize { rows: flags.rows, cols: flags.cols }).await?;
    let _ = client.end().await;
    Ok(0)
}
