//! The keeper's replacement by another program: the same process, children, descriptors and locks, another executable.
//!
//! All tasks stop between two steps, everything that they know is written to a memory file, and the new program goes on
//! from there. If that cannot be, the tasks go on here. Start at [`Keeper::replace`] and [`Tables::take`].

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
    Announcer, Entry, Keeper, Kept, lock,
    space::{log_options, session_of},
};
use crate::{
    process::{DiskLogWriter, Placement, ProcessRecord, broken},
    state::{
        durable::DESCRIPTION,
        keeper_link::message::{Key, Quotas},
        state_dir::{self, Lock},
    },
};

/// The form of the tables. This program reads those of all earlier versions.
pub(super) const VERSION: u32 = 1;

/// How long the new program may take to say whether it knows this form.
const CHECK_PATIENCE: Duration = Duration::from_secs(10);

/// What a program says that knows it.
const KNOWS_TABLES: &str = "remex knows these tables";

/// How long tasks may take to stop.
const STOP_PATIENCE: Duration = Duration::from_secs(5);

/// Everything that a keeper knows.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Tables {
    version: u32,
    lock: RawFd,
    listener: RawFd,
    quotas: Quotas,
    processes: Vec<KeptRecord>,
}

/// A process of the keeper.
#[derive(Debug, Serialize, Deserialize)]
struct KeptRecord {
    key: Key,
    started: Option<(u32, u64)>,
    is_live: bool,
    is_abandoned: bool,
    // The tables of an older keeper have none.
    #[serde(default)]
    request: Vec<u8>,
    process: ProcessRecord,
}

/// What the program before this one has passed on, besides its processes.
pub(super) struct Passed {
    pub(super) lock: Lock,
    pub(super) listener: UnixListener,
    pub(super) tables: Tables,
}

impl Tables {
    /// Takes what the program before this one has passed on in the memory file with this number.
    pub(super) fn take(number: RawFd) -> io::Result<Passed> {
        let mut file = File::from(take_inherited_fd(number)?);
        file.rewind()?;
        let mut text = Vec::new();
        file.read_to_end(&mut text)?;
        let tables: Tables = serde_json::from_slice(&text)?;
        if tables.version > VERSION {
            return Err(io::Error::other(format!(
                "the tables have version {}, this keeper knows {VERSION}",
                tables.version
            )));
        }
        let listener = std::os::unix::net::UnixListener::from(take_inherited_fd(tables.listener)?);
        let listener = UnixListener::from_std(listener)?;
        let lock = Lock::passed(File::from(take_inherited_fd(tables.lock)?));
        Ok(Passed { lock, listener, tables })
    }
}

impl Keeper {
    /// Executes another program in place of this one. Returns why that is not possible; then everything goes on here.
    pub(super) async fn replace(self: &Arc<Self>, program: &Path, listener: &UnixListener) -> String {
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
            if let Some(running) = process.stay() {
                self.host.spawn(broken::guard(process, Arc::clone(self), None, running));
            }
        }
        reason
    }

    /// Checks that a program runs and can go on from the tables.
    async fn check(&self, program: &Path) -> Result<(), String> {
        let program = program.to_owned();
        let checked = self.host.own_threads().run(ServerWork::Program, move || {
            let mut command = Command::new(&program);
            command.args(["keeper", "--check-tables", &VERSION.to_string(), "/"]);
            match run_with_timeout(command, CHECK_PATIENCE) {
                Ok((status, said)) if status.success() && said.trim() == KNOWS_TABLES => Ok(()),
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

    /// Stops all tasks between two steps.
    async fn stop(&self) -> Result<(), String> {
        let deadline = Instant::now() + STOP_PATIENCE;
        let entries = self.entries();
        for Entry { process, .. } in &entries {
            process.started(Some(deadline)).await;
        }
        // A kill that has begun must end: whoever asked for it is gone.
        let _ = tree::members(&Scope::Server(Tags::new().tag(0, 0))).await;
        while self.deleting.count() > 0 && Instant::now() < deadline {
            let _ = tokio::time::timeout_at(deadline.into(), self.deleting.done()).await;
        }
        entries.iter().for_each(|entry| entry.process.leave());
        for Entry { process, .. } in &entries {
            if tokio::time::timeout_at(deadline.into(), process.left()).await.is_err() {
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
            Ok(KeptRecord {
                key: *key,
                started: entry.started,
                is_live: process.is_live(),
                is_abandoned: process.with_audience(|announcer| announcer.is_abandoned),
                request: entry.request.to_vec(),
                process: process.record(entry.rules.clone())?,
            })
        });
        let tables = Tables {
            version: VERSION,
            lock: self.lock.as_fd().as_raw_fd(),
            listener: listener.as_raw_fd(),
            quotas: self.quotas(),
            processes: records.collect::<io::Result<_>>()?,
        };
        let mut file = File::from(memfd_create("remex-keeper", MemfdFlags::CLOEXEC)?);
        file.write_all(&serde_json::to_vec(&tables)?)?;
        let held: Vec<_> = entries.iter().map(|(_, entry)| entry.process.hold_still()).collect();
        let mut kept: Vec<_> = held.iter().flat_map(|state| state.descriptors()).collect();
        kept.extend([self.lock.as_fd(), listener.as_fd(), file.as_fd()]);
        let args = ["remex", "keeper", "--tables", &file.as_raw_fd().to_string()].map(OsString::from);
        let args = args.into_iter().chain([self.state.path().into()]).collect();
        Err(exec_with_fds(program.into(), args, &kept))
    }

    /// Goes on with the processes of the program before this one.
    pub(super) fn resume(self: &Arc<Self>, mut tables: Tables) {
        self.set_quotas(tables.quotas);
        tracing::info!(target: LOG_TARGET, processes = tables.processes.len(), "continuing as the keeper after the upgrade");
        // Those that run need descriptors more than those that have closed.
        tables.processes.sort_by_key(|record| !record.is_live);
        for record in tables.processes {
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
            self.entries().iter().filter_map(|entry| entry.process.hold_still().child()).collect();
        if let Err(error) = remex_process::reap_unknown_children(&children) {
            tracing::warn!(target: LOG_TARGET, %error, "cannot reap what the program before this one has started");
        }
    }

    fn resume_process(self: &Arc<Self>, record: KeptRecord) -> io::Result<()> {
        let KeptRecord { key, started, is_live, is_abandoned, request, mut process } = record;
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
        let placement = Placement {
            owner: Arc::downgrade(self),
            host: &self.host,
            account: &self.account,
            tag: process.tag,
        };
        let (process, running) = Kept::resume_left(process, placement, log, announcer)?;
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
            self.host.spawn(broken::guard(process, Arc::clone(self), None, running));
        }
        Ok(())
    }

    fn quotas(&self) -> Quotas {
        let quotas = lock(&self.quotas);
        Quotas { server_bytes: quotas.server_bytes, session_bytes: quotas.session_bytes }
    }
}

/// Returns what to print if this program can continue from tables of a version.
pub fn knows_tables(version: u32) -> Option<&'static str> {
    (version <= VERSION).then_some(KNOWS_TABLES)
}
