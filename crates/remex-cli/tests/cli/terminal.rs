//! `remex run -t` on a real terminal: keystrokes in, screen out, settings as before.

use rustix::{
    process::{Pid, Signal, kill_process},
    termios::LocalModes,
};

use crate::{
    home::Home,
    screen::Screen,
    support::{DisconnectingProxy, Server},
};

fn is_raw(screen: &Screen) -> bool {
    !screen.settings().local_modes.contains(LocalModes::ICANON)
}

fn is_cooked(screen: &Screen) -> bool {
    screen.settings().local_modes.contains(LocalModes::ICANON | LocalModes::ECHO | LocalModes::ISIG)
}

const SHELL: [&str; 5] = ["sh", "-c", "PS1='> ' exec sh -i", "", ""];

fn shell<'a>(flags: &[&'a str]) -> Vec<&'a str> {
    [&["run", "-t"], flags, &["--"], &SHELL[..3]].concat()
}

#[test]
fn a_remote_terminal_follows_the_local_size() {
    let home = Home::new();
    let server = Server::start();
    for place in [&[][..], &["--on", server.address()]] {
        let script =
            "stty size; trap 'stty size' WINCH; trap 'exit 5' INT; echo ready; while :; do sleep 0.05; done";
        let args = [&["run", "-t"], place, &["--", "sh", "-c", script]].concat();
        let mut screen = Screen::remex(&home, &args);
        screen.wait_for("24 80\nready");
        assert!(is_raw(&screen));
        screen.resize(40, 132);
        screen.wait_for("40 132");
        screen.keys("\x03");
        assert_eq!(screen.end(), Some(5));
        assert!(is_cooked(&screen));
    }
}

#[test]
fn ctrl_c_is_sent_like_any_other_key() {
    let home = Home::new();
    let mut screen = Screen::remex(&home, &shell(&[]));
    screen.wait_for("> ");
    // It says so itself: between two commands, the shell would swallow the key.
    screen.keys("sh -c 'echo be\"\"gun; exec sleep 1000'\r");
    screen.wait_for("begun");
    screen.keys("\x03");
    screen.wait_for("^C\n> ");
    screen.keys("echo code: $?\r");
    screen.wait_for("code: 130");
    screen.keys("\x04");
    assert!(screen.end().is_some());
    assert!(is_cooked(&screen));
}

#[test]
fn the_terminal_is_restored_however_remex_ends() {
    let home = Home::new();
    for sent in [Signal::TERM, Signal::HUP] {
        let mut screen = Screen::remex(&home, &shell(&[]));
        screen.wait_for("> ");
        // The other screen, no cursor: what a program has told the terminal is taken back, too.
        screen.keys("printf '\\033[?1049h\\033[?25l'; echo other''screen\r");
        screen.wait_for("otherscreen");
        let pid = Pid::from_raw(screen.pid().try_into().unwrap()).unwrap();
        kill_process(pid, sent).unwrap();
        assert!(screen.end().is_some_and(|code| code > 128));
        assert!(is_cooked(&screen));
        screen.wait_until("the first screen, with a cursor", |shown| !shown.contains("otherscreen"));
        assert!(screen.raw().contains("\u{1b}[?25h"));
    }
}

#[test]
fn a_failed_start_leaves_the_terminal_alone() {
    let home = Home::new();
    let mut screen = Screen::remex(&home, &["run", "-t", "--", "no-such-program"]);
    screen.wait_for("cannot start `no-such-program`");
    assert_eq!(screen.end(), Some(127));
    assert!(is_cooked(&screen));
}

#[test]
fn an_in_process_command_cannot_be_detached() {
    let home = Home::new();
    let mut screen = Screen::remex(&home, &shell(&[]));
    screen.wait_for("> ");
    screen.keys("~?");
    screen.wait_for("~k ends the process and everything it started");
    screen.keys("~.");
    screen.wait_for("you cannot detach from it");
    screen.keys("~~ is a tilde");
    screen.wait_for("~ is a tilde");
    screen.keys("\r~k");
    assert_eq!(screen.end(), Some(137));
    assert!(is_cooked(&screen));
}

#[test]
fn a_detached_shell_can_be_reattached() {
    let home = Home::new();
    let server = Server::start();
    home.add_environment("build", server.address());
    let mut screen = Screen::remex(&home, &shell(&["--on", "build", "--name", "work"]));
    screen.wait_for("> ");
    screen.keys("x=remem''bered\r~.");
    screen.wait_for("detached; `work` keeps running, reattach with `remex attach --on build work`");
    assert_eq!(screen.end(), Some(0));
    assert!(is_cooked(&screen));

    let mut screen = Screen::remex(&home, &["attach", "--on", "build", "wor"]);
    screen.wait_for("> ");
    screen.keys("echo $x\r");
    screen.wait_for("remembered");
    screen.keys("exit 9\r");
    assert_eq!(screen.end(), Some(9));
    assert!(is_cooked(&screen));
}

#[test]
fn a_disconnect_shows_one_status_line_and_recovers() {
    let home = Home::new();
    let server = Server::start();
    let proxy = DisconnectingProxy::start(server.address(), &[]);
    let mut screen = Screen::remex(&home, &shell(&["--on", proxy.address()]));
    screen.wait_for("> ");
    screen.keys("echo a''b\r");
    screen.wait_for("ab\n> ");
    proxy.cut();
    screen.wait_for("remex: reconnected after ");
    screen.keys("echo c''d\r");
    screen.wait_for("cd\n> ");
    let raw = screen.raw();
    assert_eq!((raw.matches("ab\r\n").count(), raw.matches("cd\r\n").count()), (1, 1), "{raw}");
    screen.keys("exit\r");
    assert_eq!(screen.end(), Some(0));
}

#[test]
fn a_terminal_can_be_allocated_without_a_local_one() {
    let home = Home::new();
    let said =
        home.say_with(&["run", "-t", "--", "sh", "-c", "tty -s && stty size; cat >/dev/null"], b"no newline");
    assert_eq!(said.code, Some(0), "{said:?}");
    assert!(said.out.contains("24 80\r\n"), "{said:?}");
}
