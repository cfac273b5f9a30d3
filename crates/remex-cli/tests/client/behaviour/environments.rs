//! Named places, with a server behind them that comes and goes.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use remex::Local;
use remex_client::{
    Command, ConnectionState, Error, Options, Target,
    environment::{Definitions, Environment, Environments, Id},
    process::Until,
};

fn counting(target: Target) -> (Target, Arc<AtomicUsize>) {
    let count = Arc::new(AtomicUsize::new(0));
    let Target::Custom(custom) = target else { panic!("a place in this process") };
    let dials = Arc::clone(&count);
    let dial = move || {
        dials.fetch_add(1, Ordering::Relaxed);
        let custom = custom.clone();
        async move { custom.dial.dial().await }
    };
    (Target::custom("counted", dial), count)
}

#[tokio::test]
async fn an_environment_connects_on_first_use_and_shares_the_connection() {
    let (target, dials) = counting(Local::here().unwrap().target());
    let place = Environment::new(Id::new("here").unwrap(), target, Options::default());
    assert_eq!(dials.load(Ordering::Relaxed), 0);
    let runs: Vec<_> = (0..20)
        .map(|_| {
            let place = place.clone();
            tokio::spawn(async move { Command::new("echo").arg("x").output(&place.client().await?).await })
        })
        .collect();
    for run in runs {
        assert_eq!(run.await.unwrap().unwrap().stdout, b"x\n");
    }
    assert_eq!(dials.load(Ordering::Relaxed), 1);
    assert!(place.info().await.unwrap().cwd.is_some());
}

#[tokio::test]
async fn a_lost_environment_is_reconnected() {
    let (target, dials) = counting(Local::here().unwrap().target());
    let place = Environment::new(Id::new("here").unwrap(), target, Options::default());
    let first = place.client().await.unwrap();
    let process = Command::shell("echo here; exec sleep 1000").start(&first).await.unwrap();
    process.wait_for(&Until::Output("here".to_owned())).await.unwrap();
    let gone = first.clone();
    first.close().await;
    assert!(matches!(gone.connection_state(), ConnectionState::Lost(_)));
    assert!(matches!(process.wait().await, Err(Error::Lost(_))), "what was in the old session is told so");
    assert_eq!(
        Command::new("echo").arg("again").output(&place.client().await.unwrap()).await.unwrap().stdout,
        b"again\n"
    );
    assert_eq!(dials.load(Ordering::Relaxed), 2);
}

#[tokio::test]
async fn an_unreachable_environment_is_an_error_and_is_retried() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("remex.sock");
    let place = Environment::new(Id::new("away").unwrap(), Target::unix(&socket), Options::default());
    for _ in 0..2 {
        let error = place.client().await.unwrap_err();
        assert!(
            matches!(&error, Error::Unreachable { target, .. } if target.contains("remex.sock")),
            "{error}"
        );
    }
    let address = format!("unix://{}", socket.display());
    let _server = crate::support::Server::serve(&["--listen", &address]);
    assert!(Command::new("true").output(&place.client().await.unwrap()).await.unwrap().exit.success());
}

#[tokio::test]
async fn environments_of_a_file_are_listed_after_the_local_one() {
    let text = "default = \"b\"\n[[environments]]\nid = \"a\"\nurl = \"ws://127.0.0.1:1\"\n[[environments]]\nid = \"b\"\nprogram = \"remex\"\n";
    let draft = Definitions::parse(text, "environments.toml".as_ref()).unwrap();
    let definitions = draft.with_tokens(|_| unreachable!("there is no token")).unwrap();
    let local = Local::here().unwrap().target();
    let places = Environments::new(definitions, Some(local), &Options::default());
    let ids: Vec<_> = places.all().iter().map(|place| place.id().as_str()).collect();
    assert_eq!(ids, ["local", "a", "b"]);
    assert_eq!(places.default_environment().unwrap().id().as_str(), "b");
    let here = places.find(&Id::local()).unwrap();
    assert_eq!(
        Command::shell("echo $0").output(&here.client().await.unwrap()).await.unwrap().stdout,
        b"/bin/sh\n"
    );
}
