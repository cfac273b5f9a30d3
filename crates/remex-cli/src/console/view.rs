//! A process shown here: its output on our streams, our input and signals on its way, until it ends or we leave.
//!
//! Start at [`Console`].

use std::{
    io::{IsTerminal as _, Write as _},
    time::{Duration, Instant},
};

use remex_client::process::{ExitCause, SignalName, Termination};
use remex_client::{Client, ConnectionState, Error, process::Event};
use rustix::process::{getpid, kill_process};
use tokio::{
    signal::unix::{Signal, SignalKind, signal},
    sync::mpsc,
    task::JoinHandle,
};

use super::{
    output::{Broken, Output},
    process::{InputSink, ShownProcess},
};
use crate::{
    console::{
        escape::{Character, Escape, Key, Typing},
        input::Input,
        interrupt::SignalListener,
        terminal::{self, Keys, Raw},
    },
    remote::{
        endpoint::{Endpoint, EndpointKind},
        reconnect::Notices,
    },
    render::{failure::Failure, text::amount},
};

/// How long the end of a process is waited for when it is asked to end because we are.
const GRACE: Duration = Duration::from_secs(5);

/// How long a kill may take before we go without knowing.
const FORCE: Duration = Duration::from_secs(2);

/// How soon a second Ctrl-C has to follow the first to kill the process.
const AGAIN: Duration = Duration::from_secs(2);

/// What a program tells a terminal to show its other screen.
const OTHER_SCREEN: &[u8] = b"\x1b[?1049h";

/// What it tells it to go back.
const FIRST_SCREEN: &[u8] = b"\x1b[?1049l";

/// How the process is shown.
#[derive(Debug)]
pub(crate) struct Console {
    pub(crate) process: ShownProcess,
    /// Whether it has a terminal, which ours then follows.
    pub(crate) terminal: bool,
    /// Whether our standard input is its own.
    pub(crate) forward: bool,
    /// Why it cannot be left running, if it cannot.
    pub(crate) stay: Option<String>,
    pub(crate) when_ended: WhenEnded,
    pub(crate) interrupts: Interrupts,
    /// What begins an order to us among the keys.
    pub(crate) escape: Character,
    /// What kind of place it runs in: the user's own server is known to be gone before others are.
    pub(crate) endpoint: EndpointKind,
}

/// What Ctrl-C means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Interrupts {
    /// It is for the process, and a second one soon after kills it.
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
    OutputClosed,
}

/// What the loop waits for.
enum ConsoleEvent {
    Event(Result<Option<Event>, Error>),
    Interrupt,
    Quit,
    Ended(u8),
    Resized,
    Continued,
    Stop,
    Order(Key),
    Condition,
    Gone(Failure),
    OutputClosed(Broken),
}

/// The signals that a person or the system sends us.
struct Signals {
    interrupt: SignalListener,
    quit: SignalListener,
    terminate: SignalListener,
    hangup: SignalListener,
    window: Signal,
    resumed: Signal,
    /// Ctrl-Z; on a raw terminal it is a key like any other, and the signal keeps its usual action.
    stop: Option<SignalListener>,
}

impl Console {
    /// Shows it until it ends or we leave.
    pub(crate) async fn show(self) -> Result<Ending, Failure> {
        let raw = match (self.terminal, self.forward) {
            (true, true) => Raw::enter(Keys::All)?,
            // Who only watches still leaves with Ctrl-C.
            (true, false) if self.interrupts == Interrupts::Leave => Raw::enter(Keys::ButSignals)?,
            _ => None,
        };
        let mut screen = Screen::First;
        let signals = Signals::listen(raw.is_some())?;
        let (orders, keys) = mpsc::channel(1);
        let keyboard = self.forward.then(|| self.keyboard(orders)).transpose()?;
        let ending = Box::pin(self.watch(signals, keys, raw.as_ref(), &mut screen)).await;
        // Who leaves a process keeps its input open: dropped, it would be closed.
        if let Some(keyboard) = keyboard.filter(|_| !matches!(ending, Ok(Ending::Detached))) {
            keyboard.abort();
        }
        if raw.is_some() && !matches!(ending, Ok(Ending::Exited(_))) {
            Raw::undo(screen);
        }
        drop(raw);
        ending
    }

    async fn watch(
        mut self,
        mut signals: Signals,
        mut keys: mpsc::Receiver<Key>,
        terminal: Option<&Raw>,
        screen: &mut Screen,
    ) -> Result<Ending, Failure> {
        let raw = terminal.is_some();
        let client = self.process.client().clone();
        let (mut conditions, mut notices) = (client.connection_states(), Notices::of(&client));
        let mut server_gone = std::pin::pin!(Endpoint::server_gone(self.endpoint, &client));
        let mut output = Output::open()?;
        let (mut presses, mut listens) = (Presses::default(), self.forward);
        loop {
            let turn = tokio::select! {
                biased;
                turn = signals.next(raw) => turn,
                key = keys.recv(), if listens => match key {
                    Some(key) => ConsoleEvent::Order(key),
                    None => { listens = false; continue }
                },
                _ = conditions.changed() => ConsoleEvent::Condition,
                failure = &mut server_gone => ConsoleEvent::Gone(failure),
                broken = output.broken() => ConsoleEvent::OutputClosed(broken),
                event = self.process.next(&output) => ConsoleEvent::Event(event),
            };
            match turn {
                ConsoleEvent::Event(Ok(Some(Event::Output(chunk)))) => {
                    screen.note(&chunk.bytes);
                    output.write(chunk.stream, chunk.bytes);
                }
                ConsoleEvent::Event(Ok(Some(Event::Gap(gap)))) => say(raw, &gone(gap.bytes)),
                ConsoleEvent::Event(Ok(Some(Event::Exited(exit)))) => {
                    if exit.cause == Some(ExitCause::Terminated) && !presses.killed {
                        say(raw, "the command was ended by its server or by another client");
                    }
                    return match output.finish(&mut signals.interrupt).await {
                        None => Ok(Ending::Exited(code(exit.code, exit.cause))),
                        Some(broken) => broken.ending(),
                    };
                }
                ConsoleEvent::Event(Ok(Some(Event::Closed(_)) | None)) => {
                    return Err(Failure::new(
                        "the process is gone, and its exit code is unknown",
                        "see `remex ps --all`",
                    ));
                }
                ConsoleEvent::Event(Err(error)) => {
                    return Err(Endpoint::explain(self.endpoint, error.into()));
                }
                ConsoleEvent::Gone(failure) => return Err(failure),
                ConsoleEvent::Interrupt | ConsoleEvent::Quit if self.interrupts == Interrupts::Leave => {
                    return Ok(Ending::Detached);
                }
                ConsoleEvent::Interrupt => {
                    let press = presses.press(Instant::now(), self.is_disconnected());
                    if let Some(ending) = self.interrupt(press, raw).await {
                        return Ok(ending);
                    }
                }
                ConsoleEvent::Quit => self.process.pass(SignalName::Quit),
                ConsoleEvent::Ended(code) => return self.end(code).await,
                ConsoleEvent::Resized => self.process.resize(terminal::size()),
                ConsoleEvent::Continued => {
                    // A terminal that goes away continues who was stopped, and cannot be set any more.
                    let _ = terminal.map(Raw::again);
                    self.process.resize(terminal::size());
                }
                ConsoleEvent::Stop => self.suspend().await,
                ConsoleEvent::Order(Key::Detach) => match &self.stay {
                    None => return Ok(Ending::Detached),
                    Some(why) => say(raw, why),
                },
                ConsoleEvent::Order(Key::Kill) => {
                    presses.killed = true;
                    self.warn_if_disconnected(raw);
                    tokio::spawn(self.process.killed(Termination::Kill));
                }
                ConsoleEvent::Order(Key::HangUp) => return self.end(129).await,
                ConsoleEvent::Order(Key::Help) => say(raw, &self.escape.help()),
                ConsoleEvent::Order(Key::Bytes(_)) => {}
                ConsoleEvent::Condition => notices.next(&client).iter().for_each(|notice| say(raw, notice)),
                ConsoleEvent::OutputClosed(_) if terminal::is_gone() => return self.end(129).await,
                ConsoleEvent::OutputClosed(broken) => {
                    if self.when_ended == WhenEnded::End {
                        let _ = tokio::time::timeout(FORCE, self.process.killed(Termination::Kill)).await;
                    }
                    return broken.ending();
                }
            }
        }
    }

    /// Passes Ctrl-C on, or kills.
    async fn interrupt(&self, press: Press, raw: bool) -> Option<Ending> {
        if press == Press::Interrupt {
            if !self.warn_if_disconnected(raw) {
                let seconds = AGAIN.as_secs();
                say(
                    raw,
                    &format!(
                        "interrupted; Ctrl-C again within {seconds} s kills it with everything it started"
                    ),
                );
            }
            self.process.pass(SignalName::Int);
            return None;
        }
        let killed = tokio::time::timeout(FORCE, self.process.killed(Termination::Kill)).await;
        // Once it is known to be gone, how it ended arrives; otherwise nobody can tell any more.
        if matches!(killed, Ok(Ok(()))) && press == Press::Kill {
            return None;
        }
        say(raw, "the server does not answer; the command may keep running until its session ends");
        Some(Ending::Signalled(130))
    }

    /// Stops, as a shell wants it, and goes on when that wants it; what we have started does the same.
    async fn suspend(&self) {
        let both = self.when_ended == WhenEnded::End;
        if both {
            // In its session there is no shell that could wake it from SIGTSTP, so the kernel would ignore that.
            let stopped = tokio::time::timeout(FORCE, self.process.signalled(SignalName::Stop)).await;
            let is_stopped = matches!(stopped, Ok(Ok(())));
            say(
                false,
                if is_stopped {
                    "suspended, and so is the command"
                } else {
                    "suspended; the command runs on"
                },
            );
        } else {
            say(false, "suspended; the process runs on");
        }
        let _ = kill_process(getpid(), rustix::process::Signal::STOP);
        if both {
            self.process.pass(SignalName::Cont);
        }
    }

    /// Says that the process cannot be reached now, and tells whether it had to.
    fn warn_if_disconnected(&self, raw: bool) -> bool {
        let away = self.is_disconnected();
        if away {
            say(raw, "not connected; press Ctrl-C again to give up");
        }
        away
    }

    fn is_disconnected(&self) -> bool {
        matches!(self.process.client().connection_state(), ConnectionState::Reconnecting { .. })
    }

    /// Ends the process because we are to end.
    async fn end(&self, code: u8) -> Result<Ending, Failure> {
        if self.when_ended == WhenEnded::Leave {
            return Ok(Ending::Detached);
        }
        if self.is_disconnected() {
            return Ok(Ending::Signalled(code));
        }
        let ended = self.process.killed(Termination::Graceful(GRACE));
        let _ = tokio::time::timeout(GRACE + FORCE, ended).await;
        Ok(Ending::Signalled(code))
    }

    /// Sends what is typed, and finds orders in it.
    fn keyboard(&self, orders: mpsc::Sender<Key>) -> Result<JoinHandle<()>, Failure> {
        let input = Input::open()?;
        let sink = self.process.input();
        let orders = std::io::stdin().is_terminal().then_some(orders);
        let (terminal, leaves, character) = (self.terminal, self.stay.is_none(), self.escape);
        Ok(tokio::spawn(async move {
            // Whoever takes no more input is not asked again; how the process ends says the rest.
            let _ = forward(input, sink, Keyboard { orders, leaves, terminal, character }).await;
        }))
    }
}

/// What one Ctrl-C means, given those before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Press {
    Interrupt,
    Kill,
    /// It was to be killed before, and still runs.
    GiveUp,
}

/// How often Ctrl-C came, and when.
#[derive(Debug, Default)]
struct Presses {
    /// The last one that only interrupted, and whether there was no connection then.
    last: Option<(Instant, bool)>,
    /// Whether we have killed the process.
    killed: bool,
}

impl Presses {
    fn press(&mut self, now: Instant, away: bool) -> Press {
        if self.killed {
            return Press::GiveUp;
        }
        // Nothing that was sent while there is no connection has interrupted anything yet.
        let again = self
            .last
            .is_some_and(|(at, was_away)| now.saturating_duration_since(at) <= AGAIN || (was_away && away));
        if again {
            self.killed = true;
            return Press::Kill;
        }
        self.last = Some((now, away));
        Press::Interrupt
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
    character: Character,
}

/// Returns when the input has ended or nobody wants it.
async fn forward(mut input: Input, mut sink: InputSink, keyboard: Keyboard) -> Result<(), Error> {
    let Keyboard { orders, leaves, terminal, character } = keyboard;
    let mut escape = Escape::new(character, if terminal { Typing::Keys } else { Typing::Lines });
    let (mut last, mut wanted) = (b'\n', true);
    while let Some(read) = input.next().await {
        let bytes = match read {
            Ok(bytes) => bytes,
            Err(_) if orders.is_some() => break,
            Err(error) => {
                say(false, &format!("cannot read standard input: {error}"));
                break;
            }
        };
        last = bytes.last().copied().unwrap_or(last);
        let Some(orders) = &orders else {
            sink.write(&bytes).await?;
            continue;
        };
        for key in escape.take(&bytes) {
            match key {
                // A process that takes no input can still be left.
                Key::Bytes(bytes) => wanted = wanted && sink.write(&bytes).await.is_ok(),
                Key::Detach if leaves => {
                    // What was typed before is on its way, and arrives unless the process takes nothing.
                    let _ = tokio::time::timeout(FORCE, sink.flush()).await;
                    let _ = orders.send(Key::Detach).await;
                    // Nothing more reaches the process, and its input stays open.
                    return std::future::pending().await;
                }
                order => drop(orders.send(order).await),
            }
        }
    }
    if let Some(orders) = &orders
        && terminal::is_gone()
    {
        // Nobody has typed the end of anything.
        let _ = orders.send(Key::HangUp).await;
        return std::future::pending().await;
    }
    if let Some(Key::Bytes(held)) = escape.end() {
        sink.write(&held).await?;
    }
    match (terminal, last) {
        (false, _) => sink.close().await,
        // A terminal is told by a key, which within a line only ends the line.
        (true, b'\n' | b'\r') => sink.write(b"\x04").await,
        (true, _) => sink.write(b"\x04\x04").await,
    }
}

impl Signals {
    fn listen(raw: bool) -> Result<Self, Failure> {
        let stop = SignalKind::from_raw(rustix::process::Signal::TSTP.as_raw());
        let of = |kind| signal(kind).map_err(|error| Failure::io("wait for signals", &error));
        Ok(Self {
            interrupt: SignalListener::listen(SignalKind::interrupt())?,
            quit: SignalListener::listen(SignalKind::quit())?,
            terminate: SignalListener::listen(SignalKind::terminate())?,
            hangup: SignalListener::listen(SignalKind::hangup())?,
            window: of(SignalKind::window_change())?,
            resumed: of(SignalKind::from_raw(rustix::process::Signal::CONT.as_raw()))?,
            stop: (!raw).then(|| SignalListener::listen(stop)).transpose()?,
        })
    }

    async fn next(&mut self, raw: bool) -> ConsoleEvent {
        let stop = async {
            match &mut self.stop {
                Some(stop) => stop.recv().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = stop => ConsoleEvent::Stop,
            () = self.interrupt.recv() => ConsoleEvent::Interrupt,
            () = self.quit.recv() => ConsoleEvent::Quit,
            () = self.terminate.recv() => ConsoleEvent::Ended(143),
            () = self.hangup.recv() => ConsoleEvent::Ended(129),
            _ = self.window.recv(), if raw => ConsoleEvent::Resized,
            _ = self.resumed.recv(), if raw => ConsoleEvent::Continued,
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

/// Says that output is missing, because it was dropped before anybody read it.
pub(crate) fn gone(bytes: Option<u64>) -> String {
    match bytes {
        Some(bytes) => format!("[{} of older output discarded]", amount(bytes)),
        None => "[some older output discarded]".to_owned(),
    }
}

/// Says one quiet line, also on a raw terminal, if there still is somebody to read it.
pub(crate) fn say(raw: bool, text: &str) {
    let line = if raw { format!("\r\nremex: {text}\r\n") } else { format!("remex: {text}\n") };
    let _ = std::io::stderr().write_all(line.as_bytes());
}

impl Broken {
    fn ending(self) -> Result<Ending, Failure> {
        match self {
            Self::NobodyReads => Ok(Ending::OutputClosed),
            Self::Failed(reason) => Err(Failure::new(
                format!("cannot write the output of the command: {reason}"),
                "make room, or send the output somewhere else",
            )),
        }
    }
}

/// Which of its two screens a program has a terminal show.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Screen {
    First,
    Other,
}

impl Screen {
    /// Takes note of what is shown; an order that is split between two pieces is missed.
    fn note(&mut self, bytes: &[u8]) {
        let last = |order| memchr::memmem::rfind(bytes, order);
        match (last(OTHER_SCREEN), last(FIRST_SCREEN)) {
            (None, None) => {}
            (other, first) => *self = if other > first { Self::Other } else { Self::First },
        }
    }
}

impl ShownProcess {
    pub(crate) fn client(&self) -> &Client {
        match self {
            Self::Started { process, .. } => process.client(),
            Self::Observed { process, .. } => process.client(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_second_ctrl_c_soon_after_the_first_kills() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let mut presses = Presses::default();
        assert_eq!(presses.press(at(0), false), Press::Interrupt);
        assert_eq!(presses.press(at(2_001), false), Press::Interrupt);
        assert_eq!(presses.press(at(4_001), false), Press::Kill);
        assert_eq!(presses.press(at(60_000), false), Press::GiveUp);
        // Without a connection the second one gives up, however late.
        let mut presses = Presses::default();
        assert_eq!(presses.press(at(0), true), Press::Interrupt);
        assert_eq!(presses.press(at(60_000), true), Press::Kill);
    }
}
