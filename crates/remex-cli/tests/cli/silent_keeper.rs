//! A keeper that does not respond is named by what waits for it, and does later nothing that was given up.

use std::{fs, time::Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::{home::Home, support::PATIENCE};

/// Suspends a process until this is dropped.
struct Suspended(Pid);

impl Suspended {
    fn new(process: Pid) -> Self {
        kill_process(process, Signal::STOP).unwrap();
        Self(process)
    }
}

impl Drop for Suspended {
    fn drop(&mut self) {
        let _ = kill_process(self.0, Signal::CONT);
    }
}

fn runs(word: &str) -> bool {
    let pids = fs::read_dir("/proc").unwrap().flatten().map(|entry| entry.path().join("cmdline"));
    let mut lines = pids.filter_map(|path| fs::read(path).ok());
    lines.any(|line| line.split(|byte| *byte == 0).any(|found| found == word.as_bytes()))
}

#[test]
fn a_suspended_keeper_is_named_in_timeouts_and_starts_nothing_later() {
    let home = Home::new();
    let started = home.say(&["run", "--detach", "--name", "first", "--", "sleep", "1000"]);
    assert_eq!(started.code, Some(0), "{started:?}");
    let [keeper] = home.keepers()[..] else { panic!("there is one keeper") };
    let pid = keeper.as_raw_nonzero();
    let word = format!("1000.{}", std::process::id());

    let suspended = Suspended::new(keeper);
    let refused = home.say(&["run", "--detach", "--name", "second", "--", "sleep", &word]);
    assert_eq!((refused.code, refused.out.as_str()), (Some(125), ""), "{refused:?}");
    let waiting = format!("remex: waiting for the keeper of the server (pid {pid}), which does not respond");
    assert!(refused.err.starts_with(&waiting), "{refused:?}");
    let cause = format!("the keeper (pid {pid}), which runs durable processes, does not respond");
    assert!(
        refused.err.contains(&cause) && refused.err.contains(&format!("`kill -CONT {pid}`")),
        "{refused:?}"
    );

    let killed = home.say(&["kill", "--tree", "first"]);
    assert_eq!((killed.code, killed.out.as_str()), (Some(1), ""), "{killed:?}");
    let cause = format!("the keeper of the server (pid {pid}) does not respond");
    assert!(killed.err.contains(&cause) && !killed.err.contains("hostile"), "{killed:?}");

    drop(suspended);
    let started = home.say(&["run", "--detach", "--name", "third", "--", "sleep", "1000"]);
    assert_eq!(started.code, Some(0), "{started:?}");
    let deadline = Instant::now() + PATIENCE;
    while runs(&word) {
        assert!(Instant::now() < deadline, "the keeper runs what was given up");
    }
    let listed = home.say(&["ps", "--all"]).out;
    assert!(listed.contains("third") && !listed.contains("second"), "{listed}");
}
