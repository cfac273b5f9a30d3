//! `remex attach`: reattaches to a background process, or watches a process of another client.

use std::{io::IsTerminal as _, time::Duration};

use remex_client::{Client, Options, Session, process::ProcessRef};

use super::Outcome;
use crate::{
    args::attach::{CtrlC, Flags},
    console::{
        Console, EndNotices, Ending, Grace, Interrupts, ShownProcess, WhenEnded, escape::Character,
        interrupt, redraw, say,
    },
    remote::{
        agent_link::LentAgent,
        endpoint::{CLIENT_NAME, DefaultEndpoint, Endpoint},
        processes::{Processes, Row},
        reconnect::{self, Absence, FOREVER},
    },
    render::{
        failure::Failure,
        text::{now_ms, plain},
    },
};

/// How many chunks of earlier output, of up to 64 KiB each, are shown again.
const REPLAYED_CHUNKS: u64 = 32;

pub(crate) async fn run(flags: &Flags) -> Outcome {
    let mut endpoint = flags.on.endpoint(DefaultEndpoint::RunningUserServer).await?;
    if flags.forward_agent {
        endpoint.forward_agent()?;
    }
    let window = endpoint.reconnect_window(flags.reconnect.reconnect);
    let client = interrupt::during(endpoint.connect(reconnect::keep_session_for(window))).await?;
    let (console, agent) = Box::pin(interrupt::during(console(flags, &client, &endpoint))).await?;
    let absence = console.absence.clone();
    let name = absence.name.clone();
    let ending = console.show().await;
    let outcome = match ending {
        Ok(Ending::Detached) => {
            say(false, &format!("detached; `{name}` keeps running"));
            Ok(0)
        }
        Ok(Ending::Exited(code) | Ending::Stopped(code)) => Ok(code),
        Ok(Ending::OutputClosed) => Ok(141),
        Ok(Ending::Left { away }) => {
            say(false, &absence.left(away));
            Ok(130)
        }
        Err(failure) => {
            let reattach = super::run::reattach(&endpoint, &name);
            Err(reconnect::explain_left(failure, &name, &reattach).of_restarted(&name, &reattach))
        }
    };
    if let Some(agent) = agent {
        agent.give_back().await;
    }
    reconnect::end(client).await;
    outcome
}

/// Finds the process, and returns its console and the agent that it may use; makes it redraw its screen.
async fn console(
    flags: &Flags,
    client: &Client,
    endpoint: &Endpoint,
) -> Result<(Console, Option<LentAgent>), Failure> {
    let processes = Processes::list(client).await?;
    let row = match &flags.name {
        Some(name) => processes.find(name)?,
        None => processes.only_running()?,
    };
    let process = processes.listed_ref(row);
    let agent = if row.is_running() { endpoint.lend_agent(client, &row.entry).await? } else { None };
    let is_adopted = !flags.read_only && is_given_up(row) && adopt(client, endpoint, row, &process).await?;
    if row.is_running() && !is_adopted {
        // A disconnected client may have left the process blocked on its output.
        process.discard_output().await?;
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
    let redraw = (row.entry.has_terminal && forward).then(|| redraw::start(process.clone()));
    // The session of the process, not that of this client; one that lasts has no end that is known here.
    let kept = row.expires_at_ms.filter(|_| !is_adopted);
    let console = Console {
        process: ShownProcess::observed(process, cursor),
        terminal: row.entry.has_terminal,
        forward,
        detach_refusal: None,
        when_ended: WhenEnded::Leave,
        escape: flags.escape.escape,
        endpoint: endpoint.kind,
        absence: Absence {
            name: plain(&row.name),
            reattach: super::run::reattach(endpoint, &row.name),
            window: endpoint.reconnect_window(flags.reconnect.reconnect),
            kept: kept.map(|at| Duration::from_millis(at.saturating_sub(now_ms()))),
        },
        redraw,
        end_notices: EndNotices::default(),
        grace: Grace::NONE,
        interrupts: match flags.ctrl_c {
            _ if flags.read_only => Interrupts::Leave,
            CtrlC::Detach => Interrupts::Leave,
            CtrlC::Ask if is_typed => Interrupts::Ask,
            CtrlC::Ask | CtrlC::Interrupt => Interrupts::Pass,
        },
    };
    Ok((console, agent))
}

/// Returns whether it runs for a `remex run` that has lost its connection, so that its session expires.
fn is_given_up(row: &Row) -> bool {
    row.is_running() && row.client_name == CLIENT_NAME && !row.attached && row.expires_at_ms.is_some()
}

/// Keeps the session of a process whose client may have disconnected, and returns whether that succeeded.
///
/// If its client returns after all, that asks for the old time again.
async fn adopt(
    client: &Client,
    endpoint: &Endpoint,
    row: &Row,
    process: &ProcessRef,
) -> Result<bool, Failure> {
    process.discard_output_for(FOREVER).await?;
    let sessions = client.sessions().await?;
    let session = sessions.iter().find(|session| session.session_id == row.entry.session_id);
    let is_kept = session.is_some_and(|session| session.expires_at_ms != row.expires_at_ms);
    // A server of an earlier version cannot do that for the session of another connection.
    Ok(is_kept || extend_session(endpoint, row).await)
}

/// Keeps the session of a process by resuming it for a moment, which needs a connection of its own.
async fn extend_session(endpoint: &Endpoint, row: &Row) -> bool {
    let session = Session::Resume { id: row.entry.session_id.clone(), takeover: false };
    let adopted = endpoint
        .connect(|options: &mut Options| {
            options.session = session;
            options.detach_ttl = Some(FOREVER);
        })
        .await;
    match adopted {
        Ok(client) => {
            client.close().await;
            true
        }
        // Its client reconnected first.
        Err(_) => false,
    }
}
