//! One plain request and its response.

use std::{
    io,
    pin::pin,
    sync::atomic::{AtomicBool, Ordering},
};

use bytes::BytesMut;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{
        TcpStream,
        tcp::{ReadHalf, WriteHalf},
    },
};

use super::{
    HALF_CLOSED_TIMEOUT, IDLE_TIMEOUT,
    body::{Body, Malformed},
    relay::{Activity, BUFFER, Written, reset, write},
    request::{HOP_BY_HOP, MAX_HEADERS, PlainRequest, named_by_connection, push},
    stream::{HeadError, Incoming, read_head},
};

/// Passes a request on and its response back; then both connections end.
pub(super) async fn exchange(
    incoming: &mut Incoming,
    mut outgoing: TcpStream,
    request: &PlainRequest,
) -> io::Result<()> {
    let ahead = incoming.ahead.split();
    let progress = Progress { activity: Activity::new(), has_answered: AtomicBool::new(false) };
    let mut is_sent = false;
    let exchanged = {
        let (mut client_in, mut client_out) = incoming.stream.split();
        let (mut host_in, mut host_out) = outgoing.split();
        let mut up = pin!(async {
            send(&mut client_in, &mut host_out, ahead, request, &progress.activity).await?;
            Ok::<_, Failed>(client_in)
        });
        let mut down = pin!(async {
            let end = receive(&mut host_in, &mut client_out, request, &progress).await?;
            Ok::<_, Failed>((end, host_in))
        });
        let both = async {
            tokio::select! {
                client = &mut up => {
                    let mut client = client?;
                    is_sent = true;
                    tokio::select! {
                        received = &mut down => received.map(drop),
                        error = client_leaves(&mut client, &progress) => Err(Failed::Exchange(error)),
                    }
                }
                received = &mut down => match received? {
                    (End::OfConnection, _) => Ok(()),
                    // The host may have answered early, and want the rest of the request all the same.
                    (End::OfBody, mut host) => tokio::select! {
                        client = &mut up => client.map(|_| is_sent = true),
                        () = connection_ends(&mut host) => Ok(()),
                        () = progress.activity.is_idle(HALF_CLOSED_TIMEOUT) => Ok(()),
                    },
                },
            }
        };
        tokio::select! {
            exchanged = both => exchanged,
            () = progress.activity.is_idle(IDLE_TIMEOUT) => {
                Err(Failed::Exchange(io::ErrorKind::TimedOut.into()))
            }
        }
    };
    let exchanged = exchanged.map_err(|failed| match failed {
        Failed::Chunks if progress.has_answered.load(Ordering::Relaxed) => {
            Failed::Exchange(io::ErrorKind::InvalidData.into())
        }
        failed => failed,
    });
    match exchanged {
        Err(Failed::Chunks) => {
            let _ = outgoing.set_zero_linger();
            drop(outgoing);
            incoming.refuse(400, "Bad Request", "the body of the request has malformed chunks").await
        }
        Ok(()) => {
            drop(outgoing);
            incoming.finish().await
        }
        Err(Failed::Response(why)) => {
            let (host, port) = (&request.host, request.port);
            incoming.refuse(502, "Bad Gateway", &format!("the response of {host}:{port} {why}")).await
        }
        Err(Failed::Exchange(error)) => {
            // An end would say that everything has arrived. If it has, the kernel sends what still waits.
            let _ = incoming.stream.set_zero_linger();
            if !is_sent {
                let _ = outgoing.set_zero_linger();
            }
            Err(error)
        }
    }
}

/// How much has passed so far.
struct Progress {
    activity: Activity,
    /// Whether the client has got something of the final response, or a part of an interim one.
    has_answered: AtomicBool,
}

enum Failed {
    /// The body of the request has malformed chunks.
    Chunks,
    /// The client has got no final response.
    Response(&'static str),
    Exchange(io::Error),
}

/// How a response ended.
enum End {
    /// Where it says that it does; the host has not ended the connection yet.
    OfBody,
    OfConnection,
}

/// Sends the request with its body, and nothing that follows it.
async fn send(
    from: &mut ReadHalf<'_>,
    to: &mut WriteHalf<'_>,
    mut ahead: BytesMut,
    request: &PlainRequest,
    activity: &Activity,
) -> Result<(), Failed> {
    let mut body = request.framing.body();
    // What the host has already answered may still arrive, also if it reads no more.
    let written = write(from, to, &request.head, HALF_CLOSED_TIMEOUT).await;
    if written.map_err(Failed::Exchange)? == Written::Broken {
        return Ok(());
    }
    loop {
        let len = body.pass(&ahead).map_err(|Malformed| Failed::Chunks)?;
        let written = write(from, to, &ahead[..len], HALF_CLOSED_TIMEOUT).await;
        if written.map_err(Failed::Exchange)? == Written::Broken {
            return Ok(());
        }
        activity.touch();
        if body.is_over() {
            return Ok(());
        }
        ahead.clear();
        ahead.reserve(BUFFER);
        if from.read_buf(&mut ahead).await.map_err(Failed::Exchange)? == 0 {
            return Err(Failed::Exchange(io::ErrorKind::UnexpectedEof.into()));
        }
    }
}

/// Waits until the client does not want the response any more.
///
/// Before the response begins, end-of-file from the client means that, because HTTP clients do not half-close a
/// connection while they wait for a response. Once it has begun, only a reset does, so that a client that has
/// half-closed after all still gets a complete response.
async fn client_leaves(client: &mut ReadHalf<'_>, progress: &Progress) -> io::Error {
    let mut ignored = vec![0; 4 << 10];
    loop {
        match client.read(&mut ignored).await {
            Ok(0) if progress.has_answered.load(Ordering::Relaxed) => return reset(client).await,
            Ok(0) => return io::ErrorKind::UnexpectedEof.into(),
            // A further request: it is never answered.
            Ok(_) => {}
            Err(error) => return error,
        }
    }
}

/// Waits until a host that has sent its response ends the connection.
async fn connection_ends(host: &mut ReadHalf<'_>) {
    let mut ignored = vec![0; 4 << 10];
    while host.read(&mut ignored).await.is_ok_and(|len| len > 0) {}
}

/// Passes the response on, with the connection to the client as the last it says about.
async fn receive(
    from: &mut ReadHalf<'_>,
    to: &mut WriteHalf<'_>,
    request: &PlainRequest,
    progress: &Progress,
) -> Result<End, Failed> {
    let mut ahead = BytesMut::new();
    let mut body = loop {
        let head = read_head(from, &mut ahead).await.map_err(|error| {
            Failed::Response(match error {
                HeadError::TooLarge => "has a head that is too large",
                HeadError::Io(_) => "ended before its head was complete",
            })
        })?;
        progress.activity.touch();
        let response = rewrite(&head, request.is_head).ok_or_else(|| malformed(&head))?;
        if response.status == 101 {
            return Err(Failed::Response("changes the protocol, which was not asked for"));
        }
        progress.has_answered.store(true, Ordering::Relaxed);
        to.write_all(&response.head).await.map_err(Failed::Exchange)?;
        if response.status >= 200 {
            break response.body;
        }
        // Another response may follow an interim one.
        progress.has_answered.store(false, Ordering::Relaxed);
    };
    loop {
        let len = body.pass(&ahead).unwrap_or_else(|_| {
            // The client may be less strict than we are.
            body = Body::Rest;
            ahead.len()
        });
        to.write_all(&ahead[..len]).await.map_err(Failed::Exchange)?;
        progress.activity.touch();
        if body.is_over() {
            let _ = to.shutdown().await;
            return Ok(End::OfBody);
        }
        ahead.clear();
        ahead.reserve(BUFFER);
        if from.read_buf(&mut ahead).await.map_err(Failed::Exchange)? == 0 {
            let _ = to.shutdown().await;
            return Ok(End::OfConnection);
        }
    }
}

/// Returns what is wrong with a head that cannot be parsed.
fn malformed(head: &[u8]) -> Failed {
    Failed::Response(if head.starts_with(b"HTTP/1.") {
        "has a malformed head, or more than 256 headers"
    } else {
        "is not HTTP/1"
    })
}

/// The head of a response for the client, and what follows it.
#[derive(Debug, PartialEq, Eq)]
struct Response {
    status: u16,
    head: Vec<u8>,
    body: Body,
}

/// Parses the head of a response, and writes it anew.
fn rewrite(head: &[u8], is_of_head: bool) -> Option<Response> {
    let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
    let mut response = httparse::Response::new(&mut headers);
    if !response.parse(head).is_ok_and(|status| status.is_complete()) {
        return None;
    }
    let (version, status) = (response.version?, response.code?);
    let mut new =
        format!("HTTP/1.{version} {status:03} {}\r\n", response.reason.unwrap_or_default()).into_bytes();
    let named = named_by_connection(response.headers);
    for header in response.headers.iter() {
        let is = |name: &str| header.name.eq_ignore_ascii_case(name);
        // How the body is sent stays as it is.
        let is_about_body = is("transfer-encoding") || is("trailer");
        let is_hop = HOP_BY_HOP.iter().any(|name| is(name)) || named.iter().any(|name| is(name));
        if is_about_body || !is_hop {
            push(&mut new, header);
        }
    }
    if status >= 200 {
        new.extend_from_slice(b"Connection: close\r\n");
    }
    new.extend_from_slice(b"\r\n");
    let has_body = !is_of_head && !matches!(status, 204 | 304);
    let body =
        if has_body { Body::of_response(response.headers, version) } else { Body::Counted { left: 0 } };
    Some(Response { status, head: new, body })
}

#[cfg(test)]
mod tests {
    use super::{super::body::Framing, *};

    #[test]
    fn a_response_ends_the_connection_and_keeps_everything_else() {
        let Response { status, head, body } = rewrite(
            b"HTTP/1.1 200 All right\r\nContent-Length: 3\r\nConnection: keep-alive, x-hop\r\nX-Hop: 1\r\n\
              Set-Cookie: a\r\nset-cookie: b\r\nKeep-Alive: timeout=5\r\nTransfer-Encoding: chunked\r\n\r\n",
            false,
        )
        .unwrap();
        assert_eq!((status, body), (200, Framing::Chunked.body()));
        assert_eq!(
            String::from_utf8(head).unwrap(),
            "HTTP/1.1 200 All right\r\nContent-Length: 3\r\nSet-Cookie: a\r\nset-cookie: b\r\n\
             Transfer-Encoding: chunked\r\nConnection: close\r\n\r\n"
        );
        assert_eq!(
            rewrite(b"HTTP/1.1 100 Continue\r\n\r\n", false).unwrap().head,
            b"HTTP/1.1 100 Continue\r\n\r\n"
        );
        assert_eq!(rewrite(b"SSH-2.0-OpenSSH\r\n\r\n", false), None);
    }

    #[test]
    fn a_response_ends_where_its_head_says() {
        let body = |head: &str, is_of_head| rewrite(head.as_bytes(), is_of_head).unwrap().body;
        let counted = |left| Body::Counted { left };
        for (head, expected) in [
            ("HTTP/1.1 200 OK\r\n\r\n", Body::Rest),
            ("HTTP/1.1 200 OK\r\ncontent-length: 7\r\n\r\n", counted(7)),
            ("HTTP/1.0 200 OK\r\nContent-Length: 7\r\nContent-Length: 7\r\n\r\n", counted(7)),
            ("HTTP/1.1 200 OK\r\nContent-Length: 7\r\nContent-Length: 8\r\n\r\n", Body::Rest),
            ("HTTP/1.1 200 OK\r\nContent-Length: seven\r\n\r\n", Body::Rest),
            ("HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, Chunked\r\n\r\n", Framing::Chunked.body()),
            (
                "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n\r\n",
                Framing::Chunked.body(),
            ),
            ("HTTP/1.1 200 OK\r\nContent-Length: 7\r\nTransfer-Encoding: gzip\r\n\r\n", Body::Rest),
            ("HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", Body::Rest),
            ("HTTP/1.1 204 No Content\r\nContent-Length: 7\r\n\r\n", counted(0)),
            ("HTTP/1.1 304 Not Modified\r\nContent-Length: 7\r\n\r\n", counted(0)),
        ] {
            assert_eq!(body(head, false), expected, "{head}");
            assert_eq!(body(head, true), counted(0), "{head}");
        }
    }
}
