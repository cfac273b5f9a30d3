//! A process that follows a script, behind the trait [`ExecProcess`].

use std::{
    collections::VecDeque,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use bytes::Bytes;
use tokio::{sync::Notify, time::timeout};

use super::{Script, Step};
use crate::{
    Error, ErrorKind,
    process::{ExecProcess, Exit, OutputBatch, ProcessFuture, SignalName, Stream, TerminalSize, TimedChunk},
};

/// A process that follows a [`Script`].
///
/// ```
/// # #[tokio::main] async fn main() -> Result<(), remex_client::Error> {
/// use std::time::Duration;
/// use remex_client::{process::ExecProcess, testing::{FakeProcess, Script}};
///
/// let process = FakeProcess::new("login", Script::new().stdout("name? ").expect_input("ada\n").exit(0));
/// let batch = process.read(0, 1024, Duration::ZERO).await?;
/// assert_eq!(batch.chunks[0].bytes, "name? ");
/// process.write(b"ada\n").await?;
/// assert!(process.wait().await?.is_success());
/// assert_eq!(process.written(), b"ada\n");
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct FakeProcess {
    id: String,
    /// Readers and writers of the test; locked only briefly.
    state: Mutex<State>,
    changed: Notify,
}

#[derive(Debug, Default)]
pub(super) struct State {
    steps: VecDeque<Step>,
    chunks: Vec<(Stream, Bytes)>,
    written: Vec<u8>,
    /// How much input the steps so far have waited for.
    expected: usize,
    exit: Option<Exit>,
    signals: Vec<SignalName>,
    size: Option<TerminalSize>,
    input_is_closed: bool,
}

impl State {
    fn new(script: Script) -> Self {
        let mut state = Self { steps: script.steps.into(), ..Self::default() };
        state.go_on();
        state
    }

    /// Does what the script says up to the next input that is missing.
    fn go_on(&mut self) {
        while self.exit.is_none() {
            match self.steps.front() {
                Some(Step::Input(len)) if self.written.len() < self.expected + len => return,
                None => return,
                Some(_) => {}
            }
            match self.steps.pop_front() {
                Some(Step::Output(stream, bytes)) => self.chunks.push((stream, bytes)),
                Some(Step::Input(len)) => self.expected += len,
                Some(Step::Exit(code)) => self.exit = Some(Exit::new(code)),
                None => {}
            }
        }
    }

    fn end(&mut self, signal: &str, number: i32) {
        if self.exit.is_none() {
            self.exit = Some(Exit { signal: Some(signal.to_owned()), ..Exit::new(128 + number) });
        }
    }

    fn read(&self, after: u64, max_bytes: u64) -> OutputBatch {
        let numbered = self.chunks.iter().zip(1_u64..).filter(|(_, seq)| *seq > after);
        let mut bytes = 0;
        let chunks: Vec<_> = numbered
            .take_while(|((_, chunk), _)| {
                let is_first = bytes == 0;
                bytes += chunk.len() as u64;
                is_first || bytes <= max_bytes
            })
            .map(|((stream, chunk), seq)| TimedChunk::new(seq, *stream, chunk.clone()))
            .collect();
        let is_all = chunks.is_empty();
        // The exit and the close follow the output.
        let ends = if is_all && self.exit.is_some() { 2 } else { 0 };
        let newest = chunks.last().map_or(after.min(self.chunks.len() as u64), |chunk| chunk.seq);
        OutputBatch {
            gap: None,
            chunks,
            last_seq: (newest + ends).max(after),
            exit: self.exit.clone().filter(|_| is_all),
            is_closed: is_all && self.exit.is_some(),
        }
    }
}

impl FakeProcess {
    /// Returns a process with this id.
    ///
    /// See [`FakeProcess`] for an example.
    pub fn new(id: impl Into<String>, script: Script) -> Self {
        Self { id: id.into(), state: Mutex::new(State::new(script)), changed: Notify::new() }
    }

    /// Returns what was written to it so far.
    ///
    /// See [`FakeProcess`] for an example.
    pub fn written(&self) -> Vec<u8> {
        self.lock().written.clone()
    }

    /// Returns the signals that were sent to it.
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> Result<(), remex_client::Error> {
    /// use remex_client::{process::{ExecProcess, SignalName}, testing::{FakeProcess, Script}};
    ///
    /// let process = FakeProcess::new("p", Script::new());
    /// process.signal(SignalName::Usr1).await?;
    /// assert_eq!(process.signals(), [SignalName::Usr1]);
    /// # Ok(()) }
    /// ```
    pub fn signals(&self) -> Vec<SignalName> {
        self.lock().signals.clone()
    }

    /// Returns the size that its terminal was set to.
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> Result<(), remex_client::Error> {
    /// use remex_client::{process::{ExecProcess, TerminalSize}, testing::{FakeProcess, Script}};
    ///
    /// let process = FakeProcess::new("p", Script::new());
    /// process.resize(TerminalSize::new(50, 132)?).await?;
    /// assert_eq!(process.size().unwrap().to_string(), "50x132");
    /// # Ok(()) }
    /// ```
    pub fn size(&self) -> Option<TerminalSize> {
        self.lock().size
    }

    fn change<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let changed = change(&mut self.lock());
        self.changed.notify_waiters();
        changed
    }

    /// Waits until a look at the state gives something.
    async fn when<T>(&self, mut look: impl FnMut(&State) -> Option<T>) -> T {
        loop {
            let changed = self.changed.notified();
            if let Some(found) = look(&self.lock()) {
                return found;
            }
            changed.await;
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ExecProcess for FakeProcess {
    fn id(&self) -> &str {
        &self.id
    }

    fn read(&self, after: u64, max_bytes: u64, wait: Duration) -> ProcessFuture<'_, OutputBatch> {
        Box::pin(async move {
            let ready = self.when(|state| {
                let batch = state.read(after, max_bytes);
                (!batch.chunks.is_empty() || batch.is_closed).then_some(batch)
            });
            Ok(timeout(wait, ready).await.unwrap_or_else(|_| self.lock().read(after, max_bytes)))
        })
    }

    fn write<'a>(&'a self, bytes: &'a [u8]) -> ProcessFuture<'a, ()> {
        Box::pin(async move {
            self.change(|state| {
                if state.exit.is_some() || state.input_is_closed {
                    let message = format!("the input of process `{}` is closed", self.id);
                    return Err(Error::Refused(remex_proto::RpcError::new(ErrorKind::StdinClosed, message)));
                }
                state.written.extend_from_slice(bytes);
                state.go_on();
                Ok(())
            })
        })
    }

    fn close_stdin(&self) -> ProcessFuture<'_, ()> {
        Box::pin(async move {
            self.change(|state| state.input_is_closed = true);
            Ok(())
        })
    }

    fn resize(&self, size: TerminalSize) -> ProcessFuture<'_, ()> {
        Box::pin(async move {
            self.change(|state| state.size = Some(size));
            Ok(())
        })
    }

    fn signal(&self, signal: SignalName) -> ProcessFuture<'_, ()> {
        Box::pin(async move {
            self.change(|state| state.signals.push(signal));
            Ok(())
        })
    }

    fn terminate(&self, _: Duration) -> ProcessFuture<'_, ()> {
        Box::pin(async move {
            self.change(|state| state.end("SIGTERM", 15));
            Ok(())
        })
    }

    fn wait(&self) -> ProcessFuture<'_, Exit> {
        Box::pin(async move { Ok(self.when(|state| state.exit.clone()).await) })
    }
}
