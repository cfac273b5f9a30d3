//! The handover of a process of the keeper to the program that the keeper executes in its own place.
//!
//! Its task pauses between two steps and is recorded as plain data; the new program restores it from that and from the
//! inherited descriptors, which keep their numbers. Start at [`KeeperProcess::pause`] and
//! [`KeeperProcess::resume_from`].

use std::{
    fmt, io,
    os::fd::{AsRawFd as _, BorrowedFd, RawFd},
    sync::Arc,
    time::{Duration, Instant},
};

use remex_process::{Exit as ChildExit, Leader, Pid, Tag, resume_start, take_inherited_fd};
use remex_proto::process::ExitCause;
use serde::{Deserialize, Serialize};

use super::{
    DiskLogWriter, EngineContext, Exit, InKeeper, KeeperAudience, KeeperProcess, Lifecycle, ProcessState,
    StateGuard,
    in_keeper::{KnownToServer, limits_of},
    input::{Input, InputRecord},
    log::LogRecord,
    pipes::{Pipes, PipesRecord},
    task::{Ending, ProcessTask},
    terminate::{self, GraceRecord},
};
use crate::state::keeper_link::message::{ExitRecord, Rules};

/// Whether the task of a process is pausing so that another program can take over.
pub(crate) enum Handover<A: KeeperAudience> {
    No,
    /// The task pauses as soon as it can.
    Requested,
    /// The task has paused.
    Paused(Box<ProcessTask<A, InKeeper>>),
}

impl<A: KeeperAudience> fmt::Debug for Handover<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Handover::No => "No",
            Handover::Requested => "Requested",
            Handover::Paused(_) => "Paused",
        })
    }
}

/// A process as plain data. The next version of this program reads it, so new fields need a default.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct ProcessRecord {
    pub(crate) rules: Rules,
    pub(crate) tag: Tag,
    pub(crate) log: LogRecord,
    pid: Pid,
    started_at_ms: u64,
    input: InputRecord,
    exit: Option<ExitRecord>,
    ended_for: Option<ExitCause>,
    /// The task; `None` once the log is closed.
    task: Option<TaskRecord>,
}

/// The task of a process.
#[derive(Debug, Serialize, Deserialize)]
struct TaskRecord {
    exit: remex_process::ExitRecord,
    jail: Option<RawFd>,
    pipes: PipesRecord,
    ran_ms: u64,
    quiet_ms: u64,
    end: EndRecord,
    killed: bool,
    #[serde(default)]
    timed_out: bool,
    graces: Vec<GraceRecord>,
}

#[derive(Debug, Serialize, Deserialize)]
enum EndRecord {
    Running,
    Exiting { owed: [usize; 2] },
    Exited { linger_ms: Option<u64> },
    Closing { owed: [usize; 2] },
    Closed,
}

impl<A: KeeperAudience> ProcessTask<A, InKeeper> {
    /// Pauses the task if that was requested, and returns it otherwise.
    pub(super) fn pause_if_requested(self) -> Option<Self> {
        let process = Arc::clone(&self.process);
        let mut state = process.state();
        if !matches!(state.kind.handover, Handover::Requested) {
            return Some(self);
        }
        state.kind.handover = Handover::Paused(Box::new(self));
        drop(state);
        process.changed.notify_waiters();
        None
    }

    fn record(&self, quiet: Duration) -> TaskRecord {
        let end = match self.end {
            Ending::Running => EndRecord::Running,
            Ending::Exiting { owed } => EndRecord::Exiting { owed },
            Ending::Exited { linger_until } => EndRecord::Exited {
                linger_ms: linger_until.map(|until| ms(until.saturating_duration_since(Instant::now()))),
            },
            Ending::Closing { owed } => EndRecord::Closing { owed },
            Ending::Closed => EndRecord::Closed,
        };
        TaskRecord {
            exit: self.exit.record(),
            jail: self.exit.jail().map(|jail| jail.as_raw_fd()),
            pipes: self.pipes.record(),
            ran_ms: ms(self.started.elapsed()),
            quiet_ms: ms(quiet),
            end,
            killed: self.killed,
            timed_out: self.timed_out,
            graces: self.process.graces(self.exit.leader()),
        }
    }
}

impl<A: KeeperAudience> KeeperProcess<A> {
    /// Asks the task to pause between two steps.
    pub fn pause(&self) {
        self.state().kind.handover = Handover::Requested;
        self.wake.notify_one();
    }

    /// Waits until the task has paused or ended.
    pub async fn paused(&self) {
        let has_no_task =
            |lifecycle: &Lifecycle| matches!(lifecycle, Lifecycle::Over { .. } | Lifecycle::Failed);
        self.until(|state| {
            matches!(state.kind.handover, Handover::Paused(_)) || has_no_task(&state.lifecycle)
        })
        .await;
    }

    /// Cancels the handover; returns the future that resumes the task, if it had paused.
    pub(crate) fn resume(&self) -> Option<impl Future<Output = ()> + Send + use<A>> {
        match std::mem::replace(&mut self.state().kind.handover, Handover::No) {
            Handover::Paused(task) => Some(task.run()),
            Handover::No | Handover::Requested => None,
        }
    }

    /// Records a paused process.
    ///
    /// # Errors
    ///
    /// If it is not running, or its log cannot be recorded.
    pub(crate) fn record(&self, rules: Rules) -> io::Result<ProcessRecord> {
        let mut state = self.state();
        let state = &mut *state;
        let (pid, started_at_ms) = match &state.lifecycle {
            Lifecycle::Running { pid, started_at_ms } | Lifecycle::Over { pid: Some(pid), started_at_ms } => {
                (*pid, *started_at_ms)
            }
            Lifecycle::Over { pid: None, .. } | Lifecycle::Starting(_) | Lifecycle::Failed => {
                return Err(io::Error::other(format!("process `{}` is not running", self.id)));
            }
        };
        let task = match &state.kind.handover {
            Handover::Paused(task) => Some(task.record(state.last_output.elapsed())),
            Handover::No | Handover::Requested => None,
        };
        Ok(ProcessRecord {
            rules,
            tag: self.tag,
            log: state.kind.log.record()?,
            pid,
            started_at_ms,
            input: state.kind.child.input.record(),
            exit: state.exit.as_ref().map(|exit| exit.record(state.ended_at_ms.unwrap_or_default())),
            ended_for: state.ended_for,
            task,
        })
    }

    /// Locks the state of a paused process, so that nothing changes it.
    pub(crate) fn frozen_state(&self) -> StateGuard<'_, A, InKeeper> {
        self.state()
    }

    /// Restores a process that the previous program handed over; returns the future that resumes its task, if any.
    ///
    /// # Errors
    ///
    /// If its descriptors or its child are missing; then it is killed.
    pub(crate) fn resume_from(
        record: ProcessRecord,
        context: EngineContext<'_, A>,
        log: DiskLogWriter,
        audience: A,
    ) -> io::Result<(Arc<Self>, Option<impl Future<Output = ()> + Send + use<A>>)> {
        let ProcessRecord { rules, pid, started_at_ms, input, exit, ended_for, task, .. } = record;
        let owner = context.owner.upgrade().ok_or(io::ErrorKind::NotFound)?;
        let limits = limits_of(&rules, context.host);
        let input = Input::resume(&limits, context.account, &input);
        let process = Arc::new(Self::with_input(&rules, context, log, input, audience));
        resume_start(process.tag);
        {
            let mut state = process.state();
            state.ended_for = ended_for;
            state.ended_at_ms = exit.as_ref().map(|exit| exit.at_ms);
            state.exit = exit.map(|ExitRecord { code, signal, cause, usage, .. }| Exit {
                code,
                signal,
                cause,
                usage,
                sandbox_denied: false,
            });
            state.lifecycle = Lifecycle::Over { pid: Some(pid), started_at_ms };
        }
        let Some(task) = task else { return Ok((process, None)) };
        let now = Instant::now();
        let ago = |ms: u64| now.checked_sub(Duration::from_millis(ms)).unwrap_or(now);
        let jail = task.jail.map(take_inherited_fd).transpose()?;
        let exit = ChildExit::resume(process.tag, &task.exit, jail)?;
        let leader: Leader = exit.leader().clone();
        let pipes = Pipes::resume(&task.pipes)?;
        {
            let mut state = process.state();
            state.last_output = ago(task.quiet_ms);
            state.kind.child.leader = Some(leader.clone());
            state.lifecycle = Lifecycle::Running { pid, started_at_ms };
        }
        let end = match task.end {
            EndRecord::Running => Ending::Running,
            EndRecord::Exiting { owed } => Ending::Exiting { owed },
            EndRecord::Exited { linger_ms } => Ending::Exited {
                linger_until: linger_ms.and_then(|ms| now.checked_add(Duration::from_millis(ms))),
            },
            EndRecord::Closing { owed } => Ending::Closing { owed },
            EndRecord::Closed => Ending::Closed,
        };
        if task.killed {
            terminate::force(&process, &leader, None);
        }
        process.resume_graces(&task.graces, &leader);
        let task = ProcessTask {
            process: Arc::clone(&process),
            owner,
            exit,
            limits: KnownToServer,
            pipes,
            started: ago(task.ran_ms),
            end,
            notify_by: None,
            turn_over: false,
            killed: task.killed,
            timed_out: task.timed_out,
        };
        Ok((process, Some(task.run())))
    }
}

impl<A: KeeperAudience> ProcessState<A> {
    /// Returns the descriptors of a paused process.
    pub(crate) fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        match &self.kind.handover {
            Handover::Paused(task) => {
                let mut descriptors = task.pipes.descriptors();
                descriptors.extend(task.exit.jail());
                descriptors
            }
            Handover::No | Handover::Requested => Vec::new(),
        }
    }

    /// Returns the child of a process, until it is reaped.
    pub(crate) fn child(&self) -> Option<Pid> {
        match &self.lifecycle {
            Lifecycle::Running { pid, .. } => Some(*pid),
            Lifecycle::Starting(_) | Lifecycle::Over { .. } | Lifecycle::Failed => None,
        }
    }
}

fn ms(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
