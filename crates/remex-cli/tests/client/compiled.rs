//! The workspace has no lints; the client compiles for macOS and Windows, the program for macOS, and the client with any of
//! its features.

use std::{path::Path, process::Command};

/// One test, because both share a target directory, and a test that waits for the other would hold up the rest.
#[test]
fn the_workspace_has_no_lints_and_the_client_compiles_for_other_platforms_and_with_each_feature() {
    check("lints");
    check("targets");
}

/// Runs a script that checks the workspace and bounds the time of its steps.
fn check(what: &str) {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts").join(what).join("check");
    // A target directory of their own: the one of the tests may be locked. Both share what runs on this host.
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join("checks");
    let output = Command::new(script).arg(directory).output().unwrap();
    assert!(
        output.status.success(),
        "`scripts/{what}/check` failed; run it by hand with a directory for its build:\n{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
}
