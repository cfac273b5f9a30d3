//! `remex attach`: back to a process that was left running, or a look over somebody's shoulder.

use std::{io::IsTerminal as _, num::NonZeroU16, time::Duration};

use remex_client::{Client, ConnectionState, process::ProcessRef};
use tokio::task::JoinHandle;

use super::Outcome;
use crate::{
    args::attach::Flags,
    console::{Console, Ending, Interrupts, ShownProcess, WhenEnded, interrupt, say, terminal},
    remote::{
        endpoint::{DefaultEndpoint, EndpointKind},
        processes::Processes,
        reconnect,
    },
    render::failure::Failure,
};

/// How much of what was said before is shown again: pieces of up to 64 KiB.
const SHOWN_AGAIN: u64 = 32;

/// How long a program may take to answer another size; one that does not draw never does.
const ANSWER: Duration = Duration::from_secs(1);

/// How long it is silent once its screen is drawn.
const QUIET: Duration = Duration::from_millis(100);

pub(crate) async fn run(flags: &Flags) -> Outcome {
    let endpoint = flags.on.endpoint(DefaultEndpoint::RunningUserServer).await?;
    let client = interrupt::during(endpoint.connect(reconnect::keep_session)).await?;
    let (console, name, redraw) = interrupt::during(console(flags, &client, endpoint.kind)).await?;
    let ending = console.show().await;
    if let Some(redraw) = redraw.filter(|_| client.connection_state() == ConnectionState::Connected) {
        // It must not be left with the other size.
        let _ = tokio::time::timeout(ANSWER + QUIET * 2, redraw).await;
    }
    let outcome = match ending {
        Ok(Ending::Detached) => {
            say(false, &format!("`{name}` runs on"));
            Ok(0)
        }
        Ok(Ending::Exited(code) | Ending::Signalled(code)) => Ok(code),
        Ok(Ending::OutputClosed) => Ok(141),
        Err(failure) => Err(failure),
    };
    reconnect::end(client).await;
    outcome
}

/// Finds the process, and returns how it is shown, what it is called, and what has it draw its screen.
async fn console(
    flags: &Flags,
    client: &Client,
    endpoint: EndpointKind,
) -> Result<(Console, String, Option<JoinHandle<()>>), Failure> {
    let processes = Processes::list(client).await?;
    let row = match &flags.name {
        Some(name) => processes.find(name)?,
        None => processes.only_running()?,
    };
    let process = processes.process_ref(row);
    if row.is_running() {
        // A client that went away may have left it waiting for a reader: this is one.
        process.release().await?;
    }
    let cursor = process.cursor_before_newest(SHOWN_AGAIN).await?;
    let forward =
        !flags.read_only && (flags.interactive || std::io::stdin().is_terminal()) && row.is_running();
    let redraw = (row.entry.tty && forward).then(|| tokio::spawn(redraw(process.clone())));
    let console = Console {
        process: ShownProcess::observed(process, cursor),
        terminal: row.entry.tty,
        forward,
        stay: None,
        when_ended: WhenEnded::Leave,
        escape: flags.escape.escape,
        endpoint,
        interrupts: if flags.read_only { Interrupts::Leave } else { Interrupts::Pass },
    };
    Ok((console, row.name.clone(), redraw))
}

/// Gives the process the size of this terminal, and a reason to draw its whole screen anew: another size for a moment.
///
/// The end of what it said before seldom makes a whole screen, and a size that stays the same is no reason.
async fn redraw(process: ProcessRef) {
    let (rows, cols) = terminal::size();
    let other = NonZeroU16::new(cols.get().saturating_sub(1)).unwrap_or(cols);
    let newest = process.cursor_before_newest(0).await;
    if process.resize(rows, other).await.is_ok()
        && let Ok(newest) = newest
    {
        // Two changes at once would be one to it, and none in the end.
        let _ = process.settle(newest, ANSWER, QUIET).await;
    }
    // The window may have changed meanwhile.
    let (rows, cols) = terminal::size();
    let _ = process.resize(rows, cols).await;
}
