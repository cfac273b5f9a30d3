//! Shows a process: prints its output, and forwards input and signals, until it exits or is detached.
//!
//! Start at [`Console`].

use std::{
    io::IsTerminal as _,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use remex_client::process::{Exit, ExitCause, SignalName, Termination};
use remex_client::{Client, ConnectionState, Error, process::Event};
use rustix::process::{getpid, kill_process};
use tokio::{
    signal::unix::{Signal, SignalKind, signal},
    sync::mpsc,
    task::JoinHandle,
    time::Instant as Now,
};

use super::{
    disconnection::{Change, Disconnection},
    end::{EndNotices, EndedBy, code},
    keyboard::{Keyboard, forward},
    modes::Modes,
    output::{Broken, Output, gap_notice},
    presses::{DOUBLE_PRESS_TIME, Press, Presses},
    process::ShownProcess,
    redraw,
    status::{self, CursorAt, say},
    stopping::{Due, Grace, SignalMeaning, Stopping},
};
use crate::{
    console::{
        escape::{Character, Key},
        input::{Gate, Input},
        interrupt::SignalListener,
        terminal::{self, EscapeKeys, EscapeModes, Keys, LocalTerminal, RawTerminal},
    },
    remote::{
        endpoint::{Endpoint, EndpointKind},
        reconnect::{self, Absence},
    },
    render::failure::Failure,
};

/// How long to wait for the reply to a kill.
pub(super) const KILL_TIMEOUT: Duration = Duration::from_secs(2);

/// Printed when a process does not end and the server does not respond.
const NO_ANSWER: &str = "the server does not answer; the command may keep running until its session ends";

/// The prompt after the first Ctrl-C.
const QUESTION: &str = "d and Enter detaches and leaves it running, i and Enter interrupts it, and so does another Ctrl-C; \
                        `--ctrl-c` makes the choice for next time";

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
    /// The notices about some of its ends.
    pub(crate) end_notices: EndNotices,
    /// How long it may take to end after SIGTERM or SIGHUP to this program, or after its timeout.
    pub(crate) grace: Grace,
    /// The escape character.
    pub(crate) escape: Character,
    /// The kind of its server: the exit of the user's own server is detected sooner.
    pub(crate) endpoint: EndpointKind,
    /// The texts for the time without a connection.
    pub(crate) absence: Absence,
    /// A redraw in progress.
    pub(crate) redraw: Option<JoinHandle<()>>,
}

/// The effect of Ctrl-C.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Interrupts {
    /// It interrupts the process, and a second one soon after kills it.
    Pass,
    /// The first one asks whether to detach or to interrupt; a further one interrupts.
    Ask,
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
    /// The user detached during a disconnect, after this time; the process keeps running while its session lasts.
    Left { away: Duration },
    /// This program has ended the process, which may not have reset the terminal; the exit code as in a shell.
    Stopped(u8),
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
    Key(Key),
    Connection(Change),
    Gone(Failure),
    OutputClosed(Broken),
    Due(Due),
}

/// Whether output can still be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Writes {
    Yes,
    /// The terminal is gone.
    No,
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
    pub(crate) async fn show(mut self) -> Result<Ending, Failure> {
        let raw = match (self.terminal, self.forward) {
            (true, true) => RawTerminal::enter(Keys::All)?,
            // In read-only mode, Ctrl-C still detaches.
            (true, false) if self.interrupts == Interrupts::Leave => RawTerminal::enter(Keys::ButSignals)?,
            _ => None,
        };
        let mut modes = Modes::default();
        let signals = Signals::listen(raw.is_some())?;
        let (orders, keys) = mpsc::channel(1);
        let client = self.process.client().clone();
        let redraw = self.redraw.take();
        let is_cooked = raw.is_none() && self.forward && std::io::stdin().is_terminal();
        let escape_keys = is_cooked.then(|| EscapeKeys::enter(self.escape)).flatten();
        let escape_modes = escape_keys.as_ref().map(EscapeKeys::modes);
        let question = Arc::new(AtomicBool::new(false));
        let (keyboard, gate) = self
            .forward
            .then(|| self.keyboard(orders, escape_modes, Arc::clone(&question)))
            .transpose()?
            .unzip();
        let mut link =
            Disconnection::new(&client, self.process.handle(), self.absence.clone(), raw.as_ref(), gate);
        let local = LocalTerminal { raw: raw.as_ref(), escape_keys: escape_keys.as_ref() };
        let ending = Box::pin(self.watch(signals, keys, local, question, (&mut link, &mut modes))).await;
        link.finish(&mut modes).await;
        if let Some(redraw) = redraw.filter(|_| client.connection_state() == ConnectionState::Connected) {
            redraw::finish(redraw).await;
        }
        // After detaching, the input must stay open: dropping the writer would close it.
        if let Some(keyboard) = keyboard.filter(|_| !matches!(ending, Ok(Ending::Detached))) {
            keyboard.abort();
        }
        if raw.is_some() && !matches!(ending, Ok(Ending::Exited(_))) {
            RawTerminal::undo(&modes);
        }
        drop((raw, escape_keys));
        ending
    }

    async fn watch(
        mut self,
        mut signals: Signals,
        mut keys: mpsc::Receiver<Key>,
        local: LocalTerminal<'_>,
        question: Arc<AtomicBool>,
        (link, modes): (&mut Disconnection<'_>, &mut Modes),
    ) -> Result<Ending, Failure> {
        let raw = local.raw.is_some();
        let client = self.process.client().clone();
        let mut server_gone = std::pin::pin!(Endpoint::server_gone(self.endpoint, &client));
        let mut output = Output::open()?;
        let (mut presses, mut listens) = (Presses::default(), self.forward);
        let (mut stopping, mut writes) = (Stopping::new(self.grace), Writes::Yes);
        let mut cursor = CursorAt::LineStart;
        loop {
            let turn = tokio::select! {
                biased;
                turn = signals.next(raw) => turn,
                key = keys.recv(), if listens => match key {
                    Some(key) => ConsoleEvent::Key(key),
                    None => { listens = false; continue }
                },
                change = link.changed() => ConsoleEvent::Connection(change),
                failure = &mut server_gone => ConsoleEvent::Gone(failure),
                broken = output.broken(), if writes == Writes::Yes => ConsoleEvent::OutputClosed(broken),
                due = stopping.next() => ConsoleEvent::Due(due),
                event = self.process.next(&output), if !stopping.is_closed() => ConsoleEvent::Event(event),
            };
            match turn {
                ConsoleEvent::Event(Ok(Some(Event::Output(chunk)))) => {
                    modes.follow(&chunk.bytes);
                    status::follow(modes);
                    link.before_output();
                    cursor =
                        if chunk.bytes.ends_with(b"\n") { CursorAt::LineStart } else { CursorAt::Within };
                    output.write(chunk.stream, chunk.bytes);
                }
                ConsoleEvent::Event(Ok(Some(Event::Gap(gap)))) => say(raw, &gap_notice(gap.bytes, gap.cause)),
                ConsoleEvent::Event(Ok(Some(Event::Exited { exit, .. }))) => {
                    let is_stopped = stopping.is_under_way()
                        || (exit.cause == Some(ExitCause::Timeout) && !self.grace.time.is_zero());
                    if is_stopped && !presses.killed && self.when_ended == WhenEnded::End {
                        // Its descendants may be cleaning up.
                        stopping.on_exit(exit, Now::now());
                        continue;
                    }
                    let ended_by = if presses.killed { EndedBy::ThisProgram } else { EndedBy::Another };
                    let output = (&mut output, writes);
                    return self.finish(&exit, ended_by, output, &mut signals, raw.then_some(modes)).await;
                }
                ConsoleEvent::Event(Ok(Some(Event::Closed(_)))) if stopping.has_exited() => {
                    stopping.on_closed(tokio::spawn(self.process.tree_gone()));
                }
                // A newer server may have other kinds of events.
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
                ConsoleEvent::Interrupt if stopping.is_under_way() => {
                    if let Some(ending) = self.cut_short(&mut stopping) {
                        return Ok(ending);
                    }
                }
                ConsoleEvent::Interrupt | ConsoleEvent::Key(Key::Interrupt) if link.is_lost() => {
                    if let Some(away) = link.interrupt() {
                        return Ok(Ending::Left { away });
                    }
                    if !raw {
                        // It arrives once the connection is re-established.
                        self.process.pass(SignalName::Int);
                    }
                }
                ConsoleEvent::Interrupt if self.interrupts == Interrupts::Ask => {
                    self.interrupts = Interrupts::Pass;
                    question.store(true, Ordering::Relaxed);
                    say(raw, QUESTION);
                }
                ConsoleEvent::Interrupt => {
                    question.store(false, Ordering::Relaxed);
                    let press = presses.press(Instant::now());
                    if let Some(ending) = self.interrupt(press, raw).await {
                        return Ok(ending);
                    }
                }
                ConsoleEvent::Quit => self.process.pass(SignalName::Quit),
                ConsoleEvent::Ended(code) => {
                    if let Some(ending) = self.stop(code, &mut stopping).await {
                        return Ok(ending);
                    }
                }
                ConsoleEvent::Resized => self.process.resize(terminal::size()),
                ConsoleEvent::Continued => {
                    local.again();
                    if raw {
                        self.process.resize(terminal::size());
                    }
                }
                ConsoleEvent::Stop => self.suspend().await,
                ConsoleEvent::Key(Key::Detach) => match &self.detach_refusal {
                    None => return Ok(Ending::Detached),
                    Some(why) => say(raw, why),
                },
                ConsoleEvent::Key(Key::Kill) => {
                    presses.killed = true;
                    if self.is_disconnected() {
                        say(raw, "not connected; it is killed when the connection comes back");
                    }
                    tokio::spawn(self.process.killed(Termination::Kill));
                }
                ConsoleEvent::Key(Key::HangUp) => {
                    if let Some(ending) = self.stop(129, &mut stopping).await {
                        return Ok(ending);
                    }
                }
                ConsoleEvent::Key(Key::Help) => say(raw, &self.escape.help()),
                ConsoleEvent::Key(Key::Bytes(answer)) => match answer.first() {
                    Some(b'd' | b'D') => return Ok(Ending::Detached),
                    Some(b'i' | b'I') => {
                        say(raw, "interrupted");
                        self.process.pass(SignalName::Int);
                    }
                    _ => say(raw, "neither detached nor interrupted"),
                },
                // The connection has just been re-established.
                ConsoleEvent::Key(Key::Interrupt) => self.process.pass(SignalName::Int),
                ConsoleEvent::Connection(Change::Eof) => {
                    if let Some(ending) = self.stop(129, &mut stopping).await {
                        return Ok(ending);
                    }
                }
                ConsoleEvent::Connection(change) => link.on_change(&change, modes, cursor),
                ConsoleEvent::OutputClosed(_) if terminal::is_gone() => {
                    writes = Writes::No;
                    if let Some(ending) = self.stop(129, &mut stopping).await {
                        return Ok(ending);
                    }
                }
                ConsoleEvent::OutputClosed(broken) => {
                    if self.when_ended == WhenEnded::End {
                        let _ =
                            tokio::time::timeout(KILL_TIMEOUT, self.process.killed(Termination::Kill)).await;
                    }
                    return broken.ending();
                }
                ConsoleEvent::Due(Due::Nothing) => {}
                ConsoleEvent::Due(Due::Tell(notice)) => say(raw, &notice),
                ConsoleEvent::Due(Due::Kill(notice)) => {
                    say(raw, &notice);
                    tokio::spawn(self.process.killed(Termination::Kill));
                }
                ConsoleEvent::Due(Due::GiveUp(code)) => {
                    say(raw, NO_ANSWER);
                    return Ok(Ending::Stopped(code));
                }
                ConsoleEvent::Due(Due::Finish) => {
                    if let Some(exit) = stopping.take_exit() {
                        let output = (&mut output, writes);
                        let (by, modes) = (EndedBy::ThisProgram, raw.then_some(modes));
                        return self.finish(&exit, by, output, &mut signals, modes).await;
                    }
                }
            }
        }
    }

    /// Waits until all output is written, and prints the notices about the end.
    async fn finish(
        &self,
        exit: &Exit,
        ended_by: EndedBy,
        (output, writes): (&mut Output, Writes),
        signals: &mut Signals,
        raw: Option<&mut Modes>,
    ) -> Result<Ending, Failure> {
        let broken = output.finish(&mut signals.interrupt).await;
        // Not before: they would be in the middle of pending output.
        let notices = self.end_notices.of(exit, ended_by);
        let is_raw = raw.is_some();
        if let Some(modes) = raw.filter(|_| !notices.is_empty()) {
            // The alternate screen of a program that did not leave it would hide them.
            RawTerminal::undo(modes);
            *modes = Modes::default();
            status::follow(modes);
        }
        for notice in notices {
            say(is_raw, &notice);
        }
        let code = code(exit.code, exit.cause);
        match broken.filter(|_| writes == Writes::Yes) {
            None if ended_by == EndedBy::ThisProgram => Ok(Ending::Stopped(code)),
            None => Ok(Ending::Exited(code)),
            Some(broken) => broken.ending(),
        }
    }

    /// Interrupts or kills the process after Ctrl-C.
    async fn interrupt(&self, press: Press, raw: bool) -> Option<Ending> {
        if press == Press::Interrupt {
            let seconds = DOUBLE_PRESS_TIME.as_secs();
            say(
                raw,
                &format!(
                    "interrupted; press Ctrl-C again within {seconds} s to kill it and everything it started"
                ),
            );
            self.process.pass(SignalName::Int);
            return None;
        }
        let killed = tokio::time::timeout(KILL_TIMEOUT, self.process.killed(Termination::Kill)).await;
        // If the kill succeeds, the exit event follows; otherwise the exit status stays unknown.
        if matches!(killed, Ok(Ok(()))) && press == Press::Kill {
            return None;
        }
        say(raw, NO_ANSWER);
        Some(Ending::Stopped(130))
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

    fn is_disconnected(&self) -> bool {
        matches!(self.process.client().connection_state(), ConnectionState::Reconnecting { .. })
    }

    /// Waits a moment for a connection, and returns whether there is one.
    async fn is_connected_soon(&self) -> bool {
        let mut states = self.process.client().connection_states();
        let connected = states.wait_for(|state| *state == ConnectionState::Connected);
        matches!(tokio::time::timeout(self.grace.time.min(KILL_TIMEOUT), connected).await, Ok(Ok(_)))
    }

    /// Passes on the signal that is to end this program; returns how the console ends, if it does so at once.
    async fn stop(&self, code: u8, stopping: &mut Stopping) -> Option<Ending> {
        if self.when_ended == WhenEnded::Leave {
            return Some(Ending::Detached);
        }
        if self.grace.time.is_zero() {
            if !self.is_disconnected() {
                let ended = self.process.killed(Termination::Graceful(Duration::ZERO));
                let _ = tokio::time::timeout(KILL_TIMEOUT, ended).await;
            }
            return Some(Ending::Stopped(code));
        }
        match stopping.on_signal(code, Now::now()) {
            SignalMeaning::Same => None,
            SignalMeaning::Cut => self.cut_short(stopping),
            // It cannot be passed on.
            SignalMeaning::Pass if !self.is_connected_soon().await => Some(Ending::Stopped(code)),
            SignalMeaning::Pass => {
                match code {
                    129 => self.process.pass(SignalName::Hup),
                    _ => {
                        drop(tokio::spawn(self.process.killed(Termination::Graceful(self.grace.time))));
                        // Interactive shells ignore SIGTERM.
                        if self.terminal {
                            self.process.pass(SignalName::Hup);
                        }
                    }
                }
                None
            }
        }
    }

    /// Kills a process that was asked to end before; returns how the console ends, if it does so at once.
    fn cut_short(&self, stopping: &mut Stopping) -> Option<Ending> {
        if stopping.has_exited() {
            // The rest ends with the session.
            stopping.on_closed(tokio::spawn(std::future::ready(())));
            return None;
        }
        let code = stopping.on_kill(Now::now());
        if self.is_disconnected() {
            return Some(Ending::Stopped(code));
        }
        tokio::spawn(self.process.killed(Termination::Kill));
        None
    }

    /// Forwards input, and handles escape sequences in it.
    fn keyboard(
        &self,
        orders: mpsc::Sender<Key>,
        modes: Option<EscapeModes>,
        question: Arc<AtomicBool>,
    ) -> Result<(JoinHandle<()>, Gate), Failure> {
        let input = Input::open()?;
        let gate = input.gate();
        let sink = self.process.input();
        let orders = std::io::stdin().is_terminal().then_some(orders);
        let (terminal, leaves, character) = (self.terminal, self.detach_refusal.is_none(), self.escape);
        let client = self.process.client().clone();
        let forwarding = tokio::spawn(async move {
            // Stop forwarding when the input is closed; the exit status explains why.
            let keyboard = Keyboard { orders, leaves, terminal, character, modes, question, client };
            let _ = forward(input, sink, keyboard).await;
        });
        Ok((forwarding, gate))
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
            _ = self.resumed.recv() => ConsoleEvent::Continued,
        }
    }
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

impl ShownProcess {
    pub(crate) fn client(&self) -> &Client {
        match self {
            Self::Started { process, .. } => process.client(),
            Self::Observed { process, .. } => process.client(),
        }
    }
}
