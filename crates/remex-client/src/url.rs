//! The parts of a WebSocket address.
//!
//! Start at [`Url`].

use std::net::Ipv6Addr;

/// The port of an address without one.
const DEFAULT_PORT: u16 = 80;

/// An address such as `ws://host:port/path?query`, in its parts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Url<'a> {
    /// Host and port as written, for the `Host` header.
    pub(crate) authority: &'a str,
    /// The host name or IP address, without brackets, for the resolver.
    pub(crate) host: &'a str,
    pub(crate) port: u16,
    /// The path with the query; at least `/`.
    pub(crate) path: String,
}

impl<'a> Url<'a> {
    /// Parses an address; the error says what is wrong and what is valid.
    pub(crate) fn parse(url: &'a str) -> Result<Self, &'static str> {
        if url.starts_with("wss://") {
            return Err("TLS is not supported yet; use a tunnel such as `ssh -L` and `ws://`");
        }
        let Some(rest) = url.strip_prefix("ws://") else {
            return Err("it does not begin with `ws://`; write `ws://host:port`");
        };
        if !url.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err("it contains white space or characters that an address cannot have");
        }
        let (authority, path) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
        // A fragment is never sent to the server.
        let path = path.split('#').next().unwrap_or_default();
        let path = if path.starts_with('/') { path.to_owned() } else { format!("/{path}") };
        let (host, port) = split(authority)?;
        Ok(Self { authority, host, port, path })
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

fn split(authority: &str) -> Result<(&str, u16), &'static str> {
    let (host, port) = if let Some(rest) = authority.strip_prefix('[') {
        let (host, port) = rest
            .split_once(']')
            .ok_or("the closing bracket of the IPv6 address is missing; write `ws://[::1]:4000`")?;
        let number = host.split('%').next().unwrap_or_default();
        if number.parse::<Ipv6Addr>().is_err() || !(port.is_empty() || port.starts_with(':')) {
            return Err(
                "the brackets do not contain an IPv6 address, or something other than a port follows them; \
                        write `ws://[::1]:4000`",
            );
        }
        (host, port.get(1..).unwrap_or_default())
    } else if authority.matches(':').count() > 1 && !authority.contains('@') {
        return Err("an IPv6 address needs brackets; write `ws://[::1]:4000`");
    } else {
        authority.split_once(':').unwrap_or((authority, ""))
    };
    if host.is_empty() || authority.contains('@') {
        return Err("the host is missing, or preceded by a user name; write `ws://host:port`");
    }
    let port = match port {
        "" => DEFAULT_PORT,
        digits if digits.bytes().all(|byte| byte.is_ascii_digit()) => digits.parse().unwrap_or(0),
        _ => 0,
    };
    if port == 0 {
        return Err("the port is not a number from 1 to 65535; write `ws://host:port`");
    }
    Ok((host, port))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn assert_parts(url: &str, authority: &str, host: &str, port: u16, path: &str) {
        assert_eq!(Url::parse(url), Ok(Url { authority, host, port, path: path.to_owned() }), "{url}");
    }

    #[test]
    fn an_address_falls_into_host_port_and_path() {
        assert_parts("ws://127.0.0.1:4000", "127.0.0.1:4000", "127.0.0.1", 4000, "/");
        assert_parts("ws://host", "host", "host", 80, "/");
        assert_parts("ws://host:", "host:", "host", 80, "/");
        assert_parts("ws://host/a/b?c=d#e", "host", "host", 80, "/a/b?c=d");
        assert_parts("ws://host:1?c=d/e", "host:1", "host", 1, "/?c=d/e");
        assert_parts("ws://host#e", "host", "host", 80, "/");
        assert_parts("ws://[::1]:4000/x", "[::1]:4000", "::1", 4000, "/x");
        assert_parts("ws://[::1]", "[::1]", "::1", 80, "/");
        assert_parts("ws://[fe80::1%eth0]:9", "[fe80::1%eth0]:9", "fe80::1%eth0", 9, "/");
    }

    #[test]
    fn a_wrong_address_says_what_would_be_right() {
        for (url, part) in [
            ("wss://host", "ssh -L"),
            ("http://host", "begin with `ws://`"),
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
            let reason = Url::parse(url).unwrap_err();
            assert!(reason.contains(part), "{url}: {reason}");
        }
    }
}
