//! The head of a request to the proxy.

use bytes::Bytes;
use remex_proto::network::Protocol;
use remex_sandbox::HostName;

use super::{body::Framing, review::Wanted};

/// Headers of one request or response.
pub(super) const MAX_HEADERS: usize = 256;

/// Headers about one connection, which end at the proxy.
pub(super) const HOP_BY_HOP: [&str; 9] = [
    "connection",
    "keep-alive",
    "proxy-authenticate",
    "proxy-authorization",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];

/// A request of a client to the proxy.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Request {
    /// A tunnel.
    Connect {
        host: HostName,
        port: u16,
    },
    Plain(PlainRequest),
}

/// A request to be passed on.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct PlainRequest {
    pub(super) host: HostName,
    pub(super) port: u16,
    pub(super) method: String,
    /// The head as the host gets it.
    pub(super) head: Vec<u8>,
    /// Whether its response has no body.
    pub(super) is_head: bool,
    /// How long its body is.
    pub(super) framing: Framing,
}

impl Request {
    /// Parses a head, or returns what is wrong with it.
    pub(super) fn parse(head: &Bytes) -> Result<Self, &'static str> {
        let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
        let mut request = httparse::Request::new(&mut headers);
        let complete = request.parse(head).is_ok_and(|status| status.is_complete());
        let (Some(method), Some(target), Some(version), true) =
            (request.method, request.path, request.version, complete)
        else {
            return Err("this is no request of HTTP/1, or it has too many headers");
        };
        if method == "CONNECT" {
            let target = HostName::parse_with_port(target, None);
            let (host, port) =
                target.map_err(|_| "CONNECT needs a host that is a name or an address, and a port")?;
            return Ok(Self::Connect { host, port });
        }
        let (host, port, path) = split(target)?;
        let framing = Framing::of(request.headers, version)?;
        let path = match (path, method) {
            ("", "OPTIONS") => "*".to_owned(),
            (path, _) if path.starts_with('/') => path.to_owned(),
            (path, _) => format!("/{path}"),
        };
        let mut new = format!("{method} {path} HTTP/1.{version}\r\nHost: {host}").into_bytes();
        if port != 80 {
            new.extend_from_slice(format!(":{port}").as_bytes());
        }
        new.extend_from_slice(b"\r\n");
        let named = named_by_connection(request.headers);
        for header in request.headers.iter() {
            let is = |name: &&str| header.name.eq_ignore_ascii_case(name);
            let is_ours = is(&"host") || is(&"content-length") || HOP_BY_HOP.iter().any(is);
            if !is_ours && !named.iter().any(|name| is(&name.as_str())) {
                push(&mut new, header);
            }
        }
        new.extend_from_slice(framing.header().as_bytes());
        // One request for each connection: a second one could be for another host.
        new.extend_from_slice(b"Connection: close\r\n\r\n");
        Ok(Self::Plain(PlainRequest {
            host,
            port,
            method: method.to_owned(),
            head: new,
            is_head: method == "HEAD",
            framing,
        }))
    }

    pub(super) fn wanted(&self) -> Wanted<'_> {
        match self {
            Self::Connect { host, port } => {
                Wanted { protocol: Protocol::HttpsConnect, host, port: *port, method: Some("CONNECT") }
            }
            Self::Plain(PlainRequest { host, port, method, .. }) => {
                Wanted { protocol: Protocol::Http, host, port: *port, method: Some(method) }
            }
        }
    }
}

/// Splits an absolute URL.
fn split(target: &str) -> Result<(HostName, u16, &str), &'static str> {
    let is_http = target.get(..7).is_some_and(|scheme| scheme.eq_ignore_ascii_case("http://"));
    if !is_http {
        return Err(
            "this is a proxy: it takes CONNECT, and requests with a whole URL that begins with `http://`",
        );
    }
    let rest = &target[7..];
    let (authority, path) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
    if path.contains('#') {
        return Err("the URL has a fragment, which is never sent");
    }
    let parsed = HostName::parse_with_port(authority, Some(80));
    let (host, port) =
        parsed.map_err(|_| "the host of the URL is no name, IPv4 address or bracketed IPv6 address")?;
    Ok((host, port, path))
}

/// Returns the headers that `Connection` says are about this connection only.
pub(super) fn named_by_connection(headers: &[httparse::Header<'_>]) -> Vec<String> {
    let lists = headers.iter().filter(|header| header.name.eq_ignore_ascii_case("connection"));
    let words =
        lists.filter_map(|header| std::str::from_utf8(header.value).ok()).flat_map(|list| list.split(','));
    words.map(|word| word.trim().to_owned()).filter(|word| !word.is_empty()).collect()
}

/// Appends a header as it came.
pub(super) fn push(head: &mut Vec<u8>, header: &httparse::Header<'_>) {
    head.extend_from_slice(header.name.as_bytes());
    head.extend_from_slice(b": ");
    head.extend_from_slice(header.value);
    head.extend_from_slice(b"\r\n");
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(head: &str) -> Result<Request, &'static str> {
        Request::parse(&Bytes::copy_from_slice(head.as_bytes()))
    }

    fn plain(head: &str) -> (String, u16, String) {
        match parse(head) {
            Ok(Request::Plain(PlainRequest { host, port, head, .. })) => {
                (host.to_string(), port, String::from_utf8(head).unwrap())
            }
            other => panic!("{head}: {other:?}"),
        }
    }

    #[test]
    fn the_host_is_that_of_the_url_whatever_the_header_says() {
        let (host, port, head) = plain(
            "GET HTTP://Example.ORG./a?b=http://c HTTP/1.1\r\nHost: evil.example\r\nhost: other\r\nX-A: b\r\n\
             Proxy-Connection: keep-alive\r\nConnection: x-drop, Keep-Alive\r\nX-Drop: 1\r\nKeep-Alive: 5\r\n\
             Proxy-Authorization: secret\r\nUpgrade: h2c\r\nTE: trailers\r\n\r\n",
        );
        assert_eq!((&*host, port), ("example.org", 80));
        assert_eq!(
            head,
            "GET /a?b=http://c HTTP/1.1\r\nHost: example.org\r\nX-A: b\r\nConnection: close\r\n\r\n"
        );
        let (host, port, head) = plain("POST http://[::1]:8080?x HTTP/1.0\r\nContent-Length: 3\r\n\r\n");
        assert_eq!((&*host, port), ("[::1]", 8080));
        assert_eq!(
            head,
            "POST /?x HTTP/1.0\r\nHost: [::1]:8080\r\nContent-Length: 3\r\nConnection: close\r\n\r\n"
        );
        assert!(plain("OPTIONS http://a.org HTTP/1.1\r\n\r\n").2.starts_with("OPTIONS * HTTP/1.1\r\n"));
        assert!(
            plain("GET http://a.org HTTP/1.1\nA: b\n\n").2.ends_with("\r\nA: b\r\nConnection: close\r\n\r\n")
        );
    }

    #[test]
    fn odd_ways_to_write_a_host_are_refused() {
        for target in [
            "http://user@good.org/",
            "http://good.org@evil.org/",
            "http://good.org:80@evil.org/",
            "http://good.org\\@evil.org/",
            "http://good%2eorg/",
            "http://2130706433/",
            "http://0x7f000001/",
            "http://0177.0.0.1/",
            "http://127.1/",
            "http://[::1%25lo]/",
            "http:///path",
            "http://a.org:99999/",
            "http://a.org:/",
            "http://a.org/#b",
            "https://a.org/",
            "ftp://a.org/",
            "http:a.org/",
            "/path",
            "*",
        ] {
            assert!(parse(&format!("GET {target} HTTP/1.1\r\nHost: good.org\r\n\r\n")).is_err(), "{target}");
        }
        for target in
            ["a.org", "user@a.org:443", "a.org:443@b.org:443", "http://a.org:443", "/", "a.org:0", "[::1:443"]
        {
            assert!(parse(&format!("CONNECT {target} HTTP/1.1\r\n\r\n")).is_err(), "{target}");
        }
        let Ok(Request::Connect { host, port }) = parse("CONNECT A.org.:443 HTTP/1.1\r\nHost: b.org\r\n\r\n")
        else {
            panic!("a tunnel")
        };
        assert_eq!((&*host.to_string(), port), ("a.org", 443));
    }

    #[test]
    fn a_body_has_one_length() {
        for headers in [
            "Content-Length: 3\r\nTransfer-Encoding: chunked",
            "Content-Length: 3\r\nContent-Length: 4",
            "Content-Length: 3, 4",
            "Content-Length: +3",
            "Content-Length: -1",
            "Content-Length: 0x3",
            "Content-Length: 99999999999999999999",
            "Content-Length:",
            "Transfer-Encoding: gzip, chunked",
            "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked",
            "Transfer-Encoding: identity",
            "Transfer-Encoding: xchunked",
            "Transfer-Encoding : chunked",
            "Content-Length : 3",
            " Folded: 1\r\n Content-Length: 3",
        ] {
            let request = format!("POST http://a.org/ HTTP/1.1\r\n{headers}\r\n\r\n");
            assert!(parse(&request).is_err(), "{headers}");
        }
        assert!(parse("POST http://a.org/ HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n").is_err());
        let (_, _, head) =
            plain("POST http://a.org/ HTTP/1.1\r\nContent-Length: 3\r\nContent-Length: 3\r\n\r\n");
        assert_eq!(head.matches("Content-Length: 3\r\n").count(), 1);
        let (_, _, head) = plain("POST http://a.org/ HTTP/1.1\r\ntransfer-encoding:  Chunked \r\n\r\n");
        assert!(head.contains("\r\nTransfer-Encoding: chunked\r\n"));
    }
}
