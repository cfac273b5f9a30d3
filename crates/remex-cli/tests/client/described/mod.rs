//! The behaviour that `spec/behaviour` describes for every client, and how ours behaves: over every transport, and over
//! networks that fail.

pub(crate) mod data;
pub(crate) mod story;
pub(crate) mod web;

use std::{fs, path::Path, sync::Arc, time::Duration};

use remex::Local;
use remex_client::{Client, Target};
use tokio::{sync::Semaphore, task::JoinSet, time::timeout};

use crate::{
    faults::{
        self,
        chance::Chance,
        course::Course,
        proxy::{Proxy, Tally},
    },
    support::{PATIENCE, Server},
};
use story::{Network, Story};

/// How many stories share a server at a time.
const AT_ONCE: usize = 6;

/// Reads all stories.
fn stories() -> Vec<Story> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../spec/behaviour");
    let entries = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
    let files = entries.filter(|path| path.extension().is_some_and(|extension| extension == "json"));
    let stories: Vec<Story> = files
        .flat_map(|path| serde_json::from_slice::<Vec<Story>>(&fs::read(path).unwrap()).unwrap())
        .collect();
    assert!(!stories.is_empty(), "the stories are there");
    stories
}

/// Tells all stories to a server.
fn tell_all(target: Target) {
    run(stories(), move |story, web| {
        let target = target.clone();
        async move {
            let client = Client::connect(target).await.unwrap();
            story.tell(client, Network::Smooth, &web).await;
        }
    });
}

/// Tells all stories that bear it, each over a network that fails in its own way.
fn tell_all_over_faults(server: &Server, seeds: u64) {
    let tally = Arc::new(Tally::default());
    let address = server.address().to_owned();
    let mut stories: Vec<_> = stories().into_iter().filter(Story::bears_faults).collect();
    for (story, seed) in stories.iter_mut().zip(seeds..) {
        story.name = format!("{} (seed {seed})", story.name);
        story.seed = seed;
    }
    let counted = Arc::clone(&tally);
    run(stories, move |story, web| {
        let (address, tally) = (address.clone(), Arc::clone(&counted));
        async move {
            let courses = Course::draw(&mut Chance::new(story.seed));
            let proxy = Proxy::before(&address, courses, &tally).await;
            let client = faults::connect(&proxy).await;
            story.tell(client, Network::Faulty, &web).await;
        }
    });
    assert!(tally.cut.load(std::sync::atomic::Ordering::Relaxed) > 10, "too little goes wrong: {tally:?}");
}

/// Tells stories, some at a time, and names those that do not hold.
fn run<F>(stories: Vec<Story>, tell: impl Fn(Story, String) -> F + Clone + Send + 'static)
where
    F: Future<Output = ()> + Send + 'static,
{
    let web = web::start();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let failed = runtime.block_on(async {
        let permits = Arc::new(Semaphore::new(AT_ONCE));
        let mut runs = JoinSet::new();
        for story in stories {
            let (permits, tell, url, name) =
                (Arc::clone(&permits), tell.clone(), web.url(""), story.name.clone());
            runs.spawn(async move {
                let _permit = permits.acquire().await.unwrap();
                match tokio::spawn(timeout(PATIENCE, tell(story, url))).await {
                    Ok(Ok(())) => None,
                    Ok(Err(_)) => Some(format!("{name}: it does not come to its end")),
                    Err(panic) => Some(format!("{name}: {panic}")),
                }
            });
        }
        runs.join_all().await.into_iter().flatten().collect::<Vec<_>>()
    });
    runtime.shutdown_timeout(Duration::from_secs(5));
    assert!(failed.is_empty(), "these stories do not hold: {failed:#?}");
}

#[test]
fn in_process() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let local = runtime.block_on(async { Local::here().unwrap() });
    tell_all(local.target());
}

#[test]
fn over_stdio() {
    tell_all(Target::program(env!("CARGO_BIN_EXE_remex"), ["serve", "--listen", "stdio"]));
}

#[test]
fn over_a_websocket() {
    let server = Server::start();
    tell_all(Target::parse(server.address()).unwrap());
    server.stop();
}

#[test]
fn over_a_unix_socket() {
    let server = Server::unix(&[]);
    tell_all(Target::parse(server.address()).unwrap());
    server.stop();
}

#[test]
fn over_a_faulty_websocket() {
    let server = Server::start();
    tell_all_over_faults(&server, 1000);
    server.stop();
}

#[test]
fn over_a_faulty_unix_socket() {
    let server = Server::unix(&[]);
    tell_all_over_faults(&server, 2000);
    server.stop();
}
