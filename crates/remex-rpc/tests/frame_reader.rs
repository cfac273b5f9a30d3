//! How a frame reader splits a connection into messages, in both framings.

#![allow(clippy::unwrap_used, reason = "in a test it is the assertion")]

use std::{
    future::poll_fn,
    io,
    pin::{Pin, pin},
    task::{Context, Poll},
};

use remex_rpc::{FrameReader, Framing, Incoming, ReadHalf, Role, SendBuffer, WriteHalf, memory};
use tokio::io::{AsyncRead, AsyncWriteExt, ReadBuf};

const CLIENT: Framing = Framing::WebSocket(Role::Client);
const SERVER: Framing = Framing::WebSocket(Role::Server);

fn one_way() -> (WriteHalf, ReadHalf) {
    let ((_, writer), (reader, _)) = memory::pipe();
    (writer, reader)
}

/// Reads to the end, in words that can be compared.
async fn read_all(mut reader: FrameReader) -> Vec<String> {
    let mut found = Vec::new();
    loop {
        match reader.next().await {
            Incoming::End => return found,
            incoming => found.push(in_words(incoming)),
        }
    }
}

fn in_words(incoming: Incoming) -> String {
    match incoming {
        Incoming::Message(message) => String::from_utf8(message.to_vec()).unwrap(),
        other => format!("{other:?}"),
    }
}

async fn read_bytes(bytes: &[u8], framing: Framing, limit: usize) -> Vec<String> {
    let (mut writer, reader) = one_way();
    let reading = read_all(FrameReader::new(reader, framing, limit));
    let writing = async {
        writer.write_all(bytes).await.unwrap();
        writer.shutdown().await.unwrap();
    };
    tokio::join!(reading, writing).0
}

#[tokio::test]
async fn a_long_message_is_announced_once_before_the_rest_of_it_is_read() {
    let long = "x".repeat(500_000);
    for (sender, receiver, max_len) in [(Framing::Lines, Framing::Lines, 600_000), (CLIENT, SERVER, 500_000)]
    {
        let mut buffer = SendBuffer::new(sender);
        for message in ["short", &long, &long, "short"] {
            buffer.message(message.len(), |bytes| bytes.extend_from_slice(message.as_bytes()));
        }
        let (mut writer, reader) = one_way();
        let mut reader = FrameReader::new(reader, receiver, 600_000).announcing(100_000);
        let (bytes, mut found) = (buffer.pending().to_vec(), Vec::new());
        let writing = async {
            writer.write_all(&bytes).await.unwrap();
            writer.shutdown().await.unwrap();
        };
        let reading = async {
            loop {
                match reader.next().await {
                    Incoming::End => return,
                    Incoming::Long { max_len } => {
                        assert!((100_000..400_000).contains(&reader.unfinished_len()));
                        found.push(max_len);
                    }
                    Incoming::Message(message) => found.push(message.len()),
                    other => panic!("{other:?}"),
                }
            }
        };
        tokio::join!(writing, reading);
        assert_eq!(found, [5, max_len, 500_000, max_len, 500_000, 5]);
    }
}

#[tokio::test]
async fn lines_end_with_lf_or_crlf_and_blank_ones_are_skipped() {
    assert_eq!(read_bytes(b"one\r\n\n  \r\ntwo\n", Framing::Lines, 100).await, ["one", "two"]);
}

#[tokio::test]
async fn the_last_line_needs_no_line_end() {
    assert_eq!(read_bytes(b"one\ntwo", Framing::Lines, 100).await, ["one", "two"]);
}

#[tokio::test]
async fn a_line_that_is_too_long_is_reported_and_the_next_one_is_read() {
    let mut bytes = vec![b'x'; 300_000];
    bytes.extend_from_slice(b"\nnext\n");
    assert_eq!(read_bytes(&bytes, Framing::Lines, 1000).await, ["TooLong { limit: 1000 }", "next"]);
}

#[tokio::test]
async fn a_line_that_is_too_long_is_reported_before_its_end() {
    let (mut writer, reader) = one_way();
    let mut reader = FrameReader::new(reader, Framing::Lines, 3);
    writer.write_all(b"four").await.unwrap();
    assert_eq!(in_words(reader.next().await), "TooLong { limit: 3 }");
    writer.write_all(b" more\nok\n").await.unwrap();
    assert_eq!(in_words(reader.next().await), "ok");
}

#[tokio::test]
async fn a_websocket_message_that_is_too_long_is_the_last_one() {
    let bytes = b"\x81\x02ok\x81\x05fives\x81\x02no";
    assert_eq!(read_bytes(bytes, CLIENT, 4).await, ["ok", "TooLong { limit: 4 }"]);
}

#[tokio::test]
async fn a_violation_has_a_code_and_a_reason() {
    let expected = r#"Violation { code: 1002, reason: "a frame from the client is not masked" }"#;
    assert_eq!(read_bytes(b"\x81\x02ok", SERVER, 4).await, [expected]);
}

#[tokio::test]
async fn a_websocket_that_closes_within_a_frame_ends() {
    assert!(read_bytes(b"\x81\x05fiv", CLIENT, 100).await.is_empty());
}

#[tokio::test]
async fn large_messages_arrive_whole_in_every_framing() {
    let large: String = (0..1_000_000).map(|number: u32| char::from(b'a' + (number % 23) as u8)).collect();
    for (sender, receiver) in
        [(Framing::Lines, Framing::Lines), (Framing::WebSocket(Role::Client), SERVER), (SERVER, CLIENT)]
    {
        let mut buffer = SendBuffer::new(sender);
        let messages = [&large, "small", &large[..70_000], &large[..20_000], ""];
        for message in messages {
            buffer.message(message.len(), |out| out.extend_from_slice(message.as_bytes()));
        }
        let found = read_bytes(buffer.pending(), receiver, large.len()).await;
        let expected = if receiver == Framing::Lines { &messages[..4] } else { &messages[..] };
        assert!(found == expected, "{receiver:?}");
    }
}

#[tokio::test]
async fn a_cancelled_read_loses_nothing() {
    let long = "x".repeat(100_000);
    for (sender, receiver) in [(Framing::Lines, Framing::Lines), (CLIENT, SERVER)] {
        let mut buffer = SendBuffer::new(sender);
        for message in ["one", &long, "three"] {
            buffer.message(message.len(), |out| out.extend_from_slice(message.as_bytes()));
        }
        let (mut writer, reader) = one_way();
        let mut reader = FrameReader::new(reader, receiver, long.len());
        let mut found = Vec::new();
        for piece in buffer.pending().chunks(777) {
            writer.write_all(piece).await.unwrap();
            loop {
                let mut next = pin!(reader.next());
                match poll_fn(|context| Poll::Ready(next.as_mut().poll(context))).await {
                    Poll::Ready(incoming) => found.push(in_words(incoming)),
                    Poll::Pending => break,
                }
            }
        }
        assert!(found == ["one", &long, "three"], "{receiver:?}");
    }
}

#[tokio::test]
async fn a_failed_connection_is_reported_once_before_the_end() {
    let mut reader = FrameReader::new(Box::new(Broken), Framing::Lines, 100);
    let Incoming::Failed(error) = reader.next().await else { panic!("not a failure") };
    assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
    assert!(matches!(reader.next().await, Incoming::End));
}

struct Broken;

impl AsyncRead for Broken {
    fn poll_read(self: Pin<&mut Self>, _: &mut Context<'_>, _: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()))
    }
}

/// The head of a binary message between lines does not count as a part of it.
#[tokio::test]
async fn a_binary_message_of_exactly_the_limit_is_not_abandoned_before_its_last_byte() {
    const LIMIT: usize = 1000;
    let (mut far, near) = one_way();
    let mut reader = FrameReader::new(near, Framing::Lines, LIMIT).announcing(16);
    reader.accept_binary();
    let len = u32::try_from(LIMIT).unwrap().to_be_bytes();
    let message = [&[0], &len[..], &[1; LIMIT - 1]].concat();
    far.write_all(&message).await.unwrap();
    let Incoming::Long { max_len } = reader.next().await else { panic!("it is announced") };
    reader.limit_unfinished(max_len);
    let rest = async {
        tokio::task::yield_now().await;
        far.write_all(&[1]).await.unwrap();
    };
    let (incoming, ()) = tokio::join!(reader.next(), rest);
    assert!(matches!(&incoming, Incoming::Message(message) if message.len() == LIMIT), "{incoming:?}");
}
