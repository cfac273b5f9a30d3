//! Renders the state, in windows of any size; small ones show less.
//!
//! All text from servers and processes has been stripped of control characters. Start at [`screen`].

use ratatui::{
    Frame,
    layout::{Constraint, Layout, Rect},
    style::{Color, Modifier, Style},
    text::{Line, Span, Text},
    widgets::{Cell, Paragraph, Row as Cells, Table, TableState},
};

use super::{
    column::Direction,
    state::{Mode, SIGNALS, Seen, TopState},
};
use crate::{
    args::top::Column,
    render::{
        print::Colour,
        text::{plain, width, within},
    },
};

const KEYS: &str = "enter follow  t attach  s signal  K kill  </> sort  / filter  ? help  q quit";

const HELP: &str = "\
up, k      select the process above
down, j    select the process below
enter, f   follow its output on the whole screen
t          attach to it: it gets the terminal until you detach with ~.
s          send it a signal: type its name, or choose it with up and down; enter sends
K          end it with everything it started: TERM, KILL after 5 s
a          show or hide what has ended
<, >       sort by the column to the left or right
r          reverse the order
/          filter by name, command, label or environment; Esc clears the filter
?, h       this help; any key leaves it
q, Esc     quit; so does Ctrl-C";

/// Draws the whole screen.
pub(super) fn screen(frame: &mut Frame<'_>, state: &TopState, now_ms: u64, colour: Colour) {
    let area = frame.area();
    let [header, middle, footer] = areas(area);
    frame.render_widget(Paragraph::new(heading(state, colour)), header);
    match state.mode {
        Mode::Follow => output(frame, state, middle),
        Mode::Help => frame.render_widget(Paragraph::new(HELP), middle),
        _ => {
            let [list, preview] = split(middle);
            table(frame, state, list, now_ms, colour);
            last_lines(frame, state, preview);
        }
    }
    // Questions are shown even in tiny windows.
    let asks = !matches!(state.mode, Mode::List | Mode::Help | Mode::Follow) || state.message.is_some();
    let last = Rect { y: area.y + area.height.saturating_sub(1), height: area.height.min(1), ..area };
    if asks || footer.height > 0 {
        frame.render_widget(ratatui::widgets::Clear, last);
        frame.render_widget(Paragraph::new(foot(state, usize::from(last.width))), last);
    }
}

fn areas(area: Rect) -> [Rect; 3] {
    let (header, footer) = (u16::from(area.height >= 3), u16::from(area.height >= 6));
    Layout::vertical([Constraint::Length(header), Constraint::Fill(1), Constraint::Length(footer)])
        .areas(area)
}

/// Reserves a third for the preview, if there is room.
fn split(area: Rect) -> [Rect; 2] {
    let preview = if area.height >= 9 { area.height.div_ceil(3) } else { 0 };
    Layout::vertical([Constraint::Fill(1), Constraint::Length(preview)]).areas(area)
}

fn heading(state: &TopState, colour: Colour) -> Line<'static> {
    let troubles: Vec<_> = state
        .servers
        .iter()
        .filter_map(|server| {
            let error = server.error.as_ref()?;
            Some(if state.shows_environments() {
                format!("{}: {error}", plain(&server.name))
            } else {
                error.clone()
            })
        })
        .collect();
    if !troubles.is_empty() {
        return Line::styled(troubles.join("; "), tone(colour, Color::Red).add_modifier(Modifier::BOLD));
    }
    let (running, ended) = state.counts();
    let servers = match &state.servers[..] {
        [server] => plain(&server.name),
        several => format!("{} environments", several.len()),
    };
    let mut text = format!("{servers}: {running} running, {ended} exited");
    if !state.filter.is_empty() {
        text.push_str(&format!(", filter `{}`", state.filter));
    }
    if state.mode == Mode::Follow {
        let name = state.watched().map(|key| plain(&key.process_id)).unwrap_or_default();
        let stage =
            state.selected().map_or_else(|| "removed from the server".to_owned(), |seen| seen.row.state());
        text = format!("{name}: {stage}");
    }
    Line::styled(text, Style::new().add_modifier(Modifier::BOLD))
}

fn table(frame: &mut Frame<'_>, state: &TopState, area: Rect, now_ms: u64, colour: Colour) {
    let shows = |column: &Column| {
        column.from() <= area.width && (*column != Column::Env || state.shows_environments())
    };
    let columns = || Column::ALL.into_iter().filter(shows);
    let listed = state.listed();
    let widths = widths(&columns().collect::<Vec<_>>(), &listed, area.width, now_ms);
    let rows = listed.into_iter().map(|seen| {
        let is_bad = !seen.row.is_running() && seen.row.entry.exit_code != Some(0);
        let style = if is_bad { tone(colour, Color::Red) } else { Style::new() };
        Cells::new(columns().map(|column| Cell::new(column.cell(seen, now_ms)))).style(style)
    });
    let titles = Cells::new(columns().map(|column| title(column, state)))
        .style(Style::new().add_modifier(Modifier::BOLD));
    let table = Table::new(rows.collect::<Vec<_>>(), widths)
        .header(titles)
        .highlight_symbol("> ")
        .row_highlight_style(Style::new().add_modifier(Modifier::REVERSED));
    frame.render_stateful_widget(table, area, &mut TableState::new().with_selected(state.index()));
}

/// Returns the title of a column, with a mark if the list is sorted by it.
fn title(column: Column, state: &TopState) -> String {
    if column != state.sort.column {
        return column.title().to_owned();
    }
    let mark = match state.sort.direction {
        Direction::Ascending => '^',
        Direction::Descending => 'v',
    };
    format!("{}{mark}", column.title())
}

/// Distributes the space that the other columns leave to names, states and commands.
fn widths(columns: &[Column], listed: &[&Seen], room: u16, now_ms: u64) -> Vec<Constraint> {
    /// The minimum width of the command column.
    const COMMAND: u16 = 24;
    /// The width of the selection marker.
    const MARK: u16 = 2;
    let longest = |column: Column| {
        let widths = listed.iter().map(|seen| width(&column.cell(seen, now_ms)));
        u16::try_from(widths.max().unwrap_or_default()).unwrap_or(u16::MAX)
    };
    let least = |column: &Column| match column.width() {
        Constraint::Length(least) | Constraint::Min(least) => least,
        _ => longest(*column).clamp(8, COMMAND),
    };
    let gaps = u16::try_from(columns.len()).unwrap_or(u16::MAX).saturating_sub(1);
    let taken = columns.iter().map(least).fold(gaps.saturating_add(MARK), u16::saturating_add);
    let mut left = room.saturating_sub(taken);
    let width = |column: &Column| match column.width() {
        Constraint::Min(least) => {
            let more = longest(*column).saturating_sub(least).min(left);
            left -= more;
            Constraint::Length(least + more)
        }
        fixed => fixed,
    };
    columns.iter().map(width).collect()
}

fn last_lines(frame: &mut Frame<'_>, state: &TopState, area: Rect) {
    let Some(seen) = state.selected().filter(|_| area.height > 1) else { return };
    let title = format!("── {} ", plain(&seen.row.name));
    let rest = usize::from(area.width).saturating_sub(Span::raw(title.as_str()).width());
    let title = Line::styled(title + &"─".repeat(rest), Style::new().add_modifier(Modifier::DIM));
    let lines = state.tail.last(usize::from(area.height) - 1).into_iter().map(Line::raw);
    frame.render_widget(Text::from_iter(std::iter::once(title).chain(lines)), area);
}

/// Draws the last output; wraps long lines.
fn output(frame: &mut Frame<'_>, state: &TopState, area: Rect) {
    let height = usize::from(area.height);
    let rows: Vec<_> =
        state.tail.last(height).iter().flat_map(|line| wrapped(line, usize::from(area.width))).collect();
    let from = rows.len().saturating_sub(height);
    frame.render_widget(Text::from_iter(rows.into_iter().skip(from)), area);
}

fn wrapped(line: &str, width: usize) -> Vec<String> {
    let mut rows = vec![String::new()];
    let mut used = 0;
    for letter in line.chars() {
        let mut buffer = [0; 4];
        let needs = Span::raw(&*letter.encode_utf8(&mut buffer)).width();
        if used + needs > width && used > 0 {
            rows.push(String::new());
            used = 0;
        }
        used += needs;
        if let Some(row) = rows.last_mut() {
            row.push(letter);
        }
    }
    rows
}

/// Returns the bottom line; shortens names if necessary.
fn foot(state: &TopState, room: usize) -> String {
    /// The minimum length of a shortened name.
    const NAME: usize = 8;
    let fitting = |before: &str, name: &str, after: &str| {
        let name = within(name, room.saturating_sub(width(before) + width(after)).max(NAME));
        format!("{before}{name}{after}")
    };
    match &state.mode {
        _ if state.message.is_some() => state.message.clone().unwrap_or_default(),
        Mode::Filter => format!("filter: {}_", state.filter),
        Mode::Kill { name, .. } => fitting("end ", name, " with everything it started? y/n"),
        Mode::Signal { name, typed, .. } if !typed.is_empty() => {
            fitting(&format!("send [{typed}_] to "), name, "? enter")
        }
        Mode::Signal { name, chosen, .. } => {
            let others: Vec<_> = SIGNALS
                .iter()
                .cycle()
                .skip(chosen + 1)
                .take(SIGNALS.len() - 1)
                .map(|other| other.name().trim_start_matches("SIG"))
                .collect();
            let before = format!("send [{}] to ", SIGNALS[*chosen]);
            let whole = format!("{before}{name}? enter; up/down {}", others.join(" "));
            if width(&whole) <= room { whole } else { fitting(&before, name, "? enter; up/down others") }
        }
        Mode::Follow => "q back to the list".to_owned(),
        Mode::List | Mode::Help => KEYS.to_owned(),
    }
}

fn tone(colour: Colour, color: Color) -> Style {
    match colour {
        Colour::On => Style::new().fg(color),
        Colour::Off => Style::new(),
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use ratatui::{Terminal, backend::TestBackend, crossterm::event::KeyCode};
    use remex_client::process::{State as Stage, Stream};

    use super::*;
    use crate::{commands::top::state::Key, remote::processes::tests::process};

    fn state() -> TopState {
        let mut state = TopState::new(["here".to_owned()], Column::Cpu);
        let start = Instant::now();
        for (second, cpu, said) in [(0, 0, 0), (1, 420, 2048)] {
            let mut build = process("night", "build", Stage::Running);
            build.entry.cpu_ms = Some(cpu);
            build.entry.resident_bytes = Some(3 << 20);
            build.entry.produced.stdout = said;
            let other = process("night", "\u{1b}[2Jodd", Stage::Running);
            state.update(0, vec![build, other], start + Duration::from_secs(second));
        }
        state.tail.take(Stream::Stdout, b"compiling\n\x1b[31mdone\x1b[0m\n");
        state
    }

    fn drawn(state: &TopState, width: u16, height: u16) -> String {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| screen(frame, state, 61_000, Colour::Off)).unwrap();
        let text = terminal.backend().to_string();
        text.lines().map(|line| line.trim_matches('"').trim_end().to_owned() + "\n").collect()
    }

    #[test]
    fn names_and_states_fill_the_width_and_prompts_fit() {
        let mut state = TopState::new(["here".to_owned()], Column::Cpu);
        let mut row = process("night", "a-process-with-a-long-name-構築", Stage::Closed);
        row.entry.cause = Some(remex_client::process::ExitCause::OutOfMemory);
        row.entry.resident_bytes = Some(0);
        let other = process("night", "b", Stage::Running);
        let key = Key::of(0, &row);
        state.update(0, vec![row, other], Instant::now());
        // Also exited processes.
        state.press(KeyCode::Char('a').into());
        let wide = drawn(&state, 120, 10);
        assert!(wide.contains("> a-process-with-a-long-name-構築 out of memory "), "{wide}");
        let narrow = drawn(&state, 80, 10);
        assert!(narrow.contains(" a-process-with-") && narrow.contains("sleep 1000"), "{narrow}");
        let name = "a-process-with-a-very-long-name-that-goes-on-and-on-and-on-and-on";
        for mode in [
            Mode::Kill { key: key.clone(), name: name.to_owned() },
            Mode::Signal { key: key.clone(), name: name.to_owned(), chosen: 0, typed: String::new() },
        ] {
            state.mode = mode;
            let question = drawn(&state, 80, 10).lines().last().unwrap().to_owned();
            assert!(question.contains("a-process-with-a-very-long") && question.contains("? "), "{question}");
            assert!(question.ends_with("y/n") || question.ends_with("up/down others"), "{question}");
        }
        state.mode =
            Mode::Signal { key: key.clone(), name: "build".to_owned(), chosen: 0, typed: String::new() };
        let question = foot(&state, 80);
        assert!(width(&question) <= 80 && question.contains("up/down "), "{question}");
        assert!(!question.ends_with("others"), "{question}");
    }

    #[test]
    fn a_window_shows_the_list_and_the_last_lines() {
        let expected = "\
here: 2 running, 0 exited
  NAME             STATE     CPUv  MEM     OUT/s   OUT     AGE    COMMAND
> build            running   42%   3.0MiB  2.0KiB  2.0KiB  1m00s  sleep 1000
  \u{fffd}[2Jodd          running   0.0%  0B      0B      0B      1m00s  sleep 1000



── build ───────────────────────────────────────────────────────────────────────
compiling
done
enter follow  t attach  s signal  K kill  </> sort  / filter  ? help  q quit
";
        let shown = drawn(&state(), 80, 11);
        assert_eq!(shown, expected, "{shown}");
    }

    #[test]
    fn no_window_is_too_small() {
        let mut state = state();
        let key = state.watched().unwrap().clone();
        let name = "build".to_owned();
        let modes = [
            Mode::List,
            Mode::Follow,
            Mode::Filter,
            Mode::Help,
            Mode::Kill { key: key.clone(), name: name.clone() },
            Mode::Signal { key, name, chosen: 8, typed: String::new() },
        ];
        for mode in modes {
            state.mode = mode;
            for (width, height) in [(20, 5), (1, 1), (3, 2), (200, 1), (1, 50), (200, 60)] {
                drawn(&state, width, height);
            }
        }
        state.mode = Mode::List;
        assert_eq!(drawn(&state, 20, 3), "here: 2 running, 0 e\n  NAME      STATE\n> build     running\n");
        state.mode = Mode::Kill { key: state.watched().unwrap().clone(), name: "build".to_owned() };
        assert!(drawn(&state, 20, 2).contains("end build with every"));
    }

    #[test]
    fn wide_characters_take_their_width() {
        assert_eq!(wrapped("漢字漢", 5), ["漢字", "漢"]);
        assert_eq!(wrapped("漢", 1), ["漢"]);
        assert_eq!(wrapped("", 5), [""]);
    }

    #[test]
    fn a_followed_output_wraps_and_ends_at_the_bottom() {
        let mut state = state();
        state.mode = Mode::Follow;
        state.tail.take(Stream::Stdout, "a line that wraps\nlast".as_bytes());
        assert_eq!(drawn(&state, 10, 6), "build: run\ndone\na line tha\nt wraps\nlast\nq back to\n");
    }
}
