//! Error messages: one line with the failure and its cause, one line with the hint; and the exit codes.
//!
//! Start at [`Failure`].

use std::{borrow::Cow, io};

use remex_client::{Error, ErrorKind, SessionLost};

use crate::render::print;

/// Why a command failed.
#[derive(Debug)]
pub(crate) struct Failure {
    /// What failed; empty when nothing is to be printed.
    what: String,
    /// Why, if it is known apart from what failed.
    why: Option<String>,
    /// The hint.
    hint: Option<String>,
    kind: Kind,
    /// The error kind, if the server refused a call.
    refusal: Option<ErrorKind>,
    /// Why the session is lost, if it is.
    loss: Option<SessionLost>,
    /// A further failure, printed after this one.
    next: Option<Box<Failure>>,
}

/// The exit code for a process whose end is unknown: it was lost with the program that ran it, or restarted.
pub(crate) const LOST: u8 = 123;

/// The kind of a failure, which determines the exit code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Any other failure.
    Failed,
    /// The command line is invalid, or a file that it names with a flag cannot be read.
    Usage,
    /// A process, an environment or a file that is an operand does not exist.
    NotFound,
    /// The server could not be reached, or the connection was lost for good.
    Unreachable,
    /// The program does not exist.
    ProgramNotFound,
    /// The program exists but cannot be executed.
    NotExecutable,
    /// The process was restarted, and the end of the one before is unknown.
    Restarted,
    /// The reader of the output closed it.
    BrokenPipe,
    /// A signal ended the command; contains the exit code.
    Signalled(u8),
}

/// The scheme of exit codes that a command uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ExitCodes {
    /// Its own: each kind of failure has one.
    Ours,
    /// Those of a process: codes below 125 are not free for failures.
    OfTheProcess,
}

/// The hint for a host that is out of threads or descriptors.
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
    pub(crate) fn new(what: impl Into<String>, hint: impl Into<String>) -> Self {
        Self::of(Kind::Failed, what, hint)
    }

    pub(crate) fn of(kind: Kind, what: impl Into<String>, hint: impl Into<String>) -> Self {
        Self::bare(kind, what).with_hint(hint)
    }

    pub(crate) fn usage(what: impl Into<String>, hint: impl Into<String>) -> Self {
        Self::of(Kind::Usage, what, hint)
    }

    /// Creates a failure without a hint.
    pub(crate) fn bare(kind: Kind, what: impl Into<String>) -> Self {
        Self { what: what.into(), why: None, hint: None, kind, refusal: None, loss: None, next: None }
    }

    /// Creates the failure of a file with several errors, each with what is wrong and what to do, printed one by one.
    pub(crate) fn in_file(kind: Kind, errors: impl Iterator<Item = (String, Option<String>)>) -> Self {
        errors
            .map(|(message, hint)| Self::bare(kind, message).with_hint_if_known(hint))
            .reduce(Self::and)
            .unwrap_or_else(|| Self::bare(kind, "the file has errors"))
    }

    /// Creates the failure of a command that a signal ended; prints nothing.
    pub(crate) fn signalled(code: u8) -> Self {
        Self::bare(Kind::Signalled(code), "")
    }

    /// Creates a failure from a local system call.
    pub(crate) fn io(action: &str, error: &io::Error) -> Self {
        let kind = match error.kind() {
            io::ErrorKind::BrokenPipe => return Self::bare(Kind::BrokenPipe, ""),
            io::ErrorKind::NotFound => Kind::NotFound,
            _ => Kind::Failed,
        };
        let failure = Self::bare(kind, format!("cannot {action}")).because(error.to_string());
        match error.kind() {
            io::ErrorKind::StorageFull => failure.with_hint("make room there, or use another place"),
            _ => failure,
        }
    }

    /// Creates the failure of a thread that the host has no room for.
    pub(crate) fn no_thread(purpose: &str, error: &io::Error) -> Self {
        Self::new(format!("cannot start the thread that {purpose}"), NO_ROOM).because(error.to_string())
    }

    /// Adds a failure that is printed after this one; the kind and the exit code stay.
    pub(crate) fn and(mut self, other: Self) -> Self {
        self.next = Some(Box::new(match self.next {
            None => other,
            Some(next) => next.and(other),
        }));
        self
    }

    /// Names the process that was restarted, and the command that shows the one that runs now, if this is such a failure.
    pub(crate) fn of_restarted(mut self, name: &str, command: &str) -> Self {
        if self.kind == Kind::Restarted {
            self.what = format!(
                "`{name}` was restarted while this client was disconnected; the rest of its output and its exit code are unknown"
            );
            self.hint = Some(format!("`{command}` shows the one that runs now"));
        }
        self
    }

    /// Appends a clause to the message.
    pub(crate) fn with_clause(mut self, clause: &str) -> Self {
        let last = self.why.as_mut().unwrap_or(&mut self.what);
        last.push_str("; ");
        last.push_str(clause);
        self
    }

    /// Adds why it failed.
    pub(crate) fn because(mut self, why: impl Into<String>) -> Self {
        self.why = Some(why.into());
        self
    }

    /// Replaces the hint.
    pub(crate) fn with_hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// Sets the hint to one that may be unknown.
    pub(crate) fn with_hint_if_known(mut self, hint: Option<String>) -> Self {
        self.hint = hint;
        self
    }

    /// Says that the rejected value comes from an environment variable, and what to do about that.
    pub(crate) fn in_variable(mut self, variable: &str, remedy: &str) -> Self {
        self.what = format!("{variable}: {}", self.what);
        self.hint = Some(match self.hint {
            Some(hint) => format!("{hint}; or {remedy}"),
            None => remedy.to_owned(),
        });
        self
    }

    /// Makes this failure the reason why `what` failed.
    pub(crate) fn context(mut self, what: &str) -> Self {
        self.why = Some(self.message());
        self.what = what.to_owned();
        self
    }

    /// Turns `NotFound` into a plain failure, for something that the user did not name.
    pub(crate) fn into_plain_failure(mut self) -> Self {
        if self.kind == Kind::NotFound {
            self.kind = Kind::Failed;
        }
        self
    }

    /// Turns `NotFound` into a usage error, for a file that a flag names.
    pub(crate) fn named_by_flag(mut self) -> Self {
        if self.kind == Kind::NotFound {
            self.kind = Kind::Usage;
        }
        self
    }

    /// Returns the error kind of a refusal by the server.
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

    /// Returns what failed and why, in one sentence.
    pub(crate) fn message(&self) -> String {
        match &self.why {
            Some(why) => format!("{}: {why}", self.what),
            None => self.what.clone(),
        }
    }

    /// Returns the hint.
    pub(crate) fn hint(&self) -> Option<&str> {
        self.hint.as_deref()
    }

    /// Prints it on stderr.
    pub(crate) fn print(&self) {
        if matches!(self.kind, Kind::BrokenPipe | Kind::Signalled(_)) {
            return;
        }
        print::note(self.message());
        if let Some(hint) = &self.hint {
            print::aside(&format!("  hint: {hint}"));
        }
        if let Some(next) = &self.next {
            next.print();
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
            Self::Restarted => LOST,
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
            Error::Address { .. } | Error::Usage { .. } => Kind::Usage,
            Error::Unreachable { .. }
            | Error::PromptRefused { .. }
            | Error::Unauthorized { .. }
            | Error::ProgramEnded { .. }
            | Error::Protocol { .. }
            | Error::Lost(_) => Kind::Unreachable,
            _ if error.is_restarted() => Kind::Restarted,
            Error::TimedOut { what: "connecting" | "the handshake", .. } => Kind::Unreachable,
            Error::Local { cause, .. } if cause.kind() == io::ErrorKind::BrokenPipe => Kind::BrokenPipe,
            Error::Local { cause, .. } if cause.kind() == io::ErrorKind::NotFound => Kind::NotFound,
            _ => match error.kind() {
                Some(ErrorKind::NotFound | ErrorKind::UnknownProcess | ErrorKind::UnknownSession) => {
                    Kind::NotFound
                }
                Some(ErrorKind::ProgramNotFound) => Kind::ProgramNotFound,
                Some(ErrorKind::NotExecutable) => Kind::NotExecutable,
                _ => Kind::Failed,
            },
        };
        let mut failure = Self::bare(kind, error.what());
        failure.why = error.why().map(Cow::into_owned);
        failure.refusal = error.kind();
        failure.hint = match &error {
            Error::ProgramEnded { program, hint: None, .. } => Some(format!("run {program} by hand and see what it says")),
            Error::Unauthorized { reason: Some(_), .. } => error.hint().map(str::to_owned),
            Error::Unauthorized { presented: true, .. } => Some(
                "it may be unknown, expired or of another kind: the log of the server says why it refused it, and `remex token \
                 show - < FILE` shows when a JWT expires"
                    .to_owned(),
            ),
            Error::Unauthorized { presented: false, status: 401, target, .. } => Some(format!(
                "give the token beside `--on` with `--token-file PATH`, or to an environment with `remex env \
                 add NAME {target} --token-file PATH`"
            )),
            _ => error.hint().map(str::to_owned),
        };
        if let Error::Lost(SessionLost::Forgotten { .. }) = &error {
            failure.what = "the server no longer knows this session".to_owned();
            failure.why = Some("it was restarted, or the session was ended or away too long".to_owned());
            failure.hint = Some("what ran in the session has ended; start it again".to_owned());
        }
        if let Error::Lost(loss) = error {
            failure.loss = Some(loss);
        }
        failure
    }
}

#[cfg(test)]
mod tests {
    use remex_proto::RpcError;

    use super::*;

    #[test]
    fn a_context_turns_the_failure_into_its_cause() {
        let failure = Failure::new("cannot listen", "choose another port").because("it is in use");
        let failure = failure.context("cannot serve; and more");
        assert_eq!(failure.message(), "cannot serve; and more: cannot listen: it is in use");
        assert_eq!(failure.hint(), Some("choose another port"));
    }

    #[test]
    fn a_semicolon_in_a_message_is_not_a_hint() {
        let message = "fs/readDirectory returned 60000 entries; limit is 50000";
        let failure = Failure::from(Error::from(RpcError::new(ErrorKind::LimitExceeded, message)));
        assert_eq!((failure.message().as_str(), failure.hint()), (message, None));
    }
}
