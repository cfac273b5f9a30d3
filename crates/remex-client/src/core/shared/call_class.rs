//! Classes of calls, each with its own limit.

use remex_proto::Call;

/// A class of calls that share a limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CallClass {
    /// Never waits for a slot: terminations, signals and listings.
    Control,
    /// Answered quickly.
    Plain,
    /// May block on a hanging file system.
    Files,
    /// May wait for a process, or for a web server.
    Parked,
}

/// Returns the class of a call.
pub(super) fn class(call: &Call) -> CallClass {
    match call {
        Call::ProcessSignal(_)
        | Call::ProcessTerminate(_)
        | Call::ProcessCloseStdin(_)
        | Call::ProcessRelease(_)
        | Call::ProcessForget(_)
        | Call::ProcessResize(_)
        | Call::ProcessList(_)
        | Call::ProcessCollect(_)
        | Call::SessionList(_)
        | Call::SessionEnd(_)
        | Call::SessionObserve(_)
        | Call::SessionUnobserve(_)
        | Call::EnvironmentStatus(_) => CallClass::Control,
        Call::ProcessWrite(_) | Call::ProcessWait(_) | Call::ProcessRestart(_) | Call::HttpRequest(_) => {
            CallClass::Parked
        }
        Call::ProcessRead(read) if read.wait_ms.is_some() => CallClass::Parked,
        Call::Initialize(_)
        | Call::ProcessStart(_)
        | Call::ProcessRead(_)
        | Call::ProcessSnapshot(_)
        | Call::ProcessSeek(_)
        | Call::EnvironmentInfo(_) => CallClass::Plain,
        Call::FsReadFile(_)
        | Call::FsWriteFile(_)
        | Call::FsCreateDirectory(_)
        | Call::FsGetMetadata(_)
        | Call::FsCanonicalize(_)
        | Call::FsReadDirectory(_)
        | Call::FsWalk(_)
        | Call::FsRemove(_)
        | Call::FsCopy(_)
        | Call::FsOpen(_)
        | Call::FsReadBlock(_)
        | Call::FsWriteBlock(_)
        | Call::FsClose(_)
        | Call::FsWatchMissing(_)
        | Call::FsRename(_)
        | Call::FsSetPermissions(_)
        | Call::FsSetTimes(_)
        | Call::FsSymlink(_)
        | Call::FsReadLink(_)
        | Call::FsHash(_)
        | Call::FsSearch(_)
        | Call::FsWatch(_)
        | Call::FsUnwatch(_)
        | Call::EnvironmentConfigRead(_)
        | Call::CapabilityRootsDiscover(_)
        | Call::CapabilitiesDiscover(_) => CallClass::Files,
    }
}
