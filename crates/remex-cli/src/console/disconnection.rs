//! The display and the keys while the connection to a shown process is lost.
//!
//! It never draws over a full-screen program without asking that to redraw. Start at [`Disconnection`].

mod login;

use std::time::{Duration, Instant};

use remex_client::{Client, ConnectionState, Error, process::ProcessRef};
use tokio::{
    sync::watch,
    task::JoinHandle,
    time::{Interval, MissedTickBehavior, interval},
};

use self::login::Login;
use super::{
    input::Gate,
    modes::{Modes, Screen},
    redraw,
    status::{self, CursorAt, StatusLine, say},
    terminal::{self, ForegroundState, RawTerminal},
};
use crate::{
    remote::reconnect::{Absence, reason, remedy},
    render::text::span,
};

/// How often the status line is brought up to date.
const STATUS_INTERVAL: Duration = Duration::from_secs(1);

/// Printed for an interactive login while a shell has the terminal.
const IN_BACKGROUND: &str =
    "this command is in the background; bring it to the foreground, as with `fg`, to log in";

/// How long a note stays on the alternate screen before the program is asked to redraw.
const NOTE_TIME: Duration = Duration::from_secs(4);

/// The connection to a shown process.
#[derive(Debug)]
pub(super) struct Disconnection<'a> {
    client: Client,
    states: watch::Receiver<ConnectionState>,
    /// The number of reported disconnects.
    disconnects: u64,
    process: ProcessRef,
    absence: Absence,
    /// The terminal in raw mode; the process has a terminal of its own then, which can be asked to redraw.
    raw: Option<&'a RawTerminal>,
    status: Option<StatusLine>,
    lost: Option<Lost>,
    login: Login<'a>,
    /// Keeps the keyboard from reading what is typed into a login.
    keyboard: Option<Gate>,
    redraw: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Lost {
    since: Instant,
    /// Whether Ctrl-C was pressed.
    is_interrupted: bool,
    /// The last hint for the user.
    remedy: Option<String>,
    ticks: Interval,
}

/// An event that a [`Disconnection`] waits for.
#[derive(Debug)]
pub(super) enum Change {
    State,
    Tick,
    /// A note has been on the alternate screen for long enough.
    NoteOver,
    /// The user wants to log in again.
    Retry,
    /// The terminal is gone.
    Eof,
}

impl<'a> Disconnection<'a> {
    pub(super) fn new(
        client: &Client,
        process: ProcessRef,
        absence: Absence,
        raw: Option<&'a RawTerminal>,
        keyboard: Option<Gate>,
    ) -> Self {
        Self {
            client: client.clone(),
            states: client.connection_states(),
            disconnects: client.disconnects(),
            process,
            absence,
            raw,
            status: StatusLine::new(raw.is_some()),
            lost: None,
            login: Login::None,
            keyboard,
            redraw: None,
        }
    }

    /// Waits for the next change. Cancel-safe.
    pub(super) async fn changed(&mut self) -> Change {
        let ticks = async {
            match &mut self.lost {
                Some(lost) => drop(lost.ticks.tick().await),
                None => std::future::pending().await,
            }
        };
        let note = async {
            match status::painted().filter(|_| self.raw.is_some()) {
                Some(painted) => tokio::time::sleep_until((painted + NOTE_TIME).into()).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            Ok(()) = self.states.changed() => Change::State,
            change = self.login.answered() => change,
            () = ticks => Change::Tick,
            () = note => Change::NoteOver,
        }
    }

    /// Handles a change.
    pub(super) fn on_change(&mut self, change: &Change, modes: &mut Modes, at: CursorAt) {
        match (change, self.client.connection_state()) {
            (Change::Retry, ConnectionState::Reconnecting { attempts, .. }) => {
                self.login.ask(attempts);
                self.client.permit_prompt();
            }
            (Change::NoteOver, ConnectionState::Connected) => self.ask_to_redraw(),
            // The status line is drawn again and again.
            (Change::NoteOver, _) => status::on_redraw(),
            (_, ConnectionState::Reconnecting { since, cause, attempts, .. }) => {
                if self.lost.is_none() {
                    self.on_lost(since.into(), &cause);
                }
                self.on_failed(&cause, attempts, modes);
                self.draw(&cause, modes, at);
            }
            (_, ConnectionState::Connected) => self.on_connected(modes),
            // The session is lost, which fails the wait for the process as well.
            _ => self.take_terminal_back(modes),
        }
    }

    fn on_lost(&mut self, since: Instant, cause: &Error) {
        self.disconnects = self.client.disconnects();
        let mut ticks = interval(STATUS_INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        ticks.reset();
        self.lost = Some(Lost { since, is_interrupted: false, remedy: None, ticks });
        if self.status_line().is_none() {
            say(self.raw.is_some(), &self.absence.notice(cause));
        }
    }

    /// Returns the status line, unless a shell has the terminal.
    fn status_line(&self) -> Option<&StatusLine> {
        self.status.as_ref().filter(|_| terminal::foreground_state() != ForegroundState::Background)
    }

    /// Handles a failed attempt to reconnect: where a login prompts, the terminal is lent to it.
    fn on_failed(&mut self, cause: &Error, attempts: u32, modes: &mut Modes) {
        let Some(lost) = &mut self.lost else { return };
        let name = &self.absence.name;
        match &self.login {
            Login::Asked { attempts: before, .. } if attempts == *before => return,
            Login::Asked { .. } => {
                say(false, &format!("cannot log in: {}", reason(cause)));
                say(false, &format!("press Enter to try again; Ctrl-C leaves `{name}`"));
                self.login.wait();
                return;
            }
            Login::Waiting { .. } => return,
            Login::None => {}
        }
        let prompts = matches!(cause, Error::PromptRefused { .. });
        if prompts && terminal::is_foreground() {
            if let Some(status) = &self.status {
                status.erase();
            }
            self.login = Login::lend(self.raw, self.keyboard.as_ref(), modes, attempts);
            status::follow(modes);
            say(
                false,
                &format!(
                    "connection lost {} ago; log in again to go on with `{name}`, Ctrl-C leaves it",
                    span(lost.since.elapsed())
                ),
            );
            self.client.permit_prompt();
            return;
        }
        let waits = prompts && terminal::foreground_state() == ForegroundState::Background;
        let remedy = if waits { Some(IN_BACKGROUND.to_owned()) } else { remedy(cause) };
        if let Some(remedy) = remedy
            && lost.remedy.as_ref() != Some(&remedy)
        {
            say(self.raw.is_some(), &format!("cannot reconnect: {}; {remedy}", reason(cause)));
            lost.remedy = Some(remedy);
        }
    }

    fn on_connected(&mut self, modes: &mut Modes) {
        let raw = self.raw.is_some();
        self.take_terminal_back(modes);
        let away = match self.lost.take() {
            Some(lost) => lost.since.elapsed(),
            // It was too short to be seen.
            None if self.client.disconnects() > self.disconnects => {
                if self.status.is_none() {
                    say(raw, "connection lost; reconnecting");
                }
                Duration::ZERO
            }
            None => return,
        };
        self.disconnects = self.client.disconnects();
        say(raw, &format!("reconnected after {}", span(away)));
        self.ask_to_redraw();
    }

    /// Makes the process redraw its terminal, if it has one that is shown here.
    fn ask_to_redraw(&mut self) {
        status::on_redraw();
        let is_busy = self.redraw.as_ref().is_some_and(|redraw| !redraw.is_finished());
        if self.raw.is_some() && !is_busy {
            self.redraw = Some(redraw::start(self.process.clone()));
        }
    }

    fn draw(&self, cause: &Error, modes: &Modes, at: CursorAt) {
        if let (Some(status), Some(lost), Login::None) = (self.status_line(), &self.lost, &self.login) {
            let away = lost.since.elapsed();
            let is_covered = lost.is_interrupted && modes.screen() == Screen::Other;
            // On the main screen, the notice after Ctrl-C stays on its own line.
            let text =
                if is_covered { self.absence.interrupted(away) } else { self.absence.status(away, cause) };
            status.draw(at, &text);
        }
    }

    /// Makes room for output of the process that arrived before the disconnect.
    pub(super) fn before_output(&self) {
        if let Some(status) = self.status.as_ref().filter(|_| self.lost.is_some()) {
            status.erase();
        }
    }

    /// Returns whether the connection is lost.
    pub(super) fn is_lost(&self) -> bool {
        matches!(self.client.connection_state(), ConnectionState::Reconnecting { .. })
    }

    /// Handles Ctrl-C without a connection: the first one explains the second one, which detaches.
    ///
    /// Returns how long the connection has been lost if the user detaches.
    pub(super) fn interrupt(&mut self) -> Option<Duration> {
        let is_login = !matches!(self.login, Login::None);
        let away = self.lost.as_ref().map_or(Duration::ZERO, |lost| lost.since.elapsed());
        match &mut self.lost {
            Some(lost) if !is_login && !lost.is_interrupted => {
                lost.is_interrupted = true;
                say(self.raw.is_some(), &self.absence.interrupted(away));
                None
            }
            // The state changed a moment ago, and was not reported yet.
            None => None,
            Some(_) => Some(away),
        }
    }

    fn take_terminal_back(&mut self, modes: &mut Modes) {
        if let Some(status) = &self.status {
            status.erase();
        }
        self.login.end(modes);
        status::follow(modes);
    }

    /// Waits for a redraw; the terminal is this program's again.
    pub(super) async fn finish(mut self, modes: &mut Modes) {
        let left = self.lost.is_some();
        if let Some(status) = &self.status {
            status.erase();
        }
        if left {
            // The screen of the program is not shown again.
            self.login.forget();
        } else {
            self.login.end(modes);
        }
        if let Some(redraw) = self.redraw.take().filter(|_| !self.is_lost()) {
            redraw::finish(redraw).await;
        }
    }
}
