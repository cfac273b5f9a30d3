//! Programs of others that tests need, installed by the scripts of the project.

use std::{
    path::PathBuf,
    process::{Command, Stdio},
};

use super::skip::{Need, skip};

/// The exit code of a script that cannot install its programs on this machine.
const CANNOT_INSTALL: i32 = 77;

/// Runs `scripts/NAME/install`, and returns the directory of the programs; `None` if the tests must be skipped.
pub(crate) fn install(name: &str) -> Option<PathBuf> {
    let script = format!("{}/../../scripts/{name}/install", env!("CARGO_MANIFEST_DIR"));
    let output = Command::new(&script)
        .arg(env!("CARGO_TARGET_TMPDIR"))
        .stdin(Stdio::null())
        .output()
        .unwrap_or_else(|error| panic!("cannot run `{script}`: {error}"));
    let stderr = String::from_utf8_lossy(&output.stderr);
    match output.status.code() {
        Some(0) => Some(String::from_utf8(output.stdout).expect("the path is text").trim_end().into()),
        Some(CANNOT_INSTALL) => {
            skip(Need::Programs, stderr);
            None
        }
        _ => panic!("`{script}` failed: {stderr}"),
    }
}
