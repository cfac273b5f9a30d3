//! What was left running, and coming back to it: `run --detach`, `attach`, `shell`.

use std::{
    fs,
    io::{BufRead as _, BufReader, Read as _},
    os::unix::fs::PermissionsExt as _,
    process::Stdio,
    time::{Duration, Instant},
};

use rustix::{
    process::{Pid, Signal, kill_process},
    termios::SpecialCodeIndex,
};

use crate::{
    home::{Home, said},
    screen::{Screen, hang_up},
    support::{InTime as _, PATIENCE, Patient, Server, Watched},
};

#[test]
fn a_background_command_starts_the_local_server_on_demand() {
    let home = Home::new();
    assert!(!home.own_socket().exists());
    let said =
        home.say(&["run", "--detach", "--name", "build", "--", "sh", "-c", "echo $MINE; exec sleep 1000"]);
    assert_eq!((said.code, said.out.as_str(), said.err.as_str()), (Some(0), "build\n", ""));
    assert!(home.own_socket().exists());
    let directory = home.own_socket().parent().unwrap().metadata().unwrap();
    assert_eq!(directory.permissions().mode() & 0o777, 0o700);
    // A second one finds the server, and gets a name of its own.
    let said = home.say(&["run", "--detach", "--", "sleep", "1000"]);
    assert!(said.out.starts_with("sleep-"), "{said:?}");
}

#[test]
fn concurrent_commands_start_one_local_server() {
    let home = Home::new();
    let start = || home.remex(&["run", "--detach", "--", "sh", "-c", "echo $PPID"]);
    let children: Vec<_> = (0..4).map(|_| start().stdout(Stdio::piped()).spawn().unwrap()).collect();
    let mut names = Vec::new();
    for child in children {
        let output = child.finished();
        assert!(output.status.success());
        names.push(String::from_utf8(output.stdout).unwrap().trim().to_owned());
    }
    let logs = |name: &String| home.say(&["logs", "--follow", name]).out;
    let parents: Vec<_> = names.iter().map(logs).collect();
    assert!(parents.iter().all(|parent| !parent.is_empty() && *parent == parents[0]), "{parents:?}");
}

#[test]
fn a_background_command_has_the_environment_and_directory_of_the_caller() {
    let home = Home::new();
    home.say(&["run", "--detach", "--name", "first", "--", "true"]);
    let mut command =
        home.remex(&["run", "--detach", "--name", "second", "--", "sh", "-c", "echo $API_TOKEN; pwd"]);
    command.env("API_TOKEN", "mine").current_dir("/usr");
    assert!(command.finished().status.success());
    assert_eq!(home.say(&["wait", "second"]).code, Some(0));
    assert_eq!(home.say(&["logs", "second"]).out, "mine\n/usr\n");
}

#[test]
fn a_name_can_be_reused_once_its_command_has_exited() {
    let home = Home::new();
    let start = |script| home.say(&["run", "--detach", "--name", "nightly", "--", "sh", "-c", script]);
    assert_eq!(start("exec sleep 1000").code, Some(0));
    let refused = start("true");
    assert_eq!(refused.code, Some(125));
    assert!(
        refused
            .err
            .starts_with("remex: cannot start `nightly`: a process with that name is already running\n")
    );
    assert_eq!(home.say(&["kill", "--tree", "nightly"]).code, Some(0));
    assert_eq!(start("exit 4").code, Some(0));
    assert_eq!(home.say(&["wait", "nightly"]).code, Some(4));
}

#[test]
fn attach_shows_earlier_and_new_output_and_returns_the_exit_code() {
    let home = Home::new();
    let script = "echo before; while ! test -e go; do sleep 0.05; done; echo after; exit 6";
    home.say(&["run", "--detach", "--name", "build", "--", "sh", "-c", script]);
    let child = home.remex(&["attach", "bui"]).stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
    fs::write(home.path("go"), "").unwrap();
    let output = child.finished();
    assert_eq!((output.status.code(), &output.stdout[..]), (Some(6), &b"before\nafter\n"[..]));
    // Also when it has ended.
    let said = home.say(&["attach", "build"]);
    assert_eq!((said.code, said.out.as_str()), (Some(6), "before\nafter\n"));
}

#[test]
fn detaching_leaves_the_process_running() {
    let home = Home::new();
    home.say(&[
        "run",
        "--detach",
        "-i",
        "--name",
        "reader",
        "--",
        "sh",
        "-c",
        "echo ready; read line; echo got $line",
    ]);
    for sent in [Signal::TERM, Signal::HUP] {
        let mut screen = Screen::remex(&home, &["attach", "reader"]);
        screen.wait_for("ready");
        kill_process(Pid::from_raw(screen.pid().try_into().unwrap()).unwrap(), sent).unwrap();
        assert_eq!(screen.end(), Some(0));
    }
    let mut screen = Screen::remex(&home, &["attach", "reader"]);
    screen.wait_for("ready");
    screen.keys("~.\r");
    screen.wait_for("`reader` keeps running");
    assert_eq!(screen.end(), Some(0));
    let mut screen = Screen::remex(&home, &["attach", "reader"]);
    screen.keys("a line\r");
    screen.wait_for("got a line");
    assert_eq!(screen.end(), Some(0));
}

#[test]
fn two_attached_clients_see_the_same_screen() {
    let home = Home::new();
    home.say(&["run", "--detach", "-t", "--name", "work", "--", "sh", "-c", "PS1='> ' exec sh -i"]);
    let (one, mut other) =
        (Screen::remex(&home, &["attach", "work"]), Screen::remex(&home, &["attach", "work"]));
    one.wait_for("> ");
    other.wait_for("> ");
    one.keys("echo o''ne\r");
    other.wait_for("one\n");
    other.keys("echo t''wo\r");
    one.wait_for("two\n");
    other.keys("exit\r");
    assert_eq!(other.end(), Some(0));
}

#[test]
fn a_shell_survives_a_closed_terminal() {
    let home = Home::new();
    let mut screen = Screen::remex(&home, &["shell", "--name", "work"]);
    screen.wait_for("# ");
    screen.keys("x=remem''bered; echo no''ted\r");
    screen.wait_for("noted");
    kill_process(Pid::from_raw(screen.pid().try_into().unwrap()).unwrap(), Signal::HUP).unwrap();
    assert_eq!(screen.end(), Some(0));
    let mut screen = Screen::remex(&home, &["attach", "work"]);
    screen.wait_for("# ");
    screen.keys("echo $x\r");
    screen.wait_for("remembered");
    screen.keys("exit 3\r");
    assert_eq!(screen.end(), Some(3));
}

#[test]
fn losing_the_terminal_loses_nothing_else() {
    let home = Home::new();
    for round in 0..4 {
        let name = format!("work-{round}");
        let mut child = hang_up(&home, &["shell", "--name", &name], "# ");
        assert_eq!(child.ended().code(), Some(0));
        let mut child = hang_up(&home, &["attach", &name], "# ");
        assert_eq!(child.ended().code(), Some(0));
        let mut screen = Screen::remex(&home, &["attach", &name]);
        screen.wait_for("# ");
        screen.keys("exit 4\r");
        assert_eq!(screen.end(), Some(4));
    }
}

#[test]
fn a_process_without_stdin_can_be_detached_from_after_typing() {
    let home = Home::new();
    home.say(&["run", "--detach", "--name", "deaf", "--", "sh", "-c", "echo ready; exec sleep 1000"]);
    let mut screen = Screen::remex(&home, &["attach", "deaf"]);
    screen.wait_for("ready");
    screen.keys("hello?\r");
    screen.wait_for("hello?");
    screen.keys("~.\r");
    screen.wait_for("`deaf` keeps running");
    assert_eq!(screen.end(), Some(0));
}

#[test]
fn attach_says_how_to_detach_and_the_keys_work_at_once_without_a_remote_terminal() {
    let home = Home::new();
    let script = "echo ready; while read line; do echo \"got $line\"; done";
    home.say(&["run", "--detach", "-i", "--name", "lines", "--", "sh", "-c", script]);
    let mut screen = Screen::remex(&home, &["attach", "lines"]);
    screen.wait_for("remex: attached to `lines`; ~. at the start of a line detaches, ~? shows help");
    screen.wait_for("ready");
    let before = screen.settings();
    // Lines with the character arrive as they are.
    screen.keys("a~b\r");
    screen.wait_for("got a~b");
    screen.keys("~");
    screen.keys("/bin\r");
    screen.wait_for("got ~/bin");
    assert_eq!(format!("{:?}", screen.settings()), format!("{before:?}"));
    screen.keys("~.");
    screen.wait_for("detached; `lines` keeps running");
    assert_eq!(screen.end(), Some(0));
}

#[test]
fn the_keys_work_at_once_after_ctrl_z_and_fg() {
    let home = Home::new();
    let script = "echo ready; while read line; do echo \"got $line\"; done";
    home.say(&["run", "--detach", "-i", "--name", "lines", "--", "sh", "-c", script]);
    let mut screen = Screen::open(&home, "bash", &["--norc", "--noediting", "-i"]);
    screen.keys("PS1='$ '; remex attach lines\r");
    screen.wait_for("\nready");
    screen.keys("\x1a");
    screen.wait_for("Stopped");
    screen.keys("fg\r");
    let deadline = Instant::now() + PATIENCE;
    while screen.settings().special_codes[SpecialCodeIndex::VEOL] != b'~' {
        assert!(Instant::now() < deadline, "waited for `~` to end a line; it shows {}", screen.raw());
        std::thread::yield_now();
    }
    screen.keys("~.");
    screen.wait_for("detached; `lines` keeps running");
    // Until the shell has the terminal again, keys are still those of the program that ends.
    screen.wait_until("the prompt", |screen| screen.trim_end().ends_with("keeps running\n$"));
    screen.keys("exit\r");
    screen.end();
}

#[test]
fn the_first_ctrl_c_asks_whether_to_detach_or_to_interrupt() {
    let home = Home::new();
    let script = "trap 'echo caught' INT; echo ready; while :; do sleep 0.05; done";
    home.say(&["run", "--detach", "--name", "work", "--", "sh", "-c", script]);
    let question = "d and Enter detaches and leaves it running";
    let mut screen = Screen::remex(&home, &["attach", "work"]);
    screen.wait_for("ready");
    screen.keys("\x03");
    screen.wait_for(question);
    screen.keys("d\r");
    screen.wait_for("detached; `work` keeps running");
    assert_eq!(screen.end(), Some(0));
    assert_eq!(home.say(&["logs", "work"]).out, "ready\n");
    for answer in ["i\r", "\x03"] {
        let mut screen = Screen::remex(&home, &["attach", "work"]);
        screen.wait_for("ready");
        screen.keys("\x03");
        screen.wait_for(question);
        screen.keys(answer);
        screen.wait_for("caught");
        screen.keys("\r~.");
        assert_eq!(screen.end(), Some(0));
    }
    // Any other line is for the process.
    let script = "echo ready; while read -r line; do echo \"got $line\"; done";
    home.say(&["run", "--detach", "-i", "--name", "reader", "--", "sh", "-c", script]);
    let mut screen = Screen::remex(&home, &["attach", "reader"]);
    screen.wait_for("ready");
    screen.keys("\x03");
    screen.wait_for(question);
    screen.keys("drop nothing\r");
    screen.wait_for("got drop nothing");
    screen.keys("~.");
    assert_eq!(screen.end(), Some(0));
    assert_eq!(home.say(&["kill", "--tree", "reader"]).code, Some(0));
    // For those who know.
    let mut screen = Screen::remex(&home, &["attach", "--ctrl-c", "detach", "work"]);
    screen.wait_for("ready");
    screen.keys("\x03");
    assert_eq!(screen.end(), Some(0));
    let screen = Screen::remex(&home, &["attach", "--ctrl-c", "interrupt", "work"]);
    screen.wait_for("ready");
    screen.keys("\x03");
    screen.wait_for("remex: interrupted; press Ctrl-C again");
    assert_eq!(home.say(&["kill", "--tree", "work"]).code, Some(0));
}

#[test]
fn running_a_shell_without_a_terminal_suggests_the_flag() {
    let home = Home::new();
    let mut screen = Screen::remex(&home, &["run", "--", "sh"]);
    screen.wait_for("for both, use `remex run -t -- sh`");
    assert_eq!(screen.end(), Some(0));
    let piped = home.say(&["run", "--", "sh"]);
    assert_eq!((piped.code, piped.err.as_str()), (Some(0), ""), "{piped:?}");
}

#[test]
fn ctrl_c_detaches_a_read_only_client() {
    let home = Home::new();
    home.say(&["run", "--detach", "-t", "--name", "work", "--", "sh", "-c", "echo ready; exec cat"]);
    let mut screen = Screen::remex(&home, &["attach", "--read-only", "work"]);
    screen.wait_for("ready");
    screen.keys("\x03");
    assert_eq!(screen.end(), Some(0));
    assert!(home.say(&["ps"]).out.contains("running"));
}

#[test]
fn a_process_paused_by_a_dead_client_continues_once_another_attaches() {
    let home = Home::new();
    let server = Server::start();
    let mut child = home
        .remex(&["run", "--on", server.address(), "--name", "flood", "--", "sh", "-c"])
        .args(["seq 1 1000000; exec sleep 1000"])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    // Held open to the end: who stops reading ends the command.
    let mut out = Patient::new(child.stdout.take().unwrap());
    out.read_exact(&mut [0; 2]).unwrap();
    // It is paused: its output is not read, and nothing may be lost.
    child.kill().unwrap();
    child.ended();
    let screen = Screen::remex(&home, &["attach", "--on", server.address(), "flood"]);
    screen.wait_for("\n1000000");
}

#[test]
fn a_server_that_ends_processes_with_the_connection_is_reported() {
    let home = Home::new();
    fs::write(
        home.environments(),
        "[[environments]]\nid = \"far\"\nprogram = \"remex\"\nargs = [\"serve\", \"--listen\", \"stdio\"]\n",
    )
    .unwrap();
    let said = home.say(&["run", "--on", "far", "--detach", "--", "sleep", "1000"]);
    assert_eq!(said.code, Some(125));
    assert_eq!(
        said.err,
        "remex: cannot keep processes running on far: its server ends them with the connection\n  hint: use \
         `remex proxy` instead of `remex serve --listen stdio` as its program, or connect to a socket\n"
    );
    assert_eq!(home.say(&["run", "--on", "far", "--", "echo", "hi"]).out, "hi\n");
}

#[test]
fn attach_needs_no_name_if_exactly_one_process_runs() {
    let home = Home::new();
    home.say(&["run", "--detach", "--name", "done", "--", "true"]);
    assert_eq!(home.say(&["wait", "done"]).code, Some(0));
    let none = home.say(&["attach"]);
    assert_eq!((none.code, none.err.lines().next()), (Some(125), Some("remex: no process is running")));
    let script = "echo only; while ! test -e go; do sleep 0.05; done; exit 6";
    home.say(&["run", "--detach", "--name", "one", "--", "sh", "-c", script]);
    let mut child = home.remex(&["attach"]).stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
    let mut shown = [0; 5];
    Patient::new(child.stdout.as_mut().unwrap()).read_exact(&mut shown).unwrap();
    assert_eq!(&shown, b"only\n");
    home.say(&["run", "--detach", "--name", "two", "--", "sleep", "1000"]);
    let several = home.say(&["attach"]);
    assert_eq!(several.code, Some(2), "{several:?}");
    assert!(several.err.starts_with("remex: several processes are running: one, two\n"), "{several:?}");
    fs::write(home.path("go"), "").unwrap();
    assert_eq!(child.ended().code(), Some(6));
}

#[test]
fn a_custom_escape_character_detaches_and_a_tilde_is_sent() {
    let home = Home::new();
    home.say(&["run", "--detach", "-t", "--name", "work", "--", "sh", "-c", "PS1='> ' exec sh -i"]);
    let mut screen = Screen::remex(&home, &["attach", "--escape", "^]", "work"]);
    screen.wait_for("> ");
    screen.keys("~.\r");
    screen.wait_for("not found");
    screen.keys("\x1d?");
    screen.wait_for("^]. detaches, ^]k ends the process and everything it started, ^]^] sends ^]");
    screen.keys("\x1d.");
    screen.wait_for("`work` keeps running");
    assert_eq!(screen.end(), Some(0));
    assert_eq!(home.say(&["attach", "--escape", "two", "work"]).code, Some(2));
}

#[test]
fn attach_redraws_the_screen_even_at_the_same_size() {
    let home = Home::new();
    // As programs do, it draws only if the size is another one when it looks.
    let script = "size=$(stty size); \
                  trap 'new=$(stty size); test \"$new\" = \"$size\" || echo drawn for $new; size=$new' WINCH; \
                  echo ready $size; while :; do sleep 0.05; done";
    home.say(&["run", "--detach", "-t", "--name", "screen", "--", "sh", "-c", script]);
    let log = Screen::remex(&home, &["logs", "--follow", "screen"]);
    log.wait_for("ready 24 80");
    let screen = Screen::remex(&home, &["attach", "screen"]);
    screen.wait_for("ready 24 80\ndrawn for 24 79\ndrawn for 24 80");
    // Also if the user detaches at once.
    let mut hasty = Screen::remex(&home, &["attach", "screen"]);
    hasty.wait_for("ready");
    hasty.keys("~.");
    assert_eq!(hasty.end(), Some(0));
    screen.wait_until("the old size again", |shown| shown.trim_end().ends_with("drawn for 24 80"));
}

/// What is said when the user's own server has died and its processes were kept.
const DIED: &str = "remex: your local remex server died: it was killed, it crashed, or the machine restarted; its processes \
                    and their output were kept, and the next command continues with them\n";

/// Kills the user's own server, and waits until it is gone.
fn kill_own_server(home: &Home) {
    let server = home.own_server().unwrap();
    let watched = Watched::find(server).unwrap();
    kill_process(server, Signal::KILL).unwrap();
    watched.assert_ends();
}

/// Leaves a process running that prints its pid, and `after` once the file `go` exists in the home; returns it.
fn leave_running(home: &Home, name: &str) -> Watched {
    let script = "echo $$; while [ ! -e go ]; do sleep 0.05; done; echo after; exit 7";
    assert_eq!(home.say(&["run", "--detach", "--name", name, "--", "sh", "-c", script]).code, Some(0));
    let mut logs = home.remex(&["logs", "--follow", name]).stdout(Stdio::piped()).spawn().unwrap();
    let mut pid = String::new();
    BufReader::new(Patient::new(logs.stdout.take().unwrap())).read_line(&mut pid).unwrap();
    logs.kill().unwrap();
    logs.ended();
    Watched::printed(pid.trim())
}

#[test]
fn the_next_command_recovers_the_processes_of_a_crashed_local_server() {
    let home = Home::new();
    let process = leave_running(&home, "build");
    kill_own_server(&home);
    let status = home.say(&["server", "status"]);
    assert_eq!(status.code, Some(3));
    assert_eq!(format!("remex: {}", status.out), DIED);
    let listed = home.say(&["ps", "-q"]);
    assert_eq!((listed.code, listed.out.as_str(), listed.err.as_str()), (Some(0), "build\n", DIED));
    assert!(!process.ended_within(Duration::ZERO), "it runs on");
    // Once there is a new one, the old one is no news.
    let started = home.say(&["run", "--detach", "--name", "next", "--", "sleep", "1000"]);
    assert_eq!((started.code, started.out.as_str(), started.err.as_str()), (Some(0), "next\n", ""));
    fs::write(home.path("go"), "").unwrap();
    let waited = home.say(&["wait", "build"]);
    assert_eq!(waited.code, Some(7), "{waited:?}");
    assert!(home.say(&["logs", "build"]).out.ends_with("\nafter\n"));
    let stopped = home.say(&["server", "stop", "--force"]);
    assert_eq!(stopped.code, Some(0), "{stopped:?}");
    assert_eq!(home.say(&["ps", "-q"]).out, "", "a server that was stopped leaves nothing");
}

#[test]
fn an_upgrade_of_the_local_server_keeps_its_pid_and_processes() {
    let home = Home::new();
    let process = leave_running(&home, "build");
    let server = home.own_server().unwrap();
    let upgraded = home.say(&["upgrade"]);
    assert_eq!((upgraded.code, upgraded.err.as_str()), (Some(0), ""));
    let pid = server.as_raw_nonzero();
    let said = format!("your local remex server (pid {pid}) now runs remex ");
    assert!(
        upgraded.out.starts_with(&said) && upgraded.out.ends_with("; 1 process runs on\n"),
        "{}",
        upgraded.out
    );
    assert_eq!(home.own_server().unwrap(), server);
    assert!(!process.ended_within(Duration::ZERO), "it runs on");
    fs::write(home.path("go"), "").unwrap();
    assert_eq!(home.say(&["wait", "build"]).code, Some(7));
    assert_eq!(home.say(&["server", "stop", "--force"]).code, Some(0));
    assert_eq!(home.say(&["upgrade"]).code, Some(3), "there is none any more");
}

#[test]
fn an_attached_client_survives_a_crash_of_the_local_server() {
    let home = Home::new();
    leave_running(&home, "build");
    let start = |args: &[&str]| {
        let mut command = home.remex(args);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut first = [0];
        Patient::new(child.stdout.as_mut().unwrap()).read_exact(&mut first).unwrap();
        child
    };
    let children = [start(&["attach", "build"]), start(&["logs", "--follow", "build"])];
    kill_own_server(&home);
    fs::write(home.path("go"), "").unwrap();
    for (child, code) in children.into_iter().zip([7, 0]) {
        let said = said(&child.finished());
        assert_eq!(said.code, Some(code), "{said:?}");
        assert!(said.out.ends_with("\nafter\n"), "{said:?}");
    }
}

#[test]
fn a_client_that_reconnects_to_a_new_local_server_continues() {
    let home = Home::new();
    leave_running(&home, "build");
    let mut command = home.remex(&["logs", "--follow", "build"]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    Patient::new(child.stdout.as_mut().unwrap()).read_exact(&mut [0]).unwrap();
    // It sleeps until there is another server.
    kill_process(Pid::from_child(&child), Signal::STOP).unwrap();
    kill_own_server(&home);
    assert_eq!(home.say(&["run", "--detach", "--", "sleep", "1000"]).code, Some(0));
    kill_process(Pid::from_child(&child), Signal::CONT).unwrap();
    fs::write(home.path("go"), "").unwrap();
    let said = said(&child.finished());
    assert_eq!(said.code, Some(0), "{said:?}");
    assert!(said.out.ends_with("\nafter\n"), "{said:?}");
}
