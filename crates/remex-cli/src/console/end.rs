//! The notices about the end of a process, and its exit code.

use remex_client::process::{DeniedHost, Exit, ExitCause};

use crate::render::failure::LOST;

/// The notice for a process whose timeout is unknown.
pub(crate) const TIMED_OUT: &str = "the command was ended by its timeout";

/// Why a process that is lost has no exit code of its own.
pub(crate) const LOST_NOTICE: &str = "lost the process: its keeper was killed, its server failed, or its host restarted; its exit code is unknown";

/// Returns the exit code as in a shell; 124 after a timeout, 123 if the process was lost.
pub(crate) fn code(code: i32, cause: Option<ExitCause>) -> u8 {
    match cause {
        Some(ExitCause::Timeout | ExitCause::IdleTimeout) => 124,
        Some(ExitCause::ServerLost) => LOST,
        _ => u8::try_from(code.clamp(0, 255)).unwrap_or(u8::MAX),
    }
}

/// Formats notices about hosts that the sandbox has refused.
fn denial_notices(denied: &[DeniedHost], confined_by: ConfinedBy) -> Vec<String> {
    let hosts = denied.iter().map(|DeniedHost { host, port, count, .. }| match count {
        // All that are not listed one by one.
        _ if *port == 0 => format!("the sandbox refused more hosts ({count} times)"),
        1 => format!("the sandbox refused {host}:{port}"),
        _ => format!("the sandbox refused {host}:{port} ({count} times)"),
    });
    let mut notices: Vec<_> = hosts.collect();
    if let Some(DeniedHost { host, port, .. }) = denied.first() {
        let way = match confined_by {
            ConfinedBy::Flags(_) => format!("`--net allow={host}:{port}` allows it"),
            ConfinedBy::Server => format!(
                "`{host}:{port}` in `network` of a profile allows it, with which its server is run (`remex serve --sandbox`)"
            ),
            ConfinedBy::Unknown => format!(
                "`remex run --net allow={host}:{port}` allows it, unless the profile of its server forbids it"
            ),
        };
        notices.push(format!("hint: {way}; private and local addresses need an entry of their own"));
    }
    notices
}

/// Whether this program has ended the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EndedBy {
    ThisProgram,
    Another,
}

/// The origin of the sandbox of a process, which determines the hint on how to permit more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ConfinedBy {
    /// The flags with which it was started; the notice, if any, names what they let it do.
    Flags(Option<&'static str>),
    /// Its server: the command has no such flags, or they were not given.
    Server,
    /// Another client has started it.
    Unknown,
}

impl ConfinedBy {
    /// Returns the notice for a process whose sandbox probably made it fail. Which of its calls was refused is
    /// unknown: the kernel refuses it as it would without a sandbox.
    fn notice(self) -> Option<&'static str> {
        Some(match self {
            Self::Flags(notice) => notice?,
            Self::Server => {
                "the sandbox may be the reason: its server confines what it starts; `remex serve --sandbox` with a profile \
                 that has more in `read` and `write` allows more"
            }
            Self::Unknown => {
                "the sandbox may be the reason; `--write PATH` and `--read PATH` of `remex run` allow more, or a profile of \
                 its server (`remex serve --sandbox`) does"
            }
        })
    }
}

/// The notices about some ends.
#[derive(Clone, Debug)]
pub(crate) struct EndNotices {
    /// If the timeout of the process ends it.
    pub(crate) timeout: String,
    /// If it used up its CPU time, in case that is limited.
    pub(crate) cpu: Option<String>,
    /// The origin of its sandbox, if that probably made it fail.
    pub(crate) confined_by: ConfinedBy,
}

impl Default for EndNotices {
    fn default() -> Self {
        Self { timeout: TIMED_OUT.to_owned(), cpu: None, confined_by: ConfinedBy::Unknown }
    }
}

impl EndNotices {
    /// Returns the notice about an exit, to be printed after all output.
    pub(super) fn of(&self, exit: &Exit, ended_by: EndedBy) -> Vec<String> {
        let mut notices = Vec::new();
        match exit.cause {
            Some(ExitCause::Terminated) if ended_by == EndedBy::Another => {
                notices.push("the command was terminated by its server or by another client".to_owned());
            }
            Some(ExitCause::Timeout) => notices.push(self.timeout.clone()),
            Some(ExitCause::ServerLost) => notices.push(LOST_NOTICE.to_owned()),
            _ => {}
        }
        if exit.signal.as_deref() == Some("SIGXCPU") {
            notices.extend(self.cpu.clone());
        }
        // Refusals of the proxy are known, others can only be guessed.
        if exit.sandbox_denied && exit.network_denied.is_empty() {
            notices.extend(self.confined_by.notice().map(str::to_owned));
        }
        notices.extend(denial_notices(&exit.network_denied, self.confined_by));
        notices
    }
}
