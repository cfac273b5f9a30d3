//! What went wrong, for a person: one line what and why, one line what to do; and the exit code for a script.
//!
//! Start at [`Failure`].

use std::io;

use remex_client::{Error, ErrorKind, SessionLost};

use crate::render::print;

/// Why a command could not do its work.
#[derive(Debug)]
pub(crate) struct Failure {
    /// What failed and why; empty when there is nobody left to tell.
    what: String,
    /// What to do.
    todo: Option<String>,
    kind: Kind,
    /// The server's word, if it was the server.
    refusal: Option<ErrorKind>,
    /// Why the session is lost, if it is.
    loss: Option<SessionLost>,
}

/// What scripts tell failures apart by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Anything that is none of the others.
    Failed,
    /// What was typed makes no sense.
    Usage,
    /// There is no such process, environment or file.
    NotFound,
    /// No connection came about, or it was lost for good.
    Unreachable,
    /// The program is not there.
    ProgramNotFound,
    /// The program is there and cannot be run.
    NotExecutable,
    /// Whoever read the output has gone.
    BrokenPipe,
    /// A signal came; the exit code says which.
    Signalled(u8),
}

/// Whose exit codes a command returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ExitCodes {
    /// Its own: each kind of failure has one.
    Ours,
    /// Those of a process: codes below 125 are not free for failures.
    OfTheProcess,
}

/// What to do where the host has no room for a thread or a descriptor.
pub(crate) const NO_ROOM: &str = "end some processes of this user, or raise its limits on processes and descriptors (`ulimit -u`, `ulimit -n`)";

/// Why the value of an argument cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct InvalidArg {
    pub(crate) why: String,
    /// What to do instead.
    pub(crate) hint: String,
}

impl InvalidArg {
    pub(crate) fn new(why: impl Into<String>, hint: impl Into<String>) -> Self {
        Self { why: why.into(), hint: hint.into() }
    }
}

impl std::fmt::Display for InvalidArg {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}; {}", self.why, self.hint)
    }
}

impl std::error::Error for InvalidArg {}

impl Failure {
    pub(crate) fn new(what: impl Into<String>, todo: impl Into<String>) -> Self {
        Self::of(Kind::Failed, what, todo)
    }

    pub(crate) fn of(kind: Kind, what: impl Into<String>, todo: impl Into<String>) -> Self {
        Self { what: what.into(), todo: Some(todo.into()), kind, refusal: None, loss: None }
    }

    pub(crate) fn usage(what: impl Into<String>, todo: impl Into<String>) -> Self {
        Self::of(Kind::Usage, what, todo)
    }

    /// Makes one without a hint.
    pub(crate) fn bare(kind: Kind, what: impl Into<String>) -> Self {
        Self { what: what.into(), todo: None, kind, refusal: None, loss: None }
    }

    /// Makes one of the text of a library error that has its hint in it: `what failed: why; what to do`.
    ///
    /// Only for errors whose type does not offer the parts.
    pub(crate) fn from_library(kind: Kind, text: &str) -> Self {
        match text.rsplit_once("; ") {
            Some((what, todo)) => Self::of(kind, what, todo),
            None => Self::bare(kind, text),
        }
    }

    /// Makes one of a signal that ended us; a shell says the rest.
    pub(crate) fn signalled(code: u8) -> Self {
        Self { what: String::new(), todo: None, kind: Kind::Signalled(code), refusal: None, loss: None }
    }

    /// Makes one of a failed system call on this side.
    pub(crate) fn io(action: &str, error: &io::Error) -> Self {
        let kind = match error.kind() {
            io::ErrorKind::BrokenPipe => {
                return Self {
                    what: String::new(),
                    todo: None,
                    kind: Kind::BrokenPipe,
                    refusal: None,
                    loss: None,
                };
            }
            io::ErrorKind::NotFound => Kind::NotFound,
            _ => Kind::Failed,
        };
        let is_full = error.kind() == io::ErrorKind::StorageFull;
        let todo = is_full.then(|| "make room there, or use another place".to_owned());
        Self { what: format!("cannot {action}: {error}"), todo, kind, refusal: None, loss: None }
    }

    /// Makes one of a thread that the host has no room for.
    pub(crate) fn no_thread(purpose: &str, error: &io::Error) -> Self {
        Self::new(format!("cannot start the thread that {purpose}: {error}"), NO_ROOM)
    }

    /// Says what to do instead of what it said before.
    pub(crate) fn hint(mut self, todo: impl Into<String>) -> Self {
        self.todo = Some(todo.into());
        self
    }

    /// Puts what was tried in front.
    pub(crate) fn context(mut self, tried: &str) -> Self {
        self.what = format!("{tried}: {}", self.what);
        self
    }

    /// Makes a plain failure of one about something that is not there, for what nobody asked for by its name.
    pub(crate) fn on_the_way(mut self) -> Self {
        if self.kind == Kind::NotFound {
            self.kind = Kind::Failed;
        }
        self
    }

    /// Returns the stable word of a refusal by the server.
    pub(crate) fn refusal(&self) -> Option<ErrorKind> {
        self.refusal
    }

    /// Returns why the session is lost.
    pub(crate) fn loss(&self) -> Option<&SessionLost> {
        self.loss.as_ref()
    }

    pub(crate) fn kind(&self) -> Kind {
        self.kind
    }

    /// Returns what failed and why, in one line.
    pub(crate) fn what(&self) -> &str {
        &self.what
    }

    /// Returns what to do about it.
    pub(crate) fn todo(&self) -> Option<&str> {
        self.todo.as_deref()
    }

    /// Says it on stderr, once.
    pub(crate) fn print(&self) {
        if matches!(self.kind, Kind::BrokenPipe | Kind::Signalled(_)) {
            return;
        }
        print::note(&self.what);
        if let Some(todo) = &self.todo {
            print::aside(&format!("  hint: {todo}"));
        }
    }

    /// Returns the exit code.
    pub(crate) fn code(&self, codes: ExitCodes) -> u8 {
        self.kind.code(codes)
    }
}

impl Kind {
    /// Returns the exit code of a command that fails like this.
    pub(crate) fn code(self, codes: ExitCodes) -> u8 {
        match self {
            Self::BrokenPipe => 141,
            Self::Signalled(code) => code,
            Self::Usage => 2,
            Self::ProgramNotFound => 127,
            Self::NotExecutable => 126,
            _ if codes == ExitCodes::OfTheProcess => 125,
            Self::Failed => 1,
            Self::NotFound => 3,
            Self::Unreachable => 4,
        }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let kind = match &error {
            Error::Address { .. } | Error::Usage(_) => Kind::Usage,
            Error::Unreachable { .. }
            | Error::Unauthorized { .. }
            | Error::ProgramEnded { .. }
            | Error::Protocol { .. }
            | Error::Lost(_) => Kind::Unreachable,
            Error::TimedOut { what: "connecting" | "the handshake", .. } => Kind::Unreachable,
            Error::Local { kind: io::ErrorKind::BrokenPipe, .. } => Kind::BrokenPipe,
            Error::Local { kind: io::ErrorKind::NotFound, .. } => Kind::NotFound,
            _ => match error.refusal() {
                Some(ErrorKind::NotFound | ErrorKind::UnknownProcess | ErrorKind::UnknownSession) => {
                    Kind::NotFound
                }
                Some(ErrorKind::ProgramNotFound) => Kind::ProgramNotFound,
                Some(ErrorKind::NotExecutable) => Kind::NotExecutable,
                _ => Kind::Failed,
            },
        };
        if let Error::ProgramEnded { program, .. } = &error {
            let todo = format!("run {program} by hand and see what it says");
            return Self::of(kind, error.to_string(), todo);
        }
        if let Error::Unauthorized { target, presented, .. } = &error {
            let todo = if *presented {
                "compare it with the token of the server, which is in the file that its `--ws-token-file` names"
                    .to_owned()
            } else {
                format!(
                    "give the token beside `--on` with `--token-file PATH`, or to an environment with `remex env \
                     add NAME {target} --token-file PATH`"
                )
            };
            return Self::of(kind, error.message(), todo);
        }
        if let Error::Lost(SessionLost::Forgotten { message }) = error {
            let failure = Self::of(
                kind,
                "the server no longer knows this session: it was restarted, or the session was ended or away too long",
                "what ran in the session has ended; start it again",
            );
            return Self { loss: Some(SessionLost::Forgotten { message }), ..failure };
        }
        let failure = match (&error, error.hint()) {
            (_, Some(hint)) => Self::of(kind, error.message(), hint),
            (
                Error::Address { .. }
                | Error::Unreachable { .. }
                | Error::Refused(_)
                | Error::Usage(_)
                | Error::Lost(_)
                | Error::Agent(_),
                None,
            ) => Self::from_library(kind, &error.message()),
            (_, None) => Self::bare(kind, error.message()),
        };
        Self { refusal: error.refusal(), ..failure }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hint_of_a_library_is_told_apart() {
        let failure = Failure::from_library(Kind::Failed, "cannot listen: it is in use; choose another port");
        assert_eq!(
            (failure.what(), failure.todo()),
            ("cannot listen: it is in use", Some("choose another port"))
        );
        let failure = Failure::from_library(Kind::Failed, "no remedy");
        assert_eq!((failure.what(), failure.todo()), ("no remedy", None));
    }
}
