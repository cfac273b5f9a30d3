//! A connection from a jail, with what was read ahead.

use std::{io, time::Duration};

use bytes::{Buf as _, Bytes, BytesMut};
use rustix::net::sockopt;
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};

/// Room for one read.
const READ_AHEAD: usize = 4 << 10;

/// The longest head of a request or of a response.
const MAX_HEAD: usize = 64 << 10;

/// How much of what a refused client still sends is read, so that it sees the answer: many read it only after an upload.
const MAX_DISCARDED: usize = 16 << 20;

/// How often a quiet client is asked whether it still has the connection.
const PROBE_INTERVAL: Duration = Duration::from_secs(15);

/// A connection, and bytes that were read from it ahead.
#[derive(Debug)]
pub(super) struct Incoming {
    pub(super) stream: TcpStream,
    pub(super) ahead: BytesMut,
}

/// Why a head was not read.
#[derive(Debug)]
pub(super) enum HeadError {
    TooLarge,
    Io(io::Error),
}

impl Incoming {
    pub(super) fn new(stream: TcpStream) -> Self {
        // Each write passes on one message of the peer; a failure costs time only.
        let _ = stream.set_nodelay(true);
        // A client that has closed its socket looks like one that has only sent its end, until it is asked: its kernel
        // forgets the connection after a minute (`tcp_fin_timeout`), and then answers with a reset.
        let _ = sockopt::set_socket_keepalive(&stream, true)
            .and_then(|()| sockopt::set_tcp_keepidle(&stream, PROBE_INTERVAL))
            .and_then(|()| sockopt::set_tcp_keepintvl(&stream, PROBE_INTERVAL));
        Self { stream, ahead: BytesMut::new() }
    }

    /// Returns the first byte without taking it, or `None` at the end.
    pub(super) async fn first_byte(&mut self) -> io::Result<Option<u8>> {
        while self.ahead.is_empty() {
            if self.read_more().await? == 0 {
                return Ok(None);
            }
        }
        Ok(self.ahead.first().copied())
    }

    /// Takes the next bytes, exactly this many.
    pub(super) async fn take(&mut self, len: usize) -> io::Result<Bytes> {
        while self.ahead.len() < len {
            if self.read_more().await? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
        Ok(self.ahead.split_to(len).freeze())
    }

    /// Takes everything up to the first empty line, with it.
    pub(super) async fn head(&mut self) -> Result<Bytes, HeadError> {
        read_head(&mut self.stream, &mut self.ahead).await
    }

    /// Reads the available bytes; returns their number, zero at the end.
    pub(super) async fn read_more(&mut self) -> io::Result<usize> {
        self.ahead.reserve(READ_AHEAD);
        self.stream.read_buf(&mut self.ahead).await
    }

    pub(super) async fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.write_all(bytes).await
    }

    /// Answers a request with a reason, and ends the connection.
    pub(super) async fn refuse(&mut self, status: u16, phrase: &str, why: &str) -> io::Result<()> {
        let body = format!("remex: network: {why}\n");
        let head = format!(
            "HTTP/1.1 {status} {phrase}\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: {}\r\n\
             Connection: close\r\n\r\n",
            body.len()
        );
        self.end_with((head + &body).as_bytes()).await
    }

    /// Sends an answer, and ends the connection.
    pub(super) async fn end_with(&mut self, answer: &[u8]) -> io::Result<()> {
        self.send(answer).await?;
        self.finish().await
    }

    /// Ends the connection so that the client sees what was sent to it.
    pub(super) async fn finish(&mut self) -> io::Result<()> {
        self.stream.shutdown().await?;
        // Closing with unread bytes would reset the connection, and the client might not see the answer.
        let discard = async {
            let mut discarded = self.ahead.len();
            self.ahead.advance(discarded);
            while discarded < MAX_DISCARDED {
                match self.read_more().await {
                    Ok(len) if len > 0 => {
                        discarded += len;
                        self.ahead.clear();
                    }
                    _ => return,
                }
            }
        };
        let _ = tokio::time::timeout(super::ANSWER_TIMEOUT, discard).await;
        Ok(())
    }
}

/// Takes everything up to the first empty line, with it; what follows stays in `ahead`.
pub(super) async fn read_head(
    from: &mut (impl AsyncRead + Unpin),
    ahead: &mut BytesMut,
) -> Result<Bytes, HeadError> {
    let mut searched = 0;
    loop {
        if let Some(end) = head_end(ahead, searched) {
            return Ok(ahead.split_to(end).freeze());
        }
        if ahead.len() >= MAX_HEAD {
            return Err(HeadError::TooLarge);
        }
        // The empty line may have begun.
        searched = ahead.len().saturating_sub(3);
        ahead.reserve(READ_AHEAD);
        match from.read_buf(ahead).await {
            Ok(0) => return Err(HeadError::Io(io::ErrorKind::UnexpectedEof.into())),
            Ok(_) => {}
            Err(error) => return Err(HeadError::Io(error)),
        }
    }
}

/// Returns where the first empty line ends; lines end with or without a carriage return.
fn head_end(bytes: &[u8], from: usize) -> Option<usize> {
    let lines = bytes.iter().enumerate().skip(from).filter(|(_, byte)| **byte == b'\n');
    lines.map(|(at, _)| at + 1).find_map(|start| match bytes.get(start..)? {
        [b'\n', ..] => Some(start + 1),
        [b'\r', b'\n', ..] => Some(start + 2),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_head_ends_with_the_first_empty_line() {
        assert_eq!(head_end(b"GET / HTTP/1.1\r\nA: b\r\n\r\nrest", 0), Some(24));
        assert_eq!(head_end(b"GET / HTTP/1.1\nA: b\n\nrest", 0), Some(21));
        assert_eq!(head_end(b"GET / HTTP/1.1\r\nA: b\r\n\r", 0), None);
        assert_eq!(head_end(b"GET / HTTP/1.1\r\nA: b\r\n", 0), None);
        let whole = b"x\r\ny\r\n\r\n";
        for cut in 0..whole.len() {
            assert_eq!(head_end(&whole[..cut], 0), None);
            assert_eq!(head_end(whole, cut.saturating_sub(3)), Some(whole.len()), "{cut}");
        }
    }

    #[tokio::test]
    async fn a_quiet_client_is_probed() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let incoming = Incoming::new(stream);
        assert!(sockopt::socket_keepalive(&incoming.stream).unwrap());
        assert_eq!(sockopt::tcp_keepidle(&incoming.stream).unwrap(), PROBE_INTERVAL);
        assert_eq!(sockopt::tcp_keepintvl(&incoming.stream).unwrap(), PROBE_INTERVAL);
    }
}
