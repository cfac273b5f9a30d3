//! The web server that the recorded server talked to.

use std::{
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::{SocketAddr, TcpListener, TcpStream},
    sync::{Arc, Mutex},
    thread,
};

use serde_json::Value;

use super::recording::{Recording, Step};
use crate::support::decode;

/// Answers each request as it was answered when it was recorded.
pub(crate) struct Web {
    pub(crate) address: SocketAddr,
}

/// One recorded exchange.
struct Exchange {
    method: String,
    body: Vec<u8>,
    response: Vec<u8>,
}

impl Web {
    /// Starts to serve; the thread ends with the test.
    pub(crate) fn start(recording: &Recording) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("loopback has a free port");
        let address = listener.local_addr().expect("a listener has an address");
        let exchanges = Arc::new(Mutex::new(exchanges(recording)));
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let exchanges = Arc::clone(&exchanges);
                thread::spawn(move || answer(stream, &exchanges));
            }
        });
        Self { address }
    }
}

fn exchanges(recording: &Recording) -> Vec<Exchange> {
    let said = recording.lines.iter().filter_map(|line| match &line.step {
        Step::Say(message) if message["method"] == "http/request" => Some((line.connection, message)),
        _ => None,
    });
    said.filter_map(|(connection, request)| {
        let heard = || {
            recording.lines.iter().filter(move |line| line.connection == connection).filter_map(|line| {
                match &line.step {
                    Step::Hear(message) => Some(message),
                    _ => None,
                }
            })
        };
        let result = &heard().find(|message| message["id"] == request["id"])?["result"];
        let request = &request["params"];
        let is_part = |message: &&Value| {
            request["streamResponse"] == true && message["params"]["requestId"] == request["requestId"]
        };
        let mut body = decode(&result["bodyBase64"]);
        body.extend(heard().filter(is_part).flat_map(|message| decode(&message["params"]["deltaBase64"])));
        Some(Exchange {
            method: request["method"].as_str()?.to_owned(),
            body: request["bodyBase64"].as_str().map(|_| decode(&request["bodyBase64"])).unwrap_or_default(),
            response: response(result, &body),
        })
    })
    .collect()
}

/// Writes a response as a server of HTTP 1.0 does, which closes after each.
fn response(result: &Value, body: &[u8]) -> Vec<u8> {
    let mut response = format!("HTTP/1.0 {} Recorded\r\n", result["status"]).into_bytes();
    for header in result["headers"].as_array().expect("headers are a list") {
        let line = [&header["name"], &header["value"]].map(|part| part.as_str().expect("headers are texts"));
        response.extend(format!("{}: {}\r\n", line[0], line[1]).bytes());
    }
    response.extend(b"\r\n");
    response.extend(body);
    response
}

fn answer(mut stream: TcpStream, exchanges: &Mutex<Vec<Exchange>>) {
    let mut reader = BufReader::new(stream.try_clone().expect("a socket has two ends"));
    let mut lines = Vec::new();
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line).unwrap_or(0) <= 2 {
            break;
        }
        lines.push(line.to_ascii_lowercase());
    }
    let len =
        lines.iter().find_map(|line| line.strip_prefix("content-length:")?.trim().parse().ok()).unwrap_or(0);
    let mut body = vec![0; len];
    let Some(first) = lines.first() else { return };
    if reader.read_exact(&mut body).is_err() {
        return;
    }
    let mut exchanges = exchanges.lock().expect("no thread has panicked");
    let is_asked = |exchange: &Exchange| {
        first.starts_with(&format!("{} ", exchange.method.to_ascii_lowercase())) && exchange.body == body
    };
    let found = exchanges.iter().position(is_asked).map(|index| exchanges.remove(index));
    drop(exchanges);
    // An unexpected request gets no answer, which fails the replay.
    if let Some(exchange) = found {
        let _ = stream.write_all(&exchange.response);
    }
}
