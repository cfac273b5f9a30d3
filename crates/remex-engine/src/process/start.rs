//! From a start request to a running child: checks before the start, and announcements after it.

use std::{
    convert::Infallible,
    io,
    num::NonZeroU16,
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use remex_access::{confinement::unavailable, scope::Floor};
use remex_base::clock::now_ms;
use remex_process::{Attempt, Jail, Pid, Signal, Size, Start, StartError, StartErrorKind, Stdin, Stdio, Tag};
use remex_proto::{
    ErrorKind, RpcError, environment,
    error::INTERNAL_ERROR,
    process::{self as wire, SandboxType},
    sandbox::{Network, Sandbox},
    state::output_log::{self, OutputLog},
};
use remex_sandbox::Access;
use tokio::sync::Semaphore;
use tracing::Span;

use super::{
    Audience, Caller as _, ChildState, DiskLogView, Engine, EngineContext, Kind, Lifecycle, Local,
    Owner as _, Remote, RemoteProcess, Request, Runner, RunsChild, Served, ServerAudience, ServerProcess,
    SnapshotUse, Spec,
    as_user::AsUser,
    input::Input,
    kind::LocalState,
    launch::Starts,
    managed,
    managed::{Managed, ProxyRules},
    remote_process::RemoteState,
    searches::Searches,
    spec::{check_lengths, words},
    start_request::StartFloor,
    supervised::Supervisor,
};
use crate::{
    process::LOG_TARGET,
    shared::host::Host,
    state::keeper_link::message::{NewProcess, Progress, Rules, ToKeeper},
};

/// A start that has been checked and admitted by the session.
#[derive(Debug)]
pub struct Starting<A: ServerAudience> {
    /// The process.
    pub process: ServerProcess<A>,
    /// The program that it runs.
    pub command: Command,
    /// The id of the start.
    pub start_id: Option<String>,
    /// Who is answered.
    pub caller: A::Caller,
    /// Limits the starts of one caller that run at once, apart from those that hang.
    pub slots: Arc<Semaphore>,
}

impl<A: ServerAudience> Starting<A> {
    /// Fails the start before the attempt.
    pub fn refuse(self, owner: &A::Owner, error: &RpcError) {
        let announce = Announce { start_id: self.start_id, caller: Some(self.caller), started_at_ms: None };
        match self.process {
            ServerProcess::Local(process) => process.fail(owner, announce, error),
            ServerProcess::Remote(process) => process.fail(owner, announce, error),
        }
    }
}

/// A program to start, and the confinement that it asks for.
#[derive(Debug)]
pub struct Command {
    start: Start,
    sandbox: Sandbox,
    /// The rules of its `networkProxy`, if that is enforced.
    managed: Option<Managed>,
    /// The least confinement, whatever it asks for.
    floor: Floor,
    /// The shell snapshot that it restores, if any.
    snapshot: Option<SnapshotUse>,
    /// The supervisor that restarts it when it ends, if it has one.
    supervisor: Option<Supervisor>,
    /// The user as whom it runs, if not that of the server.
    user: Option<AsUser>,
}

impl Command {
    /// Restores a shell snapshot before it.
    pub fn with_snapshot(self, snapshot: Option<SnapshotUse>) -> Self {
        Self { snapshot, ..self }
    }
}

/// How a process is confined.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum ConfinementLevel {
    No,
    Files,
    FilesAndNetwork,
}

/// A start that takes longer than this hangs, for example on a file system that does not respond. Until then,
/// requests that end the process wait for the start, so that a client that sends both at once sees the process
/// run and end.
pub const HANG_THRESHOLD: Duration = Duration::from_secs(1);

/// The size of a terminal if the client does not specify one.
const DEFAULT_SIZE: Size = Size { rows: 24, cols: 80 };

impl<A: ServerAudience> ServerProcess<A> {
    /// Checks everything that needs no system call and creates the handle.
    pub fn prepare(
        request: wire::Start,
        floor: StartFloor,
        context: EngineContext<'_, A>,
        runner: Runner,
        audience: A,
    ) -> Result<(Self, Command), RpcError> {
        let host = context.host;
        let limits = host.limits();
        check_lengths(&request, &limits)?;
        #[cfg(any(test, feature = "testing"))]
        remex_base::supervise::break_at("!request", &request.process_id);
        let user = AsUser::of(&request, host)?;
        let (sandbox, managed) = managed::sandbox(&request)?;
        let start = command(&request, context.tag, host)?;
        let supervisor = Supervisor::find(request.restart.as_ref(), host)?;
        if matches!(runner, Runner::Keeper { .. }) && start.cgroup.is_some() {
            return Err(not_durable("its limits need a cgroup, which belongs to the server"));
        }
        let served = Served::new(Spec::of(&request, floor.first, &limits, &runner), context.account);
        let command = Command { start, sandbox, managed, floor: floor.now, snapshot: None, supervisor, user };
        let process = match runner {
            Runner::Local => {
                let retain =
                    output_log::Limits { retain_bytes: served.spec.rules.retain_bytes, ..limits.retain() };
                let input = Input::new(&limits, context.account);
                let state = LocalState {
                    log: OutputLog::new(retain),
                    child: ChildState::new(input, context.account),
                    searches: Searches::default(),
                    denials: None,
                };
                let process = Engine::new(request.process_id, context, audience, Local(served), state);
                ServerProcess::Local(Arc::new(process))
            }
            Runner::Keeper { link, key } => {
                let log = DiskLogView::new(link.dir_of(key), Progress::start());
                let kind = Remote { served, link, key };
                let process = Engine::new(request.process_id, context, audience, kind, RemoteState::new(log));
                ServerProcess::Remote(Arc::new(process))
            }
        };
        Ok((process, command))
    }
}

impl<A: ServerAudience, K: Starts<A>> Engine<A, K> {
    /// Creates the child, unless the start is aborted first.
    pub(super) async fn attempt(
        self: &Arc<Self>,
        owner: &A::Owner,
        command: Command,
        slots: &Semaphore,
    ) -> Result<K::Started, RpcError> {
        let Lifecycle::Starting(attempt) = self.state().lifecycle.clone() else {
            return Err(RpcError::new(ErrorKind::Internal, "the process was already started"));
        };
        // Dropping the other branch kills a child that is being created.
        tokio::select! {
            biased;
            () = attempt.aborted() => Err(StartAbort::SessionEnded.error(&self.id)),
            made = self.make(owner, command, &attempt, slots) => made,
        }
    }

    async fn make(
        self: &Arc<Self>,
        owner: &A::Owner,
        command: Command,
        attempt: &Attempt,
        slots: &Semaphore,
    ) -> Result<K::Started, RpcError> {
        let slot = slots.acquire().await;
        // A start that hangs releases its slot.
        let hangs = async {
            tokio::time::sleep(HANG_THRESHOLD).await;
            drop(slot);
            std::future::pending::<Infallible>().await
        };
        tokio::select! {
            biased;
            made = self.spawn(owner, command, attempt) => made,
            start_abort = self.start_abort() => Err(start_abort.error(&self.id)),
            never = hangs => match never {},
        }
    }

    async fn spawn(
        self: &Arc<Self>,
        owner: &A::Owner,
        mut command: Command,
        attempt: &Attempt,
    ) -> Result<K::Started, RpcError> {
        let (snapshot, spawner) = (command.snapshot.take(), self.host.spawner());
        let user = command.user.take();
        if let Some(user) = &user {
            self.apply_user(owner, user, &mut command.start).await?;
        }
        let (start, confined, rules, supervisor) = self.confine(owner, command).await?;
        if let Some(user) = &user {
            user.check_unconfined(&start)?;
        }
        // Captured in the jail of the command, if it has one.
        let mut start = match snapshot {
            Some(snapshot) => snapshot.apply(start, spawner).await,
            None => start,
        };
        if let Some(rules) = &rules {
            // Whatever the snapshot says.
            managed::point_to_proxy(&mut start.env, &rules.hosts);
        }
        if let Some(supervisor) = supervisor {
            start = supervisor.wrap(start);
        }
        K::launch(self, owner, start, confined, rules, attempt).await
    }

    pub(super) fn start_error(&self, error: &StartError) -> RpcError {
        match error.kind() {
            StartErrorKind::Aborted => StartAbort::SessionEnded.error(&self.id),
            _ => start_error(error, self.kind.served().spec.argv.first().map_or("", String::as_str)),
        }
    }

    /// Resolves the sandbox of a command, on a thread that may block.
    async fn confine(
        &self,
        owner: &A::Owner,
        command: Command,
    ) -> Result<(Start, ConfinementLevel, Option<ProxyRules>, Option<Supervisor>), RpcError> {
        let Command { mut start, sandbox, managed, floor, supervisor, .. } = command;
        if !self.host.confinement().concerns_processes(&sandbox, floor) {
            self.host.starts().check_unconfined()?;
            return Ok((start, ConfinementLevel::No, None, supervisor));
        }
        let host = Arc::clone(&self.host);
        let resolving = self.host.threads_of(&owner.identity().into()).run(move || {
            let tmpdir =
                start.env.iter().find(|(name, _)| name == "TMPDIR").map(|(_, value)| value.as_os_str());
            let policy = host.confinement().resolve_for_process(&sandbox, floor, &start.cwd, tmpdir)?;
            host.starts().check_policy(&policy)?;
            if policy.is_open() && policy.network() == Network::Enabled {
                // Something outside the server confines it, or nothing does.
                return Ok((start, ConfinementLevel::No, None, supervisor));
            }
            // A directory that cannot be found is reported by the start.
            if std::fs::canonicalize(&start.cwd).is_ok_and(|cwd| policy.access(&cwd) == Access::Deny) {
                return Err(hidden_cwd(&start.cwd));
            }
            if policy.network() == Network::Enabled && host.is_open_on_tcp() {
                return Err(unavailable(
                    "a confined process with network could connect to this server as its own user, and start unconfined \
                     ones; let the server listen on a unix socket only, or require tokens on its TCP ports",
                ));
            }
            let confined = match policy.network() {
                Network::Enabled => ConfinementLevel::Files,
                Network::Restricted => ConfinementLevel::FilesAndNetwork,
            };
            let rules = match policy.hosts().cloned() {
                Some(hosts) => {
                    managed::point_to_proxy(&mut start.env, &hosts);
                    let floors = host.confinement().hosts_of_floors(floor, &start.cwd)?;
                    Some(ProxyRules { hosts, managed: managed.map(|managed| managed.within(floors)) })
                }
                None => None,
            };
            let mut needed = vec![start.cwd.as_path(), Path::new(&start.program)];
            needed.extend(supervisor.as_ref().map(Supervisor::path));
            let hidden = host.confinement().hidden_from_process(&policy, &needed);
            if let Some(supervisor) = &supervisor {
                supervisor.check_visible(&policy, &hidden)?;
            }
            start.jail = Some(Jail::new(policy, hidden));
            Ok((start, confined, rules, supervisor))
        });
        resolving.await?
    }

    /// Waits until a start that hangs must be aborted, by a request or a timeout.
    async fn start_abort(&self) -> StartAbort {
        let begun = Instant::now();
        let rules = self.kind.rules();
        let timeouts = [(rules.timeout, StartAbort::Timeout), (rules.idle_timeout, StartAbort::IdleTimeout)];
        let in_time =
            timeouts.into_iter().filter_map(|(time, why)| Some((time?.max(HANG_THRESHOLD), why))).min();
        loop {
            let ended =
                self.state().requests.iter().find_map(Request::ends_start).map(|why| (HANG_THRESHOLD, why));
            let end = ended.into_iter().chain(in_time).min();
            let at = end.and_then(|(time, why)| Some((begun.checked_add(time)?, why)));
            match at {
                None => self.wake.notified().await,
                Some((at, why)) => {
                    if tokio::time::timeout_at(at.into(), self.wake.notified()).await.is_err() {
                        return why;
                    }
                }
            }
        }
    }
}

impl<A: ServerAudience> RemoteProcess<A> {
    /// Returns what the keeper has to know to start the process.
    pub(super) fn start_message(
        &self,
        owner: &A::Owner,
        mut start: Start,
        confined: ConfinementLevel,
    ) -> ToKeeper {
        // The parent is the keeper, and its end is handled by the server.
        start.parent_death = None;
        let (spec, limits) = (&self.kind.served.spec, self.host.limits());
        let rules = &spec.rules;
        let ms = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        let description = self.describe(owner, confined);
        ToKeeper::Start(Box::new(NewProcess {
            key: self.kind.key,
            session: owner.id().to_owned(),
            description: serde_json::to_vec(&description).unwrap_or_default(),
            request: spec.request.as_ref().map(|request| request.bytes().to_vec()).unwrap_or_default(),
            start: start.to_spec(),
            rules: Rules {
                id: self.id.to_string(),
                tty: rules.tty,
                retain_bytes: rules.retain_bytes as u64,
                evicts: rules.overflow == wire::Overflow::Evict,
                timeout_ms: rules.timeout.map(ms),
                idle_timeout_ms: rules.idle_timeout.map(ms),
                timeout_grace_ms: rules.timeout_grace.map(ms),
                linger_ms: rules.linger.map(ms),
                write_ids: limits.write_ids as u64,
                stdin_bytes: limits.stdin_bytes as u64,
                sync: spec.sync,
            },
        }))
    }
}

impl<A: Audience, K: RunsChild<A>> Engine<A, K> {
    /// Records that the child runs, and informs the owner, which answers the start.
    pub(super) fn announce_start(
        self: &Arc<Self>,
        owner: &A::Owner,
        pid: Pid,
        confined: ConfinementLevel,
        starting: Announce<A::Caller>,
    ) {
        let started_at_ms = starting.started_at_ms.unwrap_or_else(now_ms);
        self.state().lifecycle = Lifecycle::Running { pid, started_at_ms };
        let pid = pid.as_raw().unsigned_abs();
        let started = started_reply(&self.id, pid, started_at_ms, confined, self.kind.incarnation());
        self.answer_start(owner, started, starting);
    }

    /// Fails the start of a child that runs but whose output cannot be watched.
    pub(super) fn fail_watch(
        self: &Arc<Self>,
        owner: &A::Owner,
        starting: Announce<A::Caller>,
        error: &io::Error,
    ) {
        let message = format!("cannot watch the output of process `{}`: {error}", self.id);
        let error = RpcError::new(ErrorKind::LimitExceeded, message)
            .with_code(INTERNAL_ERROR)
            .with_hint("free descriptors and start it again");
        self.fail(owner, starting, &error);
    }
}

impl<A: Audience, K: Kind<A>> Engine<A, K> {
    /// Lets the owner answer the start of a child that runs.
    pub(super) fn answer_start(
        self: &Arc<Self>,
        owner: &A::Owner,
        started: wire::Started,
        starting: Announce<A::Caller>,
    ) {
        let pid = started.pid;
        owner.on_started(&K::handle(self), starting.start_id.as_deref(), started, starting.caller);
        self.changed.notify_waiters();
        Span::current().record("pid", pid);
        tracing::info!(target: LOG_TARGET, session = owner.id(), identity = %owner.identity(), process = %self.id, pid, "process started");
    }

    /// Frees the id and answers all pending requests.
    pub(super) fn fail(self: &Arc<Self>, owner: &A::Owner, starting: Announce<A::Caller>, error: &RpcError) {
        let handle = K::handle(self);
        owner.on_start_failed(&handle, starting.start_id.as_deref(), error);
        let requests = {
            let mut state = self.state();
            state.lifecycle = Lifecycle::Failed;
            std::mem::take(&mut state.requests)
        };
        Span::current().record("error", error.kind.word());
        tracing::info!(target: LOG_TARGET, session = owner.id(), identity = %owner.identity(), process = %self.id, error = %error.text(), "process did not start");
        owner.announce_failure(&handle, error);
        if let Some(caller) = starting.caller {
            caller.error(error);
        }
        requests.into_iter().for_each(Request::answer_unknown);
        self.changed.notify_waiters();
    }
}

/// Why a start that hung was aborted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum StartAbort {
    Terminated,
    Signalled,
    Timeout,
    IdleTimeout,
    SessionEnded,
}

impl StartAbort {
    fn error(self, id: &str) -> RpcError {
        let (kind, why) = match self {
            Self::Terminated => (ErrorKind::Cancelled, "it was terminated"),
            Self::Signalled => (ErrorKind::Cancelled, "a signal ended it"),
            Self::Timeout => (ErrorKind::SpawnFailed, "its `timeoutMs` passed"),
            Self::IdleTimeout => (ErrorKind::SpawnFailed, "its `idleTimeoutMs` passed"),
            Self::SessionEnded => {
                let message = format!("process `{id}` was not started: the server or the session is ending");
                return RpcError::new(ErrorKind::ShuttingDown, message);
            }
        };
        RpcError::new(kind, format!("process `{id}` was not started: {why} while its start hung"))
            .with_hint("check the file systems of its working directory, its program and `PATH`")
    }
}

/// Where the result of a start is reported.
pub(super) struct Announce<C> {
    pub(super) start_id: Option<String>,
    /// `None` if an earlier server was asked for it.
    pub(super) caller: Option<C>,
    /// When the child began to run, if that is recorded already.
    pub(super) started_at_ms: Option<u64>,
}

/// Returns the answer to the start of process `id`.
pub(super) fn started_reply(
    id: &str,
    pid: u32,
    started_at_ms: u64,
    confined: ConfinementLevel,
    incarnation: Option<u64>,
) -> wire::Started {
    wire::Started {
        process_id: id.to_owned(),
        sandbox_type: match confined {
            ConfinementLevel::No => SandboxType::None,
            ConfinementLevel::Files | ConfinementLevel::FilesAndNetwork => SandboxType::LinuxSeccomp,
        },
        pid: Some(pid),
        started_at_ms: Some(started_at_ms),
        incarnation,
        replayed: false,
    }
}

fn command(request: &wire::Start, tag: Tag, host: &Host) -> Result<Start, RpcError> {
    let cwd = request.cwd.native().map_err(|error| {
        RpcError::new(
            ErrorKind::InvalidParams,
            format!("cwd URI `{}` is not valid on this exec-server host: {error}", request.cwd),
        )
    })?;
    let argv = words(request);
    let Some((program, args)) = argv.split_first() else {
        return Err(RpcError::new(ErrorKind::InvalidParams, "argv must not be empty"));
    };
    let (rlimits, cgroup) = host.limit_enforcer().plan(&request.limits)?;
    let size = |wanted: Option<NonZeroU16>, default: u16| wanted.map_or(default, NonZeroU16::get);
    Ok(Start {
        program: program.into(),
        arg0: request.arg0.clone().map(Into::into),
        args: args.to_vec(),
        cwd: cwd.to_owned(),
        env: environment::resolve(request.env_policy.as_ref(), &request.env, host.env().iter().cloned()),
        stdio: if request.tty {
            Stdio::Pty {
                size: Size {
                    rows: size(request.rows, DEFAULT_SIZE.rows),
                    cols: size(request.cols, DEFAULT_SIZE.cols),
                },
            }
        } else {
            Stdio::Pipes { stdin: if request.pipe_stdin { Stdin::Piped } else { Stdin::Null } }
        },
        tag,
        parent_death: (!request.tty).then_some(Signal::TERM),
        rlimits,
        cgroup,
        jail: request.isolate_pids.then(Jail::pids_only),
        user: None,
    })
}

/// Returns the error for a process that the keeper cannot run.
pub(super) fn not_durable(why: &str) -> RpcError {
    let message = format!("this process cannot outlive the server: {why}");
    RpcError::new(ErrorKind::NotSupported, message).with_hint("start it with `durable: false`")
}

fn hidden_cwd(cwd: &Path) -> RpcError {
    let message = format!("cannot start in `{}`: the sandbox does not let the process see it", cwd.display());
    RpcError::new(ErrorKind::BadCwd, message)
        .with_hint("let the sandbox read this directory, or choose another working directory")
}

/// Returns the answer to a failed start of `command`.
fn start_error(error: &StartError, command: &str) -> RpcError {
    let kind = match error.kind() {
        StartErrorKind::ProgramNotFound => ErrorKind::ProgramNotFound,
        StartErrorKind::NotExecutable => ErrorKind::NotExecutable,
        StartErrorKind::BadCwd => ErrorKind::BadCwd,
        StartErrorKind::TooManyProcesses => ErrorKind::TooManyProcesses,
        StartErrorKind::TooManyDescriptors | StartErrorKind::TooManyHungStarts => ErrorKind::LimitExceeded,
        StartErrorKind::CannotConfine => return unavailable(error.to_string()),
        StartErrorKind::InvalidInput => ErrorKind::InvalidParams,
        StartErrorKind::Aborted | StartErrorKind::Other => ErrorKind::SpawnFailed,
    };
    let refusal = match error.system_text() {
        Some(text) => {
            let cwd = (kind == ErrorKind::BadCwd).then(|| error.cwd.to_string_lossy().into_owned());
            // That may be its supervisor, which has nothing to do with the directory.
            let program = if cwd.is_some() { command.into() } else { error.program.to_string_lossy() };
            RpcError::new(kind, text).with_start(program, cwd)
        }
        None => RpcError::new(kind, error.message()),
    };
    refusal.with_code(INTERNAL_ERROR).with_hint(error.hint())
}
