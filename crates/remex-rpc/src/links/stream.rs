//! A byte stream: a TCP connection, or any other stream, such as an encrypted one.

use std::{
    fmt, io,
    pin::Pin,
    task::{Context, Poll},
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpStream,
};

use crate::{ReadHalf, WriteHalf};

/// A bidirectional stream of bytes.
#[derive(Debug)]
pub struct Stream(Kind);

enum Kind {
    Tcp(TcpStream),
    Other(Box<dyn Duplex>),
}

/// Any stream that can be read and written.
trait Duplex: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> Duplex for S {}

impl Stream {
    /// Wraps a stream of another kind, such as TLS or a tunnel through a proxy.
    pub fn new(stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static) -> Self {
        Stream(Kind::Other(Box::new(stream)))
    }

    /// Splits the stream into halves that can be used concurrently.
    pub fn into_split(self) -> (ReadHalf, WriteHalf) {
        match self.0 {
            Kind::Tcp(stream) => {
                let (reader, writer) = stream.into_split();
                (Box::new(reader), Box::new(writer))
            }
            Kind::Other(stream) => {
                let (reader, writer) = tokio::io::split(stream);
                (Box::new(reader), Box::new(writer))
            }
        }
    }

    fn inner(&mut self) -> Pin<&mut dyn Duplex> {
        match &mut self.0 {
            Kind::Tcp(stream) => Pin::new(stream),
            Kind::Other(stream) => Pin::new(&mut **stream),
        }
    }
}

impl From<TcpStream> for Stream {
    fn from(stream: TcpStream) -> Self {
        Stream(Kind::Tcp(stream))
    }
}

impl fmt::Debug for Kind {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Kind::Tcp(_) => "Tcp",
            Kind::Other(_) => "Other",
        })
    }
}

impl AsyncRead for Stream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.inner().poll_read(context, buffer)
    }
}

impl AsyncWrite for Stream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.inner().poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.inner().poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.inner().poll_shutdown(context)
    }
}
