//! A client that reads only when the test does, and keeps nothing: for floods, and for clients that fall behind.

use std::{
    collections::VecDeque,
    io::{BufRead, BufReader, Write as _},
    net::{Shutdown, TcpStream},
    os::unix::net::UnixStream,
    process::{ChildStdin, ChildStdout},
    time::Instant,
};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use serde_json::{Value, json};
use tungstenite::{Message, WebSocket, client::client_with_config, protocol::WebSocketConfig};

use super::{PATIENCE, binary};

/// A connection without a thread of its own.
///
/// Pings are answered by reading, as every client does, so one that does not read does not answer either.
pub(crate) struct Reader {
    socket: Link,
    /// Messages that came while a reply was waited for.
    passed: VecDeque<Value>,
    next_id: i64,
    accepts_binary: bool,
}

enum Link {
    WebSocket(Box<WebSocket<TcpStream>>),
    Lines(BufReader<UnixStream>),
    Stdio(BufReader<ChildStdout>, ChildStdin),
}

impl Reader {
    /// Connects to `ws://IP:PORT` or `unix:///PATH`.
    pub(crate) fn connect(address: &str) -> Self {
        let socket = match address.strip_prefix("unix://") {
            Some(path) => {
                let stream = UnixStream::connect(path).expect("the listener accepts");
                stream.set_read_timeout(Some(PATIENCE)).expect("a minute is a time-out");
                Link::Lines(BufReader::new(stream))
            }
            None => {
                let host = address.strip_prefix("ws://").expect("an address is a WebSocket or a unix socket");
                let stream = TcpStream::connect(host).expect("the listener accepts");
                stream.set_nodelay(true).expect("a TCP socket knows TCP_NODELAY");
                stream.set_read_timeout(Some(PATIENCE)).expect("a minute is a time-out");
                let generous = WebSocketConfig::default().max_message_size(None).max_frame_size(None);
                let (socket, _) =
                    client_with_config(address, stream, Some(generous)).expect("the server upgrades");
                Link::WebSocket(Box::new(socket))
            }
        };
        Self { socket, passed: VecDeque::new(), next_id: 1, accepts_binary: false }
    }

    /// Speaks to a program over its standard streams.
    pub(crate) fn over_stdio(stdin: ChildStdin, stdout: ChildStdout) -> Self {
        let socket = Link::Stdio(BufReader::new(stdout), stdin);
        Self { socket, passed: VecDeque::new(), next_id: 1, accepts_binary: false }
    }

    /// Connects and shakes hands with these parameters; returns the answer too.
    pub(crate) fn initialized(address: &str, params: Value) -> (Self, Value) {
        let mut reader = Self::connect(address);
        let answer = reader.call("initialize", params).expect("the handshake succeeds");
        reader.notify("initialized", json!({}));
        (reader, answer)
    }

    /// Sends a request and returns its id.
    pub(crate) fn send(&mut self, method: &str, params: Value) -> Value {
        let id = json!(self.next_id);
        self.next_id += 1;
        let words = params["capabilities"].as_array();
        self.accepts_binary |= words.is_some_and(|words| words.contains(&json!("binaryFrames")));
        let mut request = json!({"id": id, "method": method});
        request["params"] = params;
        self.write(&request);
        id
    }

    /// Sends a request and reads until its answer is there; what comes before stays for [`Reader::next`].
    pub(crate) fn call(&mut self, method: &str, params: Value) -> Result<Value, Value> {
        let id = self.send(method, params);
        let mut reply = loop {
            let message = self.read();
            if message["id"] == id {
                break message;
            }
            self.passed.push_back(message);
        };
        match reply.get("error") {
            Some(error) => Err(error.clone()),
            None => Ok(reply["result"].take()),
        }
    }

    /// Takes what came while a reply was waited for.
    pub(crate) fn take_passed(&mut self) -> VecDeque<Value> {
        std::mem::take(&mut self.passed)
    }

    pub(crate) fn notify(&mut self, method: &str, params: Value) {
        let mut note = json!({"method": method});
        note["params"] = params;
        self.write(&note);
    }

    /// Returns the next message, and fails the test when there is none for a long time.
    pub(crate) fn next(&mut self) -> Value {
        self.passed.pop_front().unwrap_or_else(|| self.read())
    }

    /// Ends the connection without a word and without reading what is there.
    pub(crate) fn cut(self) {
        let _ = match &self.socket {
            Link::WebSocket(socket) => socket.get_ref().shutdown(Shutdown::Both),
            Link::Lines(lines) => lines.get_ref().shutdown(Shutdown::Both),
            // Dropping them closes them.
            Link::Stdio(..) => Ok(()),
        };
    }

    fn write(&mut self, message: &Value) {
        match &mut self.socket {
            Link::WebSocket(socket) => {
                socket.send(Message::text(message.to_string())).expect("the server takes messages");
            }
            Link::Lines(lines) => {
                writeln!(lines.get_mut(), "{message}").expect("the server takes lines");
            }
            Link::Stdio(_, stdin) => writeln!(stdin, "{message}").expect("the server takes lines"),
        }
    }

    fn read(&mut self) -> Value {
        let deadline = Instant::now() + PATIENCE;
        match &mut self.socket {
            Link::WebSocket(socket) => loop {
                // Pings come for ever, so the time-out of the socket is not enough.
                assert!(Instant::now() < deadline, "the server sends nothing for {PATIENCE:?}");
                match socket.read().expect("the server sends messages") {
                    Message::Text(text) => break parse(text.as_bytes()),
                    Message::Binary(message) if self.accepts_binary => break binary::as_json(&message),
                    Message::Ping(_) => socket.flush().expect("the server takes pongs"),
                    other => assert!(other.is_pong(), "{other:?} is no message of the dialect"),
                }
            },
            Link::Lines(lines) => message_of(lines, self.accepts_binary),
            Link::Stdio(lines, _) => {
                // A server sends whole lines, so what has begun ends soon.
                if lines.buffer().is_empty() {
                    let patience = Timespec::try_from(PATIENCE).expect("a minute is not too long");
                    let mut pipe = [PollFd::new(lines.get_ref(), PollFlags::IN)];
                    let ready = poll(&mut pipe, Some(&patience)).expect("a pipe can be polled");
                    assert!(ready > 0, "the server sends nothing for {PATIENCE:?}");
                }
                message_of(lines, self.accepts_binary)
            }
        }
    }
}

fn message_of(lines: &mut impl BufRead, accepts_binary: bool) -> Value {
    match binary::read(lines).expect("the server sends lines") {
        binary::Read::Line(line) => parse(&line),
        binary::Read::Binary(message) if accepts_binary => binary::as_json(&message),
        binary::Read::Binary(message) => panic!("nobody asked for the binary message {message:?}"),
        binary::Read::End => panic!("the server ended the connection"),
    }
}

fn parse(bytes: &[u8]) -> Value {
    serde_json::from_slice(bytes).unwrap_or_else(|error| panic!("a message is JSON: {error}"))
}
