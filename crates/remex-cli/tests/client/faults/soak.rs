//! A minute of work through connections that go wrong for as long as it lasts.

use std::{
    pin::pin,
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant},
};

use remex_client::process::{Overflow, Retain};
use tokio::task::JoinSet;

use super::{
    chance::Chance,
    connect,
    proxy::{Proxy, Tally},
    scene::Scene,
    stories,
};
use crate::support::{PATIENCE, Server};

/// How long the work goes on: a minute, or what `REMEX_SOAK_SECONDS` says.
const SECONDS: &str = "REMEX_SOAK_SECONDS";

/// How much work a client has under way at a time.
const STORIES_AT_ONCE: u64 = 3;

/// Works on each server with some clients at once, and returns when all have compared what they got.
pub(crate) async fn run(servers: [&Server; 2], clients_each: u64, tally: &Arc<Tally>) {
    let seconds = std::env::var(SECONDS).map_or(60, |text| text.parse().expect("a number of seconds"));
    let end = Instant::now() + Duration::from_secs(seconds);
    let mut clients = JoinSet::new();
    for (server, seeds) in servers.into_iter().zip([0, clients_each]) {
        for seed in seeds..seeds + clients_each {
            clients.spawn(work(seed, server.address().to_owned(), end, Arc::clone(tally)));
        }
    }
    let mut told = 0;
    while let Some(client) = clients.join_next().await {
        told += client.unwrap();
    }
    let cut = tally.cut.load(Ordering::Relaxed);
    assert!(told > clients_each && cut > told / 4, "too little happens: {told} stories, {tally:?}");
}

/// Tells stories over one session until the time has come, and returns how many.
async fn work(seed: u64, server: String, end: Instant, tally: Arc<Tally>) -> u64 {
    let mut chance = Chance::new(seed);
    let proxy = Proxy::before_faulty(&server, chance.branch(), &tally).await;
    let client = connect(&proxy).await;
    // However long a client is away, nothing may be given up.
    let retain = Retain::default().after_close(10 * PATIENCE).overflow(Overflow::Hold);
    let mut scene = Scene::retaining(client.clone(), chance.branch(), retain);
    let mut stories = JoinSet::new();
    let mut told = 0;
    let mut over = pin!(tokio::time::sleep_until(end.into()));
    loop {
        while Instant::now() < end && (stories.len() as u64) < STORIES_AT_ONCE {
            stories.spawn(stories::tell(seed + 5 * told, scene.branch()));
            told += 1;
        }
        tokio::select! {
            story = stories.join_next() => match story {
                Some(story) => story.unwrap_or_else(|panic| panic!("client {seed}: {panic}")),
                None => break,
            },
            () = &mut over, if !over.is_elapsed() => proxy.mend(),
        }
    }
    client.end().await.unwrap();
    scene.assert_whole();
    scene.assert_each_started_once();
    tokio::task::block_in_place(|| scene.assert_nothing_is_left());
    told
}
