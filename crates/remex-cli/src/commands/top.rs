//! `remex top`: a live view of the processes of one server.
//!
//! `state` holds what is shown, `draw` renders it; this module handles keys, ticks and replies.

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
    state::{Action, Mode, TopState},
    work::{OutputReader, RequestResult},
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

/// The number of buffered key events.
const KEYS: usize = 64;

/// The exit code after the terminal was closed (128 + SIGHUP).
const HUNG_UP: u8 = 129;

/// How long ending the session may take.
const END_TIMEOUT: Duration = Duration::from_secs(1);

pub(crate) async fn run(flags: &Flags) -> Outcome {
    if !(io::stdin().is_terminal() && io::stdout().is_terminal()) {
        return Err(Failure::usage("cannot show a live view", "use `remex ps`, in scripts with `--json`")
            .because("standard input and output are not a terminal"));
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
        let _ = tokio::time::timeout(END_TIMEOUT, client.end()).await;
    }
    Ok(code)
}

/// The terminal in raw mode on the alternate screen; restored on drop, and before a panic message.
struct Screen {
    /// Never dropped by itself: it would print errors about a closed terminal to that terminal.
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

    /// Restores the terminal.
    fn leave(&mut self) {
        let _ = self.terminal.show_cursor();
        let _ = ratatui::try_restore();
    }

    /// Sets up the terminal again, whatever other programs did to it meanwhile.
    fn enter(&mut self) -> io::Result<()> {
        enable_raw_mode()?;
        execute!(io::stdout(), EnterAlternateScreen)?;
        // Unlike `clear`, this does not query the cursor position, whose answer would arrive as key events.
        let size = self.terminal.size()?;
        self.terminal.resize(Rect::new(0, 0, size.width, size.height))
    }

    /// Suspends the program until the shell resumes it.
    fn suspend(&mut self) -> io::Result<()> {
        self.leave();
        rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::STOP)?;
        self.enter()
    }

    /// Sets up the terminal again, which other programs may have changed while this one was stopped.
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

/// The handled signals.
struct Signals {
    terminate: Signal,
    hang_up: Signal,
    interrupt: Signal,
    quit: Signal,
    stop: Signal,
    go_on: Signal,
}

/// The reaction to a signal.
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

    /// Waits for a terminating signal, and returns its exit code.
    async fn end(&mut self) -> u8 {
        loop {
            if let SignalAction::End(code) = self.next().await {
                return code;
            }
        }
    }
}

/// What to do after key events.
enum Next {
    Draw,
    Suspend,
    Quit,
}

/// The state of the screen, and the running requests.
struct Top {
    endpoint: Endpoint,
    /// `None` while disconnected, when the client has given up reconnecting.
    client: Option<Client>,
    connection_states: Option<watch::Receiver<ConnectionState>>,
    state: TopState,
    work: JoinSet<RequestResult>,
    /// Whether a listing or a connection attempt is in progress.
    is_busy: bool,
    reader: Option<OutputReader>,
}

impl Top {
    fn new(endpoint: Endpoint, client: Client) -> Self {
        let state = TopState::new(endpoint.name.clone());
        let connection_states = Some(client.connection_states());
        Self {
            endpoint,
            client: Some(client),
            connection_states,
            state,
            work: JoinSet::new(),
            is_busy: false,
            reader: None,
        }
    }

    /// Shows the screen until the user quits; returns the exit code.
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
                return Ok((HUNG_UP, self.client));
            }
            let changed = tokio::select! {
                action = signals.next() => match action {
                    SignalAction::End(code) => return Ok((code, self.client)),
                    SignalAction::Stop => screen.suspend(),
                    SignalAction::GoOn => screen.renew(),
                },
                event = keys.recv() => {
                    // The terminal was closed.
                    let Some(event) = event else { return Ok((HUNG_UP, self.client)) };
                    // Draw once for all pending key events.
                    match self.on_events(event, &mut keys) {
                        Next::Quit => return Ok((0, self.client)),
                        Next::Suspend => screen.suspend(),
                        Next::Draw => Ok(()),
                    }
                }
                _ = ticks.tick() => { self.refresh(); Ok(()) }
                () = changed(&mut self.connection_states) => { self.on_connection_state(); Ok(()) }
                Some(done) = self.work.join_next() => match done {
                    Ok(done) => { self.on_result(done); Ok(()) }
                    Err(error) if error.is_cancelled() => Ok(()),
                    Err(_) => return Err(Failure::new("the live view failed internally", "report this as a defect")),
                },
            };
            if changed.is_err() {
                return Ok((HUNG_UP, self.client));
            }
            self.read();
        }
    }

    /// Handles a key event and all pending ones.
    fn on_events(&mut self, first: Event, keys: &mut mpsc::Receiver<Event>) -> Next {
        let mut event = first;
        loop {
            match self.on_event(&event) {
                Next::Draw => {}
                other => return other,
            }
            match keys.try_recv() {
                Ok(next) => event = next,
                Err(_) => return Next::Draw,
            }
        }
    }

    /// Handles a key event.
    fn on_event(&mut self, event: &Event) -> Next {
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
                self.state.message = Some("not connected".to_owned());
            }
            (Action::Nothing, _) => {}
        }
        Next::Draw
    }

    /// Starts to list processes, or to reconnect, unless already in progress.
    fn refresh(&mut self) {
        if let Some(reader) = &mut self.reader {
            reader.is_due = true;
        }
        if std::mem::replace(&mut self.is_busy, true) {
            return;
        }
        match &self.client {
            Some(client) => self.work.spawn(work::list(client.clone())),
            None => self.work.spawn(work::connect(self.endpoint.clone())),
        };
    }

    /// Starts to read the output of the selected process: at every tick, or continuously while it is followed.
    fn read(&mut self) {
        let Some(client) = &self.client else { return };
        let Some(key) = self.state.watched() else {
            self.reader = None;
            return;
        };
        let follows = self.state.mode == Mode::Follow;
        if self.reader.as_ref().is_none_or(|reader| reader.key != *key) {
            self.reader = Some(OutputReader::new(key.clone()));
        }
        if let Some(reader) = &mut self.reader {
            let said = self.state.selected().map_or(0, |seen| seen.row.output_bytes());
            reader.start_read(client, follows, said, &mut self.work);
        }
    }

    fn on_result(&mut self, done: RequestResult) {
        match done {
            RequestResult::Listed(listed) => {
                self.is_busy = false;
                match listed {
                    Ok(rows) => {
                        self.state.trouble = None;
                        self.state.update(rows, Instant::now());
                    }
                    Err(failure) => self.fail(&failure),
                }
            }
            RequestResult::Connected(connected) => {
                self.is_busy = false;
                match connected {
                    Ok(client) => {
                        self.connection_states = Some(client.connection_states());
                        self.client = Some(client);
                        self.state.trouble = None;
                        self.refresh();
                    }
                    Err(failure) => self.fail(&failure),
                }
            }
            RequestResult::Read(key, read) => {
                if let Some(reader) = self.reader.as_mut().filter(|reader| reader.key == key) {
                    reader.on_read(read, &mut self.state.tail);
                }
            }
            RequestResult::Acted(message) => {
                self.state.message = Some(message);
                self.refresh();
            }
        }
    }

    fn on_connection_state(&mut self) {
        match self.client.as_ref().map(Client::connection_state) {
            Some(ConnectionState::Connected) => self.state.trouble = None,
            Some(ConnectionState::Reconnecting { .. }) => {
                self.state.trouble = Some("connection lost; reconnecting".to_owned());
            }
            Some(ConnectionState::Lost(loss)) => {
                let loss = remex_client::Error::from(loss);
                self.fail(&Failure::from(loss));
                (self.client, self.connection_states) = (None, None);
            }
            _ => {}
        }
    }

    fn fail(&mut self, failure: &Failure) {
        self.state.trouble = Some(format!("connection lost; retrying: {}", failure.message()));
    }
}

/// Waits for a change of the connection state.
async fn changed(connection_states: &mut Option<watch::Receiver<ConnectionState>>) {
    match connection_states {
        Some(receiver) => {
            if receiver.changed().await.is_err() {
                *connection_states = None;
            }
        }
        None => std::future::pending().await,
    }
}

/// Reads key and resize events in a dedicated thread, because reader from a terminal blocks.
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
