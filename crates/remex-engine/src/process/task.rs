//! The task of one process: the owner of the child and the only writer of its log.
//!
//! It reads straight into the log while there is room, writes stdin, handles requests, and appends exit and
//! close to the log after the output that precedes them. Start at [`ProcessTask::run`].

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use remex_access::account;
use remex_process::{Exit as ChildExit, ExitStatus};
use remex_proto::{
    ErrorKind, RpcError,
    call::Empty,
    process::{self as wire, ExitCause},
};
use tokio::io::Interest;
use tracing::Span;

use super::{
    Audience, Caller as _, Engine, Exit, Owner as _, Request, RunsChild,
    child::{ChildLimits as _, HasChild as _},
    no_end_of_input,
    pipes::{IoOutcome, Pipes},
    terminate,
    watched::Watched,
};
use crate::process::LOG_TARGET;

/// The shortest time between two notifications of readers while output is continuous.
pub(crate) const NOTIFY_INTERVAL: Duration = Duration::from_millis(1);

/// How much is read from one source before other tasks get a turn.
const TURN_BYTES: usize = 128 << 10;

/// A disk that has refused the end of a log has room again without notice.
const UNWRITTEN_RETRY: Duration = Duration::from_millis(100);

pub struct ProcessTask<A: Audience, K: RunsChild<A>> {
    pub(super) process: Arc<Engine<A, K>>,
    pub(super) owner: Arc<A::Owner>,
    pub(super) exit: ChildExit,
    /// Enforces its limits.
    pub(super) limits: K::Limits,
    pub(super) pipes: Pipes,
    pub(super) started: Instant,
    pub(super) end: Ending,
    /// Readers must be notified by this time.
    pub(super) notify_by: Option<Instant>,
    /// A source has more output than one turn allows.
    pub(super) turn_over: bool,
    /// The tree was killed; the exit follows.
    pub(super) killed: bool,
    /// A timeout has passed, and the tree has time to end.
    pub(super) timed_out: bool,
}

/// The stages of the end of a process.
pub(super) enum Ending {
    Running,
    /// The child has exited; this many bytes of each source precede the exit in the log.
    Exiting {
        owed: [usize; 2],
    },
    /// The exit is in the log. Other processes may hold the output open, at most until this time.
    Exited {
        linger_until: Option<Instant>,
    },
    /// The linger time is over; this many bytes of each source are still read.
    Closing {
        owed: [usize; 2],
    },
    Closed,
}

impl<A: Audience, K: RunsChild<A>> ProcessTask<A, K> {
    pub(super) async fn run(mut self) {
        loop {
            self.take_requests();
            self.pump();
            #[cfg(any(test, feature = "testing"))]
            if self.process.state().kind.writer().total() > 0 {
                remex_base::supervise::break_at("!task", &self.process.id);
            }
            if matches!(self.end, Ending::Closed) {
                break;
            }
            let Some(going_on) = K::pause_if_requested(self) else { return };
            self = going_on;
            if std::mem::take(&mut self.turn_over) {
                tokio::task::yield_now().await;
                continue;
            }
            // Whatever is ready, others of this thread have their turn.
            tokio::task::coop::consume_budget().await;
            self.wait().await;
        }
        self.settle().await;
        // Close the descriptors before the retention time begins.
        drop(self.pipes);
        self.limits.on_closed(&self.process.host);
        self.process.retire();
        self.owner.on_closed(&K::handle(&self.process));
        tracing::info!(target: LOG_TARGET, session = self.owner.id(), identity = %self.owner.identity(), process = %self.process.id, "process closed");
    }

    /// Waits until all events are readable, and announces them if that was not at once.
    async fn settle(&self) {
        let mut was_refused = false;
        while !self.process.state().kind.writer().settle() {
            was_refused = true;
            tokio::time::sleep(UNWRITTEN_RETRY).await;
        }
        if was_refused {
            self.process.notify(&mut self.process.state());
        }
    }

    /// Waits for the next event.
    async fn wait(&mut self) {
        let (full, has_input, is_delayed) = {
            let mut state = self.process.state();
            let full = state.full;
            let child = state.kind.child_mut();
            let has_input = child.input.next().is_some();
            let may_delay = self.pipes.is_roomy()
                && !has_input
                && !child.answer_due
                && matches!(self.end, Ending::Running | Ending::Exited { .. });
            let is_delayed = child.coalescing.starts_delay(Instant::now(), may_delay, self.pipes.buffer());
            (full, has_input, is_delayed)
        };
        let running = matches!(self.end, Ending::Running);
        if is_delayed {
            self.pipes.widen();
            self.pipes.unwatch();
        } else {
            self.pipes.narrow();
            if !full || has_input {
                self.pipes.watch();
            }
        }
        let watching = !full && !is_delayed;
        let deadline = self.deadline();
        let [first, second] = [0, 1].map(|index| self.pipes.out[index].as_ref().map(|source| &source.fd));
        let input = self.pipes.input();
        let status = tokio::select! {
            biased;
            () = self.process.wake.notified() => None,
            status = self.exit.wait(), if running => Some(status),
            () = ready(first, Interest::READABLE), if first.is_some() && watching => None,
            () = ready(second, Interest::READABLE), if second.is_some() && watching => None,
            () = ready(input, Interest::WRITABLE), if has_input => None,
            () = sleep_until(deadline), if deadline.is_some() => {
                self.on_deadline();
                None
            }
        };
        if let Some(status) = status {
            self.on_exit(&status);
        }
    }

    fn deadline(&self) -> Option<Instant> {
        let state = self.process.state();
        let rules = self.process.kind.rules();
        let running = matches!(self.end, Ending::Running) && !self.killed && !self.timed_out;
        let timeout = rules.timeout.and_then(|time| self.started.checked_add(time));
        let idle_timeout = rules.idle_timeout.and_then(|time| state.idle_at(time));
        let linger = match self.end {
            Ending::Exited { linger_until } => linger_until,
            _ => None,
        };
        [
            self.notify_by,
            state.kind.child().coalescing.until(),
            linger,
            timeout.filter(|_| running),
            idle_timeout.filter(|_| running),
            state.recheck_at(rules, &self.process.host.limits()),
            self.pipes.recheck_at().filter(|_| state.full),
        ]
        .into_iter()
        .flatten()
        .min()
    }

    fn on_deadline(&mut self) {
        let now = Instant::now();
        let due = |at: Option<Instant>| at.is_some_and(|at| now >= at);
        if let Ending::Exited { linger_until } = self.end
            && due(linger_until)
        {
            self.end = Ending::Closing { owed: self.pipes.available() };
        }
        if matches!(self.end, Ending::Running) {
            let rules = self.process.kind.rules();
            let mut state = self.process.state();
            let cause = if due(rules.timeout.and_then(|time| self.started.checked_add(time))) {
                ExitCause::Timeout
            } else if due(rules.idle_timeout.and_then(|time| state.idle_at(time))) {
                ExitCause::IdleTimeout
            } else {
                return;
            };
            if self.killed || self.timed_out {
                return;
            }
            state.ended_for.get_or_insert(cause);
            drop(state);
            if let Some(grace) = rules.timeout_grace {
                self.timed_out = true;
                terminate::graceful(&self.process, self.exit.leader(), grace);
            } else {
                self.killed = true;
                self.force(None);
            }
        }
    }

    fn on_exit(&mut self, status: &ExitStatus) {
        let exit = self.describe(status);
        Span::current().record("code", exit.code);
        tracing::info!(
            target: LOG_TARGET,
            session = self.owner.id(), identity = %self.owner.identity(), process = %self.process.id,
            code = exit.code, cause = ?exit.cause, "process exited"
        );
        self.pipes.child_ended();
        self.end = Ending::Exiting { owed: self.pipes.available() };
        let mut state = self.process.state();
        state.kind.child_mut().coalescing.end();
        state.exited(exit);
        state.kind.child_mut().input.closed();
        A::on_change(&K::handle(&self.process), K::view(&mut state));
        drop(state);
        // Waits and lists must see the exit at once, even if a full log delays the event.
        self.process.changed.notify_waiters();
    }

    fn describe(&self, status: &ExitStatus) -> Exit {
        let ms = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        let ended_for = self.process.state().ended_for;
        let cause = match (ended_for, status.signal) {
            (Some(cause), _) => cause,
            (None, None) => ExitCause::Exit,
            (None, Some(signal)) if signal == remex_process::Signal::KILL && self.ran_out_of_memory() => {
                ExitCause::OutOfMemory
            }
            (None, Some(_)) => ExitCause::Signal,
        };
        let mut usage = wire::Usage::default();
        usage.user_ms = ms(status.usage.user);
        usage.system_ms = ms(status.usage.system);
        usage.max_rss_bytes = status.usage.max_rss_bytes;
        usage.wall_ms = ms(self.started.elapsed());
        Exit {
            code: status.code,
            signal: status.signal.map(|signal| signal.name().into_owned()),
            cause,
            usage,
            sandbox_denied: false,
        }
    }

    /// Returns whether the kernel has killed a process for lack of memory: one of its cgroup, or else any on the host.
    fn ran_out_of_memory(&self) -> bool {
        // Always asked, so that a kill in this cgroup is not taken for the end of another process.
        let on_host = self.process.host.ran_out_of_memory();
        self.limits.oom_kills().map_or(on_host, |kills| kills > 0)
    }

    /// Moves bytes in both directions as far as possible without waiting.
    fn pump(&mut self) {
        self.read(0);
        self.read(1);
        self.write_input();
        self.log_end();
        self.announce_if_due();
    }

    /// Notifies readers of gathered output when it is due.
    ///
    /// Runs after reading, so that the notification covers everything that has arrived in the meantime.
    fn announce_if_due(&mut self) {
        if self.notify_by.is_some_and(|at| Instant::now() >= at) {
            self.notify_by = None;
            self.process.notify(&mut self.process.state());
        }
    }

    fn read(&mut self, index: usize) {
        let process = Arc::clone(&self.process);
        let limits = process.host.limits();
        let mut taken = 0;
        loop {
            let (limit, draining) = match &self.end {
                Ending::Exiting { owed } | Ending::Closing { owed } => (owed[index], true),
                _ => (usize::MAX, false),
            };
            if limit == 0 || self.pipes.out[index].is_none() {
                return;
            }
            if taken >= TURN_BYTES {
                self.turn_over = true;
                return;
            }
            if process.account.left(account::Kind::Output) < limits.chunk_bytes {
                self.owner.reclaim(limits.chunk_bytes);
            }
            let now = Instant::now();
            let mut state = process.state();
            let budget = process.budget(&state);
            let rest = self.pipes.rest(index);
            let draining = draining || rest > 0;
            let (hold, room) = process.room(&mut state, &limits, budget, rest, now);
            if state.full && room > 0 {
                // A child that was paused was not idle.
                state.last_output = now;
            }
            if room == 0 && !state.full {
                process.host.metrics().pauses.add(1);
            }
            let was_full = std::mem::replace(&mut state.full, room == 0);
            let lacks_space = state.kind.writer().lacks_space();
            if state.full != was_full || lacks_space {
                A::on_change(&K::handle(&process), K::view(&mut state));
            }
            if state.full {
                state.audience.on_full();
                return;
            }
            match self.pipes.read(index, state.kind.writer(), room.min(limit), draining) {
                IoOutcome::Bytes(len) => {
                    process.host.metrics().output_bytes.add(len as u64);
                    let evicted = state.evict(hold, budget);
                    process.count_evicted(&mut state, evicted, now);
                    process.charge(&mut state);
                    let pause = now.saturating_duration_since(state.last_output);
                    let child = state.kind.child_mut();
                    let without_pause = pause < NOTIFY_INTERVAL && !child.answer_due;
                    child.coalescing.on_read(len, self.pipes.last_read(), without_pause);
                    let is_enough = child.coalescing.is_enough(self.pipes.last_read());
                    state.last_output = now;
                    self.notify_by = process.announce(&mut state, now);
                    drop(state);
                    taken += len;
                    self.count_drained(index, len);
                    if is_enough {
                        return;
                    }
                }
                IoOutcome::WouldBlock => {
                    drop(state);
                    self.count_drained(index, usize::MAX);
                    return;
                }
                IoOutcome::End => self.pipes.out[index] = None,
            }
        }
    }

    /// Counts bytes that precede the exit or the close as read.
    fn count_drained(&mut self, index: usize, len: usize) {
        if let Ending::Exiting { owed } | Ending::Closing { owed } = &mut self.end {
            owed[index] = owed[index].saturating_sub(len);
        }
    }

    /// Appends exit and close to the log once all output before them is in it.
    fn log_end(&mut self) {
        let is_drained = |owed: &[usize; 2], pipes: &Pipes| {
            (0..2).all(|index| owed[index] == 0 || pipes.out[index].is_none())
        };
        let closed = match &self.end {
            Ending::Exiting { owed } if is_drained(owed, &self.pipes) => {
                let linger_until =
                    self.process.kind.rules().linger.and_then(|time| Instant::now().checked_add(time));
                self.end = Ending::Exited { linger_until };
                let mut state = self.process.state();
                K::judge_failure(&mut state, &self.limits);
                state.push_exited();
                if self.pipes.is_open() {
                    self.process.notify(&mut state);
                }
                !self.pipes.is_open()
            }
            Ending::Exited { .. } => !self.pipes.is_open(),
            Ending::Closing { owed } => is_drained(owed, &self.pipes),
            Ending::Running | Ending::Exiting { .. } | Ending::Closed => false,
        };
        if closed {
            self.end = Ending::Closed;
            self.notify_by = None;
            let mut state = self.process.state();
            state.push_closed();
            self.process.charge(&mut state);
            self.process.notify(&mut state);
        }
    }

    fn write_input(&mut self) {
        let process = Arc::clone(&self.process);
        loop {
            let mut state = process.state();
            let child = state.kind.child_mut();
            if child.input.is_done() {
                self.pipes.stdin = None;
                child.input.closed();
                return;
            }
            let Some(bytes) = child.input.next() else { return };
            match self.pipes.write(bytes) {
                IoOutcome::Bytes(len) => {
                    child.input.delivered(len);
                    child.answer_due = true;
                }
                IoOutcome::WouldBlock => return,
                IoOutcome::End => {
                    self.pipes.stdin = None;
                    child.input.closed();
                    return;
                }
            }
        }
    }

    fn take_requests(&mut self) {
        let process = Arc::clone(&self.process);
        loop {
            let mut state = process.state();
            if std::mem::take(&mut state.reads_rest) {
                self.pipes.read_rest();
            }
            let Some(request) = state.requests.pop_front() else { return };
            match request {
                Request::Write(write) if self.killed => {
                    drop(state);
                    write
                        .caller
                        .error(&RpcError::new(ErrorKind::Internal, "failed to write to process stdin"));
                }
                Request::Write(write) => state.kind.child_mut().input.write(write),
                Request::CloseStdin(caller, id) if self.process.kind.rules().tty => {
                    drop(state);
                    caller.error(&no_end_of_input(&id));
                }
                Request::CloseStdin(caller, _) => state.kind.child_mut().input.close(caller),
                Request::Resize(size, caller, id) => {
                    drop(state);
                    caller.answer(self.pipes.resize(size, &id).map(|()| Empty {}.into()));
                }
                Request::Signal(signal, caller) => {
                    drop(state);
                    caller.answer(self.signal(signal).map(|()| Empty {}.into()));
                }
                Request::Terminate(mode, scope, caller) => {
                    drop(state);
                    self.terminate(mode, scope, caller);
                }
            }
        }
    }

    fn signal(&self, signal: remex_process::Signal) -> Result<(), RpcError> {
        if !matches!(self.end, Ending::Running) {
            return Ok(());
        }
        self.exit.leader().signal_group(signal).map_err(|error| {
            RpcError::new(
                ErrorKind::Internal,
                format!("cannot send {} to process `{}`: {error}", signal.name(), self.process.id),
            )
        })
    }

    /// Kills the process with its tree: through its cgroup, if it has one, which nothing in it can flee from.
    fn force(&self, caller: Option<A::Caller>) {
        if let Err(error) = self.limits.kill() {
            tracing::debug!(target: LOG_TARGET, process = %self.process.id, %error, "cannot kill the cgroup: killing one process after the other");
        }
        terminate::force(&self.process, self.exit.leader(), caller);
    }

    fn terminate(&mut self, mode: wire::TerminateMode, scope: wire::TerminateScope, caller: A::Caller) {
        match (&self.end, scope) {
            (Ending::Running, _) => {
                self.process.state().ended_for.get_or_insert(ExitCause::Terminated);
                match mode {
                    wire::TerminateMode::Force => {
                        self.killed = true;
                        self.force(Some(caller));
                    }
                    wire::TerminateMode::Graceful { timeout_ms } => {
                        terminate::graceful(
                            &self.process,
                            self.exit.leader(),
                            Duration::from_millis(timeout_ms),
                        );
                        caller.ok(wire::Terminated { running: true });
                    }
                }
            }
            (_, wire::TerminateScope::Tree) => self.process.terminate_remaining(mode, caller),
            (Ending::Closed, wire::TerminateScope::Usual) => caller.ok(wire::Terminated { running: false }),
            (
                Ending::Exiting { .. } | Ending::Exited { .. } | Ending::Closing { .. },
                wire::TerminateScope::Usual,
            ) => {
                let pid = self.exit.leader().pid();
                terminate::remaining_group(&self.process, pid, mode, caller);
            }
        }
    }
}

async fn ready(fd: Option<&Watched>, interest: Interest) {
    if let Some(fd) = fd {
        fd.ready(interest).await;
    }
}

async fn sleep_until(deadline: Option<Instant>) {
    if let Some(at) = deadline {
        tokio::time::sleep_until(at.into()).await;
    }
}
