//! What a person sees and can do while the connection is lost, and what becomes of the process meanwhile.

use std::{
    fs,
    io::{BufRead, BufReader, Read},
    process::{Child, Stdio},
    time::Instant,
};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::{
    home::Home,
    screen::Screen,
    ssh_host::SshHost,
    support::{DisconnectingProxy, InTime as _, PATIENCE, Patient, Server},
};

const PASSPHRASE: &str = "open-sesame";

/// The connections after the first one carry nothing, so that reconnecting fails.
fn never_again() -> Vec<u64> {
    let mut plan = vec![u64::MAX];
    plan.extend([0; 10_000]);
    plan
}

fn start(home: &Home, args: &[&str]) -> Child {
    let mut command = home.remex(args);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

fn lines(stream: impl Read + std::os::fd::AsFd) -> impl BufRead {
    BufReader::new(Patient::new(stream))
}

fn line(stream: &mut impl BufRead) -> String {
    let mut line = String::new();
    stream.read_line(&mut line).unwrap();
    line.trim_end().to_owned()
}

fn signal(child: &Child, signal: Signal) {
    kill_process(Pid::from_child(child), signal).unwrap();
}

/// Returns how many minutes the server keeps the only running process without a connection.
fn minutes_kept(home: &Home, address: &str) -> f64 {
    let said = home.say(&["ps", "--on", address, "--json"]);
    let listing: Value = serde_json::from_str(&said.out).unwrap();
    let expires = listing["processes"][0]["expiresAtMs"].as_f64().unwrap_or_else(|| panic!("{said:?}"));
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    expires / 60_000.0 - now.as_secs_f64() / 60.0
}

#[test]
fn the_server_keeps_a_disconnected_command_for_an_hour_and_its_client_can_reattach() {
    let home = Home::new();
    let server = Server::start();
    let proxy = DisconnectingProxy::start(server.address(), &never_again());
    let go = home.path("go");
    let script = format!("echo ready; until [ -e {} ]; do sleep 0.05; done; echo done; exit 7", go.display());
    let mut run = start(&home, &["run", "--on", proxy.address(), "--", "sh", "-c", &script]);
    let (mut out, mut err) = (lines(run.stdout.take().unwrap()), lines(run.stderr.take().unwrap()));
    assert_eq!(line(&mut out), "ready");
    proxy.cut();
    let told = line(&mut err);
    assert!(told.starts_with("remex: connection lost; reconnecting for 1 h: "), "{told}");
    signal(&run, Signal::INT);
    let told = line(&mut err);
    assert!(told.starts_with("remex: not connected; Ctrl-C again leaves `sh-"), "{told}");
    let attach = format!("`remex attach --on {} sh-", proxy.address());
    assert!(told.contains(&attach) && told.contains("its server keeps it for another 59 min 5"), "{told}");
    signal(&run, Signal::INT);
    assert_eq!(run.ended().code(), Some(130));
    let told = line(&mut err);
    assert!(told.contains(&format!("come back with {attach}")), "{told}");

    let kept = minutes_kept(&home, server.address());
    assert!((55.0..=60.0).contains(&kept), "{kept} minutes");
    let mut attach = start(&home, &["attach", "--on", server.address()]);
    let mut out = lines(attach.stdout.take().unwrap());
    assert_eq!(line(&mut out), "ready");
    let kept = minutes_kept(&home, server.address());
    assert!(kept > 23.0 * 60.0, "whoever comes back does not have an hour only: {kept} minutes");
    fs::write(&go, "").unwrap();
    assert_eq!(line(&mut out), "done");
    assert_eq!(attach.ended().code(), Some(7));
}

/// Waits until the only process of a user's own server is as wanted.
fn wait_until_listed(home: &Home, what: &str, wanted: impl Fn(&Value) -> bool) {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let said = home.say(&["ps", "--all", "--json"]);
        let listing: Value = serde_json::from_str(&said.out).unwrap();
        if wanted(&listing["processes"][0]) {
            return;
        }
        assert!(Instant::now() < deadline, "waited for {what}; it is {listing}");
    }
}

#[test]
fn attaching_to_a_detached_command_logs_in_once_and_keeps_it_running() {
    let Some(far) = SshHost::start() else { return };
    let mut run = start(&far.near, &["run", "--on", "far", "--", "sh", "-c", "echo ready; exec sleep 1000"]);
    assert_eq!(line(&mut lines(run.stdout.take().unwrap())), "ready");
    run.kill().unwrap();
    run.ended();
    wait_until_listed(&far.home, "a command that was left", |process| process["expiresAtMs"].is_number());
    let before = far.logins();
    let mut attach = start(&far.near, &["attach", "--on", "far"]);
    assert_eq!(line(&mut lines(attach.stdout.take().unwrap())), "ready");
    assert_eq!(far.logins(), before + 1);
    wait_until_listed(&far.home, "a command that is kept", |process| process["expiresAtMs"].is_null());
    attach.kill().unwrap();
    attach.ended();
}

#[test]
fn prune_keeps_a_command_whose_client_may_reconnect() {
    let home = Home::new();
    let server = Server::start();
    let proxy = DisconnectingProxy::start(server.address(), &never_again());
    let go = home.path("go");
    let script = format!("echo ready; until [ -e {} ]; do sleep 0.05; done; echo done", go.display());
    let args =
        ["run", "--on", proxy.address(), "--name", "job", "--reconnect", "6h", "--", "sh", "-c", &script];
    let mut run = start(&home, &args);
    let (mut out, mut err) = (lines(run.stdout.take().unwrap()), lines(run.stderr.take().unwrap()));
    assert_eq!(line(&mut out), "ready");
    proxy.cut();
    assert!(line(&mut err).starts_with("remex: connection lost; "));
    fs::write(&go, "").unwrap();
    let on = ["--on", server.address()];
    assert_eq!(home.say(&[&["wait"], &on[..], &["job"]].concat()).code, Some(0));
    assert_eq!(
        home.say(&[&["run", "--detach", "--name", "other"], &on[..], &["--", "true"]].concat()).code,
        Some(0)
    );
    assert_eq!(home.say(&[&["wait"], &on[..], &["other"]].concat()).code, Some(0));
    let pruned = home.say(&[&["prune"], &on[..]].concat());
    assert_eq!(pruned.out, "removed `other` (it exited with code 0)\n", "{pruned:?}");
    assert_eq!(home.say(&[&["logs"], &on[..], &["job"]].concat()).out, "ready\ndone\n");
    run.kill().unwrap();
    run.ended();
}

#[test]
fn a_signal_during_a_disconnect_reports_what_keeps_running() {
    let home = Home::new();
    let server = Server::start();
    let proxy = DisconnectingProxy::start(server.address(), &never_again());
    let script = "echo ready; exec sleep 1000";
    let mut run = start(&home, &["run", "--on", proxy.address(), "--", "sh", "-c", script]);
    let (mut out, mut err) = (lines(run.stdout.take().unwrap()), lines(run.stderr.take().unwrap()));
    assert_eq!(line(&mut out), "ready");
    proxy.cut();
    let told = line(&mut err);
    assert!(told.starts_with("remex: connection lost; "), "{told}");
    signal(&run, Signal::TERM);
    assert_eq!(run.ended().code(), Some(143));
    let told = line(&mut err);
    assert!(told.contains("without a connection; its server keeps it for another 59 min 5"), "{told}");
    assert!(told.contains("come back with `remex attach --on "), "{told}");
}

#[test]
fn the_reconnect_time_can_be_chosen_and_a_shorter_server_limit_is_reported() {
    let home = Home::new();
    let server = Server::serve(&["--listen", "ws://127.0.0.1:0", "--max-detach-ttl", "2h"]);
    let said = home.say(&["run", "--on", server.address(), "--reconnect", "2h", "--", "true"]);
    assert_eq!((said.code, said.err.as_str()), (Some(0), ""));
    let said = home.say(&["run", "--on", server.address(), "--reconnect", "7d", "--", "true"]);
    let less = |wanted: &str| {
        format!(
            "keeps processes for at most 2 h without a connection, not {wanted} (`--max-detach-ttl` of its server)\n"
        )
    };
    assert!(said.err.ends_with(&less("for 7 d")), "{said:?}");
    home.add_environment("build", server.address());
    let said = home.say(&["run", "--on", "build", "--", "true"]);
    assert_eq!((said.code, said.err.as_str()), (Some(0), ""), "an hour is a default, not a wish");
    assert_eq!(home.say(&["env", "set", "build", "--reconnect", "forever"]).code, Some(0));
    let file = fs::read_to_string(home.environments()).unwrap();
    assert!(file.contains("reconnect_timeout_sec = \"forever\""), "{file}");
    let listing: Value = serde_json::from_str(&home.say(&["env", "list", "--json"]).out).unwrap();
    assert_eq!(listing["environments"][1]["reconnectTimeoutMs"], "forever");
    let said = home.say(&["run", "--on", "build", "--", "true"]);
    assert!(said.err.ends_with(&format!("remex: build {}", less("forever"))), "{said:?}");
    let said = home.say(&["run", "--on", "build", "--reconnect", "5 minutes", "--", "true"]);
    assert_eq!(said.code, Some(2));
    assert!(said.err.contains("it is neither a number with a unit nor `forever`"), "{said:?}");

    assert_eq!(home.say(&["env", "set", "build", "--reconnect", "1ms"]).code, Some(0));
    let mut run = start(&home, &["run", "--on", "build", "--", "sh", "-c", "echo ready; exec sleep 1000"]);
    let mut out = lines(run.stdout.take().unwrap());
    assert_eq!(line(&mut out), "ready");
    server.signal(Signal::KILL);
    let ended = run.finished();
    let said = said_of(&ended);
    assert_eq!(ended.status.code(), Some(125), "{said}");
    assert!(said.contains("could not be re-established within 1ms"), "{said}");
    assert!(said.contains("hint: use `--reconnect forever` or `remex run --detach`"), "{said}");
}

fn said_of(output: &std::process::Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn the_status_line_shows_the_cause_and_the_elapsed_and_remaining_time() {
    let home = Home::new();
    let server = Server::start();
    let proxy = DisconnectingProxy::start(server.address(), &[u64::MAX, 0, 0, 0, 0, 0, 0, 0, 0]);
    let script = "printf 'half a line'; read x";
    let mut screen = Screen::remex(&home, &["run", "-i", "--on", proxy.address(), "--", "sh", "-c", script]);
    screen.wait_for("half a line");
    proxy.cut();
    // It is one line, below the output, which a second later says more.
    screen.wait_until("a status line that has changed", |screen| {
        let mut lines = screen.lines();
        let status = lines.nth(1).unwrap_or_default();
        screen.starts_with("half a line\n")
            && status.starts_with("remex: connection lost ")
            && !status.starts_with("remex: connection lost 0.1 s ago")
            && status.contains(" ago; reconnecting for another 59 min 5")
            && lines.all(str::is_empty)
    });
    screen.wait_until("the end of the disconnect in its place", |screen| {
        screen.contains("half a line\nremex: reconnected after ") && !screen.contains("connection lost")
    });
    screen.keys("\r");
    assert_eq!(screen.end(), Some(0));
}

#[test]
fn ctrl_c_during_a_disconnect_detaches_from_a_shell() {
    let home = Home::new();
    let server = Server::start();
    let proxy = DisconnectingProxy::start(server.address(), &never_again());
    let args = ["run", "--on", proxy.address(), "-t", "--name", "work", "--", "sh", "-c", "echo ready; cat"];
    let mut screen = Screen::remex(&home, &args);
    screen.wait_for("ready");
    proxy.cut();
    screen.wait_for("connection lost");
    screen.keys("typed\r\x03");
    screen.wait_until("what Ctrl-C does", |screen| {
        let screen = screen.replace('\n', "");
        screen.contains("not connected; Ctrl-C again leaves `work`, `remex attach --on ws://")
    });
    screen.keys("\x03");
    assert_eq!(screen.end(), Some(130));
    assert!(
        screen
            .wait_for("left `work` without")
            .replace('\n', "")
            .contains("come back with `remex attach --on ")
    );
}

#[test]
fn input_pasted_with_ctrl_c_during_a_disconnect_arrives() {
    let home = Home::new();
    let server = Server::start();
    let proxy = DisconnectingProxy::start(server.address(), &[u64::MAX, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    let script = "stty -echo; echo ready; read -r a; read -r b; read -r c; echo \"got $a $b $c\"";
    let screen = Screen::remex(&home, &["run", "--on", proxy.address(), "-t", "--", "sh", "-c", script]);
    screen.wait_for("ready");
    proxy.cut();
    screen.wait_for("connection lost");
    screen.keys("first\rsec\x03ond\r");
    screen.wait_for("not connected; Ctrl-C again leaves");
    screen.keys("third\r");
    screen.wait_for("got first second third");
}

/// A full-screen program that says how often it has drawn.
const FULL_SCREEN: &str = r#"
n=0
draw() { printf '\033[H\033[2J'; for i in 1 2 3; do printf 'line %s of drawing %s\r\n' $i $n; done; printf '\033[2;1H'; }
trap 'n=$((n + 1)); draw' WINCH
trap 'printf "\033[?1049l"; exit 0' USR1
printf '\033[?25l\033[?1049h'; draw
while :; do read x && { printf '\033[?1049lbye\r\n'; exit 0; }; done
"#;

#[test]
fn a_full_screen_program_is_not_garbled_by_a_disconnect_and_redraws() {
    let home = Home::new();
    let server = Server::start();
    let proxy = DisconnectingProxy::start(server.address(), &[u64::MAX, 0, 0, 0, 0, 0, 0]);
    let mut screen =
        Screen::remex(&home, &["run", "--on", proxy.address(), "-t", "--", "sh", "-c", FULL_SCREEN]);
    screen.wait_for("line 3 of drawing 0");
    proxy.cut();
    let lost = screen.wait_until("the status on the last row", |screen| screen.contains("connection lost"));
    let lines: Vec<_> = lost.lines().collect();
    assert_eq!(lines[..3], ["line 1 of drawing 0", "line 2 of drawing 0", "line 3 of drawing 0"], "{lost}");
    assert!(lines.len() == 24 && lines[23].starts_with("remex: connection lost "), "{lost}");
    // One drawing for each of two sizes, and nothing else is left.
    screen.wait_until("a new drawing", |screen| {
        screen.trim_end() == "line 1 of drawing 2\nline 2 of drawing 2\nline 3 of drawing 2"
    });
    assert!(!screen.raw().contains("\nremex: "), "{:?}", screen.raw());
    screen.keys("\r");
    screen.wait_for("bye");
    assert_eq!(screen.end(), Some(0));
}

#[test]
fn a_shell_logs_in_once_and_detaches_without_a_login() {
    let Some(far) = SshHost::start() else { return };
    let mut screen = Screen::remex(&far.near, &["shell", "--on", "far", "--name", "work"]);
    screen.keys("echo a''b\r");
    screen.wait_for("ab");
    screen.keys("~.");
    screen.wait_for("detached; `work` keeps running");
    assert_eq!(screen.end(), Some(0));
    assert_eq!(far.logins(), 1);
}

/// Waits until ssh has asked this often.
fn asked(screen: &Screen, count: usize) -> String {
    screen.wait_until(&format!("{count} questions"), |screen| {
        screen.matches("Enter passphrase for key").count() == count
    })
}

#[test]
fn an_interactive_login_is_repeated_after_a_disconnect_and_the_screen_is_restored() {
    let Some(far) = SshHost::start() else { return };
    far.set_passphrase(PASSPHRASE);
    let mut screen = Screen::remex(&far.near, &["run", "--on", "far", "-t", "--", "sh", "-c", FULL_SCREEN]);
    asked(&screen, 1);
    screen.keys(&format!("{PASSPHRASE}\r"));
    screen.wait_for("line 3 of drawing 0");
    far.cut();
    let shown = asked(&screen, 2);
    assert!(shown.contains("log in again to go on with `sh-"), "{shown}");
    assert!(!shown.contains("drawing"), "the screen of the program is suspended: {shown}");
    // ssh gives up after the third time.
    for count in 2..=4 {
        asked(&screen, count);
        screen.keys("wrong\r");
    }
    screen.wait_for("press Enter to try again");
    screen.keys("\r");
    asked(&screen, 5);
    screen.keys(&format!("{PASSPHRASE}\r"));
    screen.wait_until("a new drawing", |screen| {
        screen.trim_end() == "line 1 of drawing 2\nline 2 of drawing 2\nline 3 of drawing 2"
    });
    assert!(!screen.raw().contains(PASSPHRASE));
    // The keys are those of the program again.
    screen.keys("\r");
    screen.wait_for("bye");
    assert_eq!(screen.end(), Some(0));
}

#[test]
fn an_interactive_login_waits_until_the_command_is_in_the_foreground() {
    let Some(far) = SshHost::start() else { return };
    let screen = Screen::open(&far.near, "bash", &["--norc", "--noediting", "-i"]);
    let script = "echo rea''dy; until [ -e go ]; do sleep 0.05; done; echo fini''shed";
    screen.keys(&format!("PS1='$ '; remex run --on far -- sh -c \"{script}\" &\r"));
    screen.wait_for("ready");
    far.set_passphrase(PASSPHRASE);
    far.cut();
    screen.wait_until("what to do", |screen| {
        screen
            .replace('\n', "")
            .contains("in the background; bring it to the foreground, as with `fg`, to log in")
    });
    // The shell has the terminal: it is not drawn over.
    screen.keys("echo mi''ne\r");
    screen.wait_for("\nmine");
    screen.keys("fg\r");
    asked(&screen, 1);
    screen.keys(&format!("{PASSPHRASE}\r"));
    screen.wait_for("reconnected after");
    fs::write(far.home.path("go"), "").unwrap();
    screen.wait_for("finished");
    assert!(!screen.raw().contains(PASSPHRASE));
}

#[test]
fn ctrl_c_at_the_login_after_a_disconnect_detaches() {
    let Some(far) = SshHost::start() else { return };
    far.set_passphrase(PASSPHRASE);
    let script = "echo ready; exec sleep 1000";
    let mut screen = Screen::remex(&far.near, &["run", "--on", "far", "--", "sh", "-c", script]);
    screen.wait_for("Enter passphrase for key");
    screen.keys(&format!("{PASSPHRASE}\r"));
    screen.wait_for("\nready");
    far.cut();
    asked(&screen, 2);
    assert_eq!(screen.end_by("\x03"), Some(130), "{}", screen.raw());
    let told = screen.wait_for("without a connection").replace('\n', "");
    assert!(told.contains("come back with `remex attach --on far sh-"), "{told}");
}

#[test]
fn without_a_terminal_a_failed_login_is_reported_at_once_with_a_hint() {
    let Some(far) = SshHost::start() else { return };
    let mut command = std::process::Command::new("setsid");
    let script = "echo ready; exec sleep 1000";
    command.args([env!("CARGO_BIN_EXE_remex"), "run", "--on", "far", "--", "sh", "-c", script]);
    far.near.dress(&mut command);
    let mut run = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let (mut out, mut err) = (lines(run.stdout.take().unwrap()), lines(run.stderr.take().unwrap()));
    assert_eq!(line(&mut out), "ready");
    far.set_passphrase(PASSPHRASE);
    far.cut();
    let told = line(&mut err);
    assert!(told.starts_with("remex: connection lost; reconnecting for 1 h: "), "{told}");
    let told = line(&mut err);
    assert!(told.starts_with("remex: cannot reconnect: ") && told.contains("Permission denied"), "{told}");
    assert!(told.contains("; run `ssh far true` at a terminal"), "{told}");
    run.kill().unwrap();
    run.wait().unwrap();
}

/// Restarts a process as soon as the server has seen that its client is gone.
fn restart(home: &Home, address: &str, name: &str) {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let said = home.say(&["restart", "--grace", "0", "--on", address, name]);
        if said.code == Some(0) {
            return;
        }
        assert!(said.err.contains("is still connected"), "{said:?}");
        assert!(Instant::now() < deadline, "waited until `{name}` can be restarted: {said:?}");
    }
}

#[test]
fn a_client_disconnected_during_a_restart_is_told_and_shown_nothing_of_the_new_process() {
    let home = Home::new();
    let server = Server::start();
    let proxy = DisconnectingProxy::start(server.address(), &[]);
    let again = home.path("again");
    let script = format!("[ -e {} ] && seq 100 || echo old; cat; exec sleep 1000", again.display());
    let sh = ["--", "sh", "-c", &script];
    let detached = ["run", "-d", "--on", server.address(), "--name", "worker"];
    assert_eq!(home.say(&[&detached[..], &sh].concat()).code, Some(0));
    let run = home.remex(&[&["run", "--on", proxy.address(), "--name", "web"][..], &sh].concat());
    let shows = [
        ("web", run, "remex attach --on"),
        ("worker", home.remex(&["logs", "-f", "--on", proxy.address(), "worker"]), "remex logs -f worker"),
        ("worker", home.remex(&["attach", "--on", proxy.address(), "worker"]), "remex attach --on"),
    ];
    for (name, mut shown, command) in shows {
        let _ = fs::remove_file(&again);
        if command.contains("attach") && name == "worker" {
            restart(&home, server.address(), name);
        }
        let streams = shown.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut shown = streams.spawn().unwrap();
        let (mut out, mut err) = (lines(shown.stdout.take().unwrap()), lines(shown.stderr.take().unwrap()));
        assert_eq!(line(&mut out), "old");
        signal(&shown, Signal::STOP);
        proxy.cut();
        fs::write(&again, "").unwrap();
        restart(&home, server.address(), name);
        // The first one would have got it.
        let _ = std::io::Write::write_all(&mut shown.stdin.take().unwrap(), b"rest\n");
        signal(&shown, Signal::CONT);
        assert_eq!(shown.ended().code(), Some(123), "{name} with {command}");
        let (mut said, mut told) = (String::new(), String::new());
        out.read_to_string(&mut said).unwrap();
        err.read_to_string(&mut told).unwrap();
        assert_eq!(said, "", "{told}");
        let expected = format!("`{name}` was restarted while this client was disconnected");
        assert!(told.contains(&expected) && told.contains(&format!("`{command}")), "{told}");
        let numbers: String = (1..=100).map(|number| format!("{number}\n")).collect();
        assert_eq!(home.say(&["logs", "--on", server.address(), name]).out, numbers);
    }
    assert_eq!(home.say(&["kill", "--tree", "--on", server.address(), "web", "worker"]).code, Some(0));
}
