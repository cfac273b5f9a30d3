//! A process shown here: its output on our streams, our input and signals on its way, until it ends or we leave.
//!
//! Start at [`Console`].

mod output;
mod remote;

use std::{io::IsTerminal as _, time::Duration};

use remex_client::{Client, Condition, Error, process::Event};
use remex_proto::process::{ExitCause, SignalName, TerminateMode};
use tokio::{
    signal::unix::{Signal, SignalKind, signal},
    sync::{mpsc, watch},
    task::JoinHandle,
};

pub(crate) use self::remote::Remote;
use self::{output::Output, remote::Feed};
use crate::{
    escape::{self, Escape, Key, Typing},
    failure::Failure,
    input::Input,
    terminal::{self, Raw},
};

/// How long the end of a process is waited for when it is asked to end because we are.
const GRACE: Duration = Duration::from_secs(5);

/// How long a kill may take before we go without knowing.
const FORCE: Duration = Duration::from_secs(3);

/// How the process is shown.
#[derive(Debug)]
pub(crate) struct Console {
    pub(crate) remote: Remote,
    /// Whether it has a terminal, which ours then follows.
    pub(crate) terminal: bool,
    /// Whether our standard input is its own.
    pub(crate) forward: bool,
    /// Why it cannot be left running, if it cannot.
    pub(crate) stay: Option<String>,
    pub(crate) when_ended: WhenEnded,
    pub(crate) interrupts: Interrupts,
}

/// What Ctrl-C means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Interrupts {
    /// It is for the process, and a second one kills it.
    Pass,
    /// We go.
    Leave,
}

/// What becomes of the process when a signal ends us, or our terminal goes away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WhenEnded {
    /// It ends, too, with everything it has started.
    End,
    /// It runs on.
    Leave,
}

/// How it went.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    /// The process ended; the exit code as a shell has it.
    Exited(u8),
    /// We left, and it runs on.
    Detached,
    /// A signal ended us, and the process was asked to end.
    Signalled(u8),
    /// Nobody reads our output any more.
    Deaf,
}

/// What the loop waits for.
enum Turn {
    Event(Result<Option<Event>, Error>),
    Interrupt,
    Quit,
    Ended(u8),
    Resized,
    Order(Key),
    Condition,
    Deaf,
}

/// The signals that a person or the system sends us.
struct Signals {
    interrupt: Signal,
    quit: Signal,
    terminate: Signal,
    hangup: Signal,
    window: Signal,
}

impl Console {
    /// Shows it until it ends or we leave.
    pub(crate) async fn show(self) -> Result<Ending, Failure> {
        let raw = if self.terminal && self.forward { Raw::enter()? } else { None };
        let signals = Signals::listen()?;
        let (orders, keys) = mpsc::channel(1);
        let keyboard = match self.forward {
            true => Some(self.keyboard(orders)?),
            false => None,
        };
        let ending = Box::pin(self.watch(signals, keys, raw.is_some())).await;
        // Who leaves a process keeps its input open: dropped, it would be closed.
        if let Some(keyboard) = keyboard.filter(|_| !matches!(ending, Ok(Ending::Detached))) {
            keyboard.abort();
        }
        if raw.is_some() && !matches!(ending, Ok(Ending::Exited(_))) {
            Raw::undo();
        }
        drop(raw);
        ending
    }

    async fn watch(
        mut self,
        mut signals: Signals,
        mut keys: mpsc::Receiver<Key>,
        raw: bool,
    ) -> Result<Ending, Failure> {
        let client = self.remote.client().clone();
        let mut conditions = client.conditions();
        let mut output = Output::open()?;
        let (mut interrupts, mut listens) = (0, self.forward);
        loop {
            let turn = tokio::select! {
                biased;
                turn = signals.next(raw) => turn,
                key = keys.recv(), if listens => match key {
                    Some(key) => Turn::Order(key),
                    None => { listens = false; continue }
                },
                _ = conditions.changed() => Turn::Condition,
                () = output.broken() => Turn::Deaf,
                event = self.remote.next(&output) => Turn::Event(event),
            };
            match turn {
                Turn::Event(Ok(Some(Event::Output(chunk)))) => output.write(chunk.stream, chunk.bytes),
                Turn::Event(Ok(Some(Event::Gap(gap)))) => say(raw, &gone(gap.bytes)),
                Turn::Event(Ok(Some(Event::Exited(exit)))) => {
                    output.finish(&mut signals.interrupt).await;
                    return Ok(Ending::Exited(code(exit.code, exit.cause)));
                }
                Turn::Event(Ok(Some(Event::Closed(_)) | None)) => {
                    return Err(Failure::new(
                        "the process is gone, and how it ended is not known",
                        "see `remex ps --all`",
                    ));
                }
                Turn::Event(Err(error)) => return Err(error.into()),
                Turn::Interrupt | Turn::Quit if self.interrupts == Interrupts::Leave => {
                    return Ok(Ending::Detached);
                }
                Turn::Interrupt => {
                    interrupts += 1;
                    if let Some(ending) = self.interrupt(interrupts, raw).await {
                        return Ok(ending);
                    }
                }
                Turn::Quit => self.remote.pass(SignalName::Quit),
                Turn::Ended(code) => return self.end(code).await,
                Turn::Resized => self.remote.resize(terminal::size()),
                Turn::Order(Key::Detach) => match &self.stay {
                    None => return Ok(Ending::Detached),
                    Some(why) => say(raw, why),
                },
                Turn::Order(Key::Kill) => self.remote.kill(TerminateMode::Force),
                Turn::Order(Key::Help) => say(raw, escape::HELP),
                Turn::Order(Key::Bytes(_)) => {}
                Turn::Condition => tell(raw, &conditions),
                Turn::Deaf => {
                    let _ = tokio::time::timeout(FORCE, self.remote.killed(TerminateMode::Force)).await;
                    return Ok(Ending::Deaf);
                }
            }
        }
    }

    /// Passes Ctrl-C on; the second one forces.
    async fn interrupt(&self, times: u32, raw: bool) -> Option<Ending> {
        if times == 1 {
            if matches!(self.remote.client().condition(), Condition::Recovering { .. }) {
                say(raw, "there is no connection now; Ctrl-C once more gives up");
            }
            self.remote.pass(SignalName::Int);
            return None;
        }
        let killed = tokio::time::timeout(FORCE, self.remote.killed(TerminateMode::Force)).await;
        // Once it is known to be gone, how it ended arrives; otherwise nobody can tell any more.
        if matches!(killed, Ok(Ok(()))) && times == 2 { None } else { Some(Ending::Signalled(130)) }
    }

    /// Ends the process because we are to end.
    async fn end(&self, code: u8) -> Result<Ending, Failure> {
        if self.when_ended == WhenEnded::Leave {
            return Ok(Ending::Detached);
        }
        let grace = u64::try_from(GRACE.as_millis()).unwrap_or(u64::MAX);
        let mode = TerminateMode::Graceful { timeout_ms: grace };
        let _ = tokio::time::timeout(GRACE + FORCE, self.remote.killed(mode)).await;
        Ok(Ending::Signalled(code))
    }

    /// Sends what is typed, and finds orders in it.
    fn keyboard(&self, orders: mpsc::Sender<Key>) -> Result<JoinHandle<()>, Failure> {
        let input = Input::open().map_err(|error| Failure::io("read standard input", &error))?;
        let feed = self.remote.feed();
        let orders = std::io::stdin().is_terminal().then_some(orders);
        let (terminal, leaves) = (self.terminal, self.stay.is_none());
        Ok(tokio::spawn(async move {
            // Whoever takes no more input is not asked again; how the process ends says the rest.
            let _ = forward(input, feed, Keyboard { orders, leaves, terminal }).await;
        }))
    }
}

/// What our input may mean.
struct Keyboard {
    /// Where orders go; only a person gives them.
    orders: Option<mpsc::Sender<Key>>,
    /// Whether the process can be left running.
    leaves: bool,
    /// Whether it has a terminal.
    terminal: bool,
}

/// Returns when the input has ended or nobody wants it.
async fn forward(mut input: Input, mut feed: Feed, keyboard: Keyboard) -> Result<(), Error> {
    let Keyboard { orders, leaves, terminal } = keyboard;
    let mut escape = Escape::new(if terminal { Typing::Keys } else { Typing::Lines });
    let mut last = b'\n';
    while let Some(Ok(bytes)) = input.next().await {
        last = bytes.last().copied().unwrap_or(last);
        let Some(orders) = &orders else {
            feed.write(&bytes).await?;
            continue;
        };
        for key in escape.take(&bytes) {
            match key {
                Key::Bytes(bytes) => feed.write(&bytes).await?,
                Key::Detach if leaves => {
                    let _ = orders.send(Key::Detach).await;
                    // Nothing more reaches the process, and its input stays open.
                    return std::future::pending().await;
                }
                order => drop(orders.send(order).await),
            }
        }
    }
    if let Some(Key::Bytes(held)) = escape.end() {
        feed.write(&held).await?;
    }
    match (terminal, last) {
        (false, _) => feed.close().await,
        // A terminal is told by a key, which within a line only ends the line.
        (true, b'\n' | b'\r') => feed.write(b"\x04").await,
        (true, _) => feed.write(b"\x04\x04").await,
    }
}

impl Signals {
    fn listen() -> Result<Self, Failure> {
        let of = |kind| signal(kind).map_err(|error| Failure::io("wait for signals", &error));
        Ok(Self {
            interrupt: of(SignalKind::interrupt())?,
            quit: of(SignalKind::quit())?,
            terminate: of(SignalKind::terminate())?,
            hangup: of(SignalKind::hangup())?,
            window: of(SignalKind::window_change())?,
        })
    }

    async fn next(&mut self, raw: bool) -> Turn {
        tokio::select! {
            _ = self.interrupt.recv() => Turn::Interrupt,
            _ = self.quit.recv() => Turn::Quit,
            _ = self.terminate.recv() => Turn::Ended(143),
            _ = self.hangup.recv() => Turn::Ended(129),
            _ = self.window.recv(), if raw => Turn::Resized,
        }
    }
}

/// Returns the exit code as a shell has it, 124 after a timeout.
pub(crate) fn code(code: i32, cause: Option<ExitCause>) -> u8 {
    match cause {
        Some(ExitCause::Timeout | ExitCause::IdleTimeout) => 124,
        _ => u8::try_from(code.clamp(0, 255)).unwrap_or(u8::MAX),
    }
}

/// Says that the connection was lost; that it is back shows by itself.
fn tell(raw: bool, conditions: &watch::Receiver<Condition>) {
    if matches!(*conditions.borrow(), Condition::Recovering { .. }) {
        say(raw, "the connection was lost; waiting for it to come back");
    }
}

fn gone(bytes: Option<u64>) -> String {
    let amount = bytes.map_or_else(|| "some output".to_owned(), |bytes| format!("{bytes} bytes of output"));
    format!("{amount} are gone here: they were dropped before anybody read them")
}

/// Says one quiet line, also on a raw terminal.
#[allow(clippy::print_stderr)] // A person reads it.
pub(crate) fn say(raw: bool, text: &str) {
    if raw {
        eprint!("\r\nremex: {text}\r\n");
    } else {
        eprintln!("remex: {text}");
    }
}

impl Remote {
    pub(crate) fn client(&self) -> &Client {
        match self {
            Self::Started { process, .. } => process.client(),
            Self::Followed { followed, .. } => &followed.client,
        }
    }
}
