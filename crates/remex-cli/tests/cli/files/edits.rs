//! `remex edit`: what is written back, and what is not.

use std::{
    fs::{self, Permissions},
    os::unix::fs::PermissionsExt as _,
    path::PathBuf,
    process::Stdio,
};

use rustix::process::{Pid, Signal, kill_process};

use super::{World, said};
use crate::{
    home::{self, Home, Said},
    screen::Screen,
    support::{InTime as _, Server},
};

/// Edits with a script that has the name of the copy in `$1`; temporary files are in the home.
fn edit(world: &World, path: &str, script: &str) -> Said {
    fs::write(world.here.path("editor"), script).unwrap();
    fs::create_dir_all(world.here.path("tmp")).unwrap();
    let mut command = world.here.remex(&["edit", path]);
    command.env("EDITOR", "sh '../home/editor'").env("TMPDIR", world.here.path("tmp"));
    home::said(&command.stdin(Stdio::null()).finished())
}

/// Returns the copies that were kept.
fn kept(world: &World) -> Vec<PathBuf> {
    let directories = fs::read_dir(world.here.path("tmp")).unwrap().map(|entry| entry.unwrap().path());
    directories.flat_map(|path| fs::read_dir(path).unwrap()).map(|entry| entry.unwrap().path()).collect()
}

#[test]
fn an_edited_file_is_replaced_atomically_with_its_permissions() {
    let world = World::new();
    let file = world.there.path("notes.txt");
    fs::write(&file, "one\n").unwrap();
    fs::set_permissions(&file, Permissions::from_mode(0o751)).unwrap();
    let script = "case $1 in */notes.txt) ;; *) exit 9 ;; esac\n\
                  test \"$(stat -c %a \"$(dirname \"$1\")\" \"$1\" | tr '\\n' ' ')\" = '700 600 ' || exit 8\n\
                  echo two >> \"$1\"\n";
    assert_eq!(edit(&world, "build:notes.txt", script), said(0, "", ""));
    assert_eq!(fs::read_to_string(&file).unwrap(), "one\ntwo\n");
    assert_eq!(file.metadata().unwrap().permissions().mode() & 0o7777, 0o751);
    assert_eq!(kept(&world), Vec::<PathBuf>::new());
}

#[test]
fn an_unchanged_file_is_not_written() {
    let world = World::new();
    let file = world.there.path("notes.txt");
    fs::write(&file, "one\n").unwrap();
    let before = file.metadata().unwrap().modified().unwrap();
    assert_eq!(edit(&world, "build:notes.txt", "touch \"$1\""), said(0, "", "remex: nothing was changed\n"));
    assert_eq!(file.metadata().unwrap().modified().unwrap(), before);
    let nothing = said(0, "", "remex: nothing was written, so no file was created\n");
    assert_eq!(edit(&world, "build:new", "true"), nothing);
    assert_eq!(edit(&world, "build:new", ": > \"$1\""), nothing);
    assert!(!world.there.path("new").exists());
    assert_eq!(edit(&world, "build:new", "echo new > \"$1\""), said(0, "", ""));
    assert_eq!(fs::read_to_string(world.there.path("new")).unwrap(), "new\n");
}

#[test]
fn concurrent_edits_do_not_overwrite_each_other() {
    let world = World::new();
    let file = world.there.path("notes.txt");
    for before in [Some("one\n"), None] {
        let _ = fs::remove_dir_all(world.here.path("tmp"));
        let _ = fs::remove_file(&file);
        if let Some(before) = before {
            fs::write(&file, before).unwrap();
        }
        let script = format!("echo mine > \"$1\"; echo theirs > '{}'", file.display());
        let refused = edit(&world, "build:notes.txt", &script);
        let kept = kept(&world);
        assert_eq!(fs::read_to_string(&kept[0]).unwrap(), "mine\n");
        let kept = kept[0].display();
        assert_eq!(
            refused,
            said(
                1,
                "",
                &format!(
                    "remex: cannot edit `build:notes.txt`: it has been modified in the meantime\n  \
                     hint: your version is in {kept}; compare the two, then try again\n"
                )
            )
        );
        assert_eq!(fs::read_to_string(&file).unwrap(), "theirs\n");
    }
}

#[test]
fn an_editor_that_fails_changes_nothing() {
    let world = World::new();
    let file = world.there.path("notes.txt");
    fs::write(&file, "one\n").unwrap();
    let failed = edit(&world, "build:notes.txt", "exit 3");
    assert_eq!(
        failed,
        said(
            1,
            "",
            "remex: cannot edit `build:notes.txt`: the editor `sh '../home/editor'` failed (exit status: 3), so nothing was written\n  \
             hint: save and quit the editor without an error, or set EDITOR to another one\n"
        )
    );
    assert_eq!(kept(&world), Vec::<PathBuf>::new());
    let failed = edit(&world, "build:notes.txt", "echo half > \"$1\"; exit 3");
    assert_eq!(fs::read_to_string(&kept(&world)[0]).unwrap(), "half\n");
    assert!(failed.err.contains("hint: your version is in "), "{failed:?}");
    assert_eq!(fs::read_to_string(&file).unwrap(), "one\n");
}

#[test]
fn the_hint_names_the_variable_of_the_editor() {
    let world = World::new();
    let mut command = world.here.remex(&["edit", "build:new"]);
    command.env("VISUAL", "false").env("EDITOR", "true").env("TMPDIR", world.here.path(""));
    let failed = home::said(&command.stdin(Stdio::null()).finished());
    assert_eq!(
        failed,
        said(
            1,
            "",
            "remex: cannot edit `build:new`: the editor `false` failed (exit status: 1), so nothing was written\n  \
             hint: save and quit the editor without an error, or set VISUAL to another one\n"
        )
    );
}

/// Ends `remex edit` by a signal while the editor runs; `script` runs first.
fn interrupt(world: &World, path: &str, script: &str) -> Said {
    let ready = world.here.pipe("ready");
    fs::write(world.here.path("editor"), format!("{script}\necho $$ > ready; exec sleep 1000")).unwrap();
    let _ = fs::remove_dir_all(world.here.path("tmp"));
    fs::create_dir(world.here.path("tmp")).unwrap();
    let mut command = world.here.remex(&["edit", path]);
    command.env("EDITOR", "sh editor").env("TMPDIR", world.here.path("tmp"));
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = command.spawn().unwrap();
    let editor: i32 = fs::read_to_string(&ready).unwrap().trim().parse().unwrap();
    kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
    let mut interrupted = home::said(&child.finished());
    // The shell of the editor may report the signal.
    interrupted.err = interrupted.err.replace("Terminated\n", "");
    assert!(!PathBuf::from(format!("/proc/{editor}")).exists(), "the editor is still running");
    fs::remove_file(ready).unwrap();
    interrupted
}

#[test]
fn a_signal_ends_the_editor_and_keeps_only_changes() {
    let world = World::new();
    fs::write(world.there.path("notes.txt"), "one\n").unwrap();
    for path in ["build:notes.txt", "build:new"] {
        assert_eq!(interrupt(&world, path, ":"), said(143, "", ""), "{path}");
        assert_eq!(fs::read_dir(world.here.path("tmp")).unwrap().count(), 0, "{path}");
    }
    for (script, name) in [("echo two >> \"$1\"", "notes.txt"), ("echo two > \"$1.save\"", "notes.txt.save")]
    {
        let interrupted = interrupt(&world, "build:notes.txt", script);
        let kept = kept(&world);
        assert!(kept.iter().any(|path| path.ends_with(name)), "{kept:?}");
        let directory = kept[0].parent().unwrap().display();
        let note = format!("remex: interrupted; your version is in {directory}\n");
        assert_eq!(interrupted, said(143, "", &note));
    }
    assert_eq!(fs::read_to_string(world.there.path("notes.txt")).unwrap(), "one\n");
}

#[test]
fn uneditable_files_are_reported_before_the_editor_starts() {
    let world = World::new();
    super::sparse(&world.there.path("image"), 33);
    fs::create_dir(world.there.path("site")).unwrap();
    for (path, code, err) in [
        (
            "build:image",
            1,
            "cannot edit `build:image`: its size is 33MiB, but at most 32MiB can be edited\n  \
             hint: copy it here with `remex cp`, edit it, and copy it back\n",
        ),
        ("build:site", 1, "cannot edit `build:site`: it is a directory\n  hint: name a file\n"),
        ("build:site/", 2, "cannot edit `build:site/`: it names a directory\n  hint: name the file\n"),
    ] {
        assert_eq!(edit(&world, path, "exit 7"), said(code, "", &format!("remex: {err}")));
    }
    assert_eq!(edit(&world, "build:no/such", "exit 7").code, Some(3));
}

#[test]
fn a_read_only_file_is_reported_before_the_editor_starts() {
    let world = World::new();
    let other = Home::new();
    fs::write(other.path("notes.txt"), "one\n").unwrap();
    let mut serve = other.remex(&["serve", "--sandbox", "read-only"]);
    serve.stdin(Stdio::null());
    let server = Server::launch(serve, 1);
    world.here.add_environment("reader", server.address());
    // Root can write everything but files of the kernel.
    for path in ["build:/proc/version", "reader:notes.txt", "reader:new.txt"] {
        let refused = edit(&world, path, "touch opened");
        assert_eq!((refused.code, refused.out.as_str()), (Some(1), ""), "{refused:?}");
        assert!(refused.err.starts_with(&format!("remex: cannot edit `{path}`: ")), "{refused:?}");
        assert!(refused.err.contains("; the editor was not opened\n"), "{refused:?}");
        assert!(!world.here.path("opened").exists(), "{path}");
    }
    assert_eq!(kept(&world), Vec::<PathBuf>::new());
    let names: Vec<_> = super::tree(&other.path("")).into_keys().collect();
    assert_eq!(names, [b"notes.txt"], "nothing is left of the check");
}

#[test]
fn ctrl_c_reaches_only_the_editor() {
    let world = World::new();
    fs::write(world.there.path("notes.txt"), "one\n").unwrap();
    let script = "trap 'echo two > \"$1\"; exit 0' INT; echo ready; while :; do read x; done";
    fs::write(world.here.path("editor"), script).unwrap();
    let command = "EDITOR='sh editor' exec remex edit build:notes.txt";
    let mut screen = Screen::open(&world.here, "sh", &["-c", command]);
    screen.wait_for("ready");
    screen.keys("\u{3}");
    assert_eq!(screen.end(), Some(0));
    assert_eq!(fs::read_to_string(world.there.path("notes.txt")).unwrap(), "two\n");
}
