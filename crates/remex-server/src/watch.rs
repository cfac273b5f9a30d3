//! What changes in the file system, told to the connection that asked.
//!
//! A watch is a task of its connection. What it looks at is its [`Sight`], into which the one
//! [`Lookout`] of the server puts what the kernel tells; the task looks at what is new and tells it
//! when it has calmed down, no faster than the client takes it.

mod lookout;
mod missing;
mod news;
mod sight;
mod tree;
mod watcher;

use std::{
    collections::HashMap,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use remex_proto::{ErrorKind, HostPath, RpcError, call::Empty, fs as wire};
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::Instant,
};
use tokio_util::sync::CancellationToken;

use crate::{
    connection::Connection,
    fs::{Claims, Turn, file_slot, io_error, native},
    outbox::{Outbox, Responder},
    server::Server,
};
pub(crate) use lookout::Lookout;
use missing::Plan;
use news::Told;
use sight::{Depth, Scope, Sight};

/// Changes are told when nothing has happened for this long …
const QUIET: Duration = Duration::from_millis(20);

/// … or after this, when something happens all the time.
const PATIENCE: Duration = Duration::from_millis(100);

/// The watches of one connection.
#[derive(Debug, Default)]
pub(crate) struct Watches {
    /// Each ends when its token is cancelled, or cancels it when it fails.
    trees: HashMap<u64, CancellationToken>,
    missing: CancellationToken,
}

impl Connection {
    pub(crate) fn watch(&mut self, request: wire::Watch, responder: Responder) {
        let turn = self.file_turn(&request.sandbox, Claims::looks(&request.path));
        let (turn, end) = match turn.and_then(|turn| Ok((turn, self.reserve(request.watch_id)?))) {
            Ok(reserved) => reserved,
            Err(error) => return responder.error(&error),
        };
        let watch = self.watch_task();
        self.run_on(async move {
            let telling = async {
                let begun = watch.begin_tree(&request, turn).await;
                let outbox = Arc::clone(responder.outbox());
                match begun {
                    Ok(tree) => {
                        responder.ok(Empty {});
                        watch.tell_changes(&tree, request.watch_id, &outbox).await;
                    }
                    Err(error) => {
                        // The id is free when the client hears of it.
                        end.cancel();
                        responder.error(&error);
                    }
                }
            };
            tokio::select! {
                () = telling => {}
                () = end.cancelled() => {}
            }
        });
    }

    fn reserve(&mut self, watch_id: u64) -> Result<CancellationToken, RpcError> {
        let limit = self.server.limits().watches;
        let trees = &mut self.watches.trees;
        trees.retain(|_, end| !end.is_cancelled());
        if trees.contains_key(&watch_id) {
            let message =
                format!("watch id {watch_id} is in use; end it with `fs/unwatch`, or choose another");
            return Err(RpcError::new(ErrorKind::IdInUse, message));
        }
        if trees.len() >= limit {
            let message = format!(
                "{limit} watches are on this connection, which is the limit; end some with `fs/unwatch`"
            );
            return Err(RpcError::new(ErrorKind::LimitExceeded, message));
        }
        let end = CancellationToken::new();
        trees.insert(watch_id, end.clone());
        Ok(end)
    }

    pub(crate) fn unwatch(&mut self, request: &wire::Unwatch, responder: Responder) {
        if let Some(end) = self.watches.trees.remove(&request.watch_id) {
            end.cancel();
        }
        responder.ok(Empty {});
    }

    pub(crate) fn watch_missing(&mut self, request: wire::WatchMissing, responder: Responder) {
        // There is one such watch at a time: clients that want another ask under another id.
        let end = CancellationToken::new();
        std::mem::replace(&mut self.watches.missing, end.clone()).cancel();
        if request.missing.len() > missing::PATHS {
            // Before they are put in order: that takes time for each.
            return responder.ok(wire::WatchMissingReply { watching: false });
        }
        let paths = request.missing.iter().chain(&request.present);
        let claims = paths.clone().try_fold(Claims::default(), Claims::and_looks);
        let Ok(turn) = claims.and_then(|claims| self.enter(claims)) else {
            // Paths of another host will never be here.
            return responder.ok(wire::WatchMissingReply { watching: false });
        };
        let watch = self.watch_task();
        self.run_on(async move {
            let begun = tokio::select! {
                begun = watch.begin_missing(&request, turn) => begun,
                () = end.cancelled() => None,
            };
            let outbox = Arc::clone(responder.outbox());
            responder.ok(wire::WatchMissingReply { watching: begun.is_some() });
            let Some(places) = begun else { return };
            let telling = async {
                places.sight.bell().await;
                outbox.push_part(outbox.part(wire::MissingChanged { watch_id: request.watch_id })).await;
            };
            tokio::select! {
                () = telling => {}
                () = end.cancelled() => {}
                () = watch.over.cancelled() => {}
            }
        });
    }

    /// Returns what a task has that goes on after its request, and so is not known by the request's id.
    fn watch_task(&self) -> Watch {
        Watch {
            server: Arc::clone(&self.server),
            slots: Arc::clone(&self.file_slots),
            over: self.ending.clone(),
        }
    }
}

/// What the task of a watch needs.
struct Watch {
    server: Arc<Server>,
    slots: Arc<Semaphore>,
    /// Cancelled when the client sends no more.
    over: CancellationToken,
}

/// A watch that has begun; dropped, it leaves the lookout.
struct Enlisted {
    server: Arc<Server>,
    sight: Arc<Sight>,
}

impl Drop for Enlisted {
    fn drop(&mut self) {
        let (lookout, sight) = (Arc::clone(self.server.lookout()), Arc::clone(&self.sight));
        drop(self.server.files().run(move || lookout.leave(&sight)));
    }
}

/// A watch of what is at a path and below it.
struct Tree {
    watched: Enlisted,
    /// Without links.
    root: PathBuf,
    /// As the client calls it.
    name: PathBuf,
}

impl Tree {
    /// Returns a path as the client would spell it.
    fn spell(&self, path: &Path) -> HostPath {
        match path.strip_prefix(&self.root) {
            Ok(below) if !below.as_os_str().is_empty() => self.name.join(below).into(),
            _ => self.name.clone().into(),
        }
    }
}

impl Watch {
    async fn begin_tree(&self, request: &wire::Watch, turn: Turn) -> Result<Tree, RpcError> {
        let name = native(&request.path)?.to_owned();
        let asked = name.clone();
        let find = move || asked.canonicalize().map_err(|error| io_error(&error, &asked));
        turn.come().await;
        let slot = self.slot().await;
        let root = self.on_file_thread(slot, find).await??;
        drop(turn);
        let depth = if request.recursive.unwrap_or(true) { Depth::All } else { Depth::One };
        let watched = self.enlist(Scope::Tree { root: root.clone(), depth });
        let (lookout, sight) = (Arc::clone(self.server.lookout()), Arc::clone(&watched.sight));
        self.on_file_thread(self.slot().await, move || tree::begin(&lookout, &sight)).await??;
        Ok(Tree { watched, root, name })
    }

    /// Tells what changes until the client has left.
    async fn tell_changes(&self, tree: &Tree, watch_id: u64, outbox: &Outbox) {
        let sight = &tree.watched.sight;
        let telling = async {
            loop {
                sight.bell().await;
                self.settle(sight).await;
                let Some(Told { changes, overflow }) = sight.take() else { continue };
                let changes = changes
                    .iter()
                    .map(|(path, kind)| wire::Change { path: tree.spell(path), kind: *kind })
                    .collect();
                if !outbox.push_part(outbox.part(wire::Changed { watch_id, changes, overflow })).await {
                    return;
                }
            }
        };
        tokio::select! {
            () = telling => {}
            () = self.over.cancelled() => {}
        }
    }

    /// Waits until it has become quiet, and looks at what is new meanwhile.
    async fn settle(&self, sight: &Arc<Sight>) {
        let latest = Instant::now() + PATIENCE;
        loop {
            self.look(sight).await;
            let quiet = latest.min(Instant::now() + QUIET);
            if tokio::time::timeout_at(quiet, sight.bell()).await.is_err() {
                return;
            }
            if Instant::now() >= latest {
                return self.look(sight).await;
            }
        }
    }

    /// Looks at new directories, in which nothing is seen before, and at removals in doubt.
    async fn look(&self, sight: &Arc<Sight>) {
        if let Some(work) = sight.work() {
            let (lookout, sight) = (Arc::clone(self.server.lookout()), Arc::clone(sight));
            let _ = self.on_file_thread(self.slot().await, move || tree::look(&lookout, &sight, work)).await;
        }
    }

    async fn begin_missing(&self, request: &wire::WatchMissing, turn: Turn) -> Option<Enlisted> {
        let missing: Vec<PathBuf> = request
            .missing
            .iter()
            .map(|path| path.native().ok().map(PathBuf::from))
            .collect::<Option<_>>()?;
        let present = request.present.as_ref().and_then(|path| path.native().ok()).map(PathBuf::from);
        let plan = move || Plan::make(&missing, present.as_deref()).map(|plan| (plan, missing, present));
        turn.come().await;
        let slot = self.slot().await;
        let (plan, missing, present) = self.on_file_thread(slot, plan).await.ok()??;
        drop(turn);
        let watched = self.enlist(Scope::Places(plan.places.clone()));
        let (lookout, sight) = (Arc::clone(self.server.lookout()), Arc::clone(&watched.sight));
        let post = move || {
            // What has come before the directories were watched is seen now.
            plan.post(&lookout, &sight) && Plan::make(&missing, present.as_deref()).as_ref() == Some(&plan)
        };
        self.on_file_thread(self.slot().await, post).await.ok()?.then_some(watched)
    }

    fn enlist(&self, scope: Scope) -> Enlisted {
        Enlisted { server: Arc::clone(&self.server), sight: self.server.lookout().enlist(scope) }
    }

    async fn slot(&self) -> Option<OwnedSemaphorePermit> {
        file_slot(Arc::clone(&self.slots)).await
    }

    /// Runs `work` on a thread for files; it keeps its slot also when nobody waits for it any more.
    fn on_file_thread<T: Send + 'static>(
        &self,
        slot: Option<OwnedSemaphorePermit>,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> impl Future<Output = Result<T, RpcError>> + Send {
        self.server.files().run(move || {
            let result = work();
            drop(slot);
            result
        })
    }
}
