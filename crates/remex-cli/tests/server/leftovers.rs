//! Many at once, and nothing left of them afterwards.

use std::{collections::BTreeSet, fs, time::Instant};

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::support::{Client, PATIENCE, Server, Watched, encode, start_params, with};

/// Descriptors for a connection and its process: a socket, two pipes, and a handle on the child.
const CLIENT_WITH_A_PROCESS: usize = 4;

/// What a server has in the eyes of the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Holdings {
    /// Includes zombies.
    children: usize,
    threads: usize,
    descriptors: usize,
}

impl Holdings {
    fn of(server: &Server) -> Self {
        let count = |what: &str| {
            fs::read_dir(format!("/proc/{}/{what}", server.pid())).expect("the server runs").count()
        };
        Self { children: children(server.pid()).len(), threads: count("task"), descriptors: count("fd") }
    }

    fn exceeds(self, other: Self) -> bool {
        self.children > other.children || self.threads > other.threads || self.descriptors > other.descriptors
    }
}

/// Returns the children of a process, zombies too.
pub(crate) fn children(parent: u32) -> Vec<u32> {
    let processes = fs::read_dir("/proc").expect("Linux has /proc").filter_map(|entry| {
        let pid: u32 = entry.ok()?.file_name().to_str()?.parse().ok()?;
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        // The name of the program may contain anything but ends with the last parenthesis.
        let parent: u32 = stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()?;
        Some((pid, parent))
    });
    processes.filter(|(_, of)| *of == parent).map(|(pid, _)| pid).collect()
}

/// Fails unless the server soon has no more than it had before.
fn assert_nothing_is_left(server: &Server, before: Holdings) {
    let clock = server.client();
    clock.start("clock", &["/bin/sleep", "1000"], json!({}));
    // This client is not to be counted.
    let before = Holdings {
        children: before.children + 1,
        descriptors: before.descriptors + CLIENT_WITH_A_PROCESS,
        ..before
    };
    let deadline = Instant::now() + PATIENCE;
    loop {
        let now = Holdings::of(server);
        if !now.exceeds(before) {
            return;
        }
        assert!(Instant::now() < deadline, "before: {before:?}, now: {now:?}");
        // Idle threads of a pool end by themselves, and no event tells when.
        clock.call("process/wait", json!({"processId": "clock", "waitMs": 100})).expect("the clock runs");
    }
}

fn start(client: &Client, process_id: &str, argv: &[&str], more: Value) -> Value {
    client.send("process/start", with(start_params(process_id, argv), more))
}

#[test]
fn five_hundred_processes_run_at_once() {
    let server = Server::start();
    let client = server.client();
    let before = Holdings::of(&server);
    let names: Vec<_> = (0..500).map(|n| format!("p{n}")).collect();
    let starts: Vec<_> =
        names.iter().map(|name| start(&client, name, &["/bin/cat"], json!({"pipeStdin": true}))).collect();
    let pids: BTreeSet<_> =
        starts.iter().map(|id| client.outcome(id).unwrap()["pid"].as_u64().unwrap()).collect();
    assert_eq!(pids.len(), 500);
    let listed = client.call("process/list", json!({})).unwrap();
    let running = listed["processes"].as_array().unwrap().iter().filter(|entry| entry["state"] == "running");
    assert_eq!(running.count(), 500);
    for name in &names {
        client.send("process/write", json!({"processId": name, "chunk": encode(name), "writeId": "w"}));
        client.send("process/closeStdin", json!({"processId": name}));
    }
    for name in &names {
        assert_eq!(client.collect(name).text(), *name);
    }
    assert_nothing_is_left(&server, before);
}

#[test]
fn two_hundred_connections_are_served_at_once() {
    let server = Server::start();
    server.client().cut();
    let before = Holdings::of(&server);
    let clients: Vec<_> = (0..200)
        .map(|_| {
            let client = server.connect();
            // The oldest dialect, because its sessions end with their connections.
            client.initialize_with(json!({"clientName": "x"}));
            client.start("p", &["/bin/cat"], json!({"pipeStdin": true}));
            client
        })
        .collect();
    for (n, client) in clients.iter().enumerate() {
        client.send("process/write", json!({"processId": "p", "chunk": encode(format!("{n}\n"))}));
    }
    for (n, client) in clients.iter().enumerate() {
        assert_eq!(client.wait_for_output("p", "\n"), format!("{n}\n"));
    }
    assert_eq!(Holdings::of(&server).children, before.children + 200);
    drop(clients);
    assert_nothing_is_left(&server, before);
}

#[test]
fn two_thousand_starts_and_ends_leave_nothing_behind() {
    const ROUNDS: usize = 400;
    let server = Server::start();
    let client = server.client();
    let round = |n: usize| {
        let name = |what: &str| format!("{what} {n}");
        let escaping = "(setsid sleep 1000 >/dev/null 2>&1 &); exec sleep 1000";
        [
            start(&client, &name("pipe"), &["/bin/echo", "hi"], json!({})),
            start(&client, &name("terminal"), &["/bin/echo", "hi"], json!({"tty": true})),
            start(&client, &name("fed"), &["/bin/cat"], json!({"pipeStdin": true})),
            start(&client, &name("failing"), &["/no/such/program"], json!({})),
            start(&client, &name("family"), &["/bin/sh", "-c", escaping], json!({})),
        ]
        .iter()
        .for_each(|id| drop(client.outcome(id)));
        client.send("process/closeStdin", json!({"processId": name("fed")}));
        client.send("process/terminate", json!({"processId": name("family")}));
        for what in ["pipe", "terminal", "fed", "family"] {
            client.event(&name(what), "process/closed");
        }
    };
    (0..8).for_each(round);
    let before = Holdings::of(&server);
    (8..ROUNDS).for_each(round);
    assert_nothing_is_left(&server, before);
}

#[test]
fn connections_that_come_and_go_leave_nothing_behind() {
    Server::on_websocket_and_unix(|server| {
        let visit = || {
            let client = server.connect();
            client.initialize_with(json!({"clientName": "x"}));
            client.shell("p", "echo hi");
            client.event("p", "process/closed");
        };
        (0..5).for_each(|_| visit());
        let before = Holdings::of(&server);
        (0..200).for_each(|_| visit());
        assert_nothing_is_left(&server, before);
    });
}

#[test]
fn an_ended_server_leaves_no_process_behind() {
    let server = Server::start();
    let client = server.client();
    let names: Vec<_> = (0..50).map(|n| format!("p{n}")).collect();
    for (name, tty) in names.iter().zip([false, true].into_iter().cycle()) {
        client.start(
            name,
            &["/bin/sh", "-c", "(setsid sleep 1000 &); echo $$; exec sleep 1000"],
            json!({"tty": tty}),
        );
    }
    let watched: Vec<_> =
        names.iter().map(|name| Watched::printed(&client.wait_for_output(name, "\n"))).collect();
    server.stop();
    for process in &watched {
        process.assert_ends();
    }
}

#[test]
fn a_killed_server_takes_its_processes_with_it() {
    let mut server = Server::start();
    let client = server.client();
    let watched: Vec<_> = [("pipe", false), ("terminal", true)]
        .into_iter()
        .map(|(name, tty)| {
            client.start(name, &["/bin/sh", "-c", "echo $$; exec sleep 1000"], json!({"tty": tty}));
            Watched::printed(&client.wait_for_output(name, "\n"))
        })
        .collect();
    server.signal(Signal::KILL);
    server.wait();
    for process in &watched {
        process.assert_ends();
    }
}
