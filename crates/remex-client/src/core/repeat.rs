//! Which calls may be repeated after a disconnect.

use remex_proto::{Call, state::pending::AfterDisconnect};

/// Returns whether an unanswered call may be sent again after a disconnect.
pub(super) fn after_disconnect(call: &Call) -> AfterDisconnect {
    let is_repeatable = match call {
        Call::ProcessStart(start) => start.start_id.is_some(),
        Call::ProcessWrite(write) => write.write_id.is_some(),
        // These are idempotent.
        Call::ProcessRead(_)
        | Call::ProcessTerminate(_)
        | Call::ProcessCloseStdin(_)
        | Call::ProcessRelease(_)
        | Call::ProcessResize(_)
        | Call::ProcessWait(_)
        | Call::ProcessSnapshot(_)
        | Call::ProcessList(_)
        | Call::SessionList(_)
        | Call::SessionEnd(_)
        | Call::FsReadFile(_)
        | Call::FsGetMetadata(_)
        | Call::FsCanonicalize(_)
        | Call::FsReadDirectory(_)
        | Call::FsWalk(_)
        | Call::FsSetPermissions(_)
        | Call::FsSetTimes(_)
        | Call::FsReadLink(_)
        | Call::FsHash(_)
        | Call::EnvironmentInfo(_)
        | Call::EnvironmentStatus(_)
        | Call::EnvironmentConfigRead(_)
        | Call::CapabilityRootsDiscover(_)
        | Call::CapabilitiesDiscover(_) => true,
        Call::FsWriteFile(write) => write.if_match.is_none(),
        Call::FsCreateDirectory(create) => create.recursive != Some(false),
        Call::HttpRequest(request) => {
            !request.stream_response && ["GET", "HEAD", "OPTIONS"].contains(&request.method.as_str())
        }
        // Repeating these fails or has another effect, or their handle was closed with the connection.
        Call::Initialize(_)
        | Call::ProcessSignal(_)
        | Call::ProcessForget(_)
        | Call::SessionObserve(_)
        | Call::SessionUnobserve(_)
        | Call::FsRemove(_)
        | Call::FsCopy(_)
        | Call::FsOpen(_)
        | Call::FsReadBlock(_)
        | Call::FsWriteBlock(_)
        | Call::FsClose(_)
        | Call::FsWatchMissing(_)
        | Call::FsRename(_)
        | Call::FsSymlink(_)
        | Call::FsWatch(_)
        | Call::FsUnwatch(_) => false,
    };
    if is_repeatable { AfterDisconnect::Resend } else { AfterDisconnect::Fail }
}
