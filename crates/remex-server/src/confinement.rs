//! Turns the sandbox that a client asks for into a policy.
//!
//! What a profile allows depends on the links and the missing paths of the moment, so every request resolves it anew.
//! To make that cheap, the last few policies are kept together with everything that was found out about the file
//! system to resolve them, and that is looked up again before one is reused. Nothing is enforced here. Start at
//! [`Confinement`].

use std::{
    cell::{Cell, RefCell},
    collections::{BTreeMap, VecDeque},
    ffi::{OsStr, OsString},
    io,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use remex_proto::{
    ErrorKind, RpcError,
    sandbox::{Context, Network, Sandbox},
};
use remex_sandbox::{Host, Node, Policy, PolicyError, Reason, Request, SystemHost, resolve};

/// Policies that are kept; clients use few profiles at a time, and compiled patterns may be large.
const KEPT: usize = 8;

/// A policy that depends on more paths than this is not kept.
const MAX_FACTS: usize = 1024;

/// The words of the base dialect for every sandbox that cannot be enforced.
const UNENFORCEABLE: &str = "sandbox intent cannot be enforced on this executor";

/// Resolves the sandboxes of all clients.
#[derive(Debug, Default)]
pub(crate) struct Confinement {
    /// The policy used last is at the back. Held briefly, never during a system call.
    kept: Mutex<VecDeque<Arc<Kept>>>,
}

/// A policy, and what it depends on.
#[derive(Debug)]
struct Kept {
    key: Key,
    /// Everything that was asked of the file system; in this order, parents come before what is below them.
    facts: BTreeMap<PathBuf, Node>,
    policy: Arc<Policy>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Key {
    context: Context,
    cwd: Option<PathBuf>,
    tmpdir: Option<OsString>,
}

impl Confinement {
    /// Resolves the sandbox of a file request. Blocks, and may hang as any file access.
    pub(crate) fn resolve_for_files(&self, sandbox: &Sandbox) -> Result<Arc<Policy>, RpcError> {
        self.resolve_on(&SystemHost, sandbox, None, None)
    }

    /// Resolves the sandbox of a process, given its working directory and its `TMPDIR`. Blocks, and may hang as any
    /// file access.
    pub(crate) fn resolve_for_process(
        &self,
        sandbox: &Sandbox,
        cwd: &Path,
        tmpdir: Option<&OsStr>,
    ) -> Result<Arc<Policy>, RpcError> {
        self.resolve_on(&SystemHost, sandbox, Some(cwd), tmpdir)
    }

    fn resolve_on(
        &self,
        host: &impl Host,
        sandbox: &Sandbox,
        cwd: Option<&Path>,
        tmpdir: Option<&OsStr>,
    ) -> Result<Arc<Policy>, RpcError> {
        let Sandbox::Confined(context) = sandbox else { return Ok(Arc::new(Policy::open(Network::Enabled))) };
        let request = Request { context, cwd, tmpdir };
        if let Some(kept) = self.find(&request)
            && kept.is_current(host)
        {
            return Ok(Arc::clone(&kept.policy));
        }
        let recorder = Recorder { host, facts: RefCell::default(), has_failed: Cell::new(false) };
        let policy = Arc::new(resolve(&request, &recorder).map_err(|error| unenforceable(&error))?);
        let facts = recorder.facts.into_inner();
        if !recorder.has_failed.get() && facts.len() <= MAX_FACTS {
            self.keep(Kept { key: Key::from(&request), facts, policy: Arc::clone(&policy) });
        }
        Ok(policy)
    }

    fn find(&self, request: &Request<'_>) -> Option<Arc<Kept>> {
        let mut kept = self.kept();
        let index = kept.iter().rposition(|kept| kept.key.is_of(request))?;
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

impl Kept {
    /// Returns whether the file system still says what it said.
    fn is_current(&self, host: &impl Host) -> bool {
        self.facts.iter().all(|(path, node)| host.node(path).is_ok_and(|now| now == *node))
    }
}

impl Key {
    fn is_of(&self, request: &Request<'_>) -> bool {
        self.context == *request.context
            && self.cwd.as_deref() == request.cwd
            && self.tmpdir.as_deref() == request.tmpdir
    }
}

impl From<&Request<'_>> for Key {
    fn from(request: &Request<'_>) -> Self {
        Key {
            context: request.context.clone(),
            cwd: request.cwd.map(Path::to_owned),
            tmpdir: request.tmpdir.map(OsStr::to_owned),
        }
    }
}

/// Asks the file system about each path once, and keeps the answers.
struct Recorder<'a, H> {
    host: &'a H,
    facts: RefCell<BTreeMap<PathBuf, Node>>,
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
}

/// Returns the answer to a request whose profile cannot be applied.
pub(crate) fn unenforceable(error: &PolicyError) -> RpcError {
    match &error.why {
        // The profile means nothing on any host.
        Reason::Foreign | Reason::NoRoots | Reason::Subpath | Reason::Pattern(_) => {
            RpcError::new(ErrorKind::InvalidParams, error.to_string()).with_hint(error.hint)
        }
        Reason::GrantPattern
        | Reason::NoHome
        | Reason::UnknownSpecial
        | Reason::Unresolved { .. }
        | Reason::WritableLink { .. }
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

    /// Everything readable, `/w` writable except for `.git` if that exists, and no `.env` file.
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

    fn policy(confinement: &Confinement, host: &Tree, sandbox: &Sandbox) -> Arc<Policy> {
        confinement.resolve_on(host, sandbox, None, None).unwrap()
    }

    #[test]
    fn a_policy_is_reused_until_the_file_system_changes() {
        let (confinement, sandbox) = (Confinement::default(), workspace());
        let mut host = Tree::new(["/w/file", "/tmp/"]);
        let first = policy(&confinement, &host, &sandbox);
        assert!(Arc::ptr_eq(&first, &policy(&confinement, &host, &sandbox)));
        assert_eq!(first.access(Path::new("/w/.git/config")), Allowed::Write);

        host.insert(Path::new("/w/.git"), Node::Directory);
        let second = policy(&confinement, &host, &sandbox);
        assert_eq!(second.access(Path::new("/w/.git/config")), Allowed::Read);
        assert!(Arc::ptr_eq(&second, &policy(&confinement, &host, &sandbox)));

        host.remove(Path::new("/w"));
        host.insert(Path::new("/w"), Node::Link("/other".into()));
        host.insert(Path::new("/other"), Node::Directory);
        let third = policy(&confinement, &host, &sandbox);
        assert_eq!(third.access(Path::new("/w/file")), Allowed::Read);
        assert_eq!(third.access(Path::new("/other/file")), Allowed::Write);
        assert_eq!(third.access(Path::new("/other/.env")), Allowed::Deny);
        assert_eq!(confinement.kept().len(), 1, "what is outdated is replaced");
    }

    #[test]
    fn policies_of_different_requests_are_kept_apart_and_few_are_kept() {
        let (confinement, host) = (Confinement::default(), Tree::new(["/w/", "/t/", "/tmp/"]));
        let tmpdir = special(Access::Write, Special::Tmpdir);
        let roots = special(Access::Write, Special::ProjectRoots { subpath: None });
        let sandbox = Sandbox::Confined(Box::new(context(vec![tmpdir, roots], None)));
        let resolve = |cwd: &str, tmpdir: Option<&str>| {
            confinement.resolve_on(&host, &sandbox, Some(Path::new(cwd)), tmpdir.map(OsStr::new)).unwrap()
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
        assert!(Confinement::default().resolve_for_files(&Sandbox::Disabled).unwrap().is_open());
    }

    #[test]
    fn a_profile_that_cannot_be_applied_says_why() {
        let refusal = |entry| {
            let sandbox = Sandbox::Confined(Box::new(context(vec![entry], None)));
            Confinement::default().resolve_for_files(&sandbox).unwrap_err()
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
}
