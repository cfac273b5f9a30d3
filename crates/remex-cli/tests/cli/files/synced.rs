//! `remex cp --delete`: what is deleted at the destination, and what never is.

use std::{fs, os::unix::fs::symlink, path::Path};

use super::{World, said, tree};
use crate::home::Home;

fn write(home: &Home, files: &[&str]) {
    for name in files {
        let path = home.path(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, *name).unwrap();
    }
}

fn files(root: &Path) -> Vec<String> {
    let names = tree(root).into_keys().map(|name| String::from_utf8(name).unwrap());
    names.filter(|name| !root.join(name).is_dir()).collect()
}

fn sorted(text: &str) -> Vec<&str> {
    let mut lines: Vec<_> = text.lines().collect();
    lines.sort_unstable();
    lines
}

#[test]
fn entries_missing_in_the_source_are_deleted_in_either_direction() {
    let world = World::new();
    write(&world.there, &["outside/kept"]);
    for (source, copy, from, to) in [
        (&world.here, &*world.there, "site/.", "build:copy"),
        (&*world.there, &world.here, "build:site/.", "copy"),
    ] {
        write(source, &["site/index", "site/css/main"]);
        fs::create_dir(source.path("site/empty")).unwrap();
        let extraneous =
            ["copy/old", "copy/css/old", "copy/css/z", "copy/gone/a/b", "copy/gone/c", "copy/.hidden"];
        write(copy, &extraneous);
        fs::create_dir_all(copy.path("copy/empty/not")).unwrap();
        // What a link leads to is not in the copy.
        symlink(world.there.path("outside"), copy.path("copy/link")).unwrap();
        symlink("nowhere", copy.path("copy/gone/dangling")).unwrap();
        world.quietly(&["cp", "--delete", from, to]);
        let (mut found, mut expected) = (tree(&copy.path("copy")), tree(&source.path("site")));
        assert_eq!(
            found.remove(&b"empty"[..]).map(|one| one.0),
            expected.remove(&b"empty"[..]).map(|one| one.0)
        );
        assert_eq!(found, expected, "{from}");
    }
    assert_eq!(files(&world.there.path("outside")), ["kept"]);
}

#[test]
fn a_dry_run_and_a_summary_name_deleted_entries() {
    let world = World::new();
    write(&world.here, &["site/index"]);
    write(&world.there, &["copy/old", "copy/gone/a"]);
    let before = tree(&world.there.path("copy"));
    let dry = world.say(&["cp", "-n", "--delete", "site/.", "build:copy"]);
    assert_eq!((dry.code, dry.err.as_str()), (Some(0), ""));
    let expected = [
        "copy site/index -> build:copy/index",
        "delete build:copy/gone",
        "delete build:copy/gone/a",
        "delete build:copy/old",
    ];
    assert_eq!(sorted(&dry.out), expected);
    assert_eq!(tree(&world.there.path("copy")), before);
    let loud = world.say(&["cp", "-v", "--delete", "site/.", "build:copy"]);
    assert_eq!(sorted(&loud.out), sorted(&dry.out));
    assert!(loud.err.ends_with("; 3 deleted\n"), "{loud:?}");
    assert_eq!(files(&world.there.path("copy")), ["index"]);
}

#[test]
fn excluded_entries_are_not_deleted() {
    let world = World::new();
    write(&world.here, &["site/index", "site/app.log", "site/target/here"]);
    fs::write(world.here.path("site/.gitignore"), "/secret\n").unwrap();
    write(
        &world.there,
        &["copy/old", "copy/app.log", "copy/target/there", "copy/gone/a", "copy/gone/b.log", "copy/secret"],
    );
    world.quietly(&[
        "cp",
        "--delete",
        "--gitignore",
        "--exclude=*.log",
        "--exclude=target/",
        "site/.",
        "build:copy",
    ]);
    assert_eq!(
        files(&world.there.path("copy")),
        [".gitignore", "app.log", "gone/b.log", "index", "secret", "target/there"]
    );
    assert_eq!(fs::read_to_string(world.there.path("copy/app.log")).unwrap(), "copy/app.log");
}

#[test]
fn nothing_is_deleted_if_something_could_not_be_copied() {
    let world = World::new();
    write(&world.here, &["site/index", "site/css/main"]);
    write(&world.there, &["copy/old", "copy/css/old", "copy/index/in-the-way"]);
    let note = "remex: nothing was deleted, because not everything could be copied\n";
    let before = files(&world.there.path("copy"));
    let failed = world.say(&["cp", "--delete", "site/.", "build:copy"]);
    assert_eq!(failed.code, Some(1));
    assert!(
        failed.err.contains("`build:copy/index` is a directory\n") && failed.err.ends_with(note),
        "{failed:?}"
    );
    for name in before {
        assert!(world.there.path("copy").join(&name).exists(), "{name}");
    }
    // A source that is missing may have been what is there.
    let failed = world.say(&["cp", "--delete", "site", "missing", "build:copy"]);
    assert!(failed.code == Some(3) && failed.err.ends_with(note), "{failed:?}");
    assert_eq!(world.say(&["cp", "--delete", "missing/.", "build:copy"]).code, Some(3));
    assert!(world.there.path("copy/old").exists());
}

#[test]
fn deleting_a_source_or_its_copy_is_refused() {
    let world = World::new();
    write(&world.here, &["site/index", "more/notes", "notes"]);
    write(&world.there, &["copy/old", "outer/inner/index"]);
    assert_eq!(
        world.say(&["cp", "--delete", "notes", "build:copy"]),
        said(
            2,
            "",
            "remex: `--delete` has no effect on files\n  hint: copy a directory, or omit `--delete`\n"
        )
    );
    let both = world.say(&["cp", "--delete", "site/.", "notes", "build:copy"]);
    assert_eq!(both.code, Some(2));
    assert!(
        both.err.starts_with("remex: cannot copy `notes` into `build:copy` with `--delete`: "),
        "{both:?}"
    );
    let inner = world.say(&["cp", "--delete", "build:outer/inner/.", "build:outer"]);
    assert_eq!(inner.code, Some(1));
    assert!(inner.err.contains("it is inside of `build:outer`, so `--delete` would delete it"), "{inner:?}");
    assert!(world.there.path("copy/old").exists() && world.there.path("outer/inner/index").exists());
}
