//! Memory is bounded over the whole server, and given back; times that nobody waits for in other tests.

mod allocations;
mod identities;

use std::{
    fs,
    io::{Read as _, Write as _},
    net::TcpStream,
    thread,
    time::{Duration, Instant},
};

use serde_json::json;
use tungstenite::Message;

use crate::support::{Client, PATIENCE, Server};

const MIB: u64 = 1 << 20;

/// Waits until `holds`, looking again now and then.
fn await_that(what: &str, patience: Duration, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + patience;
    while !holds() {
        assert!(Instant::now() < deadline, "{what} within {patience:?}");
        thread::sleep(Duration::from_millis(100));
    }
}

#[test]
fn an_unfinished_handshake_times_out_after_ten_seconds() {
    const TIMEOUT: Duration = Duration::from_secs(10);
    let server = Server::start();
    let address = server.address().strip_prefix("ws://").expect("an address of a WebSocket");
    let peers = ["", "G", "GET / HTTP/1.1\r\nHost: localhost\r\n"].map(|said| {
        let begun = Instant::now();
        let mut peer = TcpStream::connect(address).expect("the listener accepts");
        peer.write_all(said.as_bytes()).expect("the server reads");
        peer.set_read_timeout(Some(PATIENCE)).expect("a minute is a time-out");
        (said, begun, peer)
    });
    for (said, begun, mut peer) in peers {
        let mut farewell = Vec::new();
        peer.read_to_end(&mut farewell).expect("the server closes the connection");
        let farewell = String::from_utf8_lossy(&farewell);
        assert!(farewell.starts_with("HTTP/1.1 408 "), "{said:?} got {farewell:?}");
        assert!(begun.elapsed() >= TIMEOUT, "{said:?} had {:?}", begun.elapsed());
    }
}

/// One test, because all three take the same half a minute.
#[test]
fn default_retention_is_eighty_seconds_and_the_idle_timeout_thirty() {
    const DEFAULT: Duration = Duration::from_secs(80);
    let server = Server::start();
    let begun = Instant::now();
    // The session of a client that has gone, with a process.
    let gone = server.connect();
    gone.initialize();
    let pid = gone.start("p", &["/bin/sh", "-c", "exec sleep 1000"], json!({}))["pid"].clone();
    gone.cut();
    // A closed process.
    let client = server.client();
    client.shell("p", "echo fine");
    client.collect("p");
    // A WebSocket on which nothing happens.
    let quiet = thread::spawn({
        let address = server.address().to_owned();
        move || {
            let begun = Instant::now();
            let (mut socket, _) = tungstenite::connect(&address).expect("the server accepts");
            let ping = match socket.read().expect("the server keeps the connection") {
                Message::Ping(payload) => payload,
                other => panic!("nothing was asked, and yet {other:?} came"),
            };
            assert!(ping.is_empty());
            begun.elapsed()
        }
    });

    let is_alive = || fs::exists(format!("/proc/{pid}")).expect("the process table can be read");
    let read = || client.call("process/read", json!({"processId": "p"}));
    let (mut lived, mut readable) = (None, None);
    await_that("the process and the session end", DEFAULT + PATIENCE, || {
        if !is_alive() {
            lived.get_or_insert_with(|| begun.elapsed());
        }
        if let Err(error) = read() {
            assert_eq!(error["data"]["kind"], "unknownProcess");
            readable.get_or_insert_with(|| begun.elapsed());
        }
        lived.is_some() && readable.is_some()
    });
    let silent = quiet.join().expect("a ping came");
    for (what, time, least) in [
        ("session", lived, DEFAULT),
        ("process", readable, DEFAULT),
        ("silence", Some(silent), Duration::from_secs(30)),
    ] {
        assert!(time.is_some_and(|time| time >= least), "the {what} lasted {time:?}");
    }
}

/// Lets a server hold much in several ways at once, and then ends all of it.
fn load(server: &Server) {
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let client = server.connect();
                let session = client.initialize()["sessionId"].clone();
                read_files(&client);
                run_many(&client);
                fill_logs(&client);
                // Without a reader the logs fill up to what was asked for.
                client.cut();
                let other = server.client();
                for number in 0..8 {
                    let closed = json!({"sessionId": session, "processId": log(number), "until": "closed"});
                    other.call("process/wait", closed).expect("the process ends");
                }
                other.call("session/end", json!({"sessionId": session})).expect("the session ends");
            });
        }
    });
}

fn log(number: u32) -> String {
    format!("log {number}")
}

/// Leaves 64 MiB of output behind.
fn fill_logs(client: &Client) {
    let output = json!({"output": {"retainBytes": 8 * MIB, "retainMs": 600_000, "overflow": "evict"}});
    for number in 0..8 {
        client.start(&log(number), &["/bin/sh", "-c", "sleep 1; head -c 12M /dev/zero"], output.clone());
    }
}

fn read_files(client: &Client) {
    let directory = tempfile::tempdir().expect("a directory can be made");
    let path = directory.path().join("large");
    fs::write(&path, vec![7; 24 << 20]).expect("a file can be written");
    let reads = [(); 2].map(|()| client.send("fs/readFile", json!({"path": path})));
    for id in reads {
        client.outcome(&id).expect("the file is read");
    }
}

fn run_many(client: &Client) {
    for number in 0..100 {
        let retained = json!({"output": {"retainMs": 600_000}});
        client.start(&format!("short {number}"), &["/bin/echo", "hello"], retained);
    }
}

#[test]
fn memory_is_returned_when_everything_has_ended() {
    let server = Server::start();
    let at_rest = server.resident_bytes();
    load(&server);
    let bound = at_rest + 48 * MIB;
    let mut resident = 0;
    let deadline = Instant::now() + PATIENCE;
    while Instant::now() < deadline {
        resident = server.resident_bytes();
        if resident < bound {
            return;
        }
        thread::sleep(Duration::from_millis(200));
    }
    panic!("{} MiB are resident, {} MiB at rest", resident / MIB, at_rest / MIB);
}
