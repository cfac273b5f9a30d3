//! A third-party WebSocket implementation at either end of a real connection.

#![allow(clippy::unwrap_used, reason = "in a test it is the assertion")]

use std::{
    net::{TcpListener, TcpStream},
    thread,
};

use remex_rpc::{
    FrameReader, Framing, HandshakeConfig, Incoming, Received, Role, SendBuffer, Target, WriteHalf, connect,
    receive,
};
use tokio::io::AsyncWriteExt;
use tungstenite::{Message, WebSocket, protocol::CloseFrame};

/// Lengths on both sides of every boundary of the format.
const LENS: [usize; 9] = [0, 1, 125, 126, 127, 65_535, 65_536, 65_537, 3_000_000];

fn text(len: usize) -> String {
    (0..len).map(|place| char::from(b'a' + (place % 26) as u8)).collect()
}

#[tokio::test]
async fn a_foreign_client_talks_to_our_server() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let peer = thread::spawn(move || {
        let stream = TcpStream::connect(address).unwrap();
        let (mut socket, response) = tungstenite::client(format!("ws://{address}/"), stream).unwrap();
        assert_eq!(response.status(), 101);
        converse(&mut socket);
    });

    let stream = tokio_stream(listener.accept().unwrap().0);
    let received =
        receive(stream, &HandshakeConfig::default()).await.unwrap_or_else(|error| panic!("{error}"));
    let Received::Upgrade(upgrade) = received else { panic!("not an upgrade") };
    let (reader, writer) = upgrade.accept().await.unwrap_or_else(|error| panic!("{error}"));
    echo(reader, writer, Role::Server).await;
    peer.join().unwrap();
}

#[tokio::test]
async fn our_client_talks_to_a_foreign_server() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let peer = thread::spawn(move || {
        let mut socket = tungstenite::accept(listener.accept().unwrap().0).unwrap();
        converse(&mut socket);
    });

    let stream = tokio_stream(TcpStream::connect(address).unwrap());
    let target =
        Target { host: "localhost", path: "/", bearer: None, headers: &[], max_message_len: 64 << 20 };
    let (reader, writer) = connect(stream, &target).await.unwrap();
    echo(reader, writer, Role::Client).await;
    peer.join().unwrap();
}

/// The foreign end: everything it sends has to come back.
fn converse(socket: &mut WebSocket<TcpStream>) {
    for len in LENS {
        socket.send(Message::text(text(len))).unwrap();
        assert!(socket.read().unwrap() == Message::text(text(len)));
        socket.send(Message::binary(text(len))).unwrap();
        assert!(socket.read().unwrap() == Message::text(text(len)));
    }
    socket.send(Message::Ping("are you there".into())).unwrap();
    assert_eq!(socket.read().unwrap(), Message::Pong("are you there".into()));
    let goodbye = CloseFrame { code: 1001.into(), reason: "going".into() };
    socket.close(Some(goodbye.clone())).unwrap();
    assert_eq!(socket.read().unwrap(), Message::Close(Some(goodbye)));
}

/// Our end: echoes messages, and answers pings with pongs and a close with a close.
async fn echo(mut reader: FrameReader, mut writer: WriteHalf, role: Role) {
    let mut buffer = SendBuffer::new(Framing::WebSocket(role));
    loop {
        match reader.next().await {
            Incoming::Message(message) => {
                buffer.message(message.len(), |out| out.extend_from_slice(&message));
            }
            Incoming::Ping(payload) => buffer.pong(&payload),
            Incoming::Close { code, reason } => buffer.close(code.unwrap_or(1000), &reason),
            Incoming::End => return,
            other => panic!("the foreign peer did what it must not: {other:?}"),
        }
        writer.write_all(buffer.pending()).await.unwrap();
        buffer.advance(buffer.len());
    }
}

fn tokio_stream(stream: TcpStream) -> tokio::net::TcpStream {
    stream.set_nonblocking(true).unwrap();
    tokio::net::TcpStream::from_std(stream).unwrap()
}
