//! A WebSocket client made for measuring: one blocking socket, one buffer, no tree.
//!
//! It answers pings the moment it reads them, because servers may take the pong as an acknowledgement.
//! It does not judge what it is not asked about. Start at [`Client::connect`].

use std::{
    io::{self, Read, Write},
    net::{SocketAddr, TcpStream},
    sync::Arc,
    time::Duration,
};

use anyhow::{Context, Result, bail, ensure};
use memchr::memmem::find;
use rustls::{ClientConfig, ClientConnection, StreamOwned, pki_types::ServerName};
use serde_json::{Value, json};

use crate::{Stdio, message::Message, server::Frames};

/// Holds several of the largest output messages, and still fits a second-level cache.
const BUFFER_LEN: usize = 256 * 1024;
/// No measurement is silent for longer, so a server that is has failed.
const SILENCE: Duration = Duration::from_secs(30);
const MASK: [u8; 4] = [0x5a, 0xc3, 0x17, 0x9e];

const CONTINUATION: u8 = 0;
const TEXT: u8 = 1;
const BINARY: u8 = 2;
const CLOSE: u8 = 8;
const PING: u8 = 9;
const PONG: u8 = 10;

/// One connection with a session of its own.
pub(crate) struct Client {
    stream: Stream,
    /// Received and not yet parsed: `buffer[start..end]`, start <= end <= buffer.len().
    buffer: Vec<u8>,
    start: usize,
    end: usize,
    /// The pieces so far of a message that came in several frames.
    fragments: Vec<u8>,
    outgoing: Vec<u8>,
    last_id: u64,
    last_process: u64,
    frames: Frames,
}

/// Bytes to send, encoded before the clock starts.
pub(crate) struct Bytes {
    raw: Vec<u8>,
    base64: String,
}

impl Bytes {
    /// Returns the letter `x`, `len` times; `len` is one more than a multiple of three.
    pub(crate) fn letters(len: usize) -> Self {
        // Three of them are `eHh4`.
        let mut base64 = "eHh4".repeat(len / 3);
        base64.push_str("eA==");
        Self { raw: vec![b'x'; len], base64 }
    }
}

/// A connection, encrypted or not.
enum Stream {
    Plain(TcpStream),
    Tls(Box<StreamOwned<ClientConnection, TcpStream>>),
}

impl Stream {
    fn connect(address: SocketAddr, tls: Option<&Arc<ClientConfig>>) -> Result<Self> {
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(SILENCE))?;
        let Some(tls) = tls else { return Ok(Self::Plain(stream)) };
        let mut connection = ClientConnection::new(Arc::clone(tls), ServerName::from(address.ip()))?;
        // What comes in one read may hold several records.
        connection.set_buffer_limit(None);
        Ok(Self::Tls(Box::new(StreamOwned::new(connection, stream))))
    }
}

impl Read for Stream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Plain(stream) => stream.read(buffer),
            Self::Tls(stream) => stream.read(buffer),
        }
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Plain(stream) => stream.write(bytes),
            Self::Tls(stream) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Plain(stream) => stream.flush(),
            Self::Tls(stream) => stream.flush(),
        }
    }
}

impl Client {
    /// Connects, encrypted if there is a configuration for it, shakes hands and opens a new session.
    pub(crate) fn connect(
        address: SocketAddr,
        tls: Option<&Arc<ClientConfig>>,
        frames: Frames,
    ) -> Result<Self> {
        let mut session = json!({"clientName": "remex-bench", "resumeSessionId": null});
        if frames == Frames::Binary {
            session["capabilities"] = json!(["binaryFrames"]);
        }
        let client = Self::connect_with(address, tls, &session)?;
        Ok(Self { frames, ..client })
    }

    /// Opens a new session that can be resumed under this name.
    pub(crate) fn connect_as(address: SocketAddr, name: &str) -> Result<Self> {
        let session = json!({"clientName": "remex-bench", "resumeSessionId": null, "sessionName": name});
        Self::connect_with(address, None, &session)
    }

    fn connect_with(address: SocketAddr, tls: Option<&Arc<ClientConfig>>, session: &Value) -> Result<Self> {
        let mut client = Self {
            stream: Stream::connect(address, tls)?,
            buffer: vec![0; BUFFER_LEN],
            start: 0,
            end: 0,
            fragments: Vec::new(),
            outgoing: Vec::new(),
            last_id: 0,
            last_process: 0,
            frames: Frames::Json,
        };
        client.upgrade(address)?;
        client.call("initialize", session)?;
        client.send(TEXT, br#"{"method":"initialized","params":{}}"#)?;
        Ok(client)
    }

    /// Asks for a start and returns the id of the process, without waiting for the answer.
    pub(crate) fn start(&mut self, argv: &[&str], stdio: Stdio) -> Result<u64> {
        self.start_with(json!({}), argv, stdio)
    }

    /// Like [`start`](Self::start), in a sandbox.
    pub(crate) fn start_in(&mut self, sandbox: &Value, argv: &[&str], stdio: Stdio) -> Result<u64> {
        self.start_with(json!({"sandbox": sandbox}), argv, stdio)
    }

    /// Like [`start`](Self::start), with a log that drops its oldest output beyond this.
    pub(crate) fn start_evicting(&mut self, retain_bytes: u64, argv: &[&str]) -> Result<u64> {
        let output = json!({"overflow": "evict", "retainBytes": retain_bytes});
        self.start_with(json!({"output": output}), argv, Stdio::Pipe)
    }

    fn start_with(&mut self, mut params: Value, argv: &[&str], stdio: Stdio) -> Result<u64> {
        self.last_process += 1;
        let process = self.last_process;
        params["processId"] = process.to_string().into();
        params["argv"] = argv.into();
        params["cwd"] = "file:///".into();
        params["env"] = json!({"PATH": crate::PATH});
        params["tty"] = (stdio == Stdio::Pty).into();
        params["pipeStdin"] = false.into();
        params["arg0"] = Value::Null;
        self.request("process/start", &params)?;
        Ok(process)
    }

    /// Asks for one byte on the child's stdin.
    pub(crate) fn write_byte(&mut self, process: u64) -> Result<u64> {
        let write_id = (self.last_id + 1).to_string();
        self.request(
            "process/write",
            &json!({"processId": process.to_string(), "chunk": "eA==", "writeId": write_id}),
        )
    }

    /// Asks for the end of a process.
    pub(crate) fn terminate(&mut self, process: u64) -> Result<u64> {
        self.request("process/terminate", &json!({"processId": process.to_string()}))
    }

    /// Asks for anything whose params are ready as JSON, and returns the id of the request.
    pub(crate) fn ask(&mut self, method: &str, params: &str) -> Result<u64> {
        self.last_id += 1;
        let text = format!(r#"{{"id":{},"method":"{method}","params":{params}}}"#, self.last_id);
        self.send(TEXT, text.as_bytes())?;
        Ok(self.last_id)
    }

    /// Asks for anything with bytes: `params` has a place for them, and they may be binary on their way.
    pub(crate) fn ask_with(
        &mut self,
        method: &str,
        params: impl FnOnce(&str) -> String,
        bytes: &Bytes,
    ) -> Result<u64> {
        if self.frames == Frames::Json {
            return self.ask(method, &params(&format!("\"{}\"", bytes.base64)));
        }
        self.last_id += 1;
        let params = params(&format!("[0,{}]", bytes.raw.len()));
        let json = format!(r#"{{"id":{},"method":"{method}","params":{params}}}"#, self.last_id);
        let mut message = vec![2, 0, 0, 0];
        message.extend_from_slice(&(json.len() as u32).to_be_bytes());
        message.extend_from_slice(json.as_bytes());
        message.extend_from_slice(&bytes.raw);
        self.send(BINARY, &message)?;
        Ok(self.last_id)
    }

    /// Returns how long `len` bytes are in a message.
    pub(crate) fn encoded_len(&self, len: usize) -> usize {
        match self.frames {
            Frames::Json => len.div_ceil(3) * 4,
            Frames::Binary => len,
        }
    }

    /// Waits for the next answer and returns its length.
    pub(crate) fn next_reply(&mut self) -> Result<usize> {
        loop {
            if let Message::Reply { len, .. } = self.next_message()? {
                return Ok(len);
            }
        }
    }

    /// Sends a request and returns its id.
    fn request(&mut self, method: &str, params: &Value) -> Result<u64> {
        self.last_id += 1;
        let text = format!(r#"{{"id":{},"method":"{method}","params":{params}}}"#, self.last_id);
        self.send(TEXT, text.as_bytes())?;
        Ok(self.last_id)
    }

    fn call(&mut self, method: &str, params: &Value) -> Result<()> {
        let id = self.request(method, params)?;
        self.wait_for_reply(id)
    }

    /// Waits for the answer to a request and passes over everything else.
    pub(crate) fn wait_for_reply(&mut self, expected: u64) -> Result<()> {
        loop {
            match self.next_message()? {
                Message::Reply { id, .. } if id == expected => return Ok(()),
                _ => {}
            }
        }
    }

    /// Returns the next message; a refusal of any request is an error.
    pub(crate) fn next_message(&mut self) -> Result<Message> {
        loop {
            let Some(frame) = Frame::parse(&self.buffer[self.start..self.end]) else {
                self.receive()?;
                continue;
            };
            let payload = self.start + frame.header_len..self.start + frame.header_len + frame.payload_len;
            self.start = payload.end;
            match (frame.opcode, frame.last) {
                (TEXT | BINARY, true) => return accept(Message::parse(&self.buffer[payload])?),
                (TEXT | BINARY | CONTINUATION, last) => {
                    self.fragments.extend_from_slice(&self.buffer[payload]);
                    if last {
                        let message = Message::parse(&self.fragments)?;
                        self.fragments.clear();
                        return accept(message);
                    }
                }
                (PING, _) => {
                    let body = self.buffer[payload].to_vec();
                    self.send(PONG, &body)?;
                }
                (PONG, _) => {}
                (CLOSE, _) => {
                    let reason = self.buffer[payload].get(2..).unwrap_or_default();
                    bail!("the server closed the connection: `{}`", String::from_utf8_lossy(reason));
                }
                (opcode, _) => bail!("the server sent a frame of the unknown kind {opcode}"),
            }
        }
    }

    /// Reads once, after making room for the frame that has begun.
    fn receive(&mut self) -> Result<()> {
        let begun = Frame::announced_len(&self.buffer[self.start..self.end]);
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        } else if self.start + begun > self.buffer.len() || self.end == self.buffer.len() {
            self.buffer.copy_within(self.start..self.end, 0);
            self.end -= self.start;
            self.start = 0;
            if begun > self.buffer.len() {
                self.buffer.resize(begun, 0);
            }
        }
        let len = self.stream.read(&mut self.buffer[self.end..]).context("nothing came from the server")?;
        ensure!(len > 0, "the server dropped the connection");
        self.end += len;
        Ok(())
    }

    fn send(&mut self, opcode: u8, payload: &[u8]) -> Result<()> {
        self.outgoing.clear();
        self.outgoing.push(0x80 | opcode);
        match payload.len() {
            len @ 0..126 => self.outgoing.push(0x80 | len as u8),
            len @ 126..0x1_0000 => {
                self.outgoing.push(0x80 | 126);
                self.outgoing.extend_from_slice(&(len as u16).to_be_bytes());
            }
            len => {
                self.outgoing.push(0x80 | 127);
                self.outgoing.extend_from_slice(&(len as u64).to_be_bytes());
                // A mask of zeros costs the client nothing, and the server as much as any other.
                self.outgoing.extend_from_slice(&[0; 4]);
                self.outgoing.extend_from_slice(payload);
                return self.write_outgoing();
            }
        }
        self.outgoing.extend_from_slice(&MASK);
        self.outgoing.extend(payload.iter().zip(MASK.iter().cycle()).map(|(byte, mask)| byte ^ mask));
        self.write_outgoing()
    }

    fn write_outgoing(&mut self) -> Result<()> {
        self.stream.write_all(&self.outgoing).context("cannot send to the server")?;
        self.stream.flush().context("cannot send to the server")
    }

    fn upgrade(&mut self, address: SocketAddr) -> Result<()> {
        write!(
            self.stream,
            "GET / HTTP/1.1\r\nHost: {address}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
             Sec-WebSocket-Key: cmVtZXgtYmVuY2gta2V5IQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
        )?;
        self.stream.flush()?;
        let head_len = loop {
            if let Some(at) = find(&self.buffer[..self.end], b"\r\n\r\n") {
                break at + 4;
            }
            ensure!(self.end < self.buffer.len(), "the head of the upgrade answer does not end");
            let len = self.stream.read(&mut self.buffer[self.end..])?;
            ensure!(len > 0, "the server dropped the connection during the upgrade");
            self.end += len;
        };
        let status = self.buffer.get(9..12);
        ensure!(status == Some(b"101"), "the server refused the upgrade with status {status:?}");
        self.start = head_len;
        Ok(())
    }
}

fn accept(message: Message) -> Result<Message> {
    match message {
        Message::Reply { error: Some(error), .. } => bail!("the server refused a request: {error}"),
        message => Ok(message),
    }
}

/// The head of one complete frame.
struct Frame {
    last: bool,
    opcode: u8,
    header_len: usize,
    payload_len: usize,
}

impl Frame {
    /// Returns `None` until the whole frame is there. A server does not mask.
    fn parse(bytes: &[u8]) -> Option<Self> {
        let (header_len, payload_len) = Self::lengths(bytes)?;
        (bytes.len() >= header_len + payload_len).then(|| Self {
            last: bytes[0] & 0x80 != 0,
            opcode: bytes[0] & 0x0f,
            header_len,
            payload_len,
        })
    }

    /// The length of the frame that has begun, as far as it is known.
    fn announced_len(bytes: &[u8]) -> usize {
        Self::lengths(bytes).map_or(bytes.len(), |(header, payload)| header + payload)
    }

    fn lengths(bytes: &[u8]) -> Option<(usize, usize)> {
        match bytes.get(1)? & 0x7f {
            126 => Some((4, u16::from_be_bytes(*bytes.get(2..)?.first_chunk()?).into())),
            127 => Some((10, u64::from_be_bytes(*bytes.get(2..)?.first_chunk()?) as usize)),
            len => Some((2, len.into())),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{
        io::{BufRead, BufReader},
        net::TcpListener,
        thread,
    };

    use super::*;

    fn frame(first: u8, payload: &[u8]) -> Vec<u8> {
        let mut frame = vec![first];
        match payload.len() {
            len @ 0..126 => frame.push(len as u8),
            len => {
                frame.push(127);
                frame.extend_from_slice(&(len as u64).to_be_bytes());
            }
        }
        frame.extend_from_slice(payload);
        frame
    }

    /// Reads one short masked frame and returns its kind and payload.
    fn read_frame(stream: &mut impl Read) -> (u8, Vec<u8>) {
        let mut head = [0; 2];
        stream.read_exact(&mut head).unwrap();
        let mut rest = vec![0; 4 + usize::from(head[1] & 0x7f)];
        stream.read_exact(&mut rest).unwrap();
        let (mask, payload) = rest.split_at(4);
        (head[0] & 0x0f, payload.iter().zip(mask.iter().cycle()).map(|(byte, mask)| byte ^ mask).collect())
    }

    #[test]
    fn pings_are_answered_and_pieces_and_giants_are_understood() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let server = thread::spawn(move || {
            let mut stream = BufReader::new(listener.accept().unwrap().0);
            let mut line = String::new();
            while line != "\r\n" {
                line.clear();
                stream.read_line(&mut line).unwrap();
            }
            let mut answer = b"HTTP/1.1 101 Switching Protocols\r\n\r\n".to_vec();
            answer.extend(frame(0x80 | PING, b"first"));
            answer.extend(frame(TEXT, br#"{"id":1,"#));
            answer.extend(frame(0x80 | PING, b"second"));
            answer.extend(frame(0x80 | CONTINUATION, br#""result":{}}"#));
            let chunk = "A".repeat(4 * BUFFER_LEN);
            let output = format!(
                r#"{{"method":"process/output","params":{{"processId":"1","seq":1,"stream":"stdout","chunk":"{chunk}"}}}}"#
            );
            answer.extend(frame(0x80 | TEXT, output.as_bytes()));
            stream.get_mut().write_all(&answer).unwrap();
            [(); 4].map(|()| read_frame(&mut stream))
        });
        let mut client = Client::connect(address, None, Frames::Json).unwrap();
        let giant = Message::Output { process: 1, seq: 1, len: 3 * BUFFER_LEN as u64 };
        assert_eq!(client.next_message().unwrap(), giant);
        let [initialize, first, second, initialized] = server.join().unwrap();
        assert_eq!(initialize.0, TEXT);
        assert_eq!((first, second), ((PONG, b"first".to_vec()), (PONG, b"second".to_vec())));
        assert_eq!(initialized, (TEXT, br#"{"method":"initialized","params":{}}"#.to_vec()));
    }
}
