//! Sessions and connections as clients choose them: observed, resumed or made, tried again, and given up.

use std::{collections::BTreeMap, time::Duration};

use remex::Local;
use remex_client::{
    Client, Command, Error, ErrorKind, Options, Process, Session, Target,
    process::{Event, Retain, Stdio, Until},
    session::{ObserveFrom, SessionEvents},
};
use tokio::{
    io::AsyncReadExt as _,
    net::{TcpListener, UnixListener},
    time::{Instant, sleep_until, timeout},
};

use crate::support::{DisconnectingProxy, PATIENCE, Server};

async fn in_time<T>(what: &str, future: impl Future<Output = T>) -> T {
    timeout(PATIENCE, future).await.unwrap_or_else(|_| panic!("{what} takes too long"))
}

async fn connect(address: &str, options: Options) -> Client {
    Client::connect_with(Target::parse(address).unwrap(), options).await.unwrap()
}

/// What an observer has seen of each process.
#[derive(Default)]
struct Seen {
    bytes: BTreeMap<String, Vec<u8>>,
    positions: BTreeMap<String, u64>,
    closed: usize,
}

impl Seen {
    /// Takes events until so many processes are closed.
    async fn until_closed(&mut self, events: &mut SessionEvents, count: usize) {
        while self.closed < count {
            let event = in_time("an event", events.next()).await.unwrap();
            let position = self.positions.entry(event.process_id.clone()).or_default();
            let what = event.event.unwrap();
            assert_eq!(what.seq(), *position + 1, "{}: in order and without a gap", event.process_id);
            *position = what.seq();
            match what {
                Event::Output(chunk) => {
                    self.bytes.entry(event.process_id).or_default().extend_from_slice(&chunk.bytes);
                }
                Event::Closed(_) => self.closed += 1,
                Event::Exited { .. } => {}
                other => panic!("{}: {other:?}", event.process_id),
            }
        }
    }
}

#[tokio::test]
async fn another_session_is_observed_exactly_through_disconnects() {
    let server = Server::start();
    let worker =
        connect(server.address(), Options::default().session(Session::Create("work".to_owned()))).await;
    let proxy = DisconnectingProxy::start(server.address(), &[20_000, 60_000, 150_000, 400_000]);
    let viewer = connect(proxy.address(), Options::default()).await;
    let first = Command::shell("seq 1 20000").id("first").start(&worker).await.unwrap();
    let mut events = in_time("observing", viewer.observe("work", ObserveFrom::Start)).await.unwrap();
    let mut seen = Seen::default();
    seen.until_closed(&mut events, 1).await;
    for number in 0..5 {
        Command::shell("seq 1 20000").id(format!("p{number}")).start(&worker).await.unwrap();
    }
    seen.until_closed(&mut events, 6).await;
    let expected: String = (1..=20_000).map(|number| format!("{number}\n")).collect();
    assert_eq!(seen.bytes.len(), 6);
    for (id, bytes) in &seen.bytes {
        assert!(bytes == expected.as_bytes(), "{id}: {} bytes", bytes.len());
    }
    assert!(viewer.disconnects() >= 4, "{} disconnects", viewer.disconnects());
    // The worker was not disturbed.
    assert_eq!(worker.disconnects(), 0);
    assert!(in_time("the first process", first.wait()).await.unwrap().success());
}

#[tokio::test]
async fn an_observer_from_now_gets_nothing_earlier_and_cannot_attach_twice() {
    let server = Server::unix(&[]);
    let worker =
        connect(server.address(), Options::default().session(Session::Create("work".to_owned()))).await;
    let command = Command::shell("echo early; read -r _; echo late").stdin(Stdio::Piped);
    let process = command.start(&worker).await.unwrap();
    in_time("output", process.wait_for(&Until::Output("early".to_owned()))).await.unwrap();
    let viewer = connect(server.address(), Options::default()).await;
    let mut events = viewer.observe("work", ObserveFrom::Now).await.unwrap();
    let second = viewer.observe(worker.session_id(), ObserveFrom::Now).await.unwrap_err();
    assert!(matches!(&second, Error::Usage { message, .. } if message.contains("already")), "{second}");
    process.write(b"\n").await.unwrap();
    let event = in_time("an event", events.next()).await.unwrap().event.unwrap();
    assert!(matches!(&event, Event::Output(chunk) if chunk.bytes == "late\n"), "{event:?}");
    drop(events);
    // After the first one has gone, there may be another.
    let mut again = viewer.observe("work", ObserveFrom::Start).await.unwrap();
    let event = in_time("an event", again.next()).await.unwrap().event.unwrap();
    assert!(matches!(&event, Event::Output(chunk) if chunk.bytes == "early\n"), "{event:?}");
    let nowhere = viewer.observe("nowhere", ObserveFrom::Start).await.unwrap_err();
    assert_eq!(nowhere.kind(), Some(ErrorKind::UnknownSession));
}

#[tokio::test]
async fn a_slow_observer_rereads_what_did_not_fit() {
    let server = Server::unix(&[]);
    let worker =
        connect(server.address(), Options::default().session(Session::Create("work".to_owned()))).await;
    let viewer = connect(server.address(), Options::default()).await;
    let mut events = viewer.observe("work", ObserveFrom::Start).await.unwrap();
    let retain = Retain::default().bytes(32 << 20);
    let command = Command::shell("head -c 20000000 /dev/zero").retain(retain);
    let process = command.start(&worker).await.unwrap();
    // More than a client buffers for an observer has arrived before the first event is taken.
    in_time("the flood", process.wait()).await.unwrap();
    let mut seen = Seen::default();
    seen.until_closed(&mut events, 1).await;
    assert_eq!(seen.bytes.values().map(Vec::len).sum::<usize>(), 20_000_000);
}

#[tokio::test]
async fn a_named_session_is_created_once_by_concurrent_clients() {
    let server = Server::unix(&[]);
    let name = || Options::default().session(Session::Named("shared".to_owned()));
    let first = connect(server.address(), name()).await;
    let process = Command::new("sleep").arg("1000").id("job").start(&first).await.unwrap();
    let id = first.session_id().to_owned();
    let target = Target::parse(server.address()).unwrap();
    let attached = Client::connect_with(target.clone(), name()).await.unwrap_err();
    assert_eq!(attached.kind(), Some(ErrorKind::SessionAttached));
    assert!(attached.is_retryable());
    first.close().await;
    drop(process);
    let again = connect(server.address(), name()).await;
    assert_eq!(again.session_id(), id);
    again.process("job").await.unwrap().kill().await.unwrap();
    again.end().await.unwrap();
    // Of many concurrent clients one gets it, and the others learn that it is taken.
    let many: Vec<_> = (0..8)
        .map(|_| {
            let target = target.clone();
            tokio::spawn(async move {
                let options = Options::default().session(Session::Named("rush".to_owned()));
                Client::connect_with(target, options).await
            })
        })
        .collect();
    let mut clients = Vec::new();
    for one in many {
        match in_time("connecting", one).await.unwrap() {
            Ok(client) => clients.push(client),
            Err(error) => assert_eq!(error.kind(), Some(ErrorKind::SessionAttached), "{error}"),
        }
    }
    assert_eq!(clients.len(), 1);
}

#[tokio::test]
async fn connecting_is_retried_until_the_server_is_up() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("late.sock");
    let address = format!("unix://{}", socket.display());
    let target = Target::parse(&address).unwrap();
    let at_once = Client::connect(target.clone()).await.unwrap_err();
    assert!(matches!(at_once, Error::Unreachable { .. }), "{at_once}");
    let source = std::error::Error::source(&at_once).unwrap().downcast_ref::<std::io::Error>().unwrap();
    assert_eq!(source.kind(), std::io::ErrorKind::NotFound);
    let patient = Options::default().connect_retry(PATIENCE);
    let (client, server) = tokio::join!(Client::connect_with(target, patient), async {
        // The first attempts get no response.
        let nobody = UnixListener::bind(&socket).unwrap();
        for _ in 0..2 {
            drop(in_time("an attempt", nobody.accept()).await.unwrap());
        }
        drop(nobody);
        std::fs::remove_file(&socket).unwrap();
        tokio::task::spawn_blocking(move || Server::serve(&["--listen", &address])).await.unwrap()
    });
    assert!(Command::new("true").output(&client.unwrap()).await.unwrap().exit.success());
    drop(server);
    // What cannot pass is not tried again.
    let wrong = Target::parse("ws://127.0.0.1:1").unwrap();
    let impatient = Options::default().connect_retry(Duration::from_millis(100));
    assert!(in_time("giving up", Client::connect_with(wrong, impatient)).await.is_err());
}

#[tokio::test]
async fn an_unanswered_handshake_times_out() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("silent.sock");
    let listener = UnixListener::bind(&socket).unwrap();
    let options = Options::default().handshake_timeout(Duration::from_millis(100));
    let (outcome, received) =
        tokio::join!(in_time("giving up", Client::connect_with(Target::unix(&socket), options)), async {
            let (mut stream, _) = in_time("a connection", listener.accept()).await.unwrap();
            let mut text = String::new();
            in_time("its end", stream.read_to_string(&mut text)).await.unwrap();
            text
        });
    let error = outcome.unwrap_err();
    assert!(matches!(&error, Error::TimedOut { what: "the handshake", .. }), "{error}");
    assert!(error.is_retryable() && !error.may_have_happened());
    assert!(received.contains("\"initialize\""), "{received}");
}

#[tokio::test]
async fn a_silent_web_server_times_out() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("ws://{}", listener.local_addr().unwrap());
    let options = Options::default().connect_timeout(Duration::from_millis(100));
    let target = Target::parse(&address).unwrap();
    let error = in_time("giving up", Client::connect_with(target, options)).await.unwrap_err();
    assert!(matches!(&error, Error::TimedOut { what: "connecting", .. }), "{error}");
}

#[tokio::test]
async fn a_start_beyond_the_process_limit_is_refused_and_can_be_retried() {
    let mut config = remex::config_from_env();
    config.limits.processes = 3;
    let client = Client::connect(Local::new(config).unwrap().target()).await.unwrap();
    assert_eq!(client.welcome().limits.processes, 3);
    let command = Command::new("sleep").arg("1000");
    let mut started = Vec::new();
    for _ in 0..3 {
        started.push(command.start(&client).await.unwrap());
    }
    let error = command.start(&client).await.unwrap_err();
    assert_eq!(error.kind(), Some(ErrorKind::TooManyProcesses));
    assert!(error.is_retryable() && !error.may_have_happened(), "{error}");
    assert!(error.hint().is_some(), "{error}");
    let last = started.pop().unwrap();
    last.kill().await.unwrap();
    in_time("the close", last.reference().closes_within(PATIENCE)).await.unwrap();
    last.reference().forget().await.unwrap();
    command.start(&client).await.unwrap();
}

#[tokio::test]
async fn a_closed_process_is_retained_for_eighty_seconds_by_default() {
    let client = Client::connect(Local::here().unwrap().target()).await.unwrap();
    let started = Instant::now();
    let kept = Command::shell("echo kept").start(&client).await.unwrap();
    let brief = Retain::default().after_close(Duration::from_millis(1));
    let brief = Command::shell("echo brief").retain(brief).start(&client).await.unwrap();
    in_time("the end of the other one", forgotten(&brief)).await;
    assert!(in_time("the close", kept.reference().closes_within(PATIENCE)).await.unwrap());
    // It was closed after it was started, so it is there for eighty seconds from then at least.
    sleep_until(started + Duration::from_secs(79)).await;
    let batch = kept.read(0, 1024, Duration::ZERO).await.unwrap();
    assert_eq!(batch.chunks[0].bytes, "kept\n");
    in_time("its end", forgotten(&kept)).await;
}

/// Waits until the server has forgotten a process; nothing tells that.
async fn forgotten(process: &Process) {
    while let Ok(Some(_)) = process.reference().info().await {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_process_that_starts_while_observing_begins_is_seen_once() {
    let server = Server::unix(&[]);
    for _ in 0..20 {
        let client = connect(server.address(), Options::default()).await;
        let starts: Vec<_> = (0..12)
            .map(|_| {
                let client = client.clone();
                tokio::spawn(async move { Command::shell("echo one").start(&client).await.unwrap() })
            })
            .collect();
        let mut events = in_time("following", client.events()).await.unwrap();
        let mut seen = Seen::default();
        seen.until_closed(&mut events, 12).await;
        for start in starts {
            start.await.unwrap();
        }
        assert_eq!(seen.bytes.len(), 12);
        client.end().await.unwrap();
    }
}

#[tokio::test]
async fn an_observer_sees_another_process_with_the_same_id() {
    let server = Server::unix(&[]);
    let worker =
        connect(server.address(), Options::default().session(Session::Create("work".to_owned()))).await;
    let viewer = connect(server.address(), Options::default()).await;
    let mut events = viewer.observe("work", ObserveFrom::Start).await.unwrap();
    for round in ["first", "second"] {
        Command::new("echo").arg(round).id("same").start(&worker).await.unwrap().wait().await.unwrap();
        let mut seen = Seen::default();
        seen.until_closed(&mut events, 1).await;
        assert_eq!(seen.bytes["same"], format!("{round}\n").as_bytes());
        worker.process_ref(worker.session_id(), "same").forget().await.unwrap();
    }
}

#[tokio::test]
async fn a_second_concurrent_observer_of_one_client_is_refused() {
    let server = Server::unix(&[]);
    let worker =
        connect(server.address(), Options::default().session(Session::Create("work".to_owned()))).await;
    let viewer = connect(server.address(), Options::default()).await;
    let observe = || viewer.observe("work", ObserveFrom::Start);
    let (one, other) = tokio::join!(observe(), observe());
    let (mut events, refused) = match (one, other) {
        (Ok(events), Err(refused)) | (Err(refused), Ok(events)) => (events, refused),
        both => panic!("{both:?}"),
    };
    assert!(matches!(refused, Error::Usage { .. }), "{refused}");
    Command::new("true").start(&worker).await.unwrap();
    Seen::default().until_closed(&mut events, 1).await;
}

#[tokio::test]
async fn an_observer_sees_the_session_end_after_its_last_event() {
    let server = Server::unix(&[]);
    let worker =
        connect(server.address(), Options::default().session(Session::Create("work".to_owned()))).await;
    let viewer = connect(server.address(), Options::default()).await;
    Command::new("sleep").arg("1000").start(&worker).await.unwrap();
    Command::shell("head -c 500000 /dev/zero").start(&worker).await.unwrap().wait().await.unwrap();
    let mut events = viewer.observe("work", ObserveFrom::Start).await.unwrap();
    worker.end().await.unwrap();
    let mut seen = Seen::default();
    seen.until_closed(&mut events, 2).await;
    assert_eq!(seen.bytes.values().map(Vec::len).sum::<usize>(), 500_000);
    let ended = in_time("the end", events.next()).await.unwrap_err();
    assert_eq!(ended.kind(), Some(ErrorKind::UnknownSession), "{ended}");
}

#[tokio::test]
async fn a_process_that_starts_while_an_observer_reconnects_has_no_gap() {
    let server = Server::start();
    let worker =
        connect(server.address(), Options::default().session(Session::Create("work".to_owned()))).await;
    let cuts: Vec<u64> = (1..=12).map(|cut| cut * 3_000).collect();
    let proxy = DisconnectingProxy::start(server.address(), &cuts);
    let viewer = connect(proxy.address(), Options::default()).await;
    let mut events = in_time("observing", viewer.observe("work", ObserveFrom::Start)).await.unwrap();
    let starting = tokio::spawn(async move {
        for _ in 0..60 {
            Command::shell("echo hi; echo ho >&2").start(&worker).await.unwrap().wait().await.unwrap();
        }
        worker
    });
    let mut seen = Seen::default();
    seen.until_closed(&mut events, 60).await;
    assert!(viewer.disconnects() > 0);
    drop(starting.await.unwrap());
}

#[tokio::test]
async fn connecting_is_retried_until_the_timeout() {
    let refusing = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let target = Target::parse(&format!("ws://{refusing}")).unwrap();
    let (began, time) = (Instant::now(), Duration::from_millis(700));
    let options = Options::default().connect_retry(time);
    in_time("giving up", Client::connect_with(target, options)).await.unwrap_err();
    assert!(began.elapsed() >= time, "it gave up after {:?}", began.elapsed());
}

#[tokio::test]
async fn a_long_wait_by_reference_is_not_a_request_timeout() {
    let server = Server::unix(&[]);
    let client =
        connect(server.address(), Options::default().request_timeout(Duration::from_millis(100))).await;
    let process = Command::shell("sleep 0.5; exit 4").start(&client).await.unwrap();
    let exit = in_time("the exit", process.reference().wait()).await.unwrap();
    assert_eq!(exit.code, 4);
}
