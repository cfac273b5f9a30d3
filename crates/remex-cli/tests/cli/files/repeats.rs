//! The same `remex cp` again after it failed or was killed: it ends where the first would have ended.

use std::{
    fs::{self, Permissions},
    os::unix::{fs::PermissionsExt as _, process::ExitStatusExt as _},
    path::Path,
    process::{Child, Command, ExitStatus, Stdio},
    sync::{Arc, OnceLock, mpsc},
    thread,
};

use rustix::{
    fs::{Mode, OFlags, mkdirat, open, openat},
    process::{Pid, Signal, kill_process},
};

use super::{World, sparse, tree};
use crate::{
    home::{self, Home},
    support::{DisconnectingProxy, Need, PATIENCE, skip},
};

/// Makes a small tree `site`.
fn make_site(home: &Home) {
    fs::create_dir_all(home.path("site/css")).unwrap();
    fs::write(home.path("site/index"), "<html>").unwrap();
    fs::write(home.path("site/css/main"), "body {}").unwrap();
}

/// Puts something into a directory that cannot be copied: directories whose path is too long for the kernel.
fn spoil(directory: &Path) {
    let name = "0".repeat(250);
    let flags = OFlags::DIRECTORY | OFlags::CLOEXEC;
    fs::create_dir(directory.join("deep")).unwrap();
    let mut place = open(directory.join("deep"), flags, Mode::empty()).unwrap();
    for _ in 0..17 {
        mkdirat(&place, &name, Mode::RWXU).unwrap();
        place = openat(&place, &name, flags, Mode::empty()).unwrap();
    }
}

/// Removes it from a source and its copy.
fn mend(source: &Path, copy: &Path) {
    for directory in [source, copy] {
        fs::remove_dir_all(directory.join("deep")).unwrap();
    }
}

fn names(directory: &Path) -> Vec<String> {
    let mut names: Vec<_> =
        tree(directory).into_keys().map(|name| String::from_utf8_lossy(&name).into_owned()).collect();
    names.sort();
    names
}

/// Waits for the end of a copy that is to be killed.
fn end_of(mut child: Child) -> ExitStatus {
    let (ended, status) = mpsc::channel();
    thread::spawn(move || ended.send(child.wait()));
    status.recv_timeout(PATIENCE).expect("the copy is killed in time").unwrap()
}

#[test]
fn repeating_a_failed_tree_copy_continues_it_without_nesting() {
    let world = World::new();
    make_site(&world.here);
    make_site(&world.there);
    for (from, to, source, copy) in [
        ("site", "build:copy", world.here.path("site"), world.there.path("copy")),
        ("build:site", "copy", world.there.path("site"), world.here.path("copy")),
        ("build:site", "build:far-copy", world.there.path("site"), world.there.path("far-copy")),
    ] {
        spoil(&source);
        let left = format!(
            "remex: the copy is incomplete and left `{to}/.remex-part`\n  \
             hint: repeat the command to resume it and to remove the leftovers\n"
        );
        for _ in 0..2 {
            let failed = world.say(&["cp", from, to]);
            assert_eq!((failed.code, failed.out.as_str()), (Some(1), ""), "{failed:?}");
            assert!(failed.err.starts_with(&format!("remex: cannot copy `{from}/deep/0")), "{failed:?}");
            assert!(failed.err.ends_with(&left), "{failed:?}");
            let copied = names(&copy);
            for name in [".remex-part", "css/main", "index"] {
                assert!(copied.iter().any(|copied| copied == name), "{name} {copied:?}");
            }
        }
        mend(&source, &copy);
        world.quietly(&["cp", from, to]);
        assert_eq!(tree(&copy), tree(&source), "{from} {to}");
    }
}

#[test]
fn a_failed_copy_into_a_directory_is_continued_there() {
    let world = World::new();
    make_site(&world.here);
    fs::write(world.here.path("notes"), "notes").unwrap();
    fs::create_dir(world.there.path("into")).unwrap();
    let site = world.here.path("site");
    for args in [&["cp", "site", "build:into"][..], &["cp", "site", "notes", "build:into/"]] {
        spoil(&site);
        assert_eq!(world.say(args).code, Some(1), "{args:?}");
        assert!(world.there.path("into/site/.remex-part").exists(), "{args:?}");
        mend(&site, &world.there.path("into/site"));
        world.quietly(args);
        assert_eq!(tree(&world.there.path("into/site")), tree(&world.here.path("site")), "{args:?}");
        fs::remove_dir_all(world.there.path("into/site")).unwrap();
    }
    // What is in a tree can be continued as well.
    spoil(&site);
    assert_eq!(world.say(&["cp", "site", "build:copy"]).code, Some(1));
    mend(&site, &world.there.path("copy"));
    world.quietly(&["cp", "site/.", "build:copy"]);
    assert_eq!(tree(&world.there.path("copy")), tree(&world.here.path("site")));
}

#[test]
fn leftovers_of_a_killed_copy_are_removed() {
    let world = World::new();
    make_site(&world.here);
    let private = |path: &Path, content: &str| {
        fs::write(path, content).unwrap();
        fs::set_permissions(path, Permissions::from_mode(0o600)).unwrap();
    };
    // It was killed before the tree was in its place, and then again when it was.
    fs::create_dir(world.there.path(".copy.remex-new")).unwrap();
    private(&world.there.path(".copy.remex-new/.remex-part"), "remex");
    spoil(&world.here.path("site"));
    assert_eq!(world.say(&["cp", "site", "build:copy"]).code, Some(1));
    mend(&world.here.path("site"), &world.there.path("copy"));
    for left in [".index.remex-0123456789abcdef", "css/.main.remex-fedcba9876543210", ".gone.remex-part"] {
        private(&world.there.path("copy").join(left), "<ht");
    }
    // Whatever it is called, what the source has is no leftover.
    fs::write(world.here.path("site/.mine.remex-0123456789abcdef"), "mine").unwrap();
    world.quietly(&["cp", "site", "build:copy"]);
    assert_eq!(tree(&world.there.path("copy")), tree(&world.here.path("site")));
    assert!(!world.there.path(".copy.remex-new").exists());
}

#[test]
fn repeating_a_copy_killed_at_any_point_leaves_only_the_copy() {
    // From the first messages to the middle of the large file.
    for carried in [600, 1_500, 3_000, 6_000, 12_000, 50_000, 700_000] {
        for (from, to, is_there) in [("site", "build:copy", true), ("build:site", "copy", false)] {
            let victim = Arc::new(OnceLock::new());
            let killed = Arc::clone(&victim);
            let (world, proxy) = World::behind(|address| {
                DisconnectingProxy::with_notice(address, &[carried], move || {
                    let _ = kill_process(*killed.wait(), Signal::KILL);
                })
            });
            let (source, copy) = if is_there {
                (&world.here, world.there.path("."))
            } else {
                (&*world.there, world.here.path("."))
            };
            make_site(source);
            sparse(&source.path("site/image"), 2);
            let child = world.here.remex(&["cp", from, to]).stderr(Stdio::null()).spawn().unwrap();
            victim.set(Pid::from_child(&child)).unwrap();
            let status = end_of(child);
            assert_eq!(status.signal(), Some(9), "{carried} {from}: {status}");
            assert_eq!(proxy.disconnects_left(), 0);
            world.quietly(&["cp", from, to]);
            assert!(
                tree(&copy.join("copy")) == tree(&source.path("site")),
                "{carried} {from}: {:?}",
                names(&copy)
            );
            assert!(
                !names(&copy).iter().any(|name| name.contains("remex-")),
                "{carried} {from}: {:?}",
                names(&copy)
            );
        }
    }
}

#[test]
fn repeating_a_killed_copy_of_a_small_file_leaves_only_the_file() {
    // The whole copy takes a few thousand bytes; so some of them end before they are killed.
    for carried in (600..6_000).step_by(200) {
        let victim = Arc::new(OnceLock::new());
        let killed = Arc::clone(&victim);
        let (world, _proxy) = World::behind(|address| {
            DisconnectingProxy::with_notice(address, &[carried], move || {
                let _ = kill_process(*killed.wait(), Signal::KILL);
            })
        });
        fs::write(world.here.path("notes"), vec![7; 1000]).unwrap();
        let child = world.here.remex(&["cp", "notes", "build:"]).stderr(Stdio::null()).spawn().unwrap();
        victim.set(Pid::from_child(&child)).unwrap();
        let status = end_of(child);
        assert!(status.success() || status.signal() == Some(9), "{carried}: {status}");
        world.quietly(&["cp", "notes", "build:"]);
        assert_eq!(names(&world.there.path(".")), ["notes"], "{carried}");
    }
}

/// Runs a script in which `disk` is a small disk of its own; `None` if mounting is not permitted.
fn on_a_small_disk(home: &Home, script: &str) -> Option<home::Said> {
    fs::create_dir_all(home.path("disk")).unwrap();
    let run = |script: &str| {
        let mut command = Command::new("unshare");
        command.args(["--map-root-user", "--mount", "sh", "-ec", script]);
        home.dress(&mut command);
        command.stdin(Stdio::null()).output()
    };
    let mount = "mount -t tmpfs -o size=1m none disk";
    match run(mount) {
        Ok(output) if output.status.success() => {}
        other => {
            skip(Need::Mounts, format!("no small disk can be mounted: {other:?}"));
            return None;
        }
    }
    Some(home::said(&run(&format!("{mount}\n{script}")).unwrap()))
}

#[test]
fn a_copy_interrupted_by_a_full_disk_is_named_and_can_be_continued() {
    let home = Home::new();
    make_site(&home);
    sparse(&home.path("site/image"), 4);
    fs::write(home.path("small"), vec![7; 200_000]).unwrap();
    let script = r#"
        # Not even a marker fits.
        head -c 2M /dev/zero > disk/filler 2>&- || true
        remex cp site disk/copy && exit 9 || echo "$?"
        remex cp small disk/small && exit 9 || echo "$?"
        ls -A disk
        rm disk/filler
        # The small files fit, and a part of the large one.
        remex cp site disk/copy && exit 9 || echo "$?"
        remex cp small disk/small && exit 9 || echo "$?"
        remex cp site disk/copy && exit 9 || echo "$?"
        (cd disk; find . -mindepth 1 | sort)
        mount -o remount,size=16m disk
        remex cp -v site disk/copy | sort
        remex cp small disk/small
        diff -r site disk/copy
        (cd disk; find . -mindepth 1 | sort)
    "#;
    let Some(copied) = on_a_small_disk(&home, script) else { return };
    assert_eq!(
        copied.out,
        "1\n1\nfiller\n1\n1\n1\n./copy\n./copy/.image.remex-part\n./copy/.remex-part\n./copy/css\n./copy/css/main\n\
         ./copy/index\n\
         copy site/image -> disk/copy/image\nskip site/css/main -> disk/copy/css/main\n\
         skip site/index -> disk/copy/index\n\
         ./copy\n./copy/css\n./copy/css/main\n./copy/image\n./copy/index\n./small\n",
        "{copied:?}"
    );
    assert_eq!(copied.code, Some(0), "{copied:?}");
    assert_eq!(copied.err.matches("os error 28").count(), 5, "{copied:?}");
    let left =
        "remex: the copy is incomplete and left `disk/copy/.image.remex-part`, `disk/copy/.remex-part`\n";
    assert_eq!(copied.err.matches(left).count(), 2, "{copied:?}");
    assert_eq!(copied.err.matches("and left").count(), 2, "{copied:?}");
    // What was there already of the large file is not copied again.
    assert!(copied.err.contains("remex: 1 file copied, 3."), "{copied:?}");
}
