//! Turns the sandbox that a client asks for into a policy.
//!
//! What a profile allows depends on the links and the missing paths of the moment, so every request resolves it anew.
//! To make that cheap, the last few policies are kept together with everything that was found out about the file
//! system to resolve them, and that is looked up again before one is reused.
//!
//! The server and the scopes of a credential may have a floor: then the policy allows what both the client and the
//! floor allow. Nothing is enforced here. Start at [`Confinement`].

mod credentials;
mod own_directories;

use std::{
    cell::{Cell, RefCell},
    collections::{BTreeMap, BTreeSet, VecDeque},
    ffi::{OsStr, OsString},
    io,
    path::{self, Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock},
};

use remex_proto::{
    ErrorKind, RpcError,
    sandbox::{Context, Network, Permissions, Sandbox},
};
use remex_sandbox::{
    Access, Host, Hosts, Node, Policy, PolicyError, Preset, Reason, Request, SystemHost, resolve,
};

use crate::{config::SandboxFloor, scope::Floor};

/// Policies that are kept; clients use few profiles at a time, and compiled patterns may be large.
const KEPT: usize = 8;

/// A policy that depends on more paths than this is not kept.
const MAX_FACTS: usize = 1024;

/// The words of the base dialect for every sandbox that cannot be enforced.
const UNENFORCEABLE: &str = "sandbox intent cannot be enforced on this executor";

/// Resolves the sandboxes of all clients.
#[derive(Debug)]
pub(crate) struct Confinement {
    /// The floor of the server, if it has one.
    server: Option<Context>,
    read_only: Context,
    workspace_write: Context,
    /// What nothing confined may reach.
    hidden: RwLock<Arc<Hidden>>,
    /// What was hidden last from file requests. Held briefly, never during a system call.
    covered: Mutex<Option<Arc<Covered>>>,
    /// The policy used last is at the back. Held briefly, never during a system call.
    kept: Mutex<VecDeque<Arc<Kept>>>,
}

/// What nothing confined may reach, whatever its profile grants.
#[derive(Clone, Debug, Default)]
pub(crate) struct Hidden {
    /// Files and directories of the server itself.
    pub(crate) files: Vec<PathBuf>,
    /// Files of the server that may be replaced while something confined runs.
    pub(crate) credentials: Vec<PathBuf>,
    /// The directories of all servers of this user, whether they exist or not.
    pub(crate) own_directories: Vec<PathBuf>,
    /// The home of the server's user, which is never hidden.
    pub(crate) home: Option<PathBuf>,
}

/// A policy, and what it depends on.
#[derive(Debug)]
struct Kept {
    key: Key,
    /// Everything that was asked of the file system; in this order, parents come before what is below them.
    facts: BTreeMap<PathBuf, Node>,
    /// The files that were read.
    heads: BTreeMap<PathBuf, Option<Vec<u8>>>,
    /// The links that were asked about.
    system_links: BTreeMap<PathBuf, bool>,
    policy: Arc<Policy>,
}

/// A policy without the files of the server.
#[derive(Debug)]
struct Covered {
    /// The policy with them.
    whole: Arc<Policy>,
    hidden: BTreeSet<PathBuf>,
    policy: Arc<Policy>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Key {
    client: Option<Context>,
    floors: Vec<Context>,
    cwd: Option<PathBuf>,
    tmpdir: Option<OsString>,
}

/// What a request is confined by, and what that is relative to.
struct Demand<'a> {
    client: Option<&'a Context>,
    /// Not relative to anything that the client chooses.
    floors: Vec<&'a Context>,
    cwd: Option<&'a Path>,
    tmpdir: Option<&'a OsStr>,
}

impl Confinement {
    pub(crate) fn new(floor: SandboxFloor, hidden: Hidden) -> Self {
        let SandboxFloor { permissions, hosts, workspace } = floor;
        let context = |permissions: Permissions, hosts| Context {
            permissions,
            windows_sandbox_level: "disabled".to_owned(),
            cwd: None,
            workspace_roots: Some(workspace.iter().cloned().map(Into::into).collect()),
            policy_context: None,
            user_home_dir: None,
            // Not those that a client names.
            temporary_directories: Some(Vec::new()),
            use_legacy_landlock: None,
            hosts,
        };
        Confinement {
            server: permissions.map(|permissions| context(permissions, hosts)),
            read_only: context(Preset::ReadOnly.permissions(), None),
            workspace_write: context(Preset::WorkspaceWrite.permissions(), None),
            hidden: RwLock::new(Arc::new(hidden)),
            covered: Mutex::default(),
            kept: Mutex::default(),
        }
    }

    /// Hides a file or directory from everything that is confined from now on.
    pub(crate) fn hide(&self, path: &Path) {
        self.change_hidden(|hidden| hidden.files.push(path.to_owned()));
    }

    /// Replaces the files that are hidden as credentials from everything that is confined from now on.
    pub(crate) fn set_credentials(&self, credentials: Vec<PathBuf>) {
        self.change_hidden(|hidden| hidden.credentials = credentials);
    }

    fn change_hidden(&self, change: impl FnOnce(&mut Hidden)) {
        change(Arc::make_mut(&mut self.hidden.write().unwrap_or_else(PoisonError::into_inner)));
    }

    /// Returns what a process that starts now may not reach, after creating what must be there to be hidden. Blocks, and
    /// may hang as any file access.
    pub(crate) fn hidden_from_process(&self, policy: &Policy, cwd: &Path, program: &Path) -> Arc<[PathBuf]> {
        let hidden = self.hidden();
        let granted = policy.rules().iter().filter(|rule| rule.access > Access::Deny);
        let granted = granted.map(|rule| rule.path.as_path()).filter(|path| *path != Path::new("/"));
        let named = [cwd, program].into_iter().filter_map(|path| path.canonicalize().ok());
        let needed: Vec<_> = granted.map(Path::to_owned).chain(named).collect();
        let credentials = credentials::covers(&hidden.credentials, &needed, hidden.home.as_deref());
        let own = own_directories::create(&hidden.own_directories).map(Path::to_owned);
        hidden.files.iter().cloned().chain(credentials).chain(own).collect()
    }

    fn hidden(&self) -> Arc<Hidden> {
        Arc::clone(&self.hidden.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Takes the files of the server out of a policy for file requests. Blocks, and may hang as any file access.
    ///
    /// Whoever may not replace a file may not replace what leads to it either, so both are denied.
    pub(crate) fn without_hidden(&self, whole: Arc<Policy>) -> Arc<Policy> {
        if whole.is_open() {
            return whole;
        }
        let all = self.hidden();
        let files = all.files.iter().chain(&all.credentials).map(PathBuf::as_path);
        let hidden: BTreeSet<PathBuf> = files
            .chain(own_directories::usable(&all.own_directories))
            .flat_map(|path| [path::absolute(path).ok(), path.canonicalize().ok()])
            .flatten()
            .collect();
        if hidden.is_empty() {
            return whole;
        }
        let last = || self.covered.lock().unwrap_or_else(PoisonError::into_inner);
        let known = last().clone();
        if let Some(known) = known.filter(|known| Arc::ptr_eq(&known.whole, &whole) && known.hidden == hidden)
        {
            return Arc::clone(&known.policy);
        }
        let policy = Arc::new(whole.without(hidden.iter().map(PathBuf::as_path)));
        let covered = Arc::new(Covered { whole, hidden, policy: Arc::clone(&policy) });
        // The replaced one may be large, so it is freed without the lock.
        let replaced = last().replace(covered);
        drop(replaced);
        policy
    }

    /// Returns whether the server limits the network of all processes to some hosts.
    pub(crate) fn limits_hosts(&self) -> bool {
        self.server.as_ref().is_some_and(|context| context.hosts.is_some())
    }

    /// Returns whether the server confines everything.
    pub(crate) fn has_floor(&self) -> bool {
        self.server.is_some()
    }

    /// Returns whether files are as accessible as without a sandbox, as far as that is known in advance.
    pub(crate) fn leaves_files_open(&self, sandbox: &Sandbox, floor: Floor) -> bool {
        sandbox.leaves_files_open() && floor == Floor::Unconfined && !self.has_floor()
    }

    /// Resolves the sandbox of a file request with the floors. Blocks, and may hang as any file access.
    pub(crate) fn resolve_for_files(&self, sandbox: &Sandbox, floor: Floor) -> Result<Arc<Policy>, RpcError> {
        self.resolve_on(&SystemHost, &self.demand(sandbox, floor, None, None))
    }

    /// Returns whether a process with this sandbox may have to be confined.
    pub(crate) fn concerns_processes(&self, sandbox: &Sandbox, floor: Floor) -> bool {
        !sandbox.is_disabled() || floor != Floor::Unconfined || self.has_floor()
    }

    /// Resolves the sandbox of a process with the floors, given its working directory and its `TMPDIR`. Blocks, and may hang as any
    /// file access.
    pub(crate) fn resolve_for_process(
        &self,
        sandbox: &Sandbox,
        floor: Floor,
        cwd: &Path,
        tmpdir: Option<&OsStr>,
    ) -> Result<Arc<Policy>, RpcError> {
        self.resolve_on(&SystemHost, &self.demand(sandbox, floor, Some(cwd), tmpdir))
    }

    /// Returns the hosts that the floors allow, if they limit them. Blocks, and may hang as any file access.
    pub(crate) fn hosts_of_floors(&self, floor: Floor, cwd: &Path) -> Result<Option<Hosts>, RpcError> {
        Ok(self.resolve_for_process(&Sandbox::Disabled, floor, cwd, None)?.hosts().cloned())
    }

    fn demand<'a>(
        &'a self,
        sandbox: &'a Sandbox,
        floor: Floor,
        cwd: Option<&'a Path>,
        tmpdir: Option<&'a OsStr>,
    ) -> Demand<'a> {
        let client = match sandbox {
            Sandbox::Disabled => None,
            Sandbox::Confined(context) => Some(&**context),
        };
        let scope = match floor {
            Floor::Unconfined => None,
            Floor::WorkspaceWrite => Some(&self.workspace_write),
            Floor::ReadOnly => Some(&self.read_only),
        };
        Demand { client, floors: self.server.iter().chain(scope).collect(), cwd, tmpdir }
    }

    fn resolve_on(&self, host: &impl Host, demand: &Demand<'_>) -> Result<Arc<Policy>, RpcError> {
        if let Some(kept) = self.find(demand)
            && kept.is_current(host)
        {
            return Ok(Arc::clone(&kept.policy));
        }
        let recorder = Recorder {
            host,
            facts: RefCell::default(),
            heads: RefCell::default(),
            system_links: RefCell::default(),
            has_failed: Cell::new(false),
        };
        let mut policy = Policy::open(Network::Enabled);
        for request in demand.requests() {
            let one = resolve(&request, &recorder).and_then(|one| {
                // Most requests have one context only.
                if policy.is_open() && policy.network() == Network::Enabled {
                    Ok(one)
                } else {
                    policy.narrow(&one)
                }
            });
            policy = one.map_err(|error| unenforceable(&error))?;
        }
        let (policy, has_failed) = (Arc::new(policy), recorder.has_failed.get());
        let Recorder { facts, heads, system_links, .. } = recorder;
        let (facts, heads, system_links) =
            (facts.into_inner(), heads.into_inner(), system_links.into_inner());
        if !has_failed && facts.len() <= MAX_FACTS {
            self.keep(Kept {
                key: Key::from(demand),
                facts,
                heads,
                system_links,
                policy: Arc::clone(&policy),
            });
        }
        Ok(policy)
    }

    fn find(&self, demand: &Demand<'_>) -> Option<Arc<Kept>> {
        let mut kept = self.kept();
        let index = kept.iter().rposition(|kept| kept.key.is_of(demand))?;
        let found = kept.remove(index)?;
        kept.push_back(Arc::clone(&found));
        Some(found)
    }

    fn keep(&self, new: Kept) {
        let mut kept = self.kept();
        let outdated = kept.iter().position(|known| known.key == new.key);
        let replaced = match outdated {
            Some(index) => kept.remove(index),
            None if kept.len() >= KEPT => kept.pop_front(),
            None => None,
        };
        kept.push_back(Arc::new(new));
        drop(kept);
        // May be large, so freed without the lock.
        drop(replaced);
    }

    fn kept(&self) -> MutexGuard<'_, VecDeque<Arc<Kept>>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl SandboxFloor {
    /// Returns whether what the floor confines, or a scope that confines to the workspace, may replace a file. May block.
    pub fn lets_write(&self, file: &Path) -> bool {
        let places = [path::absolute(file).ok(), file.canonicalize().ok()];
        let is_below = |root: &PathBuf| {
            let roots = [Some(root.clone()), root.canonicalize().ok()];
            roots.iter().flatten().any(|root| places.iter().flatten().any(|place| place.starts_with(root)))
        };
        let confined = || Confinement::new(self.clone(), Hidden::default());
        let is_writable =
            |policy: Arc<Policy>| places.iter().flatten().any(|place| policy.access(place) == Access::Write);
        let by_floor = || confined().resolve_for_files(&Sandbox::Disabled, Floor::Unconfined);
        self.workspace.iter().any(is_below) || self.permissions.is_some() && by_floor().is_ok_and(is_writable)
    }
}

impl<'a> Demand<'a> {
    fn requests(&self) -> impl Iterator<Item = Request<'a>> {
        let Self { cwd, tmpdir, .. } = *self;
        let client = self.client.map(|context| Request { context, cwd, tmpdir });
        let floors = self.floors.iter().map(|context| Request { context, cwd: None, tmpdir: None });
        client.into_iter().chain(floors)
    }
}

impl Kept {
    /// Returns whether the file system still says what it said.
    fn is_current(&self, host: &impl Host) -> bool {
        self.facts.iter().all(|(path, node)| host.node(path).is_ok_and(|now| now == *node))
            && self.heads.iter().all(|(path, head)| host.head(path) == *head)
            && self.system_links.iter().all(|(link, is_one)| host.is_system_link(link) == *is_one)
    }
}

impl Key {
    fn is_of(&self, demand: &Demand<'_>) -> bool {
        self.client.as_ref() == demand.client
            && self.floors.iter().eq(demand.floors.iter().copied())
            && self.cwd.as_deref() == demand.cwd
            && self.tmpdir.as_deref() == demand.tmpdir
    }
}

impl From<&Demand<'_>> for Key {
    fn from(demand: &Demand<'_>) -> Self {
        Key {
            client: demand.client.cloned(),
            floors: demand.floors.iter().copied().cloned().collect(),
            cwd: demand.cwd.map(Path::to_owned),
            tmpdir: demand.tmpdir.map(OsStr::to_owned),
        }
    }
}

/// Asks the file system about each path once, and keeps the answers.
struct Recorder<'a, H> {
    host: &'a H,
    facts: RefCell<BTreeMap<PathBuf, Node>>,
    heads: RefCell<BTreeMap<PathBuf, Option<Vec<u8>>>>,
    system_links: RefCell<BTreeMap<PathBuf, bool>>,
    /// Whether a question had no answer.
    has_failed: Cell<bool>,
}

impl<H: Host> Host for Recorder<'_, H> {
    fn node(&self, path: &Path) -> io::Result<Node> {
        if let Some(node) = self.facts.borrow().get(path) {
            return Ok(node.clone());
        }
        let found = self.host.node(path);
        match &found {
            Ok(node) => drop(self.facts.borrow_mut().insert(path.to_owned(), node.clone())),
            Err(_) => self.has_failed.set(true),
        }
        found
    }

    fn is_system_link(&self, link: &Path) -> bool {
        let is_one = self.host.is_system_link(link);
        self.system_links.borrow_mut().insert(link.to_owned(), is_one);
        is_one
    }

    fn head(&self, path: &Path) -> Option<Vec<u8>> {
        let head = self.host.head(path);
        self.heads.borrow_mut().insert(path.to_owned(), head.clone());
        head
    }
}

/// Returns the answer to a request whose profile cannot be applied.
pub(crate) fn unenforceable(error: &PolicyError) -> RpcError {
    match &error.why {
        // The profile means nothing on any host.
        Reason::Foreign | Reason::NoRoots | Reason::Subpath | Reason::Pattern(_) | Reason::Host(_) => {
            RpcError::new(ErrorKind::InvalidParams, error.to_string()).with_hint(error.hint)
        }
        Reason::GrantPattern
        | Reason::NoHome
        | Reason::UnknownSpecial
        | Reason::Unresolved { .. }
        | Reason::WritableLink { .. }
        | Reason::UntrustedLink { .. }
        | Reason::ReplaceableLink { .. }
        | Reason::Creatable { .. }
        | Reason::TooLarge { .. } => unavailable(format!("{error}; {}", error.hint)),
    }
}

/// Returns the answer to a request that this server cannot confine, with the reason and what to do.
pub(crate) fn unavailable(hint: impl Into<String>) -> RpcError {
    RpcError::new(ErrorKind::SandboxUnavailable, UNENFORCEABLE).with_hint(hint)
}

#[cfg(test)]
mod tests {
    use remex_proto::sandbox::{Access, Entry, EntryPath, MissingPathBehavior, Special};
    use remex_sandbox::{
        Access as Allowed,
        testing::{Tree, context},
    };

    use super::*;

    fn special(access: Access, value: Special) -> Entry {
        Entry { path: EntryPath::Special { value }, access, missing_path_behavior: None }
    }

    /// Everything readable, `/w` writable except for `.git`, and no `.env` file.
    fn workspace() -> Sandbox {
        let git = Special::ProjectRoots { subpath: Some(".git".to_owned()) };
        let entries = vec![
            special(Access::Read, Special::Root),
            special(Access::Write, Special::ProjectRoots { subpath: None }),
            Entry { missing_path_behavior: Some(MissingPathBehavior::Skip), ..special(Access::Read, git) },
            Entry {
                path: EntryPath::GlobPattern { pattern: "**/.env".to_owned() },
                access: Access::Deny,
                missing_path_behavior: None,
            },
        ];
        Sandbox::Confined(Box::new(context(entries, Some(vec![PathBuf::from("/w").into()]))))
    }

    fn unfloored() -> Confinement {
        Confinement::new(SandboxFloor::default(), Hidden::default())
    }

    fn policy(confinement: &Confinement, host: &Tree, sandbox: &Sandbox, floor: Floor) -> Arc<Policy> {
        confinement.resolve_on(host, &confinement.demand(sandbox, floor, None, None)).unwrap()
    }

    #[test]
    fn a_floor_narrows_every_request_and_never_widens_one() {
        let host = Tree::new(["/w/.git/config", "/v/file", "/tmp/", "/etc/passwd"]);
        let access = |confinement: &Confinement, sandbox: &Sandbox, floor, path: &str| {
            policy(confinement, &host, sandbox, floor).access(Path::new(path))
        };
        let all = special(Access::Write, Special::Root);
        let greedy = Sandbox::Confined(Box::new(context(vec![all], Some(vec![PathBuf::from("/").into()]))));
        let server = |name: &str| {
            let workspace = vec![PathBuf::from("/w")];
            Confinement::new(
                SandboxFloor { permissions: SandboxFloor::preset(name), hosts: None, workspace },
                Hidden::default(),
            )
        };
        for sandbox in [&Sandbox::Disabled, &greedy] {
            let (none, writing, reading) = (server("none"), server("workspace-write"), server("read-only"));
            assert!(none.leaves_files_open(sandbox, Floor::Unconfined));
            assert!(!none.leaves_files_open(sandbox, Floor::WorkspaceWrite));
            assert!(!writing.leaves_files_open(sandbox, Floor::Unconfined));
            for (confinement, floor) in [(&none, Floor::WorkspaceWrite), (&writing, Floor::Unconfined)] {
                assert_eq!(access(confinement, sandbox, floor, "/w/file"), Allowed::Write);
                assert_eq!(access(confinement, sandbox, floor, "/w/.git/config"), Allowed::Read);
                assert_eq!(access(confinement, sandbox, floor, "/v/file"), Allowed::Read);
            }
            for (confinement, floor) in
                [(&none, Floor::ReadOnly), (&reading, Floor::WorkspaceWrite), (&writing, Floor::ReadOnly)]
            {
                assert_eq!(access(confinement, sandbox, floor, "/w/file"), Allowed::Read);
            }
        }
        let entries = vec![special(Access::Write, Special::SlashTmp)];
        let narrow = Sandbox::Confined(Box::new(context(entries, None)));
        let writing = server("workspace-write");
        assert_eq!(access(&writing, &narrow, Floor::Unconfined, "/w/file"), Allowed::Deny);
        assert_eq!(access(&writing, &narrow, Floor::Unconfined, "/tmp/x"), Allowed::Read);
        assert_eq!(policy(&writing, &host, &greedy, Floor::Unconfined).network(), Network::Restricted);
    }

    #[test]
    fn a_policy_is_reused_until_the_file_system_changes() {
        let (confinement, sandbox) = (unfloored(), workspace());
        let mut host = Tree::new(["/w/file", "/tmp/"]);
        let first = policy(&confinement, &host, &sandbox, Floor::Unconfined);
        assert!(Arc::ptr_eq(&first, &policy(&confinement, &host, &sandbox, Floor::Unconfined)));
        assert_eq!(first.access(Path::new("/w/.git/config")), Allowed::Read);
        assert_eq!(first.access(Path::new("/w/sub/.git/config")), Allowed::Read);

        host.insert(Path::new("/w/.git"), Node::Directory);
        let second = policy(&confinement, &host, &sandbox, Floor::Unconfined);
        assert_eq!(second.access(Path::new("/w/.git/config")), Allowed::Read);
        assert!(Arc::ptr_eq(&second, &policy(&confinement, &host, &sandbox, Floor::Unconfined)));

        host.remove(Path::new("/w"));
        host.insert(Path::new("/w"), Node::Link("/other".into()));
        host.insert(Path::new("/other"), Node::Directory);
        let third = policy(&confinement, &host, &sandbox, Floor::Unconfined);
        assert_eq!(third.access(Path::new("/w/file")), Allowed::Read);
        assert_eq!(third.access(Path::new("/other/file")), Allowed::Write);
        assert_eq!(third.access(Path::new("/other/.env")), Allowed::Deny);
        assert_eq!(confinement.kept().len(), 1, "what is outdated is replaced");
    }

    #[test]
    fn a_floor_is_not_relative_to_what_the_client_chooses() {
        let host = Tree::new(["/w/", "/t/"]);
        let tmpdir = special(Access::Write, Special::Tmpdir);
        let context = context(vec![special(Access::Read, Special::Root), tmpdir], None);
        let floor = SandboxFloor {
            permissions: Some(context.permissions),
            hosts: None,
            workspace: vec!["/w".into()],
        };
        let confinement = Confinement::new(floor, Hidden::default());
        let (cwd, tmpdir) = (Some(Path::new("/t")), Some(OsStr::new("/t")));
        let demand = confinement.demand(&Sandbox::Disabled, Floor::WorkspaceWrite, cwd, tmpdir);
        let policy = confinement.resolve_on(&host, &demand).unwrap();
        assert_eq!(policy.access(Path::new("/t/file")), Allowed::Read);
    }

    #[test]
    fn policies_of_different_requests_are_kept_apart_and_few_are_kept() {
        let (confinement, host) = (unfloored(), Tree::new(["/w/", "/t/", "/tmp/"]));
        let tmpdir = special(Access::Write, Special::Tmpdir);
        let roots = special(Access::Write, Special::ProjectRoots { subpath: None });
        let sandbox = Sandbox::Confined(Box::new(context(vec![tmpdir, roots], None)));
        let resolve = |cwd: &str, tmpdir: Option<&str>| {
            let (cwd, tmpdir) = (Some(Path::new(cwd)), tmpdir.map(OsStr::new));
            confinement
                .resolve_on(&host, &confinement.demand(&sandbox, Floor::Unconfined, cwd, tmpdir))
                .unwrap()
        };
        assert_eq!(resolve("/w", None).access(Path::new("/w")), Allowed::Write);
        assert_eq!(resolve("/t", None).access(Path::new("/w")), Allowed::Deny);
        assert_eq!(resolve("/w", Some("/t")).access(Path::new("/t")), Allowed::Write);
        assert_eq!(resolve("/w", None).access(Path::new("/t")), Allowed::Deny);
        for number in 0..2 * KEPT {
            resolve("/w", Some(&format!("/{number}")));
        }
        assert_eq!(confinement.kept().len(), KEPT);
    }

    #[test]
    fn without_a_sandbox_everything_is_open() {
        assert!(unfloored().resolve_for_files(&Sandbox::Disabled, Floor::Unconfined).unwrap().is_open());
    }

    #[test]
    fn a_profile_that_cannot_be_applied_says_why() {
        let refusal = |entry| {
            let sandbox = Sandbox::Confined(Box::new(context(vec![entry], None)));
            unfloored().resolve_for_files(&sandbox, Floor::Unconfined).unwrap_err()
        };
        let error = refusal(special(Access::Deny, Special::Unknown));
        assert_eq!((error.kind, &*error.message), (ErrorKind::SandboxUnavailable, UNENFORCEABLE));
        assert_eq!(
            error.hint.unwrap(),
            "cannot apply `deny` to a special path: its path is unknown, so nothing can protect it; \
             update the client, or remove the entry from its profile"
        );
        let error = refusal(special(Access::Write, Special::ProjectRoots { subpath: None }));
        assert_eq!(error.kind, ErrorKind::InvalidParams);
        assert_eq!(error.hint.unwrap(), "send `workspaceRoots` or `cwd` in the sandbox context");
    }

    #[test]
    fn the_files_of_the_server_are_out_of_reach_whatever_a_profile_grants() {
        let directory = tempfile::tempdir().unwrap();
        let place = directory.path().canonicalize().unwrap();
        std::fs::write(place.join("tokens"), "secret").unwrap();
        std::os::unix::fs::symlink("tokens", place.join("link")).unwrap();
        let hidden = Hidden { files: vec![place.join("link"), place.join("missing")], ..Hidden::default() };
        let confinement = Confinement::new(SandboxFloor::default(), hidden);
        let open = confinement.resolve_for_files(&Sandbox::Disabled, Floor::Unconfined).unwrap();
        assert!(confinement.without_hidden(open).is_open(), "what is not confined is not confined");
        let entries = vec![special(Access::Read, Special::Root), special(Access::Write, Special::SlashTmp)];
        let sandbox = Sandbox::Confined(Box::new(context(entries, None)));
        let resolve = || {
            confinement.without_hidden(confinement.resolve_for_files(&sandbox, Floor::Unconfined).unwrap())
        };
        let policy = resolve();
        for name in ["link", "tokens", "missing"] {
            assert_eq!(policy.access(&place.join(name)), Allowed::Deny, "{name}");
        }
        assert!(policy.access(&place.join("other")) > Allowed::Deny);
        assert!(Arc::ptr_eq(&policy, &resolve()));
        // A link that leads elsewhere now, as when secrets are rotated.
        std::fs::rename(place.join("tokens"), place.join("other")).unwrap();
        std::fs::remove_file(place.join("link")).unwrap();
        std::os::unix::fs::symlink("other", place.join("link")).unwrap();
        assert_eq!(resolve().access(&place.join("other")), Allowed::Deny);
        confinement.hide(&place.join("socket"));
        assert_eq!(resolve().access(&place.join("socket")), Allowed::Deny);
    }

    #[test]
    fn the_directories_of_all_servers_are_out_of_reach_before_they_exist() {
        let directory = tempfile::tempdir().unwrap();
        let place = directory.path().canonicalize().unwrap();
        let own = vec![place.join("state/remex")];
        let hidden = Hidden { own_directories: own.clone(), ..Hidden::default() };
        let confinement = Confinement::new(SandboxFloor::default(), hidden);
        let entries = vec![special(Access::Read, Special::Root)];
        let sandbox = Sandbox::Confined(Box::new(context(entries, None)));
        let whole = confinement.resolve_for_files(&sandbox, Floor::Unconfined).unwrap();
        let policy = confinement.without_hidden(whole);
        assert_eq!(policy.access(&place.join("state/remex/host/process.json")), Allowed::Deny);
        assert_eq!(policy.access(&place.join("state/other")), Allowed::Read);
        assert!(!own[0].exists(), "a file request creates nothing");
        assert_eq!(*confinement.hidden_from_process(&policy, Path::new("/"), Path::new("/")), *own);
        assert!(own[0].is_dir(), "what does not exist could not be covered in a jail");
    }
}
