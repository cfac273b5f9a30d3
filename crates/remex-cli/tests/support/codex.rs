//! The real client and server of the base dialect, from the npm registry.

use std::{
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::OnceLock,
};

/// Returns the path of its program, which is installed if it is not there.
pub(crate) fn program() -> &'static Path {
    // Also a failure is kept, so that it is waited for once and not by every test.
    static PROGRAM: OnceLock<Option<PathBuf>> = OnceLock::new();
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scripts/codex/install");
    let program = PROGRAM.get_or_init(|| {
        let output = Command::new(script)
            .arg(env!("CARGO_TARGET_TMPDIR"))
            .stdin(Stdio::null())
            .stderr(Stdio::inherit())
            .output()
            .unwrap_or_else(|error| panic!("cannot run `{script}`: {error}"));
        let path = String::from_utf8(output.stdout).expect("the path is text");
        output.status.success().then(|| path.trim_end().into())
    });
    program.as_ref().unwrap_or_else(|| panic!("`{script}` failed; above it says why"))
}
