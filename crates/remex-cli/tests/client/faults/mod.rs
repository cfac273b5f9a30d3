//! Our client and the real program with a faulty network between them: every stream arrives byte by byte, everything
//! is done once, and nothing is left behind.
//!
//! Each run follows from its seed, as far as time allows. One that failed is told, and is run alone with
//! `REMEX_FAULTS_SEED=17 cargo test -p remex-cli --test client faults`.

pub(crate) mod chance;
pub(crate) mod course;
mod end;
mod exact;
pub(crate) mod proxy;
mod restart;
mod scene;
mod soak;
mod stories;

use std::{
    future::Future,
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use remex_client::{Client, Error, Options};
use rustix::fs::{CWD, FileType, Mode, mknodat};
use tokio::{sync::Semaphore, task::JoinSet, time::timeout};

use crate::support::{PATIENCE, Server};
use chance::Chance;
use course::{Course, Cut, Fault, Way};
use exact::{Exact, lines};
use proxy::{Door, Proxy, Tally};
use scene::Scene;

/// Which seed to run alone.
const SEED: &str = "REMEX_FAULTS_SEED";

/// How many runs share a server at a time.
const AT_ONCE: usize = 10;

#[test]
fn every_stream_is_exact_over_a_faulty_websocket() {
    run_on(Server::serve, 0..60);
}

#[test]
fn every_stream_is_exact_over_a_faulty_unix_socket() {
    run_on(Server::unix, 60..100);
}

#[test]
fn a_server_restart_fails_every_pending_operation() {
    run_all(100..106, 2, |seed| restart::run(seed, Server::start));
    run_all(106..112, 2, |seed| restart::run(seed, || Server::unix(&[])));
}

#[test]
fn output_dropped_during_a_disconnect_is_reported_to_the_byte() {
    run_all(112..113, 1, |_| give_up(Server::start()));
    run_all(113..114, 1, |_| give_up(Server::unix(&[])));
}

#[test]
fn an_exit_during_a_disconnect_is_reported_as_an_exit() {
    run_all(114..115, 1, |_| end::run());
}

#[test]
fn a_file_is_read_across_many_short_connections() {
    run_all(115..116, 1, |_| read_in_parts());
}

#[test]
fn a_minute_of_faults_loses_and_duplicates_nothing() {
    let (websocket, unix) = (Server::start(), Server::unix(&[]));
    let tally = Arc::new(Tally::default());
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let soak = async { timeout(10 * PATIENCE, soak::run([&websocket, &unix], 4, &tally)).await };
    runtime.block_on(soak).expect("all clients come to their end");
    websocket.stop();
    unix.stop();
}

/// Makes the runs of these seeds with one server, and checks that enough has gone wrong.
fn run_on(start: impl FnOnce(&[&str]) -> Server, seeds: Range<u64>) {
    let directory = tempfile::tempdir().unwrap();
    let config = directory.path().join("server.toml");
    // A busy machine may take more than the usual two seconds to come back.
    std::fs::write(&config, "[limits]\nresume_hold = '10m'\n").unwrap();
    let server = start(&["--config", config.to_str().unwrap()]);
    let tally = Arc::new(Tally::default());
    let runs = seeds.end - seeds.start;
    run_all(seeds, AT_ONCE, |seed| run(seed, server.address().to_owned(), Arc::clone(&tally)));
    let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    let (refused, cut, mute) = (count(&tally.refused), count(&tally.cut), count(&tally.mute));
    let is_enough = refused >= runs / 4 && cut >= runs && mute >= runs / 4;
    assert!(alone().is_some() || is_enough, "too little goes wrong: {tally:?}");
    server.stop();
}

/// How the clients here behave: they notice soon that nobody answers.
fn options() -> Options {
    Options::default()
        .detach_ttl(Duration::from_secs(60))
        .connect_timeout(Duration::from_secs(1))
        .handshake_timeout(Duration::from_secs(3))
        .keep_alive_interval(Duration::from_millis(300))
        .keep_alive_timeout(Duration::from_millis(300))
}

/// Makes the runs of these seeds, some at a time, and tells which have failed.
fn run_all<R>(seeds: Range<u64>, at_once: usize, run: impl Fn(u64) -> R)
where
    R: Future<Output = ()> + Send + 'static,
{
    let alone = alone();
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

/// Returns the only seed to run.
fn alone() -> Option<u64> {
    std::env::var(SEED).ok().map(|seed| seed.parse().expect("a seed is a number"))
}

/// Tells some stories at once while the connections go wrong.
async fn run(seed: u64, server: String, tally: Arc<Tally>) {
    let mut chance = Chance::new(seed);
    let proxy = Proxy::before(&server, Course::draw(&mut chance), &tally).await;
    let client = connect(&proxy).await;
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
    scene.assert_whole();
    scene.assert_each_started_once();
    tokio::task::block_in_place(|| scene.assert_nothing_is_left());
}

/// Connects; only a client that has a session recovers from faults.
pub(crate) async fn connect(proxy: &Proxy) -> Client {
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
    let proxy = Proxy::before(server.address(), Vec::new(), &Arc::default()).await;
    let client = connect(&proxy).await;
    let scene = Scene::new(client.clone(), Chance::new(0));
    let over = scene.path("over");
    mknodat(CWD, &over, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
    let last = 700_000;
    let process = scene.shell(&format!("seq 1 {last}; echo over > over")).start(&scene.client).await.unwrap();
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

/// Reads a file of which no connection carries more than a part.
async fn read_in_parts() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("file");
    let content: Vec<u8> =
        (0..16 << 20).map(|number: u32| (number.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    std::fs::write(&path, &content).unwrap();
    let server = Server::start();
    let (courses, tally) = (100, Arc::<Tally>::default());
    let fault = Fault::Cut { after: 4 << 20, how: Cut::Reset };
    let cut = Course { fault, ..Course::smooth() };
    let proxy = Proxy::before(server.address(), vec![cut; courses], &tally).await;
    let client = connect(&proxy).await;
    let read = client.fs().read(&path).await.unwrap();
    assert!(read == content, "{} of {} bytes", read.len(), content.len());
    let cuts = tally.cut.load(Ordering::Relaxed);
    assert!((4..courses as u64).contains(&cuts), "{cuts} connections were cut");
    client.end().await.unwrap();
}
