//! The permission that each call needs.

use remex_access::scope::{Permission, Scopes};
use remex_proto::{
    Call, ErrorKind, RpcError,
    fs::{IfMatch, OpenMode},
};

/// Refuses a call that the scopes of a credential do not allow.
pub(super) fn check(call: &Call, scopes: &Scopes) -> Result<(), RpcError> {
    match required(call).iter().find(|permission| !scopes.allow(**permission)) {
        Some(missing) => Err(denied(call.method(), missing.word())),
        None => Ok(()),
    }
}

/// Refuses a call about all identities, unless the credential is an administrator's.
pub(super) fn check_admin(scopes: &Scopes, method: &str) -> Result<(), RpcError> {
    if scopes.allow(Permission::Admin) {
        return Ok(());
    }
    let message = format!(
        "`{method}` with `scope: \"all\"` needs the scope `{}`, which this credential does not have",
        Permission::Admin.word()
    );
    Err(RpcError::new(ErrorKind::PermissionDenied, message)
        .with_hint("list the sessions of your own identity, or use a credential with that scope"))
}

/// Returns the error for a missing scope.
pub(crate) fn denied(method: &str, scope: &str) -> RpcError {
    let message = format!("`{method}` needs the scope `{scope}`, which this credential does not have");
    RpcError::new(ErrorKind::PermissionDenied, message).with_hint("use a credential with that scope")
}

/// Returns the permissions that a call needs; without any, every authenticated client may make it.
fn required(call: &Call) -> &'static [Permission] {
    match call {
        Call::Initialize(_) | Call::EnvironmentInfo(_) | Call::EnvironmentStatus(_) => &[],
        // The handle has been opened on this connection, so with this credential.
        Call::FsClose(_) => &[],
        Call::ProcessStart(_)
        | Call::ProcessWrite(_)
        | Call::ProcessSignal(_)
        | Call::ProcessTerminate(_)
        | Call::ProcessRestart(_)
        | Call::ProcessCloseStdin(_)
        | Call::ProcessRelease(_)
        | Call::ProcessForget(_)
        | Call::ProcessResize(_)
        | Call::ProcessCollect(_)
        | Call::SessionEnd(_) => &[Permission::Processes],
        Call::ProcessRead(_)
        | Call::ProcessWait(_)
        | Call::ProcessSnapshot(_)
        | Call::ProcessSeek(_)
        | Call::ProcessList(_)
        | Call::SessionList(_)
        | Call::SessionObserve(_)
        | Call::SessionUnobserve(_) => &[Permission::ProcessesRead],
        Call::FsReadFile(_)
        | Call::FsGetMetadata(_)
        | Call::FsCanonicalize(_)
        | Call::FsReadDirectory(_)
        | Call::FsWalk(_)
        | Call::FsReadLink(_)
        | Call::FsHash(_)
        | Call::FsSearch(_)
        | Call::FsReadBlock(_)
        | Call::FsWatchMissing(_)
        | Call::FsWatch(_)
        | Call::FsUnwatch(_)
        | Call::EnvironmentConfigRead(_)
        | Call::CapabilityRootsDiscover(_)
        | Call::CapabilitiesDiscover(_) => &[Permission::FilesRead],
        Call::FsOpen(request) => match request.mode {
            OpenMode::Read => &[Permission::FilesRead],
            OpenMode::Write | OpenMode::Replace => &[Permission::FilesWrite],
        },
        Call::FsCopy(_) => &[Permission::FilesRead, Permission::FilesWrite],
        // A mismatch reveals the hash of the current content.
        Call::FsWriteFile(request) if matches!(request.if_match, Some(IfMatch::Content(_))) => {
            &[Permission::FilesWrite, Permission::FilesRead]
        }
        Call::FsWriteFile(_)
        | Call::FsCreateDirectory(_)
        | Call::FsRemove(_)
        | Call::FsRename(_)
        | Call::FsSetPermissions(_)
        | Call::FsSetTimes(_)
        | Call::FsSymlink(_)
        | Call::FsWriteBlock(_) => &[Permission::FilesWrite],
        Call::HttpRequest(_) => &[Permission::Http],
    }
}
