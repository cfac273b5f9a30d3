//! The entry of a process in lists. Start at [`ServerProcess::entry`].

use remex_proto::process as wire;

use super::{Lifecycle, ServerAudience, ServerProcess};

impl<A: ServerAudience> ServerProcess<A> {
    /// Returns when it started to run, or else when the start was requested.
    pub fn started_at_ms(&self) -> u64 {
        match self.state().lifecycle {
            Lifecycle::Running { started_at_ms, .. } | Lifecycle::Over { started_at_ms, .. } => started_at_ms,
            Lifecycle::Starting(_) | Lifecycle::Failed => self.spec().asked_at_ms,
        }
    }

    /// Returns its entry for `process/list`, without the resource use of its tree.
    pub fn entry(&self, session_id: &str) -> wire::Entry {
        let state = self.state();
        let (pid, started_at_ms) = match &state.lifecycle {
            Lifecycle::Running { pid, started_at_ms } => (Some(*pid), *started_at_ms),
            Lifecycle::Over { pid, started_at_ms } => (*pid, *started_at_ms),
            Lifecycle::Starting(_) | Lifecycle::Failed => (None, self.spec().asked_at_ms),
        };
        let mut entry = wire::Entry::new(self.id.to_string(), session_id, self.spec().cwd().clone());
        entry.incarnation = self.spec().incarnation;
        entry.argv.clone_from(&self.spec().argv);
        entry.pid = pid.map(|pid| pid.as_raw().unsigned_abs());
        entry.tty = self.spec().rules.tty;
        entry.user.clone_from(&self.spec().user);
        entry.durable = self.is_durable();
        entry.labels.clone_from(&self.spec().labels);
        entry.state = match (&state.lifecycle, &state.exit) {
            (Lifecycle::Starting(_), _) => wire::State::Starting,
            _ if state.kind.log().is_closed() => wire::State::Closed,
            (_, Some(_)) => wire::State::Exited,
            _ => wire::State::Running,
        };
        entry.started_at_ms = started_at_ms;
        entry.ended_at_ms = state.ended_at_ms;
        entry.exit_code = state.exit.as_ref().map(|exit| exit.code);
        entry.signal = state.exit.as_ref().and_then(|exit| exit.signal.clone());
        entry.cause = state.exit.as_ref().map(|exit| exit.cause);
        entry.produced = state.kind.log().produced();
        entry.retained_bytes = state.kind.log().held_bytes();
        entry
    }
}
