//! Everything that processes share about the host: limits, threads, confinement, and the state of the server.
//!
//! Passed down as one [`Arc`]; knows no connection, session or process. Start at [`Host`].

use std::{
    ffi::OsString,
    future::Future,
    io,
    path::{Path, PathBuf},
    sync::{
        Arc, PoisonError, RwLock,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use remex_access::{
    audit::Audit,
    confinement::{Confinement, Hidden, SandboxFloor, StartPolicy},
};
use remex_base::{
    available_memory,
    compute::ComputePool,
    deadlines::Deadlines,
    limits::Limits,
    metrics::Metrics,
    supervise::supervise,
    threads::{ClientThreads, FileThreads, KEEP_ALIVE, ServerThreads, ServerWork},
};
use remex_process::{Spawner, Tags};
use tokio::{
    sync::watch,
    time::{Instant, timeout, timeout_at},
};
use tokio_util::task::TaskTracker;

use crate::{
    shared::{proxy::Proxy, resource_limits::LimitEnforcer},
    state::{durable::Durable, keeper_link::message::Quotas},
};

/// How long it must be quiet before freed memory is returned: the next request may need it again.
const QUIET: Duration = Duration::from_secs(2);

/// The longest wait for a quiet period.
const MAX_WAIT_FOR_QUIET: Duration = Duration::from_secs(60);

/// When threads without work have ended: until then, each keeps some of the memory that it has freed.
const IDLE_THREADS_END: Duration = KEEP_ALIVE.saturating_add(QUIET);

/// The configuration of an engine.
#[derive(Clone, Debug)]
pub struct EngineConfig {
    /// Limits and timeouts.
    pub limits: Limits,
    /// The environment that an `envPolicy` may pass on to children.
    pub env: Vec<(OsString, OsString)>,
    /// The least confinement of what clients do.
    pub sandbox: SandboxFloor,
    /// Paths that no confined process or request may access.
    pub hidden: Hidden,
    /// Which processes clients may start.
    pub starts: StartPolicy,
    /// The program that runs a command again when it ends, with its first arguments; empty for none.
    pub supervisor: Vec<OsString>,
}

/// Everything that processes share about the host.
#[derive(Debug)]
pub struct Host {
    /// Replaced as a whole on a reload.
    limits: RwLock<Arc<Limits>>,
    env: Vec<(OsString, OsString)>,
    tags: Tags,
    spawner: Spawner,
    enforcer: LimitEnforcer,
    durable: Option<Arc<Durable>>,
    confinement: Confinement,
    starts: StartPolicy,
    /// The supervisor that restarts commands when they end.
    supervisor: Vec<OsString>,
    /// Whether processes of the server's user that have a network could connect to it as its owner.
    is_open_on_tcp: OpenOnTcp,
    /// The way of confined processes to the hosts that they may reach.
    proxy: Arc<Proxy>,
    /// Shared by the clients.
    file_threads: FileThreads,
    own_threads: Arc<ServerThreads>,
    compute: ComputePool,
    /// When closed processes are forgotten.
    deadlines: Deadlines,
    tasks: TaskTracker,
    phase: watch::Sender<Phase>,
    /// Changes whenever a connection, session or process appears or disappears.
    activity: watch::Sender<()>,
    audit: Audit,
    metrics: Metrics,
    /// The kernel's counter of out-of-memory kills, as last read.
    oom_kills: AtomicU64,
}

/// Who gets in on TCP ports.
#[derive(Debug, Default)]
struct OpenOnTcp {
    listens: AtomicBool,
    requires_bearer: AtomicBool,
}

/// The phases of a server's life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    /// Accepts everything.
    Serving,
    /// Accepts no new work and ends its processes.
    Stopping,
    /// Notifies clients and closes their connections.
    Disconnecting,
}

impl Host {
    /// Starts the first thread of each pool.
    ///
    /// # Errors
    ///
    /// If the host cannot create these threads.
    pub fn new(
        config: EngineConfig,
        audit: Audit,
        tags: Tags,
        enforcer: LimitEnforcer,
        durable: Option<Arc<Durable>>,
    ) -> io::Result<Self> {
        let threads = std::thread::available_parallelism().map_or(2, |cores| cores.get().clamp(2, 8));
        let mut limits = config.limits;
        available_memory::fit(&mut limits);
        // The keeper, which hides them as well, has another working directory.
        let absolute =
            |paths: Vec<PathBuf>| paths.into_iter().map(std::path::absolute).collect::<io::Result<Vec<_>>>();
        let hidden = Hidden {
            files: absolute(config.hidden.files)?,
            credentials: absolute(config.hidden.credentials)?,
            ..config.hidden
        };
        Ok(Host {
            spawner: Spawner::new(threads)?,
            file_threads: FileThreads::new(available_memory::fit_threads())?,
            own_threads: Arc::new(ServerThreads::new()?),
            compute: ComputePool::new(threads.min(4))?,
            deadlines: Deadlines::default(),
            tasks: TaskTracker::new(),
            phase: watch::Sender::new(Phase::Serving),
            activity: watch::Sender::new(()),
            audit,
            metrics: Metrics::default(),
            oom_kills: AtomicU64::new(oom_kills()),
            tags,
            enforcer,
            durable,
            confinement: Confinement::new(config.sandbox, hidden),
            starts: config.starts,
            supervisor: config.supervisor,
            is_open_on_tcp: OpenOnTcp::default(),
            proxy: Arc::new(Proxy::new()?),
            env: config.env,
            limits: RwLock::new(Arc::new(limits)),
        })
    }

    /// Returns the limits for what begins now.
    pub fn limits(&self) -> Arc<Limits> {
        Arc::clone(&self.limits.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Replaces the limits for everything that begins from now on.
    pub fn set_limits(&self, limits: Limits) {
        if let Some(durable) = &self.durable {
            durable.set_quotas(Quotas::from(&limits));
        }
        *self.limits.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(limits);
    }

    /// Returns the environment that a policy may pass on to children.
    pub fn env(&self) -> &[(OsString, OsString)] {
        &self.env
    }

    /// Returns the tags of what is started here.
    pub fn tags(&self) -> &Tags {
        &self.tags
    }

    /// Returns what makes the server durable, if it is.
    pub fn durable(&self) -> Option<&Arc<Durable>> {
        self.durable.as_ref()
    }

    pub(crate) fn spawner(&self) -> &Spawner {
        &self.spawner
    }

    /// Returns what enforces the limits of children.
    pub fn limit_enforcer(&self) -> &LimitEnforcer {
        &self.enforcer
    }

    /// Returns what resolves the sandboxes of all clients.
    pub fn confinement(&self) -> &Confinement {
        &self.confinement
    }

    /// Replaces the files that are hidden as credentials from everything that is confined from now on.
    pub fn set_credentials(&self, credentials: Vec<PathBuf>) {
        self.confinement.set_credentials(credentials);
    }

    /// Returns whether a process of the server's own user with a network can connect, and start whatever it likes.
    pub(crate) fn is_open_on_tcp(&self) -> bool {
        let OpenOnTcp { listens, requires_bearer } = &self.is_open_on_tcp;
        listens.load(Ordering::Relaxed) && !requires_bearer.load(Ordering::Relaxed)
    }

    /// Returns the way of confined processes to the hosts that they may reach.
    pub fn proxy(&self) -> &Arc<Proxy> {
        &self.proxy
    }

    /// Records that the server listens on a TCP port.
    pub fn listens_on_tcp(&self, port: u16) {
        self.proxy.own_ports().add(port);
        self.is_open_on_tcp.listens.store(true, Ordering::Relaxed);
    }

    /// Records whether clients on TCP ports need a token.
    pub fn requires_bearer(&self, requires: bool) {
        self.is_open_on_tcp.requires_bearer.store(requires, Ordering::Relaxed);
    }

    /// Hides a file or directory from everything that is confined from now on.
    pub fn hide(&self, path: &Path) {
        self.confinement.hide(path);
    }

    /// Removes the cgroups of processes that have ended, on a thread that may block.
    pub fn remove_empty_cgroups(self: &Arc<Self>) {
        let Some(cgroups) = self.enforcer.cgroups().map(Arc::clone) else { return };
        let host = Arc::clone(self);
        self.spawn(async move {
            // If no thread is free, the next removal includes these.
            _ = host.own_threads().run(ServerWork::Cgroups, move || cgroups.remove_empty()).await;
        });
    }

    /// Returns the threads for file work of an identity, given as logs show it.
    pub fn threads_of(&self, identity: &Arc<str>) -> ClientThreads {
        self.file_threads.of(identity)
    }

    /// Returns the threads that no client can occupy.
    pub fn own_threads(&self) -> &Arc<ServerThreads> {
        &self.own_threads
    }

    /// Returns the threads that compute.
    pub fn compute(&self) -> &ComputePool {
        &self.compute
    }

    /// Returns which processes clients may start.
    pub fn starts(&self) -> StartPolicy {
        self.starts
    }

    /// Returns what runs commands again when they end, without the command; empty if there is none.
    pub fn supervisor(&self) -> &[OsString] {
        &self.supervisor
    }

    /// Returns where it is recorded what clients do.
    pub fn audit(&self) -> &Audit {
        &self.audit
    }

    /// Returns the counters.
    pub fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    /// Returns when closed processes are forgotten.
    pub fn deadlines(&self) -> &Deadlines {
        &self.deadlines
    }

    /// Returns the tasks that the server waits for when it shuts down.
    pub fn tasks(&self) -> &TaskTracker {
        &self.tasks
    }

    /// Spawns a task that the server waits for when it shuts down; a panic in it is logged.
    pub fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.tasks.spawn(supervise(task));
    }

    /// Returns the phase of the server's life.
    pub fn phase(&self) -> &watch::Sender<Phase> {
        &self.phase
    }

    /// Waits until the server is in this phase of its life, or in a later one.
    pub async fn reaches(&self, phase: Phase) {
        // The sender lives as long as the host.
        _ = self.phase.subscribe().wait_for(|now| *now >= phase).await;
    }

    /// Returns whether no new work is accepted.
    pub fn is_stopping(&self) -> bool {
        *self.phase.borrow() > Phase::Serving
    }

    /// Records that a connection, session or process appeared or disappeared.
    pub fn notify_activity(&self) {
        self.activity.send_replace(());
    }

    /// Returns a receiver that changes whenever a connection, session or process appears or disappears.
    pub fn activity(&self) -> watch::Receiver<()> {
        self.activity.subscribe()
    }

    /// Returns freed memory to the host shortly after activity; never ends.
    ///
    /// For dedicated programs: it affects the memory of the whole program.
    pub async fn return_freed_memory(&self) {
        let mut activity = self.activity();
        // The sender lives as long as the host.
        while activity.changed().await.is_ok() {
            loop {
                let latest = Instant::now() + MAX_WAIT_FOR_QUIET;
                while timeout_at(latest.min(Instant::now() + QUIET), activity.changed()).await.is_ok() {}
                self.compute.run(remex_process::trim_heap).await;
                if timeout(IDLE_THREADS_END, activity.changed()).await.is_err() {
                    break;
                }
            }
            self.compute.run(remex_process::trim_heap).await;
        }
    }

    /// Returns whether the kernel has killed a process for lack of memory since the last call.
    pub(crate) fn ran_out_of_memory(&self) -> bool {
        let now = oom_kills();
        self.oom_kills.fetch_max(now, Ordering::Relaxed) < now
    }
}

/// Returns how many processes the kernel has killed for lack of memory since it booted.
fn oom_kills() -> u64 {
    let Ok(text) = std::fs::read_to_string("/proc/vmstat") else { return 0 };
    text.lines().find_map(|line| line.strip_prefix("oom_kill ")?.trim().parse().ok()).unwrap_or(0)
}
