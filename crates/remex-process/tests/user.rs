//! Processes that run as another user. Without root, these tests are skipped.

mod harness;

use std::{fs, os::unix::fs::MetadataExt as _, path::PathBuf};

use rustix::process::DumpableBehavior;

use harness::{NULL, Need, PIPED, PTY, TAGS, eventually, finish, has, run, shell, spawner, start};
use remex_process::{Jail, Signal, Stage, Start, StartError, StartErrorKind, UserIds, can_switch_user, tree};

/// A user and groups without processes or files of their own.
const UID: u32 = 54_871;
const GID: u32 = 54_872;
const OTHER: u32 = 54_873;

fn other() -> UserIds {
    UserIds::new(UID, GID, [OTHER]).expect("no id is reserved")
}

fn as_other(start: Start) -> Start {
    Start { user: Some(other()), ..start }
}

async fn refused(start: Start) -> StartError {
    spawner().start(start).await.expect_err("the start is refused")
}

#[tokio::test]
async fn ids_and_groups_are_the_users_and_no_capability_remains() {
    if !has(Need::Root, can_switch_user().is_ok()) {
        return;
    }
    for stdio in [NULL, PTY] {
        let script = "grep -E '^(Uid|Gid|Groups|Cap(Inh|Prm|Eff|Amb)|NoNewPrivs):' /proc/self/status";
        let (output, _) = run(as_other(shell(stdio, TAGS.tag(1, 1), script))).await;
        let lines: Vec<_> = output.lines().map(|line| line.split_whitespace().collect::<Vec<_>>()).collect();
        let (uid, gid, other) = (UID.to_string(), GID.to_string(), OTHER.to_string());
        let field = |name: &str| lines.iter().find(|line| line[0] == name).unwrap()[1..].to_vec();
        assert_eq!(field("Uid:"), [&*uid; 4]);
        assert_eq!(field("Gid:"), [&*gid; 4]);
        assert_eq!(field("Groups:"), [&*gid, &*other]);
        for set in ["CapInh:", "CapPrm:", "CapEff:", "CapAmb:"] {
            assert_eq!(field(set), ["0000000000000000"], "{set}");
        }
        assert_eq!(field("NoNewPrivs:"), ["0"]);
    }
}

#[tokio::test]
async fn no_descriptor_or_key_of_the_server_is_inherited() {
    if !has(Need::Root, can_switch_user().is_ok()) {
        return;
    }
    let script = "ls /proc/self/fd; kill -0 $PPID 2>/dev/null || echo other; cat /proc/$PPID/environ 2>&1 | grep -c denied";
    let (output, _) = run(as_other(shell(NULL, TAGS.tag(1, 2), script))).await;
    // The directory itself is 3.
    assert_eq!(output, "0\n1\n2\n3\nother\n1\n");
}

#[tokio::test]
async fn the_user_owns_the_terminal_and_can_reopen_its_streams() {
    if !has(Need::Root, can_switch_user().is_ok()) {
        return;
    }
    let script = "stat -c '%u %a' $(tty); echo to the terminal > /dev/tty";
    let (output, _) = run(as_other(shell(PTY, TAGS.tag(1, 3), script))).await;
    let lines: Vec<_> = output.lines().collect();
    assert!([format!("{UID} 620"), format!("{UID} 600")].iter().any(|line| line == lines[0]), "{output}");
    assert_eq!(lines[1], "to the terminal");
    let script = "echo out > /dev/stdout; echo error > /dev/stderr";
    let (output, status) = run(as_other(shell(PIPED, TAGS.tag(1, 4), script))).await;
    assert_eq!((&*output, status.code), ("out\n", 0));
}

#[tokio::test]
async fn created_files_belong_to_the_user_and_files_of_root_stay_closed() {
    if !has(Need::Root, can_switch_user().is_ok()) {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let open = directory.path().join("open");
    fs::create_dir(&open).unwrap();
    for path in [directory.path(), &open] {
        fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(0o777)).unwrap();
    }
    let inside = Start {
        cwd: open.clone(),
        ..shell(NULL, TAGS.tag(2, 1), "echo x > file; cat /etc/shadow || echo closed")
    };
    let (output, _) = run(as_other(inside)).await;
    assert_eq!(output, "closed\n");
    let file = fs::metadata(open.join("file")).unwrap();
    assert_eq!((file.uid(), file.gid()), (UID, GID));
    // The directory is entered as the user.
    fs::set_permissions(&open, std::os::unix::fs::PermissionsExt::from_mode(0o700)).unwrap();
    let error = refused(as_other(Start { cwd: open, ..shell(NULL, TAGS.tag(2, 2), "true") })).await;
    assert_eq!((error.stage, error.errno, error.kind()), (Stage::Cwd, libc::EACCES, StartErrorKind::BadCwd));
    assert!(error.hint().contains("uid 54871"), "{error}");
}

#[tokio::test]
async fn a_program_that_only_root_may_execute_is_refused() {
    if !has(Need::Root, can_switch_user().is_ok()) {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let program: PathBuf = directory.path().join("true");
    fs::copy("/bin/true", &program).unwrap();
    fs::set_permissions(&program, std::os::unix::fs::PermissionsExt::from_mode(0o700)).unwrap();
    let error = refused(as_other(start(NULL, TAGS.tag(3, 1), program.to_str().unwrap(), &[]))).await;
    assert_eq!((error.stage, error.kind()), (Stage::Exec, StartErrorKind::NotExecutable));
    assert!(error.denial.is_none() && error.hint().contains("uid 54871"), "{error}");
}

#[tokio::test]
async fn its_tree_is_killed_and_its_exit_reported() {
    if !has(Need::Root, can_switch_user().is_ok()) {
        return;
    }
    let tag = TAGS.tag(4, 1);
    let script = "setsid sleep 1000 & (sleep 1000 &) ; echo ready; exec sleep 1000";
    let child = spawner().start(as_other(shell(NULL, tag, script))).await.unwrap();
    let count = || tree::tagged(tag).wait().unwrap().len();
    eventually("three processes have the tag", || count() == 3).await;
    tree::kill_start(tag, child.exit.leader()).await.unwrap();
    assert_eq!(count(), 0);
    let (_, status) = finish(child).await;
    assert_eq!(status.signal, Some(Signal::KILL));
}

#[tokio::test]
async fn the_server_stays_dumpable() {
    if !has(Need::Root, can_switch_user().is_ok()) {
        return;
    }
    for number in [1, 2] {
        let (_, status) = run(as_other(shell(NULL, TAGS.tag(6, number), "exit 7"))).await;
        assert_eq!(status.code, 7);
        let refused = as_other(start(NULL, TAGS.tag(6, 10 + number), "/no/such/program", &[]));
        assert_eq!(spawner().start(refused).await.unwrap_err().kind(), StartErrorKind::ProgramNotFound);
        // Other tests of this program start such processes meanwhile.
        let is_open = || rustix::process::dumpable_behavior() == Ok(DumpableBehavior::Dumpable);
        eventually("this program can be looked into", is_open).await;
    }
}

#[tokio::test]
async fn a_jail_cannot_be_combined_with_a_user() {
    if !has(Need::Root, can_switch_user().is_ok()) {
        return;
    }
    let start = Start { jail: Some(Jail::pids_only()), ..as_other(shell(NULL, TAGS.tag(5, 1), "true")) };
    let error = refused(start).await;
    assert_eq!((error.stage, error.errno), (Stage::User, libc::EINVAL));
}
