//! A resolved policy: which paths may be read and written, and whether there is a network.
//!
//! Decisions are about canonical paths: absolute, without links, `.` and `..`. Start at [`Policy::access`].

#[cfg(feature = "serde")]
mod serialized;

use std::path::{Component, Path, PathBuf};

use remex_proto::sandbox::Network;

use crate::base::{
    access::{Access, Action},
    error::{PolicyError, Reason},
    host::Kind,
    hosts::Hosts,
    pattern::{Pattern, Patterns},
};

/// Where git keeps what it runs.
pub(crate) const GIT: &str = ".git";

/// What is allowed, independent of how it is enforced.
///
/// The deepest rule at or above a path decides, and a path without a rule is denied. What a pattern denies is denied
/// whatever the rules say. Equal policies allow the same.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Policy {
    /// Sorted by path, parents first; each differs in access from the rule above it, except for granted git
    /// directories.
    rules: Vec<Rule>,
    patterns: Patterns,
    network: Network,
    /// What may be reached through a proxy although there is no network.
    hosts: Option<Hosts>,
    /// Sorted.
    links: Vec<Link>,
    /// Sorted.
    temporary: Vec<PathBuf>,
}

/// The access to a path and to everything below it, up to the next rule.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Rule {
    /// Absolute, without links on the way.
    pub path: PathBuf,
    /// The access.
    pub access: Access,
    /// What was at the path when the policy was resolved.
    pub kind: Kind,
}

/// A symbolic link in a denied place that leads to something granted.
///
/// A jail that builds a file system of its own creates it there, so that the granted path works as written.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Link {
    /// Where the link is.
    pub path: PathBuf,
    /// The target as written.
    pub target: PathBuf,
}

/// A rule that mounts cannot enforce, because a process could put something else in its place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UnenforceableRule<'a> {
    /// The rule.
    pub rule: &'a Rule,
}

impl From<UnenforceableRule<'_>> for PolicyError {
    fn from(UnenforceableRule { rule }: UnenforceableRule<'_>) -> Self {
        let path = rule.path.clone();
        let why = match rule.kind {
            Kind::Link => Reason::ReplaceableLink { path },
            Kind::Missing | Kind::Unreachable | Kind::File | Kind::Directory => Reason::Creatable { path },
        };
        Self::new(format!("`{}` to `{}`", rule.access, rule.path.display()), why)
    }
}

/// The parts of a policy before they are brought into order.
pub(crate) struct Parts {
    pub(crate) rules: RuleMap,
    pub(crate) patterns: Patterns,
    pub(crate) network: Network,
    pub(crate) links: Vec<Link>,
    pub(crate) temporary: Vec<PathBuf>,
}

impl Policy {
    /// Returns the policy of an unconfined file system.
    pub fn open(network: Network) -> Self {
        let root = Rule { path: PathBuf::from("/"), access: Access::Write, kind: Kind::Directory };
        Self {
            rules: vec![root],
            patterns: Patterns::default(),
            network,
            hosts: None,
            links: Vec::new(),
            temporary: Vec::new(),
        }
    }

    pub(crate) fn from_parts(parts: Parts) -> Self {
        let Parts { rules, patterns, network, mut links, mut temporary } = parts;
        let mut policy = Self {
            rules: rules.minimal(),
            patterns,
            network,
            hosts: None,
            links: Vec::new(),
            temporary: Vec::new(),
        };
        links.retain(|link| policy.access(&link.path) == Access::Deny);
        links.sort();
        links.dedup();
        temporary.retain(|directory| policy.access(directory) == Access::Write);
        temporary.sort();
        temporary.dedup();
        (policy.links, policy.temporary) = (links, temporary);
        policy
    }

    /// Returns what is allowed at a canonical path, whether it exists or not.
    ///
    /// A path that is relative or has `..` is denied. Allocates nothing, except for the first path that each thread
    /// compares with patterns.
    pub fn access(&self, path: &Path) -> Access {
        let is_canonical =
            path.has_root() && !path.components().any(|component| component == Component::ParentDir);
        if !is_canonical {
            return Access::Deny;
        }
        match self.granted(path) {
            Access::Deny => Access::Deny,
            _ if self.patterns.matches(path) => Access::Deny,
            access => access,
        }
    }

    /// Returns what is allowed at a canonical path without patterns.
    fn granted(&self, path: &Path) -> Access {
        match deepest(&self.rules, path) {
            Access::Write if self.is_in_nested_git(path) => Access::Read,
            access => access,
        }
    }

    /// Returns whether a path is in a `.git`, at any depth of a directory whose own `.git` is protected.
    ///
    /// Git runs what it finds there. Mounts cannot keep it from being created.
    fn is_in_nested_git(&self, path: &Path) -> bool {
        let is_git = |path: &&Path| path.file_name().is_some_and(|name| name == GIT);
        path.ancestors().filter(is_git).any(|git| {
            let is_granted =
                || path.ancestors().any(|path| path.starts_with(git) && self.find(path).is_some());
            let is_protected =
                |root: &Path| self.find(&root.join(GIT)).is_some_and(|rule| rule.access < Access::Write);
            !is_granted() && git.ancestors().skip(1).any(is_protected)
        })
    }

    /// Returns the writable directories whose `.git` is protected.
    pub fn git_roots(&self) -> impl Iterator<Item = &Path> {
        let protected =
            self.rules.iter().filter(|rule| rule.path.ends_with(GIT) && rule.access < Access::Write);
        protected.filter(|rule| self.has_writable_parent(rule)).filter_map(|rule| rule.path.parent())
    }

    /// Returns whether an operation on a canonical path is allowed.
    ///
    /// Creating and removing also change the directory above. A directory with rules below it stays where it is, or
    /// its content would be found under another name. To move a directory that [patterns](Self::patterns) reach into,
    /// a caller must also look at what is in it.
    pub fn allows(&self, path: &Path, action: Action) -> bool {
        let access = self.access(path);
        match action {
            Action::Read => access >= Access::Read,
            Action::Write => access == Access::Write,
            Action::Create | Action::Remove if access < Access::Write => false,
            Action::Create => self.is_writable_in_parent(path),
            Action::Remove => self.is_writable_in_parent(path) && self.rules_below(path).is_empty(),
        }
    }

    fn is_writable_in_parent(&self, path: &Path) -> bool {
        path.parent().is_some_and(|parent| self.access(parent) == Access::Write)
    }

    /// Returns whether files are as accessible as without a sandbox.
    pub fn is_open(&self) -> bool {
        matches!(&*self.rules, [rule] if rule.path == Path::new("/") && rule.access == Access::Write)
            && self.patterns.as_slice().is_empty()
    }

    /// Returns whether something below a path may be read, so that the way to it must be open.
    pub fn leads_to_grant(&self, path: &Path) -> bool {
        self.rules_below(path).iter().any(|rule| rule.access > Access::Deny)
    }

    /// Returns the rules, parents before what is below them; each differs in access from the one above it, except for
    /// granted git directories.
    pub fn rules(&self) -> &[Rule] {
        &self.rules
    }

    /// Returns the rules below a path, without the one at the path itself.
    pub fn rules_below(&self, path: &Path) -> &[Rule] {
        // In the order of components, what is below a path follows it without a gap.
        let start = self.rules.partition_point(|rule| rule.path.as_path() <= path);
        let rules = &self.rules[start..];
        &rules[..rules.iter().take_while(|rule| rule.path.starts_with(path)).count()]
    }

    /// Returns the patterns of what is denied everywhere.
    pub fn patterns(&self) -> &[Pattern] {
        self.patterns.as_slice()
    }

    /// Returns whether a pattern denies a canonical path, whatever the rules say.
    pub fn is_denied_by_pattern(&self, path: &Path) -> bool {
        self.patterns.matches(path)
    }

    /// Returns the access to the network.
    pub fn network(&self) -> Network {
        self.network
    }

    /// Returns the hosts that may be reached through a proxy; only a policy without network has them.
    pub fn hosts(&self) -> Option<&Hosts> {
        self.hosts.as_ref()
    }

    /// Replaces the access to the network by a proxy that reaches these hosts.
    #[must_use]
    pub fn with_hosts(self, hosts: Hosts) -> Self {
        Self { network: Network::Restricted, hosts: Some(hosts), ..self }
    }

    /// Returns the links that lead from denied places to granted ones.
    pub fn links(&self) -> &[Link] {
        &self.links
    }

    /// Returns the directories for temporary files that can be written.
    pub fn temporary_directories(&self) -> &[PathBuf] {
        &self.temporary
    }

    /// Returns the rules that mounts cannot enforce. What is missing in a directory that exists can be covered there.
    ///
    /// A caller that checks every path with [`Policy::access`] can ignore them.
    pub fn unenforceable_rules(&self) -> impl Iterator<Item = UnenforceableRule<'_>> {
        let is_obstacle = |rule: &&Rule| {
            let can_appear = matches!(rule.kind, Kind::Unreachable | Kind::Link);
            can_appear && self.has_writable_parent(rule)
        };
        self.rules.iter().filter(is_obstacle).map(|rule| UnenforceableRule { rule })
    }

    /// Returns the directories that mounts must hold in place, parents first.
    ///
    /// They are writable and above a rule: a process could rename one, and create another file or directory at the
    /// path of the rule. A directory that is a mount point cannot be renamed or removed.
    pub fn pinned(&self) -> Vec<&Path> {
        let mut pinned: Vec<&Path> = Vec::new();
        for rule in self.rules.iter().filter(|rule| self.has_writable_parent(rule)) {
            let writable = rule.path.ancestors().skip(1);
            // A directory that is itself the path of a rule is a mount point already.
            let free = writable.take_while(|directory| self.find(directory).is_none());
            pinned.extend(free);
        }
        pinned.sort();
        pinned.dedup();
        pinned
    }

    /// Returns the policy with some canonical paths denied, except for what it grants below them by rules of their own.
    #[must_use]
    pub fn without<'a>(&self, paths: impl IntoIterator<Item = &'a Path>) -> Self {
        let denied = |path: &Path| Rule { path: path.to_owned(), access: Access::Deny, kind: Kind::File };
        let rules = self.rules.iter().cloned().chain(paths.into_iter().map(denied)).collect();
        let policy = Self::from_parts(Parts {
            rules,
            patterns: self.patterns.clone(),
            network: self.network,
            links: self.links.clone(),
            temporary: self.temporary.clone(),
        });
        Self { hosts: self.hosts.clone(), ..policy }
    }

    /// Returns a policy that allows what both allow: at every path the lesser access, and the lesser network.
    ///
    /// Fails only if the patterns of both together are too large.
    pub fn narrow(&self, floor: &Self) -> Result<Self, PolicyError> {
        let both = self.rules.iter().chain(&floor.rules);
        let rules = both.map(|rule| Rule {
            access: self.granted(&rule.path).min(floor.granted(&rule.path)),
            ..rule.clone()
        });
        let patterns = self.patterns().iter().chain(floor.patterns()).cloned().collect();
        let (network, hosts) = match (self.network, floor.network) {
            (Network::Enabled, network) => (network, floor.hosts.clone()),
            (Network::Restricted, Network::Enabled) => (Network::Restricted, self.hosts.clone()),
            (Network::Restricted, Network::Restricted) => {
                let both = self.hosts.as_ref().zip(floor.hosts.as_ref());
                (Network::Restricted, both.map(|(hosts, floor)| hosts.narrow(floor)))
            }
        };
        let policy = Self::from_parts(Parts {
            rules: rules.collect(),
            patterns: Patterns::compile(patterns)
                .map_err(|why| PolicyError::new("the profile with the server's own", why))?,
            network,
            links: self.links.iter().chain(&floor.links).cloned().collect(),
            temporary: self.temporary.iter().chain(&floor.temporary).cloned().collect(),
        });
        Ok(Self { hosts, ..policy })
    }

    fn has_writable_parent(&self, rule: &Rule) -> bool {
        rule.path.parent().is_some_and(|parent| deepest(&self.rules, parent) == Access::Write)
    }

    fn find(&self, path: &Path) -> Option<&Rule> {
        find(&self.rules, path)
    }
}

/// Returns the access of the deepest rule at or above a path.
fn deepest(rules: &[Rule], path: &Path) -> Access {
    let mut above = path.ancestors().filter_map(|path| find(rules, path));
    above.next().map_or(Access::Deny, |rule| rule.access)
}

fn find<'a>(rules: &'a [Rule], path: &Path) -> Option<&'a Rule> {
    let at = rules.binary_search_by(|rule| rule.path.as_path().cmp(path)).ok()?;
    Some(&rules[at])
}

/// Rules sorted by path, one for each.
#[derive(Debug, Clone, Default)]
pub(crate) struct RuleMap(Vec<Rule>);

impl RuleMap {
    /// Adds a rule; two for one path become one.
    pub(crate) fn insert(&mut self, rule: Rule) {
        match self.0.binary_search_by(|known| known.path.cmp(&rule.path)) {
            Ok(at) => {
                let known = &mut self.0[at];
                known.access = known.access.combine(rule.access);
                known.kind = known.kind.min(rule.kind);
            }
            Err(at) => self.0.insert(at, rule),
        }
    }

    /// Returns the access of the deepest rule at or above a path.
    pub(crate) fn access(&self, path: &Path) -> Access {
        deepest(&self.0, path)
    }

    /// Removes every rule with the same access as the rule above it.
    fn minimal(self) -> Vec<Rule> {
        let mut kept: Vec<Rule> = Vec::with_capacity(self.0.len());
        // The kept rules from the root to the one that applies.
        let mut above: Vec<usize> = Vec::new();
        for rule in self.0 {
            while above.last().is_some_and(|at| !rule.path.starts_with(&kept[*at].path)) {
                above.pop();
            }
            let inherited = above.last().map_or(Access::Deny, |at| kept[*at].access);
            // A grant of a git directory is an exception from the protection of all others.
            let is_exception = rule.access == Access::Write && rule.path.ends_with(GIT);
            if rule.access != inherited || is_exception {
                above.push(kept.len());
                kept.push(rule);
            }
        }
        kept
    }
}

impl FromIterator<Rule> for RuleMap {
    fn from_iter<I: IntoIterator<Item = Rule>>(rules: I) -> Self {
        let mut map = Self::default();
        rules.into_iter().for_each(|rule| map.insert(rule));
        map
    }
}
