//! `ps`, `kill`, `wait`, `rm`, `server` and `resize`: listing and managing background processes.

use std::{
    fs,
    io::{BufRead as _, BufReader},
    net::TcpListener,
    os::unix::fs::DirBuilderExt as _,
    process::Stdio,
    sync::mpsc,
};

use serde_json::{Value, json};

use crate::{
    background_processes::{UserSession, out},
    home::{Home, Said, said},
    support::{InTime as _, PATIENCE, Patient, Server, Watched},
};

fn ended(code: i32, err: &str) -> Said {
    Said { code: Some(code), out: String::new(), err: err.to_owned() }
}

/// Long enough for `wait` to find the processes on a busy machine.
const SHORT_WAIT: &str = "5s";

/// Returns what `wait` says after its timeout about what still runs.
fn gave_up(after: &str) -> Said {
    let hint = "wait longer (`--timeout`), or look at the output with `remex logs`";
    ended(124, &format!("remex: gave up after {after} still running\n  hint: {hint}\n"))
}

/// Returns how a running process is described to people: with its name and its pid.
fn pid(user: &UserSession, name: &str) -> String {
    let listing: Value = serde_json::from_str(&out(user.say(&["ps", "--json"]))).unwrap();
    let processes = listing["processes"].as_array().unwrap();
    let process = processes.iter().find(|process| process["name"] == name).unwrap();
    format!("`{name}` (pid {})", process["pid"])
}

#[test]
fn without_a_server_no_processes_are_listed_or_found() {
    let home = Home::new();
    let listed = home.say(&["ps"]);
    assert_eq!(listed.code, Some(0));
    assert_eq!(listed.out, "NAME  STATE  PID  AGE  CPU  MEM  OUT  DURABLE  COMMAND\n");
    assert_eq!(listed.err, "remex: your local remex server is not running\n");
    assert_eq!(home.say(&["ps", "--json"]).out, "{\"version\":1,\"processes\":[]}\n");
    let missing = "remex: your local remex server is not running\n  \
                   hint: start a background process with `remex run --detach -- COMMAND`, or choose another server with `--on`\n";
    for (args, code) in [
        (&["logs", "x"][..], 3),
        (&["kill", "x"], 3),
        (&["wait", "x"], 125),
        (&["resize", "x", "--rows", "1", "--cols", "1"], 3),
    ] {
        assert_eq!(home.say(args), ended(code, missing), "{args:?}");
    }
}

#[test]
fn ps_lists_running_processes_and_with_all_exited_ones() {
    let user = UserSession::open("night");
    user.ready("build", "echo ready; exec sleep 1000");
    user.client.shell("broken", "exit 3");
    user.client.collect("broken");
    let listed = out(user.say(&["ps"]));
    let lines: Vec<Vec<_>> = listed.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(lines[0], ["NAME", "STATE", "PID", "AGE", "CPU", "MEM", "OUT", "DURABLE", "COMMAND"]);
    assert_eq!((lines.len(), &lines[1][..2]), (2, &["build", "running"][..]), "{listed}");
    assert!(listed.contains("6B   no       /bin/sh -c 'echo ready; exec sleep 1000'\n"), "{listed}");
    let all = out(user.say(&["ps", "-a"]));
    let broken = all.lines().find(|line| line.starts_with("broken ")).unwrap();
    let cells: Vec<_> = broken.split("  ").filter(|cell| !cell.is_empty()).collect();
    assert!(cells[1].starts_with("exit 3, ") && cells[1].ends_with("s ago"), "{all}");
    assert_eq!(cells[2].trim(), "-", "{all}");
    assert_eq!(out(user.say(&["ps", "-q"])), "build\n");
    assert_eq!(out(user.say(&["ps", "-aq"])), "build\nbroken\n");
}

#[test]
fn ps_json_is_complete() {
    let user = UserSession::open("night");
    user.ready_with("build", "echo ready; exec sleep 1000", json!({"labels": {"for": "tests"}}));
    let mut listing: Value = serde_json::from_str(&out(user.say(&["ps", "--json"]))).unwrap();
    let process = &mut listing["processes"][0];
    for (name, is_right) in [
        ("sessionId", process["sessionId"].is_string()),
        ("startedAtMs", process["startedAtMs"].as_u64().is_some_and(|ms| ms > 1_700_000_000_000)),
        ("cpuMs", process["cpuMs"].is_u64()),
        ("residentBytes", process["residentBytes"].as_u64().is_some_and(|bytes| bytes > 0)),
        ("livingPids", process["livingPids"] == json!([process["pid"]])),
    ] {
        assert!(is_right, "{name} of {process}");
        process[name] = Value::Null;
    }
    assert!(process["pid"].take().as_u64().is_some_and(|pid| pid > 1));
    let expected = json!({"version": 1, "processes": [{
        "name": "build", "environment": "local", "processId": "build", "sessionId": null, "sessionName": "night", "clientName": "left",
        "attached": true, "expiresAtMs": null, "argv": ["/bin/sh", "-c", "echo ready; exec sleep 1000"],
        "cwd": "/", "pid": null, "tty": false, "durable": false, "labels": {"for": "tests"}, "state": "running",
        "startedAtMs": null, "endedAtMs": null, "exitCode": null, "signal": null, "cause": null,
        "stdoutBytes": 6, "stderrBytes": 0, "terminalBytes": 0, "retainedBytes": 6,
        "cpuMs": null, "residentBytes": null, "livingPids": null, "user": null,
    }]});
    assert_eq!(listing, expected);
}

#[test]
fn a_listing_fits_the_terminal_and_escapes_control_sequences_in_names() {
    let user = UserSession::open("night");
    user.ready("\u{1b}[2Ja-name-that-is-longer-than-a-column", "echo ready; exec sleep 1000");
    let mut screen = user.screen(&["ps"]);
    assert_eq!(screen.end(), Some(0));
    let shown = screen.wait_for("…");
    assert_eq!(shown.lines().count(), 2, "{shown}");
    assert!(shown.contains("night/[2Ja-name-th…  running"), "{shown}");
}

#[test]
fn names_match_exactly_or_by_prefix() {
    let user = UserSession::open("night");
    for name in ["build", "builder", "lint"] {
        user.ready(name, "echo ready; exec sleep 1000");
    }
    assert_eq!(
        user.say(&["kill", "bu"]),
        ended(2, "remex: `bu` could be any of build, builder\n  hint: type more of its name\n")
    );
    assert_eq!(
        user.say(&["kill", "build", "nothing"]),
        ended(
            3,
            "remex: unknown process `nothing`; known: build, builder, lint; nothing was killed\n  \
             hint: see `remex ps --all`; exited processes are removed a day after they exit\n"
        )
    );
    assert_eq!(user.say(&["kill", ""]).code, Some(2));
    // A name that is wrong keeps all from being killed.
    assert_eq!(out(user.say(&["ps", "-q"])), "build\nbuilder\nlint\n");
    // Nor does the beginning of one, outside of a terminal.
    assert_eq!(
        user.say(&["kill", "build", "l"]),
        ended(
            2,
            "remex: `l` is only a prefix of `lint`; nothing was killed\n  hint: use the full name to kill it\n"
        )
    );
    assert_eq!(out(user.say(&["ps", "-q"])), "build\nbuilder\nlint\n");
    let killed = format!("sent SIGTERM to {}\nsent SIGTERM to {}\n", pid(&user, "build"), pid(&user, "lint"));
    assert_eq!(out(user.say(&["kill", "build", "lint"])), killed);
    assert_eq!(user.say(&["wait", "build"]), ended(143, ""));
    assert_eq!(user.say(&["wait", "lint"]), ended(143, ""));
    // A running process does not hide that another has exited.
    let said = user.say(&["wait", "builder", "lint", "--timeout", SHORT_WAIT]);
    assert_eq!(said, gave_up(&format!("{SHORT_WAIT}: `builder` is")));
    assert_eq!(out(user.say(&["ps", "-q"])), "builder\n");
}

#[test]
fn on_a_terminal_kill_confirms_a_name_prefix() {
    let user = UserSession::open("night");
    user.ready("build", "echo ready; exec sleep 1000");
    let question = format!("remex: `bu` means {}; kill it? [y/N] ", pid(&user, "build"));
    let mut screen = user.screen(&["kill", "bu"]);
    screen.wait_for(question.trim_end());
    screen.keys("\r");
    screen.wait_for("was not changed");
    assert_eq!(screen.end(), Some(1));
    assert_eq!(out(user.say(&["ps", "-q"])), "build\n");
    let mut screen = user.screen(&["kill", "bu"]);
    screen.wait_for(question.trim_end());
    screen.keys("y\r");
    screen.wait_for("sent SIGTERM to `build`");
    assert_eq!(screen.end(), Some(0));
    assert_eq!(user.say(&["wait", "bu"]), ended(143, ""));
}

#[test]
fn signals_have_names_or_numbers_and_reach_only_running_processes() {
    let user = UserSession::open("night");
    user.ready("first", "trap 'exit 7' USR1; echo ready; while :; do sleep 0.01; done");
    user.ready("second", "echo ready; exec sleep 1000");
    let killed = format!("sent SIGUSR1 to {}\n", pid(&user, "first"));
    assert_eq!(out(user.say(&["kill", "first", "--signal", "usr1"])), killed);
    assert_eq!(user.say(&["wait", "first"]), ended(7, ""));
    let killed = format!("sent SIGKILL to {}\n", pid(&user, "second"));
    assert_eq!(out(user.say(&["kill", "second", "-s", "9"])), killed);
    assert_eq!(user.say(&["wait", "second"]), ended(137, ""));
    assert_eq!(
        user.say(&["kill", "first"]),
        ended(1, "remex: cannot kill `first`: it has exited (exit 7)\n  hint: see `remex ps`\n")
    );
    assert_eq!(user.say(&["kill", "first", "-s", "NONE"]).code, Some(2));
    for (short, name) in [("-9", "third"), ("-KILL", "fourth")] {
        user.ready(name, "echo ready; exec sleep 1000");
        let killed = format!("sent SIGKILL to {}\n", pid(&user, name));
        assert_eq!(out(user.say(&["kill", short, name])), killed);
        assert_eq!(user.say(&["wait", name]), ended(137, ""));
    }
}

#[test]
fn a_tree_is_killed_with_all_its_descendants() {
    let user = UserSession::open("night");
    // A child of another session that ignores TERM and holds no output.
    let stubborn = "setsid sh -c 'trap \"\" TERM; echo ready >&2; exec 2>/dev/null; while :; do sleep 1; done' >/dev/null & \
                    wait";
    user.ready("stubborn", stubborn);
    let before = std::time::Instant::now();
    let ended_tree = out(user.say(&["kill", "stubborn", "--tree", "--grace", "300ms"]));
    assert!(ended_tree.starts_with("ended `stubborn` (pids ") && ended_tree.ends_with(")\n"), "{ended_tree}");
    assert!(before.elapsed().as_millis() >= 300);
    let listing = out(user.say(&["ps", "--all", "--json"]));
    let listing: Value = serde_json::from_str(&listing).unwrap();
    assert_eq!(listing["processes"][0]["residentBytes"], Value::Null, "{listing}");
    assert_eq!(listing["processes"][0]["cause"], "terminated", "{listing}");
    assert_eq!(
        user.say(&["kill", "stubborn", "--tree"]),
        ended(1, "remex: cannot kill `stubborn`: it has exited (SIGTERM)\n  hint: see `remex ps`\n")
    );
    user.ready("other", stubborn);
    assert!(
        out(user.say(&["kill", "other", "--tree", "--signal", "KILL"])).starts_with("ended `other` (pids ")
    );
    assert_eq!(user.say(&["wait", "other"]), ended(137, ""));
    assert_eq!(
        user.say(&["kill", "other", "--tree", "--signal", "INT"]),
        ended(
            2,
            "remex: cannot send SIGINT to a whole tree: `--tree` supports only TERM and KILL\n  \
             hint: omit `--tree` to signal the process and its group\n"
        )
    );
}

#[test]
fn columns_are_aligned_below_wide_characters() {
    let user = UserSession::open("night");
    for name in ["構築", "🚀x", "plain"] {
        user.ready(name, "echo ready; exec sleep 1000");
    }
    let listed = out(user.say(&["ps"]));
    // East Asian letters and emoji take two columns each.
    let columns =
        |text: &str| -> usize { text.chars().map(|letter| if letter.is_ascii() { 1 } else { 2 }).sum() };
    let starts: Vec<_> =
        listed.lines().skip(1).map(|line| columns(&line[..line.find("running").unwrap()])).collect();
    assert_eq!(starts, [7; 3], "{listed}");
}

#[test]
fn leftovers_of_a_process_are_shown_and_can_be_killed() {
    let user = UserSession::open("night");
    // Two children in sessions of their own that ignore TERM: one holds the output open, the other does not.
    let script =
        "trap '' TERM; setsid sleep 1000 & echo $!; setsid sleep 1000 >/dev/null 2>&1 & echo $!; echo ready";
    user.ready("gone", script);
    user.client.event("gone", "process/exited");
    let said = out(user.say(&["logs", "gone"]));
    let [one, other, "ready"] = said.lines().collect::<Vec<_>>()[..] else { panic!("{said}") };
    let listed = out(user.say(&["ps"]));
    let row = listed.lines().find(|row| row.starts_with("gone  exit 0, ")).unwrap_or(&listed);
    assert!(row.contains(&format!(" ago, 2 alive  {one} +1  ")), "{listed}");
    assert_eq!(
        user.say(&["kill", "gone"]),
        ended(
            1,
            &format!(
                "remex: cannot signal `gone`: it has exited (exit 0), but processes it started are still running \
                 (pids {one}, {other})\n  hint: add `--tree` to end them\n"
            )
        )
    );
    let mut logs = user.home.remex(&["logs", "gone", "--follow"]);
    let mut logs = logs.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let mut stderr = BufReader::new(Patient::new(logs.stderr.take().unwrap()));
    let (tell, told) = mpsc::channel();
    std::thread::spawn(move || {
        let mut line = String::new();
        stderr.read_line(&mut line).unwrap();
        tell.send(line).unwrap();
        tell.send(format!("{:?}", logs.ended().code())).unwrap();
    });
    assert_eq!(
        told.recv_timeout(PATIENCE).expect("`logs --follow` says why it goes on"),
        "remex: `gone` has exited, but a process that it started keeps its output open; \
         `remex kill gone --tree` ends that\n"
    );
    let killed = user.say(&["kill", "gone", "--tree", "--grace", "100ms"]);
    assert_eq!(out(killed), format!("ended `gone` (pids {one}, {other})\n"));
    assert_eq!(told.recv_timeout(PATIENCE).expect("`logs --follow` ends"), "Some(0)");
    assert_eq!(out(user.say(&["ps", "-q"])), "");
}

#[test]
fn wait_ends_with_the_last_process_or_at_its_timeout() {
    let user = UserSession::open("night");
    user.waiting("first", "exit 3");
    user.waiting("second", "exit 4");
    let timed_out = user.say(&["wait", "first", "second", "--timeout", SHORT_WAIT]);
    assert_eq!(timed_out, gave_up(&format!("{SHORT_WAIT}: `first`, `second` are")));
    let mut wait = user.home.remex(&["wait", "second", "first", "--json"]);
    let wait = wait.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    user.go("first");
    user.go("second");
    let waited = said(&wait.finished());
    assert_eq!((waited.code, waited.err.as_str()), (Some(3), ""), "{waited:?}");
    let mut ends: Value = serde_json::from_str(&waited.out).unwrap();
    for process in ends["processes"].as_array_mut().unwrap() {
        process["sessionId"] = Value::Null;
    }
    let end = |name: &str, code: u8| {
        json!({
            "name": name, "processId": name, "sessionId": null, "running": false, "exitCode": code,
            "signal": null, "cause": "exit"
        })
    };
    assert_eq!(ends, json!({"version": 1, "processes": [end("second", 4), end("first", 3)]}));
}

#[test]
fn wait_and_run_have_the_same_exit_code_for_a_time_limit() {
    let home = Home::new();
    let started = ["run", "--detach", "--name", "late", "--timeout", "100ms", "--", "sleep", "1000"];
    assert_eq!(out(home.say(&started)), "late\n");
    // While it runs, and again once its end is known.
    assert_eq!(home.say(&["wait", "late"]), ended(124, ""));
    assert_eq!(home.say(&["wait", "late"]), ended(124, ""));
}

#[test]
fn only_terminals_can_be_resized() {
    let user = UserSession::open("night");
    let script = "trap 'stty size; exit' WINCH; echo ready; while :; do sleep 0.01; done";
    user.ready_with("screen", script, json!({"tty": true}));
    user.ready("pipes", "echo ready; exec sleep 1000");
    let resize = |name| user.say(&["resize", name, "--rows", "40", "--cols", "120"]);
    assert_eq!(out(resize("screen")), "");
    assert_eq!(user.say(&["wait", "screen"]), ended(0, ""));
    assert!(out(user.say(&["logs", "screen"])).ends_with("40 120\r\n"));
    let refused = |why: &str, todo: &str| ended(1, &format!("remex: cannot resize {why}\n  hint: {todo}\n"));
    assert_eq!(resize("pipes"), refused("`pipes`: it has no terminal", "start it with `remex run -t`"));
    assert_eq!(resize("screen"), refused("`screen`: it has exited (exit 0)", "see `remex ps`"));
    assert_eq!(user.say(&["resize", "screen", "--rows", "40"]).code, Some(2));
    let ambiguous = "remex: unexpected argument `40x120`: it does not say which number is the rows and which the \
                     columns\n  hint: write `--rows N --cols N`\n";
    assert_eq!(user.say(&["resize", "screen", "40x120"]), ended(2, ambiguous));
}

#[test]
fn on_selects_another_server() {
    let home = Home::new();
    let server = Server::start();
    home.add_environment("far", server.address());
    let client = server.client();
    client.shell("distant", "exec sleep 1000");
    for place in ["far", server.address()] {
        assert_eq!(out(home.say(&["ps", "-q", "--on", place])), "distant\n");
    }
    assert!(
        out(home.say(&["kill", "distant", "--on", "far"])).starts_with("sent SIGTERM to `distant` (pid ")
    );
    assert_eq!(home.say(&["wait", "distant", "--on", "far"]).code, Some(143));
}

#[test]
fn ps_lists_every_environment_at_once() {
    let user = UserSession::open("night");
    user.ready("near", "echo ready; exec sleep 1000");
    let server = Server::start();
    let client = server.client();
    client.shell("distant", "echo ready; exec sleep 1000");
    client.wait_for_output("distant", "ready");
    user.home.add_environment("far", server.address());
    let listed = out(user.say(&["ps", "--all-envs"]));
    let lines: Vec<Vec<_>> = listed.lines().map(|line| line.split_whitespace().take(3).collect()).collect();
    assert_eq!(
        lines,
        [["ENV", "NAME", "STATE"], ["local", "near", "running"], ["far", "distant", "running"]],
        "{listed}"
    );
    // One that cannot be reached hides no other.
    user.home.add_environment("gone", "unix:///nowhere/remex.sock");
    let said = user.say(&["ps", "--all-envs", "--json"]);
    assert_eq!(said.code, Some(4), "{said:?}");
    assert!(said.err.starts_with("remex: gone: cannot connect to unix:///nowhere/remex.sock"), "{said:?}");
    let listing: Value = serde_json::from_str(&said.out).unwrap();
    let environments: Vec<_> =
        listing["processes"].as_array().unwrap().iter().map(|process| &process["environment"]).collect();
    assert_eq!(environments, ["local", "far"]);
}

#[test]
fn exited_processes_are_removed_by_name_or_all_at_once() {
    let user = UserSession::open("night");
    user.ready("build", "echo ready; exec sleep 1000");
    for name in ["broken", "other"] {
        user.client.shell(name, "exit 3");
        user.client.collect(name);
    }
    assert_eq!(
        user.say(&["rm", "broken", "build"]),
        ended(
            1,
            "remex: cannot remove `build`: it is running\n  hint: end it with `remex kill --tree build` first\n"
        )
    );
    assert_eq!(
        user.say(&["rm", "brok"]),
        ended(2, "remex: `brok` is only a prefix of `broken`\n  hint: use the full name to remove it\n")
    );
    assert_eq!(out(user.say(&["ps", "-aq"])), "build\nbroken\nother\n");
    assert_eq!(out(user.say(&["rm", "broken"])), "removed `broken` (it exited with code 3)\n");
    assert_eq!(out(user.say(&["ps", "-aq"])), "build\nother\n");
    // Its client is connected, and may still want to know about it.
    assert_eq!(user.say(&["prune"]).err, "remex: no exited processes\n");

    assert_eq!(user.say(&["run", "--detach", "--name", "mine", "--", "sh", "-c", "exit 4"]).code, Some(0));
    assert_eq!(user.say(&["wait", "mine"]), ended(4, ""));
    assert_eq!(user.say(&["logs", "--follow", "mine"]), ended(0, ""));
    assert_eq!(out(user.say(&["prune"])), "removed `mine` (it exited with code 4)\n");
    assert_eq!(out(user.say(&["ps", "-aq"])), "build\nother\n");
    let sessions = user.client.call("session/list", json!({})).unwrap();
    let names: Vec<_> =
        sessions["sessions"].as_array().unwrap().iter().map(|session| &session["name"]).collect();
    assert_eq!(names, ["night"], "an empty session goes with its last process");
}

#[test]
fn prune_keeps_processes_whose_client_may_reconnect() {
    let user = UserSession::open("night");
    let away = user.server.connect();
    let hello = json!({"clientName": "away", "resumeSessionId": null, "detachTtlMs": 300_000});
    let session = away.initialize_with(hello)["sessionId"].clone();
    away.shell("build", "exit 3");
    away.collect("build");
    drop(away);
    let deadline = std::time::Instant::now() + PATIENCE;
    loop {
        let sessions = user.client.call("session/list", json!({})).unwrap();
        let sessions = sessions["sessions"].as_array().unwrap();
        let entry = sessions.iter().find(|entry| entry["sessionId"] == session).expect("the session lives");
        if entry["attached"] == false {
            break;
        }
        assert!(std::time::Instant::now() < deadline, "waited for the cut to be noticed");
    }
    assert_eq!(user.say(&["prune"]), ended(0, "remex: no exited processes\n"));
    assert_eq!(out(user.say(&["ps", "-aq"])), "build\n");
}

#[test]
fn several_processes_are_killed_and_removed_even_if_stdout_is_closed() {
    let user = UserSession::open("night");
    let unread = |args: &[&str]| {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let mut command = user.home.remex(args);
        command.stdin(Stdio::null()).stdout(writer).spawn().unwrap().ended().code()
    };
    let names = ["one", "two", "three"];
    for name in names {
        user.ready(name, "echo ready; exec sleep 1000");
    }
    assert_eq!(unread(&["kill", "one", "two", "three"]), Some(141));
    for name in names {
        assert_eq!(user.say(&["wait", name, "--timeout", "10s"]), ended(143, ""), "{name}");
        user.client.collect(name);
    }
    assert_eq!(unread(&["rm", "one", "two", "three"]), Some(141));
    assert_eq!(out(user.say(&["ps", "-aq"])), "");
}

#[test]
fn a_process_named_twice_is_removed_once() {
    let user = UserSession::open("night");
    user.client.shell("broken", "exit 3");
    user.client.collect("broken");
    assert_eq!(
        out(user.say(&["rm", "broken", "night/broken"])),
        "removed `broken` (it exited with code 3)\n"
    );
}

#[test]
fn a_session_that_ends_during_a_confirmation_prompt_is_not_an_error() {
    let user = UserSession::open("night");
    // How each command ends, and what it says.
    let tries: [(&[&str], i32, &str); 3] = [
        (&["kill", "bu"], 1, "cannot kill `build`: it has already exited"),
        (&["kill", "--tree", "bu"], 0, "ended `build`"),
        (&["rm", "bu"], 0, "removed `build`"),
    ];
    for (args, code, said) in tries {
        let other = user.server.connect();
        let hello = json!({"clientName": "other", "resumeSessionId": null, "detachTtlMs": 600_000});
        let session = other.initialize_with(hello)["sessionId"].clone();
        if args[0] == "rm" {
            other.shell("build", "exit 0");
            other.collect("build");
        } else {
            other.start("build", &["/bin/sh", "-c", "echo ready; exec sleep 1000"], json!({}));
            other.wait_for_output("build", "ready");
        }
        let mut screen = user.screen(args);
        screen.wait_for("[y/N]");
        user.client.call("session/end", json!({"sessionId": session})).unwrap();
        screen.keys("y\r");
        screen.wait_for(said);
        assert_eq!(screen.end(), Some(code), "{args:?}");
    }
}

#[test]
fn an_unresponsive_local_server_is_reported_with_a_hint() {
    let user = UserSession::open("night");
    let pid = user.home.own_server().expect("the server listens");
    rustix::process::kill_process(pid, rustix::process::Signal::STOP).unwrap();
    let number = pid.as_raw_nonzero();
    let silent = ended(
        4,
        &format!(
            "remex: your local remex server (pid {number}) does not respond: the handshake timed out after 10s\n  \
             hint: if it is suspended, `kill -CONT {number}` resumes it; after `kill -KILL {number}` \
             the next command continues with what runs on it\n"
        ),
    );
    std::thread::scope(|scope| {
        for args in [&["ps"][..], &["server", "stop", "--force"]] {
            let (user, silent) = (&user, &silent);
            scope.spawn(move || assert_eq!(&user.say(args), silent, "{args:?}"));
        }
    });
    rustix::process::kill_process(pid, rustix::process::Signal::CONT).unwrap();
    assert_eq!(out(user.say(&["ps", "-q"])), "");
}

#[test]
fn the_local_server_can_be_inspected_and_stopped() {
    let home = Home::new();
    let status = home.say(&["server", "status"]);
    assert_eq!((status.code, status.out.as_str()), (Some(3), "not running; it is started on demand\n"));
    assert_eq!(home.say(&["server", "stop"]).code, Some(3));
    home.say(&["run", "--detach", "--name", "work", "--", "sleep", "1000"]);
    let server = home.own_server().unwrap();
    let status: Value = serde_json::from_str(&out(home.say(&["server", "status", "--json"]))).unwrap();
    assert_eq!(
        (&status["state"], &status["pid"], &status["running"], &status["ended"]),
        (&json!("running"), &json!(server.as_raw_nonzero().get()), &json!(1), &json!(0)),
        "{status}"
    );
    let refused = home.say(&["server", "stop"]);
    assert_eq!(refused.code, Some(1), "{refused:?}");
    assert!(
        refused.err.starts_with("remex: cannot stop your local remex server: `work` (pid ")
            && refused.err.ends_with("would end with it\n  hint: add `--force` to stop it anyway\n"),
        "{refused:?}"
    );
    let process = Watched::find(server).unwrap();
    let stopped = out(home.say(&["server", "stop", "--force"]));
    let first =
        format!("stopped your local remex server (pid {})\nended `work` (pid ", server.as_raw_nonzero());
    assert!(stopped.starts_with(&first), "{stopped}");
    assert!(process.ended_within(std::time::Duration::ZERO), "it has ended when that is said");
    assert_eq!(home.say(&["server", "status"]).code, Some(3));
}

#[test]
fn an_overlong_runtime_directory_is_reported_with_a_hint() {
    let home = Home::new();
    let long = home.path(&"long".repeat(30));
    fs::DirBuilder::new().mode(0o700).create(&long).unwrap();
    let mut command = home.remex(&["run", "--detach", "--", "true"]);
    let said = said(&command.env("XDG_RUNTIME_DIR", &long).finished());
    assert_eq!(said.code, Some(125), "{said:?}");
    let socket = long.join("remex/own.sock");
    let expected = format!(
        "remex: cannot use your local remex server: its socket path is too long: `{}`\n  \
         hint: set XDG_RUNTIME_DIR to a shorter path\n",
        socket.display()
    );
    assert_eq!(said.err, expected);
}

#[test]
fn the_wait_timeout_covers_an_unresponsive_server() {
    let home = Home::new();
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("ws://{}", silent.local_addr().unwrap());
    let said = home.say(&["wait", "build", "--on", &url, "--timeout", "200ms"]);
    assert_eq!(
        said,
        ended(
            124,
            "remex: gave up after 200ms: the server does not answer\n  hint: check it with `remex ps`, or raise `--timeout`\n"
        )
    );
}
