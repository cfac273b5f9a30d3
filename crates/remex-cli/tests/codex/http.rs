//! The server's half of HTTP, as much as a scripted endpoint needs: one request and one answer per connection.

use std::{
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::TcpStream,
};

/// A request, headers as they came.
pub(crate) struct Request {
    pub(crate) line: String,
    pub(crate) headers: Vec<String>,
    pub(crate) body: Vec<u8>,
}

impl Request {
    /// Reads the request of a connection; none when it is closed without one.
    pub(crate) fn read(stream: &TcpStream) -> Option<Self> {
        let mut stream = BufReader::new(stream);
        let mut lines = Vec::new();
        loop {
            let mut line = String::new();
            stream.read_line(&mut line).expect("a request arrives");
            match line.trim_end() {
                "" => break,
                line => lines.push(line.to_owned()),
            }
        }
        let line = lines.first()?.clone();
        let mut request = Self { line, headers: lines.split_off(1), body: Vec::new() };
        let len =
            request.header("content-length").map_or(0, |len| len.parse().expect("a length is a number"));
        request.body.resize(len, 0);
        stream.read_exact(&mut request.body).expect("the body is as long as the header says");
        Some(request)
    }

    /// Returns the value of a header.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers
            .iter()
            .filter_map(|header| header.split_once(':'))
            .find_map(|(header, value)| header.eq_ignore_ascii_case(name).then_some(value.trim()))
    }
}

/// Sends an answer after which the connection ends.
pub(crate) fn respond(mut stream: &TcpStream, status: &str, headers: &[&str], body: &[u8]) {
    let headers: String = headers.iter().map(|header| format!("{header}\r\n")).collect();
    let len = body.len();
    let head = format!("HTTP/1.1 {status}\r\nConnection: close\r\nContent-Length: {len}\r\n{headers}\r\n");
    stream.write_all(&[head.as_bytes(), body].concat()).expect("whoever asked reads the answer");
}
