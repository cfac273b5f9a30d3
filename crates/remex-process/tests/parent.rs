//! What depends on the program that starts children: how it was started, and when it dies.
#![allow(clippy::unwrap_used, reason = "tests")]

mod harness;
mod inmate;

use std::{
    fs,
    io::{BufRead, BufReader, Write as _},
    process::{Command, Stdio},
    thread,
};

use harness::{
    NULL, PIPED, PTY, TAGS, eventually, finish, own_children, pipes, run, shell, spawner, start, within,
};
use remex_process::{Scope, Signal, Start, Tags, UserIds, Watchdog, can_switch_user, tree};
use remex_sandbox::Preset;
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    process::{Pid, PidfdFlags, pidfd_open},
};

/// Set for this test program when it runs again as a server of its own.
const ROLE: &str = "REMEX_TEST_ROLE";

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

#[test]
fn the_end_of_a_worker_does_not_fire_the_parent_death_signal() {
    let spawner = spawner();
    let asked = Start { parent_death: Some(Signal::KILL), ..start(PIPED, TAGS.tag(1, 1), "cat", &[]) };
    let worker = thread::spawn(move || runtime().block_on(spawner.start(asked)).unwrap());
    let mut child = worker.join().unwrap();
    runtime().block_on(async {
        let (stdin, mut output) = pipes(child.io);
        let mut stdin = fs::File::from(stdin.unwrap());
        stdin.write_all(b"still there\n").unwrap();
        output.until("still there").await;
        assert_eq!(child.exit.try_wait(), None);
    });
}

#[test]
fn the_end_of_the_server_fires_the_parent_death_signal() {
    for role in ["dying", "dying as another"] {
        let (mut server, output) = this_program_as(role, "exec");
        let pid = output.lines().find_map(|line| line.unwrap().split_once("child ")?.1.parse().ok()).unwrap();
        let child = pidfd_open(Pid::from_raw(pid).unwrap(), PidfdFlags::empty()).unwrap();
        server.kill().unwrap();
        server.wait().unwrap();
        let mut ended = [PollFd::new(&child, PollFlags::IN)];
        let timeout = Timespec { tv_sec: 20, tv_nsec: 0 };
        assert_eq!(poll(&mut ended, Some(&timeout)).unwrap(), 1, "{role}: the child lives on");
    }
}

#[test]
fn a_watchdog_ends_processes_outside_the_group_of_a_child_when_the_server_dies() {
    let (mut server, output) = this_program_as("guarded", "exec");
    let pid = output.lines().find_map(|line| line.unwrap().split_once("child ")?.1.parse().ok()).unwrap();
    let child = pidfd_open(Pid::from_raw(pid).unwrap(), PidfdFlags::empty()).unwrap();
    server.kill().unwrap();
    server.wait().unwrap();
    let mut ended = [PollFd::new(&child, PollFlags::IN)];
    let timeout = Timespec { tv_sec: 20, tv_nsec: 0 };
    assert_eq!(poll(&mut ended, Some(&timeout)).unwrap(), 1, "the child lives on");
}

#[test]
fn placeholders_are_removed_when_the_server_is_killed() {
    let directory = tempfile::tempdir().unwrap();
    let root = fs::canonicalize(directory.path()).unwrap();
    let (mut server, output) = this_program_as("confining", &format!("cd {}; exec", root.display()));
    assert!(output.lines().any(|line| line.unwrap().contains("confined")));
    assert!(root.join(".git").is_dir());
    server.kill().unwrap();
    server.wait().unwrap();
    let is_empty = || fs::read_dir(&root).unwrap().next().is_none();
    runtime().block_on(eventually("nothing is left", is_empty));
}

#[test]
fn another_program_ends_what_a_killed_server_without_a_watchdog_left_running() {
    let (mut server, output) = this_program_as("unguarded", "exec");
    let number = output.lines().find_map(|line| line.unwrap().split_once("server ")?.1.parse().ok()).unwrap();
    server.kill().unwrap();
    server.wait().unwrap();
    let tags = Tags::from_number(number).unwrap();
    let left = || tree::members(&Scope::Server(tags.tag(0, 0))).wait().unwrap().len();
    assert_eq!(left(), 2, "they outlive the server");
    assert_eq!(tree::kill_server(&tags).unwrap(), 2);
    assert_eq!(left(), 0);
}

#[test]
fn a_dropped_watchdog_exits() {
    let watchdogs = || {
        let name = |pid| fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        own_children().into_iter().filter(|&pid| name(pid) == "remex-watchdog\n").count()
    };
    let watchdog = Watchdog::start(&Tags::new()).unwrap();
    runtime().block_on(eventually("it has its name", || watchdogs() == 1));
    drop(watchdog);
    assert_eq!(watchdogs(), 0);
}

#[test]
fn a_server_started_with_sigchld_ignored_still_gets_exit_statuses() {
    let (mut server, output) = this_program_as("deaf", "exec env --ignore-signal=CHLD");
    assert_eq!(output.lines().filter(|line| line.as_ref().unwrap().ends_with("code 3")).count(), 1);
    server.wait().unwrap();
}

#[test]
fn a_server_out_of_descriptors_reports_it_and_recovers() {
    let (mut server, output) = this_program_as("poor", "ulimit -n 64; exec");
    let told: Vec<_> =
        output.lines().filter_map(|line| Some(line.unwrap().split_once("kind ")?.1.to_owned())).collect();
    assert_eq!(told, ["TooManyDescriptors", "TooManyDescriptors"]);
    assert!(server.wait().unwrap().success());
}

#[test]
fn an_embedded_server_keeps_the_descriptor_limit_of_its_program_and_of_all_children() {
    let (mut server, output) = this_program_as("modest", "ulimit -Sn 256; exec");
    let limits: Vec<_> =
        output.lines().filter_map(|line| Some(line.unwrap().split_once("limit ")?.1.to_owned())).collect();
    assert_eq!(limits, ["256", "256", "256"]);
    assert!(server.wait().unwrap().success());
}

/// Not a test of its own: what this program does when one of the tests above starts it.
#[test]
fn role() {
    match std::env::var(ROLE).as_deref() {
        Ok("dying") => runtime().block_on(async {
            let asked =
                Start { parent_death: Some(Signal::TERM), ..start(NULL, TAGS.tag(1, 1), "sleep", &["1000"]) };
            let mut child = spawner().start(asked).await.unwrap();
            println!("child {}", child.pid);
            within(child.exit.wait()).await;
        }),
        // Exactly the same, but as another user if that is possible.
        Ok("dying as another") => runtime().block_on(async {
            let user = can_switch_user().ok().and_then(|()| UserIds::new(54_871, 54_872, []));
            let sleep = start(NULL, TAGS.tag(1, 1), "sleep", &["1000"]);
            let asked = Start { parent_death: Some(Signal::TERM), user, ..sleep };
            let mut child = spawner().start(asked).await.unwrap();
            println!("child {}", child.pid);
            within(child.exit.wait()).await;
        }),
        Ok("guarded") => {
            let _watchdog = Watchdog::start(&TAGS).unwrap();
            runtime().block_on(async {
                let script = "setsid -w sh -c 'echo $$; exec sleep 1000'; true";
                let mut child = spawner().start(shell(NULL, TAGS.tag(1, 1), script)).await.unwrap();
                let (_, mut output) = pipes(child.io);
                println!("child {}", output.until("\n").await);
                within(child.exit.wait()).await;
            });
        }
        Ok("unguarded") => runtime().block_on(async {
            let script = "setsid sh -c 'echo ready; exec sleep 1000' & wait";
            let mut child = spawner().start(shell(NULL, TAGS.tag(1, 1), script)).await.unwrap();
            let (_, mut output) = pipes(child.io);
            output.until("ready").await;
            println!("server {}", TAGS.number());
            within(child.exit.wait()).await;
        }),
        Ok("confining") => runtime().block_on(async {
            let policy = inmate::preset(Preset::WorkspaceWrite, &std::env::current_dir().unwrap());
            let asked = Start {
                jail: Some(inmate::jail(policy)),
                ..shell(NULL, TAGS.tag(1, 1), "setsid sleep 1000 & echo ready; wait")
            };
            let mut child = spawner().start(asked).await.unwrap();
            pipes(child.io).1.until("ready").await;
            println!("confined");
            within(child.exit.wait()).await;
        }),
        Ok("deaf") => runtime().block_on(async {
            println!("code {}", run(shell(NULL, TAGS.tag(1, 1), "exit 3")).await.1.code);
        }),
        Ok("modest") => runtime().block_on(async {
            let spawner = spawner();
            let other = Command::new("/bin/sh").args(["-c", "ulimit -n"]).output().unwrap();
            println!("limit {}", String::from_utf8(other.stdout).unwrap().trim());
            let own = async || {
                let child = spawner.start(shell(NULL, TAGS.tag(1, 1), "ulimit -n")).await.unwrap();
                println!("limit {}", finish(child).await.0.trim());
            };
            own().await;
            remex_process::raise_file_limit();
            own().await;
        }),
        Ok("poor") => runtime().block_on(async {
            let spawner = spawner();
            for stdio in [PIPED, PTY] {
                let mut children = Vec::new();
                let error = loop {
                    match spawner.start(start(stdio, TAGS.tag(1, 1), "cat", &[])).await {
                        Ok(child) => children.push(child),
                        Err(error) => break error,
                    }
                };
                println!("kind {:?}", error.kind());
                // Their descriptors are free again when they are reaped.
                drop(children);
                eventually("all are gone", || own_children().is_empty()).await;
            }
        }),
        _ => {}
    }
}

/// Starts this test program again, after some words of shell.
fn this_program_as(role: &str, words: &str) -> (std::process::Child, BufReader<std::process::ChildStdout>) {
    let mut server = Command::new("/bin/sh")
        .args(["-c", &format!("{words} \"$0\" --exact role --nocapture")])
        .arg(std::env::current_exe().unwrap())
        .env(ROLE, role)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let output = BufReader::new(server.stdout.take().unwrap());
    (server, output)
}
