//! Confined processes: what they see, and how they live and end.

#![allow(clippy::unwrap_used, reason = "in a test it is the assertion")]

mod harness;

use std::{fs, path::Path, sync::Arc};

use harness::{NULL, TAGS, run, shell};
use remex_process::{Jail, Start};
use remex_sandbox::{Policy, Preset, Request, SystemHost, resolve, testing::context};

/// A jail for one of the named profiles.
fn preset(preset: Preset, root: &Path) -> Jail {
    let mut context = context(Vec::new(), Some(vec![root.to_owned().into()]));
    context.permissions = preset.permissions();
    let request = Request { context: &context, cwd: None, tmpdir: None };
    jail(resolve(&request, &SystemHost).unwrap())
}

fn jail(policy: Policy) -> Jail {
    Jail::new(Arc::new(policy), Arc::new([]))
}

fn confined(jail: Jail, start: Start) -> Start {
    Start { jail: Some(jail), ..start }
}

#[tokio::test]
async fn a_confined_process_runs_and_exits_like_any_other() {
    let directory = tempfile::tempdir().unwrap();
    let root = fs::canonicalize(directory.path()).unwrap();
    let script =
        format!("echo $$ $PPID; echo x > {0}/new && cat {0}/new; echo y > /etc/no; exit 7", root.display());
    let start = confined(preset(Preset::WorkspaceWrite, &root), shell(NULL, TAGS.tag(1, 1), &script));
    let (output, status) = run(start).await;
    assert_eq!(output, "2 0\nx\n");
    assert_eq!((status.code, status.signal), (7, None));
    assert_eq!(fs::read_to_string(root.join("new")).unwrap(), "x\n");
}
