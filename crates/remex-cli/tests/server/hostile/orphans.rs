//! Programs that hide which process they come from: they clear their tag, leave their session and lose their parents.

use std::{
    fs,
    sync::atomic::{AtomicU32, Ordering},
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal};
use serde_json::{Value, json};

use crate::support::{Client, PATIENCE, Server, Watched};

/// Processes with a word of their own on their command line; killed when dropped.
struct Fugitives {
    word: String,
}

/// How a program hides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Hiding {
    /// As one process that waits.
    Once,
    /// As another process every millisecond.
    AllTheTime,
}

impl Fugitives {
    /// Starts a process that leaves fugitives behind, and then does the `rest`.
    fn start(client: &Client, id: &str, hiding: Hiding, rest: &str) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let fugitives = Self { word: format!("fugitive-{}-{number}", std::process::id()) };
        // Bounded, so that nothing is left of a test that fails.
        let forks = match hiding {
            Hiding::Once => 2,
            Hiding::AllTheTime => 100_000,
        };
        let script = format!(
            r#"use POSIX; close STDIN; close STDOUT; close STDERR;
            for (1..{forks}) {{ my $p = fork; exit if $p; POSIX::setsid(); select undef, undef, undef, 0.001 }}
            $0 = "settled $ARGV[0]"; sleep 100"#
        );
        let line = format!(
            r#"prlimit --locks=5 perl -e "$0" {word} & wait; echo hidden; {rest}"#,
            word = fugitives.word
        );
        client.start(id, &["/bin/sh", "-c", &line, &script], json!({}));
        client.wait_for_output(id, "hidden");
        if hiding == Hiding::Once {
            fugitives.wait_until_settled();
        }
        fugitives
    }

    /// Waits until the last process of the chain is there, alone.
    fn wait_until_settled(&self) {
        let deadline = Instant::now() + PATIENCE;
        let is_settled = |pid: &Pid| {
            let words = fs::read(format!("/proc/{}/cmdline", pid.as_raw_nonzero())).unwrap_or_default();
            words.starts_with(b"settled")
        };
        while !matches!(&self.alive()[..], [only] if is_settled(only)) {
            assert!(Instant::now() < deadline, "waited for the fugitive to settle");
        }
    }

    fn alive(&self) -> Vec<Pid> {
        let entries = fs::read_dir("/proc").expect("Linux has /proc");
        let pids = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
        let is_ours = |pid: &i32| {
            let words = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            words.split(|byte| *byte == 0 || *byte == b' ').any(|word| word == self.word.as_bytes())
        };
        pids.filter(is_ours).filter_map(Pid::from_raw).collect()
    }

    /// Asserts that none lives, in several looks: one can miss a process that is just being replaced by another.
    fn assert_gone(&self, when: &str) {
        for _ in 0..20 {
            assert_eq!(self.alive(), [], "{when}");
        }
    }

    fn assert_alive(&self, when: &str) {
        let deadline = Instant::now() + PATIENCE;
        while self.alive().is_empty() {
            assert!(Instant::now() < deadline, "all are dead {when}");
        }
    }
}

impl Drop for Fugitives {
    fn drop(&mut self) {
        let deadline = Instant::now() + PATIENCE;
        while let Some(one) = self.alive().into_iter().find_map(Watched::find) {
            one.signal(Signal::KILL);
            if Instant::now() > deadline {
                return;
            }
        }
    }
}

fn terminate(client: &Client, id: &str) -> Result<Value, Value> {
    client.call("process/terminate", json!({"processId": id, "mode": "force", "scope": "tree"}))
}

#[test]
fn descendants_that_hide_their_origin_are_killed_with_their_process() {
    for hiding in [Hiding::Once, Hiding::AllTheTime] {
        for rest in ["exec sleep 1000", "exit"] {
            let server = Server::start();
            let client = server.client();
            let fugitives = Fugitives::start(&client, "p", hiding, rest);
            fugitives.assert_alive("before the kill");
            let killed = terminate(&client, "p");
            assert!(killed.is_ok(), "{hiding:?}, {rest}: {killed:?}");
            fugitives.assert_gone("when the answer is there");
        }
    }
}

#[test]
fn earlier_exits_do_not_cause_leftover_warnings() {
    let server = Server::start();
    let client = server.client();
    for number in 0..20 {
        let id = format!("early {number}");
        client.start(&id, &["true"], json!({}));
        client.collect(&id);
    }
    let fugitives = Fugitives::start(&client, "p", Hiding::Once, "exec sleep 1000");
    let killed = terminate(&client, "p");
    assert!(killed.is_ok(), "{killed:?}");
    fugitives.assert_gone("when the answer is there");
}

#[test]
fn possible_leftovers_are_reported_and_no_other_process_is_killed() {
    let server = Server::start();
    let client = server.client();
    client.shell("daemons", "(setsid sleep 1000 </dev/null >/dev/null 2>&1 & echo $!)");
    let daemon = Watched::printed(&client.wait_for_output("daemons", "\n"));
    client.start("bystander", &["sleep", "1000"], json!({}));
    let fugitives = Fugitives::start(&client, "p", Hiding::Once, "exec sleep 1000");
    for id in ["p", "bystander"] {
        let error = terminate(&client, id).expect_err("it may have left the fugitive behind");
        let message = error["message"].as_str().unwrap();
        let left = fugitives.alive();
        assert!(message.contains("some processes may be left"), "{message}");
        assert!(message.ends_with(&format!(": {}", left[0].as_raw_nonzero())), "{message}");
    }
    assert!(!daemon.ended_within(Duration::ZERO), "the daemon of another process was killed");
    // All that end with the server, with or without its tag.
    server.stop();
    fugitives.assert_gone("after the end of the server");
}

#[test]
fn orphans_are_reaped_without_stealing_exits_of_processes() {
    let server = Server::start();
    let client = server.client();
    client.shell("p", "for i in 1 2 3 4 5; do (sleep 0.0$i &) ; done; echo left");
    client.wait_for_output("p", "left");
    for number in 0..50 {
        let id = format!("q{number}");
        client.shell(&id, &format!("exit {number}"));
        assert_eq!(client.collect(&id).exit_code(), number);
    }
    let deadline = Instant::now() + PATIENCE;
    while zombies_of(server.pid()) > 0 {
        assert!(Instant::now() < deadline, "nobody reaps them");
    }
}

fn zombies_of(parent: u32) -> usize {
    let parent = parent.to_string();
    let stats = fs::read_dir("/proc").expect("Linux has /proc").filter_map(|entry| {
        let text = fs::read_to_string(entry.ok()?.path().join("stat")).ok()?;
        let (_, rest) = text.rsplit_once(") ")?;
        let mut fields = rest.split(' ');
        Some((fields.next()? == "Z", fields.next()? == parent))
    });
    stats.filter(|found| *found == (true, true)).count()
}
