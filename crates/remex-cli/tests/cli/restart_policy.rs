//! `remex run --restart`: when a command is run again, and when not.

use std::{
    fs,
    io::{BufRead as _, BufReader, Read as _},
    os::unix::fs::PermissionsExt as _,
    process::Stdio,
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::{
    home::{Home, Said},
    screen::Screen,
    support::{InTime as _, PATIENCE, Server, Watched},
};

/// Prints and counts its runs in the file `runs`, and succeeds in the third.
const THIRD_TIME: &str = "echo run; echo run >> runs; [ $(wc -l < runs) = 3 ] || exit 3";

/// Waits until the output of a process ends like this.
fn await_output(home: &Home, name: &str, end: &str) {
    let deadline = Instant::now() + PATIENCE;
    while !home.say(&["logs", name]).out.ends_with(end) {
        assert!(Instant::now() < deadline, "waited for {end:?} in the output of `{name}`");
    }
}

#[test]
fn a_failing_command_is_restarted_until_it_succeeds() {
    let home = Home::new();
    let server = Server::start();
    let directory = home.path("").display().to_string();
    for place in [&[][..], &["--on", server.address()]] {
        let command = ["--restart", "on-failure", "--cwd", &directory, "--", "sh", "-c", THIRD_TIME];
        let said = home.say(&[&["run"], place, &command].concat());
        let err = "remex: `sh` exited with code 3; restarting in 100ms (1)\n\
                   remex: `sh` exited with code 3; restarting in 200ms (2)\n";
        assert_eq!(said, Said { code: Some(0), out: "run\nrun\nrun\n".to_owned(), err: err.to_owned() });
        fs::remove_file(home.path("runs")).unwrap();
        let lost =
            home.say(&[&["run"], place, &["--restart", "always", "--cwd", "/none", "--", "true"]].concat());
        assert!(lost.err.contains("cannot start `true` in `/none`"), "{lost:?}");
    }
}

#[test]
fn after_the_last_restart_the_exit_code_is_that_of_the_last_run() {
    let home = Home::new();
    let run = |policy, script| home.say(&["run", "--restart", policy, "--", "sh", "-c", script]);
    let failed = run("on-failure:2", "exit 7");
    let err = "remex: `sh` exited with code 7; restarting in 100ms (1 of 2)\n\
               remex: `sh` exited with code 7; restarting in 200ms (2 of 2)\n\
               remex: `sh` exited with code 7; it is not run again after 2 restarts\n";
    assert_eq!(failed, Said { code: Some(7), out: String::new(), err: err.to_owned() });
    let killed = run("on-failure:1", "kill -9 $$");
    assert_eq!(killed.code, Some(137), "{killed:?}");
    assert!(killed.err.contains("`sh` was ended by signal 9; restarting in 100ms (1 of 1)"), "{killed:?}");
    let always = run("always:1", "echo hello");
    assert_eq!((always.code, always.out.as_str()), (Some(0), "hello\nhello\n"), "{always:?}");
    let good = run("on-failure", "echo hello");
    assert_eq!(good, Said { code: Some(0), out: "hello\n".to_owned(), err: String::new() });
}

#[test]
fn low_limits_apply_to_the_command_and_not_to_its_supervisor() {
    let home = Home::new();
    let limits = ["--limit", "memory=16M", "--limit", "files=7"];
    let script = ["--", "bash", "-c", "ulimit -v; ulimit -n; exit 3"];
    let alone = home.say(&[&["run"], &limits[..], &script].concat());
    assert!(alone.out.ends_with("\n7\n"), "{alone:?}");
    let said = home.say(&[&["run", "--restart", "on-failure:1"], &limits[..], &script].concat());
    assert_eq!((said.code, said.out), (Some(3), alone.out.repeat(2)), "{}", said.err);
}

#[test]
fn a_command_that_cannot_be_executed_is_not_restarted() {
    let home = Home::new();
    for (program, code) in [("no-such-program", 127), ("/etc/passwd", 126)] {
        let said = home.say(&["run", "--restart", "always", "--", program]);
        assert_eq!(said.code, Some(code), "{said:?}");
        assert!(said.err.starts_with(&format!("remex: cannot run `{program}`: ")), "{said:?}");
        assert!(!said.err.contains("restarting"), "{said:?}");
    }
    let text = home.path("text");
    fs::write(&text, "echo from a shell\n").unwrap();
    fs::set_permissions(&text, fs::Permissions::from_mode(0o755)).unwrap();
    let said = home.say(&["run", "--restart", "always", "--", &text.display().to_string()]);
    assert_eq!((said.code, said.out.as_str()), (Some(126), ""), "{said:?}");
    for (policy, part) in [("sometimes", "`on-failure`"), ("on-failure:many", "`on-failure:5`")] {
        let said = home.say(&["run", "--restart", policy, "--", "true"]);
        assert_eq!(said.code, Some(2), "{said:?}");
        assert!(said.err.contains(part), "{said:?}");
    }
}

#[test]
fn a_command_is_not_restarted_after_sigterm() {
    let home = Home::new();
    let script = "trap 'echo bye; exit 5' TERM; echo ready; while :; do sleep 0.02; done";
    let mut child = home
        .remex(&["run", "--restart", "always", "--", "sh", "-c", script])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut out = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    out.read_line(&mut line).unwrap();
    assert_eq!(line, "ready\n");
    kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
    let mut rest = String::new();
    out.read_to_string(&mut rest).unwrap();
    let output = child.finished();
    assert_eq!((output.status.code(), rest.as_str()), (Some(5), "bye\n"));
    // The shell may report the end of `sleep`.
    assert!(!String::from_utf8_lossy(&output.stderr).contains("restarting"), "{output:?}");
}

#[test]
fn a_signal_handled_by_the_command_does_not_end_its_supervisor() {
    let home = Home::new();
    let script = "trap 'echo usr1; exit 0' USR1; echo ready; while :; do sleep 0.02; done";
    let started =
        home.say(&["run", "-d", "--name", "x", "--restart", "on-failure", "--", "sh", "-c", script]);
    assert_eq!(started.code, Some(0), "{started:?}");
    await_output(&home, "x", "ready\n");
    let sent = home.say(&["kill", "-s", "USR1", "x"]);
    assert_eq!(sent.code, Some(0), "{sent:?}");
    let ended = home.say(&["wait", "x"]);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert_eq!(home.say(&["logs", "x"]).out, "ready\nusr1\n");
}

#[test]
fn a_signal_sent_to_the_command_alone_restarts_it() {
    let home = Home::new();
    let directory = home.path("").display().to_string();
    for signal in ["ABRT", "TRAP", "FPE", "ILL", "SYS", "SEGV", "BUS", "KILL"] {
        let script =
            format!("[ ! -e {signal} ] || {{ echo again; exit 0; }}; : > {signal}; echo $$; exec sleep 1000");
        let args = ["run", "-d", "--name", signal, "--cwd", &directory, "--restart", "always:1"];
        assert_eq!(home.say(&[&args[..], &["--", "sh", "-c", &script]].concat()).code, Some(0));
        await_output(&home, signal, "\n");
        let command = Watched::printed(home.say(&["logs", signal]).out.trim());
        if signal == "KILL" {
            command.signal(Signal::KILL);
        } else {
            assert_eq!(home.say(&["kill", "-s", signal, signal]).code, Some(0));
        }
        await_output(&home, signal, "\nagain\n");
    }
}

#[test]
fn a_signal_before_a_restart_is_reported_to_have_prevented_it() {
    let home = Home::new();
    let started = home.say(&["run", "-d", "--name", "x", "--restart", "always", "--", "sh", "-c", "exit 4"]);
    assert_eq!(started.code, Some(0), "{started:?}");
    let deadline = Instant::now() + PATIENCE;
    while !home.say(&["logs", "x"]).err.contains("restarting in 3.2s") {
        assert!(Instant::now() < deadline, "waited for a long delay");
    }
    assert_eq!(home.say(&["kill", "-s", "TERM", "x"]).code, Some(0));
    assert_eq!(home.say(&["wait", "x"]).code, Some(4));
    let said = home.say(&["logs", "x"]).err;
    assert!(said.ends_with("remex: signal 15 came; `sh` is not run again\n"), "{said}");
}

#[test]
fn a_command_that_survives_sighup_is_restarted_when_it_fails_later() {
    let home = Home::new();
    let script = "[ ! -e runs ] || { echo again; exit 0; }; : > runs; trap 'echo reload' HUP; echo ready; \
                  until [ -e later ]; do sleep 0.1; done; exit 1";
    let directory = home.path("").display().to_string();
    let args = ["run", "-d", "--name", "x", "--cwd", &directory, "--restart", "on-failure"];
    assert_eq!(home.say(&[&args[..], &["--", "sh", "-c", script]].concat()).code, Some(0));
    await_output(&home, "x", "ready\n");
    assert_eq!(home.say(&["kill", "-s", "HUP", "x"]).code, Some(0));
    let handled = Instant::now();
    await_output(&home, "x", "reload\n");
    // So long the signal would stop the restarts; a command that runs on for a while is what this is about.
    while handled.elapsed() < Duration::from_secs(11) {
        home.say(&["ps"]);
    }
    fs::write(home.path("later"), "").unwrap();
    await_output(&home, "x", "again\n");
}

#[test]
fn a_command_that_exits_soon_after_sighup_is_not_restarted_and_that_is_reported() {
    let home = Home::new();
    let script = "trap 'exit 3' HUP; echo ready; while :; do sleep 0.02; done";
    let started = home.say(&["run", "-d", "--name", "x", "--restart", "always", "--", "sh", "-c", script]);
    assert_eq!(started.code, Some(0), "{started:?}");
    await_output(&home, "x", "ready\n");
    assert_eq!(home.say(&["kill", "-s", "HUP", "x"]).code, Some(0));
    assert_eq!(home.say(&["wait", "x"]).code, Some(3));
    let said = home.say(&["logs", "x"]);
    let all = format!("{}{}", said.out, said.err);
    assert!(all.contains("`sh` exited with code 3 after signal 1; it is not run again"), "{said:?}");
}

#[test]
fn a_command_in_its_own_group_gets_signals_and_does_not_outlive_its_supervisor() {
    let home = Home::new();
    let script = "trap 'echo usr1' USR1; echo ready $$; while :; do sleep 0.02; done";
    let args = ["run", "-d", "--name", "x", "--restart", "on-failure", "--", "setsid", "sh", "-c", script];
    assert_eq!(home.say(&args).code, Some(0));
    await_output(&home, "x", "\n");
    let out = home.say(&["logs", "x"]).out;
    let command = Watched::printed(out.trim().strip_prefix("ready ").expect("it is ready"));
    assert_eq!(home.say(&["kill", "-s", "USR1", "x"]).code, Some(0));
    await_output(&home, "x", "usr1\n");
    assert_eq!(home.say(&["kill", "-s", "KILL", "x"]).code, Some(0));
    command.assert_ends();
}

#[test]
fn each_run_starts_with_the_original_terminal_settings() {
    let home = Home::new();
    // The first run leaves the terminal raw and another group, of a job that has ended, in its foreground.
    let script = "if [ ! -e runs ]; then : > runs; stty raw -echo; \
                  exec bash -c 'set -m; sh -c \"kill -9 \\$PPID\"; :'; fi; \
                  echo again; read -r line; echo \"got <$line>\"";
    let mut screen =
        Screen::remex(&home, &["run", "-t", "--restart", "on-failure:1", "--", "sh", "-c", script]);
    screen.wait_for("was ended by signal 9; restarting in 100ms (1 of 1)\nagain");
    screen.keys("hello\r");
    screen.wait_for("got <hello>");
    assert_eq!(screen.end(), Some(0));
}

#[test]
fn ctrl_c_on_a_terminal_reaches_the_command_and_stops_restarts() {
    let home = Home::new();
    let mut screen = Screen::remex(
        &home,
        &["run", "-t", "--restart", "always", "--", "sh", "-c", "echo ready; exec sleep 1000"],
    );
    screen.wait_for("ready");
    screen.keys("\x03");
    assert_eq!(screen.end(), Some(130));
    assert!(!screen.raw().contains("restarting"), "{}", screen.raw());
}

#[test]
fn a_supervised_process_is_listed_as_its_command_and_killed_with_its_supervisor() {
    let home = Home::new();
    let args =
        ["run", "-d", "--name", "x", "--restart", "always", "--", "sh", "-c", "echo $$; exec sleep 1000"];
    assert_eq!(home.say(&args).code, Some(0));
    await_output(&home, "x", "\n");
    let command = Watched::printed(home.say(&["logs", "x"]).out.trim());
    let listed: Value = serde_json::from_str(&home.say(&["ps", "--json"]).out).unwrap();
    let process = &listed["processes"][0];
    assert_eq!(process["argv"], serde_json::json!(["sh", "-c", "echo $$; exec sleep 1000"]), "{listed}");
    let supervisor = Watched::printed(&process["pid"].to_string());
    let killed = home.say(&["kill", "--tree", "x"]);
    assert_eq!(killed.code, Some(0), "{killed:?}");
    command.assert_ends();
    supervisor.assert_ends();
}

#[test]
fn a_sandbox_that_hides_the_supervisor_is_refused_with_the_flag_that_shows_it() {
    let home = Home::new();
    let program = fs::canonicalize(env!("CARGO_BIN_EXE_remex")).unwrap().display().to_string();
    let run = |sandbox: &[&str]| {
        let command = ["--restart", "on-failure:1", "--", "sh", "-c", "echo run; exit 4"];
        home.say(&[&["run", "--sandbox"], sandbox, &command].concat())
    };
    let hidden = run(&["minimal", "--read", "."]);
    assert_eq!(hidden.code, Some(125), "{hidden:?}");
    assert!(hidden.err.contains(&format!("hides `{program}`")), "{hidden:?}");
    assert!(hidden.err.contains(&format!("`remex run --read {program}`")), "{hidden:?}");
    for sandbox in [&["minimal", "--read", ".", "--read", &program][..], &["read-only"], &["workspace-write"]]
    {
        let said = run(sandbox);
        assert_eq!((said.code, said.out.as_str()), (Some(4), "run\nrun\n"), "{said:?}");
    }
}
