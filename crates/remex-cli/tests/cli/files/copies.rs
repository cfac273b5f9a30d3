//! What `remex cp` copies, and what it refuses.

use std::{
    ffi::OsStr,
    fs::{self, Permissions},
    os::unix::{
        ffi::OsStrExt as _,
        fs::{FileTypeExt as _, MetadataExt as _, PermissionsExt as _, symlink},
    },
    path::Path,
    process::Command,
    time::{Duration, Instant, SystemTime},
};

use rustix::process::{Pid, Signal, kill_process};

use super::{World, assert_same_content, said, serve, sparse, tree};
use crate::{
    home::Home,
    screen::Screen,
    support::{InTime as _, PATIENCE},
};

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
}

fn set_time(path: &Path, seconds: u64) {
    let time = SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
    fs::File::open(path).unwrap().set_modified(time).unwrap();
}

/// Makes a small tree `site` with a file and a directory.
fn make_site(home: &Home) {
    fs::create_dir_all(home.path("site/css")).unwrap();
    fs::write(home.path("site/index"), "<html>").unwrap();
    fs::write(home.path("site/css/main"), "body {}").unwrap();
}

#[test]
fn a_file_round_trip_keeps_permissions_and_time() {
    let world = World::new();
    let notes = world.here.path("notes.txt");
    fs::write(&notes, "buy milk\n").unwrap();
    set_mode(&notes, 0o4640);
    set_time(&notes, 1_000_000_000);
    world.quietly(&["cp", "notes.txt", "build:"]);
    world.quietly(&["cp", "build:notes.txt", "again"]);
    world.quietly(&["cp", "notes.txt", "here-too"]);
    for copy in [world.there.path("notes.txt"), world.here.path("again"), world.here.path("here-too")] {
        let metadata = copy.metadata().unwrap();
        // Set-user-id does not travel: the owner is another.
        assert_eq!((metadata.mode() & 0o7777, metadata.mtime()), (0o640, 1_000_000_000));
        assert_eq!(fs::read_to_string(copy).unwrap(), "buy milk\n");
    }
}

#[test]
fn trees_are_placed_like_cp_r() {
    let world = World::new();
    make_site(&world.here);
    fs::write(world.here.path("notes"), "notes").unwrap();
    fs::create_dir(world.there.path("into")).unwrap();
    world.quietly(&["cp", "site", "build:new"]);
    world.quietly(&["cp", "site/", "build:new-too/"]);
    world.quietly(&["cp", "-a", "site", "build:into"]);
    world.quietly(&["cp", "site/.", "build:into"]);
    world.quietly(&["cp", "site/css", "notes", "build:into/"]);
    world.quietly(&["cp", "build:~/into/site", &world.here.path("back").display().to_string()]);
    let site = tree(&world.here.path("site"));
    for copy in ["new", "new-too", "into/site"] {
        assert_eq!(tree(&world.there.path(copy)), site, "{copy}");
    }
    assert_eq!(tree(&world.here.path("back")), site);
    let mut names: Vec<_> = tree(&world.there.path("into")).into_keys().collect();
    names.retain(|name| !name.starts_with(b"site"));
    assert_eq!(names, [&b"css"[..], b"css/main", b"index", b"notes"]);
}

#[test]
fn copies_keep_links_permissions_times_and_unusual_names() {
    let world = World::new();
    let root = world.here.path("odd");
    fs::create_dir_all(root.join("closed/empty")).unwrap();
    for name in [&b"a b"[..], b"a\nb", b"\xff\xfe", b"-rf", b"%41", b"a:b", "é".as_bytes()] {
        fs::write(root.join(OsStr::from_bytes(name)), name).unwrap();
    }
    fs::write(root.join("x".repeat(255)), "long").unwrap();
    fs::write(root.join("script"), "#!/bin/sh").unwrap();
    fs::write(root.join("closed/key"), "secret").unwrap();
    set_mode(&root.join("script"), 0o755);
    set_mode(&root.join("closed/key"), 0o400);
    for (target, name) in
        [("nowhere", "dangling"), ("/etc", "absolute"), ("closed", "directory"), (".", "loop")]
    {
        symlink(target, root.join(name)).unwrap();
    }
    symlink(OsStr::from_bytes(b"\xff"), root.join("bytes")).unwrap();
    for (name, seconds) in [("closed/empty", 1), ("closed", 1_111_111_111), ("script", 2_222_222_222)] {
        set_time(&root.join(name), seconds);
    }
    set_mode(&root.join("closed"), 0o500);
    world.quietly(&["cp", "odd", "build:odd"]);
    world.quietly(&["cp", "build:odd", "back"]);
    world.quietly(&["cp", "build:odd/.", "build:odd-2"]);
    let before = tree(&root);
    assert_eq!(tree(&world.there.path("odd")), before);
    assert_eq!(tree(&world.here.path("back")), before);
    assert_eq!(tree(&world.there.path("odd-2")), before);
    // A link that is named itself is followed.
    world.quietly(&["cp", "odd/directory", "build:followed"]);
    assert!(world.there.path("followed/key").symlink_metadata().unwrap().is_file());
}

#[test]
fn files_are_copied_between_environments_and_addresses() {
    let world = World::new();
    let gpu = Home::new();
    let server = serve(&gpu);
    world.here.add_environment("gpu", server.address());
    make_site(&world.there);
    world.quietly(&["cp", "build:site", "gpu:"]);
    world.quietly(&["cp", "gpu:site/index", &format!("[{}]:index", world.server.address())]);
    assert_eq!(tree(&gpu.path("site")), tree(&world.there.path("site")));
    assert_eq!(fs::read_to_string(world.there.path("index")).unwrap(), "<html>");
}

#[test]
fn identical_files_are_skipped_and_different_ones_copied() {
    let world = World::new();
    make_site(&world.here);
    world.quietly(&["cp", "site", "build:"]);
    fs::write(world.here.path("site/index"), "<html>2").unwrap();
    set_mode(&world.here.path("site/css/main"), 0o600);
    let copied = world.say(&["cp", "-v", "site", "build:"]);
    let mut lines: Vec<_> = copied.out.lines().collect();
    lines.sort_unstable();
    assert_eq!(
        lines,
        ["copy site/index -> build:site/index", "skip site/css/main -> build:site/css/main"],
        "{copied:?}"
    );
    assert!(copied.err.starts_with("remex: 1 file copied, 7B in "), "{copied:?}");
    assert!(copied.err.ends_with("; 1 file skipped with the same size and time\n"), "{copied:?}");
    assert_eq!(tree(&world.there.path("site")), tree(&world.here.path("site")));

    // A single named file is compared by content, not by size and time.
    let (here, there) = (world.here.path("site/index"), world.there.path("site/index"));
    fs::write(&there, "<html>3").unwrap();
    for path in [&here, &there] {
        set_time(path, 1_000_000_000);
    }
    world.quietly(&["cp", "site/index", "build:site/index"]);
    assert_same_content(&here, &there);
}

#[test]
fn a_dry_run_lists_the_work_and_changes_nothing() {
    let world = World::new();
    make_site(&world.here);
    fs::create_dir_all(world.there.path("site/css")).unwrap();
    fs::copy(world.here.path("site/css/main"), world.there.path("site/css/main")).unwrap();
    for home in [&world.here, &world.there] {
        set_time(&home.path("site/css/main"), 1_000_000_000);
    }
    let before = tree(&world.there.path("."));
    let said = world.say(&["cp", "--dry-run", "site", "build:"]);
    let mut lines: Vec<_> = said.out.lines().collect();
    lines.sort_unstable();
    assert_eq!((said.code, said.err.as_str()), (Some(0), ""));
    assert_eq!(lines, ["copy site/index -> build:site/index", "skip site/css/main -> build:site/css/main"]);
    assert_eq!(tree(&world.there.path(".")), before);
}

#[test]
fn special_files_are_reported_and_the_rest_is_copied() {
    let world = World::new();
    make_site(&world.here);
    assert!(Command::new("mkfifo").arg(world.here.path("site/pipe")).ended().success());
    fs::create_dir_all(world.there.path("site/index")).unwrap();
    let copied = world.say(&["cp", "site", "missing", "build:"]);
    assert_eq!(copied.code, Some(1));
    assert_eq!(copied.out, "");
    for part in [
        "remex: cannot copy `missing`: No such file or directory (os error 2)\n",
        "remex: left out `site/pipe`: it is a pipe, socket or device\n",
        "remex: cannot copy `site/index`: `build:site/index` is a directory\n  hint: remove it, or copy to another name\n",
    ] {
        assert!(copied.err.contains(part), "{copied:?}");
    }
    assert_eq!(fs::read_to_string(world.there.path("site/css/main")).unwrap(), "body {}");
}

#[test]
fn a_tree_copy_succeeds_without_its_fifo() {
    let world = World::new();
    make_site(&world.here);
    for name in ["site/pipe", "pipe"] {
        assert!(Command::new("mkfifo").arg(world.here.path(name)).ended().success());
    }
    let left_out = "remex: left out `site/pipe`: it is a pipe, socket or device\n";
    assert_eq!(world.say(&["cp", "site", "build:copy"]), said(0, "", left_out));
    let names: Vec<_> = tree(&world.there.path("copy")).into_keys().collect();
    assert_eq!(names, [&b"css"[..], b"css/main", b"index"], "no marker of an unfinished copy");
    // A pipe that is named itself is what was asked for.
    assert_eq!(
        world.say(&["cp", "pipe", "build:"]),
        said(
            1,
            "",
            "remex: cannot copy `pipe`: it is a pipe, socket or device\n  \
             hint: read it with `remex run` if you want its content\n"
        )
    );
}

#[test]
fn dot_dot_after_a_link_resolves_from_its_target() {
    let world = World::new();
    make_site(&world.there);
    symlink("site/css", world.there.path("style")).unwrap();
    assert_eq!(world.say(&["ls", "build:site/css/.."]), said(0, "css\nindex\n", ""));
    // As usual, `..` is resolved from the target of a link.
    world.quietly(&["cp", "build:style/../index", "."]);
    assert_eq!(fs::read_to_string(world.here.path("index")).unwrap(), "<html>");
}

#[test]
fn special_files_at_the_destination_are_not_replaced() {
    let world = World::new();
    make_site(&world.here);
    fs::create_dir(world.there.path("site")).unwrap();
    for name in ["pipe", "site/index"] {
        assert!(Command::new("mkfifo").arg(world.there.path(name)).ended().success());
    }
    assert_eq!(
        world.say(&["cp", "site/index", "build:pipe"]),
        said(
            1,
            "",
            "remex: cannot copy `site/index`: `build:pipe` is a pipe, socket or device\n  \
             hint: remove it, or copy to another name\n"
        )
    );
    let copied = world.say(&["cp", "site", "build:"]);
    assert_eq!(copied.code, Some(1));
    assert!(copied.err.contains("`build:site/index` is a pipe, socket or device\n"), "{copied:?}");
    for name in ["pipe", "site/index"] {
        assert!(world.there.path(name).symlink_metadata().unwrap().file_type().is_fifo(), "{name}");
    }
    assert_eq!(fs::read_to_string(world.there.path("site/css/main")).unwrap(), "body {}");
}

#[test]
fn existing_directories_keep_their_permissions_and_new_ones_their_sticky_bit() {
    let world = World::new();
    make_site(&world.here);
    fs::create_dir(world.here.path("site/shared")).unwrap();
    set_mode(&world.here.path("site/shared"), 0o1777);
    fs::create_dir_all(world.there.path("site/css")).unwrap();
    set_mode(&world.there.path("site"), 0o750);
    set_mode(&world.there.path("site/css"), 0o700);
    world.quietly(&["cp", "site", "build:"]);
    for (name, mode) in [("site", 0o750), ("site/css", 0o700), ("site/shared", 0o1777)] {
        assert_eq!(world.there.path(name).metadata().unwrap().mode() & 0o7777, mode, "{name}");
    }
}

#[test]
fn a_file_that_grew_after_its_size_was_read_is_copied_completely() {
    use remex_client::fs::{AsHostPath as _, Transfer};
    let home = Home::new();
    let (source, destination) = (home.path("source"), home.path("destination"));
    let copy = async {
        let client = remex_client::Client::connect(remex::Local::here().unwrap().target()).await.unwrap();
        let fs = client.fs();
        fs::write(&source, "small").unwrap();
        for content in [vec![1; 1000], vec![2; 1 << 20]] {
            let metadata = fs.metadata(&source).await.unwrap();
            fs::write(&source, &content).unwrap();
            let transfer = Transfer {
                from: fs.clone(),
                source: source.as_host_path().unwrap(),
                metadata,
                to: fs.clone(),
                destination: destination.as_host_path().unwrap(),
            };
            assert_eq!(transfer.run().await.unwrap().bytes, content.len() as u64);
            assert_same_content(&source, &destination);
            let mtime = |path: &Path| path.metadata().unwrap().modified().unwrap();
            let apart = mtime(&source).duration_since(mtime(&destination)).unwrap();
            assert!(apart < Duration::from_millis(1), "{apart:?}");
        }
    };
    tokio::runtime::Runtime::new().unwrap().block_on(copy);
    assert_eq!(tree(&home.path(".")).len(), 2);
}

#[test]
fn a_procfs_file_of_size_0_is_copied_completely() {
    let world = World::new();
    world.quietly(&["cp", "/proc/sys/kernel/ostype", "build:"]);
    assert_eq!(fs::read_to_string(world.there.path("ostype")).unwrap(), "Linux\n");
}

#[test]
fn copying_into_itself_is_refused_for_every_spelling() {
    let world = World::new();
    make_site(&world.there);
    let there = world.there.path("site").display().to_string();
    symlink("site/css", world.there.path("link")).unwrap();
    for (from, to) in [
        ("build:site", "build:site"),
        ("build:site", "build:site/css"),
        ("build:site", "build:link/new"),
        ("build:site/.", "build:link"),
        (there.as_str(), "build:link"),
        ("build:site", there.as_str()),
        ("build:/", there.as_str()),
    ] {
        let refused = world.say(&["cp", from, to]);
        assert_eq!(refused.code, Some(1), "{from} {to} {refused:?}");
        assert!(
            refused.err.contains("is inside of it\n  hint: choose a destination outside of it"),
            "{refused:?}"
        );
    }
    let refused = world.say(&["cp", "build:site/index", "build:site/"]);
    assert_eq!(
        refused,
        said(
            1,
            "",
            "remex: cannot copy `build:site/index`: `build:site/index` is the same file\n  hint: copy to another name\n"
        )
    );
    assert_eq!(tree(&world.there.path("site")).len(), 3);
}

#[test]
fn mistakes_are_reported_with_a_hint() {
    let world = World::new();
    make_site(&world.here);
    let home = world.there.path("");
    let home = home.display().to_string();
    let home = home.trim_end_matches('/');
    fs::write(world.there.path("file"), "").unwrap();
    for (args, code, what, hint) in [
        (
            &["cp", "site", "site/index", "build:none"][..],
            3,
            "cannot copy 2 sources to `build:none`: it does not exist".to_owned(),
            "choose an existing directory, or copy a single source",
        ),
        (
            &["cp", "site", "build:no/such"],
            3,
            format!("cannot copy to `build:no/such`: directory `{home}/no` does not exist"),
            "check the path, or create the directory first",
        ),
        (
            &["cp", "site/index", "no/such"],
            3,
            format!(
                "cannot copy to `no/such`: directory `{}` does not exist",
                world.here.path("no").display()
            ),
            "check the path, or create the directory first",
        ),
        (
            &["cp", "site", "build:file/such"],
            1,
            "cannot copy to `build:file/such`: Not a directory (os error 20)".to_owned(),
            &format!("check the path: a parent of `{home}/file/such` is not a directory"),
        ),
        (
            &["cp", "site/index", "build:file/"],
            1,
            "cannot copy `site/index`: `build:file/` is not a directory".to_owned(),
            "omit the trailing slash",
        ),
        (
            &["cp", "site", "site/index", "build:file"],
            2,
            "cannot copy 2 sources to `build:file`: it is not a directory".to_owned(),
            "choose an existing directory, or copy a single source",
        ),
        (
            &["cp", "site/index", "build:none/"],
            3,
            "cannot copy `site/index`: directory `build:none/` does not exist".to_owned(),
            "create it first, or omit the trailing slash",
        ),
        (
            &["cp", "site/index/", "build:"],
            1,
            "cannot copy `site/index/`: it is not a directory".to_owned(),
            "omit the trailing slash",
        ),
        (
            &["cp", "site/index", "site/../site/index", "build:"],
            2,
            "cannot copy both `site/index` and `site/../site/index`: both would become `build:index`"
                .to_owned(),
            "copy one of them to another name",
        ),
        (
            &["cp", "elsewhere:a", "b"],
            3,
            "unknown environment `elsewhere`; known: local, build".to_owned(),
            "add it with `remex env add elsewhere ssh://user@host` or `remex env add elsewhere ws://host:port`, or see \
             `remex env list`",
        ),
    ] {
        assert_eq!(world.say(args), said(code, "", &format!("remex: {what}\n  hint: {hint}\n")), "{args:?}");
    }
    let refused = world.say(&["cp", "ws://127.0.0.1:1", "b"]);
    assert_eq!(refused.code, Some(2));
    assert!(
        refused.err.contains("an address needs brackets\n  hint: write `[ws://127.0.0.1:1]:path`"),
        "{refused:?}"
    );
    let unreachable = world.say(&["cp", "[ws://127.0.0.1:1]:a", "b"]);
    assert_eq!(unreachable.code, Some(4), "{unreachable:?}");
}

#[test]
fn progress_is_shown_on_a_terminal_only() {
    let world = World::new();
    sparse(&world.here.path("image"), 48);
    let mut screen = Screen::remex(&world.here, &["cp", "image", "build:"]);
    let shown = screen.wait_for("1 file copied, 48MiB in ");
    assert_eq!(screen.end(), Some(0));
    // One line, which is gone at the end.
    assert_eq!(shown.lines().count(), 1, "{shown}");
    let raw = screen.raw();
    let lines: Vec<_> = raw.split('\r').filter(|line| line.contains('%')).collect();
    assert!(!lines.is_empty(), "{raw:?}");
    for line in lines {
        let text = line.trim_end_matches("\u{1b}[K");
        assert!(text.contains("] ") && text.contains("/48MiB ") && text.contains("/s "), "{line:?}");
        assert!(text.chars().count() < 80, "{line:?}");
    }
    let mut quiet = Screen::remex(&world.here, &["cp", "-q", "image", "build:other"]);
    assert_eq!(quiet.end(), Some(0));
    assert_eq!(quiet.raw(), "");
    assert_same_content(&world.here.path("image"), &world.there.path("other"));
}

#[test]
fn a_terminal_that_cannot_erase_a_line_gets_no_progress() {
    let world = World::new();
    sparse(&world.here.path("image"), 48);
    let line = "TERM=dumb exec remex cp image build:";
    let mut screen = Screen::open(&world.here, "sh", &["-c", line]);
    assert_eq!(screen.end(), Some(0));
    screen.wait_for("1 file copied");
    let shown = screen.raw();
    assert!(shown.starts_with("remex: 1 file copied, 48MiB in "), "{shown:?}");
    assert!(!shown.contains('\u{1b}'), "{shown:?}");
}

#[test]
fn a_copy_keeps_an_inherited_ignored_interrupt() {
    let world = World::new();
    sparse(&world.here.path("image"), 48);
    let mut command = Command::new("sh");
    world.here.dress(&mut command);
    command.args(["-c", "trap '' INT; exec remex cp image build:"]);
    let mut ignoring = command.spawn().unwrap();
    // From then on it is ignored.
    let deadline = Instant::now() + PATIENCE;
    let is_remex =
        || fs::read_to_string(format!("/proc/{}/comm", ignoring.id())).unwrap().starts_with("remex");
    while !is_remex() {
        assert!(Instant::now() < deadline, "waited for `remex cp` to start");
        std::thread::yield_now();
    }
    let status = loop {
        if let Some(status) = ignoring.try_wait().unwrap() {
            break status;
        }
        kill_process(Pid::from_child(&ignoring), Signal::INT).unwrap();
        assert!(Instant::now() < deadline, "waited for the end of `remex cp`");
        std::thread::yield_now();
    };
    assert_eq!(status.code(), Some(0));
    assert_same_content(&world.here.path("image"), &world.there.path("image"));
}
