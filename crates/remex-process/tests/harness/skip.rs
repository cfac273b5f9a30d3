//! Tests that cannot run on this machine.

use std::{env, fmt::Display};

/// If this variable is `1`, a test that cannot run fails.
const REQUIRE_ALL: &str = "REMEX_REQUIRE_ALL";

/// The needs, separated by commas, of tests that are skipped all the same.
const MAY_LACK: &str = "REMEX_MAY_LACK";

/// A requirement of a test that not every machine meets.
#[allow(dead_code, reason = "each test crate has its own needs")]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Need {
    /// The rights of root.
    Root,
    /// Other programs.
    Programs,
    /// Mounting file systems.
    Mounts,
    /// Creating namespaces.
    Namespaces,
    /// A Landlock with scopes.
    Landlock,
    /// I/O statistics of a process.
    Counts,
    /// Cgroups of version 2 with the controllers for memory and processes.
    Cgroups,
}

/// Says that the calling test is skipped, because the machine lacks something.
///
/// # Panics
///
/// If every test is required to run.
#[allow(clippy::print_stderr, reason = "the output of the tests must show what was skipped")]
pub(crate) fn skip(need: Need, why: impl Display) {
    let is_set = |name: &str, wanted: &str| {
        env::var(name).is_ok_and(|value| value.split(',').any(|word| word.eq_ignore_ascii_case(wanted)))
    };
    let is_required = is_set(REQUIRE_ALL, "1") && !is_set(MAY_LACK, &format!("{need:?}"));
    assert!(!is_required, "this test cannot run here, and {REQUIRE_ALL} is 1: {why}");
    eprintln!("skipped: {why}");
}

/// Returns whether a test can run; if not, it is [skipped](skip).
#[allow(dead_code, reason = "not every test crate asks")]
pub(crate) fn has(need: Need, is_there: bool) -> bool {
    if !is_there {
        skip(need, format!("{need:?} is missing"));
    }
    is_there
}
