//! Everything that modules share about the host: limits, thread pools, clients, accounts and tasks.
//!
//! Passed down as one [`Arc`](std::sync::Arc); knows no connection, session or process. Start at [`Host`].

use std::{
    any::Any,
    ffi::OsString,
    future::Future,
    io,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, PoisonError, RwLock,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use remex_access::{
    account::{Accounts, Kind},
    audit::Audit,
    budget::Budget,
    confinement::{Confinement, Hidden, StartPolicy},
};
use remex_base::{
    available_memory,
    compute::ComputePool,
    deadlines::Deadlines,
    limits::Limits,
    lock,
    metrics::Metrics,
    supervise::supervise,
    threads::{ClientThreads, FileThreads, KEEP_ALIVE, OwnThreads, OwnWork},
    trace::SetParent,
};
use remex_files::SharedWatcher;
use remex_process::{Spawner, Tags, can_switch_user};
use tokio::{
    sync::watch,
    time::{Instant, timeout, timeout_at},
};
use tokio_util::task::TaskTracker;

use crate::{
    config::{Config, HostInfo},
    shared::{jail_support::SupportProbe, proxy::Proxy, resource_limits::LimitEnforcer, web::WebClient},
    state::{durable::Durable, keeper_link::message::Quotas},
};

/// How long it must be quiet before freed memory is returned: the next request may need it again.
const QUIET: Duration = Duration::from_secs(2);

/// The longest wait for a quiet period.
const MAX_WAIT_FOR_QUIET: Duration = Duration::from_secs(60);

/// When threads without work have ended: until then, each keeps some of the memory that it has freed.
const IDLE_THREADS_END: Duration = KEEP_ALIVE.saturating_add(QUIET);

/// Everything that modules share about the host.
#[derive(Debug)]
pub(crate) struct Host {
    /// Replaced as a whole on a reload.
    limits: RwLock<Arc<Limits>>,
    info: HostInfo,
    env: Vec<(OsString, OsString)>,
    tags: Tags,
    spawner: Spawner,
    enforcer: LimitEnforcer,
    durable: Option<Arc<Durable>>,
    confinement: Confinement,
    starts: StartPolicy,
    /// What runs commands again when they end.
    supervisor: Vec<OsString>,
    support: SupportProbe,
    /// Whether processes of the server's user that have a network could connect to it as its owner.
    is_open_on_tcp: OpenOnTcp,
    /// The way of confined processes to the hosts that they may reach.
    proxy: Arc<Proxy>,
    /// Shared by the clients.
    file_threads: FileThreads,
    own_threads: Arc<OwnThreads>,
    compute: ComputePool,
    web: WebClient,
    watcher: Arc<SharedWatcher>,
    /// Memory for long answers, from building them until they are sent.
    answers: Arc<Budget>,
    /// Memory for long messages, from their second MiB until they are parsed.
    incoming: Arc<Budget>,
    /// Everything that clients make the server keep, by identity.
    accounts: Accounts,
    /// When closed processes are forgotten.
    deadlines: Deadlines,
    tasks: TaskTracker,
    phase: watch::Sender<Phase>,
    /// Changes whenever a connection, session or process appears or disappears.
    activity: watch::Sender<()>,
    audit: Audit,
    metrics: Metrics,
    /// Requests that the next server will answer.
    left: Mutex<Vec<Box<dyn Any + Send>>>,
    set_parent: Option<SetParent>,
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
pub(crate) enum Phase {
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
    pub(crate) fn new(
        mut config: Config,
        audit: Audit,
        tags: Tags,
        enforcer: LimitEnforcer,
        durable: Option<Arc<Durable>>,
    ) -> io::Result<Self> {
        config.host.info.process_limits = Some(enforcer.methods().clone());
        config.host.info.starts = config.starts.told();
        config.host.info.capabilities.process_restart = !config.supervisor.is_empty();
        config.host.info.capabilities.process_user =
            config.starts == StartPolicy::Any && can_switch_user().is_ok();
        let threads = std::thread::available_parallelism().map_or(2, |cores| cores.get().clamp(2, 8));
        let mut limits = config.limits;
        available_memory::fit(&mut limits);
        // The keeper, which hides them as well, has another working directory.
        let absolute =
            |paths: Vec<PathBuf>| paths.into_iter().map(std::path::absolute).collect::<io::Result<Vec<_>>>();
        let hidden = Hidden {
            files: absolute(config.hidden)?,
            credentials: absolute(config.credentials)?,
            own_directories: config.own_directories,
            home: config
                .host
                .info
                .user_home_dir
                .as_ref()
                .and_then(|home| home.native().ok())
                .map(Path::to_owned),
        };
        Ok(Host {
            spawner: Spawner::new(threads)?,
            file_threads: FileThreads::new(available_memory::fit_threads())?,
            own_threads: Arc::new(OwnThreads::new()?),
            compute: ComputePool::new(threads.min(4))?,
            web: WebClient::new(config.proxies, config.trust),
            watcher: Arc::default(),
            answers: Arc::new(Budget::new(Kind::Answers, limits.answer_bytes as u64)),
            incoming: Arc::new(Budget::new(Kind::Incoming, limits.incoming_bytes as u64)),
            accounts: Accounts::new(&limits),
            deadlines: Deadlines::default(),
            tasks: TaskTracker::new(),
            phase: watch::Sender::new(Phase::Serving),
            activity: watch::Sender::new(()),
            audit,
            metrics: Metrics::default(),
            left: Mutex::default(),
            set_parent: config.set_parent,
            oom_kills: AtomicU64::new(oom_kills()),
            tags,
            enforcer,
            durable,
            confinement: Confinement::new(config.sandbox, hidden),
            starts: config.starts,
            supervisor: config.supervisor,
            support: SupportProbe::default(),
            is_open_on_tcp: OpenOnTcp::default(),
            proxy: Arc::new(Proxy::new()?),
            info: config.host,
            env: config.host_env,
            limits: RwLock::new(Arc::new(limits)),
        })
    }

    pub(crate) fn limits(&self) -> Arc<Limits> {
        Arc::clone(&self.limits.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Replaces the limits for everything that begins from now on.
    pub(crate) fn set_limits(&self, limits: Limits) {
        if let Some(durable) = &self.durable {
            durable.set_quotas(Quotas::from(&limits));
        }
        *self.limits.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(limits);
    }

    /// Returns the facts about the host that clients may see.
    pub(crate) fn info(&self) -> &HostInfo {
        &self.info
    }

    /// Returns the environment that a policy may pass on to children.
    pub(crate) fn env(&self) -> &[(OsString, OsString)] {
        &self.env
    }

    /// Returns what connects spans with the traces of clients, if they are exported.
    pub(crate) fn set_parent(&self) -> Option<SetParent> {
        self.set_parent
    }

    pub(crate) fn tags(&self) -> &Tags {
        &self.tags
    }

    /// Returns what makes the server durable, if it is.
    pub(crate) fn durable(&self) -> Option<&Arc<Durable>> {
        self.durable.as_ref()
    }

    pub(crate) fn spawner(&self) -> &Spawner {
        &self.spawner
    }

    pub(crate) fn limit_enforcer(&self) -> &LimitEnforcer {
        &self.enforcer
    }

    pub(crate) fn confinement(&self) -> &Confinement {
        &self.confinement
    }

    /// Returns what knows what this host can enforce for processes.
    pub(crate) fn support(&self) -> &SupportProbe {
        &self.support
    }

    /// Replaces the files that are hidden as credentials from everything that is confined from now on.
    pub(crate) fn set_credentials(&self, credentials: Vec<PathBuf>) {
        self.confinement.set_credentials(credentials);
    }

    /// Returns whether a process of the server's own user with a network can connect, and start whatever it likes.
    pub(crate) fn is_open_on_tcp(&self) -> bool {
        let OpenOnTcp { listens, requires_bearer } = &self.is_open_on_tcp;
        listens.load(Ordering::Relaxed) && !requires_bearer.load(Ordering::Relaxed)
    }

    /// Returns the way of confined processes to the hosts that they may reach.
    pub(crate) fn proxy(&self) -> &Arc<Proxy> {
        &self.proxy
    }

    /// Records that the server listens on a TCP port.
    pub(crate) fn listens_on_tcp(&self, port: u16) {
        self.proxy.own_ports().add(port);
        self.is_open_on_tcp.listens.store(true, Ordering::Relaxed);
    }

    /// Records whether clients on TCP ports need a token.
    pub(crate) fn requires_bearer(&self, requires: bool) {
        self.is_open_on_tcp.requires_bearer.store(requires, Ordering::Relaxed);
    }

    /// Hides a file or directory from everything that is confined from now on.
    pub(crate) fn hide(&self, path: &Path) {
        self.confinement.hide(path);
    }

    /// Removes the cgroups of processes that have ended, on a thread that may block.
    pub(crate) fn remove_empty_cgroups(self: &Arc<Self>) {
        let Some(cgroups) = self.enforcer.cgroups().map(Arc::clone) else { return };
        let host = Arc::clone(self);
        self.spawn(async move {
            // If no thread is free, the next removal includes these.
            _ = host.own_threads().run(OwnWork::Cgroups, move || cgroups.remove_empty()).await;
        });
    }

    /// Returns the threads for file work of an identity, given as logs show it.
    pub(crate) fn threads_of(&self, identity: &Arc<str>) -> ClientThreads {
        self.file_threads.of(identity)
    }

    /// Returns the threads that no client can occupy.
    pub(crate) fn own_threads(&self) -> &Arc<OwnThreads> {
        &self.own_threads
    }

    pub(crate) fn compute(&self) -> &ComputePool {
        &self.compute
    }

    pub(crate) fn web(&self) -> &WebClient {
        &self.web
    }

    pub(crate) fn watcher(&self) -> &Arc<SharedWatcher> {
        &self.watcher
    }

    pub(crate) fn answers(&self) -> &Arc<Budget> {
        &self.answers
    }

    pub(crate) fn incoming(&self) -> &Arc<Budget> {
        &self.incoming
    }

    pub(crate) fn accounts(&self) -> &Accounts {
        &self.accounts
    }

    pub(crate) fn deadlines(&self) -> &Deadlines {
        &self.deadlines
    }

    /// Returns which processes clients may start.
    pub(crate) fn starts(&self) -> StartPolicy {
        self.starts
    }

    /// Returns what runs commands again when they end, without the command; empty if there is none.
    pub(crate) fn supervisor(&self) -> &[OsString] {
        &self.supervisor
    }

    pub(crate) fn audit(&self) -> &Audit {
        &self.audit
    }

    pub(crate) fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    /// Returns the tasks that the server waits for when it shuts down.
    pub(crate) fn tasks(&self) -> &TaskTracker {
        &self.tasks
    }

    /// Spawns a task that the server waits for when it shuts down; a panic in it is logged.
    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.tasks.spawn(supervise(task));
    }

    /// Returns the phase of the server's life.
    pub(crate) fn phase(&self) -> &watch::Sender<Phase> {
        &self.phase
    }

    /// Waits until the server is in this phase of its life, or in a later one.
    pub(crate) async fn reaches(&self, phase: Phase) {
        // The sender lives as long as the host.
        _ = self.phase.subscribe().wait_for(|now| *now >= phase).await;
    }

    pub(crate) fn is_stopping(&self) -> bool {
        *self.phase.borrow() > Phase::Serving
    }

    /// Keeps a request without an answer until the server is gone: its client reconnects and repeats it.
    pub(crate) fn leave_to_next(&self, request: impl Any + Send) {
        lock(&self.left).push(Box::new(request));
    }

    /// Drops what was left, after all connections are closed.
    pub(crate) fn drop_left(&self) {
        let left = std::mem::take(&mut *lock(&self.left));
        drop(left);
    }

    /// Records that a connection, session or process appeared or disappeared.
    pub(crate) fn notify_activity(&self) {
        self.activity.send_replace(());
    }

    /// Returns a receiver that changes whenever a connection, session or process appears or disappears.
    pub(crate) fn activity(&self) -> watch::Receiver<()> {
        self.activity.subscribe()
    }

    /// Returns freed memory to the host shortly after activity; never ends.
    ///
    /// For dedicated programs: it affects the memory of the whole program.
    pub(crate) async fn return_freed_memory(&self) {
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
