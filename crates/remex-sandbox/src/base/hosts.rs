//! Which hosts a confined process may reach through the server.
//!
//! Decides twice: about the name that a process asks for, before anything is looked up, and about the address that the
//! name stands for. A pattern never opens the way to the server's own host or its private networks: only an entry that
//! names exactly one host does. Start at [`Hosts`].

mod address;
mod name;
#[cfg(feature = "serde")]
mod serde_impls;

use std::{fmt, net::IpAddr, str::FromStr};

use address::Reach;
pub use name::{HostName, NameError};

/// Entries of one list.
const MAX_ENTRIES: usize = 1024;

/// What all lists allow; several come from the client and the floors of the server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hosts {
    lists: Vec<HostList>,
}

/// What one list allows: what `allow` matches, and `deny` does not.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct HostList {
    allow: Vec<HostPattern>,
    deny: Vec<HostPattern>,
}

/// One entry of a list: `HOST` or `HOST:PORT`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostPattern {
    subject: Subject,
    /// Any port if absent.
    port: Option<u16>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Subject {
    /// `*`
    All,
    /// `*.example.org`: what is below the domain, at any depth.
    Below(String),
    /// `**.example.org`: the domain and what is below it.
    Domain(String),
    Exactly(HostName),
}

/// Why a host cannot be reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum HostDenial {
    /// No entry matches.
    #[error("it is not in the allow-list")]
    NotListed,
    /// The entry of a list denies it.
    #[error("the list denies it")]
    Listed,
    /// It has a private address, and no entry names exactly this host.
    #[error("its address {0} is private, and only an entry for exactly this host or address allows that")]
    Private(IpAddr),
    /// It has an address that never leaves the host or the link, and no entry names this address.
    #[error("its address {0} is local to the server, and only an entry for this address allows that")]
    Local(IpAddr),
}

/// An entry that means nothing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{entry}` is not a host: {why}")]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct HostPatternError {
    /// The entry as written, shortened.
    pub entry: String,
    /// The reason.
    pub why: NameError,
}

impl Hosts {
    /// Returns whether a process may ask for this host; its addresses are judged by [`Hosts::check_address`].
    pub fn check_name(&self, host: &HostName, port: u16) -> Result<(), HostDenial> {
        self.lists.iter().try_for_each(|list| list.check_name(host, port))
    }

    /// Returns whether a host that may be asked for may be reached at this address.
    ///
    /// Every address of the server's own host is as local as its loopback address.
    pub fn check_address(
        &self,
        host: &HostName,
        port: u16,
        address: IpAddr,
        is_of_this_host: bool,
    ) -> Result<(), HostDenial> {
        let address = address.to_canonical();
        let reach = if is_of_this_host { Reach::Local } else { Reach::of(address) };
        self.lists.iter().try_for_each(|list| list.check_address(host, port, address, reach))
    }

    /// Returns whether a list names the loopback of the host, which programs must not confuse with that of their jail.
    #[must_use]
    pub fn name_loopback(&self) -> bool {
        let is_loopback = |host: &HostName| match host {
            HostName::Address(address) => address.to_canonical().is_loopback(),
            HostName::Name(_) => host.is_localhost(),
        };
        let names =
            |entry: &HostPattern| matches!(&entry.subject, Subject::Exactly(host) if is_loopback(host));
        self.lists.iter().any(|list| list.allow.iter().any(names))
    }

    /// Returns what both allow.
    #[must_use]
    pub fn narrow(&self, floor: &Self) -> Self {
        let mut lists = self.lists.clone();
        lists.extend(floor.lists.iter().filter(|list| !self.lists.contains(list)).cloned());
        Self { lists }
    }
}

impl From<HostList> for Hosts {
    fn from(list: HostList) -> Self {
        Self { lists: vec![list] }
    }
}

impl HostList {
    /// Parses the entries of a list.
    ///
    /// # Errors
    /// The first entry that means nothing, or one that is too many.
    pub fn parse<'a>(
        allow: impl IntoIterator<Item = &'a str>,
        deny: impl IntoIterator<Item = &'a str>,
    ) -> Result<Self, HostPatternError> {
        let list = |entries: &mut dyn Iterator<Item = &'a str>| {
            let mut list = Vec::new();
            for entry in entries {
                if list.len() >= MAX_ENTRIES {
                    return Err(error(entry, NameError::TooMany(MAX_ENTRIES)));
                }
                list.push(entry.parse()?);
            }
            Ok(list)
        };
        Ok(Self { allow: list(&mut allow.into_iter())?, deny: list(&mut deny.into_iter())? })
    }

    /// Returns the list with one more entry, for exactly this host and port.
    #[must_use]
    pub fn with(&self, host: &HostName, port: u16) -> Self {
        let entry = HostPattern { subject: Subject::Exactly(host.clone()), port: Some(port) };
        Self { allow: self.allow.iter().cloned().chain([entry]).collect(), deny: self.deny.clone() }
    }

    fn check_name(&self, host: &HostName, port: u16) -> Result<(), HostDenial> {
        if self.deny.iter().any(|entry| entry.matches(host, port)) {
            return Err(HostDenial::Listed);
        }
        if self.allow.iter().any(|entry| entry.matches(host, port)) {
            return Ok(());
        }
        Err(HostDenial::NotListed)
    }

    fn check_address(
        &self,
        host: &HostName,
        port: u16,
        address: IpAddr,
        reach: Reach,
    ) -> Result<(), HostDenial> {
        self.check_name(host, port)?;
        let literal = HostName::Address(address);
        if self.deny.iter().any(|entry| entry.is_exactly(&literal, port)) {
            return Err(HostDenial::Listed);
        }
        let names = |host: &HostName| self.allow.iter().any(|entry| entry.is_exactly(host, port));
        let is_localhost = address.is_loopback() && host.is_localhost() && names(host);
        match reach {
            Reach::Public => Ok(()),
            Reach::Private if names(host) || names(&literal) => Ok(()),
            Reach::Private => Err(HostDenial::Private(address)),
            Reach::Local if names(&literal) || is_localhost => Ok(()),
            Reach::Local => Err(HostDenial::Local(address)),
        }
    }
}

impl HostPattern {
    fn matches(&self, host: &HostName, port: u16) -> bool {
        let below = |domain: &str| match host {
            HostName::Name(name) => {
                name.strip_suffix(domain).is_some_and(|rest| rest.len() > 1 && rest.ends_with('.'))
            }
            HostName::Address(_) => false,
        };
        self.port.is_none_or(|own| own == port)
            && match &self.subject {
                Subject::All => true,
                Subject::Below(domain) => below(domain),
                Subject::Domain(domain) => {
                    below(domain) || matches!(host, HostName::Name(name) if name == domain)
                }
                Subject::Exactly(own) => own == host,
            }
    }

    /// Returns whether it stands for this host alone.
    fn is_exactly(&self, host: &HostName, port: u16) -> bool {
        matches!(self.subject, Subject::Exactly(_)) && self.matches(host, port)
    }
}

impl FromStr for HostPattern {
    type Err = HostPatternError;

    fn from_str(entry: &str) -> Result<Self, HostPatternError> {
        let fail = |why| error(entry, why);
        let (host, port) = name::split_port(entry).map_err(fail)?;
        let domain = |domain: &str| match domain.parse::<HostName>() {
            Ok(HostName::Name(name)) => Ok(name),
            Ok(HostName::Address(_)) => Err(fail(NameError::BelowAddress)),
            Err(why) => Err(fail(why)),
        };
        let subject = if host == "*" {
            Subject::All
        } else if let Some(rest) = host.strip_prefix("**.") {
            Subject::Domain(domain(rest)?)
        } else if let Some(rest) = host.strip_prefix("*.") {
            Subject::Below(domain(rest)?)
        } else {
            Subject::Exactly(host.parse().map_err(fail)?)
        };
        Ok(Self { subject, port })
    }
}

impl fmt::Display for HostPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.subject {
            Subject::All => f.write_str("*")?,
            Subject::Below(domain) => write!(f, "*.{domain}")?,
            Subject::Domain(domain) => write!(f, "**.{domain}")?,
            Subject::Exactly(host) => write!(f, "{host}")?,
        }
        self.port.map_or(Ok(()), |port| write!(f, ":{port}"))
    }
}

fn error(entry: &str, why: NameError) -> HostPatternError {
    let mut shown: String = entry.chars().take(100).collect();
    if shown.len() < entry.len() {
        shown.push('…');
    }
    HostPatternError { entry: shown, why }
}

#[cfg(test)]
mod tests;
