//! Output that was sent but not acknowledged.

use std::{collections::VecDeque, sync::Arc};

use remex_proto::state::output_log::Seq;

use crate::process::Process;

/// What one connection has been sent since the last acknowledgement.
#[derive(Debug, Default)]
pub(super) struct InFlight {
    last_mark: u64,
    /// Sent since the last mark.
    open: Stretch,
    /// Marks that were not acknowledged, oldest first.
    marks: VecDeque<(u64, Stretch)>,
    bytes: usize,
}

#[derive(Debug, Default)]
struct Stretch {
    bytes: usize,
    /// The newest event of each process in it.
    processes: Vec<(Arc<Process>, Seq)>,
}

impl InFlight {
    pub(super) fn add(&mut self, process: Arc<Process>, seq: Seq, bytes: usize) {
        self.bytes += bytes;
        self.open.bytes += bytes;
        match self.open.processes.iter_mut().find(|(known, _)| Arc::ptr_eq(known, &process)) {
            Some((_, last)) => *last = seq.max(*last),
            None => self.open.processes.push((process, seq)),
        }
    }

    /// Returns everything sent and not acknowledged.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns what was sent since the last mark.
    pub(super) fn open_bytes(&self) -> usize {
        self.open.bytes
    }

    /// Sets a mark behind everything sent so far.
    pub(super) fn mark(&mut self) -> u64 {
        self.last_mark += 1;
        self.marks.push_back((self.last_mark, std::mem::take(&mut self.open)));
        self.last_mark
    }

    /// Returns what the client has got now that it acknowledged `mark`.
    ///
    /// A mark that was never set acknowledges nothing.
    pub(super) fn acknowledge(&mut self, mark: u64) -> Vec<(Arc<Process>, Seq)> {
        let mut acknowledged = Vec::new();
        if mark > self.last_mark {
            return acknowledged;
        }
        while self.marks.front().is_some_and(|(oldest, _)| *oldest <= mark) {
            let Some((_, stretch)) = self.marks.pop_front() else { break };
            self.bytes -= stretch.bytes;
            acknowledged.extend(stretch.processes);
        }
        acknowledged
    }
}
