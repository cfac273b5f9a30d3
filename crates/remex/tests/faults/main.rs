//! Our client and the real program with a faulty network between them: every stream arrives byte by byte, everything
//! is done once, and nothing is left behind.
//!
//! Each run follows from its seed, as far as time allows. One that failed is told, and is run alone with
//! `REMEX_FAULTS_SEED=17 cargo test -p remex --test faults`.

#![allow(clippy::unwrap_used, reason = "in a test it is the assertion")]

mod chance;
mod course;
mod exact;
mod proxy;
mod restart;
mod scene;
mod stories;
#[path = "../support/mod.rs"]
mod support;

use std::{future::Future, ops::Range, sync::Arc, time::Duration};

use remex_client::{Client, Error, Options};
use rustix::fs::{CWD, FileType, Mode, mknodat};
use tokio::{sync::Semaphore, task::JoinSet, time::timeout};

use chance::Chance;
use course::{Course, Way};
use exact::{Exact, lines};
use proxy::{Door, Proxy};
use scene::{Scene, longest_absence};
use support::{PATIENCE, Server};

/// Which seed to run alone.
const SEED: &str = "REMEX_FAULTS_SEED";

/// How many runs share a server at a time.
const AT_ONCE: usize = 6;

#[test]
fn every_stream_is_exact_over_a_faulty_websocket() {
    let server = Server::start();
    let address = server.address().to_owned();
    run_all(0..60, AT_ONCE, move |seed| run(seed, address.clone()));
    server.stop();
}

#[test]
fn every_stream_is_exact_over_a_faulty_unix_socket() {
    let server = Server::unix(&[]);
    let address = server.address().to_owned();
    run_all(60..100, AT_ONCE, move |seed| run(seed, address.clone()));
    server.stop();
}

#[test]
fn a_restarted_server_is_told_to_everybody_who_waits() {
    run_all(100..106, 2, |seed| restart::run(seed, Server::start));
    run_all(106..112, 2, |seed| restart::run(seed, || Server::unix(&[])));
}

#[test]
fn what_a_server_gives_up_while_its_client_is_away_is_told_to_the_byte() {
    run_all(112..113, 1, |_| give_up(Server::start()));
    run_all(113..114, 1, |_| give_up(Server::unix(&[])));
}

/// How the clients here behave: they notice soon that nobody answers.
fn options() -> Options {
    Options {
        detach_ttl: Some(Duration::from_secs(60)),
        initialize_timeout: Duration::from_secs(3),
        keep_alive: Duration::from_millis(300),
        silence: Duration::from_millis(300),
        ..Options::default()
    }
}

/// Makes the runs of these seeds, some at a time, and tells which have failed.
fn run_all<R>(seeds: Range<u64>, at_once: usize, run: impl Fn(u64) -> R)
where
    R: Future<Output = ()> + Send + 'static,
{
    let alone: Option<u64> = std::env::var(SEED).ok().and_then(|seed| seed.parse().ok());
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let failed = runtime.block_on(async {
        let permits = Arc::new(Semaphore::new(at_once));
        let mut runs = JoinSet::new();
        for seed in seeds.filter(|seed| alone.is_none_or(|alone| alone == *seed)) {
            let (run, permits) = (run(seed), Arc::clone(&permits));
            runs.spawn(async move {
                let _permit = permits.acquire().await.unwrap();
                let outcome = tokio::spawn(timeout(PATIENCE, run)).await;
                match outcome {
                    Ok(Ok(())) => None,
                    Ok(Err(_)) => Some(format!("seed {seed}: it does not come to its end")),
                    Err(panic) => Some(format!("seed {seed}: {panic}")),
                }
            });
        }
        runs.join_all().await.into_iter().flatten().collect::<Vec<_>>()
    });
    runtime.shutdown_timeout(Duration::from_secs(5));
    assert!(failed.is_empty(), "run one alone with {SEED}: {failed:#?}");
}

/// Tells some stories at once while the connections go wrong.
async fn run(seed: u64, server: String) {
    let mut chance = Chance::new(seed);
    let proxy = Proxy::before(&server, Course::draw(&mut chance)).await;
    let client = connect(&proxy).await;
    let absence = tokio::spawn(longest_absence(client.conditions()));
    let mut scene = Scene::new(client.clone(), chance.branch());
    let mut stories = JoinSet::new();
    for number in 0..chance.within(3, 6) {
        stories.spawn(stories::tell(seed + 5 * number, scene.branch()));
    }
    while let Some(told) = stories.join_next().await {
        told.unwrap();
    }
    if chance.percent(50) {
        let way = chance.pick(&[Way::Up, Way::Down]);
        proxy.lay_snare(way, usize::try_from(chance.within(0, 200)).unwrap());
    }
    client.end().await.unwrap();
    scene.assert_whole_unless_away(absence.await.unwrap());
    scene.assert_each_started_once();
    tokio::task::block_in_place(|| scene.assert_nothing_is_left());
}

/// Connects; only a client that has a session recovers from faults.
async fn connect(proxy: &Proxy) -> Client {
    loop {
        match Client::connect_with(proxy.target(), options()).await {
            Ok(client) => return client,
            Err(Error::Unreachable { .. } | Error::TimedOut { .. }) => {}
            Err(error) => panic!("{error}"),
        }
    }
}

/// Keeps a client away until the server has given up what it had for it.
async fn give_up(server: Server) {
    let proxy = Proxy::before(server.address(), Vec::new()).await;
    let client = connect(&proxy).await;
    let scene = Scene::new(client.clone(), Chance::new(0));
    let over = scene.path("over");
    mknodat(CWD, &over, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
    let last = 700_000;
    let process = scene.shell(&format!("seq 1 {last}; echo over > over")).start().await.unwrap();
    let mut events = process.events();
    let mut stdout = Exact::new(lines(last));
    stdout.begin(&mut events).await;
    proxy.set_door(Door::Shut);
    proxy.lay_snare(Way::Up, 0);
    tokio::task::spawn_blocking(|| std::fs::read(over)).await.unwrap().unwrap();
    proxy.set_door(Door::Open);
    stdout.follow(events).await;
    stdout.finish(&scene);
    assert!(stdout.lacking() > 0, "so much is not retained");
    client.end().await.unwrap();
}
