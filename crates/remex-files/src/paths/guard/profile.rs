//! What the sandbox profile of a request allows, for the same walk that judges the paths of a credential.
//!
//! Start at [`may_pass`] and [`check`].

use std::path::Path;

use remex_access::scope::FileAccess;
use remex_proto::{ErrorKind, RpcError};
use remex_sandbox::{Access, Action, Policy};
use rustix::fs::{PROC_SUPER_MAGIC, fstatfs};

use super::resolve::Arrival;
use remex_base::io_error::io_error;

/// Returns what an access does as far as policies are concerned.
pub(super) fn action(access: FileAccess) -> Action {
    match access {
        FileAccess::Read => Action::Read,
        FileAccess::Write => Action::Write,
    }
}

/// Returns whether a walk may look at what is at a real path: it may be read, or something that it leads to.
pub(super) fn may_pass(policy: &Policy, real: &Path) -> bool {
    allows(policy, real, Action::Read)
        || policy.rules_below(real).iter().any(|rule| policy.access(&rule.path) > Access::Deny)
}

/// Returns whether an action is allowed at a real path.
///
/// A link that leads from a denied place to a granted one can be read itself: the profile names it.
pub(super) fn allows(policy: &Policy, real: &Path, action: Action) -> bool {
    let is_link = || policy.links().binary_search_by(|link| link.path.as_path().cmp(real)).is_ok();
    policy.allows(real, action) || action == Action::Read && is_link()
}

/// Returns whether nothing is denied.
pub(super) fn reads_everything(policy: &Policy) -> bool {
    policy.access(Path::new("/")) >= Access::Read
        && policy.rules().iter().all(|rule| rule.access >= Access::Read)
        && policy.patterns().is_empty()
}

/// Checks the end of a walk.
pub(super) fn check(
    policy: &Policy,
    path: &Path,
    arrival: &Arrival,
    access: FileAccess,
) -> Result<(), RpcError> {
    let action = action(access);
    if !allows(policy, &arrival.real, action) {
        return Err(refusal(policy, path, &arrival.real, action));
    }
    // There the server would act on itself: its memory, its environment, its descriptors.
    let found = fstatfs(&arrival.parent.directory).map_err(|errno| io_error(&errno.into(), path))?;
    if found.f_type == PROC_SUPER_MAGIC {
        let what = describe(path, &arrival.real, action);
        let message = format!("{what}: the files of a `proc` file system are those of the server");
        return Err(RpcError::new(ErrorKind::PermissionDenied, message)
            .with_hint("run a program that reads it, such as `cat`, in the same sandbox"));
    }
    Ok(())
}

/// Returns the error for an action that the profile does not allow.
///
/// It reveals nothing about what exists at the path.
pub(super) fn refusal(policy: &Policy, path: &Path, real: &Path, action: Action) -> RpcError {
    let what = describe(path, real, action);
    let rule = policy.rules().iter().rfind(|rule| real.starts_with(&rule.path));
    let why = match (policy.access(real), rule) {
        (Access::Deny, Some(rule)) if rule.access > Access::Deny => match policy.patterns() {
            [pattern] => {
                let pattern = pattern.base.join(&pattern.rest);
                format!("the pattern `{}` in the sandbox profile denies it", pattern.display())
            }
            _ => "a pattern in the sandbox profile denies it".to_owned(),
        },
        (Access::Deny, Some(rule)) => format!("the sandbox profile denies `{}`", rule.path.display()),
        (Access::Deny, None) => "no entry of the sandbox profile allows it".to_owned(),
        (Access::Read, Some(rule)) => {
            format!("the sandbox profile only allows `{}` to be read", rule.path.display())
        }
        _ => match policy.rules_below(real) {
            [below, ..] if action == Action::Remove => {
                format!("the sandbox profile has an entry for `{}`, which is in it", below.path.display())
            }
            _ => "the sandbox profile does not allow its directory to be changed".to_owned(),
        },
    };
    RpcError::new(ErrorKind::PermissionDenied, format!("{what}: {why}"))
        .with_hint("use a path that the profile allows, or ask for a profile that allows this one")
}

/// Returns what was tried.
fn describe(path: &Path, real: &Path, action: Action) -> String {
    let verb = match action {
        Action::Read => "read",
        Action::Write => "write",
        Action::Create => "create",
        Action::Remove => "remove or replace",
    };
    // A walk may have ended at a directory on the way.
    let leads = match path.starts_with(real) {
        true => String::new(),
        false => format!(", which leads to `{}`", real.display()),
    };
    format!("cannot {verb} `{}`{leads}", path.display())
}
