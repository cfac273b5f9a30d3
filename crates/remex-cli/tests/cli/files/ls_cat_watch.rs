//! `remex ls`, `remex cat` and `remex watch`.

use std::{
    ffi::OsStr,
    fs::{self, File, Permissions},
    io::{BufRead as _, BufReader, Read as _},
    os::unix::{
        ffi::OsStrExt as _,
        fs::{PermissionsExt as _, symlink},
    },
    path::Path,
    process::{Child, Stdio},
    time::{Duration, SystemTime},
};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use super::{World, said, sparse};
use crate::{
    home,
    screen::Screen,
    support::{InTime as _, Patient},
};

fn make_entries(world: &World) {
    let site = world.there.path("site");
    fs::create_dir_all(site.join("css")).unwrap();
    fs::write(site.join("index"), "<html>").unwrap();
    fs::write(site.join(".hidden"), "").unwrap();
    symlink("index", site.join("link")).unwrap();
    for (name, mode) in [("css", 0o2750), ("index", 0o644)] {
        fs::set_permissions(site.join(name), Permissions::from_mode(mode)).unwrap();
        let time = SystemTime::UNIX_EPOCH + Duration::from_secs(1_794_747_851);
        File::open(site.join(name)).unwrap().set_modified(time).unwrap();
    }
}

#[test]
fn times_are_shown_in_the_local_zone_with_its_offset() {
    let world = World::new();
    make_entries(&world);
    // A zone of the data base has another offset in summer; a rule of its own needs no data base.
    for (zone, args, time) in [
        ("EAST-5:30", &["ls", "-l", "build:site/index"][..], "2026-11-15 18:34:11 +05:30"),
        ("WEST3SUMMER,M1.1.0,M12.1.0", &["ls", "-l", "build:site/index"], "2026-11-15 11:04:11 -02:00"),
        ("EAST-5:30", &["ls", "-l", "--utc", "build:site/index"], "2026-11-15 13:04:11Z"),
    ] {
        let listed = home::said(&world.here.remex(args).env("TZ", zone).finished());
        let expected = format!("-rw-r--r-- 6 {time} build:site/index\n");
        assert_eq!(listed, said(0, &expected, ""), "{zone}");
    }
}

#[test]
fn sizes_are_human_readable_on_request() {
    let world = World::new();
    fs::write(world.here.path("small"), "six by").unwrap();
    File::create(world.here.path("large")).unwrap().set_len(1536).unwrap();
    let listed = world.say(&["ls", "-lh"]);
    assert_eq!((listed.code, listed.err.as_str()), (Some(0), ""));
    let sizes: Vec<_> = listed.out.lines().map(|line| line.split_whitespace().nth(1).unwrap()).collect();
    assert_eq!(sizes, ["1.5KiB", "6B"], "{listed:?}");
    assert!(world.say(&["ls", "--help"]).out.contains("Usage: remex ls"));
}

#[test]
fn a_forgotten_colon_after_an_environment_is_pointed_out() {
    let world = World::new();
    for (args, action) in [
        (&["ls", "build"][..], "list"),
        (&["cat", "build"], "read"),
        (&["cp", "build", "copy"], "copy"),
        (&["watch", "build"], "watch"),
    ] {
        let missing = world.say(args);
        assert_eq!(missing.code, Some(3), "{missing:?}");
        assert!(missing.err.starts_with(&format!("remex: cannot {action} `build`: ")), "{missing:?}");
        let todo = "\n  hint: `build` is an environment; did you mean `build:`?\n";
        assert!(missing.err.ends_with(todo), "{missing:?}");
    }
    fs::write(world.here.path("notes"), "here").unwrap();
    let note = "remex: `build` is a new file on this machine; write `build:` for the environment\n";
    assert_eq!(world.say(&["cp", "notes", "build"]), said(0, "", note));
    world.quietly(&["cp", "notes", "build"]);
    // A file of that name is meant before the environment.
    fs::write(world.here.path("build"), "here").unwrap();
    assert_eq!(world.say(&["cat", "build"]), said(0, "here", ""));
}

#[test]
fn a_directory_is_listed_by_name() {
    let world = World::new();
    make_entries(&world);
    assert_eq!(world.say(&["ls", "build:"]), said(0, "site\n", ""));
    assert_eq!(world.say(&["ls", "build:site"]), said(0, "css\nindex\nlink\n", ""));
    assert_eq!(world.say(&["ls", "-a", "build:site/"]), said(0, ".hidden\ncss\nindex\nlink\n", ""));
    assert_eq!(
        world.say(&["ls", "build:site/index", "build:site/css"]),
        said(0, "build:site/index\n\nbuild:site/css:\n", "")
    );
    let long = world.say(&["ls", "-l", "build:site"]);
    let lines: Vec<_> = long.out.lines().collect();
    assert!(
        lines[0].starts_with("drwxr-s--- ") && lines[0].ends_with(" 2026-11-15 13:04:11 +00:00 css"),
        "{long:?}"
    );
    assert!(
        lines[1].starts_with("-rw-r--r-- ") && lines[1].ends_with("6 2026-11-15 13:04:11 +00:00 index"),
        "{long:?}"
    );
    assert!(lines[2].starts_with("lrwxrwxrwx ") && lines[2].ends_with(" link -> index"), "{long:?}");
    fs::write(world.here.path("a"), "").unwrap();
    assert_eq!(world.say(&["ls"]), said(0, "a\n", ""));
    let missing = world.say(&["ls", "build:none", "build:"]);
    assert_eq!((missing.code, missing.out.as_str()), (Some(3), "build::\nsite\n"));
    assert!(missing.err.starts_with("remex: cannot list `build:none`: No such file"), "{missing:?}");
}

#[test]
fn json_has_every_name_exactly() {
    let world = World::new();
    make_entries(&world);
    let listing: Value = serde_json::from_str(&world.say(&["ls", "--json", "build:site"]).out).unwrap();
    let mut index = listing["entries"][1].clone();
    let path = world.there.path("site/index");
    assert_eq!(listing["version"], 1);
    for member in ["uid", "gid"] {
        assert!(index.as_object_mut().unwrap().remove(member).unwrap().is_u64());
    }
    assert_eq!(
        index,
        json!({
            "name": "index",
            "path": path.to_str().unwrap(),
            "uri": format!("file://{}", path.display()),
            "kind": "file",
            "sizeBytes": 6,
            "modifiedAtMs": 1_794_747_851_000_i64,
            "mode": 0o644,
        })
    );
    assert_eq!(listing["entries"][2]["linkTarget"], "index");
    let odd = world.there.path("odd");
    fs::create_dir(&odd).unwrap();
    fs::write(odd.join(OsStr::from_bytes(b"\xff\x1b[2J")), "").unwrap();
    let raw = world.here.remex(&["ls", "build:odd"]).finished();
    assert_eq!(raw.stdout, b"\xff\x1b[2J\n");
    let listing: Value = serde_json::from_str(&world.say(&["ls", "--json", "build:odd"]).out).unwrap();
    assert!(listing["entries"][0]["uri"].as_str().unwrap().ends_with("/odd/%FF%1B[2J"), "{listing}");
    // A terminal is not given orders by a name.
    let mut screen = Screen::remex(&world.here, &["ls", "build:odd"]);
    assert_eq!(screen.end(), Some(0));
    screen.wait_for("[2J");
    assert!(!screen.raw().contains('\u{1b}'));
}

#[test]
fn a_huge_directory_is_listed_in_pages() {
    let world = World::new();
    let many = world.there.path("many");
    fs::create_dir(&many).unwrap();
    for number in 0..2500 {
        File::create(many.join(format!("{number:04}"))).unwrap();
    }
    let listed = world.say(&["ls", "build:many"]);
    let expected: String = (0..2500).map(|number| format!("{number:04}\n")).collect();
    assert!(listed == said(0, &expected, ""), "{} lines", listed.out.lines().count());
    let listing: Value = serde_json::from_str(&world.say(&["ls", "--json", "build:many"]).out).unwrap();
    assert_eq!(listing["entries"].as_array().unwrap().len(), 2500);
}

#[test]
fn cat_prints_files_byte_exactly_and_reports_unreadable_ones() {
    let world = World::new();
    let bytes: Vec<_> = (0..=255).cycle().take(1_000_000).collect();
    fs::write(world.there.path("bytes"), &bytes).unwrap();
    fs::write(world.here.path("here"), "here\n").unwrap();
    let output = world.here.remex(&["cat", "here", "build:bytes"]).finished();
    assert!(output.stdout == [b"here\n", &bytes[..]].concat(), "{output:?}");
    let home = world.there.path("none").display().to_string();
    assert_eq!(
        world.say(&["cat", "build:none", "here"]),
        said(
            3,
            "here\n",
            &format!(
                "remex: cannot read `build:none`: No such file or directory (os error 2)\n  \
                 hint: check the spelling of `{home}`\n"
            )
        )
    );
    let directory = world.say(&["cat", "build:none", "build:"]);
    assert_eq!(directory.code, Some(1), "{directory:?}");
    // Whoever has read enough is not told about it.
    sparse(&world.there.path("large"), 8);
    let mut child = world
        .here
        .remex(&["cat", "build:large"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let mut err = String::new();
    Patient::new(child.stderr.take().unwrap()).read_to_string(&mut err).unwrap();
    assert_eq!((child.ended().code(), err.as_str()), (Some(141), ""));
}

/// Starts a watch, and returns its lines.
fn watch(world: &World, flags: &[&str]) -> (Child, impl Iterator<Item = String>) {
    let args = [&["watch", "--json"], flags].concat();
    let mut child = world.here.remex(&args).stdout(Stdio::piped()).spawn().unwrap();
    let lines = BufReader::new(Patient::new(child.stdout.take().unwrap())).lines().map(Result::unwrap);
    (child, lines)
}

fn event(line: Option<String>) -> (String, String) {
    let event: Value = serde_json::from_str(&line.unwrap()).unwrap();
    assert_eq!(event["version"], 1);
    let text = |member: &str| event[member].as_str().unwrap().to_owned();
    assert!(text("uri").starts_with("file:///"));
    (text("event"), text("path"))
}

#[test]
fn changes_are_printed_until_ctrl_c() {
    let world = World::new();
    let site = world.there.path("site");
    fs::create_dir_all(site.join("css")).unwrap();
    let (mut child, mut lines) = watch(&world, &["build:site"]);
    let text = |path: &Path| path.display().to_string();
    assert_eq!(event(lines.next()), ("watching".to_owned(), text(&site)));
    fs::write(site.join("css/main"), "").unwrap();
    assert_eq!(event(lines.next()), ("created".to_owned(), text(&site.join("css/main"))));
    fs::remove_file(site.join("css/main")).unwrap();
    while event(lines.next()) != ("removed".to_owned(), text(&site.join("css/main"))) {}
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    assert_eq!(child.ended().code(), Some(0));

    let (mut child, mut lines) = watch(&world, &["--flat", "build:site"]);
    assert_eq!(event(lines.next()).0, "watching");
    fs::write(site.join("css/deep"), "").unwrap();
    fs::write(site.join("shallow"), "").unwrap();
    while event(lines.next()) != ("created".to_owned(), text(&site.join("shallow"))) {}
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    assert!(!lines.any(|line| line.contains("deep")));
    assert_eq!(child.ended().code(), Some(0));
}

#[test]
fn removal_of_a_path_never_reported_as_created_is_not_printed() {
    let world = World::new();
    let site = world.there.path("site");
    fs::create_dir(&site).unwrap();
    fs::write(site.join("old"), "").unwrap();
    let (mut child, mut lines) = watch(&world, &["build:site"]);
    assert_eq!(event(lines.next()).0, "watching");
    // As editors write: a file beside the other, which then takes its name.
    for _ in 0..20 {
        fs::write(site.join("aside"), "new").unwrap();
        fs::rename(site.join("aside"), site.join("old")).unwrap();
    }
    fs::remove_file(site.join("old")).unwrap();
    let mut is_known = false;
    loop {
        let (word, path) = event(lines.next());
        if path.ends_with("/aside") {
            assert!(word == "created" || is_known, "{word} of what was never told of");
            is_known = word != "removed";
        } else if word == "removed" {
            assert!(path.ends_with("/old"), "{path}");
            break;
        }
    }
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    assert_eq!(child.ended().code(), Some(0));
}

#[test]
fn changes_are_printed_one_per_line() {
    let world = World::new();
    let mut screen = Screen::remex(&world.here, &["watch", "build:"]);
    screen.wait_for("remex: watching `build:`; Ctrl-C stops it");
    fs::create_dir(world.there.path("new")).unwrap();
    screen.wait_for("created   /");
    screen.keys("\u{3}");
    assert_eq!(screen.end(), Some(0));
    let missing = world.say(&["watch", "build:none"]);
    assert_eq!(missing.code, Some(3));
    assert!(missing.err.starts_with("remex: cannot watch `build:none`: No such file"), "{missing:?}");
}

#[test]
fn several_paths_are_listed_separately_and_failures_are_reported() {
    let world = World::new();
    fs::create_dir(world.there.path("site")).unwrap();
    fs::write(world.there.path("site/index"), "<html>").unwrap();
    symlink("nowhere", world.there.path("link")).unwrap();
    let listed = world.say(&["ls", "build:site", "[ws://127.0.0.1:1]:a", "build:link"]);
    assert_eq!((listed.code, listed.out.as_str()), (Some(4), "build:site:\nindex\n\nbuild:link\n"));
    assert!(listed.err.contains("127.0.0.1:1"), "{listed:?}");
    let link = world.say(&["ls", "-l", "build:link"]).out;
    assert!(link.starts_with("lrwxrwxrwx 7 20") && link.ends_with(" build:link -> nowhere\n"), "{link}");
}

#[test]
fn a_socket_is_reported_and_not_read() {
    let world = World::new();
    let socket = world.there.path("sock");
    let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    let shown = socket.display();
    for (command, action) in [("cat", "read"), ("edit", "edit")] {
        assert_eq!(
            world.say(&[command, "build:sock"]),
            said(
                1,
                "",
                &format!(
                    "remex: cannot {action} `build:sock`: No such device or address (os error 6)\n  \
                     hint: `{shown}` is a socket, or a device that does not exist; name a regular file\n"
                )
            )
        );
    }
}
