//! Whole files that are read by clients that do not take them, and where there is little memory.

use std::{
    fs::{self, File},
    io::{BufRead as _, BufReader, Read as _, Write as _},
    os::unix::net::UnixStream,
    thread,
    time::{Duration, Instant},
};

use rustix::process::{Pid, Resource, Rlimit, prlimit};
use serde_json::{Value, json};

use crate::support::{PATIENCE, Place, Server, decode};

const MIB: u64 = 1 << 20;

/// A client that reads nothing until requested, and then compares without buffering.
struct Silent(BufReader<UnixStream>);

impl Silent {
    fn connect(server: &Server) -> Self {
        let path = server.address().strip_prefix("unix://").expect("the server has a unix socket");
        let stream = UnixStream::connect(path).expect("the server listens");
        stream.set_read_timeout(Some(PATIENCE)).expect("a socket has timeouts");
        let mut client = Self(BufReader::new(stream));
        client.send(&json!({"id": 1, "method": "initialize", "params": {"clientName": "silent"}}));
        client.send(&json!({"method": "initialized", "params": {}}));
        let mut answer = String::new();
        client.0.read_line(&mut answer).expect("the handshake is answered");
        client
    }

    fn send(&mut self, message: &Value) {
        writeln!(self.0.get_mut(), "{message}").expect("the server takes a request");
    }

    fn ask_for(&mut self, id: u64, uri: &str) {
        self.send(&json!({"id": id, "method": "fs/readFile", "params": {"path": uri}}));
    }

    /// Reads an answer, which has to be so many zeros; returns its id.
    fn take_zeros(&mut self, len: u64) -> Value {
        self.take(len).unwrap_or_else(|error| panic!("no answer with content: {error}"))["id"].clone()
    }

    /// Reads an answer of so many zeros, and asks again as long as the server has no memory for it; returns its id.
    fn insist_on(&mut self, len: u64, uri: &str) -> u64 {
        let deadline = Instant::now() + 4 * PATIENCE;
        loop {
            match self.take(len) {
                Ok(answer) => return answer["id"].as_u64().expect("ids are numbers"),
                Err(error) => {
                    assert_eq!(error["error"]["data"]["kind"], "limitExceeded", "{error}");
                    assert!(Instant::now() < deadline, "{error}");
                    self.ask_for(error["id"].as_u64().expect("ids are numbers"), uri);
                }
            }
        }
    }

    /// Reads an answer: the message without its content, which has to be so many zeros, or the one with an error.
    fn take(&mut self, len: u64) -> Result<Value, Value> {
        let mut head = Vec::new();
        while !head.ends_with(b"\"dataBase64\":\"") {
            let mut byte = [0];
            self.0.read_exact(&mut byte).expect("an answer comes");
            head.push(byte[0]);
            if byte == *b"\n" {
                return Err(serde_json::from_slice(&head).expect("an answer is JSON"));
            }
        }
        let encoded_len = len.div_ceil(3) * 4;
        let padding = encoded_len - (len * 4).div_ceil(3);
        let (mut left, zeros) = (encoded_len - padding, vec![b'A'; 1 << 16]);
        let mut chunk = vec![0; 1 << 16];
        while left > 0 {
            let len = usize::try_from(left).map_or(chunk.len(), |left| left.min(chunk.len()));
            self.0.read_exact(&mut chunk[..len]).expect("the content comes");
            assert!(chunk[..len] == zeros[..len], "the content is wrong, {left} characters before its end");
            left -= len as u64;
        }
        let mut tail = String::new();
        self.0.read_line(&mut tail).expect("the answer ends");
        let padding = "=".repeat(usize::try_from(padding).expect("padding is short"));
        assert_eq!(tail, format!("{padding}\"}}}}\n"));
        let head = [head, b"\"}}".to_vec()].concat();
        Ok(serde_json::from_slice(&head).expect("an answer is JSON"))
    }
}

/// Returns how much address space the server has reserved.
fn address_space(server: &Server) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", server.pid())).expect("the server runs");
    let line = status.lines().find_map(|line| line.strip_prefix("VmSize:")).expect("Linux tells the memory");
    let kib = line.split_whitespace().next().and_then(|kib| kib.parse::<u64>().ok());
    kib.expect("memory is a number") * 1024
}

fn sparse(place: &Place, name: &str, len: u64) -> String {
    File::create(place.path(name)).and_then(|file| file.set_len(len)).expect("a sparse file costs nothing");
    place.uri(name)
}

#[test]
fn clients_that_do_not_read_share_a_memory_bound_and_miss_nothing() {
    const LEN: u64 = 200 * MIB + 1;
    let place = Place::new();
    // They take nothing for longer on a busy machine.
    let config = place.write("server.toml", "[limits]\nstalled_writer = '1h'\nslow_transfer = '1h'\n");
    let server = Server::unix(&["--config", &config.display().to_string()]);
    let huge = sparse(&place, "huge", LEN);
    let some = sparse(&place, "some", 5 * MIB);
    let mut silent: Vec<_> = (0..6).map(|_| Silent::connect(&server)).collect();
    for client in &mut silent {
        client.ask_for(2, &huge);
        client.ask_for(3, &huge);
    }
    // Meanwhile others are served, until nothing grows any more.
    let other = server.client();
    let (mut most, mut unchanged) = (0, 0);
    while unchanged < 20 {
        let read = other.call("fs/readFile", json!({"path": some})).expect("others are served");
        assert_eq!(decode(&read["dataBase64"]).len() as u64, 5 * MIB);
        let resident = server.resident_bytes();
        unchanged = if resident > most + MIB { 0 } else { unchanged + 1 };
        most = most.max(resident);
        thread::sleep(Duration::from_millis(20));
    }
    // The budget, and as much as everything else may need.
    assert!(most < 1400 * MIB, "{} MiB for answers that nobody takes", most / MIB);
    thread::scope(|scope| {
        for client in &mut silent {
            let huge = &huge;
            scope.spawn(move || {
                let mut ids = [client.insist_on(LEN, huge), client.insist_on(LEN, huge)];
                ids.sort_unstable();
                assert_eq!(ids, [2, 3]);
            });
        }
    });
    let most = server.resident_bytes();
    assert!(most < 1400 * MIB, "{} MiB afterwards", most / MIB);
}

#[test]
fn a_file_too_large_for_memory_fails_only_that_request() {
    const LEN: u64 = 500 * MIB;
    let place = Place::new();
    // The account of a client has room for two contents; the memory of the host is what is missing.
    let config = place.write(
        "server.toml",
        "[limits]\nanswer_bytes = '2GiB'\nstalled_writer = '1h'\nslow_transfer = '1h'\n",
    );
    let server = Server::unix(&["--config", &config.display().to_string()]);
    let huge = sparse(&place, "huge", LEN);
    // What the server reserves for its threads and their memory, which grows with what it does, and enough for one content.
    let mut client = Silent::connect(&server);
    let idle = server.resident_bytes();
    client.ask_for(2, &huge);
    assert_eq!(client.take_zeros(LEN), 2);
    let deadline = Instant::now() + PATIENCE;
    while server.resident_bytes() >= idle + LEN {
        assert!(Instant::now() < deadline, "the server keeps the content that it has sent");
        thread::yield_now();
    }
    // Limited only now, because a server that starts with little memory reads no such file.
    let limit = Rlimit { current: Some(address_space(&server) + LEN + 300 * MIB), maximum: None };
    let pid = i32::try_from(server.pid()).ok().and_then(Pid::from_raw);
    prlimit(pid, Resource::As, limit).expect("limits of our own child can be set");
    let mut client = Silent::connect(&server);
    let before = address_space(&server);
    client.ask_for(2, &huge);
    let deadline = Instant::now() + PATIENCE;
    while address_space(&server) < before + LEN {
        assert!(Instant::now() < deadline, "the server does not read the file");
        thread::yield_now();
    }
    // There is no memory for two contents, nor for one and its base64 at once.
    let mut other = Silent::connect(&server);
    other.ask_for(2, &huge);
    let refused = other.take(LEN).expect_err("there is no memory for it");
    assert_eq!(refused["error"]["data"]["kind"], "limitExceeded", "{refused}");
    assert_eq!(client.take_zeros(LEN), 2);
    let client = server.client();
    client.call("fs/open", json!({"handleId": "h", "path": huge})).expect("the server goes on");
    let block = json!({"handleId": "h", "offset": 499 * MIB, "len": MIB});
    assert_eq!(client.call("fs/readBlock", block).expect("blocks are for that")["eof"], false);
}

#[test]
fn long_responses_and_output_on_one_connection_are_both_complete() {
    let place = Place::new();
    let content: Vec<u8> = (0..=255).cycle().take(9 * 1024 * 1024 + 1).collect();
    place.write("long", &content);
    Server::on_websocket_and_unix(|server| {
        let client = server.client();
        client.shell("flood", "seq 1 600000");
        let asked: Vec<_> =
            (0..4).map(|_| client.send("fs/readFile", json!({"path": place.uri("long")}))).collect();
        for id in &asked {
            let read = client.outcome(id).expect("the file is read");
            assert!(decode(&read["dataBase64"]) == content, "the content is what it is");
        }
        let lines = client.collect("flood").text();
        assert_eq!(lines.lines().count(), 600_000);
        assert!(lines.lines().zip(1..).all(|(line, number)| line == number.to_string()));
    });
}
