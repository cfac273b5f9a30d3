//! `remex top`: a live view of the processes of one server or several.
//!
//! `state` holds what is shown, `draw` renders it; this module handles keys, ticks and replies.

mod attach;
mod column;
mod draw;
mod keyboard;
mod rates;
mod screen;
mod source;
mod state;
mod tail;
mod work;

use std::{
    ffi::OsString,
    io::{self, IsTerminal as _},
    task::{Context, Poll},
    time::{Duration, Instant},
};

use crossterm::event::{Event, KeyEventKind};
use remex_client::{Client, ConnectionState, process::ProcessRef};
use tokio::{
    task::JoinSet,
    time::{MissedTickBehavior, interval},
};

use self::{
    keyboard::Keyboard,
    screen::{Screen, SignalAction, Signals},
    source::Source,
    state::{Action, Key, Mode, TopState},
    work::{OutputReader, RequestResult},
};
use super::Outcome;
use crate::{
    args::top::{Column, Flags},
    remote::{endpoint::DefaultEndpoint, reconnect},
    render::{
        failure::Failure,
        print::Colour,
        text::{now_ms, plain},
    },
};

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
    let sources = if flags.all_envs {
        source::all().await?
    } else {
        let endpoint = flags.on.endpoint(DefaultEndpoint::RunningUserServer).await?;
        let client = tokio::select! {
            client = endpoint.connect(reconnect::keep_session) => client?,
            code = signals.end() => return Ok(code),
        };
        vec![Source::connected(endpoint, client, flags.on.token_file.as_deref())]
    };
    let top = Top::new(sources, flags.sort);
    let screen = Screen::open()?;
    let (code, clients) = top.show(screen, signals, flags.interval).await?;
    let mut ends = JoinSet::new();
    for client in clients {
        ends.spawn(client.end());
    }
    let _ = tokio::time::timeout(END_TIMEOUT, ends.join_all()).await;
    Ok(code)
}

/// The next step after key events.
enum Next {
    Draw,
    Suspend,
    Attach(Key, String),
    Quit,
}

/// The state of the screen, and the running requests.
struct Top {
    sources: Vec<Source>,
    state: TopState,
    work: JoinSet<RequestResult>,
    reader: Option<OutputReader>,
}

impl Top {
    fn new(sources: Vec<Source>, sort: Column) -> Self {
        let mut state = TopState::new(sources.iter().map(|source| source.name.clone()), sort);
        for (server, source) in state.servers.iter_mut().zip(&sources) {
            server.error = match (&source.endpoint, &source.client) {
                (Err(failure), _) => Some(failure.message()),
                (Ok(_), None) => Some("connecting".to_owned()),
                (Ok(_), Some(_)) => None,
            };
        }
        Self { sources, state, work: JoinSet::new(), reader: None }
    }

    /// Shows the screen until the user quits; returns the exit code.
    async fn show(
        mut self,
        mut screen: Screen,
        mut signals: Signals,
        pause: Duration,
    ) -> Result<(u8, Vec<Client>), Failure> {
        let mut keys = Keyboard::open()?;
        let mut ticks = interval(pause);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let colour = Colour::of_stdout();
        loop {
            let drawn = screen.terminal.draw(|frame| draw::screen(frame, &self.state, now_ms(), colour));
            if drawn.is_err() {
                return Ok((HUNG_UP, self.clients()));
            }
            let changed = tokio::select! {
                action = signals.next() => match action {
                    SignalAction::End(code) => return Ok((code, self.clients())),
                    SignalAction::Stop => screen.suspend(),
                    SignalAction::GoOn => screen.renew(),
                    SignalAction::Redraw => Ok(()),
                },
                event = keys.next() => {
                    // The terminal was closed.
                    let Some(event) = event else { return Ok((HUNG_UP, self.clients())) };
                    // Draw once for all pending key events.
                    match self.on_events(event, &mut keys) {
                        Next::Quit => return Ok((0, self.clients())),
                        Next::Suspend => screen.suspend(),
                        Next::Attach(key, name) => {
                            screen.leave();
                            keys.close().await;
                            self.attach(&key, &name).await;
                            signals.forget_keys()?;
                            keys = Keyboard::open()?;
                            screen.enter()
                        }
                        Next::Draw => Ok(()),
                    }
                }
                _ = ticks.tick() => { self.refresh_all(); Ok(()) }
                server = changed(&mut self.sources) => { self.on_connection_state(server); Ok(()) }
                Some(done) = self.work.join_next() => match done {
                    Ok(done) => { self.on_result(done); Ok(()) }
                    Err(error) if error.is_cancelled() => Ok(()),
                    Err(_) => return Err(Failure::new("the live view failed internally", "report this as a defect")),
                },
            };
            if changed.is_err() {
                return Ok((HUNG_UP, self.clients()));
            }
            self.read();
        }
    }

    /// Handles a key event and all pending ones.
    fn on_events(&mut self, first: Event, keys: &mut Keyboard) -> Next {
        let mut event = first;
        loop {
            match self.on_event(&event) {
                Next::Draw => {}
                other => return other,
            }
            match keys.pending() {
                Some(next) => event = next,
                None => return Next::Draw,
            }
        }
    }

    /// Handles a key event.
    fn on_event(&mut self, event: &Event) -> Next {
        let Event::Key(key) = event else { return Next::Draw };
        if key.kind == KeyEventKind::Release {
            return Next::Draw;
        }
        match self.state.press(*key) {
            Action::Quit => return Next::Quit,
            Action::Suspend => return Next::Suspend,
            Action::Attach(key, name) => return Next::Attach(key, name),
            Action::Signal(key, name, signal) => {
                self.act(&key, |process| work::signal(process, name, signal));
            }
            Action::KillTree(key, name) => self.act(&key, |process| work::kill(process, name)),
            Action::Nothing => {}
        }
        Next::Draw
    }

    /// Starts a request about a process.
    fn act<F: Future<Output = RequestResult> + Send + 'static>(
        &mut self,
        key: &Key,
        action: impl FnOnce(ProcessRef) -> F,
    ) {
        match &self.sources[key.server].client {
            Some(client) => drop(self.work.spawn(action(key.process_ref(client)))),
            None => self.state.message = Some("not connected".to_owned()),
        }
    }

    /// Hands the terminal to a process until the user detaches from it.
    async fn attach(&mut self, key: &Key, name: &str) {
        let mut args: Vec<OsString> = vec!["attach".into()];
        args.extend(self.sources[key.server].selection.iter().cloned());
        args.extend(["--".into(), name.into()]);
        let name = plain(name);
        self.state.message = Some(match attach::run(args).await {
            Ok(status) if status.success() => format!("back from {name}"),
            Ok(status) => format!("`remex attach` to {name} ended ({status})"),
            Err(error) => format!("cannot attach to {name}: {error}"),
        });
        self.refresh_all();
    }

    /// Starts to list the processes of all servers.
    fn refresh_all(&mut self) {
        if let Some(reader) = &mut self.reader {
            reader.is_due = true;
        }
        for server in 0..self.sources.len() {
            self.refresh(server);
        }
    }

    /// Starts to list processes, or to reconnect, unless already in progress.
    fn refresh(&mut self, server: usize) {
        let source = &mut self.sources[server];
        let Ok(endpoint) = &source.endpoint else { return };
        if std::mem::replace(&mut source.is_busy, true) {
            return;
        }
        match &source.client {
            Some(client) => self.work.spawn(work::list(server, client.clone())),
            None => self.work.spawn(work::connect(server, endpoint.clone())),
        };
    }

    /// Starts to read the output of the selected process: at every tick, or continuously while it is followed.
    fn read(&mut self) {
        let Some(key) = self.state.watched() else {
            self.reader = None;
            return;
        };
        let Some(client) = &self.sources[key.server].client else { return };
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
            RequestResult::Listed(server, listed) => {
                self.sources[server].is_busy = false;
                match listed {
                    Ok(rows) => {
                        self.state.servers[server].error = None;
                        self.state.update(server, rows, Instant::now());
                    }
                    Err(failure) => self.fail(server, &failure),
                }
            }
            RequestResult::Connected(server, connected) => {
                let source = &mut self.sources[server];
                source.is_busy = false;
                match connected {
                    Ok(client) => {
                        source.set_client(client);
                        self.state.servers[server].error = None;
                        self.refresh(server);
                    }
                    Err(failure) => self.fail(server, &failure),
                }
            }
            RequestResult::Read(key, read) => {
                if let Some(reader) = self.reader.as_mut().filter(|reader| reader.key == key) {
                    reader.on_read(read, &mut self.state.tail);
                }
            }
            RequestResult::Acted(message) => {
                self.state.message = Some(message);
                self.refresh_all();
            }
        }
    }

    fn on_connection_state(&mut self, server: usize) {
        let source = &mut self.sources[server];
        let error = &mut self.state.servers[server].error;
        match source.client.as_ref().map(Client::connection_state) {
            Some(ConnectionState::Connected) => *error = None,
            Some(ConnectionState::Reconnecting { .. }) => {
                *error = Some("connection lost; reconnecting".to_owned());
            }
            Some(ConnectionState::Lost(loss)) => {
                source.disconnect();
                let loss = remex_client::Error::from(loss);
                self.fail(server, &Failure::from(loss));
            }
            _ => {}
        }
    }

    fn fail(&mut self, server: usize, failure: &Failure) {
        let source = &mut self.sources[server];
        let what = if source.was_connected { "connection lost; retrying" } else { "not connected; retrying" };
        self.state.servers[server].error = Some(format!("{what}: {}", failure.message()));
    }

    fn clients(self) -> Vec<Client> {
        self.sources.into_iter().filter_map(|source| source.client).collect()
    }
}

/// Waits for a change of the connection of a server, and returns its index.
async fn changed(sources: &mut [Source]) -> usize {
    let mut waiting: Vec<_> = sources.iter_mut().map(|source| Box::pin(source.changed())).collect();
    let changed = |context: &mut Context<'_>| {
        let server = waiting.iter_mut().position(|change| change.as_mut().poll(context).is_ready());
        server.map_or(Poll::Pending, Poll::Ready)
    };
    std::future::poll_fn(changed).await
}
