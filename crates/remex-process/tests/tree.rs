//! A kill ends all processes that descend from a start, wherever they moved.
#![allow(unsafe_code, reason = "a program that forks without a library")]

mod harness;

use harness::{NULL, TAGS, eventually, finish, pids, pipes, shell, spawner, start, within};
use remex_process::{Child, Jail, Scope, Signal, Start, Tag, Tags, tree};

/// A process that waits, one that moved to its own session, and one without a living parent; then `rest`.
fn family(tag: Tag, rest: &str) -> Start {
    let script = format!(
        "sleep 1000 & setsid sleep 1000 & \
         (setsid sh -c 'sleep 1000 & echo daemon; exec sleep 1000' &) ; \
         {rest}"
    );
    shell(NULL, tag, &script)
}

/// The three of `family` that left, and the second child of the daemon.
const FAMILY: usize = 4;

fn whole(tag: Tag, child: &Child) -> Scope {
    Scope::Process(tag, child.exit.leader().clone())
}

/// Shells need a moment to start their children and to send them away.
async fn settled(scope: &Scope, count: usize) {
    eventually(&format!("{count} in {scope:?}"), || pids(scope).len() == count).await;
}

#[tokio::test]
async fn kill_ends_daemons_and_processes_in_other_sessions() {
    let tag = TAGS.tag(3, 1);
    let mut child = spawner().start(family(tag, "wait")).await.unwrap();
    let scope = whole(tag, &child);
    let (_, mut output) = pipes(child.io);
    output.until("daemon").await;
    settled(&scope, FAMILY + 1).await;
    assert_eq!(tree::kill(&scope).wait().unwrap(), FAMILY + 1);
    assert_eq!(pids(&scope), []);
    assert_eq!(within(child.exit.wait()).await.code, 137);
    // Each of them held the pipe open.
    output.rest().await;
}

#[tokio::test]
async fn after_its_leader_exits_a_group_is_killed_and_services_live_until_the_session_ends() {
    let (tag, other) = (TAGS.tag(4, 1), TAGS.tag(4, 2));
    let spawner = spawner();
    let mut child = spawner.start(family(tag, "exit 0")).await.unwrap();
    let mut second = spawner.start(start(NULL, other, "sleep", &["1000"])).await.unwrap();
    let mut stranger = spawner.start(start(NULL, TAGS.tag(5, 1), "sleep", &["1000"])).await.unwrap();
    let (_, mut output) = pipes(child.io);
    output.until("daemon").await;
    assert_eq!(within(child.exit.wait()).await.code, 0);
    settled(&Scope::Session(tag), FAMILY + 1).await;
    settled(&Scope::Group(tag, child.pid), 1).await;

    assert_eq!(tree::kill(&Scope::Group(tag, child.pid)).wait().unwrap(), 1);
    assert_eq!(pids(&Scope::Group(tag, child.pid)), []);
    assert_eq!(second.exit.try_wait(), None);
    assert_eq!(tree::kill(&Scope::Session(other)).wait().unwrap(), FAMILY);
    assert_eq!(within(second.exit.wait()).await.code, 137);
    output.rest().await;
    assert_eq!(stranger.exit.try_wait(), None);
}

#[tokio::test]
async fn a_process_that_lost_its_tag_is_found_by_its_parent() {
    let tag = TAGS.tag(6, 1);
    let script = "setsid prlimit --locks=5 sh -c 'echo untagged; sleep 1000 & wait' & wait";
    let child = spawner().start(shell(NULL, tag, script)).await.unwrap();
    let scope = whole(tag, &child);
    let (_, mut output) = pipes(child.io);
    output.until("untagged").await;
    settled(&scope, 3).await;
    let untagged =
        tree::members(&scope).wait().unwrap().into_iter().filter(|member| member.tag.is_none()).count();
    assert_eq!(untagged, 2);
    assert_eq!(tree::kill(&scope).wait().unwrap(), 3);
    output.rest().await;
}

/// A program that flees: each of its processes lives for a millisecond, in its own session.
#[test]
fn fugitive() {
    if std::env::var_os("REMEX_TEST_FUGITIVE").is_none() {
        return;
    }
    println!("\nfleeing");
    // Long enough for every test, and no longer.
    for _ in 0..60_000 {
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
    unsafe { libc::_exit(0) };
}

#[tokio::test]
async fn a_process_that_keeps_forking_into_new_sessions_is_killed() {
    let spawner = spawner();
    let exe = std::env::current_exe().unwrap();
    for number in 0..8 {
        let tag = TAGS.tag(20, number);
        let args = ["--exact", "fugitive", "--nocapture", "--test-threads=1"];
        let start = Start {
            env: vec![("REMEX_TEST_FUGITIVE".into(), "".into())],
            ..start(NULL, tag, exe.to_str().unwrap(), &args)
        };
        let child = spawner.start(start).await.unwrap();
        let scope = whole(tag, &child);
        let (_, mut output) = pipes(child.io);
        output.until("fleeing").await;
        within(tree::kill(&scope)).await.unwrap();
        // It holds the pipe as long as it lives.
        output.rest().await;
    }
}

#[tokio::test]
async fn a_signal_reaches_every_member() {
    let tag = TAGS.tag(7, 1);
    let child = spawner().start(family(tag, "trap 'exit 9' TERM; echo ready; wait")).await.unwrap();
    let scope = whole(tag, &child);
    let (_, mut output) = pipes(child.io);
    output.until("ready").await;
    output.until("daemon").await;
    settled(&scope, FAMILY + 1).await;
    assert_eq!(tree::signal(&Scope::Session(tag), &[Signal::TERM]).wait().unwrap(), FAMILY + 1);
    let mut exit = child.exit;
    assert_eq!(within(exit.wait()).await.code, 9);
    settled(&scope, 0).await;
    assert_eq!(tree::signal(&scope, &[Signal::TERM]).wait().unwrap(), 0);
    exit.leader().signal_group(Signal::TERM).expect("a reaped leader is no error");
}

#[tokio::test]
async fn a_group_signal_stays_in_the_group() {
    let tag = TAGS.tag(8, 1);
    let mut child = spawner().start(family(tag, "trap 'exit 9' TERM; echo ready; wait")).await.unwrap();
    let (_, mut output) = pipes(child.io);
    output.until("ready").await;
    output.until("daemon").await;
    settled(&Scope::Session(tag), FAMILY + 1).await;
    settled(&Scope::Group(tag, child.pid), 2).await;
    child.exit.leader().signal_group(Signal::TERM).unwrap();
    assert_eq!(within(child.exit.wait()).await.code, 9);
    settled(&Scope::Session(tag), FAMILY - 1).await;
    tree::kill(&Scope::Session(tag)).wait().unwrap();
}

#[tokio::test]
async fn a_group_gets_no_signals_once_its_leader_is_reaped() {
    let tag = TAGS.tag(11, 1);
    let mut child = spawner().start(shell(NULL, tag, "sleep 1000 & echo $!")).await.unwrap();
    let group = Scope::Group(tag, child.pid);
    let (_, mut output) = pipes(child.io);
    output.until("\n").await;
    within(child.exit.wait()).await;
    // The number of the leader may be a stranger's, and so may the group.
    child.exit.leader().signal_group(Signal::KILL).unwrap();
    settled(&group, 1).await;
    assert_eq!(tree::kill(&group).wait().unwrap(), 1, "it is still there");
}

#[tokio::test]
async fn concurrent_kills_finish_without_waiting_for_each_other() {
    let spawner = spawner();
    let mut children = Vec::new();
    for number in 0..50 {
        let tag = TAGS.tag(12, number);
        children.push((tag, spawner.start(shell(NULL, tag, "setsid sleep 1000 & wait")).await.unwrap()));
    }
    settled(&Scope::Session(TAGS.tag(12, 0)), 100).await;
    let kills: Vec<_> = children.iter().map(|(tag, child)| tree::kill(&whole(*tag, child))).collect();
    for kill in kills {
        assert_eq!(within(kill).await.unwrap(), 2);
    }
}

#[tokio::test]
async fn processes_that_a_server_has_forgotten_are_ended_by_its_number() {
    let (tags, spawner) = (Tags::new(), spawner());
    let mut outputs = Vec::new();
    for (session, rest) in [(1, "wait"), (1, "exit 0"), (2, "wait")] {
        let child = spawner.start(family(tags.tag(session, session), rest)).await.unwrap();
        let (_, output) = pipes(child.io);
        outputs.push(output);
        // Nothing waits for it, signals it or knows its pid any more.
        std::mem::forget((child.exit, child.cgroup));
    }
    let jailed = shell(NULL, tags.tag(3, 1), "setsid sleep 1000 & echo daemon; wait");
    let jailed = spawner.start(Start { jail: Some(Jail::pids_only()), ..jailed }).await.unwrap();
    let (_, output) = pipes(jailed.io);
    outputs.push(output);
    std::mem::forget(jailed.exit);
    let mut stranger = spawner.start(start(NULL, TAGS.tag(13, 1), "sleep", &["1000"])).await.unwrap();
    for output in &mut outputs {
        output.until("daemon").await;
    }
    let left = 3 * FAMILY + 2 + 2;
    // The first process of the jail is not among what people have started.
    settled(&Scope::Server(tags.tag(0, 0)), left + 1).await;

    let tags = Tags::from_number(tags.number()).unwrap();
    assert_eq!(tree::kill_server(&tags).unwrap(), left);
    assert_eq!(pids(&Scope::Server(tags.tag(0, 0))), []);
    for output in outputs {
        output.rest().await;
    }
    assert_eq!(tree::kill_server(&tags).unwrap(), 0);
    assert_eq!(stranger.exit.try_wait(), None, "it belongs to another server");
}

#[tokio::test]
async fn members_report_their_relations_and_usage() {
    let tag = TAGS.tag(9, 3);
    let mut child = spawner().start(shell(NULL, tag, "while :; do :; done")).await.unwrap();
    let look = || tree::members(&whole(tag, &child)).wait().unwrap();
    eventually("it has used the processor", || look().iter().any(|member| !member.cpu.is_zero())).await;
    let [member] = &look()[..] else { panic!("one process") };
    let own = i32::try_from(std::process::id()).unwrap();
    assert_eq!(member.parent.map(remex_process::Pid::as_raw), Some(own));
    assert_eq!([Some(member.pid), member.group, member.session], [Some(child.pid); 3]);
    assert_eq!(member.tag, Some(tag));
    assert!(member.resident_bytes > 0);
    child.exit.signal(Signal::KILL).unwrap();
    within(child.exit.wait()).await;
}

#[tokio::test]
async fn a_zombie_is_not_a_member() {
    let tag = TAGS.tag(10, 1);
    let child = spawner().start(start(NULL, tag, "true", &[])).await.unwrap();
    let scope = whole(tag, &child);
    settled(&scope, 0).await;
    assert_eq!(tree::kill(&scope).wait().unwrap(), 0);
    assert_eq!(finish(child).await.1.code, 0);
}
