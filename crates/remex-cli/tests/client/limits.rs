//! Cases that must not block a client, or make it wait forever.

use std::{sync::Arc, time::Duration};

use remex_client::{
    Client, Command, ConnectionState, Error, Options, Session, SessionLost, Target,
    process::{Event, OnDrop, Stdio, Until},
};
use remex_proto::process::{List, Read, State, Wait};
use rustix::process::Signal;
use tokio::{io::AsyncWriteExt as _, time::timeout};

use crate::support::{PATIENCE, Server};

async fn connect(server: &Server) -> Client {
    Client::connect(Target::parse(server.address()).unwrap()).await.unwrap()
}

async fn in_time<T>(what: impl IntoFuture<Output = T>) -> T {
    timeout(PATIENCE, what).await.expect("it comes to its end in time")
}

#[tokio::test]
async fn an_oversized_message_is_refused_before_it_is_sent() {
    for server in [Server::unix(&[]), Server::start()] {
        let client = connect(&server).await;
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("big");
        let error = in_time(client.fs().write(&path, vec![0; 70 << 20])).await.unwrap_err();
        assert!(matches!(error, Error::TooLong { method: "fs/writeFile", limit: 67_108_864, .. }), "{error}");
        let size = in_time(client.fs().upload(&vec![0; 70 << 20][..], &path)).await.unwrap();
        assert_eq!(size, 70 << 20, "in parts it goes");
    }
}

#[tokio::test]
async fn a_server_with_little_retention_sends_everything() {
    let directory = tempfile::tempdir().unwrap();
    let config = directory.path().join("server.toml");
    let script = "seq 100000; i=0; while [ $i -lt 100 ]; do echo $i; i=$((i+1)); sleep 0.001; done";
    for limits in ["retain_events = 20", "retain_bytes = '16KiB'", "session_retain_bytes = '64KiB'"] {
        std::fs::write(&config, format!("[limits]\n{limits}\n")).unwrap();
        for serve in [Server::unix, Server::serve] {
            let server = serve(&["--config", config.to_str().unwrap()]);
            let client = connect(&server).await;
            let output = in_time(Command::shell(script).output(&client)).await.unwrap();
            let lines = String::from_utf8(output.stdout).unwrap().lines().count();
            assert_eq!(lines, 100_100, "with {limits}");
        }
    }
}

#[tokio::test]
async fn processes_that_read_no_input_block_no_other() {
    let server = Server::unix(&[]);
    let client = connect(&server).await;
    let mut stalled = Vec::new();
    for _ in 0..100 {
        let process = Command::new("sleep").arg("1000").stdin(Stdio::Piped).start(&client).await.unwrap();
        let mut stdin = process.stdin().unwrap();
        stalled.push((process, tokio::spawn(async move { stdin.write_all(&[0; 4 << 20]).await })));
    }
    let waits: Vec<_> = stalled
        .iter()
        .flat_map(|(process, _)| std::iter::repeat_n(process.id().to_owned(), 5))
        .map(|process_id| {
            let client = client.clone();
            let wait = Wait {
                process_id,
                session_id: None,
                incarnation: None,
                wait_ms: None,
                until: remex_proto::process::Until::Exit,
            };
            tokio::spawn(async move { client.call(wait).await })
        })
        .collect();
    let echo = Command::new("cat").stdin(Stdio::Piped).start(&client).await.unwrap();
    let output = in_time(echo.communicate(b"still here")).await.unwrap();
    assert_eq!(output.stdout, b"still here");
    assert!(in_time(client.fs().exists("/")).await.unwrap());
    in_time(stalled[99].0.kill()).await.unwrap();
    assert_eq!(in_time(stalled[99].0.wait()).await.unwrap().code, 137);
    in_time(client.end()).await.unwrap();
    for (_, write) in stalled {
        assert!(in_time(write).await.unwrap().is_err(), "every write comes to its end");
    }
    for wait in waits {
        let _ = in_time(wait).await.unwrap();
    }
}

#[tokio::test]
async fn a_process_started_after_its_request_was_dropped_is_ended() {
    let server = Server::unix(&[]);
    let options = Options::default().request_timeout(Duration::from_millis(100));
    let target = Target::parse(server.address()).unwrap();
    let hasty = Client::connect_with(target, options).await.unwrap();
    server.signal(Signal::STOP);
    for _ in 0..3 {
        let error = in_time(Command::new("sleep").arg("1000").output(&hasty)).await.unwrap_err();
        assert!(matches!(error, Error::TimedOut { what: "process/start", .. }), "{error}");
    }
    server.signal(Signal::CONT);
    // Nothing that was asked for is left, whether or not it was started.
    let gone = async {
        let mut listing = hasty.call_without_limit(List::default()).await.unwrap();
        while listing.processes.iter().any(|process| process.state != State::Closed) {
            listing = hasty.call_without_limit(List::default()).await.unwrap();
        }
    };
    in_time(gone).await;
}

#[test]
fn a_client_without_its_runtime_returns_an_error() {
    let server = Server::unix(&[]);
    let first = tokio::runtime::Runtime::new().unwrap();
    let client = first.block_on(connect(&server));
    let second = tokio::runtime::Runtime::new().unwrap();
    let process = second.block_on(Command::new("sleep").arg("1000").start(&client)).unwrap();
    first.shutdown_background();
    let waited = second.block_on(in_time(process.wait()));
    assert_eq!(waited, Err(Error::Lost(SessionLost::Stopped)));
    assert_eq!(second.block_on(in_time(client.info())).map(drop), Ok(()), "what is known stays known");
    let error = second.block_on(in_time(Command::new("true").output(&client))).unwrap_err();
    assert_eq!(error, Error::Lost(SessionLost::Stopped));
}

#[tokio::test]
async fn a_client_that_lost_its_session_to_another_does_not_take_it_back() {
    for server in [Server::start(), Server::unix(&[])] {
        taken_over(&server).await;
    }
}

async fn taken_over(server: &Server) {
    let first = connect(server).await;
    let process =
        Command::shell("echo here; exec sleep 1000").on_drop(OnDrop::Terminate).start(&first).await.unwrap();
    in_time(process.wait_for(&Until::Output("here".to_owned()))).await.unwrap();
    let options =
        Options::default().session(Session::Resume { id: first.session_id().to_owned(), takeover: true });
    let target = Target::parse(server.address()).unwrap();
    let second = Client::connect_with(target, options).await.unwrap();
    let mut conditions = first.connection_states();
    let lost = in_time(conditions.wait_for(|condition| matches!(condition, ConnectionState::Lost(_)))).await;
    assert_eq!(*lost.unwrap(), ConnectionState::Lost(SessionLost::TakenOver));
    assert_eq!(in_time(process.wait()).await, Err(Error::Lost(SessionLost::TakenOver)));
    let taken = in_time(second.process(process.id())).await.unwrap();
    in_time(taken.wait_for(&Until::Output("here".to_owned()))).await.unwrap();
    in_time(second.end()).await.unwrap();
}

#[tokio::test]
async fn two_clones_that_detach_both_wait_for_the_end() {
    let server = Server::unix(&[]);
    let client = connect(&server).await;
    let clients: Vec<_> = (0..4).map(|_| client.clone()).collect();
    let watch = client.clone();
    drop(client);
    let watch = Arc::new(watch);
    let leaving: Vec<_> = clients
        .into_iter()
        .map(|client| {
            let watch = Arc::clone(&watch);
            tokio::spawn(async move {
                client.close().await;
                assert_eq!(watch.connection_state(), ConnectionState::Lost(SessionLost::Closed));
            })
        })
        .collect();
    for left in leaving {
        in_time(left).await.unwrap();
    }
}

#[tokio::test]
async fn a_polled_process_can_print_more_than_is_retained() {
    const BYTES: usize = 5 << 20;
    for server in [Server::unix(&[]), Server::start()] {
        let client = connect(&server).await;
        let process = Command::shell(format!("head -c {BYTES} /dev/zero")).start(&client).await.unwrap();
        let (mut after_seq, mut bytes) = (0, 0);
        let polled = async {
            loop {
                let read = Read {
                    process_id: process.id().to_owned(),
                    session_id: None,
                    incarnation: None,
                    after_seq: Some(after_seq),
                    max_bytes: None,
                    wait_ms: Some(60_000),
                };
                let reply = client.call(read).await.unwrap();
                assert_eq!(reply.gap, None, "nothing is lost");
                bytes += reply.chunks.iter().map(|chunk| chunk.chunk.len()).sum::<usize>();
                after_seq = reply.next_seq - 1;
                if reply.closed && reply.chunks.is_empty() {
                    return;
                }
            }
        };
        let ended = timeout(PATIENCE, polled).await.is_ok();
        assert_eq!((ended, bytes), (true, BYTES));
        // A handle whose process was polled has a consumer that comes late: it sees a gap and the end.
        let mut events = process.events();
        let mut seen = Vec::new();
        while let Some(event) = in_time(events.next()).await.unwrap() {
            seen.push(event);
        }
        let is_gap = matches!(seen.first(), Some(Event::Gap(_)));
        assert!(is_gap && matches!(seen.last(), Some(Event::Closed(_))), "{} events", seen.len());
    }
}
