//! Whether a sandbox probably caused the failure of a process.

use remex_proto::state::output_log::Snapshot;

use super::{
    Exit, ProcessState, ServerAudience,
    kind::LocalState,
    log::{StoredLog, Unread},
    remote_process::RemoteState,
    start::ConfinementLevel,
};
use crate::shared::proxy::Denials;

/// How much output is searched for the words of a denial.
const JUDGED_BYTES: usize = 64 << 10;

/// Error messages about files that a sandbox protects: the texts of `EROFS`, `EACCES` and `EPERM`.
const FILE_DENIALS: [&str; 3] = ["Read-only file system", "Permission denied", "Operation not permitted"];

/// Error messages without a network.
const NETWORK_DENIALS: [&str; 4] = [
    "Connection refused",
    "Could not resolve host",
    "Network is unreachable",
    "Temporary failure in name resolution",
];

fn mentions_denial(output: &Snapshot, confined: ConfinementLevel) -> bool {
    let network: &[&str] = if confined == ConfinementLevel::FilesAndNetwork { &NETWORK_DENIALS } else { &[] };
    let mut texts =
        [&output.stderr, &output.pty, &output.stdout].into_iter().map(|text| String::from_utf8_lossy(text));
    texts.any(|text| FILE_DENIALS.iter().chain(network).any(|words| text.contains(words)))
}

/// Returns whether the sandbox caused a failure, if that is certain without the output.
fn judge_exit(exit: &Exit, confined: ConfinementLevel, denials: Option<&Denials>) -> Option<bool> {
    if confined == ConfinementLevel::No || exit.code == 0 {
        return Some(false);
    }
    match exit.signal.as_deref() {
        // A system call of another architecture.
        Some(signal) => Some(signal == "SIGSYS"),
        None if denials.is_some_and(|denials| !denials.is_empty()) => Some(true),
        None => None,
    }
}

/// Returns whether the output of a failed process in files mentions a denial. Waits for the disk.
pub(super) fn denied_by_stored_output(
    log: &mut StoredLog,
    confined: ConfinementLevel,
) -> Result<bool, Unread> {
    Ok(mentions_denial(&log.snapshot(JUDGED_BYTES)?, confined))
}

impl<A: ServerAudience> ProcessState<A, LocalState<A::Caller>> {
    /// Records whether the sandbox probably caused a failure, now that all output before the exit is in the log in
    /// memory.
    pub(super) fn judge_failure(&mut self, confined: ConfinementLevel) {
        let LocalState { log, denials, .. } = &self.kind;
        let from_output =
            || log.snapshot(JUDGED_BYTES).is_ok_and(|output| mentions_denial(&output, confined));
        if let Some(exit) = &mut self.exit {
            let judged = judge_exit(exit, confined, denials.as_deref());
            exit.sandbox_denied = judged.unwrap_or_else(from_output);
        }
    }
}

impl<A: ServerAudience> ProcessState<A, RemoteState<A::Caller>> {
    /// Records whether the sandbox caused a failure; returns false if only the output can tell, which is in files.
    pub(super) fn judge_without_output(&mut self, confined: ConfinementLevel) -> bool {
        let Some(exit) = &mut self.exit else { return true };
        let judged = judge_exit(exit, confined, None);
        exit.sandbox_denied = judged.unwrap_or(false);
        judged.is_some()
    }

    /// Records what the output says.
    pub(super) fn set_denied(&mut self, is_denied: bool) {
        if let Some(exit) = &mut self.exit {
            exit.sandbox_denied = is_denied;
        }
    }
}
