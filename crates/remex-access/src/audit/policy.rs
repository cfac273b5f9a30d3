//! Which calls are recorded. A new method does not compile until both tables decide about it.
//!
//! Calls are recorded if they change something, read files, or reach sessions of other identities. A call that is
//! refused is recorded whatever the tables say.

use remex_proto::{Call, fs::OpenMode, process, session};

/// When a call is recorded; the word is the event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Audited {
    /// Only if it is refused.
    Never,
    /// Always, with this word.
    Always(&'static str),
    /// If it reaches a session of another identity.
    WhenForeign(&'static str),
    /// If it is the first of its connection to a process, or reaches a session of another identity.
    First(&'static str),
}

/// Whose sessions a call is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target<'a> {
    /// The session of its connection, those of its identity, or none.
    Own,
    /// The session with this id or name.
    Session(&'a str),
    /// The sessions of all identities.
    Everyone,
}

/// Returns when a call is recorded.
pub fn audited(call: &Call) -> Audited {
    use Audited::{Always, First, Never, WhenForeign};
    match call {
        Call::Initialize(_) => Always("attach"),
        Call::ProcessStart(_) => Always("start"),
        Call::ProcessRestart(_) => Always("restart"),
        // Every keystroke is a call.
        Call::ProcessWrite(_) => First("input"),
        Call::ProcessCloseStdin(_) => Always("input"),
        // Dragging a window makes many calls, which change nothing but its size.
        Call::ProcessResize(_) => WhenForeign("input"),
        Call::ProcessSignal(_) => Always("signal"),
        Call::ProcessTerminate(_) | Call::SessionEnd(_) => Always("terminate"),
        Call::ProcessRelease(_) | Call::ProcessForget(_) => Always("forget"),
        Call::ProcessCollect(request) if request.dry_run => WhenForeign("list"),
        Call::ProcessCollect(_) => Always("forget"),
        // Clients poll, and may always see their own sessions.
        Call::ProcessRead(_)
        | Call::ProcessWait(_)
        | Call::ProcessSnapshot(_)
        | Call::ProcessSeek(_)
        | Call::SessionObserve(_)
        | Call::SessionUnobserve(_) => WhenForeign("observe"),
        Call::ProcessList(_) | Call::SessionList(_) => WhenForeign("list"),
        Call::FsReadFile(_)
        | Call::FsReadDirectory(_)
        | Call::FsWalk(_)
        | Call::FsReadLink(_)
        | Call::FsHash(_)
        | Call::FsSearch(_)
        | Call::FsWatch(_)
        | Call::FsWatchMissing(_)
        | Call::EnvironmentConfigRead(_)
        | Call::CapabilityRootsDiscover(_)
        | Call::CapabilitiesDiscover(_) => Always("read"),
        Call::FsOpen(request) if request.mode == OpenMode::Read => Always("read"),
        Call::FsOpen(_)
        | Call::FsWriteFile(_)
        | Call::FsCreateDirectory(_)
        | Call::FsSetPermissions(_)
        | Call::FsSetTimes(_)
        | Call::FsSymlink(_)
        | Call::FsCopy(_)
        | Call::FsRename(_) => Always("write"),
        Call::FsRemove(_) => Always("remove"),
        Call::HttpRequest(_) => Always("http"),
        // The line of `fs/open` names the file, and whether it is read or written.
        Call::FsReadBlock(_) | Call::FsWriteBlock(_) | Call::FsClose(_) => Never,
        // The line of `fs/watch` says what was watched.
        Call::FsUnwatch(_) => Never,
        // They return neither contents nor lists of names, and clients call them all the time.
        Call::FsGetMetadata(_) | Call::FsCanonicalize(_) => Never,
        // About the server, and the same for every client.
        Call::EnvironmentInfo(_) | Call::EnvironmentStatus(_) => Never,
    }
}

fn named(session: &Option<String>) -> Target<'_> {
    session.as_deref().map_or(Target::Own, Target::Session)
}

/// Returns whose sessions a call is about.
pub fn target(call: &Call) -> Target<'_> {
    match call {
        Call::ProcessRead(request) => named(&request.session_id),
        Call::ProcessWrite(request) => named(&request.session_id),
        Call::ProcessSignal(request) => named(&request.session_id),
        Call::ProcessTerminate(request) => named(&request.session_id),
        Call::ProcessRestart(request) => named(&request.session_id),
        Call::ProcessCloseStdin(request) => named(&request.session_id),
        Call::ProcessRelease(request) => named(&request.session_id),
        Call::ProcessForget(request) => named(&request.session_id),
        Call::ProcessResize(request) => named(&request.session_id),
        Call::ProcessWait(request) => named(&request.session_id),
        Call::ProcessSnapshot(request) => named(&request.session_id),
        Call::ProcessSeek(request) => named(&request.session_id),
        Call::ProcessList(request) => match request.scope {
            process::Scope::Session => named(&request.session_id),
            process::Scope::Identity => Target::Own,
            process::Scope::All => Target::Everyone,
        },
        Call::ProcessCollect(request) => match request.scope {
            process::Scope::Session | process::Scope::Identity => Target::Own,
            process::Scope::All => Target::Everyone,
        },
        Call::SessionList(request) => match request.scope {
            session::Scope::Identity => Target::Own,
            session::Scope::All => Target::Everyone,
        },
        Call::SessionEnd(request) => Target::Session(&request.session_id),
        Call::SessionObserve(request) => Target::Session(&request.session_id),
        Call::SessionUnobserve(request) => Target::Session(&request.session_id),
        // Only the identity's own session can be resumed.
        Call::Initialize(_)
        | Call::ProcessStart(_)
        | Call::FsReadFile(_)
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
        | Call::HttpRequest(_)
        | Call::EnvironmentInfo(_)
        | Call::EnvironmentStatus(_)
        | Call::EnvironmentConfigRead(_)
        | Call::CapabilityRootsDiscover(_)
        | Call::CapabilitiesDiscover(_) => Target::Own,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(method: &str, params: &str) -> Call {
        Call::parse(method, Some(params)).expect(method)
    }

    #[test]
    fn a_session_that_is_named_is_the_target() {
        let write = call("process/write", r#"{"processId":"p","chunk":"","sessionId":"s"}"#);
        assert_eq!((audited(&write), target(&write)), (Audited::First("input"), Target::Session("s")));
        let listed = call("process/list", r#"{"sessionId":"s"}"#);
        assert_eq!(target(&listed), Target::Session("s"));
        assert_eq!(target(&call("process/list", r#"{"scope":"all"}"#)), Target::Everyone);
        assert_eq!(target(&call("session/list", "{}")), Target::Own);
    }

    #[test]
    fn calls_that_delete_nothing_are_recorded_only_for_other_identities() {
        let collect =
            |dry_run: bool| call("process/collect", &format!(r#"{{"scope":"all","dryRun":{dry_run}}}"#));
        assert_eq!(audited(&collect(true)), Audited::WhenForeign("list"));
        assert_eq!(audited(&collect(false)), Audited::Always("forget"));
    }
}
