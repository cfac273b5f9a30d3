//! One process of an agent, and the task that collects its output.
//!
//! Start at [`OpenProcess`].

use std::{
    io,
    sync::{Arc, OnceLock},
};

use remex_base::lock;
use tokio::{io::AsyncWriteExt as _, sync::Mutex, task::JoinSet};

use super::{
    ControlSequences, Count, Excerpt, Handle, Limits, Progress, Refusal, RetainedOutput, Write,
    collector::Collector,
    events::{EndReporter, EventSender, StepGuard},
};
use crate::{
    Client, Command, Error, Process,
    api::process::{Event, SignalName, Stdin},
};

/// The byte that a terminal sends for Ctrl-C.
const CTRL_C: &[u8] = &[0x03];

/// One process of an agent.
#[derive(Debug)]
pub(super) struct OpenProcess {
    pub(super) command: String,
    terminal: Terminal,
    process: Process,
    pub(super) collector: Arc<Collector>,
    /// Serializes the writes of steps; held while a write waits for the process to read.
    input: Mutex<Input>,
    /// Tasks that collect output, close the input and report the end; aborted when this is dropped.
    tasks: std::sync::Mutex<JoinSet<()>>,
    /// Set once the process has its handle.
    reporter: OnceLock<Arc<EndReporter>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Terminal {
    Yes,
    No,
}

#[derive(Debug)]
enum Input {
    None,
    Open(Box<Stdin>),
    /// End of file was sent; it may still be queued behind unread input.
    Ended,
}

impl OpenProcess {
    /// Starts a command, and collects its output from then on.
    pub(super) async fn start(client: &Client, command: &Command, limits: &Limits) -> Result<Self, Error> {
        let line = command.line();
        let terminal = if command.has_terminal() { Terminal::Yes } else { Terminal::No };
        let process = command.start(client).await?;
        let collector = Arc::new(Collector::new(limits));
        let mut tasks = JoinSet::new();
        let (collects, events) = (Arc::clone(&collector), process.events());
        tasks.spawn(async move { collects.collect(events).await });
        let (input, tasks) = (
            Mutex::new(process.stdin().map_or(Input::None, |stdin| Input::Open(Box::new(stdin)))),
            tasks.into(),
        );
        Ok(Self { command: line, terminal, process, collector, input, tasks, reporter: OnceLock::new() })
    }

    /// Reports the end of the process if no step does; returns the guard of the step that has started it.
    pub(super) fn report_end(&self, handle: Handle, events: EventSender) -> Option<StepGuard> {
        let collector = Arc::clone(&self.collector);
        let reporter = EndReporter::new(handle, self.command.clone(), collector, events);
        let guard = reporter.step();
        let mut tasks = lock(&self.tasks);
        tasks.spawn(Arc::clone(&reporter).run());
        drop(tasks);
        self.reporter.set(reporter).ok().map(|()| guard)
    }

    /// Records that a step waits for the process.
    pub(super) fn step(&self) -> Option<StepGuard> {
        self.reporter.get().map(EndReporter::step)
    }

    pub(super) fn process(&self) -> &Process {
        &self.process
    }

    pub(super) fn is_open(&self) -> bool {
        self.collector.is_open()
    }

    /// Writes, and counts accepted bytes; `handle` is for errors. Cancel-safe: counted bytes will be delivered.
    pub(super) async fn write(
        &self,
        handle: Handle,
        write: Write<'_>,
        accepted_bytes: &mut usize,
    ) -> Result<(), Error> {
        let (Write::Bytes(bytes) | Write::BytesAndEnd(bytes)) = write else { return Ok(()) };
        let mut input = self.input.lock().await;
        let stdin = match &mut *input {
            Input::Open(stdin) => stdin,
            Input::None => return Err(Refusal::NoInput { handle }.into()),
            Input::Ended => return Err(Refusal::InputEnded { handle }.into()),
        };
        let written = write_all(stdin, bytes, accepted_bytes).await;
        if matches!(write, Write::Bytes(_)) {
            written.map_err(writing_failed)?;
            return stdin.flush().await.map_err(writing_failed);
        }
        match written {
            // The exit status is more informative than the broken pipe.
            Err(error) if error.kind() != io::ErrorKind::BrokenPipe => return Err(writing_failed(error)),
            _ => {}
        }
        if let Input::Open(mut stdin) = std::mem::replace(&mut *input, Input::Ended) {
            let mut tasks = lock(&self.tasks);
            tasks.spawn(async move { drop(stdin.shutdown().await) });
        }
        Ok(())
    }

    /// Reads the output that the server still retains.
    pub(super) async fn retained(
        &self,
        max_bytes: usize,
        control_sequences: ControlSequences,
    ) -> Result<RetainedOutput, Error> {
        let totals = self.collector.totals();
        let mut excerpt = Excerpt::new(max_bytes, control_sequences);
        let mut events = self.process.events();
        let (mut seq, mut read_bytes, mut evicted_bytes) = (0, 0, 0);
        while seq < totals.seq {
            match events.next().await? {
                Some(Event::Output(chunk)) => {
                    excerpt.push(chunk.stream, &chunk.bytes);
                    read_bytes += chunk.bytes.len() as u64;
                    seq = chunk.seq;
                }
                Some(Event::Gap(gap)) => {
                    excerpt.skip(gap.bytes);
                    evicted_bytes += gap.bytes.unwrap_or(0);
                    seq = gap.to_seq;
                }
                Some(Event::Exited { .. }) => {}
                Some(Event::Closed(_)) | None => break,
            }
        }
        if totals.count == Count::Exact {
            // Gaps of unknown length: what was neither read nor counted.
            let uncounted = totals.bytes.saturating_sub(read_bytes + evicted_bytes);
            excerpt.settle(uncounted);
            evicted_bytes += uncounted;
        }
        Ok(RetainedOutput { output: excerpt.finish(), evicted_bytes })
    }

    /// Interrupts the process like Ctrl-C.
    pub(super) async fn interrupt(&self) -> Result<(), Error> {
        match self.terminal {
            // Bypasses a step that is blocked writing.
            Terminal::Yes => self.process.write(CTRL_C).await,
            Terminal::No => self.process.signal(SignalName::Int).await,
        }
    }

    /// Returns the process if it has not ended.
    pub(super) fn running(&self, handle: Handle) -> Result<&Process, Error> {
        match self.collector.progress() {
            Progress::Running | Progress::Exited(_) => Ok(&self.process),
            Progress::Ended(_) => Err(Refusal::Ended { handle }.into()),
            Progress::Lost(error) => Err(error),
        }
    }
}

async fn write_all(stdin: &mut Stdin, bytes: &[u8], accepted_bytes: &mut usize) -> io::Result<()> {
    while *accepted_bytes < bytes.len() {
        *accepted_bytes += stdin.write(&bytes[*accepted_bytes..]).await?;
    }
    Ok(())
}

/// Unwraps the error inside an I/O error.
fn writing_failed(error: io::Error) -> Error {
    error.downcast().unwrap_or_else(|error| Error::local("write to the process", error))
}
