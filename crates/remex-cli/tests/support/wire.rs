//! The client's side of the three transports: a reader and a writer thread each, so that neither waits for the other.

use std::{
    io::{self, BufReader, Read, Write},
    net::{Shutdown, TcpStream},
    os::unix::net::UnixStream,
    process::{ChildStdin, ChildStdout},
    sync::{
        Arc, Mutex, PoisonError,
        mpsc::{Receiver, Sender, channel},
    },
    thread,
};

use rustls::{ClientConfig, ClientConnection, pki_types::ServerName};
use tungstenite::{
    ClientRequestBuilder, Message, WebSocket,
    client::client_with_config,
    http::Uri,
    protocol::{Role, WebSocketConfig},
};

use super::{
    binary,
    inbox::{End, Inbox},
};

/// What a writer thread is told; it never answers, so nobody waits for it.
enum Order {
    Write(Vec<u8>),
    /// Ends the writing direction, after everything before.
    Finish,
}

/// One open connection: what to write goes in here, what is read goes to an [`Inbox`].
pub(crate) struct Wire {
    outgoing: Outgoing,
    hang_up: Box<dyn Fn() + Send + Sync>,
}

enum Outgoing {
    WebSocket { raw: Sender<Order>, frames: Box<Mutex<WebSocket<WebSocketStream>>> },
    Lines(Sender<Order>),
}

impl Wire {
    /// Connects to `ws://IP:PORT`.
    pub(crate) fn websocket(url: &str, headers: &[(&str, &str)], inbox: &Arc<Inbox>) -> Self {
        let address = url.strip_prefix("ws://").unwrap_or_else(|| panic!("`{url}` is no WebSocket URL"));
        let stream =
            TcpStream::connect(address).unwrap_or_else(|error| panic!("cannot connect to {url}: {error}"));
        stream.set_nodelay(true).expect("a TCP socket knows TCP_NODELAY");
        let (raw, orders) = channel();
        let read = stream.try_clone().expect("a socket can be cloned");
        let write = stream.try_clone().expect("a socket can be cloned");
        thread::spawn(move || write_orders(&write, &orders, || write.shutdown(Shutdown::Write)));
        Self::upgraded(url, headers, inbox, (Box::new(read), raw), stream)
    }

    /// Connects to `wss://IP:PORT`.
    pub(crate) fn tls(url: &str, tls: ClientConfig, headers: &[(&str, &str)], inbox: &Arc<Inbox>) -> Self {
        let address = url.strip_prefix("wss://").unwrap_or_else(|| panic!("`{url}` has no TLS"));
        let stream =
            TcpStream::connect(address).unwrap_or_else(|error| panic!("cannot connect to {url}: {error}"));
        stream.set_nodelay(true).expect("a TCP socket knows TCP_NODELAY");
        let name = ServerName::try_from("localhost").expect("a name");
        let connection = ClientConnection::new(Arc::new(tls), name).expect("the configuration fits");
        let socket = stream.try_clone().expect("a socket can be cloned");
        let both = TlsStream { connection: Arc::new(Mutex::new(connection)), socket };
        let write = TlsStream {
            connection: Arc::clone(&both.connection),
            socket: stream.try_clone().expect("a socket can be cloned"),
        };
        let (raw, orders) = channel();
        thread::spawn(move || write_orders(write, &orders, || Ok(())));
        Self::upgraded(url, headers, inbox, (Box::new(both), raw), stream)
    }

    /// Asks for a WebSocket on a connection: where to read, and where to write.
    fn upgraded(
        url: &str,
        headers: &[(&str, &str)],
        inbox: &Arc<Inbox>,
        (read, raw): (Box<dyn Read + Send>, Sender<Order>),
        stream: TcpStream,
    ) -> Self {
        let uri: Uri = url.parse().expect("an address is a URI");
        let request = headers.iter().fold(ClientRequestBuilder::new(uri), |request, (name, value)| {
            request.with_header(*name, *value)
        });
        let generous = WebSocketConfig::default().max_message_size(None).max_frame_size(None);
        let both = WebSocketStream { read: Some(read), write: raw.clone() };
        let (socket, _) = client_with_config(request, both, Some(generous))
            .unwrap_or_else(|error| panic!("{url} does not upgrade: {error}"));
        let inbox = Arc::clone(inbox);
        thread::spawn(move || read_websocket(socket, &inbox));

        // A second codec only for writing: the first one belongs to the reader, which answers pings with it.
        let write_only = WebSocketStream { read: None, write: raw.clone() };
        let frames = WebSocket::from_raw_socket(write_only, Role::Client, Some(generous));
        let frames = Box::new(Mutex::new(frames));
        let hang_up = Box::new(move || drop(stream.shutdown(Shutdown::Both)));
        Self { outgoing: Outgoing::WebSocket { raw, frames }, hang_up }
    }

    /// Connects to a unix socket.
    pub(crate) fn unix(path: &str, inbox: &Arc<Inbox>) -> Self {
        let stream =
            UnixStream::connect(path).unwrap_or_else(|error| panic!("cannot connect to {path}: {error}"));
        let (lines, orders) = channel();
        let read = stream.try_clone().expect("a socket can be cloned");
        let write = stream.try_clone().expect("a socket can be cloned");
        thread::spawn(move || write_orders(&write, &orders, || write.shutdown(Shutdown::Write)));
        let inbox = Arc::clone(inbox);
        thread::spawn(move || read_lines(read, &inbox));
        let hang_up = Box::new(move || drop(stream.shutdown(Shutdown::Both)));
        Self { outgoing: Outgoing::Lines(lines), hang_up }
    }

    /// Speaks to a child over its standard streams.
    pub(crate) fn stdio(stdin: ChildStdin, stdout: ChildStdout, inbox: &Arc<Inbox>) -> Self {
        let (lines, orders) = channel();
        // The end of the thread drops the pipe, and that is the end of file.
        thread::spawn(move || write_orders(stdin, &orders, || Ok(())));
        let inbox = Arc::clone(inbox);
        thread::spawn(move || read_lines(stdout, &inbox));
        let finish = lines.clone();
        let hang_up = Box::new(move || drop(finish.send(Order::Finish)));
        Self { outgoing: Outgoing::Lines(lines), hang_up }
    }

    /// Sends one message: a text frame, or a line.
    pub(crate) fn send(&self, text: &str) {
        match &self.outgoing {
            Outgoing::WebSocket { .. } => self.send_websocket(Message::text(text)),
            Outgoing::Lines(lines) => {
                let _ = lines.send(Order::Write([text.as_bytes(), b"\n"].concat()));
            }
        }
    }

    /// Sends one binary message.
    pub(crate) fn send_binary(&self, message: &[u8]) {
        match &self.outgoing {
            Outgoing::WebSocket { .. } => self.send_websocket(Message::binary(message.to_vec())),
            Outgoing::Lines(lines) => {
                let _ = lines.send(Order::Write(binary::between_lines(message)));
            }
        }
    }

    /// Sends a WebSocket message of any kind.
    pub(crate) fn send_websocket(&self, message: Message) {
        let Outgoing::WebSocket { frames, .. } = &self.outgoing else { panic!("this is not a WebSocket") };
        let mut frames = frames.lock().unwrap_or_else(PoisonError::into_inner);
        frames.send(message).expect("a channel without a bound takes every frame");
    }

    /// Sends bytes as they are, below any framing.
    pub(crate) fn send_raw(&self, bytes: &[u8]) {
        let (Outgoing::WebSocket { raw, .. } | Outgoing::Lines(raw)) = &self.outgoing;
        // A peer that has gone is noticed by the reader.
        let _ = raw.send(Order::Write(bytes.to_owned()));
    }

    /// Ends the writing direction, after everything before.
    pub(crate) fn finish(&self) {
        let (Outgoing::WebSocket { raw, .. } | Outgoing::Lines(raw)) = &self.outgoing;
        let _ = raw.send(Order::Finish);
    }

    /// Ends both directions at once and without a word.
    pub(crate) fn hang_up(&self) {
        (self.hang_up)();
    }
}

fn write_orders(mut to: impl Write, orders: &Receiver<Order>, finish: impl FnOnce() -> io::Result<()>) {
    while let Ok(Order::Write(bytes)) = orders.recv() {
        if to.write_all(&bytes).and_then(|()| to.flush()).is_err() {
            return;
        }
    }
    // A failure cannot be reported.
    let _ = finish();
}

fn read_lines(from: impl Read, inbox: &Inbox) {
    let mut from = BufReader::new(from);
    let how = loop {
        inbox.wait_while_paused();
        match binary::read(&mut from) {
            Ok(binary::Read::End) => break "end of file".to_owned(),
            Ok(binary::Read::Line(line)) => inbox.push(&line),
            Ok(binary::Read::Binary(message)) => inbox.push_binary(&message),
            Err(error) => break error.to_string(),
        }
    };
    inbox.end(End { close: None, how });
}

fn read_websocket(mut socket: WebSocket<WebSocketStream>, inbox: &Inbox) {
    let mut close = None;
    let how = loop {
        inbox.wait_while_paused();
        match socket.read() {
            Ok(Message::Text(text)) => inbox.push(text.as_bytes()),
            Ok(Message::Binary(bytes)) => inbox.push_binary(&bytes),
            Ok(Message::Pong(payload)) => inbox.push_pong(&payload),
            Ok(Message::Close(frame)) => {
                close = frame.map(|frame| (u16::from(frame.code), frame.reason.to_string()));
                close.get_or_insert((1005, String::new()));
            }
            Ok(Message::Ping(_) | Message::Frame(_)) => {}
            Err(error) => break error.to_string(),
        }
    };
    inbox.end(End { close, how });
}

/// One direction of an encrypted connection; nobody holds the lock while it waits for bytes.
struct TlsStream {
    connection: Arc<Mutex<ClientConnection>>,
    socket: TcpStream,
}

impl TlsStream {
    /// Sends what the connection wants to send.
    fn flush_to(connection: &mut ClientConnection, mut socket: &TcpStream) -> io::Result<()> {
        while connection.wants_write() {
            connection.write_tls(&mut socket)?;
        }
        Ok(())
    }
}

impl Read for TlsStream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let mut received = [0; 16 << 10];
        loop {
            {
                let mut connection = self.connection.lock().unwrap_or_else(PoisonError::into_inner);
                Self::flush_to(&mut connection, &self.socket)?;
                match connection.reader().read(buffer) {
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                    done => return done,
                }
            }
            let len = self.socket.read(&mut received)?;
            let mut bytes = &received[..len];
            let mut connection = self.connection.lock().unwrap_or_else(PoisonError::into_inner);
            loop {
                connection.read_tls(&mut bytes)?;
                connection.process_new_packets().map_err(io::Error::other)?;
                if bytes.is_empty() {
                    break;
                }
            }
        }
    }
}

impl Write for TlsStream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut connection = self.connection.lock().unwrap_or_else(PoisonError::into_inner);
        let len = connection.writer().write(bytes)?;
        Self::flush_to(&mut connection, &self.socket)?;
        Ok(len)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Reads from the socket, and writes to its writer thread.
struct WebSocketStream {
    read: Option<Box<dyn Read + Send>>,
    write: Sender<Order>,
}

impl Read for WebSocketStream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.read.as_mut().expect("the codec of the writing side never reads").read(buffer)
    }
}

impl Write for WebSocketStream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        // A peer that has gone is noticed by the reader.
        let _ = self.write.send(Order::Write(bytes.to_owned()));
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
