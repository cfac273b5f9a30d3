//! From an admitted start to the task of a process, for each kind of process. Start at [`run`].

use std::{io, sync::Arc, time::Instant};

use remex_base::supervise::Running;
use remex_process::{Attempt, Cgroup, Child, ProxySocket, Start};
use remex_proto::RpcError;

use super::{
    Audience, Engine, Local, LocalProcess, Owner as _, Remote, RemoteProcess, RunsChild, ServedKind,
    ServerAudience, ServerProcess, Starting,
    child::{ChildLimits, HasChild as _},
    managed::ProxyRules,
    pipes::Pipes,
    start::{Announce, ConfinementLevel, not_durable},
    task::{Ending, ProcessTask},
    terminate,
};
use crate::{shared::host::Host, state::keeper_link::message::StartFailure};

/// Starts the child; returns what runs until all its output is in the log.
pub(super) async fn run<A: ServerAudience>(starting: Starting<A>, owner: Arc<A::Owner>) -> Option<Running> {
    let Starting { process, command, start_id, caller, slots } = starting;
    let announce = Announce { start_id, caller: Some(caller), started_at_ms: None };
    match process {
        ServerProcess::Local(process) => match process.attempt(&*owner, command, &slots).await {
            Ok(StartedChild { child, confined, rules }) => {
                let limits = |cgroup| Confinement { level: confined, cgroup };
                let (proxied, client) = (Arc::clone(&process), Arc::clone(&owner));
                let serve = move |socket| {
                    if let Some(rules) = rules {
                        proxied.serve_proxy(&*client, socket, rules);
                    }
                };
                return run_child(process, owner, *child, limits, announce, serve).await;
            }
            Err(error) => process.fail(&*owner, announce, &error),
        },
        ServerProcess::Remote(process) => match process.attempt(&*owner, command, &slots).await {
            Ok(started) => {
                process.announce_remote_start(&*owner, started, announce);
                return Some(Box::pin(async move { process.follow_keeper(owner).await }));
            }
            Err(error) => process.fail(&*owner, announce, &error),
        },
    }
    None
}

/// What the task of a running process may take: there are thousands of them.
const IDLE_BYTES: usize = 2560;

/// Returns what runs until all output of a new child is in the log; calls `serve` with the socket of its proxy, if it has
/// one.
pub(crate) async fn run_child<A: Audience, K: RunsChild<A>>(
    process: Arc<Engine<A, K>>,
    owner: Arc<A::Owner>,
    child: Child,
    limits: impl FnOnce(Option<Cgroup>) -> K::Limits,
    announce: Announce<A::Caller>,
    serve: impl FnOnce(ProxySocket),
) -> Option<Running> {
    let leader = child.exit.leader().clone();
    process.state().kind.child_mut().leader = Some(leader.clone());
    #[cfg(any(test, feature = "testing"))]
    {
        remex_base::supervise::break_at("!start", &process.id);
        remex_base::supervise::break_once("!once ", &process.id).await;
    }
    let pipes = match Pipes::new(child.io) {
        Ok(pipes) => pipes,
        Err(error) => {
            terminate::unwatched(&process, child.exit).await;
            process.fail_watch(&*owner, announce, &error);
            return None;
        }
    };
    if !pipes.has_input() {
        process.state().kind.child_mut().input.closed();
    }
    let limits = limits(child.cgroup);
    process.announce_start(&*owner, leader.pid(), limits.level(), announce);
    // The client hears of hosts only after the answer to its start.
    if let Some(socket) = child.proxy {
        serve(socket);
    }
    if owner.has_ended() {
        // The owner may have killed its processes before this one existed.
        terminate::force(&process, &leader, None);
    }
    let now = Instant::now();
    let task = ProcessTask {
        exit: child.exit,
        limits,
        pipes,
        started: now,
        end: Ending::Running,
        notify_by: None,
        turn_over: false,
        killed: false,
        timed_out: false,
        process,
        owner,
    };
    task.process.state().last_output = now;
    let running = Box::pin(task.run());
    debug_assert!(size_of_val(&*running) <= IDLE_BYTES, "{} bytes", size_of_val(&*running));
    Some(running)
}

/// Enforces the limits of a child of the server.
#[derive(Debug)]
pub struct Confinement {
    pub(super) level: ConfinementLevel,
    /// Its own cgroup, if it has one.
    pub(super) cgroup: Option<Cgroup>,
}

impl ChildLimits for Confinement {
    fn level(&self) -> ConfinementLevel {
        self.level
    }

    fn oom_kills(&self) -> Option<u64> {
        self.cgroup.as_ref().and_then(Cgroup::oom_kills)
    }

    fn kill(&self) -> io::Result<()> {
        self.cgroup.as_ref().map_or(Ok(()), Cgroup::kill)
    }

    fn on_closed(self, host: &Arc<Host>) {
        if self.cgroup.is_some() {
            drop(self);
            host.remove_empty_cgroups();
        }
    }
}

/// A started child of the server, with its confinement and the rules of its proxy, if it has one.
pub struct StartedChild {
    pub(super) child: Box<Child>,
    pub(super) confined: ConfinementLevel,
    pub(super) rules: Option<ProxyRules>,
}

/// A kind of process that a server starts.
pub trait Starts<A: ServerAudience>: ServedKind<A> {
    /// The result of a successful start.
    type Started: Send;

    /// Starts a command that is confined as it must be.
    fn launch(
        process: &Arc<Engine<A, Self>>,
        owner: &A::Owner,
        start: Start,
        confined: ConfinementLevel,
        rules: Option<ProxyRules>,
        attempt: &Attempt,
    ) -> impl Future<Output = Result<Self::Started, RpcError>> + Send;
}

impl<A: ServerAudience> Starts<A> for Local {
    type Started = StartedChild;

    async fn launch(
        process: &Arc<LocalProcess<A>>,
        _owner: &A::Owner,
        start: Start,
        confined: ConfinementLevel,
        rules: Option<ProxyRules>,
        attempt: &Attempt,
    ) -> Result<StartedChild, RpcError> {
        let made = process.host.spawner().attempt(start, attempt).await;
        let child = made.map_err(|error| process.start_error(&error))?;
        Ok(StartedChild { child: Box::new(child), confined, rules })
    }
}

impl<A: ServerAudience> Starts<A> for Remote {
    /// The pid of the child, and when it started.
    type Started = (u32, u64);

    async fn launch(
        process: &Arc<RemoteProcess<A>>,
        owner: &A::Owner,
        start: Start,
        confined: ConfinementLevel,
        rules: Option<ProxyRules>,
        _attempt: &Attempt,
    ) -> Result<(u32, u64), RpcError> {
        if rules.is_some() {
            return Err(not_durable("its network is limited to some hosts"));
        }
        let message = process.start_message(owner, start, confined);
        process.start_in_keeper(message, confined).await.map_err(|failure| match failure {
            StartFailure::Refused(error) => process.start_error(&error),
            StartFailure::Other(failure) => failure.into(),
        })
    }
}
