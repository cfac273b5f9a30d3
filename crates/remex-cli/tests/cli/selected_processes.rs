//! `ps` with filters and in narrow terminals, labels, `inspect`, and `kill --all`.

use serde_json::{Value, json};

use crate::{
    background_processes::{UserSession, out},
    home::{Home, Said},
    screen::Screen,
    support::Server,
};

const SLEEPS: &str = "echo ready; exec sleep 1000";

/// A user with processes of several names, labels and ends.
fn several() -> UserSession {
    let user = UserSession::open("night");
    user.ready_with("build-web", SLEEPS, json!({"labels": {"team": "web", "tier": "front"}}));
    user.ready_with("build-db", SLEEPS, json!({"labels": {"team": "data"}}));
    user.ready("lint", SLEEPS);
    for (name, code) in [("good", 0), ("bad", 3)] {
        user.client.shell(name, &format!("exit {code}"));
        user.client.collect(name);
    }
    user
}

#[test]
fn a_listing_is_filtered_by_name_label_and_state() {
    let user = several();
    for (filter, names) in [
        (&["--name", "build-*"][..], "build-web\nbuild-db\n"),
        (&["--name", "lint", "--name", "build-d?"], "build-db\nlint\n"),
        (&["--label", "team"], "build-web\nbuild-db\n"),
        (&["--label", "team=web"], "build-web\n"),
        (&["--label", "team=data", "--label", "tier"], ""),
        (&["--state", "running"], "build-web\nbuild-db\nlint\n"),
        (&["--state", "exited"], "good\nbad\n"),
        (&["--state", "failed"], "bad\n"),
        (&["--state", "left"], ""),
        (&["--state", "failed", "--state", "running", "--name", "*-db", "--name", "b?d"], "build-db\nbad\n"),
        (&["--name", "good"], ""),
        (&["--name", "good", "--all"], "good\n"),
        (&["--since", "1h"], "build-web\nbuild-db\nlint\n"),
    ] {
        let args = [&["ps", "-q"], filter].concat();
        assert_eq!(out(user.say(&args)), names, "{filter:?}");
    }
    let listing: Value =
        serde_json::from_str(&out(user.say(&["ps", "--json", "--label", "team=web"]))).unwrap();
    assert_eq!(listing["processes"].as_array().unwrap().len(), 1, "{listing}");
    let none = user.say(&["ps", "--name", "nothing"]);
    assert_eq!((none.code, none.err.as_str()), (Some(0), "remex: no process matches\n"));
    let exited = user.say(&["ps", "--name", "good"]);
    let note = "remex: no process that matches is running; `remex ps --all` includes exited ones\n";
    assert_eq!(exited.err, note);
    for wrong in [["--state", "dead"], ["--label", "=x"], ["--since", "2999-01-01"]] {
        assert_eq!(user.say(&[&["ps"][..], &wrong].concat()).code, Some(2), "{wrong:?}");
    }
}

#[test]
fn since_leaves_out_earlier_starts() {
    let user = UserSession::open("night");
    user.ready("early", SLEEPS);
    let listing: Value = serde_json::from_str(&out(user.say(&["ps", "--json"]))).unwrap();
    let started = listing["processes"][0]["startedAtMs"].as_u64().unwrap();
    // Processes that start in one millisecond cannot be told apart.
    let deadline = std::time::Instant::now() + crate::support::PATIENCE;
    while std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_millis()
        <= u128::from(started) + 1
    {
        assert!(std::time::Instant::now() < deadline, "waited for the next millisecond");
        std::thread::yield_now();
    }
    user.ready("late", SLEEPS);
    let listing: Value = serde_json::from_str(&out(user.say(&["ps", "--json"]))).unwrap();
    let late = listing["processes"][1]["startedAtMs"].as_i64().unwrap();
    let late = time::OffsetDateTime::from_unix_timestamp_nanos(i128::from(late) * 1_000_000).unwrap();
    let since = format!(
        "{}T{:02}:{:02}:{:02}.{:03}Z",
        late.date(),
        late.hour(),
        late.minute(),
        late.second(),
        late.millisecond()
    );
    assert_eq!(out(user.say(&["ps", "-q", "--since", &since])), "late\n");
}

#[test]
fn a_narrow_terminal_shows_the_most_important_columns() {
    let user = UserSession::open("night");
    user.ready("build", SLEEPS);
    let shown = |columns: u16| {
        let script = format!("stty cols {columns}; exec \"$0\" ps");
        let mut screen = Screen::open(&user.home, "sh", &["-c", &script, env!("CARGO_BIN_EXE_remex")]);
        assert_eq!(screen.end(), Some(0));
        screen.wait_for("running");
        screen.raw().replace("\u{1b}[1m", "").replace("\u{1b}[0m", "")
    };
    let heading = |columns| {
        let shown = shown(columns);
        shown.lines().next().unwrap().split_whitespace().map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(heading(120), ["NAME", "STATE", "PID", "AGE", "CPU", "MEM", "OUT", "DURABLE", "COMMAND"]);
    // How wide the numbers are depends on the machine.
    let some = heading(64);
    assert!(some.starts_with(&["NAME", "STATE", "PID"].map(str::to_owned)), "{some:?}");
    assert!(!some.iter().any(|title| title == "DURABLE" || title == "OUT"), "{some:?}");
    assert_eq!(heading(40), ["NAME", "STATE", "COMMAND"]);
    let narrow = shown(40);
    assert!(narrow.contains("build  running  /bin/sh -c 'echo ready"), "{narrow}");
}

#[test]
fn run_labels_a_process() {
    let home = Home::new();
    let run = ["run", "--detach", "--name", "web", "--label", "team=web", "--label", "note=a=b", "--"];
    assert_eq!(out(home.say(&[&run[..], &["sleep", "1000"]].concat())), "web\n");
    assert_eq!(out(home.say(&["ps", "-q", "--label", "note=a=b"])), "web\n");
    let inspected = out(home.say(&["inspect", "web"]));
    assert!(inspected.contains("\nlabels      note=a=b, team=web\n"), "{inspected}");
    let refused = home.say(&["run", "--label", "team", "--", "true"]);
    assert_eq!(refused.code, Some(2));
    assert!(refused.err.contains("a label needs a value"), "{refused:?}");
    assert!(refused.err.contains("hint: write `team=VALUE`"), "{refused:?}");
}

#[test]
fn inspect_shows_everything_about_a_process() {
    let user = several();
    let inspected = out(user.say(&["inspect", "build-web", "bad"]));
    let (running, exited) = inspected.split_once("\n\n").unwrap();
    let field = |text: &str, name: &str| {
        let line = text.lines().find(|line| line[..12].trim_end() == name);
        line.map(|line| line[12..].to_owned())
    };
    for (name, value) in [
        ("name", "build-web"),
        ("command", "/bin/sh -c 'echo ready; exec sleep 1000'"),
        ("directory", "/"),
        ("state", "running"),
        ("output", "6B stdout; the server keeps 6B"),
        ("terminal", "no"),
        ("durable", "no"),
        ("labels", "team=web, tier=front"),
        ("environment", "local"),
        ("client", "left, connected"),
    ] {
        assert_eq!(field(running, name).as_deref(), Some(value), "{name} in {running}");
    }
    assert!(field(running, "pid").is_some_and(|pid| pid.parse::<u32>().is_ok()), "{running}");
    assert!(field(running, "started").is_some_and(|at| at.ends_with(" ago)")), "{running}");
    assert_eq!(field(exited, "state").as_deref(), Some("exited with code 3"), "{exited}");
    assert_eq!((field(exited, "pid"), field(exited, "labels")), (None, None), "{exited}");
    // For programs as `ps` has it.
    let of = |args: &[&str]| -> Value {
        let mut listing: Value = serde_json::from_str(&out(user.say(args))).unwrap();
        listing["processes"][0]["cpuMs"] = Value::Null;
        listing
    };
    let listed = of(&["ps", "--json", "--all", "--name", "bad"]);
    assert_eq!(of(&["inspect", "bad", "--json"]), listed);
    assert_eq!(user.say(&["inspect", "nothing"]).code, Some(3));
}

#[test]
fn kill_all_asks_for_confirmation() {
    let user = several();
    let listed = "build-web\nbuild-db\nlint\n";
    let refused = user.say(&["kill", "--all", "--tree"]);
    let expected = Said {
        code: Some(2),
        out: String::new(),
        err: "remex: cannot ask whether to end 3 processes on local: standard input or standard error is not a \
              terminal\n  hint: add `--yes`\n"
            .to_owned(),
    };
    assert_eq!(refused, expected);
    assert_eq!(user.say(&["kill", "--all", "lint", "--yes"]).code, Some(2));
    assert_eq!(user.say(&["kill", "lint", "--yes"]).code, Some(2));
    assert_eq!(out(user.say(&["ps", "-q"])), listed);

    let question = "end `build-web`, `build-db`, `lint` on local? [y/N]";
    let mut screen = user.screen(&["kill", "--all", "--tree"]);
    screen.wait_for(question);
    screen.keys("n\r");
    screen.wait_for("nothing was killed");
    assert_eq!(screen.end(), Some(1));
    assert_eq!(out(user.say(&["ps", "-q"])), listed);
    let mut screen = user.screen(&["kill", "--all", "--tree"]);
    screen.wait_for(question);
    screen.keys("y\r");
    screen.wait_for("ended `lint`");
    assert_eq!(screen.end(), Some(0));
    let nothing = user.say(&["kill", "--all", "--tree"]);
    assert_eq!((nothing.code, nothing.err.as_str()), (Some(0), "remex: no processes are running on local\n"));
}

#[test]
fn kill_all_in_a_script_affects_one_environment_only() {
    let user = UserSession::open("night");
    user.ready("near", SLEEPS);
    let server = Server::start();
    let client = server.client();
    for name in ["one", "other"] {
        client.start(name, &["/bin/sh", "-c", SLEEPS], json!({}));
        client.wait_for_output(name, "ready");
    }
    user.home.add_environment("far", server.address());
    let said = out(user.say(&["kill", "--all", "--yes", "--signal", "KILL", "--on", "far"]));
    assert_eq!(said.lines().count(), 2, "{said}");
    assert!(said.lines().all(|line| line.starts_with("sent SIGKILL to `o")), "{said}");
    assert_eq!(user.say(&["wait", "one", "other", "--on", "far"]).code, Some(137));
    assert_eq!(out(user.say(&["ps", "-q", "--here"])), "near\n");
}
