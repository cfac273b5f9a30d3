//! Starts of processes in the keeper: first the description, then the child, then a note that it runs, each on the disk
//! before the next if the process must survive a power failure. Start at [`Keeper::start`].

use std::{
    fs::{self, File},
    io,
    path::PathBuf,
    sync::Arc,
};

use remex_base::{clock::now_ms, supervise::in_phases, threads::ServerWork, trace::LOG_TARGET};
use remex_log::Space as _;
use remex_proto::{ErrorKind, RpcError};

use super::{
    Announcer, Entry, Keeper, Process,
    link::{LinkCaller, ServerLink},
    space::{DELETED, log_options},
};
use crate::{
    process::{Caller as _, DiskLogWriter, KeeperSpec, Owner as _, broken},
    state::{
        durable::{DESCRIPTION, START_NOTE, StartNote, not_synced},
        keeper_link::message::{FREE_DISK, Failure, FromKeeper, Key, NewProcess, StartFailure},
        state_dir::{sync, sync_dir},
    },
};

impl Keeper {
    /// Starts a process, and reports the outcome to the server that is linked by then.
    pub(super) fn start(self: &Arc<Self>, new: NewProcess, link: &Arc<ServerLink>) {
        let NewProcess { key, session, description, request, start, rules } = new;
        let refuse = |error: &RpcError| {
            link.send(&FromKeeper::NotStarted { key, failure: StartFailure::Other(error.into()) });
        };
        let start = match start.into_start(None) {
            Ok(start) => start,
            Err(error) => return refuse(&RpcError::new(ErrorKind::NotSupported, error.to_string())),
        };
        let quota = self.quota_of(&session);
        let dir = self.state.processes().join(key.dir_name());
        let created = self.prepared.create_log(&dir, &description, log_options(&rules), Arc::clone(&quota));
        let writer = match created {
            Ok(writer) => writer,
            Err(error) => return refuse(&not_created(&rules.id, &error)),
        };
        let (log, must_sync) = (DiskLogWriter::new(writer, rules.evicts, rules.sync), rules.sync);
        let spec = KeeperSpec { rules: rules.clone(), tag: start.tag };
        let announcer = Announcer::new(key, Arc::downgrade(self));
        let (process, attempt) =
            Process::in_keeper(spec, &self.host, Arc::downgrade(self), &self.account, log, announcer);
        let (process_of_entry, request) = (Arc::clone(&process), request.into());
        let entry = Entry { process: process_of_entry, description, request, quota, started: None, rules };
        self.processes().insert(key, entry);
        self.count_live(&process);
        let (keeper, caller) = (Arc::clone(self), LinkCaller::starting(self, key));
        let starting = Arc::clone(&process);
        let running = in_phases(async move {
            if must_sync && let Err(error) = keeper.sync_description(dir).await {
                caller.answer(Err(not_synced(&starting.id, &error)));
                keeper.not_started(&starting);
                return None;
            }
            let child = match keeper.host.spawner().attempt(start, &attempt).await {
                Ok(child) => child,
                Err(error) => {
                    caller.refuse(error);
                    keeper.not_started(&starting);
                    return None;
                }
            };
            let note = StartNote { pid: child.pid.as_raw().unsigned_abs(), at_ms: now_ms() };
            let recorded = keeper.record_start(&starting, note, must_sync).await;
            // Since the program runs, the attempt can no longer be aborted.
            let is_abandoned = starting.with_audience(|announcer| announcer.is_abandoned);
            if recorded.is_ok() && !is_abandoned {
                return starting.run_in_keeper(child, note.at_ms, keeper, caller).await;
            }
            starting.kill_unrecorded(child).await;
            match recorded {
                Err(error) => caller.answer(Err(not_synced(&starting.id, &error))),
                // Dropped without an answer, it reports to the server that the start was aborted.
                Ok(()) => drop(caller),
            }
            keeper.not_started(&starting);
            None
        });
        self.host.spawn(broken::guard(process, Arc::clone(self), None, running));
        self.refill_prepared_logs();
    }

    /// Returns why the log of another start of a process cannot be created, if it cannot.
    pub(super) fn try_log(self: &Arc<Self>, key: Key) -> Option<Failure> {
        let Entry { description, quota, rules, .. } = self.processes().get(&key).cloned()?;
        let dir = self.state.processes().join(format!("{}-tried.{DELETED}", key.dir_name()));
        let created = self.prepared.create_log(&dir, &description, log_options(&rules), Arc::clone(&quota));
        let mut writer = match created {
            Ok(writer) => writer,
            Err(error) => return Some((&not_created(&rules.id, &error)).into()),
        };
        // Gives back what is reserved, so that only the files count.
        let _ = writer.closed(now_ms(), &[]);
        let bytes = writer.position().disk_bytes;
        drop(writer);
        let _ = fs::remove_dir_all(dir);
        quota.release(bytes);
        self.refill_prepared_logs();
        None
    }

    /// Creates directories for the next starts in the background.
    pub(super) fn refill_prepared_logs(self: &Arc<Self>) {
        if self.prepared.needs_refill() {
            let keeper = Arc::clone(self);
            self.host.spawn(async move {
                let filling = Arc::clone(&keeper);
                let _ = keeper
                    .host
                    .own_threads()
                    .run(ServerWork::Spares, move || filling.prepared.refill())
                    .await;
                keeper.prepared.refilled();
            });
        }
    }

    /// Waits until the description of a process, and the names on the way to it, are on the disk.
    async fn sync_description(&self, dir: PathBuf) -> io::Result<()> {
        let sync = move || -> io::Result<()> {
            sync(&File::open(dir.join(DESCRIPTION))?)?;
            // Its own directory, that of all processes, and the state directory.
            dir.ancestors().take(3).try_for_each(sync_dir)
        };
        self.host
            .own_threads()
            .run(ServerWork::Logs, sync)
            .await
            .unwrap_or_else(|error| Err(io::Error::other(error.message)))
    }

    /// Notes in its log that a process runs; if that must survive a power failure, waits until it is on the disk.
    async fn record_start(&self, process: &Process, note: StartNote, must_sync: bool) -> io::Result<()> {
        let note = serde_json::to_vec(&note).unwrap_or_default();
        let noted = process.with_log(|log| {
            log.files().note(START_NOTE, &note)?;
            if must_sync { log.files().unsynced().map(Some) } else { Ok(None) }
        });
        let files = match noted {
            Ok(Some(files)) => files,
            Ok(None) => return Ok(()),
            Err(error) if must_sync => return Err(error),
            Err(error) => {
                tracing::warn!(target: LOG_TARGET, %error, "cannot record the start of a process");
                return Ok(());
            }
        };
        let wait = move || files.wait(sync).map(|()| files);
        let waited = self.host.own_threads().run(ServerWork::Logs, wait).await;
        let files = waited.unwrap_or_else(|error| Err(io::Error::other(error.message)))?;
        process.with_log(|log| log.files().synced(&files));
        Ok(())
    }

    /// Forgets a process that did not start.
    fn not_started(&self, process: &Arc<Process>) {
        process.fail_in_keeper();
        self.on_broken(process);
    }
}

/// Returns why a process without a log is not started, and what to do about it.
fn not_created(process: &str, error: &io::Error) -> RpcError {
    let (kind, hint) = match error.kind() {
        io::ErrorKind::StorageFull => (ErrorKind::LimitExceeded, FREE_DISK),
        io::ErrorKind::QuotaExceeded => (
            ErrorKind::LimitExceeded,
            "forget processes that have ended, or raise the disk quotas of the server or of its user",
        ),
        io::ErrorKind::NotFound => (
            ErrorKind::Internal,
            "part of the state directory was deleted: restore it, or start the server with a new one",
        ),
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
            (ErrorKind::Internal, "make the state directory writable for the user of the server")
        }
        _ => (ErrorKind::Internal, "check the state directory, its disk and the limits of its keeper"),
    };
    RpcError::new(kind, format!("cannot create the log of process `{process}`: {error}")).with_hint(hint)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_start_without_a_log_gets_the_hint_for_its_cause() {
        let hint = |kind: io::ErrorKind| not_created("p", &kind.into()).hint.unwrap();
        assert!(hint(io::ErrorKind::StorageFull).starts_with("free space"));
        assert!(hint(io::ErrorKind::QuotaExceeded).contains("quotas"));
        let missing = hint(io::ErrorKind::NotFound);
        assert!(missing.contains("was deleted") && !missing.contains("quota"), "{missing}");
    }
}
