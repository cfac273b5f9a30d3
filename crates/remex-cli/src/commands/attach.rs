//! `remex attach`: reattaches to a background process, or watches a process of another client.

use std::{io::IsTerminal as _, num::NonZeroU16, time::Duration};

use remex_client::{
    Client, ConnectionState,
    process::{ProcessRef, TerminalSize},
};
use tokio::task::JoinHandle;

use super::Outcome;
use crate::{
    args::attach::{CtrlC, Flags},
    console::{
        Console, EndNotices, Ending, Interrupts, ShownProcess, WhenEnded, escape::Character, interrupt, say,
        terminal,
    },
    remote::{
        endpoint::{DefaultEndpoint, EndpointKind},
        processes::Processes,
        reconnect,
    },
    render::{failure::Failure, text::plain},
};

/// How many chunks of earlier output, of up to 64 KiB each, are shown again.
const REPLAYED_CHUNKS: u64 = 32;

/// How long to wait for a program to redraw after a resize; some never do.
const REDRAW_TIMEOUT: Duration = Duration::from_secs(1);

/// A redraw counts as finished after this time without output.
const REDRAW_PAUSE: Duration = Duration::from_millis(100);

pub(crate) async fn run(flags: &Flags) -> Outcome {
    let endpoint = flags.on.endpoint(DefaultEndpoint::RunningUserServer).await?;
    let client = interrupt::during(endpoint.connect(reconnect::keep_session)).await?;
    let (console, name, redraw) = interrupt::during(console(flags, &client, endpoint.kind)).await?;
    let ending = console.show().await;
    if let Some(redraw) = redraw.filter(|_| client.connection_state() == ConnectionState::Connected) {
        // The process must not keep the temporary size.
        let _ = tokio::time::timeout(REDRAW_TIMEOUT + REDRAW_PAUSE * 2, redraw).await;
    }
    let outcome = match ending {
        Ok(Ending::Detached) => {
            say(false, &format!("detached; `{name}` keeps running"));
            Ok(0)
        }
        Ok(Ending::Exited(code) | Ending::Stopped(code)) => Ok(code),
        Ok(Ending::OutputClosed) => Ok(141),
        Err(failure) => Err(reconnect::explain_left(failure, &name, &super::run::reattach(&endpoint, &name))),
    };
    reconnect::end(client).await;
    outcome
}

/// Finds the process, and returns its console, its name, and the task that makes it redraw its screen.
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
        // A disconnected client may have left the process blocked on its output.
        process.release().await?;
    }
    let cursor = process.cursor_before_newest(REPLAYED_CHUNKS).await?;
    let forward =
        !flags.read_only && (flags.interactive || std::io::stdin().is_terminal()) && row.is_running();
    let is_typed = std::io::stdin().is_terminal() && std::io::stderr().is_terminal();
    if is_typed && row.is_running() {
        let name = plain(&row.name);
        match flags.escape.escape {
            _ if flags.read_only => say(false, &format!("watching `{name}`; Ctrl-C detaches")),
            Character::None => say(false, &format!("attached to `{name}`; end this terminal to detach")),
            key => say(
                false,
                &format!("attached to `{name}`; {key}. at the start of a line detaches, {key}? shows help"),
            ),
        }
    }
    let redraw = (row.entry.has_terminal && forward).then(|| tokio::spawn(redraw(process.clone())));
    let console = Console {
        process: ShownProcess::observed(process, cursor),
        terminal: row.entry.has_terminal,
        forward,
        detach_refusal: None,
        when_ended: WhenEnded::Leave,
        escape: flags.escape.escape,
        endpoint,
        end_notices: EndNotices::default(),
        // A signal to this program does not reach the process.
        grace: Duration::ZERO,
        interrupts: match flags.ctrl_c {
            _ if flags.read_only => Interrupts::Leave,
            CtrlC::Detach => Interrupts::Leave,
            CtrlC::Ask if is_typed => Interrupts::Ask,
            CtrlC::Ask | CtrlC::Interrupt => Interrupts::Pass,
        },
    };
    Ok((console, row.name.clone(), redraw))
}

/// Resizes the terminal of the process to the size of this one, by way of another size to force a full redraw.
///
/// The last output rarely makes up a whole screen, and a program does not redraw if the size is unchanged.
async fn redraw(process: ProcessRef) {
    let size = terminal::size();
    let other = NonZeroU16::new(size.cols.get().saturating_sub(1)).unwrap_or(size.cols);
    let newest = process.cursor_before_newest(0).await;
    if process.resize(TerminalSize { cols: other, ..size }).await.is_ok()
        && let Ok(newest) = newest
    {
        // Wait in between: the program would not notice two resizes in a row.
        let _ = process.settle(newest, REDRAW_TIMEOUT, REDRAW_PAUSE).await;
    }
    // The window may have been resized meanwhile.
    let _ = process.resize(terminal::size()).await;
}
