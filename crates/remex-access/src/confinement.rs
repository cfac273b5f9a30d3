//! Turns the sandbox that a client asks for into a policy.
//!
//! What a profile allows depends on the links and the missing paths of the moment, so every request resolves it anew.
//! To make that cheap, the last few policies are kept together with everything that was found out about the file
//! system to resolve them, and that is looked up again before one is reused.
//!
//! The server and the scopes of a credential may have a floor: then the policy allows what both the client and the
//! floor allow. Nothing is enforced here. Start at [`Confinement`].

mod credentials;
mod floor;
mod own_directories;
mod records;
#[cfg(test)]
mod tests;

use std::{
    cell::{Cell, RefCell},
    collections::{BTreeMap, BTreeSet, VecDeque},
    ffi::{OsStr, OsString},
    io,
    path::{self, Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock},
};

use remex_base::lock;
use remex_proto::{
    ErrorKind, RpcError,
    sandbox::{Context, Network, Permissions, Sandbox},
};
use remex_sandbox::{
    Access, Host, Hosts, Node, Policy, PolicyError, Preset, Reason, Request, SystemHost, resolve,
};

use crate::scope::Floor;
pub use floor::{SandboxFloor, StartPolicy};
pub use records::CredentialRecord;
use records::Records;

/// Policies that are kept; clients use few profiles at a time, and compiled patterns may be large.
const KEPT: usize = 8;

/// A policy that depends on more paths than this is not kept.
const MAX_FACTS: usize = 1024;

/// The words of the base dialect for every sandbox that cannot be enforced.
const UNENFORCEABLE: &str = "sandbox intent cannot be enforced on this executor";

/// Resolves the sandboxes of all clients.
#[derive(Debug)]
pub struct Confinement {
    /// The floor of the server, if it has one.
    server: Option<Context>,
    read_only: Context,
    workspace_write: Context,
    /// What nothing confined may reach.
    hidden: RwLock<Arc<Hidden>>,
    /// What tells other servers of this user about the credentials. Held while they are replaced, by one caller at a time.
    record: Mutex<CredentialRecord>,
    /// What they tell.
    records: Records,
    /// What was hidden last from file requests. Held briefly, never during a system call.
    covered: Mutex<Option<Arc<Covered>>>,
    /// The policy used last is at the back. Held briefly, never during a system call.
    kept: Mutex<VecDeque<Arc<Kept>>>,
}

/// What nothing confined may reach, whatever its profile grants.
#[derive(Clone, Debug, Default)]
pub struct Hidden {
    /// Files and directories of the server itself.
    pub files: Vec<PathBuf>,
    /// Files of the server that may be replaced while something confined runs.
    pub credentials: Vec<PathBuf>,
    /// The directories of all servers of this user, whether they exist or not.
    pub own_directories: Vec<PathBuf>,
    /// The home of the server's user, which is never hidden.
    pub home: Option<PathBuf>,
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
    /// Confines with this floor, and hides these files from the beginning.
    pub fn new(floor: SandboxFloor, hidden: Hidden) -> Self {
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
            refuse_missing_writes: None,
        };
        Confinement {
            server: permissions.map(|permissions| context(permissions, hosts)),
            read_only: context(Preset::ReadOnly.permissions(), None),
            workspace_write: context(Preset::WorkspaceWrite.permissions(), None),
            record: Mutex::new(CredentialRecord::keep(&hidden.own_directories, &hidden.credentials)),
            records: Records::default(),
            hidden: RwLock::new(Arc::new(hidden)),
            covered: Mutex::default(),
            kept: Mutex::default(),
        }
    }

    /// Hides a file or directory from everything that is confined from now on.
    pub fn hide(&self, path: &Path) {
        self.change_hidden(|hidden| hidden.files.push(path.to_owned()));
    }

    /// Replaces the files that are hidden as credentials from everything that is confined from now on. Blocks.
    pub fn set_credentials(&self, credentials: Vec<PathBuf>) {
        let mut record = lock(&self.record);
        *record = CredentialRecord::keep(&self.hidden().own_directories, &credentials);
        self.change_hidden(|hidden| hidden.credentials = credentials);
    }

    fn change_hidden(&self, change: impl FnOnce(&mut Hidden)) {
        change(Arc::make_mut(&mut self.hidden.write().unwrap_or_else(PoisonError::into_inner)));
    }

    /// Returns what a process that starts now may not reach, given the paths that it needs, after creating what must be there to be hidden. Blocks, and
    /// may hang as any file access.
    pub fn hidden_from_process(&self, policy: &Policy, needed: &[&Path]) -> Arc<[PathBuf]> {
        let hidden = self.hidden();
        let granted = policy.rules().iter().filter(|rule| rule.access > Access::Deny);
        let granted = granted.map(|rule| rule.path.as_path()).filter(|path| *path != Path::new("/"));
        let named = needed.iter().filter_map(|path| path.canonicalize().ok());
        let needed: Vec<_> = granted.map(Path::to_owned).chain(named).collect();
        let credentials = credentials::covers(&hidden.credentials, &needed, hidden.home.as_deref());
        let others = self.records.files(&hidden.own_directories);
        let others = credentials::covers_of_others(&others, &needed, hidden.home.as_deref());
        let own = own_directories::create(&hidden.own_directories).map(Path::to_owned);
        hidden.files.iter().cloned().chain(credentials).chain(others).chain(own).collect()
    }

    fn hidden(&self) -> Arc<Hidden> {
        Arc::clone(&self.hidden.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Takes the files of the server out of a policy for file requests. Blocks, and may hang as any file access.
    ///
    /// Whoever may not replace a file may not replace what leads to it either, so both are denied.
    pub fn without_hidden(&self, whole: Arc<Policy>) -> Arc<Policy> {
        if whole.is_open() {
            return whole;
        }
        let all = self.hidden();
        let others = self.records.files(&all.own_directories);
        let files = all.files.iter().chain(&all.credentials).chain(&others).map(PathBuf::as_path);
        let hidden: BTreeSet<PathBuf> = files
            .chain(own_directories::usable(&all.own_directories))
            .flat_map(|path| [path::absolute(path).ok(), path.canonicalize().ok()])
            .flatten()
            .collect();
        if hidden.is_empty() {
            return whole;
        }
        let last = || lock(&self.covered);
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
    pub fn limits_hosts(&self) -> bool {
        self.server.as_ref().is_some_and(|context| context.hosts.is_some())
    }

    /// Returns whether the server confines everything.
    pub fn has_floor(&self) -> bool {
        self.server.is_some()
    }

    /// Returns whether files are as accessible as without a sandbox, as far as that is known in advance.
    pub fn leaves_files_open(&self, sandbox: &Sandbox, floor: Floor) -> bool {
        sandbox.leaves_files_open() && floor == Floor::Unconfined && !self.has_floor()
    }

    /// Resolves the sandbox of a file request with the floors. Blocks, and may hang as any file access.
    ///
    /// # Errors
    ///
    /// If it cannot be enforced.
    pub fn resolve_for_files(&self, sandbox: &Sandbox, floor: Floor) -> Result<Arc<Policy>, RpcError> {
        self.resolve_on(&SystemHost, &self.demand(sandbox, floor, None, None))
    }

    /// Returns whether a process with this sandbox may have to be confined.
    pub fn concerns_processes(&self, sandbox: &Sandbox, floor: Floor) -> bool {
        !sandbox.is_disabled() || floor != Floor::Unconfined || self.has_floor()
    }

    /// Resolves the sandbox of a process with the floors, given its working directory and its `TMPDIR`. Blocks, and may hang as any
    /// file access.
    ///
    /// # Errors
    ///
    /// If it cannot be enforced.
    pub fn resolve_for_process(
        &self,
        sandbox: &Sandbox,
        floor: Floor,
        cwd: &Path,
        tmpdir: Option<&OsStr>,
    ) -> Result<Arc<Policy>, RpcError> {
        self.resolve_on(&SystemHost, &self.demand(sandbox, floor, Some(cwd), tmpdir))
    }

    /// Returns the hosts that the floors allow, if they limit them. Blocks, and may hang as any file access.
    ///
    /// # Errors
    ///
    /// If it cannot be enforced.
    pub fn hosts_of_floors(&self, floor: Floor, cwd: &Path) -> Result<Option<Hosts>, RpcError> {
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
        lock(&self.kept)
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
fn unenforceable(error: &PolicyError) -> RpcError {
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
        | Reason::MissingWritable { .. }
        | Reason::ReplaceableLink { .. }
        | Reason::Creatable { .. }
        | Reason::TooLarge { .. } => unavailable(format!("{error}; {}", error.hint)),
    }
}

/// Returns the answer to a request that this server cannot confine, with the reason and what to do.
pub fn unavailable(hint: impl Into<String>) -> RpcError {
    RpcError::new(ErrorKind::SandboxUnavailable, UNENFORCEABLE).with_hint(hint)
}
