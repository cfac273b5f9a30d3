//! Sessions that outlive the server: what is saved of them, and how a new server finds them again.

use std::{
    collections::{HashMap, HashSet},
    fs, io,
    sync::{Arc, Weak, atomic::Ordering},
    time::Duration,
};

use remex_access::identity::Identity;
use remex_base::clock::steady_ms;
use remex_engine::{
    Description, EngineContext, Forgotten, Found, Owner as _, RemoteProcess, ReportedProcess, Runner,
    SavedIdentity, SavedOutcome, SavedSession, SavedStart, Saving, ServerProcess, StartNote, broken,
    not_synced,
};
use remex_process::Tag;
use remex_proto::{
    ErrorKind, RpcError,
    process::Start,
    sandbox::Sandbox,
    state::{
        output::{Hold, Point},
        session_table::{Attachment, Detached, NewSession, OnDetach},
    },
};

use super::{
    Session, SessionRegistry,
    registry::OpenedSession,
    starts::{SavedRecord, StartKind},
};
use crate::{
    outbox::ConnectionId,
    sessions::process::{Followers, Process, ProcessOwner},
};

/// Stands for the connections of earlier servers.
const EARLIER: ConnectionId = ConnectionId::MAX;

/// How long a start that must survive a power failure waits for its session to be on the disk.
const SYNC_PATIENCE: Duration = Duration::from_secs(10);

impl Session {
    /// Returns where a new process runs.
    pub(super) fn runner_of(&self, request: &Start) -> Result<Runner, RpcError> {
        let refuse = |why: &str, hint: &str| {
            let message = format!("cannot start a durable process: {why}");
            Err(RpcError::new(ErrorKind::NotSupported, message).with_hint(hint))
        };
        if request.durable == Some(false) && request.sync {
            let message = "`sync` needs a durable process, but `durable` is false";
            return Err(RpcError::new(ErrorKind::InvalidParams, message).with_hint("omit one of them"));
        }
        if request.durable == Some(false) {
            return Ok(Runner::Local);
        }
        let is_wanted = request.durable == Some(true) || request.sync;
        let Some(durable) = self.host.durable() else {
            return if is_wanted {
                refuse("this server has no state directory", "start it with `remex serve --state DIR`")
            } else {
                Ok(Runner::Local)
            };
        };
        if self.is_unsaved.load(Ordering::Relaxed) {
            return if is_wanted {
                refuse(
                    "its session could not be saved in the state directory",
                    "free space on its disk, and reconnect",
                )
            } else {
                Ok(Runner::Local)
            };
        }
        if !self.is_lasting {
            return if is_wanted {
                refuse(
                    "this session ends with its connection",
                    "use a dialect and a transport that can resume",
                )
            } else {
                Ok(Runner::Local)
            };
        }
        let limits_hosts = matches!(&request.sandbox, Sandbox::Confined(context) if context.hosts.is_some());
        let needs_server = limits_hosts
            || request.network_proxy.is_some()
            || self.host.confinement().limits_hosts()
            || self.host.limit_enforcer().needs_cgroup(&request.limits);
        if needs_server && !is_wanted {
            return Ok(Runner::Local);
        }
        match durable.link() {
            Some(link) => Ok(Runner::Keeper { key: link.new_key(), link }),
            None => Err(RpcError::new(
                ErrorKind::Internal,
                "the keeper, which runs durable processes, has died and is being started again",
            )
            .with_hint("try again in a second; see `keeper.log` in the state directory")),
        }
    }

    /// Returns a tag that no process of the session has had there.
    pub(super) fn tag_at(&self, runner: &Runner) -> Tag {
        match runner {
            Runner::Local => self.new_tag(),
            Runner::Keeper { link, .. } => {
                link.tag(self.number, self.next_process.fetch_add(1, Ordering::Relaxed))
            }
        }
    }

    /// Returns the tags of everything that the session has started.
    pub(super) fn tags(&self) -> impl Iterator<Item = Tag> {
        let durable = self.host.durable().filter(|_| self.is_saved());
        let kept = durable.map(|durable| durable.state().tags().tag(self.number, 0));
        [self.tag()].into_iter().chain(kept)
    }

    /// Remembers a start whose process ends with the server, so that a later one does not repeat it; of a process whose
    /// output must survive a power failure, has the session survive it as well.
    pub(super) fn save_begun(&self, process: &ServerProcess<Followers>) -> Option<Saving> {
        let durable = self.host.durable().filter(|_| self.is_saved())?;
        if process.is_durable() {
            // Without its session, the log would be deleted.
            return process.spec().sync.then(|| durable.files().sync(&self.id));
        }
        let (start_id, process_id) = (process.spec().start_id.clone()?, process.id.to_string());
        let restarted = self.is_restart(&start_id, &process_id);
        let start = SavedStart { start_id, process_id, restarted, outcome: SavedOutcome::Begun };
        Some(durable.files().append(&self.id, &start))
    }

    /// Lets it outlive the server as soon as it is saved after all.
    async fn wait_until_saved(self: Arc<Self>, saving: Saving) {
        if !matches!(saving.await, Ok(Ok(()))) {
            return;
        }
        self.is_unsaved.store(false, Ordering::Relaxed);
        if self.has_ended() {
            // It was not known to be saved then.
            self.delete_file();
        }
    }

    /// Deletes the log of a process that was forgotten; its start stays known.
    pub(super) fn delete_log(&self, process: Process) {
        let ServerProcess::Remote(process) = process.into() else { return };
        let saving = self.host.durable().and_then(|durable| {
            let start_id = process.spec().start_id.clone()?;
            let outcome = SavedOutcome::Started(process.started_before()?);
            let (process_id, restarted) = (process.id.to_string(), self.is_restart(&start_id, &process.id));
            let start = SavedStart { start_id, process_id, restarted, outcome };
            let (log, _) = process.closed_log()?;
            Some(durable.files().forget(&self.id, &start, log))
        });
        self.host.spawn(async move {
            let is_known = match saving {
                Some(saving) => matches!(saving.await, Ok(Ok(()))),
                None => true,
            };
            // Without its start, a repeat would run it again: then the log stays for the next server.
            if is_known {
                process.discard();
            }
        });
    }

    /// Deletes the logs of a session that has ended.
    pub(super) fn delete_logs(&self) {
        for process in self.all_followed() {
            if let ServerProcess::Remote(process) = &*process {
                process.discard();
            }
        }
    }

    /// Deletes what was saved of a session that has ended.
    pub(super) fn delete_file(&self) {
        if let Some(durable) = self.host.durable().filter(|_| self.is_saved()) {
            drop(durable.files().remove(&self.id));
        }
    }

    /// Adds a process that an earlier server started, unless the session has expired, so that nothing would end it.
    fn adopt(self: &Arc<Self>, description: &Description, kept: ReportedProcess) -> Option<()> {
        let link = self.host.durable()?.link()?;
        let tag = link.tag(self.number, description.number);
        self.next_process.fetch_max(description.number + 1, Ordering::Relaxed);
        let received = match kept.hold {
            Hold::After(Point { seq, offset }) => Some((seq, offset)),
            Hold::Nothing => None,
        };
        let owner: Weak<dyn ProcessOwner> = Arc::<Self>::downgrade(self);
        let context = EngineContext { owner, host: &self.host, account: &self.account, tag };
        let followers = Followers::restored(&description.id, received);
        let restored = RemoteProcess::restore(description, link, kept, context, followers)?;
        let process = Process::from(ServerProcess::Remote(Arc::clone(&restored)));
        if let Some(start_id) = &description.start_id {
            let outcome = restored.started_before().map(Ok);
            self.restore_start(
                start_id.clone(),
                SavedRecord { process_id: description.id.clone(), asked: StartKind::Start, outcome },
            );
        }
        {
            let mut processes = self.processes();
            if processes.ended {
                return None;
            }
            processes.live += 1;
            let replaced = processes.by_id.insert(process.id.clone(), process.clone());
            drop(processes);
            if let Some(replaced) = replaced.filter(|replaced| replaced.is_closed()) {
                // The server ended after it had restarted the process, and before it forgot the previous one.
                self.forget_replaced(&replaced);
            }
        }
        process.set_live(true);
        self.owner.count_restored();
        process.keep_open();
        if process.is_closed() {
            self.on_closed(&process);
            let elapsed = restored.ended_for().unwrap_or(Duration::ZERO);
            process.forget_after(process.spec().closed_ttl.saturating_sub(elapsed));
        } else {
            let owner: Arc<dyn ProcessOwner> = Arc::clone(self) as _;
            let running = Arc::clone(&restored).run_restored(Arc::clone(&owner));
            self.host.spawn(broken::guard(restored, owner, description.start_id.clone(), Box::pin(running)));
        }
        Some(())
    }
}

/// Waits until what must be saved before a process starts is; fails only if the process must survive a power failure.
pub(super) async fn begun(
    saving: Option<Saving>,
    process: &ServerProcess<Followers>,
) -> Result<(), RpcError> {
    let Some(saving) = saving else { return Ok(()) };
    let Some(durable) = process.host().durable() else { return Ok(()) };
    let saved = match durable.files().saved_soon(saving).await {
        Ok(saved) => saved,
        // What ends with the server needs no disk, whether that is full or does not respond.
        Err(_) if !process.spec().sync => return Ok(()),
        Err(saving) => match tokio::time::timeout(SYNC_PATIENCE, saving).await {
            Ok(saved) => {
                saved.unwrap_or_else(|_| Err(io::Error::other("the thread that saves it has ended")))
            }
            Err(_) => Err(io::Error::new(io::ErrorKind::TimedOut, "the disk does not respond")),
        },
    };
    match saved {
        Err(error) if process.spec().sync => Err(not_synced(&process.id, &error)),
        Ok(()) | Err(_) => Ok(()),
    }
}

impl SessionRegistry {
    /// Returns whether a later server can find a session again.
    pub(super) fn can_save(&self, identity: &Identity, on_detach: OnDetach) -> bool {
        let is_lasting = on_detach != OnDetach::End && SavedIdentity::of(identity).is_some();
        self.host().durable().is_some() && is_lasting
    }

    /// Saves a session as it is now.
    pub(super) fn save(&self, session: &Session) -> Option<Saving> {
        let durable = self.host().durable().filter(|_| session.is_saved())?;
        let sessions = self.sessions();
        let known = sessions.table.any_session(&session.id, steady_ms())?;
        let saved = SavedSession {
            id: known.id.clone(),
            identity: SavedIdentity::of(&known.identity)?,
            name: known.name.clone(),
            client_name: known.client_name.clone(),
            detach_ttl_ms: match known.on_detach {
                OnDetach::ExpireAfterMs(ttl) => Some(ttl),
                OnDetach::Keep => None,
                OnDetach::End => Some(0),
            },
            detached_at_ms: match known.attachment {
                Attachment::Detached { since_ms } => Some(since_ms),
                Attachment::Attached { .. } => None,
            },
            number: session.number,
            sync: false,
        };
        // Still locked, so that changes are saved in their order.
        Some(durable.files().put(&saved))
    }

    /// Saves a session that a connection has just got, before its client learns of it.
    ///
    /// If that fails, as on a full disk, the client gets it all the same: it may be there to free space. What was saved of a
    /// resumed session is still true enough, and a new one ends with the server. The same goes for a disk that does not
    /// respond, until it does.
    pub(super) async fn save_opened(&self, opened: &OpenedSession) {
        let Some(durable) = self.host().durable() else { return };
        let Some(saving) = self.save(&opened.session) else { return };
        let session = &opened.session;
        let (error, later) = match durable.files().saved_soon(saving).await {
            Ok(Ok(())) => return,
            Ok(Err(error)) => (error.to_string(), None),
            Err(saving) => ("the disk does not respond".to_owned(), Some(saving)),
        };
        tracing::warn!(error, session = session.id, resumed = opened.resumed, "cannot save a session");
        if opened.resumed {
            return;
        }
        session.is_unsaved.store(true, Ordering::Relaxed);
        if let Some(saving) = later {
            self.host().spawn(Arc::clone(session).wait_until_saved(saving));
        }
    }

    /// Brings back what earlier servers left.
    pub(crate) fn restore(self: &Arc<Self>, found: Found) {
        let Found { mut sessions, unreadable, mut processes, forgotten } = found;
        for forgotten in forgotten {
            self.restore_forgotten(forgotten, &mut sessions, &unreadable);
        }
        // Logs are deleted in the order of their keys when space is short.
        processes.sort_by_key(|process| process.key);
        sessions.sort_by_key(|(saved, _)| saved.detached_at_ms.unwrap_or(u64::MAX));
        let mut restored = HashMap::new();
        for (saved, starts) in sessions {
            let id = saved.id.clone();
            if let Some(session) = self.restore_session(saved, starts) {
                restored.insert(id, session);
            }
        }
        let (mut adopted, mut orphans) = (0, 0);
        for kept in processes {
            let key = kept.key;
            let description = match serde_json::from_slice::<Description>(&kept.description) {
                Ok(description) if !unreadable.contains(&description.session) => Some(description),
                // It may be the session of a later version, or the disk may recover.
                Ok(description) => {
                    tracing::warn!(session = %description.session, process = %description.id, "left alone: its session cannot be read");
                    continue;
                }
                Err(error) => {
                    tracing::warn!(%error, directory = %key.dir_name(), "left alone: the description of a process cannot be read");
                    continue;
                }
            };
            let session = description.as_ref().and_then(|description| restored.get(&description.session));
            let is_adopted = description
                .as_ref()
                .zip(session)
                .and_then(|(description, session)| session.adopt(description, kept));
            if is_adopted.is_some() {
                adopted += 1;
            } else if let Some(link) = self.host().durable().and_then(|durable| durable.link()) {
                // Its session has ended.
                orphans += 1;
                link.abandon(key);
                link.forget(key);
            }
        }
        // Some have expired meanwhile.
        self.host().deadlines().wake();
        if !restored.is_empty() || adopted + orphans > 0 {
            tracing::info!(
                sessions = restored.len(),
                processes = adopted,
                orphans,
                "restored from the state directory"
            );
        }
    }

    /// Adds the start of a forgotten process to its session, and saves it there; deletes it if the session has ended.
    fn restore_forgotten(
        &self,
        forgotten: Forgotten,
        sessions: &mut [(SavedSession, Vec<SavedStart>)],
        unreadable: &HashSet<String>,
    ) {
        let Forgotten { description, start: StartNote { pid, at_ms }, dir } = forgotten;
        let Ok(description) = serde_json::from_slice::<Description>(&description) else { return };
        let id = &description.session;
        let session = sessions.iter_mut().find(|(saved, _)| saved.id == *id);
        match (session, description.saved_start(pid, at_ms), self.host().durable()) {
            (Some((_, starts)), Some(start), Some(durable)) => {
                drop(durable.files().forget(id, &start, dir));
                starts.push(start);
            }
            (None, ..) if !unreadable.contains(id) => drop(fs::remove_dir_all(dir)),
            _ => {}
        }
    }

    fn restore_session(&self, saved: SavedSession, starts: Vec<SavedStart>) -> Option<Arc<Session>> {
        let identity = saved.identity.identity();
        let detached_at = saved.detached_at_ms.unwrap_or_else(steady_ms);
        let new = NewSession {
            id: saved.id.clone(),
            identity: identity.clone(),
            name: saved.name.clone(),
            client_name: saved.client_name.clone(),
            on_detach: saved.on_detach(),
            connection: EARLIER,
        };
        let mut sessions = self.sessions();
        if let Err(error) = sessions.table.create(new, detached_at) {
            tracing::warn!(%error, session = %saved.id, "cannot restore a session");
            return None;
        }
        let Detached::Waiting { .. } = sessions.table.detach(&saved.id, EARLIER, detached_at) else {
            return None;
        };
        let owner = sessions.owner(&identity, self.host());
        let session = Session::new(saved.id.clone(), owner, saved.number, true, self.host());
        for SavedStart { start_id, process_id, restarted, outcome } in starts {
            let outcome = Some(outcome.outcome(&process_id));
            let asked = if restarted { StartKind::Restart } else { StartKind::Start };
            session.restore_start(start_id, SavedRecord { process_id, asked, outcome });
        }
        let session = Arc::new(session);
        session.owner.add(&session);
        sessions.by_id.insert(saved.id, Arc::clone(&session));
        Some(session)
    }
}
