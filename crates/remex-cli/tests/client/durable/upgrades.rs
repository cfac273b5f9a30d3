//! Upgrades that go wrong, and those that come at a bad moment.

use std::{
    fs,
    mem::MaybeUninit,
    process::{Output, Stdio},
    time::Instant,
};

use remex_client::Options;
use rustix::{
    fs::inotify,
    process::{Signal, kill_process},
};
use serde_json::json;

use super::{
    host::DurableHost,
    restarts::{connect, poll, resume},
};
use crate::support::{InTime as _, PATIENCE, program};

fn upgrade(host: &DurableHost) -> Output {
    program(&["upgrade", "--state", host.state().to_str().unwrap()]).finished()
}

/// Returns since when the server says that it serves.
fn serving_since(host: &DurableHost) -> Option<String> {
    let text = fs::read_to_string(host.state().join("server.lock")).ok()?;
    let mut lines = text.lines().skip(2);
    (lines.next()? == "serving").then_some(lines.next()?.to_owned())
}

#[test]
fn an_upgrade_to_another_program_is_refused_and_the_server_keeps_running() {
    let host = DurableHost::renewable(&[]);
    let (client, _) = connect(&host);
    for (script, reason) in [
        ("#!/bin/sh\nexit 0\n", "is not remex"),
        ("#!/bin/sh\nexit 7\n", "ended with exit status: 7"),
        ("no program", "cannot run"),
    ] {
        host.replace_program(script);
        let began = Instant::now();
        let refused = upgrade(&host);
        let said = String::from_utf8_lossy(&refused.stderr);
        assert!(!refused.status.success() && said.contains(reason), "{refused:?}");
        assert!(began.elapsed() < PATIENCE, "it is told at once");
        // Whoever sends the signal without looking first achieves nothing either, and the server says so.
        host.upgrade();
        let lock = host.state().join("server.lock");
        poll("the refusal", || fs::read_to_string(&lock).unwrap().contains(reason));
        client.call("environment/status", json!({})).unwrap();
    }
}

#[test]
fn a_hanging_new_program_does_not_block_shutdown() {
    let mut host = DurableHost::renewable(&[]);
    connect(&host);
    let begun = host.state().join("begun");
    host.replace_program(&format!("#!/bin/sh\n: > '{}'\nexec sleep 1000\n", begun.display()));
    host.upgrade();
    poll("the program that hangs", || begun.exists());
    host.stop();
}

#[test]
fn an_upgrade_uses_the_program_now_at_the_original_path() {
    let host = DurableHost::renewable(&[]);
    let (_, session) = connect(&host);
    let old = host.state().join("remex.old");
    fs::rename(host.own_program(), &old).unwrap();
    let copied = std::process::Command::new("cp").arg(&old).arg(host.own_program()).status().unwrap();
    assert!(copied.success());
    let upgraded = upgrade(&host);
    let said = String::from_utf8_lossy(&upgraded.stdout);
    let expected = format!("from {}\n", host.own_program().display());
    assert!(upgraded.status.success() && said.ends_with(&expected), "{upgraded:?}");
    let running = fs::read_link(format!("/proc/{}/exe", host.server().as_raw_nonzero())).unwrap();
    assert_eq!(running, host.own_program());
    resume(&host, &session);
}

#[test]
fn an_upgrade_returns_when_the_server_serves_and_no_connection_is_lost() {
    let host = DurableHost::renewable(&[]);
    let (client, session) = connect(&host);
    // A keeper with nothing to keep ends.
    client.start("p", &["sleep", "1000"], json!({}));
    drop(client);
    for number in 1..=5 {
        host.renew();
        let upgraded = upgrade(&host);
        assert!(upgraded.status.success(), "{upgraded:?}");
        assert_eq!(host.replaced_keepers(), number, "{}", host.said());
        // At once: it does not only have the sockets, it answers.
        resume(&host, &session);
    }
}

#[test]
fn inherited_listening_sockets_do_not_overwrite_used_descriptors() {
    // Where there are many, threads of the old program have more time to notice.
    let directory = tempfile::tempdir().unwrap();
    let sockets: Vec<_> =
        (0..60).map(|number| format!("unix://{}/{number}.sock", directory.path().display())).collect();
    let flags: Vec<_> = sockets.iter().flat_map(|socket| ["--listen", socket]).collect();
    let host = DurableHost::with(&flags);
    let (_, session) = connect(&host);
    for _ in 0..10 {
        let upgraded = upgrade(&host);
        assert!(upgraded.status.success(), "{upgraded:?} {}", host.said());
        resume(&host, &session);
    }
}

#[test]
fn a_removed_socket_file_is_recreated() {
    let host = DurableHost::start();
    let (_, session) = connect(&host);
    fs::remove_file(host.socket()).unwrap();
    let upgraded = upgrade(&host);
    assert!(upgraded.status.success(), "{upgraded:?} {}", host.said());
    resume(&host, &session);
}

#[test]
fn an_upgrade_waits_for_a_server_that_is_just_starting() {
    let host = DurableHost::start();
    let lock = host.state().join("server.lock");
    poll("a server that serves", || serving_since(&host).is_some());
    let text = fs::read_to_string(&lock).unwrap();
    // As if it had not said yet that it serves.
    fs::write(&lock, text.lines().next().unwrap()).unwrap();
    let opened = inotify::init(inotify::CreateFlags::NONBLOCK).unwrap();
    inotify::add_watch(&opened, &lock, inotify::WatchFlags::OPEN).unwrap();
    let mut command = program(&["upgrade", "--state", host.state().to_str().unwrap()]);
    let upgrade = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    // It opens the file twice to look once.
    let (mut buffer, mut looks) = ([MaybeUninit::uninit(); 4096], 0);
    poll("an upgrade that looks again", || {
        let mut events = inotify::Reader::new(&opened, &mut buffer);
        while looks < 3 && events.next().is_ok() {
            looks += 1;
        }
        looks == 3
    });
    fs::write(&lock, text).unwrap();
    let upgraded = upgrade.finished();
    assert!(upgraded.status.success(), "{upgraded:?}");
}

#[test]
fn a_reload_during_an_upgrade_does_not_end_the_server() {
    let settings = "[limits]\nprocesses = 100\n";
    let host = DurableHost::with_config(settings);
    let (_, session) = connect(&host);
    for _ in 0..5 {
        poll("a server that serves", || serving_since(&host).is_some());
        let before = serving_since(&host);
        host.upgrade();
        for _ in 0..20 {
            kill_process(host.server(), Signal::HUP).unwrap();
            std::thread::yield_now();
        }
        poll("the next program", || serving_since(&host).is_some_and(|now| Some(now) != before));
    }
    resume(&host, &session);
}

#[tokio::test]
async fn sessions_can_be_resumed_and_logs_read_and_collected_on_a_full_disk() {
    let host = super::space::on_a_small_disk();
    let options = || Options::default().detach_ttl(std::time::Duration::from_secs(3600));
    let client = host.connect(options()).await;
    let session = client.session_id().to_owned();
    let process = remex_client::Command::shell("echo done").start(&client).await.unwrap();
    super::in_time("the process", process.wait_with_output()).await.unwrap();
    client.close().await;
    // As the server sees it.
    let state = format!("/proc/{}/root{}", host.server().as_raw_nonzero(), host.state().display());
    let filled = std::process::Command::new("sh")
        .args(["-c", "head -c 100000000 /dev/zero > \"$1/filler\"", "sh", &state])
        .output()
        .unwrap();
    assert!(!filled.status.success(), "the disk is full");
    let resuming = options().session(remex_client::Session::Resume { id: session.clone(), takeover: false });
    let client = host.connect(resuming).await;
    assert_eq!(client.session_id(), session);
    let other = host.connect(options()).await;
    assert_eq!(other.processes().await.unwrap().len(), 1);
    let output = remex_client::Command::shell("echo fine").output(&other).await.unwrap();
    assert_eq!(output.stdout, b"fine\n", "a process that is not durable needs no space");
    let refused = remex_client::Command::new("true").durable(true).start(&other).await.unwrap_err();
    assert!(refused.to_string().contains("could not be saved"), "{refused}");
    let gc = program(&["gc", "--on", &host.address()]).finished();
    assert!(gc.status.success(), "{gc:?}");
}
