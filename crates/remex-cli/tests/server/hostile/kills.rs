//! Killing when there is no thread, process slot or descriptor left.

use std::{
    fs,
    net::TcpStream,
    process::{Child, Command},
    sync::atomic::{AtomicU32, Ordering},
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal};
use serde_json::{Value, json};

use crate::support::{
    Client, HungFs, Interrupts, Limits, Need, PATIENCE, Server, Watched, skip, start_params, with,
};

/// A process that ignores SIGTERM and has many children, each in a session of its own.
///
/// They all have a word of their own on their command line, by which they are found and, at last, killed.
struct Herd {
    word: String,
}

/// How a herd multiplies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Growth {
    /// So many children and no more.
    Few,
    /// As many as the host allows, and new ones for those that die.
    ForkBomb,
}

impl Herd {
    /// Starts a herd as process `p` and waits until it has grown.
    fn start(client: &Client, growth: Growth, more: Value) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let herd = Self { word: format!("herd-{}-{number}", std::process::id()) };
        let script = match growth {
            Growth::Few => {
                r#"for (1..5) { if (!fork) { POSIX::setsid(); sleep 1000; exit } } print "grown\n"; sleep 1000"#
            }
            Growth::ForkBomb => {
                r#"my $child = 0;
                while (1) {
                    my $pid = fork;
                    if (defined $pid && !$pid) { POSIX::setsid(); $child = 1 }
                    next if defined $pid;
                    print "grown\n" unless $child++;
                    select undef, undef, undef, 0.01;
                }"#
            }
        };
        let script = format!(r#"use POSIX; $| = 1; $SIG{{TERM}} = $SIG{{CHLD}} = "IGNORE"; {script}"#);
        client
            .call("process/start", with(start_params("p", &["perl", "-e", &script, &herd.word]), more))
            .expect("there is room for the first one");
        client.wait_for_output("p", "grown");
        herd
    }

    fn alive(&self) -> Vec<Pid> {
        let entries = fs::read_dir("/proc").expect("Linux has /proc");
        let pids = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
        let is_ours = |pid: &i32| {
            let words = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            words.split(|byte| *byte == 0).any(|word| word == self.word.as_bytes())
        };
        pids.filter(is_ours).filter_map(Pid::from_raw).collect()
    }

    fn assert_gone(&self, when: &str) {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let alive = self.alive();
            if alive.is_empty() {
                return;
            }
            assert!(Instant::now() < deadline, "{} live on {when}", alive.len());
            alive.into_iter().filter_map(Watched::find).next().map(|one| one.ended_within(PATIENCE));
        }
    }
}

impl Drop for Herd {
    fn drop(&mut self) {
        // Stopped first: otherwise those that are left would make others.
        for signal in [Signal::STOP, Signal::STOP, Signal::STOP, Signal::KILL] {
            for member in self.alive().into_iter().filter_map(Watched::find) {
                member.signal(signal);
            }
        }
    }
}

/// The ways in which a process can be ended from outside.
const WAYS: [&str; 6] = [
    "terminate",
    "a graceful end",
    "silence",
    "the end of the session",
    "a disconnect",
    "SIGTERM of the server",
];

/// Starts a herd on servers with these limits, and ends each in another way.
fn herds_end_in_every_way(
    limits: Limits,
    growth: Growth,
    exhaust: impl Fn(&Server, &Client) -> Vec<TcpStream>,
) {
    for way in WAYS {
        let server = limits.serve(&["--shutdown-grace", "100ms"]);
        let client = server.connect();
        let hello = json!({"clientName": "x", "resumeSessionId": null, "detachTtlMs": 0});
        let session = client.initialize_with(hello)["sessionId"].clone();
        let more = if way == "silence" { json!({"idleTimeoutMs": 1000}) } else { json!({}) };
        let herd = Herd::start(&client, growth, more);
        let taken = exhaust(&server, &client);
        assert!(way == "silence" || herd.alive().len() > 4, "{way}: the herd has not grown");
        let terminate =
            |mode: Value| client.call("process/terminate", json!({"processId": "p", "mode": mode}));
        match way {
            "terminate" => {
                assert_eq!(terminate(json!("force")), Ok(json!({"running": true})));
                assert_eq!(herd.alive(), [], "all are gone when the answer is there");
            }
            "a graceful end" => {
                let asked = terminate(json!({"graceful": {"timeoutMs": 100}}));
                assert_eq!(asked, Ok(json!({"running": true})));
            }
            "silence" => assert_eq!(client.event("p", "process/exited")["cause"], "idleTimeout"),
            "the end of the session" => {
                assert_eq!(client.call("session/end", json!({"sessionId": session})), Ok(json!({})));
                assert_eq!(herd.alive(), [], "all are gone when the answer is there");
            }
            "a disconnect" => drop(client),
            _ => {
                server.signal(Signal::TERM);
            }
        }
        herd.assert_gone(&format!("after {way}"));
        drop(taken);
        let finished = server.stop();
        assert!(!finished.stderr.contains("panicked"), "{way}: {}", finished.stderr);
    }
}

#[test]
fn at_the_process_limit_everything_can_be_killed() {
    herds_end_in_every_way(Limits::processes(60), Growth::ForkBomb, |_, _| Vec::new());
}

#[test]
fn without_a_free_descriptor_everything_can_be_killed() {
    herds_end_in_every_way(Limits::descriptors(64), Growth::Few, |server, client| {
        let start = |number: i32| {
            client.call("process/start", start_params(&format!("filler {number}"), &["sleep", "1000"]))
        };
        assert!((0..100).any(|number| start(number).is_err()), "the limit is reached");
        // What is left is too little for a process, and goes to connections that say nothing.
        let address = server.address().strip_prefix("ws://").unwrap();
        (0..8).map(|_| TcpStream::connect(address).unwrap()).collect()
    });
}

#[test]
fn at_the_process_limit_requests_for_files_and_the_web_are_answered() {
    let server = Limits::processes(60).serve(&[]);
    let client = server.client();
    let herd = Herd::start(&client, Growth::ForkBomb, json!({}));
    let read = client.call("fs/readFile", json!({"path": "file:///proc/self/comm"}));
    assert!(read.is_ok(), "{read:?}");
    let listed = client.call("process/list", json!({})).unwrap();
    assert_eq!(listed["processes"][0]["processId"], "p");
    let request = json!({"requestId": "r", "method": "GET", "url": "http://localhost:1/", "headers": []});
    client.call("http/request", request).expect_err("nobody listens there");
    client.call("process/terminate", json!({"processId": "p"})).unwrap();
    herd.assert_gone("after terminate");
    assert!(!server.stop().stderr.contains("panicked"));
}

#[test]
fn unkillable_trees_block_no_other() {
    const STUCK: usize = 17;
    let server = Server::start();
    let client = server.client();
    let mut mounts = Vec::new();
    for number in 0..STUCK {
        // The kernel lets one process at a time look for names in a directory, so each has its own.
        let Some(files) = HungFs::mount(Interrupts::Ignored) else { return };
        let path = files.path("hung").display().to_string();
        client.start(&format!("stuck {number}"), &["cat", &path], json!({}));
        mounts.push(files);
    }
    mounts.iter().for_each(|files| files.wait_until_hanging(1));
    let terminate = |process: &str| client.send("process/terminate", json!({"processId": process}));
    let stuck: Vec<_> = (0..STUCK).map(|number| terminate(&format!("stuck {number}"))).collect();
    let herd = Herd::start(&client, Growth::Few, json!({}));
    client.outcome(&terminate("p")).expect("what can be killed is killed");
    assert_eq!(herd.alive(), []);
    let answered = client.look(|seen| stuck.iter().filter(|id| seen.has_reply(id)).count());
    assert_eq!(answered, 0, "they are still being tried");
    for id in &stuck {
        let error = client.outcome(id).expect_err("it cannot be killed");
        let message = error["message"].as_str().unwrap();
        assert!(message.contains("still alive after SIGKILL"), "{message}");
    }
    drop(mounts);
}

#[test]
fn sessions_that_end_together_share_one_process_scan() {
    const SESSIONS: usize = 200;
    const STRANGERS: usize = 100;
    let strangers: Vec<_> =
        (0..STRANGERS).map(|_| Stranger(Command::new("sleep").arg("1000").spawn().unwrap())).collect();
    let server = Server::start();
    let clients: Vec<_> = (0..SESSIONS)
        .map(|_| {
            let client = server.connect();
            client.initialize_with(json!({"clientName": "x", "resumeSessionId": null, "detachTtlMs": 0}));
            client.shell("p", "setsid sleep 1000 & echo $!");
            let sleeper = Watched::printed(&client.wait_for_output("p", "\n"));
            (client, sleeper)
        })
        .collect();
    let Some(before) = reads(&server) else {
        return skip(Need::Counts, "the kernel does not count reads");
    };
    // It learns of all the ends at once, however busy the machine is.
    server.signal(Signal::STOP);
    let sleepers: Vec<_> = clients.into_iter().map(|(client, sleeper)| (drop(client), sleeper).1).collect();
    server.signal(Signal::CONT);
    sleepers.iter().for_each(Watched::assert_ends);
    let reads = reads(&server).unwrap() - before;
    // A look for each of them would read of each stranger, twice.
    assert!(reads < (SESSIONS * STRANGERS / 2) as u64, "{reads} reads");
    drop(strangers);
    server.stop();
}

#[test]
fn a_session_that_ends_during_starts_leaves_no_processes() {
    for round in 0..5 {
        let server = Server::start();
        let (client, onlooker) = (server.connect(), server.client());
        let session = client.initialize()["sessionId"].clone();
        let word = format!("10{round}.{}", std::process::id());
        let script = format!("setsid sleep {word} & exec sleep {word}");
        let starts: Vec<_> = (0..40)
            .map(|number| {
                client.send("process/start", start_params(&format!("p{number}"), &["/bin/sh", "-c", &script]))
            })
            .collect();
        onlooker
            .call("session/end", json!({"sessionId": session}))
            .expect("a session can be ended by others");
        let left = Herd { word }.alive();
        assert_eq!(left, [], "of {} starts", starts.len());
    }
}

#[test]
fn a_low_limit_on_file_locks_is_reported_and_lets_no_process_escape() {
    let limits = Limits { locks: Some(1000), ..Limits::default() };
    let server = limits.serve(&[]);
    server.stderr_line("the hard limit on file locks is too low to tag processes");
    let client = server.client();
    client.shell("p", "(setsid sleep 1000 & echo $!); exec sleep 1000");
    let orphan = Watched::printed(&client.wait_for_output("p", "\n"));
    client.call("process/terminate", json!({"processId": "p"})).unwrap();
    assert!(orphan.ended_within(Duration::ZERO), "it is gone when the answer is there");
}

#[test]
fn descendants_without_the_marker_and_session_are_killed_with_their_parent() {
    let script = "setsid prlimit --locks=5 sh -c 'echo $$; exec sleep 1000' & wait";
    for way in ["terminate", "the end of the session"] {
        let server = Server::start();
        let client = server.connect();
        let session = client.initialize()["sessionId"].clone();
        client.shell("p", script);
        let child = Watched::printed(&client.wait_for_output("p", "\n"));
        match way {
            "terminate" => client.call("process/terminate", json!({"processId": "p"})),
            _ => client.call("session/end", json!({"sessionId": session})),
        }
        .unwrap_or_else(|error| panic!("{way}: {error}"));
        assert!(child.ended_within(PATIENCE), "it lives on after {way}");
    }
}

#[test]
fn a_fork_bomb_dies_with_its_killed_server() {
    let server = Limits::processes(60).serve(&[]);
    let herd = Herd::start(&server.client(), Growth::ForkBomb, json!({}));
    server.signal(Signal::KILL);
    herd.assert_gone("after SIGKILL of the server");
}

#[test]
fn without_any_marker_the_jobs_of_a_process_end_with_its_session() {
    let mut command = Command::new("prlimit");
    command.args(["--locks=5", "--rss=5", "--rttime=5", env!("CARGO_BIN_EXE_remex"), "serve"]);
    let server = Server::launch(command, 1);
    server.stderr_line("cannot tag processes, because the hard limits are too low");
    let client = server.connect();
    let session = client.initialize()["sessionId"].clone();
    let script = r#"$| = 1; if (!fork) { setpgrp; print "$$\n" } sleep 1000"#;
    client.start("p", &["perl", "-e", script], json!({}));
    let job = Watched::printed(&client.wait_for_output("p", "\n"));
    client.call("session/end", json!({"sessionId": session})).expect("the session ends");
    assert!(job.ended_within(PATIENCE), "a job in a group of its own lives on");
}

/// A process that the server did not start; killed when dropped.
struct Stranger(Child);

impl Drop for Stranger {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Returns how often the server has read anything; `None` where the kernel does not count that.
fn reads(server: &Server) -> Option<u64> {
    let counts = fs::read_to_string(format!("/proc/{}/io", server.pid())).ok()?;
    counts.lines().find_map(|line| line.strip_prefix("syscr: ")?.parse().ok())
}
