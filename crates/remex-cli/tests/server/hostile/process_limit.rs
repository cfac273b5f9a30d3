//! The program itself where its user may have hardly any processes.

use std::{collections::BTreeSet, thread};

use crate::support::Limits;

/// What threads the server has beside those of its runtime, and some more.
const OTHERS: u64 = 16;

#[test]
fn at_the_process_limit_the_program_works_or_states_what_is_missing() {
    let workers = thread::available_parallelism().map_or(1, |cores| cores.get() as u64);
    let counts: BTreeSet<u64> = (1..=4).chain(workers..=workers + OTHERS).collect();
    for (arguments, refused) in
        [(&["serve", "--exit-on-stdin-close"][..], 1), (&["run", "--", "/bin/true"][..], 125)]
    {
        for &count in &counts {
            let finished = Limits::processes(count).finish(arguments);
            let case = format!("{arguments:?} with {count} processes: {finished:?}");
            assert!(!finished.stderr.contains("panicked"), "{case}");
            if finished.code() == Some(0) {
                assert_ne!(count, 1, "there is no room for a thread: {case}");
                continue;
            }
            assert_eq!(finished.code(), Some(refused), "{case}");
            // What failed and why, and what to do.
            let lines: Vec<&str> = finished.stderr.lines().collect();
            let [.., what, hint] = lines[..] else { panic!("no reason is given: {case}") };
            assert!(what.starts_with("remex: cannot start "), "{case}");
            assert!(what.ends_with(": Resource temporarily unavailable (os error 11)"), "{case}");
            assert!(hint.starts_with("  hint: ") && hint.contains("raise "), "{case}");
            assert!(!hint.contains("os error"), "the reason is given once: {case}");
            // With the threads of the runtime the limit is reached, and the watchdog is made before any other.
            if count == workers + 1 && arguments[0] == "serve" {
                assert!(finished.stderr.contains("no watchdog could be started"), "{case}");
            }
        }
    }
}
