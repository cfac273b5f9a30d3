//! The name or address of a host, in one form.

use std::{
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    str::FromStr,
};

/// The longest name of a host.
const MAX_LEN: usize = 253;

/// The longest part between two dots.
const MAX_LABEL_LEN: usize = 63;

/// A host, in one form: names in lower case without a dot at the end, addresses as numbers.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum HostName {
    /// To be looked up.
    Name(String),
    /// Never an IPv4 address in the form of IPv6.
    Address(IpAddr),
}

/// Why a text is not the name of a host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum NameError {
    /// Nothing is there.
    #[error("it is empty")]
    Empty,
    /// Too long.
    #[error("it is longer than 253 characters, or a part of it longer than 63")]
    TooLong,
    /// Letters beyond ASCII.
    #[error("write international names in their ASCII form (`xn--…`)")]
    International,
    /// A character that no name has.
    #[error("a name has letters, digits, hyphens and dots, and `*.` only at its start")]
    Character,
    /// An address in a form that programs read in different ways.
    #[error("write IPv4 addresses as four decimal numbers without leading zeros")]
    OddAddress,
    /// An IPv6 address that cannot be read.
    #[error("write IPv6 addresses in brackets and without a zone, such as `[2001:db8::1]`")]
    Brackets,
    /// A port that cannot be read.
    #[error("a port is a number from 1 to 65535")]
    Port,
    /// `*.` before an address.
    #[error("`*.` stands before a domain, not before an address")]
    BelowAddress,
    /// More entries than a list may have.
    #[error("the list has more than {0} entries")]
    TooMany(usize),
}

impl HostName {
    /// Returns whether it is the name that every host has for itself.
    pub(crate) fn is_localhost(&self) -> bool {
        matches!(self, Self::Name(name) if name == "localhost")
    }

    /// Parses `HOST:PORT`.
    ///
    /// # Errors
    /// If it is anything else.
    pub fn parse_with_port(text: &str, default: Option<u16>) -> Result<(Self, u16), NameError> {
        let (host, port) = split_port(text)?;
        Ok((host.parse()?, port.or(default).ok_or(NameError::Port)?))
    }
}

impl From<IpAddr> for HostName {
    fn from(address: IpAddr) -> Self {
        Self::Address(address.to_canonical())
    }
}

/// Splits a port from a host.
pub(super) fn split_port(text: &str) -> Result<(&str, Option<u16>), NameError> {
    let (host, port) = match text.strip_prefix('[') {
        Some(rest) => {
            let (inside, after) = rest.split_once(']').ok_or(NameError::Brackets)?;
            let host = &text[..inside.len() + 2];
            match after.strip_prefix(':') {
                Some(port) => (host, Some(port)),
                None if after.is_empty() => (host, None),
                None => return Err(NameError::Brackets),
            }
        }
        None => match text.split_once(':') {
            Some((_, port)) if port.contains(':') => return Err(NameError::Brackets),
            Some((host, port)) => (host, Some(port)),
            None => (text, None),
        },
    };
    let Some(port) = port else { return Ok((host, None)) };
    let is_plain = !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit());
    match port.parse::<u16>() {
        Ok(port) if is_plain && port != 0 => Ok((host, Some(port))),
        _ => Err(NameError::Port),
    }
}

impl FromStr for HostName {
    type Err = NameError;

    /// Parses a host without a port; IPv6 addresses are in brackets.
    fn from_str(text: &str) -> Result<Self, NameError> {
        if let Some(rest) = text.strip_prefix('[') {
            let inside = rest.strip_suffix(']').ok_or(NameError::Brackets)?;
            let address = inside.parse::<Ipv6Addr>().map_err(|_| NameError::Brackets)?;
            return Ok(IpAddr::V6(address).into());
        }
        if !text.is_ascii() {
            return Err(NameError::International);
        }
        let name = text.strip_suffix('.').unwrap_or(text);
        if name.is_empty() {
            return Err(NameError::Empty);
        }
        if let Ok(address) = name.parse::<Ipv4Addr>() {
            // A dot at the end is part of a name only.
            return if name == text { Ok(IpAddr::V4(address).into()) } else { Err(NameError::OddAddress) };
        }
        if name.len() > MAX_LEN {
            return Err(NameError::TooLong);
        }
        for label in name.split('.') {
            let is_plain =
                label.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_'));
            if label.is_empty() || !is_plain {
                return Err(NameError::Character);
            }
            if label.len() > MAX_LABEL_LEN {
                return Err(NameError::TooLong);
            }
        }
        if is_number(name.rsplit('.').next().unwrap_or(name)) {
            return Err(NameError::OddAddress);
        }
        Ok(Self::Name(name.to_ascii_lowercase()))
    }
}

/// Returns whether resolvers take a name with this last part for an address, such as `0x7f000001`.
fn is_number(label: &str) -> bool {
    let hexadecimal = label.strip_prefix("0x").or_else(|| label.strip_prefix("0X"));
    label.bytes().all(|byte| byte.is_ascii_digit())
        || hexadecimal.is_some_and(|rest| rest.bytes().all(|byte| byte.is_ascii_hexdigit()))
}

impl fmt::Display for HostName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(name) => f.write_str(name),
            Self::Address(IpAddr::V4(address)) => write!(f, "{address}"),
            Self::Address(IpAddr::V6(address)) => write!(f, "[{address}]"),
        }
    }
}
