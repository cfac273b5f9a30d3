//! What is said about the end of a process, and its exit code.

use remex_client::process::{DeniedHost, Exit, ExitCause};

/// The exit code for a process that was lost with the program that ran it.
const LOST: u8 = 123;

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
pub(super) fn denial_notices(denied: &[DeniedHost]) -> Vec<String> {
    let hosts = denied.iter().map(|DeniedHost { host, port, count, .. }| match count {
        // All that are not listed one by one.
        _ if *port == 0 => format!("the sandbox refused more hosts ({count} times)"),
        1 => format!("the sandbox refused {host}:{port}"),
        _ => format!("the sandbox refused {host}:{port} ({count} times)"),
    });
    let mut notices: Vec<_> = hosts.collect();
    if let Some(DeniedHost { host, port, .. }) = denied.first() {
        notices.push(format!(
            "hint: `--net allow={host}:{port}` allows it; private and local addresses need an entry of their own"
        ));
    }
    notices
}

/// Whether this program has ended the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EndedBy {
    ThisProgram,
    Another,
}

/// What to say about some ends.
#[derive(Clone, Debug)]
pub(crate) struct EndNotices {
    /// If the timeout of the process ends it.
    pub(crate) timeout: String,
    /// If it used up its CPU time, in case that is limited.
    pub(crate) cpu: Option<String>,
    /// If its sandbox probably made it fail, in case it has one.
    pub(crate) sandbox: Option<String>,
}

impl Default for EndNotices {
    fn default() -> Self {
        Self { timeout: TIMED_OUT.to_owned(), cpu: None, sandbox: None }
    }
}

impl EndNotices {
    /// Returns what to say about an exit, after all output.
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
        // What the proxy refused is known, the rest is a guess.
        if exit.sandbox_denied && exit.network_denied.is_empty() {
            notices.extend(self.sandbox.clone());
        }
        notices.extend(denial_notices(&exit.network_denied));
        notices
    }
}
