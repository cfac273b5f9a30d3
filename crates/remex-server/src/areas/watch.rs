//! `fs/watch`: reports changes in the file system to the connection that asked for them.
//!
//! A watch is a task of its connection. The server's only [`SharedWatcher`] delivers kernel events to the
//! watch's [`Subscription`]. The task scans new directories, and reports changes once they have settled, no
//! faster than the client reads them.

use std::{
    collections::HashMap,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use remex_access::account::{self, Account, Charge, Kind};
use remex_base::threads::ClientThreads;
use remex_files::{
    ChangeBatch, Depth, PathAccess, PathGuard, PathLock, Subscription, WatchScope, file_slot, native,
    watch::{
        missing::{self, Plan},
        tree,
    },
};
use remex_proto::{ErrorKind, HostPath, RpcError, call::Empty, fs as wire, sandbox::Sandbox};
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::Instant,
};
use tokio_util::sync::CancellationToken;

use crate::{
    areas::{context::CallContext, fs::FileCalls},
    outbox::{Outbox, Responder},
    shared::host::Host,
};

/// Changes are reported after this long without events …
const QUIET: Duration = Duration::from_millis(20);

/// … or after this long, if events do not stop.
const PATIENCE: Duration = Duration::from_millis(100);

/// About what a watch needs besides the changes that wait to be reported.
const WATCH_BYTES: usize = 16 << 10;

/// The watches of one connection.
#[derive(Debug, Default)]
pub(crate) struct Watches {
    /// Each watch ends when its token is cancelled, and cancels it when it fails.
    trees: HashMap<u64, CancellationToken>,
    missing: CancellationToken,
}

impl Watches {
    pub(crate) fn watch(
        &mut self,
        context: &mut CallContext,
        files: &FileCalls,
        request: wire::Watch,
        responder: Responder,
    ) {
        let lock = PathAccess::looks(&request.path).and_then(|access| files.lock(access));
        let reserved = lock.and_then(|lock| {
            let end = self.reserve(context.host().limits().watches, request.watch_id)?;
            let charge = charge_watch(context).inspect_err(|_| end.cancel())?;
            Ok((lock, end, charge))
        });
        let (lock, end, charge) = match reserved {
            Ok(reserved) => reserved,
            Err(error) => return responder.error(&error),
        };
        let watch = Watch::new(context, files, charge);
        context.spawn_stream(async move {
            let reporting = async {
                let begun = watch.begin_tree(&request, lock).await;
                let outbox = Arc::clone(responder.outbox());
                match begun {
                    Ok(tree) => {
                        responder.ok(Empty {});
                        watch.report_changes(&tree, request.watch_id, &outbox).await;
                    }
                    Err(error) => {
                        // The id is free before the client learns of the failure.
                        end.cancel();
                        responder.error(&error);
                    }
                }
            };
            tokio::select! {
                () = reporting => {}
                () = end.cancelled() => {}
            }
        });
    }

    fn reserve(&mut self, limit: usize, watch_id: u64) -> Result<CancellationToken, RpcError> {
        let trees = &mut self.trees;
        trees.retain(|_, end| !end.is_cancelled());
        if trees.contains_key(&watch_id) {
            return Err(RpcError::new(ErrorKind::IdInUse, format!("watch id {watch_id} is in use"))
                .with_hint("end it with `fs/unwatch`, or choose another"));
        }
        if trees.len() >= limit {
            let message = format!("this connection already has {limit} watches, which is the limit");
            return Err(
                RpcError::new(ErrorKind::LimitExceeded, message).with_hint("end some with `fs/unwatch`")
            );
        }
        let end = CancellationToken::new();
        trees.insert(watch_id, end.clone());
        Ok(end)
    }

    pub(crate) fn unwatch(&mut self, request: &wire::Unwatch, responder: Responder) {
        if let Some(end) = self.trees.remove(&request.watch_id) {
            end.cancel();
        }
        responder.ok(Empty {});
    }

    pub(crate) fn watch_missing(
        &mut self,
        context: &mut CallContext,
        files: &FileCalls,
        request: wire::WatchMissing,
        responder: Responder,
    ) {
        // A connection has one such watch at a time; a new request replaces it.
        let end = CancellationToken::new();
        std::mem::replace(&mut self.missing, end.clone()).cancel();
        if request.missing.len() > missing::PATHS {
            // Checked before the paths are locked, which takes time for each.
            return responder.ok(wire::WatchMissingReply { watching: false });
        }
        let paths = request.missing.iter().chain(&request.present);
        let access = paths.clone().try_fold(PathAccess::default(), PathAccess::and_looks);
        let Ok(lock) = access.and_then(|access| files.lock(access)) else {
            // Paths of another host never appear here.
            return responder.ok(wire::WatchMissingReply { watching: false });
        };
        let Ok(charge) = charge_watch(context) else {
            // The client has to poll.
            return responder.ok(wire::WatchMissingReply { watching: false });
        };
        let watch = Watch::new(context, files, charge);
        context.spawn_stream(async move {
            let begun = tokio::select! {
                begun = watch.begin_missing(&request, lock) => begun,
                () = end.cancelled() => Ok(None),
            };
            let outbox = Arc::clone(responder.outbox());
            let begun = match begun {
                Ok(begun) => begun,
                Err(error) => return responder.error(&error),
            };
            responder.ok(wire::WatchMissingReply { watching: begun.is_some() });
            let Some(subscribed) = begun else { return };
            let reporting = async {
                subscribed.subscription.notified().await;
                outbox.push_part(outbox.part(wire::MissingChanged { watch_id: request.watch_id })).await;
            };
            tokio::select! {
                () = reporting => {}
                () = end.cancelled() => {}
                () = watch.over.cancelled() => {}
            }
        });
    }
}

/// What the task of a watch needs.
struct Watch {
    host: Arc<Host>,
    threads: ClientThreads,
    slots: Arc<Semaphore>,
    guard: PathGuard,
    /// Cancelled when the client stops sending.
    over: CancellationToken,
    account: Arc<Account>,
    #[expect(dead_code, reason = "releases a resource when dropped")]
    charge: Charge,
}

/// Charges what a watch needs besides changes.
fn charge_watch(context: &CallContext) -> Result<Charge, RpcError> {
    let account = context.outbox().account();
    account
        .try_take(Kind::Handles, WATCH_BYTES)
        .ok_or_else(|| account::full("cannot watch files", account, Kind::Handles, WATCH_BYTES))
}

/// An active subscription; unsubscribes when dropped.
struct Subscribed {
    host: Arc<Host>,
    threads: ClientThreads,
    subscription: Arc<Subscription>,
}

impl Drop for Subscribed {
    fn drop(&mut self) {
        let (watcher, subscription) = (Arc::clone(self.host.watcher()), Arc::clone(&self.subscription));
        drop(self.threads.run(move || watcher.unsubscribe(&subscription)));
    }
}

/// A watch on a path and everything below it.
struct TreeWatch {
    watched: Subscribed,
    /// With all links resolved.
    root: PathBuf,
    /// As the client spelled it.
    name: PathBuf,
    /// Resolved anew for each report, because what it allows may change.
    sandbox: Sandbox,
}

impl TreeWatch {
    /// Returns a path in the client's spelling.
    fn spell(&self, path: &Path) -> HostPath {
        match path.strip_prefix(&self.root) {
            Ok(below) if !below.as_os_str().is_empty() => self.name.join(below).into(),
            _ => self.name.clone().into(),
        }
    }
}

impl Watch {
    fn new(context: &CallContext, files: &FileCalls, charge: Charge) -> Self {
        Watch {
            account: Arc::clone(context.outbox().account()),
            charge,
            host: Arc::clone(context.host()),
            threads: context.threads().clone(),
            slots: Arc::clone(files.slots()),
            guard: files.guard().clone(),
            over: context.end_of_input().clone(),
        }
    }

    async fn begin_tree(&self, request: &wire::Watch, lock: PathLock) -> Result<TreeWatch, RpcError> {
        let name = native(&request.path)?.to_owned();
        let (asked, guard) = (name.clone(), self.confine(&request.sandbox));
        let find = move || {
            let guard = guard()?;
            Ok::<_, RpcError>((guard.canonicalize(&asked)?, guard))
        };
        lock.acquired().await;
        let slot = self.slot().await;
        let (root, guard) = self.on_file_thread(slot, find).await??;
        drop(lock);
        let depth = if request.recursive.unwrap_or(true) { Depth::All } else { Depth::One };
        let watched = self.subscribe(WatchScope::Tree { root: root.clone(), depth });
        let (watcher, subscription) = (Arc::clone(self.host.watcher()), Arc::clone(&watched.subscription));
        let begin = move || tree::begin(&watcher, &subscription, &guard);
        self.on_file_thread(self.slot().await, begin).await??;
        Ok(TreeWatch { watched, root, name, sandbox: request.sandbox.clone() })
    }

    /// Reports changes until the client disconnects.
    async fn report_changes(&self, tree: &TreeWatch, watch_id: u64, outbox: &Outbox) {
        let subscription = &tree.watched.subscription;
        let reporting = async {
            loop {
                subscription.notified().await;
                self.settle(tree).await;
                let Some(batch) = subscription.take() else { continue };
                let Some(ChangeBatch { changes, overflow }) = self.visible(tree, batch).await else {
                    continue;
                };
                let changes =
                    changes.iter().map(|(path, kind)| wire::Change::new(tree.spell(path), *kind)).collect();
                if !outbox.push_part(outbox.part(wire::Changed { watch_id, changes, overflow })).await {
                    return;
                }
            }
        };
        tokio::select! {
            () = reporting => {}
            () = self.over.cancelled() => {}
        }
    }

    /// Removes the changes that the sandbox does not let the client see; returns `None` if none is left.
    async fn visible(&self, tree: &TreeWatch, batch: ChangeBatch) -> Option<ChangeBatch> {
        if self.guard.leaves_open(self.host.confinement(), &tree.sandbox) {
            return Some(batch);
        }
        let guard = self.confine(&tree.sandbox);
        let guard = self.on_file_thread(self.slot().await, guard).await.and_then(|guard| guard);
        let visible = match guard {
            Ok(guard) => ChangeBatch {
                changes: batch.changes.into_iter().filter(|(path, _)| guard.may_read(path)).collect(),
                ..batch
            },
            Err(error) => {
                tracing::warn!(error = %error.message, "a sandbox can no longer be applied to a watch");
                ChangeBatch { changes: Vec::new(), overflow: true }
            }
        };
        (visible.overflow || !visible.changes.is_empty()).then_some(visible)
    }

    /// Waits until events have settled, and scans new directories while it waits.
    async fn settle(&self, tree: &TreeWatch) {
        let subscription = &tree.watched.subscription;
        let latest = Instant::now() + PATIENCE;
        loop {
            self.scan(tree).await;
            let quiet = latest.min(Instant::now() + QUIET);
            if tokio::time::timeout_at(quiet, subscription.notified()).await.is_err() {
                return;
            }
            if Instant::now() >= latest {
                return self.scan(tree).await;
            }
        }
    }

    /// Scans new directories, which were not watched before, and verifies removals.
    async fn scan(&self, tree: &TreeWatch) {
        let subscription = &tree.watched.subscription;
        if let Some(work) = subscription.work() {
            let (watcher, subscription) = (Arc::clone(self.host.watcher()), Arc::clone(subscription));
            let guard = self.confine(&tree.sandbox);
            let scan = move || match guard() {
                Ok(guard) => tree::scan(&watcher, &subscription, work, &guard),
                Err(_) => subscription.mark_incomplete(),
            };
            let _ = self.on_file_thread(self.slot().await, scan).await;
        }
    }

    /// Returns a function that finds what a sandbox allows now; it must run on a file thread.
    fn confine(&self, sandbox: &Sandbox) -> impl FnOnce() -> Result<PathGuard, RpcError> + Send + use<> {
        let (guard, host, sandbox) = (self.guard.clone(), Arc::clone(&self.host), sandbox.clone());
        move || guard.confined(host.confinement(), &sandbox)
    }

    /// Returns `None` if there is nothing to wait for, or no way to notice it.
    async fn begin_missing(
        &self,
        request: &wire::WatchMissing,
        lock: PathLock,
    ) -> Result<Option<Subscribed>, RpcError> {
        let missing: Option<Vec<PathBuf>> =
            request.missing.iter().map(|path| path.native().ok().map(PathBuf::from)).collect();
        let Some(missing) = missing else { return Ok(None) };
        let present = request.present.as_ref().and_then(|path| path.native().ok()).map(PathBuf::from);
        let guard = self.confine(&Sandbox::Disabled);
        let plan = move || {
            let guard = guard()?;
            missing.iter().chain(&present).try_for_each(|path| guard.check_plain(path))?;
            Ok::<_, RpcError>(Plan::make(&missing, present.as_deref()).map(|plan| (plan, missing, present)))
        };
        lock.acquired().await;
        let slot = self.slot().await;
        // If the thread pool fails, the client has to poll.
        let Some((plan, missing, present)) = self.on_file_thread(slot, plan).await.unwrap_or(Ok(None))?
        else {
            return Ok(None);
        };
        drop(lock);
        let watched = self.subscribe(WatchScope::Paths(plan.paths.clone()));
        let (watcher, subscription) = (Arc::clone(self.host.watcher()), Arc::clone(&watched.subscription));
        let post = move || {
            // Detects what appeared before the directories were watched.
            plan.watch_directory(&watcher, &subscription)
                && Plan::make(&missing, present.as_deref()).as_ref() == Some(&plan)
        };
        let is_posted = self.on_file_thread(self.slot().await, post).await.unwrap_or(false);
        Ok(is_posted.then_some(watched))
    }

    fn subscribe(&self, scope: WatchScope) -> Subscribed {
        let subscription = self.host.watcher().subscribe(scope, &self.account);
        Subscribed { host: Arc::clone(&self.host), threads: self.threads.clone(), subscription }
    }

    async fn slot(&self) -> Option<OwnedSemaphorePermit> {
        file_slot(Arc::clone(&self.slots)).await
    }

    /// Runs `work` on a file thread; it keeps its slot even if the future is dropped.
    fn on_file_thread<T: Send + 'static>(
        &self,
        slot: Option<OwnedSemaphorePermit>,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> impl Future<Output = Result<T, RpcError>> + Send {
        self.threads.run(move || {
            let result = work();
            drop(slot);
            result
        })
    }
}
