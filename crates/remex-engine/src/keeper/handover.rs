//! The keeper's replacement by another program: the same process, children, descriptors and locks, another executable.
//!
//! All tasks pause between two steps, their state is written to a memory file, and the new program continues from it. If
//! that fails, the tasks resume here. Start at [`Keeper::hand_over`] and [`HandoverState::take`].

use std::{
    ffi::OsString,
    fs::File,
    io::{self, Read as _, Seek as _, Write as _},
    os::fd::{AsFd as _, AsRawFd as _, RawFd},
    path::Path,
    process::Command,
    sync::Arc,
    time::{Duration, Instant},
};

use remex_base::{threads::ServerWork, trace::LOG_TARGET};
use remex_process::{Scope, Tags, exec_with_fds, run_with_timeout, take_inherited_fd, tree};
use rustix::fs::{MemfdFlags, memfd_create};
use serde::{Deserialize, Serialize};
use tokio::net::UnixListener;

use super::{
    Announcer, Entry, Keeper, Process, lock,
    space::{log_options, session_of},
};
use crate::{
    process::{DiskLogWriter, EngineContext, ProcessRecord, broken},
    state::{
        durable::DESCRIPTION,
        keeper_link::message::{Key, Quotas},
        state_dir::{self, Lock},
    },
};

/// The version of the format of [`HandoverState`]. This program reads those of all earlier versions.
pub(super) const VERSION: u32 = 1;

/// How long the new program may take to report whether it supports this version.
const CHECK_PATIENCE: Duration = Duration::from_secs(10);

/// What a program prints that supports it.
const SUPPORTED: &str = "remex knows these tables";

/// How long tasks may take to stop.
const STOP_PATIENCE: Duration = Duration::from_secs(5);

/// The state that a keeper hands over to the program that replaces it.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct HandoverState {
    version: u32,
    lock: RawFd,
    listener: RawFd,
    quotas: Quotas,
    processes: Vec<EntryRecord>,
}

/// One [`Entry`] of the keeper as plain data.
#[derive(Debug, Serialize, Deserialize)]
struct EntryRecord {
    key: Key,
    started: Option<(u32, u64)>,
    is_live: bool,
    is_abandoned: bool,
    // Absent in the state of an older keeper.
    #[serde(default)]
    request: Vec<u8>,
    process: ProcessRecord,
}

/// Descriptors inherited from the previous program, and the state that it handed over.
pub(super) struct InheritedFds {
    pub(super) lock: Lock,
    pub(super) listener: UnixListener,
    pub(super) handover: HandoverState,
}

impl HandoverState {
    /// Reads the state from the memory file with this descriptor, and takes the other inherited descriptors.
    pub(super) fn take(number: RawFd) -> io::Result<InheritedFds> {
        let mut file = File::from(take_inherited_fd(number)?);
        file.rewind()?;
        let mut text = Vec::new();
        file.read_to_end(&mut text)?;
        let handover: HandoverState = serde_json::from_slice(&text)?;
        if handover.version > VERSION {
            return Err(io::Error::other(format!(
                "the tables have version {}, this keeper knows {VERSION}",
                handover.version
            )));
        }
        let listener = std::os::unix::net::UnixListener::from(take_inherited_fd(handover.listener)?);
        let listener = UnixListener::from_std(listener)?;
        let lock = Lock::passed(File::from(take_inherited_fd(handover.lock)?));
        Ok(InheritedFds { lock, listener, handover })
    }
}

impl Keeper {
    /// Executes another program in place of this one. Returns only on failure, with the reason; then all tasks resume here.
    pub(super) async fn hand_over(self: &Arc<Self>, program: &Path, listener: &UnixListener) -> String {
        if let Err(reason) = self.check(program).await {
            return reason;
        }
        tracing::info!(target: LOG_TARGET, program = %program.display(), "the keeper is replaced by another program");
        let reason = match self.stop().await {
            Ok(()) => match self.exec(program, listener) {
                Ok(never) => match never {},
                Err(error) => format!("cannot execute `{}`: {error}", program.display()),
            },
            Err(reason) => reason,
        };
        tracing::error!(target: LOG_TARGET, reason, "the keeper goes on with its old program");
        for Entry { process, .. } in self.entries() {
            if let Some(running) = process.resume() {
                self.host.spawn(broken::guard(process, Arc::clone(self), None, Box::pin(running)));
            }
        }
        reason
    }

    /// Checks that a program runs and supports this version of the handover state.
    async fn check(&self, program: &Path) -> Result<(), String> {
        let program = program.to_owned();
        let checked = self.host.own_threads().run(ServerWork::Program, move || {
            let mut command = Command::new(&program);
            command.args(["keeper", "--check-tables", &VERSION.to_string(), "/"]);
            match run_with_timeout(command, CHECK_PATIENCE) {
                Ok((status, said)) if status.success() && said.trim() == SUPPORTED => Ok(()),
                Ok((status, _)) => Err(format!(
                    "`{}` cannot continue from the tables of this keeper, version {VERSION} ({status}); it is an older version, or \
                     not remex",
                    program.display()
                )),
                Err(error) => Err(format!("cannot run `{}`: {error}", program.display())),
            }
        });
        checked.await.map_err(|_| "the keeper has no thread to check the program".to_owned())?
    }

    /// Pauses all tasks between two steps.
    async fn stop(&self) -> Result<(), String> {
        let deadline = Instant::now() + STOP_PATIENCE;
        let entries = self.entries();
        for Entry { process, .. } in &entries {
            process.started(Some(deadline)).await;
        }
        // A kill in progress must complete, because its caller does not survive the handover.
        let _ = tree::members(&Scope::Server(Tags::new().tag(0, 0))).await;
        while self.deleting.count() > 0 && Instant::now() < deadline {
            let _ = tokio::time::timeout_at(deadline.into(), self.deleting.done()).await;
        }
        entries.iter().for_each(|entry| entry.process.pause());
        for Entry { process, .. } in &entries {
            if tokio::time::timeout_at(deadline.into(), process.paused()).await.is_err() {
                return Err(format!(
                    "process `{}` cannot be left now, perhaps because it is just starting",
                    process.id
                ));
            }
        }
        Ok(())
    }

    fn exec(&self, program: &Path, listener: &UnixListener) -> io::Result<std::convert::Infallible> {
        let entries: Vec<_> = self.processes().iter().map(|(key, entry)| (*key, entry.clone())).collect();
        let records = entries.iter().map(|(key, entry)| {
            let process = &entry.process;
            Ok(EntryRecord {
                key: *key,
                started: entry.started,
                is_live: process.is_live(),
                is_abandoned: process.with_audience(|announcer| announcer.is_abandoned),
                request: entry.request.to_vec(),
                process: process.record(entry.rules.clone())?,
            })
        });
        let handover = HandoverState {
            version: VERSION,
            lock: self.lock.as_fd().as_raw_fd(),
            listener: listener.as_raw_fd(),
            quotas: self.quotas(),
            processes: records.collect::<io::Result<_>>()?,
        };
        let mut file = File::from(memfd_create("remex-keeper", MemfdFlags::CLOEXEC)?);
        file.write_all(&serde_json::to_vec(&handover)?)?;
        let held: Vec<_> = entries.iter().map(|(_, entry)| entry.process.frozen_state()).collect();
        let mut kept: Vec<_> = held.iter().flat_map(|state| state.descriptors()).collect();
        kept.extend([self.lock.as_fd(), listener.as_fd(), file.as_fd()]);
        let args = ["remex", "keeper", "--tables", &file.as_raw_fd().to_string()].map(OsString::from);
        let args = args.into_iter().chain([self.state.path().into()]).collect();
        Err(exec_with_fds(program.into(), args, &kept))
    }

    /// Resumes the processes of the previous program.
    pub(super) fn resume(self: &Arc<Self>, mut handover: HandoverState) {
        self.set_quotas(handover.quotas);
        tracing::info!(target: LOG_TARGET, processes = handover.processes.len(), "continuing as the keeper after the upgrade");
        // Those that run need descriptors more than those that have closed.
        handover.processes.sort_by_key(|record| !record.is_live);
        for record in handover.processes {
            let (key, tag, is_live) = (record.key, record.process.tag, record.is_live);
            let Err(error) = self.resume_process(record) else { continue };
            let process = key.dir_name();
            if is_live {
                tracing::error!(target: LOG_TARGET, %error, process, "cannot take over a process; killing it");
                drop(tree::kill(&Scope::Start(tag)));
            } else {
                // The server reads it from the disk.
                tracing::warn!(target: LOG_TARGET, %error, process, "cannot open the log of a closed process");
            }
        }
        let children: Vec<_> =
            self.entries().iter().filter_map(|entry| entry.process.frozen_state().child()).collect();
        if let Err(error) = remex_process::reap_unknown_children(&children) {
            tracing::warn!(target: LOG_TARGET, %error, "cannot reap what the program before this one has started");
        }
    }

    fn resume_process(self: &Arc<Self>, record: EntryRecord) -> io::Result<()> {
        let EntryRecord { key, started, is_live, is_abandoned, request, mut process } = record;
        let dir = self.state.processes().join(key.dir_name());
        let description = state_dir::read(&dir.join(DESCRIPTION))?;
        let quota = self.quota_of(&session_of(&description));
        let rules = process.rules.clone();
        let log = DiskLogWriter::resume(
            &dir,
            log_options(&rules),
            Arc::clone(&quota),
            &rules,
            std::mem::take(&mut process.log),
        )?;
        let mut announcer = Announcer::new(key, Arc::downgrade(self));
        announcer.is_abandoned = is_abandoned;
        let context = EngineContext {
            owner: Arc::downgrade(self),
            host: &self.host,
            account: &self.account,
            tag: process.tag,
        };
        let (process, running) = Process::resume_from(process, context, log, announcer)?;
        let entry = Entry {
            process: Arc::clone(&process),
            description,
            request: request.into(),
            quota,
            started,
            rules,
        };
        self.processes().insert(key, entry);
        if is_live {
            self.count_live(&process);
        }
        if is_abandoned {
            process.abandon();
        }
        if let Some(running) = running {
            self.host.spawn(broken::guard(process, Arc::clone(self), None, Box::pin(running)));
        }
        Ok(())
    }

    fn quotas(&self) -> Quotas {
        let quotas = lock(&self.quotas);
        Quotas { server_bytes: quotas.server_bytes, session_bytes: quotas.session_bytes }
    }
}

/// Returns what to print if this program supports a version of the handover state.
pub fn supports_handover(version: u32) -> Option<&'static str> {
    (version <= VERSION).then_some(SUPPORTED)
}
