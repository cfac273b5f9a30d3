//! Which permission each call needs.

use remex_proto::{Call, ErrorKind, RpcError};

use crate::scope::{Permission, Scopes};

/// Refuses a call that the scopes of a credential do not allow.
pub(super) fn check(call: &Call, scopes: &Scopes) -> Result<(), RpcError> {
    match required(call) {
        Some(permission) if !scopes.allow(permission) => Err(denied(call.method(), permission.word())),
        _ => Ok(()),
    }
}

/// Returns the error for a missing scope.
pub(crate) fn denied(method: &str, scope: &str) -> RpcError {
    let message = format!("`{method}` needs the scope `{scope}`, which this credential does not have");
    RpcError::new(ErrorKind::PermissionDenied, message).with_hint("use a credential with that scope")
}

/// Returns the permission that a call needs; `None` means that every authenticated client may make it.
fn required(call: &Call) -> Option<Permission> {
    match call {
        Call::Initialize(_) | Call::EnvironmentInfo(_) | Call::EnvironmentStatus(_) => None,
        Call::ProcessStart(_)
        | Call::ProcessWrite(_)
        | Call::ProcessSignal(_)
        | Call::ProcessTerminate(_)
        | Call::ProcessCloseStdin(_)
        | Call::ProcessRelease(_)
        | Call::ProcessForget(_)
        | Call::ProcessResize(_)
        | Call::SessionEnd(_) => Some(Permission::Processes),
        Call::ProcessRead(_)
        | Call::ProcessWait(_)
        | Call::ProcessSnapshot(_)
        | Call::ProcessList(_)
        | Call::SessionList(_)
        | Call::SessionObserve(_)
        | Call::SessionUnobserve(_) => Some(Permission::ProcessesRead),
        Call::FsReadFile(_)
        | Call::FsGetMetadata(_)
        | Call::FsCanonicalize(_)
        | Call::FsReadDirectory(_)
        | Call::FsWalk(_)
        | Call::FsReadLink(_)
        | Call::FsHash(_)
        | Call::FsReadBlock(_)
        | Call::FsWatchMissing(_)
        | Call::FsWatch(_)
        | Call::FsUnwatch(_)
        | Call::EnvironmentConfigRead(_) => Some(Permission::FilesRead),
        // The mode of `fs/open` decides, so its handler checks.
        Call::FsOpen(_) | Call::FsClose(_) => None,
        Call::FsWriteFile(_)
        | Call::FsCreateDirectory(_)
        | Call::FsRemove(_)
        | Call::FsCopy(_)
        | Call::FsRename(_)
        | Call::FsSetPermissions(_)
        | Call::FsSetTimes(_)
        | Call::FsSymlink(_)
        | Call::FsWriteBlock(_) => Some(Permission::FilesWrite),
        Call::HttpRequest(_) => Some(Permission::Http),
    }
}
