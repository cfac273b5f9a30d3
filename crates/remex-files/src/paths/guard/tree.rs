//! Judges what is in a directory while a request goes through its tree.
//!
//! Entries are reached by name from an open directory without following links, so the real path of each is that of
//! the directory with its name. Start at [`TreeGuard`].

use std::{
    ffi::{CStr, CString},
    io,
    path::{Path, PathBuf},
    sync::Arc,
};

use remex_proto::RpcError;
use remex_sandbox::{Action, Policy};
use rustix::fs::FileType;

use super::{
    super::{
        descent::{self, Descent},
        io_error, names,
        open::Links,
    },
    Located, profile,
};

/// What the sandbox of a request allows in a directory and below it; without a sandbox everything.
#[derive(Clone, Debug)]
pub(crate) struct TreeGuard {
    policy: Option<Arc<Policy>>,
    /// The real path of the directory; empty without a sandbox.
    directory: PathBuf,
    strips_set_id: bool,
}

impl TreeGuard {
    /// Creates the guard of a directory.
    pub(crate) fn new(directory: &Located<'_>) -> Self {
        let strips_set_id = directory.strips_set_id();
        match (directory.policy(), directory.real()) {
            (Some(policy), Some(real)) => {
                TreeGuard { policy: Some(Arc::clone(policy)), directory: real.to_owned(), strips_set_id }
            }
            _ => TreeGuard { policy: None, directory: PathBuf::new(), strips_set_id },
        }
    }

    /// Returns whether files lose set-user-ID and set-group-ID when they are written.
    pub(crate) fn strips_set_id(&self) -> bool {
        self.strips_set_id
    }

    /// Follows the request into a subdirectory.
    pub(crate) fn enter(&mut self, name: &CStr) {
        if self.policy.is_some() {
            self.directory.push(names::os_str(name));
        }
    }

    /// Follows the request back.
    pub(crate) fn leave(&mut self) {
        self.directory.pop();
    }

    /// Returns whether an action on an entry is allowed.
    pub(crate) fn allows(&self, name: impl AsRef<Path>, action: Action) -> bool {
        let Some(policy) = &self.policy else { return true };
        profile::allows(policy, &self.directory.join(name), action)
    }

    /// Checks whether an action on an entry is allowed.
    pub(crate) fn check(&self, name: impl AsRef<Path>, action: Action) -> Result<(), RpcError> {
        let Some(policy) = &self.policy else { return Ok(()) };
        let path = self.directory.join(name);
        if profile::allows(policy, &path, action) {
            return Ok(());
        }
        Err(profile::refusal(policy, &path, &path, action))
    }

    /// Returns whether all that is in the directory is allowed what the directory itself is, if no rule is below it.
    fn is_uniform(&self) -> bool {
        self.policy.as_ref().is_none_or(|policy| policy.patterns().is_empty())
    }
}

/// Checks that everything in a directory may be removed; a rule below it was found already.
pub(crate) fn check_removal(directory: &Located<'_>) -> Result<(), RpcError> {
    let guard = TreeGuard::new(directory);
    if guard.is_uniform() {
        return Ok(());
    }
    check_contents(directory, &mut [guard])
}

/// Checks that everything in a directory may be written where it is and where it is moved to.
///
/// A pattern denies a name in some directories, so under another name the content of a directory could be read.
pub(crate) fn check_move(source: &Located<'_>, destination: &Located<'_>) -> Result<(), RpcError> {
    let mut guards = [TreeGuard::new(source), TreeGuard::new(destination)];
    if guards.iter().all(TreeGuard::is_uniform) {
        return Ok(());
    }
    check_contents(source, &mut guards)
}

/// Checks that every guard, each at a path of the directory, allows writing its content.
fn check_contents(directory: &Located<'_>, guards: &mut [TreeGuard]) -> Result<(), RpcError> {
    let failed = |error: io::Error| io_error(&error, directory.path());
    let opened = descent::open(directory.directory(), directory.name(), Links::Refuse).map_err(failed)?;
    let mut descent = Descent::new(opened).map_err(failed)?;
    let mut levels = vec![check_entries(&descent, guards, directory.path())?];
    while let Some(directories) = levels.last_mut() {
        let Some(name) = directories.pop() else {
            levels.pop();
            if !levels.is_empty() {
                descent.leave().map_err(failed)?;
                guards.iter_mut().for_each(TreeGuard::leave);
            }
            continue;
        };
        match descent.enter(&name, Links::Refuse) {
            Ok(()) => {}
            // Removed or replaced meanwhile, by someone who may.
            Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
                continue;
            }
            Err(error) => return Err(failed(error)),
        }
        guards.iter_mut().for_each(|guard| guard.enter(&name));
        levels.push(check_entries(&descent, guards, directory.path())?);
    }
    Ok(())
}

/// Checks the entries of one directory; returns its subdirectories.
fn check_entries(descent: &Descent, guards: &[TreeGuard], path: &Path) -> Result<Vec<CString>, RpcError> {
    let (mut directories, mut refusal) = (Vec::new(), None);
    let listed = names::for_each(descent.current(), |name, kind| {
        if refusal.is_none() {
            let checks = guards.iter().map(|guard| guard.check(names::os_str(name), Action::Write));
            refusal = checks.filter_map(Result::err).next();
        }
        if kind == FileType::Directory {
            directories.push(name.to_owned());
        }
        Ok::<_, rustix::io::Errno>(())
    });
    listed.map_err(|error| io_error(&error.into(), path))?;
    refusal.map_or(Ok(directories), Err)
}
