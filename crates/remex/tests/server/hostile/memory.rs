//! Memory is bounded over the whole server, and given back; times that nobody waits for in other tests.

use std::{
    fs,
    io::{Read as _, Write as _},
    net::TcpStream,
    thread,
    time::{Duration, Instant},
};

use serde_json::json;
use tungstenite::Message;

use crate::support::{PATIENCE, Server};

/// Waits until `holds`, looking again now and then.
fn await_that(what: &str, patience: Duration, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + patience;
    while !holds() {
        assert!(Instant::now() < deadline, "{what} within {patience:?}");
        thread::sleep(Duration::from_millis(100));
    }
}

#[test]
fn a_peer_that_does_not_finish_its_handshake_is_sent_away_after_ten_seconds() {
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
fn by_default_processes_sessions_and_silence_last_thirty_seconds() {
    const DEFAULT: Duration = Duration::from_secs(30);
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
            let (mut socket, _) = tungstenite::connect(&address).expect("the server accepts");
            let begun = Instant::now();
            let ping = loop {
                match socket.read().expect("the server keeps the connection") {
                    Message::Ping(payload) => break payload,
                    other => panic!("nothing was asked, and yet {other:?} came"),
                }
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
    for (what, time) in [("session", lived), ("process", readable), ("silence", Some(silent))] {
        assert!(time.is_some_and(|time| time >= DEFAULT), "the {what} lasted {time:?}");
    }
}
