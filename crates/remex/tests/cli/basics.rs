//! What every command has in common.

use crate::{home::Home, screen::Screen};

#[test]
fn without_a_command_there_is_help() {
    let said = Home::new().say(&[]);
    assert_eq!(said.code, Some(2));
    assert!(said.err.contains("Usage: remex"), "{said:?}");
}

#[test]
fn a_terminal_shows_what_a_program_prints() {
    let home = Home::new();
    let mut screen = Screen::open(&home, "sh", &["-c", "stty size; tty -s && echo terminal; read x; exit 7"]);
    screen.wait_for("24 80\nterminal");
    screen.keys("\r");
    assert_eq!(screen.end(), Some(7));
}
