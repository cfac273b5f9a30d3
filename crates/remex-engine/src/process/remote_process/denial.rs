//! Searches the output of a failed confined process for a denial, before its exit is announced.

use std::sync::Arc;

use super::{ProcessState, RemoteProcess, RemoteState, ServerAudience, denied_by_stored_output};
use crate::{
    process::{Backoff, LogState as _},
    state::keeper_link::message::Progress,
};

impl<A: ServerAudience> RemoteProcess<A> {
    /// Records how far the process has come; an exit perhaps later, because files are not read here: this is called by
    /// the one task that receives the messages of the keeper.
    pub(super) fn on_progress(
        self: &Arc<Self>,
        state: &mut ProcessState<A, RemoteState<A::Caller>>,
        progress: Progress,
    ) {
        if let Some(judged) = &mut state.kind.pending.delayed_exit {
            // It says everything that the earlier one says, except for output, which is in the files.
            **judged = Progress { inline: Vec::new(), ..progress };
            return;
        }
        let confined = state.kind.pending.confined;
        if progress.exited.is_none() || state.kind.log.exited().is_some() {
            return self.apply(state, progress);
        }
        let mut log = state.kind.log.stored_at(&progress);
        if let Some(exit) = progress.exit.clone()
            && state.exit.is_none()
        {
            self.apply_exit(state, exit);
        }
        if state.judge_without_output(confined) {
            return self.apply(state, progress);
        }
        state.kind.pending.delayed_exit = Some(Box::new(progress));
        let process = Arc::clone(self);
        self.host.spawn(async move {
            let mut backoff = Backoff::default();
            let is_denied = loop {
                let judging = process.log_threads().run(move || {
                    let judged = denied_by_stored_output(&mut log, confined);
                    (judged, log)
                });
                match judging.await {
                    Ok((Ok(is_denied), _)) => break is_denied,
                    Ok((Err(_), again)) if backoff.brief().await => log = again,
                    _ => break false,
                }
            };
            let mut state = process.state();
            state.set_denied(is_denied);
            if let Some(progress) = state.kind.pending.delayed_exit.take() {
                process.apply(&mut state, *progress);
            }
        });
    }
}
