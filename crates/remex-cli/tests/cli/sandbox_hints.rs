//! What `remex run` says when its sandbox hides or refuses something: the flag that allows it.

use std::fs;

use crate::{
    home::{Home, said},
    screen::Screen,
    support::{InTime as _, Server},
};

#[test]
fn a_directory_hidden_by_a_minimal_sandbox_is_reported_with_the_flag_to_show_it() {
    let home = Home::new();
    let hidden = home.say(&["run", "--sandbox", "minimal", "--", "pwd"]);
    assert_eq!(hidden.code, Some(125), "{hidden:?}");
    assert!(hidden.err.contains("hint: add `--read .` to let the command read this directory"), "{hidden:?}");
    let shown = home.say(&["run", "--sandbox", "minimal", "--read", ".", "--", "pwd"]);
    assert_eq!(shown.code, Some(0), "{shown:?}");
    fs::create_dir(home.path("below")).unwrap();
    let below = home.say(&["run", "--sandbox", "minimal", "--cwd", "below", "--", "pwd"]);
    assert!(below.err.contains("hint: add `--read below`"), "{below:?}");
}

#[test]
fn a_write_refused_by_a_sandbox_is_reported_with_the_flag_to_permit_it() {
    let home = Home::new();
    fs::create_dir_all(home.path("repo/.git")).unwrap();
    let run = |args: &[&str]| {
        let mut command = home.remex(&[&["run", "--sandbox", "workspace-write"], args].concat());
        said(&command.current_dir(home.path("repo")).finished())
    };
    let refused = run(&["--", "touch", ".git/index.lock"]);
    assert_eq!(refused.code, Some(1), "{refused:?}");
    assert!(refused.err.contains("Read-only file system"), "{refused:?}");
    assert!(refused.err.contains("remex: the sandbox may be the reason: `workspace-write`"), "{refused:?}");
    assert!(refused.err.contains("`--write .git`"), "{refused:?}");
    let allowed = run(&["--write", ".git", "--", "touch", ".git/index.lock"]);
    assert_eq!((allowed.code, allowed.err.as_str()), (Some(0), ""), "{allowed:?}");
    // What fails for another reason is not blamed on it.
    let other = run(&["--", "sh", "-c", "echo no >&2; exit 3"]);
    assert_eq!((other.code, other.err.as_str()), (Some(3), "no\n"), "{other:?}");
}

#[test]
fn sandbox_refusals_in_a_shell_are_printed_below_its_screen() {
    let home = Home::new();
    let server = Server::serve(&["--listen", "ws://127.0.0.1:0", "--sandbox", "read-only"]);
    let mut screen = Screen::remex(&home, &["shell", "--on", server.address()]);
    screen.keys("PS1='$ '; touch /x\r");
    screen.wait_for("Read-only file system");
    // It leaves a screen behind that is not the first one, and the cursor within a line.
    screen.keys("printf '\\033[?1049hful''led'; exit 1\r");
    assert_eq!(screen.end(), Some(1), "{}", screen.raw());
    let shown = screen.wait_for("remex: the sandbox may be the reason: its server confines");
    assert!(shown.lines().any(|line| line.starts_with("remex: the sandbox")), "{shown}");
    assert!(!shown.contains("fulled"), "{shown}");
    let run = home.say(&["run", "--on", server.address(), "--", "touch", "/x"]);
    assert!(run.err.contains("\nremex: the sandbox may be the reason: its server confines"), "{run:?}");
}

#[test]
fn sandbox_refusals_are_reported_to_attached_clients() {
    let home = Home::new();
    let script = "touch /x; printf half >&2; exit 1";
    let start = ["run", "--detach", "--name", "work", "--sandbox", "read-only", "--", "sh", "-c", script];
    assert_eq!(home.say(&start).code, Some(0));
    assert_eq!(home.say(&["wait", "work"]).code, Some(1));
    let said = home.say(&["attach", "work"]);
    assert_eq!(said.code, Some(1), "{said:?}");
    let notice = "half\nremex: the sandbox may be the reason; `--write PATH` and `--read PATH` of `remex run` allow more";
    assert!(said.err.contains(notice), "{said:?}");
}
