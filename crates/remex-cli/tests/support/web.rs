//! A web server that does what the test says, written by hand so that every byte is seen.

use std::{
    io::{BufRead, BufReader},
    net::{SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc, Mutex, PoisonError,
        mpsc::{Receiver, channel},
    },
    thread,
};

use super::PATIENCE;

/// One request as it came.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct WebRequest {
    /// Such as `GET /path HTTP/1.1`.
    pub(crate) line: String,
    /// In order, as they were written.
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
}

impl WebRequest {
    pub(crate) fn method(&self) -> &str {
        self.line.split(' ').next().unwrap_or_default()
    }

    /// Returns the second word of the first line.
    pub(crate) fn target(&self) -> &str {
        self.line.split(' ').nth(1).unwrap_or_default()
    }

    /// Returns the value of the first header with this name in lower case.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }
}

/// A web server on loopback; every connection has a thread.
pub(crate) struct Web {
    address: SocketAddr,
    seen: Mutex<Receiver<WebRequest>>,
}

impl Web {
    /// Starts a server that answers each request by writing to its connection.
    pub(crate) fn start(script: impl Fn(&WebRequest, &mut TcpStream) + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("loopback has a free port");
        let address = listener.local_addr().expect("a listener has an address");
        let (seen, requests) = channel();
        let script = Arc::new(script);
        thread::spawn(move || {
            for stream in listener.incoming() {
                let Ok(mut stream) = stream else { return };
                let (script, seen) = (Arc::clone(&script), seen.clone());
                thread::spawn(move || {
                    let mut reader = BufReader::new(stream.try_clone().expect("a socket can be cloned"));
                    while let Some(request) = read_web_request(&mut reader) {
                        let _ = seen.send(request.clone());
                        script(&request, &mut stream);
                    }
                });
            }
        });
        Self { address, seen: Mutex::new(requests) }
    }

    /// Starts a server that gives every client the same response.
    pub(crate) fn answering(answer: impl Into<Vec<u8>>) -> Self {
        let answer = answer.into();
        Self::start(move |_, stream| {
            let _ = std::io::Write::write_all(stream, &answer);
        })
    }

    pub(crate) fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Waits for the next request.
    pub(crate) fn next(&self) -> WebRequest {
        let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        seen.recv_timeout(PATIENCE).expect("a request comes")
    }

    /// Returns a request that has come, without waiting.
    pub(crate) fn next_if_any(&self) -> Option<WebRequest> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner).try_recv().ok()
    }
}

/// Reads one request with its body; none when the connection ends.
pub(crate) fn read_web_request(reader: &mut impl BufRead) -> Option<WebRequest> {
    let mut line = || -> Option<String> {
        let mut line = String::new();
        reader.read_line(&mut line).ok().filter(|len| *len > 0)?;
        Some(line.trim_end().to_owned())
    };
    let mut request = WebRequest { line: line()?, headers: Vec::new(), body: Vec::new() };
    while let Some(header) = line().filter(|header| !header.is_empty()) {
        let (name, value) = header.split_once(':').expect("a header has a colon");
        request.headers.push((name.to_owned(), value.trim_start().to_owned()));
    }
    let len = request.header("content-length").map_or(0, |len| len.parse().expect("a length is a number"));
    request.body.resize(len, 0);
    reader.read_exact(&mut request.body).ok()?;
    Some(request)
}

/// Returns an answer with its length.
pub(crate) fn web_answer(status: u16, headers: &[&str], body: impl AsRef<[u8]>) -> Vec<u8> {
    let headers: String = headers.iter().map(|header| format!("{header}\r\n")).collect();
    let len = body.as_ref().len();
    let head = format!("HTTP/1.1 {status} Whatever\r\n{headers}content-length: {len}\r\n\r\n");
    [head.as_bytes(), body.as_ref()].concat()
}
