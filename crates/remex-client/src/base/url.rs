//! The parts of a WebSocket address.
//!
//! Start at [`Url`].

use std::net::Ipv6Addr;

/// An address such as `ws://host:port/path?query`, in its parts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Url<'a> {
    pub(crate) scheme: Scheme,
    /// Host and port as written, for the `Host` header.
    pub(crate) authority: &'a str,
    /// The host name or IP address, without brackets, for the resolver.
    pub(crate) host: &'a str,
    pub(crate) port: u16,
    /// The path with the query; at least `/`.
    pub(crate) path: String,
}

/// Whether the connection is encrypted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scheme {
    /// `ws://`
    Plain,
    /// `wss://`
    Tls,
}

impl Scheme {
    /// Returns the port of an address without one.
    fn default_port(self) -> u16 {
        match self {
            Self::Plain => 80,
            Self::Tls => 443,
        }
    }
}

/// Why a text is not a WebSocket address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct InvalidUrl {
    pub(crate) reason: &'static str,
    /// What to write instead.
    pub(crate) hint: &'static str,
}

const HOST_AND_PORT: &str = "write `ws://host:port` or `wss://host:port`";
const IPV6: &str = "write `ws://[::1]:4000`";

fn invalid<T>(reason: &'static str, hint: &'static str) -> Result<T, InvalidUrl> {
    Err(InvalidUrl { reason, hint })
}

impl<'a> Url<'a> {
    /// Parses an address.
    pub(crate) fn parse(url: &'a str) -> Result<Self, InvalidUrl> {
        let (scheme, rest) = match (url.strip_prefix("ws://"), url.strip_prefix("wss://")) {
            (Some(rest), _) => (Scheme::Plain, rest),
            (None, Some(rest)) => (Scheme::Tls, rest),
            (None, None) => return invalid("it does not begin with `ws://` or `wss://`", HOST_AND_PORT),
        };
        if !url.bytes().all(|byte| byte.is_ascii_graphic()) {
            return invalid(
                "it contains white space or characters that an address cannot have",
                "remove or percent-encode them",
            );
        }
        let (authority, path) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
        // A fragment is never sent to the server.
        let path = path.split('#').next().unwrap_or_default();
        let path = if path.starts_with('/') { path.to_owned() } else { format!("/{path}") };
        let (host, port) = split(authority)?;
        let port = port.unwrap_or(scheme.default_port());
        Ok(Self { scheme, authority, host, port, path })
    }
}

/// Returns an address without a user name and password in front of the host.
pub(crate) fn without_user(address: &str) -> String {
    let (scheme, rest) = match address.find("//") {
        Some(at) => address.split_at(at + 2),
        None => ("", address),
    };
    match rest.rsplit_once('@') {
        Some((_, host)) => format!("{scheme}…@{host}"),
        None => address.to_owned(),
    }
}

fn split(authority: &str) -> Result<(&str, Option<u16>), InvalidUrl> {
    let (host, port) = if let Some(rest) = authority.strip_prefix('[') {
        let Some((host, port)) = rest.split_once(']') else {
            return invalid("the closing bracket of the IPv6 address is missing", IPV6);
        };
        let number = host.split('%').next().unwrap_or_default();
        if number.parse::<Ipv6Addr>().is_err() || !(port.is_empty() || port.starts_with(':')) {
            return invalid(
                "the brackets do not contain an IPv6 address, or something other than a port follows them",
                IPV6,
            );
        }
        (host, port.get(1..).unwrap_or_default())
    } else if authority.matches(':').count() > 1 && !authority.contains('@') {
        return invalid("an IPv6 address needs brackets", IPV6);
    } else {
        authority.split_once(':').unwrap_or((authority, ""))
    };
    if authority.contains('@') {
        return invalid("it contains a user name, which `ws://` does not use", HOST_AND_PORT);
    }
    if host.is_empty() {
        return invalid("the host is missing", HOST_AND_PORT);
    }
    let port = match port {
        "" => return Ok((host, None)),
        digits if digits.bytes().all(|byte| byte.is_ascii_digit()) => digits.parse().unwrap_or(0),
        _ => 0,
    };
    if port == 0 {
        return invalid("the port is not a number from 1 to 65535", HOST_AND_PORT);
    }
    Ok((host, Some(port)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn assert_parts(url: &str, authority: &str, host: &str, port: u16, path: &str) {
        let scheme = if url.starts_with("wss:") { Scheme::Tls } else { Scheme::Plain };
        assert_eq!(
            Url::parse(url),
            Ok(Url { scheme, authority, host, port, path: path.to_owned() }),
            "{url}"
        );
    }

    #[test]
    fn an_address_is_split_into_host_port_and_path() {
        assert_parts("ws://127.0.0.1:4000", "127.0.0.1:4000", "127.0.0.1", 4000, "/");
        assert_parts("ws://host", "host", "host", 80, "/");
        assert_parts("ws://host:", "host:", "host", 80, "/");
        assert_parts("ws://host/a/b?c=d#e", "host", "host", 80, "/a/b?c=d");
        assert_parts("ws://host:1?c=d/e", "host:1", "host", 1, "/?c=d/e");
        assert_parts("ws://host#e", "host", "host", 80, "/");
        assert_parts("ws://[::1]:4000/x", "[::1]:4000", "::1", 4000, "/x");
        assert_parts("ws://[::1]", "[::1]", "::1", 80, "/");
        assert_parts("wss://host", "host", "host", 443, "/");
        assert_parts("wss://[::1]:80/", "[::1]:80", "::1", 80, "/");
        assert_parts("ws://[fe80::1%eth0]:9", "[fe80::1%eth0]:9", "fe80::1%eth0", 9, "/");
    }

    #[test]
    fn an_invalid_address_has_a_hint() {
        for (url, part) in [
            ("http://host", "begin with `ws://` or `wss://`"),
            ("wss://", "host is missing"),
            ("ws://", "host is missing"),
            ("ws://:4000", "host is missing"),
            ("ws://me@host", "user name"),
            ("ws://me:secret@host", "user name"),
            ("ws://host:0", "1 to 65535"),
            ("ws://host:65536", "1 to 65535"),
            ("ws://host:+80", "1 to 65535"),
            ("ws://::1", "needs brackets"),
            ("ws://[::1", "closing bracket"),
            ("ws://[host]:1", "do not contain an IPv6 address"),
            ("ws://[::1]4000", "do not contain an IPv6 address"),
            ("ws://ho st", "white space"),
            ("ws://host/\r\nX: y", "white space"),
        ] {
            let InvalidUrl { reason, hint } = Url::parse(url).unwrap_err();
            assert!(format!("{reason}; {hint}").contains(part), "{url}: {reason}; {hint}");
        }
    }
}
