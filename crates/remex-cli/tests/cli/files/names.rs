//! Names and arguments that are not UTF-8.

use std::{
    ffi::{OsStr, OsString},
    fs,
    os::unix::ffi::OsStrExt as _,
    path::PathBuf,
    process::Stdio,
};

use super::World;
use crate::home::Home;

/// `caf\xe9`, as it is written in Latin-1.
const CAFE: &[u8] = b"caf\xe9";

fn cafe() -> OsString {
    OsStr::from_bytes(CAFE).to_owned()
}

/// Returns the name at a place, or with something else before it.
fn at(before: &str) -> OsString {
    let mut name = OsString::from(before);
    name.push(cafe());
    name
}

fn path(home: &Home) -> PathBuf {
    home.path(".").join(cafe())
}

/// Runs the program, and returns its exit code and what it printed, byte by byte.
fn say(home: &Home, args: &[&OsStr]) -> (Option<i32>, Vec<u8>, String) {
    let output = home.remex(&[]).args(args).stdin(Stdio::null()).output().unwrap();
    (output.status.code(), output.stdout, String::from_utf8_lossy(&output.stderr).into_owned())
}

fn words(words: &[&'static str]) -> Vec<&'static OsStr> {
    words.iter().map(|word| OsStr::new(*word)).collect()
}

#[test]
fn files_whose_names_are_not_utf_8_are_copied_listed_printed_and_edited() {
    let world = World::new();
    fs::write(path(&world.here), "un caf\u{e9}\n").unwrap();
    let nothing = (Some(0), Vec::new(), String::new());

    // There, back, and within this machine.
    assert_eq!(say(&world.here, &[OsStr::new("cp"), &cafe(), OsStr::new("build:")]), nothing);
    assert_eq!(say(&world.here, &[OsStr::new("cp"), &at("build:"), &at("back-")]), nothing);
    assert_eq!(say(&world.here, &[OsStr::new("cp"), &cafe(), &at("build:dir-")]), nothing);
    for copy in [path(&world.there), world.here.path(".").join(at("back-"))] {
        assert_eq!(fs::read_to_string(copy).unwrap(), "un caf\u{e9}\n");
    }

    for name in [cafe(), at("./"), at("build:")] {
        let content = (Some(0), "un caf\u{e9}\n".as_bytes().to_vec(), String::new());
        assert_eq!(say(&world.here, &[OsStr::new("cat"), &name]), content, "{}", name.display());
        // Exact for programs.
        let listed = [name.as_bytes(), b"\n"].concat();
        assert_eq!(say(&world.here, &[OsStr::new("ls"), &name]), (Some(0), listed, String::new()));
    }
    let (code, out, err) = say(&world.here, &[OsStr::new("ls"), OsStr::new("--json"), &at("build:")]);
    assert_eq!((code, err.as_str()), (Some(0), ""));
    assert!(String::from_utf8(out).unwrap().contains("/caf%E9\""));

    let editor = OsStr::new("sed -i s/un/deux/");
    let output = world
        .here
        .remex(&["edit"])
        .arg(at("build:"))
        .env("EDITOR", editor)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    assert_eq!(fs::read_to_string(path(&world.there)).unwrap(), "deux caf\u{e9}\n");

    let missing = say(&world.here, &[OsStr::new("cat"), &at("build:no-")]);
    assert_eq!(missing.0, Some(3));
    assert!(missing.2.starts_with("remex: cannot read `build:no-caf\u{fffd}`: "), "{}", missing.2);
}

#[test]
fn arguments_that_are_not_utf_8_reach_the_command_verbatim() {
    let world = World::new();
    for begin in [&["run", "--"][..], &["run", "--on", "build", "--"], &["run", "--on", "build", "-t", "--"]]
    {
        let mut args = words(begin);
        let word = cafe();
        args.extend(words(&["printf", "%s"]));
        args.push(&word);
        assert_eq!(say(&world.here, &args), (Some(0), CAFE.to_vec(), String::new()), "{begin:?}");
    }
    // Also the name of the program, and of the directory.
    let directory = path(&world.here);
    fs::create_dir(&directory).unwrap();
    std::os::unix::fs::symlink("/bin/pwd", directory.join(cafe())).unwrap();
    let output = world.here.remex(&["run", "--"]).arg(at("./")).current_dir(&directory).output().unwrap();
    assert!(output.stdout.ends_with(b"/caf\xe9\n"), "{output:?}");
}

#[test]
fn processes_with_unusual_arguments_can_be_listed_and_killed() {
    let home = Home::new();
    let mut args = words(&["run", "--detach", "--name", "odd", "--", "sh", "-c", "sleep 1000"]);
    let word = cafe();
    args.push(&word);
    assert_eq!(say(&home, &args), (Some(0), b"odd\n".to_vec(), String::new()));
    let listed = home.say(&["ps", "--json"]);
    assert!(listed.out.contains("caf\u{fffd}"), "{listed:?}");
    assert_eq!(home.say(&["kill", "--tree", "odd"]).code, Some(0));
}
