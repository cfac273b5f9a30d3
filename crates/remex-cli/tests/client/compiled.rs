//! The workspace has no lints; the client compiles for macOS and Windows, the program for macOS, and the client with any of
//! its features.

use std::{path::Path, process::Command};

#[test]
fn the_workspace_has_no_lints() {
    check("lints");
}

#[test]
fn the_client_compiles_for_other_platforms_and_with_each_feature() {
    check("targets");
}

/// Runs a script that checks the workspace and bounds the time of its steps.
fn check(what: &str) {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts").join(what).join("check");
    // Each has a target directory of its own, so that neither waits for the other: together they take longest of all tests.
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join("checks").join(what);
    let output = Command::new(script).arg(directory).output().unwrap();
    assert!(
        output.status.success(),
        "`scripts/{what}/check` failed; run it by hand with a directory for its build:\n{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
}
