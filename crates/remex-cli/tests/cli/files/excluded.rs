//! What `remex cp` leaves out: by rules, by `.gitignore` files, and because the content is there.

use std::{
    fs,
    path::Path,
    time::{Duration, SystemTime},
};

use super::{World, tree};

fn set_time(path: &Path, seconds: u64) {
    let time = SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
    fs::File::open(path).unwrap().set_modified(time).unwrap();
}

fn names(root: &Path) -> Vec<String> {
    let names = tree(root).into_keys().map(|name| String::from_utf8(name).unwrap());
    names.filter(|name| !root.join(name).is_dir()).collect()
}

/// Makes a project with things that can be built again.
fn make_project(home: &crate::home::Home) {
    let files = [
        ("project/.gitignore", "*.o\n/target/\n"),
        ("project/lib/.gitignore", "!keep.o\n/private\n"),
        ("project/main.c", "int main(void) {}\n"),
        ("project/main.o", "object"),
        ("project/target/main", "program"),
        ("project/lib/keep.o", "object"),
        ("project/lib/private", "secret"),
        ("project/notes.log", "log"),
    ];
    for (name, content) in files {
        let path = home.path(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }
}

#[test]
fn rules_and_gitignore_files_exclude_entries_in_both_directions() {
    let world = World::new();
    make_project(&world.here);
    make_project(&world.there);
    let expected = [".gitignore", "lib/.gitignore", "lib/keep.o", "main.c"];
    for (from, to, copy) in [
        ("project", "build:copy", world.there.path("copy")),
        ("build:project", "copy", world.here.path("copy")),
    ] {
        world.quietly(&["cp", "--gitignore", "--exclude", "*.log", from, to]);
        assert_eq!(names(&copy), expected, "{from}");
    }
    world.quietly(&[
        "cp",
        "--exclude=*.o",
        "--exclude=!main.o",
        "--exclude=/target",
        "project",
        "build:some",
    ]);
    let expected =
        [".gitignore", "lib/.gitignore", "lib/private", "main.c", "main.o", "notes.log"].map(str::to_owned);
    assert_eq!(names(&world.there.path("some")), expected);
    // A source that is named is copied whatever the rules say.
    world.quietly(&["cp", "--exclude", "*.o", "project/main.o", "build:"]);
    assert!(world.there.path("main.o").exists());
}

#[test]
fn a_dry_run_and_a_summary_count_excluded_entries() {
    let world = World::new();
    make_project(&world.here);
    let dry = world.say(&["cp", "-n", "--gitignore", "project/.", "build:"]);
    assert_eq!((dry.code, dry.err.as_str()), (Some(0), ""));
    assert!(dry.out.contains("main.c") && !dry.out.contains("main.o"), "{}", dry.out);
    let loud = world.say(&["cp", "-v", "--gitignore", "project/.", "build:"]);
    assert!(loud.err.contains("5 files copied") && loud.err.contains("; 3 excluded"), "{}", loud.err);
}

#[test]
fn checksum_compares_content() {
    let world = World::new();
    fs::create_dir(world.here.path("data")).unwrap();
    for name in ["same", "other"] {
        fs::write(world.here.path("data").join(name), "content").unwrap();
        set_time(&world.here.path("data").join(name), 1_000);
    }
    world.quietly(&["cp", "data/.", "build:"]);
    set_time(&world.here.path("data/same"), 2_000);
    fs::write(world.here.path("data/other"), "CONTENT").unwrap();
    set_time(&world.here.path("data/other"), 1_000);
    world.quietly(&["cp", "data/.", "build:"]);
    assert_eq!(
        fs::read_to_string(world.there.path("other")).unwrap(),
        "content",
        "size and time are the same"
    );
    set_time(&world.here.path("data/same"), 3_000);
    let loud = world.say(&["cp", "-vc", "data/.", "build:"]);
    assert!(loud.out.contains("skip data/same -> "), "{}", loud.out);
    assert!(loud.err.contains("1 file skipped with the same content"), "{}", loud.err);
    assert_eq!(fs::read_to_string(world.there.path("other")).unwrap(), "CONTENT");
    let modified = fs::metadata(world.there.path("same")).unwrap().modified().unwrap();
    assert_eq!(modified, SystemTime::UNIX_EPOCH + Duration::from_secs(3_000), "the time is updated");
}

#[test]
fn an_invalid_rule_is_a_usage_error() {
    let world = World::new();
    let refused = world.say(&["cp", "--exclude", "[z-a]", "project", "build:"]);
    assert_eq!((refused.code, refused.out.as_str()), (Some(2), ""));
    assert!(refused.err.contains("cannot exclude `[z-a]`"), "{}", refused.err);
}
