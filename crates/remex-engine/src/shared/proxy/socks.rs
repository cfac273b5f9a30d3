//! SOCKS5 without authentication: CONNECT only.

use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use remex_sandbox::HostName;

use super::{outgoing::Refusal, stream::Incoming};

/// The first byte of every message.
pub(super) const VERSION: u8 = 5;

/// The version of SOCKS4, which is refused.
pub(super) const OLD_VERSION: u8 = 4;

/// The refusal of SOCKS4.
pub(super) const OLD_REFUSAL: [u8; 8] = [0, 0x5b, 0, 0, 0, 0, 0, 0];

pub(super) const SUCCEEDED: u8 = 0;
pub(super) const FAILED: u8 = 1;
const NOT_ALLOWED: u8 = 2;
const HOST_UNREACHABLE: u8 = 4;
const REFUSED: u8 = 5;
const TIMED_OUT: u8 = 6;
const NO_SUCH_COMMAND: u8 = 7;
const NO_SUCH_ADDRESS_TYPE: u8 = 8;

/// Reads what a client asks for. Answers it and returns `None` if it asks for something else than a connection.
pub(super) async fn negotiate(incoming: &mut Incoming) -> io::Result<Option<(HostName, u16)>> {
    let [_, methods] = array(incoming).await?;
    let methods = incoming.take(methods.into()).await?;
    if !methods.contains(&0) {
        incoming.end_with(&[VERSION, 0xff]).await?;
        return Ok(None);
    }
    incoming.send(&[VERSION, 0]).await?;
    let [version, command, _, kind] = array(incoming).await?;
    if version != VERSION {
        return Ok(None);
    }
    let host = match kind {
        1 => Ok(IpAddr::from(Ipv4Addr::from(array::<4>(incoming).await?)).into()),
        4 => Ok(IpAddr::from(Ipv6Addr::from(array::<16>(incoming).await?)).into()),
        3 => {
            let [len] = array(incoming).await?;
            let name = incoming.take(len.into()).await?;
            parse(&name).ok_or(FAILED)
        }
        _ => Err(NO_SUCH_ADDRESS_TYPE),
    };
    let host = match host {
        Err(NO_SUCH_ADDRESS_TYPE) => Err(NO_SUCH_ADDRESS_TYPE),
        host => {
            let port = u16::from_be_bytes(array(incoming).await?);
            match command {
                1 if port == 0 => Err(FAILED),
                1 => host.map(|host| (host, port)),
                _ => Err(NO_SUCH_COMMAND),
            }
        }
    };
    match host {
        Ok(target) => Ok(Some(target)),
        Err(code) => {
            incoming.end_with(&reply(code)).await?;
            Ok(None)
        }
    }
}

/// Reads a name; here, an IPv6 address has no brackets.
fn parse(name: &[u8]) -> Option<HostName> {
    let name = std::str::from_utf8(name).ok()?;
    name.parse::<Ipv6Addr>().map(|address| IpAddr::V6(address).into()).ok().or_else(|| name.parse().ok())
}

async fn array<const LEN: usize>(incoming: &mut Incoming) -> io::Result<[u8; LEN]> {
    let mut bytes = [0; LEN];
    bytes.copy_from_slice(&incoming.take(LEN).await?);
    Ok(bytes)
}

/// Returns the answer with a code.
pub(super) fn reply(code: u8) -> [u8; 10] {
    [VERSION, code, 0, 1, 0, 0, 0, 0, 0, 0]
}

/// Returns the code of a refusal.
pub(super) fn code(refusal: &Refusal) -> u8 {
    match refusal {
        Refusal::Denied(_) | Refusal::Own | Refusal::Limited | Refusal::NoSocks | Refusal::Decided(_) => {
            NOT_ALLOWED
        }
        Refusal::Lookup(_) => HOST_UNREACHABLE,
        Refusal::Connect(error) if error.kind() == io::ErrorKind::ConnectionRefused => REFUSED,
        Refusal::Connect(_) => HOST_UNREACHABLE,
        Refusal::LookupTimedOut | Refusal::TimedOut => TIMED_OUT,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_may_be_an_address_and_then_is_one() {
        let address = |text: &str| parse(text.as_bytes()).map(|host| matches!(host, HostName::Address(_)));
        for text in ["127.0.0.1", "::1", "[::1]", "::ffff:127.0.0.1"] {
            assert_eq!(address(text), Some(true), "{text}");
        }
        assert_eq!(address("a.org"), Some(false));
        for text in ["0x7f000001", "2130706433", "127.1", "", "a b", "a.org\0.b.org"] {
            assert_eq!(address(text), None, "{text}");
        }
    }
}
