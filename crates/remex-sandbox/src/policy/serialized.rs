//! The serialized form of a policy, to be sent to another process of this program.
//!
//! Patterns are sent as they were parsed, and the receiver compiles the same expression from them. Data that does not
//! result in exactly the policy that was sent is an error: a silently repaired policy could allow more.

use std::{
    borrow::Cow,
    ffi::OsStr,
    os::unix::ffi::OsStrExt as _,
    path::{Component, Path, PathBuf},
};

use remex_proto::sandbox::Network;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};

use super::{Link, Parts, Policy, Rule};
use crate::base::{
    access::Access,
    error::Reason,
    host::Kind,
    hosts::Hosts,
    os_bytes::OsBytes,
    pattern::{Pattern, Patterns},
};

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct SerializedPolicy<'a> {
    rules: Vec<(OsBytes<'a>, Access, Kind)>,
    /// The base and the rest of each.
    patterns: Vec<(OsBytes<'a>, Cow<'a, str>)>,
    network: Network,
    hosts: Option<Cow<'a, Hosts>>,
    /// The path and the target of each.
    links: Vec<(OsBytes<'a>, OsBytes<'a>)>,
    temporary: Vec<OsBytes<'a>>,
}

/// Why serialized data is not a policy.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
enum InvalidPolicy {
    #[error("a policy has the path `{}`, which is not canonical", .0.display())]
    Path(PathBuf),
    #[error("a policy has the target `{}` of a link, which no link has", .0.display())]
    Target(PathBuf),
    #[error("a policy has patterns that cannot be built: {0}")]
    Patterns(Reason),
    #[error("a policy has both a network and a list of hosts")]
    Network,
    #[error("the parts of a policy are out of order, or contradict each other")]
    Disorder,
}

impl<'a> From<&'a Policy> for SerializedPolicy<'a> {
    fn from(policy: &'a Policy) -> Self {
        let Policy { rules, patterns, network, hosts, links, temporary } = policy;
        let rules = rules.iter().map(|rule| (rule.path.as_path().into(), rule.access, rule.kind));
        let patterns = patterns.as_slice().iter();
        let links = links.iter().map(|link| (link.path.as_path().into(), link.target.as_path().into()));
        Self {
            rules: rules.collect(),
            patterns: patterns
                .map(|pattern| (pattern.base.as_path().into(), Cow::Borrowed(&*pattern.rest)))
                .collect(),
            network: *network,
            hosts: hosts.as_ref().map(Cow::Borrowed),
            links: links.collect(),
            temporary: temporary.iter().map(|path| path.as_path().into()).collect(),
        }
    }
}

impl TryFrom<SerializedPolicy<'_>> for Policy {
    type Error = InvalidPolicy;

    fn try_from(serialized: SerializedPolicy<'_>) -> Result<Self, InvalidPolicy> {
        let SerializedPolicy { rules, patterns, network, hosts, links, temporary } = serialized.clone();
        let rules = rules
            .into_iter()
            .map(|(path, access, kind)| canonical(path).map(|path| Rule { path, access, kind }));
        let patterns = patterns
            .into_iter()
            .map(|(base, rest)| Ok(Pattern { base: canonical(base)?, rest: rest.into_owned() }));
        let links =
            links.into_iter().map(|(path, link)| Ok(Link { path: canonical(path)?, target: target(link)? }));
        let policy = Self::from_parts(Parts {
            rules: rules.collect::<Result<_, _>>()?,
            patterns: Patterns::compile(patterns.collect::<Result<_, _>>()?)
                .map_err(InvalidPolicy::Patterns)?,
            network,
            links: links.collect::<Result<_, _>>()?,
            temporary: temporary.into_iter().map(canonical).collect::<Result<_, _>>()?,
        });
        let policy = match (network, hosts) {
            (_, None) => policy,
            (Network::Restricted, Some(hosts)) => policy.with_hosts(hosts.into_owned()),
            (Network::Enabled, Some(_)) => return Err(InvalidPolicy::Network),
        };
        if SerializedPolicy::from(&policy) == serialized { Ok(policy) } else { Err(InvalidPolicy::Disorder) }
    }
}

/// Accepts only canonical paths: others match nothing, or cannot be passed to the kernel.
fn canonical(path: OsBytes<'_>) -> Result<PathBuf, InvalidPolicy> {
    let path = path.into_path();
    let is_plain = path.components().all(|part| matches!(part, Component::RootDir | Component::Normal(_)));
    if path.has_root() && is_plain && !has_nul(&path) { Ok(path) } else { Err(InvalidPolicy::Path(path)) }
}

fn target(target: OsBytes<'_>) -> Result<PathBuf, InvalidPolicy> {
    let target = target.into_path();
    let is_target = target.as_os_str() != OsStr::new("") && !has_nul(&target);
    if is_target { Ok(target) } else { Err(InvalidPolicy::Target(target)) }
}

fn has_nul(path: &Path) -> bool {
    path.as_os_str().as_bytes().contains(&0)
}

impl Serialize for Policy {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        SerializedPolicy::from(self).serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Policy {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        SerializedPolicy::deserialize(deserializer)?.try_into().map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::hosts::HostList;

    fn bytes(text: &str) -> OsBytes<'_> {
        OsStr::new(text).into()
    }

    /// A policy with something in each part.
    fn serialized() -> SerializedPolicy<'static> {
        let list = HostList::parse(["*.example.org:443"], []).unwrap();
        SerializedPolicy {
            rules: vec![
                (bytes("/tmp"), Access::Write, Kind::Directory),
                (bytes("/usr"), Access::Read, Kind::Directory),
                (bytes("/usr/secret"), Access::Deny, Kind::Missing),
            ],
            patterns: vec![(bytes("/"), "**/.env".into()), (bytes("/usr/x"), "".into())],
            network: Network::Restricted,
            hosts: Some(Cow::Owned(list.into())),
            links: vec![(bytes("/bin"), bytes("usr/bin")), (bytes("/lib"), bytes("/usr/lib"))],
            temporary: vec![bytes("/tmp")],
        }
    }

    #[test]
    fn each_part_round_trips() {
        let policy = Policy::try_from(serialized()).unwrap();
        assert_eq!(SerializedPolicy::from(&policy), serialized());
        assert_eq!(policy.access(Path::new("/usr/a/.env")), Access::Deny);
        assert_eq!(policy.access(Path::new("/usr/a")), Access::Read);
    }

    #[test]
    fn invalid_parts_are_an_error() {
        let changed = |change: &dyn Fn(&mut SerializedPolicy<'static>)| {
            let mut serialized = serialized();
            change(&mut serialized);
            let sent = postcard::to_stdvec(&serialized).unwrap();
            assert!(postcard::from_bytes::<Policy>(&sent).is_err(), "{serialized:?}");
            Policy::try_from(serialized).unwrap_err()
        };
        for path in ["", "usr", "/usr/../etc", "/a\0b", "/.."] {
            let path_error = InvalidPolicy::Path(path.into());
            assert_eq!(changed(&|serialized| serialized.rules[1].0 = bytes(path)), path_error);
            assert_eq!(changed(&|serialized| serialized.patterns[0].0 = bytes(path)), path_error);
            assert_eq!(changed(&|serialized| serialized.links[0].0 = bytes(path)), path_error);
            assert_eq!(changed(&|serialized| serialized.temporary[0] = bytes(path)), path_error);
        }
        for target in ["", "a\0b"] {
            assert_eq!(
                changed(&|serialized| serialized.links[0].1 = bytes(target)),
                InvalidPolicy::Target(target.into())
            );
        }
        for pattern in ["[a", "a\\", "[z-a]", "[!]"] {
            let error = changed(&|serialized| serialized.patterns[0].1 = pattern.into());
            assert!(matches!(error, InvalidPolicy::Patterns(Reason::Pattern(_))), "{error}");
        }
        assert_eq!(changed(&|serialized| serialized.network = Network::Enabled), InvalidPolicy::Network);
    }

    #[test]
    fn patterns_that_are_too_large_are_an_error() {
        let mut serialized = serialized();
        serialized.patterns[0].1 = "?".repeat(12_000).into();
        let error = Policy::try_from(serialized).unwrap_err();
        assert!(matches!(error, InvalidPolicy::Patterns(Reason::TooLarge { .. })), "{error}");
    }

    #[test]
    fn parts_that_are_out_of_order_or_without_effect_are_an_error() {
        let swaps: [&dyn Fn(&mut SerializedPolicy<'static>); 7] = [
            &|serialized| serialized.rules.swap(0, 1),
            &|serialized| serialized.patterns.swap(0, 1),
            &|serialized| serialized.links.swap(0, 1),
            &|serialized| serialized.temporary.push(bytes("/tmp")),
            &|serialized| serialized.rules.push(serialized.rules[0].clone()),
            &|serialized| serialized.rules[2].1 = Access::Read,
            // What is granted needs no link.
            &|serialized| serialized.links[0].0 = bytes("/usr/a"),
        ];
        for swap in swaps {
            let mut serialized = serialized();
            swap(&mut serialized);
            assert_eq!(Policy::try_from(serialized), Err(InvalidPolicy::Disorder));
        }
    }

    #[test]
    fn a_list_of_hosts_without_a_list_is_an_error() {
        let mut serialized = serialized();
        serialized.hosts = None;
        let mut sent = postcard::to_stdvec(&serialized).unwrap();
        // The list is absent, which is one byte behind those of the rules, the patterns and the network.
        serialized.links.clear();
        serialized.temporary.clear();
        let at = postcard::to_stdvec(&serialized).unwrap().len() - 3;
        assert_eq!(sent[at], 0);
        sent.splice(at..=at, [1, 0]);
        assert!(postcard::from_bytes::<Policy>(&sent).is_err(), "no list would allow every host");
    }
}
