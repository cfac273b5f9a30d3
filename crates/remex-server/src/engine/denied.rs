//! Whether a sandbox probably caused the failure of a process.

use remex_proto::state::output_log::Snapshot;

use super::{Audience, ProcessState, start::Confined};

/// How much output is searched for the words of a denial.
const JUDGED_BYTES: usize = 64 << 10;

/// What programs say about files that a sandbox protects: the texts of `EROFS`, `EACCES` and `EPERM`.
const FILE_DENIALS: [&str; 3] = ["Read-only file system", "Permission denied", "Operation not permitted"];

/// What they say without a network.
const NETWORK_DENIALS: [&str; 4] = [
    "Connection refused",
    "Could not resolve host",
    "Network is unreachable",
    "Temporary failure in name resolution",
];

fn mentions_denial(output: &Snapshot, confined: Confined) -> bool {
    let network: &[&str] = if confined == Confined::FilesAndNetwork { &NETWORK_DENIALS } else { &[] };
    let mut texts =
        [&output.stderr, &output.pty, &output.stdout].into_iter().map(|text| String::from_utf8_lossy(text));
    texts.any(|text| FILE_DENIALS.iter().chain(network).any(|words| text.contains(words)))
}

impl<A: Audience> ProcessState<A> {
    /// Records whether the sandbox probably caused a failure, now that all output before the exit is in the log.
    pub(super) fn judge_failure(&mut self, confined: Confined) {
        let ProcessState { exit: Some(exit), log, denials, .. } = self else { return };
        if confined == Confined::No || exit.code == 0 {
            return;
        }
        exit.sandbox_denied = match exit.signal.as_deref() {
            // A system call of another architecture.
            Some(signal) => signal == "SIGSYS",
            None if denials.as_ref().is_some_and(|denials| !denials.is_empty()) => true,
            None => log.snapshot(JUDGED_BYTES).is_ok_and(|output| mentions_denial(&output, confined)),
        };
    }
}
