//! `remex top`: a live screen of the processes of one place.
//!
//! What is shown is in `state`, how in `draw`; here keys, ticks and answers come together.

mod draw;
mod rates;
mod state;
mod tail;
mod work;

use std::{
    io::{self, IsTerminal as _},
    mem::ManuallyDrop,
    time::{Duration, Instant},
};

use crossterm::{
    event::{self, Event, KeyEventKind},
    execute,
    terminal::{EnterAlternateScreen, enable_raw_mode},
};
use ratatui::{DefaultTerminal, layout::Rect};
use remex_client::{Client, ConnectionState};
use tokio::{
    signal::unix::{Signal, SignalKind, signal},
    sync::{mpsc, watch},
    task::JoinSet,
    time::{MissedTickBehavior, interval},
};

use self::{
    state::{Action, Mode, State},
    work::{Done, Reading},
};
use super::Outcome;
use crate::{
    args::top::Flags,
    remote::{
        endpoint::{DefaultEndpoint, Endpoint},
        reconnect,
    },
    render::{failure::Failure, print::Colour, text::now_ms},
};

/// Keys that are typed faster than they are shown.
const KEYS: usize = 64;

/// The exit code when the terminal has gone.
const GONE: u8 = 129;

/// How long the server is given to take note of our leaving.
const FAREWELL: Duration = Duration::from_secs(1);

pub(crate) async fn run(flags: &Flags) -> Outcome {
    if !(io::stdin().is_terminal() && io::stdout().is_terminal()) {
        return Err(Failure::usage(
            "cannot show a live screen: standard input and output are not a terminal",
            "use `remex ps`, for programs with `--json`",
        ));
    }
    let mut signals = Signals::listen()?;
    let endpoint = flags.on.endpoint(DefaultEndpoint::RunningUserServer).await?;
    let client = tokio::select! {
        client = endpoint.connect(reconnect::keep_session) => client?,
        code = signals.end() => return Ok(code),
    };
    let top = Top::new(endpoint, client);
    let screen = Screen::open()?;
    let (code, client) = top.show(screen, signals, flags.interval).await?;
    if let Some(client) = client {
        let _ = tokio::time::timeout(FAREWELL, client.end()).await;
    }
    Ok(code)
}

/// The terminal while it is ours; dropped, it is as it was before. A panic brings it back first, then speaks.
struct Screen {
    /// Never dropped by itself: it would complain about a terminal that has gone, to that terminal.
    terminal: ManuallyDrop<DefaultTerminal>,
}

impl Screen {
    fn open() -> Result<Self, Failure> {
        let terminal = ratatui::try_init().map_err(|error| {
            let _ = ratatui::try_restore();
            Failure::io("use the terminal", &error)
        })?;
        Ok(Self { terminal: ManuallyDrop::new(terminal) })
    }

    /// Gives the terminal back.
    fn leave(&mut self) {
        let _ = self.terminal.show_cursor();
        let _ = ratatui::try_restore();
    }

    /// Takes the terminal again, whatever somebody did with it meanwhile.
    fn enter(&mut self) -> io::Result<()> {
        enable_raw_mode()?;
        execute!(io::stdout(), EnterAlternateScreen)?;
        // Unlike `clear` it does not ask the terminal where its cursor is: the keyboard would hear the answer.
        let size = self.terminal.size()?;
        self.terminal.resize(Rect::new(0, 0, size.width, size.height))
    }

    /// Lets the shell have the terminal, until it wants us to go on.
    fn suspend(&mut self) -> io::Result<()> {
        self.leave();
        rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::STOP)?;
        self.enter()
    }

    /// Begins anew on a terminal that others may have changed while we were stopped.
    fn renew(&mut self) -> io::Result<()> {
        self.leave();
        self.enter()
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        self.leave();
    }
}

/// What others want of us.
struct Signals {
    terminate: Signal,
    hang_up: Signal,
    interrupt: Signal,
    quit: Signal,
    stop: Signal,
    go_on: Signal,
}

/// What a signal says.
enum SignalAction {
    /// End with this exit code.
    End(u8),
    Stop,
    GoOn,
}

impl Signals {
    fn listen() -> Result<Self, Failure> {
        let listen = |kind| signal(kind).map_err(|error| Failure::io("listen for signals", &error));
        Ok(Self {
            terminate: listen(SignalKind::terminate())?,
            hang_up: listen(SignalKind::hangup())?,
            interrupt: listen(SignalKind::interrupt())?,
            quit: listen(SignalKind::quit())?,
            stop: listen(SignalKind::from_raw(rustix::process::Signal::TSTP.as_raw()))?,
            go_on: listen(SignalKind::from_raw(rustix::process::Signal::CONT.as_raw()))?,
        })
    }

    async fn next(&mut self) -> SignalAction {
        tokio::select! {
            _ = self.terminate.recv() => SignalAction::End(143),
            _ = self.hang_up.recv() => SignalAction::End(129),
            _ = self.interrupt.recv() => SignalAction::End(130),
            _ = self.quit.recv() => SignalAction::End(131),
            _ = self.stop.recv() => SignalAction::Stop,
            _ = self.go_on.recv() => SignalAction::GoOn,
        }
    }

    /// Waits for one that wants the end, and returns the exit code that it stands for.
    async fn end(&mut self) -> u8 {
        loop {
            if let SignalAction::End(code) = self.next().await {
                return code;
            }
        }
    }
}

/// What is to be done after keys.
enum Next {
    Draw,
    Suspend,
    Quit,
}

/// What is shown, and everything that is under way for it.
struct Top {
    endpoint: Endpoint,
    /// None while there is no connection and no hope that it heals by itself.
    client: Option<Client>,
    conditions: Option<watch::Receiver<ConnectionState>>,
    state: State,
    work: JoinSet<Done>,
    /// Whether a look or a new connection is under way.
    looks: bool,
    reading: Option<Reading>,
}

impl Top {
    fn new(endpoint: Endpoint, client: Client) -> Self {
        let state = State::new(endpoint.name.clone());
        let conditions = Some(client.connection_states());
        Self {
            endpoint,
            client: Some(client),
            conditions,
            state,
            work: JoinSet::new(),
            looks: false,
            reading: None,
        }
    }

    /// Shows the screen until somebody wants it to end; returns the exit code.
    async fn show(
        mut self,
        mut screen: Screen,
        mut signals: Signals,
        pause: Duration,
    ) -> Result<(u8, Option<Client>), Failure> {
        let mut keys = keyboard()?;
        let mut ticks = interval(pause);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let colour = Colour::of_stdout();
        loop {
            let drawn = screen.terminal.draw(|frame| draw::screen(frame, &self.state, now_ms(), colour));
            if drawn.is_err() {
                return Ok((GONE, self.client));
            }
            let changed = tokio::select! {
                action = signals.next() => match action {
                    SignalAction::End(code) => return Ok((code, self.client)),
                    SignalAction::Stop => screen.suspend(),
                    SignalAction::GoOn => screen.renew(),
                },
                event = keys.recv() => {
                    // Without a keyboard there is no terminal.
                    let Some(event) = event else { return Ok((GONE, self.client)) };
                    // What was typed meanwhile is drawn once.
                    match self.take_events(event, &mut keys) {
                        Next::Quit => return Ok((0, self.client)),
                        Next::Suspend => screen.suspend(),
                        Next::Draw => Ok(()),
                    }
                }
                _ = ticks.tick() => { self.look(); Ok(()) }
                () = changed(&mut self.conditions) => { self.take_condition(); Ok(()) }
                Some(done) = self.work.join_next() => match done {
                    Ok(done) => { self.take(done); Ok(()) }
                    Err(error) if error.is_cancelled() => Ok(()),
                    Err(_) => return Err(Failure::new("the screen met a defect", "report it")),
                },
            };
            if changed.is_err() {
                return Ok((GONE, self.client));
            }
            self.read();
        }
    }

    /// Does what a key means, and what those mean that wait behind it.
    fn take_events(&mut self, first: Event, keys: &mut mpsc::Receiver<Event>) -> Next {
        let mut event = first;
        loop {
            match self.take_event(&event) {
                Next::Draw => {}
                other => return other,
            }
            match keys.try_recv() {
                Ok(next) => event = next,
                Err(_) => return Next::Draw,
            }
        }
    }

    /// Does what a key means.
    fn take_event(&mut self, event: &Event) -> Next {
        let Event::Key(key) = event else { return Next::Draw };
        if key.kind == KeyEventKind::Release {
            return Next::Draw;
        }
        match (self.state.press(*key), &self.client) {
            (Action::Quit, _) => return Next::Quit,
            (Action::Suspend, _) => return Next::Suspend,
            (Action::Signal(key, name, signal), Some(client)) => {
                self.work.spawn(work::signal(key.process_ref(client), name, signal));
            }
            (Action::KillTree(key, name), Some(client)) => {
                self.work.spawn(work::kill(key.process_ref(client), name));
            }
            (Action::Signal(..) | Action::KillTree(..), None) => {
                self.state.message = Some("there is no connection".to_owned());
            }
            (Action::Nothing, _) => {}
        }
        Next::Draw
    }

    /// Asks what there is, or for a new connection; once at a time.
    fn look(&mut self) {
        if let Some(reading) = &mut self.reading {
            reading.is_due = true;
        }
        if std::mem::replace(&mut self.looks, true) {
            return;
        }
        match &self.client {
            Some(client) => self.work.spawn(work::look(client.clone())),
            None => self.work.spawn(work::connect(self.endpoint.clone())),
        };
    }

    /// Reads what the selected process says: at every tick, or as it comes while it is followed.
    fn read(&mut self) {
        let Some(client) = &self.client else { return };
        let Some(key) = self.state.watched() else {
            self.reading = None;
            return;
        };
        let follows = self.state.mode == Mode::Follow;
        if self.reading.as_ref().is_none_or(|reading| reading.key != *key) {
            self.reading = Some(Reading::new(key.clone()));
        }
        if let Some(reading) = &mut self.reading {
            let said = self.state.selected().map_or(0, |seen| seen.row.said_bytes());
            reading.go_on(client, follows, said, &mut self.work);
        }
    }

    fn take(&mut self, done: Done) {
        match done {
            Done::Looked(looked) => {
                self.looks = false;
                match looked {
                    Ok(rows) => {
                        self.state.trouble = None;
                        self.state.look(rows, Instant::now());
                    }
                    Err(failure) => self.fail(&failure),
                }
            }
            Done::Connected(connected) => {
                self.looks = false;
                match connected {
                    Ok(client) => {
                        self.conditions = Some(client.connection_states());
                        self.client = Some(client);
                        self.state.trouble = None;
                        self.look();
                    }
                    Err(failure) => self.fail(&failure),
                }
            }
            Done::Read(key, read) => {
                if let Some(reading) = self.reading.as_mut().filter(|reading| reading.key == key) {
                    reading.take(read, &mut self.state.tail);
                }
            }
            Done::Acted(message) => {
                self.state.message = Some(message);
                self.look();
            }
        }
    }

    fn take_condition(&mut self) {
        match self.client.as_ref().map(Client::connection_state) {
            Some(ConnectionState::Connected) => self.state.trouble = None,
            Some(ConnectionState::Reconnecting { .. }) => {
                self.state.trouble = Some("connection lost; waiting for it to come back".to_owned());
            }
            Some(ConnectionState::Lost(loss)) => {
                let loss = remex_client::Error::from(loss);
                self.fail(&Failure::from(loss));
                (self.client, self.conditions) = (None, None);
            }
            None => {}
        }
    }

    fn fail(&mut self, failure: &Failure) {
        self.state.trouble = Some(format!("connection lost; trying again: {}", failure.what()));
    }
}

/// Waits until there is something new about the connection.
async fn changed(conditions: &mut Option<watch::Receiver<ConnectionState>>) {
    match conditions {
        Some(receiver) => {
            if receiver.changed().await.is_err() {
                *conditions = None;
            }
        }
        None => std::future::pending().await,
    }
}

/// Reads keys and sizes in a thread of its own, which ends with the program: reading from a terminal blocks.
fn keyboard() -> Result<mpsc::Receiver<Event>, Failure> {
    let (send, receive) = mpsc::channel(KEYS);
    let read = move || {
        while let Ok(event) = event::read() {
            if send.blocking_send(event).is_err() {
                return;
            }
        }
    };
    std::thread::Builder::new()
        .name("remex-keys".to_owned())
        .spawn(read)
        .map_err(|error| Failure::no_thread("reads the keyboard", &error))?;
    Ok(receive)
}
