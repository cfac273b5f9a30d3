//! `remex kill --tree` of durable processes that hide what they started.

use std::{fs, time::Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::{home::Home, support::PATIENCE};

/// Starts a durable process that leaves something behind without tag, session and parents: one process after the other,
/// `forks` of them, each with `word` on its command line.
fn leave(home: &Home, name: &str, word: &str, forks: u32) {
    let ready = home.path(&format!("{name}.ready"));
    let script = format!(
        r#"use POSIX; close STDIN; close STDOUT; close STDERR;
        for (1..{forks}) {{ my $p = fork; exit if $p; POSIX::setsid(); select undef, undef, undef, 0.001 }}
        sleep 100"#
    );
    let line =
        format!(r#"prlimit --locks=5 perl -e "$0" {word} & wait; : >'{}'; exec sleep 1000"#, ready.display());
    let started = home.say(&["run", "--detach", "--name", name, "--", "/bin/sh", "-c", &line, &script]);
    assert_eq!(started.code, Some(0), "{started:?}");
    let deadline = Instant::now() + PATIENCE;
    while !ready.exists() {
        assert!(Instant::now() < deadline, "{name} does not start");
    }
}

fn alive(word: &str) -> Vec<Pid> {
    let pids =
        fs::read_dir("/proc").unwrap().filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    let has_word = |pid: &i32| {
        let words = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        words.split(|byte| *byte == 0).any(|found| found == word.as_bytes())
    };
    pids.filter(has_word).filter_map(Pid::from_raw).collect()
}

#[test]
fn a_hiding_durable_tree_is_killed_and_possible_leftovers_are_reported() {
    let home = Home::new();
    for (number, forks) in [2, 100_000, 2, 100_000].into_iter().enumerate() {
        let (name, word) =
            (format!("p{number}"), format!("durable-fugitive-{}-{number}", std::process::id()));
        leave(&home, &name, &word, forks);
        let killed = home.say(&["kill", "--tree", &name]);
        assert_eq!(killed.code, Some(0), "{killed:?}");
        for _ in 0..20 {
            assert_eq!(alive(&word), [], "{forks} forks");
        }
    }

    let bystander = home.say(&["run", "--detach", "--name", "bystander", "--", "sleep", "1000"]);
    assert_eq!(bystander.code, Some(0), "{bystander:?}");
    let word = format!("durable-fugitive-{}-doubtful", std::process::id());
    leave(&home, "doubtful", &word, 2);
    let killed = home.say(&["kill", "--tree", "doubtful"]);
    let [left] = alive(&word)[..] else { panic!("it cannot be told from one of the other process") };
    assert_eq!((killed.code, killed.out.as_str()), (Some(1), ""), "{killed:?}");
    assert!(killed.err.contains("some processes may be left"), "{killed:?}");
    assert!(killed.err.contains(&left.as_raw_nonzero().to_string()), "{killed:?}");
    let listed = home.say(&["ps"]).out;
    assert!(listed.contains("bystander") && !listed.contains("doubtful  running"), "{listed}");
    kill_process(left, Signal::KILL).unwrap();
}
