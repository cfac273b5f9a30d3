//! `remex mkdir`, `mv` and `rm` of paths.

use std::{
    fs,
    os::unix::fs::{MetadataExt as _, symlink},
};

use serde_json::json;

use super::{World, said, serve, tree};
use crate::{
    background_processes::{UserSession, out},
    home::Home,
    support::{Need, skip},
};

#[test]
fn directories_are_created_with_and_without_their_parents() {
    let world = World::new();
    world.quietly(&["mkdir", "build:logs", "here"]);
    world.quietly(&["mkdir", "-p", "build:a/b/c", "build:logs"]);
    assert!(
        world.there.path("logs").is_dir()
            && world.there.path("a/b/c").is_dir()
            && world.here.path("here").is_dir()
    );
    assert_eq!(
        world.say(&["mkdir", "build:logs", "build:more"]),
        said(
            1,
            "",
            "remex: cannot create `build:logs`: File exists (os error 17)\n  \
             hint: choose another name; with `-p` an existing directory is no error\n"
        )
    );
    assert!(world.there.path("more").is_dir(), "the others are made all the same");
    let missing = world.say(&["mkdir", "build:no/such"]);
    assert!(missing.code == Some(3) && missing.err.contains("add `-p`"), "{missing:?}");
}

#[test]
fn files_and_directories_are_renamed_and_moved_into_directories() {
    let world = World::new();
    for name in ["one", "two", "three"] {
        fs::write(world.there.path(name), name).unwrap();
    }
    fs::create_dir_all(world.there.path("into")).unwrap();
    fs::create_dir_all(world.there.path("tree/below")).unwrap();
    symlink("nowhere", world.there.path("dangling")).unwrap();
    world.quietly(&["mv", "build:one", "build:first"]);
    world.quietly(&["mv", "build:first", "build:two", "build:tree", "build:dangling", "build:into"]);
    let names: Vec<_> = tree(&world.there.path("into")).into_keys().collect();
    assert_eq!(names, [&b"dangling"[..], b"first", b"tree", b"tree/below", b"two"]);
    // A file replaces a file, unless that is not wanted.
    assert_eq!(world.say(&["mv", "-n", "build:three", "build:into/two"]).code, Some(1));
    assert_eq!(fs::read_to_string(world.there.path("into/two")).unwrap(), "two");
    world.quietly(&["mv", "build:three", "build:into/two"]);
    assert_eq!(fs::read_to_string(world.there.path("into/two")).unwrap(), "three");
    assert!(!world.there.path("three").exists());
}

#[test]
fn moving_onto_a_hard_link_of_the_source_removes_the_source() {
    let world = World::new();
    let (one, two) = (world.there.path("one"), world.there.path("two"));
    fs::write(&one, "content").unwrap();
    fs::hard_link(&one, &two).unwrap();
    world.quietly(&["mv", "build:one", "build:two"]);
    assert!(!one.exists());
    assert_eq!(fs::read_to_string(&two).unwrap(), "content");
    // The same name, by way of a link, is the same entry: it stays.
    fs::hard_link(&two, &one).unwrap();
    symlink(".", world.there.path("here")).unwrap();
    assert_eq!(world.say(&["mv", "build:one", "build:here/one"]).code, Some(1));
    assert!(one.exists());
}

#[test]
fn a_move_between_file_systems_fails_with_the_command_that_works() {
    let world = World::new();
    let Ok(other) = tempfile::tempdir_in("/dev/shm") else {
        return skip(Need::Mounts, "there is no /dev/shm");
    };
    let device = |path: &std::path::Path| fs::metadata(path).unwrap().dev();
    fs::write(world.there.path("a file"), "content").unwrap();
    if device(other.path()) == device(&world.there.path("a file")) {
        return skip(Need::Mounts, "/dev/shm is no file system of its own");
    }
    let to = other.path().join("moved");
    let refused = world.say(&["mv", "build:a file", &format!("build:{}", to.display())]);
    assert_eq!(refused.code, Some(1), "{refused:?}");
    let command = format!(
        "`remex run --on build -- mv -T '{}' {}`",
        world.there.path("a file").display(),
        to.display()
    );
    assert!(refused.err.contains(&command), "{refused:?}");
    assert!(world.there.path("a file").exists() && !to.exists());
}

#[test]
fn a_move_that_would_lose_data_is_refused() {
    let world = World::new();
    fs::create_dir_all(world.there.path("tree/below")).unwrap();
    fs::create_dir_all(world.there.path("other")).unwrap();
    for name in ["file", "tree/same", "other/same", "tree/below/deep"] {
        fs::write(world.there.path(name), name).unwrap();
    }
    fs::write(world.here.path("local"), "local").unwrap();
    let before = tree(&world.there.path(""));
    for (args, code, part) in [
        (&["build:tree", "build:tree/below"][..], 1, "`build:tree/below/tree` is inside of it"),
        (&["build:file", "build:./file"], 1, "`build:./file` is the same"),
        (&["build:tree", "build:file"], 1, "`build:file` is not a directory"),
        (&["build:file", "build:nothing/"], 3, "directory `build:nothing/` does not exist"),
        (&["build:file", "build:nothing/below"], 3, "No such file or directory"),
        (&["build:missing", "build:new"], 3, "cannot move `build:missing`: No such file or directory"),
        (&["build:tree/same", "build:other/same", "build:tree/below"], 2, "two sources with the name `same`"),
        (&["build:file", "build:tree", "build:new"], 2, "cannot move 2 sources to `build:new`"),
        (&["build:", "build:tree"], 2, "it is the home directory there, or contains it"),
        (&["local", "build:tree"], 2, "they are on different hosts"),
        (&["build:file", "here"], 2, "they are on different hosts"),
    ] {
        let refused = world.say(&[&["mv"], args].concat());
        assert_eq!((refused.code, refused.out.as_str()), (Some(code), ""), "{args:?} {refused:?}");
        assert!(refused.err.contains(part), "{args:?} {refused:?}");
    }
    assert_eq!(tree(&world.there.path("")), before);
    assert!(world.here.path("local").exists());
}

#[test]
fn files_are_removed_and_links_are_not_followed() {
    let world = World::new();
    fs::create_dir_all(world.there.path("tree/below")).unwrap();
    fs::create_dir_all(world.there.path("kept")).unwrap();
    for name in ["file", "tree/below/file", "kept/file"] {
        fs::write(world.there.path(name), name).unwrap();
    }
    for (target, name) in [("kept", "link"), ("../kept", "tree/link"), ("nowhere", "dangling")] {
        symlink(target, world.there.path(name)).unwrap();
    }
    assert_eq!(
        world.say(&["rm", "build:tree", "build:file"]),
        said(
            1,
            "",
            "remex: cannot remove `build:tree`: it is a directory\n  \
             hint: add `-r` to remove it with everything in it\n"
        )
    );
    let slash = world.say(&["rm", "-r", "build:link/"]);
    assert!(slash.code == Some(1) && slash.err.contains("it is a link"), "{slash:?}");
    world.quietly(&["rm", "-r", "build:tree", "build:link", "build:dangling"]);
    let names: Vec<_> = tree(&world.there.path("")).into_keys().collect();
    assert_eq!(names, [&b"kept"[..], b"kept/file"]);
    assert_eq!(world.say(&["rm", "build:missing"]).code, Some(3));
    world.quietly(&["rm", "-f", "build:missing"]);
}

#[test]
fn home_and_root_directories_are_never_removed() {
    let world = World::new();
    fs::create_dir(world.there.path("site")).unwrap();
    symlink("..", world.there.path("up")).unwrap();
    let home = fs::canonicalize(world.there.path("")).unwrap();
    let (absolute, name) = (format!("build:{}", home.display()), home.file_name().unwrap().to_str().unwrap());
    for path in [
        "build:",
        "build:.",
        "build:~",
        "build:/",
        "build:..",
        "build:site/..",
        "build:site/.",
        &absolute,
        &format!("build:up/{name}"),
    ] {
        let refused = world.say(&["rm", "-rf", "build:site", path]);
        assert_eq!((refused.code, refused.out.as_str()), (Some(2), ""), "{path} {refused:?}");
        assert!(world.there.path("site").exists(), "{path}: nothing is removed");
    }
}

#[test]
fn only_a_colon_distinguishes_files_from_processes() {
    let user = UserSession::open("night");
    let there = Home::new();
    let server = serve(&there);
    user.home.add_environment("box", server.address());
    for name in ["job", "box"] {
        user.client.shell(name, "exit 3");
        user.client.collect(name);
        fs::write(there.path(name), name).unwrap();
        fs::write(user.home.path(name), name).unwrap();
    }
    // With a colon, no process is touched, whatever it is called.
    assert_eq!(out(user.say(&["rm", "box:job"])), "");
    assert!(!there.path("job").exists() && user.home.path("job").exists());
    assert_eq!(out(user.say(&["ps", "-aq"])), "job\nbox\n");
    // Without one, no file is, and flags for files spare the process.
    for args in [
        &["rm", "-r", "job"][..],
        &["rm", "-f", "job"],
        &["rm", "job", "box:box"],
        &["rm", "--here", "box:box"],
    ] {
        let refused = user.say(args);
        assert_eq!((refused.code, refused.out.as_str()), (Some(2), ""), "{args:?} {refused:?}");
    }
    assert_eq!(out(user.say(&["ps", "-aq"])), "job\nbox\n");
    let missing = user.say(&["rm", "./job"]);
    assert!(missing.code == Some(3) && missing.err.contains("write `ENV:./job`"), "{missing:?}");
    let removed: serde_json::Value = serde_json::from_str(&out(user.say(&["rm", "--json", "job"]))).unwrap();
    assert_eq!((&removed["version"], &removed["removed"][0]["name"]), (&json!(1), &json!("job")));
    assert_eq!(removed["removed"][0]["exitCode"], 3);
    assert_eq!(out(user.say(&["rm", "box"])), "removed `box` (it exited with code 3)\n");
    assert!(there.path("box").exists() && user.home.path("box").exists());
}
