//! A server that is restarted.

use std::sync::Arc;

use remex_client::{
    Client, Command, Error, SessionLost,
    process::{Event, Process, Stdio, Until},
};
use rustix::process::Signal;
use tokio::{io::AsyncWriteExt as _, task::JoinSet};

use super::{chance::Chance, options, proxy::Proxy, scene::Scene};
use crate::support::Server;

/// What becomes of those who wait while their server is replaced.
pub(crate) async fn run(seed: u64, start: fn() -> Server) {
    let mut chance = Chance::new(seed);
    let signal = chance.pick(&[Signal::KILL, Signal::TERM]);
    let mut server = start();
    let proxy = Proxy::before(server.address(), Vec::new(), &Arc::default()).await;
    let client = Client::connect_with(proxy.target(), options()).await.unwrap();
    let scene = Scene::new(client.clone(), chance.branch());
    let mut waiting = JoinSet::new();
    for line in ["exec yes", "echo here; exec sleep 1000", "echo here; exec cat"] {
        let process = scene.shell(line).stdin(Stdio::Piped).start(&scene.client).await.unwrap();
        process.wait_for(&Until::Output("\n".to_owned())).await.unwrap();
        waiting.spawn(read(process.clone()));
        waiting.spawn(write(process.clone()));
        waiting.spawn(wait(process));
    }
    let replacement = if chance.percent(50) { Some(start()) } else { None };
    server.signal(signal);
    tokio::task::block_in_place(|| server.wait());
    let replacement = replacement.unwrap_or_else(start);
    proxy.lead_to(replacement.address());
    while let Some(ended) = waiting.join_next().await {
        match (signal, ended.unwrap()) {
            (_, Err(Error::Lost(SessionLost::Forgotten { .. }))) => {}
            // In order, a server ends its processes first, and its clients may hear of it.
            (Signal::TERM, _) => {}
            (_, other) => panic!("{other:?}"),
        }
    }
    let error = Command::new("true").output(&client).await.unwrap_err();
    assert!(matches!(error, Error::Lost(SessionLost::Forgotten { .. })), "{error}");
    tokio::task::block_in_place(|| scene.assert_nothing_is_left());
    drop(proxy);
}

async fn read(process: Process) -> Result<(), Error> {
    let mut events = process.events();
    while let Some(event) = events.next().await? {
        if let Event::Closed(_) = event {
            break;
        }
    }
    Ok(())
}

async fn write(process: Process) -> Result<(), Error> {
    let Some(mut stdin) = process.stdin() else { return Ok(()) };
    loop {
        if let Err(error) = stdin.write_all(b"hello\n").await {
            let error = error.get_ref().and_then(|error| error.downcast_ref::<Error>());
            return Err(error.expect("a failure says what it is").clone());
        }
    }
}

async fn wait(process: Process) -> Result<(), Error> {
    process.wait().await.map(drop)
}
