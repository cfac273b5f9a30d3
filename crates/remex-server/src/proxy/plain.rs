//! One plain request and its response.

use std::io;

use bytes::{Bytes, BytesMut};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{
        TcpStream,
        tcp::{ReadHalf, WriteHalf},
    },
};

use super::{
    IDLE_TIMEOUT,
    relay::{Activity, BUFFER, pump},
    request::{HOP_BY_HOP, MAX_HEADERS, PlainRequest, named_by_connection, push},
    stream::{Incoming, MAX_HEAD, head_end},
};

/// Passes a request on and its response back; then both connections end.
pub(super) async fn exchange(
    incoming: &mut Incoming,
    mut outgoing: TcpStream,
    request: &PlainRequest,
) -> io::Result<()> {
    let activity = Activity::new();
    let ahead = incoming.ahead.split();
    let exchanged = {
        let (mut client_in, mut client_out) = incoming.stream.split();
        let (mut host_in, mut host_out) = outgoing.split();
        let up = async {
            match send(&mut client_in, &mut host_out, ahead, request, &activity).await {
                // What the host has already answered may still arrive, also if it reads no more.
                Ok(()) => std::future::pending::<io::Error>().await,
                Err(error) => error,
            }
        };
        let down = receive(&mut host_in, &mut client_out, &activity);
        tokio::select! {
            received = down => received,
            error = up => Err(Failed::Exchange(error)),
            () = activity.is_idle(IDLE_TIMEOUT) => Err(Failed::Exchange(io::ErrorKind::TimedOut.into())),
        }
    };
    match exchanged {
        Ok(()) => incoming.finish().await,
        Err(Failed::Response(why)) => {
            let (host, port) = (&request.host, request.port);
            incoming.refuse(502, "Bad Gateway", &format!("the response of {host}:{port} {why}")).await
        }
        Err(Failed::Exchange(error)) => {
            // An end would say that everything has arrived.
            let _ = (incoming.stream.set_zero_linger(), outgoing.set_zero_linger());
            Err(error)
        }
    }
}

enum Failed {
    /// Nothing has been sent to the client.
    Response(&'static str),
    Exchange(io::Error),
}

/// Sends the request with its body, and nothing that follows it.
async fn send(
    from: &mut ReadHalf<'_>,
    to: &mut WriteHalf<'_>,
    mut ahead: BytesMut,
    request: &PlainRequest,
    activity: &Activity,
) -> io::Result<()> {
    let mut body = request.framing.body();
    let malformed = |_| io::Error::from(io::ErrorKind::InvalidData);
    if to.write_all(&request.head).await.is_err() {
        return Ok(());
    }
    loop {
        let len = body.pass(&ahead).map_err(malformed)?;
        if to.write_all(&ahead[..len]).await.is_err() {
            return Ok(());
        }
        activity.touch();
        if body.is_over() {
            return Ok(());
        }
        ahead.clear();
        ahead.reserve(BUFFER);
        if from.read_buf(&mut ahead).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
}

/// Passes the response on, with the connection to the client as the last it says about.
async fn receive(from: &mut ReadHalf<'_>, to: &mut WriteHalf<'_>, activity: &Activity) -> Result<(), Failed> {
    let mut ahead = BytesMut::new();
    loop {
        let head = read_head(from, &mut ahead).await?;
        activity.touch();
        let (status, head) = rewrite(&head).ok_or(Failed::Response("is not HTTP/1"))?;
        if status == 101 {
            return Err(Failed::Response("changes the protocol, which was not asked for"));
        }
        to.write_all(&head).await.map_err(Failed::Exchange)?;
        if status >= 200 {
            break;
        }
    }
    to.write_all(&ahead).await.map_err(Failed::Exchange)?;
    drop(ahead);
    pump(from, to, activity).await.map_err(Failed::Exchange)
}

async fn read_head(from: &mut ReadHalf<'_>, ahead: &mut BytesMut) -> Result<Bytes, Failed> {
    let mut searched = 0;
    loop {
        if let Some(end) = head_end(ahead, searched) {
            return Ok(ahead.split_to(end).freeze());
        }
        if ahead.len() >= MAX_HEAD {
            return Err(Failed::Response("has a head that is too large"));
        }
        searched = ahead.len().saturating_sub(3);
        ahead.reserve(4 << 10);
        match from.read_buf(ahead).await {
            Ok(0) | Err(_) => return Err(Failed::Response("ended before its head was complete")),
            Ok(_) => {}
        }
    }
}

/// Returns the status of a response, and its head for the client.
fn rewrite(head: &[u8]) -> Option<(u16, Vec<u8>)> {
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
    Some((status, new))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_response_ends_the_connection_and_keeps_everything_else() {
        let (status, head) = rewrite(
            b"HTTP/1.1 200 All right\r\nContent-Length: 3\r\nConnection: keep-alive, x-hop\r\nX-Hop: 1\r\n\
              Set-Cookie: a\r\nset-cookie: b\r\nKeep-Alive: timeout=5\r\nTransfer-Encoding: chunked\r\n\r\n",
        )
        .unwrap();
        assert_eq!(status, 200);
        assert_eq!(
            String::from_utf8(head).unwrap(),
            "HTTP/1.1 200 All right\r\nContent-Length: 3\r\nSet-Cookie: a\r\nset-cookie: b\r\n\
             Transfer-Encoding: chunked\r\nConnection: close\r\n\r\n"
        );
        assert_eq!(rewrite(b"HTTP/1.1 100 Continue\r\n\r\n").unwrap().1, b"HTTP/1.1 100 Continue\r\n\r\n");
        assert_eq!(rewrite(b"SSH-2.0-OpenSSH\r\n\r\n"), None);
    }
}
