//! The state of the screen, and how keys change it.
//!
//! Pure: listings and keys in, actions out; time is an argument. Start at [`TopState`].

use std::time::Instant;

use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use remex_client::process::SignalName;

use super::{
    rates::{Rate, Rates},
    tail::Tail,
};
use crate::{
    remote::processes::Row,
    render::text::{line, plain},
};

/// The signals to choose from, in display order.
pub(super) const SIGNALS: [SignalName; 9] = [
    SignalName::Term,
    SignalName::Int,
    SignalName::Hup,
    SignalName::Quit,
    SignalName::Kill,
    SignalName::Usr1,
    SignalName::Usr2,
    SignalName::Stop,
    SignalName::Cont,
];

/// Identifies a process independent of its name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Key {
    pub(super) session_id: String,
    pub(super) process_id: String,
}

impl Key {
    pub(super) fn of(row: &Row) -> Self {
        Self { session_id: row.entry.session_id.clone(), process_id: row.entry.process_id.clone() }
    }
}

/// A process in the last listing.
#[derive(Debug)]
pub(super) struct Seen {
    pub(super) row: Row,
    pub(super) rate: Rate,
}

/// The current meaning of keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    List,
    /// The output of the selected process on the whole screen.
    Follow,
    /// A filter is being typed.
    Filter,
    /// A signal is being chosen, by its index in [`SIGNALS`].
    Signal {
        key: Key,
        name: String,
        chosen: usize,
    },
    /// Asks whether to end a tree.
    Kill {
        key: Key,
        name: String,
    },
    Help,
}

/// An action for the caller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Action {
    Nothing,
    Quit,
    /// Suspend the program.
    Suspend,
    Signal(Key, String, SignalName),
    KillTree(Key, String),
}

#[derive(Debug)]
pub(super) struct TopState {
    /// The name of the server.
    pub(super) server: String,
    pub(super) mode: Mode,
    /// The problem with the connection, if any.
    pub(super) trouble: Option<String>,
    /// The result of the last action.
    pub(super) message: Option<String>,
    pub(super) filter: String,
    pub(super) shows_ended: bool,
    /// The last output of the selected process.
    pub(super) tail: Tail,
    rows: Vec<Seen>,
    rates: Rates,
    selected: Option<Key>,
}

impl TopState {
    pub(super) fn new(server: String) -> Self {
        Self {
            server,
            mode: Mode::List,
            trouble: None,
            message: None,
            filter: String::new(),
            shows_ended: false,
            tail: Tail::new(),
            rows: Vec::new(),
            rates: Rates::default(),
            selected: None,
        }
    }

    /// Updates the list of processes.
    pub(super) fn update(&mut self, rows: Vec<Row>, at: Instant) {
        let before = self.index();
        let rates = self.rates.update(&rows, at);
        self.rows = rows.into_iter().zip(rates).map(|(row, rate)| Seen { row, rate }).collect();
        self.keep_selection(before);
    }

    /// Returns the listed processes.
    pub(super) fn listed(&self) -> Vec<&Seen> {
        let filter = self.filter.to_lowercase();
        let matches = |text: &str| text.to_lowercase().contains(&filter);
        let rows = self.rows.iter().filter(|seen| self.shows_ended || seen.row.is_running());
        rows.filter(|seen| matches(&seen.row.name) || matches(&line(&seen.row.entry.argv))).collect()
    }

    /// Returns the number of running and of exited processes.
    pub(super) fn counts(&self) -> (usize, usize) {
        let running = self.rows.iter().filter(|seen| seen.row.is_running()).count();
        (running, self.rows.len() - running)
    }

    /// Returns the index of the selected process.
    pub(super) fn index(&self) -> Option<usize> {
        let selected = self.selected.as_ref()?;
        self.listed().iter().position(|seen| Key::of(&seen.row) == *selected)
    }

    /// Returns the selected process; while its output is followed it need not be listed.
    pub(super) fn selected(&self) -> Option<&Seen> {
        let selected = self.selected.as_ref()?;
        self.rows.iter().find(|seen| Key::of(&seen.row) == *selected)
    }

    /// Returns the process whose output is shown, even if the server has removed it.
    pub(super) fn watched(&self) -> Option<&Key> {
        self.selected.as_ref()
    }

    /// Handles a key.
    pub(super) fn press(&mut self, key: KeyEvent) -> Action {
        if key.modifiers.contains(KeyModifiers::CONTROL) {
            return match key.code {
                KeyCode::Char('c') => Action::Quit,
                KeyCode::Char('z') => Action::Suspend,
                _ => Action::Nothing,
            };
        }
        self.message = None;
        match self.mode.clone() {
            Mode::List => return self.press_in_list(key.code),
            Mode::Follow => self.press_in_output(key.code),
            Mode::Filter => self.press_in_filter(key.code),
            Mode::Help => self.mode = Mode::List,
            Mode::Signal { key: process, name, chosen } => {
                return self.press_in_signals(key.code, process, name, chosen);
            }
            Mode::Kill { key: process, name } => {
                self.mode = Mode::List;
                if matches!(key.code, KeyCode::Char('y' | 'Y')) {
                    return Action::KillTree(process, name);
                }
            }
        }
        Action::Nothing
    }

    fn press_in_list(&mut self, code: KeyCode) -> Action {
        match code {
            KeyCode::Esc if !self.filter.is_empty() => {
                let before = self.index();
                self.filter.clear();
                self.keep_selection(before);
            }
            KeyCode::Char('q') | KeyCode::Esc => return Action::Quit,
            KeyCode::Up | KeyCode::Char('k') => self.go(|at, _| at.saturating_sub(1)),
            KeyCode::Down | KeyCode::Char('j') => self.go(|at, _| at + 1),
            KeyCode::PageUp => self.go(|at, _| at.saturating_sub(10)),
            KeyCode::PageDown => self.go(|at, _| at + 10),
            KeyCode::Home => self.go(|_, _| 0),
            KeyCode::End => self.go(|_, last| last),
            KeyCode::Enter | KeyCode::Char('f') if self.selected.is_some() => self.mode = Mode::Follow,
            KeyCode::Char('a') => {
                let before = self.index();
                self.shows_ended = !self.shows_ended;
                self.keep_selection(before);
            }
            KeyCode::Char('/') => self.mode = Mode::Filter,
            KeyCode::Char('?' | 'h') => self.mode = Mode::Help,
            KeyCode::Char('s') => self.ask(|key, name| Mode::Signal { key, name, chosen: 0 }),
            KeyCode::Char('K') => self.ask(|key, name| Mode::Kill { key, name }),
            _ => {}
        }
        Action::Nothing
    }

    fn press_in_output(&mut self, code: KeyCode) {
        if matches!(code, KeyCode::Char('q' | 'f') | KeyCode::Esc | KeyCode::Enter) {
            self.mode = Mode::List;
            self.keep_selection(None);
        }
    }

    fn press_in_filter(&mut self, code: KeyCode) {
        let before = self.index();
        match code {
            KeyCode::Char(letter) => self.filter.push(letter),
            KeyCode::Backspace => drop(self.filter.pop()),
            KeyCode::Enter => self.mode = Mode::List,
            KeyCode::Esc => {
                self.filter.clear();
                self.mode = Mode::List;
            }
            _ => {}
        }
        self.keep_selection(before);
    }

    fn press_in_signals(&mut self, code: KeyCode, key: Key, name: String, chosen: usize) -> Action {
        let chosen = match code {
            KeyCode::Up | KeyCode::Left | KeyCode::Char('k' | 'h') => chosen + SIGNALS.len() - 1,
            KeyCode::Down | KeyCode::Right | KeyCode::Char('j' | 'l' | 's') => chosen + 1,
            KeyCode::Enter => {
                self.mode = Mode::List;
                return Action::Signal(key, name, SIGNALS[chosen]);
            }
            KeyCode::Char('q') | KeyCode::Esc => {
                self.mode = Mode::List;
                return Action::Nothing;
            }
            _ => chosen,
        };
        self.mode = Mode::Signal { key, name, chosen: chosen % SIGNALS.len() };
        Action::Nothing
    }

    /// Asks a question about the selected process, if it is running.
    fn ask(&mut self, question: impl FnOnce(Key, String) -> Mode) {
        let Some(seen) = self.selected() else { return };
        let name = plain(&seen.row.name);
        if seen.row.is_running() {
            self.mode = question(Key::of(&seen.row), name);
        } else {
            self.message = Some(format!("{name} has exited"));
        }
    }

    fn go(&mut self, to: impl FnOnce(usize, usize) -> usize) {
        let at = self.index().unwrap_or_default();
        let listed = self.listed();
        let Some(last) = listed.len().checked_sub(1) else { return };
        let key = Key::of(&listed[to(at, last).min(last)].row);
        self.select(Some(key));
    }

    /// If the selected process is no longer listed, selects the one at its position.
    fn keep_selection(&mut self, before: Option<usize>) {
        if self.index().is_some() || self.mode == Mode::Follow {
            return;
        }
        let listed = self.listed();
        let last = listed.len().checked_sub(1);
        let key = last.map(|last| Key::of(&listed[before.unwrap_or(0).min(last)].row));
        self.select(key);
    }

    fn select(&mut self, key: Option<Key>) {
        if key != self.selected {
            self.selected = key;
            self.tail = Tail::new();
        }
    }
}

#[cfg(test)]
mod tests {
    use remex_client::process::State as Stage;

    use super::*;
    use crate::remote::processes::tests::process;

    fn rows(names: &[&str]) -> Vec<Row> {
        names.iter().map(|name| process("s", name, Stage::Running)).collect()
    }

    fn state(names: &[&str]) -> TopState {
        let mut state = TopState::new("here".to_owned());
        state.update(rows(names), Instant::now());
        state
    }

    fn press(state: &mut TopState, keys: &str) -> Action {
        let mut order = Action::Nothing;
        for key in keys.chars() {
            let code = match key {
                '\n' => KeyCode::Enter,
                '\u{1b}' => KeyCode::Esc,
                other => KeyCode::Char(other),
            };
            order = state.press(KeyEvent::new(code, KeyModifiers::NONE));
        }
        order
    }

    fn selected(state: &TopState) -> Option<&str> {
        state.selected().map(|seen| seen.row.name.as_str())
    }

    #[test]
    fn the_selection_stays_with_its_process() {
        let mut state = state(&["a", "b", "c"]);
        assert_eq!(selected(&state), Some("a"));
        press(&mut state, "jjjj");
        assert_eq!(selected(&state), Some("c"));
        press(&mut state, "k");
        state.update(rows(&["b", "c", "d"]), Instant::now());
        assert_eq!((selected(&state), state.index()), (Some("b"), Some(0)));
        press(&mut state, "jj");
        state.update(rows(&["b", "c"]), Instant::now());
        assert_eq!(selected(&state), Some("c"));
        state.update(Vec::new(), Instant::now());
        assert_eq!(selected(&state), None);
        assert_eq!(press(&mut state, "jkKs\nf"), Action::Nothing);
        assert_eq!(state.mode, Mode::List);
    }

    #[test]
    fn a_filter_looks_at_names_and_commands() {
        let mut state = state(&["build", "lint"]);
        press(&mut state, "/LIN");
        assert_eq!((selected(&state), state.listed().len()), (Some("lint"), 1));
        // While a filter is typed, letters are not commands.
        assert_eq!(press(&mut state, "qK"), Action::Nothing);
        assert_eq!((selected(&state), state.filter.as_str()), (None, "LINqK"));
        press(&mut state, "\u{1b}/sleep 1\n");
        assert_eq!((state.listed().len(), &state.mode), (2, &Mode::List));
        // The first Esc clears the filter, the second quits.
        assert_eq!((press(&mut state, "\u{1b}"), state.filter.as_str()), (Action::Nothing, ""));
        assert_eq!(press(&mut state, "\u{1b}"), Action::Quit);
    }

    #[test]
    fn what_has_ended_is_listed_on_demand() {
        let mut state = TopState::new("here".to_owned());
        state.update(
            vec![process("s", "old", Stage::Closed), process("s", "new", Stage::Running)],
            Instant::now(),
        );
        assert_eq!((state.listed().len(), state.counts()), (1, (1, 1)));
        press(&mut state, "ak");
        assert_eq!(selected(&state), Some("old"));
        press(&mut state, "K");
        assert_eq!((&state.mode, state.message.as_deref()), (&Mode::List, Some("old has exited")));
        press(&mut state, "a");
        assert_eq!(selected(&state), Some("new"));
    }

    #[test]
    fn signals_are_chosen_and_a_tree_is_killed_only_after_a_yes() {
        let mut state = state(&["a", "b"]);
        let key = Key { session_id: "id-of-s".to_owned(), process_id: "b".to_owned() };
        let signal = Action::Signal(key.clone(), "b".to_owned(), SignalName::Int);
        assert_eq!(press(&mut state, "jsj\n"), signal);
        assert_eq!(press(&mut state, "s\u{1b}"), Action::Nothing);
        assert_eq!(press(&mut state, "Kn"), Action::Nothing);
        assert_eq!(press(&mut state, "K"), Action::Nothing);
        // The question refers to the process that was selected when it was asked.
        state.update(rows(&["a"]), Instant::now());
        assert_eq!(press(&mut state, "y"), Action::KillTree(key, "b".to_owned()));
    }

    #[test]
    fn the_output_of_a_process_can_be_followed_beyond_its_end() {
        let mut state = state(&["a", "b"]);
        press(&mut state, "j\n");
        assert_eq!(state.mode, Mode::Follow);
        state.update(rows(&["a"]), Instant::now());
        assert_eq!(state.watched().map(|key| key.process_id.as_str()), Some("b"));
        assert_eq!(press(&mut state, "q"), Action::Nothing);
        assert_eq!((&state.mode, selected(&state)), (&Mode::List, Some("a")));
        assert_eq!(press(&mut state, "q"), Action::Quit);
    }
}
