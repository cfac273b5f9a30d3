//! HTTP requests whose answers are streamed, beside everything else on a connection.

use std::{
    fs,
    io::{ErrorKind, Read as _, Write as _},
    net::{Shutdown, TcpListener, TcpStream},
    sync::{
        Mutex,
        mpsc::{Receiver, Sender, channel},
    },
    thread,
    time::Duration,
};

use serde_json::{Value, json};

use crate::support::{
    self, Client, PATIENCE, Reader, Seen, Server, Web, decode, encode, start_params, web_answer, with,
};

const MIB: usize = 1 << 20;

const HEAD: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n";

/// Starts a server that reaches loopback directly.
fn server() -> Server {
    let mut command = support::program(&["serve"]);
    command.env("no_proxy", "*").stdin(std::process::Stdio::null());
    Server::launch(command, 1)
}

fn params(url: &str, request_id: &str) -> Value {
    json!({"method": "GET", "url": url, "requestId": request_id, "streamResponse": true})
}

/// Asks for a stream and returns the answer.
fn open(client: &Client, url: &str, request_id: &str) -> Value {
    client.call("http/request", params(url, request_id)).expect("the request is answered")
}

/// Returns the parameters of the frames of a stream.
fn frames_of<'a>(seen: &'a Seen, request_id: &str) -> impl DoubleEndedIterator<Item = &'a Value> {
    seen.notifications()
        .filter(|note| note["method"] == "http/request/bodyDelta")
        .map(|note| &note["params"])
        .filter(move |params| params["requestId"] == request_id)
}

/// Waits for this many frames of a stream, in order, and returns their parameters.
fn frames(client: &Client, request_id: &str, count: usize) -> Vec<Value> {
    client.wait(&format!("{count} frames of `{request_id}`"), |seen| {
        let frames: Vec<Value> = frames_of(seen, request_id).cloned().collect();
        (frames.len() >= count).then_some(frames)
    })
}

/// Waits for the last frame of a stream, and returns body and error.
fn finish(client: &Client, request_id: &str) -> (Vec<u8>, Value) {
    client.wait(&format!("the last frame of `{request_id}`"), |seen| {
        let last = frames_of(seen, request_id).next_back().filter(|last| last["done"] == true)?;
        assert_eq!(last["deltaBase64"], "");
        let mut body = Vec::new();
        for (frame, seq) in frames_of(seen, request_id).zip(1..) {
            assert_eq!(frame["seq"], seq, "frames count 1, 2, 3 …");
            body.append(&mut decode(&frame["deltaBase64"]));
        }
        Some((body, last["error"].clone()))
    })
}

/// A web server that sends scripted chunks, and reports when its client disconnects.
struct Puppet {
    web: Web,
    lines: Sender<Vec<u8>>,
    gone: Receiver<()>,
}

impl Puppet {
    fn new() -> Self {
        let (lines, orders) = channel::<Vec<u8>>();
        let (ended, gone) = channel();
        let orders = Mutex::new(orders);
        let web = Web::start(move |_, stream| {
            let mut watched = stream.try_clone().expect("a socket can be cloned");
            let ended = ended.clone();
            thread::spawn(move || {
                let _ = watched.read(&mut [0]);
                let _ = ended.send(());
            });
            let orders = orders.lock().expect("one connection at a time");
            while let Ok(bytes) = orders.recv() {
                if bytes.is_empty() || stream.write_all(&bytes).is_err() {
                    break;
                }
            }
            let _ = stream.shutdown(Shutdown::Both);
        });
        Self { web, lines, gone }
    }

    fn url(&self) -> String {
        self.web.url("/")
    }

    fn say(&self, bytes: &[u8]) {
        self.lines.send(bytes.to_owned()).expect("the web server runs");
    }

    fn hang_up(&self) {
        self.say(b"");
    }

    fn assert_gone(&self) {
        self.gone.recv_timeout(PATIENCE).expect("the server closes its connection");
    }
}

/// What [`flood`] repeats.
fn block() -> Vec<u8> {
    (0..MIB).map(|index| (index % 251) as u8).collect()
}

fn flood(stream: &mut TcpStream, bytes: usize) {
    let block = block();
    let _ = stream.write_all(format!("HTTP/1.1 200 OK\r\ncontent-length: {bytes}\r\n\r\n").as_bytes());
    for _ in 0..bytes / MIB {
        if stream.write_all(&block).is_err() {
            return;
        }
    }
}

#[test]
fn a_client_that_acknowledges_frames_gets_at_most_sixteen_ahead() {
    let server = server();
    let web = Web::start(|_, stream| flood(stream, 8 * MIB));
    let client = server.connect();
    client.initialize_with(json!({"clientName": "x", "capabilities": ["consumed"]}));
    open(&client, &web.url("/"), "r");
    for (consumed, next) in [(0, 4), (4, 5), (5, 30)] {
        let due = consumed + 16;
        frames(&client, "r", due);
        // Whatever could come has a chance to come.
        client.call("environment/info", json!(null)).expect("everything else goes on");
        assert_eq!(frames(&client, "r", due).len(), due);
        client.notify("flow/bodyConsumed", json!({"requestId": "r", "seq": next}));
        // Neither going back nor a stream that is not there means anything.
        client.notify("flow/bodyConsumed", json!({"requestId": "r", "seq": 1}));
        client.notify("flow/bodyConsumed", json!({"requestId": "q", "seq": 99}));
    }
    client.notify("flow/bodyConsumed", json!({"requestId": "r", "seq": u64::MAX}));
    let (body, error) = finish(&client, "r");
    assert_eq!((body.len(), error), (8 * MIB, Value::Null));
}

#[test]
fn acknowledging_a_body_without_the_capability_closes_the_connection() {
    let server = Server::start();
    let client = server.client();
    client.notify("flow/bodyConsumed", json!({"requestId": "r", "seq": 1}));
    let reason = "`flow/bodyConsumed` without the capability `consumed`".to_owned();
    assert_eq!(client.wait_end().close, Some((1008, reason)));
}

#[test]
fn a_body_is_forwarded_as_it_arrives_after_its_response() {
    let (server, puppet) = (server(), Puppet::new());
    let client = server.client();
    let id = client.send("http/request", params(&puppet.url(), "r\"1"));
    puppet.say(HEAD);
    let answer = client.outcome(&id).expect("the head is enough for an answer");
    let headers = json!([{"name": "content-type", "value": "text/event-stream"}]);
    assert_eq!(answer, json!({"status": 200, "headers": headers, "bodyBase64": ""}));
    for seq in 1..=3 {
        puppet.say(b"data: x\n\n");
        let delta = encode("data: x\n\n");
        let frame =
            json!({"requestId": "r\"1", "seq": seq, "deltaBase64": delta, "done": false, "error": null});
        assert_eq!(frames(&client, "r\"1", seq)[seq - 1], frame);
    }
    puppet.hang_up();
    let last = json!({"requestId": "r\"1", "seq": 4, "deltaBase64": "", "done": true, "error": null});
    assert_eq!(frames(&client, "r\"1", 4)[3], last);
    let order: Vec<bool> =
        client.look(|seen| seen.messages.iter().map(|note| note.get("id").is_some()).collect());
    assert_eq!(order, [true, true, false, false, false, false], "the answer comes first");
}

#[test]
fn an_empty_body_is_one_last_frame_and_a_redirect_may_be_streamed() {
    let (server, web) = (server(), Web::answering(web_answer(302, &["location: /"], "")));
    let client = server.client();
    let more = json!({"redirectPolicy": "stop"});
    let answer = client.call("http/request", with(params(&web.url("/"), "r"), more)).expect("it is answered");
    assert_eq!(answer["status"], 302);
    assert_eq!(finish(&client, "r"), (Vec::new(), Value::Null));
}

#[test]
fn a_truncated_body_is_marked_in_its_last_frame() {
    let server = server();
    let client = server.client();
    let cut = Web::start(|_, stream| {
        stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nbegin").expect("it is read");
        stream.shutdown(Shutdown::Both).expect("a socket can be closed");
    });
    open(&client, &cut.url("/"), "cut");
    let (body, error) = finish(&client, "cut");
    assert_eq!(body, b"begin");
    assert!(error.as_str().is_some_and(|error| error.contains("end of file")), "{error}");

    let puppet = Puppet::new();
    puppet.say(HEAD);
    puppet.say(b"begin");
    let late = with(params(&puppet.url(), "late"), json!({"timeoutMs": 1000}));
    client.call("http/request", late).expect("the head comes in time");
    let (body, error) = finish(&client, "late");
    assert_eq!(
        (body.as_slice(), error),
        (b"begin".as_slice(), json!("timed out after 1000 ms; allow more with `timeoutMs`, or leave it out"),)
    );
    puppet.assert_gone();
}

#[test]
fn small_chunks_are_gathered_into_few_frames() {
    const CHUNKS: usize = 20_000;
    let server = server();
    let client = server.client();
    let web = Web::start(|_, stream| {
        let head = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n";
        let _ = stream.write_all(format!("{head}{}0\r\n\r\n", "1\r\nx\r\n".repeat(CHUNKS)).as_bytes());
    });
    open(&client, &web.url("/"), "r");
    let (body, error) = finish(&client, "r");
    assert_eq!((body, error), (vec![b'x'; CHUNKS], Value::Null));
    let count = frames(&client, "r", 1).len();
    assert!(count < CHUNKS / 4, "{count} frames for {CHUNKS} chunks");
}

#[test]
fn stream_ids_are_limited_to_a_kibibyte() {
    let (server, web) = (server(), Web::answering(web_answer(200, &[], "ok")));
    let client = server.client();
    let message = "http/request requestId is longer than 1024 bytes".to_owned();
    assert_eq!(client.refusal("http/request", params(&web.url("/"), &"x".repeat(1025))), (-32602, message));
    let longest = "x".repeat(1024);
    open(&client, &web.url("/"), &longest);
    assert_eq!(finish(&client, &longest).0, b"ok");
}

#[test]
fn a_stream_id_is_in_use_until_its_last_frame() {
    let (server, puppet) = (server(), Puppet::new());
    let web = Web::answering(web_answer(200, &[], "ok"));
    let client = server.client();
    let waiting = client.send("http/request", params(&puppet.url(), "r"));
    puppet.web.next();
    let active = (-32602, "http/request streamResponse requestId `r` is already active".to_owned());
    assert_eq!(client.refusal("http/request", params(&web.url("/"), "r")), active);
    assert_eq!(client.refusal("http/request", params("nonsense", "r")), active);
    puppet.say(HEAD);
    client.outcome(&waiting).expect("the head is enough for an answer");
    assert_eq!(client.refusal("http/request", params(&web.url("/"), "r")), active);

    let buffered = with(params(&web.url("/"), "r"), json!({"streamResponse": false}));
    client.call("http/request", buffered).expect("a buffered request needs no id");
    let other = server.client();
    open(&other, &web.url("/"), "r");
    assert_eq!(finish(&other, "r").0, b"ok", "another connection has its own");

    puppet.hang_up();
    assert_eq!(finish(&client, "r"), (Vec::new(), Value::Null));
    let nobody =
        TcpListener::bind("127.0.0.1:0").and_then(|free| free.local_addr()).expect("there is a free port");
    for _ in 0..20 {
        let refused = client.refusal("http/request", params(&format!("http://{nobody}/"), "again"));
        assert_eq!(refused.0, -32603, "a failure frees its id: {}", refused.1);
    }
    for round in 0..50 {
        let fresh = server.client();
        open(&fresh, &web.url("/"), "r");
        assert_eq!(finish(&fresh, "r").0, b"ok");
        let again = fresh.call("http/request", params(&web.url("/"), "r"));
        assert_eq!(again.expect("the last frame frees its id")["status"], 200, "round {round}");
    }
}

#[test]
fn a_stream_can_be_cancelled_before_and_after_its_response() {
    let server = server();
    let client = server.connect();
    client.initialize_with(json!({"clientName": "x", "resumeSessionId": null, "capabilities": ["cancel"]}));

    let silent = Puppet::new();
    let id = client.send("http/request", params(&silent.url(), "r"));
    silent.web.next();
    client.notify("request/cancel", json!({"id": id}));
    assert_eq!(client.outcome(&id).expect_err("it was cancelled")["data"]["kind"], "cancelled");
    silent.assert_gone();

    let endless = Puppet::new();
    let id = client.send("http/request", params(&endless.url(), "s"));
    endless.say(HEAD);
    endless.say(b"begin");
    client.outcome(&id).expect("the head is enough for an answer");
    frames(&client, "s", 1);
    client.notify("request/cancel", json!({"id": id}));
    assert_eq!(finish(&client, "s"), (b"begin".to_vec(), json!("the request was cancelled")));
    endless.assert_gone();
}

#[test]
fn cancelling_a_reused_id_cancels_the_running_request_first() {
    let server = server();
    let client = server.connect();
    client.initialize_with(json!({"clientName": "x", "resumeSessionId": null, "capabilities": ["cancel"]}));
    let (older, newer, silent) = (Puppet::new(), Puppet::new(), Puppet::new());
    let id = json!("same");
    for (puppet, request_id) in [(&older, "older"), (&newer, "newer")] {
        puppet.say(HEAD);
        puppet.say(b"begin");
        let params = params(&puppet.url(), request_id);
        client.send_json(&json!({"id": id, "method": "http/request", "params": params}));
        frames(&client, request_id, 1);
    }
    let buffered = with(params(&silent.url(), "r"), json!({"streamResponse": false}));
    client.send_json(&json!({"id": id, "method": "http/request", "params": buffered}));
    silent.web.next();

    client.notify("request/cancel", json!({"id": id}));
    silent.assert_gone();
    client.notify("request/cancel", json!({"id": id}));
    assert_eq!(finish(&client, "newer"), (b"begin".to_vec(), json!("the request was cancelled")));
    newer.assert_gone();
    older.say(b"more");
    assert_eq!(frames(&client, "older", 2)[1]["deltaBase64"], encode("more"));
    client.notify("request/cancel", json!({"id": id}));
    assert_eq!(finish(&client, "older").1, "the request was cancelled");
}

#[test]
fn a_stalled_client_does_not_keep_the_web_server_connected() {
    let (tell, told) = channel();
    let web = Web::start(move |_, stream| {
        stream.set_write_timeout(Some(Duration::from_millis(200))).expect("a socket has a time-out");
        let _ = stream.write_all(HEAD);
        let mut is_stuck = false;
        loop {
            match stream.write(&[b'x'; 64 << 10]) {
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    if !std::mem::replace(&mut is_stuck, true) {
                        tell.send("stuck").expect("the test waits");
                    }
                }
                Err(_) => break,
            }
        }
        tell.send("gone").expect("the test waits");
    });
    let server = server();
    let hello = json!({"clientName": "x", "resumeSessionId": null, "capabilities": ["cancel"]});
    let (mut reader, _) = Reader::initialized(server.address(), hello);
    for (request_id, timeout_ms) in [("late", json!(2000)), ("cancelled", Value::Null)] {
        let more = json!({"timeoutMs": timeout_ms});
        let id = reader.send("http/request", with(params(&web.url("/"), request_id), more));
        assert_eq!(told.recv_timeout(PATIENCE), Ok("stuck"));
        if timeout_ms.is_null() {
            reader.notify("request/cancel", json!({"id": id}));
        }
        assert_eq!(told.recv_timeout(PATIENCE), Ok("gone"));
        assert_eq!(reader.next()["id"], id, "the answer is the first to be read");
        let mut seq = 0;
        let last = loop {
            let frame = reader.next()["params"].take();
            seq += 1;
            assert_eq!(frame["seq"], seq, "the last frame comes behind all others");
            if frame["done"] == true {
                break frame;
            }
        };
        assert!(last["error"].is_string(), "{last}");
    }
}

#[test]
fn a_stream_ends_with_its_connection() {
    let server = server();
    let (answered, waiting) = (Puppet::new(), Puppet::new());
    let client = server.client();
    answered.say(HEAD);
    open(&client, &answered.url(), "answered");
    client.send("http/request", params(&waiting.url(), "waiting"));
    waiting.web.next();
    client.cut();
    answered.assert_gone();
    waiting.assert_gone();
}

#[test]
fn a_half_closed_client_gets_what_is_buffered_without_an_endless_wait() {
    let mut command = support::program(&["serve", "--listen", "stdio"]);
    command.env("no_proxy", "*");
    let (mut server, client) = Server::launch_stdio(command);
    client.initialize();
    let puppet = Puppet::new();
    puppet.say(HEAD);
    open(&client, &puppet.url(), "r");
    puppet.say(b"more");
    client.finish_writing();
    let (body, error) = finish(&client, "r");
    assert_eq!((body, error), (b"more".to_vec(), json!("the client closed its side of the connection")));
    puppet.assert_gone();
    assert_eq!(server.wait().code(), Some(0));
}

#[test]
fn a_connection_has_at_most_128_streams_and_the_next_is_a_clear_error() {
    let server = server();
    let client = server.client();
    let web = Web::start(|_, stream| {
        let _ = stream.write_all(HEAD);
        let _ = stream.read(&mut [0]);
    });
    for number in 0..128 {
        open(&client, &web.url("/"), &number.to_string());
    }
    let error = client.call("http/request", params(&web.url("/"), "more")).expect_err("that is one too many");
    let data = json!({"kind": "limitExceeded", "hint": "wait until one ends"});
    let message = "this connection already has 128 HTTP streams, which is the limit";
    assert_eq!(error, json!({"code": -32600, "message": message, "data": data}));
    let short = Web::answering(web_answer(200, &[], "ok"));
    let buffered = with(params(&short.url("/"), "b"), json!({"streamResponse": false}));
    assert_eq!(client.call("http/request", buffered).expect("buffered requests still go")["status"], 200);
}

fn resident_bytes(server: &Server) -> usize {
    let status = fs::read_to_string(format!("/proc/{}/status", server.pid())).expect("the server runs");
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).expect("Linux tells the memory");
    line.split_whitespace().nth(1).and_then(|kib| kib.parse::<usize>().ok()).expect("memory is a number")
        * 1024
}

#[test]
fn a_slow_reader_delays_only_its_own_streams_and_costs_little_memory() {
    const STREAMS: usize = 8;
    let server = server();
    let web = Web::start(|_, stream| flood(stream, 256 * MIB));
    let (mut slow, _) =
        Reader::initialized(server.address(), json!({"clientName": "slow", "resumeSessionId": null}));
    for number in 0..STREAMS {
        slow.send("http/request", params(&web.url("/"), &number.to_string()));
    }
    (0..STREAMS).for_each(|_| drop(web.next()));
    // Meanwhile others are served, streams and all.
    let small = Web::start(|_, stream| flood(stream, 64 * MIB));
    let client = server.client();
    let sent = block();
    let before = resident_bytes(&server);
    for round in 0..3 {
        let id = format!("r{round}");
        open(&client, &small.url("/"), &id);
        let (body, error) = finish(&client, &id);
        assert_eq!((body.len(), error), (64 * MIB, Value::Null));
        assert!(body.chunks(MIB).all(|part| part == sent));
    }
    let grown = resident_bytes(&server).saturating_sub(before);
    assert!(grown < 48 * MIB, "{grown} bytes more for streams that pass through");
    assert!(
        resident_bytes(&server) < 128 * MIB,
        "{} bytes for streams that nobody reads",
        resident_bytes(&server)
    );
    slow.cut();
}

#[test]
fn streams_and_processes_share_a_connection_and_none_starves() {
    let server = server();
    let web = Web::start(|_, stream| flood(stream, 1024 * MIB));
    let (mut reader, _) =
        Reader::initialized(server.address(), json!({"clientName": "busy", "resumeSessionId": null}));
    for id in ["a", "b"] {
        reader.call("http/request", params(&web.url("/"), id)).expect("the head comes");
    }
    for id in ["p", "q"] {
        let start = with(start_params(id, &["/bin/cat", "/dev/zero"]), json!({}));
        reader.call("process/start", start).expect("the process starts");
    }
    let mut counts = [0_usize; 4];
    while counts.iter().any(|count| *count < 16 * MIB) {
        let note = reader.next();
        let params = &note["params"];
        let (who, bytes) = match note["method"].as_str() {
            Some("http/request/bodyDelta") => {
                (usize::from(params["requestId"] == "b"), &params["deltaBase64"])
            }
            Some("process/output") => (2 + usize::from(params["processId"] == "q"), &params["chunk"]),
            _ => continue,
        };
        let bytes = decode(bytes).len();
        assert!(bytes <= MIB, "a frame of {bytes} bytes");
        counts[who] += bytes;
        let most = counts.iter().max().copied().unwrap_or_default();
        assert!(most < 512 * MIB, "one stream gets too little: {counts:?}");
    }
    // A question in the middle of it all is answered.
    reader.call("session/list", json!({})).expect("lists are free");
    reader.cut();
}
