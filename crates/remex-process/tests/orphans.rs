//! A program that adopts orphans finds what has cleared its tag, left its session and lost its parents, or says that
//! something may be left.
//!
//! The kernel gives orphans to the whole program, so these tests are steps of one.
#![allow(unsafe_code, reason = "a program that forks without a library")]
#![allow(clippy::unwrap_used, reason = "in a test it is the assertion")]

mod harness;
mod inmate;

use std::path::Path;

use harness::{NULL, TAGS, eventually, pipes, shell, spawner, start, within};
use inmate::{jail, preset};
use remex_process::{
    HiddenChildren, HiddenScan, Scope, Spawner, Start, Tag, adopt_orphans, reap_orphans, spawn_own, tree,
};
use remex_sandbox::Preset;

/// Clears its tag, leaves its session and lets its parents end, once or all the time; holds its output open.
#[test]
fn fugitive() {
    let Some(way) = std::env::var_os("REMEX_TEST_FUGITIVE") else { return };
    let forks = if way == "flees" { 60_000 } else { 2 };
    let none = libc::rlimit { rlim_cur: 5, rlim_max: 5 };
    // SAFETY: these are system calls that change only this process, and the structure is valid.
    unsafe {
        for resource in [libc::RLIMIT_LOCKS, libc::RLIMIT_RSS] {
            libc::setrlimit(resource, &raw const none);
        }
    }
    println!("\nfleeing");
    for _ in 0..forks {
        // SAFETY: the child makes system calls only.
        unsafe {
            if libc::fork() != 0 {
                libc::_exit(0);
            }
            libc::setsid();
            libc::usleep(1_000);
        }
    }
    // SAFETY: the exit runs none of our code.
    unsafe {
        libc::sleep(60);
        libc::_exit(0);
    }
}

fn flee(tag: Tag, way: &str) -> Start {
    let exe = std::env::current_exe().unwrap();
    let args = ["--exact", "fugitive", "--nocapture", "--test-threads=1"];
    Start {
        env: vec![("REMEX_TEST_FUGITIVE".into(), way.into())],
        ..start(NULL, tag, exe.to_str().unwrap(), &args)
    }
}

/// Ends all processes of earlier steps, so that no other start can have left orphans behind.
async fn alone() {
    eventually("nothing is left of earlier starts", || !reap_orphans()).await;
}

#[tokio::test]
async fn processes_that_hide_their_start_are_killed_or_reported() {
    if std::env::var_os("REMEX_TEST_FUGITIVE").is_some() {
        return;
    }
    adopt_orphans().unwrap();
    let spawner = spawner();
    for (number, way) in (0..).zip(["hides", "flees", "hides", "flees"]) {
        nothing_is_left(&spawner, TAGS.tag(1, number), way).await;
        alone().await;
    }
    others_are_left_alone(&spawner).await;
    alone().await;
    own_children_are_not_orphans(&spawner).await;
    alone().await;
    starts_hide_nothing(&spawner).await;
}

async fn nothing_is_left(spawner: &Spawner, tag: Tag, way: &str) {
    let mut child = spawner.start(flee(tag, way)).await.unwrap();
    let (_, mut output) = pipes(child.io);
    output.until("fleeing").await;
    // The first process has ended, and with it everything that shows whose the others are.
    within(child.exit.wait()).await;
    // From outside, it is visible that a process is left, however often it replaces itself.
    let mut children = HiddenChildren::new(std::process::id(), tag).unwrap();
    for _ in 0..200 {
        assert_ne!(children.scan().unwrap(), HiddenScan::Clear, "one that {way}");
    }
    within(tree::kill(&Scope::Start(tag))).await.unwrap_or_else(|error| panic!("one that {way}: {error}"));
    // It holds the pipe as long as it lives.
    output.rest().await;
}

/// Daemons of other starts live on, with a tag or without; the answer says that those without may be left.
async fn others_are_left_alone(spawner: &Spawner) {
    let (tag, other) = (TAGS.tag(2, 1), TAGS.tag(2, 2));
    let mut first = spawner.start(shell(NULL, tag, "echo up; exec sleep 1000")).await.unwrap();
    let tagged = spawner.start(shell(NULL, other, "(setsid sleep 1000 & echo $!)")).await.unwrap();
    let (_, mut output) = pipes(tagged.io);
    let daemon: u32 = output.until("\n").await.trim().parse().unwrap();
    let mut hidden = spawner.start(flee(TAGS.tag(2, 3), "hides")).await.unwrap();
    let (_, hidden_output) = pipes(hidden.io);
    // From now on an orphan is left of it.
    within(hidden.exit.wait()).await;

    let error = within(tree::kill(&Scope::Process(tag, first.exit.leader().clone()))).await.unwrap_err();
    assert!(error.to_string().contains("some processes may be left"), "{error}");
    within(first.exit.wait()).await;
    assert!(std::fs::exists(format!("/proc/{daemon}")).unwrap(), "the daemon of another start was killed");

    // With all starts that can have left it behind, it is killed.
    within(tree::kill(&Scope::Session(tag))).await.unwrap();
    hidden_output.rest().await;
}

/// Programs that this one starts for itself survive every kill, and no scan takes their exit status.
async fn own_children_are_not_orphans(spawner: &Spawner) {
    let tag = TAGS.tag(3, 1);
    let mut child = spawner.start(shell(NULL, tag, "exec sleep 1000")).await.unwrap();
    let mut own = spawn_own(
        std::process::Command::new("sh")
            .args(["-c", "read line; exit 7"])
            .stdin(std::process::Stdio::piped()),
    )
    .unwrap();
    within(tree::kill(&Scope::Server(tag))).await.unwrap();
    within(child.exit.wait()).await;
    drop(own.stdin.take());
    eventually("its own child ends", || {
        reap_orphans();
        std::fs::read_to_string(format!("/proc/{}/stat", own.id())).unwrap().contains(") Z ")
    })
    .await;
    reap_orphans();
    assert_eq!(own.wait().unwrap().code(), Some(7));
}

/// Starts and exits do not prevent another program from seeing that no process hides.
async fn starts_hide_nothing(spawner: &Spawner) {
    let tag = TAGS.tag(4, 1);
    let (stop, stopped) = std::sync::mpsc::channel::<()>();
    let looking = std::thread::spawn(move || {
        let mut scans = Vec::new();
        let mut children = HiddenChildren::new(std::process::id(), tag).unwrap();
        while stopped.try_recv() == Err(std::sync::mpsc::TryRecvError::Empty) {
            scans.push(children.scan().unwrap());
        }
        scans
    });
    for number in 0..300 {
        // What is prepared for the next confined start is no secret either.
        let confined = (number % 10 == 0).then(|| jail(preset(Preset::ReadOnly, Path::new("/"))));
        let begun = Start { jail: confined, ..start(NULL, tag, "true", &[]) };
        let mut child = spawner.start(begun).await.unwrap();
        within(child.exit.wait()).await;
    }
    drop(stop);
    let scans = looking.join().unwrap();
    let hidden: Vec<_> = scans.iter().filter(|scan| matches!(scan, HiddenScan::Hidden(_))).collect();
    assert_eq!(hidden, Vec::<&HiddenScan>::new(), "starts are no secret");
    assert!(scans.contains(&HiddenScan::Clear), "starts leave no doubt behind: {} scans", scans.len());
}
