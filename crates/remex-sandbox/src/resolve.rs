//! From the profile of a client to a policy.
//!
//! Fails closed: an entry that cannot be understood or enforced is an error, never a wider policy. The result does not
//! depend on the order of the entries. Start at [`resolve`].

use std::{
    cell::OnceCell,
    ffi::OsStr,
    path::{Component, Path, PathBuf},
};

use remex_proto::{
    HostPath,
    sandbox::{self, Context, Entry, EntryPath, FileSystem, MissingPathBehavior, Permissions, Special},
};

use crate::{
    base::{
        access::Access,
        error::{PolicyError, Reason},
        host::{Host, Kind, Located, locate},
        hosts::HostList,
        pattern::{self, Glob, Pattern, Patterns, Start},
    },
    policy::{GIT, Link, Parts, Policy, Rule, RuleMap},
    protect::{Protection, git_directories},
};

/// The entries of a profile, counted once for each workspace root.
const MAX_RULES: usize = 4096;

/// What any program needs to run: its interpreter, libraries, and the files that name users, hosts and certificates.
const MINIMAL: [&str; 24] = [
    "/bin",
    "/etc/alternatives",
    "/etc/ca-certificates",
    "/etc/group",
    "/etc/hosts",
    "/etc/ld.so.cache",
    "/etc/ld.so.conf",
    "/etc/ld.so.conf.d",
    "/etc/ld.so.preload",
    "/etc/localtime",
    "/etc/nsswitch.conf",
    "/etc/passwd",
    "/etc/pki/tls/certs",
    "/etc/resolv.conf",
    "/etc/ssl/certs",
    "/etc/ssl/openssl.cnf",
    "/lib",
    "/lib32",
    "/lib64",
    "/libx32",
    "/nix/store",
    "/run/current-system/sw",
    "/sbin",
    "/usr",
];

/// A profile, and what it is relative to.
#[derive(Debug, Clone, Copy)]
pub struct Request<'a> {
    /// What the client sent.
    pub context: &'a Context,
    /// The working directory of the process; applies if the context has none.
    pub cwd: Option<&'a Path>,
    /// `TMPDIR` in the environment of the process; applies if the context has no `temporaryDirectories`.
    pub tmpdir: Option<&'a OsStr>,
}

/// Decides what a profile allows on a host.
pub fn resolve(request: &Request<'_>, host: &impl Host) -> Result<Policy, PolicyError> {
    let policy = resolve_permissions(request, host)?;
    let Some(hosts) = &request.context.hosts else { return Ok(policy) };
    let sandbox::Hosts { allow, deny } = hosts;
    let list = HostList::parse(allow.iter().map(String::as_str), deny.iter().map(String::as_str))
        .map_err(|error| PolicyError::new("the list of hosts", Reason::Host(error)))?;
    Ok(policy.with_hosts(list.into()))
}

fn resolve_permissions(request: &Request<'_>, host: &impl Host) -> Result<Policy, PolicyError> {
    match &request.context.permissions {
        Permissions::Disabled => Ok(Policy::open(sandbox::Network::Enabled)),
        Permissions::External { network }
        | Permissions::Managed { file_system: FileSystem::Unrestricted, network } => {
            Ok(Policy::open(*network))
        }
        Permissions::Managed { file_system: FileSystem::Restricted { entries }, network } => {
            let resolver = Resolver { request, host, roots: OnceCell::new() };
            let mut collected = Collected::default();
            for entry in entries {
                let fail = |why| PolicyError::new(describe(entry), why);
                resolver.add(entry, &mut collected).map_err(fail)?;
                if collected.targets.len() + collected.patterns.len() > MAX_RULES {
                    return Err(fail(Reason::TooLarge {
                        what: "entries and roots".into(),
                        limit: MAX_RULES,
                    }));
                }
            }
            let temporary = resolver.temporary_directories();
            collected.decide(*network, temporary, host)
        }
    }
}

/// Returns an entry in the client's words.
fn describe(entry: &Entry) -> String {
    let access = Access::from(entry.access);
    match &entry.path {
        EntryPath::Path { path } => format!("`{access}` to `{path}`"),
        EntryPath::GlobPattern { pattern } => format!("`{access}` to the pattern `{pattern}`"),
        EntryPath::Special { value } => match value {
            Special::Root => format!("`{access}` to `root`"),
            Special::Minimal => format!("`{access}` to `minimal`"),
            Special::ProjectRoots { subpath: None } => format!("`{access}` to `project_roots`"),
            Special::ProjectRoots { subpath: Some(subpath) } => {
                format!("`{access}` to `{subpath}` in `project_roots`")
            }
            Special::Tmpdir => format!("`{access}` to `tmpdir`"),
            Special::SlashTmp => format!("`{access}` to `slash_tmp`"),
            Special::Unknown => format!("`{access}` to a special path"),
        },
    }
}

struct Resolver<'a, H> {
    request: &'a Request<'a>,
    host: &'a H,
    /// The workspace roots as the client wrote them.
    roots: OnceCell<Vec<PathBuf>>,
}

impl<H: Host> Resolver<'_, H> {
    /// Adds what one entry means.
    fn add(&self, entry: &Entry, collected: &mut Collected) -> Result<(), Reason> {
        let access = Access::from(entry.access);
        let paths = match &entry.path {
            EntryPath::Path { path } => vec![native(path)?],
            EntryPath::GlobPattern { pattern } => return self.add_pattern(pattern, entry, collected),
            EntryPath::Special { value } => match value {
                Special::Root => vec![PathBuf::from("/")],
                Special::Minimal => MINIMAL.map(PathBuf::from).into(),
                Special::ProjectRoots { subpath } => {
                    let subpath = Path::new(subpath.as_deref().unwrap_or_default());
                    let is_below = subpath
                        .components()
                        .all(|part| matches!(part, Component::Normal(_) | Component::CurDir));
                    if !is_below || subpath.as_os_str().as_encoded_bytes().contains(&0) {
                        return Err(Reason::Subpath);
                    }
                    if access == Access::Read {
                        collected.protection.add_name(subpath);
                    }
                    self.roots()?.iter().map(|root| root.join(subpath)).collect()
                }
                Special::Tmpdir => self.tmpdirs()?,
                Special::SlashTmp => vec![PathBuf::from("/tmp")],
                Special::Unknown => {
                    match access {
                        Access::Deny => return Err(Reason::UnknownSpecial),
                        // It may protect something from writes.
                        Access::Read => collected.unknown_read = Some(describe(entry)),
                        Access::Write => {}
                    }
                    return Ok(());
                }
            },
        };
        let absence = Absence::of(entry);
        for path in paths {
            let located = locate(self.host, &path)?;
            if access == Access::Write && matches!(entry.path, EntryPath::Path { .. }) {
                self.check_exists(&located)?;
            }
            if access == Access::Read && located.kind == Kind::File && located.path.ends_with(GIT) {
                self.add_git_directories(&located.path, entry, collected)?;
            }
            collected.add(Target { located, access, absence, what: describe(entry) });
        }
        Ok(())
    }

    /// Fails if a path to be written does not exist and the client asks for an error in that case.
    fn check_exists(&self, located: &Located) -> Result<(), Reason> {
        let is_wanted = self.request.context.refuse_missing_writes == Some(true);
        if !is_wanted || !located.kind.is_missing() {
            return Ok(());
        }
        let path = located.path.clone();
        let mut links = located.links.iter().map(|(link, _)| link);
        Err(match links.find(|link| !self.host.is_system_link(link)) {
            Some(link) => Reason::UntrustedLink { link: link.clone(), target: path },
            None => Reason::MissingWritable { path },
        })
    }

    /// Protects what a `.git` file names: the git directory of a worktree or a submodule, and what that shares.
    fn add_git_directories(
        &self,
        file: &Path,
        entry: &Entry,
        collected: &mut Collected,
    ) -> Result<(), Reason> {
        for located in git_directories(self.host, file)? {
            let (access, absence) = (Access::Read, Absence::Protected);
            collected.add(Target { located, access, absence, what: describe(entry) });
        }
        Ok(())
    }

    fn add_pattern(&self, pattern: &str, entry: &Entry, collected: &mut Collected) -> Result<(), Reason> {
        let access = Access::from(entry.access);
        for glob in pattern::parse(pattern)? {
            if access != Access::Deny && !glob.rest.is_empty() {
                return Err(Reason::GrantPattern);
            }
            for base in self.bases(&glob)? {
                let located = locate(self.host, &base.join(&glob.literal))?;
                if access != Access::Deny {
                    let absence = Absence::of(entry);
                    collected.add(Target { located, access, absence, what: describe(entry) });
                    continue;
                }
                collected.patterns.push(Pattern { base: located.path, rest: glob.rest.join("/") });
                collected.protected_links.extend(located.links.into_iter().map(|(link, _)| link));
            }
        }
        Ok(())
    }

    /// Returns the directories that a pattern starts at.
    fn bases(&self, glob: &Glob) -> Result<Vec<PathBuf>, Reason> {
        match glob.start {
            Start::FileSystem => Ok(vec![PathBuf::from("/")]),
            Start::Roots => self.roots().map(<[_]>::to_vec),
            Start::Home => {
                let home = self.request.context.user_home_dir.as_ref().ok_or(Reason::NoHome)?;
                Ok(vec![native(home)?])
            }
        }
    }

    /// Returns the workspace roots: those of the context, or else the working directory.
    fn roots(&self) -> Result<&[PathBuf], Reason> {
        if let Some(roots) = self.roots.get() {
            return Ok(roots);
        }
        let context = self.request.context;
        let policy_context = context.policy_context.as_ref();
        let roots = policy_context.and_then(|context| context.workspace_roots.as_ref());
        let cwd = policy_context.and_then(|context| context.cwd.as_ref());
        let roots = match (roots.or(context.workspace_roots.as_ref()), cwd.or(context.cwd.as_ref())) {
            (Some(roots), _) => roots.iter().map(native).collect::<Result<_, _>>()?,
            (None, Some(cwd)) => vec![native(cwd)?],
            (None, None) => vec![self.request.cwd.ok_or(Reason::NoRoots)?.to_owned()],
        };
        Ok(self.roots.get_or_init(|| roots))
    }

    /// Returns what `tmpdir` stands for.
    fn tmpdirs(&self) -> Result<Vec<PathBuf>, Reason> {
        match &self.request.context.temporary_directories {
            Some(directories) => directories.iter().map(native).collect(),
            None => {
                let tmpdir = self.request.tmpdir.map(Path::new).filter(|path| path.is_absolute());
                Ok(tmpdir.map(Path::to_owned).into_iter().collect())
            }
        }
    }

    /// Returns where temporary files usually go, as far as it exists.
    fn temporary_directories(&self) -> Vec<PathBuf> {
        let candidates = self.tmpdirs().unwrap_or_default().into_iter().chain([PathBuf::from("/tmp")]);
        let located = candidates.filter_map(|path| locate(self.host, &path).ok());
        located.filter(|located| located.kind == Kind::Directory).map(|located| located.path).collect()
    }
}

fn native(path: &HostPath) -> Result<PathBuf, Reason> {
    path.native().map(Path::to_owned).map_err(|_| Reason::Foreign)
}

/// One path of an entry.
struct Target {
    located: Located,
    access: Access,
    absence: Absence,
    what: String,
}

/// What an entry means if its path does not exist.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Absence {
    /// The path must not be created.
    Protected,
    /// A path to be read must not be created; otherwise nothing. Nothing either if there is no directory to create it
    /// in.
    Skipped,
    /// Nothing.
    Ignored,
}

impl Absence {
    fn of(entry: &Entry) -> Self {
        match (&entry.path, entry.missing_path_behavior) {
            // No host has all of the system directories.
            (EntryPath::Special { value: Special::Minimal }, _) => Self::Ignored,
            (_, Some(MissingPathBehavior::Skip)) => Self::Skipped,
            (_, Some(MissingPathBehavior::Other) | None) => Self::Protected,
        }
    }

    /// Returns whether an entry with this access means nothing.
    fn is_skipped_for(self, access: Access) -> bool {
        match self {
            Self::Protected => false,
            // A process that creates `.git` decides what git runs outside of the sandbox.
            Self::Skipped => access != Access::Read,
            Self::Ignored => true,
        }
    }
}

impl Target {
    /// Returns its rule, unless that depends on other entries: a missing path to be read may be a protection.
    fn rule(&self) -> Option<Rule> {
        let Located { path, kind, .. } = &self.located;
        let is_firm = self.access == Access::Deny || !kind.is_missing();
        is_firm.then(|| Rule { path: path.clone(), access: self.access, kind: *kind })
    }

    /// Returns the first link on the way that the rules let a program replace.
    fn replaceable_link(&self, rules: &RuleMap) -> Option<&Path> {
        let links = self.located.links.iter().map(|(link, _)| link.as_path());
        links.into_iter().find(|link| rules.access(link) == Access::Write)
    }
}

/// What all entries mean.
#[derive(Default)]
struct Collected {
    targets: Vec<Target>,
    patterns: Vec<Pattern>,
    /// Links on the way to what is denied.
    protected_links: Vec<PathBuf>,
    /// A `read` entry for a name that the client does not know.
    unknown_read: Option<String>,
    /// What stays read-only in every writable directory.
    protection: Protection,
}

impl Collected {
    fn add(&mut self, target: Target) {
        let is_skipped = match target.located.kind {
            Kind::Missing => target.access == Access::Write || target.absence.is_skipped_for(target.access),
            Kind::Unreachable => target.access == Access::Write || target.absence != Absence::Protected,
            Kind::Link | Kind::File | Kind::Directory => false,
        };
        if target.access == Access::Write {
            self.protection.except(&target.located.path);
        }
        // A missing path is not granted: what the grant means would depend on the process that creates it.
        if !is_skipped {
            self.targets.push(target);
        }
    }

    /// Returns the policy, unless it cannot be enforced.
    fn decide(
        self,
        network: sandbox::Network,
        temporary: Vec<PathBuf>,
        host: &impl Host,
    ) -> Result<Policy, PolicyError> {
        let mut rules: RuleMap = self.targets.iter().filter_map(Target::rule).collect();
        self.check_links(&rules)?;
        self.check_writable(&rules, host)?;
        let protections = self.protections(&rules);
        protections.into_iter().for_each(|rule| rules.insert(rule));
        let roots = self.targets.iter().filter(|target| target.access == Access::Write);
        let roots = roots.map(|target| &target.located).filter(|root| root.kind == Kind::Directory);
        self.protection.apply(&mut rules, roots.map(|root| &*root.path), &temporary, host)?;

        let grants = self.targets.iter().filter(|target| target.access > Access::Deny);
        let links = grants.flat_map(|target| &target.located.links);
        let policy = Policy::from_parts(Parts {
            links: links.map(|(path, target)| Link { path: path.clone(), target: target.clone() }).collect(),
            rules,
            patterns: Patterns::compile(self.patterns)
                .map_err(|why| PolicyError::new("the patterns of the profile", why))?,
            network,
            temporary,
        });
        let has_writable = policy.rules().iter().any(|rule| rule.access == Access::Write);
        match self.unknown_read {
            Some(what) if has_writable => Err(PolicyError::new(what, Reason::UnknownSpecial)),
            _ => Ok(policy),
        }
    }

    /// Fails if a program could extend a grant by replacing a link on the way to it.
    ///
    /// The profile is resolved anew for each request, and a program that was allowed to write may have run before.
    fn check_links(&self, rules: &RuleMap) -> Result<(), PolicyError> {
        let is_reliable =
            |target: &&Target| target.access == Access::Deny || target.replaceable_link(rules).is_none();
        let reliable: RuleMap = self.targets.iter().filter(is_reliable).filter_map(Target::rule).collect();
        for target in self.targets.iter().filter(|target| target.access > Access::Deny) {
            if let Some(link) = target.replaceable_link(rules)
                && rules.access(&target.located.path) > reliable.access(&target.located.path)
            {
                let why = Reason::WritableLink { link: link.to_owned() };
                return Err(PolicyError::new(&*target.what, why));
            }
        }
        Ok(())
    }

    /// Fails if a grant to write leads through a link that a program may have made that was confined before.
    fn check_writable(&self, rules: &RuleMap, host: &impl Host) -> Result<(), PolicyError> {
        let untrusted = |target: &Target| {
            let links = target.located.links.iter().map(|(link, _)| link);
            links.into_iter().find(|link| !host.is_system_link(link)).cloned()
        };
        let direct = self.targets.iter().filter(|target| target.located.links.is_empty());
        let direct: RuleMap = direct.filter_map(Target::rule).collect();
        for target in self.targets.iter().filter(|target| target.access == Access::Write) {
            let path = &target.located.path;
            if rules.access(path) > direct.access(path)
                && let Some(link) = untrusted(target)
            {
                let why = Reason::UntrustedLink { link, target: path.clone() };
                return Err(PolicyError::new(&*target.what, why));
            }
        }
        Ok(())
    }

    /// Returns the rules that keep programs from putting something else in the place of what is protected.
    fn protections(&self, rules: &RuleMap) -> Vec<Rule> {
        let protected = self.targets.iter().filter(|target| target.access < Access::Write);
        let links = protected.clone().flat_map(|target| target.located.links.iter().map(|(link, _)| link));
        let links = links.chain(&self.protected_links).map(|link| (link, Kind::Link));
        let missing = protected
            .filter(|target| target.access == Access::Read && target.located.kind.is_missing())
            .map(|target| (&target.located.path, target.located.kind));
        links
            .chain(missing)
            .filter(|(path, _)| rules.access(path) == Access::Write)
            .map(|(path, kind)| Rule { path: path.clone(), access: Access::Read, kind })
            .collect()
    }
}
