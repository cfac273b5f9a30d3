//! Confines file requests to the paths in the scopes of a credential, and to what the sandbox of a request allows.
//!
//! Every path of a request becomes a [`Located`], and system calls use that instead of the path. Without limits, it
//! is the path itself. With them, it is a name in an open directory that was reached through allowed paths only, and
//! links are not followed from there: nothing that is moved or replaced by a link meanwhile can redirect the request.
//! Start at [`PathGuard`].

mod limits;
mod profile;
mod resolve;
#[cfg(test)]
pub(crate) mod tests;
mod tree;

use std::{
    ffi::OsStr,
    os::fd::{AsFd, BorrowedFd},
    path::{Path, PathBuf},
    sync::{Arc, OnceLock},
};

use remex_access::{
    confinement::Confinement,
    scope::{FileAccess, Floor, Permission, Scopes},
};
use remex_base::nofollow::{self, OpenParent};
use remex_proto::{ErrorKind, RpcError, sandbox::Sandbox};
use remex_sandbox::{Action, Policy};
use rustix::{
    fs::{AtFlags, CWD, FileType, OFlags, Stat, statat},
    io::Errno,
};

use super::{io_error, open::Links};
use limits::{Judgement, PathLimits};
use resolve::{Arrival, Judge, Rules, Stop};
pub(crate) use tree::{TreeGuard, check_removal};

/// Where file requests may go.
#[derive(Clone, Debug, Default)]
pub struct PathGuard {
    /// What the credential allows; `None` without path limits.
    limits: Option<Arc<Limited>>,
    /// The least confinement of the credential.
    floor: Floor,
    /// What the sandbox allows; `None` if it leaves files open.
    policy: Option<Arc<Policy>>,
    /// Whether the sandbox denies more than the files of the server.
    may_deny: bool,
    /// Whether files lose set-user-ID and set-group-ID when they are written, also without a sandbox.
    strips_set_id: bool,
}

#[derive(Debug)]
struct Limited {
    scopes: Arc<Scopes>,
    /// Resolved by the first request, on a file thread.
    limits: OnceLock<PathLimits>,
}

/// Where a path of a request leads.
#[derive(Debug)]
pub(crate) struct Located<'a> {
    path: &'a Path,
    links: Links,
    at: At,
    strips_set_id: bool,
}

#[derive(Debug)]
enum At {
    /// The path itself.
    Path,
    /// A name in a directory that was reached without following links.
    Entry(OpenParent),
    /// A name in a directory that was reached through allowed paths only.
    Judged { arrival: Arrival, policy: Option<Arc<Policy>> },
}

impl PathGuard {
    /// Limits requests to the paths in the scopes of a credential.
    pub fn new(scopes: &Arc<Scopes>) -> Self {
        let limited = || Arc::new(Limited { scopes: Arc::clone(scopes), limits: OnceLock::new() });
        PathGuard {
            limits: scopes.has_path_limits().then(limited),
            floor: scopes.floor(),
            policy: None,
            may_deny: false,
            strips_set_id: !scopes.allow(Permission::FilesSetId),
        }
    }

    /// Returns the guard for one request, which may ask for a sandbox. Blocks, and may hang.
    pub fn confined(&self, confinement: &Confinement, sandbox: &Sandbox) -> Result<Self, RpcError> {
        if self.leaves_open(confinement, sandbox) {
            return Ok(self.clone());
        }
        let whole = confinement.resolve_for_files(sandbox, self.floor)?;
        let may_deny = !profile::reads_everything(&whole);
        let policy = confinement.without_hidden(whole);
        Ok(PathGuard { policy: (!policy.is_open()).then_some(policy), may_deny, ..self.clone() })
    }

    /// Returns whether neither the sandbox nor a floor confines the request.
    pub fn leaves_open(&self, confinement: &Confinement, sandbox: &Sandbox) -> bool {
        confinement.leaves_files_open(sandbox, self.floor)
    }

    pub(crate) fn is_limited(&self) -> bool {
        self.limits.is_some() || self.policy.is_some()
    }

    /// Refuses a method whose paths the guard does not see.
    pub fn check_unlimited(&self, method: &str) -> Result<(), RpcError> {
        if self.limits.is_none() {
            return Ok(());
        }
        let word = Permission::FilesRead.word();
        let message = format!(
            "`{method}` needs the scope `{word}` without a path, which this credential does not have"
        );
        Err(RpcError::new(ErrorKind::PermissionDenied, message).with_hint("use a credential with that scope"))
    }

    /// Refuses a method whose paths the guard does not see, unless the sandbox lets everything be read.
    pub fn check_readable(&self, method: &str) -> Result<(), RpcError> {
        if !self.may_deny {
            return Ok(());
        }
        let message = format!("`{method}` reads files that the sandbox of this server may deny");
        Err(RpcError::new(ErrorKind::PermissionDenied, message)
            .with_hint("use a server whose sandbox lets everything be read"))
    }

    /// Finds what a path leads to, which may be missing. Links are followed or refused in the whole path.
    pub(crate) fn target<'a>(
        &self,
        path: &'a Path,
        links: Links,
        access: FileAccess,
    ) -> Result<Located<'a>, RpcError> {
        let at = match links {
            _ if self.is_limited() => self.judge(path, Rules { parents: links, last: links }, access)?,
            Links::Follow => At::Path,
            Links::Refuse => At::Entry(nofollow::find(path).map_err(|error| io_error(&error, path))?),
        };
        Ok(Located { path, links, at, strips_set_id: self.strips_set_id })
    }

    /// Finds the entry that a path names, even if that is a link. `links` is about its parents.
    pub(crate) fn entry<'a>(
        &self,
        path: &'a Path,
        links: Links,
        access: FileAccess,
    ) -> Result<Located<'a>, RpcError> {
        if !self.is_limited() {
            return self.target(path, links, access);
        }
        let at = self.judge(path, Rules { parents: links, last: Links::Refuse }, access)?;
        Ok(Located { path, links, at, strips_set_id: self.strips_set_id })
    }

    /// Finds an entry that is to be created, or to be removed or replaced.
    pub(crate) fn change<'a>(
        &self,
        path: &'a Path,
        links: Links,
        action: Action,
    ) -> Result<Located<'a>, RpcError> {
        if self.is_limited() && path.file_name().is_none() {
            return Err(io_error(&Errno::INVAL.into(), path));
        }
        let located = self.entry(path, links, FileAccess::Write)?;
        match (&self.limits, located.real()) {
            (Some(limited), Some(real)) if !limited.limits().may_replace(real) => Err(is_prefix(path)),
            _ => located.check(action).map(|()| located),
        }
    }

    /// Refuses to move what may not be read to where it could be read.
    pub(crate) fn check_move(&self, source: &Located<'_>, destination: &Located<'_>) -> Result<(), RpcError> {
        if source.policy().is_some() && source.kind() == Ok(FileType::Directory) {
            tree::check_move(source, destination)?;
        }
        let (Some(limited), Some(from), Some(to)) = (&self.limits, source.real(), destination.real()) else {
            return Ok(());
        };
        let limits = limited.limits();
        let is_readable = limits.judge(from, FileAccess::Read) == Judgement::Inside;
        let is_hidden = limits.judge(to, FileAccess::Read) == Judgement::Outside;
        if is_readable || is_hidden { Ok(()) } else { Err(denied(source.path, FileAccess::Read)) }
    }

    /// Returns the real path of what exists at a path.
    pub fn canonicalize(&self, path: &Path) -> Result<PathBuf, RpcError> {
        if !self.is_limited() {
            return path.canonicalize().map_err(|error| io_error(&error, path));
        }
        let located = self.target(path, Links::Follow, FileAccess::Read)?;
        match located.kind() {
            Ok(FileType::Symlink) => Err(io_error(&Errno::LOOP.into(), path)),
            Ok(_) => Ok(located.real().unwrap_or(path).to_owned()),
            Err(error) => Err(io_error(&error.into(), path)),
        }
    }

    /// Checks a path that is used without following links, and whose components may be missing.
    pub fn check_plain(&self, path: &Path) -> Result<(), RpcError> {
        let is_plain = !path.components().any(|component| component == std::path::Component::ParentDir);
        if let Some(limited) = &self.limits
            && !(is_plain && limited.limits().judge(path, FileAccess::Read) == Judgement::Inside)
        {
            return Err(denied(path, FileAccess::Read));
        }
        match &self.policy {
            Some(policy) if !self.may_read(path) => Err(profile::refusal(policy, path, path, Action::Read)),
            _ => Ok(()),
        }
    }

    /// Returns whether the sandbox lets a real path be read.
    pub fn may_read(&self, real: &Path) -> bool {
        self.policy.as_ref().is_none_or(|policy| profile::allows(policy, real, Action::Read))
    }

    /// Returns the kind of what a link in a directory leads to; `None` for a broken link, or one that leads to
    /// where the request may not read.
    pub(crate) fn kind_of_target(
        &self,
        directory: &Located<'_>,
        opened: impl AsFd,
        name: &OsStr,
    ) -> Option<(FileType, (u64, u64))> {
        let stat = match directory.real() {
            None => statat(opened, name, AtFlags::empty()).ok()?,
            Some(real) => {
                let link = real.join(name);
                let target = self.target(&link, Links::Follow, FileAccess::Read).ok()?;
                let stat = statat(target.directory(), target.name(), AtFlags::SYMLINK_NOFOLLOW).ok()?;
                // Replaced by a link since it was found.
                (FileType::from_raw_mode(stat.st_mode) != FileType::Symlink).then_some(stat)?
            }
        };
        Some((FileType::from_raw_mode(stat.st_mode), (stat.st_dev, stat.st_ino)))
    }

    /// Finds where a path leads, through what both the credential and the sandbox allow.
    fn judge(&self, path: &Path, rules: Rules, access: FileAccess) -> Result<At, RpcError> {
        let limits = self.limits.as_deref().map(Limited::limits);
        let mut both = Both { limits, policy: self.policy.as_deref() };
        let arrival = resolve::find(path, rules, &mut both).map_err(|stop| match stop {
            Stop::Denied { real } => both.refusal(path, &real, access),
            Stop::Failed(errno) => io_error(&errno.into(), path),
        })?;
        if limits.is_some_and(|limits| limits.judge(&arrival.real, access) != Judgement::Inside) {
            return Err(denied(path, access));
        }
        if let Some(policy) = &self.policy {
            profile::check(policy, path, &arrival, access)?;
        }
        Ok(At::Judged { arrival, policy: self.policy.clone() })
    }
}

/// The limits of a credential and those of a sandbox: the narrowest holds.
struct Both<'a> {
    limits: Option<&'a PathLimits>,
    policy: Option<&'a Policy>,
}

impl Both<'_> {
    /// Returns the error for a real path that the walk may not look at.
    fn refusal(&self, path: &Path, real: &Path, access: FileAccess) -> RpcError {
        match (self.limits, self.policy) {
            (None, Some(policy)) => profile::refusal(policy, path, real, profile::action(access)),
            (Some(limits), Some(policy)) if limits.may_pass(real) => {
                profile::refusal(policy, path, real, profile::action(access))
            }
            _ => denied(path, access),
        }
    }
}

impl Judge for Both<'_> {
    fn may_pass(&mut self, path: &Path) -> bool {
        self.limits.is_none_or(|limits| limits.may_pass(path))
            && self.policy.is_none_or(|policy| profile::may_pass(policy, path))
    }

    fn may_follow(&mut self, _link: &Path) -> bool {
        true
    }
}

impl Limited {
    fn limits(&self) -> &PathLimits {
        if let Some(limits) = self.limits.get() {
            return limits;
        }
        // Not inside the cell: it would block others if this hangs.
        let limits = PathLimits::resolve(&self.scopes);
        self.limits.get_or_init(|| limits)
    }
}

impl<'a> Located<'a> {
    /// Returns the path as the client spelled it, for messages.
    pub(crate) fn path(&self) -> &Path {
        self.path
    }

    /// Returns whether the client asked to follow links.
    pub(crate) fn links(&self) -> Links {
        self.links
    }

    /// Returns the directory for system calls.
    pub(crate) fn directory(&self) -> BorrowedFd<'_> {
        self.parent().map_or(CWD, |parent| parent.directory.as_fd())
    }

    /// Returns the name in that directory.
    pub(crate) fn name(&self) -> &Path {
        self.parent().map_or(self.path, |parent| Path::new(&parent.name))
    }

    /// Returns the directory and the name, unless the path itself is used.
    pub(crate) fn parent(&self) -> Option<&OpenParent> {
        match &self.at {
            At::Path => None,
            At::Entry(parent) | At::Judged { arrival: Arrival { parent, .. }, .. } => Some(parent),
        }
    }

    /// Takes the directory and the name, or the path if that itself is used.
    pub(crate) fn into_parent(self) -> Result<OpenParent, &'a Path> {
        match self.at {
            At::Path => Err(self.path),
            At::Entry(parent) | At::Judged { arrival: Arrival { parent, .. }, .. } => Ok(parent),
        }
    }

    /// Returns the real path, if the guard has found it.
    pub(crate) fn real(&self) -> Option<&Path> {
        match &self.at {
            At::Path | At::Entry(_) => None,
            At::Judged { arrival, .. } => Some(&arrival.real),
        }
    }

    /// Returns what the sandbox allows, if it confines the request.
    fn policy(&self) -> Option<&Arc<Policy>> {
        match &self.at {
            At::Path | At::Entry(_) => None,
            At::Judged { policy, .. } => policy.as_ref(),
        }
    }

    pub(crate) fn is_confined(&self) -> bool {
        self.policy().is_some()
    }

    /// Returns whether a file there loses set-user-ID and set-group-ID when it is written.
    pub(crate) fn strips_set_id(&self) -> bool {
        self.strips_set_id || self.is_confined()
    }

    /// Checks that a new file, directory or link may have the name: to write an existing file takes less.
    pub(crate) fn check_creation(&self) -> Result<(), RpcError> {
        self.check(Action::Create)
    }

    fn check(&self, action: Action) -> Result<(), RpcError> {
        match (self.policy(), self.real()) {
            (Some(policy), Some(real)) if !policy.allows(real, action) => {
                Err(profile::refusal(policy, self.path, real, action))
            }
            _ => Ok(()),
        }
    }

    /// Returns whether system calls may follow links at the name, and below it.
    pub(crate) fn links_from_here(&self) -> Links {
        if self.parent().is_some() { Links::Refuse } else { Links::Follow }
    }

    /// Returns the flag that makes opening the name refuse a link, unless links may be followed.
    pub(crate) fn open_flags(&self) -> OFlags {
        self.links_from_here().open_flags()
    }

    /// Returns the metadata at the path; follows a link only if that is allowed.
    pub(crate) fn stat(&self) -> Result<Stat, Errno> {
        let flags = match self.links_from_here() {
            Links::Follow => AtFlags::empty(),
            Links::Refuse => AtFlags::SYMLINK_NOFOLLOW,
        };
        statat(self.directory(), self.name(), flags)
    }

    /// Returns the kind of the entry itself.
    pub(crate) fn kind(&self) -> Result<FileType, Errno> {
        let stat = statat(self.directory(), self.name(), AtFlags::SYMLINK_NOFOLLOW)?;
        Ok(FileType::from_raw_mode(stat.st_mode))
    }
}

/// Returns the error for a path outside; it is the same whatever exists there.
fn denied(path: &Path, access: FileAccess) -> RpcError {
    let (verb, word) = match access {
        FileAccess::Read => ("read", Permission::FilesRead.word()),
        FileAccess::Write => ("write", Permission::FilesWrite.word()),
    };
    let path = path.display();
    let message = format!(
        "`{path}` is outside the paths that this credential may {verb}; it needs the scope `{word}={path}`"
    );
    RpcError::new(ErrorKind::PermissionDenied, message).with_hint(
        "use a path inside them, without links that lead elsewhere, or a credential with that scope",
    )
}

/// Returns the error for removing or replacing the directory that a scope names.
fn is_prefix(path: &Path) -> RpcError {
    let message = format!(
        "`{}` is the path of a scope of this credential, which may change what is in it but not remove or replace it",
        path.display()
    );
    RpcError::new(ErrorKind::PermissionDenied, message).with_hint(
        "name what is in it, or use a credential with the scope `files:write` for its parent directory",
    )
}
