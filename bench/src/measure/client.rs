//! What our own client adds: on every way to a server, against what the machine allows and against the wire.
//!
//! The client works in a task of a runtime with as many threads as there are cores, as it does in programs.

mod call;
mod files;
mod memory;
mod read;
mod run;

use std::time::{Duration, Instant};

use super::{Base, Figures, Goal, Measure, Row, Scale, Unit};
use crate::stats::percentile_us;

pub(super) use self::{
    call::{CALL_IN_PROCESS, CALL_STDIO, CALL_UNIX, CALL_WEBSOCKET},
    files::{FILES_IN_PROCESS, FILES_UNIX, FILES_WEBSOCKET},
    memory::MEMORY,
    read::{READ_IN_PROCESS, READ_UNIX, READ_WEBSOCKET, read},
    run::{RUN_IN_PROCESS, RUN_STDIO, RUN_UNIX, RUN_WEBSOCKET, run},
};

/// Repetitions before the clock counts.
const WARM_UP: usize = 50;

/// How long each repetition took.
struct Samples {
    durations: Vec<Duration>,
    left: usize,
    begin: Instant,
}

impl Samples {
    fn new(count: usize) -> Self {
        Self { durations: Vec::with_capacity(WARM_UP + count), left: WARM_UP + count, begin: Instant::now() }
    }

    /// Starts the clock; tells whether another repetition is wanted.
    fn begin(&mut self) -> bool {
        self.begin = Instant::now();
        self.left > 0
    }

    fn end(&mut self) {
        self.durations.push(self.begin.elapsed());
        self.left -= 1;
    }

    fn figures(mut self) -> Figures {
        let counted = &mut self.durations[WARM_UP..];
        vec![("p50", percentile_us(counted, 50)), ("p99", percentile_us(counted, 99))]
    }
}
