//! A process that follows a script, behind the trait [`ExecProcess`].

use std::{
    collections::VecDeque,
    sync::{Mutex, MutexGuard},
    time::Duration,
};

use bytes::Bytes;
use remex_base::lock;
use remex_proto::RpcError;
use tokio::{sync::Notify, time::timeout};

use super::{Script, Step};
use crate::{
    Error, ErrorKind,
    api::process::{
        ExecProcess, Exit, ExitCause, OutputBatch, ProcessFuture, SignalName, Stream, Subscription,
        TerminalSize, TimedChunk,
    },
};

/// A process that follows a [`Script`].
///
/// Its standard input is a pipe. It has no signal handlers: [`ExecProcess::terminate`], and every signal whose default
/// action ends a process, end it at once with the code and the signal that a process on Linux has then.
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
/// assert!(process.wait().await?.success());
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

/// The standard input of a fake process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum InputState {
    /// An open pipe.
    #[default]
    Piped,
    /// A terminal, which is never closed.
    Terminal,
    /// A pipe that was closed.
    Closed,
    /// The command was started without input.
    Missing,
}

#[derive(Debug, Default)]
struct State {
    steps: VecDeque<Step>,
    chunks: Vec<(Stream, Bytes)>,
    written: Vec<u8>,
    /// How much input the steps so far have waited for; expected <= written.len()
    expected: usize,
    exit: Option<Exit>,
    signals: Vec<SignalName>,
    size: Option<TerminalSize>,
    input: InputState,
}

impl State {
    fn new(script: Script, input: InputState) -> Self {
        let mut state = Self { steps: script.steps.into(), input, ..Self::default() };
        state.advance();
        state
    }

    /// Does what the script says up to the next input that is missing.
    fn advance(&mut self) {
        while self.exit.is_none() {
            match self.steps.pop_front() {
                None => return,
                Some(Step::Output(stream, bytes)) => self.chunks.push((stream, bytes)),
                Some(Step::Exit(code)) => self.exit(code),
                Some(Step::Input(text)) if self.written.len() - self.expected >= text.len() => {
                    self.expected += text.len();
                }
                Some(Step::Input(text)) => match self.input {
                    InputState::Piped | InputState::Terminal => {
                        self.steps.push_front(Step::Input(text));
                        return;
                    }
                    InputState::Closed | InputState::Missing => self.fail(&text),
                },
            }
        }
    }

    /// Exits because input that the script expects can no longer arrive, and says so.
    fn fail(&mut self, expected: &[u8]) {
        let shown = |bytes| String::from_utf8_lossy(bytes).escape_debug().to_string();
        let reason = match (self.input, &self.written[self.expected..]) {
            (InputState::Missing, _) => {
                "the command was started without input; start it with `Stdio::Piped` or on a terminal"
                    .to_owned()
            }
            (_, []) => "the input was closed".to_owned(),
            (_, unread) => format!("the input was closed after `{}`", shown(unread)),
        };
        let message = format!("the script expected input `{}`, but {reason}\n", shown(expected));
        self.chunks.push((Stream::Stderr, message.into()));
        self.exit(1);
    }

    fn exit(&mut self, code: i32) {
        self.exit = Some(Exit { cause: Some(ExitCause::Exit), ..Exit::new(code) });
    }

    /// Ends the process by a signal, if that is its default action and the process still runs.
    fn end(&mut self, signal: SignalName, cause: ExitCause) {
        if let Some((number, name)) = fatal(signal)
            && self.exit.is_none()
        {
            self.exit =
                Some(Exit { signal: Some(name.to_owned()), cause: Some(cause), ..Exit::new(128 + number) });
        }
    }

    /// Returns the events after a sequence number, as a server does: the batch never ends after the newest event, even if
    /// `after` is greater.
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
            last_seq: newest + ends,
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
        Self::with_input(id, script, InputState::Piped)
    }

    pub(super) fn with_input(id: impl Into<String>, script: Script, input: InputState) -> Self {
        Self { id: id.into(), state: Mutex::new(State::new(script, input)), changed: Notify::new() }
    }

    /// Returns what was written to it so far.
    ///
    /// See [`FakeProcess`] for an example.
    pub fn written(&self) -> Vec<u8> {
        self.lock().written.clone()
    }

    /// Returns the signals that were sent to it with [`ExecProcess::signal`], including those that ended it.
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> Result<(), remex_client::Error> {
    /// use remex_client::{process::{ExecProcess, SignalName}, testing::{FakeProcess, Script}};
    ///
    /// let process = FakeProcess::new("p", Script::new());
    /// process.signal(SignalName::Winch).await?;
    /// process.signal(SignalName::Int).await?;
    /// assert_eq!(process.signals(), [SignalName::Winch, SignalName::Int]);
    /// assert_eq!(process.wait().await?.signal.as_deref(), Some("SIGINT"));
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

    /// Ends it with SIGKILL.
    pub(super) fn kill(&self, cause: ExitCause) {
        self.change(|state| state.end(SignalName::Kill, cause));
    }

    pub(super) fn is_running(&self) -> bool {
        self.lock().exit.is_none()
    }

    /// Returns how many chunks of output it has produced.
    pub(super) fn chunk_count(&self) -> usize {
        self.lock().chunks.len()
    }

    /// Waits until it has produced more than this many chunks of output.
    pub(super) async fn output_after(&self, chunk_count: usize) {
        self.when(|state| (state.chunks.len() > chunk_count).then_some(())).await;
    }

    /// Reads as a server does; waits until there are chunks, or the end.
    pub(super) async fn read_log(&self, after: u64, max_bytes: u64, wait: Duration) -> OutputBatch {
        let ready = self.when(|state| {
            let batch = state.read(after, max_bytes);
            (!batch.chunks.is_empty() || batch.is_closed).then_some(batch)
        });
        timeout(wait, ready).await.unwrap_or_else(|_| self.lock().read(after, max_bytes))
    }

    fn change<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let changed = change(&mut self.lock());
        self.changed.notify_waiters();
        changed
    }

    /// Waits until a function of the state returns a value.
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
        lock(&self.state)
    }
}

impl ExecProcess for FakeProcess {
    fn id(&self) -> &str {
        &self.id
    }

    fn subscribe(&self, after: u64) -> Subscription<'_> {
        Subscription::polling(self, after)
    }

    fn read(&self, after: u64, max_bytes: u64, wait: Duration) -> ProcessFuture<'_, OutputBatch> {
        Box::pin(async move {
            let batch = self.read_log(after, max_bytes, wait).await;
            Ok(OutputBatch { last_seq: batch.last_seq.max(after), ..batch })
        })
    }

    fn write<'a>(&'a self, bytes: &'a [u8]) -> ProcessFuture<'a, ()> {
        Box::pin(async move {
            self.change(|state| {
                let is_closed = matches!(state.input, InputState::Closed | InputState::Missing);
                if state.exit.is_some() || is_closed {
                    let message = format!("the input of process `{}` is closed", self.id);
                    return Err(Error::Refused(RpcError::new(ErrorKind::StdinClosed, message)));
                }
                state.written.extend_from_slice(bytes);
                state.advance();
                Ok(())
            })
        })
    }

    fn close_stdin(&self) -> ProcessFuture<'_, ()> {
        Box::pin(async move {
            self.change(|state| match state.input {
                InputState::Terminal => Err(no_end_of_input(&self.id)),
                InputState::Closed | InputState::Missing => Ok(()),
                InputState::Piped => {
                    state.input = InputState::Closed;
                    state.advance();
                    Ok(())
                }
            })
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
            self.change(|state| {
                state.signals.push(signal);
                state.end(signal, ExitCause::Signal);
            });
            Ok(())
        })
    }

    fn terminate(&self, _: Duration) -> ProcessFuture<'_, ()> {
        Box::pin(async move {
            self.change(|state| state.end(SignalName::Term, ExitCause::Terminated));
            Ok(())
        })
    }

    fn wait(&self) -> ProcessFuture<'_, Exit> {
        Box::pin(async move { Ok(self.when(|state| state.exit.clone()).await) })
    }
}

fn no_end_of_input(id: &str) -> Error {
    let message = format!("process `{id}` runs on a terminal, which has no end of input");
    let hint = "write its end-of-file character (usually 0x04) instead";
    Error::Refused(RpcError::new(ErrorKind::NotSupported, message).with_hint(hint))
}

/// Returns the number and the name that a signal has on Linux, if its default action ends a process.
fn fatal(signal: SignalName) -> Option<(i32, &'static str)> {
    let number = match signal {
        SignalName::Hup => 1,
        SignalName::Int => 2,
        SignalName::Quit => 3,
        SignalName::Ill => 4,
        SignalName::Trap => 5,
        SignalName::Abrt => 6,
        SignalName::Bus => 7,
        SignalName::Fpe => 8,
        SignalName::Kill => 9,
        SignalName::Usr1 => 10,
        SignalName::Segv => 11,
        SignalName::Usr2 => 12,
        SignalName::Pipe => 13,
        SignalName::Alrm => 14,
        SignalName::Term => 15,
        SignalName::Xcpu => 24,
        SignalName::Xfsz => 25,
        SignalName::Vtalrm => 26,
        SignalName::Prof => 27,
        // Two names of one signal; servers report the first.
        SignalName::Io | SignalName::Poll => return Some((29, SignalName::Io.name())),
        SignalName::Sys => 31,
        SignalName::Chld
        | SignalName::Cont
        | SignalName::Stop
        | SignalName::Tstp
        | SignalName::Ttin
        | SignalName::Ttou
        | SignalName::Urg
        | SignalName::Winch => return None,
    };
    Some((number, signal.name()))
}
