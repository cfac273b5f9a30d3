//! The state of the screen, and how keys change it.
//!
//! Pure: listings and keys in, actions out; time is an argument. Start at [`TopState`].

use std::{sync::Arc, time::Instant};

use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use remex_client::process::SignalName;

use super::{
    column::Sort,
    rates::{Rate, Rates},
    tail::Tail,
};
use crate::{
    args::{signal::signal, top::Column},
    remote::processes::Row,
    render::text::{line, now_ms, plain},
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
    /// The index of its server.
    pub(super) server: usize,
    pub(super) session_id: String,
    pub(super) process_id: String,
}

impl Key {
    pub(super) fn of(server: usize, row: &Row) -> Self {
        Self { server, session_id: row.entry.session_id.clone(), process_id: row.entry.process_id.clone() }
    }
}

/// A process in the last listing.
#[derive(Debug)]
pub(super) struct Seen {
    pub(super) key: Key,
    /// The name of its server.
    pub(super) environment: Arc<str>,
    pub(super) row: Row,
    pub(super) rate: Rate,
}

/// One server.
#[derive(Debug)]
pub(super) struct ServerState {
    pub(super) name: Arc<str>,
    /// The problem with the connection, if any.
    pub(super) error: Option<String>,
}

/// The current meaning of keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    List,
    /// The output of the selected process on the whole screen.
    Follow,
    /// A filter is being typed.
    Filter,
    /// A signal is being chosen, by its index in [`SIGNALS`] or by what is typed.
    Signal {
        key: Key,
        name: String,
        chosen: usize,
        typed: String,
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
    /// Hand the terminal to a process.
    Attach(Key, String),
}

/// How the selected process was chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SelectedBy {
    /// Not by the user: the first of the list stays selected.
    Default,
    User,
}

#[derive(Debug)]
pub(super) struct TopState {
    pub(super) servers: Vec<ServerState>,
    pub(super) mode: Mode,
    /// The result of the last action.
    pub(super) message: Option<String>,
    pub(super) filter: String,
    pub(super) shows_ended: bool,
    pub(super) sort: Sort,
    /// The last output of the selected process.
    pub(super) tail: Tail,
    rows: Vec<Seen>,
    rates: Rates,
    selected: Option<Key>,
    selected_by: SelectedBy,
}

impl TopState {
    pub(super) fn new(servers: impl IntoIterator<Item = String>, sort: Column) -> Self {
        let servers = servers.into_iter().map(|name| ServerState { name: name.into(), error: None });
        Self {
            servers: servers.collect(),
            mode: Mode::List,
            message: None,
            filter: String::new(),
            shows_ended: false,
            sort: Sort::by(sort),
            tail: Tail::new(),
            rows: Vec::new(),
            rates: Rates::default(),
            selected: None,
            selected_by: SelectedBy::Default,
        }
    }

    /// Updates the list of the processes of a server.
    pub(super) fn update(&mut self, server: usize, rows: Vec<Row>, at: Instant) {
        let before = self.index();
        let rates = self.rates.update(server, &rows, at);
        let environment = Arc::clone(&self.servers[server].name);
        let new = rows.into_iter().zip(rates).map(|(row, rate)| Seen {
            key: Key::of(server, &row),
            environment: Arc::clone(&environment),
            row,
            rate,
        });
        self.rows.retain(|seen| seen.key.server != server);
        self.rows.extend(new);
        // Oldest first within a server; `listed` keeps that among equals.
        self.rows.sort_by_key(|seen| seen.key.server);
        self.keep_selection(before);
    }

    /// Returns the listed processes, in the order of the list.
    pub(super) fn listed(&self) -> Vec<&Seen> {
        let filter = self.filter.to_lowercase();
        let matches = |text: &str| text.to_lowercase().contains(&filter);
        let has_label = |seen: &Seen| {
            seen.row.entry.labels.iter().any(|(name, value)| matches(&format!("{name}={value}")))
        };
        let now = now_ms();
        let rows = self.rows.iter().filter(|seen| self.shows_ended || seen.row.is_running());
        let mut listed: Vec<_> = rows
            .filter(|seen| {
                matches(&seen.row.name)
                    || matches(&line(&seen.row.entry.argv))
                    || has_label(seen)
                    || (self.shows_environments() && matches(&seen.environment))
            })
            .collect();
        listed.sort_by(|one, other| self.sort.compare(one, other, now));
        listed
    }

    /// Returns whether there are several servers to tell apart.
    pub(super) fn shows_environments(&self) -> bool {
        self.servers.len() > 1
    }

    /// Returns the number of running and of exited processes.
    pub(super) fn counts(&self) -> (usize, usize) {
        let running = self.rows.iter().filter(|seen| seen.row.is_running()).count();
        (running, self.rows.len() - running)
    }

    /// Returns the index of the selected process.
    pub(super) fn index(&self) -> Option<usize> {
        let selected = self.selected.as_ref()?;
        self.listed().iter().position(|seen| seen.key == *selected)
    }

    /// Returns the selected process; while its output is followed it need not be listed.
    pub(super) fn selected(&self) -> Option<&Seen> {
        let selected = self.selected.as_ref()?;
        self.rows.iter().find(|seen| seen.key == *selected)
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
            Mode::Signal { key: process, name, chosen, typed } => {
                return self.press_in_signals(key.code, process, name, (chosen, typed));
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
            KeyCode::Enter | KeyCode::Char('f') if self.selected.is_some() => {
                self.mode = Mode::Follow;
                self.selected_by = SelectedBy::User;
            }
            KeyCode::Left | KeyCode::Char('<') => self.sort_beside(-1),
            KeyCode::Right | KeyCode::Char('>') => self.sort_beside(1),
            KeyCode::Char('r') => self.sort.direction = self.sort.direction.reversed(),
            KeyCode::Char('t') => return self.attach(),
            KeyCode::Char('a') => {
                let before = self.index();
                self.shows_ended = !self.shows_ended;
                self.keep_selection(before);
            }
            KeyCode::Char('/') => self.mode = Mode::Filter,
            KeyCode::Char('?' | 'h') => self.mode = Mode::Help,
            KeyCode::Char('s') => {
                self.ask(|key, name| Mode::Signal { key, name, chosen: 0, typed: String::new() });
            }
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

    /// Arrows choose a signal from the list; letters and digits type the name or number of any.
    fn press_in_signals(
        &mut self,
        code: KeyCode,
        key: Key,
        name: String,
        (chosen, mut typed): (usize, String),
    ) -> Action {
        let chosen = match code {
            KeyCode::Up | KeyCode::Left => chosen + SIGNALS.len() - 1,
            KeyCode::Down | KeyCode::Right | KeyCode::Tab => chosen + 1,
            KeyCode::Enter => {
                self.mode = Mode::List;
                if typed.is_empty() {
                    return Action::Signal(key, name, SIGNALS[chosen]);
                }
                match signal(&typed) {
                    Ok(signal) => return Action::Signal(key, name, signal),
                    Err(_) => self.message = Some(format!("unknown signal `{typed}`; nothing was sent")),
                }
                return Action::Nothing;
            }
            KeyCode::Esc => {
                self.mode = Mode::List;
                return Action::Nothing;
            }
            KeyCode::Char(letter) => {
                typed.extend(letter.to_uppercase());
                chosen
            }
            KeyCode::Backspace => {
                typed.pop();
                chosen
            }
            _ => chosen,
        };
        if !matches!(code, KeyCode::Char(_) | KeyCode::Backspace) {
            typed.clear();
        }
        self.mode = Mode::Signal { key, name, chosen: chosen % SIGNALS.len(), typed };
        Action::Nothing
    }

    /// Sorts by the column before or after the current one.
    fn sort_beside(&mut self, steps: isize) {
        let before = self.index();
        self.sort = Sort::by(self.sort.column.beside(steps, self.shows_environments()));
        self.keep_selection(before);
    }

    /// Asks for the terminal to be handed to the selected process, if it is running.
    fn attach(&mut self) -> Action {
        let Some(seen) = self.selected() else { return Action::Nothing };
        let (key, name, runs) = (seen.key.clone(), seen.row.name.clone(), seen.row.is_running());
        if runs {
            return Action::Attach(key, name);
        }
        self.message = Some(format!("{} has exited", plain(&name)));
        Action::Nothing
    }

    /// Asks a question about the selected process, if it is running.
    fn ask(&mut self, question: impl FnOnce(Key, String) -> Mode) {
        let Some(seen) = self.selected() else { return };
        let name = plain(&seen.row.name);
        if seen.row.is_running() {
            self.mode = question(seen.key.clone(), name);
        } else {
            self.message = Some(format!("{name} has exited"));
        }
    }

    fn go(&mut self, to: impl FnOnce(usize, usize) -> usize) {
        let at = self.index().unwrap_or_default();
        let listed = self.listed();
        let Some(last) = listed.len().checked_sub(1) else { return };
        let key = listed[to(at, last).min(last)].key.clone();
        self.select(Some(key));
        self.selected_by = SelectedBy::User;
    }

    /// If the selected process is no longer listed, selects the one at its position; the first, until the user selects.
    fn keep_selection(&mut self, before: Option<usize>) {
        let is_kept = self.selected_by == SelectedBy::User || self.mode != Mode::List;
        if (is_kept && self.index().is_some()) || self.mode == Mode::Follow {
            return;
        }
        let at = if is_kept { before.unwrap_or(0) } else { 0 };
        let listed = self.listed();
        let last = listed.len().checked_sub(1);
        let key = last.map(|last| listed[at.min(last)].key.clone());
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
        let mut state = TopState::new(["here".to_owned()], Column::Cpu);
        state.update(0, rows(names), Instant::now());
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
        state.update(0, rows(&["b", "c", "d"]), Instant::now());
        assert_eq!((selected(&state), state.index()), (Some("b"), Some(0)));
        press(&mut state, "jj");
        state.update(0, rows(&["b", "c"]), Instant::now());
        assert_eq!(selected(&state), Some("c"));
        state.update(0, Vec::new(), Instant::now());
        assert_eq!(selected(&state), None);
        assert_eq!(press(&mut state, "jkKs\nf"), Action::Nothing);
        assert_eq!(state.mode, Mode::List);
    }

    #[test]
    fn a_filter_matches_names_and_commands() {
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
    fn exited_processes_are_listed_on_demand() {
        let mut state = TopState::new(["here".to_owned()], Column::Cpu);
        state.update(
            0,
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
    fn signals_can_be_chosen_and_killing_a_tree_needs_confirmation() {
        let mut state = state(&["a", "b"]);
        let key = Key { server: 0, session_id: "id-of-s".to_owned(), process_id: "b".to_owned() };
        let signal = Action::Signal(key.clone(), "b".to_owned(), SignalName::Int);
        assert_eq!(press(&mut state, "jsint\n"), signal);
        assert_eq!(press(&mut state, "s\u{1b}"), Action::Nothing);
        assert_eq!(press(&mut state, "Kn"), Action::Nothing);
        assert_eq!(press(&mut state, "K"), Action::Nothing);
        // The question refers to the process that was selected when it was asked.
        state.update(0, rows(&["a"]), Instant::now());
        assert_eq!(press(&mut state, "y"), Action::KillTree(key, "b".to_owned()));
    }

    #[test]
    fn any_signal_can_be_typed_and_a_wrong_one_is_not_sent() {
        let mut state = state(&["a"]);
        let key = Key { server: 0, session_id: "id-of-s".to_owned(), process_id: "a".to_owned() };
        let sent = |signal| Action::Signal(key.clone(), "a".to_owned(), signal);
        assert_eq!(press(&mut state, "skill\n"), sent(SignalName::Kill));
        assert_eq!(press(&mut state, "ssigusr1\n"), sent(SignalName::Usr1));
        assert_eq!(press(&mut state, "s15\n"), sent(SignalName::Term));
        assert_eq!(press(&mut state, "snone\n"), Action::Nothing);
        assert_eq!(state.message.as_deref(), Some("unknown signal `NONE`; nothing was sent"));
        press(&mut state, "sint");
        state.press(KeyCode::Down.into());
        assert_eq!(press(&mut state, "\n"), sent(SignalName::Int));
    }

    /// Returns 42 processes at a time, of which `p20` has used this much CPU time.
    fn many(cpu_ms: u64) -> Vec<Row> {
        let named = |number: u64| {
            let mut row = process("s", &format!("p{number:02}"), Stage::Running);
            row.entry.started_at_ms = number;
            row.entry.cpu_ms = Some(if number == 20 { cpu_ms } else { 0 });
            row.entry.resident_bytes = Some((42 - number) << 20);
            row
        };
        (0..42).map(named).collect()
    }

    #[test]
    fn the_busiest_process_is_selected_until_the_user_chooses_another() {
        let start = Instant::now();
        let mut state = TopState::new(["here".to_owned()], Column::Cpu);
        state.update(0, many(0), start);
        assert_eq!(selected(&state), Some("p00"));
        state.update(0, many(900), start + std::time::Duration::from_secs(1));
        assert_eq!((selected(&state), state.index()), (Some("p20"), Some(0)));
        assert_eq!(state.listed()[1].row.name, "p00");
        press(&mut state, "j");
        state.update(0, many(900), start + std::time::Duration::from_secs(2));
        assert_eq!((selected(&state), state.index()), (Some("p00"), Some(0)));
    }

    #[test]
    fn the_list_can_be_sorted_by_any_column_in_both_directions() {
        let mut state = TopState::new(["here".to_owned()], Column::Cpu);
        state.update(0, many(0), Instant::now());
        let first = |state: &TopState| state.listed()[0].row.name.clone();
        press(&mut state, ">");
        assert_eq!((state.sort.column, first(&state).as_str()), (Column::Mem, "p00"));
        press(&mut state, "r");
        assert_eq!(first(&state), "p41");
        press(&mut state, "<<<");
        assert_eq!((state.sort.column, first(&state).as_str()), (Column::Name, "p00"));
        press(&mut state, "<");
        assert_eq!(state.sort.column, Column::Command);
        for _ in Column::ALL {
            press(&mut state, ">");
            assert_eq!(state.listed().len(), 42);
        }
    }

    #[test]
    fn the_processes_of_several_servers_are_one_list() {
        let mut state = TopState::new(["local".to_owned(), "build".to_owned()], Column::Env);
        state.update(0, rows(&["a", "b"]), Instant::now());
        state.update(1, rows(&["a"]), Instant::now());
        let listed = |state: &TopState| {
            let name = |seen: &&Seen| format!("{} {}", seen.environment, seen.row.name);
            state.listed().iter().map(name).collect::<Vec<_>>()
        };
        assert_eq!(listed(&state), ["build a", "local a", "local b"]);
        press(&mut state, "/build\n");
        assert_eq!(listed(&state), ["build a"]);
        let key = Key { server: 1, session_id: "id-of-s".to_owned(), process_id: "a".to_owned() };
        assert_eq!(press(&mut state, "t"), Action::Attach(key, "a".to_owned()));
        state.update(1, Vec::new(), Instant::now());
        press(&mut state, "\u{1b}");
        assert_eq!(listed(&state), ["local a", "local b"]);
    }

    #[test]
    fn the_output_of_a_process_can_be_followed_beyond_its_end() {
        let mut state = state(&["a", "b"]);
        press(&mut state, "j\n");
        assert_eq!(state.mode, Mode::Follow);
        state.update(0, rows(&["a"]), Instant::now());
        assert_eq!(state.watched().map(|key| key.process_id.as_str()), Some("b"));
        assert_eq!(press(&mut state, "q"), Action::Nothing);
        assert_eq!((&state.mode, selected(&state)), (&Mode::List, Some("a")));
        assert_eq!(press(&mut state, "q"), Action::Quit);
    }
}
