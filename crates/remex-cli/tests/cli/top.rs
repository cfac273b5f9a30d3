//! `top`: keystrokes in, screen out.

use std::time::Instant;

use rustix::{
    process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid},
    termios::Termios,
};

use crate::{
    background_processes::UserSession,
    home::{Home, Said},
    screen::Screen,
    support::{PATIENCE, Server},
};

/// The arrow key.
const DOWN: &str = "\u{1b}[B";

/// The settings of a terminal as numbers.
fn modes(settings: &Termios) -> [u32; 4] {
    [
        settings.input_modes.bits(),
        settings.output_modes.bits(),
        settings.control_modes.bits(),
        settings.local_modes.bits(),
    ]
}

fn top(user: &UserSession) -> Screen {
    user.screen(&["top", "--interval", "100ms"])
}

/// Waits until lines are on the screen, whatever blanks are behind them.
fn wait_for_lines(screen: &Screen, lines: &str) -> String {
    screen.wait_until(&format!("`{lines}` on the screen"), |shown| trimmed(shown).contains(lines))
}

fn trimmed(shown: &str) -> String {
    shown.lines().map(|line| line.trim_end().to_owned() + "\n").collect()
}

/// Returns the cells of the row of a process.
fn row<'a>(screen: &'a str, name: &str) -> Option<Vec<&'a str>> {
    let cells = |line: &'a str| line.trim_start_matches('>').split_whitespace().collect::<Vec<_>>();
    screen.lines().map(cells).find(|cells| cells.first() == Some(&name))
}

/// Waits until the row of a process is as wanted.
fn wait_for_row(screen: &Screen, name: &str, wanted: impl Fn(&[&str]) -> bool) -> String {
    screen.wait_until(&format!("the row of {name}"), |shown| row(shown, name).is_some_and(|row| wanted(&row)))
}

#[test]
fn processes_are_shown_with_their_usage_and_output() {
    let user = UserSession::open("night");
    user.ready("busy", "echo ready; while :; do :; done");
    user.ready("calm", r"printf '\033]0;evil\007one\n\033[31mtwo\033[0m\nready\n'; exec sleep 1000");
    let screen = top(&user);
    let used = |row: &[&str]| row[2].strip_suffix('%').and_then(|cpu| cpu.parse::<f64>().ok());
    wait_for_row(&screen, "busy", |row| used(row).is_some_and(|cpu| cpu > 5.0));
    let shown = trimmed(&wait_for_row(&screen, "calm", |row| used(row).is_some_and(|cpu| cpu < 5.0)));
    assert!(shown.starts_with("local: 2 running, 0 exited\n"), "{shown}");
    assert!(
        shown.contains("\n  NAME             STATE     CPUv  MEM     OUT/s   OUT     AGE    COMMAND\n"),
        "{shown}"
    );
    assert_eq!(row(&shown, "calm").map(|row| row[1..2].to_vec()), Some(vec!["running"]));
    screen.wait_for("── busy ─");
    screen.keys("j");
    wait_for_lines(&screen, "\none\ntwo\nready\n");
    assert!(!screen.raw().contains("evil"), "no order of a process reaches the terminal");
    screen.keys("/bus");
    screen.wait_until("the filter", |shown| row(shown, "calm").is_none() && shown.contains("filter: bus_"));
}

#[test]
fn output_is_followed_live() {
    let user = UserSession::open("night");
    user.waiting("talk", "echo more; exit 3");
    let mut screen = top(&user);
    wait_for_lines(&screen, "\nready\n");
    screen.keys("\r");
    wait_for_lines(&screen, "talk: running\nready\n");
    user.go("talk");
    wait_for_lines(&screen, "talk: exit 3\nready\nmore\n");
    screen.keys("q");
    screen.wait_for("0 running, 1 exited");
    screen.keys("a");
    wait_for_row(&screen, "talk", |row| row[1..3] == ["exit", "3"]);
    screen.keys("q");
    assert_eq!(screen.end(), Some(0));
}

#[test]
fn killing_a_tree_asks_for_confirmation_and_a_signal_does_not() {
    let user = UserSession::open("night");
    user.ready("first", "trap 'exit 7' INT; echo ready; while :; do sleep 0.01; done");
    user.ready("second", "sh -c 'echo ready; sleep 1000' & wait");
    let screen = top(&user);
    wait_for_row(&screen, "second", |_| true);
    screen.keys("s");
    screen.wait_for("send [SIGTERM] to first? enter");
    screen.keys(DOWN);
    screen.wait_for("send [SIGINT] to first?");
    screen.keys("\u{1b}");
    screen.wait_for("enter follow");
    // The name of any signal can be typed.
    screen.keys("sint");
    screen.wait_for("send [INT_] to first? enter");
    screen.keys("\r");
    screen.wait_for("sent SIGINT to first");
    screen.wait_for("1 running, 1 exited");
    screen.keys("K");
    screen.wait_for("end second with everything it started? y/n");
    screen.keys("n");
    screen.wait_for("enter follow");
    screen.keys("K");
    screen.wait_for("y/n");
    screen.keys("y");
    screen.wait_for("0 running, 2 exited");
    screen.keys("a");
    wait_for_row(&screen, "first", |row| row[1..3] == ["exit", "7"]);
    wait_for_row(&screen, "second", |row| row[1] == "SIGTERM");
}

#[test]
fn the_terminal_is_restored_however_top_ends() {
    let user = UserSession::open("night");
    user.ready("build", "echo ready; exec sleep 1000");
    for (end, code) in [("q", 0), ("\u{1b}", 0), ("\u{3}", 0), ("TERM", 143), ("QUIT", 131)] {
        let mut screen = top(&user);
        let usual = modes(&Screen::open(&user.home, "true", &[]).settings());
        screen.wait_for("> build");
        assert_ne!(modes(&screen.settings()), usual);
        match end {
            "TERM" => send(&screen, Signal::TERM),
            "QUIT" => send(&screen, Signal::QUIT),
            keys => screen.keys(keys),
        }
        assert_eq!(screen.end(), Some(code), "{end:?}");
        assert_eq!(modes(&screen.settings()), usual, "{end:?}");
        let shown = screen.wait_until("the usual screen", |shown| !shown.contains("build"));
        assert!(!shown.contains("NAME"), "{shown}");
        let raw = screen.raw();
        assert!(raw.contains("\u{1b}[?1049l") && raw.contains("\u{1b}[?25h"), "{end:?}");
    }
}

fn send(screen: &Screen, signal: Signal) {
    let pid = Pid::from_raw(i32::try_from(screen.pid()).unwrap()).unwrap();
    kill_process(pid, signal).unwrap();
}

#[test]
fn the_shell_has_the_terminal_while_top_is_stopped() {
    let user = UserSession::open("night");
    user.ready("build", "echo ready; exec sleep 1000");
    let mut screen = top(&user);
    let usual = modes(&Screen::open(&user.home, "true", &[]).settings());
    for stop in ["TSTP", "\u{1a}"] {
        screen.wait_for("> build");
        match stop {
            "TSTP" => send(&screen, Signal::TSTP),
            keys => screen.keys(keys),
        }
        screen.wait_until("the usual screen", |shown| !shown.contains("build"));
        let pid = Pid::from_raw(screen.pid().try_into().unwrap()).unwrap();
        assert!(waitid(WaitId::Pid(pid), WaitIdOptions::STOPPED).unwrap().unwrap().stopped(), "{stop:?}");
        assert_eq!(modes(&screen.settings()), usual, "{stop:?}");
        send(&screen, Signal::CONT);
    }
    screen.wait_for("> build");
    // It takes the terminal again on SIGCONT.
    let deadline = Instant::now() + PATIENCE;
    while modes(&screen.settings()) == usual {
        assert!(Instant::now() < deadline, "waited for a raw terminal");
        std::thread::yield_now();
    }
    screen.keys("q");
    assert_eq!(screen.end(), Some(0));
}

#[test]
fn a_small_window_shows_less_and_a_large_one_more() {
    let user = UserSession::open("night");
    user.ready("build", "echo ready; exec sleep 1000");
    let mut screen = top(&user);
    screen.wait_for("COMMAND");
    for (rows, cols) in [(5, 20), (1, 1), (2, 10), (5, 20)] {
        screen.resize(rows, cols);
    }
    screen.wait_until("a small window", |shown| shown.contains("> build") && !shown.contains("COMMAND"));
    screen.keys("K");
    screen.wait_for("end build with every");
    screen.keys("n?");
    screen.wait_for("down, j    select th");
    screen.keys("q");
    screen.resize(50, 200);
    screen.wait_for("/bin/sh -c 'echo ready; exec sleep 1000'");
    screen.keys("q");
    assert_eq!(screen.end(), Some(0));
}

#[test]
fn a_lost_server_and_its_return_are_reported() {
    let user = UserSession::open("night");
    user.ready("build", "echo ready; exec sleep 1000");
    let screen = top(&user);
    screen.wait_for("> build");
    let UserSession { home, server, client } = user;
    drop(client);
    server.stop();
    screen.wait_for("connection lost");
    let listen = format!("unix://{}", home.own_socket().display());
    let server = Server::serve(&["--listen", &listen]);
    screen.wait_for("local: 0 running, 0 exited");
    server.client().shell("again", "exec sleep 1000");
    wait_for_row(&screen, "again", |_| true);
}

#[test]
fn the_list_is_sorted_by_the_column_that_the_user_chooses() {
    let user = UserSession::open("night");
    for (name, bytes) in [("alpha", 1), ("beta", 300), ("gamma", 20)] {
        user.ready(name, &format!("head -c {bytes} /dev/zero; echo; echo ready; exec sleep 1000"));
    }
    let screen = user.screen(&["top", "--interval", "100ms", "--sort", "out"]);
    let order = |wanted: [&str; 3]| {
        screen.wait_until(&format!("the order {wanted:?}"), |shown| {
            let at: Vec<_> = wanted.iter().map(|name| shown.find(&format!(" {name} "))).collect();
            at.iter().all(Option::is_some) && at.is_sorted()
        })
    };
    order(["beta", "gamma", "alpha"]);
    screen.keys("r");
    order(["alpha", "gamma", "beta"]);
    screen.keys("<<<<<");
    screen.wait_for("NAME^");
    order(["alpha", "beta", "gamma"]);
    screen.keys("r");
    screen.wait_for("NAMEv");
    order(["gamma", "beta", "alpha"]);
}

#[test]
fn a_process_gets_the_terminal_and_the_list_returns_after_detaching() {
    let user = UserSession::open("night");
    let script = "echo ready; while read line; do echo \"got $line\"; done";
    user.ready_with("talk", script, serde_json::json!({"tty": true}));
    let mut screen = top(&user);
    screen.wait_for("> talk");
    screen.keys("t");
    screen.wait_until("the process on the terminal", |shown| {
        shown.contains("ready") && !shown.contains("COMMAND")
    });
    screen.keys("hello\r");
    screen.wait_for("got hello");
    screen.keys("~.");
    screen.wait_for("back from talk");
    screen.wait_for("> talk");
    // Keys are those of the list again.
    screen.keys("?");
    screen.wait_for("reverse the order");
    screen.keys("qq");
    assert_eq!(screen.end(), Some(0));
    assert_eq!(user.say(&["ps", "-q"]).out, "talk\n");
}

#[test]
fn processes_of_all_reachable_environments_are_one_list() {
    let user = UserSession::open("night");
    user.ready("near", "echo ready; exec sleep 1000");
    let server = Server::start();
    let client = server.client();
    client.start("distant", &["/bin/sh", "-c", "echo ready; exec sleep 1000"], serde_json::json!({}));
    client.wait_for_output("distant", "ready");
    user.home.add_environment("far", server.address());
    user.home.add_environment("gone", "unix:///nowhere/remex.sock");
    let mut screen = user.screen(&["top", "--interval", "100ms", "--all-envs", "--sort", "name"]);
    screen.wait_until("both processes", |shown| {
        let has = |wanted: [&str; 2]| {
            shown.lines().any(|line| {
                let cells: Vec<_> = line.trim_start_matches('>').split_whitespace().collect();
                cells.starts_with(&wanted)
            })
        };
        has(["far", "distant"]) && has(["local", "near"])
    });
    screen.wait_for("gone: not connected; retrying: ");
    screen.wait_for("> far");
    screen.keys("K");
    screen.wait_for("end distant with everything it started? y/n");
    screen.keys("y");
    screen.wait_until("one process", |shown| !shown.contains(" far "));
    screen.keys("q");
    assert_eq!(screen.end(), Some(0));
}

#[test]
fn without_a_terminal_top_suggests_ps() {
    let home = Home::new();
    let expected = Said {
        code: Some(2),
        out: String::new(),
        err: "remex: cannot show a live view: standard input and output are not a terminal\n  \
              hint: use `remex ps`, in scripts with `--json`\n"
            .to_owned(),
    };
    assert_eq!(home.say(&["top"]), expected);
}
