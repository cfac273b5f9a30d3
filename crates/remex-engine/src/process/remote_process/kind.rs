//! The remote kind of process: the server's view of a child in the keeper. Start at [`Remote`].

use std::{sync::Arc, time::Instant};

use remex_process::{Leader, Scope};
use remex_proto::{
    process::{self as wire, TerminateMode, TerminateScope},
    state::output::Seq,
};

use super::{PendingAtKeeper, RemoteProcess};
use crate::{
    process::{
        Caller, ChildRules, DiskLogView, Kind, KindState, ProcessLog, ProcessState, Request, Served,
        ServedKind, ServedState, ServerAudience, ServerLog, ServerProcess, StdinWrite, searches::Searches,
        terminate,
    },
    shared::proxy::Denials,
    state::keeper_link::{
        KeeperLink,
        message::{Key, ToKeeper},
    },
};

/// The server's view of a child in the keeper.
#[derive(Debug)]
pub struct Remote {
    pub(in crate::process) served: Served,
    pub(in crate::process) link: Arc<KeeperLink>,
    pub(in crate::process) key: Key,
}

/// The mutable part of the server's view of a child in the keeper.
#[derive(Debug)]
pub struct RemoteState<C> {
    pub(in crate::process) log: DiskLogView,
    searches: Searches,
    pub(super) pending: PendingAtKeeper<C>,
}

impl<C> RemoteState<C> {
    pub(in crate::process) fn new(log: DiskLogView) -> Self {
        RemoteState { log, searches: Searches::default(), pending: PendingAtKeeper::default() }
    }
}

impl<A: ServerAudience> Kind<A> for Remote {
    type State = RemoteState<A::Caller>;

    fn rules(&self) -> &ChildRules {
        &self.served.spec.rules
    }

    fn handle(process: &Arc<RemoteProcess<A>>) -> ServerProcess<A> {
        ServerProcess::Remote(Arc::clone(process))
    }

    fn view(state: &mut ProcessState<A, Self::State>) -> &mut ProcessState<A> {
        state
    }

    fn on_output(&self) {
        self.served.output.notify_waiters();
    }

    fn request(
        process: &Arc<RemoteProcess<A>>,
        state: &mut ProcessState<A, Self::State>,
        request: Request<A::Caller>,
    ) {
        process.forward(state, request);
    }

    /// What the keeper has not accepted is cancelled there, and answered when that is certain.
    fn cancel_input(
        process: &RemoteProcess<A>,
        state: &mut ProcessState<A, Self::State>,
        is_cancelled: &dyn Fn(&A::Caller) -> bool,
    ) -> (bool, Vec<A::Caller>) {
        let (is_asked, withdrawn) = process.cancel_forwarded(state, is_cancelled);
        (is_asked, withdrawn.into_iter().map(Request::into_caller).collect())
    }

    fn read_rest(process: &RemoteProcess<A>) {
        process.kind.link.send(&ToKeeper::ReadRest(process.kind.key));
        process.wake();
    }

    fn on_retired(_state: &mut Self::State) {}

    fn kill(process: &RemoteProcess<A>, _state: &Self::State) {
        process.abandon_at_keeper();
    }

    fn write_closed(
        process: &Arc<RemoteProcess<A>>,
        state: &mut ProcessState<A, Self::State>,
        write: StdinWrite<A::Caller>,
    ) {
        // The keeper knows whether it accepted the write earlier.
        if process.has_keeper() {
            process.forward(state, Request::Write(write));
        } else {
            write.answer(wire::WriteStatus::StdinClosed);
        }
    }

    fn kill_remaining(process: &Arc<RemoteProcess<A>>, caller: A::Caller) {
        if !process.has_keeper() {
            return terminate::kill_remaining(process, caller);
        }
        let process = Arc::clone(process);
        Arc::clone(&process.host).spawn(async move {
            if let Err(error) = terminate::kill(&Scope::Start(process.tag)).await {
                return caller.answer(Err(error));
            }
            // A process that has cleared its tag is a child of the keeper, and only the keeper knows where it belongs.
            let request = Request::Terminate(TerminateMode::Force, TerminateScope::Tree, caller);
            process.forward(&mut process.state(), request);
        });
    }

    fn leader(_state: &Self::State) -> Option<Leader> {
        None
    }

    // The keeper writes it.
    fn end_log(_state: &mut ProcessState<A, Self::State>) {}
}

impl<A: ServerAudience> ServedKind<A> for Remote {
    fn served(&self) -> &Served {
        &self.served
    }
}

impl<C: Caller> KindState for RemoteState<C> {
    fn log_state(&self) -> &dyn ProcessLog {
        &self.log
    }

    fn oldest_search(&self) -> Option<Seq> {
        self.searches.oldest()
    }

    fn on_notified(&mut self, _now: Instant) {}

    fn on_unlock(&mut self) {
        self.log.release();
    }
}

impl<C: Caller> ServedState for RemoteState<C> {
    fn log(&self) -> &dyn ServerLog {
        &self.log
    }

    fn log_mut(&mut self) -> &mut dyn ServerLog {
        &mut self.log
    }

    fn log_and_denials(&mut self) -> (&mut dyn ServerLog, Option<&Denials>) {
        (&mut self.log, None)
    }

    fn searches(&mut self) -> &mut Searches {
        &mut self.searches
    }

    fn delays_reads(&self) -> bool {
        false
    }
}
