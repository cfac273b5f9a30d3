//! Shows a process: prints its output, and forwards input and signals, until it exits or is detached.
//!
//! Start at [`Console`].

use std::{
    io::{IsTerminal as _, Write as _},
    time::{Duration, Instant},
};

use remex_client::process::{DeniedHost, ExitCause, GapCause, SignalName, Termination};
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
        escape::{Character, Escape, InputMode, Key},
        input::Input,
        interrupt::SignalListener,
        terminal::{self, Keys, RawTerminal},
    },
    remote::{
        endpoint::{Endpoint, EndpointKind},
        reconnect::{self, Notices},
    },
    render::{failure::Failure, text::amount},
};

/// How long to wait for a process to exit when a signal ends this program.
const GRACE: Duration = Duration::from_secs(5);

/// How long to wait for the reply to a kill.
const KILL_TIMEOUT: Duration = Duration::from_secs(2);

/// A second Ctrl-C within this time kills the process.
const DOUBLE_PRESS_TIME: Duration = Duration::from_secs(2);

/// The control sequence that enters the alternate screen.
const OTHER_SCREEN: &[u8] = b"\x1b[?1049h";

/// The control sequence that leaves it.
const FIRST_SCREEN: &[u8] = b"\x1b[?1049l";

/// How a process is shown.
#[derive(Debug)]
pub(crate) struct Console {
    pub(crate) process: ShownProcess,
    /// Whether it has a terminal, which then follows the size of the local one.
    pub(crate) terminal: bool,
    /// Whether standard input is forwarded.
    pub(crate) forward: bool,
    /// Why it cannot be detached, if so.
    pub(crate) detach_refusal: Option<String>,
    pub(crate) when_ended: WhenEnded,
    pub(crate) interrupts: Interrupts,
    /// The notice if the timeout of the process ends it.
    pub(crate) timeout_notice: String,
    /// The notice if it used up its CPU time, in case that is limited.
    pub(crate) cpu_notice: Option<String>,
    /// The notice if its sandbox probably made it fail, in case it has one.
    pub(crate) sandbox_notice: Option<String>,
    /// The escape character.
    pub(crate) escape: Character,
    /// The kind of its server: the exit of the user's own server is detected sooner.
    pub(crate) endpoint: EndpointKind,
}

/// The notice for a process whose timeout is unknown.
pub(crate) const TIMED_OUT: &str = "the command was ended by its timeout";

/// The effect of Ctrl-C.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Interrupts {
    /// It interrupts the process, and a second one soon after kills it.
    Pass,
    /// It detaches.
    Leave,
}

/// What happens to the process when a signal ends this program, or the terminal is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WhenEnded {
    /// It is ended with everything it started.
    End,
    /// It keeps running.
    Leave,
}

/// Why the console ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    /// The process exited; the exit code as in a shell.
    Exited(u8),
    /// The user detached, and the process keeps running.
    Detached,
    /// A signal ended this program, and the process was terminated.
    Signalled(u8),
    /// Standard output was closed by its reader.
    OutputClosed,
}

/// An event of the main loop.
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

/// The handled signals.
struct Signals {
    interrupt: SignalListener,
    quit: SignalListener,
    terminate: SignalListener,
    hangup: SignalListener,
    window: Signal,
    resumed: Signal,
    /// Ctrl-Z; on a raw terminal it is an ordinary key, and the signal keeps its default action.
    stop: Option<SignalListener>,
}

impl Console {
    /// Shows the process until it exits or the user detaches.
    pub(crate) async fn show(self) -> Result<Ending, Failure> {
        let raw = match (self.terminal, self.forward) {
            (true, true) => RawTerminal::enter(Keys::All)?,
            // In read-only mode, Ctrl-C still detaches.
            (true, false) if self.interrupts == Interrupts::Leave => RawTerminal::enter(Keys::ButSignals)?,
            _ => None,
        };
        let mut screen = Screen::First;
        let signals = Signals::listen(raw.is_some())?;
        let (orders, keys) = mpsc::channel(1);
        let keyboard = self.forward.then(|| self.keyboard(orders)).transpose()?;
        let ending = Box::pin(self.watch(signals, keys, raw.as_ref(), &mut screen)).await;
        // After detaching, the input must stay open: dropping the writer would close it.
        if let Some(keyboard) = keyboard.filter(|_| !matches!(ending, Ok(Ending::Detached))) {
            keyboard.abort();
        }
        if raw.is_some() && !matches!(ending, Ok(Ending::Exited(_))) {
            RawTerminal::undo(screen);
        }
        drop(raw);
        ending
    }

    async fn watch(
        mut self,
        mut signals: Signals,
        mut keys: mpsc::Receiver<Key>,
        terminal: Option<&RawTerminal>,
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
                ConsoleEvent::Event(Ok(Some(Event::Gap(gap)))) => say(raw, &gap_notice(gap.bytes, gap.cause)),
                ConsoleEvent::Event(Ok(Some(Event::Exited { exit, .. }))) => {
                    if exit.cause == Some(ExitCause::Terminated) && !presses.killed {
                        say(raw, "the command was terminated by its server or by another client");
                    }
                    if exit.cause == Some(ExitCause::Timeout) {
                        say(raw, &self.timeout_notice);
                    }
                    if let Some(notice) = &self.cpu_notice
                        && exit.signal.as_deref() == Some("SIGXCPU")
                    {
                        say(raw, notice);
                    }
                    if let Some(notice) = self.sandbox_notice.as_ref().filter(|_| exit.sandbox_denied) {
                        say(raw, notice);
                    }
                    for notice in denial_notices(&exit.network_denied) {
                        say(raw, &notice);
                    }
                    return match output.finish(&mut signals.interrupt).await {
                        None => Ok(Ending::Exited(code(exit.code, exit.cause))),
                        Some(broken) => broken.ending(),
                    };
                }
                // A newer server may have kinds of events that say nothing about the end.
                ConsoleEvent::Event(Ok(Some(event))) if !matches!(event, Event::Closed(_)) => {}
                ConsoleEvent::Event(Ok(_)) => {
                    return Err(Failure::new(
                        "the process no longer exists, and its exit code is unknown",
                        "see `remex ps --all`",
                    ));
                }
                ConsoleEvent::Event(Err(error)) => {
                    let failure = Endpoint::explain(self.endpoint, error.into());
                    return Err(match self.when_ended {
                        WhenEnded::End => reconnect::explain_end(failure),
                        WhenEnded::Leave => failure,
                    });
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
                    // Closing the terminal also resumes a stopped program; the terminal can no longer be changed then.
                    let _ = terminal.map(RawTerminal::again);
                    self.process.resize(terminal::size());
                }
                ConsoleEvent::Stop => self.suspend().await,
                ConsoleEvent::Order(Key::Detach) => match &self.detach_refusal {
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
                        let _ =
                            tokio::time::timeout(KILL_TIMEOUT, self.process.killed(Termination::Kill)).await;
                    }
                    return broken.ending();
                }
            }
        }
    }

    /// Interrupts or kills the process after Ctrl-C.
    async fn interrupt(&self, press: Press, raw: bool) -> Option<Ending> {
        if press == Press::Interrupt {
            if !self.warn_if_disconnected(raw) {
                let seconds = DOUBLE_PRESS_TIME.as_secs();
                say(
                    raw,
                    &format!(
                        "interrupted; press Ctrl-C again within {seconds} s to kill it and everything it started"
                    ),
                );
            }
            self.process.pass(SignalName::Int);
            return None;
        }
        let killed = tokio::time::timeout(KILL_TIMEOUT, self.process.killed(Termination::Kill)).await;
        // If the kill succeeds, the exit event follows; otherwise the exit status stays unknown.
        if matches!(killed, Ok(Ok(()))) && press == Press::Kill {
            return None;
        }
        say(raw, "the server does not answer; the command may keep running until its session ends");
        Some(Ending::Signalled(130))
    }

    /// Suspends this program and the command, until the shell resumes it.
    async fn suspend(&self) {
        let both = self.when_ended == WhenEnded::End;
        if both {
            // Its process group is orphaned, so the kernel would ignore SIGTSTP.
            let stopped = tokio::time::timeout(KILL_TIMEOUT, self.process.signalled(SignalName::Stop)).await;
            let is_stopped = matches!(stopped, Ok(Ok(())));
            say(
                false,
                if is_stopped {
                    "suspended together with the command"
                } else {
                    "suspended; the command keeps running"
                },
            );
        } else {
            say(false, "suspended; the process keeps running");
        }
        let _ = kill_process(getpid(), rustix::process::Signal::STOP);
        if both {
            self.process.pass(SignalName::Cont);
        }
    }

    /// Prints a notice if disconnected, and returns whether it did.
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

    /// Ends the process because a signal ends this program.
    async fn end(&self, code: u8) -> Result<Ending, Failure> {
        if self.when_ended == WhenEnded::Leave {
            return Ok(Ending::Detached);
        }
        if self.is_disconnected() {
            return Ok(Ending::Signalled(code));
        }
        let ended = self.process.killed(Termination::Graceful(GRACE));
        let _ = tokio::time::timeout(GRACE + KILL_TIMEOUT, ended).await;
        Ok(Ending::Signalled(code))
    }

    /// Forwards input, and handles escape sequences in it.
    fn keyboard(&self, orders: mpsc::Sender<Key>) -> Result<JoinHandle<()>, Failure> {
        let input = Input::open()?;
        let sink = self.process.input();
        let orders = std::io::stdin().is_terminal().then_some(orders);
        let (terminal, leaves, character) = (self.terminal, self.detach_refusal.is_none(), self.escape);
        Ok(tokio::spawn(async move {
            // Stop forwarding when the input is closed; the exit status says the rest.
            let _ = forward(input, sink, Keyboard { orders, leaves, terminal, character }).await;
        }))
    }
}

/// The meaning of a Ctrl-C, given earlier ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Press {
    Interrupt,
    Kill,
    /// A kill was sent before, but the process is still running.
    GiveUp,
}

/// Keeps track of Ctrl-C.
#[derive(Debug, Default)]
struct Presses {
    /// The last one that only interrupted, and whether the client was disconnected then.
    last: Option<(Instant, bool)>,
    /// Whether a kill was sent.
    killed: bool,
}

impl Presses {
    fn press(&mut self, now: Instant, away: bool) -> Press {
        if self.killed {
            return Press::GiveUp;
        }
        // An interrupt sent while disconnected has not reached the process yet.
        let again = self.last.is_some_and(|(at, was_away)| {
            now.saturating_duration_since(at) <= DOUBLE_PRESS_TIME || (was_away && away)
        });
        if again {
            self.killed = true;
            return Press::Kill;
        }
        self.last = Some((now, away));
        Press::Interrupt
    }
}

/// How input is interpreted.
struct Keyboard {
    /// Receives escape sequences; only for input from a terminal.
    orders: Option<mpsc::Sender<Key>>,
    /// Whether the process can be detached.
    leaves: bool,
    /// Whether it has a terminal.
    terminal: bool,
    character: Character,
}

/// Forwards input until it ends or the process closes it.
async fn forward(mut input: Input, mut sink: InputSink, keyboard: Keyboard) -> Result<(), Error> {
    let Keyboard { orders, leaves, terminal, character } = keyboard;
    let mut escape = Escape::new(character, if terminal { InputMode::Keys } else { InputMode::Lines });
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
                // A process that accepts no input can still be detached.
                Key::Bytes(bytes) => wanted = wanted && sink.write(&bytes).await.is_ok(),
                Key::Detach if leaves => {
                    // Earlier input is in flight, and arrives unless the process reads nothing.
                    let _ = tokio::time::timeout(KILL_TIMEOUT, sink.flush()).await;
                    let _ = orders.send(Key::Detach).await;
                    // Stop forwarding, but keep the input open.
                    return std::future::pending().await;
                }
                order => drop(orders.send(order).await),
            }
        }
    }
    if let Some(orders) = &orders
        && terminal::is_gone()
    {
        // The terminal was closed, which is not an end of file for the process.
        let _ = orders.send(Key::HangUp).await;
        return std::future::pending().await;
    }
    if let Some(Key::Bytes(held)) = escape.end() {
        sink.write(&held).await?;
    }
    match (terminal, last) {
        (false, _) => sink.close().await,
        // On a terminal, Ctrl-D signals end of file; within a line it only ends the line.
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

/// Returns the exit code as in a shell; 124 after a timeout.
pub(crate) fn code(code: i32, cause: Option<ExitCause>) -> u8 {
    match cause {
        Some(ExitCause::Timeout | ExitCause::IdleTimeout) => 124,
        _ => u8::try_from(code.clamp(0, 255)).unwrap_or(u8::MAX),
    }
}

/// Formats notices about hosts that the sandbox has refused.
fn denial_notices(denied: &[DeniedHost]) -> Vec<String> {
    let hosts = denied.iter().map(|DeniedHost { host, port, count, .. }| match count {
        // All that are not listed one by one.
        _ if *port == 0 => format!("the sandbox refused more hosts ({count} times)"),
        1 => format!("the sandbox refused {host}:{port}"),
        _ => format!("the sandbox refused {host}:{port} ({count} times)"),
    });
    let mut notices: Vec<_> = hosts.collect();
    if let Some(DeniedHost { host, port, .. }) = denied.first() {
        notices.push(format!(
            "hint: `--net allow={host}:{port}` allows it; private and local addresses need an entry of their own"
        ));
    }
    notices
}

/// Formats a notice about output that cannot be read.
pub(crate) fn gap_notice(bytes: Option<u64>, cause: Option<GapCause>) -> String {
    let amount = bytes.map_or_else(|| "some".to_owned(), |bytes| format!("{} of", amount(bytes)));
    match cause {
        None | Some(GapCause::Evicted) => format!("[{amount} older output discarded]"),
        Some(GapCause::Quota) => format!("[{amount} output dropped: the disk quota was used up]"),
        Some(GapCause::DiskFull) => format!("[{amount} output dropped: the disk was full]"),
        Some(GapCause::Io) => format!("[{amount} output dropped: the disk failed]"),
        Some(GapCause::Damaged) => format!("[{amount} output lost: the log on disk is damaged]"),
        Some(_) => format!("[{amount} output lost]"),
    }
}

/// Prints one line on stderr, also on a raw terminal; ignores errors.
pub(crate) fn say(raw: bool, text: &str) {
    let line = if raw { format!("\r\nremex: {text}\r\n") } else { format!("remex: {text}\n") };
    let _ = std::io::stderr().write_all(line.as_bytes());
}

impl Broken {
    fn ending(self) -> Result<Ending, Failure> {
        match self {
            Self::NobodyReads => Ok(Ending::OutputClosed),
            Self::Failed(reason) => Err(Failure::new(
                "cannot write the output of the command",
                "free some space, or redirect the output elsewhere",
            )
            .because(reason.to_string())),
        }
    }
}

/// Which screen of the terminal is active.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Screen {
    First,
    Other,
}

impl Screen {
    /// Tracks the active screen; misses a sequence that is split between two chunks.
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
