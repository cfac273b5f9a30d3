//! A server that dies without a word leaves nothing behind.

use std::{
    fs,
    io::{BufRead as _, BufReader},
    process::Stdio,
    thread,
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal};
use serde_json::json;

use crate::{
    leftovers::children,
    support::{Client, HungFs, Interrupts, PATIENCE, Server, Watched, program},
};

/// Commands that print the number of a process which does not end with the one that was started.
const ESCAPES: [(&str, &str); 5] = [
    ("child", "sh -c 'echo $$; exec sleep 1000'; true"),
    ("nohup", "nohup sh -c 'echo $$; exec sleep 1000'; true"),
    ("background", "nohup sh -c 'echo $$; exec sleep 1000' & true"),
    ("session", "setsid -w sh -c 'echo $$; exec sleep 1000'; true"),
    ("daemon", "(setsid sh -c 'sh -c \"echo \\$\\$; exec sleep 1000\" &' &)"),
];

/// Starts everything that might escape.
fn start_escapes(client: &Client) -> Vec<Watched> {
    let on_pipes = ESCAPES.into_iter().map(|(name, script)| (name, script, false));
    // A terminal hangs up once its master is closed.
    let on_a_terminal = ("terminal", "trap '' HUP; setsid -w sh -c 'echo $$; exec sleep 1000'; true", true);
    let start = |(name, script, tty)| {
        client.start(name, &["/bin/sh", "-c", script], json!({"tty": tty}));
        Watched::printed(&client.wait_for_output(name, "\n"))
    };
    on_pipes.chain([on_a_terminal]).map(start).collect()
}

fn watchdog(server: &Server) -> Watched {
    let is_watchdog = |pid: &u32| {
        fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name == "remex-watchdog\n")
    };
    let deadline = Instant::now() + PATIENCE;
    loop {
        // It has its name soon after its birth, and no event tells when.
        if let Some(pid) = children(server.pid()).into_iter().find(is_watchdog) {
            return Watched::new(Pid::from_raw(pid.cast_signed()).expect("a process id is positive"));
        }
        assert!(Instant::now() < deadline, "the server has no watchdog");
        thread::yield_now();
    }
}

#[test]
fn a_server_that_dies_takes_everything_with_it() {
    for signal in [Signal::KILL, Signal::ABORT] {
        let mut server = Server::start();
        let watchdog = watchdog(&server);
        let started = start_escapes(&server.client());
        server.signal(signal);
        assert_eq!(server.wait().code(), None, "{signal:?} ends the server");
        started.iter().for_each(Watched::assert_ends);
        watchdog.assert_ends();
    }
}

#[test]
fn a_watchdog_survives_its_servers_death_and_spares_other_servers() {
    let (mut server, other) = (Server::start(), Server::start());
    let watchdog = watchdog(&server);
    let (started, spared) = (start_escapes(&server.client()), start_escapes(&other.client()));
    for signal in [Signal::TERM, Signal::INT, Signal::HUP, Signal::QUIT, Signal::PIPE] {
        watchdog.signal(signal);
    }
    server.signal(Signal::KILL);
    server.wait();
    started.iter().for_each(Watched::assert_ends);
    watchdog.assert_ends();
    for process in &spared {
        assert!(!process.ended_within(Duration::ZERO), "a process of another server was killed");
    }
    other.stop();
    spared.iter().for_each(Watched::assert_ends);
}

#[test]
fn a_graceful_shutdown_ends_the_watchdog() {
    let server = Server::start();
    let watchdog = watchdog(&server);
    server.stop();
    assert!(watchdog.ended_within(Duration::ZERO), "the watchdog outlives its server");
}

#[test]
fn the_watchdog_kills_what_its_server_could_not() {
    let Some(files) = HungFs::mount(Interrupts::Ignored) else { return };
    let mut server = Server::serve(&["--shutdown-grace", "100ms"]);
    let watchdog = watchdog(&server);
    let path = files.path("hung").display().to_string();
    server.client().start("stuck", &["cat", &path], json!({}));
    files.wait_until_hanging(1);
    server.signal(Signal::TERM);
    server.wait();
    assert!(!watchdog.ended_within(Duration::ZERO), "somebody is left");
    drop(files);
    watchdog.assert_ends();
}

#[test]
fn a_killed_command_leaves_nothing_running() {
    // The others end by themselves, and what they leave with them.
    for (name, script) in ESCAPES.into_iter().filter(|(_, script)| script.ends_with("; true")) {
        let mut run = program(&["run", "--", "sh", "-c", script])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .expect("remex starts");
        let mut line = String::new();
        BufReader::new(run.stdout.take().expect("stdout is piped")).read_line(&mut line).expect("text");
        let process = Watched::printed(&line);
        run.kill().expect("it runs");
        run.wait().expect("a child can be waited for");
        assert!(process.ended_within(PATIENCE), "{name}: {script} lives on");
    }
}

#[test]
fn a_nested_command_killed_with_its_process_leaves_nothing_running() {
    // `remex run` has a server of its own, whose watchdog must outlive it.
    let script = "(setsid sh -c 'echo $$; exec sleep 1000' &); exec sleep 1000";
    let nested =
        ["sh", "-c", r#""$@"; true"#, "sh", env!("CARGO_BIN_EXE_remex"), "run", "--", "sh", "-c", script];
    let ways = ["terminate", "the end of the session", "the end of the server"];
    for way in ways {
        let server = Server::start();
        let client = server.connect();
        let session = client.initialize()["sessionId"].clone();
        client.start("p", &nested, json!({}));
        let daemon = Watched::printed(&client.wait_for_output("p", "\n"));
        match way {
            "terminate" => client.call("process/terminate", json!({"processId": "p"})).map(drop),
            "the end of the session" => client.call("session/end", json!({"sessionId": session})).map(drop),
            _ => {
                server.signal(Signal::KILL);
                Ok(())
            }
        }
        .unwrap_or_else(|error| panic!("{way}: {error}"));
        assert!(daemon.ended_within(PATIENCE), "a daemon lives on after {way}");
    }
}
