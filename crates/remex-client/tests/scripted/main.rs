//! The client against servers that say what they like: notifications out of order, unknown ones, broken
//! ones, those of newer servers.

#![allow(clippy::unwrap_used, reason = "in a test it is the assertion")]

mod attaching;
mod breaches;
mod future;
mod notifications;
mod observing;
mod restarts;
mod server;
mod uploads;
mod vectors;

use std::time::Duration;

use remex_client::{
    Client, Command, Process,
    process::{Event, Events},
};
use server::Server;

/// Nothing here takes as long.
const OVERDUE: Duration = Duration::from_secs(30);

/// Waits for something that has to happen.
async fn soon<T>(what: &str, future: impl IntoFuture<Output = T>) -> T {
    tokio::time::timeout(OVERDUE, future).await.unwrap_or_else(|_| panic!("waited in vain for {what}"))
}

/// Waits for the next event, which is output, and returns its number and text.
async fn output(events: &mut Events) -> (u64, String) {
    let event = soon("output", events.next()).await.unwrap();
    let Some(Event::Output(chunk)) = event else { panic!("{event:?} is no output") };
    (chunk.seq, String::from_utf8(chunk.bytes.to_vec()).unwrap())
}

/// Starts a process on a server that a test plays.
async fn started(client: &Client, server: &mut Server, id: &str) -> Process {
    let command = Command::new("prog").id(id);
    let (process, ()) = tokio::join!(command.start(client), server.start());
    process.unwrap()
}
