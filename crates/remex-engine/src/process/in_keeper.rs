//! The keeper's kind of process: its log is on disk, and its start and requests come from a server.

use std::{
    io,
    sync::{Arc, Weak},
    time::{Duration, Instant},
};

use remex_access::account::Account;
use remex_base::{limits::Limits, supervise::Running};
use remex_process::{Attempt, Child, Leader, Tag};
use remex_proto::{
    process as wire,
    state::output::{Hold, Point, Seq},
};

use super::{
    Audience, ChildRules, ChildState, DiskLogWriter, Engine, EngineContext, Kind, KindState, Lifecycle,
    LogWriter, ProcessLog, ProcessState, Request, RunsChild, StdinWrite,
    child::{self, ChildLimits, HasChild},
    handover::Handover,
    input::Input,
    launch,
    start::{Announce, ConfinementLevel},
    task::ProcessTask,
    terminate,
};
use crate::{
    shared::host::Host,
    state::keeper_link::message::{Progress, Rules},
};

/// The server, as the audience of processes in its keeper.
pub trait KeeperAudience: Audience<State = KeeperState<Self>, Handle = Arc<KeeperProcess<Self>>> {}

/// A child in the keeper, with its output on disk. Only the server knows who reads it.
#[derive(Debug)]
pub struct InKeeper {
    rules: ChildRules,
}

pub(crate) type KeeperProcess<A> = Engine<A, InKeeper>;

/// The mutable state of a child in the keeper.
#[derive(Debug)]
pub struct KeeperState<A: KeeperAudience> {
    pub(crate) log: DiskLogWriter,
    pub(super) child: ChildState<A::Caller>,
    /// Whether the task is pausing for a handover.
    pub(super) handover: Handover<A>,
}

/// The specification of a process in the keeper.
#[derive(Debug)]
pub(crate) struct KeeperSpec {
    pub(crate) rules: Rules,
    pub(crate) tag: Tag,
}

impl<A: KeeperAudience> KeeperProcess<A> {
    /// Creates the handle of a process that starts in the keeper, and what aborts its start.
    pub(crate) fn in_keeper(
        spec: KeeperSpec,
        host: &Arc<Host>,
        owner: Weak<A::Owner>,
        account: &Arc<Account>,
        log: DiskLogWriter,
        audience: A,
    ) -> (Arc<Self>, Attempt) {
        let KeeperSpec { rules, tag } = spec;
        let input = Input::new(&limits_of(&rules, host), account);
        let process =
            Self::with_input(&rules, EngineContext { owner, host, account, tag }, log, input, audience);
        let attempt = Attempt::default();
        process.state().lifecycle = Lifecycle::Starting(attempt.clone());
        (Arc::new(process), attempt)
    }

    pub(super) fn with_input(
        rules: &Rules,
        context: EngineContext<'_, A>,
        log: DiskLogWriter,
        input: Input<A::Caller>,
        audience: A,
    ) -> Self {
        let state =
            KeeperState { log, child: ChildState::new(input, context.account), handover: Handover::No };
        Engine::new(rules.id.clone(), context, audience, InKeeper { rules: rules_of(rules) }, state)
    }

    /// Runs until all output of a new child, whose start has been recorded, is in the log.
    pub(crate) async fn run_in_keeper(
        self: Arc<Self>,
        child: Child,
        started_at_ms: u64,
        owner: Arc<A::Owner>,
        caller: A::Caller,
    ) -> Option<Running> {
        let announce = Announce { start_id: None, caller: Some(caller), started_at_ms: Some(started_at_ms) };
        launch::run_child(self, owner, child, |_| KnownToServer, announce, |_| {}).await
    }

    /// Kills a child whose start cannot be recorded.
    pub(crate) async fn kill_unrecorded(&self, child: Child) {
        terminate::unwatched(self, child.exit).await;
    }

    /// Records that the process did not start.
    pub(crate) fn fail_in_keeper(&self) {
        let requests = {
            let mut state = self.state();
            state.lifecycle = Lifecycle::Failed;
            std::mem::take(&mut state.requests)
        };
        requests.into_iter().for_each(Request::answer_unknown);
    }

    /// Uses the log on disk.
    pub(crate) fn with_log<R>(&self, work: impl FnOnce(&mut DiskLogWriter) -> R) -> R {
        work(&mut self.state().kind.log)
    }

    pub(crate) fn with_audience<R>(&self, work: impl FnOnce(&mut A) -> R) -> R {
        work(&mut self.state().audience)
    }

    /// Returns what the server has to learn, and what the log holds for it.
    pub(crate) fn progress_and_hold(&self) -> (Progress, Hold<Point>) {
        let mut state = self.state();
        let is_full = state.full;
        (state.kind.log.take_progress(is_full), state.kind.log.hold())
    }
}

impl<A: KeeperAudience> Kind<A> for InKeeper {
    type State = KeeperState<A>;

    fn rules(&self) -> &ChildRules {
        &self.rules
    }

    fn handle(process: &Arc<KeeperProcess<A>>) -> Arc<KeeperProcess<A>> {
        Arc::clone(process)
    }

    fn view(state: &mut ProcessState<A, KeeperState<A>>) -> &mut ProcessState<A> {
        state
    }

    fn on_output(&self) {}

    fn request(
        process: &Arc<KeeperProcess<A>>,
        state: &mut ProcessState<A, KeeperState<A>>,
        request: Request<A::Caller>,
    ) {
        child::queue(process, state, request);
    }

    fn cancel_input(
        _process: &KeeperProcess<A>,
        state: &mut ProcessState<A, KeeperState<A>>,
        is_cancelled: &dyn Fn(&A::Caller) -> bool,
    ) -> (bool, Vec<A::Caller>) {
        (false, state.kind.child.input.cancel(is_cancelled))
    }

    fn read_rest(process: &KeeperProcess<A>) {
        process.wake();
    }

    fn on_retired(state: &mut KeeperState<A>) {
        state.child.leader = None;
    }

    fn kill(process: &KeeperProcess<A>, state: &KeeperState<A>) {
        child::kill(process, &state.child);
    }

    fn write_closed(
        _process: &Arc<KeeperProcess<A>>,
        state: &mut ProcessState<A, KeeperState<A>>,
        write: StdinWrite<A::Caller>,
    ) {
        state.kind.child.input.write(write);
    }

    fn kill_remaining(process: &Arc<KeeperProcess<A>>, caller: A::Caller) {
        terminate::kill_remaining(process, caller);
    }

    fn leader(state: &KeeperState<A>) -> Option<Leader> {
        state.child.leader.clone()
    }

    fn end_log(state: &mut ProcessState<A, KeeperState<A>>) {
        child::end_log(state);
    }
}

impl<A: KeeperAudience> RunsChild<A> for InKeeper {
    type Limits = KnownToServer;

    fn incarnation(&self) -> Option<u64> {
        // The server knows.
        None
    }

    fn judge_failure(_state: &mut ProcessState<A, KeeperState<A>>, _limits: &KnownToServer) {}

    fn pause_if_requested(task: ProcessTask<A, Self>) -> Option<ProcessTask<A, Self>> {
        task.pause_if_requested()
    }
}

impl<A: KeeperAudience> KindState for KeeperState<A> {
    fn log_state(&self) -> &dyn ProcessLog {
        &self.log
    }

    fn oldest_search(&self) -> Option<Seq> {
        None
    }

    fn on_notified(&mut self, now: Instant) {
        self.child.on_notified(now);
    }

    fn on_unlock(&mut self) {
        self.child.charge_input();
    }
}

impl<A: KeeperAudience> HasChild<A::Caller> for KeeperState<A> {
    fn child(&self) -> &ChildState<A::Caller> {
        &self.child
    }

    fn child_mut(&mut self) -> &mut ChildState<A::Caller> {
        &mut self.child
    }

    fn writer(&mut self) -> &mut dyn LogWriter {
        &mut self.log
    }
}

/// What a child in the keeper is kept from matters only to the server, and it has no cgroup.
#[derive(Debug)]
pub struct KnownToServer;

impl ChildLimits for KnownToServer {
    fn level(&self) -> ConfinementLevel {
        ConfinementLevel::No
    }

    fn oom_kills(&self) -> Option<u64> {
        None
    }

    fn kill(&self) -> io::Result<()> {
        Ok(())
    }

    fn on_closed(self, _host: &Arc<Host>) {}
}

/// Returns the limits on the input of a process.
pub(super) fn limits_of(rules: &Rules, host: &Host) -> Limits {
    let number = |count: u64| usize::try_from(count).unwrap_or(usize::MAX);
    Limits {
        write_ids: number(rules.write_ids),
        stdin_bytes: number(rules.stdin_bytes),
        ..Limits::clone(&host.limits())
    }
}

fn rules_of(rules: &Rules) -> ChildRules {
    ChildRules {
        tty: rules.tty,
        overflow: if rules.evicts { wire::Overflow::Evict } else { wire::Overflow::Pause },
        linger: rules.linger_ms.map(Duration::from_millis),
        timeout: rules.timeout_ms.map(Duration::from_millis),
        idle_timeout: rules.idle_timeout_ms.map(Duration::from_millis),
        timeout_grace: rules.timeout_grace_ms.map(Duration::from_millis),
        retain_bytes: usize::try_from(rules.retain_bytes).unwrap_or(usize::MAX),
    }
}
