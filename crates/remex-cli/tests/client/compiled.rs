//! The client compiles for macOS and Windows, the program for macOS, and the client with any of its features.

use std::{path::Path, process::Command};

/// How many seconds all checks may take.
const SECONDS: &str = "1800";

#[test]
fn the_client_compiles_for_other_platforms_and_with_each_feature() {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/targets/check");
    // A target directory of its own: the one of the tests may be locked.
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join("targets");
    let output =
        Command::new("timeout").args(["-k", "10", SECONDS]).arg(script).arg(directory).output().unwrap();
    assert!(
        output.status.success(),
        "`scripts/targets/check` failed; run it by hand with a directory for its build:\n{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
}
