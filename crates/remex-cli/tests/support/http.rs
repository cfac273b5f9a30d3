//! HTTP written by hand, so that nothing tidies up what is sent.

use std::{
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::TcpStream,
};

use super::PATIENCE;

/// An answer, headers with names in lower case.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: String,
}

impl Answer {
    /// Returns the value of a header.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(header, _)| header == name).map(|(_, value)| value.as_str())
    }
}

/// Returns a request without a body.
pub(crate) fn request(method: &str, path: &str, headers: &[&str]) -> String {
    let headers: String = headers.iter().map(|header| format!("{header}\r\n")).collect();
    format!("{method} {path} HTTP/1.1\r\nHost: localhost\r\n{headers}\r\n")
}

/// Returns an upgrade to a WebSocket with further headers.
pub(crate) fn upgrade(path: &str, headers: &[&str]) -> String {
    let upgrade = [
        "Connection: Upgrade",
        "Upgrade: websocket",
        "Sec-WebSocket-Version: 13",
        "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
    ];
    request("GET", path, &[&upgrade, headers].concat())
}

/// Sends bytes to `ws://IP:PORT` on a connection of their own; none when it is closed without an answer.
pub(crate) fn exchange(address: &str, bytes: impl AsRef<[u8]>) -> Option<Answer> {
    let address = address.strip_prefix("ws://").expect("HTTP lives on the WebSocket port");
    let mut stream = TcpStream::connect(address).expect("the listener accepts");
    stream.set_read_timeout(Some(PATIENCE)).expect("a minute is a time-out");
    // A server may refuse before it has read everything.
    let _ = stream.write_all(bytes.as_ref());
    let mut stream = BufReader::new(stream);

    let mut line = || -> Option<String> {
        let mut line = String::new();
        match stream.read_line(&mut line) {
            Ok(0) => None,
            Ok(_) => Some(line.trim_end().to_owned()),
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => None,
            Err(error) => panic!("no answer: {error}"),
        }
    };
    let status = line()?;
    let status = status.split(' ').nth(1).and_then(|code| code.parse().ok());
    let mut headers = Vec::new();
    while let Some(header) = line().filter(|header| !header.is_empty()) {
        let (name, value) = header.split_once(':').expect("a header has a colon");
        headers.push((name.to_ascii_lowercase(), value.trim().to_owned()));
    }
    let mut answer =
        Answer { status: status.expect("a status line has a code"), headers, body: String::new() };
    let len = answer.header("content-length").map_or(0, |len| len.parse().expect("a length is a number"));
    if !bytes.as_ref().starts_with(b"HEAD ") {
        let mut body = vec![0; len];
        stream.read_exact(&mut body).expect("the body is as long as the header says");
        answer.body = String::from_utf8_lossy(&body).into_owned();
    }
    Some(answer)
}
